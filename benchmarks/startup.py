"""How soon it runs, and what a worker takes: command to first update, memory of rollout actors, workers collecting.

    python benchmarks/startup.py

Prints a table and writes it to benchmarks/results/startup.md. Medians of `--runs` processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from flags import whole

FIRST_UPDATE = """
import raypid
with raypid.PPO(env="CartPole-v1", seed=0, num_workers={workers}, {share}backend="{backend}") as agent:
    agent.train()
    print("UPDATED", flush=True)
    input()
"""


def measure(workers: int, backend: str) -> tuple[float, list[tuple[float, float]]]:
    """(seconds from the start of the process to the end of the first update, [(resident, own) MB of each worker])."""
    share = len(os.sched_getaffinity(0)) / workers if workers else 1
    code = FIRST_UPDATE.format(
        workers=workers, share=f"num_cpus_per_worker={min(1.0, share)}, " if workers else "", backend=backend
    )
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        while "UPDATED" not in process.stdout.readline():
            if process.poll() is not None:
                raise RuntimeError("the run ended without an update")
        seconds = time.perf_counter() - start
        memory = [_memory(pid) for pid in _workers()] if workers else []
        process.stdin.write("\n")
        process.stdin.close()
        process.wait()
    return seconds, memory


def _workers() -> list[int]:
    """Process ids of rollout actors: Ray names their processes "ray::Rollout"."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().startswith(b"ray::Rollout"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _memory(pid: int) -> tuple[float, float]:
    """(resident, resident and not shared with other processes) in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kilobytes = {key: int(value.split()[0]) for key, value in lines.items()}
    return kilobytes["Rss"] / 1024, (kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=whole(), default=5)
    args = parser.parse_args()
    lines = ["| start | seconds to the first update | worker resident MB | worker own MB |", "|---|---|---|---|"]
    for name, workers, backend in (("one process", 0, "local"), ("2 workers", 2, "ray"), ("8 workers", 8, "ray")):
        runs = [measure(workers, backend) for _ in range(args.runs)]
        seconds = statistics.median(r[0] for r in runs)
        memory = [m for _, workers_memory in runs for m in workers_memory]
        columns = [f"{statistics.median(m[i] for m in memory):.0f}" if memory else "" for i in (0, 1)]
        lines.append(f"| {name} | {seconds:.2f} | {' | '.join(columns)} |")
        print(lines[-1], flush=True)
    print("\n".join(lines))
    out = Path(__file__).parent / "results" / "startup.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
