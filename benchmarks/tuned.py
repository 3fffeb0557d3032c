"""What the tuned settings reach on seeds that chose nothing: time and steps to the return that each entry states.

    python benchmarks/tuned.py                            # what is missing, in one process each
    python benchmarks/tuned.py --tasks dqn-lander --seeds 1000

Seconds are those of the CPU where all is in one process, so that other work on the machine does not count; on Ray those of the clock.
The tasks, their returns and how these are confirmed are those of `learning.py`. Seeds 1000 and up are used for nothing else. Rows are written
as runs end, to raypid/tuned_results.json, which `raypid list tuned` shows, and to benchmarks/results/tuned.md; a second call goes on.
sac-halfcheetah and dqn-pong take most of an hour: without --tasks they have the rows of `learning.py`, whose seed they were chosen on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flags import one_of, several, whole
from learning import TASKS, run_task

import raypid
from raypid.tuned import TUNED, described

STORE = Path(raypid.__file__).parent / "tuned_results.json"
TABLE = Path(__file__).parent / "results" / "tuned.md"


def tasks() -> list[str]:
    """The task of each tuned entry that does not take most of an hour."""
    by_entry = {
        (task.algo, task.env): name
        for name, task in reversed(TASKS.items())
        if not task.config or "ray" in task.backends
    }
    return [by_entry[entry] for entry in sorted(TUNED) if entry in by_entry and not TASKS[by_entry[entry]].long]


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of entries that take most of an hour: what `learning.py` measured with the seed that they were chosen on."""
    measured = {(row["algorithm"], row["env"]) for row in rows if row["seed"] >= 1000}
    found = []
    for row in json.loads((TABLE.parent / "learning.json").read_text()):
        task = TASKS.get(row["task"])
        if task is not None and task.long and (task.algo, task.env) not in measured:
            kept = ("seed", "backend", "threshold", "solved", "steps", "return", "seconds")
            found.append({"algorithm": task.algo, "env": task.env, **{key: row[key] for key in kept}})
    return found


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
            found = run_task(name, seed, task.backends[0])
            kept = ("backend", "threshold", "solved", "steps", "return")
            seconds = found[
                "cpu_seconds" if found["backend"] == "local" else "seconds"
            ]  # one process: a busy machine does not matter
            rows.append({**entry, **{key: found[key] for key in kept}, "seconds": seconds})
            print(json.dumps(rows[-1]), flush=True)
            rows.sort(key=lambda row: (row["algorithm"], row["env"], row["seed"]))
            STORE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    rows = [row for row in rows if row["seed"] >= 1000] + chosen(rows)
    rows.sort(key=lambda row: (row["algorithm"], row["env"], row["seed"]))
    STORE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    lines = ["| algorithm | environment | on seeds 1000 and up |", "|---|---|---|"]
    lines += [f"| {algorithm} | {env} | {described(algorithm, env)} |" for algorithm, env in sorted(TUNED)]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
