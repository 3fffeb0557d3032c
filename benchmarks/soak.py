"""Long runs: does anything grow? Memory, threads, open files and sockets of every process of a run, Ray's store, folders.

    python benchmarks/soak.py                                   # 20 minutes for each of the three loops, one after the other
    python benchmarks/soak.py --beside                          # all at once: memory is measured, not speed
    python benchmarks/soak.py --minutes 4 --loops replay --quick      # runs, samples and results in a new temporary folder
    python benchmarks/soak.py --table runs/soak                 # the table of samples that are there already
    python benchmarks/soak.py --pause 60                        # SIGSTOP to each role in turn for a minute, then SIGCONT

Each loop trains on Ray with two workers, an evaluator, learners in actors, parameter servers, checkpoints, files for TensorBoard, and (replay)
two shards. Fragments are tiny, so that there are many calls. Every few seconds a sample is taken:

- memory: private memory (Pss_Anon and SwapPss of /proc/PID/smaps_rollup): heap and stacks, not Ray's store, which would count in each process
  that has ever touched it, and not the files of libraries. A page that processes share after a fork counts in parts.
- threads, open files, sockets: from /proc/PID.
- Ray's store: bytes and objects by the raylet's own record, and how many references the driver holds, by a thread in it.
- folders: the run's, Ray's session, and what there is in /dev/shm under Ray's names.

What follows the first third is fitted: the median of the slopes of all pairs (Theil-Sen), with a 95% interval by a bootstrap of blocks of
residuals, since samples follow from those before them. Verdicts (MINOR is growth that a month could hardly notice):

- flat: the whole interval lies within ±MINOR.
- grows, shrinks: the interval lies on one side of zero, and the slope is beyond MINOR.
- levels off: it grows, but over the last third alone it is flat.
- cannot be told: none of these, or too few samples. A longer run has narrower intervals.

The exit code is 1 if something grows for which no growth is allowed: all but folders, which have bounds that a run does not reach soon. Of runs
of less than 10 minutes only the table is made: in these, what fills up after the start looks like growth.

Results are written to soak.md, .json and .csv in --folder; rows of other loops stay. Samples stay in --out.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flags import add_results_folder, one_of, positive, results_folder, several, writable
from processes import end_with_this_process, exit_on_signals, with_mark
from reporting import markdown, save, stored

COMMON = {
    "num_workers": 2, "num_cpus_per_worker": 0.1, "num_cpus": 8, "parameter_server": True, "num_envs_per_worker": 2,
    "evaluation_parallel": True, "seed": 0,
}  # fmt: skip
LOOPS: dict[str, dict[str, Any]] = {
    "sync": {"run": "PPO", "env": "CartPole-v1", "num_learners": 2, "fragment_length": 16, "batch_size": 16, "evaluation_interval": 50},
    "asynchronous": {
        "run": "IMPALA", "env": "CartPole-v1", "num_learners": 2, "fragment_length": 16, "batch_size": 32, "evaluation_interval": 50,
    },
    "replay": {
        "run": "SAC", "env": "Pendulum-v1", "num_learners": 1, "num_replay_shards": 2, "fragment_length": 8, "batch_size": 32,
        "samples_per_insert": 4, "start_steps": 200, "buffer_size": 4000, "steps_per_iteration": 64, "evaluation_interval": 20,
    },
}  # fmt: skip
"""One run for each of raypid's loops. The replay buffer is small, so that it is full long before the first third is over."""

ROLES = {
    "gcs_server": "gcs", "raylet": "raylet", "log_monitor.py": "log monitor", "monitor.py": "autoscaler", "dashboard.py": "api server",
    "ray::DashboardAgent": "dashboard agent", "ray::RuntimeEnvAgent": "runtime env agent", "ray::Evaluator": "evaluator",
    "ray::ReplayLearner": "learner", "ray::Replay": "shard", "ray::ParameterServer": "server", "ray::Rollout": "worker",
    "ray::Learner": "learner", "ray::IDLE": "idle",
}  # fmt: skip
"""What a process is, by a part of its command line."""

