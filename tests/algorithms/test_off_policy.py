"""Off-policy updates against numbers worked out independently in double precision; state, masks, noise, errors."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import raypid
from raypid.algorithms.dqn import huber, project
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.networks import TorchNetwork
from raypid.nn.numpy_mlp import SmallNetwork
from raypid.nn.pipeline import Inputs
from raypid.nn.policy import make_policy
from raypid.ops.normalizer import inverse_deviation, zero_moments
from raypid.plugins.registry import ALGORITHMS
from raypid.run.agent import Agent
from raypid.run.resolve import resolve_config
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Moments, Sample, Transition, Weights, flat_views, tree_map

F = np.float32
N, LR, EPS = 24, 1e-2, 1e-2
PLAIN = spaces.Box(-np.inf, np.inf, (5,), F)
MASKED = spaces.Dict(action_mask=spaces.MultiBinary(4), obs=PLAIN)
BOX = spaces.Box(-2.0, 2.0, (3,), F)
Params = dict[str, torch.Tensor]
PINNED = {"n_step": 1, "normalize_rewards": False, "layer_norm": False, "critic_norm": "layer"}
"""What is computed by hand below, whatever the defaults."""


def make(name: str, *, masked: bool = False, action: Any = None, seed: int = 3, **settings: Any) -> Any:
    """An algorithm on five numbers, with wide steps; its target networks differ from the learnt ones."""
    model = {"hidden": (16, 12), "activation": "relu", **settings.pop("model", {})}
    given = {"lr": LR, "adam_eps": EPS, "batch_size": N, "num_workers": 0, "num_replay_shards": 0, **settings}
    cls = ALGORITHMS.get(name)
    known = cls.Config().to_dict().keys() - cls.Config.no_effect.keys()
    pinned = {key: value for key, value in PINNED.items() if key in known}
    config = resolve_config(
        name, {"env": "CartPole-v1", "seed": 0, "model": model, "num_threads": 1, **pinned, **given}
    )
    discrete = name in ("DQN", "Rainbow", "ApeX", "SQN")
    action = action or (spaces.Discrete(4) if discrete else BOX)
    network = build_spec(
        MASKED if masked else PLAIN, action, ModelConfig(**model), normalize=bool(config.normalize_observations)
    )
    algorithm = cls(config, cls.network_spec(config, network), seed)
    rng = np.random.default_rng(seed)
    for network in algorithm.networks.values():
        size = len(network.numpy())
        if size > 1:
            network.load(network.numpy() + rng.normal(0, 0.1, size).astype(F))
    return algorithm


def sample(algorithm: Any, seed: int = 0, num: int = N) -> Sample:
    """Rows that fold one to three steps, some of them terminated, with importance weights."""
    rng = np.random.default_rng(seed)
    masked = bool(algorithm.spec.pipeline.mask_size)

    def obs() -> Any:
        x = rng.normal(size=(num, 5)).astype(F)
        if not masked:
            return x
        mask = (rng.random((num, 4)) < 0.5).astype(np.int8)
        mask[np.arange(num), rng.integers(4, size=num)] = 1
        return {"obs": x, "action_mask": mask}

    discrete = algorithm.spec.actions[0].kind == "categorical"
    action = rng.integers(4, size=num) if discrete else rng.uniform(-1, 1, (num, 3)).astype(F)
    reward = rng.normal(0, 1.5, num).astype(F)
    discount = (0.9 ** rng.integers(1, 4, num) * (rng.random(num) < 0.8)).astype(F)
    weight = rng.uniform(0.2, 1, num).astype(F)
    return Sample(Transition(obs(), action, reward, discount, obs()), np.arange(num), np.ones(num), weight)


# -- the reference -----------------------------------------------------------------------------------------------------


def params_of(network: Any) -> Params:
    views = flat_views(network.numpy().copy(), network.table)
    return {name: torch.tensor(view, dtype=torch.float64, requires_grad=True) for name, view in views.items()}


def mlp(p: Params, x: torch.Tensor, trunk: int, *, norm: bool = False) -> torch.Tensor:
    i = 0
    while f"trunk.{i}.weight" in p:
        x = x @ p[f"trunk.{i}.weight"][trunk] + p[f"trunk.{i}.bias"][trunk]
        if norm:
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        x, i = x.clamp(min=0), i + 1
    return x


def head(p: Params, x: torch.Tensor, name: str = "policy", **more: Any) -> torch.Tensor:
    trunk = 0 if name == "policy" else len(p["trunk.0.weight"]) - 1
    return mlp(p, x, trunk, **more) @ p[f"{name}.weight"] + p[f"{name}.bias"]


def q_of(p: Params, x: torch.Tensor, k: int, norm: str = "layer") -> torch.Tensor:
    """One critic by itself: [N], or [N, A]."""
    depth = sum(name.startswith("weights.") for name in p)
    for i in range(depth):
        x = x @ p[f"weights.{i}"][k] + p[f"biases.{i}"][k]
        if i < depth - 1:
            if norm == "layer":
                x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            x = x.clamp(min=0)
    return x[:, 0] if x.shape[1] == 1 else x


def step(p: Params, loss: torch.Tensor, *, lr: float = LR, eps: float = EPS, max_norm: float | None = None) -> Params:
    """The first step of Adam."""
    grads = torch.autograd.grad(loss, list(p.values()), allow_unused=True)
    flat = [torch.zeros_like(x) if g is None else g for x, g in zip(p.values(), grads, strict=True)]
    norm = torch.cat([g.reshape(-1) for g in flat]).norm()
    scale = 1.0 if max_norm is None else min(1.0, float(max_norm / norm))
    new = {}
    for (name, x), g in zip(p.items(), flat, strict=True):
        g = g * scale
        new[name] = (x - lr * g / (g.abs() + eps)).detach().requires_grad_()
    return new


def assert_network(network: Any, expected: Params) -> None:
    flat = torch.cat([x.detach().reshape(-1) for x in expected.values()]).numpy()
    np.testing.assert_allclose(network.numpy(), flat, atol=3e-5)


def number(x: Any) -> float:
    return float(x.detach())


def polyak(target: Params, source: Params, tau: float) -> Params:
    return {name: x + tau * (source[name] - x) for name, x in target.items()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Rows:
    """The sample as doubles."""

    def __init__(self, s: Sample) -> None:
        def vector(obs: Any) -> torch.Tensor:
            return torch.tensor(obs["obs"] if isinstance(obs, dict) else obs, dtype=torch.float64)

        def mask(obs: Any) -> Any:
            return torch.tensor(obs["action_mask"] == 1) if isinstance(obs, dict) else None

        self.x, self.x2, self.mask, self.mask2 = (f(o) for f in (vector, mask) for o in (s.data.obs, s.data.next_obs))
        self.action = torch.tensor(s.data.action)
        self.reward, self.discount, self.weight = (
            torch.tensor(a, dtype=torch.float64) for a in (s.data.reward, s.data.discount, s.weight)
        )
        self.rows = torch.arange(len(self.reward))


def allowed(x: torch.Tensor, mask: Any) -> torch.Tensor:
    return x if mask is None else torch.where(mask, x, -1e5)


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=logits).entropy()


def by_hand_huber(error: torch.Tensor, delta: float) -> torch.Tensor:
    if delta == 0:
        return error**2 / 2
    return torch.where(error.abs() < delta, error**2 / 2, delta * (error.abs() - delta / 2))


# -- DQN ---------------------------------------------------------------------------------------------------------------

DQNS: dict[str, dict[str, Any]] = {
    "plain": {"double": False, "huber": 0.0},
    "double": {"double": True},
    "dueling": {"dueling": True, "huber": 0.3},
    "masked": {"masked": True},
    "clipped": {"max_grad_norm": 0.1, "huber": 2.0},
    "no target": {"target_network": False, "layer_norm": True},
}


@pytest.mark.parametrize("case", DQNS)
def test_dqn_update(case: str) -> None:
    settings = {"prioritized": True, "max_grad_norm": None, **DQNS[case]}
    if settings.get("target_network", True):
        settings["target_tau"] = 0.25
    algorithm = make("DQN", **settings)
    s, c = sample(algorithm), algorithm.config
    b, online = Rows(s), params_of(algorithm.online)
    target = params_of(algorithm.target) if c.target_network else online

    def q(p: Params, x: torch.Tensor) -> torch.Tensor:
        advantage = head(p, x, norm=c.layer_norm)
        if not c.dueling:
            return advantage
        return head(p, x, "value") + advantage - advantage.mean(1, keepdim=True)

    chooser = q(online if c.double else target, b.x2)
    best = allowed(chooser, b.mask2).argmax(1)
    goal = (b.reward + b.discount * q(target, b.x2)[b.rows, best]).detach()
    chosen = q(online, b.x)[b.rows, b.action]
    loss = (b.weight * by_hand_huber(chosen - goal, c.huber)).mean()
    update = algorithm.update(s, 0)
    metrics = algorithm.metrics()
    assert update.num_updates == 1 and algorithm.version == algorithm.num_updates == 1
    assert metrics["loss"] == pytest.approx(number(loss), rel=1e-5)
    assert metrics["q"] == pytest.approx(number(chosen.mean()), abs=1e-5)
    np.testing.assert_allclose(update.priorities, (chosen - goal).abs().detach(), atol=2e-5)
    new = step(online, loss, max_norm=c.max_grad_norm)
    assert_network(algorithm.online, new)
    if c.target_network:
        assert_network(algorithm.target, polyak(target, new, 0.25))
    if case == "masked":
        assert (best != chooser.argmax(1)).any()


def test_huber_by_hand() -> None:
    error = torch.tensor([0.5, -0.5, 2.0, -3.0])
    assert huber(error, 1.0).tolist() == [0.125, 0.125, 1.5, 2.5]
    assert huber(error, 0.0).tolist() == [0.125, 0.125, 2.0, 4.5]


def projected_by_the_paper(p: Any, reward: Any, discount: Any, atoms: Any) -> Any:
    """Algorithm 1 of Bellemare et al. 2017, as it stands; where b is whole, all of the mass goes to it."""
    found, spacing = np.zeros_like(p), atoms[1] - atoms[0]
    for n in range(len(p)):
        for j, z in enumerate(atoms):
            moved = min(max(reward[n] + discount[n] * z, atoms[0]), atoms[-1])
            b = (moved - atoms[0]) / spacing
            low, high = math.floor(b), math.ceil(b)
            if low == high:
                found[n, low] += p[n, j]
            else:
                found[n, low] += p[n, j] * (high - b)
                found[n, high] += p[n, j] * (b - low)
    return found


def test_projection_of_a_distribution() -> None:
    rng = np.random.default_rng(0)
    atoms = np.linspace(-2, 3, 11)
    p = rng.dirichlet(np.ones(11), 200)
    reward, discount = rng.normal(0, 3, 200), 0.9 ** rng.integers(1, 4, 200) * (rng.random(200) < 0.7)
    reward[:20] = np.round(reward[:20] * 2) / 2  # onto the atoms themselves
    discount[:10] = 0
    reward[20:23], discount[20:23] = [50, -50, 3], 0
    expected = projected_by_the_paper(p, reward, discount, atoms)
    found = project(*(torch.tensor(x) for x in (p, reward, discount, atoms)))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_allclose([found[20, -1], found[21, 0], found[22, -1]], 1)


@pytest.mark.parametrize("dueling", [False, True])
def test_c51_update(dueling: bool) -> None:
    more: dict[str, Any] = {"num_atoms": 7, "v_min": -2.0, "v_max": 3.0, "dueling": dueling, "max_grad_norm": None}
    algorithm = make("DQN", prioritized=True, **more)
    s = sample(algorithm)
    b, online, target = Rows(s), params_of(algorithm.online), params_of(algorithm.target)
    atoms = torch.linspace(-2, 3, 7, dtype=torch.float64)

    def logits(p: Params, x: torch.Tensor) -> torch.Tensor:
        advantage = head(p, x).reshape(N, 4, 7)
        return head(p, x, "value")[:, None] + advantage - advantage.mean(1, keepdim=True) if dueling else advantage

    best = (logits(online, b.x2).softmax(-1) * atoms).sum(-1).argmax(1)
    following = logits(target, b.x2).softmax(-1)[b.rows, best].detach().numpy()
    goal = torch.tensor(projected_by_the_paper(following, b.reward.numpy(), b.discount.numpy(), atoms.numpy()))
    error = -(goal * logits(online, b.x)[b.rows, b.action].log_softmax(-1)).sum(-1)
    loss = (b.weight * error).mean()
    update = algorithm.update(s, 0)
    np.testing.assert_allclose(update.priorities, error.detach(), atol=2e-5)
    assert algorithm.metrics()["loss"] == pytest.approx(number(loss), rel=1e-5)
    assert_network(algorithm.online, step(online, loss))


# -- SQN ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("double", "masked"), [(True, False), (False, False), (True, True)])
def test_sqn_update(double: bool, masked: bool) -> None:
    """V(s') = E_pi[Q'(s', a)] + alpha * H(pi); without double that is alpha * log sum exp(Q' / alpha)."""
    algorithm = make("SQN", double=double, masked=masked, alpha_init=0.4, max_grad_norm=None, huber=0.0)
    s = sample(algorithm)
    b, online, target = Rows(s), params_of(algorithm.online), params_of(algorithm.target)
    q_target = head(target, b.x2)
    mine = allowed(head(online if double else target, b.x2), b.mask2) / 0.4
    pi = mine.softmax(1)
    entropy = entropy_of(mine)
    value = (pi * q_target).sum(1) + 0.4 * entropy
    if not double:
        np.testing.assert_allclose(value.detach(), (0.4 * torch.logsumexp(q_target / 0.4, 1)).detach(), atol=1e-9)
    goal = (b.reward + b.discount * value).detach()
    loss = (b.weight * (head(online, b.x)[b.rows, b.action] - goal) ** 2 / 2).mean()
    algorithm.update(s, 0)
    metrics = algorithm.metrics()
    assert metrics["loss"] == pytest.approx(number(loss), rel=1e-5)
    assert metrics["entropy"] == pytest.approx(number(entropy.mean()), rel=1e-4)
    assert_network(algorithm.online, step(online, loss))
    slope = 0.4 * (number(entropy.mean()) - 0.25 * math.log(4))
    after = math.log(0.4) - LR * slope / (abs(slope) + 1e-8)
    assert number(algorithm.temperature.log) == pytest.approx(after, abs=1e-6)
    assert algorithm.weights().extra["temperature"] == pytest.approx(math.exp(after), rel=1e-5)


# -- SAC ---------------------------------------------------------------------------------------------------------------


def draw(p: Params, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    params = head(p, x)
    mean, deviation = params[:, :3], (-5 + 3.5 * (params[:, 3:].tanh() + 1)).exp()
    u = mean + deviation * noise
    density = torch.distributions.Normal(mean, deviation).log_prob(u) - torch.log1p(-(u.tanh() ** 2))
    return u.tanh(), density.sum(1)


def noise_of(algorithm: Any, num: int) -> list[torch.Tensor]:
    """What its generator will draw."""
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return [torch.randn((N, 3), generator=generator).double() for _ in range(num)]


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_sac_update(norm: str) -> None:
    algorithm = make(
        "SAC", critic_norm=norm, prioritized=True, num_critics=3, alpha_init=0.3, lr_critic=3e-3, target_tau=0.2
    )
    s = sample(algorithm)
    b, policy = Rows(s), params_of(algorithm.policy)
    critics, target = params_of(algorithm.networks["critics"]), params_of(algorithm.networks["target"])
    one, two = noise_of(algorithm, 2)

    def qs(p: Params, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.stack([q_of(p, torch.cat([x, action], 1), k, norm) for k in range(3)])

    action, log_prob = draw(policy, b.x2, one)
    goal = (b.reward + b.discount * (qs(target, b.x2, action).amin(0) - 0.3 * log_prob)).detach()
    error = qs(critics, b.x, b.action.double()) - goal
    loss = (b.weight * error**2).mean(1).sum()
    new = step(critics, loss, lr=3e-3)
    action, log_prob = draw(policy, b.x, two)
    policy_loss = (0.3 * log_prob - qs(new, b.x, action).amin(0)).mean()
    update = algorithm.update(s, 0)
    metrics = algorithm.metrics()
    assert metrics["critic_loss"] == pytest.approx(number(loss), rel=1e-5)
    assert metrics["policy_loss"] == pytest.approx(number(policy_loss), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(-number(log_prob.mean()), rel=1e-4)
    np.testing.assert_allclose(update.priorities, error.abs().mean(0).detach(), atol=2e-5)
    assert_network(algorithm.networks["critics"], new)
    assert_network(algorithm.networks["target"], polyak(target, new, 0.2))
    assert_network(algorithm.policy, step(policy, policy_loss))
    slope = 0.3 * (-number(log_prob.mean()) + 3)
    assert number(algorithm.temperature.log) == pytest.approx(
        math.log(0.3) - LR * slope / (abs(slope) + 1e-8), abs=1e-6
    )


@pytest.mark.parametrize("masked", [False, True])
def test_discrete_sac_update(masked: bool) -> None:
    algorithm = make("SAC", action=spaces.Discrete(4), masked=masked, alpha_init=0.3, target_entropy=0.5)
    s = sample(algorithm)
    b, policy = Rows(s), params_of(algorithm.policy)
    critics, target = params_of(algorithm.networks["critics"]), params_of(algorithm.networks["target"])

    def qs(p: Params, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([q_of(p, x, k) for k in range(2)])

    def soft(logits: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        entropy = entropy_of(logits)
        return (logits.softmax(1) * q).sum(1) + 0.3 * entropy, entropy

    value = soft(allowed(head(policy, b.x2), b.mask2), qs(target, b.x2).amin(0))[0]
    goal = (b.reward + b.discount * value).detach()
    loss = (b.weight * (qs(critics, b.x)[:, b.rows, b.action] - goal) ** 2).mean(1).sum()
    new = step(critics, loss)
    value, entropy = soft(allowed(head(policy, b.x), b.mask), qs(new, b.x).amin(0).detach())
    algorithm.update(s, 0)
    metrics = algorithm.metrics()
    assert metrics["critic_loss"] == pytest.approx(number(loss), rel=1e-5)
    assert metrics["policy_loss"] == pytest.approx(-number(value.mean()), rel=1e-4)
    assert_network(algorithm.networks["critics"], new)
    assert_network(algorithm.policy, step(policy, -value.mean()))
    slope = 0.3 * (number(entropy.mean()) - 0.5)
    assert number(algorithm.temperature.log) == pytest.approx(
        math.log(0.3) - LR * slope / (abs(slope) + 1e-8), abs=1e-6
    )
    if masked:
        np.testing.assert_array_equal(policy["policy.weight"].shape, (12, 4))
        assert np.isfinite(algorithm.policy.numpy()).all()


@pytest.mark.parametrize("discrete", [False, True])
def test_crossq_statistics(discrete: bool) -> None:
    """One pass over both batches; the running statistics move a hundredth of the way, and serve the policy's loss."""
    action = spaces.Discrete(4) if discrete else BOX
    algorithm = make("SAC", action=action, critic_norm="batch", target_network=False, alpha=0.3, num_critics=1)
    assert "target" not in algorithm.networks and "alpha" not in algorithm.optimizers
    s = sample(algorithm)
    b, policy, p = Rows(s), params_of(algorithm.policy), params_of(algorithm.networks["critics"])
    if discrete:
        both, next_pi = torch.cat([b.x, b.x2]), head(policy, b.x2).softmax(1)
    else:
        (noise,) = noise_of(algorithm, 1)
        drawn, log_prob = draw(policy, b.x2, noise)
        both = torch.cat([torch.cat([b.x, b.action.double()], 1), torch.cat([b.x2, drawn], 1)])
    h, statistics = both, []
    for i in range(2):
        h = h @ p[f"weights.{i}"][0] + p[f"biases.{i}"][0]
        mean, variance = h.mean(0), h.var(0, unbiased=False)
        statistics.append((mean.detach(), variance.detach()))
        h = ((h - mean) / (variance + 1e-5).sqrt()).clamp(min=0)
    q = h @ p["weights.2"][0] + p["biases.2"][0]
    if discrete:
        value = (next_pi * q[N:]).sum(1) + 0.3 * torch.special.entr(next_pi).sum(1)
        chosen = q[:N][b.rows, b.action]
    else:
        value, chosen = q[N:, 0] - 0.3 * log_prob, q[:N, 0]
    loss = (b.weight * (chosen - (b.reward + b.discount * value).detach()) ** 2).mean()
    algorithm.update(s, 0)
    assert algorithm.metrics()["critic_loss"] == pytest.approx(number(loss), rel=1e-5)
    assert_network(algorithm.networks["critics"], step(p, loss))
    for found, (mean, variance) in zip(algorithm.critics.statistics, statistics, strict=True):
        np.testing.assert_allclose(found[0, 0, 0], 0.01 * mean, atol=1e-6)
        np.testing.assert_allclose(found[1, 0, 0], 0.99 + 0.01 * variance, atol=1e-6)
    before = [x.clone() for x in algorithm.critics.statistics]
    algorithm.policy_loss(algorithm.tensors(s), torch.tensor([0.3]))
    assert all(torch.equal(x, y) for x, y in zip(before, algorithm.critics.statistics, strict=True))


# -- TD3 ---------------------------------------------------------------------------------------------------------------


def test_td3_update() -> None:
    algorithm = make("TD3", prioritized=True, target_noise=0.4, target_noise_clip=0.3, target_tau=0.2)
    s = sample(algorithm)
    b, policy, target_policy = Rows(s), params_of(algorithm.policy), params_of(algorithm.target_policy)
    critics, target = params_of(algorithm.networks["critics"]), params_of(algorithm.networks["target_critics"])
    (noise,) = noise_of(algorithm, 1)
    action = (head(target_policy, b.x2).tanh() + (0.4 * noise).clamp(-0.3, 0.3)).clamp(-1, 1)
    following = torch.cat([b.x2, action], 1)
    goal = b.reward + b.discount * torch.minimum(q_of(target, following, 0), q_of(target, following, 1))
    taken = torch.cat([b.x, b.action.double()], 1)
    errors = [q_of(critics, taken, k) - goal.detach() for k in range(2)]
    loss = sum((b.weight * e**2).mean() for e in errors)
    new = step(critics, loss)  # type: ignore[arg-type]
    policy_loss = -q_of(new, torch.cat([b.x, head(policy, b.x).tanh()], 1), 0).mean()
    update = algorithm.update(s, 0)
    metrics = algorithm.metrics()
    assert metrics["critic_loss"] == pytest.approx(number(loss), rel=1e-5)
    assert metrics["policy_loss"] == pytest.approx(number(policy_loss), rel=1e-4)
    np.testing.assert_allclose(update.priorities, ((errors[0].abs() + errors[1].abs()) / 2).detach(), atol=2e-5)
    moved = step(policy, policy_loss)
    assert_network(algorithm.networks["critics"], new)
    assert_network(algorithm.policy, moved)
    assert_network(algorithm.target_policy, polyak(target_policy, moved, 0.2))
    assert_network(algorithm.networks["target_critics"], polyak(target, new, 0.2))


# -- intervals, weights, precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target", "source"),
    [("DQN", "target", "acting"), ("SAC", "target", "critics"), ("TD3", "target_policy", "acting")],
)
def test_target_interval(name: str, target: str, source: str) -> None:
    """Copied (tau 1) with the first update and every third after it, left alone between."""
    algorithm = make(name, target_interval=3, target_tau=1.0)
    for i in range(7):
        before = algorithm.networks[target].numpy().copy()
        algorithm.update(sample(algorithm, i), 0)
        now = algorithm.networks[target].numpy()
        np.testing.assert_array_equal(now, algorithm.networks[source].numpy() if i % 3 == 0 else before)


