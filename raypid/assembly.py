"""From settings to roles on a backend: everything is checked before anything starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raypid import checkpoint
from raypid.callbacks import Callbacks
from raypid.config import Config, ConfigError
from raypid.envs import EnvSpec, portable, spaces
from raypid.evaluation import Evaluations
from raypid.loops import Context
from raypid.nn.catalog import build_spec
from raypid.nn.policy import read_policy_weights
from raypid.nn.spec import NetworkSpec
from raypid.registry import ALGORITHMS, NETWORKS, import_string
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.runtime.local import LocalBackend
from raypid.runtime.resources import Has, Needs, ResourceError, check, limit_threads, num_cores, num_gpus, preflight
from raypid.runtime.supervisor import WorkerGroup
from raypid.tuned import TUNED

_RELEASE_SECONDS = 5.0
_PLACE_SECONDS = 60.0
_OWN_NETWORKS = ("mlp", "cnn", "resnet")
_WORKER_BYTES = {True: 100 * 2**20, False: 400 * 2**20}
"""Memory of a rollout worker without and with torch."""


@dataclass(slots=True)
class System:
    """What `assemble` built."""

    config: Any
    """The settings in force: as given, or shrunk by `fit`."""
    network: NetworkSpec
    backend: Any
    context: Context
    evaluations: Evaluations
    callbacks: Callbacks | None
    notes: list[str]
    """What was changed to make it fit."""


def tuned_settings(run: str, env: Any) -> dict[str, Any]:
    """The tuned settings for an algorithm on an environment.

    Raises:
        ConfigError: there are none; names the environments that have some.
    """
    ALGORITHMS.get(run)
    found = TUNED.get((run, env)) if isinstance(env, str) else None
    if found is None:
        known = sorted(name for algorithm, name in TUNED if algorithm == run)
        raise ConfigError(
            f"There are no tuned settings for {run} on {entry_name(env)}; there are for {', '.join(known) or 'none'}."
        )
    return dict(found)


def resolve_config(run: str, settings: Mapping[str, Any]) -> Any:
    """The algorithm's Config with `settings` over its defaults, checked; a seed is drawn where none is given.

    Raises:
        ConfigError: what does not exist or does not fit.
    """
    config: Config = ALGORITHMS.get(run).Config().replace(settings)
    if config.env is None:
        raise ConfigError('Name an environment: env="CartPole-v1" (`raypid list envs` shows what there is).')
    if config.seed is None:
        config.seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    config.validate()
    return config


def assemble(run: str, config: Any) -> System:
    """Check the settings against the environment and the machine, then build workers, learner and evaluator.

    Raises:
        ConfigError, EnvError, ResourceError: before anything has started.
    """
    callbacks = callbacks_of(config.callbacks)
    observation_space, action_space = spaces(env_spec_of(config))
    network = build_spec(
        observation_space,
        action_space,
        config.model,
        frame_stack=config.frame_stack,
        normalize=config.normalize_observations,
    )
    initial = read_policy_weights(checkpoint.find_policy(Path(config.init_from)))[1] if config.init_from else None
    config, backend, notes = _backend(config, network)
    limit_threads(1)  # BLAS serves small matrices here; torch has threads of its own
    try:
        own = network.network in _OWN_NETWORKS
        networks = {} if own else {network.network: NETWORKS.get(network.network)}
        spec = RolloutSpec(
            env=env_spec_of(config),
            network=network,
            fragment_length=config.fragment_length,
            seed=config.seed,
            observation_noise=config.observation_noise,
            action_noise=config.action_noise,
            max_crashes=config.max_restarts,
            callbacks=callbacks,
            networks=networks,
        )
        learner = _learner(run, config, network, networks, backend)
        if initial is not None:
            backend.get(learner.submit("set_weights", initial))
        workers = WorkerGroup(
            backend,
            lambda index, restarts: partial(Rollout, spec, index, restarts),
            max(1, config.num_workers),
            num_cpus=config.num_cpus_per_worker,
            timeout_s=config.worker_timeout_s,
            max_restarts=config.max_restarts,
            describe=entry_name(config.env),
        )
        workers.call_all(
            "ready"
        )  # an environment that cannot be made shows here, and starting is no part of an iteration
        context = Context(backend, workers, learner)
        evaluations = Evaluations(config, context, spec, parallel=_evaluates_beside(config, backend))
        return System(config, network, backend, context, evaluations, callbacks, notes)
    except BaseException:
        backend.shutdown()
        raise


def _learner(run: str, c: Any, network: NetworkSpec, networks: dict[str, Any], backend: Any) -> Any:
    """The learner's handle: an actor of its own with num_learners=1, else in this process."""
    wide = bool(network.images) or max(network.hidden, default=0) >= 256  # narrow layers are slower on several threads
    threads = c.num_threads or (num_cores() if wide and not c.num_learners else 1)
    build = partial(Learner, run, c, network, c.seed, networks, threads)
    if backend.name == "local":
        handle = backend.spawn(build)
    else:
        handle = backend.spawn(build, num_cpus=1, num_gpus=c.num_gpus) if c.num_learners else backend.here(build)
    try:
        backend.get(handle.submit("weights"), timeout=_PLACE_SECONDS)  # its errors appear here
    except TimeoutError:
        raise ResourceError(
            f"The learner found no place in the cluster within {_PLACE_SECONDS:g} s: its CPUs or GPUs are taken."
        ) from None
    return handle


