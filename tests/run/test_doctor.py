"""`raypid doctor`: what it finds in the folders that real runs leave, sound ones, hurt ones and damaged ones."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from raypid import Callbacks
from raypid.cli import main
from raypid.errors import UserError
from raypid.report.logger import RunLogger
from raypid.report.panel import Quiet
from raypid.run.agent import Agent
from raypid.run.doctor import Finding, binding, diagnose, healthy_line, losses, open_run
from raypid.run.run import Run, RunOptions
from raypid.storage import checkpoint
from raypid.storage.run_folder import RunFolder

SAVED = Path(__file__).parents[1] / "fixtures" / "saved"
RUNS = sorted(path.name for path in SAVED.iterdir() if (path / "params.json").exists())
SMALL = {"num_envs_per_worker": 4, "fragment_length": 64, "batch_size": 64, "seed": 1, "num_threads": 1}


class Hurt(gymnasium.Env):
    """Episodes of 10 steps. Raises at every `raises`-th step of a stream; pays 1 a step from step `pays[0]` to `pays[1]` of it."""

    def __init__(self, raises: int = 0, pays: tuple[int, int] = (0, 10**9)) -> None:
        self.observation_space, self.action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)
        self.raises, self.pays, self.steps = raises, pays, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.raises and self.steps % self.raises == 0:
            raise ValueError("the simulator lost its balance")
        paid = float(self.pays[0] <= self.steps < self.pays[1])
        return np.zeros(1, np.float32), paid, False, self.steps % 10 == 0, {}


class CtrlC(Callbacks):
    """Presses Ctrl-C in the third iteration."""

    def on_iteration(self, result: dict[str, Any]) -> None:
        if result["training_iteration"] == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def hurt() -> Any:
    gymnasium.register("Hurt-v0", Hurt)
    yield
    del gymnasium.registry["Hurt-v0"]


def train(
    folder: Path, run: str = "PPO", /, *, stop: Mapping[str, float], env: str = "CartPole-v1", **settings: Any
) -> None:
    agent = Agent(run, {"env": env, "evaluation_interval": 0, **SMALL, **settings}, out=folder)
    with agent:
        Run(agent, RunOptions(stop=stop, plot=False, final_episodes=0), Quiet())()


def findings(folder: Path) -> list[Finding]:
    return diagnose(open_run(folder))


def only(found: Sequence[Finding], topic: str, says: str) -> Finding:
    """The one finding of a topic that says this."""
    (finding,) = [f for f in found if f.topic == topic and says in f.finding]
    return finding


# -- real runs ---------------------------------------------------------------------------------------------------------


def test_a_healthy_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, stop={"timesteps_total": 3000})
    assert main(["doctor", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path}: PPO on CartPole-v1, 3,") and ": healthy. " in line
    assert (
        "It reached its stop: timesteps_total 3," in line and "evaluation_interval is 0" in line and "Speed: " in line
    )


SAC = {"batch_size": 32, "fragment_length": 4, "start_steps": 64, "steps_per_iteration": 64, "model": {"hidden": [8]}}


@pytest.mark.parametrize(
    ("run", "env", "settings"),
    [("PPO", "CartPole-v1", {}), pytest.param("SAC", "Pendulum-v1", SAC, marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_diverged_learner_comes_before_what_it_brought(
    run: str, env: str, settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(Exception):  # the run may end by it
        train(tmp_path, run, stop={"timesteps_total": 1500}, env=env, lr=1e30, **settings)
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)
    assert first.keys() == {"topic", "severity", "finding", "numbers", "advice"}
    assert (first["topic"], first["severity"], first["numbers"]["lr"]) == ("learning", "error", 1e30)
    assert "diverged" in first["finding"] and first["advice"].startswith("Lower lr")
    assert not any("not risen" in f["finding"] or "stopped exploring" in f["finding"] for f in others)


def test_a_run_that_ctrl_c_ended(tmp_path: Path) -> None:
    train(tmp_path, stop={"timesteps_total": 10**9}, callbacks=CtrlC)
    end = only(findings(tmp_path), "end", "stopped from outside")
    assert end.severity == "note" and end.numbers["iteration"] == 3
    assert end.advice == f"`raypid train --resume {tmp_path}` goes on from step {end.numbers['step']:,.0f}."


def test_a_killed_run_and_the_same_while_it_ran(tmp_path: Path, start: Callable[..., Any]) -> None:
    small = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    command = start(
        "train", "--run", "PPO", "--env", "CartPole-v1", "--out", "run", "--checkpoint-interval", "2", *small
    )
    command.wait_for_results(4)
    assert only(findings(tmp_path / "run"), "end", "").finding == "It is still running."
    os.kill(command.process.pid, signal.SIGKILL)
    command.finish()
    end = only(findings(tmp_path / "run"), "end", "It was killed")
    step = end.numbers["resumes_from_step"]
    assert end.severity == "error" and step and f"goes on from step {step:,.0f}" in end.advice
    with Agent.from_checkpoint(tmp_path / "run") as agent:
        assert agent.timesteps == step


def test_environments_that_raise(tmp_path: Path) -> None:
    train(tmp_path, stop={"timesteps_total": 1500}, env="Hurt-v0", env_config={"raises": 95}, max_restarts=50)
    record = open_run(tmp_path)
    lost = only(diagnose(record), "losses", "environments that raised")
    count = lost.numbers["lost/env_crashes"]
    assert count and lost.severity == "warning" and lost.numbers["max_restarts"] == 50
    assert lost.numbers["per_1000_steps"] == 1000 * count / record.last("timesteps_total")


def test_an_error_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="balance"):
        train(tmp_path, stop={"timesteps_total": 1500}, env="Hurt-v0", env_config={"raises": 7}, max_restarts=1)
    end = only(findings(tmp_path), "end", "An error ended it in iteration 1")
    assert end.severity == "error" and end.finding.endswith(
        "The last error: ValueError: the simulator lost its balance"
    )
    assert "times in so few steps; max_restarts=1 allows 1, and one more" in end.finding
    assert end.advice.startswith("errors.txt has the traceback: mend the cause first.")
    assert main(["doctor", str(tmp_path)]) == 0 and "Hurt-v0, no iteration finished\n" in capsys.readouterr().out


def test_rewards_that_end(tmp_path: Path) -> None:
    train(tmp_path, stop={"timesteps_total": 6000}, env="Hurt-v0", env_config={"pays": [300, 800]})
    fell = only(findings(tmp_path), "learning", "Collapse: the return of training").numbers
    best, since, at, low = (fell[name] for name in ("best", "since", "best_at_step", "low_from_step"))
    assert best is not None and since is not None and best > since
    assert at is not None and low is not None and at < low


def test_the_part_that_binds(tmp_path: Path) -> None:
    train(tmp_path / "slow", stop={"timesteps_total": 200}, env="raypid/Wait-v0", env_config={"wait_s": 0.01})
    slow = only(findings(tmp_path / "slow"), "speed", "The environment takes").numbers
    assert slow["share"] and slow["share"] > 0.6 and slow["env_steps_per_s"] and slow["env_steps_per_s"] < 800
    train(tmp_path / "large", stop={"timesteps_total": 500}, model={"hidden": [256, 256]}, kernel="numpy")
    learner = only(findings(tmp_path / "large"), "speed", "The learner takes")
    assert learner.severity == "note" and "narrower layers" in learner.advice


def test_a_gpu_is_advised_where_an_update_is_long(tmp_path: Path) -> None:
    def said(num_updates: int, **params: float) -> str:
        rows = {"timing/learner": 0.9, "time_this_iter_s": 1.0}
        record = RunFolder(tmp_path)
        record.params = dict(params)
        record.results = [{**rows, "learner_updates_total": i * num_updates} for i in range(5)]
        return next(binding(record)).advice + healthy_line(record, [])

    assert "narrower" in said(1000) and "GPU" not in said(1000)
    assert said(10).count("or a GPU") == 2 and "GPU" not in said(10, num_gpus=1)


def test_evaluation_too_often(tmp_path: Path) -> None:
    train(tmp_path, stop={"training_iteration": 4}, evaluation_interval=1, evaluation_num_episodes=60)
    often = only(findings(tmp_path), "speed", "Evaluations take")
    assert often.severity == "warning" and often.numbers["evaluations"] == 4 and often.numbers["episodes_each"] == 60


def test_episodes_that_do_not_end(tmp_path: Path) -> None:
    until, settings = {"timesteps_total": 4096}, {"time_limit": 100_000, "fragment_length": 512}
    train(tmp_path, stop=until, env="Pendulum-v1", evaluation_interval=None, **settings)
    found = findings(tmp_path)
    endless = only(found, "learning", "No training episode has ended")
    assert (endless.severity, endless.numbers["time_limit"]) == ("warning", 100_000) and "time_limit" in endless.advice
    assert "first training episode" in only(found, "learning", "There was no evaluation").finding


@pytest.mark.slow
def test_workers_that_die_and_data_that_are_old(tmp_path: Path, ray_session: Any) -> None:
    exits = {"mode": "exit", "at": 9, "worker": 1, "marker": str(tmp_path / "once")}
    train(tmp_path / "died", stop={"timesteps_total": 1500}, env="fragile:Fragile", env_config=exits, num_workers=2)
    died = only(findings(tmp_path / "died"), "losses", "workers that died")
    assert died.numbers["lost/workers"] == 1 and "max_restarts" in died.numbers
    hangs = {**exits, "mode": "hang", "marker": str(tmp_path / "twice")}
    limit = {"num_workers": 2, "worker_timeout_s": 5.0}
    train(tmp_path / "hung", stop={"timesteps_total": 1500}, env="fragile:Fragile", env_config=hangs, **limit)
    hung = only(findings(tmp_path / "hung"), "losses", "workers that did not answer")
    assert (hung.numbers["lost/timeouts"], hung.numbers["worker_timeout_s"]) == (1, 5)
    old = {"num_workers": 3, "max_staleness": 0, "fragment_length": 5, "num_envs_per_worker": 1}
    train(tmp_path / "stale", "IMPALA", stop={"timesteps_total": 1500}, **old)
    dropped = only(findings(tmp_path / "stale"), "losses", "too old to learn from")
    assert dropped.severity == "warning" and dropped.numbers["share_of_steps"] and "max_staleness" in dropped.advice


# -- numbers that short runs do not show -------------------------------------------------------------------------------


def written(folder: Path, num: int, columns: Mapping[str, Sequence[float] | float], **params: Any) -> list[Finding]:
    """Findings of a run whose results have these columns, as the logger writes them; those that are missing are ordinary."""
    ordinary: dict[str, Sequence[float] | float] = {
        "training_iteration": range(1, num + 1), "timesteps_total": range(1000, 1000 * num + 1, 1000),
        "episodes_total": range(50, 50 * num + 1, 50), "learner_updates_total": range(10, 10 * num + 1, 10),
        "episode_reward_mean": np.linspace(10, 100, num).tolist(), "episode_reward_min": 5, "episode_reward_max": 120,
        "time_this_iter_s": 1.0, "time_total_s": range(1, num + 1), "env_steps_per_s": 1000.0,
        "timing/env": 0.3, "timing/inference": 0.3, "timing/transport": 0.0, "timing/learner": 0.3,
    }  # fmt: skip
    rows = {**ordinary, **columns}
    with RunLogger(folder) as logger:
        logger.write_params({"run": "PPO", "env": "CartPole-v1", "lr": 3e-4, **params})
        for i in range(num):
            logger.log({key: x if isinstance(x, int | float) else x[i] for key, x in rows.items()})
    return [f for f in findings(folder) if f.topic != "end" and "no evaluation" not in f.finding]


def test_ordinary_numbers_are_no_finding(tmp_path: Path) -> None:
    assert written(tmp_path, 20, {}) == []


LINEAR = {"lr_schedule": "linear", "schedule_steps": 8_000, "schedule_end": 0.0}
CHANGED = {"step": 12_000, "iteration": 12, "key": "lr_schedule", "from": "constant", "to": "linear", "by": "resume"}


@pytest.mark.parametrize(
    "params",
    [{**LINEAR, "schedule_steps": None}, {**LINEAR, "schedule_steps": 19_000}, {**LINEAR, "schedule_end": 0.1},
     {**LINEAR, "lr_schedule": "constant"}],
)  # fmt: skip
def test_a_schedule_that_ends_with_its_run_is_no_finding(tmp_path: Path, params: Any) -> None:
    assert not [f for f in written(tmp_path, 20, {}, **params) if "has been 0" in f.finding]


@pytest.mark.parametrize(
    ("columns", "params", "topic", "says"),
    [
        ({"episode_reward_mean": [20.0, 21.0, 19.5, 20.5] * 5}, {}, "learning", "has not risen"),
        ({"episode_reward_mean": [*[10.0] * 5, *[100.0] * 5, *[12.0] * 10]}, {}, "learning", "from step 11,000 on it stayed low"),
        ({"learner/value_loss": [1.0] * 10 + [1e9] * 10}, {}, "learning", "value_loss grew beyond measure"),
        ({"learner/critic_loss": [108.0, 5.1e14, 1.5e10]}, {}, "learning", "critic_loss grew beyond measure"),
        ({"learner/loss": [1.7e30]}, {}, "learning", "loss is too large to learn from"),
        ({"learner/critic_loss": [1.0] * 19 + [np.nan]}, {}, "learning", "from step 20,000 on, to the end"),
        ({"episode_reward_mean": [1.0] * 19 + [np.inf]}, {}, "learning", "NaN or infinite"),
        ({"learner/kl": 0.5, "learner/clip_fraction": 0.7}, {}, "learning", "far more than usual"),
        ({"learner/kl": 1e-9, "learner/clip_fraction": 0.0}, {}, "learning", "hardly change"),
        ({"episode_reward_mean": 10.0, "learner/entropy": [0.69] * 4 + [1e-5] * 16}, {}, "learning", "at step 5,000: its entropy"),
        ({"env_steps_per_s": [1000.0] * 12 + [300.0] * 28, "timing/env": [0.3] * 12 + [0.8] * 28}, {}, "speed", "slower, from 1,000 to 300"),
        ({"learner/samples_per_insert": 4.0}, {"samples_per_insert": 8.0}, "speed", "4 rows were learnt for each step, 8 are asked for"),
        ({"learner/samples_per_insert": 8.0}, {"batch_size": 64, "a_l_ratio": 4}, "speed", "8 rows were learnt for each step, 16"),
        ({"learner/staleness": 30.0}, {"num_workers": 1}, "losses", "30 updates old"),
        ({"lost/rollbacks": [0] * 10 + [2] * 10}, {}, "losses", "returns of a diverged learner to its last good checkpoint: 2."),
        ({}, {"num_workers": 10_000}, "speed", "10000 workers share"),
        ({}, LINEAR, "learning", "lr has been 0 since step 9,000: lr_schedule linear ended at schedule_steps 8,000."),
        ({}, {**LINEAR, "lr_schedule": "constant", "clip_schedule": "linear"}, "learning", "clip has been 0 since step 9,000"),
        ({}, {**LINEAR, "changes": [CHANGED]}, "learning", "lr has been 0 since step 13,000"),
    ],
)  # fmt: skip
def test_a_number_that_is_off(tmp_path: Path, columns: Any, params: Any, topic: str, says: str) -> None:
    num = max((len(x) for x in columns.values() if isinstance(x, list)), default=20)
    found = only(written(tmp_path, num, columns, **params), topic, says)
    assert found.severity in ("error", "warning") and found.advice


@pytest.mark.parametrize(
    ("params", "advice"),
    [
        ({"max_grad_norm": None}, "Lower lr, which is 0.0003; or set max_grad_norm, which is none."),
        ({"max_grad_norm": 0.5}, "Lower lr, which is 0.0003."),
        ({"run": "SAC", "max_grad_norm": None, "lr_critic": 1e-3},
         "Lower lr, which is 0.0003 and lr_critic, which is 0.001; or set max_grad_norm, which is none."),
        ({"run": "ES"}, "Lower lr, which is 0.0003."),
        ({"run": "elsewhere:Mine", "max_grad_norm": "odd"}, "Lower lr, which is 0.0003."),
    ],
)  # fmt: skip
def test_what_is_set_is_not_advised(tmp_path: Path, params: Any, advice: str) -> None:
    found = only(
        written(tmp_path, 20, {"learner/value_loss": [1.0] * 19 + [np.nan]}, **params), "learning", "It diverged"
    )
    assert found.advice == advice


HUGE_REWARDS = {"episode_reward_mean": 1e31, "episode_reward_max": 2e31}


def test_huge_rewards_are_to_be_bounded_wherever_a_divergence_is_found(tmp_path: Path) -> None:
    params = {"run": "DQN", "reward_clip": None, "normalize_rewards": False, "max_rollbacks": 3}
    found = written(tmp_path, 3, {**HUGE_REWARDS, "learner/loss": 1.7e30, "lost/rollbacks": [0, 1, 1]}, **params)
    back = only(found, "losses", "returns of a diverged learner")
    assert back.numbers["max_rollbacks"] == 3 and "max_restarts" not in back.numbers
    advice = "Returns are huge. Set normalize_rewards or reward_clip or reward_scale."
    assert only(found, "learning", "loss is too large").advice == advice
    assert back.advice == advice


@pytest.mark.parametrize(("interval", "advised"), [(None, False), (2, True)])
def test_what_makes_evaluations_cheaper(tmp_path: Path, interval: int | None, advised: bool) -> None:
    columns = {"evaluation/episodes": 10, "timing/evaluation": 0.6}
    often = only(written(tmp_path, 6, columns, evaluation_interval=interval), "speed", "Evaluations take")
    assert ("evaluation_interval" in often.advice) is advised and "evaluation_num_episodes" in often.advice


def ended(tmp_path: Path, error: str = "", **params: Any) -> list[Finding]:
    """Findings of a run of 3 iterations that this error ended, or kill -9."""
    written(tmp_path, 3, {}, **params)
    if error:
        (tmp_path / "errors.txt").write_text(
            f"The run ended in iteration 4:\nTraceback (most recent call last):\n{error}\n"
        )
    else:
        (tmp_path / ".lock").touch()
    return findings(tmp_path)


@pytest.mark.parametrize("error", ["", "RuntimeError: broke"])
def test_a_run_that_ended_before_its_first_evaluation(tmp_path: Path, error: str) -> None:
    none = only(ended(tmp_path, error, evaluation_interval=4), "learning", "no evaluation")
    assert none.finding.endswith("the run ended before one was finished.") and not none.advice


@pytest.mark.parametrize(
    ("workers", "vectorizer", "advised"), [(0, "auto", True), (0, "async", False), (2, "auto", False)]
)
def test_what_outlives_a_crash(tmp_path: Path, workers: int, vectorizer: str, advised: bool) -> None:
    (tmp_path / f"events.out.tfevents.1.1.{socket.gethostname()}").touch()
    killed = only(ended(tmp_path, num_workers=workers, vectorizer=vectorizer), "end", "It was killed")
    assert ("--num-workers 1" in killed.advice) is advised


def test_a_divergence_has_the_advice_that_the_run_gave(tmp_path: Path) -> None:
    manifest = {"what": "the value_loss is inf (rewards reach 1e+30)", "advice": "Set reward_clip.", "config": {}}
    checkpoint.save_checkpoint(tmp_path, "diverged", {"batch": {}}, manifest={**manifest, "algorithm": "PPO"})
    assert only(written(tmp_path, 20, {}), "learning", "The learner diverged").advice == "Set reward_clip."


def test_the_wait_for_lost_workers_is_said_beside_what_binds(tmp_path: Path) -> None:
    columns = {"timing/transport": 0.9, "timing/env": 0.1, "timing/inference": 0.0, "timing/learner": 0.0}
    for lost, said in ((0, False), (1, True)):
        found = written(tmp_path / str(lost), 20, {**columns, "lost/nodes": lost})
        assert ("workers that were lost" in only(found, "speed", "The transport takes").advice) == said


def test_counts_that_start_anew_with_a_process_are_added_up() -> None:
    record = RunFolder(Path())
    record.results = [{"lost/workers": count} for count in (0, 2, 3, 0, 1, np.nan, 4)]
    assert next(losses(record)).numbers["lost/workers"] == 7


def test_a_learner_that_went_back(tmp_path: Path) -> None:
    (tmp_path / "diverged").mkdir()
    found = only(written(tmp_path, 20, {}), "learning", "The learner diverged. diverged/ has the batch")
    assert found.severity == "warning"


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A run of an earlier version, to damage."""
    return shutil.copytree(SAVED / "ppo", tmp_path / "ppo")


