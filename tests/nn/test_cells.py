"""Recurrent memories: acting step by step equals the sequence pass, in NumPy and torch, over resets and fragments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchInputs, TorchNetwork
from raypid.nn.numpy_cells import initial_memory, join_state, split_state
from raypid.nn.numpy_mlp import SmallNetwork, initial_mlp
from raypid.nn.pipeline import Inputs
from raypid.nn.policy import DeployedPolicy, load_policy, make_policy, read_policy_weights, save_policy
from raypid.nn.q_head import q_values
from raypid.nn.torch_cells import Memory, unroll
from raypid.plugins.registry import NETWORKS
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Final, Trajectory, Weights, flat_views, tree_leaves, tree_map, tree_stack

F = np.float32
BOX = spaces.Box(-9, 9, (4,), F)
IMAGE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
CELLS = ("lstm", "gru")


# -- the cells ---------------------------------------------------------------------------------------------------------


def plainly(cell: str, x: Tensor, recurrent: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """The papers' equations, for autograd."""
    state, m, outputs = memory.state.transpose(0, 1), recurrent.shape[1], []
    for t, x_t in enumerate(x.unbind(1)):
        state = state * (~memory.first[t])[None, :, None]
        h = state[..., :m]
        x_parts, h_parts = x_t.split(m, -1), (h @ recurrent).split(m, -1)
        if cell == "lstm":
            i, f, g, o = (a + b for a, b in zip(x_parts, h_parts))
            c = f.sigmoid() * state[..., m:] + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            state = torch.cat([h, c], -1)
        else:
            r, z = ((a + b).sigmoid() for a, b in zip(x_parts[:2], h_parts[:2]))
            state = h = (1 - z) * (x_parts[2] + r * h_parts[2]).tanh() + z * h
        outputs.append(h)
    return torch.stack(outputs, 1), state.transpose(0, 1)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("num", [1, 2])
def test_the_written_out_passes_equal_autograd(cell: str, num: int) -> None:
    torch.manual_seed(0)
    t, b, m, gates = 9, 3, 5, 4 if cell == "lstm" else 3
    x = torch.randn(num, t, b, gates * m, dtype=torch.double, requires_grad=True)
    recurrent = torch.randn(num, m, gates * m, dtype=torch.double, requires_grad=True)
    state = torch.randn(b, num, m * (2 if cell == "lstm" else 1), dtype=torch.double)
    first = torch.rand(t, b) < 0.3
    assert first[1:].any() and not first.any(1).all()
    by = torch.randn(num, t, b, m, dtype=torch.double)
    results = []
    for function in (unroll, plainly):
        out, last = function(cell, x, recurrent, Memory(state, first))
        results.append((out, last, *torch.autograd.grad((out * by).sum(), [x, recurrent])))
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    assert not results[0][1].requires_grad


def test_initial_weights() -> None:
    for cell, gates in (("lstm", 4), ("gru", 3)):
        spec = build_spec(BOX, spaces.Discrete(2), ModelConfig(network=cell, hidden=(12,), memory_size=8))
        flat = initial_mlp(spec, 4, np.random.default_rng(3))
        parts = flat_views(flat, spec.mlp_table(4))
        assert parts["memory.input"].shape == (2, 12, gates * 8) and parts["policy.weight"].shape == (8, 2)
        for name in ("memory.input", "memory.recurrent"):
            for gate in np.split(parts[name], gates, -1):
                gram = gate.swapaxes(1, 2) @ gate
                np.testing.assert_allclose(gram, np.broadcast_to(np.eye(8), gram.shape), atol=1e-5)
        bias = parts["memory.bias"].reshape(2, gates, 8)
        assert (bias[:, 1] == (cell == "lstm")).all() and not np.delete(bias, 1, 1).any()
        np.testing.assert_array_equal(TorchNetwork(spec, seed=3).numpy(), flat)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_both_names_of_a_memory() -> None:
    for cell in CELLS:
        a = build_spec(BOX, spaces.Discrete(2), ModelConfig(network=cell))
        b = build_spec(BOX, spaces.Discrete(2), ModelConfig(memory=cell, network="mlp"))  # type: ignore[arg-type]
        assert a == b and (a.network, a.memory, a.memory_size, a.torch_free) == ("mlp", cell, 64, True)
        assert a.state_size == (128 if cell == "lstm" else 64) and initial_memory(a, 3).shape == (3, 2, a.state_size)
        assert cell in NETWORKS
    plain = build_spec(BOX, spaces.Discrete(2), ModelConfig())
    assert (plain.memory, plain.memory_size, plain.state_size) == ("", 0, 0)
    assert build_spec(IMAGE, spaces.Discrete(2), ModelConfig(memory="gru")).network == "cnn"
    values = a.to_dict()
    assert NetworkSpec.from_dict(values) == a
    del values["memory"], values["memory_size"]  # as policies of older versions
    assert NetworkSpec.from_dict(values) == plain


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.network 'lstm' and model.memory 'gru' are two memories"):
        build_spec(BOX, spaces.Discrete(2), ModelConfig(network="lstm", memory="gru"))
    with pytest.raises(ConfigError, match="memory_size must be at least 1, not 0"):
        build_spec(BOX, spaces.Discrete(2), ModelConfig(network="lstm", memory_size=0))
    build_spec(BOX, spaces.Discrete(2), ModelConfig(network="lstm", hidden=(), shared=True))