def _evaluates_beside(c: Config, backend: Any) -> bool:
    """Does an evaluator of its own find a CPU that neither a worker nor the learner, here or in an actor, has taken?"""
    if c.evaluation_parallel is not None or backend.name == "local":
        return bool(c.evaluation_parallel)
    taken = max(1, c.num_workers) * c.num_cpus_per_worker + max(1, c.num_learners)
    return bool(backend.resources().get("CPU", 0.0) > taken)


def _backend(c: Any, network: NetworkSpec) -> tuple[Any, Any, list[str]]:
    """(settings that fit, backend, notes). Ray is started only after the preflight has passed."""
    use_ray = c.backend == "ray" or (c.backend == "auto" and c.num_workers > 0)
    frame = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in network.pipeline.leaves)
    needs = Needs(
        num_workers=max(1, c.num_workers) if use_ray else 0,
        num_cpus_per_worker=c.num_cpus_per_worker,
        learner_cpus=1.0 if c.num_learners else 0.0,
        num_gpus=c.num_gpus,
        worker_bytes=_WORKER_BYTES[network.torch_free],
        fragment_bytes=(frame + 64) * c.fragment_length * c.num_envs_per_worker,
    )
    ray = sys.modules.get("ray")
    joins = use_ray and (c.address is not None or (ray is not None and ray.is_initialized()))
    if not joins:
        changes, notes = preflight(needs, Has.here(c.num_cpus), fit=c.fit)
        c = c.replace(changes)
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
    return c.replace(changes), backend, notes


def _free(backend: Any, needs: Needs) -> dict[str, float]:
    """What nobody has taken of a cluster; waits a little for what an earlier run is giving back."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        free: dict[str, float] = backend.available()
        has = Has(cpus=free.get("CPU", 0.0), gpus=np.inf, memory=np.inf, shared_memory=np.inf, place="")
        if not check(needs, has) or time.monotonic() > deadline:
            return free
        time.sleep(0.1)


def env_spec_of(c: Config) -> EnvSpec:
    """The environment part of a Config. What is registered in this process alone is put in whole, for the workers."""
    return EnvSpec(
        env=portable(c.env),
        env_config=dict(c.env_config),
        vectorizer=c.vectorizer,
        num_envs=c.num_envs_per_worker,
        time_limit=c.time_limit,
        action_repeat=c.action_repeat,
        atari=c.atari,
        num_threads=1 if c.num_workers else num_cores(),
        seed=c.seed or 0,
    )


def entry_name(entry: Any) -> str:
    """A class, function or object as "module:name"; a string as it is."""
    if isinstance(entry, str):
        return entry
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}:{named.__qualname__}"


def callbacks_of(entry: Any) -> Callbacks | None:
    """The user's callbacks as an object.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(entry, str):
        entry = import_string(entry)
    if isinstance(entry, type):
        entry = entry()
    if entry is not None and not isinstance(entry, Callbacks):
        raise ConfigError(f"callbacks takes a raypid.Callbacks subclass, its instance or 'module:Name', not {entry!r}.")
    return entry


def new_run_folder(run: str, config: Config) -> Path:
    """A folder under runs/ that does not exist yet."""
    safe = entry_name(config.env).replace("/", "-").replace(":", "-")
    base = f"{run}_{safe}_seed{config.seed}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (base if i == 0 else f"{base}-{i}") for i in range(1000))
    return next(p for p in names if not p.exists())
