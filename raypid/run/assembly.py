"""From settings to roles on a backend. Everything is checked before anything starts."""

from __future__ import annotations

import copy
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol, TypeAlias

import numpy as np
from gymnasium.spaces import Box

from raypid import checkpoint, project
from raypid.algorithms.base import Algorithm, AsynchronousConfig
from raypid.algorithms.custom_model import CustomModelConfig
from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig
from raypid.arguments import arguments
from raypid.callbacks import Callbacks, check_hooks
from raypid.config import Config, ConfigError, Given, Source, given_names, gpu_ids, overlay, sources_by_setting
from raypid.envs import EnvSpec, portable, sample, sample_apart, spaces
from raypid.envs.gym_env import by_id
from raypid.envs.make import FAST_S, LOOK, Depth, Looks, Sample, is_native, only_spaces
from raypid.errors import UserError, shown
from raypid.extras import need
from raypid.modules import apart, located, name_of, names_file
from raypid.nn.catalog import beyond_plain, build_spec, has_open_bounds, needs_look
from raypid.nn.idle_settings import idle_settings
from raypid.nn.network_spec import NetworkSpec, differences
from raypid.nn.policy import read_policy_weights
from raypid.ops.normalizer import DiscountedReturns
from raypid.phases import phase
from raypid.registry import ALGORITHMS, NETWORKS, import_string, is_model
from raypid.replay.base import Replay, replay_factory
from raypid.replay.buffer import ReplaySpec, row_shapes
from raypid.replay.sources import AsynchronousLearners, LearnersReplay, ReplaySource, ShardedReplay
from raypid.roles.acting import RolloutSpec
from raypid.roles.actor import Actor, Program
from raypid.roles.by_hand import rollout_factory
from raypid.roles.evaluator import MAX_STREAMS
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import ParameterServer, SharedParameters
from raypid.roles.replay_learner import ReplayLearner, ShardLearner
from raypid.roles.rollout import Rollout
from raypid.run.evaluation import Evaluations
from raypid.run.known_keys import kinds_of_losses
from raypid.run.loops import AsynchronousPlan, Context, ReplayPlan, Workers
from raypid.run.placement import place
from raypid.runtime.collective import TorchCollective
from raypid.runtime.handle import Backend, Handle
from raypid.runtime.learner_group import LearnerGroup
from raypid.runtime.plan import Plan
from raypid.runtime.resources import ResourceError, limit_threads, num_cores
from raypid.runtime.supervisor import START_S, Losses, WorkerGroup
from raypid.runtime.weight_sources import ByReference, ByServers
from raypid.saved_settings import settings_for
from raypid.spaces import Space
from raypid.tuned import TUNED
from raypid.types import Tree, Weights

AlgorithmClass: TypeAlias = type[Algorithm[Config]]
Adapted: TypeAlias = dict[str, tuple[object, str]]
"""Settings that were left open -> the value that the environment decides, and why. A run keeps them, wherever it goes on."""
TO_FIT = "to fit this machine"
"""Why `fit` has changed a setting."""
_PLACE_SECONDS = 60.0


class RunProgram(Program, Protocol):
    """A program, and how its run is held."""

    num_storages: int
    """Most trajectories at a time that are being collected, waiting or being learned from."""


@dataclass(slots=True)
class System:
    """What `assemble` built."""

    config: Config
    """The settings in force: as given, or reduced by `fit`."""
    network: NetworkSpec
    plan: Plan
    """What goes where."""
    context: Context
    evaluations: Evaluations
    found: Examined
    notes: list[str]
    """What was changed to make the run fit."""


def tuned_settings(run: str, env: object, name: bool | str = True) -> dict[str, object]:
    """The tuned settings for an algorithm on an environment: those that come with raypid, or by `name` those of a search.

    Raises:
        ConfigError: there are none. The message lists the environments that have some.
        UserError: none of that name, or they are for another algorithm or environment.
    """
    ALGORITHMS.get(run)
    if isinstance(name, str):
        return settings_for(name, run, env)
    if name is not True:
        raise ConfigError(f"tuned takes True, or the name of settings that a search has found, not {shown(name)}.")
    found = TUNED.get((run, env)) if isinstance(env, str) else None
    if found is None:
        known = sorted(name for algorithm, name in TUNED if algorithm == run)
        raise ConfigError(
            f"There are no tuned settings for {run} on {entry_name(env)}; there are for {', '.join(known) or 'none'}."
        )
    return dict(found)


