"""From a ResolvedRun to roles on a backend."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from raypid.algorithms.base import AsynchronousConfig
from raypid.algorithms.custom_model import CustomModelConfig
from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig
from raypid.callbacks import Callbacks
from raypid.loops.loops import AsynchronousPlan, Context, ReplayPlan, Workers
from raypid.loops.sources import AsynchronousLearners, LearnersReplay, ReplaySource, ShardedReplay
from raypid.nn.idle_settings import idle_settings
from raypid.nn.network_spec import NetworkSpec
from raypid.ops.normalizer import DiscountedReturns
from raypid.phases import phase
from raypid.plugins.modules import apart, entry_name, names_file
from raypid.plugins.registry import NETWORKS
from raypid.replay.base import Replay, replay_factory
from raypid.replay.buffer import ReplaySpec, row_shapes
from raypid.roles.acting import RolloutSpec
from raypid.roles.actor import Actor, Program
from raypid.roles.by_hand import rollout_factory
from raypid.roles.learner import Learner
from raypid.roles.parameter_server import ParameterServer, SharedParameters
from raypid.roles.replay_learner import ReplayLearner, ShardLearner
from raypid.roles.rollout import Rollout
from raypid.run.evaluation import Evaluations
from raypid.run.known_keys import kinds_of_losses
from raypid.run.placement import place
from raypid.run.resolve import AlgorithmClass, ResolvedRun, env_spec_of
from raypid.runtime.collective import TorchCollective
from raypid.runtime.handle import Backend, Handle
from raypid.runtime.learner_group import LearnerGroup
from raypid.runtime.plan import Placement
from raypid.runtime.resources import ResourceError, limit_threads, num_cores
from raypid.runtime.supervisor import START_S, Losses, WorkerGroup
from raypid.runtime.weight_sources import ByReference, ByServers
from raypid.settings.config import Config, ConfigError

_PLACE_SECONDS = 60.0


class RunProgram(Program, Protocol):
    """A program, and how its run is held."""

    num_storages: int
    """Most trajectories at a time that are being collected, waiting or being learned from."""


def assemble(run: ResolvedRun) -> tuple[ResolvedRun, Context, Evaluations, list[str]]:
    """Build the roles of a run: workers, learner, evaluator.

    Returns the run with what was changed to make it fit and what goes where; its roles; its evaluations; what the user should know of how
    it was placed.

    Raises:
        ConfigError, ResourceError: it does not fit; nothing has started then.
    """
    run, backend, notes = place(run)
    config, network, algorithm = run.config, run.network, run.algorithm
    assert run.plan is not None
    try:
        if not run.sample.is_seeded:
            why = f"{entry_name(config.env)} cannot be seeded: its reset() takes no seed, and it has no seed(n)."
            notes.append(f"{why} Another run with this seed differs.")
        limit_threads(1)  # BLAS multiplies small matrices here; torch has threads of its own
        spec = rollout_spec(algorithm, config, network)
        spec.callbacks = run.callbacks if backend.name == "local" else _copied(run.callbacks)
        losses = Losses(config.max_restarts, kinds_of_losses(config))
        builder = _Builder(algorithm, algorithm.portable(config), spec, backend, run.request.program, losses, run.plan)
        with phase(_building(algorithm, config, network)):
            learner = builder.learner()
            if run.initial is not None:
                backend.get(learner.submit(Learner.set_weights, run.initial))
        with phase("starting workers" if config.on_ray else "making environments"):
            workers = builder.workers()
        context = Context(backend, workers, learner, builder.publisher(learner, workers))
        context.fewest = max(1, config.num_learners)
        if algorithm.flow == "replay":
            context.replay = builder.replay_plan(learner)
        if algorithm.flow == "async":
            context.plan = builder.asynchronous_plan()
        spec = replace(spec, env=run.evaluation_env)
        local, node = backend.name == "local", run.plan.place("evaluator").node
        parallel = config.evaluation_parallel if local else run.plan.at["evaluator"]
        evaluations = Evaluations(config, context, spec, parallel=bool(parallel), node=node)
        return run, context, evaluations, notes
    except BaseException:
        backend.shutdown()
        raise


def rollout_spec(algorithm: AlgorithmClass, config: Config, network: NetworkSpec) -> RolloutSpec:
    """What the workers are made from, without callbacks."""
    idle = {**config.idle(), **idle_settings(config, network)}
    returns = None
    if isinstance(config, OffPolicyConfig) and config.normalize_rewards:  # the learners of other algorithms see to that
        returns = DiscountedReturns(config.gamma, config.reward_scale, config.reward_clip)
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
        returns=returns,
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
class _Builder:
    """Builds the roles of a run, and what its loop has to know, once the settings were checked."""

    algorithm: AlgorithmClass
    config: Config
    """The settings as learners and workers have them."""
    spec: RolloutSpec
    backend: Backend
    program: RunProgram | None
    losses: Losses
    plan: Placement

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
            why = f"num_learners {c.num_learners} found no place within {_PLACE_SECONDS:g} s"
            raise ResourceError(f"{why}: the cluster's CPUs or GPUs are taken.") from None
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
            losses=self.losses,
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
        in_order = self.backend.name == "local" or c.exact_resume
        slack = 0.0 if in_order else c.fragment_length * c.num_streams * c.updates_per_step
        exploration = partial(self.algorithm.exploration, c)
        return ReplayPlan(c, exploration, self._replay_source(c, learner), slack, in_order)

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
