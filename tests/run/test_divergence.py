"""Numbers that run away: found in the update that makes them, named, kept for a look, and never saved as a policy."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from raypid import load_policy
from raypid.cli import main
from raypid.errors import Diverged, UserError
from raypid.nn.policy import read_policy_weights
from raypid.outcome import Outcome
from raypid.report.logger import read_results
from raypid.report.panel import Quiet
from raypid.run.agent import Agent
from raypid.run.run import Run, RunOptions
from raypid.storage import checkpoint
from raypid.types import Weights

SMALL = {"num_envs_per_worker": 4, "fragment_length": 16, "batch_size": 32, "seed": 3, "evaluation_interval": 0}
EVOLUTION = {
    "num_envs_per_worker": 4,
    "population": 4,
    "seed": 3,
    "time_limit": 20,
    "model": {"hidden": [8]},
    "noise_table_size": 10_000,
    "evaluation_interval": 0,
}
REPLAY = {
    **SMALL,
    "fragment_length": 1,
    "start_steps": 40,
    "start_episodes": 0,
    "buffer_size": 400,
    "steps_per_iteration": 40,
}
PENDULUM = {"env": "Pendulum-v1"}
TINY = {"model": {"hidden": [8]}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("PPO", SMALL), "PPO torch": ("PPO", {**SMALL, "kernel": "torch"}),
    "A2C": ("A2C", SMALL), "A2C torch": ("A2C", {**SMALL, "kernel": "torch"}),
    "IMPALA": ("IMPALA", SMALL), "IMPALA torch": ("IMPALA", {**SMALL, "kernel": "torch"}),
    "APPO": ("APPO", SMALL), "APPO torch": ("APPO", {**SMALL, "kernel": "torch"}),
    "A3C": ("A3C", {**SMALL, "batch_size": 256}), "A3C torch": ("A3C", {**SMALL, "batch_size": 256, "kernel": "torch"}),
    "DQN": ("DQN", {**REPLAY, **TINY}), "SQN": ("SQN", {**REPLAY, **TINY}),
    "SAC": ("SAC", {**REPLAY, **TINY, **PENDULUM}), "TD3": ("TD3", {**REPLAY, **TINY, **PENDULUM}),
    "ES": ("ES", EVOLUTION), "ARS": ("ARS", EVOLUTION),
}  # fmt: skip


RAW = {**SMALL, "batch_size": 256, "normalize_rewards": False}


class Huge(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Rewards of 1e30: finite, but their squares are not in float32."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) * 1e30, *rest


def huge(worker_index: int, stream_index: int) -> Any:
    return Huge(gymnasium.make("CartPole-v1"))


def huge_swings(worker_index: int, stream_index: int) -> Any:
    return Huge(gymnasium.make("Pendulum-v1"))


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def diverge(run: str, folder: Path, iterations: int = 4, **settings: Any) -> Diverged:
    with Agent(run, {"env": "CartPole-v1", **settings}, out=folder) as agent:
        with pytest.raises(Diverged) as caught:
            for _ in range(iterations):
                agent.train()
        for ask in (agent.get_weights, agent.save, agent.train):
            with pytest.raises(Diverged):
                ask()
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_a_learning_rate_beyond_reason(case: str, tmp_path: Path) -> None:
    run, settings = CASES[case]
    error = diverge(run, tmp_path, **settings, lr=1e30)
    assert error.timesteps and "lr, which is 1e+30" in str(error) and " diverged at environment step " in str(error)
    assert str(tmp_path / "diverged") in str(error) and "\n" not in str(error)
    _, weights, _, _ = read_policy_weights(checkpoint.find_policy(tmp_path / "diverged"))
    assert np.isfinite(weights.flat).all() and load_policy(tmp_path / "diverged") is not None
    saved = checkpoint.open_checkpoint(tmp_path / "diverged")
    state, manifest = saved.state(), saved.manifest
    assert state["batch"] and manifest["what"] == error.what  # type: ignore[typeddict-item]
    assert not (tmp_path / "best").exists() and not checkpoint.list_checkpoints(tmp_path / "checkpoints")


def test_continuous_actions_are_not_the_environments_fault(tmp_path: Path) -> None:
    error = diverge("A2C", tmp_path, **{**SMALL, "batch_size": 64}, **PENDULUM, lr=1e6)
    assert "the deviation of the actions is inf" in str(error)


@pytest.mark.parametrize(
    ("run", "settings", "named"),
    [
        ("PPO", {**SMALL, "normalize_rewards": False, "env": huge}, "normalize_rewards or reward_clip or reward_scale"),
        ("SAC", {**REPLAY, **TINY, "normalize_rewards": False, "env": huge_swings}, "reward_clip or reward_scale"),
        ("TD3", {**REPLAY, **TINY, "normalize_rewards": False, "env": huge_swings}, "reward_clip or reward_scale"),
        ("A3C", {**RAW, "env": huge}, "Set normalize_rewards or reward_clip or reward_scale"),
        ("A3C", {**RAW, "env": huge, "reward_clip": 1e29}, "or lower reward_clip, which is 1e+29"),
    ],
    ids=("PPO", "SAC", "TD3", "A3C", "A3C clipped"),
)
def test_rewards_too_large_for_float32(run: str, settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    error = diverge(run, tmp_path, **settings)
    assert "rewards reach" in str(error) and named in str(error)


@pytest.mark.parametrize("case", ["PPO", "A2C torch", "DQN", "ES"])
def test_huge_rewards_that_can_be_learnt_from_are_silent(case: str) -> None:
    run, settings = CASES[case]
    with Agent(run, {**settings, "env": huge}) as agent:
        results = [agent.train() for _ in range(3)]
        assert np.isfinite(agent.get_weights().flat).all()
    assert results[-1]["timesteps_total"] > 0


def with_weights(agent: Agent, value: float) -> Weights:
    weights = agent.get_weights()
    weights.flat[:] = value
    return weights


def test_an_action_that_is_not_finite_never_reaches_the_environment(tmp_path: Path) -> None:
    with Agent(
        "TD3", {**REPLAY, **PENDULUM, "start_steps": 0, "start_episodes": 1, "model": {"hidden": [8, 8]}}, out=tmp_path
    ) as agent:
        weights = with_weights(agent, 1e18)
        weights.flat[::3] *= -1  # all finite, but of inf - inf there is no number
        agent.set_weights(weights)
        with pytest.raises(Diverged, match=r"at environment step \d+: the policy's action is nan"):
            for _ in range(3):
                agent.train()
        assert checkpoint.open_checkpoint(tmp_path / "diverged").state()["batch"].keys() == {"obs", "action"}


def inf_minus_inf(agent: Agent) -> Weights:
    """Weights that are all finite, but of which the actions are not."""
    weights = with_weights(agent, 1e18)
    weights.flat[::3] *= -1
    return weights


def test_one_that_only_an_evaluation_finds_leaves_the_same(tmp_path: Path) -> None:
    with Agent("TD3", {**REPLAY, **PENDULUM, "model": {"hidden": [8, 8]}, "time_limit": 5}, out=tmp_path) as agent:
        agent.train()
        agent.set_weights(inf_minus_inf(agent))
        with pytest.raises(Diverged, match=r"at environment step \d+: the policy's action is nan") as caught:
            agent.eval()
        assert f"The batch and the last good weights are in {tmp_path / 'diverged'}" in str(caught.value)
    saved = checkpoint.open_checkpoint(tmp_path / "diverged")
    state, manifest = saved.state(), saved.manifest
    assert state["batch"].keys() == {"obs", "action"} and manifest["timesteps_total"] == caught.value.timesteps  # type: ignore[typeddict-item]
    assert load_policy(tmp_path / "diverged") is not None


def test_a_run_whose_final_episodes_find_it(tmp_path: Path) -> None:
    settings = {**REPLAY, **PENDULUM, "model": {"hidden": [8, 8]}, "time_limit": 5, "evaluation_interval": 1}
    with Agent("TD3", {**settings, "evaluation_num_episodes": 2}, out=tmp_path) as agent:
        run = Run(agent, RunOptions(stop={"training_iteration": 2}, plot=False, final_episodes=12), Quiet())
        finish = run._finish

        def spoilt(result: dict[str, float]) -> Path | None:
            run.best.weights = inf_minus_inf(agent)
            return finish(result)

        run._finish = spoilt  # type: ignore[method-assign,assignment]
        with pytest.raises(Diverged, match="the newest checkpoint is checkpoint_000002"):
            run()
    assert (tmp_path / "diverged" / "manifest.json").exists()
    assert "Diverged" in (tmp_path / "errors.txt").read_text()


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with Agent("PPO", {"env": "CartPole-v1", **SMALL}) as agent:
        with pytest.raises(UserError, match="The given weights are not finite"):
            agent.set_weights(with_weights(agent, math.nan))


def test_the_error_travels() -> None:
    error = Diverged("the loss is nan", "Lower lr.", {"reward": np.ones(2)}, 7)
    error.kept = "It is kept."
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "Training diverged at environment step 7: the loss is nan. Lower lr. It is kept."
    assert again.batch["reward"].tolist() == [1, 1] and "array" not in repr(error)


# -- runs --------------------------------------------------------------------------------------------------------------


def drive(agent: Agent, iterations: int, messages: list[str] | None = None) -> Outcome:
    class Telling(Quiet):
        def message(self, text: str) -> None:
            if messages is not None:
                messages.append(text)

    options = RunOptions(stop={"training_iteration": iterations}, checkpoint_interval=1, plot=False, final_episodes=0)
    return Run(agent, options, Telling())()


def test_the_command_ends_with_1_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    out = ["--quiet", "--final-episodes", "0", "--checkpoint-interval", "1", "--stop"]
    new = ["train", "--run", "PPO", "--env", "CartPole-v1", *small, "--out", str(tmp_path), *out]
    assert main([*new, '{"training_iteration": 2}']) == 0
    best = (tmp_path / "best" / "policy.safetensors").read_bytes()
    resume = ["train", "--resume", str(tmp_path), *out]
    assert main([*resume, '{"training_iteration": 6}', "--lr", "1e30"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Training diverged at environment step" in said
    assert "the newest checkpoint is checkpoint_000002" in said
    assert (tmp_path / "best" / "policy.safetensors").read_bytes() == best
    assert "Diverged" in (tmp_path / "errors.txt").read_text()
    assert main([*resume, '{"training_iteration": 4}', "--lr", "1e-3"]) == 0
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [1, 2, 3, 4]
    assert main(["eval", str(tmp_path / "diverged"), "--episodes", "1"]) == 0


def poisoned(agent: Agent, at: set[int]) -> None:
    """Spoil the learner's weights before these iterations, once each."""
    turn, left = agent.train, set(at)

    def spoilt() -> dict[str, float]:
        if agent.iteration + 1 in left:
            if agent.iteration == 0:
                agent.save()
            left.remove(agent.iteration + 1)
            agent.context.learner.role.algorithm.network.flat[0] = math.nan  # type: ignore[attr-defined]
        return turn()

    agent.train = spoilt  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("case", ["PPO", "DQN"])