def with_tuned(run: str, tuned: bool | str, below: Mapping[str, object], given: Mapping[str, object]) -> Given:
    """The settings below those given, with tuned ones over them if these are asked for.

    Raises:
        ConfigError: both tuned settings and all those of a run, of which nobody could say which should win.
    """
    if tuned in (False, None):
        return overlay(below, {})
    if below:
        raise ConfigError(
            "Tuned settings and the params.json of a run, which has a value for every setting: give one of them. (A run that began "
            "with tuned settings repeats with them.)"
        )
    env = given.get("env")
    about = tuned if isinstance(tuned, str) else f"{run} on {entry_name(env)}"
    return Given(tuned_settings(run, env, tuned), "tuned", about)


LONG_EPISODES = range(501, 1_001)
"""Time limits, in steps, at which settings take the values of `where_long`."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of a run, and where each came from."""

    config: Config
    sources: dict[str, list[Source]]
    """Name of a setting ("lr", "model.hidden") -> where its value came from, last, and before it the values that it replaced. One
    that is missing has its default."""

    def adapt(self, name: str, value: object, why: str) -> None:
        """Write down that raypid itself has chosen a value."""
        self.sources.setdefault(name, []).append(Source("adapted", why, value))

    def settle(self, adapted: Adapted) -> None:
        """Take over what the environment has decided. Where that is to leave things as they are, nothing counts as chosen."""
        for name, (value, why) in adapted.items():
            before = attrgetter(name)(self.config)
            is_changed = value != (
                False if isinstance(value, bool) and before is None else before
            )  # an open switch is off
            group, _, part = name.partition(".")
            setattr(self.config, group, getattr(self.config, group).replace({part: value}) if part else value)
            if is_changed:
                self.adapt(name, value, why)


def resolve_config(
    run: str, settings: Mapping[str, object], below: Mapping[str, object] | None = None, *, open_end: bool = False
) -> Config:
    """The algorithm's Config with `settings` over its defaults, checked. A seed is drawn if none is given.

    `below` are settings that nobody gave for this run: those of a checkpoint, or tuned ones. `open_end` as in `Config.validate`.

    Raises:
        ConfigError: a setting that does not exist or does not fit, or would have no effect.
    """
    return resolve_settings(run, settings, below, open_end=open_end).config


def resolve_settings(
    run: str, settings: Mapping[str, object], below: Mapping[str, object] | None = None, *, open_end: bool = False
) -> Resolved:
    """As `resolve_config`, with where each value came from; `open_end` as in `Config.validate`."""
    algorithm: AlgorithmClass = ALGORITHMS.get(run)
    laid = overlay(below or {}, settings)
    config = algorithm.Config().replace(laid)
    asked = copy.copy(config)
    config.env, config.env_config = by_id(config.env, config.env_config)
    _locate_files(config)
    config.custom_args = _custom_args(config.custom_args)
    if config.gpu is not None:
        _use_gpus(config, algorithm, given_names(settings))
    if config.on_ray and isinstance(config, OffPolicyConfig) and "fragment_length" not in given_names(laid):
        config.fragment_length = config.ray_fragment_length
    if config.env is None:
        raise ConfigError('Name an environment: env="CartPole-v1" (`raypid list envs` shows what there is).')
    if config.seed is None:
        config.seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    if config.num_learners > 1 and not algorithm.several_learners:
        raise ConfigError(f"{run} learns in one place: num_learners is 0 or 1, not {config.num_learners}.")
    config.validate(open_end=open_end)
    config.refuse(config.idle(), given_names(settings))
    _check_packages(run, algorithm, config)
    resolved = Resolved(config, sources_by_setting(laid))
    for name, why in _CHOSEN.items():
        if (value := getattr(config, name)) != getattr(asked, name):
            resolved.adapt(name, value, why)
    return resolved


_CHOSEN = {
    "env": "the id that env_config names", "env_config": "without the id, which is env", "custom_args": "with the project's defaults",
    "num_gpus": "one for each id in gpu", "num_learners": "one for each GPU", "seed": "drawn",
    "fragment_length": "a call on Ray costs as much as some steps",
}  # fmt: skip
"""What `resolve_settings` may set -> why."""