@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_policy_delay(name: str) -> None:
    algorithm = make(name, policy_delay=3)
    for i in range(7):
        before, alpha = algorithm.networks["acting"].numpy().copy(), getattr(algorithm, "temperature", None)
        log = None if alpha is None else number(alpha.log)
        algorithm.update(sample(algorithm, i), 0)
        moved = not np.array_equal(before, algorithm.networks["acting"].numpy())
        assert moved == (i % 3 == 0) == ("policy_loss" in algorithm.metrics())
        if alpha is not None:
            assert (number(alpha.log) != log) == moved


@pytest.mark.parametrize("name", ["DQN", "SQN", "Rainbow", "SAC", "TD3"])
def test_rows_of_no_weight_are_not_learnt_from(name: str) -> None:
    """The critics' step with half of the weights 0 does not see these rows' rewards."""
    flats = []
    for other in (0.0, 7.0):
        algorithm = make(name)
        s = sample(algorithm)
        s.weight[::2] = 0
        s.data.reward[::2] += F(other)
        algorithm.update(s, 0)
        flats.append(algorithm.networks.get("critics", algorithm.networks["acting"]).numpy().copy())
    np.testing.assert_array_equal(*flats)


@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_several_batches_in_one_call_are_updates_one_by_one(name: str) -> None:
    together, one_by_one = make(name, prioritized=True), make(name, prioritized=True)
    s = sample(together, num=3 * N)
    update = together.update(s, 0)
    assert update.num_updates == 3 and together.num_updates == 3 and update.priorities is not None
    parts = []
    for i in range(3):
        rows = slice(i * N, (i + 1) * N)
        columns = (tree_map(lambda x, rows=rows: x[rows], getattr(s.data, n)) for n in s.data.__dataclass_fields__)
        part = Sample(Transition(*columns), s.id[rows], s.probability[rows], s.weight[rows])
        parts.append(one_by_one.update(part, 0).priorities)
    np.testing.assert_array_equal(update.priorities, np.concatenate(parts))
    np.testing.assert_array_equal(together.networks["acting"].numpy(), one_by_one.networks["acting"].numpy())


