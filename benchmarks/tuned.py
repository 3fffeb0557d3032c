"""What the tuned settings reach on seeds that chose nothing: time and steps to the return that each entry states.

    python benchmarks/tuned.py                            # what is missing, in one process each
    python benchmarks/tuned.py --tasks dqn-lander --seeds 1000

Seconds are those of the CPU where all is in one process, so that other work on the machine does not count; on Ray those of the clock.
Tasks, returns and how these are confirmed are those of `raypid reproduce` (`raypid/run/reproduce.py`). Seeds 1000 and up are used for nothing
else. Rows have the versions of the packages that decide about returns. They are written as runs end, to raypid/tuned_results.json, which
`raypid list tuned` shows, and to benchmarks/results/tuned.md; a second call goes on.
dqn-pong takes most of an hour: without --tasks it has the row of `learning.py`, whose seed it was chosen on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flags import one_of, several, whole
from learning import LONG, TASKS

import raypid
from raypid.run.reproduce import TUNED_TASKS, measure, versions
from raypid.settings.tuned import FIRST_SEED, HEADINGS, TUNED, cells

STORE = Path(raypid.__file__).parent / "tuned_results.json"
TABLE = Path(__file__).parent / "results" / "tuned.md"


def tasks() -> list[str]:
    """The task of each tuned entry that does not take most of an hour."""
    names = {(task.algo, task.env): name for name, task in TASKS.items() if task in TUNED_TASKS.values()}
    return [names[entry] for entry in sorted(TUNED) if names[entry] not in LONG]


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of entries that take most of an hour: what `learning.py` measured with the seed that they were chosen on."""
    measured = {(row["algorithm"], row["env"]) for row in rows if row["seed"] >= FIRST_SEED}
    found = []
    for row in json.loads((TABLE.parent / "learning.json").read_text()):
        task = TASKS.get(row["task"])
        if task is not None and row["task"] in LONG and (task.algo, task.env) in TUNED.keys() - measured:
            kept = ("seed", "backend", "threshold", "solved", "steps", "return", "seconds", "versions")
            entry = {"algorithm": task.algo, "env": task.env}
            found.append({**entry, **{key: row[key] for key in kept if key in row}})
    return found


def _line(*words: str) -> str:
    return f"| {' | '.join(words)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=several(one_of(TASKS)), default=list(tasks()))
    parser.add_argument("--seeds", type=several(whole(0)), default=[1000, 1001, 1002])
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(STORE.read_text()) if STORE.exists() else []
    for name in options.tasks:
        task = TASKS[name]
        for seed in options.seeds:
            entry = {"algorithm": task.algo, "env": task.env, "seed": seed}
            if any(entry.items() <= row.items() for row in rows):
                continue
            found = measure(task, seed)
            reached = {"backend": found.backend, "threshold": task.threshold, "solved": found.solved}
            spent = {"steps": found.steps, "return": found.mean_return, "seconds": found.seconds}
            rows.append({**entry, **reached, **spent, "versions": versions(task.env)})
            print(json.dumps(rows[-1]), flush=True)
            rows.sort(key=lambda row: (row["algorithm"], row["env"], row["seed"]))
            STORE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    rows = [row for row in rows if row["seed"] >= FIRST_SEED] + chosen(rows)
    rows.sort(key=lambda row: (row["algorithm"], row["env"], row["seed"]))
    STORE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    lines = [_line("algorithm", "environment", *HEADINGS), "|---" * 6 + "|"]
    lines += [_line(algorithm, env, *cells(algorithm, env)) for algorithm, env in sorted(TUNED)]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