class Features(torch.nn.Module):
    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(spec.pipeline.vector_size, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class Both(Features):
    def forward(self, x: Tensor) -> Any:
        h = self.layer(x)
        return h[:, :3], h[:, 3]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", {**NETWORKS._entries, "t-features": Features, "t-both": Both})


def test_a_network_with_heads_of_its_own_takes_no_memory(registered: None) -> None:
    spec = build_spec(BOX, spaces.Discrete(3), ModelConfig(network="t-both", memory="gru"))
    with pytest.raises(UserError, match=r"'t-both' must return features \[N, F\], behind which model.memory and"):
        TorchNetwork(spec)


# -- acting and the sequence pass --------------------------------------------------------------------------------------


def make(head: str = "actor_critic", observation: Any = BOX, stack: int = 1, **model: Any) -> Any:
    """(spec, weights, policy)."""
    model = {"hidden": (7,), "memory_size": 5, **model}
    spec = build_spec(observation, spaces.Discrete(3), ModelConfig(**model), frame_stack=stack)
    spec = replace(spec, head="q", dueling=True) if head == "dueling" else replace(spec, head=head)
    network = TorchNetwork(spec)
    flat = (network.numpy() + np.random.default_rng(1).normal(0, 0.3, len(network.numpy()))).astype(F)
    weights, policy = Weights(3, flat, network.table), make_policy(spec)
    policy.load(weights)
    return spec, weights, policy


def frames(observation: Any, num_rows: int, seed: int = 0) -> list[Any]:
    """Observations of two streams."""
    rng = np.random.default_rng(seed)
    image = observation is IMAGE
    draw = (
        (lambda: rng.integers(256, size=(2, 20, 20, 3)).astype(np.uint8))
        if image
        else (lambda: rng.normal(size=(2, 4)))
    )
    return [draw().astype(observation.dtype) for _ in range(num_rows)]


CASES = [
    ("actor_critic", {"network": "lstm"}, 1),
    ("actor_critic", {"network": "gru"}, 3),
    ("actor_critic", {"network": "lstm", "shared": True, "hidden": ()}, 3),
    ("actor_critic", {"memory": "gru", "network": "cnn", "channels": (4, 4)}, 2),
    ("actor_critic", {"memory": "lstm", "network": "t-features"}, 2),
    ("actor_critic", {"memory": "gru", "network": "t-features", "shared": True}, 1),
    ("actor", {"network": "lstm"}, 2),
    ("actor", {"network": "gru"}, 1),
    ("q", {"network": "gru"}, 2),
    ("q", {"network": "lstm"}, 1),
    ("dueling", {"network": "lstm"}, 1),
]


@pytest.mark.parametrize(("head", "model", "stack"), CASES)
def test_acting_equals_the_sequence_pass(head: str, model: Any, stack: int, registered: None) -> None:
    """Two fragments of 6 rows, with episodes that begin inside; the second goes on from the state after the first."""
    observation = IMAGE if model["network"] == "cnn" else BOX
    spec, weights, policy = make(head, observation, stack, **model)
    assert spec.torch_free == (model["network"] in CELLS)
    learner = TorchNetwork(spec)
    learner.load(weights.flat)
    rng, obs = np.random.default_rng(0), frames(observation, 12)
    first = rng.random((12, 2)) < 0.25
    first[0] = True
    assert first[1:6].any() and first[7:].any() and not first[6].all()
    state = policy.initial_state(2)
    for begin in (0, 6):
        start, seen = state, []
        for t in range(begin, begin + 6):
            after = policy.act(obs[t], state, first[t], np.random.default_rng(0), explore=True).state
            inputs, memory = policy.pipeline.step(obs[t], split_state(spec, state)[0], first[t])[0], None
            memory = np.where(first[t][:, None, None], 0, split_state(spec, state)[1]).astype(F)
            params, value, memory = policy.network.policy(inputs, memory)
            np.testing.assert_array_equal(memory, split_state(spec, after)[1])
            state = after
            seen.append((params, value))
        earlier, before = split_state(spec, start)
        rows = slice(begin, begin + 6)
        inputs, _ = policy.pipeline.sequence(tree_stack(obs[rows]), earlier, first[rows])
        there = Memory(torch.from_numpy(before), torch.from_numpy(first[rows]))
        params, value, last = learner.outputs(TorchInputs(inputs.flatten(), learner.device), there)
        expected = params.detach().numpy().reshape(6, 2, -1)
        np.testing.assert_allclose([p for p, _ in seen], expected, atol=1e-5)
        np.testing.assert_allclose(split_state(spec, state)[1], last.detach().numpy(), atol=1e-5)
        assert (value is None) == (head in ("actor", "q"))
        if value is not None:
            np.testing.assert_allclose([v for _, v in seen], value.detach().numpy().reshape(6, 2), atol=1e-5)
        if begin:  # the memory is what makes the numbers
            fresh = Memory(torch.zeros_like(there.state), there.first)
            assert not torch.allclose(
                learner(TorchInputs(inputs.flatten(), learner.device), fresh)[0], params, atol=1e-3
            )


def test_numpy_equals_torch_in_one_step() -> None:
    for cell in CELLS:
        spec, weights, _ = make(network=cell)
        torch_network = TorchNetwork(spec)
        torch_network.load(weights.flat)
        rng = np.random.default_rng(0)
        inputs, state = (
            Inputs(rng.normal(size=(6, 4)).astype(F), {}),
            rng.normal(size=(6, 2, spec.state_size)).astype(F),
        )
        kept = state.copy()
        for ours, theirs in zip(
            SmallNetwork(spec, weights.flat).policy(inputs, state), torch_network.policy(inputs, state)
        ):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        np.testing.assert_array_equal(state, kept)


def test_gradients_reach_every_weight() -> None:
    spec, _, _ = make(network="lstm")
    network = TorchNetwork(spec)
    inputs = TorchInputs(Inputs(np.random.default_rng(0).normal(size=(8, 4)).astype(F), {}), network.device)
    memory = Memory(torch.zeros(2, 2, spec.state_size), torch.zeros(4, 2, dtype=torch.bool))
    params, value = network(inputs, memory)
    assert value is not None
    (params.sum() + value.sum()).backward()
    assert all((gradient != 0).any() for gradient in network.gradients.values())


@pytest.mark.parametrize("head", ["actor", "q", "actor_critic"])
def test_random_steps_are_seen_by_the_memory(head: str) -> None:
    _, _, policy = make(head, network="gru")
    obs, first = frames(BOX, 1)[0], np.ones(2, bool)
    greedy = policy.act(obs, policy.initial_state(2), first, np.random.default_rng(0), explore=False).state
    policy.exploration = {"random": True}
    random = policy.act(obs, policy.initial_state(2), first, np.random.default_rng(0), explore=True).state
    np.testing.assert_array_equal(random["memory"], greedy["memory"])
    assert (random["memory"] != 0).all()


def test_q_policy_takes_the_best_action_of_its_memory() -> None:
    spec, _, policy = make("dueling", network="lstm")
    state, first = policy.initial_state(2), np.ones(2, bool)
    for obs in frames(BOX, 4):
        acted = policy.act(obs, state, first, np.random.default_rng(0), explore=False)
        params, value, _ = policy.network.policy(Inputs(obs, {}), state["memory"])
        np.testing.assert_array_equal(acted.action, q_values(spec, params, value).argmax(-1))
        state, first = acted.state, np.zeros(2, bool)


# -- fragments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_complete_adds_the_values_of_what_follows(cell: str, stack: int) -> None:
    """True last observations after rows (1, 0), (3, 1) and (4, 0); the episode of (3, 1) terminated."""
    spec, _, policy = make(stack=stack, network=cell)
    rng, num = np.random.default_rng(0), 6
    obs, last = frames(BOX, num + 1), frames(BOX, 2, seed=5)
    final = Final(np.array([1, 3, 4]), np.array([0, 1, 0]), np.concatenate(last)[:3])
    truncated, terminated = np.zeros((2, num, 2), bool)
    truncated[[1, 4], 0], terminated[3, 1] = True, True
    first = np.zeros((num + 1, 2), bool)
    first[0], first[final.t + 1, final.b] = True, True
    states, behaviours, actions, params = [policy.initial_state(2)], [], [], []
    for t in range(num):
        acted = policy.act(obs[t], states[-1], first[t], rng, explore=True)
        actions.append(acted.action)
        behaviours.append(acted.behaviour)
        params.append(acted.params)
        states.append(acted.state)
    t = Trajectory(
        obs=tree_stack(obs), first=first, action=tree_stack(actions), reward=np.zeros((num, 2), F),
        terminated=terminated, truncated=truncated, valid=np.ones((num, 2), bool), final=final,
        behaviour={k: np.stack([b[k] for b in behaviours]) for k in behaviours[0]}, state=states[0],
    )  # fmt: skip
    policy.complete(t, states, np.stack(params))
    assert set(t.behaviour) == {"log_prob", "value", "final_value"} and t.behaviour["value"].shape == (num + 1, 2)

    def values(obs: list[Any], first: Any) -> Any:
        """[T, B], each from the beginning."""
        state, found = policy.initial_state(2), []
        for o, f in zip(obs, first):
            acted = policy.act(o, state, f, rng, explore=True)
            state = acted.state
            found.append(acted.behaviour["value"])
        return np.stack(found)

    np.testing.assert_allclose(t.behaviour["value"], values(obs, first), atol=1e-6)
    for k in range(3):
        row, b = final.t[k], final.b[k]
        after = obs[row + 1].copy()
        after[b] = final.obs[k]
        begins = first[: row + 2].copy()
        begins[row + 1, b] = False
        expected = values([*obs[: row + 1], after], begins)[-1, b] if k != 1 else 0
        np.testing.assert_allclose(t.behaviour["final_value"][k], expected, atol=1e-6)
    assert all(leaf.shape[0] == 2 for _, leaf in tree_leaves(t.state))


def test_states_are_split_and_joined() -> None:
    spec, _, policy = make(stack=3, network="lstm")
    state = policy.initial_state(2)
    assert {path: leaf.shape for path, leaf in tree_leaves(state)} == {"memory": (2, 2, 10), "pipeline": (2, 2, 4)}
    assert tree_map(np.shape, join_state(*split_state(spec, state))) == tree_map(np.shape, state)
    plain = replace(spec, memory="", memory_size=0)
    assert split_state(plain, None) == (None, None) and join_state(None, None) is None


# -- deployment --------------------------------------------------------------------------------------------------------


def test_a_deployed_policy_keeps_its_memory(tmp_path: Path) -> None:
    spec, weights, policy = make(stack=2, network="lstm")
    save_policy(tmp_path / "policy", spec, weights)
    assert read_policy_weights(tmp_path / "policy")[0] == spec
    deployed, batched = load_policy(tmp_path / "policy"), DeployedPolicy(policy)
    state, first = policy.initial_state(2), np.ones(2, bool)
    for t, obs in enumerate(frames(BOX, 8)):
        if t == 4:
            deployed.reset()
            batched.reset(np.array([True, False]))
            first = np.array([True, False])
        acted = policy.act(obs, state, first, np.random.default_rng(0), explore=False)
        expected, state = acted.action, acted.state
        first = np.zeros(2, bool)
        np.testing.assert_array_equal(batched.act(obs), expected)
        assert deployed.act(obs[0]) == expected[0]
    np.testing.assert_allclose(batched._state["memory"], state["memory"])
    np.testing.assert_allclose(deployed._state["memory"][0], state["memory"][0], atol=1e-6)


LIGHT = """
import sys
import numpy as np
import raypid
policy = raypid.load_policy(sys.argv[1])
for _ in range(3):
    assert policy.act(np.ones(4, np.float32)) in (0, 1, 2)
heavy = {"torch", "ray", "tensorboardX", "matplotlib", "pandas", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_recurrent_mlp_loads_without_torch(tmp_path: Path) -> None:
    spec, weights, _ = make(network="gru")
    save_policy(tmp_path / "policy", spec, weights)
    command = [sys.executable, "-c", LIGHT, str(tmp_path / "policy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