@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_bf16_is_close(name: str) -> None:
    single, half = (make(name, bf16=bf16, model={"hidden": (64, 64)}) for bf16 in (False, True))
    found = []
    for algorithm in (single, half):
        algorithm.update(sample(algorithm), 0)
        found.append(algorithm.metrics())
    for key in set(found[0]) - {"alpha"}:
        assert found[1][key] == pytest.approx(found[0][key], rel=0.03, abs=0.02), key
    a, b = single.networks["critics"].numpy(), half.networks["critics"].numpy()
    assert not np.array_equal(a, b) and b.dtype == F
    assert np.abs(a - b).mean() < 0.1 * LR


# -- state -------------------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "DQN": ("DQN", {}),
    "Rainbow": ("Rainbow", {}),
    "ApeX": ("ApeX", {}),
    "SQN": ("SQN", {}),
    "SAC": ("SAC", {}),
    "discrete SAC": ("SAC", {"action": spaces.Discrete(4)}),
    "CrossQ": ("SAC", {"critic_norm": "batch", "target_network": False}),
    "TD3": ("TD3", {}),
    "DDPG": ("DDPG", {"target_noise": 0.1}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [0, 3])
def test_a_load_in_the_middle_equals_going_on(kind: str, done: int) -> None:
    name, settings = KINDS[kind]
    settings = {"prioritized": True, "normalize_observations": True, **settings}
    if settings.get("target_network", True):
        settings["target_interval"] = 2
    whole, resumed = make(name, **settings), make(name, **settings, seed=5)

    def turn(algorithm: Any, i: int) -> Any:
        moments = Moments(np.float64(5 + i), np.arange(5.0), np.full(5, 2.0 * i + 8))
        algorithm.merge(moments)
        return algorithm.update(sample(algorithm, i), 0).priorities

    for i in range(done):
        turn(whole, i)
    state = copy.deepcopy(whole.state_dict())
    whole.metrics()
    for i in range(done, done + 3):
        if i == done:
            resumed.load_state_dict(state)
        np.testing.assert_array_equal(turn(whole, i), turn(resumed, i))
        assert whole.metrics() == resumed.metrics()
    for key, network in whole.networks.items():
        np.testing.assert_array_equal(network.numpy(), resumed.networks[key].numpy(), err_msg=key)
    assert whole.version == resumed.version == resumed.num_updates == done + 3