def _locate_files(config: Config) -> None:
    """Write files that settings name ("reacher.py:Reach") with their whole paths, so that they are found from every folder."""
    for name in ("env", "evaluation_env", "callbacks", "intrinsic_reward", "agent"):
        if names_file(entry := getattr(config, name, None)):
            setattr(config, name, located(entry))
    if names_file(config.model.network):
        config.model = config.model.replace({"network": located(config.model.network)})


def _check_packages(run: str, algorithm: AlgorithmClass, c: Config) -> None:
    """Check that what the settings need by themselves is installed; `_network` checks what the network needs.

    Raises:
        MissingPackage: names the setting, and the command that installs it.
    """
    needs, instead = {}, []
    if algorithm.learns_with_torch:
        needs["torch"] = run
        instead.append("Without torch PPO, A2C, A3C, IMPALA, APPO, ES and ARS train fully connected networks.")
    elif c.num_learners > 1:
        needs["torch"] = f"num_learners {c.num_learners}"
    if c.on_ray:
        needs["ray"] = f"num_workers {c.num_workers}" if c.num_workers else "backend ray"
        instead.append("num_workers 0 trains in one process without Ray.")
    need(needs, " ".join(instead))


def _custom_args(given: Mapping[str, object]) -> dict[str, object]:
    """The values of all options that the project declares, with `given` over their defaults.

    Raises:
        ConfigError: one is given that the project does not declare.
    """
    declare = project.get_custom_args
    if declare is None and given:
        raise ConfigError(
            f"custom_args has {next(iter(given))!r}, an option that a project's {project.OPTIONS} declares, and no project with such "
            "options is loaded: run in its folder, or call raypid.load_project(folder) first."
        )
    if declare is None:
        return {}
    owner = SimpleNamespace(add_args=declare)
    return vars(arguments(owner, project.OPTIONS, "custom_args", given, {}))


def _use_gpus(config: Config, algorithm: AlgorithmClass, given: Mapping[str, str]) -> None:
    """Let `gpu` say how many GPUs and learners there are, where nobody has said otherwise."""
    assert config.gpu is not None
    num = len(gpu_ids(config.gpu))
    if "num_gpus" not in given:
        config.num_gpus = num
    if "num_learners" not in given and num > 1 and algorithm.several_learners and config.on_ray:
        config.num_learners = int(config.num_gpus)


def without_effect(run: str, config: Config, observation: Space, action: Space) -> dict[str, str]:
    """Return the settings that have no effect for the algorithm on an environment with these spaces, with the reasons.

    Raises:
        ConfigError: the algorithm cannot learn there.
    """
    return {**config.idle(), **idle_settings(config, _network(run, config, observation, action, None))}


def spaces_of(config: Config) -> tuple[Space, Space]:
    """The environment's spaces of observations and actions.

    Raises:
        EnvError: it cannot be made or used.
    """
    first = _sampled(config, only_spaces)
    return first.observation_space, first.action_space


def assemble(
    run: str,
    config: Config,
    program: RunProgram | None = None,
    like: NetworkSpec | None = None,
    given: Mapping[str, object] | None = None,
) -> System:
    """Check the settings against the environment and the machine, then build workers, learner and evaluator.

    Args:
        run: name of the algorithm.
        program: replaces the algorithm's collecting and learning (`Agent`).
        like: the network that the run must have.
        given: the settings that the user gave. Of these, none may be without effect.

    Raises:
        ConfigError, EnvError, ResourceError: before anything has started.
    """
    algorithm: AlgorithmClass = ALGORITHMS.get(run)
    found = examine(run, config, like, given)
    callbacks, network = found.callbacks, found.network
    config = config.replace({name: value for name, (value, _) in found.adapted.items()})
    config, backend, planned, notes = place(config, network)
    try:
        inner = replace(config, callbacks=None)  # for other processes: the user's object may hold open files later on
        settled, surprises = algorithm.settled(inner, network)
        notes += surprises
        if not found.sample.is_seeded:
            notes.append(
                f"{entry_name(config.env)} cannot be seeded: its reset() takes no seed, and it has no seed(n). Another run with this seed differs."
            )
        limit_threads(1)  # BLAS multiplies small matrices here; torch has threads of its own
        spec = rollout_spec(algorithm, config, network)
        spec.callbacks = callbacks if backend.name == "local" else _copied(callbacks)
        losses = Losses(config.max_restarts, kinds_of_losses(config) if backend.name != "local" else ())
        builder = _Builder(algorithm, settled, spec, backend, program, losses, planned)
        with phase(_building(algorithm, config, network)):
            learner = builder.learner()
            if found.initial is not None:
                backend.get(learner.submit(Learner.set_weights, found.initial))
        with phase("starting workers" if config.on_ray else "making environments"):
            workers = builder.workers()
        losses.errors = workers.errors
        context = Context(backend, workers, learner, builder.publisher(learner, workers), losses)
        context.fewest = max(1, config.num_learners)
        if algorithm.flow == "replay":
            context.replay = builder.replay_plan(learner)
        if algorithm.flow == "async":
            context.plan = builder.asynchronous_plan()
        spec = replace(spec, env=found.evaluation_env)
        local, node = backend.name == "local", planned.place("evaluator").node
        parallel = config.evaluation_parallel if local else planned.at["evaluator"]
        evaluations = Evaluations(config, context, spec, parallel=bool(parallel), node=node)
        return System(config, network, planned, context, evaluations, found, notes)
    except BaseException:
        backend.shutdown()
        raise


