"""Exploration noise that lasts: how alike its steps are, which episodes have it, when it stops, and that a resume knows all that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.distributions import JointDistribution, Noise
from raypid.nn.network_spec import ActionLeaf
from raypid.nn.numpy_mlp import initial_mlp
from raypid.roles.acting import Episode, RolloutSpec
from raypid.roles.lasting_noise import FEWEST, WINDOW, WORSE, LastingNoise
from raypid.roles.worker import TrajectoryWorker
from raypid.run.agent import Agent
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Weights

F = np.float32
KEPT = np.array([0.0, 0.5, 0.9, 0.9375], F)


# -- the noise ---------------------------------------------------------------------------------------------------------


def drawn(kept: Any, num: int = 20_000, size: int = 2) -> Any:
    """[T, B, A] steps of noise."""
    noise, rng = Noise(kept), np.random.default_rng(0)
    return np.stack([noise.normal((len(KEPT), size), rng) for _ in range(num)])


def test_each_stream_keeps_its_share_and_varies_by_1() -> None:
    z = drawn(KEPT)
    assert z.dtype == F
    np.testing.assert_allclose(z.mean((0, 2)), 0, atol=0.06)
    np.testing.assert_allclose(z.var((0, 2)), 1, atol=0.06)
    for lag in (1, 2, 5):
        np.testing.assert_allclose((z[lag:] * z[:-lag]).mean((0, 2)), KEPT**lag, atol=0.06)
    between = np.corrcoef(z.reshape(len(z), -1).T) - np.eye(
        2 * len(KEPT)
    )  # streams and elements know nothing of others
    assert np.abs(between).max() < 0.06


def test_it_is_normal_from_the_first_step_on() -> None:
    rng = np.random.default_rng(0)
    first, second = np.stack([[noise.normal((4, 3), rng) for _ in range(2)] for noise in map(Noise, [KEPT] * 4000)], 1)
    np.testing.assert_allclose([first.var((0, 2)), second.var((0, 2))], 1, atol=0.05)
    np.testing.assert_allclose((first * second).mean((0, 2)), KEPT, atol=0.04)


def test_without_a_share_it_is_the_white_noise_of_before() -> None:
    expected = np.random.default_rng(0).standard_normal((50, 4, 2), dtype=F)
    np.testing.assert_array_equal(drawn(None, 50), expected)
    np.testing.assert_array_equal(drawn(np.zeros(4, F), 50), expected)


def test_the_shares_may_change_between_steps() -> None:
    kept = np.zeros(1, F)
    noise, rng = Noise(kept), np.random.default_rng(0)
    white = np.array([noise.normal((1, 1), rng)[0, 0] for _ in range(8000)])
    kept[:] = 0.9
    lasting = np.array([noise.normal((1, 1), rng)[0, 0] for _ in range(40_000)])
    assert abs((white[1:] * white[:-1]).mean()) < 0.05
    assert (lasting[1:] * lasting[:-1]).mean() == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize("kind", ["gaussian", "squashed_gaussian"])
def test_sampled_actions_are_their_means_and_this_noise(kind: str) -> None:
    d = JointDistribution((ActionLeaf(path="", kind=kind, shape=(2,)),))
    params = np.tile(np.linspace(-0.3, 0.4, d.parts[0].leaf.num_params, dtype=F), (len(KEPT), 1))
    log_std = np.array([-1.0, -2.0], F)
    d.draw_by(KEPT)
    rng, z = np.random.default_rng(0), drawn(KEPT, 30)
    actions: Any = np.stack([d.sample(params, log_std, rng) for _ in range(30)])
    mean, deviation = params[:, :2], np.exp(log_std)
    if kind == "squashed_gaussian":
        deviation = np.exp(-5 + 3.5 * (np.tanh(params[:, 2:]) + 1))
    u = mean + deviation * z
    np.testing.assert_allclose(actions, u if kind == "gaussian" else np.tanh(u), atol=1e-6)


def test_random_actions_last_too_and_stay_uniform() -> None:
    d = JointDistribution((ActionLeaf(path="", kind="squashed_gaussian", shape=(1,)),))
    rng = np.random.default_rng(0)
    d.draw_by(KEPT)
    u: Any = np.stack([d.uniform(len(KEPT), None, rng) for _ in range(20_000)])[..., 0]
    assert u.dtype == F and np.abs(u).max() <= 1
    for b, kept in enumerate(KEPT):
        np.testing.assert_allclose(np.histogram(u[:, b], 8, (-1, 1))[0] / len(u), 1 / 8, atol=0.03)
        # what a Gaussian copula makes of the correlation: 6 / pi * asin(r / 2)
        found = np.corrcoef(u[1:, b], u[:-1, b])[0, 1]
        assert found == pytest.approx(6 / np.pi * np.arcsin(kept / 2), abs=0.04)


def test_perturbed_actions_are_clipped_sums() -> None:
    d = JointDistribution((ActionLeaf(path="", kind="deterministic", shape=(2,)),))
    d.draw_by(KEPT)
    rng, z = np.random.default_rng(0), drawn(KEPT, 40)
    action = np.linspace(-0.9, 0.9, 2 * len(KEPT), dtype=F).reshape(-1, 2)
    found: Any = np.stack([d.perturbed(action, 0.6, rng) for _ in range(40)])
    assert found.dtype == F and (np.abs(found) == 1).any()
    np.testing.assert_allclose(found, np.clip(action + 0.6 * z, -1, 1), atol=1e-6)


@pytest.mark.parametrize("kind", ["categorical", "multi_categorical", "bernoulli"])
@pytest.mark.parametrize("is_random", [False, True])
def test_discrete_actions_are_held_as_often_and_drawn_as_before(kind: str, is_random: bool) -> None:
    more: dict[str, Any] = {"bernoulli": {}, "categorical": {"nvec": (3,)}, "multi_categorical": {"nvec": (3, 2)}}[kind]
    shape = () if kind == "categorical" else (2,)
    d = JointDistribution(
        (ActionLeaf(path="", kind=kind, shape=shape, start=(0,) * len(more.get("nvec", ())), **more),)
    )
    (leaf,) = d.parts
    logits = np.zeros(leaf.leaf.num_params) if is_random else np.linspace(-0.4, 0.9, leaf.leaf.num_params)
    params, rng = np.tile(logits.astype(F), (len(KEPT), 1)), np.random.default_rng(0)
    d.draw_by(KEPT)
    act = (lambda: d.uniform(len(KEPT), None, rng)) if is_random else (lambda: d.sample(params, None, rng))
    found: Any = np.stack([act() for _ in range(20_000)]).reshape(20_000, len(KEPT), -1)
    for i in range(found.shape[2]):
        if kind == "bernoulli":
            p = np.array([1 - 1 / (1 + np.exp(-logits[i])), 1 / (1 + np.exp(-logits[i]))])
        else:
            part = logits[:3] if i == 0 else logits[3:]
            p = np.exp(part) / np.exp(part).sum()
        for b, kept in enumerate(KEPT):
            np.testing.assert_allclose(np.bincount(found[:, b, i]) / len(found), p, atol=0.05)
            held = kept**2
            same = (found[1:, b, i] == found[:-1, b, i]).mean()  # those held, and others that happen to be alike
            assert same == pytest.approx(held + (1 - held) * (p @ p), abs=0.03)
    if found.shape[2] > 1:  # all of a stream is held at once
        same = (found[1:] == found[:-1]).all(2).mean(0)
        assert (same >= KEPT**2 - 0.02).all()


def test_a_held_draw_obeys_what_has_changed() -> None:
    """The random numbers are held, not the action: a mask, or other logits, still decide."""
    d = JointDistribution((ActionLeaf(path="", kind="categorical", shape=(), nvec=(3,), start=(0,)),))
    d.draw_by(np.full(4, 0.999, F))
    rng = np.random.default_rng(0)
    for step in range(60):
        mask = np.zeros((4, 3), bool)
        mask[:, step % 3] = True
        assert (d.uniform(4, mask, rng) == step % 3).all()
        params: Any = d.masked(np.zeros((4, 3), F), mask)
        assert (d.sample(params, None, rng) == step % 3).all()


# -- which episodes have it --------------------------------------------------------------------------------------------


def end(noise: LastingNoise, stream: int, reward: float) -> None:
    """An episode ends, as a worker tells it."""
    if noise.kept is not None:
        assert noise.go_on([Episode(stream, reward, 1, {})]) is noise.is_on


def shares(noise: LastingNoise) -> list[float]:
    assert noise.kept is not None
    return [round(float(r), 6) for r in noise.kept]


def test_the_episodes_of_each_stream_alternate() -> None:
    noise = LastingNoise(4.0, 5)
    assert shares(noise) == [0, 0.75, 0, 0.75, 0]
    array = noise.kept
    end(noise, 0, 1.0)
    end(noise, 3, 2.0)
    assert shares(noise) == [0.75, 0.75, 0, 0, 0] and noise.kept is array  # policies draw by it as it is
    end(noise, 0, 3.0)
    end(noise, 3, 4.0)
    assert shares(noise) == [0, 0.75, 0, 0.75, 0]
    assert (list(noise.white), list(noise.lasting)) == ([1.0, 4.0], [2.0, 3.0])
    end(noise, 1, 5.0)
    noise.begin()
    assert shares(noise) == [0, 0.75, 0, 0.75, 0] and len(noise.lasting) == 3  # what was earned is known on


def test_one_step_is_white_noise() -> None:
    noise = LastingNoise(1.0, 4)
    for b in range(4):
        end(noise, b, float(b))
    assert noise.kept is None and not noise.is_on and not noise.white and not noise.lasting


def play(noise: LastingNoise, lasting: list[float], white: list[float]) -> None:
    """One stream's episodes, of which every first has white noise."""
    for one, other in zip(lasting, white, strict=True):
        end(noise, 0, other)
        end(noise, 0, one)


