"""Acting: NumPy equals torch, actions fit their spaces, a saved policy acts alike and stays light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.network_policy import ActorCriticPolicy, NetworkPolicy
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchNetwork
from raypid.nn.pipeline import Pipeline
from raypid.nn.policy import DeployedPolicy, load_policy, read_policy_weights, save_policy
from raypid.ops.normalizer import moments_of
from raypid.plugins.registry import NETWORKS
from raypid.settings.config import ModelConfig
from raypid.types import Final, Trajectory, Weights

F = np.float32
BOX = spaces.Box(-9, 9, (4,), F)
IMAGE = spaces.Box(0, 255, (20, 20, 3), np.uint8)


def random_weights(spec: NetworkSpec, seed: int = 0, version: int = 3) -> Weights:
    network = TorchNetwork(spec, seed)
    rng = np.random.default_rng(seed)
    flat = (network.numpy() + rng.normal(0, 0.1, len(network.numpy()))).astype(F)
    extra = {}
    size = Pipeline(spec.pipeline).normalized_size
    if spec.pipeline.normalize:
        count, mean, m2 = moments_of(rng.normal(1, 2, (40, size)))
        extra = {"obs_count": np.asarray(count), "obs_mean": mean, "obs_m2": m2}
    return Weights(version, flat, network.table, extra)


def make(observation: Any, action: Any, *, stack: int = 1, normalize: bool = False, **model: Any) -> Any:
    spec = build_spec(observation, action, ModelConfig(**model), frame_stack=stack, normalize=normalize)
    weights, policy = random_weights(spec), ActorCriticPolicy(spec)
    policy.load(weights)
    return spec, weights, policy


@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])])
@pytest.mark.parametrize("model", [{}, {"shared": True, "activation": "relu"}, {"hidden": (), "activation": "silu"}])
def test_numpy_acting_equals_the_torch_network(action: Any, model: Any) -> None:
    space = spaces.Dict(x=BOX, k=spaces.Discrete(3))
    spec, weights, policy = make(space, action, normalize=True, **model)
    assert spec.torch_free
    obs = {"x": np.random.default_rng(1).normal(1, 2, (6, 4)).astype(F), "k": np.arange(6) % 3}
    acted = policy.act(obs, None, np.ones(6, bool), np.random.default_rng(0), explore=True)
    network = TorchNetwork(spec)
    network.load(weights.flat)
    params, value, _ = network.policy(policy.pipeline.step(obs, None, np.ones(6, bool))[0])
    assert acted.state is None
    np.testing.assert_allclose(acted.params, params, atol=1e-5)
    t = fragment(policy, lambda rng: {"x": rng.normal(size=(2, 4)).astype(F), "k": rng.integers(3, size=2)})
    sequence, _ = policy.pipeline.sequence(t.obs, None, t.first)
    np.testing.assert_allclose(t.behaviour["value"].ravel(), network.value(sequence.flatten()), atol=1e-5)


def fragment(policy: Any, draw: Any, num_rows: int = 5) -> Trajectory:
    """A fragment of two streams as a rollout makes it, with true last observations after two rows."""
    rng = np.random.default_rng(0)
    state = policy.initial_state(2)
    first = rng.random((num_rows + 1, 2)) < 0.4
    first[0] = True
    obs = [draw(rng) for _ in range(num_rows + 1)]
    start, actions, behaviours, params = state, [], [], []
    for t in range(num_rows):
        acted = policy.act(obs[t], state, first[t], rng, explore=True)
        state = acted.state
        actions.append(acted.action)
        behaviours.append(acted.behaviour)
        params.append(acted.params)
    from raypid.types import tree_map, tree_stack

    zeros = np.zeros((num_rows, 2), bool)
    final = Final(np.array([1, 3]), np.array([0, 1]), tree_map(lambda x: x.copy(), obs[2]))
    stacked = {k: np.stack([b[k] for b in behaviours]) for k in behaviours[0]}
    t = Trajectory(
        obs=tree_stack(obs), first=first, action=tree_stack(actions), reward=np.zeros((num_rows, 2), F), terminated=zeros,
        truncated=zeros, valid=~zeros, final=final, behaviour=stacked, state=start,
    )  # fmt: skip
    policy.complete(t, [], np.stack(params))
    return t


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("stack", [1, 3])
def test_complete_adds_log_prob_and_values(network: str, stack: int) -> None:
    space = spaces.Dict(i=IMAGE, x=BOX)
    _, _, policy = make(space, spaces.Discrete(3), stack=stack, network=network, hidden=(8,))

    def draw(rng: np.random.Generator) -> Any:
        return {"i": rng.integers(256, size=(2, 20, 20, 3)).astype(np.uint8), "x": rng.normal(size=(2, 4)).astype(F)}

    t = fragment(policy, draw)
    assert set(t.behaviour) == {"log_prob", "value", "final_value"}
    sequence, stacks = policy.pipeline.sequence(t.obs, t.state, t.first)
    flat = sequence.flatten()
    params, value = policy.network.policy(flat)[0], policy.network.value(flat)
    np.testing.assert_allclose(t.behaviour["value"], value.reshape(6, 2), atol=1e-5)
    log_prob = policy.distribution.log_prob(params.reshape(6, 2, -1)[:-1], None, t.action)
    np.testing.assert_allclose(t.behaviour["log_prob"], log_prob, atol=1e-5)
    assert t.final is not None and t.behaviour["log_prob"].dtype == F
    after = policy.pipeline.after(t.final.obs, stacks, t.final.t, t.final.b)
    np.testing.assert_allclose(t.behaviour["final_value"], policy.network.value(after), atol=1e-5)


def test_greedy_is_the_mode_and_load_takes_new_weights() -> None:
    spec, weights, policy = make(BOX, spaces.Box(-1, 1, (2,)), hidden=(8,))
    obs = np.random.default_rng(0).normal(size=(4, 4)).astype(F)
    first = np.ones(4, bool)
    a, b = (policy.act(obs, None, first, np.random.default_rng(i), explore=False).action for i in range(2))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, policy.act(obs, None, first, np.random.default_rng(0), explore=False).params)
    c, d = (policy.act(obs, None, first, np.random.default_rng(i), explore=True).action for i in range(2))
    assert not np.array_equal(c, d) and policy.version == 3
    policy.load(random_weights(spec, 1, version=4))
    assert policy.version == 4
    assert not np.allclose(policy.act(obs, None, first, np.random.default_rng(0), explore=False).action, a)


def test_a_masked_policy_never_chooses_what_is_forbidden() -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(5), x=BOX)
    _, _, policy = make(space, spaces.MultiDiscrete([2, 3]), hidden=(8,))
    rng = np.random.default_rng(0)
    obs = {
        "action_mask": np.tile(np.array([0, 1, 1, 0, 1], np.int8), (200, 1)),
        "x": rng.normal(size=(200, 4)).astype(F),
    }
    acted = policy.act(obs, None, np.ones(200, bool), rng, explore=True)
    action = acted.action
    assert set(action[:, 0]) == {1} and set(action[:, 1]) == {0, 2}
    assert acted.params.shape == (200, 5)


# -- the environment's actions -----------------------------------------------------------------------------------------


def to_env(space: Any, action: Any, **model: Any) -> Any:
    return NetworkPolicy(build_spec(BOX, space, ModelConfig(**model))).to_env(action)


def test_discrete_actions_start_where_the_space_does() -> None:
    assert to_env(spaces.Discrete(3, start=5), np.array([0, 2])).tolist() == [5, 7]
    multi = spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, -1]])
    out = to_env(multi, np.array([[0, 2, 3, 1], [1, 0, 0, 0]]))
    assert out.tolist() == [[[1, 2], [3, 0]], [[2, 0], [0, -1]]] and out.dtype == multi.dtype
    bits = to_env(spaces.MultiBinary([2, 2]), np.array([[0, 1, 1, 0]]))
    assert bits.tolist() == [[[0, 1], [1, 0]]] and bits.dtype == np.int8


def test_bounded_boxes_are_scaled_and_clipped() -> None:
    space = spaces.Box(np.array([[-2, 0]], F), np.array([[2, 10]], F))
    out = to_env(space, np.array([[-1, -1], [0, 0], [0.5, 1], [5, -5]], F))
    assert out.tolist() == [[[-2, 0]], [[0, 5]], [[1, 10]], [[2, 0]]] and out.dtype == F


def test_unbounded_elements_are_not_scaled() -> None:
    space = spaces.Box(np.array([-np.inf, 0, -np.inf, -4], F), np.array([np.inf, np.inf, 1, 4], F))
    out = to_env(space, np.array([[7, -3, 5, 0.5], [-7, 3, -5, 2]], F))
    assert out.tolist() == [[7, 0, 1, 2], [-7, 3, -5, 4]]


def test_integer_boxes_are_rounded() -> None:
    out = to_env(spaces.Box(0, 10, (2,), np.int32), np.array([[0.05, 0.15], [-9, 9]], F))
    assert out.tolist() == [[5, 6], [0, 10]] and out.dtype == np.int32


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-0.1, 0.1, (3,), np.float64),
        spaces.Box(-1e-3, 0.7, (3,), np.float16),
        spaces.Box(0, 255, (3,), np.uint8),
        spaces.Box(-np.inf, np.inf, (3,), np.int32),
        spaces.Box(0, np.inf, (3,), np.int64),
        spaces.Box(-np.inf, 0.3, (3,), np.float64),
        spaces.Box(-1, 1, (), F),
    ],
    ids=str,
)
def test_actions_lie_in_their_space(space: spaces.Box) -> None:
    """Environments may check: neither rounding nor overflow may lead out of the space."""
    size = int(np.prod(space.shape))
    canonical = np.concatenate([np.array([[-50.0] * size, [50.0] * size, [1.0] * size, [-1.0] * size], F),
                                np.random.default_rng(0).normal(0, 1, (50, size)).astype(F)])  # fmt: skip
    for action in to_env(space, canonical):
        assert space.contains(action), (action, space)


def test_unbounded_integers_are_near_the_canonical_action() -> None:
    out = to_env(spaces.Box(-np.inf, np.inf, (2,), np.int32), np.array([[1.2, -2.7]], F))
    assert out.tolist() == [[1, -3]]


def test_nested_actions() -> None:
    space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(2, start=1), spaces.Box(-2, 2, (1,)))), b=spaces.MultiBinary(2))
    canonical = {"a/0": np.array([0, 1]), "a/1": np.array([[0.5], [1]], F), "b": np.array([[0, 1], [1, 1]])}
    out = to_env(space, canonical)
    assert out["a"]["0"].tolist() == [1, 2] and out["a"]["1"].tolist() == [[1], [2]]
    assert out["b"].tolist() == [[0, 1], [1, 1]]


# -- deployment --------------------------------------------------------------------------------------------------------


def test_save_and_load_roundtrip(tmp_path: Path) -> None:
    space = spaces.Dict(x=BOX, p=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))))
    spec, weights, policy = make(space, spaces.Box(-2, 2, (2,)), normalize=True, stack=2)
    save_policy(tmp_path / "policy", spec, weights, {"score": 1.5})
    spec_there, weights_there, info, _ = read_policy_weights(tmp_path / "policy")
    assert spec_there == spec and info == {"score": 1.5}
    assert weights_there.version == weights.version and weights_there.table == weights.table
    np.testing.assert_array_equal(weights_there.flat, weights.flat)
    for key, value in weights.extra.items():
        np.testing.assert_array_equal(weights_there.extra[key], value)
    loaded = load_policy(tmp_path / "policy")
    rng = np.random.default_rng(0)
    state, first = policy.initial_state(1), np.ones(1, bool)
    for step in range(4):
        x, k, bits = rng.normal(size=4).astype(F), int(rng.integers(1, 4)), rng.integers(2, size=2).astype(np.int8)
        batch = {"x": x[None], "p": {"0": np.array([k]), "1": bits[None]}}
        if step == 2:  # a new episode
            loaded.reset()
            first = np.ones(1, bool)
        acted = policy.act(batch, state, first, rng, explore=False)
        expected, state = acted.action, acted.state
        first = np.zeros(1, bool)
        action = loaded.act({"x": x, "p": (k, bits)})  # as the environment gives it
        np.testing.assert_allclose(action, policy.to_env(expected)[0], atol=1e-6)
        assert action.shape == (2,)


def test_one_observation_equals_a_batch_of_them() -> None:
    _, _, policy = make(BOX, spaces.Discrete(3, start=4))
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(F)
    batch = DeployedPolicy(policy).act(obs)
    single = [DeployedPolicy(policy).act(list(o)) for o in obs]  # lists are fine
    assert batch.tolist() == single and all(type(a) is int and 4 <= a <= 6 for a in single)


def test_discrete_observations_alone_and_in_batches() -> None:
    _, _, policy = make(spaces.Discrete(4), spaces.MultiBinary(2))
    deployed = DeployedPolicy(policy)
    batch = deployed.act(np.arange(4))
    for k in range(4):
        np.testing.assert_array_equal(deployed.act(k), batch[k])
        assert deployed.act(k).shape == (2,)


def test_seed_decides_exploration() -> None:
    _, _, policy = make(BOX, spaces.Box(-9, 9, (2,)))
    obs = np.zeros(4, F)
    a, b, c = (DeployedPolicy(policy, seed).act(obs, explore=True) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def echo_policy(stack: int) -> DeployedPolicy:
    """Its greedy action is the stacked observation itself."""
    spec = build_spec(
        spaces.Box(-99, 99, (1,)), spaces.Box(-np.inf, np.inf, (stack,)), ModelConfig(hidden=()), frame_stack=stack
    )
    table = spec.mlp_table(stack)
    flat = np.zeros(sum(int(np.prod(s)) for _, s in table), F)
    flat[: stack * stack] = np.eye(stack).ravel()
    assert table[0][0] == "policy.weight"
    policy = ActorCriticPolicy(spec)
    policy.load(Weights(0, flat, table))
    return DeployedPolicy(policy)


def test_frame_stack_is_kept_and_reset() -> None:
    policy = echo_policy(3)
    assert [policy.act(np.array([x], F)).tolist() for x in (1, 2, 3)] == [[1, 1, 1], [1, 1, 2], [1, 2, 3]]
    policy.reset()
    assert policy.act(np.array([9], F)).tolist() == [9, 9, 9]
    policy.reset()
    batch = np.array([[1], [5]], F)
    assert policy.act(batch).tolist() == [[1, 1, 1], [5, 5, 5]]
    policy.act(batch + 1)
    policy.reset(np.array([False, True]))
    assert policy.act(batch + 2).tolist() == [[1, 2, 3], [7, 7, 7]]


def test_masks_of_resets_add_up() -> None:
    policy = echo_policy(2)
    policy.reset(np.array([True, False]))  # before anything was seen: everything begins anyway
    assert policy.act(np.array([[1], [5]], F)).tolist() == [[1, 1], [5, 5]]
    policy.reset(np.array([True, False]))
    policy.reset(np.array([False, True]))
    assert policy.act(np.array([[2], [6]], F)).tolist() == [[2, 2], [6, 6]]


def test_wrong_observations_are_named() -> None:
    _, _, policy = make(spaces.Dict(x=BOX), spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"'x' has shape \(3,\)"):
        DeployedPolicy(policy).act({"x": np.zeros(3)})
    with pytest.raises(ValueError, match="lacks 'x'"):
        DeployedPolicy(policy).act({"y": np.zeros(4)})


BARE = """
import json, sys

