"""What faults cost: train on real Ray, injure the run on a schedule, and count what was lost and how long recovery took.

    python benchmarks/chaos.py                                            # ten-minute kills of every role, one task for each loop
    python benchmarks/chaos.py --faults worker --tasks cartpole --minutes 3 --peer RL/bin/python       # RLlib beside
    python benchmarks/chaos.py --faults node-kill node-stop node-add --minutes 3 --every 60            # three nodes on this machine
    python benchmarks/chaos.py --faults raise exit hang pause stop leak disk --tasks sync --minutes 2
    python benchmarks/chaos.py --table                                    # only the tables, from what is stored

Faults: `kills` is kill -9 of each role in turn (--random: any, by --seed), `worker`, `learner`, `shard`, `server` and `evaluator` of
that role alone. `raise`, `exit`, `hang` and `leak` are done by the environment; `pause` stops a worker for 5 s, `stop` for good;
`disk` fills the run's disk for 5 s (root only). `node-kill` kills a node, `node-stop` cuts it off (SIGSTOP), both with room
elsewhere; `node-add` kills one without room elsewhere and adds another later.

Each task is trained first without faults (`none`), for as long and with the same settings. The usual rate is the median rate of
that run's windows of 1 s (two iterations, where these take longer). Recovery is the time from a loss until windows of 1 s and
of 5 s have 90% of it, in environment steps and in learner updates (chaos_trace.py has it exactly); the row of the undisturbed
run has what the same measure makes of it at the same times. A loss that is not over when the next one comes counts as "not". Settled is
the same by 90% of the rate of the last third of the time to the next loss: rates drift with what the policy does, too.

Targets: the rate is back within 5 s of a loss, and within 10 s of that of a learner or shard. Each row says of how many losses that is so;
only --strict makes it the exit code, and not with --counted, where there is no undisturbed run.

Rows go to benchmarks/results/chaos.json as runs end, the tables to chaos.md beside it, recovery by role to docs/failures.md too, and
a second call does what is missing (--again: all of it). A run that stands still for --patience seconds is ended, and its row says so.

RLlib runs in an environment of its own (pip install "ray[rllib]==2.60.0" torch), with its own settings for faults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from chaos_faults import ROLES, START_S, Cluster, Strikes, abandoned, open_files, small_disk
from chaos_trace import PLACE, Progress, recovery, settling
from flags import json_object, positive, whole, writable
from processes import end, end_with_this_process, exit_on_signals, marked, with_mark
from reporting import RESULTS, machine, markdown, stored

from raypid.report.logger import read_results
from raypid.settings.tuned import TUNED
from raypid.storage.checkpoint import list_checkpoints

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "failures.md"
BEGIN, END = "<!-- tables of benchmarks/chaos.py -->\n", "<!-- end of the tables -->\n"
"""Where in PAGE recovery by role is."""
ENVIRONMENT, NODES = ("raise", "exit", "hang", "leak"), ("node-none", "node-kill", "node-stop", "node-add")
FAULTS = ("none", "kills", *ROLES, *ENVIRONMENT, "pause", "stop", "disk", *NODES)
CALM = ("none", "node-none")
"""Nothing happens: on this machine, and on three nodes. What other runs are measured by."""
KINDS = {
    "worker": "workers", "server": "parameter_servers", "evaluator": "evaluators", "learner": "learners", "shard": "shards",
    "raise": "env_crashes", "exit": "workers", "hang": "timeouts", "leak": "workers", "stop": "timeouts",
    "node-kill": "nodes", "node-stop": "nodes",
}  # fmt: skip
"""What lost/<name> counts each fault. A pause, a full disk and a node that is added need not cost anything that is counted."""
TARGETS_S = {"worker": 5, "server": 5, "evaluator": 5, "raise": 5, "exit": 5, "learner": 10, "shard": 10}
"""Within how many seconds the rate is to be back. Other faults have no target: what hangs is waited for, and what fills up too."""
END_S = 20.0
"""No fault strikes in the last seconds, so that what was lost can be noticed and counted."""
BESIDES_MIN = 1.0
"""About how many minutes a run takes besides: Ray's start, the final episodes, evaluations."""
LEFT_S = 60.0
"""Seconds after its end in which a run's processes may still go."""
EPISODES = 50


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained. Where an environment waits at each step, rates do not depend on other work of the machine."""

    algorithm: str
    env: str
    known: float
    """The return at which the task is solved."""
    roles: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)


LANDER = "faulty_lander:FaultyLander"
BESIDE = {"num_cpus": 8, "num_cpus_per_worker": 0.1, "parameter_server": True, "evaluation_parallel": True}
TASKS = {
    "sync": Task(
        "PPO", LANDER, 200.0, roles=("worker", "learner", "server", "evaluator"),
        settings={**BESIDE, "num_workers": 2, "num_envs_per_worker": 8, "fragment_length": 128, "num_learners": 2,
                  "env_config": {"wait_s": 0.003}},
    ),
    "async": Task(
        "APPO", LANDER, 200.0, roles=("worker", "learner", "server", "evaluator"),
        settings={**BESIDE, "num_workers": 3, "num_envs_per_worker": 8, "num_learners": 2, "env_config": {"wait_s": 0.006}},
    ),
    "replay": Task(
        "SAC", LANDER, 200.0, roles=("worker", "learner", "shard", "server", "evaluator"),
        settings={**BESIDE, "num_workers": 2, "num_envs_per_worker": 8,
                  "num_learners": 1, "num_replay_shards": 2, "evaluation_interval": 20, "env_config": {"wait_s": 0.003}},
    ),
    "cartpole": Task(
        "PPO", "CartPole-v1", 475.0, ("worker", "learner"),
        {**TUNED["PPO", "CartPole-v1"], "num_workers": 2, "num_cpus_per_worker": 0.5, "num_envs_per_worker": 8},
    ),
    "cartpole-async": Task(
        "IMPALA", "CartPole-v1", 475.0, ("worker", "learner"),
        {"num_workers": 2, "num_cpus_per_worker": 0.5, "num_envs_per_worker": 8},
    ),
}  # fmt: skip
LOOPS = ("sync", "async", "replay")
PEER = ("cartpole", "cartpole-async")
"""Tasks that RLlib's runner knows."""
BESIDE_PEER = ("worker", "learner", "node-kill", "node-stop", "node-add")
"""Faults in which it runs beside."""
TIMEOUT_S = 20.0
"""worker_timeout_s where a worker hangs; elsewhere it is the default, since a start on a busy machine takes its time."""