def rollout_spec(algorithm: AlgorithmClass, config: Config, network: NetworkSpec) -> RolloutSpec:
    """What the workers are made from, without callbacks."""
    idle = {**config.idle(), **idle_settings(config, network)}
    return RolloutSpec(
        env=replace(env_spec_of(config), staggers=algorithm.staggers),
        network=network,
        fragment_length=config.fragment_length,
        seed=config.seed or 0,
        observation_noise=config.observation_noise,
        action_noise=config.action_noise,
        noise_persistence=1.0 if "noise_persistence" in idle else config.noise_persistence,
        max_crashes=config.max_restarts,
        record_memory=algorithm.flow == "replay" and bool(network.memory),
        returns=_returns(config),
        networks={} if NETWORKS.is_own(network.network) else {network.network: NETWORKS.get(network.network)},
    )


def _copied(callbacks: Callbacks | None) -> Callbacks | None:
    """The callbacks as workers get them: a copy of what they are now, however often a worker is replaced.

    Raises:
        ConfigError: they hold what cannot be copied.
    """
    try:
        return copy.deepcopy(callbacks)
    except TypeError as error:
        raise ConfigError(
            f"callbacks are copied to each worker, and {type(callbacks).__name__} cannot be: {error}. Open files and connections in on_start."
        ) from error


@dataclass(frozen=True, slots=True)
class Examined:
    """What a run needs to know before anything starts."""

    sample: Sample
    """The environment's spaces."""
    evaluation_env: EnvSpec
    network: NetworkSpec
    callbacks: Callbacks | None
    initial: Weights | None
    """The weights of init_from."""
    adapted: Adapted


def examine(
    run: str,
    config: Config,
    like: NetworkSpec | None = None,
    given: Mapping[str, object] | None = None,
    before: Examined | None = None,
) -> Examined:
    """Check the settings against the environment, which is made for it, as in `assemble`.

    `before` is what was found with another run of the same `sample_key`: the environment is not made again.

    Raises:
        ConfigError, EnvError
    """
    callbacks = callbacks_of(config.callbacks)
    first = _sampled(config, _looks(run, config, is_new=like is None)) if before is None else before.sample
    spaces = first.observation_space, first.action_space
    evaluation_env = _evaluation_env(config, *spaces) if before is None else before.evaluation_env
    name, kept = "normalize_observations", like is not None and config.normalize_observations is None
    if like is not None and kept:
        config = config.replace({name: like.pipeline.normalize})
    network = _network(run, config, *spaces, like, first.first)
    by_network = idle_settings(config, network)
    config.refuse(by_network, given_names(given or {}))
    idle = {**config.idle(), **by_network}
    adapted = _by_environment(run, config, network, first, idle)
    if kept and name not in idle:
        adapted[name] = (config.normalize_observations, "a run keeps what it began with")
    if any(value for value, _ in adapted.values()):  # else the network is the one that it is
        config = config.replace({name: value for name, (value, _) in adapted.items()})
        network = _network(run, config, *spaces, like, first.first)
    by_spaces = ALGORITHMS.get(run).for_spaces(config, network)
    adapted |= {name: choice for name, choice in by_spaces.items() if name not in idle}
    initial = read_policy_weights(checkpoint.find_policy(Path(config.init_from)))[1] if config.init_from else None
    # the environment counts evaluations after the workers
    streams = config.evaluation_num_envs or MAX_STREAMS
    evaluation_env = replace(evaluation_env, worker_index=max(1, config.num_workers), num_envs=streams)
    return Examined(first, evaluation_env, network, callbacks, initial, adapted)


