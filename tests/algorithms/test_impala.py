"""IMPALA and APPO: what their batches hold, both kernels alike, memories, the target network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raypid.algorithms.a2c import A2C, A2CConfig
from raypid.algorithms.impala import APPO, IMPALA, APPOConfig, IMPALAConfig
from raypid.algorithms.minibatches import Streams
from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.nn.catalog import build_spec
from raypid.nn.policy import make_policy
from raypid.ops.optim import RMSProp
from raypid.run.resolve import resolve_config
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Final, Trajectory

T, B = 10, 5
F = np.float32
BOX = spaces.Box(-9, 9, (4,))
BOTH = {"IMPALA": (IMPALA, IMPALAConfig), "APPO": (APPO, APPOConfig)}


def spec_of(action: Any = None, **model: Any) -> Any:
    return build_spec(BOX, spaces.Discrete(3) if action is None else action, ModelConfig(**{"hidden": (16,), **model}))


def trajectory(seed: int = 0, action: str = "discrete", clean: bool = False) -> Trajectory:
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, T, B)) < (0 if clean else 0.15)
    t = Trajectory(
        obs=rng.normal(size=(T + 1, B, 4)).astype(F),
        first=np.zeros((T + 1, B), bool) if clean else rng.random((T + 1, B)) < 0.2,
        action=rng.integers(3, size=(T, B)) if action == "discrete" else rng.normal(size=(T, B, 2)).astype(F),
        reward=rng.normal(size=(T, B)).astype(F),
        terminated=terminated,
        truncated=truncated & ~terminated,
        valid=np.ones((T, B), bool) if clean else rng.random((T, B)) < 0.8,
        behaviour={
            "log_prob": rng.normal(-1, 0.3, (T, B)).astype(F),
            "value": rng.normal(size=(T + 1, B)).astype(F),
        },
    )
    if not clean:
        rows, streams = np.nonzero(t.truncated)
        t.final = Final(rows, streams, rng.normal(size=(len(rows), 4)).astype(F))
        t.behaviour["final_value"] = rng.normal(5, 1, len(rows)).astype(F)
    return t


CASES = [
    ("IMPALA", "discrete", {}),
    ("IMPALA", "continuous", {"optimizer": "rmsprop", "max_grad_norm": 0.1}),
    ("APPO", "discrete", {"normalize_rewards": True, "num_epochs": 3}),
    ("APPO", "continuous", {"target_network": True, "target_interval": 2, "value_clip": 0.2}),
]


@pytest.mark.parametrize(("name", "action", "settings"), CASES)
def test_both_kernels_learn_the_same(name: str, action: str, settings: dict[str, Any]) -> None:
    cls, config = BOTH[name]
    space = None if action == "discrete" else spaces.Box(-1, 1, (2,))
    ours, theirs = (
        cls.make(config(kernel=kernel, batch_size=20, lr=3e-3, **settings), spec_of(space), 0)
        for kernel in ("numpy", "torch")
    )
    theirs.network.load(ours.network.numpy())
    before = ours.network.numpy().copy()
    for k in range(4):
        a, b = (algorithm.update(trajectory(k, action), 0) for algorithm in (ours, theirs))
        assert a.num_updates == b.num_updates >= 2 and a.metrics.keys() == b.metrics.keys()
        for key, number in a.metrics.items():
            assert number == pytest.approx(b.metrics[key], rel=1e-3, abs=1e-5), key
        np.testing.assert_allclose(ours.network.numpy(), theirs.network.numpy(), atol=2e-5)
    assert np.abs(ours.network.numpy() - before).max() > 3e-3


@pytest.mark.parametrize("name", ["IMPALA", "APPO", "vtrace"])
@pytest.mark.parametrize("kernel", ["numpy", "torch"])
def test_probabilities_that_are_far_apart_overflow_nothing(name: str, kernel: str) -> None:
    """As at the edge of a squashed Gaussian whose mean lies far outside; on rows that count and on those that do not."""
    cls, config = BOTH["IMPALA" if name == "IMPALA" else "APPO"]
    more = {"vtrace": True} if name == "vtrace" else {}
    algorithm = cls.make(config(kernel=kernel, batch_size=20, **more), spec_of(), 0)
    t = trajectory()
    t.behaviour["log_prob"][::3] = -200.0
    t.behaviour["log_prob"][1::3] = 200.0
    assert (~t.valid[::3]).any()
    update = algorithm.update(t, 0)
    assert np.isfinite(algorithm.weights().flat).all() and np.isfinite(list(update.metrics.values())).all()


@pytest.mark.parametrize("kernels", [("numpy", "torch"), ("torch", "numpy")])
def test_rmsprop_goes_on_with_the_other_kernel(kernels: tuple[str, str]) -> None:
    settings = {"optimizer": "rmsprop", "rmsprop_eps": 1e-3, "batch_size": 1000}
    one, other = (IMPALA.make(IMPALAConfig(kernel=kernel, **settings), spec_of(), 0) for kernel in kernels)
    one.update(trajectory(0), 0)
    other.load_state_dict(one.state_dict())
    assert other.version == 1
    for algorithm in (one, other):
        algorithm.update(trajectory(1), 0)
    np.testing.assert_allclose(one.network.numpy(), other.network.numpy(), atol=1e-5)


def test_rmsprop_by_hand() -> None:
    parameters = np.array([1.0, -2.0], F)
    optimizer = RMSProp(parameters, decay=0.9, eps=0.1)
    for _ in range(2):
        optimizer.step(np.array([2.0, 0.0], F), 0.5)
    v1, v2 = 0.1 * 4, 0.9 * 0.4 + 0.1 * 4
    expected = 1 - 0.5 * 2 / (v1**0.5 + 0.1) - 0.5 * 2 / (v2**0.5 + 0.1)
    np.testing.assert_allclose(parameters, [expected, -2.0], rtol=1e-5)


def acted_by(algorithm: Any, t: Trajectory) -> Trajectory:
    """The trajectory as if this algorithm's policy had acted."""
    policy = make_policy(algorithm.spec)
    policy.load(algorithm.weights())
    inputs, _ = policy.pipeline.sequence(t.obs, None, t.first)
    params = policy.network.policy(inputs.flatten())[0].reshape(T + 1, B, -1)
    t.behaviour["log_prob"] = policy.distribution.log_prob(params[:-1], None, t.action).astype(F)
    t.behaviour["value"] = policy.network.value(inputs.flatten()).reshape(T + 1, B)
    return t


