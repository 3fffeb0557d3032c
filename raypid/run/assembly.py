"""From a ResolvedRun to roles on a backend."""

from __future__ import annotations

import copy
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from raypid.algorithms.base import AsynchronousConfig
from raypid.algorithms.custom_model import CustomModelConfig
from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.callbacks import Callbacks
from raypid.envs import EnvSpec
from raypid.loops.loops import AsynchronousPlan, Context, ReplayPlan, Workers
from raypid.loops.sources import AsynchronousLearners, ReplaySource, ShardedReplay
from raypid.loops.weights import ByReference, ByServers
from raypid.nn.network_spec import NetworkSpec
from raypid.phases import phase
from raypid.plugins.modules import apart, entry_name, names_file
from raypid.roles.learner import Learner
from raypid.roles.pace import Pace
from raypid.roles.parameter_server import ParameterServer, SharedParameters
from raypid.roles.program_worker import Program
from raypid.roles.replay import Replay
from raypid.roles.replay_learner import ReplayLearner
from raypid.roles.rollout import Rollout
from raypid.roles.setup import Setup
from raypid.run.evaluation import Evaluations
from raypid.run.known_keys import kinds_of_losses
from raypid.run.placement import place
from raypid.run.resolve import AlgorithmClass, ResolvedRun
from raypid.run.setup import setup_of
from raypid.runtime.collective import TorchCollective
from raypid.runtime.handle import Backend, Handle, places
from raypid.runtime.plan import STORE, Placement
from raypid.runtime.resources import ResourceError, limit_threads
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import START_S, Group, Losses
from raypid.settings.config import Config, ConfigError

_PLACE_SECONDS = 60.0
KEPT_SHARE = 0.1
"""Part of Ray's object store that may hold fragments which replay buffers got since the newest checkpoint: what is lost with a buffer."""


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
        setup = replace(setup_of(run), checks=False)  # raypid's own loops make no such mistakes
        callbacks = run.callbacks if backend.name == "local" else _copied(run.callbacks)
        losses = Losses(config.max_restarts, kinds_of_losses(config))
        builder = _Builder(setup, callbacks, backend, losses, run.plan)
        with phase(_building(algorithm, config, network)):
            learner = builder.learner()
        with phase("starting workers" if config.on_ray else "making environments"):
            workers = builder.workers()
        context = Context(backend, workers, learner, builder.publisher(learner, workers))
        context.fewest = max(1, config.num_learners)
        if algorithm.flow == "replay":
            context.replay = builder.replay_plan(learner)
        if algorithm.flow == "async":
            context.plan = builder.asynchronous_plan()
        local, node = backend.name == "local", run.plan.place("evaluator").node
        parallel = config.evaluation_parallel if local else run.plan.at["evaluator"]
        evaluations = Evaluations(config, context, setup.for_workers(), parallel=bool(parallel), node=node)
        return run, context, evaluations, notes
    except BaseException:
        backend.shutdown()
        raise