def _by_environment(run: str, config: Config, network: NetworkSpec, first: Sample, idle: Mapping[str, str]) -> Adapted:
    """Choose, where the settings leave it open, whether observations are normalised, and what else a look at the environment decides."""
    chosen: Adapted = {}
    name = "normalize_observations"
    if config.normalize_observations is None and name not in idle:
        why = beyond_plain(first.observation_space, network.pipeline)
        chosen[name] = (bool(why), why or "no large numbers in observations")
        if why:
            try:
                config.replace({name: True}).validate(open_end=True)
            except ConfigError:
                chosen[name] = (False, "other settings forbid it")
    algorithm = ALGORITHMS.get(run)
    as_they_are = not (network.images or chosen.get(name, (config.normalize_observations, ""))[0])
    long = algorithm.where_long if as_they_are and first.time_limit in LONG_EPISODES else {}
    if all(attrgetter(name)(config) is None for name in tuple(long)[:1]):
        why = f"the time limit is {LONG_EPISODES[0]} to {LONG_EPISODES[-1]:,} steps"
        chosen |= {name: (value, why) for name, value in long.items() if attrgetter(name)(config) is None}
    why = f"no episode terminates within {LOOK} random steps"
    if first.terminates is False:
        for name, value in algorithm.where_endless.items():
            if name not in idle and attrgetter(name)(config) is None:
                chosen[name] = (value, why)
    streams: Mapping[str, object] = {}
    # a memory's gradients reach back over a whole fragment
    is_open = not network.memory and all(attrgetter(name)(config) is None for name in algorithm.where_native)
    if is_open and first.terminates is False and first.step_s < FAST_S:
        streams, why = algorithm.where_fast, f"{why}, and a step takes under {1000 * FAST_S:g} ms"
    elif is_open and algorithm.where_native and is_native(env_spec_of(config)):
        streams, why = algorithm.where_native, "environments step as one vector"
    return chosen | {name: (value, why) for name, value in streams.items()}


def sample_key(run: str, config: Config) -> str:
    """Equal for runs that look equally far at environments that, also in evaluations, have the same spaces."""
    return repr((replace(env_spec_of(config), seed=0), config.evaluation_env, _open_to_steps(run, config)))


def _open_to_steps(run: str, config: Config) -> bool:
    """Whether random steps of the environment decide settings."""
    first = next(iter(ALGORITHMS.get(run).where_endless), None)
    return first is not None and attrgetter(first)(config) is None


def _looks(run: str, config: Config, *, is_new: bool) -> Looks:
    """How far a run looks at its environment: at some observations if these tell pictures from grids of symbols, and at steps if these
    decide a setting."""

    def looks(found: Sample) -> Depth:
        space = found.observation_space
        if is_new and isinstance(found.action_space, Box) and _open_to_steps(run, config) and has_open_bounds(space):
            return "steps"
        return "reset" if is_new and needs_look(space, found.first) else "spaces"

    return looks


def _sampled(c: Config, looks: Looks) -> Sample:
    """One environment, looked at: the same for all seeds. Where workers will have the environment, it is made in a process of its own, so that
    it can neither end nor stop this one; but not once Ray has started here, whose threads a fork would leave behind."""
    ray, spec = sys.modules.get("ray"), replace(env_spec_of(c), seed=0)
    with phase("making environments", f"making {entry_name(c.env)}"):
        if c.on_ray and hasattr(os, "fork") and not (ray is not None and ray.is_initialized()):
            return sample_apart(spec, c.worker_timeout_s, looks)
        return sample(spec, looks)