def test_a_rollback_learns_on_at_half_the_rate(case: str, tmp_path: Path) -> None:
    run, settings = CASES[case]
    settings = {"env": "CartPole-v1", **settings, "lr": 1e-3, "on_divergence": "rollback"}
    said: list[str] = []
    with Agent(run, settings, out=tmp_path) as agent:
        first = 1 if case == "PPO" else 2  # nothing is learnt in the warm-up
        poisoned(agent, {first, 4})
        outcome = drive(agent, 6, said)
        algorithm = agent.context.learner.role.algorithm  # type: ignore[attr-defined]
        assert outcome.result["lost/rollbacks"] == 2 and algorithm.config.lr == pytest.approx(2.5e-4)
        if case == "DQN":
            assert algorithm.optimizers["acting"].lr == pytest.approx(2.5e-4)
    told = [text for text in said if "rollback" in text]
    assert [text[:36] for text in told] == [f"Training diverged: rollback {k} of 3, " for k in (1, 2)]
    assert f"to iteration {first - 1} with lr 0.0005" in told[0] and "to iteration 3 with lr 0.00025" in told[1]
    rows = [json.loads(line) for line in (tmp_path / "result.json").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["lost/rollbacks"] for row in rows] == [*[0] * (first - 1), *[1] * (4 - first), 2, 2, 2]
    assert rows[-1]["learner_updates_total"] > rows[2]["learner_updates_total"]
    with Agent.from_checkpoint(tmp_path, out=tmp_path) as agent:  # what is left of the rate and of the budget
        assert agent.rollbacks == 2
        assert agent.context.learner.role.algorithm.config.lr == pytest.approx(2.5e-4)  # type: ignore[attr-defined]
        poisoned(agent, {7, 8})
        with pytest.raises(Diverged, match="Rollbacks before: 3"):
            drive(agent, 9)
        assert agent.rollbacks == 3


