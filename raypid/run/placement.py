"""Where a run takes place: does it fit, here or on a cluster; which backend, with which of its settings."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from raypid.nn.network_spec import NetworkSpec
from raypid.phases import phase
from raypid.run.resolve import ResolvedRun
from raypid.runtime.handle import Backend
from raypid.runtime.local import LocalBackend
from raypid.runtime.plan import CPU, GPU, STORE, Node, Placement, plan, plan_around
from raypid.runtime.resources import Has, Needs, ResourceError, Value, num_cores, num_gpus, preflight
from raypid.settings.address import chosen
from raypid.settings.config import Config, ConfigError, gpu_ids

if TYPE_CHECKING:
    from raypid.runtime.ray import RayBackend

_MOST_ENVS = 1_000_000
"""Environments of one worker."""
_RELEASE_SECONDS = 5.0
_ATTEMPTS = 3
"""How often a reservation is planned anew, since others have taken what was free."""
_WORKER_BYTES = {True: 80 * 2**20, False: 400 * 2**20}
"""Memory of a rollout worker's process without and with torch, its part of shared pages included (docs/scaling.md)."""
_CHANNELS = (32, 64, 64)
"""Output channels of the convolutions where model.channels says nothing."""


TO_FIT = "to fit this machine"
"""Why `fit` has changed a setting."""


def _placed(run: ResolvedRun, needs: Needs, found: Placement) -> ResolvedRun:
    """The run with the settings that fit, and what goes where."""
    return replace(run.choose({name: (value, TO_FIT) for name, value in needs.changes.items()}), plan=found)


def look(run: ResolvedRun) -> tuple[ResolvedRun, list[str]]:
    """What `place` would go on with: the run, and notes of what was changed. Nothing is started or reserved; a cluster is
    joined, and left again. If it is full, the plan is for the time when others have ended, and a note says so.

    Raises:
        ConfigError, ResourceError: as `place`.
    """
    config, needs = run.config, needs_of(run.config, run.network)
    if not _joins(config):
        needs, notes = preflight(needs, Has.here(config.num_cpus if config.on_ray else None), fit=config.fit)
        has = {CPU: float(config.num_cpus or num_cores()), GPU: float(num_gpus())}
        here = Node("", "this machine", has, has, has_driver=True)
        return _placed(run, needs, plan(needs.roles, [here])), notes
    backend = _ray(config, joins=True)
    try:
        needs, found, notes = _planned(backend, config, needs, reserves=False)
        return _placed(run, needs, found), [*notes, *backend.notes]
    finally:
        backend.shutdown()


def _joins(config: Config) -> bool:
    """Whether the run joins a cluster that is there already."""
    ray = sys.modules.get("ray")
    return config.on_ray and (chosen(config.address) is not None or (ray is not None and ray.is_initialized()))


def place(run: ResolvedRun) -> tuple[ResolvedRun, Backend, list[str]]:
    """Check that a run fits, and only then start Ray where it is needed; or join a cluster, and reserve there what the run takes.

    Returns the run with settings that fit and its plan, the backend, and notes of what was changed.

    Raises:
        ConfigError: a number above 2^63, or settings that do not go together once they were made to fit.
        ResourceError: it does not fit, and `fit` is not set or does not help.
    """
    config = run.config
    if config.gpu is not None and num_gpus() and chosen(config.address) is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids(config.gpu))
    if not _joins(config):
        run, notes = look(run)
        return run, _ray(run.config, joins=False) if run.config.on_ray else LocalBackend(), notes
    cluster = _ray(config, joins=True)
    try:
        needs, found, notes = _reserved(cluster, config, needs_of(config, run.network))
    except BaseException:
        cluster.shutdown()
        raise
    return _placed(run, needs, found), cluster, [*notes, *cluster.notes]


def _ray(config: Config, *, joins: bool) -> RayBackend:
    with phase("joining Ray", "") if joins else phase("starting Ray"):  # its import takes a second
        from raypid.runtime.ray import RayBackend
    if joins:
        return RayBackend(config.address)
    return RayBackend(num_cpus=config.num_cpus or num_cores(), num_gpus=num_gpus())


def _reserved(backend: RayBackend, config: Config, needs: Needs) -> tuple[Needs, Placement, list[str]]:
    """Plan for what is free, and reserve that. Where somebody else was quicker, plan again.

    With wait_for_room_s, what does not fit is asked for all the same and waited for, wherever it is: a cluster that grows on demand sees it.

    Raises:
        ResourceError: see `place`.
    """
    patient, attempt = replace(config, fit=config.fit and not config.wait_for_room_s), 0
    while True:
        attempt += 1
        try:
            fitting, found, notes = _planned(backend, patient, needs)
            backend.reserve(found.places())
            return fitting, found, notes
        except ResourceError as error:
            if (wait_s := patient.wait_for_room_s) and error.may_pass and backend.is_shared:
                asked, told = plan(needs.roles, ()).places(), f"waiting for room, up to {wait_s:g} s: {error.reason}"
                with phase("waiting for room", told), contextlib.suppress(ResourceError):
                    backend.reserve(asked, wait_s)
                    return needs, plan_around(needs.roles, backend.nodes(), backend.nodes_of(asked)), []
                patient = replace(config, wait_for_room_s=0.0)
            elif error.reason or attempt == _ATTEMPTS:
                raise