def _network(
    run: str, c: Config, observation: Space, action: Space, like: NetworkSpec | None, first: Tree | None = None
) -> NetworkSpec:
    """The network for the environment's spaces, a first observation [1, *] and the algorithm.

    Raises:
        ConfigError: `model.network` does not go with the algorithm, or the network differs from `like`.
    """
    own = ALGORITHMS.get(run).own_model
    if own and (c.model.network == "auto" or (c.model.network not in NETWORKS and ":" not in c.model.network)):
        models = [name for name in NETWORKS.names() if is_model(name)]
        given = "" if c.model.network == "auto" else f", not {c.model.network!r}"
        raise ConfigError(
            f"{run} trains a whole model: model.network takes {', '.join(models)}, or 'module:Class'{given}. `raypid list models` "
            "shows them; raypid.register_model adds one."
        )
    normalize = bool(c.normalize_observations)
    network = build_spec(
        observation, action, c.model, frame_stack=c.frame_stack, normalize=normalize, first=first, like=like
    )
    algorithm: AlgorithmClass = ALGORITHMS.get(run)
    if network.head == "model" and not algorithm.own_model:
        raise ConfigError(
            f"model.network {network.network!r} is a whole model, which learns by itself: run CustomModel, not {run}."
        )
    if algorithm.own_model and network.head != "model":
        raise ConfigError(
            f"{run} trains a model of your own: set model.network to a registered one (raypid.register_model) or to "
            f"'module:Class'. {network.network!r} has no choose_actions; PPO and others train networks."
        )
    if why := algorithm.wants_torch(c, network):
        need({"torch": why})
    network = algorithm.network_spec(c, network)
    squashed = [leaf for leaf in network.actions if leaf.kind.startswith("squashed")]
    if like is None and not np.isfinite([bound for leaf in squashed for bound in (*leaf.low, *leaf.high)]).all():
        raise ConfigError(
            f"{run} chooses actions between the bounds of their space, and a part of {action} has none: declare finite bounds in the "
            "environment, such as Box(-1, 1, ...), or train with PPO, whose actions need no bounds."
        )
    if network.head != "model" and not NETWORKS.is_own(network.network):
        from raypid.nn.networks import check_network

        check_network(network)
    if like is not None and (differs := differences(like, network)):
        raise ConfigError(
            f"The checkpoint has another network: {'; '.join(differs)}. Keep these settings as they were, or start a new run."
        )
    return network