MINOR = {
    "memory": 1.0,
    "folder": 1.0,
    "store": 1.0,
    "threads": 0.5,
    "files": 0.5,
    "sockets": 0.5,
    "objects": 2.0,
    "references": 2.0,
}
"""Growth an hour (MB, or a number) that counts as none."""
UNTOLD = "cannot be told"
SHORT_MIN = 10.0
"""In less, what fills up after a start looks like growth."""
ENDING_S = 60.0
"""Seconds that the end of a run may take."""
FEWEST = 8
"""Samples that a slope needs."""
MINUTES, QUICK_MINUTES, BESIDES_MIN = 20.0, 1.0, 1.0
"""Of training for each loop; what a run takes besides, for Ray's start and end."""
PAUSED = ("learner", "learners", "worker", "shard", "server", "evaluator", "driver")
PAUSE_MIN, START_MIN = 0.7, 1.5
"""About how long a pause takes besides its own time, and the start of its run."""

BOUNDS = {
    "memory": "none is allowed",
    "store": "fragments in flight, samples ahead, the newest weights",
    "objects": "as the store",
    "references": "as the store",
    "run": "rows of result.json thin out from the 10,000th on; --keep-checkpoints; errors.txt: 3 MB",
    "session": "each log 16 MB and one older (RAY_ROTATION_MAX_BYTES)",
    "shm": "the store's size",
}  # fmt: skip


def role_of(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    if command.startswith("ray::"):
        name = command.split()[0].split(".")[0]
        return next((role for part, role in ROLES.items() if part in name), name.removeprefix("ray::"))
    program = " ".join(command.split()[:3])
    return next((role for part, role in ROLES.items() if part in program), "other")


def descendants(root: int) -> list[int]:
    """`root` and all processes that descend from it, zombies left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children[int(parent)].append(int(pid))
    found, stack = [], [root]
    while stack:
        found.append(pid := stack.pop())
        stack += children[pid]
    return found


def roles(root: int) -> dict[str, int]:
    """What each process of a run is, such as "worker 1" or "raylet", and its pid."""
    by_role: dict[str, list[int]] = defaultdict(list)
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            by_role["driver" if pid == root else role_of(pid)].append(pid)
    return {
        role if len(pids) == 1 else f"{role} {number}": pid
        for role, pids in by_role.items()
        for number, pid in enumerate(sorted(pids))
    }


def of_process(pid: int) -> dict[str, float]:
    """Megabytes and numbers of what a process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    memory = sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "SwapPss:")))
    opened = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            opened.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    threads = len(os.listdir(f"/proc/{pid}/task"))
    sockets = sum(name.startswith("socket:") for name in opened)
    return {"memory": memory / 1e3, "threads": threads, "files": len(opened) - sockets, "sockets": sockets}


def megabytes(folder: Path) -> float:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total / 1e6


def sample(root: int, place: Path) -> dict[str, float]:
    """All that is measured, as {"what: quantity": value}."""
    found: dict[str, float] = {}
    for role, pid in roles(root).items():
        with contextlib.suppress(OSError):
            found |= {f"{role}: {name}": value for name, value in of_process(pid).items()}
    found["run: folder"] = megabytes(place / "run")
    if driver := last_line(place / "references.jsonl"):
        found["driver: references"] = driver["references"]
        found["session: folder"] = megabytes(Path(driver["session"]))
        found |= {f"Ray: {name}": value for name, value in store_of(Path(driver["session"])).items()}
    with contextlib.suppress(OSError):
        found["shm: folder"] = sum(os.stat(e).st_blocks * 512 / 1e6 for e in os.scandir("/dev/shm") if e.is_file())
    return found


STORE = {"store": "pinned objects size", "objects": "num local plasma objects"}
"""What the raylet's own record, debug_state.txt, calls what is in the store."""


