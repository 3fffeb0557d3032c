"""Every observation space with every action space: a default network, a rollout, one PPO update."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from setups import learner_setup

from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.envs import EnvError, EnvSpec, make_vector
from raypid.nn.catalog import build_spec
from raypid.nn.policy import DeployedPolicy
from raypid.roles.acting import RolloutSpec
from raypid.roles.learner import Learner
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import ConfigError, ModelConfig
from raypid.spaces import SpaceError, SpaceLeaf, space_leaves
from raypid.types import tree_leaves

F = np.float32
IMAGE = spaces.Box(0, 255, (64, 64, 3), np.uint8)

OBSERVATIONS: dict[str, Any] = {
    "box1": spaces.Box(-1, 1, (3,), F),
    "box1-unbounded-f64": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "box2": spaces.Box(-1, 1, (3, 2), F),
    "box3": spaces.Box(-1, 1, (2, 3, 4), F),
    "box0": spaces.Box(-1, 1, (), F),
    "image84": spaces.Box(0, 255, (84, 84), np.uint8),
    "image10x5": spaces.Box(0, 1, (10, 5), np.uint8),
    "image64rgb": IMAGE,
    "discrete": spaces.Discrete(4, start=2),
    "multidiscrete": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, -1]]),
    "multibinary": spaces.MultiBinary([2, 2]),
    "nested": spaces.Dict(
        a=spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-9, 9, (2,), F), spaces.MultiBinary(2))),
        b=spaces.Dict(c=spaces.MultiDiscrete([2, 3]), d=spaces.Box(0, 255, (20, 20, 3), np.uint8)),
        e=spaces.Box(0, 255, (24, 24), np.uint8),
        f=spaces.Box(-1, 1, (2, 2), np.float64),
    ),
    "tuple": spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(2))),
}
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(3),
    "discrete-start": spaces.Discrete(3, start=-1),
    "box": spaces.Box(np.array([-2, 0], F), np.array([2, 1], F)),
    "box-unbounded": spaces.Box(-np.inf, np.inf, (2,), F),
    "box-half": spaces.Box(np.array([0, -np.inf], F), np.array([np.inf, 1], F)),
    "box-rank2-f64": spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    "box-int": spaces.Box(0, 5, (2,), np.int32),
    "multidiscrete": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multibinary": spaces.MultiBinary(3),
    "dict": spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.Box(-1, 1, (2,), F), d=spaces.MultiBinary(2))),
    "tuple": spaces.Tuple((spaces.MultiDiscrete([2, 2]), spaces.Box(0, 3, (1,), np.int64), spaces.Box(-1, 1, (1,)))),
}


class Random(gymnasium.Env):
    """Random observations; it refuses actions outside its space or forbidden by its mask. Episodes of 1 to 4 steps."""

    def __init__(self, observation_space: Any, action_space: Any, masked: bool = False) -> None:
        self.action_space, self.masked = action_space, masked
        self.nvec = [n for leaf in space_leaves(action_space, "action") for n in leaf.nvec]
        if masked:
            mask = spaces.MultiBinary(sum(self.nvec))
            observation_space = spaces.Dict(action_mask=mask, inner=observation_space)
        self.observation_space = observation_space
        self.mask: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.t, self.length = 0, int(self.np_random.integers(1, 5))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if self.masked:
            indices = [
                i for s, a in zip(space_leaves(self.action_space, "action"), leaves(action)) for i in chosen(s, a)
            ]
            offsets = np.concatenate([[0], np.cumsum(self.nvec)[:-1]])
            assert self.mask[np.array(indices) + offsets].all(), (action, self.mask)
        self.t += 1
        end = self.t >= self.length
        return self._obs(), float(self.np_random.normal()), end and self.t % 2 == 0, end and self.t % 2 == 1, {}

    def _obs(self) -> Any:
        obs = self.observation_space.sample()
        if self.masked:
            start = 0
            for n in self.nvec:
                obs["action_mask"][start + self.np_random.integers(n)] = 1
                start += n
            self.mask = obs["action_mask"].astype(bool)
        return obs


def chosen(leaf: SpaceLeaf, action: Any) -> list[int]:
    return [int(a) for a in np.ravel(action) - leaf.start] if leaf.nvec else []


def leaves(action: Any) -> list[Any]:
    if isinstance(action, dict):
        return [leaf for part in action.values() for leaf in leaves(part)]
    if isinstance(action, tuple):
        return [leaf for part in action for leaf in leaves(part)]
    return [action]


def learn(
    observation: Any, action: Any, *, stack: int = 1, normalize: bool = False, masked: bool = False, **model: Any
) -> Any:
    """Build, act for two fragments and learn; returns (network spec, policy, trajectory)."""
    kwargs = {"observation_space": observation, "action_space": action, "masked": masked}
    env = EnvSpec(env=Random, env_config=kwargs, num_envs=2, vectorizer="sync", seed=1)
    vector = make_vector(env)
    model = {"hidden": (8,), **model}
    network = build_spec(
        vector.observation_space, action, ModelConfig(**model), frame_stack=stack, normalize=normalize
    )  # fmt: skip
    vector.close()
    rollout = TrajectoryWorker(RolloutSpec(env=env, network=network, fragment_length=6, seed=0))
    config = PPOConfig(num_epochs=1, batch_size=64)
    config = config.replace({name: value for name, (value, _) in PPO.for_spaces(config, network).items()})
    learner = Learner(learner_setup(PPO, config, network))
    weights = learner.weights()
    assert np.isfinite(weights.flat).all()
    for round_ in range(2):
        report, t = rollout.collect(weights)
        assert not report.crashes
        assert t.num_rows == 6 and t.num_streams == 2 and report.num_steps == t.num_valid
        for _, leaf in tree_leaves(t.obs):
            assert leaf.shape[:2] == (7, 2)
        for _, leaf in tree_leaves(t.action):
            assert leaf.shape[:2] == (6, 2)
        update, after = learner.update(t.num_valid, t)
        assert update.num_updates == 1 and np.isfinite(after.flat).all()
        assert all(np.isfinite(v) for v in update.values()), update
        if round_ == 0:
            # it learns from the rows that it acted on, and has not moved since: no ratio is off 1
            assert abs(update["kl"]) < 1e-4 and update["clip_fraction"] == 0
        assert not np.array_equal(after.flat, weights.flat)
        weights = after
    rollout.close()
    return network, rollout.policy, t


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_observation_with_every_action(observation: str, action: str) -> None:
    network, policy, _ = learn(OBSERVATIONS[observation], ACTIONS[action])
    assert network.network == ("cnn" if observation in ("image84", "image64rgb", "nested") else "mlp")
    # what is deployed takes one observation as the environment gives it
    obs = OBSERVATIONS[observation].sample()
    out = DeployedPolicy(policy).act(obs)
    if action not in ("tuple", "dict"):
        assert ACTIONS[action].contains(np.asarray(out) if not isinstance(out, int) else np.int64(out))


MASKED = [a for a in ACTIONS if any(leaf.nvec for leaf in space_leaves(ACTIONS[a], "action"))]


@pytest.mark.parametrize("action", MASKED)
@pytest.mark.parametrize("observation", ["box1", "image64rgb", "nested"])
def test_action_masks(observation: str, action: str) -> None:
    network, _, _ = learn(OBSERVATIONS[observation], ACTIONS[action], masked=True)
    assert network.pipeline.mask_size > 0


@pytest.mark.parametrize("action", ["box", "multidiscrete", "tuple"])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_frame_stack_and_normalisation(observation: str, action: str) -> None:
    _, policy, t = learn(OBSERVATIONS[observation], ACTIONS[action], stack=3, normalize=True)
    assert t.state is not None and t.moments is not None
    assert t.moments[0] == t.num_valid and len(t.moments[1]) == policy.pipeline.normalized_size


def test_squashed_gaussian() -> None:
    learn(OBSERVATIONS["box1"], ACTIONS["box"], distribution="squashed_gaussian")


def test_deterministic_is_refused_where_probabilities_are_needed() -> None:
    with pytest.raises(ConfigError, match="no probabilities"):
        learn(OBSERVATIONS["box1"], ACTIONS["box"], distribution="deterministic")


@pytest.mark.parametrize("network", ["cnn", "resnet"])
def test_small_images_by_name(network: str) -> None:
    learn(OBSERVATIONS["image10x5"], ACTIONS["discrete"], network=network)


@pytest.mark.parametrize("role", ["observation", "action"])
def test_text_is_refused_by_name(role: str) -> None:
    text, fine = spaces.Dict(x=spaces.Text(4)), spaces.Discrete(2)
    pair = (text, fine) if role == "observation" else (fine, text)
    with pytest.raises(SpaceError, match=f"the {role} space at 'x' is Text, .*Supported: Box, Discrete"):
        build_spec(*pair, ModelConfig())
    with pytest.raises(EnvError, match=f"the {role} space at 'x' is Text"):
        make_vector(EnvSpec(env=Random, env_config={"observation_space": pair[0], "action_space": pair[1]}))
