"""What listeners hear, and what they may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from raypid.errors import ConfigError
from raypid.outcome import Outcome
from raypid.run.agent import Agent
from raypid.run.evaluation import Played
from raypid.run.events import Listener
from raypid.storage import checkpoint
from raypid.storage.run_folder import RunFolder

SMALL = {"env": "CartPole-v1", "num_envs_per_worker": 2, "fragment_length": 16, "batch_size": 32, "seed": 0}
QUIET = {"quiet": True, "final_episodes": 0}


class Heard(Listener):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_start(self, config: dict[str, object]) -> None:
        self.events.append(f"start of {config['run']}")

    def on_iteration(self, result: dict[str, float]) -> None:
        self.events.append(f"iteration {result['training_iteration']}")

    def on_evaluation(self, played: Played) -> None:
        self.events.append("evaluation")

    def on_checkpoint(self, path: Path) -> None:
        self.events.append(path.name)

    def on_end(self, outcome: Outcome) -> None:
        self.events.append(f"end: {outcome.reason}")


def test_a_listener_hears_a_run_until_it_is_removed(tmp_path: Path) -> None:
    heard = Heard()
    with Agent("PPO", SMALL, evaluation_interval=2, evaluation_num_episodes=1, out=tmp_path) as agent:
        stop_listening = agent.listen(heard)
        agent.fit({"training_iteration": 2}, **QUIET)
        stop_listening()
        stop_listening()
        agent.train()
    assert heard.events == [
        "start of PPO",
        "iteration 1",
        "evaluation",
        "iteration 2",
        "checkpoint_000002",
        "end: training_iteration reached 2",
    ]


class Asking(Listener):
    """Asks for a checkpoint in the second iteration, and for an end in the third."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def on_iteration(self, result: dict[str, float]) -> None:
        if result["training_iteration"] == 2:
            self.agent.request_save()
        if result["training_iteration"] == 3:
            self.agent.request_stop("seen enough")


class Meddling(Listener):
    def on_iteration(self, result: dict[str, float]) -> None:
        result |= {"timesteps_total": 1e9, "mine": 7.0}

    def on_evaluation(self, played: Played) -> None:
        with pytest.raises(ValueError, match="read-only"):
            played.evaluation.rewards[:] = 1e9


def test_a_listener_may_add_to_a_result_and_change_nothing(tmp_path: Path) -> None:
    with Agent("PPO", SMALL, evaluation_interval=1, evaluation_num_episodes=1, out=tmp_path) as agent:
        agent.listen(Meddling())
        outcome = agent.fit({"timesteps_total": 90, "evaluation/episode_reward_mean": 1e8}, **QUIET)
    assert 90 <= outcome.result["timesteps_total"] < 130 and outcome.result["mine"] == 7.0


def test_what_a_listener_asks_for_is_done_after_the_iteration(tmp_path: Path) -> None:
    with Agent("PPO", SMALL, evaluation_interval=0, out=tmp_path) as agent:
        agent.listen(Asking(agent))
        outcome = agent.fit({"training_iteration": 9}, **QUIET)
        assert (outcome.reason, outcome.interrupted) == ("seen enough", False)
        assert [path.name[-1] for path in checkpoint.list_checkpoints(tmp_path / "checkpoints")] == ["2", "3"]
        assert agent.fit({"training_iteration": 5}, **QUIET).reason == "training_iteration reached 5"
    with Agent("PPO", SMALL, evaluation_interval=0) as alone:
        alone.listen(Asking(alone))
        assert alone.train(1_000)["training_iteration"] == 3
        assert alone.train(100)["training_iteration"] > 4


def test_a_misspelt_hook_of_a_listener_is_refused() -> None:
    class Misspelt(Listener):
        def on_iteratoin(self, result: dict[str, float]) -> None: ...

    class Short(Listener):
        def on_rollback(self, iteration: int) -> None: ...  # type: ignore[override]

    with Agent("PPO", SMALL) as agent:
        with pytest.raises(
            ConfigError, match="Misspelt.on_iteratoin would never be called. Did you mean on_iteration?"
        ):
            agent.listen(Misspelt())
        with pytest.raises(ConfigError, match=r"Short.on_rollback is called as on_rollback\(self, iteration, text\)"):
            agent.listen(Short())


class Broken(Listener):
    def on_checkpoint(self, path: Path) -> None:
        raise OSError("the tracker does not answer")


def test_a_listener_that_raises_after_the_fact_ends_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Agent("PPO", SMALL, evaluation_interval=0, out=tmp_path) as agent:
        agent.listen(Broken())
        assert agent.fit({"training_iteration": 1}, **QUIET).checkpoint is not None
        said = "on_checkpoint of Broken raised OSError: the tracker does not answer. errors.txt has the traceback."
        assert said in capfd.readouterr().err
        with pytest.raises(OSError, match="does not answer"):
            agent.save()
    assert "on_checkpoint of Broken raised:\nTraceback" in (tmp_path / "errors.txt").read_text()
    assert RunFolder(tmp_path).last_error == (0, "")