class Hidden:
    def find_spec(name, path=None, target=None):
        package = name.partition(".")[0]
        if package[0] != "_" and package not in {*sys.stdlib_module_names, "numpy", "safetensors", "raypid"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden)
import numpy, raypid
for folder in sys.argv[1:]:
    policy = raypid.load_policy(folder, 7)
    act = policy.session(7).act
    made = [act(obs, explore=explore) for obs in json.load(open(folder + "/seen.json")) for explore in (False, True)]
    print(repr(policy), json.dumps(made, default=numpy.ndarray.tolist))
"""
CHOICES = spaces.MultiDiscrete([3, 2])
POLICIES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], dict[str, Any]]] = {
    "mlp": (BOX, spaces.Box(-1, 1, (2,), F), {"normalize": True}),
    "lstm": (BOX, spaces.Discrete(3, start=-1), {"network": "lstm", "memory_size": 4}),
    "gru": (BOX, spaces.MultiBinary(3), {"network": "gru", "memory_size": 4}),
    "stack": (spaces.Discrete(5), spaces.Tuple([CHOICES, BOX]), {"stack": 3}),
    "mask": (spaces.Dict(x=BOX, action_mask=spaces.MultiBinary(5)), spaces.Dict(c=CHOICES), {}),
}


def test_a_saved_policy_acts_with_numpy_and_safetensors_alone(tmp_path: Path) -> None:
    expected = []
    for name, (observation_space, action_space, more) in POLICIES.items():
        spec, weights, _ = make(observation_space, action_space, **more)
        save_policy(tmp_path / name, spec, weights)
        observation_space.seed(1)
        seen = [observation_space.sample() for _ in range(3)]
        if name == "mask":
            seen = [{**obs, "action_mask": [1, 0, 1, 0, 1]} for obs in seen]
        plain = json.loads(json.dumps(seen, default=_listed))
        (tmp_path / name / "seen.json").write_text(json.dumps(plain))
        policy = load_policy(tmp_path / name)
        act = policy.session(7).act
        made = [act(obs, explore=explore) for obs in plain for explore in (False, True)]
        expected.append(f"{policy!r} {json.dumps(made, default=_listed)}")
    folders = [str(tmp_path / name) for name in POLICIES]
    done = subprocess.run([sys.executable, "-c", BARE, *folders], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def _listed(x: Any) -> Any:
    return x.tolist()


# -- registered networks -----------------------------------------------------------------------------------------------


class Features(torch.nn.Module):
    """Features alone; the heads are added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