def test_on_policy_impala_is_a2c() -> None:
    """Where the policy that acted is the one that learns, V-trace is the n-step return (lambda 1)."""
    shared = {"batch_size": 1000, "normalize_rewards": False, "entropy_coef": 0.02, "lr": 1e-3}
    impala = IMPALA.make(IMPALAConfig(**shared), spec_of(), 0)
    a2c = A2C.make(A2CConfig(**shared, gae_lambda=1.0), spec_of(), 0)
    impala.network.load(a2c.network.numpy())
    t = acted_by(a2c, trajectory(2))
    for algorithm in (impala, a2c):
        algorithm.update(t, 0)
    np.testing.assert_allclose(impala.network.numpy(), a2c.network.numpy(), atol=1e-5)


@pytest.mark.parametrize(("vtrace", "lambda_"), [(True, 1.0), (False, 0.9)])
def test_on_policy_appo_is_ppo(vtrace: bool, lambda_: float) -> None:
    shared = {
        "batch_size": 1000,
        "gae_lambda": lambda_,
        "normalize_rewards": False,
        "clip": 0.2,
        "num_epochs": 1,
        "lr": 1e-3,
        "entropy_coef": 0.0,
    }
    appo = APPO.make(APPOConfig(**shared, vtrace=vtrace), spec_of(), 0)
    ppo = PPO.make(PPOConfig(**shared), spec_of(), 0)
    appo.network.load(ppo.network.numpy())
    t = acted_by(ppo, trajectory(2))
    for algorithm in (appo, ppo):
        algorithm.update(t, 0)
    np.testing.assert_allclose(appo.network.numpy(), ppo.network.numpy(), atol=1e-5)


def test_appo_s_advantages_have_no_ratio_in_them() -> None:
    """The surrogate has it. With V-trace the returns are cut where another policy acted, without they are those of the newest values."""
    t = trajectory(0, clean=True)
    found = {}
    for vtrace in (True, False):
        algorithm = APPO.make(
            APPOConfig(vtrace=vtrace, gae_lambda=1.0, normalize_rewards=False, kernel="numpy"), spec_of(), 0
        )
        streams: Any = IMPALA.prepare(algorithm, t)
        log_prob, value = algorithm.network.predict(streams)
        rows: Any = algorithm.prepare(t)
        rho = np.exp(log_prob - t.behaviour["log_prob"]).clip(max=1.0)
        delta = streams.columns["reward"] + 0.99 * ~t.terminated * next_of(streams, value) - value[:-1]
        last = rows.advantage.reshape(T, B)[-1]
        np.testing.assert_allclose(last, delta[-1], atol=1e-5)  # not rho * delta
        found[vtrace] = rows.target.reshape(T, B) - value[:-1]
        np.testing.assert_allclose(found[vtrace][-1], (rho[-1] if vtrace else 1) * delta[-1], atol=1e-5)
    assert np.abs(found[True] - found[False]).max() > 0.01


def next_of(streams: Any, value: Any) -> Any:
    return value[1:] * (1 - streams.columns["final"]) + streams.columns["final_value"]


