"""Does it fit? Compared before anything starts; and the threads of this process."""

from __future__ import annotations

import glob
import math
import os
import shutil
from dataclasses import dataclass
from typing import Any

from raypid.errors import UserError
from raypid.runtime.words import COMMAND_LINE, Words

_limits: Any = None


class ResourceError(UserError):
    """More was asked for than there is."""


def limit_threads(num: int) -> None:
    """Let BLAS in this process use `num` threads. Small matrices are slower with several."""
    global _limits
    os.environ.setdefault("OMP_NUM_THREADS", str(num))
    from threadpoolctl import threadpool_limits

    _limits = threadpool_limits(num, user_api="blas")


def num_cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus() -> int:
    """GPUs of this machine that are visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([v for v in visible.split(",") if v.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


@dataclass(kw_only=True, slots=True)
class Needs:
    """What a run will take."""

    num_workers: int
    num_cpus_per_worker: float
    learner_cpus: float
    num_gpus: float
    worker_bytes: int
    """Memory of one worker."""
    fragment_bytes: int
    """One fragment in the object store; two a worker are there at a time."""
    replay_rows: int = 0
    row_bytes: int = 0
    """Of one row in the replay buffer."""
    words: Words = COMMAND_LINE
    """What messages call things."""


@dataclass(kw_only=True, slots=True)
class Has:
    """What there is."""

    cpus: float
    gpus: float
    memory: float
    shared_memory: float
    place: str

    @classmethod
    def here(cls, cpus: float | None = None) -> Has:
        """This machine; `cpus` is what Ray will be started with."""
        shm = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else math.inf
        return cls(
            cpus=cpus or num_cores(), gpus=num_gpus(), memory=_free_memory(), shared_memory=shm, place="this machine"
        )


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as lines:
            found = [line for line in lines if line.startswith("MemAvailable")]
        return float(found[0].split()[1]) * 1024
    except (OSError, IndexError):
        return math.inf


def check(needs: Needs, has: Has) -> list[tuple[str, str, dict[str, Any]]]:
    """What does not fit: (what is short, what would fit, the settings that make it fit) for each; empty where all fits."""
    short: list[tuple[str, str, dict[str, Any]]] = []
    words = needs.words
    cpus = needs.num_workers * needs.num_cpus_per_worker + needs.learner_cpus
    if needs.num_gpus > has.gpus:
        short.append((
            f"{_n(needs.num_gpus)} GPU{'s' * (needs.num_gpus != 1)} asked for, {has.place} has {_n(has.gpus)}",
            words.option("num_gpus", has.gpus),
            {"num_gpus": float(has.gpus)},
        ))  # fmt: skip
    if cpus > has.cpus + 1e-9:
        learners = _fewer_learners(needs, has.cpus)
        left = max(0.0, has.cpus - learners)
        fits = int(left / needs.num_cpus_per_worker + 1e-9) if needs.num_cpus_per_worker else 0
        fits = min(fits, needs.num_workers)
        changes: dict[str, Any] = {"num_workers": fits}
        if learners < needs.learner_cpus:
            changes["num_learners"] = learners
        each = math.floor(100 * max(0.0, has.cpus - needs.learner_cpus) / max(1, needs.num_workers)) / 100
        of_learners = f" and {_n(needs.learner_cpus)} learners" if needs.learner_cpus > 1 else ""
        between = " " if words.flags else ", "
        fewer = between + words.option("num_learners", learners) if "num_learners" in changes and fits else ""
        keep = f"{words.option('num_cpus_per_worker', each)} to keep {words.workers(needs.num_workers)}"
        fraction = f", or {keep}" if each > 0 else ""
        short.append((
            f"{words.workers(needs.num_workers)} of {_n(needs.num_cpus_per_worker)} CPU{of_learners} "
            f"need {_n(cpus)} CPUs, {has.place} has {_n(has.cpus)}",
            f"{_workers(words, fits)}{fewer}{fraction}",
            changes,
        ))  # fmt: skip
    for name, each_bytes, there in (
        ("memory", needs.worker_bytes, has.memory),
        ("shared memory (/dev/shm)", 2 * needs.fragment_bytes, has.shared_memory),
    ):
        if needs.num_workers * each_bytes > there:
            fits = int(there / each_bytes)
            short.append((
                f"{words.workers(needs.num_workers)} need about {needs.num_workers * each_bytes / 2**30:.1f} GiB of {name}, "
                f"{has.place} has {there / 2**30:.1f} free",
                _workers(words, fits),
                {"num_workers": fits},
            ))  # fmt: skip
    room = 0.8 * has.memory
    if needs.replay_rows * needs.row_bytes > room:
        fits = int(room / needs.row_bytes)
        short.append((
            f"a replay buffer of {needs.replay_rows:,} rows needs {needs.replay_rows * needs.row_bytes / 2**30:.1f} GiB of memory, "
            f"{has.place} has {has.memory / 2**30:.1f} free",
            words.option("buffer_size", fits),
            {"buffer_size": fits},
        ))  # fmt: skip
    return short


def _fewer_learners(needs: Needs, cpus: float) -> int:
    """Of several learners, as many as find a worker each; where only one would, none: the driver learns, and reserves no CPU."""
    if needs.learner_cpus <= 1:
        return int(needs.learner_cpus)
    fits = min(int(needs.learner_cpus), int(cpus / (1 + needs.num_cpus_per_worker) + 1e-9))
    return fits if fits > 1 else 0


def preflight(needs: Needs, has: Has, *, fit: bool) -> tuple[dict[str, Any], list[str]]:
    """Settings to change (only with `fit`) and what to tell the user.

    Raises:
        ResourceError: it does not fit and `fit` is off; the message says what would.
    """
    short = check(needs, has)
    if not short:
        return {}, []
    hopeless = any(settings.get("num_workers") == 0 for _, _, settings in short)
    if not fit or hopeless:
        reasons = "; ".join(what for what, _, _ in short)
        fewest = min((s["num_workers"] for _, _, s in short if "num_workers" in s), default=0)
        fits = "; ".join(would for _, would, s in short if s.get("num_workers", fewest) == fewest)
        by_itself = "" if hopeless else f"; {needs.words.option('fit', True)} does it by itself"
        raise ResourceError(f"{reasons}. What fits: {fits}{by_itself}.")
    changes: dict[str, Any] = {}
    for _, _, settings in short:
        for key, value in settings.items():
            changes[key] = min(value, changes.get(key, value))
    name = needs.words.setting
    return changes, [f"{what}: going on with {', '.join(name(k, v) for k, v in s.items())}" for what, _, s in short]


def _workers(words: Words, fits: int) -> str:
    return words.option("num_workers", fits) if fits else f"not one {words.worker}"


def _n(x: float) -> str:
    return f"{x:g}"