def store_of(session: Path) -> dict[str, float]:
    """Megabytes and objects in Ray's store."""
    try:
        text = (session / "logs" / "debug_state.txt").read_text()
    except OSError:
        return {}
    found = {name: re.search(rf"^- {words}: (\d+)", text, re.MULTILINE) for name, words in STORE.items()}
    return {name: float(match[1]) / (1e6 if name == "store" else 1) for name, match in found.items() if match}


def last_line(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text().splitlines()[-1]))
    except (OSError, IndexError, ValueError):
        return {}


# -- the run ---------------------------------------------------------------------------------------------------------------


def watch_references(path: Path) -> None:
    """Write every second how many references to objects the driver holds, and where Ray's session is; a thread of the driver."""
    import ray._private.worker as ray_worker

    while True:
        time.sleep(1)
        worker, node = ray_worker.global_worker, ray_worker._global_node
        if node is not None and worker.connected:
            row = {
                "references": len(worker.core_worker.get_all_reference_counts()),
                "session": node.get_session_dir_path(),
            }
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def drive(loop: str, place: Path, minutes: float) -> int:
    """The driver's process: the ordinary command, and the thread that asks for the store."""
    import raypid.runtime.ray
    from raypid.cli import main as raypid

    threading.Thread(target=watch_references, args=(place / "references.jsonl",), daemon=True).start()
    settings = {**COMMON, **LOOPS[loop]}
    flags = [
        part
        for name, value in settings.items()
        for part in (f"--{name.replace('_', '-')}", json.dumps(value).strip('"'))
    ]
    stop = json.dumps({"time_total_s": minutes * 60})
    return raypid(
        [
            "train",
            *flags,
            "--stop",
            stop,
            "--final-episodes",
            "0",
            "--quiet",
            "--overwrite",
            "--out",
            str(place / "run"),
        ]
    )


@dataclass
class Soak:
    """A loop that trains in a process of its own, and its samples."""

    loop: str
    place: Path
    minutes: float
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        for name in ("references.jsonl", "samples.jsonl"):
            (self.place / name).unlink(missing_ok=True)
        order = ["--drive", self.loop, "--minutes", str(self.minutes), "--out", str(self.place)]
        with (self.place / "driver.log").open("wb") as log:
            # the raylet writes its record every 10 s, unless it is told otherwise
            environment = {**os.environ, "RAY_debug_dump_period_milliseconds": "2000"}
            environment = with_mark(mark := uuid.uuid4().hex, environment)
            self.process = subprocess.Popen([sys.executable, __file__, *order], stdout=log, stderr=log, env=environment)
        end_with_this_process(mark)

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def row(self) -> dict[str, Any]:
        """The newest result."""
        return last_line(self.place / "run" / "result.json")

    def write(self) -> None:
        """Take a sample, once there are results."""
        if self.is_over or not (row := self.row):
            return
        taken = sample(self.process.pid, self.place)
        counted = {k: row.get(k) for k in ("training_iteration", "timesteps_total", "learner_updates_total")}
        counted |= {k: v for k, v in row.items() if k.startswith("lost/")}
        with (self.place / "samples.jsonl").open("a") as file:
            file.write(json.dumps({"seconds": time.monotonic(), **counted, "values": taken}) + "\n")

    def end(self) -> None:
        """Check that it ended well."""
        if self.process.wait():
            log = (self.place / "driver.log").read_text(errors="replace")[-2000:]
            raise SystemExit(
                f"{self.loop} ended with exit code {self.process.returncode}; samples are in {self.place}\n{log}"
            )
        samples = read_samples(self.place / "samples.jsonl")
        if not samples:
            raise SystemExit(f"{self.loop} ended before there were samples: more --minutes, or a smaller --every")
        found = summary(self.loop, samples)
        print(f"{self.loop} ended: {found['training_iteration']:,} iterations, {len(samples)} samples", flush=True)


def soak(loops: Sequence[str], out: Path, minutes: float, every_s: float) -> None:
    """Train the loops side by side, and sample each until it has ended."""
    running = [Soak(loop, out / loop, minutes) for loop in loops]
    try:
        while not all(one.is_over for one in running):
            started = time.monotonic()
            for one in running:
                one.write()
            time.sleep(max(0.1, every_s - (time.monotonic() - started)))
    finally:
        for one in running:
            if not one.is_over:
                one.process.send_signal(signal.SIGINT)
    for one in running:
        one.end()


