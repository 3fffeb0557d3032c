"""Preflight: does a run fit where it is to start? Also the threads of this process."""

from __future__ import annotations

import contextlib
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
from functools import partial
from pathlib import Path
from typing import TypeVar

from raypid.errors import UserError
from raypid.runtime.handle import kind_name
from raypid.runtime.plan import CPU, GPU, MEMORY, PLACED, STORE, Node, Roles, counted, free_on, number_text, plan

_RESERVE = 0.1
"""Part of the free memory that a run leaves free."""
_ENV_BYTES, _ROW_BYTES, _PAIR_BYTES = 1000, 64, 40
"""Least memory of an environment, of a row beside its observation, and of a pair of perturbations."""
_SHARD_BYTES, _LEARNER_BYTES = 100 * 2**20, 400 * 2**20
"""Memory of the processes of a replay shard and of a learner."""
_MUCH_BYTES = 4096
"""Observations from which on (images) what workers collect is much for the network of one learner's node: docs/scaling.md."""

N = TypeVar("N", int, float)
Value = int | float | str


def limit_threads(num: int) -> None:
    """Let BLAS in this process use `num` threads. Small matrices are slower with several."""
    os.environ.setdefault("OMP_NUM_THREADS", str(num))
    from threadpoolctl import threadpool_limits

    threadpool_limits(num, user_api="blas")


def cgroup_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> tuple[float, float]:
    """The tightest limits of this process's control groups (version 1 or 2) and of those above them: (CPUs, bytes that are not taken).

    Sets of CPUs are left out: the process's affinity heeds them.

    Args:
        root: where the groups are mounted.
        own: the file that names this process's groups. In a container they may be mounted at `root` itself.
    """
    lines = [line.split(":", 2) for line in own.read_text().splitlines()] if own.exists() else []
    cpus, memory = [math.inf], [math.inf]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        leaf = Path(path.lstrip("/"))
        for group in (root / controllers / part for part in (leaf, *leaf.parents)):
            quota = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(
                group / "cpu.cfs_period_us"
            )
            if len(quota) == 2 and quota[0].isdigit():
                cpus.append(int(quota[0]) / int(quota[1]))
            most = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
            taken = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
            if most and most[0].isdigit() and taken:
                memory.append(max(0, int(most[0]) - int(taken[0]) + _reclaimable(group)))
    return min(cpus), min(memory)