def _copied(callbacks: Callbacks | None) -> Callbacks | None:
    """The callbacks as workers get them: a copy of what they are now, however often a worker is replaced.

    Raises:
        ConfigError: they hold what cannot be copied.
    """
    try:
        return copy.deepcopy(callbacks)
    except TypeError as error:
        what = f"callbacks are copied to each worker, and {type(callbacks).__name__} cannot be: {error}"
        raise ConfigError(f"{what}. Open files and connections in on_start.") from error


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the roles of a run, and what its loop has to know, once the settings were checked."""

    setup: Setup
    callbacks: Callbacks | None
    """Of the workers."""
    backend: Backend
    losses: Losses
    plan: Placement

    @property
    def _learning(self) -> Setup:
        """The setup of roles that do not act: what the environment is made from may not be importable where they are."""
        spec = replace(self.setup.spec, env=EnvSpec(env=self.setup.spec.env.name))
        return replace(self.setup, spec=spec, evaluation=spec, source=None)

    def learner(self) -> Handle:
        """The learner's handle: in this process, or one or several learners in actors that answer as one.

        Raises:
            ResourceError: the cluster had no room for a learner's actor within _PLACE_SECONDS.
        """
        c, setup, backend = self.setup.config, self._learning, self.backend
        build: Callable[..., Learner] = partial(Learner, setup)
        if isinstance(c, OffPolicyConfig) and not c.num_replay_shards:
            if c.num_learners > 1 and c.learner_sync == "asynchronous":  # each updates with its part of a batch
                setup = replace(setup, config=c.replace({"batch_size": c.batch_size // c.num_learners}))
            build = partial(ReplayLearner, setup, num_shards=max(1, c.num_learners))
        try:
            if c.num_learners and backend.name != "local":
                return self._learners(build)
            handle = backend.here(build)
            backend.get(handle.submit(Learner.weights))  # raises what the factory raised
        except TimeoutError:
            why = f"num_learners {c.num_learners} found no place within {_PLACE_SECONDS:g} s"
            raise ResourceError(f"{why}: the cluster's CPUs or GPUs are taken.") from None
        return handle

    def _learners(self, build: Callable[..., Learner]) -> StatefulGroup:
        """`num_learners` actors with an equal part of the GPUs each, which update together or, if the settings say so, alone."""
        c = self.setup.config
        gpus = c.num_gpus / c.num_learners
        own_buffer = isinstance(c, OffPolicyConfig) and not c.num_replay_shards
        together = c.num_learners > 1 and (not isinstance(c, OffPolicyConfig) or c.learner_sync == "all_reduce")

        def factory(rank: int, restarts: int) -> Callable[[], Learner]:
            more: dict[str, object] = {"shard": rank} if own_buffer else {}
            if together:
                # NCCL refuses two members on one GPU; the gradients of users' models are NumPy's
                nccl = gpus >= 1 and c.device != "cpu" and not isinstance(c, CustomModelConfig)
                more["collective"] = TorchCollective(rank, c.num_learners, timeout_s=c.worker_timeout_s, nccl=nccl)
            return partial(build, **more)

        return StatefulGroup(
            self.backend,
            factory,
            places("learner", c.num_learners, num_cpus=1, num_gpus=gpus),
            start_s=_PLACE_SECONDS,
            timeout_s=max(START_S, c.worker_timeout_s),
            losses=self.losses,
            meet=together,
        )

    def workers(self) -> Workers:
        """The rollout workers. Returns once all are built, so that an environment that cannot be made fails here."""
        c, setup = self.setup.config, self.setup.for_workers()
        build = partial(Rollout, replace(setup, spec=replace(setup.spec, callbacks=self.callbacks)))
        shared = [self.backend.put(array) for array in self.setup.algorithm.shared(c)]
        workers: Workers = Group(
            self.backend,
            lambda index, restarts: partial(build, index, restarts, *shared),
            places("worker", max(1, c.num_workers), num_cpus=c.num_cpus_per_worker),
            timeout_s=c.worker_timeout_s,
            losses=self.losses,
            describe=entry_name(c.env),
            elastic=True,
            told_of_nodes=True,
        )
        workers.call_all(Rollout.ready)
        return workers

    def _replay_source(self, c: OffPolicyConfig, learner: Handle) -> ReplaySource:
        """The learner's own buffer, a buffer in each of several learners, or one in each of num_replay_shards actors."""
        most_kept = c.buffer_size // (c.fragment_length * c.num_envs_per_worker)
        if store := self.backend.resources().get(STORE):
            most_kept = min(most_kept, int(KEPT_SHARE * store / self._fragment_bytes()))
        if c.num_replay_shards:
            shards = partial(Replay, self._learning.for_workers(replays=True), num_shards=c.num_replay_shards)
            build = lambda index: partial(shards, index)  # noqa: E731
            return ShardedReplay(self.backend, learner, c, self.losses, build, self.plan, most_kept=most_kept)
        if isinstance(learner, StatefulGroup) and len(learner) > 1 and c.learner_sync == "asynchronous":
            shared, place = partial(SharedParameters, 1 / c.num_learners), self.plan.place("other")
            return AsynchronousLearners(self.backend, learner, c, self.losses, shared, place, most_kept=most_kept)
        return ReplaySource(self.backend, learner, c, self.losses, most_kept=most_kept)

    def _fragment_bytes(self) -> int:
        """About the bytes of a fragment: its observations, and some for the rest of each row."""
        c, leaves = self.setup.config, self.setup.network.pipeline.leaves
        row = 64 + sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
        return row * c.fragment_length * c.num_envs_per_worker

    def replay_plan(self, learner: Handle) -> ReplayPlan:
        """Settings of the replay loop."""
        c = self.setup.config
        assert isinstance(c, OffPolicyConfig)
        in_order = self.backend.name == "local" or c.exact_resume
        source = self._replay_source(c, learner)
        pace = Pace(self.setup, 0 if in_order else max(1, c.num_workers), source.chunk)
        return ReplayPlan(c, partial(self.setup.algorithm.exploration, c), source, pace, in_order)

    def asynchronous_plan(self) -> AsynchronousPlan:
        """Settings of the asynchronous loop."""
        c, algorithm, program = self.setup.config, self.setup.algorithm, cast("RunProgram | None", self.setup.program)
        assert isinstance(c, AsynchronousConfig)
        return AsynchronousPlan(
            update_size=algorithm.update_size(c),
            min_parts=max(1, c.num_learners),
            in_flight=1 if self.backend.name == "local" else c.fragments_in_flight,
            steps_per_iteration=c.steps_per_iteration,
            exploration=partial(algorithm.exploration, c),
            max_staleness=c.max_staleness,
            max_parts=None if program is None else program.num_storages,
        )

    def publisher(self, learner: Handle, workers: Workers) -> ByReference:
        """Sends the weights with each call, or from a parameter server on each node that has workers."""
        c, backend = self.setup.config, self.backend
        if not c.parameter_server:
            return ByReference(backend, learner)
        servers = [self.plan.place("server", i).node for i in range(len(self.plan.at["server"]))]
        nodes = [node for node in servers if node] or [backend.node_of(workers.handles[0], _PLACE_SECONDS)]
        factory = partial(ParameterServer, self._learning.for_workers())
        return ByServers(backend, learner, factory, nodes, timeout_s=c.worker_timeout_s, losses=self.losses)


def _building(algorithm: AlgorithmClass, c: Config, network: NetworkSpec) -> str:
    """What takes longest of building the learner."""
    if c.num_learners:
        return "starting learners"
    needs_torch = algorithm.flow == "replay" or not network.torch_free
    return "loading torch" if needs_torch and "torch" not in sys.modules else "building the learner"


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