# -- pauses ----------------------------------------------------------------------------------------------------------------


def wait_for(what: Callable[[], bool], seconds: float) -> float:
    """Seconds until something holds; infinite if it does not in time."""
    started = time.monotonic()
    while not what():
        if time.monotonic() - started > seconds:
            return math.inf
        time.sleep(0.2)
    return time.monotonic() - started


def held(taken: dict[str, float]) -> dict[str, float]:
    """Of a sample, what would grow if something did not wait for a role that stands still."""
    memory = sum(
        value for name, value in taken.items() if name.endswith(": memory") and not name.startswith("dashboard")
    )
    return {"memory": memory, **{name: taken.get(f"Ray: {name}", 0.0) for name in ("store", "objects")},
            "references": taken.get("driver: references", 0.0)}  # fmt: skip


def highest(one: Soak, seconds: float) -> dict[str, float]:
    """The highest that samples of so many seconds hold."""
    found, until = held(sample(one.process.pid, one.place)), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(2)
        found = {name: max(value, found[name]) for name, value in held(sample(one.process.pid, one.place)).items()}
    return found


def paused(one: Soak, role: str, pids: Sequence[int], seconds: float) -> dict[str, Any]:
    """Stop processes with SIGSTOP, let them go on, and say what the run did meanwhile and afterwards."""

    def iteration() -> int:
        return int(one.row.get("training_iteration", 0))

    before = highest(one, 10)
    start = iteration()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        during = highest(one, seconds)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    meanwhile = iteration()
    goes_on_s = wait_for(lambda: iteration() >= meanwhile + 3 or one.is_over, 300)
    after = highest(one, 10)
    lost = {k: v for k, v in one.row.items() if k.startswith("lost/") and v}
    row = {"loop": one.loop, "role": role, "seconds": seconds, "iterations": meanwhile - start, "goes_on_s": goes_on_s}
    row |= {"ended": one.is_over, "before": before, "during": during, "after": after, "lost": lost}
    went_on = "it has ended" if one.is_over else f"goes on after {goes_on_s:.1f} s"
    print(
        f"{one.loop}, {role} stopped for {seconds:g} s: {meanwhile - start} iterations meanwhile, {went_on}", flush=True
    )
    return row


def pauses(loop: str, out: Path, seconds: float, only: Sequence[str]) -> list[dict[str, Any]]:
    """Pause each kind of role of a loop in turn. Of several of a kind it is the first, and all learners."""
    one = Soak(loop, out / loop, minutes=600)
    try:
        if (
            math.isinf(wait_for(lambda: int(one.row.get("training_iteration", 0)) >= 30 or one.is_over, 600))
            or one.is_over
        ):
            raise SystemExit(f"{loop} did not start: {(one.place / 'driver.log').read_text(errors='replace')[-2000:]}")
        by_kind: dict[str, list[int]] = defaultdict(list)
        for role, pid in roles(one.process.pid).items():
            by_kind[role.rstrip("0123456789").strip()].append(pid)
        order = ["learner", "learners", "worker", "shard", "server", "evaluator", "driver"]
        targets = {kind: by_kind[kind][:1] for kind in order if by_kind[kind]} | {"learners": by_kind["learner"]}
        if len(by_kind["learner"]) < 2:
            del targets["learners"]
        return [paused(one, kind, pids, seconds) for kind, pids in targets.items() if not only or kind in only]
    finally:
        one.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(120)
        one.process.kill()


