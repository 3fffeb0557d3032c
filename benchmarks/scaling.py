"""Many workers whose environment waits: what N of them collect while learning goes on, beside N times one; how soon they are up.

    python benchmarks/scaling.py                                        # A3C with 48 workers, PPO with 128, ES with 200; each with 1
    python benchmarks/scaling.py --algorithms APPO,IMPALA --workers 1,64
    python benchmarks/scaling.py --algorithms PPO --config '{"fragment_length": 512}'       # calls of ten seconds
    python benchmarks/scaling.py --algorithms PPO --env working_env:Work --workers 1,14     # computes: for a machine of 16 cores

Each worker has one environment, raypid/Wait-v0, whose step sleeps 20 ms. A row of the table is a process of its own:

- steps a second: the median of five windows; and how much that is of N times the rate of one worker with the same settings,
  once all workers have delivered.
- all up: seconds from the start of the process until every worker has answered a call; and the same for as many empty Ray
  actors that take as many CPUs, in a process of its own that is run next. Both include the start of Ray.
- CPU: seconds that a worker's process has used until all were up, beside an empty actor's; what a step takes of it later; and
  cores that driver and workers are using while collecting. The learner lives in the driver. Its own part, wall time in
  `update`, stands beside. These hardly change on a busy machine, where the times above mean nothing.
- memory: proportional set sizes (pages that processes share are counted once): one worker, the driver, Ray's own processes.
- threads and open files: of all processes, and the most files of a single one, since systems limit these.

`--settings` prints what is learnt by. Results are written to scaling.md and .json in --folder as rows end; rows of other algorithms stay.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flags import add_results_folder, json_object, one_of, positive, results_folder, several, whole
from processes import end_what_is_started
from reporting import markdown, save, stored, write

WAITS = "raypid/Wait-v0"
NUM_WINDOWS = 5
WORKERS = {"A3C": 48, "PPO": 128, "ES": 200, "APPO": 64, "IMPALA": 64}


def settings_of(algorithm: str, workers: int) -> dict[str, Any]:
    """What a user would choose for an environment that waits 20 ms: calls of one to three seconds, and updates that suit the
    thousands of rows that the workers send each second.

    A3C: a call holds 50 rows, and each gradient is applied when it comes. PPO, whose workers wait for each other: a call holds 128
    rows, so that the time in which all wake and the learner works is a small part of it. ES: a call holds 8 episodes of 20 steps; two
    calls of a worker are under way, so that nobody waits for the slowest, and fitness is two updates old, four at most. APPO, IMPALA: a call
    holds 40 rows, and an update takes what a quarter of the workers send.
    """
    update = max(1, workers // 4)
    return {
        "A3C": {"fragment_length": 50},
        "PPO": {"fragment_length": 128, "batch_size": 1024, "num_epochs": 2},
        "ES": {"population": 4 * workers, "fragments_in_flight": 2, "max_staleness": 4},
        "APPO": {"fragment_length": 40, "batch_size": 1024, "num_epochs": 1, "fragments_per_update": update},
        "IMPALA": {"fragment_length": 40, "batch_size": 1024, "fragments_per_update": update},
    }[algorithm]


def share_of(workers: int) -> float:
    """CPUs that each of them takes: all find a place, whatever they are."""
    return min(1.0, len(os.sched_getaffinity(0)) / workers)


def turns_of(agent: Any, algorithm: str) -> Iterator[Any]:
    """The agent's own loop, whose reports are wanted here."""
    from raypid.loops import loops
    from raypid.plugins.registry import ALGORITHMS

    run = {"sync": loops.sync, "async": loops.asynchronous}[ALGORITHMS.get(algorithm).flow]
    return run(agent.context)


def measure(algorithm: str, env: str, workers: int, seconds: float, settings: dict[str, Any], began: float) -> Any:
    """A row, from within the process that began at `began` (time.monotonic)."""
    import raypid

    settings = {**settings_of(algorithm, workers), **settings}
    more = {"num_workers": workers, "num_envs_per_worker": 1, "num_cpus_per_worker": share_of(workers)}
    with getattr(raypid, algorithm)(env=env, seed=0, config={**more, **settings}) as agent:
        up_s, standing = time.monotonic() - began, processes()
        turns, delivered = turns_of(agent, algorithm), set[int]()
        while len(delivered) < workers:
            delivered |= {report.worker_index for report in next(turns).reports}
        for _ in range(2):
            next(turns)
        windows = [window(turns, seconds / NUM_WINDOWS) for _ in range(NUM_WINDOWS)]
        row = {name: statistics.median(w[name] for w in windows) for name in windows[0]}
        lost = agent.context.losses.counts | (agent.context.plan.lost if agent.context.plan else {})
        start_cpu = standing["worker"]["cpu_s"] / workers
        return row | {
            "up_s": up_s,
            "start_cpu_s": start_cpu,
            "roles": processes(),
            "delivered": len(delivered),
            "lost": lost,
        }


