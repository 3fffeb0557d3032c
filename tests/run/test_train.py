"""Whole runs in Python: `raypid.train`, `agent.fit`, the hooks, and what an agent says of itself."""

from __future__ import annotations

import json
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import raypid
from raypid.algorithms.ppo import PPO
from raypid.cli import main
from raypid.errors import UserError
from raypid.plugins.registry import ALGORITHMS
from raypid.report.logger import read_results
from raypid.run.signals import Interrupts
from raypid.settings.config import ConfigError
from raypid.storage.run_folder import RunFolder

SMALL: dict[str, Any] = {"num_envs_per_worker": 2, "fragment_length": 16, "batch_size": 32, "seed": 3, "num_threads": 1}
QUICK: dict[str, Any] = {"final_episodes": 2, "quiet": True}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Interrupts, "_ended_at", -np.inf)
    return tmp_path


PLAIN: dict[str, Any] = {"quiet": True, "final_episodes": 0}
LINEAR: dict[str, Any] = {"evaluation_interval": 0, "seed": 0, "lr_schedule": "linear", "lr": 0.01}


def rates(folder: str, beyond: int) -> dict[int, float]:
    """Step -> learning rate, of iterations that ended beyond a step."""
    rows = [row for row in read_results(Path(folder)) if row["timesteps_total"] > beyond]
    return {int(row["timesteps_total"]): row["learner/lr"] for row in rows}


@pytest.mark.parametrize("run", ["PPO", "A2C", "A3C", "IMPALA", "APPO", "ES", "ARS"])
def test_the_end_of_a_linear_schedule_moves_with_the_stop(run: str) -> None:
    small = {"population": 2, "noise_table_size": 50_000, "time_limit": 20}
    if run not in ("ES", "ARS"):
        small = {name: value for name, value in SMALL.items() if run != "A3C" or name != "batch_size"}
    with raypid.Agent(run, "CartPole-v1", {**small, **LINEAR}) as agent:
        for stop in (200, 800):
            before = agent.timesteps
            agent.fit(stop, out="run", **PLAIN)
            first, *_, last = rates("run", before).values()
            assert 0.2 * 0.01 * (1 - before / stop) < first and 0 < last < 0.01 * 0.4
        before = agent.timesteps
        result = agent.train(num_train_steps=1)  # an iteration that ends beyond these steps
        assert agent.run_end == before + 1 and 0 < result["learner/lr"] < 1e-4
        agent.end_schedules(2 * before)
        assert 0.3 * 0.01 < agent.train()["learner/lr"] < 0.5 * 0.01


def test_the_clip_falls_to_the_same_end() -> None:
    with raypid.PPO("CartPole-v1", {**SMALL, **LINEAR, "lr_schedule": "constant", "clip_schedule": "linear"}) as agent:
        learner = agent.context.learner.role.algorithm  # type: ignore[attr-defined]
        agent.fit(200, out="run", **PLAIN)
        assert 0 < learner.clip < 0.2 * 0.4  # the last batch begins before the end
        agent.end_schedules(400)
        agent.train()
        assert learner.clip == pytest.approx(0.2 * (1 - agent.timesteps / 400))


@pytest.mark.parametrize("by", ["fit", "python", "command", "config"])
def test_a_schedule_goes_on_however_its_run_does(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = "run"
    with raypid.PPO("CartPole-v1", {**SMALL, **LINEAR, "desired_kl": 0.0, "clip_schedule": "linear"}) as agent:
        agent.fit(200, out=out, **PLAIN)
        if by == "fit":
            agent.fit(600, **PLAIN)
    if by == "python":
        raypid.train(resume=out, stop=600, lr=0.02, **PLAIN)
    elif by == "command":
        flags = ("--stop", "600", "--lr", "0.02", "--final-episodes", "0", "--quiet")
        assert main(["train", "--resume", out, *flags]) == 0
    elif by == "config":
        out = "other"
        raypid.train(config="run/params.json", stop=600, lr=0.02, out=out, **PLAIN)
    scale = 0.01 if by == "fit" else 0.02
    found = rates(out, 240)
    *whole, last = found
    at = {
        **{steps: steps for steps in whole},
        last: whole[-1],
    }  # the last batch begins before the end, and learns by the rate of then
    assert last >= 600 and found == pytest.approx({steps: scale * (1 - at[steps] / 600) for steps in found})
    assert main(["doctor", out]) == 0 and "has been 0" not in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["lr_schedule", "clip_schedule"])