def pauses_table(rows: Sequence[dict[str, Any]]) -> str:
    header = (
        "loop",
        "stopped",
        "s",
        "iterations meanwhile",
        "goes on after, s",
        "memory, MB",
        "store, MB",
        "objects",
        "references",
        "lost",
    )
    cells = []
    for r in rows:
        peaks = [" / ".join(f"{r[when][name]:,.0f}" for when in ("before", "during", "after")) for name in r["before"]]
        lost = ", ".join(f"{k} {v}" for k, v in r["lost"].items()) or "nothing"
        cells.append(
            (r["loop"], r["role"], f"{r['seconds']:.0f}", r["iterations"], f"{r['goes_on_s']:.1f}", *peaks, lost)
        )
    return "Highest in 10 s before / while a role stood still / in 10 s after it went on.\n\n" + markdown(header, cells)


# -- the slopes ------------------------------------------------------------------------------------------------------------


def theil_sen(t: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The median of the slopes of all pairs."""
    i, j = np.triu_indices(len(t), 1)
    return float(np.median((y[j] - y[i]) / (t[j] - t[i])))


def slope(t: np.ndarray[Any, Any], y: np.ndarray[Any, Any], draws: int = 300) -> tuple[float, float, float] | None:
    """Slope with its 95% interval: blocks of residuals, an eighth of the series each, are drawn anew and fitted again.

    None: there are too few samples.
    """
    if len(t) < FEWEST:
        return None
    if len(t) > 120:  # the mean of neighbours
        parts = np.array_split(np.arange(len(t)), 120)
        t, y = np.array([t[p].mean() for p in parts]), np.array([y[p].mean() for p in parts])
    if np.ptp(y) == 0:
        return 0.0, 0.0, 0.0
    found = theil_sen(t, y)
    line = np.median(y - found * t) + found * t
    rng, length = np.random.default_rng(0), max(2, len(t) // 8)
    again = []
    for _ in range(draws):
        starts = rng.integers(0, len(t) - length + 1, math.ceil(len(t) / length))
        drawn = np.concatenate([(y - line)[s : s + length] for s in starts])[: len(t)]
        again.append(theil_sen(t, line + drawn))
    low, high = np.percentile(again, [2.5, 97.5])
    return found, float(low), float(high)


def verdict(found: tuple[float, float, float] | None, minor: float) -> str:
    """What a slope with its interval says; growth of less than `minor` is none."""
    if found is None:
        return UNTOLD
    grows, low, high = found
    if -minor <= low and high <= minor:
        return "flat"
    if low > 0 and grows > minor:
        return "grows"
    return "shrinks" if high < 0 and grows < -minor else UNTOLD


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Samples of a run, without those of its end. A line that is not whole was being written."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    if not found:
        return []
    last = found.pop()  # then it was ending, and so it was before, if no iteration came between
    at, end_s = last["training_iteration"], last["seconds"] - ENDING_S
    return [one for one in found if one["training_iteration"] != at or one["seconds"] < end_s]


def rows_of(loop: str, samples: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What each quantity did after the first third."""
    began = samples[0]["seconds"]
    hours = np.array([(s["seconds"] - began) / 3600 for s in samples])
    later, last = hours >= hours[-1] / 3, hours >= hours[-1] * 2 / 3
    names = dict.fromkeys(name for s in samples for name in s["values"])
    for name in names:
        values = np.array([s["values"].get(name, np.nan) for s in samples], float)
        known = later & np.isfinite(values)
        if known.sum() < 0.8 * later.sum():  # a process that was there for a while
            continue
        what, quantity = name.split(": ")
        found = slope(hours[known], values[known])
        says = verdict(found, MINOR[quantity])
        at_last = known & last
        if says == "grows" and verdict(slope(hours[at_last], values[at_last]), MINOR[quantity]) == "flat":
            says = "levels off"
        grows, low, high = found or (None, None, None)
        yield {
            "loop": loop, "what": what, "quantity": quantity, "first": values[known][0], "last": values[known][-1],
            "highest": float(np.nanmax(values)), "slope": grows, "low": low, "high": high, "verdict": says,
            "bound": BOUNDS.get(what if quantity == "folder" else quantity, "none is allowed"),
        }  # fmt: skip


def past_bound(row: dict[str, Any]) -> str:
    """What is said of a quantity that may not grow and does; nothing of others."""
    if row["verdict"] != "grows" or row["quantity"] == "folder":
        return ""
    unit = " MB" * (row["quantity"] in MEGABYTES)
    return f"{row['loop']}: {row['what']}, {row['quantity']}: grows by {row['slope']:,.1f}{unit} an hour. Bound: {row['bound']}"


def summary(loop: str, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, last = samples[0], samples[-1]
    minutes = (last["seconds"] - first["seconds"]) / 60
    counted = {k: last[k] for k in ("training_iteration", "timesteps_total", "learner_updates_total")}
    lost = {k: v for k, v in last.items() if k.startswith("lost/") and v}
    return {"minutes": round(minutes, 1), "samples": len(samples), **counted, "lost": lost}


ABOVE = """Growth an hour after the first third, with its 95% interval; MB for memory and folders. Flat: the interval lies within ±1 MB, 0.5 threads,
files and sockets, 2 objects and references. Levels off: flat over the last third. Cannot be told: the interval is too wide to say.
Memory, store and folders are listed in any case, threads, files and sockets where they are not flat. Memory may not grow: replay buffers are
at their full size from the start.
"""
MEGABYTES = ("memory", "store", "folder")
LISTED = ("memory", "store", "objects", "references", "folder")


def note(rows: Sequence[dict[str, Any]], minutes: float) -> str:
    """What a run was too short for."""
    untold = sum(r["verdict"] == UNTOLD for r in rows)
    text = f" {untold} cannot be told: a longer run has narrower intervals." if untold else ""
    if minutes < SHORT_MIN:
        text += f" The run was too short to judge growth by: less than {SHORT_MIN:.0f} minutes, in which what fills up after the start looks like it."
    return text


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    says, grows = row["verdict"], row["slope"]
    interval = "" if grows is None else f"{grows:+,.2f} ({row['low']:+,.2f} to {row['high']:+,.2f})"
    says += f" by {abs(grows):,.1f} an hour" if says in ("grows", "shrinks") else ""
    return row["what"], row["quantity"], f"{row['first']:,.1f}", f"{row['last']:,.1f}", interval, says, row["bound"]


def table_of(results: dict[str, Any]) -> str:
    """For each loop what is always told, and what else is not flat; the .csv has all."""
    text = [ABOVE]
    for loop, found in results["loops"].items():
        rows = [r for r in results["rows"] if r["loop"] == loop]
        told = [r for r in rows if r["quantity"] in LISTED or r["verdict"] != "flat"]
        flat = sum(r["verdict"] == "flat" for r in rows)
        lost = ", ".join(f"{k} {v}" for k, v in found["lost"].items()) or "nothing"
        text.append(
            f"\n## {loop}\n\n{found['minutes']} minutes, {found['training_iteration']:,} iterations, {found['timesteps_total']:,} steps, "
            f"{found['learner_updates_total']:,} updates; lost: {lost}. {flat} of {len(rows)} quantities are flat."
            f"{note(rows, found['minutes'])}\n\n"
        )
        header = ("of", "quantity", "first", "last", "an hour", "verdict", "bound")
        text.append(markdown(header, [cells_of(row) for row in told]))
    return "".join(text)


def tabulate(loops: Sequence[str], out: Path, folder: Path) -> int:
    """Replace these loops' rows in the stored results; returns the exit code: 1 if something grows past its bound."""
    results = {"loops": {}, "rows": [], **stored("soak", folder)}
    results.pop("machine", None)
    for loop in loops:
        samples = read_samples(out / loop / "samples.jsonl")
        results["loops"][loop] = summary(loop, samples)
        results["rows"] = [r for r in results["rows"] if r["loop"] != loop] + list(rows_of(loop, samples))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "soak.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, results["rows"][0].keys())
        writer.writeheader()
        writer.writerows(results["rows"])
    save("soak", table_of(results), results, folder)
    short = [loop for loop in loops if results["loops"][loop]["minutes"] < SHORT_MIN]
    if short:
        print(f"{', '.join(short)}: too short to judge growth by (less than {SHORT_MIN:.0f} minutes)")
    judged = [row for row in results["rows"] if row["loop"] in loops and row["loop"] not in short]
    past = [text for row in judged if (text := past_bound(row))]
    print("\n".join(past), end="\n" * bool(past))
    return int(bool(past))


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    loops = f"some of: {', '.join(LOOPS)} (default: all; with --table those that have samples)"
    parser.add_argument("--loops", type=several(one_of(LOOPS)), help=loops)
    minutes = f"of training, for each loop (default: {MINUTES:.0f}; with --quick {QUICK_MINUTES:.0f})"
    parser.add_argument("--minutes", type=positive, help=minutes)
    parser.add_argument("--every", type=positive, default=5, help="seconds between samples")
    parser.add_argument("--beside", action="store_true", help="all loops at once")
    out = "for runs and samples (default: runs/soak; with --quick the folder of the results)"
    parser.add_argument("--out", type=writable, help=out)
    parser.add_argument("--table", type=Path, help="only write the table of the samples in this folder")
    pause = "seconds: stop each role in turn for so long (soak_pauses.md)"
    parser.add_argument("--pause", type=positive, help=pause)
    parser.add_argument("--roles", type=several(one_of(PAUSED)), help=f"only these are paused: {', '.join(PAUSED)}")
    add_results_folder(parser, "a minute for each loop, unless --minutes says more")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    return parser


def checked(args: argparse.Namespace, error: Callable[[str], Any]) -> None:
    """Refuse what would do nothing, and a table of what is not there."""
    if args.roles and not args.pause:
        error("--roles chooses what --pause stops")
    if args.pause and (args.minutes or args.beside):
        error("--pause goes on until each role was stopped, one loop after the other: not with --minutes or --beside")
    if not args.table:
        return
    if args.pause or args.minutes or args.beside or args.out:
        error("--table only reads what is there: not with --pause, --minutes, --beside or --out")
    there = [loop for loop in LOOPS if read_samples(args.table / loop / "samples.jsonl")]
    if missing := [loop for loop in args.loops or there or ["any loop"] if loop not in there]:
        error(
            f"--table {args.table}: there are no samples of {', '.join(missing)}; they would be in {args.table / 'LOOP' / 'samples.jsonl'}"
        )
    args.loops = args.loops or there


def stop_roles(loops: Sequence[str], out: Path, folder: Path, args: argparse.Namespace) -> int:
    """What --pause does."""
    roles = args.roles or PAUSED
    minutes = len(loops) * (START_MIN + len(roles) * (args.pause / 60 + PAUSE_MIN))
    print(
        f"{', '.join(loops)}, one after the other: {len(roles)} stops each, about {minutes:.0f} min in all",
        flush=True,
    )
    found = [row for loop in loops for row in pauses(loop, out, args.pause, args.roles or ())]
    save("soak_pauses", pauses_table(found), {"rows": found}, folder)
    return int(any(math.isinf(row["goes_on_s"]) or row["ended"] for row in found))


def main() -> int:
    parser = flags()
    args = parser.parse_args()
    if args.drive:
        return drive(args.drive, args.out, args.minutes)
    checked(args, parser.error)
    exit_on_signals()  # runs are told to end
    loops, folder = args.loops or list(LOOPS), results_folder(args)
    out = args.table or args.out or (folder if args.quick else Path("runs/soak"))
    stored("soak", folder)  # or what cannot be read would be noticed only when all is measured
    if args.pause:
        return stop_roles(loops, out, folder, args)
    if not args.table:
        minutes = args.minutes or (QUICK_MINUTES if args.quick else MINUTES)
        groups = [loops] if args.beside else [[loop] for loop in loops]
        how, about = "side by side" if args.beside else "one after the other", len(groups) * (minutes + BESIDES_MIN)
        print(
            f"{', '.join(loops)}, {minutes:g} min each, {how}: about {about:.0f} min in all; samples go to {out}",
            flush=True,
        )
        for group in groups:
            soak(group, out, minutes, args.every)
    return tabulate(loops, out, folder)


if __name__ == "__main__":
    sys.exit(main())