def test_minibatches_are_whole_streams() -> None:
    algorithm = IMPALA.make(IMPALAConfig(batch_size=20), spec_of(), 0)
    t = trajectory(0)
    streams: Any = algorithm.prepare(t)
    assert isinstance(streams, Streams) and len(streams) == t.num_valid
    seen: list[Any] = []
    for part in algorithm.minibatches(streams):
        assert isinstance(part, Streams) and part.inputs.vector.shape[:2] == (T + 1, part.num_units)
        for b in range(part.num_units):
            at = next(k for k in range(B) if np.array_equal(part.inputs.vector[:, b], t.obs[:, k]))
            np.testing.assert_array_equal(part.columns["log_prob"][:, b], t.behaviour["log_prob"][:, at])
            np.testing.assert_array_equal(part.valid[:, b], t.valid[:, at])
            seen.append(at)
    assert sorted(seen) == list(range(B))


def test_the_target_network_follows_at_its_interval() -> None:
    algorithm = APPO.make(APPOConfig(target_network=True, target_interval=2, kernel="numpy"), spec_of(), 0)
    assert algorithm.target is not None
    start = algorithm.target.copy()
    algorithm.update(trajectory(0), 0)
    first = algorithm.network.numpy().copy()
    algorithm.update(trajectory(1), 0)
    np.testing.assert_array_equal(algorithm.target, start)
    third = algorithm.network.numpy().copy()
    other = APPO.make(algorithm.config, spec_of(), 1)
    other.load_state_dict(algorithm.state_dict())
    algorithm.update(trajectory(2), 0)
    np.testing.assert_array_equal(algorithm.target, third)
    assert np.abs(first - start).max() > 0
    other.update(trajectory(2), 0)
    np.testing.assert_array_equal(other.network.numpy(), algorithm.network.numpy())


def test_the_ratio_to_the_target_network_is_bounded() -> None:
    """IMPACT: min(mu / pi_target, rho) * pi / mu. Where mu is far above pi_target, that is rho * pi / mu."""
    algorithm = APPO.make(APPOConfig(target_network=True, target_ratio=2.0, kernel="numpy"), spec_of(), 0)
    t = trajectory(0, clean=True)
    t.behaviour["log_prob"][0] = 3.0
    t.behaviour["log_prob"][1] = -9.0
    streams: Any = IMPALA.prepare(algorithm, t)
    rows: Any = algorithm.prepare(t)
    log_prob, _ = algorithm.network.predict(streams)
    assert len(rows) == T * B
    np.testing.assert_allclose(rows.log_prob[:B], 3.0 - np.log(2.0), atol=1e-5)
    np.testing.assert_allclose(rows.log_prob[B : 2 * B], log_prob[1], atol=1e-5)


@pytest.mark.parametrize("network", ["lstm", "gru"])
@pytest.mark.parametrize("name", ["PPO", "IMPALA", "APPO"])
def test_a_memory_is_unrolled_from_its_stored_state(name: str, network: str) -> None:
    """What a recurrent network is told of a row reaches later rows of the same episode, and none of another one."""
    cls, config = {**BOTH, "PPO": (PPO, PPOConfig)}[name]
    spec = spec_of(network=network, memory_size=8)
    algorithm = cls.make(
        config(batch_size=20, target_network=True) if name == "APPO" else config(batch_size=20), spec, 0
    )
    t = trajectory(1)
    t.state = {
        "memory": np.random.default_rng(0).normal(size=(B, spec.num_trunks, 8 * (1 + (network == "lstm")))).astype(F)
    }
    t.first[4], t.first[:4] = True, False
    streams: Any = algorithm.prepare(t)
    _, value = algorithm.network.predict(streams, algorithm.network.numpy())
    t.obs[1] += 1.0
    t.obs[6] += 1.0
    changed: Any = algorithm.prepare(t)
    _, other = algorithm.network.predict(changed, algorithm.network.numpy())
    moved = (value - other).abs().amax(1) > 1e-6
    assert moved.tolist() == [False, True, True, True, False, False, *[True] * 5]
    t.state["memory"][:] = 0
    other = algorithm.network.predict(algorithm.prepare(t), algorithm.network.numpy())[1]
    moved = (value - other).abs().amax(1) > 1e-6
    assert moved.tolist()[:5] == [True, True, True, True, False]
    update = algorithm.update(t, 0)
    assert update.num_updates >= 2 and np.isfinite(update.metrics["policy_loss"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vtrace": True, "rho_clip": 0.0}, "rho_clip must be above 0, not 0.0"),
        ({"fragments_in_flight": 3}, "fragments_in_flight must be 1 or 2, not 3"),
        ({"max_staleness": -1}, "max_staleness must be at least 0 .*not -1"),
        ({"fragments_per_update": 0}, "fragments_per_update must be at least 1"),
        ({"target_network": True, "target_ratio": 0.0}, "target_ratio must be above 0"),
        ({"c_clip": 2.0}, "c_clip has no effect unless vtrace is true"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config("APPO", {"env": "CartPole-v1", "seed": 0, **settings})
