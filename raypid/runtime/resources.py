"""Preflight: does a run fit where it is to start? Also the threads of this process."""

from __future__ import annotations

import copy
import functools
import glob
import itertools
import math
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from raypid.errors import UserError
from raypid.runtime.plan import CPU, GPU, MEMORY, PLACED, STORE, Node, Roles, free_on, plan

_RESERVE = 0.1
"""Part of the free memory that a run leaves free."""
_ENV_BYTES, _ROW_BYTES, _PAIR_BYTES = 1000, 64, 40
"""Least memory of an environment, of a row beside its observation, and of a pair of perturbations."""
_SHARD_BYTES, _LEARNER_BYTES = 100 * 2**20, 400 * 2**20
"""Memory of the processes of a replay shard and of a learner."""
_MUCH_BYTES = 4096
"""Observations from which on (images) what workers collect is much for the network of one learner's node: docs/scaling.md."""

Number = int | float
Value = Number | str | tuple[int, ...]


def limit_threads(num: int) -> None:
    """Let BLAS in this process use `num` threads. Small matrices are slower with several."""
    os.environ.setdefault("OMP_NUM_THREADS", str(num))
    from threadpoolctl import threadpool_limits

    threadpool_limits(num, user_api="blas")


@dataclass(frozen=True, slots=True)
class Capacity:
    """CPUs and memory that the control groups of this process leave to it."""

    cpus: float = math.inf
    memory: float = math.inf
    """Bytes that are not taken."""


def cgroup_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Capacity:
    """The tightest limits of this process's control groups (version 1 or 2) and of those above them.

    Args:
        root: where the groups are mounted.
        own: the file that names this process's groups. In a container they may be mounted at `root` itself.
    """
    lines = [line.split(":", 2) for line in own.read_text().splitlines()] if own.exists() else []
    cpus, memory = [math.inf], [math.inf]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        base = root / controllers if controllers else root
        leaf = Path(path.lstrip("/"))
        for group in (base / leaf, *(base / parent for parent in leaf.parents)):
            quota = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(
                group / "cpu.cfs_period_us"
            )
            if len(quota) == 2 and quota[0].isdigit():
                cpus.append(int(quota[0]) / int(quota[1]))
            if cpuset := _words(group / "cpuset.cpus.effective") or _words(group / "cpuset.cpus"):
                cpus.append(_size_of_set(cpuset[0]))
            most = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
            taken = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
            if most and most[0].isdigit() and taken:
                memory.append(max(0, int(most[0]) - int(taken[0]) + _reclaimable(group)))
    return Capacity(min(cpus), min(memory))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _size_of_set(text: str) -> int:
    """The number of CPUs in a list such as "0-3,8"."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return sum(end[-1] - end[0] + 1 for end in ends)


def _reclaimable(group: Path) -> int:
    """Bytes of cached files, which the kernel gives up when memory is short."""
    words = _words(group / "memory.stat")
    found = dict(zip(words[::2], words[1::2], strict=False))
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


@functools.cache
def _granted_cpus() -> float:
    """Read once: it takes up to a hundred files, several milliseconds, and is asked for at every turn."""
    return cgroup_limits().cpus


_GRANTS = {
    "SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "", "PBS_NUM_PPN": "", "NCPUS": "PBS_JOBID", "NSLOTS": "SGE_TASK_ID",
    "LSB_DJOB_NUMPROC": "",
}  # fmt: skip
"""Variables by which schedulers tell a job how many CPUs it has -> one that shows whose a common name is."""


def granted_cpus() -> tuple[float, str]:
    """The fewest CPUs that a scheduler's variable grants to this job, and that variable; (inf, "") without one."""
    given = {name: os.environ.get(name, "") for name, of in _GRANTS.items() if not of or of in os.environ}
    return min(((float(text), name) for name, text in given.items() if text.isdecimal()), default=(math.inf, ""))


