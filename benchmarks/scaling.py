"""Many workers whose environment waits: what N of them collect while learning goes on, beside N times one of them.

    python benchmarks/scaling.py                                        # 1, 8, 32 and 64 workers; APPO, IMPALA and PPO
    python benchmarks/scaling.py --workers 1,64 --algorithms APPO --fragment 25

Each worker has one raypid/Wait-v0, whose step sleeps 20 ms. A row of the table is a process of its own:

- steps a second: the median of five windows; and how much that is of N times the rate of one worker with the same settings
  (and of the 50 a second that an environment allows), once all workers have delivered.
- start: seconds from the start of the process until every worker has delivered a fragment, less the sleep that this fragment
  holds in any case; and until all stand.
- driver: its CPU seconds for each second of collecting, all threads; the learner, which lives in the driver, is in it. Its
  own part, wall time in `update`, stands beside.
- memory: proportional set sizes (pages that processes share are counted once) of driver, workers and Ray's own processes.

Results are written to benchmarks/results/scaling.md and .json; rows of other algorithms stay.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reporting import RESULTS, markdown, save

WAIT_S = 0.02
NUM_WINDOWS = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "APPO": {"batch_size": 1024, "num_epochs": 1},
    "IMPALA": {"batch_size": 1024},
    "PPO": {"batch_size": 1024, "num_epochs": 2},
}
"""What is learnt by; the batches suit the thousands of rows that the workers send each second."""

FRAGMENTS = {"PPO": 128}
"""Steps of a call; 40, which hold 0.8 s of waiting, of the others."""


def turns_of(agent: Any, algorithm: str) -> Iterator[Any]:
    """The agent's own loop, whose reports are wanted here."""
    from raypid.registry import ALGORITHMS
    from raypid.run import loops

    run = {"sync": loops.sync, "async": loops.asynchronous}[ALGORITHMS.get(algorithm).flow]
    return run(agent.context)


def measure(algorithm: str, workers: int, fragment: int, seconds: float, settings: dict[str, Any], began: float) -> Any:
    """A row, from within the process that began at `began` (time.monotonic)."""
    import raypid

    settings = {**SETTINGS[algorithm], **settings}
    if algorithm != "PPO":  # an update takes what a quarter of the workers send
        settings = {"fragments_per_update": max(1, workers // 4), **settings}
    share = min(1.0, len(os.sched_getaffinity(0)) / workers)
    more = {"num_workers": workers, "num_envs_per_worker": 1, "num_cpus_per_worker": share, "fragment_length": fragment}
    with getattr(raypid, algorithm)(env="raypid/Wait-v0", seed=0, config={**more, **settings}) as agent:
        standing = time.monotonic() - began
        turns, delivered = turns_of(agent, algorithm), set[int]()
        while len(delivered) < workers:
            delivered |= {report.worker_index for report in next(turns).reports}
        started = time.monotonic() - began - fragment * WAIT_S
        for _ in range(2):
            next(turns)
        windows = [window(turns, seconds / NUM_WINDOWS) for _ in range(NUM_WINDOWS)]
        row = {name: statistics.median(w[name] for w in windows) for name in windows[0]}
        lost = agent.context.workers.lost | (agent.context.plan.lost if agent.context.plan else {})
        return row | {"standing_s": standing, "start_s": started, "memory_gb": memory_gb(os.getpid()), "lost": lost}


def window(turns: Iterator[Any], seconds: float) -> dict[str, float]:
    """Whole iterations for about `seconds`."""
    start, cpu, steps, updates, learner = time.monotonic(), time.process_time(), 0, 0, 0.0
    while time.monotonic() - start < seconds:
        turn = next(turns)
        steps += sum(report.num_steps for report in turn.reports)
        updates += turn.update.num_updates
        learner += turn.timing["learner"]
    spent = time.monotonic() - start
    return {
        "steps_per_s": steps / spent, "updates_per_s": updates / spent, "driver": (time.process_time() - cpu) / spent,
        "learner": learner / spent,
    }  # fmt: skip


def memory_gb(root: int) -> float:
    """Proportional set size of a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    total, stack = 0, [root]
    while stack:
        pid = stack.pop()
        stack += children.get(pid, [])
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1e6


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order in a process of its own."""
    command = [sys.executable, __file__, "--order", json.dumps({**order, "began": time.monotonic()})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({**order, **row}), flush=True)
    return row


def table_of(results: dict[str, Any]) -> str:
    rows = []
    for algorithm, by_workers in results["rows"].items():
        one = by_workers.get("1", {}).get("steps_per_s")
        for workers, r in sorted(by_workers.items(), key=lambda item: int(item[0])):
            rate, n = r["steps_per_s"], int(workers)
            of_one = f"{rate / (n * one):.0%}" if one else ""
            rows.append((
                algorithm, n, r["fragment"], f"{rate:,.0f}", of_one, f"{rate / (n / WAIT_S):.0%}", f"{r['start_s']:.1f}", f"{r['standing_s']:.1f}",
                f"{r['driver']:.0%}", f"{r['learner']:.0%}", f"{r['updates_per_s']:.1f}", f"{r['memory_gb']:.1f}",
            ))  # fmt: skip
    header = (
        "20 ms a step",
        "workers",
        "rows a call",
        "steps/s",
        "of N times one",
        "of N times 50",
        "start, s",
        "all stand, s",
    )
    return markdown((*header, "driver's CPU", "learner's part", "updates/s", "memory, GB"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,8,32,64")
    parser.add_argument("--algorithms", default="APPO,IMPALA,PPO")
    parser.add_argument("--fragment", type=int, help="steps of a call (default: 40; of PPO, with its barrier, 128)")
    parser.add_argument("--seconds", type=float, default=40, help="of each measurement")
    parser.add_argument("--config", default="{}", help="JSON, over the settings")
    parser.add_argument("--quick", action="store_true", help="results go beside the stored ones")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.order:
        print(json.dumps(measure(**json.loads(args.order))), flush=True)
        return
    compileall.compile_dir(
        Path(__file__).parents[1] / "raypid", quiet=2
    )  # as an installed package is; 64 processes import it
    folder = Path(tempfile.mkdtemp()) if args.quick else RESULTS
    store = folder / "scaling.json"
    results: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {"rows": {}}
    results.pop("machine", None)
    for algorithm in args.algorithms.split(","):
        fragment = args.fragment or FRAGMENTS.get(algorithm, 40)
        for workers in map(int, args.workers.split(",")):
            order = {"algorithm": algorithm, "workers": workers, "fragment": fragment, "seconds": args.seconds}
            row = run({**order, "settings": json.loads(args.config)})
            results["rows"].setdefault(algorithm, {})[str(workers)] = {"fragment": fragment, **row}
            save("scaling", table_of(results), results, folder)


if __name__ == "__main__":
    main()
