"""Where a run takes place: does it fit, here or on a cluster; which backend, with which of its settings."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from raypid import project
from raypid.config import Config, ConfigError, divides, gpu_ids
from raypid.nn.network_spec import NetworkSpec
from raypid.phases import phase
from raypid.runtime.handle import Backend
from raypid.runtime.local import LocalBackend
from raypid.runtime.resources import FLAGS, Has, Needs, Words, num_cores, num_gpus, preflight

if TYPE_CHECKING:
    from raypid.runtime.ray import RayBackend

ConfigT = TypeVar("ConfigT", bound=Config)

MOST_ENVS = 1_000_000
"""Environments of one worker."""
_RELEASE_SECONDS = 5.0
_WORKER_BYTES = {True: 80 * 2**20, False: 400 * 2**20}
"""Memory of a rollout worker's process without and with torch, its part of shared pages included (docs/scaling.md)."""
_CHANNELS = (32, 64, 64)
"""Output channels of the convolutions where model.channels says nothing."""


def fitted_here(config: ConfigT, network: NetworkSpec) -> tuple[ConfigT, list[str]]:
    """The settings that `place` would go on with, where that needs no cluster to be joined, and notes of what was changed. Starts nothing.

    Raises:
        ConfigError, ResourceError: as `place`.
    """
    if _joins(config):
        return config, ["what the cluster has room for is known only once it is joined"]
    return _fitted(config, needs_of(config, network), Has.here(config.num_cpus if config.on_ray else None), FLAGS)


def _joins(config: Config) -> bool:
    """Whether the run joins a cluster that is there already."""
    ray = sys.modules.get("ray")
    return config.on_ray and (config.address is not None or (ray is not None and ray.is_initialized()))


def place(config: ConfigT, network: NetworkSpec, words: Words = FLAGS) -> tuple[ConfigT, Backend, list[str]]:
    """Check that a run fits, and only then start or join Ray where it is needed.

    `words` says how messages name settings. Returns the settings that fit, the backend, and notes of what was changed.

    Raises:
        ConfigError: a number above 2^63, or settings that do not go together once they were made to fit.
        ResourceError: it does not fit, and `fit` is not set or does not help.
    """
    use_ray = config.on_ray
    if config.gpu is not None and num_gpus() and config.address is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids(config.gpu))
    needs = needs_of(config, network)
    joins = _joins(config)
    if not joins:
        config, notes = _fitted(config, needs, Has.here(config.num_cpus if use_ray else None), words)
        if not use_ray:
            return config, LocalBackend(), notes
    with phase("joining Ray", "") if joins else phase("starting Ray"):  # its import takes a second
        from raypid.runtime.ray import RayBackend

    if not joins:
        return config, RayBackend(num_cpus=config.num_cpus or num_cores(), num_gpus=num_gpus()), notes
    backend = RayBackend(config.address, code=project.loaded())
    try:
        config, notes = _fitted(config, needs, _cluster(backend, needs, config.num_cpus), words)
    except BaseException:
        backend.shutdown()
        raise
    return config, backend, notes


def bundles(config: Config) -> list[dict[str, float]]:
    """What a run reserves within a cluster: CPU and GPU of the process that trains it, then of each worker, then of each learner.

    The driver of a run with workers reserves no CPU, as everywhere.
    """
    if not config.on_ray:
        return [{"CPU": 1.0, "GPU": config.num_gpus}]
    learners = config.num_learners
    workers = [{"CPU": config.num_cpus_per_worker}] * max(1, config.num_workers)
    each = {"CPU": 1.0, "GPU": config.num_gpus / max(1, learners)}
    return [{"GPU": 0.0 if learners else config.num_gpus}, *workers, *[each] * learners]


def needs_of(config: Config, network: NetworkSpec) -> Needs:
    """The numbers of a run that decide whether it fits."""
    leaves = network.pipeline.leaves
    sizes = {field.name: getattr(config, field.name) for field in fields(Needs) if hasattr(config, field.name)}
    return replace(
        Needs(**sizes),
        num_workers=max(1, config.num_workers) if config.on_ray else 0,
        hidden=network.hidden,
        channels=(network.channels or _CHANNELS) if network.images else (),
        memory_size=network.memory_size,
        process_bytes=_WORKER_BYTES[network.torch_free] if config.on_ray else 0,
        frame_bytes=sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves),
        frame_width=sum(leaf.width for leaf in leaves),
        num_outputs=network.num_outputs + network.num_values,
        num_trunks=network.num_trunks,
        num_gates={"lstm": 4, "gru": 3, "": 0}[network.memory],
        copies=5 if "buffer_size" in sizes else 4,
        learners_by_gpu=config.gpu is not None and config.num_learners == config.num_gpus > 1,
    )


def _cluster(backend: RayBackend, needs: Needs, most: float | None) -> Has:
    """What nobody has taken of a cluster, and what its nodes declare. The learner without an actor is on this machine.

    Waits a little for CPUs that an earlier run is giving back, but not for more than there are.
    """
    here, deadline = Has.here(), time.monotonic() + _RELEASE_SECONDS
    enough = min(needs.num_cpus, backend.resources().get("CPU", 0.0)) - 1e-9
    while (free := backend.available()).get("CPU", 0.0) < enough and time.monotonic() < deadline:
        time.sleep(0.1)
    return Has(
        cpus=min(free.get("CPU", 0.0), most or math.inf),
        gpus=free.get("GPU", 0.0) if needs.num_learners else here.gpus,
        memory=math.inf if needs.num_learners else here.memory,
        shared_memory=free.get("object_store_memory", math.inf),
        place=backend.place,
        nodes=backend.nodes(),
    )


def _fitted(config: ConfigT, needs: Needs, has: Has, words: Words) -> tuple[ConfigT, list[str]]:
    """The settings that fit, and notes of what was changed. There are at most as many learners as workers and GPUs can feed.

    Raises:
        ConfigError: the settings that fit do not go together. ResourceError: see `preflight`.
    """
    changes, notes = preflight(needs, has, fit=config.fit, words=words)
    config = config.replace(changes)
    if config.num_envs_per_worker > MOST_ENVS:  # they may fit, but are built one after another
        raise ConfigError(f"num_envs_per_worker must be at most {MOST_ENVS:,}, not {config.num_envs_per_worker:,}.")
    most = min(config.num_learners, max(1, config.num_workers))
    fits = next(n for n in range(most, -1, -1) if divides(config.num_gpus, n) and _splits(config, n))
    if fits < config.num_learners:
        notes.append(f"{config.num_learners} learners are too many for that: going on with num_learners={fits}")
        config = config.replace({"num_learners": fits})
    if changes:
        config.validate()
    return config, notes


def _splits(config: Config, num_learners: int) -> bool:
    """Whether learners that draw samples can have equal parts of a batch."""
    shards: object = getattr(config, "num_replay_shards", None)
    return not isinstance(shards, int) or config.batch_size % (max(1, num_learners) * max(1, shards)) == 0