def kinds_of(task: Task, fault: str, options: argparse.Namespace) -> list[str]:
    """The faults of a schedule, in turn."""
    if fault == "kills":
        return [role for role in task.roles if role in (options.roles or task.roles)]
    return ["node-kill", "node-add"] if fault == "node-add" else [fault]


def schedule(task: Task, fault: str, options: argparse.Namespace, rng: random.Random) -> list[tuple[float, str]]:
    """(seconds since training began, what strikes), the first after `every` seconds."""
    if fault in CALM:
        return []
    kinds, times = kinds_of(task, fault, options), list[tuple[float, str]]()
    when = options.every
    while when < options.minutes * 60 - min(END_S, options.every):
        times.append((when, rng.choice(kinds) if options.random else kinds[len(times) % len(kinds)]))
        when += options.every
    return times


class Training:
    """A process that trains: raypid's command line, or the runner of a peer. What belongs to it is known by its mark."""

    def __init__(self, name: str, library: str, fault: str, options: argparse.Namespace, folder: Path) -> None:
        self.task, self.fault, self.options, self.folder = TASKS[name], fault, options, folder
        self.mark, self.library = uuid.uuid4().hex, library
        self.out, self.trace = folder / "disk" / "run", folder / "trace"
        for place in (folder / "orders", folder / "disk"):
            place.mkdir(parents=True, exist_ok=True)
        self.before = {f"/dev/shm/{file}" for file in os.listdir("/dev/shm")}
        path = os.pathsep.join(p for p in (str(HERE), os.environ.get("PYTHONPATH")) if p)
        self.environment = {**with_mark(self.mark, {**os.environ}), PLACE: str(self.trace), "PYTHONPATH": path}
        if fault == "leak":  # what the machine uses now, and 3 GiB
            self.environment["RAY_memory_usage_threshold"] = f"{memory_in_use() + (3 << 30) / total_memory():.3f}"
        self.resumed = 0
        end_with_this_process(self.mark)

    def command(self, address: str | None) -> list[str]:
        seconds = self.options.minutes * 60 * (1000 if self.options.counted and self.fault not in CALM else 1)
        if self.library != "raypid":
            script = [self.options.peer, str(HERE / "runners/rllib_chaos.py"), "--algo", self.task.algorithm]
            more = [
                "--env",
                self.task.env,
                "--seconds",
                str(seconds),
                "--seed",
                str(self.options.seed),
                "--out",
                str(self.out),
            ]
            return [
                *script,
                *more,
                *(["--address", address] if address else []),
                *(["--learners", "2"] * (self.fault == "learner")),
            ]
        settings = {**self.task.settings, "max_restarts": 1000, "seed": self.options.seed}
        settings |= {"worker_timeout_s": TIMEOUT_S} if self.fault in ("hang", "stop") else {}
        settings |= {"num_learners": 2, "num_cpus": 8} if self.fault == "learner" else {}
        settings |= self.options.settings
        if self.fault in ENVIRONMENT:
            settings["env_config"] = {**settings["env_config"], "orders": str(self.folder / "orders")}
        if address:  # the roles that a node takes with it are workers, shards, servers and the evaluator
            settings |= {
                "num_workers": 3,
                "num_learners": 0,
                "num_cpus_per_worker": 1,
                "num_cpus": None,
                "address": address,
            }
        file = self.folder / "settings.json"
        file.write_text(json.dumps(settings))
        train = [sys.executable, "-m", "raypid", "train", "--run", self.task.algorithm, "--env", self.task.env]
        more = [
            "--config",
            str(file),
            "--callbacks",
            "chaos_trace:Trace",
            "--stop",
            json.dumps({"time_total_s": seconds}),
        ]
        return [*train, *more, "--out", str(self.out), "--final-episodes", str(EPISODES)]

    def start(self, command: list[str]) -> None:
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def resume(self) -> bool:
        """Go on from the newest checkpoint, if it ended by a full disk."""
        if self.fault != "disk" or self.process.returncode != 1 or not list_checkpoints(self.out / "checkpoints"):
            return False
        self.resumed += 1
        self.start([sys.executable, "-m", "raypid", "train", "--resume", str(self.out)])
        return True

    def interrupt(self, why: str) -> str:
        """End the process as a user would; returns what it took."""
        for tries in ("one Ctrl-C", "two Ctrl-C"):
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(START_S)
                return f"{why}ended by {tries}"
        end(self.mark)
        self.process.wait(START_S)
        return f"{why}killed"

    def left(self, cluster: Cluster | None) -> dict[str, Any]:
        """What is there once the driver has ended: processes at once and after a while, files in /dev/shm."""

        def processes() -> list[str]:
            if cluster is None:
                return list(marked(self.mark).values())
            return cluster.processes()

        begin, at_once = time.monotonic(), len(processes())
        while (there := processes()) and time.monotonic() - begin < LEFT_S:
            time.sleep(0.5)
        took = time.monotonic() - begin
        shm = [] if cluster is not None else abandoned(self.before)
        return {
            "at_once": at_once,
            "seconds": took if at_once else 0.0,
            "processes": [x[:100] for x in there],
            "shm": shm,
        }


