"""Steps a second of 8 environments in one process: in a loop, in the way that raypid takes by itself, in threads, in copies of the process.

    python benchmarks/both_cores.py            # `--quick` only shows that it runs
    python benchmarks/both_cores.py --envs Walker2d-v5,Pendulum-v1   # with Box actions

Random actions, nothing learns. Each measurement is a process of its own, and all ways take turns; medians of `--runs`. The bound of two
cores is twice the loop. "auto" is what a run does whose settings leave it open: it compares in the first steps, which are not counted.
results/both_cores.md has the table.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np
from flags import add_results_folder, positive, results_folder, several, whole
from reporting import markdown, save

ENVS = ("Walker2d-v5", "Hopper-v5", "HalfCheetah-v5", "BipedalWalker-v3", "LunarLanderContinuous-v3")
WAYS = ("sync", "auto", "threads", "processes")
NUM, UNCOUNTED = 8, 300


def rate(env: str, way: str, seconds: float) -> tuple[float, str]:
    """(environment steps a second, what the vector stepped with at the end)."""
    from raypid.envs import EnvSpec, make_vector

    vector = make_vector(EnvSpec(env=env, num_envs=NUM, num_threads=2, vectorizer=way))
    vector.reset()
    low, high = vector.action_space.low, vector.action_space.high
    actions = np.random.default_rng(0).uniform(low, high, (1000, NUM, *low.shape)).astype(np.float32)
    for action in actions[:UNCOUNTED]:
        vector.step(action)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for action in actions:
            steps += int(vector.step(action).valid.sum())
    found = steps / (time.perf_counter() - start), vector.vectorizer
    vector.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=several(str), default=list(ENVS), help="with Box actions, by commas")
    parser.add_argument("--runs", type=whole(1), default=5, help="of each way")
    parser.add_argument("--seconds", type=positive, default=2.0, help="of a run, or a little more")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    add_results_folder(parser, "one run of each way")
    options = parser.parse_args()
    if options.way:
        print(*rate(options.envs[0], options.way, options.seconds))
        return
    folder, runs = results_folder(options), 1 if options.quick else options.runs
    rows, results = [], {}
    for env in options.envs:
        measured: dict[str, list[float]] = {way: [] for way in WAYS}
        taken: set[str] = set()
        for _ in range(runs):
            for way in WAYS:
                words = [__file__, "--envs", env, "--way", way, "--seconds", f"{options.seconds:g}"]
                done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
                steps, kind = done.stdout.split()[-2:]
                measured[way].append(float(steps))
                if way == "auto":
                    taken.add(kind)
        rates = {way: statistics.median(found) for way, found in measured.items()}
        cells = [f"{rates[way]:,.0f} ({rates[way] / rates['sync']:.2f})" for way in WAYS]
        rows.append((env, *cells, ", ".join(sorted(taken))))
        results[env] = {"steps_per_s": measured, "auto_took": sorted(taken)}
        print(*rows[-1], flush=True)
    header = ("steps a second of 8 environments (times the loop)", "loop", "auto", "threads", "processes", "auto took")
    save("both_cores", markdown(header, rows), {"runs": results}, folder)


if __name__ == "__main__":
    main()