def around(mean: float, num: int, deviation: float = 1.0) -> list[float]:
    """Numbers with this mean and sample deviation."""
    x = np.random.default_rng(num).normal(size=num)
    return [float(r) for r in mean + deviation * (x - x.mean()) / x.std(ddof=1)]


@pytest.mark.parametrize("num", [FEWEST, 20, WINDOW])
@pytest.mark.parametrize("deviation", [(1.0, 1.0), (0.1, 3.0), (3.0, 0.1)])
def test_where_it_earns_less_by_so_many_standard_errors_all_noise_turns_white(
    num: int, deviation: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raypid.roles.lasting_noise.FEWEST", num)  # compared once, when all have been played
    error = np.sqrt((deviation[0] ** 2 + deviation[1] ** 2) / num)
    white = around(50.0, num, deviation[1])
    for errors, is_on in ((1.02 * WORSE, False), (0.98 * WORSE, True), (0.0, True), (-9.0, True)):
        noise = LastingNoise(16.0, 1)
        play(noise, around(50.0 - errors * error, num, deviation[0]), white)
        assert noise.is_on is is_on and (noise.kept is not None) is is_on


def test_fewer_episodes_say_nothing() -> None:
    noise = LastingNoise(16.0, 1)
    play(noise, [0.0] * (FEWEST - 1), [1.0] * (FEWEST - 1))
    end(noise, 0, 1.0)
    assert noise.is_on and (len(noise.lasting), len(noise.white)) == (FEWEST - 1, FEWEST)
    end(noise, 0, 0.0)
    assert not noise.is_on and noise.kept is None
    before = noise.state_dict()
    for _ in range(50):
        end(noise, 0, 100.0)  # it stays so
    assert noise.state_dict() == before


def test_they_are_compared_after_as_many_episodes_again() -> None:
    noise = LastingNoise(16.0, 1)
    play(noise, [5.0] * FEWEST, [5.0] * FEWEST)
    play(noise, [-50.0] * (FEWEST - 1), [5.0] * (FEWEST - 1))
    end(noise, 0, 5.0)
    assert noise.is_on
    again = LastingNoise(16.0, 1)
    again.load_state_dict(noise.state_dict())  # a resumed run waits no longer
    for one in (noise, again):
        one.go_on([Episode(0, -50.0, 1, {})])
        assert not one.is_on


def test_where_both_earn_the_same_it_stays() -> None:
    noise, rng = LastingNoise(16.0, 1), np.random.default_rng(0)
    play(noise, [7.0] * 100, [7.0] * 100)
    assert noise.is_on
    play(noise, rng.normal(7, 0.01, 100).tolist(), [6.99] * 100)
    assert noise.is_on


def test_the_newest_episodes_are_compared() -> None:
    noise = LastingNoise(16.0, 1)
    play(noise, around(5.0, WINDOW), around(0.0, WINDOW))
    assert noise.is_on
    now = around(0.0, 2 * WINDOW), around(2.0, 2 * WINDOW)  # by now it does harm: less than what came before
    play(noise, *now)
    assert not noise.is_on and 5.0 not in noise.lasting


def test_a_state_goes_round() -> None:
    noise = LastingNoise(16.0, 3)
    play(noise, around(0.0, 5), around(1.0, 5))
    copied = LastingNoise(16.0, 3)
    copied.load_state_dict(noise.state_dict())
    assert copied.state_dict() == noise.state_dict() and copied.is_on
    copied.load_state_dict(noise.state_dict())  # into one that knows of episodes already
    assert copied.state_dict() == noise.state_dict()
    play(noise, [0.0] * FEWEST, [9.0] * FEWEST)
    assert not noise.is_on
    copied.load_state_dict(noise.state_dict())
    assert not copied.is_on and copied.kept is None and copied.state_dict() == noise.state_dict()


def test_a_state_of_other_settings_tells_only_what_was_earned() -> None:
    on, harmful, white = LastingNoise(16.0, 2), LastingNoise(16.0, 2), LastingNoise(1.0, 2)
    play(harmful, [0.0] * FEWEST, [9.0] * FEWEST)
    white.load_state_dict(on.state_dict())
    assert not white.is_on and white.kept is None  # 1 is white noise in all
    on.load_state_dict(white.state_dict())
    assert on.is_on  # nothing was tried that could have done harm
    on.load_state_dict(harmful.state_dict())
    assert not on.is_on


# -- in a worker -------------------------------------------------------------------------------------------------------


EPISODE = 60
"""Steps."""


class Scored(gymnasium.Env[Any, Any]):
    """The reward is paid in an episode's last step: `lasting` where successive actions were alike, else `white`."""

    def __init__(self, lasting: float = 0.0, white: float = 0.0) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,), F), spaces.Box(-100, 100, (1,), F)
        self.paid = (white, lasting)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.actions: list[float] = []
        return np.zeros(1, F), {}

    def step(self, action: Any) -> Any:
        self.actions.append(float(action[0]))
        ended = len(self.actions) == EPISODE
        return np.zeros(1, F), self.paid[alike(self.actions)] if ended else 0.0, ended, False, {}


