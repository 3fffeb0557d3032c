"""The parameter server by itself, and as the actors between learner and workers: the numbers are those of a run without."""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from patience import PATIENCE_S
from setups import learner_setup

import raypid
from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.loops import loops
from raypid.loops.weights import ByReference, ByServers
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import initial_mlp
from raypid.roles.parameter_server import ParameterServer
from raypid.roles.setup import Setup
from raypid.run.agent import Agent
from raypid.runtime.handle import OTHER, ArgumentLost, Place, WorkerLost, places
from raypid.runtime.local import LocalBackend
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import Group, Losses, RolesFailed
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Metrics, Report, Weights

SPEC = build_spec(spaces.Box(-9, 9, (4,)), spaces.Discrete(2), ModelConfig(hidden=(8,)))


def setup(network: NetworkSpec = SPEC) -> Setup:
    """What a server of weights of a network is made from."""
    return learner_setup(PPO, PPOConfig(), network, checks=True)


def weights(version: int, spec: Any = SPEC) -> Weights:
    size = spec.pipeline.vector_size
    return Weights(version, initial_mlp(spec, size, np.random.default_rng(version)), spec.mlp_table(size))


def test_the_newest_version_wins() -> None:
    server = ParameterServer(setup())
    assert server.pull() is None and server.metrics()["version"] == -1
    assert server.push(weights(3)) == 3
    assert server.push(weights(2)) == 3 and server.pull().version == 3  # type: ignore[union-attr]
    assert server.push(weights(5)) == 5
    assert server.pull(newer_than=4).version == 5 and server.pull(newer_than=5) is None  # type: ignore[union-attr]
    assert server.metrics() == {"version": 5, "pushes": 2, "pulls": 4, "refused": 1}
    assert server.reset(weights(1)) == 1 and server.pull().version == 1  # type: ignore[union-attr]


def test_what_two_learners_have_changed_is_added_up() -> None:
    server, first = ParameterServer(setup()), weights(3)
    assert server.push(first, since=first) == 3  # it had none
    one, other = (replace(first, version=3 + n, flat=first.flat + np.float32(n)) for n in (1, 2))
    assert server.push(other, since=first) == 5
    assert server.push(one, since=first) == 6 and server.metrics()["refused"] == 0
    newest = server.pull()
    assert newest is not None
    np.testing.assert_allclose(newest.flat, first.flat + 3, rtol=1e-6)
    np.testing.assert_array_equal(first.flat, weights(3).flat)
    wide = build_spec(spaces.Box(-9, 9, (4,)), spaces.Discrete(2), ModelConfig(hidden=(9,)))
    with pytest.raises(ConfigError):
        server.push(one, since=weights(3, wide))


def test_save_and_restore(tmp_path: Path) -> None:
    server, other = ParameterServer(setup()), ParameterServer(setup())
    with pytest.raises(ValueError, match="no weights yet"):
        server.save(str(tmp_path / "policy"))
    server.push(weights(7))
    server.save(str(tmp_path / "policy"))
    assert other.restore(str(tmp_path / "policy")) == 7
    np.testing.assert_array_equal(other.pull().flat, weights(7).flat)  # type: ignore[union-attr]
    assert raypid.load_policy(tmp_path / "policy").act(np.zeros(4, np.float32)) in (0, 1)
    wide = build_spec(spaces.Box(-9, 9, (4,)), spaces.Discrete(2), ModelConfig(hidden=(9,)))
    another = ParameterServer(setup(wide))
    another.push(weights(0, wide))
    with pytest.raises(ConfigError, match="another network"):
        another.restore(str(tmp_path / "policy"))


# -- between learner and workers, in one process -----------------------------------------------------------------------


class Worker:
    log: list[tuple[int, int]] = []

    def __init__(self, index: int) -> None:
        self.index = index

    def collect(self, weights: Weights, timesteps: int, exploration: Any) -> Any:
        self.log.append((self.index, weights.version))
        return Report(self.index, 1, weights.version), None


class Learner:
    def __init__(self) -> None:
        self.version = 4

    def weights(self) -> Weights:
        return weights(self.version)

    def update(self, timesteps: int, *fragments: Any) -> Any:
        self.version += 1
        return Metrics({}, 1), self.weights()


class Nodes(LocalBackend):
    """Everything here, but worker i says that it is on node i % 2."""

    def __init__(self) -> None:
        self.spawned: list[Any] = []

    def spawn(self, factory: Any, place: Place = OTHER) -> Any:
        handle = LocalBackend.spawn(self, factory)
        self.spawned.append((place.node, handle.role))
        return handle

    def node_of(self, handle: Any, wait_s: float = 0.1) -> str:
        return f"node {handle.role.index % 2}"


def context(max_restarts: int = 3) -> loops.Context:
    Worker.log = []
    backend = Nodes()
    workers = Group(backend, lambda i, r: partial(Worker, i), places("worker", 3), timeout_s=9, losses=Losses(0))
    learner = backend.spawn(Learner)
    factory = partial(ParameterServer, setup())
    more = {"timeout_s": 9.0, "losses": Losses(max_restarts)}
    servers = ByServers(backend, learner, factory, ["node 0", "node 1"], **more)  # type: ignore[arg-type]
    return loops.Context(backend, workers, learner, servers)


