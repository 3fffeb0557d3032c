"""Where a run takes place: does it fit, here or on a cluster; which backend, with which of its settings."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from raypid.config import divides
from raypid.nn.network_spec import NetworkSpec
from raypid.runtime.local import LocalBackend
from raypid.runtime.resources import Has, Needs, check, num_cores, num_gpus, preflight
from raypid.runtime.words import COMMAND_LINE, Words

_RELEASE_SECONDS = 5.0
_WORKER_BYTES = {True: 100 * 2**20, False: 400 * 2**20}
"""Memory of a rollout worker without and with torch."""


def place(c: Any, network: NetworkSpec, words: Words = COMMAND_LINE) -> tuple[Any, Any, list[str]]:
    """(settings that fit, backend, notes of what was changed). Ray is started only after the preflight has passed.

    Raises:
        ResourceError: it does not fit, and `fit` is not set or does not help.
    """
    use_ray = c.backend == "ray" or (c.backend == "auto" and c.num_workers > 0)
    frame = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in network.pipeline.leaves)
    needs = Needs(
        num_workers=max(1, c.num_workers) if use_ray else 0,
        num_cpus_per_worker=c.num_cpus_per_worker,
        learner_cpus=float(c.num_learners),
        num_gpus=c.num_gpus,
        worker_bytes=_WORKER_BYTES[network.torch_free],
        fragment_bytes=(frame + 64) * c.fragment_length * c.num_envs_per_worker,
        replay_rows=getattr(c, "buffer_size", 0),
        row_bytes=frame + 64 + 4 * network.num_trunks * network.state_size,
        words=words,
    )
    ray = sys.modules.get("ray")
    joins = use_ray and (c.address is not None or (ray is not None and ray.is_initialized()))
    if not joins:
        changes, notes = preflight(needs, Has.here(c.num_cpus), fit=c.fit)
        c = _fitted(c, changes, notes, words)
        if not use_ray:
            return c, LocalBackend(), notes
    from raypid.runtime.ray import RayBackend

    if not joins:
        return c, RayBackend(num_cpus=c.num_cpus or num_cores(), num_gpus=num_gpus()), notes
    backend = RayBackend(c.address)
    try:
        there = _free(backend, needs)
        learner_gpus = there.get("GPU", 0.0) if c.num_learners else float(num_gpus())
        has = Has(
            cpus=there.get("CPU", 0.0),
            gpus=learner_gpus,
            memory=np.inf,
            shared_memory=np.inf,
            place="the cluster (free now)",
        )
        changes, notes = preflight(needs, has, fit=c.fit)
    except BaseException:
        backend.shutdown()
        raise
    return _fitted(c, changes, notes, words), backend, notes


def _fitted(c: Any, changes: dict[str, Any], notes: list[str], words: Words) -> Any:
    """The settings with what the preflight changed; of the learners, those that the workers and GPUs that are left can feed."""
    c = c.replace(changes)
    most = min(c.num_learners, max(1, c.num_workers))
    fits = next(n for n in range(most, -1, -1) if divides(c.num_gpus, n) and _splits(c, n))
    if fits < c.num_learners:
        notes.append(
            f"{c.num_learners} learners are too many for that: going on with {words.setting('num_learners', fits)}"
        )
        c = c.replace({"num_learners": fits})
    return c


def _splits(c: Any, num_learners: int) -> bool:
    """Can each learner have as many rows of a batch as the others, where samples are drawn and not collected?"""
    return not hasattr(c, "buffer_size") or c.batch_size % (max(1, num_learners) * max(1, c.num_replay_shards)) == 0


def _free(backend: Any, needs: Needs) -> dict[str, float]:
    """What nobody has taken of a cluster; waits a little for what an earlier run is giving back."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        free: dict[str, float] = backend.available()
        has = Has(cpus=free.get("CPU", 0.0), gpus=np.inf, memory=np.inf, shared_memory=np.inf, place="")
        if not check(needs, has) or time.monotonic() > deadline:
            return free
        time.sleep(0.1)