def alike(actions: Any) -> bool:
    """Whether successive actions mostly have the same side: those of white noise have it half of the time."""
    sides = np.sign(actions)
    return bool((sides[1:] == sides[:-1]).mean() > 0.75)


def worker(persistence: float, num_envs: int = 2, **config: float) -> TrajectoryWorker:
    network = build_spec(spaces.Box(-1, 1, (1,), F), spaces.Box(-100, 100, (1,), F), ModelConfig(hidden=(4,)))
    env = EnvSpec(env=Scored, env_config=config, num_envs=num_envs, vectorizer="sync", seed=0)
    return TrajectoryWorker(
        RolloutSpec(env=env, network=network, fragment_length=EPISODE + 1, seed=0, noise_persistence=persistence)
    )


def collected(rollout: TrajectoryWorker, num: int) -> Any:
    """[episode, B] whether the actions of an episode were alike. A fragment is an episode, and the row of its reset."""
    spec = rollout.spec.network
    flat = initial_mlp(spec, 1, np.random.default_rng(0))
    weights = Weights(0, np.zeros_like(flat), spec.mlp_table(1))
    ends = []
    for _ in range(num):
        _, t = rollout.collect(weights)
        ends.append([alike(t.action[t.valid[:, b], b, 0]) for b in range(rollout.env.num_envs)])
    return np.array(ends)


