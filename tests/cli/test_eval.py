"""`raypid eval`: what it prints, other environments, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import raypid
from raypid.cli import main
from raypid.envs import EnvSpec, make_vector
from raypid.run.deploy import _steps_a_second, environment_of

SAVED = Path(__file__).parents[1] / "fixtures" / "saved"
PPO = str(SAVED / "ppo")


class Short(CartPoleEnv):
    """CartPole that pays `pay` for each step."""

    def __init__(self, pay: float = 1.0) -> None:
        super().__init__()
        self.pay = pay

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self.pay, terminated, truncated, info


class Undrawn(CartPoleEnv):
    """CartPole that cannot be drawn."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()


@pytest.fixture(autouse=True)
def short() -> Any:
    gymnasium.register("Short-v0", Short)
    yield
    del gymnasium.registry["Short-v0"]


def test_a_policy_of_several_processes_is_evaluated_on_one_core(tmp_path: Path) -> None:
    settings = {"vectorizer": "processes", "num_envs_per_worker": 2, "fragment_length": 8, "evaluation_interval": 0}
    with raypid.PPO("CartPole-v1", config=settings, out=tmp_path / "run") as agent:
        agent.train()
        agent.save()
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", PPO, "--episodes", "3"]) == 0
    first, returns, length, policy = capsys.readouterr().out.splitlines()
    assert first == "PPO on CartPole-v1, 3 episodes, greedy actions"
    assert " ± " in returns and " (95% interval), from " in returns and length.startswith("length  ")
    assert policy == f"policy  {SAVED / 'ppo' / 'best'} (weights' version 1)"
    assert main(["eval", PPO, "--episodes", "1", "--explore"]) == 0
    first, returns, *_ = capsys.readouterr().out.splitlines()
    assert first == "PPO on CartPole-v1, 1 episode, sampled actions" and "±" not in returns


def test_json_in_another_environment_with_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--episodes", "1", "--json", "--env", "Short-v0", "--env-config", '{"pay": 0.5}']
    assert main(["eval", PPO, *flags]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["algorithm"], row["env"], row["episodes"]) == ("PPO", "Short-v0", 1)
    assert row["episode_reward_mean"] == 0.5 * row["episode_len_mean"] and row["episode_reward_ci95"] is None


def test_the_environment_is_the_trained_one_unless_another_is_named() -> None:
    trained = environment_of(SAVED / "ppo" / "best")
    assert (trained.env, dict(trained.env_config)) == ("CartPole-v1", {})
    other = environment_of(SAVED / "ppo" / "best", "Short-v0", {"pay": 2.0})
    assert (other.env, dict(other.env_config)) == ("Short-v0", {"pay": 2.0})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--env", "Pendulum-v1"], "takes observations {'': (4,)}; Pendulum-v1 has {'': (3,)}, or its actions differ"),
        (["--video", "x.avi"], "--video takes a file that ends in .mp4 or .gif, not 'x.avi'."),
        (["--env-config", "3"], "--env-config takes JSON"),
    ],
)
def test_what_does_not_fit(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", PPO, *flags]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_no_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["eval", PPO, "--episodes", "0"])
    assert end.value.code == 2
    assert "Argument --episodes: takes a whole number of at least 1, not '0'." in capsys.readouterr().err


def test_what_is_refused_before_an_episode_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("imageio")
    gymnasium.register("Undrawn-v0", Undrawn)
    monkeypatch.setattr("raypid.roles.evaluator.Evaluator.play", None)
    try:
        assert main(["eval", PPO, "--env", "Undrawn-v0", "--video", str(tmp_path / "x.mp4")]) == 2
    finally:
        del gymnasium.registry["Undrawn-v0"]
    assert "Undrawn-v0 cannot be filmed" in capsys.readouterr().err and not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert main(["eval", PPO, "--video", str(tmp_path / "file" / "x.mp4")]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err


def test_steps_a_second() -> None:
    def fps(**settings: Any) -> float:
        spec = EnvSpec(**{"env": "CartPole-v1", "vectorizer": "sync", **settings})
        vector = make_vector(spec)
        try:
            return _steps_a_second(spec, vector)
        finally:
            vector.close()

    assert fps() == 50
    assert fps(action_repeat=2) == 25
    assert fps(env="Short-v0") == 50
    for strange, expected in ((0, 30), (None, 30), ("fast", 30), (np.float64(12.5), 12.5)):
        Undrawn.metadata = {"render_modes": [], "render_fps": strange}
        assert fps(env=Undrawn) == expected