def _words(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return file.read_text().split()
    return []


def _reclaimable(group: Path) -> int:
    """Bytes of cached files, which the kernel gives up when memory is short."""
    words = _words(group / "memory.stat")
    found = dict(zip(words[::2], words[1::2], strict=False))
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


@functools.cache
def _granted_cpus() -> float:
    """Read once: it takes up to a hundred files, several milliseconds, and is asked for at every turn."""
    return cgroup_limits()[0]


_GRANTS = {
    "SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "", "PBS_NUM_PPN": "", "NCPUS": "PBS_JOBID", "NSLOTS": "SGE_TASK_ID",
    "LSB_DJOB_NUMPROC": "",
}  # fmt: skip
"""Variables by which schedulers tell a job how many CPUs it has -> one that shows whose a common name is."""


def granted_cpus() -> tuple[float, str]:
    """The fewest CPUs that a scheduler's variable grants to this job, and that variable; (inf, "") without one."""
    given = {name: os.environ.get(name, "") for name, of in _GRANTS.items() if not of or of in os.environ}
    return min(((float(text), name) for name, text in given.items() if text.isdecimal()), default=(math.inf, ""))


def num_cores(quota: float | None = None) -> int:
    """CPUs that this process may use: the fewest of its affinity, its control groups (`quota`, if that is known) and what a scheduler says
    (`granted_cpus`). A fraction of a CPU counts as one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = min(_granted_cpus() if quota is None else quota, granted_cpus()[0])
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
    nodes: tuple[Node, ...] = ()
    """Nodes of a cluster that was joined."""
    cores: float = math.inf
    """Cores of this machine: workers get no more, even if Ray is given a larger number."""

    def less(self) -> Has:
        """The same with a tenth less of free memory, which others may take before the run begins."""
        part = 1 - _RESERVE
        nodes = tuple(replace(node, free={**node.free, MEMORY: part * node.has(MEMORY)}) for node in self.nodes)
        return replace(self, memory=part * self.memory, shared_memory=part * self.shared_memory, nodes=nodes)

    @classmethod
    def here(cls, num_cpus: float | None = None) -> Has:
        """This machine, or what its control groups leave of it. `num_cpus` is what Ray is told that it has: it makes room for
        learners, but not for more workers than there are cores."""
        quota, memory = cgroup_limits()
        shm = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else math.inf
        cores, (granted, variable) = num_cores(quota), granted_cpus()
        return cls(
            cpus=num_cpus or cores,
            cores=cores,
            gpus=num_gpus(),
            memory=(1 - _RESERVE) * min(_free_memory(), memory),
            shared_memory=shm,
            place=f"this job ({variable})" if cores >= granted else "this machine",
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
    noise_table_size: int = 0
    population: int = 0
    num_critics: int = 0
    """Networks of the learner's besides the policy, each about as large."""
    process_bytes: float = 0.0
    """Memory of a worker's process before it has environments."""
    frame_bytes: int = 0
    """One observation."""
    weights_bytes: int = 0
    """The parameters of one network."""
    activations_bytes: int = 0
    """What a network computes for one row, and keeps until it has learnt from it."""
    memory_bytes: int = 0
    """The memory of a recurrent policy, which is stored with each row."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Settings that differ from those that were given."""
    complete: Callable[[Mapping[str, Value]], Mapping[str, Value] | None] = dict
    """Completes changes by what must come with them; None where the settings are refused all the same."""

    def after(self, changes: Mapping[str, Value]) -> Needs:
        """These needs with other settings. Those on which nothing depends are only kept in `changes`."""
        needs = copy.copy(self)
        for name, value in changes.items():
            if hasattr(needs, name):
                setattr(needs, name, value)
        needs.changes = {**self.changes, **changes}
        return needs

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
    def learning_bytes(self) -> float:
        """Of all that learns: weights, a minibatch, the fragments of an update, and the replay buffer unless it is in shards."""
        copies = 5 if self.buffer_size else 4  # parameters, gradients, two of the optimizer, target networks
        drawn = self.updates_per_call * (_ROW_BYTES + self.frame_stack * self.frame_bytes)
        return sum((
            max(1, self.num_learners) * copies * (1 + self.num_critics) * self.weights_bytes,
            self.batch_size * (self.activations_bytes + drawn),
            self.fragments_per_update * self.fragment_bytes,
            4 * self.noise_table_size + _PAIR_BYTES * self.population,
            0.0 if self.num_replay_shards else self._buffer_bytes,
        ))  # fmt: skip

    @property
    def _buffer_bytes(self) -> float:
        """The replay buffer, or all its shards."""
        return self.buffer_size * (self.frame_bytes + _ROW_BYTES + self.memory_bytes)

    @property
    def roles(self) -> Roles:
        """The processes of the run, with the amounts that they take of a cluster's nodes."""
        learners, shards = max(1, self.num_learners), max(1, self.num_replay_shards)
        memory = self.learning_bytes / learners + _LEARNER_BYTES, self._buffer_bytes / shards + _SHARD_BYTES
        worker = {CPU: self.num_cpus_per_worker, MEMORY: self.worker_bytes, STORE: 2 * self.fragment_bytes}
        kinds = {
            "learner": (self.num_learners, {CPU: 1.0, GPU: self.num_gpus / learners, MEMORY: memory[0]}),
            "worker": (self.num_workers, worker),
            "shard": (self.num_replay_shards, {MEMORY: memory[1]}),
        }
        shares_parameters = self.num_learners > 1 and self.learner_sync == "asynchronous"
        much_data = self.frame_bytes >= _MUCH_BYTES
        return Roles(kinds, self.parameter_server, shares_parameters, self.evaluation_parallel, much_data)


_SHRINK = {
    "num_workers", "num_gpus", "num_learners", "num_envs_per_worker", "fragment_length", "buffer_size",
    "num_replay_shards", "start_steps", "learner_sync",
}  # fmt: skip
"""Settings that `fit` changes, the last three only where others force it. The rest decides what is learnt."""
_NETWORK = "weights_bytes"
"""The network, which may be to blame, but stays."""
_MEMORY = (
    "num_workers", "num_envs_per_worker", "fragment_length", "buffer_size", "batch_size", "frame_stack", "noise_table_size", "population",
    "fragments_per_update", "num_replay_shards", "num_learners", "num_critics", _NETWORK,
)  # fmt: skip
"""The settings that memory depends on."""
_TRIES = {"batch_size": 100}
"""Number of values of a setting that are tried, from the largest that fits downwards. It is 1 for settings that need not be a multiple."""


class ResourceError(UserError):
    """More was asked for than there is."""

    def __init__(
        self, message: str, reason: str = "", fits: Mapping[str, Value] | None = None, *, may_pass: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """What a preflight has found short, as a clause."""
        self.fits = fits or {}
        """Settings with which all of it fits; empty where nothing does."""
        self.may_pass = may_pass
        """Whether all that is short are CPUs or GPUs of a cluster's nodes, which others may free or which may be added."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that a run takes."""

    name: str
    """CPU, GPU, place (room on one node for all that a role takes) or a kind of memory."""
    amounts: Callable[[Needs, Has], tuple[float, float]]
    """How much is needed and how much there is."""
    settings: Sequence[str]
    """Less is needed if one of them is smaller. The first is tried first, then those with the largest numbers."""
    kinds: Sequence[str] = ()
    """The roles that take it, where messages name them."""
    lacks: str = ""
    """CPU, GPU or memory: what the nodes of a cluster have too little of, where there are such roles."""

    def is_short(self, needs: Needs, has: Has) -> bool:
        """Whether a run needs more than there is."""
        needed, there = self.amounts(needs, has)
        return needed > there + 1e-9

    def reason(self, needs: Needs, has: Has) -> str:
        """Say what is short, and what there is, as a clause about the roles that take it, or else about the setting whose least value would
        save most."""
        (needed, there), roles, where = self.amounts(needs, has), needs.roles, has.place
        kinds = [kind for kind in self.kinds if roles.num(kind)]
        named = []
        for kind in kinds:
            each, num = roles.each(kind).get(self.lacks), counted(roles.num(kind), kind_name(kind))
            named.append(f"{num} of {_amount(each, self.lacks)}" if each else num)
        if not named:
            settings = ("num_gpus",) if self.name == GPU else self.settings
            setting = min(settings, key=lambda name: self.amounts(needs.after({name: 1}), has)[0])
            network = f"a network of {needs.weights_bytes / 4:,.0f} weights (model, frame_stack)"
            named = [network if setting == _NETWORK else assignment(setting, getattr(needs, setting))]
        verb = "need" if sum(map(roles.num, kinds)) > 1 else "needs"
        if has.nodes and not kinds and self.name in (GPU, MEMORY):
            where = "this machine, where the driver learns,"
        there_text = f"{_gib(there)} free" if "memory" in self.name else number_text(there)
        free = f" ({free_on(has.nodes, self.lacks)})" if has.nodes and kinds else ""
        return f"{' and '.join(named)} {verb} {_amount(needed, self.name)}, {where} has {there_text}{free}"

    def fits(self, needs: Needs, has: Has) -> Mapping[str, Value]:
        """Settings that fit and are accepted ({}: there are none).

        They leave a tenth of the memory free, since others take some too before the run begins; where that is too much to ask, they just fit.
        """
        values = {name: int(getattr(needs, name)) for name in self.settings}
        ranked = sorted(values, key=lambda name: (name != self.settings[0], -values[name]))

        def fitting(name: str, has: Has) -> Sequence[int]:
            most = max(values[name], name == "num_learners" and bool(has.nodes))  # where the driver has no GPU
            numbers = range(name != "num_gpus", most + 1)
            return _fitting(numbers, lambda num: self.is_short(needs.after(_changes(needs, has, name, num)), has))

        for room, name in itertools.product((has.less(), has), (name for name in ranked if name != _NETWORK)):
            for num in fitting(name, room)[-_TRIES.get(name, 1) :][::-1]:
                if found := needs.complete({**needs.changes, **_changes(needs, has, name, num)}):
                    return found
        return {}


def _changes(needs: Needs, has: Has, name: str, value: int) -> dict[str, Value]:
    """A new value of a setting, and those that go along with it. Learners keep their part of the GPUs. Workers leave a CPU to each of at
    most as many learners; if that is one of several, to none: then the driver learns, and reserves no CPU."""
    learners = needs.num_learners
    if name == "num_learners" and learners and needs.num_gpus:
        return {name: value, "num_gpus": needs.num_gpus * value / learners}
    if name == "num_workers" and learners > 1:
        most = int(min(has.cpus, has.cores + learners) / (1 + needs.num_cpus_per_worker) + 1e-9)
        if most < learners:
            return {name: value, "num_learners": most if most > 1 else 0}
    return {name: value}


def _fitting(values: Sequence[N], is_short: Callable[[N], bool]) -> Sequence[N]:
    """The first values, in ascending order, with which nothing is short."""
    return values[: bisect_right(values, False, key=is_short)]


def _gpus(needs: Needs, has: Has) -> tuple[float, float]:
    """Of the nodes, or of this machine if the driver learns."""
    on_nodes = has.nodes and needs.num_learners
    return needs.num_gpus, sum(node.has(GPU) for node in has.nodes) if on_nodes else has.gpus


def _cpus(needs: Needs, has: Has) -> tuple[float, float]:
    needed = needs.num_workers * needs.num_cpus_per_worker + needs.num_learners
    return needed, min(has.cpus, has.cores + needs.num_learners)


def _shared_memory(needs: Needs, has: Has) -> tuple[float, float]:
    """In Ray's object store: two fragments of each worker and what all workers read."""
    common = needs.weights_bytes + 4 * needs.noise_table_size
    return 2 * needs.num_workers * needs.fragment_bytes + (common if needs.num_workers else 0.0), has.shared_memory


def _memory(needs: Needs, has: Has) -> tuple[float, float]:
    """Of all roles, or of the driver on a cluster, where what roles take is a matter of places. What acts and what learns is in the driver
    if no role does."""
    driver = (0.0 if needs.num_workers else needs.worker_bytes) + (0.0 if needs.num_learners else needs.learning_bytes)
    roles = () if has.nodes else needs.roles.kinds.values()
    return driver + sum(num * each[MEMORY] for num, each in roles), has.memory


def _places(kind: str, needs: Needs, has: Has) -> tuple[float, float]:
    num = needs.roles.num(kind)
    return num, num - plan(needs.roles, has.nodes).missing(kind)


_RESOURCES = (
    Resource(GPU, _gpus, ("num_learners", "num_gpus"), ("learner",), GPU),
    Resource(CPU, _cpus, ("num_workers",), ("worker", "learner"), CPU),
    Resource("shared memory (/dev/shm)", _shared_memory, _MEMORY),
    Resource(MEMORY, _memory, _MEMORY),
)


def _short(needs: Needs, has: Has) -> Resource | None:
    """The first resource that is short: a sum, or places for a kind of roles."""
    if short := next((resource for resource in _RESOURCES if resource.is_short(needs, has)), None):
        return short
    found = plan(needs.roles, has.nodes)
    kind = next((kind for kind in PLACED if has.nodes and found.missing(kind)), None)
    if kind is None:
        return None
    each = needs.roles.each(kind)
    too_large = (name for name in (MEMORY, GPU) if each.get(name, 0.0) > max(node.has(name) for node in has.nodes))
    lacks = next(too_large, next(iter(each)))
    few = ("num_learners", "num_gpus") if kind == "learner" else ("num_workers",)
    return Resource("place", partial(_places, kind), _MEMORY if lacks == MEMORY else few, (kind,), lacks)


def preflight(needs: Needs, has: Has, *, fit: bool) -> tuple[Needs, list[str]]:
    """The needs with settings that fit (only with `fit` others than those that were asked for) and what to tell the user.

    Raises:
        ResourceError: it does not fit, and `fit` is off or does not help. The message says what would fit.
    """
    asked, reasons, lacking = needs, list[str](), set[str]()
    fits: Mapping[str, Value] = {}
    while resource := _short(needs, has):
        reasons.append(resource.reason(needs, has))
        lacking.add(resource.lacks)
        if not (fits := resource.fits(needs, has)):
            break
        needs = needs.after(fits)
    if not reasons:
        return needs, []
    reason, fits = "; ".join(reasons), needs.changes if fits else {}
    shrinks = 0 < len(fits) and fits.keys() <= _SHRINK
    remedies = [" and ".join(assignment(name, value) for name, value in fits.items())] if fits else []
    if fit and shrinks:
        return needs, [f"{reason}: going on with {remedies[0]}"]

    def largest(name: str, values: Sequence[N], has: Has) -> Sequence[N]:
        return _fitting(values, lambda value: _short(asked.after({name: value}), has) is not None)[-1:]

    for part in largest("num_cpus_per_worker", [n / 100 for n in range(1, int(100 * asked.num_cpus_per_worker))], has):
        remedies.append(f"{assignment('num_cpus_per_worker', part)} to keep {counted(asked.num_workers, 'worker')}")
    advice = "Nothing fits."
    if remedies:
        advice = f"What fits: {', or '.join(remedies)}{'; fit=True does it by itself' if shrinks else ''}."
    elif smaller := largest("frame_bytes", range(1, asked.frame_bytes), has.less()):
        size = f"{smaller[0] / 2**10:,.1f}"
        advice = f"Nothing fits but smaller observations (images of fewer pixels): of at most {size} KiB each."
    raise ResourceError(f"{reason}. {advice}", reason, fits, may_pass=lacking <= {CPU, GPU})


def assignment(name: str, value: object) -> str:
    """A setting with its value, as a user writes it in Python."""
    return f"{name}={setting_text(value)}"


def setting_text(value: object) -> str:
    """A setting's value, as a user writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _amount(num: float, name: str) -> str:
    """Such as "2 CPUs" and "about 0.1 GiB of memory"."""
    return f"about {_gib(num)} of {name}" if "memory" in name else counted(num, name)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB"