def test_every_second_episode_of_a_worker_has_it() -> None:
    turn = np.array([[False, True, False], [True, False, True]])
    np.testing.assert_array_equal(collected(worker(1024.0, 3), 6), np.tile(turn, (3, 1)))
    rollout = worker(1.0, 3)
    assert not collected(rollout, 6).any() and rollout.lasting.kept is None
    rollout = worker(1024.0, 3)
    collected(rollout, 1)
    rollout.boundary(1)  # begins anew, where a resumed run begins
    np.testing.assert_array_equal(collected(rollout, 4), np.tile(turn, (2, 1)))


@pytest.mark.parametrize(("lasting", "white", "is_on"), [(0.0, 1.0, False), (1.0, 0.0, True), (1.0, 1.0, True)])
def test_a_worker_turns_to_white_noise_where_the_other_earns_less(lasting: float, white: float, is_on: bool) -> None:
    rollout = worker(1024.0, 4, lasting=lasting, white=white)
    collected(rollout, 2 * FEWEST)
    assert rollout.lasting.is_on is is_on
    later = collected(rollout, 6)
    assert later.any() if is_on else not later.any()
    state = rollout.state_dict()
    again = worker(1024.0, 4)
    again.load_state_dict(state)
    again.boundary(1)
    assert again.state_dict() == state
    assert collected(again, 6).any() == is_on