def test_a_state_of_other_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match="'critics'.*the settings differ"):
        make("SAC").load_state_dict(make("SAC", num_critics=3).state_dict())
    with pytest.raises(ConfigError, match=r"no weights for the network 'target'"):
        make("SAC").load_state_dict(make("SAC", target_network=False).state_dict())


# -- acting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dueling": True},
        {"num_atoms": 5},
        {"num_atoms": 5, "dueling": True},
        {"layer_norm": True},
        {"noisy": 0.0, "layer_norm": True, "dueling": True},
    ],
    ids=str,
)
def test_numpy_acts_as_torch(settings: dict[str, Any]) -> None:
    spec = make("DQN", **{"noisy": 0.5, **settings}).spec
    torch_network = TorchNetwork(spec, 1)
    numpy_network = SmallNetwork(spec, torch_network.numpy().copy())
    inputs = Inputs(np.random.default_rng(0).normal(size=(9, 5)).astype(F), {})
    outputs = []
    for seed in (0, 1, None):
        for network in (torch_network, numpy_network):
            if spec.noisy:
                network.perturb(None if seed is None else np.random.default_rng(seed))
        params, values, _ = torch_network.policy(inputs)
        np.testing.assert_allclose(numpy_network.policy(inputs)[0], params, atol=1e-5)
        if spec.dueling:
            np.testing.assert_allclose(
                np.squeeze(numpy_network.values(inputs)), np.squeeze(np.asarray(values)), atol=1e-5
            )
        outputs.append(params)
    assert (np.abs(outputs[0] - outputs[1]).max() > 1e-3) == bool(spec.noisy)