@pytest.mark.parametrize("name", RUNS)
def test_what_earlier_versions_saved(name: str) -> None:
    found = findings(SAVED / name)
    assert not any(f.severity == "error" for f in found)
    end = only(found, "end", "It reached its stop")
    assert end.numbers["resumes_from_step"] == end.numbers["step"]


def test_damaged_files_are_named_and_the_rest_is_read(copy: Path) -> None:
    results = copy / "result.json"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join([lines[0], b"[1]\n", b"\xff\x00\n", b"[" * 3000 + b"\n", *lines[1:], lines[2][:50]]))
    (copy / "params.json").write_text("{")
    (copy / "errors.txt").write_bytes(b"\xff\xfe The run ended in iteration 9:\n")
    record = open_run(copy)
    assert len(record.results) == 3 and record.last("timesteps_total") == 93
    damaged = only(diagnose(record), "end", "result.json has 3 lines").finding
    assert "the first is line 2" in damaged and "params.json is not a JSON object" in damaged


@pytest.mark.parametrize("spoil", ["params.json", "result.json", "checkpoints"])
def test_a_missing_or_empty_part(spoil: str, copy: Path) -> None:
    path = copy / spoil
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert diagnose(open_run(copy)) and main(["doctor", str(copy), "--json"]) == 0
    path.touch()
    assert diagnose(open_run(copy)) and main(["doctor", str(copy)]) == 0