def _planned(
    backend: RayBackend, config: Config, needs: Needs, *, reserves: bool = True
) -> tuple[Needs, Placement, list[str]]:
    """The settings that fit into what is free on a cluster, and the plan for it. Waits a little for what an earlier run is giving back.
    If nothing is to be reserved, the plan for a full cluster is that for the time when others have ended.

    Raises:
        ResourceError: see `place`.
    """
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        nodes = backend.nodes()
        found, empty = plan(needs.roles, nodes), plan(needs.roles, [replace(node, free=node.total) for node in nodes])
        if found.missing() <= empty.missing() or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    num_cpus = min(sum(node.has(CPU) for node in nodes), config.num_cpus or math.inf)
    store = sum(node.has(STORE) for node in nodes)
    has = replace(Has.here(), cpus=num_cpus, cores=math.inf, shared_memory=store, place=backend.place, nodes=nodes)
    try:
        fitting, notes = preflight(needs, has, fit=config.fit)
        return fitting, plan(fitting.roles, nodes), notes
    except ResourceError as error:
        if empty.missing() or not (error.may_pass and backend.is_shared):
            raise
        hint = "" if config.wait_for_room_s else " wait_for_room_s=600 waits until there is room."
        if reserves:
            raise ResourceError(f"{error}{hint}", error.reason, error.fits, may_pass=True) from None
        return needs, empty, [f"The plan is for when other runs have ended. Now the cluster is full: {error}{hint}"]


def bundles(config: Config) -> list[dict[str, float]]:
    """What a run reserves within a cluster: CPU and GPU of the process that trains it, then of each worker, then of each learner.

    The driver of a run with workers reserves no CPU, as everywhere.
    """
    if not config.on_ray:
        return [{"CPU": 1.0, "GPU": config.num_gpus}]
    num = config.num_learners
    workers = [{"CPU": config.num_cpus_per_worker}] * max(1, config.num_workers)
    learners = [{"CPU": 1.0, "GPU": config.num_gpus / max(1, num)}] * num
    return [{"GPU": 0.0 if num else config.num_gpus}, *workers, *learners]


def needs_of(config: Config, network: NetworkSpec) -> Needs:
    """The numbers of a run that decide whether it fits.

    Raises:
        ConfigError: too many environments. They may fit, but are built one after another.
    """
    if config.num_envs_per_worker > _MOST_ENVS:
        raise ConfigError(f"num_envs_per_worker must be at most {_MOST_ENVS:,}, not {config.num_envs_per_worker:,}.")
    pipeline, channels = network.pipeline, (network.channels or _CHANNELS) if network.images else ()
    kernels = 9 * sum(a * b for a, b in zip((pipeline.frame_stack, *channels), channels, strict=False))
    table = network.mlp_table(pipeline.vector_size + sum(channels[-1:]))
    trunks = 4 * network.num_trunks  # bytes of a number in each
    sizes = {field.name: getattr(config, field.name) for field in fields(Needs) if hasattr(config, field.name)}
    return replace(
        Needs(**sizes),
        num_workers=max(1, config.num_workers) if config.on_ray else 0,
        process_bytes=_WORKER_BYTES[network.torch_free] if config.on_ray else 0,
        frame_bytes=sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in pipeline.leaves),
        weights_bytes=4 * (kernels + sum(math.prod(shape) for _, shape in table)),
        activations_bytes=2 * trunks * (sum(network.hidden) + 2 * network.state_size),
        memory_bytes=trunks * network.state_size,
        complete=partial(_completed, config),
    )


def _completed(config: Config, changes: Mapping[str, Value]) -> dict[str, Value] | None:
    """Complete changes that make a run fit by those that must come with them, and try all of them as a run would.

    Settings that were above another stay at most there, there are as many learners and replay shards as the rest allows, and what then has no
    effect goes back to its default. None: the settings are refused all the same.
    """
    changed = config.replace(changes)
    rows, population = (getattr(changed, name, sys.maxsize) for name in ("buffer_size", "population"))
    streams = changed.num_envs_per_worker * max(1, changed.num_workers)
    follow = {"start_steps": rows, "fragment_length": rows // (2 * streams), "top_directions": population}
    most = max(changed.num_learners, getattr(changed, "num_replay_shards", 0))
    for parts in range(min(most, max(1, changed.num_workers)), -1, -1):
        bounds = {**follow, "num_learners": parts, "num_replay_shards": parts}
        whole = {**changes, **{name: top for name, top in bounds.items() if top < (getattr(changed, name, None) or 0)}}
        idle = config.replace(whole).idle().keys() - config.idle().keys()
        whole |= {name: attrgetter(name)(type(config)()) for name in idle}
        with contextlib.suppress(ConfigError):
            config.replace(whole).validate(open_end=True)  # whether it may be open is checked before
            return {name: value for name, value in whole.items() if attrgetter(name)(config) != value}
    return None