def acting(algorithm: Any) -> Any:
    policy = make_policy(algorithm.spec)
    policy.load(algorithm.weights())
    return policy


def test_greedy_noisy_acting_has_no_noise() -> None:
    algorithm = make("Rainbow")
    policy, rng = acting(algorithm), np.random.default_rng(0)
    obs, first = rng.normal(size=(200, 5)).astype(F), np.ones(200, bool)
    weights = algorithm.weights()
    silent = Weights(0, weights.flat.copy(), weights.table)
    for name, view in silent.as_dict().items():
        if name.endswith("_sigma"):
            view[:] = 0
    plain = make_policy(algorithm.spec)
    plain.load(silent)
    expected = plain.act(obs, None, first, rng, explore=False).action
    explored = [policy.act(obs, None, first, rng, explore=True).action for _ in range(5)]
    for _ in range(3):
        np.testing.assert_array_equal(policy.act(obs, None, first, rng, explore=False).action, expected)
    assert any((a != expected).any() for a in explored) and any((a != explored[0]).any() for a in explored)


@pytest.mark.parametrize("kind", ["DQN", "Rainbow", "SQN", "discrete SAC"])
@pytest.mark.parametrize("exploration", [{"random": True}, {"epsilon": 1.0}, {"epsilon": 0.5}, {}], ids=str)
def test_masked_actions_are_never_taken(kind: str, exploration: dict[str, Any]) -> None:
    name, settings = KINDS[kind]
    algorithm = make(name, masked=True, **settings)
    policy, rng = acting(algorithm), np.random.default_rng(0)
    policy.exploration = exploration
    obs = sample(algorithm, 1, 500).data.obs
    for explore in (True, False):
        action = policy.act(obs, None, np.ones(500, bool), rng, explore=explore).action
        assert obs["action_mask"][np.arange(500), action].all()
    if exploration.get("random") or exploration.get("epsilon") == 1.0 and kind == "DQN":
        counts = np.zeros(4)
        for _ in range(5):
            taken = policy.act(obs, None, np.ones(500, bool), rng, explore=True).action
            counts += np.bincount(taken, minlength=4)
        shares = (obs["action_mask"] / obs["action_mask"].sum(1, keepdims=True)).mean(0)
        np.testing.assert_allclose(counts / 2500, shares, atol=0.05)


