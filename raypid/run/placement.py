"""Where a run takes place: does it fit, here or on a cluster; which backend, with which of its settings."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from raypid.nn.network_spec import NetworkSpec
from raypid.phases import phase
from raypid.run.resolve import ResolvedRun
from raypid.runtime.handle import Backend
from raypid.runtime.local import LocalBackend
from raypid.runtime.plan import CPU, GPU, STORE, Node, Placement, all_places, plan, plan_around
from raypid.runtime.resources import Has, Needs, ResourceError, Value, num_cores, num_gpus, preflight
from raypid.settings.address import chosen
from raypid.settings.config import Config, ConfigError, gpu_ids
from raypid.storage.changes import differences

if TYPE_CHECKING:
    from raypid.runtime.ray import RayBackend

ConfigT = TypeVar("ConfigT", bound=Config)

MOST_ENVS = 1_000_000
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


def _placed(run: ResolvedRun, config: Config, found: Placement) -> ResolvedRun:
    """The run with the settings that fit, and what goes where."""
    fitted = differences(run.config.to_dict(), config.to_dict())
    return replace(run.choose({name: (value, TO_FIT) for name, _, value in fitted}), plan=found)


def look(run: ResolvedRun) -> tuple[ResolvedRun, list[str]]:
    """What `place` would go on with: the run, and notes of what was changed. Nothing is started or reserved; a cluster is
    joined, and left again. If it is full, the plan is for the time when others have ended, and a note says so.

    Raises:
        ConfigError, ResourceError: as `place`.
    """
    config, network = run.config, run.network
    if not _joins(config):
        config, notes = _fitted(config, needs_of(config, network), Has.here(config.num_cpus if config.on_ray else None))
        has = {CPU: float(config.num_cpus or num_cores()), GPU: float(num_gpus())}
        here = Node("", "this machine", has, has, has_driver=True)
        return _placed(run, config, plan(needs_of(config, network).roles, [here])), notes
    backend = _joined(config)
    try:
        try:
            config, found, notes = _planned(backend, config, network)
        except ResourceError as error:
            if (later := _planned_empty(backend, config, network, error)) is None:
                raise
            found = later
            notes = [f"The plan is for when other runs have ended. Now the cluster is full: {error}"]
        return _placed(run, config, found), [*notes, *found.notes(), *backend.notes]
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
    config, network = run.config, run.network
    if config.gpu is not None and num_gpus() and chosen(config.address) is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids(config.gpu))
    if not _joins(config):
        run, notes = look(run)
        return run, _started(run.config) if run.config.on_ray else LocalBackend(), notes
    cluster = _joined(config)
    try:
        config, found, notes = _reserved(cluster, config, network)
    except BaseException:
        cluster.shutdown()
        raise
    return _placed(run, config, found), cluster, [*notes, *found.notes(), *cluster.notes]


def _started(config: Config) -> RayBackend:
    with phase("starting Ray"):  # its import takes a second
        from raypid.runtime.ray import RayBackend
    return RayBackend(num_cpus=config.num_cpus or num_cores(), num_gpus=num_gpus())


def _joined(config: Config) -> RayBackend:
    with phase("joining Ray", ""):
        from raypid.runtime.ray import RayBackend
    return RayBackend(config.address)


def _reserved(backend: RayBackend, config: ConfigT, network: NetworkSpec) -> tuple[ConfigT, Placement, list[str]]:
    """Plan for what is free, and reserve that. Where somebody else was quicker, plan again.

    With wait_for_room_s, what does not fit is asked for all the same and waited for: a cluster that grows on demand sees it.

    Raises:
        ConfigError, ResourceError: see `place`.
    """
    patient = config if not config.wait_for_room_s else replace(config, fit=False)
    for attempt in range(_ATTEMPTS):
        try:
            fitting, found, notes = _planned(backend, patient, network)
        except ResourceError as error:
            if not (patient.wait_for_room_s and error.may_pass and backend.is_shared):
                raise
            if waited := _waited(backend, patient, network, error):
                return patient, waited, []
            patient = config.replace({"wait_for_room_s": 0.0})
            continue
        try:
            backend.reserve(found.places())
            return fitting, found, notes
        except ResourceError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def _planned_empty(backend: RayBackend, config: Config, network: NetworkSpec, error: ResourceError) -> Placement | None:
    """The plan for a run that does not fit, if it would once other runs on the cluster have ended; None if it would not."""
    if not (error.may_pass and backend.is_shared):
        return None
    found = plan(needs_of(config, network).roles, [replace(node, free=node.total) for node in backend.nodes()])
    return found if found.is_whole else None


def _waited(backend: RayBackend, config: Config, network: NetworkSpec, error: ResourceError) -> Placement | None:
    """Wait until a cluster has room, wherever that is; returns what goes where, or None if there was none in time."""
    roles = needs_of(config, network).roles
    asked = all_places(roles)
    why = "; ".join(shortage.reason() for shortage in error.shortages)
    with phase("waiting for room", f"waiting for room, up to {config.wait_for_room_s:g} s: {why}"):
        try:
            backend.reserve(asked, config.wait_for_room_s)
        except ResourceError:
            return None
    num = roles.num_workers
    at = backend.nodes_of(asked)
    return plan_around(roles, backend.nodes(), at[:num], at[num:])


def _planned(backend: RayBackend, config: ConfigT, network: NetworkSpec) -> tuple[ConfigT, Placement, list[str]]:
    """The settings that fit into what is free on a cluster, and the plan for it. Waits a little for what an earlier run is giving back.

    Raises:
        ConfigError, ResourceError: see `place`.
    """
    needs, deadline = needs_of(config, network), time.monotonic() + _RELEASE_SECONDS
    while _is_being_freed(needs, nodes := backend.nodes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        config, notes = _fitted(config, needs, _cluster(backend, nodes, config.num_cpus))
    except ResourceError as error:
        if config.wait_for_room_s or _planned_empty(backend, config, network, error) is None:
            raise
        hint = f"{error} wait_for_room_s=600 waits until there is room."
        raise ResourceError(hint, error.shortages, error.fits) from None
    return config, plan(needs_of(config, network).roles, nodes), notes


def _is_being_freed(needs: Needs, nodes: Sequence[Node]) -> bool:
    """Whether more would fit if nobody had taken anything."""
    empty = [replace(node, free=node.total) for node in nodes]
    found = plan(needs.roles, nodes)
    return not found.is_whole and plan(needs.roles, empty).num_placed > found.num_placed


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
        complete=partial(_completed, config),
    )


def _cluster(backend: RayBackend, nodes: tuple[Node, ...], most: float | None) -> Has:
    """What nobody has taken of a cluster; GPUs and memory of this machine, where a learner without an actor is."""
    here = Has.here()
    return Has(
        cpus=min(sum(node.has(CPU) for node in nodes), most or math.inf),
        gpus=here.gpus,
        memory=here.memory,
        shared_memory=sum(node.has(STORE) for node in nodes),
        place=backend.place,
        nodes=nodes,
    )


def _fitted(config: ConfigT, needs: Needs, has: Has) -> tuple[ConfigT, list[str]]:
    """The settings that fit, and notes of what was changed.

    Raises:
        ConfigError: too many environments.
        ResourceError: see `preflight`.
    """
    changes, notes = preflight(needs, has, fit=config.fit)
    config = config.replace(changes)
    if config.num_envs_per_worker > MOST_ENVS:  # they may fit, but are built one after another
        raise ConfigError(f"num_envs_per_worker must be at most {MOST_ENVS:,}, not {config.num_envs_per_worker:,}.")
    return config, notes


_MOST_TRIED = 100
"""Numbers of learners and replay shards that are tried."""


def _completed(config: Config, changes: Mapping[str, Value]) -> dict[str, Value] | None:
    """Complete changes that make a run fit by those that must come with them, and try all of them as a run would.

    Settings that were above another stay at most there, there are as many learners and replay shards as the rest allows, and what then has no
    effect goes back to its default. None: the settings are refused all the same.
    """
    changed = config.replace(changes)
    follow = {name: most for name, most in _bounds(changed).items() if 0 < most < (getattr(changed, name, None) or 0)}
    before, default = config.idle(), type(config)()
    changed = changed.replace(follow)
    parts = {name: num for name in ("num_learners", "num_replay_shards") if (num := getattr(changed, name, 0))}
    for nums in itertools.islice(itertools.product(*(range(num, -1, -1) for num in parts.values())), _MOST_TRIED):
        fewer = {name: num for name, num in zip(parts, nums, strict=True) if num != getattr(config, name)}
        whole = {**changes, **follow, **fewer}
        changed = config.replace(whole)
        idle = {name: attrgetter(name)(default) for name in changed.idle().keys() - before.keys()}
        whole |= {name: value for name, value in idle.items() if attrgetter(name)(changed) != value}
        with contextlib.suppress(ConfigError):
            config.replace(whole).validate(open_end=True)  # whether it may be open is checked before
            return whole
    return None


def _bounds(config: Config) -> dict[str, int]:
    """Settings that fall with others: name -> the most that others leave it."""
    workers = config.num_workers
    bounds = {"num_learners": workers, "num_replay_shards": workers, "num_envs_per_worker": MOST_ENVS}
    if rows := getattr(config, "buffer_size", 0):
        streams = config.num_envs_per_worker * max(1, config.num_workers)
        bounds |= {"start_steps": rows, "fragment_length": rows // (2 * streams)}
    return {**bounds, "top_directions": getattr(config, "population", 0)}