def test_checkpoints_of_a_loop_in_python_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_000001").mkdir()
    (tmp_path / "checkpoint_000001" / "manifest.json").touch()
    with pytest.raises(UserError, match=r"has checkpoints and no results: agent.train\(\) returns them"):
        open_run(tmp_path)


def test_values_that_no_run_writes(copy: Path) -> None:
    odd: list[object] = [10**400, -1e308, 1e308, "text", [], {}, True, None]
    params, rows = json.loads((copy / "params.json").read_text()), (copy / "result.json").read_text().splitlines()
    for start in range(len(odd)):
        values = itertools.cycle(odd[start:] + odd[:start])
        (copy / "params.json").write_text(json.dumps({key: next(values) for key in params}))
        lines = [json.dumps({key: next(values) for key in json.loads(row)}) for row in rows]
        (copy / "result.json").write_text("\n".join([*lines, ""]))
        assert main(["doctor", str(copy)]) == main(["doctor", str(copy), "--json"]) == 0


def test_checkpoints_that_are_damaged_or_not_finite(copy: Path) -> None:
    (newest,) = checkpoint.list_checkpoints(copy / "checkpoints")
    sound = shutil.copytree(newest, newest.with_name("checkpoint_000002"))
    (newest / "state.safetensors").write_bytes(b"")
    end = only(findings(copy), "end", "Checkpoints that cannot be used: 1.")
    assert "state.safetensors is truncated" in end.finding and f"Move what is newer than {sound} away" in end.advice
    spec, arrays, _ = checkpoint.read_policy(copy / "best")
    checkpoint.write_policy(copy / "best", spec, {k: np.full_like(v, np.nan) for k, v in arrays.items()})
    assert only(findings(copy), "learning", "best/ cannot be used: its weights are not finite").severity == "error"


def test_what_holds_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for path, says in (
        (tmp_path, "holds no run"),
        (tmp_path / "file", "a file"),
        (tmp_path / "none", "There is nothing at"),
    ):
        assert main(["doctor", str(path)]) == 2
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1