def _returns(c: Config) -> DiscountedReturns | None:
    """What workers say of returns: the rewards of replay are divided by their deviation, others' learners see to that."""
    if not (isinstance(c, OffPolicyConfig) and c.normalize_rewards):
        return None
    return DiscountedReturns(c.gamma, c.reward_scale, c.reward_clip)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the roles of a run, and what its loop has to know, once the settings were checked."""

    algorithm: AlgorithmClass
    config: Config
    """The settings as learners and workers have them."""
    spec: RolloutSpec
    backend: Backend
    program: RunProgram | None
    losses: Losses
    plan: Plan

    def learner(self) -> Handle:
        """The learner's handle: in this process, or one or several learners in actors that answer as one.

        Raises:
            ResourceError: the cluster had no room for a learner's actor within _PLACE_SECONDS.
        """
        c, algorithm, spec, backend = self.config, self.algorithm, self.spec, self.backend
        given = (spec.network, spec.seed, spec.networks, learner_threads(algorithm, c, spec.network))
        build: Callable[..., Learner] = partial(Learner, algorithm, c, *given, program=self.program)
        if isinstance(c, OffPolicyConfig):
            assert issubclass(algorithm, OffPolicy)
            alone = c.num_learners > 1 and c.learner_sync == "asynchronous"  # each updates with its part of a batch
            part = c.replace({"batch_size": c.batch_size // c.num_learners}) if alone else c
            build = partial(ReplayLearner, algorithm, part, *given, replay=self._replay_factory(c))
            if c.num_replay_shards:
                build = partial(ShardLearner, algorithm, c, *given)
        try:
            if c.num_learners and backend.name != "local":
                return self._learners(build)
            handle = backend.here(build)
            backend.get(handle.submit(Learner.weights))  # raises what the factory raised
        except TimeoutError:
            who = f"The {c.num_learners} learners" if c.num_learners > 1 else "The learner"
            raise ResourceError(
                f"{who} found no place in the cluster within {_PLACE_SECONDS:g} s: its CPUs or GPUs are taken."
            ) from None
        return handle

    def _learners(self, build: Callable[..., Learner]) -> LearnerGroup:
        """`num_learners` actors with an equal part of the GPUs each, which update together or, if the settings say so, alone."""
        c = self.config
        gpus = c.num_gpus / c.num_learners
        own_buffer = isinstance(c, OffPolicyConfig) and not c.num_replay_shards
        together = c.num_learners > 1 and (not isinstance(c, OffPolicyConfig) or c.learner_sync == "all_reduce")

        def factory(rank: int) -> Callable[[], Learner]:
            more: dict[str, object] = {"rank": rank} if own_buffer else {}
            if together:
                # NCCL refuses two members on one GPU; the gradients of users' models are NumPy's
                nccl = gpus >= 1 and c.device != "cpu" and not isinstance(c, CustomModelConfig)
                more["collective"] = TorchCollective(rank, c.num_learners, timeout_s=c.worker_timeout_s, nccl=nccl)
            return partial(build, **more)

        return LearnerGroup(
            self.backend,
            factory,
            c.num_learners,
            num_cpus=1,
            num_gpus=gpus,
            start_s=_PLACE_SECONDS,
            timeout_s=max(START_S, c.worker_timeout_s),
            losses=self.losses,
            meet=together,
        )

    def workers(self) -> Workers:
        """The rollout workers. Returns once all are built, so that an environment that cannot be made fails here."""
        c = self.config
        build: Callable[..., object] = rollout_factory(self.algorithm, c, self.spec)
        if self.program is not None:
            build = partial(Actor, self.spec, self.program)
        shared = [self.backend.put(array) for array in self.algorithm.shared(c)]
        workers: Workers = WorkerGroup(
            self.backend,
            lambda index, restarts: partial(build, index, restarts, *shared),
            max(1, c.num_workers),
            num_cpus=c.num_cpus_per_worker,
            timeout_s=c.worker_timeout_s,
            max_restarts=c.max_restarts,
            describe=entry_name(c.env),
        )
        workers.call_all(Rollout.ready)
        return workers

    def _replay_factory(self, c: OffPolicyConfig) -> Callable[[int], Replay]:
        """Builds one of the buffers that share the data, given its index."""
        assert issubclass(self.algorithm, OffPolicy)
        shards = c.num_replay_shards or max(1, c.num_learners)
        return replay_factory(self.algorithm.replay_kind(c), replay_spec(c, self.spec.network).part(shards))

    def _replay_source(self, c: OffPolicyConfig, learner: Handle) -> ReplaySource:
        """The learner's own buffer, a buffer in each of several learners, or one in each of num_replay_shards actors."""
        if c.num_replay_shards:
            replay = self._replay_factory(c)
            return ShardedReplay(self.backend, learner, c, self.losses, lambda index: partial(replay, index), self.plan)
        if not isinstance(learner, LearnerGroup) or len(learner) == 1:
            return ReplaySource(self.backend, learner, c, self.losses)
        if c.learner_sync == "asynchronous":
            shared = partial(SharedParameters, 1 / c.num_learners)
            return AsynchronousLearners(self.backend, learner, c, self.losses, shared, self.plan.place("other"))
        return LearnersReplay(self.backend, learner, c, self.losses)

    def replay_plan(self, learner: Handle) -> ReplayPlan:
        """Settings of the replay loop."""
        c = self.config
        assert isinstance(c, OffPolicyConfig)
        round_steps = c.fragment_length * c.num_envs_per_worker * max(1, c.num_workers)
        slack = 0.0 if self.backend.name == "local" else round_steps * c.updates_per_step
        return ReplayPlan(c, partial(self.algorithm.exploration, c), self._replay_source(c, learner), slack)

    def asynchronous_plan(self) -> AsynchronousPlan:
        """Settings of the asynchronous loop."""
        c = self.config
        assert isinstance(c, AsynchronousConfig)
        return AsynchronousPlan(
            update_size=self.algorithm.update_size(c),
            min_parts=max(1, c.num_learners),
            in_flight=1 if self.backend.name == "local" else c.fragments_in_flight,
            steps_per_iteration=c.steps_per_iteration,
            exploration=partial(self.algorithm.exploration, c),
            max_staleness=c.max_staleness,
            max_parts=None if self.program is None else self.program.num_storages,
        )

    def publisher(self, learner: Handle, workers: Workers) -> ByReference:
        """Sends the weights with each call, or from a parameter server on each node that has workers."""
        c, backend = self.config, self.backend
        if not c.parameter_server:
            return ByReference(backend, learner)
        servers = [self.plan.place("server", i).node for i in range(len(self.plan.at["server"]))]
        nodes = [node for node in servers if node] or [backend.node_of(workers.handles[0], _PLACE_SECONDS)]
        factory = partial(ParameterServer, self.spec.network)
        return ByServers(backend, learner, factory, nodes, timeout_s=c.worker_timeout_s, losses=self.losses)