def test_an_end_that_was_given_stays_and_shows(schedule: str, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {**SMALL, **LINEAR, "lr_schedule": "constant", schedule: "linear", "schedule_steps": 200}
    over = f"{schedule} linear ends at step 200, and nothing is learnt from then on. Give a larger schedule_steps"
    raypid.train("PPO", "CartPole-v1", settings, stop=200, out="run", final_episodes=0)
    told = capfd.readouterr().out
    assert over not in told
    command = next(line for line in told.splitlines() if "--resume" in line).partition("raypid ")[2]
    raypid.train(resume="run", stop=400, final_episodes=0)
    assert over in capfd.readouterr().out
    assert schedule == "clip_schedule" or set(rates("run", 240).values()) == {0.0}
    assert main(["doctor", "run"]) == 0
    assert f"{schedule.removesuffix('_schedule')} has been 0 since step 2" in capfd.readouterr().out
    assert main(["train", "--resume", "run", "--stop", "400"]) == 0
    assert "--schedule-steps 800" in capfd.readouterr().out  # beside the higher stop that is advised
    assert "--schedule-steps 400" in command and main(shlex.split(command.replace("400", "900"))) == 0
    assert over not in capfd.readouterr().out and max(rates("run", 440).values()) > 0


def test_a_schedule_that_ends_with_the_run_needs_a_number_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    raypid.train("PPO", "CartPole-v1", {**SMALL, **LINEAR}, stop=100, out="run", **PLAIN)
    with pytest.raises(ConfigError, match="lr_schedule linear must know where it ends"):
        raypid.train(resume="run", stop={"time_total_s": 60}, **PLAIN)
    assert main(["train", "--resume", "run", "--stop", "60s"]) == 2
    assert "lr_schedule linear must know where it ends" in capsys.readouterr().err


def agent(**settings: Any) -> Any:
    return raypid.PPO("CartPole-v1", **{**SMALL, "evaluation_interval": 0, **settings})


def rows(folder: str) -> list[int]:
    return [json.loads(line)["training_iteration"] for line in Path(folder, "result.json").read_text().splitlines()]


def test_train_leaves_what_the_command_line_leaves() -> None:
    outcome = raypid.train("PPO", "CartPole-v1", stop=600, out="runs/a", **QUICK, **SMALL)
    assert isinstance(outcome, raypid.Outcome) and outcome.reason.startswith("timesteps_total reached 6")
    names = {path.name.split(".tfevents")[0] for path in Path("runs/a").iterdir()}
    files = {"params.json", "result.json", "progress.csv", "events.out", "checkpoints", "best", "learning_curve.png"}
    assert names == files
    params = json.loads(Path("runs/a/params.json").read_text())
    assert (params["run"], params["env"], params["stop"]) == ("PPO", "CartPole-v1", {"timesteps_total": 600})
    assert outcome.folder == Path("runs/a") and outcome.checkpoint == Path(
        f"runs/a/checkpoints/checkpoint_{rows('runs/a')[-1]:06}"
    )
    steps, last = outcome.result["timesteps_total"], rows("runs/a")[-1]
    assert 600 <= steps < 640 and outcome.final is not None and outcome.best is not None
    assert "runs/a" in repr(outcome) and f"{steps} steps" in repr(outcome) and "best policy" in repr(outcome)
    assert outcome.load_policy().act([0.0, 0.0, 0.0, 0.0]) in (0, 1)

    with pytest.raises(ConfigError, match="replace it .overwrite=True., or choose another folder"):
        raypid.train("PPO", "CartPole-v1", stop=600, out="runs/a", **SMALL)
    for more in ({}, {"num_workers": 2, "address": "203.0.113.7:6379"}):  # no Ray is started or joined for that
        again = raypid.train(resume="runs/a", **more, **QUICK)  # type: ignore[arg-type]
        assert (again.reason, again.final, again.best) == (outcome.reason, outcome.final, outcome.best)
    resumed = raypid.train("PPO", resume="runs/a", stop={"training_iteration": last + 2}, **QUICK)
    assert resumed.result["training_iteration"] == last + 2 and rows("runs/a") == list(range(1, last + 3))
    for wrong in ({"out": "b"}, {"overwrite": True}, {"tuned": True}, {"run": "A2C"}):
        with pytest.raises(ConfigError, match="resume|PPO, not of A2C"):
            raypid.train(resume="runs/a", **wrong)  # type: ignore[arg-type]
    raypid.train("PPO", {"env": "CartPole-v1"}, stop=30, out="runs/a", overwrite=True, **QUICK, **SMALL)
    assert rows("runs/a") == [1]


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("soon", "stop takes a number of environment steps"),
        (True, "stop takes"),
        (1.5, "takes a whole number"),
        (0, "above 0"),
        ({"episode_reward_men": 3}, "Did you mean 'episode_reward_mean'"),
        ({"timesteps_total": "x"}, "takes a number"),
    ],
)
def test_wrong_stops_are_refused_before_anything_is_made(stop: Any, said: str) -> None:
    def never() -> gymnasium.Env[Any, Any]:
        raise AssertionError("made")

    with pytest.raises(ConfigError, match=said):
        raypid.train("PPO", never, stop=stop, **SMALL)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_checkpoints": 0}, "keep_checkpoints takes a whole number of at least 1"),
        ({"final_episodes": -1}, "final_episodes takes"),
        ({"overwrite": True}, "name it, such as"),
        ({"lrr": 1}, "lrr"),
    ],
)
def test_wrong_arguments_of_train(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        raypid.train("PPO", "CartPole-v1", stop=100, **given)
    with pytest.raises(ConfigError, match="Name the algorithm"):
        raypid.train(stop=100)


def test_algorithms_and_agents_of_ones_own(capsys: Any) -> None:
    class Halved(PPO):
        pass

    class Mine(raypid.PPO):
        def fit(self, *args: Any, **more: Any) -> Any:
            return super().fit(*args, **more)

    class CartPole(CartPoleEnv):
        pass

    before = dict(ALGORITHMS._entries)
    try:
        outcome = raypid.train(
            Halved, CartPole, time_limit=50, stop={"training_iteration": 2}, out="a", final_episodes=0, **SMALL
        )
        assert (
            json.loads(Path("a/params.json").read_text())["run"] == "Halved"
            and outcome.result["training_iteration"] == 2
        )
        assert "ended" in capsys.readouterr().out
        with pytest.raises(UserError, match="defined in a script, a notebook or a function"):
            raypid.train(Halved, resume="a", stop=90)
        assert (
            raypid.train(Halved, CartPole, resume="a", stop={"training_iteration": 3}, **QUICK).result[
                "training_iteration"
            ]
            == 3
        )
    finally:
        ALGORITHMS._entries = before
    assert raypid.train(Mine, "CartPole-v1", stop=10, out="b", **QUICK, **SMALL).result["training_iteration"] == 1
    local = {"backend": "local", "num_actors": 1, "num_learners": 1, "num_storages": 8, "num_steps": 16}
    distributed = raypid.train(raypid.IMPALAAgent, "CartPole-v1", stop=100, out="c", **QUICK, **local)
    assert distributed.folder == Path("c") and distributed.result["timesteps_total"] >= 100
    assert distributed.best is not None


def until(iteration: int) -> dict[str, int]:
    return {"training_iteration": iteration}


def test_fit_goes_on() -> None:
    with agent(out="a") as one:
        assert one.fit(until(2), **QUICK).result["training_iteration"] == 2
        one.eval(1)
        assert one.fit(**QUICK).result["training_iteration"] == 2  # the criteria of before are met
        assert one.fit(until(4), **QUICK).folder == Path("a") and rows("a") == [1, 2, 3, 4]
        one.train()
        assert one.fit(until(7), **QUICK).result["training_iteration"] == 7
        assert rows("a") == [1, 2, 3, 4, 6, 7]
        other = one.fit(until(8), out="b", **QUICK)
        assert other.folder == Path("b") and rows("b") == [8] and rows("a")[-1] == 7
        with pytest.raises(ConfigError, match="holds another run"):
            one.fit(until(9), out="a", **QUICK)
        with pytest.raises(ConfigError, match="leave overwrite out"):
            one.fit(until(9), out="b", overwrite=True, **QUICK)
    with pytest.raises(RuntimeError, match="closed"):
        one.fit(until(9))

    with agent() as homeless, pytest.raises(ConfigError, match="name it, such as"):
        homeless.fit(until(1), overwrite=True)
    with agent(out="c") as two:
        two.restore("b")
        assert two.fit(until(9), **QUICK).folder == Path("c") and rows("c") == [9]
    with agent() as three:
        three.restore("a/checkpoints/checkpoint_000004")
        with pytest.raises(
            ConfigError, match="a goes on to checkpoint_000007, this agent goes on from checkpoint_000004"
        ):
            three.fit(until(8), out="a")
        three.restore("a")
        assert three.fit(until(8), out="a", **QUICK).folder == Path("a") and rows("a")[-1] == 8


def test_train_by_itself_after_fit_is_what_it_was() -> None:
    """A run leaves nothing behind that would end, evaluate or halt the iterations that follow."""
    with raypid.ES("CartPole-v1", seed=0, num_envs_per_worker=8, population=8, evaluation_interval=None) as es:
        es.fit({"time_total_s": 0.01}, **QUICK)
        assert "evaluation/episodes" not in es.train() and es.train()["training_iteration"] >= 3


def test_fit_in_a_thread_has_no_signals() -> None:
    outcomes: list[Any] = []
    with agent() as one:
        thread = threading.Thread(target=lambda: outcomes.append(one.fit(until(2), **QUICK)))
        thread.start()
        thread.join(60)
    assert outcomes[0].reason == "training_iteration reached 2"


class Interrupting(raypid.Callbacks):
    def on_iteration(self, result: dict[str, float]) -> None:
        if result["training_iteration"] == 2:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_gives_an_outcome_and_soon_after_ends_a_loop(capsys: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    finished: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        for seed in range(5):
            settings = {**SMALL, "seed": seed, "callbacks": Interrupting}
            finished.append(raypid.train("PPO", "CartPole-v1", out=f"{seed}", **QUICK, **settings))
    (outcome,) = finished
    assert outcome.interrupted and outcome.reason == "interrupted" and outcome.checkpoint.is_dir()
    assert signal.getsignal(signal.SIGINT) is before


class Hooks(raypid.Callbacks):
    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls, self.outcome = fails, list[str](), None

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise ValueError(f"{name} raises")

    def on_start(self, config: dict[str, Any]) -> None:
        self.file = open("log.txt", "w")  # what cannot be sent to a worker
        self.config = config
        self.call("start")

    def on_iteration(self, result: dict[str, float]) -> None:
        self.call("iteration")

    def on_checkpoint(self, path: Path) -> None:
        assert (path / "manifest.json").is_file()
        self.call("checkpoint")

    def on_end(self, outcome: Any) -> None:
        self.file.close()
        self.outcome = outcome
        self.call("end")


def test_hooks_of_a_run_and_of_ones_own_loop() -> None:
    hooks = Hooks()
    with agent(callbacks=hooks) as one:
        outcome = one.fit(until(2), out="a", **QUICK)
        assert hooks.calls == ["start", "iteration", "iteration", "checkpoint", "end"] and hooks.outcome is outcome
        assert hooks.config["stop"] == until(2) and hooks.config["folder"] == "a" and hooks.config["lr"]
        hooks.calls.clear()
        one.train()
        one.save()
        one.train()
        assert hooks.calls == ["start", "iteration", "checkpoint", "iteration"]
    assert hooks.calls[-1] == "end" and hooks.outcome.reason == "closed"


def test_what_a_hook_raises_loses_nothing(capsys: Any) -> None:
    for name in ("checkpoint", "end"):
        outcome = raypid.train("PPO", "CartPole-v1", stop=until(2), out=name, callbacks=Hooks(name), **QUICK, **SMALL)
        assert outcome.reason == "training_iteration reached 2" and outcome.checkpoint is not None
        assert f"on_{name} of the callbacks raised ValueError: {name} raises." in capsys.readouterr().err
        assert "Traceback" in Path(name, "errors.txt").read_text()
    for name in ("start", "iteration"):
        hooks = Hooks(name)
        with pytest.raises(ValueError, match=f"{name} raises"):
            raypid.train("PPO", "CartPole-v1", stop=until(2), out=name, callbacks=hooks, **QUICK, **SMALL)
        ended = hooks.calls[-1] == "end" and hooks.outcome is not None and isinstance(hooks.outcome.error, ValueError)
        assert ended == (name == "iteration")  # nothing has started where on_start raised
    both = type("Both", (Hooks,), {"on_checkpoint": lambda self, path: 1 / 0})("iteration")
    with pytest.raises(ValueError, match="iteration raises"):
        raypid.train("PPO", "CartPole-v1", stop=until(2), out="both", callbacks=both, **QUICK, **SMALL)
    assert "ZeroDivisionError" in Path("both/errors.txt").read_text()
    assert RunFolder("both").last_error == (2, "ValueError: iteration raises")
    assert list(Path("iteration/checkpoints").iterdir()) and "Saved: checkpoint" in capsys.readouterr().err


def test_callbacks_that_cannot_be_copied_to_workers_are_refused(ray_session: Any) -> None:
    class Opens(raypid.Callbacks):
        def __init__(self) -> None:
            self.file = open("log.txt", "w")

    with pytest.raises(ConfigError, match="Opens cannot be: .* Open files and connections in on_start"):
        agent(callbacks=Opens, num_workers=1)


def test_a_misspelt_hook_is_refused() -> None:
    class Misspelt(raypid.Callbacks):
        def on_episode_ends(self, info: Any) -> None: ...

    class Strange(raypid.Callbacks):
        def on_full_moon(self) -> None: ...

    class Elsewhere(raypid.Callbacks):
        def _on_step(self) -> bool: ...  # type: ignore[empty-body]

    class Short(raypid.Callbacks):
        def on_end(self) -> None: ...  # type: ignore[override]

    class Other:
        def on_train_begin(self) -> None: ...

    class Both(Other, raypid.Callbacks):
        def on_end(self, outcome: Any = None) -> None: ...

    for cls, said in (
        (Misspelt, "Misspelt.on_episode_ends would never be called. Did you mean on_episode_end?"),
        (Strange, "The hooks are on_start, on_episode_end, on_iteration, on_checkpoint, on_end"),
        (Elsewhere, "Elsewhere._on_step would never be called"),
        (Short, r"is called as on_end\(self, outcome\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            agent(callbacks=cls)
    agent(callbacks=Both).close()


def test_the_environment_may_come_first() -> None:
    for one in (
        raypid.PPO("CartPole-v1", {"lr": 0.5}),
        raypid.PPO({"lr": 0.5}, env="CartPole-v1"),
        raypid.PPO(env_name="CartPole-v1", lr=0.5),
        raypid.Agent("PPO", "CartPole-v1", lr=0.5),
        raypid.Agent("PPO", {"env": "CartPole-v1", "lr": 0.1}, lr=0.5),
        raypid.Agent(PPO, "CartPole-v1", config={"lr": 0.5}),
        raypid.PPO(lambda: gymnasium.make("CartPole-v1"), lr=0.5),
    ):
        with one:
            assert one.config.lr == 0.5 and one.network.pipeline.vector_size == 4 and one.run == "PPO"
    for wrong, said in (
        (lambda: raypid.PPO("CartPole-v1", env="CartPole-v1"), "Give one environment"),
        (lambda: raypid.PPO({"lr": 1}, {"lr": 2}), "config was given twice"),
        (lambda: raypid.PPO("MlpPolicy", "CartPole-v1"), "Give one environment: 'MlpPolicy' or 'CartPole-v1'"),
        (lambda: raypid.PPO("CartPole-v1", 5), "Give one environment: 'CartPole-v1' or 5"),
        (
            lambda: raypid.PPO("CartPole-v1", torch.nn.Linear),
            r"'CartPole-v1' or the class Linear\? Register it first: raypid.register_network\(\"mine\", Linear\), then model=",
        ),
        (lambda: raypid.DQN("CartPole-v1", run="PPO"), r"DQN trains with DQN, not with PPO: .* raypid.Agent\('PPO'"),
        (lambda: raypid.train("PPO", "CartPole-v1", 100), "A number of steps is stop=100"),
        (
            lambda: raypid.Agent(type("Mine", (PPO,), {"Config": dict}), "CartPole-v1"),
            "Mine.Config must be a dataclass",
        ),
        (lambda: raypid.Agent({"env": "CartPole-v1"}), "An algorithm is a name or a class"),
        (lambda: raypid.PPO(config="CartPole-v1"), "There is no file 'CartPole-v1'"),
    ):
        with pytest.raises(ConfigError, match=said):
            wrong()  # type: ignore[no-untyped-call]


def test_a_class_goes_on_with_runs_of_its_own_algorithm(tmp_path: Path) -> None:
    class Mine(raypid.PPO):
        pass

    with agent() as one:
        saved = one.save(tmp_path / "saved")
    said = rf"{saved} holds a run of PPO, not of DQN: leave the algorithm out \(raypid.Agent takes any\)"
    with pytest.raises(ConfigError, match=said):
        raypid.DQN.from_checkpoint(saved, buffer_size=100)
    for cls in (raypid.Agent, raypid.PPO, Mine):
        with cls.from_checkpoint(saved) as again:
            assert again.run == "PPO" and type(again) is cls


def test_an_agent_acts_with_its_newest_weights_and_keeps_its_memory() -> None:
    with agent() as one:
        batch = np.linspace(-2, 2, 400).reshape(100, 4)
        before = one.act(batch)
        assert one.act([0.0] * 4) in (0, 1) and before.shape == (100,) and one.act(batch, explore=True).shape == (100,)
        start, zeros = one.get_weights(), one.get_weights()
        zeros.flat[:] = 0
        one.set_weights(zeros)
        assert len(set(one.act(batch).tolist())) == 1
        one.train()
        one.set_weights(start)
        one.train()
        assert np.array_equal(one.act(batch), raypid.load_policy(one.save()).act(batch))
    with pytest.raises(RuntimeError, match="closed"):
        one.act([0.0] * 4)
    with raypid.PPO("CartPole-v1", frame_stack=3, **SMALL) as stacked:
        obs = stacked.observation_space.sample()
        stacked.act(obs)
        assert stacked.policy._first is not None and not stacked.policy._first.any()
        stacked.policy.reset()
        assert stacked.policy._first is None


def test_what_things_say_of_themselves() -> None:
    with agent() as one:
        assert (
            repr(one)
            == "<PPO on CartPole-v1: observation Box(4,), action Discrete(2), one process, 0 steps, no folder yet>"
        )
        assert repr(one.policy) == "<DeployedPolicy: observation (4,), action categorical, network mlp>"
    assert repr(one).endswith(", closed>")
    waiting = raypid.IMPALAAgent("CartPole-v1", num_actors=2, num_learners=1, num_storages=4)
    assert repr(waiting) == "<IMPALAAgent: IMPALA on CartPole-v1, num_actors 2, num_learners 1, not started>"
    assert not hasattr(one, "zzz") and not hasattr(one, "__wrapped__")


def test_calls_that_do_not_fit() -> None:
    class Mine(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

    for call, said in (
        (
            lambda: raypid.PPO(env=gymnasium.wrappers.TimeLimit(Mine(), 9)),
            "env is a TimeLimit, .* or a function that makes the environment with its wrappers",
        ),
        (
            lambda: raypid.PPO(gymnasium.make_vec("CartPole-v1")),
            "every worker makes its own environment. Give a Gymnasium id",
        ),
        (lambda: PPO("CartPole-v1"), "Its agent is raypid.PPO"),  # type: ignore[arg-type, call-arg]
    ):
        with pytest.raises(UserError, match=said):
            call()
    with pytest.raises(ConfigError, match=r'The algorithm comes first: raypid.train\("PPO", "CartPole-v1"\)'):
        raypid.train("CartPole-v1", "PPO")
    with agent() as one:
        for call, said in (
            (lambda: one.eval(0), "at least 1, not 0"),
            (lambda: one.train("x"), "num_train_steps takes a number of environment steps, at least 0, not 'x'"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError, match=said):
                call()
        for call in (lambda: one.eval(x=3), lambda: one.act(), lambda: one.fit(100, quite=True)):  # type: ignore[call-arg]
            with pytest.raises(TypeError):
                call()
        out = one.fit(40, out="a", **QUICK)
    with pytest.raises(AttributeError, match="before its algorithm is named"):
        raypid.Agent.DEFAULT_CONFIG  # noqa: B018
    for name in ("DNQ", "load"):
        assert not hasattr(raypid, name) and not hasattr(raypid.PPO, name)
    assert repr(out.load_policy()).startswith("<DeployedPolicy: PPO on CartPole-v1, observation (4,), action cat")


def test_what_ones_own_classes_return_is_checked() -> None:
    class Forgets(raypid.PPO):
        def train(self, num_train_steps: Any = None) -> Any:
            super().train(num_train_steps)

    class OneNumber(PPO):
        def loss(self, *args: Any) -> Any:
            return super().loss(*args)[0]

    with (
        Forgets("CartPole-v1", **SMALL) as one,
        pytest.raises(UserError, match=r"Forgets.train\(\) returned None; it must return a result"),
    ):
        one.fit(40, out="c", **QUICK)
    with (
        raypid.Agent(OneNumber, "CartPole-v1", **SMALL) as one,
        pytest.raises(UserError, match=r"OneNumber.loss\(\) returned tensor"),
    ):
        one.train()
    with agent() as two:
        for call, said in (
            (lambda: two.set_weights(3), "set_weights takes Weights, as get_weights"),
            (lambda: two.save(3), "save: folder must be the path of a folder, not 3"),
        ):
            with pytest.raises(UserError, match=said):
                call()  # type: ignore[no-untyped-call]


def test_an_error_is_one_line_in_a_notebook() -> None:
    assert UserError("so")._render_traceback_() == ["UserError: so"]
    assert ConfigError("so")._render_traceback_() == ["ConfigError: so"]