def test_workers_pull_from_the_server_of_their_node() -> None:
    ctx = context()
    loop = loops.sync(ctx)
    next(loop), next(loop)
    assert Worker.log == [(i, version) for version in (4, 5) for i in range(3)]
    by_node = {node: role.metrics() for node, role in ctx.backend.spawned if node}
    assert by_node["node 0"] == {"version": 6, "pushes": 2, "pulls": 4, "refused": 0}
    assert by_node["node 1"] == {"version": 6, "pushes": 2, "pulls": 2, "refused": 0}
    assert ctx.weights.metrics() == {"version": 6, "pushes": 4, "pulls": 6, "refused": 0}
    assert ctx.backend.get(ctx.weights.for_evaluator()).version == 6
    ctx.learner.role.version = 1
    next(loops.sync(ctx))  # a run that goes on from a checkpoint publishes an older version
    assert Worker.log[-1] == (2, 1)


def test_learners_that_go_back_are_followed() -> None:
    """A learner that is built anew goes on from a copy of its state, which may be older than what was published last."""
    ctx = context()
    group = StatefulGroup(ctx.backend, lambda rank, restarts: Learner, places("learner"), start_s=9)
    servers = ByServers(
        ctx.backend, group, partial(ParameterServer, setup()), ["node 0"], timeout_s=9.0, losses=Losses(9)
    )
    for version in (5, 6):
        servers.publish(ctx.backend.put(weights(version)))
    group.generation += 1
    for version in (3, 4):
        servers.publish(ctx.backend.put(weights(version)))
        assert ctx.backend.get(servers.for_evaluator()).version == version
    assert servers.metrics()["refused"] == 0


def test_a_lost_server_is_told_and_built_anew_within_the_budget(tmp_path: Path) -> None:
    ctx, told = context(max_restarts=1), list[str]()
    servers = ctx.weights.servers
    servers.losses.tell, servers.losses.errors.folder = told.append, tmp_path
    loop = loops.sync(ctx)
    next(loop)

    def pull() -> Any:
        raise ArgumentLost("the server died")

    def metrics() -> Any:
        raise WorkerLost("the server died")

    server = servers.handles[0].role
    server.pull, server.metrics = pull, metrics
    next(loop)
    assert servers.losses.counts["parameter_servers"] == 1 and not ctx.losses.counts["workers"]
    assert told == ["Parameter server 0 of 2 died in metrics(). Another one has the newest weights."]
    assert "Parameter server 0 of 2 died in metrics().\nthe server died" in (tmp_path / "errors.txt").read_text()
    assert Worker.log[3:] == [(1, 5), (0, 5), (2, 5)]
    server = servers.handles[0].role
    server.pull, server.metrics = pull, metrics
    with pytest.raises(
        RolesFailed,
        match=r"Parameter server 0 of 2 died in metrics\(\)\. That is loss number 2 within an hour; max_restarts allows 1",
    ):
        next(loop)


def test_by_reference_nothing_can_be_mended() -> None:
    backend = LocalBackend()
    published = ByReference(backend, backend.spawn(Learner))
    published.publish(backend.put(7))  # type: ignore[arg-type]
    assert not published.mend(None) and published.metrics() == {}


# -- on Ray ------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "num_envs_per_worker": 2,
    "fragment_length": 32,
    "num_workers": 2,
    "num_cpus_per_worker": 0.5,
    "seed": 0,
}


def pid_of(ray: Any, handle: Any) -> int:
    return ray.get(handle.actor.__ray_call__.remote(lambda role: os.getpid()))


def test_a_run_with_a_server_has_the_numbers_of_one_without(ray_session: Any, tmp_path: Path) -> None:
    settings = SMALL | {"env": "CartPole-v1", "batch_size": 32, "num_epochs": 2, "evaluation_interval": 0}
    here = settings | {"num_cpus_per_worker": 1, "backend": "local"}  # the numbers of Ray: tests/run/test_agent.py
    with Agent("PPO", here) as agent:
        for _ in range(4):
            agent.train()
        expected = agent.get_weights()
    with Agent("PPO", settings, parameter_server=True, out=tmp_path) as agent:
        for _ in range(2):
            result = agent.train()
        assert result["parameter_server/version"] == 2 and result["parameter_server/pulls"] == 4
        path = agent.save()
        server = agent.context.weights.servers
        assert len(server) == 1
        os.kill(pid_of(ray_session, *server.handles), signal.SIGKILL)
        agent.train()
        result = agent.train()
        assert (result["lost/parameter_servers"], result["lost/workers"], result["lost/timeouts"]) == (1, 0, 0)
        np.testing.assert_array_equal(agent.get_weights().flat, expected.flat)
        agent.restore(path)
        result = agent.train()
        assert result["parameter_server/version"] == 3 and result["parameter_server/refused"] == 0


@pytest.mark.ci_slow
def test_a_replay_run_and_its_evaluator_pull(ray_session: Any) -> None:
    more = {"buffer_size": 500, "start_steps": 64, "steps_per_iteration": 128, "batch_size": 16, "a_l_ratio": 8}
    beside = {"evaluation_parallel": True, "evaluation_interval": 1, "evaluation_num_episodes": 1, "time_limit": 20}
    settings = SMALL | more | beside | {"env": "Pendulum-v1", "model": {"hidden": (16,)}, "fragment_length": 8}
    with Agent("SAC", settings, parameter_server=True) as agent:
        played: list[float] = []
        deadline = time.monotonic() + PATIENCE_S
        for k in itertools.count():
            assert time.monotonic() < deadline, "waited in vain"
            result = agent.train()
            played += [v for name, v in result.items() if name == "evaluation/weights_version"]
            if k == 3:
                os.kill(pid_of(ray_session, *agent.context.weights.servers.handles), signal.SIGKILL)
            if k > 8 and played and played[-1] > 10:
                break
        assert result["lost/parameter_servers"] == 1 and result["lost/workers"] == result["lost/evaluators"] == 0


def test_it_needs_ray() -> None:
    with pytest.raises(ConfigError, match="parameter_server asks for an actor on Ray"):
        raypid.PPO(env="CartPole-v1", parameter_server=True)
