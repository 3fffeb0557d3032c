"""Fragments show what happened: rows in order, ends and crashes marked, episodes counted over fragments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from raypid.callbacks import Callbacks
from raypid.envs import EnvError, EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.numpy_mlp import initial_mlp
from raypid.ops.normalizer import moments_of
from raypid.roles.acting import RolloutSpec
from raypid.roles.worker import TrajectoryWorker
from raypid.settings.config import ModelConfig
from raypid.types import Report, Trajectory, Weights

F = np.float32
LENGTHS = (3, 1, 2, 5)


class Counting(gymnasium.Env):
    """Observation [episode, step, last action]; reward 100 * episode + step; even episodes end truncated.

    `crash_at`: the environment raises in this step of its life, once (its successor does not).
    """

    lives = 0

    def __init__(self, stream_index: int = 0, crash_at: int = 0, crash_stream: int = 0, always: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), F)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), F)
        self.stream, self.episode, self.life = stream_index, -1, 0
        Counting.lives += 1
        armed = crash_at and stream_index == crash_stream and (always or Counting.lives <= 2)
        self.crash_at = crash_at if armed else 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(0.0), {}

    def step(self, action: Any) -> Any:
        self.t, self.life = self.t + 1, self.life + 1
        if self.life == self.crash_at:
            raise RuntimeError("boom")
        end = self.t >= LENGTHS[(self.episode + self.stream) % len(LENGTHS)]
        truncated = end and self.episode % 2 == 0
        info = {"success": float(self.episode)} if end else {}
        return self._obs(float(action[0])), 100.0 * self.episode + self.t, end and not truncated, truncated, info

    def _obs(self, action: float) -> Any:
        return np.array([self.episode, self.t, action], F)


def vector_of(num_envs: int, mode: str) -> SyncVectorEnv:
    makers = [lambda i=i: Counting(stream_index=i) for i in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


@pytest.fixture(autouse=True)
def no_lives() -> None:
    Counting.lives = 0


def make(
    env: Any = Counting, num_envs: int = 2, rows: int = 4, *, worker: int = 0, restarts: int = 0, **kwargs: Any
) -> TrajectoryWorker:
    config, seed = kwargs.pop("env_config", {}), kwargs.pop("seed", 0)
    normalize, stack = kwargs.pop("normalize", False), kwargs.pop("stack", 1)
    space = spaces.Box(-np.inf, np.inf, (3,), F)
    action = kwargs.pop("action", spaces.Box(-np.inf, np.inf, (1,), F))
    network = build_spec(space, action, ModelConfig(hidden=(4,)), normalize=normalize, frame_stack=stack)
    vectorizer = "sync" if env is Counting else "auto"
    env_spec = EnvSpec(env=env, env_config=config, num_envs=num_envs, vectorizer=vectorizer, seed=seed)
    spec = RolloutSpec(env=env_spec, network=network, fragment_length=rows, seed=seed, **kwargs)
    return TrajectoryWorker(spec, worker, restarts)


def weights_for(rollout: TrajectoryWorker, version: int = 7) -> Weights:
    spec = rollout.spec.network
    size = spec.pipeline.vector_size
    extra = {}
    if spec.pipeline.normalize:
        count, mean, m2 = moments_of(
            np.random.default_rng(0).normal(0, 2, (20, rollout.policy.pipeline.normalized_size))
        )
        extra = {"obs_count": np.asarray(count), "obs_mean": mean, "obs_m2": m2}
    return Weights(version, initial_mlp(spec, size, np.random.default_rng(0)), spec.mlp_table(size), extra)


def collect(rollout: TrajectoryWorker, num: int = 3) -> list[tuple[Report, Trajectory]]:
    return [rollout.collect(weights_for(rollout)) for _ in range(num)]


def columns(t: Trajectory, name: str, b: int = 0) -> list[Any]:
    return getattr(t, name)[:, b].tolist()


def test_rows_of_a_next_step_fragment() -> None:
    """Stream 0: an episode of 3, the reset row, an episode of 1, the reset row, an episode of 2."""
    _, t = make(rows=8).collect(weights_for(make()))
    assert t.obs[:, 0, :2].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert columns(t, "first") == [True, False, False, False, True, False, True, False, False]
    assert columns(t, "valid") == [True, True, True, False, True, False, True, True]
    assert columns(t, "reward") == [1, 2, 3, 0, 101, 0, 201, 202]
    assert columns(t, "truncated") == [False, False, True, False, False, False, False, True]
    assert columns(t, "terminated") == [False, False, False, False, True, False, False, False]
    assert t.final is None and t.version == 7 and t.state is None
    assert t.reward.dtype == F and t.num_valid == t.valid.sum() == np.count_nonzero(t.valid)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_rows_of_a_same_step_fragment(mode: str) -> None:
    _, t = make(vector_of, rows=6, env_config={"mode": mode}).collect(weights_for(make()))
    assert t.obs[:, 0, :2].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1], [3, 0]]
    assert columns(t, "first") == [True, False, False, True, True, False, True]
    assert columns(t, "reward") == [1, 2, 3, 101, 201, 202] and t.valid.all()
    assert t.final is not None
    of_stream = t.final.b == 0
    assert t.final.t[of_stream].tolist() == [2, 3, 5]
    assert t.final.obs[of_stream, :2].tolist() == [[0, 3], [1, 1], [2, 2]]
    assert t.behaviour["final_value"].shape == t.final.t.shape


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_each_row_follows_from_the_action_of_the_one_before(mode: str) -> None:
    env, config = (Counting, {}) if mode == "NextStep" else (vector_of, {"mode": mode})
    rollout = make(env, num_envs=3, rows=5, env_config=config)
    fragments = [t for _, t in collect(rollout, 4)]
    assert sum(t.num_valid for t in fragments) > 20
    for before, after in zip(fragments, fragments[1:]):
        np.testing.assert_array_equal(before.obs[-1], after.obs[0])
        np.testing.assert_array_equal(before.first[-1], after.first[0])
    for t in fragments:
        final = {} if t.final is None else {(r, b): o for r, b, o in zip(t.final.t, t.final.b, t.final.obs)}
        for row, b in np.argwhere(t.valid):
            following = final.get((row, b), t.obs[row + 1, b])
            episode, step, action = following
            assert (episode, step) == (t.obs[row, b, 0], t.obs[row, b, 1] + 1)
            assert action == pytest.approx(float(t.action[row, b, 0]), rel=1e-6)
            assert t.reward[row, b] == 100 * episode + step
        assert (t.obs[t.first][:, 1] == 0).all() and t.behaviour["log_prob"].shape == (5, 3)
        assert t.behaviour["value"].shape == (6, 3)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_episodes_are_counted_over_fragments(mode: str, rows: int) -> None:
    env, config = (Counting, {}) if mode == "NextStep" else (vector_of, {"mode": mode})
    rollout = make(env, num_envs=2, rows=rows, env_config=config)
    reports = [r for r, _ in collect(rollout, 42 // rows)]
    done = sorted((x, n) for r in reports for x, n in zip(r.episode_rewards, r.episode_lengths))
    expected = []
    for stream in range(2):
        left = 42
        for episode in range(42):
            length = LENGTHS[(episode + stream) % 4]
            left -= length
            if left < 0:
                break
            expected.append((sum(100.0 * episode + t for t in range(1, length + 1)), length))
            left -= mode == "NextStep"
    assert done == sorted(expected)
    assert sum(r.num_steps for r in reports) <= 2 * 42


def test_crash_is_marked_and_nothing_of_it_counted() -> None:
    """Stream 0 raises in its fifth step: the row is invalid, a new episode begins, its return is not reported."""
    rollout = make(rows=12, env_config={"crash_at": 5})
    report, t = rollout.collect(weights_for(rollout))
    assert len(report.crashes) == 1 and "boom" in report.crashes[0]
    # rows: 3 of episode 0, the reset row, 1 of episode 1, the reset row, the crash, a new life from episode 0
    assert columns(t, "valid")[:8] == [True, True, True, False, True, False, False, True]
    assert columns(t, "first")[:8] == [True, False, False, False, True, False, True, True]
    assert t.obs[7, 0].tolist() == [0, 0, 0] and t.reward[6, 0] == 0
    assert not (t.terminated | t.truncated)[6, 0]
    ends = [x for x in report.episode_rewards if x in (6.0, 101.0, 403.0, 203.0)]
    assert ends.count(6.0) >= 1 and 403.0 not in ends
    assert report.num_steps == t.num_valid == np.count_nonzero(t.valid)
    whole = make(rows=12)
    _, other = whole.collect(weights_for(whole))
    np.testing.assert_array_equal(t.obs[:, 1, :2], other.obs[:, 1, :2])  # the other stream went on


def test_crash_cuts_the_return_of_an_episode() -> None:
    rollout = make(num_envs=1, rows=8, env_config={"crash_at": 2})
    report, t = rollout.collect(weights_for(rollout))
    assert columns(t, "valid")[:3] == [True, False, True]
    assert report.episode_rewards[0] == 6.0 and report.episode_lengths[0] == 3  # 1 + 2 + 3 of the new life alone


def test_too_many_crashes_stop_the_run() -> None:
    rollout = make(num_envs=1, rows=4, env_config={"crash_at": 1, "always": True}, max_crashes=6)
    rollout.collect(weights_for(rollout))
    with pytest.raises(
        EnvError,
        match=r"(?s)^Traceback.*boom\nraypid: .*worker 0 raised 7 times in so few steps; max_restarts=6 allows 6",
    ):
        rollout.collect(weights_for(rollout))


class Success(Callbacks):
    def on_episode_end(self, info: dict[str, Any]) -> dict[str, float] | None:
        if info["episode_length"] == 1:
            return None
        assert info["worker_index"] == 5
        return {"success": info["success"], f"return/{info['stream_index']}": info["episode_reward"]}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_callbacks_see_each_episode(mode: str) -> None:
    env, config = (Counting, {}) if mode == "NextStep" else (vector_of, {"mode": mode})
    rollout = make(env, rows=8, worker=5, env_config=config, callbacks=Success())
    report, _ = rollout.collect(weights_for(rollout))
    assert report.worker_index == 5
    assert report.episode_metrics["return/0"] == [6.0, 403.0]
    assert report.episode_metrics["success"].count(2.0) >= 1
    long = [x for x, n in zip(report.episode_rewards, report.episode_lengths) if n > 1]
    assert len(report.episode_metrics["success"]) == len(long)


def test_observation_noise_is_what_the_policy_saw() -> None:
    rollout = make(num_envs=4, rows=50, observation_noise=0.1)
    (_, t), (_, after) = collect(rollout, 2)
    off = t.obs[..., 1] - np.rint(t.obs[..., 1])
    assert 0.08 < off.std() < 0.12 and abs(off.mean()) < 0.03
    np.testing.assert_array_equal(t.obs[-1], after.obs[0])
    assert t.obs.dtype == F
    np.testing.assert_array_equal(t.reward, np.rint(t.reward))
    params = rollout.policy.network.policy(rollout.policy.pipeline.sequence(t.obs, None, t.first)[0].flatten())[0]
    log_prob = rollout.policy.distribution.log_prob(params.reshape(51, 4, 1)[:-1], rollout.policy._log_std, t.action)
    np.testing.assert_allclose(t.behaviour["log_prob"], log_prob, atol=1e-5)


def test_action_noise_reaches_the_environment_but_not_the_data() -> None:
    rollout = make(num_envs=4, rows=50, action_noise=0.5)
    _, t = rollout.collect(weights_for(rollout))
    off = (t.obs[1:, :, 2] - t.action[..., 0])[t.valid]
    assert 0.4 < off.std() < 0.6 and abs(off.mean()) < 0.15


def test_moments_are_those_of_the_valid_rows() -> None:
    rollout = make(rows=10, normalize=True)
    _, t = rollout.collect(weights_for(rollout))
    assert t.moments is not None
    for ours, expected in zip(t.moments, moments_of(t.obs[:-1][t.valid])):
        np.testing.assert_allclose(ours, expected)
    assert t.moments[0] == t.num_valid < 20


def test_state_is_the_stack_at_row_0() -> None:
    rollout = make(rows=2, stack=3)
    (_, first), (_, second) = collect(rollout, 2)
    assert first.state is not None and (first.state == 0).all()
    np.testing.assert_array_equal(second.state, first.obs[:2].swapaxes(0, 1))  # [B, k - 1, D], the frames before row 0


def same(a: Trajectory, b: Trajectory) -> bool:
    return np.array_equal(a.action, b.action) and np.array_equal(a.obs, b.obs)


def test_same_seed_same_data() -> None:
    runs = {}
    for name, kwargs in {
        "a": {}, "again": {}, "seed": {"seed": 1}, "worker": {"worker": 1}, "restart": {"restarts": 1},
    }.items():  # fmt: skip
        runs[name] = collect(cartpole(**kwargs), 2)
    for i in range(2):
        assert same(runs["a"][i][1], runs["again"][i][1])
        for other in ("seed", "worker", "restart"):
            assert not np.array_equal(runs["a"][i][1].obs, runs[other][i][1].obs), other


def test_every_worker_and_every_restart_explores_in_its_own_way() -> None:
    same, *others = (cartpole(**k) for k in ({}, {"seed": 1}, {"worker": 1}, {"restarts": 1}))
    assert len({r.rng.random() for r in (same, cartpole(), *others)}) == 4


def cartpole(seed: int = 0, worker: int = 0, restarts: int = 0) -> TrajectoryWorker:
    env = EnvSpec(env="CartPole-v1", num_envs=3, vectorizer="sync", seed=seed)
    network = build_spec(spaces.Box(-9, 9, (4,), F), spaces.Discrete(2), ModelConfig(hidden=(4,)))
    return TrajectoryWorker(RolloutSpec(env=env, network=network, fragment_length=20, seed=seed), worker, restarts)


def test_boundary_starts_streams_and_episodes_anew() -> None:
    rollout = make(num_envs=1, rows=2)
    report, _ = rollout.collect(weights_for(rollout))
    assert report.episode_rewards == []  # two steps of three
    rollout.boundary(1)
    report, t = rollout.collect(weights_for(rollout))
    assert t.first[0].all() and t.obs[0, 0].tolist() == [1, 0, 0]
    assert report.episode_rewards == [101.0] and report.episode_lengths == [1]


def test_boundary_is_decided_by_its_count_alone() -> None:
    """So that a resumed run equals the one that saved: whatever came before, the streams and the generator agree."""
    runs = []
    for num_before, count in ((1, 3), (2, 3), (1, 4)):
        rollout = cartpole()
        collect(rollout, num_before)
        state = cartpole().state_dict()
        rollout.boundary(count)
        rollout.load_state_dict(state)
        runs.append(rollout.collect(weights_for(rollout))[1])
    assert same(runs[0], runs[1]) and not np.array_equal(runs[0].obs, runs[2].obs)


def test_random_generator_goes_on_from_its_state() -> None:
    a, b = cartpole(), cartpole(worker=0)
    collect(a, 1)
    b.load_state_dict(a.state_dict())
    assert a.rng.random() == b.rng.random()


LIGHT = """
import sys
import numpy as np
from gymnasium import spaces
from raypid.settings.config import ModelConfig
from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.numpy_mlp import initial_mlp
from raypid.roles.evaluator import Evaluator, Order
from raypid.roles.acting import RolloutSpec
from raypid.roles.rollout import Rollout
from raypid.roles.setup import WorkerSetup
from raypid.types import Weights
network = build_spec(spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2), ModelConfig(hidden=(4,)), normalize=True)
spec = RolloutSpec(env=EnvSpec(env="CartPole-v1", num_envs=8), network=network, fragment_length=20, seed=0)
setup = WorkerSetup(spec=spec, evaluation=spec, checks=False)
rollout = Rollout(setup)
extra = {"obs_count": np.asarray(0.0), "obs_mean": np.zeros(4), "obs_m2": np.zeros(4)}
weights = Weights(0, initial_mlp(network, 4, np.random.default_rng(0)), network.mlp_table(4), extra)
report, t = rollout.collect(weights, 0, {})
assert report.num_steps and t.moments is not None
evaluation = Evaluator(setup).play(weights, Order(3, 0))
assert len(evaluation.rewards) == 3
heavy = {"torch", "ray", "tensorboardX", "matplotlib", "pandas", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_rollouts_of_an_mlp_import_neither_torch_nor_ray() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
