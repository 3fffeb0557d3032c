"""From settings to roles on a backend: everything is checked before anything starts."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raypid import checkpoint
from raypid.callbacks import Callbacks
from raypid.config import Config, ConfigError
from raypid.envs import EnvSpec, portable, spaces
from raypid.nn.catalog import OWN_NETWORKS, build_spec
from raypid.nn.network_spec import NetworkSpec, differences
from raypid.nn.policy import read_policy_weights
from raypid.registry import ALGORITHMS, NETWORKS, import_string
from raypid.replay.buffer import Replay, ReplaySpec
from raypid.replay.sources import AsynchronousLearners, LearnersReplay, OwnReplay, ReplaySource, ShardedReplay
from raypid.roles.actor import Actor, Program
from raypid.roles.fitness import FitnessRollout
from raypid.roles.gradient_rollout import GradientRollout
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import ParameterServer, SharedParameters
from raypid.roles.replay_learner import ReplayLearner, ShardLearner
from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.run.evaluation import Evaluations
from raypid.run.loops import AsynchronousPlan, Context, ReplayPlan
from raypid.run.placement import place
from raypid.runtime.collective import TorchCollective
from raypid.runtime.learner_group import LearnerGroup
from raypid.runtime.resources import ResourceError, limit_threads, num_cores
from raypid.runtime.supervisor import Factory, WorkerGroup
from raypid.runtime.weight_sources import ByReference, ByServers
from raypid.tuned import TUNED
from raypid.types import Report

_PLACE_SECONDS = 60.0


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
    algorithm = ALGORITHMS.get(run)
    config: Config = algorithm.Config().replace(settings)
    if config.env is None:
        raise ConfigError('Name an environment: env="CartPole-v1" (`raypid list envs` shows what there is).')
    if config.seed is None:
        config.seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    if config.num_learners > 1 and not algorithm.several_learners:
        raise ConfigError(f"{run} learns in one place: num_learners is 0 or 1, not {config.num_learners}.")
    config.validate()
    return config


def assemble(run: str, config: Any, program: Program | None = None, like: NetworkSpec | None = None) -> System:
    """Check the settings against the environment and the machine, then build workers, learner and evaluator. `like` is the
    network that it must be.

    Raises:
        ConfigError, EnvError, ResourceError: before anything has started.
    """
    callbacks = callbacks_of(config.callbacks)
    observation_space, action_space = spaces(env_spec_of(config))
    evaluation_env = _evaluation_env(config, observation_space, action_space)
    network = build_spec(
        observation_space,
        action_space,
        config.model,
        frame_stack=config.frame_stack,
        normalize=config.normalize_observations,
    )
    algorithm = ALGORITHMS.get(run)
    if algorithm.own_model != (network.head == "model"):
        raise ConfigError(_unlike(run, algorithm, network))
    network = algorithm.network_spec(config, network)
    if like is not None and (differs := differences(like, network)):
        raise ConfigError(
            f"The checkpoint has another network: {'; '.join(differs)}. Leave these settings as they were, or begin a new run."
        )
    initial = read_policy_weights(checkpoint.find_policy(Path(config.init_from)))[1] if config.init_from else None
    config, backend, notes = place(config, network)
    limit_threads(1)  # BLAS serves small matrices here; torch has threads of its own
    try:
        own = network.network in OWN_NETWORKS
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
            record_memory=algorithm.flow == "replay" and bool(network.memory),
            networks=networks,
        )
        learner = _learner(run, config, network, networks, backend, program)
        if initial is not None:
            backend.get(learner.submit(Learner.set_weights, initial))
        workers: WorkerGroup[Report, Any] = WorkerGroup(
            backend,
            _rollout(algorithm, config, spec, program, [backend.put(array) for array in algorithm.shared(config)]),
            max(1, config.num_workers),
            num_cpus=config.num_cpus_per_worker,
            timeout_s=config.worker_timeout_s,
            max_restarts=config.max_restarts,
            describe=entry_name(config.env),
        )
        workers.call_all(
            Rollout.ready
        )  # an environment that cannot be made shows here, and starting is no part of an iteration
        context = Context(
            backend,
            workers,
            learner,
            replay=_replay_plan(algorithm, config, backend, learner),
            plan=_asynchronous_plan(algorithm, config, backend),
            weights=_publisher(config, network, backend, learner, workers),
        )
        evaluations = Evaluations(
            config, context, replace(spec, env=evaluation_env), parallel=_evaluates_beside(config, backend)
        )
        return System(config, network, backend, context, evaluations, callbacks, notes)
    except BaseException:
        backend.shutdown()
        raise


def _unlike(run: str, algorithm: Any, network: NetworkSpec) -> str:
    """Why an algorithm and what `model.network` names do not go together."""
    if not algorithm.own_model:
        return (
            f"model.network {network.network!r} is a whole model, which learns by itself: run CustomModel, not {run}."
        )
    return (
        f"{run} trains a model of your own: set model.network to a registered one (raypid.register_model) or to "
        f"'module:Class'. {network.network!r} has no choose_actions; PPO and others train networks."
    )


def _learner(
    run: str, c: Any, network: NetworkSpec, networks: dict[str, Any], backend: Any, program: Program | None
) -> Any:
    """The learner's handle: in this process, an actor of its own with num_learners=1, or several that answer as one."""
    wide = bool(network.images) or max(network.hidden, default=0) >= 256  # narrow layers are slower on several threads
    threads = c.num_threads or (num_cores() if wide and not c.num_learners else 1)
    build: Any = partial(Learner, run, c, network, c.seed, networks, threads, program=program)
    if ALGORITHMS.get(run).flow == "replay":
        part = c
        if c.num_learners > 1 and c.learner_sync == "asynchronous":  # each learns by itself, from its part of a batch
            part = c.replace({"batch_size": c.batch_size // c.num_learners})
        build = partial(ReplayLearner, run, part, network, c.seed, networks, threads, replay=_replay_spec(c))
        if c.num_replay_shards:
            build = partial(ShardLearner, run, c, network, c.seed, networks, threads)
    try:
        if c.num_learners > 1:
            return _learners(c, build, backend)
        if backend.name == "local":
            handle = backend.spawn(build)
        else:
            handle = backend.spawn(build, num_cpus=1, num_gpus=c.num_gpus) if c.num_learners else backend.here(build)
        backend.get(handle.submit(Learner.weights), timeout=_PLACE_SECONDS)  # its errors appear here
    except TimeoutError:
        who = f"The {c.num_learners} learners" if c.num_learners > 1 else "The learner"
        raise ResourceError(
            f"{who} found no place in the cluster within {_PLACE_SECONDS:g} s: its CPUs or GPUs are taken."
        ) from None
    return handle


def _rollout(algorithm: Any, c: Any, spec: RolloutSpec, program: Program | None, shared: Sequence[Any]) -> Factory:
    """What builds a rollout worker, given its index and how often it was built anew. `shared` are futures of what all of them read."""
    if algorithm.collect == "gradients":  # the algorithm itself computes them, in the worker
        source = None if algorithm.own_model else partial(algorithm, c, spec.network, c.seed)
        return lambda index, restarts: partial(GradientRollout, spec, source, index, restarts)
    if program is not None:
        return lambda index, restarts: partial(Actor, spec, program, index, restarts)
    role = FitnessRollout if algorithm.collect == "fitness" else Rollout
    return lambda index, restarts: partial(role, spec, index, restarts, *shared)


def _replay_spec(c: Any) -> ReplaySpec:
    shards = c.num_replay_shards or max(1, c.num_learners)
    return ReplaySpec(
        capacity=c.buffer_size // shards,
        n_step=c.n_step,
        gamma=c.gamma,
        frame_stack=c.frame_stack,
        reward_scale=c.reward_scale,
        reward_clip=c.reward_clip,
        priority_exponent=c.priority_exponent if c.prioritized else 0.0,
        seed=c.seed,
        num_shards=shards,
    )


def _replay_source(algorithm: Any, c: Any, backend: Any, learner: Any) -> ReplaySource:
    """The learner's own buffer, that of each of several learners, or one in each of num_replay_shards actors."""
    if c.num_learners > 1 and c.learner_sync == "asynchronous":
        return AsynchronousLearners(backend, learner, backend.spawn(partial(SharedParameters, 1 / c.num_learners)))
    if not c.num_replay_shards and c.num_learners > 1:
        return LearnersReplay(backend, learner)
    if not c.num_replay_shards:
        return OwnReplay(backend, learner)
    spec = _replay_spec(c)
    return ShardedReplay(
        backend,
        learner,
        [backend.spawn(partial(Replay, spec, i)) for i in range(c.num_replay_shards)],
        c.updates_per_call,
        c.batch_size,
        partial(algorithm.beta_at, c),
        prioritized=c.prioritized,
        moments=c.normalize_observations,
    )


def _replay_plan(algorithm: Any, c: Any, backend: Any, learner: Any) -> ReplayPlan | None:
    """How the replay loop runs; None for algorithms with another flow."""
    if algorithm.flow != "replay":
        return None
    a_round = c.fragment_length * c.num_envs_per_worker * max(1, c.num_workers)
    return ReplayPlan(
        batch_size=c.batch_size,
        updates_per_step=c.updates_per_step,
        start_steps=c.start_steps,
        start_rows=c.rows_to_start(),
        updates_per_call=c.updates_per_call,
        steps_per_iteration=c.steps_per_iteration,
        exploration=partial(algorithm.exploration, c),
        source=_replay_source(algorithm, c, backend, learner),
        slack=0.0 if backend.name == "local" else a_round * c.updates_per_step,
    )


def _asynchronous_plan(algorithm: Any, c: Any, backend: Any) -> AsynchronousPlan | None:
    """How the asynchronous loop runs; None for algorithms with another flow."""
    if algorithm.flow != "async":
        return None
    return AsynchronousPlan(
        update_size=algorithm.update_size(c),
        min_parts=max(1, c.num_learners),
        in_flight=1 if backend.name == "local" else c.fragments_in_flight,
        steps_per_iteration=c.steps_per_iteration,
        exploration=partial(algorithm.exploration, c),
        max_staleness=c.max_staleness,
    )


def _publisher(
    c: Any, network: NetworkSpec, backend: Any, learner: Any, workers: WorkerGroup[Report, Any]
) -> ByReference:
    """Weights with each call, or a parameter server on each node that has workers."""
    if not c.parameter_server:
        return ByReference(backend, learner)
    nodes = list(dict.fromkeys(backend.node_of(handle, _PLACE_SECONDS) for handle in workers.handles))
    factory = partial(ParameterServer, network)
    return ByServers(backend, learner, factory, nodes, timeout_s=c.worker_timeout_s, max_restarts=c.max_restarts)


def _learners(c: Any, build: Any, backend: Any) -> LearnerGroup:
    """`num_learners` actors that update together, each with its part of the GPUs."""
    gpus = c.num_gpus / c.num_learners
    nccl = gpus >= 1  # it refuses two members on one GPU

    together = getattr(c, "learner_sync", "all_reduce") == "all_reduce"

    def factory(rank: int) -> Any:
        own = {"rank": rank} if build.func is ReplayLearner else {}
        if not together:
            return partial(build, **own)
        return partial(
            build, collective=TorchCollective(rank, c.num_learners, timeout_s=c.worker_timeout_s, nccl=nccl), **own
        )

    more = {"num_cpus": 1, "num_gpus": gpus, "start_s": _PLACE_SECONDS}
    return LearnerGroup(backend, factory, c.num_learners, meet=together, **more)


def _evaluates_beside(c: Config, backend: Any) -> bool:
    """Does an evaluator of its own find a CPU that neither a worker nor the learner, here or in an actor, has taken?"""
    if c.evaluation_parallel is not None or backend.name == "local":
        return bool(c.evaluation_parallel)
    taken = max(1, c.num_workers) * c.num_cpus_per_worker + max(1, c.num_learners)
    return bool(backend.resources().get("CPU", 0.0) > taken)


def _evaluation_env(c: Config, observation_space: Any, action_space: Any) -> EnvSpec:
    """The environment that evaluations play.

    Raises:
        ConfigError: it has other spaces than the one that is trained on.
    """
    if c.evaluation_env is None:
        return env_spec_of(c)
    spec = env_spec_of(c.replace({"env": c.evaluation_env, "env_config": {}}))
    there = spaces(spec)
    if there != (observation_space, action_space):
        raise ConfigError(
            f"evaluation_env {entry_name(c.evaluation_env)} has spaces {there[0]} and {there[1]}; training has "
            f"{observation_space} and {action_space}."
        )
    return spec


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
    safe = re.sub(r"[^\w.-]+", "-", entry_name(config.env)).strip("-")
    base = f"{run}_{safe}_seed{config.seed}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (base if i == 0 else f"{base}-{i}") for i in range(1000))
    return next(p for p in names if not p.exists())