def num_cores(limits: Capacity | None = None) -> int:
    """CPUs that this process may use: the fewest of its affinity, its control groups and what a scheduler says (`granted_cpus`). A fraction
    of a CPU counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = min(limits.cpus if limits else _granted_cpus(), granted_cpus()[0])
    return allowed if granted >= allowed else max(1, math.ceil(granted))


def num_gpus() -> int:
    """GPUs of this machine that are visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([v for v in visible.split(",") if v.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _free_memory() -> float:
    words = _words(Path("/proc/meminfo"))
    return 1024 * float(words[words.index("MemAvailable:") + 1]) if "MemAvailable:" in words else math.inf


@dataclass(kw_only=True, slots=True)
class Has:
    """Resources that a run could take."""

    cpus: float
    gpus: float
    """On a cluster, of the machine where the driver is."""
    memory: float
    """Bytes. On a cluster, of the machine where the learner is; its nodes have the workers'."""
    shared_memory: float
    place: str
    granted_by: str = ""
    """The scheduler's variable that grants so few CPUs, if one does."""
    nodes: tuple[Node, ...] = ()
    """Nodes of a cluster that was joined."""
    cores: float = math.inf
    """Cores of this machine: workers get no more, even if Ray is given a larger number."""

    def free_on(self, name: str) -> str:
        """Say how much is free on each node, if there are several nodes or some of it is taken; else ""."""
        taken = any(node.has(name) < node.total.get(name, 0.0) - 1e-9 for node in self.nodes)
        return free_on(self.nodes, name) if len(self.nodes) > 1 or taken else ""

    @classmethod
    def here(cls, num_cpus: float | None = None) -> Has:
        """This machine, or what its control groups leave of it. `num_cpus` is what Ray is told that it has: it makes room for
        learners, but not for more workers than there are cores."""
        limits = cgroup_limits()
        shm = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else math.inf
        cores, (granted, variable) = num_cores(limits), granted_cpus()
        return cls(
            cpus=num_cpus or cores,
            cores=cores,
            granted_by=variable if cores >= granted else "",
            gpus=num_gpus(),
            memory=(1 - _RESERVE) * min(_free_memory(), limits.memory),
            shared_memory=shm,
            place="this machine",
        )


@dataclass(kw_only=True, slots=True)
class Needs:
    """The numbers that decide what a run takes. Settings have their own names."""

    num_workers: int
    """Processes of their own; 0: all is in this process."""
    num_cpus_per_worker: float = 1.0
    num_learners: int = 0
    num_replay_shards: int = 0
    num_gpus: float = 0.0
    learners_by_gpu: bool = False
    """There are several learners only because there are several GPUs: with fewer GPUs there are fewer learners."""
    parameter_server: bool = False
    learner_sync: str = "all_reduce"
    evaluation_parallel: bool | None = None
    num_envs_per_worker: int = 1
    fragment_length: int = 1
    fragments_per_update: int = 0
    batch_size: int = 1
    updates_per_call: int = 1
    buffer_size: int = 0
    frame_stack: int = 1
    hidden: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    memory_size: int = 0
    noise_table_size: int = 0
    population: int = 0
    process_bytes: float = 0.0
    """Memory of a worker's process before it has environments."""
    frame_bytes: int = 0
    """One observation."""
    frame_width: int = 0
    """Numbers of one observation that enter the network as a vector."""
    num_outputs: int = 0
    num_trunks: int = 1
    num_gates: int = 0
    """Gates of a recurrent cell."""
    num_critics: int = 0
    """Networks of the learner's besides the policy, each about as large."""
    copies: int = 4
    """Arrays of all parameters that the learner holds: parameters, gradients, two of the optimizer, target networks."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Settings that differ from those that were given."""
    complete: Callable[[Mapping[str, Value]], Mapping[str, Value] | None] = dict
    """Completes changes by what must come with them; None where the settings are refused all the same."""

    def after(self, changes: Mapping[str, Value]) -> Needs:
        """These needs with other settings. Those that need nothing are only kept in `changes`."""
        needs = copy.copy(self)
        for name, value in changes.items():
            if hasattr(needs, name.removeprefix("model.")):
                setattr(needs, name.removeprefix("model."), value)
        needs.changes = {**self.changes, **changes}
        return needs

    def working(self, changes: Mapping[str, Value]) -> dict[str, Value]:
        """Changes completed so that a run takes them; {} if it refuses them."""
        whole = self.complete({**self.changes, **changes}) or {}
        return {name: value for name, value in whole.items() if self.changes.get(name) != value}

    @property
    def num_cpus(self) -> float:
        """CPUs of all workers and learners."""
        return self.num_workers * self.num_cpus_per_worker + self.num_learners

    @property
    def weights_bytes(self) -> float:
        """The parameters of one network, in float32. Biases and small heads are left out."""
        width, total, layers = self.frame_stack * self.frame_width, 0, self.channels
        total += 9 * sum(a * b for a, b in zip((self.frame_stack, *layers), layers, strict=False))
        width += layers[-1] if layers else 0
        for units in self.hidden:
            total += self.num_trunks * (width + 1) * units
            width = units
        if self.num_gates:
            total += self.num_trunks * self.num_gates * self.memory_size * (width + self.memory_size)
            width = self.memory_size
        return 4 * (total + width * self.num_outputs)

    @property
    def fragment_bytes(self) -> float:
        """Size of the data that one call of a worker collects."""
        return (self.frame_bytes + _ROW_BYTES) * self.fragment_length * self.num_envs_per_worker

    @property
    def worker_bytes(self) -> float:
        """Memory of one worker: its process, environments, a fragment and the weights (of each environment, in a population)."""
        envs = self.num_envs_per_worker * (_ENV_BYTES + self.frame_bytes * self.frame_stack)
        policies = self.num_envs_per_worker if self.population else 1
        return self.process_bytes + envs + self.fragment_bytes + policies * self.weights_bytes

    @property
    def learner_bytes(self) -> float:
        """Memory of learners, shards and driver: weights, a minibatch, the replay buffer or the fragments of an update."""
        processes = self.num_replay_shards * _SHARD_BYTES + self.num_learners * _LEARNER_BYTES
        return self._learning_bytes + self._buffer_bytes + processes

    @property
    def _learning_bytes(self) -> float:
        activations = 8 * self.num_trunks * (sum(self.hidden) + self.num_gates * self.memory_size)
        drawn = self.updates_per_call * (self._row_bytes + (self.frame_stack - 1) * self.frame_bytes)
        return sum((
            max(1, self.num_learners) * self.copies * (1 + self.num_critics) * self.weights_bytes,
            self.batch_size * (activations + drawn),
            self.fragments_per_update * self.fragment_bytes,
            4 * self.noise_table_size + _PAIR_BYTES * self.population,
        ))  # fmt: skip

    @property
    def _row_bytes(self) -> float:
        return self.frame_bytes + _ROW_BYTES

    @property
    def _buffer_bytes(self) -> float:
        """The replay buffer, or all its shards."""
        return self.buffer_size * (self._row_bytes + 8 * self.num_trunks * self.memory_size)

    @property
    def driver_bytes(self) -> float:
        """Memory of the driver on a cluster: of what learns, unless that is in actors."""
        if self.num_learners:
            return 0.0
        return self._learning_bytes + (0.0 if self.num_replay_shards else self._buffer_bytes)

    @property
    def roles(self) -> Roles:
        """The processes of the run, with the amounts that they take of a cluster's nodes."""
        learners, shards = max(1, self.num_learners), max(1, self.num_replay_shards)
        buffer = 0.0 if self.num_replay_shards else self._buffer_bytes
        return Roles(
            num_workers=self.num_workers,
            worker={CPU: self.num_cpus_per_worker, MEMORY: self.worker_bytes, STORE: 2 * self.fragment_bytes},
            num_learners=self.num_learners,
            learner={
                CPU: 1.0,
                GPU: self.num_gpus / learners,
                MEMORY: (self._learning_bytes + buffer) / learners + _LEARNER_BYTES,
            },
            num_shards=self.num_replay_shards,
            shard={MEMORY: self._buffer_bytes / shards + _SHARD_BYTES},
            servers=self.parameter_server,
            shares_parameters=self.num_learners > 1 and self.learner_sync == "asynchronous",
            evaluator=self.evaluation_parallel,
            much_data=self.frame_bytes >= _MUCH_BYTES,
        )

    @property
    def shared_bytes(self) -> float:
        """In Ray's object store: two fragments of each worker and what all workers read."""
        if not self.num_workers:
            return 0.0
        return 2 * self.num_workers * self.fragment_bytes + self.weights_bytes + 4 * self.noise_table_size


_MEMORY = (
    "num_workers", "num_envs_per_worker", "fragment_length", "buffer_size", "batch_size", "hidden", "channels", "frame_stack",
    "memory_size", "noise_table_size", "population", "fragments_per_update", "num_replay_shards", "num_learners", "num_critics",
)  # fmt: skip
"""The settings that memory depends on."""
_MODEL = ("hidden", "channels", "memory_size")
_SHRINK = (
    "num_workers", "num_gpus", "num_learners", "num_envs_per_worker", "fragment_length", "buffer_size",
    "num_replay_shards", "start_steps", "learner_sync",
)  # fmt: skip
"""Settings that `fit` changes, the last three only where others force it. The rest decides what is learnt."""
_TRIES = {"batch_size": 100}
"""Number of values of a setting that are tried, from the largest that fits downwards. It is 1 for settings that need not be a multiple."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """Something that does not fit."""

    setting: str
    """The setting that asks for too much."""
    value: object
    needed: float
    available: float
    resource: str
    """GPU, CPU, place on its nodes (for a worker), memory or shared memory (/dev/shm); the last two in bytes."""
    place: str
    fits: Mapping[str, Value] = field(default_factory=dict)
    """Settings that make it fit; empty where none does."""
    smaller: int = 0
    """Bytes of an observation with which it would fit, where no setting does."""
    detail: str = ""
    """An addition to the setting's value in messages: the CPUs of a worker, learners."""
    keeps: float = 0.0
    """CPUs of each worker with which all workers fit; 0: none."""
    lacks: str = ""
    """CPU, GPU or memory: what nodes of a cluster have too little of."""
    free: str = ""
    """How much of that is free on each node, as text."""

    @property
    def hopeless(self) -> bool:
        """Nothing to shrink helps."""
        return not self.fits or self.fits.get("num_workers") == 0

    def reason(self) -> str:
        """Say what is short, as a clause."""
        subject, verb = assignment(self.setting, self.value), "needs"
        if self.setting == "num_workers" and isinstance(self.value, int):
            subject = _counted(self.value, "worker")
            verb = "needs" if self.value == 1 and "learner" not in self.detail else "need"
        if "memory" in self.resource:
            needed, there = _gib(self.needed), f"{_gib(self.available)} free"
            return f"{subject} {verb} about {needed} of {self.resource}, {self.place} has {there}"
        where = f" ({self.free})" if self.free else ""
        needed = _counted(self.needed, self.resource)
        return f"{subject}{self.detail} {verb} {needed}, {self.place} has {self.available:g}{where}"

    def remedy(self) -> str:
        """The settings that would fit; "" where none do."""
        found = [] if self.hopeless else [" and ".join(assignment(k, v) for k, v in self.fits.items())]
        if self.keeps and isinstance(self.value, int):
            found.append(f"{assignment('num_cpus_per_worker', self.keeps)} to keep {_counted(self.value, 'worker')}")
        return ", or ".join(found)


class ResourceError(UserError):
    """More was asked for than there is. A preflight says what: `shortages`."""

    def __init__(
        self, message: str, shortages: Sequence[Shortage] = (), fits: Mapping[str, Value] | None = None
    ) -> None:
        super().__init__(message)
        self.shortages = shortages
        self.fits = fits or {}
        """Settings with which all of it fits; empty where nothing does, or where it would change what is learnt."""

    @property
    def may_pass(self) -> bool:
        """Whether all that is short are places on a cluster's nodes, which others may free or which may be added."""
        return bool(self.shortages) and all(short.lacks in (CPU, GPU) for short in self.shortages)


def _refusal(shortages: Sequence[Shortage]) -> str:
    """Why a run does not fit, and what would."""
    first = {shortage.setting: shortage for shortage in reversed(shortages)}
    reasons = "; ".join(s.reason() for s in shortages if s is first[s.setting] or s.resource == "CPU")
    last = {name: shortage for shortage in shortages for name in shortage.fits or [shortage.setting]}
    remedies = dict.fromkeys(shortage.remedy() for shortage in last.values())
    hopeless = [s for s in shortages if s.hopeless]
    if any(not s.remedy() for s in hopeless):
        if any("num_workers" in s.fits for s in hopeless):
            return f"{reasons}. Nothing fits: not even one worker."
        smaller = max(s.smaller for s in hopeless) / 2**10
        fits = f" Nothing fits but smaller observations (images of fewer pixels): of at most {smaller:,.1f} KiB each."
        return f"{reasons}.{fits if smaller else ''}"
    shrinks = not hopeless and all(name in _SHRINK for s in shortages for name in s.fits)
    return f"{reasons}. What fits: {'; '.join(remedies)}{'; fit=True does it by itself' if shrinks else ''}."


def check(needs: Needs, has: Has) -> Shortage | None:
    """The first thing that does not fit. What it says would fit passes the checks of settings and, with what was changed before, this one."""
    found = (shortage(needs, has) for shortage in (_gpu_shortage, _cpu_shortage, _memory_shortage, _place_shortage))
    if (short := next(filter(None, found), None)) is None:
        return None
    short = replace(short, free=has.free_on(short.lacks) if short.lacks else "")
    return short if short.hopeless else replace(short, fits=needs.working(short.fits))


def _gpu_shortage(needs: Needs, has: Has) -> Shortage | None:
    """Compare the GPUs with those of the cluster, or with those of this machine if the driver learns."""
    on_nodes = bool(has.nodes) and needs.num_learners > 0
    there = sum(node.has(GPU) for node in has.nodes) if on_nodes else has.gpus
    if needs.num_gpus <= there + 1e-9:
        return None
    place = "this machine, where the driver learns," if has.nodes and not on_nodes else has.place
    gpus: dict[str, Number] = {"num_gpus": float(there)}
    if needs.learners_by_gpu:
        gpus["num_learners"] = int(there) if there > 1 else 0
    if not on_nodes and any(node.has(GPU) >= needs.num_gpus and node.has(CPU) >= 1 for node in has.nodes):
        gpus = {"num_learners": 1}
    return Shortage(setting="num_gpus", value=needs.num_gpus, needed=needs.num_gpus, available=there, resource="GPU", place=place,
                    fits=gpus, lacks=GPU if on_nodes else "")  # fmt: skip


def _cpu_shortage(needs: Needs, has: Has) -> Shortage | None:
    """Compare the CPUs of all roles with those that are there."""
    num, each = needs.num_workers, needs.num_cpus_per_worker
    cpus = min(has.cpus, has.cores + needs.num_learners)
    if needs.num_cpus <= cpus + 1e-9:
        return None
    learners = _fewer_learners(needs, cpus)
    room = int(max(0.0, min(has.cpus - learners, has.cores)) / each + 1e-9) if each else 0
    fits: dict[str, Number] = {"num_workers": min(num, room)}
    if learners < needs.num_learners:
        fits["num_learners"] = learners
    keeps = math.floor(100 * max(0.0, cpus - needs.num_learners) / max(1, num)) / 100
    if not keeps or check(needs.after({"num_cpus_per_worker": keeps}), has):
        keeps = 0.0
    learning = f" and {_counted(needs.num_learners, 'learner')}" if needs.num_learners else ""
    place = f"this job ({has.granted_by})" if has.granted_by else has.place
    return Shortage(setting="num_workers", value=num, needed=needs.num_cpus, available=cpus, resource="CPU", place=place,
                    fits=fits, detail=f" of {_counted(each, 'CPU')}{learning}", keeps=keeps, lacks=CPU)  # fmt: skip


def _place_shortage(needs: Needs, has: Has) -> Shortage | None:
    """Look for a node for each learner, worker and replay shard that has all that it takes at once."""
    found = plan(needs.roles, has.nodes)
    kind = next(filter(found.missing, PLACED), None) if has.nodes else None
    if kind is None:
        return None
    (num, each), num_placed = needs.roles.wanted(kind), len(found.at[kind])
    parts = [_counted(each[name], name) for name in (CPU, GPU) if each.get(name)]
    fits: dict[str, Number] = {"num_workers": num_placed}
    keeps = 0.0
    if kind == "worker":
        keeps = _kept(needs, has)
    elif kind == "learner":
        fits = _fewer_gpus(needs, has, num_placed)
    else:
        left = [replace(n, free={**n.free, MEMORY: (1 - _RESERVE) * n.has(MEMORY)}) for n in has.nodes]
        size = _largest(needs, "buffer_size", lambda needs: plan(needs.roles, left).missing(kind), 0)
        fits = {"buffer_size": size} if size else {}
    short = CPU if each.get(CPU) else MEMORY
    short = GPU if each.get(GPU) and not any(node.has(GPU) >= each[GPU] for node in has.nodes) else short
    if not any(node.has(MEMORY) >= each[MEMORY] for node in has.nodes):
        short = MEMORY
    setting = {"learner": "num_learners", "worker": "num_workers", "shard": "num_replay_shards"}[kind]
    return Shortage(setting=setting, value=num, needed=num, available=num_placed, resource="place on its nodes", place=has.place,
                    fits=fits, detail=f" of {', '.join(parts)} and {_gib(each[MEMORY])} of memory".replace("of  and", "of"), keeps=keeps,
                    lacks=short)  # fmt: skip


def _kept(needs: Needs, has: Has) -> float:
    """The CPUs of each worker, in hundredths, with which all workers find a place; 0 if there is no such number."""
    hundredths = range(1, max(1, int(100 * needs.num_cpus_per_worker)))
    most = bisect_right(
        hundredths,
        0,
        key=lambda n: plan(needs.after({"num_cpus_per_worker": n / 100}).roles, has.nodes).missing("worker"),
    )
    return most / 100


def _fewer_gpus(needs: Needs, has: Has, num_placed: int) -> dict[str, Number]:
    """Learners and GPUs that find a node: fewer learners, or one with the GPUs that one node has, or the driver."""
    share = needs.num_gpus / needs.num_learners
    if num_placed:
        return {"num_learners": num_placed, **({"num_gpus": share * num_placed} if share else {})}
    gpus = max((math.floor(node.has(GPU)) for node in has.nodes if node.has(CPU) >= 1), default=0)
    if share and gpus:
        return {"num_learners": 1, "num_gpus": float(gpus)}
    return {"num_learners": 0, **({"num_gpus": 0.0} if share else {})}


def _fewer_learners(needs: Needs, cpus: float) -> int:
    """The most learners that find a CPU each and one for a worker of their own.

    Where only one would, none: then the driver learns, and reserves no CPU.
    """
    if needs.num_learners <= 1:
        return needs.num_learners
    fits = min(needs.num_learners, int(cpus / (1 + needs.num_cpus_per_worker) + 1e-9))
    return fits if fits > 1 else 0


def _memory_shortage(needs: Needs, has: Has) -> Shortage | None:
    """Compare shared memory and memory. The setting that takes most is to blame."""

    def memory(n: Needs) -> float:
        return n.driver_bytes if has.nodes else n.learner_bytes + max(1, n.num_workers) * n.worker_bytes

    limits: list[tuple[str, Callable[[Needs], float], float]] = [
        ("shared memory (/dev/shm)", attrgetter("shared_bytes"), has.shared_memory),
        ("memory", memory, has.memory),
        ("memory on one node", attrgetter("worker_bytes"), max((n.has(MEMORY) for n in has.nodes), default=math.inf)),
    ]
    for name, amount, there in limits:
        if amount(needs) > there:
            setting, fits = _culprit(needs, amount, there)
            called = f"model.{setting}" if setting in _MODEL else setting
            smaller = 0 if fits else _largest(needs, "frame_bytes", amount, (1 - _RESERVE) * there)
            return Shortage(setting=called, value=getattr(needs, setting), needed=amount(needs), available=there, resource=name,
                            place=has.place, fits=fits, smaller=smaller)  # fmt: skip
    return None


Measure = Callable[[Needs], float]


def _culprit(needs: Needs, amount: Measure, there: float) -> tuple[str, dict[str, Value]]:
    """The setting to blame for an `amount` above what is there, and settings that fit and are accepted ({}: there are none).

    They leave a tenth free, since others take memory too before the run begins; where that is too much to ask, they just fit.
    """

    def size(setting: str) -> int:
        value = given[setting]
        return max(value) if isinstance(value, tuple) else value

    given: dict[str, int | tuple[int, ...]] = {name: value for name in _MEMORY if (value := getattr(needs, name))}
    if needs.num_workers and needs.process_bytes > there:
        return "num_workers", {"num_workers": 0}
    none: dict[str, Value] = {name: () if isinstance(value, tuple) else 1 for name, value in given.items()}
    enough = [name for name in given if amount(needs.after({name: none[name]})) <= there]
    ranked = sorted(enough or given, key=lambda name: (name != "num_workers" or not enough, -size(name)))
    for limit, setting in itertools.product(((1 - _RESERVE) * there, there), ranked if enough else ()):
        most = 0 if isinstance(given[setting], tuple) else _largest(needs, setting, amount, limit)
        called = f"model.{setting}" if setting in _MODEL else setting
        for value in range(most, max(0, most - _TRIES.get(setting, 1)), -1):
            if fits := needs.working({called: value}):
                return setting, fits
    return ranked[0], {}


def _largest(needs: Needs, name: str, amount: Measure, limit: float) -> int:
    """The largest value of a setting below the one given with which an `amount` is within a limit; 0: there is none."""
    return bisect_right(range(1, getattr(needs, name)), limit, key=lambda value: amount(needs.after({name: value})))


def preflight(needs: Needs, has: Has, *, fit: bool) -> tuple[dict[str, Value], list[str]]:
    """Settings to change (only with `fit`) and what to tell the user.

    Raises:
        ResourceError: it does not fit, and `fit` is off or does not help. The message says what would fit.
    """
    shortages: list[Shortage] = []
    while (short := check(needs, has)) is not None:
        shortages.append(short)
        if short.hopeless or (fit and not all(name in _SHRINK for name in short.fits)):
            fit, needs = False, replace(needs, changes={})
            break
        needs = needs.after(short.fits)
    if shortages and not fit:
        raise ResourceError(_refusal(shortages), shortages, needs.changes)
    notes = [
        f"{s.reason()}: going on with {', '.join(assignment(name, value) for name, value in s.fits.items())}"
        for s in shortages
    ]
    return dict(needs.changes), notes


def assignment(name: str, value: object) -> str:
    """A setting with its value, as a user writes it in Python."""
    return f"{name}={setting_text(value)}"


def setting_text(value: object) -> str:
    """A setting's value, as a user writes it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _counted(num: Number, noun: str) -> str:
    """Such as "1 worker" and "2.5 CPUs"."""
    plural = noun.replace("place", "places", 1) if noun.startswith("place") else f"{noun}s"
    return f"{setting_text(num)} {noun if num == 1 else plural}"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB"