def _building(algorithm: AlgorithmClass, c: Config, network: NetworkSpec) -> str:
    """What takes longest of building the learner."""
    if c.num_learners:
        return "starting learners"
    needs_torch = algorithm.flow == "replay" or not network.torch_free
    return "loading torch" if needs_torch and "torch" not in sys.modules else "building the learner"


def learner_threads(algorithm: AlgorithmClass, c: Config, network: NetworkSpec) -> int:
    """Threads of the learner."""
    width = max(network.hidden, default=0)
    most = num_cores() if network.images or width >= 256 else 1  # narrow layers are slower on several threads
    if c.num_learners or algorithm.collect == "fitness":
        most = 1  # a population learns without torch, and acts faster on one
    return c.num_threads or most


def replay_spec(c: OffPolicyConfig, network: NetworkSpec) -> ReplaySpec:
    """What a buffer of all data is made from."""
    return ReplaySpec(
        capacity=c.buffer_size,
        n_step=c.n_step,
        gamma=c.gamma,
        frame_stack=c.frame_stack,
        reward_scale=c.reward_scale,
        reward_clip=c.reward_clip,
        priority_exponent=c.priority_exponent if c.prioritized else 0.0,
        seed=c.seed or 0,
        columns=row_shapes(network),
    )


def _evaluation_env(c: Config, observation_space: Space, action_space: Space) -> EnvSpec:
    """The environment of evaluations.

    Raises:
        ConfigError: its spaces differ from those of the training environment.
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
    """The environment part of a Config. Environments registered only in this process are included whole, for the workers."""
    return EnvSpec(
        env=portable(c.env),
        env_config=dict(c.env_config),
        args=dict(c.custom_args),
        vectorizer=c.vectorizer,
        num_envs=c.num_envs_per_worker,
        time_limit=c.time_limit,
        action_repeat=c.action_repeat,
        atari=c.atari,
        num_threads=max(1, int(c.num_cpus_per_worker)) if c.num_workers else num_cores(),
        seed=c.seed or 0,
    )


def entry_name(entry: object) -> str:
    """A class, function or object as "module:name"; a string as it is."""
    if isinstance(entry, str):
        return entry
    return name_of(entry)


def callbacks_of(entry: object) -> Callbacks | None:
    """The user's callbacks as an object, from a class, an object or "module:Name".

    Raises:
        ConfigError: `entry` is not a Callbacks, or has an on_... that is no hook.
    """
    if isinstance(entry, str):
        try:
            entry = import_string(entry)
        except UserError:
            module, _, name = str(entry).partition(":")
            if module != "__main__":
                raise
            raise ConfigError(
                f"The callbacks {entry} are of a script or notebook, and cannot be imported here: give a class that can be, "
                "callbacks='module:Name', or go on without, callbacks='none'. In Python, give the class or object itself."
            ) from None
    if isinstance(entry, type):
        entry = entry()
    if entry is not None and not isinstance(entry, Callbacks):
        raise ConfigError(f"callbacks takes a raypid.Callbacks subclass, its instance or 'module:Name', not {entry!r}.")
    if entry is not None:
        check_hooks(entry)
    return entry


def _short(name: str) -> str:
    """A name without the folder of its file: "reacher:Reach" for "/envs/reacher.py:Reach"."""
    if not names_file(name):
        return name
    file, attribute = apart(name)
    return ":".join(filter(None, [Path(file).stem, attribute]))


def new_run_folder(run: str, config: Config) -> Path:
    """The name of a new folder under runs/."""
    algorithm, env = (re.sub(r"[^\w.-]+", "-", _short(name)).strip("-") for name in (run, entry_name(config.env)))
    base = f"{algorithm[:80]}_{env[:80]}_seed{config.seed}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (base if i == 0 else f"{base}-{i}") for i in range(1000))
    return next(p for p in names if not p.exists())
