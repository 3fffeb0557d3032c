"""From trajectories to updates: what is prepared, in which order, and what state holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raypid.algorithms.a2c import A2C, A2CConfig
from raypid.algorithms.actor_critic import mean_metrics, why_torch
from raypid.algorithms.base import schedule
from raypid.algorithms.minibatches import Batch
from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.pipeline import Inputs
from raypid.ops.normalizer import moments_of, scale_of
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Final, Trajectory, Weights

T, B = 12, 3
F = np.float32


def make_spec(action: Any = None, normalize: bool = False, frame_stack: int = 1, **model: Any) -> NetworkSpec:
    action = spaces.Discrete(3) if action is None else action
    space = spaces.Box(-9, 9, (4,))
    return build_spec(space, action, ModelConfig(**model), normalize=normalize, frame_stack=frame_stack)


def trajectory(seed: int = 0, valid: Any = None, final: bool = False) -> Trajectory:
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, T, B)) < 0.15
    t = Trajectory(
        obs=rng.normal(size=(T + 1, B, 4)).astype(F),
        first=rng.random((T + 1, B)) < 0.2,
        action=rng.integers(3, size=(T, B)),
        reward=rng.normal(size=(T, B)).astype(F),
        terminated=terminated,
        truncated=truncated & ~terminated,
        valid=rng.random((T, B)) < 0.8 if valid is None else valid,
        behaviour={
            "log_prob": rng.normal(-1, 0.2, (T, B)).astype(F),
            "value": rng.normal(size=(T + 1, B)).astype(F),
        },
    )
    if final:
        rows, streams = np.nonzero(t.terminated | t.truncated)
        t.final = Final(rows, streams, rng.normal(size=(len(rows), 4)).astype(F))
        t.behaviour["final_value"] = rng.normal(5, 1, len(rows)).astype(F)
    return t


@pytest.mark.parametrize("final", [False, True])
def test_prepare_keeps_valid_rows_in_order(final: bool) -> None:
    t = trajectory(final=final)
    algorithm = PPO.make(PPOConfig(gamma=0.9, gae_lambda=0.0, normalize_rewards=False), make_spec(), 0)
    batch = algorithm.prepare(t)
    assert len(batch) == t.num_valid < T * B
    n = 0
    for row in range(T):
        for b in range(B):
            if not t.valid[row, b]:
                continue
            np.testing.assert_array_equal(batch.inputs.vector[n], t.obs[row, b])
            assert batch.action[n] == t.action[row, b]
            assert batch.log_prob[n] == t.behaviour["log_prob"][row, b]
            following = t.behaviour["value"][row + 1, b]
            if t.final is not None and (t.terminated | t.truncated)[row, b]:
                k = np.flatnonzero((t.final.t == row) & (t.final.b == b))[0]
                following = t.behaviour["final_value"][k]
            target = t.reward[row, b] + 0.9 * following * (not t.terminated[row, b])
            assert batch.target[n] == pytest.approx(target, abs=1e-5)
            assert batch.advantage[n] == pytest.approx(target - t.behaviour["value"][row, b], abs=1e-5)
            n += 1


def test_rewards_are_scaled_then_clipped_in_the_learner_only() -> None:
    t = trajectory(valid=np.ones((T, B), bool))
    t.terminated[:] = True  # the target is the reward
    before = t.reward.copy()
    config = PPOConfig(reward_scale=2.0, reward_clip=1.5, normalize_rewards=False)
    batch = PPO.make(config, make_spec(), 0).prepare(t)
    np.testing.assert_allclose(batch.target, np.clip(2 * before, -1.5, 1.5).ravel(), atol=1e-6)
    np.testing.assert_array_equal(t.reward, before)
    assert (np.abs(batch.target) == 1.5).any()


def test_normalize_rewards_divides_by_the_deviation_of_returns() -> None:
    t = trajectory(valid=np.ones((T, B), bool))
    t.terminated[:], t.first[:] = True, True  # the discounted return is the reward
    batch = PPO.make(PPOConfig(normalize_rewards=True), make_spec(), 0).prepare(t)
    np.testing.assert_allclose(batch.target, t.reward.ravel() / t.reward.std(), rtol=1e-4)


def test_observations_are_normalised_with_the_moments_that_the_workers_had() -> None:
    t = trajectory()
    algorithm = PPO.make(PPOConfig(num_epochs=1), make_spec(normalize=True), 0)
    rows = np.random.default_rng(3).normal(2, 3, (50, 4))
    algorithm.merge(moments_of(rows))
    version = algorithm.version
    before = algorithm.weights().extra
    t.moments = moments_of(t.obs[:-1][t.valid] + 100)
    batch = algorithm.prepare(t)
    mean, inverse = scale_of(moments_of(rows))
    np.testing.assert_allclose(batch.inputs.vector, (t.obs[:-1][t.valid] - mean) * inverse, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(algorithm.weights().extra["obs_mean"], before["obs_mean"])
    algorithm.update(t, 0)
    after = algorithm.weights()
    assert after.extra["obs_count"] == 50 + t.num_valid and after.version == version + 1
    assert (after.extra["obs_mean"] > before["obs_mean"] + 1).all()


@pytest.mark.parametrize(
    ("rows", "batch_size", "parts"), [(100, 32, 3), (100, 40, 2), (10, 256, 1), (1, 1, 1), (7, 2, 4)]
)
def test_minibatches_are_a_partition_in_random_order(rows: int, batch_size: int, parts: int) -> None:
    algorithm = PPO.make(PPOConfig(batch_size=batch_size), make_spec(), 0)
    batch = Batch(Inputs(np.zeros((rows, 1), F), {}), *(np.arange(rows) for _ in range(5)))
    epochs = [[minibatch.target for minibatch in algorithm.minibatches(batch)] for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == parts
        assert sorted(np.concatenate(epoch)) == list(range(rows))
        assert max(map(len, epoch)) - min(map(len, epoch)) <= 1
    if rows > 5:
        assert not np.array_equal(np.concatenate(epochs[0]), np.concatenate(epochs[1]))
        assert not np.array_equal(np.concatenate(epochs[0]), np.arange(rows))


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_a_fragment_without_a_valid_row_changes_nothing(name: str, kernel: str) -> None:
    """It happens with fragments of one row: all environments reset, or crash, at once."""
    algorithm: Any
    if name == "PPO":
        algorithm = PPO.make(PPOConfig(kernel=kernel, target_kl=0.01), make_spec(), 0)  # type: ignore[arg-type]
    else:
        algorithm = A2C.make(A2CConfig(kernel=kernel), make_spec(), 0)  # type: ignore[arg-type]
    before = algorithm.weights()
    with np.errstate(all="raise"):
        update = algorithm.update(trajectory(valid=np.zeros((T, B), bool)), 0)
    assert update.num_updates == 0
    np.testing.assert_array_equal(algorithm.weights().flat, before.flat)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_ppo_counts_updates_and_stops_at_target_kl(kernel: Any) -> None:
    t = trajectory()
    config: dict[str, Any] = {"kernel": kernel, "batch_size": 8, "num_epochs": 5}
    whole = PPO.make(PPOConfig(**config), make_spec(), 0).update(t, 0)
    per_epoch = round(t.num_valid / 8)
    assert whole.num_updates == 5 * per_epoch
    stopped = PPO.make(PPOConfig(**config, target_kl=1e-9), make_spec(), 0).update(t, 0)
    assert stopped.num_updates == per_epoch
    names = {"policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm", "lr", "explained_variance"}
    assert set(whole.metrics) == names and all(isinstance(v, float) for v in whole.metrics.values())


class OwnMetrics(PPO):
    more: Any = 2.5

    def loss(self, *rows: Any) -> Any:
        loss, metrics = super().loss(*rows)
        return loss, {"mine": self.more, **metrics}

    def loss_gradient(self, *rows: Any) -> Any:
        *by, metrics = super().loss_gradient(*rows)
        return *by, {"mine": self.more, **metrics}


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("more", [2.5, F(2.5), np.array(2.5), torch.tensor([2.5])])
def test_a_metric_of_a_loss_may_be_any_number(kernel: Any, more: Any) -> None:
    algorithm = OwnMetrics.make(PPOConfig(kernel=kernel, num_epochs=1), make_spec(), 0)
    algorithm.more = more
    assert algorithm.update(trajectory(), 0).metrics["mine"] == 2.5


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("more", [None, "x", np.ones(3), torch.ones(3)])
def test_a_metric_of_a_loss_that_is_no_number_is_refused(kernel: Any, more: Any) -> None:
    algorithm = OwnMetrics.make(PPOConfig(kernel=kernel), make_spec(), 0)
    algorithm.more = more
    with pytest.raises(UserError, match=r"OwnMetrics\.loss\w*\(\) returned .* as the metric 'mine': give one number"):
        algorithm.update(trajectory(), 0)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize(("reward", "value"), [(0.0, 0.0), (1.0, 0.0), (1.0, 7.0), (0.0, 100.0), (3e4, 1.0)])
def test_equal_targets_leave_nothing_to_explain(kernel: Any, reward: float, value: float) -> None:
    t = trajectory()
    t.reward[:] = reward
    t.behaviour["value"] *= value
    ppo = PPO.make(PPOConfig(kernel=kernel, gamma=0.0, batch_size=64, normalize_rewards=False), make_spec(), 0)
    assert ppo.update(t, 0).metrics["explained_variance"] == 0.0


def test_explained_variance() -> None:
    t = trajectory()
    ppo = PPO.make(PPOConfig(gamma=0.0, batch_size=64, normalize_rewards=False), make_spec(), 0)
    reward, value = t.reward[t.valid], t.behaviour["value"][:-1][t.valid]
    expected = 1 - np.var(reward - value) / np.var(reward)
    assert ppo.update(t, 0).metrics["explained_variance"] == pytest.approx(expected, rel=1e-5)


def test_a2c_takes_each_row_once() -> None:
    t = trajectory()
    update = A2C.make(A2CConfig(batch_size=8), make_spec(), 0).update(t, 0)
    assert update.num_updates == round(t.num_valid / 8)
    assert {"policy_loss", "value_loss", "entropy", "grad_norm", "lr"} == set(update.metrics)


def test_both_kernels_learn_the_same_from_a_trajectory() -> None:
    t = trajectory(final=True)
    flats = []
    for kernel in ("numpy", "torch"):
        algorithm = PPO.make(PPOConfig(kernel=kernel, batch_size=8, num_epochs=3), make_spec(normalize=True), 0)
        for _ in range(2):
            t.moments = moments_of(t.obs[:-1][t.valid])
            algorithm.update(t, 0)
        flats.append(algorithm.weights().flat)
    np.testing.assert_allclose(*flats, atol=2e-5)


def test_schedules() -> None:
    assert schedule("constant", 10**9, None, 0.0) == 1.0
    values = [schedule("linear", t, 1000, 0.1) for t in (0, 500, 1000, 5000)]
    assert values == pytest.approx([1.0, 0.55, 0.1, 0.1])
    config = PPOConfig(lr=1e-2, lr_schedule="linear", clip_schedule="linear", schedule_steps=100, num_epochs=1)
    algorithm = PPO.make(config, make_spec(), 0)
    assert algorithm.update(trajectory(), 25).metrics["lr"] == pytest.approx(0.75e-2)
    assert algorithm.clip == pytest.approx(0.15)
    before = algorithm.weights().flat
    algorithm.update(trajectory(), 100)
    np.testing.assert_array_equal(algorithm.weights().flat, before)  # lr 0


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_state_is_everything_the_next_update_depends_on(kernel: Any) -> None:
    config = PPOConfig(kernel=kernel, batch_size=8, num_epochs=2, normalize_rewards=True)
    whole, other = (PPO.make(config, make_spec(normalize=True), seed) for seed in (0, 1))

    def learn(algorithm: PPO, seed: int) -> None:
        t = trajectory(seed)
        t.moments = moments_of(t.obs[:-1][t.valid])
        algorithm.update(t, 0)

    learn(whole, 0)
    other.load_state_dict(whole.state_dict())
    saved = whole.state_dict()["flat"].copy()
    learn(whole, 1)
    assert not np.array_equal(whole.weights().flat, saved)
    learn(other, 1)
    np.testing.assert_array_equal(other.weights().flat, whole.weights().flat)
    assert other.version == whole.version == 2
    for key, value in whole.weights().extra.items():
        np.testing.assert_array_equal(other.weights().extra[key], value)


def test_weights_are_a_copy_and_set_weights_takes_them() -> None:
    algorithm, other = (PPO.make(PPOConfig(num_epochs=1), make_spec(normalize=True), seed) for seed in (0, 1))
    weights = algorithm.weights()
    kept = weights.flat.copy()
    algorithm.update(trajectory(), 0)
    np.testing.assert_array_equal(weights.flat, kept)
    other.set_weights(weights)
    np.testing.assert_array_equal(other.weights().flat, kept)
    wrong = Weights(0, kept, (("other", kept.shape),))
    with pytest.raises(ConfigError, match="another network"):
        other.set_weights(wrong)


def test_a_checkpoint_of_another_network_is_refused() -> None:
    state = PPO.make(PPOConfig(), make_spec(hidden=(8,)), 0).state_dict()
    with pytest.raises(ConfigError, match="the settings differ"):
        PPO.make(PPOConfig(), make_spec(), 0).load_state_dict(state)


def test_why_torch() -> None:
    def why(config: PPOConfig, spec: NetworkSpec) -> str:
        return why_torch(PPO, config, spec)

    box, discrete, multi = spaces.Box(-1, 1, (2,)), spaces.Discrete(2), spaces.MultiDiscrete([2, 2])
    assert why(PPOConfig(), make_spec(box)) == why(PPOConfig(), make_spec(discrete)) == ""
    assert why(PPOConfig(kernel="torch"), make_spec(box)) == "kernel torch"
    assert why(PPOConfig(num_gpus=1), make_spec(box)) == "num_gpus 1"
    assert why(PPOConfig(), make_spec(box, hidden=(256, 256))) == "a layer of 256"
    assert why(PPOConfig(kernel="numpy", num_gpus=1), make_spec(box, hidden=(256, 256))) == ""
    others = {
        "MultiDiscrete actions": make_spec(multi),
        "actions of several parts": make_spec(spaces.Dict(a=box)),
        "model.distribution squashed_gaussian": make_spec(box, distribution="squashed_gaussian"),
    }
    for kind, other in others.items():
        assert why(PPOConfig(), other) == f"learning with {kind}"
        with pytest.raises(ConfigError, match=f"kernel numpy does not serve learning with {kind}"):
            why(PPOConfig(kernel="numpy"), other)


class OwnLoss(PPO):
    def loss(self, log_prob: Any, entropy: Any, value: Any, batch: Any) -> Any:
        loss, metrics = super().loss(log_prob, entropy, value, batch)
        return 3 * loss, {**metrics, "own": loss}


class OwnForms(OwnLoss):
    def loss_gradient(self, log_prob: Any, entropy: Any, value: Any, batch: Any) -> Any:
        *slopes, metrics = super().loss_gradient(log_prob, entropy, value, batch)
        return *(3 * slope for slope in slopes), {**metrics, "own": 0.0}


class OwnUpdate(OwnForms):
    def update(self, batch: Any, timesteps: int) -> Any:
        return super().update(batch, timesteps)


def test_a_loss_of_one_s_own_is_used_and_its_numpy_form_only_beside_it() -> None:
    """The NumPy form serves where the class that defines it defines the loss too, or stands below that one."""
    spec = make_spec()
    assert why_torch(OwnForms, PPOConfig(), spec) == why_torch(OwnUpdate, PPOConfig(), spec) == ""
    assert why_torch(OwnLoss, PPOConfig(), spec).startswith("the loss of OwnLoss without a NumPy form")
    assert OwnLoss.for_spaces(PPOConfig(), spec)["kernel"][0] == "torch"
    assert (
        "OwnLoss has a loss of its own without a NumPy form" in OwnLoss.surprise(PPOConfig(), spec)
        and PPO.surprise(PPOConfig(), spec) == ""
    )
    with pytest.raises(ConfigError, match="kernel numpy does not serve the loss of OwnLoss without a NumPy form"):
        OwnLoss.make(PPOConfig(kernel="numpy"), spec, 0)
    assert "own" in OwnLoss.make(PPOConfig(), spec, 0).update(trajectory(), 0).metrics
    assert OwnUpdate.make(PPOConfig(), spec, 0).update(trajectory(), 0).metrics["own"] == 0


def test_mean_metrics() -> None:
    import torch

    assert mean_metrics([]) == {}
    assert mean_metrics([{"a": 1.0}, {"a": 2.0}]) == {"a": 1.5}
    assert mean_metrics([{"a": torch.tensor(1.0)}, {"a": torch.tensor(2)}]) == {"a": 1.5}