def test_epsilon_for_each_stream() -> None:
    algorithm = make("DQN")
    policy, rng = acting(algorithm), np.random.default_rng(0)
    obs, first = np.tile(rng.normal(size=5).astype(F), (3, 1)), np.ones(3, bool)
    greedy = policy.act(obs, None, first, rng, explore=False).action[0]
    policy.exploration = {"epsilon": np.array([0.0, 0.4, 1.0], F)}
    actions = np.array([policy.act(obs, None, first, rng, explore=True).action for _ in range(2000)])
    np.testing.assert_allclose((actions != greedy).mean(0), [0, 0.3, 0.75], atol=0.04)


def test_sqn_acts_in_proportion_to_exponentials() -> None:
    algorithm = make("SQN", alpha=0.5)
    policy, rng = acting(algorithm), np.random.default_rng(0)
    obs = rng.normal(size=5).astype(F)
    q = head(params_of(algorithm.online), torch.tensor(obs, dtype=torch.float64)[None])[0]
    rows = np.tile(obs, (20_000, 1))
    actions = policy.act(rows, None, np.ones(20_000, bool), rng, explore=True).action
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, (q / 0.5).softmax(0).detach(), atol=0.02)


def test_td3_acts_with_noise_inside_the_range() -> None:
    policy, rng = acting(make("TD3")), np.random.default_rng(0)
    obs, first = np.tile(rng.normal(size=5).astype(F), (4000, 1)), np.ones(4000, bool)
    mean = policy.act(obs, None, first, rng, explore=False).action[0]
    policy.exploration = {"noise": 0.1}
    action = policy.act(obs, None, first, rng, explore=True).action
    assert action.dtype == F and np.abs(action).max() <= 1
    inside = np.abs(mean) < 0.6
    assert inside.any()
    np.testing.assert_allclose(action.mean(0)[inside], mean[inside], atol=0.01)
    np.testing.assert_allclose(action.std(0)[inside], 0.1, atol=0.01)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("DQN", {"action": BOX}, "one Discrete action.*SAC for a Box"),
        ("SQN", {"action": spaces.MultiDiscrete([2, 2])}, "one Discrete action"),
        ("TD3", {"action": spaces.Discrete(4)}, "continuous .*: take DQN, SAC or PPO"),
        ("DDPG", {"action": spaces.MultiBinary(4)}, "continuous"),
        ("SAC", {"action": spaces.MultiDiscrete([2, 2])}, "one Discrete action"),
        (
            "SAC",
            {"reward_scale": 0.1, "normalize_rewards": True},
            "reward_scale has no effect with normalize_rewards",
        ),
        ("SAC", {"critic_norm": "batch"}, "needs target_network false"),
        ("TD3", {"critic_norm": "batch"}, "SAC has CrossQ"),
        ("DQN", {"num_replay_shards": 2}, "num_replay_shards 2 needs as many workers on Ray"),
        ("DQN", {"num_replay_shards": 2, "num_workers": 2, "backend": "local"}, "workers on Ray"),
        (
            "DQN",
            {"num_replay_shards": 3, "num_workers": 3, "batch_size": 64},
            "batch_size 64 must be a multiple of 3",
        ),
        ("SAC", {"buffer_size": 500}, "buffer_size 500 is too small: .*start_steps"),
        ("SAC", {"kernel": "numpy"}, "kernel has no effect for algorithms with replay"),
        ("SAC", {"n_step": 0}, "n_step must be at least 1"),
        ("SAC", {"samples_per_insert": 0.0}, "samples_per_insert must be above 0"),
        ("SAC", {"target_tau": 1.5}, r"target_tau must lie in \[0, 1\]"),
        ("SQN", {"noisy": 0.5}, "noisy has no effect for SQN, which explores by its own softmax"),
        ("DQN", {"num_atoms": 51, "v_min": 3.0, "v_max": 3.0}, "v_min below v_max"),
    ],
)
def test_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(name, **settings)