def test_as_many_rollbacks_as_are_allowed(tmp_path: Path) -> None:
    settings = {"env": "CartPole-v1", **SMALL, "lr": 1e30, "on_divergence": "rollback", "max_rollbacks": 1}
    said: list[str] = []
    with Agent("PPO", settings, out=tmp_path) as agent:
        with pytest.raises(Diverged, match="Rollbacks before: 1"):
            drive(agent, 3, said)
    assert (
        sum("rollback 1 of 1, to iteration 0 with lr 5e+29" in text for text in said) == 1
    )  # though no iteration ended


@pytest.mark.parametrize(
    "run", [pytest.param("PPO", marks=pytest.mark.ci_slow), pytest.param("DQN", marks=pytest.mark.slow)]
)
def test_two_learners_stop_and_go_back_together(run: str, ray_session: Any, tmp_path: Path) -> None:
    settings = {"env": "CartPole-v1", **CASES[run][1], "num_workers": 2, "num_learners": 2, "lr": 1e30}
    settings |= {"on_divergence": "rollback", "max_rollbacks": 1}
    with Agent(run, settings, out=tmp_path) as agent:
        with pytest.raises(Diverged, match="lr, which is 5e\\+29"):
            for _ in range(3):
                agent.train()
        assert agent.rollbacks == 1 and checkpoint.open_checkpoint(tmp_path / "diverged").state()["batch"]
        agent.restore(tmp_path)  # the learners are whole
        assert np.isfinite(agent.get_weights().flat).all()