class Both(torch.nn.Module):
    """Distribution parameters and value."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.policy, self.value = torch.nn.Linear(4, spec.num_outputs), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(x), self.value(x)


class Wrong(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Dropping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Image(torch.nn.Module):
    """Takes the image [N, C, H, W], float and scaled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (3, 20, 20) and x.dtype == torch.float32 and float(x.max()) <= 1
        return x.mean((2, 3))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {**NETWORKS._entries, "t-features": Features, "t-both": Both, "t-wrong": Wrong, "t-image": Image}
    entries["t-dropping"] = Dropping
    monkeypatch.setattr(NETWORKS, "_entries", entries)


@pytest.mark.parametrize("name", ["t-features", "t-both"])
@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))])
def test_registered_networks_act_and_learn(registered: None, name: str, action: Any) -> None:
    from raypid.algorithms.ppo import PPO, PPOConfig

    custom = {"width": 6} if name == "t-features" else {}
    spec, weights, policy = make(BOX, action, network=name, custom=custom, log_std_init=-1.0)
    assert not spec.torch_free
    names = [n for n, _ in weights.table]
    assert ("log_std" in names) == isinstance(action, spaces.Box)
    t = fragment(policy, lambda rng: rng.normal(size=(2, 4)).astype(F))
    algorithm = PPO.make(PPOConfig(num_epochs=2, batch_size=5), spec, 0)
    before = algorithm.weights()
    update = algorithm.update(t, 0)
    after = algorithm.weights()
    assert update.num_updates == 4 and before.table == after.table == weights.table
    changed = {n for n, v in after.as_dict().items() if not np.array_equal(v, before.as_dict()[n])}
    assert changed == set(names)
    policy.load(after)
    np.testing.assert_array_equal(policy.network.numpy(), after.flat)


