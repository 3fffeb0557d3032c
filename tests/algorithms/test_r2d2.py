"""R2D2: targets inside a sequence, the memory after the burn-in, what is refused, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import raypid
from raypid.algorithms.r2d2 import R2D2, R2D2Config, n_step_targets, rescaled, unscaled
from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.networks import TorchInputs, TorchNetwork
from raypid.nn.pipeline import Inputs
from raypid.nn.q_head import q_values
from raypid.nn.torch_cells import Memory
from raypid.plugins.registry import REPLAYS
from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.roles.acting import RolloutSpec
from raypid.roles.worker import TrajectoryWorker
from raypid.run.agent import Agent
from raypid.run.resolve import resolve_config
from raypid.settings.config import ConfigError

F = np.float32


def targets_by_hand(
    r: Any, ended: Any, term: Any, valid: Any, begins: Any, following: Any, gamma: float, n: int
) -> Any:
    """One stream, row by row; None where a row's target is not known."""
    found = []
    for t in range(len(r)):
        total, factor, row = 0.0, 1.0, t
        while True:
            total, factor = total + factor * r[row], factor * gamma
            last = row - t + 1 == n or ended[row] or row + 1 == len(r) or not valid[row + 1]
            if last:
                break
            row += 1
        total += 0 if term[row] else factor * following[row]
        found.append(total if valid[t] and (term[row] or not begins[row]) else None)
    return found


@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_targets_within_a_sequence(n_step: int) -> None:
    rng = np.random.default_rng(0)
    length, streams = 12, 40
    reward, following = rng.normal(size=(2, length, streams))
    terminated, truncated = rng.random((2, length, streams)) < 0.15
    valid, begins = rng.random((length, streams)) > 0.1, rng.random((length, streams)) < 0.2
    arrays = (reward, terminated | truncated, terminated, valid, begins, following)
    target, known = n_step_targets(*(torch.from_numpy(x) for x in arrays), 0.9, n_step)
    expected = [targets_by_hand(*(x[:, b] for x in arrays), 0.9, n_step) for b in range(streams)]
    assert 0 < (~known).sum() < known.sum()
    for b in range(streams):
        for t in range(length):
            assert bool(known[t, b]) == (expected[b][t] is not None)
            if known[t, b]:
                assert float(target[t, b]) == pytest.approx(expected[b][t])


def test_value_rescaling() -> None:
    x = torch.tensor([-500.0, -2.0, 0.0, 0.3, 10.0, 4000.0], dtype=torch.double)
    torch.testing.assert_close(unscaled(rescaled(x)), x)
    assert float(rescaled(torch.tensor(3.0))) == pytest.approx(1 + 0.003)


def make(**settings: Any) -> tuple[R2D2, TrajectoryWorker, Replay]:
    """An algorithm, a worker that acts with its weights, and a buffer with 240 rows of it."""
    model = {"hidden": (8,), "memory": "lstm", "memory_size": 6, "shared": True, **settings.pop("model", {})}
    settings = {"sequence_length": 5, "burn_in": 4, "batch_size": 20, "n_step": 2, **settings}
    config = R2D2Config(env="CartPole-v1").replace({**settings, "model": model})
    config.validate()
    spec = build_spec(
        spaces.Box(-9, 9, (4,), F), spaces.Discrete(2), config.model, frame_stack=config.frame_stack
    )  # fmt: skip
    algorithm = R2D2(config, R2D2.network_spec(config, spec), 0)
    env = EnvSpec(env="CartPole-v1", num_envs=3, seed=1)
    rollout = TrajectoryWorker(
        RolloutSpec(env=env, network=algorithm.spec, fragment_length=20, seed=0, record_memory=True)
    )
    exponent = config.priority_exponent if config.prioritized else 0.0
    replay_spec = ReplaySpec(
        capacity=1000, n_step=2, gamma=config.gamma, frame_stack=config.frame_stack, priority_exponent=exponent
    )
    replay = REPLAYS.get(R2D2.replay_kind(config))(replay_spec, 0)
    for _ in range(4):
        _, fragment = rollout.collect(algorithm.weights(), {"epsilon": 0.5})
        assert fragment.behaviour["memory"].shape == (20, 3, algorithm.spec.num_trunks, 12)
        replay.add(0, fragment)
    return algorithm, rollout, replay


