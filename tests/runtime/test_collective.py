"""Several processes add up, and learn what one learner would; that one is lost is noticed, in seconds."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from member import SIZE, Member, Members, fragment
from setups import learner_setup

from raypid.algorithms.ppo import PPO, PPOConfig
from raypid.nn.catalog import build_spec
from raypid.nn.numpy_cells import initial_memory
from raypid.plugins.registry import ALGORITHMS
from raypid.roles.learner import Learner
from raypid.runtime import collective
from raypid.runtime.collective import CollectiveLost
from raypid.runtime.handle import WorkerLost
from raypid.runtime.supervisor import split
from raypid.settings.config import ModelConfig

F = np.float32
BOX = spaces.Box(-9, 9, (4,))
MASKED = spaces.Dict(action_mask=spaces.MultiBinary(3), x=BOX)


@pytest.fixture
def ray_backend(ray_session: Any) -> Any:
    from raypid.runtime.ray import RayBackend

    backend = RayBackend()
    yield backend
    backend.shutdown()


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "torch"])
def test_sums_are_the_same_everywhere(members: Members, kind: str) -> None:
    sums = members.call(
        Member.total, *(([r + 1, 10 * r],) if kind == "torch" else ([r + 1, 10 * r], kind) for r in range(SIZE))
    )
    for total in sums:
        assert total.tolist() == [6, 30]


def test_gather_is_in_rank_order(members: Members) -> None:
    values = [{"rank": r, "text": "x" * (1000 * r)} for r in range(SIZE)]
    assert members.call(Member.gather, *((v,) for v in values)) == [values] * SIZE


# -- learning ------------------------------------------------------------------------------------------------------


BOTH: dict[str, Any] = {"normalize_rewards": True, "batch_size": 24}
FEW: dict[str, Any] = {"num_epochs": 2}
"""Each minibatch is a meeting of three processes, which takes milliseconds on two cores."""
CASES = {
    # name -> algorithm, settings, masked, fragments of each update
    "ppo": ("PPO", {**BOTH, "target_kl": 0.02, "max_grad_norm": 0.1}, False, 5),
    "ppo, masked": ("PPO", {**BOTH, **FEW, "value_clip": 0.2, "max_grad_norm": None}, True, 4),
    "ppo, a minibatch of one row": ("PPO", {"batch_size": 1, "num_epochs": 1}, False, 3),
    "a2c, advantages normalised": ("A2C", {**BOTH, "normalize_advantages": True}, False, 5),
    "ppo, lstm": ("PPO", {**BOTH, **FEW, "model": {"network": "lstm", "memory_size": 8}}, False, 4),
    "impala": ("IMPALA", {**BOTH, "max_grad_norm": 0.1}, False, 5),
    "appo, masked": ("APPO", {**BOTH, "target_network": True}, True, 4),
    "appo, several fragments of a stream": ("APPO", BOTH, False, 4),
    "impala, gru": ("IMPALA", {**BOTH, "model": {"network": "gru", "memory_size": 8}}, False, 4),
    "ppo, random network distillation": ("PPO", {**BOTH, **FEW, "intrinsic_reward": "rnd"}, False, 5),
    "a2c, masked": ("A2C", {**BOTH, "normalize_rewards": False}, True, 3),
}


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_several_learners_learn_what_one_does(members: Members, name: str, kernel: str) -> None:
    run, settings, masked, num = CASES[name]
    model = ModelConfig(**{"hidden": (16, 16), **settings.get("model", {})})
    if model.network in ("lstm", "gru") and kernel == "numpy":
        pytest.skip("a memory learns with torch")
    config = ALGORITHMS.get(run).Config().replace({**settings, "kernel": kernel, "seed": 0, "model": model})
    spec = build_spec(MASKED if masked else BOX, spaces.Discrete(3), model, normalize=True)
    setup = learner_setup(ALGORITHMS.get(run), ALGORITHMS.get(run).make(config, spec, 0).config, spec)
    short = {"rows": 5} if config.batch_size == 1 else {}  # each row is a step, for which all meet
    batches = [[fragment(10 * u + i, masked, streams=1 + i % 2, **short) for i in range(num)] for u in range(3)]
    batches[1][0] = fragment(7, masked, no_valid=True, streams=1, **short)  # for three fragments, all that rank 0 has
    for part in (part for batch in batches for part in batch if spec.memory):
        part.state = {"memory": 0.1 + initial_memory(spec, part.num_streams)}
    for part in (part for batch in batches for part in batch if "of a stream" in name):
        part.stream = np.arange(part.num_streams)
    one = Learner(setup)
    alone = [one.update(100 * (u + 1), *batch) for u, batch in enumerate(batches)]
    shares = [[split(batch, SIZE)[rank] for batch in batches] for rank in range(SIZE)]
    together = members.call(Member.learn, *((setup, share) for share in shares))
    for rank, (updates, state) in enumerate(together):
        assert_same_state(state, one.state_dict())
        for (update, weights), (ours, expected) in zip(updates, alone, strict=True):
            np.testing.assert_allclose(weights.flat, expected.flat, atol=1e-5)
            assert update.num_updates == ours.num_updates and set(update) == set(ours)
            for key, number in ours.items():
                assert update[key] == pytest.approx(number, rel=1e-3, abs=1e-5), key
        # nobody drifts: the bits are the same on every rank
        np.testing.assert_array_equal(updates[-1][1].flat, together[0][0][-1][1].flat, err_msg=str(rank))
    if "target_kl" in settings:
        assert min(u.num_updates for u, _ in alone) < max(u.num_updates for u, _ in alone)


def assert_same_state(state: dict[str, Any], expected: dict[str, Any]) -> None:
    assert state.keys() == expected.keys() and state["rng"] == expected["rng"]
    for part in ("moments", "return_scaler"):
        for key, array in expected.get(part, {}).items():
            np.testing.assert_allclose(
                state[part][key], array, rtol=1e-6 if "intrinsic" in expected else 1e-9, err_msg=key
            )
    if "intrinsic" in expected:
        np.testing.assert_allclose(state["intrinsic"]["predictor"], expected["intrinsic"]["predictor"], atol=1e-5)
        assert state["intrinsic"]["moments"]["count"] == expected["intrinsic"]["moments"]["count"]
    np.testing.assert_allclose(state["optimizer"]["m"], expected["optimizer"]["m"], atol=1e-5)
    assert state["optimizer"]["steps"] == expected["optimizer"]["steps"]


def test_a_state_of_one_goes_on_with_several(members: Members) -> None:
    config = PPOConfig(normalize_rewards=True, batch_size=24, seed=0)
    spec = build_spec(BOX, spaces.Discrete(3), ModelConfig(hidden=(16,)), normalize=True)
    first, second = ([fragment(10 * u + i, False) for i in range(4)] for u in range(2))
    config = PPO.make(config, spec, 0).config
    one = Learner(learner_setup(PPO, config, spec))
    one.update(100, *first)
    state = one.state_dict()
    _, expected = one.update(100, *second)
    shares = split(second, SIZE)
    together = members.call(Member.learn, *((learner_setup(PPO, config, spec, 5), [share], state) for share in shares))
    for [(_, weights)], _ in together:
        np.testing.assert_allclose(weights.flat, expected.flat, atol=1e-5)


# -- failing -------------------------------------------------------------------------------------------------------


def pid_of(ray: Any, handle: Any) -> int:
    return ray.get(handle.actor.__ray_call__.remote(lambda role: os.getpid()))


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.ci_slow), pytest.param(1, marks=pytest.mark.slow)])
def test_a_dead_member_is_noticed(ray_session: Any, ray_backend: Any, lost: int) -> None:
    group = Members(ray_backend, 2, timeout_s=600.0)  # it is not the timeout that tells
    others = [r for r in range(2) if r != lost]
    waiting = [group.handles[r].submit(Member.total, [1.0] * 1000) for r in others]
    os.kill(pid_of(ray_session, group.handles[lost]), signal.SIGKILL)
    for future in waiting:
        with pytest.raises(CollectiveLost, match="Another of 2 learners died or did not answer"):
            ray_backend.get(future, timeout=60)
    with pytest.raises(WorkerLost, match="Another of 2 learners"):  # no second wait
        ray_backend.get(group.handles[others[0]].submit(Member.gather, 1), timeout=10)


@pytest.mark.slow
def test_a_dead_member_of_three_is_noticed_by_all(ray_session: Any, ray_backend: Any) -> None:
    group = Members(ray_backend, 3)
    waiting = [group.handles[r].submit(Member.total, [1.0] * 1000) for r in (0, 2)]
    os.kill(pid_of(ray_session, group.handles[1]), signal.SIGKILL)
    for future in waiting:
        with pytest.raises(CollectiveLost, match="^Another of 3 learners died"):
            ray_backend.get(future, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_member_that_hangs_is_noticed_after_the_timeout(ray_session: Any, ray_backend: Any, lost: int) -> None:
    group = Members(ray_backend, 2, timeout_s=5.0)
    hung = pid_of(ray_session, group.handles[lost])
    os.kill(hung, signal.SIGSTOP)
    try:
        with pytest.raises(CollectiveLost, match="Another of 2 learners died or did not answer within 5 s"):
            ray_backend.get(group.handles[1 - lost].submit(Member.gather, 1), timeout=60)
    finally:
        os.kill(hung, signal.SIGKILL)


def test_a_firewall_is_noticed_before_the_slowest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that does not answer: one whose list of callers is full."""
    monkeypatch.setattr(collective, "REACH_S", 1.0)
    with socket.socket() as mute, socket.socket() as one, socket.socket() as another:
        mute.bind(("127.0.0.1", 0))
        mute.listen(0)
        for caller in (one, another):
            caller.setblocking(False)
            caller.connect_ex(mute.getsockname())
        member = collective.TorchCollective(1, 2, timeout_s=300.0)
        with pytest.raises(CollectiveLost, match=r"within 1 s: learner 1 waited in meeting at 127.* \(a firewall\?"):
            member.join("{}:{}".format(*mute.getsockname()))