class Paid(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pendulum-v1 whose rewards are another currency's."""

    def __init__(self, factor: float) -> None:
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.factor = factor

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) * self.factor, *rest


@pytest.mark.parametrize("run", ["SAC", "TD3"])
def test_the_unit_of_rewards_does_not_matter_and_a_resumed_run_knows_it(run: str, tmp_path: Path) -> None:
    settings = {"num_envs_per_worker": 2, "start_steps": 64, "batch_size": 32, "steps_per_iteration": 64, "seed": 0}
    settings |= {"model": {"hidden": [16]}}
    learnt = []
    for factor in (1.0, 2.0**-30, 2.0**30):  # powers of two: nothing is rounded
        raypid.register_env(f"Paid-{factor}", lambda config, factor=factor: Paid(factor))
        with Agent(run, {**settings, "env": f"Paid-{factor}"}, out=tmp_path / str(factor)) as agent:
            agent.train(256)
            learner = agent.context.learner.role  # type: ignore[attr-defined]
            learnt.append((agent.get_weights().flat, inverse_deviation(learner.returns) * factor))
            saved, before = agent.save(), learner.returns
            learner.returns = zero_moments(1)
            agent.restore(saved)
            assert learner.returns == before
    for weights, factor in learnt[1:]:
        assert factor == learnt[0][1] != 1.0
        np.testing.assert_array_equal(weights, learnt[0][0])


WHOLE = torch.tensor(3)


@pytest.mark.parametrize("more", [2.5, F(2.5), WHOLE, torch.tensor(2.5, requires_grad=True)])
def test_a_metric_of_a_step_may_be_any_number(more: Any) -> None:
    algorithm = with_metric(more)
    algorithm.update(sample(algorithm), 0)
    assert algorithm.metrics()["mine"] == (3 if more is WHOLE else 2.5)


def test_a_metric_of_a_step_that_is_no_number_is_refused() -> None:
    algorithm = with_metric(torch.ones(2))
    with pytest.raises(UserError, match=r"DQN.step\(\) returned .* as the metric 'mine': give one number"):
        algorithm.update(sample(algorithm), 0)


def with_metric(more: Any) -> Any:
    """DQN whose steps report one more metric."""
    algorithm = make("DQN")
    own = algorithm.step

    def step(b: Any) -> Any:
        error, metrics = own(b)
        return error, {**metrics, "mine": more}

    algorithm.step = step
    return algorithm
