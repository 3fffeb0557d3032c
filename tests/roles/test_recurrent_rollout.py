"""Fragments of a recurrent policy: the state before row 0, and values that are those of one unbroken sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from setups import worker_setup

from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.networks import TorchInputs, TorchNetwork
from raypid.nn.numpy_cells import split_state
from raypid.nn.torch_cells import Memory
from raypid.roles.acting import RolloutSpec
from raypid.roles.evaluator import Evaluator, Order
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import ModelConfig
from raypid.types import Trajectory, Weights, concat_trajectories

F = np.float32


def same_step(num_envs: int) -> SyncVectorEnv:
    """CartPole of at most 7 steps, so that nearly all episodes are truncated."""
    makers = [lambda: TimeLimit(CartPoleEnv(), 7)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def make(env: Any = "CartPole-v1", *, stack: int = 1, worker: int = 0, head: str = "", **model: Any) -> tuple[Any, ...]:
    """(rollout, weights, torch network with the same weights)."""
    model = {"network": "lstm", "hidden": (6,), "memory_size": 5, **model}
    network = build_spec(spaces.Box(-9, 9, (4,), F), spaces.Discrete(2), ModelConfig(**model), frame_stack=stack)
    spec = RolloutSpec(env=EnvSpec(env=env, num_envs=3), network=network, fragment_length=30, seed=0)
    learner = TorchNetwork(network)
    flat = learner.numpy() + np.random.default_rng(0).normal(0, 0.3, len(learner.numpy())).astype(F)
    learner.load(flat)
    return TrajectoryWorker(spec, worker), Weights(7, flat, learner.table), learner


def sequence(rollout: TrajectoryWorker, network: TorchNetwork, t: Trajectory) -> tuple[Any, Any, Any]:
    """params [T+1, B, P], value [T+1, B] and the memory after row T, of the whole fragment at once."""
    earlier, memory = split_state(rollout.spec.network, t.state)
    assert memory is not None
    inputs, _ = rollout.policy.pipeline.sequence(t.obs, earlier, t.first)
    there = Memory(torch.from_numpy(memory), torch.from_numpy(t.first))
    with torch.no_grad():
        params, value, last = network.outputs(TorchInputs(inputs.flatten(), network.device), there)
    assert value is not None and last is not None
    return params.numpy().reshape(*t.first.shape, -1), value.numpy().reshape(t.first.shape), last.numpy()


@pytest.mark.parametrize(("network", "stack"), [("lstm", 1), ("gru", 3)])
def test_fragments_are_one_sequence(network: str, stack: int) -> None:
    rollout, weights, learner = make(network=network, stack=stack)
    fragments = [rollout.collect(weights)[1] for _ in range(3)]
    assert not fragments[0].state["memory"].any()
    assert fragments[1].state["memory"].any()
    for t in fragments:
        assert t.final is None and t.behaviour["value"].shape == (31, 3) and t.behaviour["value"].dtype == F
        params, value, _ = sequence(rollout, learner, t)
        np.testing.assert_allclose(t.behaviour["value"], value, atol=1e-5)
        log_prob = rollout.policy.distribution.log_prob(params[:-1], None, t.action)
        np.testing.assert_allclose(t.behaviour["log_prob"], log_prob, atol=1e-5)
    assert sum(t.first[1:].sum() for t in fragments) > 5


def test_values_of_true_last_observations() -> None:
    rollout, weights, learner = make(same_step, network="gru")
    _, t = rollout.collect(weights)
    assert t.final is not None and len(t.final.t) > 9 and (t.truncated & ~t.terminated).any()
    _, value, _ = sequence(rollout, learner, t)
    np.testing.assert_allclose(t.behaviour["value"], value, atol=1e-5)
    for k in range(len(t.final.t)):
        row, b = t.final.t[k], t.final.b[k]
        begin = int(np.flatnonzero(t.first[: row + 1, b])[-1])
        rows = np.concatenate([t.obs[begin : row + 1, b], t.final.obs[k][None]])[:, None]
        first = np.zeros((len(rows), 1), bool)
        first[0] = True
        episode = Trajectory(rows, first, *[np.zeros(0)] * 5, state={"memory": t.state["memory"][b : b + 1]})
        expected = (
            sequence(rollout, learner, episode)[1][-1, 0] if t.truncated[row, b] and not t.terminated[row, b] else 0
        )
        np.testing.assert_allclose(t.behaviour["final_value"][k], expected, atol=1e-5)


@pytest.mark.parametrize("stack", [1, 2])
def test_joined_fragments_have_their_states_side_by_side(stack: int) -> None:
    parts = []
    for worker in (0, 1):
        rollout, weights, learner = make(worker=worker, stack=stack)
        rollout.collect(weights)
        parts.append(rollout.collect(weights)[1])
    joined = concat_trajectories(parts)
    assert joined.state["memory"].shape == (6, 2, 10)
    np.testing.assert_array_equal(joined.state["memory"][3:], parts[1].state["memory"])
    np.testing.assert_allclose(joined.behaviour["value"], sequence(rollout, learner, joined)[1], atol=1e-5)


def test_boundary_forgets() -> None:
    rollout, weights, _ = make()
    rollout.collect(weights)
    rollout.boundary(1)
    assert not rollout.collect(weights)[1].state["memory"].any()


def test_evaluation_carries_the_memory() -> None:
    """The same weights play otherwise than if the memory were forgotten after each step."""
    rollout, weights, _ = make(hidden=(16,), memory_size=16)
    evaluator = Evaluator(worker_setup(rollout.spec))
    whole = evaluator.play(weights, Order(6, 0, explore=True))
    np.testing.assert_array_equal(evaluator.play(weights, Order(6, 0, explore=True)).rewards, whole.rewards)
    act = evaluator.policy.act

    def forgetful(obs: Any, state: Any, first: Any, rng: Any, *, explore: bool) -> Any:
        return act(obs, evaluator.policy.initial_state(len(first)), first, rng, explore=explore)

    evaluator.policy.act = forgetful  # type: ignore[method-assign]
    assert not np.array_equal(evaluator.play(weights, Order(6, 0, explore=True)).rewards, whole.rewards)
    evaluator.close()
