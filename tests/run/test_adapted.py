"""What a run decides by its environment, how it says so, and that it keeps it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import raypid
from raypid.cli import main
from raypid.envs import EnvSpec, sample_apart
from raypid.envs.make import LOOK
from raypid.plugins.registry import ENVS
from raypid.report.logger import read_params
from raypid.run.agent import Agent
from raypid.run.resolve import ResolvedRun, _choices, _looks, _sampled, resolve, settle
from raypid.settings.config import ConfigError, Given
from raypid.settings.request import RunRequest

SMALL = {
    "num_envs_per_worker": 2,
    "fragment_length": 16,
    "batch_size": 16,
    "evaluation_interval": 0,
    "model": {"hidden": [8]},
}
TASKS = (
    "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "LunarLander-v3", "LunarLanderContinuous-v3",
    "BipedalWalker-v3", "raypid/Catch-v0", "raypid/MultiMatch-v0", "raypid/TMaze-v0",
)  # fmt: skip


class Steady(gymnasium.Env):
    """Observation [2] of this size, without bounds; episodes of 5 steps."""

    resets, steps = 0, 0
    """Of all of them."""

    def __init__(self, size: float = 1.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.size = size

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        Steady.resets += 1
        self.t = 0
        return np.array([self.size, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        Steady.steps += 1
        self.t += 1
        return np.array([self.size, self.t], np.float32), 1.0, self.t == 5, False, {}


class Endless(Steady):
    """Actions are numbers, and no episode terminates before step `ends`; at `fails` a step raises or, by `how`, hangs or ends the process. `slow`
    steps take 2 ms."""

    def __init__(self, ends: int = 10**6, fails: int = 0, how: str = "raise", slow: bool = False) -> None:
        super().__init__()
        self.slow = slow
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.ends, self.fails, self.how = ends, fails, how

    def step(self, action: Any) -> Any:
        obs, reward, *_, info = super().step(action)
        time.sleep(0.002 * self.slow)
        if self.t == self.fails:
            if self.how == "exit":
                os._exit(3)
            while self.how == "hang":
                time.sleep(1)
            raise RuntimeError("no step today")
        return obs / self.t, reward, self.t == self.ends, self.t == 30, info


class Grid(Steady):
    """Symbols up to 10, in an array that could be a picture."""

    largest = 10

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (16, 16, 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._see(super().reset(seed=seed)[1])

    def step(self, action: Any) -> Any:
        return self._see(*super().step(action)[1:])

    def _see(self, *rest: Any) -> Any:
        return self.np_random.integers(0, self.largest, (16, 16, 1), np.uint8, endpoint=True), *rest


class Pictures(Grid):
    largest = 255


class Dim(Pictures):
    """It begins dark."""

    def _see(self, *rest: Any) -> Any:
        image, *rest = super()._see(*rest)
        return (image if self.t > 3 else image // 16), *rest


class Failing(Steady):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no reset today")


class Hanging(Steady):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        while True:
            time.sleep(1)


class Exiting(Steady):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        os._exit(3)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENVS, "_entries", {**ENVS._entries, "steady": Steady})


def resolved(run: str, env: Any, **settings: Any) -> ResolvedRun:
    return resolve(RunRequest(run=run, settings=Given({"env": env, **settings})))


def adapted(run: str, env: Any, **settings: Any) -> dict[str, Any]:
    """What a look at the environment chose, and why."""
    settled = settle(RunRequest(run=run, settings=Given({"env": env, "seed": 0, **settings})))
    found = _sampled(settled.config, _looks(settled, is_new=True))
    return {name: choice for name, choice in _choices(settled, found, None)[0].items() if name != "kernel"}


@pytest.mark.parametrize("env", TASKS)
def test_the_usual_tasks_are_learnt_from_as_they_are(env: str) -> None:
    found = adapted("A2C", env)
    assert found in ({}, {"normalize_observations": (False, "no large numbers in observations")})


@pytest.mark.parametrize("run", ["PPO", "A2C", "A3C", "APPO", "IMPALA"])
def test_actor_critics_normalise_observations_without_bounds(run: str) -> None:
    found = adapted(run, "Hopper-v5")
    assert found["normalize_observations"] == (True, "observations have no bounds")
    assert "model.log_std_init" not in found  # episodes end where it falls
    assert adapted(run, "HalfCheetah-v5")["model.log_std_init"] == (
        -1.0,
        f"no episode terminates within {LOOK} random steps",
    )
    if run == "PPO":
        assert (found["gae_lambda"][0], found["desired_kl"][0]) == (0.95, 0.0)
        plain = adapted(run, "Hopper-v5", normalize_observations=False)
        assert (plain["gae_lambda"][0], plain["desired_kl"][0]) == (0.98, 0.01)
        assert not {"gae_lambda", "desired_kl"} & adapted(run, "Hopper-v5", gae_lambda=0.9, desired_kl=0).keys()
        endless = adapted(run, "HalfCheetah-v5")
        assert (endless["gae_lambda"][0], endless["clip"][0], endless["model.hidden"][0]) == (0.92, 0.15, (128, 128))
        discrete = adapted(run, "CartPole-v1")
        assert (discrete["gae_lambda"][0], discrete["model.hidden"][0]) == (0.98, (64, 64))
    assert adapted(run, "CartPole-v1")["normalize_observations"][0]
    assert not adapted(run, "Acrobot-v1")["normalize_observations"][0]


def test_ppo_explores_more_where_all_is_discrete() -> None:
    assert adapted("PPO", "FrozenLake-v1")["entropy_coef"] == (0.05, "observations and actions are discrete")
    assert adapted("PPO", "raypid/Catch-v0")["entropy_coef"] == (0.01, "for discrete actions")


@pytest.mark.parametrize(
    ("env", "settings", "gamma"),
    [
        ("LunarLander-v3", {}, 0.998), ("MountainCarContinuous-v0", {}, 0.998), ("LunarLander-v3", {"time_limit": 500}, 0.99),
        ("Acrobot-v1", {}, 0.99), ("Acrobot-v1", {"time_limit": 501}, 0.998), ("BipedalWalker-v3", {}, 0.99), ("Hopper-v5", {}, 0.99),
        ("Hopper-v5", {"normalize_observations": False}, 0.998), ("ALE/Pong-v5", {"time_limit": 1000, "vectorizer": "sync"}, 0.99),
        (lambda: gymnasium.make("LunarLander-v3"), {}, 0.998), (lambda: gymnasium.make("LunarLander-v3").unwrapped, {}, 0.99),
    ],
)  # fmt: skip
def test_ppo_looks_farther_ahead_in_long_episodes(env: Any, settings: dict[str, Any], gamma: float) -> None:
    found = adapted("PPO", env, **settings)
    assert found["gamma"][0] == gamma and (found["num_epochs"][0] == 8) is (gamma == 0.998)
    given = adapted("PPO", env, gamma=0.99, **settings)
    assert "gamma" not in given and given["num_epochs"][0] in (5, 10) and "gamma" not in adapted("A2C", env, **settings)
    with Agent("PPO", env=env, **SMALL, **settings) as agent:
        assert agent.config.gamma == gamma
        assert ("gamma 0.998, num_epochs 8" in agent.explain().adapted()) is (gamma == 0.998)


@pytest.mark.parametrize("run", ["DQN", "SQN", "SAC", "R2D2"])
def test_replay_normalises_observations_without_bounds(run: str) -> None:
    assert adapted(run, "CartPole-v1")["normalize_observations"] == (True, "observations have no bounds")
    assert adapted(run, "MountainCar-v0")["normalize_observations"][0] is False


@pytest.mark.parametrize(("env", "entropy_coef", "num_epochs"), [("CartPole-v1", 0.01, 5), ("Pendulum-v1", 0.0, 10)])
def test_ppo_decides_by_the_kind_of_actions(env: str, entropy_coef: float, num_epochs: int) -> None:
    found = adapted("PPO", env)
    assert (found["entropy_coef"][0], found["num_epochs"][0]) == (entropy_coef, num_epochs)
    given = adapted("PPO", env, num_epochs=3)
    assert "num_epochs" not in given and "entropy_coef" in given
    with raypid.PPO(env, seed=0, evaluation_interval=0) as agent:
        assert (agent.config.entropy_coef, agent.config.num_epochs) == (entropy_coef, num_epochs)


@pytest.mark.parametrize(
    ("run", "settings", "length"),
    [
        ("SAC", {}, 8), ("SAC", {"num_workers": 2}, 8), ("DQN", {"num_workers": 2, "fragment_length": 1}, 1),
        ("ApeX", {"num_workers": 2}, 32), ("A2C", {"num_workers": 2}, 16),
    ],
)  # fmt: skip
def test_workers_do_not_change_how_many_rows_a_call_collects(run: str, settings: dict[str, Any], length: int) -> None:
    found = resolved(run, "CartPole-v1", **settings)
    assert found.config.fragment_length == length
    assert all(source.kind != "adapted" for source in found.sources.get("fragment_length", []))


@pytest.mark.parametrize(
    ("env", "resets", "steps"),
    [(Steady, 0, 0), (Grid, 4, 17), (Pictures, 1, 0), (Dim, 1, 4)],
)
def test_one_environment_is_stepped_only_to_tell_pictures_from_symbols(env: Any, resets: int, steps: int) -> None:
    Steady.resets = Steady.steps = 0
    assert adapted("A2C", env).get("normalize_observations", (False,))[0] is (env in (Steady, Grid))
    assert (Steady.resets, Steady.steps) == (resets, steps)
    Steady.steps = 0
    assert adapted("A2C", Steady, normalize_observations=False) == {} and Steady.steps == 0


@pytest.mark.parametrize("env", [Grid, Pictures])
def test_a_run_keeps_what_it_takes_for_pictures(env: Any, tmp_path: Path) -> None:
    with raypid.PPO(env, seed=0, config=SMALL) as agent:
        pipeline = agent.network.pipeline
        assert bool(pipeline.images) is (env is Pictures) and pipeline.normalize is (env is Grid)
        agent.train()
        saved = agent.save(tmp_path / "saved")
    Steady.resets = 0
    with Agent.from_checkpoint(saved, env=Pictures) as agent:  # its observations would decide otherwise
        assert env is Grid or not agent.changes
        assert agent.network.pipeline == pipeline
        agent.train()


@pytest.mark.parametrize(
    ("run", "settings"),
    [("SAC", {}), ("TD3", {}), ("DDPG", {}), ("PPO", {"model": {"distribution": "squashed_gaussian"}})],
)
@pytest.mark.parametrize("high", [np.inf, 1.0])
def test_actions_between_bounds_need_bounds(run: str, settings: dict[str, Any], high: float) -> None:
    class Dial(Steady):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-np.inf, high, (1,), np.float32)

    with pytest.raises(ConfigError, match=f"{run} chooses actions between .* declare finite bounds"):
        raypid.Agent(run, env=Dial, **settings)


@pytest.mark.parametrize(("env", "is_seen"), [(Steady, True), (Failing, False), (Hanging, False), (Exiting, False)])
def test_a_first_reset_apart_may_fail(env: Any, is_seen: bool) -> None:
    found = sample_apart(EnvSpec(env=env), 2.0 if env is Hanging else 60.0, lambda found: "reset")
    assert found.observation_space.shape == (2,) and (found.first is not None) == is_seen


def test_where_nothing_terminates_soon_actions_deviate_less_at_first() -> None:
    Steady.steps = 0
    why = f"no episode terminates within {LOOK} random steps"
    unbounded = {"normalize_observations": (True, "observations have no bounds")}
    assert adapted("A2C", Endless) == {**unbounded, "model.log_std_init": (-1.0, why)}
    assert Steady.steps == LOOK - 3  # after an episode of 30 steps a call resets
    examined = resolved("PPO", Endless)
    assert examined.network.pipeline.normalize and examined.network.log_std_init == -1
    Steady.steps = 0
    assert adapted("A2C", Endless, model={"log_std_init": -0.5}) == unbounded and Steady.steps == 0
    given = resolved("PPO", Endless, model={"log_std_init": -0.5})
    assert given.network.log_std_init == -0.5
    ends = resolved("PPO", Endless, env_config={"ends": 20})
    assert ends.network.pipeline.normalize and ends.network.log_std_init == 0 and Steady.steps == 20
    assert adapted("A2C", Endless, normalize_observations=False) == {"model.log_std_init": (-1.0, why)}
    squashed = {"model": {"distribution": "squashed_gaussian"}}
    assert adapted("A2C", Endless, **squashed) == unbounded  # its deviation depends on the observation
    Steady.steps = 0
    for run in ("ES", "ARS"):
        assert "model.log_std_init" not in adapted(run, Endless) and Steady.steps == 0


@pytest.mark.parametrize(
    ("settings", "num_envs", "length"),
    [
        ({}, 32, 64), ({"env_config": {"slow": True}}, 8, 256), ({"env_config": {"ends": 20}}, 8, 256),
        ({"fragment_length": 128}, 8, 128), ({"num_envs_per_worker": 16}, 16, 256), ({"model": {"log_std_init": 0.0}}, 8, 256),
        ({"env": "CartPole-v1"}, 16, 128), ({"env": "CartPole-v1", "vectorizer": "sync"}, 8, 256),
        ({"env": "CartPole-v1", "model": {"memory": "lstm"}}, 8, 256), ({"env": "Acrobot-v1"}, 8, 256),
    ],
)  # fmt: skip
def test_where_nothing_terminates_and_steps_are_fast_more_streams_act_at_once(
    settings: dict[str, Any], num_envs: int, length: int
) -> None:
    env = settings.pop("env", Endless)
    found = adapted("PPO", env, **settings) | settings
    sizes = [found[name] for name in ("num_envs_per_worker", "fragment_length")]
    assert [size[0] if isinstance(size, tuple) else size for size in sizes] == [num_envs, length]


@pytest.mark.parametrize("run", ["SAC", "TD3", "DDPG"])
def test_where_nothing_terminates_soon_targets_bootstrap_at_once(run: str) -> None:
    found = adapted(run, Endless)
    assert (
        found["n_step"] == (1, f"no episode terminates within {LOOK} random steps")
        and "model.log_std_init" not in found
    )
    for ends in (adapted(run, Endless, env_config={"ends": 20}), adapted(run, "Pendulum-v1")):
        assert ends["n_step"] == (5, "the usual choice")
    Steady.steps = 0
    assert "n_step" not in adapted(run, Endless, n_step=3) and Steady.steps == 0


def test_a_run_keeps_its_first_deviation(tmp_path: Path) -> None:
    with raypid.A2C(Endless, seed=0, config=SMALL) as agent:
        assert agent.config.model.log_std_init == -1 and agent.network.log_std_init == -1
        agent.train()
        saved = agent.save(tmp_path / "saved")
    Steady.steps = 0
    with Agent.from_checkpoint(saved, env=Endless) as agent:
        assert Steady.steps == 0 and agent.config.model.log_std_init == -1


def test_the_look_leaves_the_generator_of_a_shared_space_alone() -> None:
    class Sharing(Endless):
        actions = spaces.Box(-1, 1, (1,), np.float32)

        def __init__(self) -> None:
            super().__init__()
            self.action_space = Sharing.actions

    Sharing.actions.seed(5)
    before = Sharing.actions.np_random.bit_generator.state
    assert adapted("PPO", Sharing)["model.log_std_init"][0] == -1
    assert Sharing.actions.np_random.bit_generator.state == before


def test_a_step_of_the_look_may_fail() -> None:
    assert "model.log_std_init" not in adapted("PPO", Endless, env_config={"fails": 3})
    for how in ("raise", "hang", "exit"):
        spec = EnvSpec(env=Endless, env_config={"fails": 3, "how": how})
        found = sample_apart(spec, 1.0 if how == "hang" else 60.0, lambda found: "steps")
        assert found.first is not None and found.terminates is None
    assert sample_apart(EnvSpec(env=Endless), 60.0, lambda found: "steps").terminates is False


def test_where_it_cannot_be_it_is_left() -> None:
    several = {
        "num_workers": 2,
        "num_learners": 2,
        "learner_sync": "asynchronous",
        "n_step": 1,
        "env_config": {"size": 1e5},
    }
    assert adapted("DQN", Steady, **several) == {"normalize_observations": (False, "other settings forbid it")}


@pytest.mark.parametrize("run", ["A2C", "DQN"])
def test_a_run_keeps_what_it_has_decided(run: str, tmp_path: Path) -> None:
    settings = {**SMALL, "env": "steady", "env_config": {"size": 1e5}, "seed": 0}
    if run == "DQN":
        settings |= {"start_steps": 16, "buffer_size": 200, "fragment_length": 1, "steps_per_iteration": 32}
    with Agent(run, settings, out=tmp_path) as agent:
        row = agent.explain().as_dict()["settings"]["normalize_observations"]
        assert (row["value"], row["from"], row["detail"]) == (True, "adapted", "observations have no bounds")
        agent.train()
        saved = agent.save()
        assert agent.config.normalize_observations is True and agent.changes == []
        assert agent.get_weights().extra["obs_mean"][0] == pytest.approx(1e5)
    with Agent.from_checkpoint(saved, env_config={"size": 1.0}) as agent:
        assert agent.config.normalize_observations is True and agent.network.pipeline.normalize
        agent.train()
    with raypid.A2C("Pendulum-v1", config=SMALL) as agent:
        assert agent.plain_config()["normalize_observations"] is False and not agent.network.pipeline.normalize


def test_the_command_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    command = [
        "train",
        "--run",
        "A2C",
        "--env",
        "steady",
        "--stop",
        '{"training_iteration": 1}',
        "--final-episodes",
        "0",
    ]
    assert main([*command, "--env-config", '{"size": 1e5}', "--explain"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "normalize_observations true adapted: observations have no bounds" in said
    assert main([*command, "--env-config", '{"size": 1e5}', "--out", "large"]) == 0
    assert "normalize_observations true (--explain says why)" in capfd.readouterr().out
    assert read_params("large")["normalize_observations"] is True
    assert main([*command[:4], "Pendulum-v1", *command[5:], "--out", "plain"]) == 0
    assert "normalize_observations" not in capfd.readouterr().out
    assert read_params("plain")["normalize_observations"] is False


def test_an_open_setting_that_is_off_may_be_without_effect() -> None:
    """So the model of a run's params.json can be given to another one."""
    resolved("PPO", "CartPole-v1", model={"log_std_init": 0.0})
    with pytest.raises(ConfigError, match="log_std_init has no effect"):
        resolved("PPO", "CartPole-v1", model={"log_std_init": -1.0})
