"""What each step of the tutorial gains: seconds to a return of 195, and environment steps a second.

    python benchmarks/tutorial.py              # three runs of each part, in turn
    python benchmarks/tutorial.py --runs 1 --add   # one more of each, besides those in results/tutorial.json

The parts are the files of examples/tutorial as they stand, each run a process of its own with seeds of its own. Their clocks start when all
roles are up and end at the return: a mean of 20 training episodes, of part 3 a greedy evaluation. The environment waits 5 ms a step, so one
environment makes fewer than 200 steps a second: that is the bound of part 1, and 8 times that the bound of the others.
results/tutorial.md has the table: the median time with the shortest and the longest, and the median steps/s.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

from flags import add_results_folder, positive, results_folder, whole
from reporting import markdown, save, stored

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "tutorial"
PARTS: dict[str, list[str]] = {
    "1: one process": ["part1.py"],
    "2: 8 rollouts by hand, a call for each step": ["part2_by_hand.py", "--fragment", "1"],
    "2: 8 rollouts by hand, a call for 50 steps": ["part2_by_hand.py"],
    "2: 8 rollouts, raypid's roles": ["part2_roles.py"],
    "3: two nodes, 2 shards": ["part3.py"],
    "3: the same, a node is killed after 8 s": ["part3.py", "--kill", "8"],
}
BOUND = 200.0


def run(words: list[str], timeout_s: float) -> tuple[int, float]:
    """(environment steps, seconds) to the return."""
    done = subprocess.run([sys.executable, *words], cwd=FOLDER, capture_output=True, text=True, timeout=timeout_s)
    found = re.search(r"after (\d+) steps and ([\d.]+) s", done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return int(found[1]), float(found[2])


def run_part(words: list[str], timeout_s: float) -> tuple[int, float]:
    """The same; of a part that kills a node, the first run in which it was killed before the return was there."""
    while float(words[-1] if "--kill" in words else 0) > (measured := run(words, timeout_s))[1]:
        print(f"{' '.join(words)} was done before the kill: once more", flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=whole(0), default=3, help="of each part; 0 with --add: only write the table anew"
    )
    parser.add_argument("--timeout", type=positive, default=600.0, help="seconds of a run")
    parser.add_argument(
        "--add", action="store_true", help="keep the runs that results/tutorial.json has, and add these"
    )
    add_results_folder(parser, "one run of each part")
    options = parser.parse_args()
    if not (options.runs or options.add):
        parser.error("--runs 0 is for --add")
    folder = results_folder(options)
    before = stored("tutorial", folder).get("steps and seconds", {}) if options.add else {}
    measured: dict[str, list[tuple[int, float]]] = {
        name: [(steps, s) for steps, s in before.get(name, [])] for name in PARTS
    }
    for _ in range(1 if options.quick else options.runs):
        for name, words in PARTS.items():
            measured[name].append(run_part(words, options.timeout))
            print(name, *measured[name][-1], flush=True)
    rates = {name: statistics.median(steps / seconds for steps, seconds in runs) for name, runs in measured.items()}
    first = next(iter(rates.values()))
    rows = []
    for name, runs in measured.items():
        seconds = sorted(s for _, s in runs)
        bound = BOUND * (1 if name.startswith("1") else 8)
        rows.append([
            name, str(len(runs)), f"{statistics.median(seconds):.0f} ({seconds[0]:.0f} to {seconds[-1]:.0f})",
            f"{rates[name]:,.0f}", f"{rates[name] / first:.1f}", f"{100 * rates[name] / bound:.0f}%",
        ])  # fmt: skip
    text = markdown(["part", "runs", "s to 195", "steps/s", "times part 1", "of the bound"], rows)
    save("tutorial", text, {"steps and seconds": measured}, folder)


if __name__ == "__main__":
    main()