def test_nothing_is_dropped_while_acting(registered: None) -> None:
    _, _, policy = make(BOX, spaces.Box(-1, 1, (2,)), network="t-dropping")
    act = [
        policy.act(np.ones((1, 4), F), None, np.ones(1, bool), np.random.default_rng(0), explore=False)
        for _ in range(3)
    ]
    np.testing.assert_array_equal(act[0].action, act[1].action)
    np.testing.assert_array_equal(act[0].action, act[2].action)


def test_registered_image_network(registered: None) -> None:
    _, _, policy = make(IMAGE, spaces.Discrete(2), network="t-image")
    obs = np.random.default_rng(0).integers(256, size=(3, 20, 20, 3)).astype(np.uint8)
    acted = policy.act(obs, None, np.ones(3, bool), np.random.default_rng(0), explore=True)
    assert acted.action.shape == (3,) and acted.behaviour["value"].shape == (3,)


def test_unfitting_registered_networks_are_named(registered: None) -> None:
    spec = build_spec(BOX, spaces.Discrete(3), ModelConfig(network="t-wrong"))
    with pytest.raises(UserError, match="'t-wrong' must return features"):
        TorchNetwork(spec)


def test_log_std_init_of_registered_networks(registered: None) -> None:
    for name, custom in (("t-features", {"width": 3}), ("t-both", {})):
        model = ModelConfig(network=name, custom=custom, log_std_init=-1.5)
        network = TorchNetwork(build_spec(BOX, spaces.Box(-1, 1, (2,)), model))
        assert network.log_std is not None and network.log_std.tolist() == [-1.5, -1.5]