# -- in a run ----------------------------------------------------------------------------------------------------------

PPO = {"num_envs_per_worker": 2, "fragment_length": 64, "batch_size": 64, "num_epochs": 1, "seed": 3, "num_threads": 1}
TIMES = ("time_", "timing/", "env_steps_per_s")


def history(agent: Agent, num: int) -> list[dict[str, Any]]:
    results = (agent.train() for _ in range(num))
    return [{k: v for k, v in result.items() if not k.startswith(TIMES)} for result in results]


def assert_equal(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def noise_of(agent: Agent) -> LastingNoise:
    found: LastingNoise = agent.context.workers.handles[0].role.worker.lasting  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCarContinuous-v0", "CartPole-v1"])
@pytest.mark.parametrize("does_harm", [False, True])
def test_an_exact_resume_goes_on_with_the_noise(env: str, does_harm: bool, tmp_path: Path) -> None:
    settings = {**PPO, "env": env, "time_limit": 8, "noise_persistence": 16.0, "exact_resume": True}
    with Agent("PPO", settings) as whole:
        history(whole, 2)
        noise = noise_of(whole)
        assert noise.is_on and noise.lasting and noise.white
        if does_harm:  # as if it had been found to
            noise.is_on = False
        path = whole.save(tmp_path)
        saved = noise.state_dict()
        expected = history(whole, 3)
        with Agent.from_checkpoint(path) as resumed:
            assert noise_of(resumed).state_dict() == saved and (noise_of(resumed).kept is None) == does_harm
            assert_equal(expected, history(resumed, 3))
            np.testing.assert_array_equal(whole.get_weights().flat, resumed.get_weights().flat)
            assert noise_of(resumed).state_dict() == noise_of(whole).state_dict()
        whole.restore(path)  # into a run that has come further
        assert noise_of(whole).state_dict() == saved
        assert_equal(expected, history(whole, 3))


def test_it_changes_what_a_run_does() -> None:
    found = []
    for steps in (1.0, 16.0):
        with Agent("PPO", {**PPO, "env": "Pendulum-v1", "time_limit": 8}, noise_persistence=steps) as agent:
            assert noise_of(agent).is_on == (steps > 1)
            history(agent, 1)
            found.append(agent.get_weights().flat)
    assert not np.array_equal(*found)


@pytest.mark.parametrize(
    ("run", "settings", "words"),
    [
        ("ES", {"env": "Pendulum-v1"}, "noise_persistence has no effect for ES and ARS, which perturb weights"),
        ("ARS", {"env": "Pendulum-v1"}, "noise_persistence has no effect for ES and ARS, which perturb weights"),
        (
            "CustomModel",
            {"env": "Pendulum-v1", "model": {"network": "foreign:Reinforce"}},
            "noise_persistence has no effect for a model of your own, which draws its actions itself",
        ),
    ],
)
def test_where_it_would_do_nothing_it_is_refused(run: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Agent(run, settings, noise_persistence=4.0)


@pytest.mark.parametrize("steps", [0.5, 0.0, -1.0])
def test_less_than_a_step_is_refused(steps: float) -> None:
    with pytest.raises(ConfigError, match="noise_persistence must be at least 1"):
        Agent("PPO", env="Pendulum-v1", noise_persistence=steps)
