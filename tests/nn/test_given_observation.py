"""What does not fit a policy is named in one line that says what would; what fits in another form is taken."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.given_observation import read_observation
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchNetwork
from raypid.nn.policy import DeployedPolicy, make_policy
from raypid.settings.config import ModelConfig
from raypid.types import Weights

F = np.float32
ROBOT = spaces.Dict(position=spaces.Box(-9, 9, (2,), F), battery=spaces.Discrete(5), load=spaces.MultiDiscrete([2, 3]))
FINE = {"position": [0.0, 1.0], "battery": 4, "load": [1, 2]}
IMAGE = spaces.Box(0, 255, (20, 24, 3), np.uint8)
MASKED = spaces.Dict(x=spaces.Box(-9, 9, (2,), F), action_mask=spaces.MultiBinary(5))
PAIR = spaces.Tuple((spaces.Box(-9, 9, (2,), F), spaces.Discrete(3, start=-1)))


def network(space: Any, action: Any = None) -> NetworkSpec:
    return build_spec(space, action or spaces.Discrete(2), ModelConfig(hidden=(4,)))


@pytest.mark.parametrize(
    "space, obs, says",
    [
        (ROBOT, {"position": [0, 0], "load": [0, 0]}, r"lacks 'battery': it is a dict of 'position', 'load'. .* takes .*'battery' of shape \(\)"),
        (ROBOT, np.zeros(4), r"lacks 'position': it is an array of shape \(4,\), float64"),
        (ROBOT, None, "lacks 'position': it is None"),
        (ROBOT, (FINE, {}), r"lacks 'position': it is a tuple \(observation, info\), as reset\(\) returns it"),
        (ROBOT, [FINE, FINE], "lacks 'position': it is a list"),
        (ROBOT, {**FINE, "battery": 5}, "'battery' is 5.*; this policy takes integers from 0 to 4"),
        (ROBOT, {**FINE, "battery": -1}, "'battery' is -1"),
        (ROBOT, {**FINE, "battery": 1.5}, "'battery' has dtype float64; .*integers from 0 to 4: round it"),
        (ROBOT, {**FINE, "load": [1, 3]}, r"'load' is 3 at index \[1\]; .* integers from \[0, 0\] to \[1, 2\]"),
        (ROBOT, {**FINE, "position": [0, np.nan]}, r"'position' is nan at index \[1\]; this policy takes finite numbers"),
        (ROBOT, {**FINE, "position": [1e39, 0]}, r"'position' is 1e\+39 at index \[0\]; .* finite numbers \(float32\)"),
        (ROBOT, {**FINE, "position": None}, r"'position' is None, no array of numbers; this policy takes shape \(2,\), or a batch of it, float32"),
        (ROBOT, {**FINE, "position": "far"}, "'position' is 'far'"),
        (ROBOT, {**FINE, "position": [[1, 2], [3]]}, "'position' is a list, no array of numbers"),
        (ROBOT, {**FINE, "position": [1, 2, 3]}, r"'position' has shape \(3,\); this policy takes \(2,\) or a batch"),
        (ROBOT, {**FINE, "position": np.zeros((3, 2))}, r"'position' a batch of 3, 'battery' one, 'load' one"),
        (ROBOT, {"position": np.zeros((3, 2)), "battery": np.zeros(2, int), "load": np.zeros((3, 2), int)}, "a batch of 2"),
        (ROBOT["position"], (np.zeros(2), {}), r"is a tuple \(observation, info\)"),
        (ROBOT["position"], {"position": np.zeros(2)}, "The observation is a dict of 'position', no array of numbers; this policy takes shape"),
        (PAIR, (np.zeros(2),), "lacks '1'"),
        (PAIR, (np.zeros(2), 2), "'1' is 2.*; this policy takes integers from -1 to 1"),
        (IMAGE, np.zeros((3, 20, 24), np.uint8), r"has shape \(3, 20, 24\); this policy takes \(20, 24, 3\)"),
        (IMAGE, np.zeros((20, 24, 3)), "dtype float64; this policy takes integers from 0 to 255: round it, or see whether it was scaled"),
        (IMAGE, np.full((20, 24, 3), 256), r"is 256 at index \[0, 0, 0\]"),
        (MASKED, {"x": [0, 0]}, "lacks 'action_mask': it is a dict of 'x'"),
        (MASKED, {"x": [0, 0], "action_mask": [1, 1]}, r"action_mask has shape \(2,\); this policy takes \(5,\), 1 where"),
        (MASKED, {"x": np.zeros((2, 2)), "action_mask": np.ones(5)}, r"takes \(2, 5\), 1 where"),
        (MASKED, {"x": [0, 0], "action_mask": [1, 1, 0, 0, 0]}, "allows none of elements 2 to 4"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(space: Any, obs: Any, says: str) -> None:
    action = spaces.MultiDiscrete([2, 3]) if space is MASKED else None
    with pytest.raises(UserError, match=says) as raised:
        read_observation(network(space, action), obs)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "space, obs, num, single",
    [
        (ROBOT, {**FINE, "more": "what the policy was not trained with"}, 1, True),
        (ROBOT, {"position": np.zeros((3, 2)), "battery": [0, 1, 4], "load": np.zeros((3, 2), np.int8)}, 3, False),
        (ROBOT["position"], (0, 1), 1, True),
        (ROBOT["position"], [[0, 1]], 1, False),
        (ROBOT["position"], torch.zeros(4, 2, requires_grad=True), 4, False),
        (ROBOT["position"], np.full(2, 1e30, F), 1, True),
        (ROBOT["battery"], np.int8(3), 1, True),
        (PAIR, [[0.0, 1.0], -1], 1, True),  # as JSON has it
        (IMAGE, np.full((20, 24, 3), 255, np.int64).tolist(), 1, True),
        (MASKED, {"x": [0, 0], "action_mask": [True, False, False, True, False]}, 1, True),
        (MASKED, {"x": np.zeros((2, 2)), "action_mask": np.ones((2, 5), np.int8)}, 2, False),
    ],
)
def test_what_fits_is_taken(space: Any, obs: Any, num: int, single: bool) -> None:
    action = spaces.MultiDiscrete([2, 3]) if space is MASKED else None
    tree, count, one = read_observation(network(space, action), obs)
    assert (count, one) == (num, single)
    policy = make_policy(network(space, action))
    policy.load(Weights(0, TorchNetwork(policy.spec, 0).numpy(), TorchNetwork(policy.spec, 0).table))
    acted = DeployedPolicy(policy).act(obs)
    assert np.shape(acted)[: 0 if single else 1] == (() if single else (num,)) and tree is not None


# -- one policy, several clients --------------------------------------------------------------------------------------------


def remembering(memory: str = "lstm", stack: int = 1) -> DeployedPolicy:
    space = spaces.Box(-9, 9, (3,), F)
    model = ModelConfig(hidden=(8,), network=memory, memory_size=8) if memory else ModelConfig(hidden=(8,))
    spec = build_spec(space, spaces.Box(-1, 1, (2,)), model, frame_stack=stack)
    network = TorchNetwork(spec, 0)
    policy = make_policy(spec)
    flat = network.numpy() + np.random.default_rng(0).normal(0, 0.5, len(network.numpy())).astype(F)
    policy.load(Weights(0, flat, network.table))
    return DeployedPolicy(policy)


@pytest.mark.parametrize("memory, stack", [("lstm", 1), ("gru", 1), ("", 4)])
def test_sessions_share_weights_and_nothing_else(memory: str, stack: int) -> None:
    rng = np.random.default_rng(1)
    walks = rng.normal(size=(2, 6, 3)).astype(F)
    alone = []
    for walk in walks:
        policy = remembering(memory, stack)
        alone.append([policy.act(obs) for obs in walk])
    policy = remembering(memory, stack)
    clients = [policy.session(), policy.session()]
    assert all(client.policy is policy.policy for client in clients)
    together = [[client.act(walk[t]) for client, walk in zip(clients, walks)] for t in range(6)]
    np.testing.assert_array_equal(np.swapaxes(alone, 0, 1), together)
    mixed = [[policy.act(walk[t]) for walk in walks] for t in range(6)]
    assert not np.allclose(together, mixed)  # what sessions are for


def test_sessions_act_in_threads_at_the_same_time() -> None:
    """Also with noisy layers, whose noise lies in the network that they share."""
    policy = remembering()
    walk = np.random.default_rng(1).normal(size=(50, 3)).astype(F)
    expected = [remembering().session(7).act(walk[0], explore=True)]
    session = remembering().session(7)
    expected = [session.act(obs, explore=True) for obs in walk]
    found: dict[int, list[Any]] = {}

    def play(client: int) -> None:
        mine = policy.session(7)
        found[client] = [mine.act(obs, explore=True) for obs in walk]

    threads = [threading.Thread(target=play, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_array_equal(found[i], expected)


def in_thread(call: Any) -> Any:
    out: list[Any] = []

    def run() -> None:
        try:
            out.append(call())
        except UserError as error:
            out.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return out[0]


def test_two_threads_do_not_share_one_memory_unseen() -> None:
    policy, obs = remembering(), np.zeros(3, F)
    policy.act(obs)
    said = in_thread(lambda: policy.act(obs))
    assert isinstance(said, UserError) and "policy.session()" in str(said)
    policy.act(obs)  # the thread that began goes on
    policy.reset()
    assert in_thread(lambda: policy.act(obs)).shape == (2,)
    session = policy.session()  # may be handed from thread to thread: an event loop's workers do so
    session.act(obs)
    assert in_thread(lambda: session.act(obs)).shape == (2,)
    free = remembering("")  # remembers nothing
    free.act(obs)
    assert in_thread(lambda: free.act(obs)).shape == (2,)


def test_a_batch_of_another_size_is_no_continuation() -> None:
    policy = remembering("", stack=2)
    policy.act(np.zeros((3, 3), F))
    with pytest.raises(
        UserError, match=r"remembers episodes in a batch of 3, and a batch of 1 was given. Call reset\(\)"
    ):
        policy.act(np.zeros(3, F))
    with pytest.raises(UserError, match=r"mask of the last batch's shape \(3,\), not \(2,\)"):
        policy.reset(np.array([True, False]))
    policy.reset()
    assert policy.act(np.zeros(3, F)).shape == (2,)
    free = remembering("")
    assert free.act(np.zeros((3, 3), F)).shape == (3, 2) and free.act(np.zeros(3, F)).shape == (2,)


def test_a_policy_is_copied_and_pickled_with_what_it_remembers() -> None:
    policy, obs = remembering(), np.ones(3, F)
    policy.act(obs)
    copies = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]
    expected = policy.act(obs)
    for other in copies:
        np.testing.assert_array_equal(other.act(obs), expected)