def memory_in_use() -> float:
    values = {
        k: int(v.split()[0]) for k, v in (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    }
    return 1 - values["MemAvailable"] / values["MemTotal"]


def total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def cluster_of(training: Training, cpus: list[int]) -> Iterator[Cluster]:
    """Nodes of their own for a training, which have its mark too."""
    from ray_nodes import Nodes

    python = sys.executable if training.library == "raypid" else training.options.peer
    with Nodes(training.folder, cpus[0], environment=training.environment, python=python) as nodes:
        training.environment |= nodes.env
        yield Cluster(nodes, cpus)


def measure(
    name: str, library: str, fault: str, options: argparse.Namespace, usual: dict[str, float]
) -> dict[str, Any]:
    """Train once and strike; returns the row. `usual`: the rates of the undisturbed run; empty where this is that run."""
    folder = Path(tempfile.mkdtemp(prefix=f"raypid-chaos-{name}-{fault}-"))
    training = Training(name, library, fault, options, folder)
    cpus = [1, 1, 1] if fault == "node-add" else [1, 2, 2]
    with contextlib.ExitStack() as stack:
        remove = stack.enter_context(contextlib.ExitStack())  # last, and also where this process is told to end
        remove.callback(shutil.rmtree, folder, ignore_errors=True)
        if fault == "disk":
            stack.enter_context(small_disk(folder / "disk", 64))
        stack.callback(end, training.mark)
        cluster = stack.enter_context(cluster_of(training, cpus)) if fault in NODES else None
        wait_s = options.patience if options.counted else options.every
        strikes = Strikes(training.mark, random.Random(options.seed), folder, cluster, wait_s=wait_s)
        watch = Watch(training, strikes, schedule(training.task, fault, options, strikes.rng), options)
        training.start(training.command(cluster.nodes.address if cluster else None))
        watch()
        row: dict[str, Any] = {"left": training.left(cluster)} | learnt(training) | {"log": said(folder / "log")}
        row |= recovered(Progress.read(training.trace), strikes, watch.begin, watch.last, usual, options)
        if watch.code != "0":
            remove.pop_all()
            print(f"  the run's folder stays: {folder}")
    row |= {"injected": [{**asdict(x), "at": x.at - watch.begin} for x in strikes.log], "missed": watch.missed}
    row |= {"exit": watch.code, "open_files": watch.files, "resumed": training.resumed, "known": training.task.known}
    row |= {"trained_s": watch.last - watch.begin if watch.begin else 0.0}
    return row


class Watch:
    """Strikes at a training as planned until it has ended, and notes how it went."""

    def __init__(
        self, training: Training, strikes: Strikes, plan: list[tuple[float, str]], options: argparse.Namespace
    ) -> None:
        self.training, self.strikes, self.plan, self.options = training, strikes, list(plan), options
        self.begin = 0.0
        """When training began, by the monotonic clock: its first iteration was over."""
        self.last = time.monotonic()
        """When the newest iteration was over."""
        self.code, self.missed = "", list[str]()
        """How the process ended, and faults that could not strike."""
        self.files = [0, 0]
        """The driver's open files five seconds after the beginning, and at the end."""
        self._size = self._num_points = 0

    def __call__(self) -> None:
        while self.training.process.poll() is None or self.training.resume():
            time.sleep(0.05)
            self._look()
            if self._stands_still():
                self.code = self.training.interrupt("hung, ")
                return
            now = time.monotonic()
            if self.begin and self.plan and now >= self.begin + self.plan[0][0] and self._may_go_on():
                self._strike(self.plan.pop(0)[1])
            elif self.options.counted and self.begin and not self.plan and self._may_go_on():
                self.training.interrupt("")
        self.code = str(self.training.process.returncode)

    def _look(self) -> None:
        """Notice a new iteration."""
        trace = self.training.trace
        size = trace.stat().st_size if trace.exists() else 0
        if size == self._size:
            return
        self._size, self._num_points, self.last = size, self._num_points + 1, time.monotonic()
        self.begin = self.begin or self.last
        self.files[1] = open_files(self.training.process.pid) or self.files[1]
        if self.last < self.begin + 5 or not self.files[0]:
            self.files[0] = self.files[1]

    def _stands_still(self) -> bool:
        """Whether there was no iteration for too long. Starts and final episodes take their time."""
        now, patience = time.monotonic(), self.options.patience
        over = not self.options.counted and now > self.begin + self.options.minutes * 60
        return now - self.last > patience + (START_S if not self.begin or over else 0.0)

    def _may_go_on(self) -> bool:
        """With --counted: whether what has struck is counted, and three iterations came after."""
        if not self.options.counted or not self.strikes.log or self.training.process.poll() is not None:
            return True
        rows = read_results(self.training.out) if self._num_points >= 3 else []
        row = {"library": "raypid", "lost": losses(rows), "injected": [asdict(x) for x in self.strikes.log]}
        return accounted(row)[1] and self._num_points >= 3

    def _strike(self, kind: str) -> None:
        at = time.monotonic() - self.begin
        found = self.strikes.strike(kind)
        self.missed += [kind] * (found is None)
        self._num_points = 0
        print(f"    {at:5.0f} s  {kind}{'' if found else ' (not there)'} {found.what if found else ''}", flush=True)


def losses(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The counts under lost/ of the newest result."""
    return {
        key.removeprefix("lost/"): value for key, value in (rows[-1] if rows else {}).items() if key.startswith("lost/")
    }


def said(log: Path) -> list[str]:
    """The last lines that the process wrote."""
    return [line[:400] for line in log.read_text(errors="replace").splitlines()[-3:]]


def learnt(training: Training) -> dict[str, Any]:
    """Counts and returns of the run: lost/*, the best and the last policy's greedy episodes, when the known return came."""
    if training.library != "raypid":
        file = training.out / "row.json"
        return json.loads(file.read_text()) if file.exists() else {"lost": {}, "steps": 0, "updates": 0, "last": None}
    rows = read_results(training.out) if (training.out / "result.json").exists() else []
    row: dict[str, Any] = rows[-1] if rows else {}
    returns = [(r["time_total_s"], r.get("evaluation/episode_reward_mean")) for r in rows]
    reached = [at for at, mean in returns if isinstance(mean, float) and mean >= training.task.known]
    return {
        "lost": losses(rows),
        "steps": row.get("timesteps_total", 0),
        "updates": row.get("learner_updates_total", 0),
        "best": evaluated(training, training.out),
        "last": evaluated(training, training.out / "checkpoints"),
        "reached_s": reached[0] if reached else None,
    }


def evaluated(training: Training, policy: Path) -> float | None:
    """Mean return of greedy episodes in the environment as it is, which does not wait."""
    settings = training.task.settings.get("env_config")
    calm = ["--env-config", json.dumps({**settings, "wait_s": 0.0, "orders": ""})] if settings else []
    env = ["--env", training.task.env]
    command = [sys.executable, "-m", "raypid", "eval", str(policy), *env, *calm, "--episodes", str(EPISODES), "--json"]
    done = subprocess.run(command, env=training.environment, cwd=training.folder, capture_output=True, text=True)
    with (training.folder / "log-eval").open("a") as log:
        log.write(done.stdout + done.stderr)
    return float(json.loads(done.stdout)["episode_reward_mean"]) if done.returncode == 0 else None


def recovered(
    progress: Progress,
    strikes: Strikes,
    begin: float,
    finish: float,
    usual: dict[str, float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The usual rates of this run, and the seconds of recovery and of settling after each loss by kind (None: not before the next)."""
    if len(progress) < 3 or options.counted:  # then there is nothing to compare with
        return {"rates": {}, "width": None, "recovery": {}, "settling": {}}
    width = progress.width()
    rates = {what: progress.usual(what, progress.times[0] + 2, finish, width) for what in progress.counts}
    struck = [(x.kind, x.at) for x in strikes.log]
    if not struck:  # what the same measure makes of a run in which nothing happened
        times = range(1, int((finish - begin) / options.every))
        struck = [("none", begin + options.every * k) for k in times]
    ends = [at for _, at in struck[1:]] + [finish]
    found: dict[str, list[float | None]] = {}
    settled: dict[str, list[float | None]] = {}
    for (kind, at), until in zip(struck, ends, strict=True):
        found.setdefault(kind, []).append(recovery(progress, at, until, usual or rates, width))
        settled.setdefault(kind, []).append(settling(progress, at, until, width))
    return {"rates": rates, "width": width, "recovery": found, "settling": settled}


# -- tables ------------------------------------------------------------------------------------------------------------


def accounted(row: dict[str, Any]) -> tuple[str, bool]:
    """What was injected and what the run has counted, by lost/<name>; and whether they are the same.

    Nodes take any number of roles with them, and Ray's memory monitor may end other workers too: then more may be counted.
    Of RLlib only restarted env runners are known.
    """
    if row["library"] != "raypid":
        injected, lost = Counter(x["kind"] for x in row["injected"]), row["lost"]
        known = [
            f"{kind} {lost[kind]:g} of {num}" if kind in lost else f"{kind} {num}" for kind, num in injected.items()
        ]
        others = [f"{kind} {num:g}" for kind, num in lost.items() if num and kind not in injected]
        return ", ".join([*known, *others]), True
    kinds = [x["kind"] for x in row["injected"]]
    injected = Counter(KINDS[kind] for kind in kinds if kind in KINDS)
    with_others = not {"node-kill", "node-stop", "leak"}.isdisjoint(kinds)
    texts, right = [f"{kind} {num}" for kind, num in Counter(kinds).items() if kind not in KINDS], True
    for name in [*injected, *sorted(k for k in set(KINDS.values()) - set(injected) if row["lost"].get(k))]:
        counted = row["lost"].get(name)
        right &= counted is not None and (counted >= injected[name] if with_others else counted == injected[name])
        how_many = "not counted" if counted is None else f"{counted:g}"
        texts.append(f"{name.replace('_', ' ')} {how_many} of {injected[name]}")
    return ", ".join(texts) or "none", right


def seconds(values: list[float | None]) -> str:
    """Median and worst; what did not recover before the next loss counts as infinite."""
    if not values:
        return "–"
    numbers = [float("inf") if x is None else x for x in values]
    middle, worst = statistics.median(numbers), max(numbers)
    late = sum(x is None for x in values)
    text = "not" if middle == float("inf") else f"{middle:.1f}"
    return f"{text} / {f'not ({late})' if late else f'{worst:.1f}'}"


def in_time(kind: str, values: list[float | None]) -> tuple[int, int]:
    """How many of how many recoveries met the target of their kind; (0, 0) where there is none."""
    if kind not in TARGETS_S:
        return 0, 0
    return sum(x is not None and x <= TARGETS_S[kind] for x in values), len(values)


def targets(row: dict[str, Any]) -> tuple[str, bool]:
    """Whether all losses of a run were over in time, and how many of how many; and whether that is all."""
    counts = [in_time(kind, values) for kind, values in row.get("recovery", {}).items()]
    met, num = sum(x for x, _ in counts), sum(x for _, x in counts)
    if num == 0:
        return "", True
    return f"{'met' if met == num else 'not met'}: {met} of {num}", met == num


def lost_samples(row: dict[str, Any]) -> str:
    """What the run says of samples, beyond processes and environments."""
    if row["library"] != "raypid":
        return "not told"
    more = {k: v for k, v in row["lost"].items() if k not in KINDS.values() and v}
    return ", ".join(f"{k.replace('_', ' ')} {v:,.0f}" for k, v in more.items()) or "0"


BELOW = """
- Lost samples: what the run had been given and was then without: rows of replay, fragments that were lost with their node, updates of a learner
  that it was built anew without, data that became stale. 0: nothing of that kind. What a killed worker was collecting at that moment is not
  counted: it never reached the run, and is collected again.
- Target: the rate is back within 5 s of a loss, of a learner or shard within 10 s: met or not, and for how many losses of how many. Empty where
  there is none: in runs without faults, and where a fault lasts, or waits for a time limit or a node.
"""
"""What columns of the table mean."""


def share(row: dict[str, Any], twin: dict[str, Any] | None) -> str:
    """Steps a second, of those of the undisturbed run."""
    rates = [r["steps"] / r["trained_s"] if r.get("steps") and r.get("trained_s") else 0.0 for r in (row, twin or {})]
    return f"{rates[0] / rates[1]:.0%}" if all(rates) else "–" if "steps" in row else ""


def stayed(row: dict[str, Any]) -> str:
    """What was left, and the driver's open files."""
    left, files = row.get("left", {}), row.get("open_files")
    number = str(len(left["processes"]) + len(left["shm"])) if left else ""
    return f"{number}, files {files[0]} → {files[1]}" if files else number


def ended(row: dict[str, Any]) -> str:
    """Exit code, and how long it was if it was not long enough."""
    short = "trained_s" in row and row["trained_s"] < row["minutes"] * 55
    lasted = f", after {row['trained_s']:.0f} s" if short else ""
    return f"{row.get('exit', '')}{lasted}{', resumed' if row.get('resumed') else ''}"


def returned(row: dict[str, Any]) -> str:
    """Mean returns of the best and of the last policy, beside the known one."""
    texts = [f"{row[k]:.0f}" if row.get(k) is not None else "–" for k in ("best", "last")]
    return f"{' / '.join(texts)} ({row['known']:g})" if "known" in row else ""


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each run. What a stored row lacks is left empty."""
    calm = {
        (r["library"], r["task"], r["fault"]): r for r in rows if r["fault"] in CALM
    }  # the longest, as rows are sorted
    lines = []
    for r in rows:
        twin = calm.get((r["library"], r["task"], calm_of(r["fault"])))
        recovery = seconds([x for found in r["recovery"].values() for x in found]) if "recovery" in r else ""
        reached = f"{r['reached_s']:.0f}" if r.get("reached_s") is not None else "not" if "known" in r else ""
        how_often = f", every {r['every']:g} s" if r["fault"] not in CALM and "every" in r else ""
        counted = {"lost", "injected"} <= r.keys()
        lines.append((
            r["library"], f"{r['task']} ({TASKS[r['task']].algorithm})", f"{r['fault']}{how_often}, {r['minutes']:g} min",
            accounted(r)[0] if counted else "", lost_samples(r) if counted else "", share(r, twin), recovery, targets(r)[0],
            returned(r), reached, ended(r), stayed(r),
        ))  # fmt: skip
    header = ("", "task", "fault", "counted of injected", "lost samples", "steps a second, of undisturbed", "recovery, s: median / worst", "target",
              "return: best / last (known)", "known return after, s", "exit code", "left; open files")  # fmt: skip
    return markdown(header, lines) + BELOW


def by_role(rows: list[dict[str, Any]]) -> str:
    """Recovery by kind of fault. Of runs without faults, what the same measure makes of them, within 5 s."""
    lines = []
    for r in rows:
        for kind, values in r.get("recovery", {}).items():
            met, num = in_time("worker" if kind == "none" else kind, values)
            within = f"{met} of {num}" if num else ""
            settled = seconds(r["settling"][kind]) if "settling" in r else ""
            lines.append((r["library"], r["task"], r["fault"], kind, len(values), seconds(values), within, settled))
    header = (
        "",
        "task",
        "fault",
        "lost",
        "losses",
        "recovery, s: median / worst",
        "within 5 s (learner, shard: 10 s)",
        "settled after, s",
    )
    return markdown(header, lines)


def import_seconds() -> float:
    """What `import torch` takes in a new process, median of three: a lost learner pays it."""
    found = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        found.append(time.monotonic() - begin)
    return statistics.median(found)


class Store:
    """The rows, in a file that is written whenever one is added."""

    def __init__(self, folder: Path) -> None:
        self.file, self.page = folder / "chaos.json", folder / "chaos.md"
        found = stored("chaos", folder)
        self.rows: list[dict[str, Any]] = found.get("rows", [])
        self.torch_s: float | None = found.get("import_torch_s")
        self.machine: dict[str, Any] = found.get("machine") or machine()
        """Where the rows were measured."""

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        return next((row for row in self.rows if key.items() <= row.items()), None)

    def add(self, key: dict[str, Any], row: dict[str, Any]) -> None:
        self.rows = [other for other in self.rows if not key.items() <= other.items()] + [row]
        self.machine = machine()
        if self.torch_s is None:
            self.torch_s = import_seconds()
        self.write()

    def write(self) -> str:
        """Write rows and tables, and recovery by role into the documentation too; returns the tables."""
        order = [*TASKS]
        self.rows.sort(
            key=lambda r: (
                order.index(r["task"]),
                r["minutes"],
                r["library"],
                "node" in r["fault"],
                r["fault"] not in CALM,
            )
        )
        recovered = by_role(self.rows)
        if self.torch_s is not None:
            recovered += (
                f"\nA process that learns imports torch when it is built anew, which takes {self.torch_s:.1f} s on this "
                f"machine ({self.machine['cpus']} cores).\n"
            )
        text = f"{table(self.rows)}\n{recovered}"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.page.write_text(text)
        if self.file.parent.resolve() == RESULTS.resolve():
            before, rest = PAGE.read_text().split(BEGIN)
            link = "All that was counted is in [chaos.md](../benchmarks/results/chaos.md).\n"
            PAGE.write_text(f"{before}{BEGIN}{recovered}{link}{END}{rest.split(END)[1]}")
        content = {"machine": self.machine, "import_torch_s": self.torch_s, "rows": self.rows}
        self.file.write_text(json.dumps(content, indent=1) + "\n")
        return text


def calm_of(fault: str) -> str:
    """The undisturbed run that this one is measured by."""
    return CALM[fault in NODES]


class Run(NamedTuple):
    """What is measured, for a row."""

    task: str
    library: str
    fault: str
    minutes: float

    def __str__(self) -> str:
        return f"{self.library} {self.task}, {self.fault}, {self.minutes:g} min"

    def key(self, options: argparse.Namespace) -> dict[str, Any]:
        """What its row is known by."""
        key = {"library": self.library, "task": self.task, "fault": self.fault, "minutes": self.minutes}
        key |= {"seed": options.seed, "settings": json.dumps(options.settings)}
        if self.fault not in CALM:
            key |= {name: getattr(options, name) for name in ("every", "random", "roles", "counted")}
        return key

    def calm(self, options: argparse.Namespace) -> Run | None:
        """The undisturbed run that has to be there first."""
        if self.fault in CALM or options.counted:
            return None
        return self._replace(fault=calm_of(self.fault), minutes=options.calm_minutes or options.minutes)


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All runs that are asked for, each after its undisturbed one."""
    found = list[Run]()
    for task in options.tasks:
        for fault in options.faults:
            peer = options.peer and task in PEER and fault in (*CALM, *BESIDE_PEER)
            for library in ("raypid", "rllib") if peer else ("raypid",):
                run = Run(task, library, fault, options.minutes)
                found += [one for one in (run.calm(options), run) if one is not None]
    return list(dict.fromkeys(found))


def missing(runs: list[Run], options: argparse.Namespace, store: Store) -> list[Run]:
    """Those that are not stored. Undisturbed ones are not measured again."""
    again = options.again
    return [run for run in runs if store.find(run.key(options)) is None or (again and run.fault not in CALM)]


def carry_out(run: Run, options: argparse.Namespace, store: Store) -> bool:
    """Measure a run and store its row; returns whether it began."""
    calm = run.calm(options)
    twin = store.find(calm.key(options)) if calm else None
    if calm and twin is None:
        print(f"{run}: left out, since {calm} did not begin", flush=True)
        return False
    print(run, flush=True)
    mine = argparse.Namespace(**{**vars(options), "minutes": run.minutes})
    for _ in range(2):
        row = measure(run.task, run.library, run.fault, mine, twin["rates"] if twin else {}) | run.key(options)
        if row["trained_s"]:
            store.add(run.key(options), row)
            values = [x for found in row["recovery"].values() for x in found]
            text = f"; recovery {seconds(values)} s (median / worst)" if values else ""
            met = f"; target {targets(row)[0]}" if targets(row)[0] else ""
            print(f"  ended: exit {ended(row)}; counted: {accounted(row)[0]}{text}{met}", flush=True)
            return True
        print(f"  Training did not begin: {' '.join(row['log'])}", flush=True)
    return False


def wrong(row: dict[str, Any]) -> str:
    """What is not as it should be in a run of raypid; nothing if all is well."""
    if lacking := {"lost", "injected", "left", "exit", "missed", "log"} - row.keys():
        return f"its row lacks {', '.join(sorted(lacking))}"
    text, right = accounted(row)
    left = [*row["left"]["processes"], *row["left"]["shm"]]
    found = [] if row["exit"] == "0" else [f"exit {row['exit']}, {row['log']}"]
    found += [] if right else [f"counted {text}"]
    found += [f"not there {row['missed']}"] if row["missed"] else []
    found += [f"left {left}"] if left else []
    recovery, met = targets(row)
    found += [] if met or row.get("counted") else [f"recovery in time {recovery}"]
    return "; ".join(found)


def checked(options: argparse.Namespace, error: Callable[[str], Any]) -> None:
    """Refuse what would do nothing, or fail later."""
    for name in options.tasks:
        for fault in options.faults:
            if fault in ROLES and fault not in TASKS[name].roles:
                error(f"{name} has no {fault}; it has {', '.join(TASKS[name].roles)}.")
            if fault in ENVIRONMENT and name in PEER:
                error(f"The environment of {name} does not {fault}; those of {', '.join(LOOPS)} do.")
        if options.roles and not set(options.roles) & set(TASKS[name].roles):
            error(f"{name} has no {' or '.join(options.roles)}; it has {', '.join(TASKS[name].roles)}.")
        for fault in options.faults:
            if fault not in CALM and not schedule(TASKS[name], fault, options, random.Random(0)):
                error(
                    f"Nothing strikes in {options.minutes:g} minutes with one each {options.every:g} s: more --minutes, or a smaller --every."
                )
    if "disk" in options.faults and os.geteuid() != 0:
        error("disk mounts a small file system, which only root may do.")
    if options.peer and not set(options.tasks) & set(PEER):
        error(f"RLlib runs beside in {' and '.join(PEER)}, not in {', '.join(options.tasks)}.")
    if options.peer and not set(options.faults) & {*CALM, *BESIDE_PEER}:
        error(f"RLlib runs beside with {', '.join(BESIDE_PEER)}.")
    if options.roles and "kills" not in options.faults:
        error("--roles chooses what `kills` kills.")
    if options.peer and (why := without_rllib(options.peer)):
        error(f'--peer {options.peer}: {why}. RLlib comes by pip install "ray[rllib]==2.60.0" torch.')


def without_rllib(python: str) -> str:
    """Why RLlib cannot run by this interpreter; nothing if it can. It is only looked for: its import would take seconds."""
    needs = ("ray", "torch", "gymnasium", "tree", "scipy", "lz4", "ormsgpack")
    code = f"from importlib.util import find_spec; print(*(name for name in {needs} if not find_spec(name)))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"it does not run ({type(problem).__name__})"
    if done.returncode:
        return "it is no Python"
    return f"it has no {', '.join(done.stdout.split())}" if done.stdout.strip() else ""


def parser_of_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(LOOPS))
    add("--faults", nargs="+", choices=FAULTS, default=["kills"])
    add("--minutes", type=positive, default=10.0, help="of training, for each run")
    add("--calm-minutes", type=positive, help="of undisturbed runs (default: as long as the others)")
    add("--every", type=positive, default=15.0, help="seconds between faults")
    add("--seed", type=whole(0), default=0)
    add("--random", action="store_true", help="roles by chance rather than in turn")
    add("--roles", nargs="+", choices=ROLES, help="the roles that `kills` kills (default: all that the task has)")
    add("--settings", type=json_object, default={}, help="JSON, over the tasks' settings of raypid")
    add("--peer", metavar="PYTHON", help="the interpreter of an environment with RLlib, which runs beside")
    add("--patience", type=positive, default=120.0, help="seconds without an iteration after which a run is ended")
    counted = "each fault waits until the one before was counted; then the run is ended by Ctrl-C"
    add("--counted", action="store_true", help=counted)
    add("--again", action="store_true", help="measure what is stored once more (undisturbed runs stay)")
    strict = "exit code 1 if a loss is not counted, a run fails, anything stays, or recovery was not in time"
    add("--strict", action="store_true", help=strict)
    add("--table", action="store_true", help="measure nothing, and make the tables anew from what is stored")
    add("--out", type=writable, default=RESULTS, help="where chaos.json and chaos.md are")
    return parser


def main() -> int:
    parser = parser_of_flags()
    options = parser.parse_args()
    if options.table and not stored("chaos", options.out).get("rows"):
        parser.error(f"--table: there are no rows in {options.out / 'chaos.json'}, from which the tables would be made")
    if not options.table:
        checked(options, parser.error)
    exit_on_signals()  # what was started is ended too, and its folder removed
    store, failed = Store(options.out), list[str]()
    rows = store.rows
    if not options.table:
        runs = runs_of(options)
        todo = missing(runs, options, store)
        about = sum(run.minutes + BESIDES_MIN for run in todo)
        there = f", {len(runs) - len(todo)} stored already" if len(todo) < len(runs) else ""
        print(f"{len(todo)} runs{there}: about {about:.0f} min in all; rows go to {store.file}", flush=True)
        failed = [f"{run}: did not begin" for run in todo if not carry_out(run, options, store)]
        rows = [row for run in runs if (row := store.find(run.key(options)))]
    if store.rows:
        print(f"{store.write()}\nResults: {store.page} and .json")
    if options.strict:
        texts = ((row, wrong(row)) for row in rows if row["library"] == "raypid")
        failed += [f"{row['task']}, {row['fault']}, {row['minutes']:g} min: {text}" for row, text in texts if text]
    print("\n".join(failed), end="\n" * bool(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