def measure_empty(workers: int, began: float) -> dict[str, Any]:
    """The same for actors that do nothing: when each has answered a call, and their CPU seconds until then."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # or Ray warns
    import ray

    ray.init(
        "local",
        num_cpus=len(os.sched_getaffinity(0)),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )

    @ray.remote(num_cpus=share_of(workers))
    class Empty:
        def ready(self) -> int:
            return 0

    actors = [Empty.remote() for _ in range(workers)]
    ray.get([actor.ready.remote() for actor in actors])
    up_s, roles = time.monotonic() - began, processes()
    ray.shutdown()
    return {"up_s": up_s, "start_cpu_s": roles["worker"]["cpu_s"] / workers, "roles": roles}


def window(turns: Iterator[Any], seconds: float) -> dict[str, float]:
    """Whole iterations for about `seconds`."""
    start, cpu, workers_cpu = time.monotonic(), time.process_time(), processes()["worker"]["cpu_s"]
    steps, updates, learner = 0, 0, 0.0
    while time.monotonic() - start < seconds:
        turn = next(turns)
        steps += sum(report.num_steps for report in turn.reports)
        updates += turn.update.num_updates
        learner += turn.timing["learner"]
    spent, cpu = time.monotonic() - start, time.process_time() - cpu
    workers_cpu = processes()["worker"]["cpu_s"] - workers_cpu
    return {
        "steps_per_s": steps / spent, "updates_per_s": updates / spent, "driver": cpu / spent, "learner": learner / spent,
        "workers_cores": workers_cpu / spent, "step_cpu_ms": 1e3 * workers_cpu / max(1, steps),
    }  # fmt: skip


def processes() -> dict[str, dict[str, float]]:
    """What this process (driver) and all that descend from it use, by role: worker, driver, ray (Ray's own).

    num; cpu_s; memory, the proportional set size in MB; threads; files, open in all; most_files, in one.
    """
    children: dict[int, list[int]] = {}
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stats[int(entry.name)] = words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(words[1]), []).append(int(entry.name))
    found = {role: Counter[str]() for role in ("worker", "driver", "ray")}
    stack = [os.getpid()]
    while stack:
        pid = stack.pop()
        stack += children.get(pid, [])
        try:
            memory = sum(
                int(x.split()[1])
                for x in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                if x.startswith("Pss:")
            )
            role, files = role_of(pid), len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:  # it has ended
            continue
        cpu = (int(stats[pid][11]) + int(stats[pid][12])) / os.sysconf("SC_CLK_TCK")
        most = max(files, found[role]["most_files"])
        found[role].update(num=1, cpu_s=cpu, memory=memory / 1e3, threads=int(stats[pid][17]), files=files)
        found[role]["most_files"] = most
    return {role: dict(counts) for role, counts in found.items()}


def role_of(pid: int) -> str:
    """Ray names the process of an actor "ray::Rollout.collect"; its agents and idle processes are "ray::...Agent" and "ray::IDLE"."""
    if pid == os.getpid():
        return "driver"
    title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    name = title.removeprefix("ray::").split(".")[0]
    return "worker" if name in ("Empty", "Rollout") else "ray"


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order in a process of its own, and say in a line what came of it."""
    command = [sys.executable, __file__, "--order", json.dumps({**order, "began": time.monotonic()})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    name = f"{order.get('algorithm', 'empty actors')}, {order['workers']} worker{'s' * (order['workers'] > 1)}"
    if done.returncode == 2:  # a setting or an environment that is not there: it has said so
        raise SystemExit(2)
    if done.returncode:
        raise SystemExit(f"{name}: ended with exit code {done.returncode}; rows before it are stored")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rate = f", {row['steps_per_s']:,.0f} steps/s" if "steps_per_s" in row else ""
    print(f"{name}: all up after {row['up_s']:.1f} s{rate}", flush=True)
    return row


def table_of(results: dict[str, Any]) -> str:
    rates, starts, sizes = [], [], []
    for name, by_workers in results["rows"].items():
        one = by_workers.get("1", {}).get("steps_per_s")
        for workers, r in sorted(by_workers.items(), key=lambda item: int(item[0])):
            rate, n, roles = r["steps_per_s"], int(workers), r["roles"]
            rates.append((
                name, n, f"{rate:,.0f}", f"{rate / (n * one):.0%}" if one else "", f"{r['step_cpu_ms']:.2f}", f"{r['workers_cores']:.2f}",
                f"{r['driver']:.0%}", f"{r['learner']:.0%}", f"{r['updates_per_s']:.1f}", sum(r["lost"].values()),
            ))  # fmt: skip
            sizes.append((
                name, n, *(f"{roles[role]['memory'] / roles[role]['num']:.0f}" for role in ("worker", "driver")),
                f"{roles['ray']['memory']:.0f}", f"{sum(x['memory'] for x in roles.values()) / 1e3:.1f}",
                f"{sum(x['threads'] for x in roles.values()):,.0f}", f"{sum(x['files'] for x in roles.values()):,.0f}",
                f"{max(x['most_files'] for x in roles.values()):,.0f}",
            ))  # fmt: skip
            if empty := results["empty"].get(workers):
                starts.append((
                    name, n, f"{r['up_s']:.1f}", f"{empty['up_s']:.1f}", f"{r['up_s'] / empty['up_s']:.2f}",
                    f"{r['start_cpu_s']:.2f}", f"{empty['start_cpu_s']:.2f}",
                ))  # fmt: skip
    rate_header = (
        "20 ms a step", "workers", "steps/s", "of N times one", "worker's CPU ms a step", "workers, cores", "driver's CPU",
        "learner's part", "updates/s", "lost",
    )  # fmt: skip
    start_header = (
        "start", "workers", "all up, s", "as many empty actors, s", "ratio", "CPU s of a worker", "CPU s of an empty actor",
    )  # fmt: skip
    size_header = (
        "memory", "workers", "a worker, MB", "driver, MB", "Ray's own, MB", "all, GB", "threads", "open files", "most of one process",
    )  # fmt: skip
    tables = [(rate_header, rates), (start_header, starts), (size_header, sizes)]
    return "\n".join(markdown(header, rows) for header, rows in tables if rows)


def carry_out(text: str) -> int:
    """What the process of a row does: its last line is the row."""
    from raypid.errors import UserError

    order = json.loads(text)
    try:
        print(json.dumps(measure(**order) if "algorithm" in order else measure_empty(**order)), flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--algorithms", type=several(one_of(WORKERS)), default=["A3C", "PPO", "ES"], help=f"of {', '.join(WORKERS)}"
    )
    parser.add_argument(
        "--workers", type=several(whole()), help="such as 1,8,64 (default: 1, and those of each algorithm above)"
    )
    parser.add_argument("--env", default=WAITS)
    parser.add_argument("--seconds", type=positive, help="of each measurement (default: 40)")
    parser.add_argument("--config", type=json_object, default={}, help="JSON, over the settings")
    parser.add_argument("--settings", action="store_true", help="print the settings of each algorithm and end")
    add_results_folder(parser, "at most 4 workers, 5 seconds of each measurement")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.seconds = args.seconds or (5.0 if args.quick else 40.0)
    return args


def main() -> int:
    args = options()
    if args.order:
        return carry_out(args.order)
    if args.settings:
        print(json.dumps({name: settings_of(name, WORKERS[name]) for name in args.algorithms}, indent=1))
        return 0
    folder = results_folder(args)
    # as an installed package is: all these processes import it
    compileall.compile_dir(Path(__file__).parents[1] / "raypid", quiet=2)
    end_what_is_started()
    results = {"rows": {}, "empty": {}, **stored("scaling", folder)}
    results.pop("machine", None)
    beside = set[int]()
    for algorithm in args.algorithms:
        changed = (f"{key} {value}" for key, value in args.config.items())
        name = ", ".join([algorithm, *[args.env] * (args.env != WAITS), *changed])
        for workers in args.workers or (1, 4 if args.quick else WORKERS[algorithm]):
            order = {"algorithm": algorithm, "env": args.env, "workers": workers, "seconds": args.seconds}
            row = run({**order, "settings": args.config})
            results["rows"].setdefault(name, {})[str(workers)] = row
            if workers > 1 and workers not in beside:
                results["empty"][str(workers)] = run({"workers": workers})
                beside.add(workers)
            write("scaling", table_of(results), results, folder)
    save("scaling", table_of(results), results, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