@pytest.mark.parametrize("stack", [1, 3])
def test_the_stored_memory_goes_on_as_the_worker_did(stack: int) -> None:
    """From the memory at a sequence's start the network, unchanged since, comes to the memories of the rows after it."""
    algorithm, _, replay = make(frame_stack=stack)
    s = replay.sample_sequences(30, 5, 4)
    batch = algorithm.tensors(s)
    memory = algorithm._memory(algorithm.online, batch)
    ids = s.id
    for _ in range(4):
        ids = replay.columns["follow"][replay.slots(ids)]
    stored = replay.columns["memory"][replay.slots(ids)]
    np.testing.assert_allclose(memory.state.numpy(), stored, atol=1e-5)
    assert s.first[1:].any() and (np.abs(stored) > 1e-3).any()


def test_loss_by_hand() -> None:
    """Against a loop over rows, with the networks apart."""
    algorithm, _, replay = make(value_rescaling=False, huber=0.0)
    c = algorithm.config
    algorithm.target.load(
        algorithm.target.numpy() + np.random.default_rng(0).normal(0, 0.3, len(algorithm.target.numpy())).astype(F)
    )
    s = replay.sample_sequences(4, 5, 4, beta=0.5)
    s.valid[6:8, 1] = False
    loss, priority, metrics = algorithm.loss(algorithm.tensors(s))

    def q_of(network: TorchNetwork) -> Any:
        """[T + 1, N, A] in one pass."""
        inputs = TorchInputs(Inputs(s.obs.reshape(-1, 4), {}), network.device)  # type: ignore[union-attr]
        with torch.no_grad():
            out = network(inputs, Memory(torch.from_numpy(s.memory), torch.from_numpy(s.first)))
        return q_values(algorithm.spec, *out).numpy().reshape(10, 4, 2)

    q, q_target = q_of(algorithm.online), q_of(algorithm.target)
    best = q.argmax(-1)
    following = np.take_along_axis(q_target, best[..., None], -1)[1:, :, 0]
    ended = s.terminated | s.truncated
    total, count = 0.0, 0
    for n in range(4):
        rows = slice(4, 9)
        columns = (s.reward, ended, s.terminated, s.valid, s.first[1:], following)
        targets = targets_by_hand(*(x[rows, n] for x in columns), c.gamma, c.n_step)
        errors = [q[4 + t, n, s.action[4 + t, n]] - y for t, y in enumerate(targets) if y is not None]  # type: ignore[call-overload, index]
        total += float(s.weight[n]) * sum(0.5 * e * e for e in errors)
        count += len(errors)
        sizes = np.abs(errors)
        assert float(priority[n]) == pytest.approx(0.9 * sizes.max() + 0.1 * sizes.mean(), rel=1e-3)
    assert loss.item() == pytest.approx(total / count, rel=1e-3)
    chosen = np.take_along_axis(q[4:9], s.action[4:, :, None], -1)[..., 0][s.valid[4:]]  # type: ignore[call-overload, index]
    assert len(chosen) <= 18 and float(metrics["q"]) == pytest.approx(chosen.mean(), abs=1e-5)


def test_updates_in_one_call_are_updates_after_each_other() -> None:
    together, _, replay = make()
    apart, _, _ = make()
    s = replay.sample_sequences(3 * together.rows, 5, 4)
    update = together.update(s, 1000)  # type: ignore[arg-type]
    assert update.num_updates == 3 and together.rows == 4
    assert update.priorities is not None and update.priorities.shape == (12,) and (update.priorities > 0).all()
    for i in range(3):
        part = slice(4 * i, 4 * i + 4)
        columns = {
            n: getattr(s, n)[:, part] for n in ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
        }
        rows = {n: getattr(s, n)[part] for n in ("id", "probability", "weight", "memory")}
        apart.update(replace(s, **columns, **rows), 1000)  # type: ignore[arg-type]
    np.testing.assert_allclose(together.weights().flat, apart.weights().flat, atol=1e-6)


def test_priorities_draw_the_sequences_that_they_begin() -> None:
    algorithm, _, replay = make()
    s = replay.sample_sequences(300, 5, 4)
    wanted = np.unique(s.id)[-3:]  # not those that come first
    replay.set_priorities(replay.rng.permutation(240), np.full(240, 1e-6))
    replay.set_priorities(wanted, np.full(3, 50.0))
    again = replay.sample_sequences(300, 5, 4, beta=1.0)
    assert np.isin(again.id, wanted).mean() > 0.99 and set(again.id[:30]) == set(wanted)
    assert again.weight.max() == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"memory": "none"}}, "R2D2 needs a memory"),
        ({"noisy": 0.5}, "take Rainbow"),
        ({"num_atoms": 51}, "take Rainbow"),
        ({"batch_size": 500}, "batch_size 500 is no multiple of sequence_length 32"),
        ({"burn_in": -1}, "burn_in must be at least 0, not -1"),
        ({"buffer_size": 2000, "num_workers": 4}, "buffer_size 2,000 is too small: .* need 3,072"),
        ({"priority_max_share": 1.5}, "priority_max_share must lie in"),
        ({"th_compile": True}, "is not compiled"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config("R2D2", {"env": "CartPole-v1", **settings})


@pytest.mark.parametrize("run", ["DQN", "SAC", "Rainbow"])
def test_others_that_replay_take_no_memory(run: str) -> None:
    with pytest.raises(ConfigError, match=r"A memory \(gru\) needs sequences"):
        Agent(run, env="CartPole-v1", model={"memory": "gru"})


def test_a_run_from_end_to_end(tmp_path: Any) -> None:
    """A few updates through the loop, a checkpoint with its buffer, and on from it."""
    small: dict[str, Any] = {
        "env": "raypid/TMaze-v0", "seed": 0, "num_envs_per_worker": 2, "start_steps": 300, "steps_per_iteration": 300,
        "batch_size": 40, "sequence_length": 10, "burn_in": 2, "model": {"hidden": (8,), "memory_size": 8},
    }  # fmt: skip
    with Agent("R2D2", **small) as agent:
        while agent.train()["learner_updates_total"] < 5:
            pass
        saved = agent.save(tmp_path / "saved")
    with Agent("R2D2", **small) as agent:
        agent.restore(saved)
        result = agent.train()
        assert result["learner_updates_total"] > 5 and np.isfinite(result["learner/loss"])
        assert 0 <= agent.eval(num_eval_episodes=3)["episode_reward_mean"] <= 1


@pytest.mark.slow
def test_it_balances_without_seeing_velocities() -> None:
    """PPO without a memory stays below 60 there."""
    with Agent("R2D2", env="raypid/PositionCartPole-v0", tuned=True, seed=1) as agent:
        for _ in range(5):
            agent.train(num_train_steps=8_000)
            if agent.eval(num_eval_episodes=20)["episode_reward_mean"] >= 450:
                return
    raise AssertionError("not learnt within 40,000 steps")


def test_learning_waits_until_there_are_sequences_from_all() -> None:
    """Also with more environments than start_steps has rows for."""
    config = {"num_envs_per_worker": 16, "start_steps": 100, "a_l_ratio": 64, "num_threads": 1}
    with raypid.R2D2(env="CartPole-v1", seed=0, config=config) as agent:
        assert agent.context.replay is not None and agent.context.replay.config.rows_to_start() == 2 * 48 * 16
        while not (result := agent.train())["learner_updates_total"]:
            assert result["timesteps_total"] < 4 * 48 * 16
        assert result["timesteps_total"] >= 2 * 48 * 16
