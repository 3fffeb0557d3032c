"""Environments with one thing wrong each are found out, and those with nothing wrong are left in peace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken
import foreign_packages
import gymnasium
import numpy as np
import pytest
from patience import wait_until

import raypid
from raypid.check.advice import findings
from raypid.check.apart import Channel
from raypid.check.checks import examine
from raypid.check.costs import measure_vectors
from raypid.check.exam import Exam
from raypid.check.report import FACTS, EnvReport
from raypid.cli import main
from raypid.envs import EnvSpec, make_vector
from raypid.nn.allocation import keep_freed_memory
from raypid.phases import duration
from raypid.settings.config import Config, ConfigError
from raypid.spaces import SpaceError, space_leaves

QUICK: dict[str, Any] = {"seconds": 0.15, "speed": False}


def looked_at(env: object, **more: Any) -> EnvReport:
    return raypid.check_env(env, **{**QUICK, **more})


def told(report: EnvReport, severity: Any) -> str:
    return "\n".join(map(str, report.of(severity)))


def test_each_fault_is_named_once() -> None:
    report = looked_at(broken.ManyFaults)
    problems = [str(problem) for problem in report.problems]
    for text in (
        r"observation: at reset\(\) 1: the observation's part 'nan' is not finite: nan at index \[1\]",
        r"part 'inf/1' is not finite: inf at index \[0\]",
        r"part 'shape' has shape \(3,\); its space .* asks for shape \(2,\)",
        "part 'text' is 'hello'",
        "part 'dtype' has dtype float32; its space .* asks for shape .* and dtype uint8",
        r"part 'choice' is outside its space Discrete\(3\): 3",
        r"part 'beyond' is 77 at index \[0\], outside its bounds \[-10, 10\]",
        "part 'missing' is missing",
        "reward: at step 1 of episode 1: the reward is nan; it must be one finite number",
        r"terminated: at step 1 of episode 1: step\(\) returned 'no' as terminated; it must be true or false",
        "returned the info None; it must be a dict",
    ):
        assert sum(bool(re.search(text, problem)) for problem in problems) == 1, (text, report)
    assert len(problems) == 11 and "outside" not in told(report, "warning"), report
    for width, height in ((80, 24), (60, 16)):  # problems stay when there is more than a screen
        lines = report.screen(width, height).splitlines()
        assert (
            len(lines) < height and lines[0].startswith("broken:ManyFaults: 11 problems") and "more: --all" in lines[-1]
        )


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("no reward", "the reward is None; it must be one finite number"),
        ("text reward", "the reward is '1'; it must be one finite number"),
        (
            "parts of a reward",
            "the reward is {'fuel': 1.0, 'speed': 2.0}; it must be one finite number.* -> Sum the components, and keep the parts in info",
        ),
        ("vast reward", r"the reward is 10000.*00000; it must be one finite number, in float32"),
        ("large reward", r"the reward is 1e\+39; it must be one finite number, in float32"),
        pytest.param(
            "two rewards", r"the reward is array\(\[1., 1.\]\); it must be one finite number", marks=pytest.mark.ci_slow
        ),
        ("four", r"it returned a tuple of 4. -> Split done into terminated .*, as Gym did in 0.26"),
        ("raise", r"step\(\) at step 10 of episode 1 raises IndexError: no such cell \(.*broken.py:\d+ in step\)"),
        ("sys.exit", "raises SystemExit: 4"),
        ("exit", r"step\(\) at step 10 of episode 1 ends its process \(exit code 3\)"),
        ("segfault", r"ends its process \(SIGSEGV\). \(.*broken.py:\d+ in step\)"),
    ],
)
def test_what_a_step_does_wrong_is_a_problem(fault: str, text: str) -> None:
    report = looked_at(broken.Fault, env_config={"fault": fault})
    assert not report.ok
    assert re.search(text, told(report, "problem")), report


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (broken.RaisingConstructor, r"RuntimeError: no licence \(.*broken.py:\d+ in __init__\)"),
        (
            broken.OnlyObservation,
            r"reset\(\) must return \(obs, info\).*; it returned an ndarray. -> Write: return obs, {}",
        ),
        (
            broken.OldGym,
            r"reset\(\) must return \(obs, info\).*; it returned an ndarray. -> Write: return obs, {}",
        ),
        (broken.Text, "observation space is Text, which cannot be handled"),
        (broken.GlobalRandom, "global generator of numpy"),
        (broken.Unseeded, "the observation of step 1 differs: what happens after the reset is not seeded"),
        (broken.FixedSeed, "begins every episode alike, though seeds make it differ"),
        (broken.Leak, "the first observation differs: .* something of earlier episodes is left"),
        (broken.NeverSetBack, "the end of step 1 differs"),
        (
            broken.OnlyOne,
            r"a second one beside the first cannot be made: .*the port is taken \(.*broken.py:\d+ in __init__\)",
        ),
        (broken.Nothing, "gave an object of type Nothing without observation_space, action_space"),
        (broken.number, "gave an object of type int without reset, step"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_elsewhere_is_a_problem_too(env: object, text: str) -> None:
    report = looked_at(env)
    assert not report.ok and re.search(text, told(report, "problem")), report


def test_a_step_of_old_gym_is_seen_behind_a_time_limit() -> None:
    gymnasium.register("FourAndALimit-v0", broken.FourValues, max_episode_steps=50)
    try:
        report = looked_at("FourAndALimit-v0")
    finally:
        gymnasium.registry.pop("FourAndALimit-v0")
    assert "it returned a tuple of 4. -> Split done into terminated" in told(report, "problem"), report


def test_much_that_does_little_harm_is_no_problem() -> None:
    report = looked_at(broken.Untidy, seconds=10.0)
    warnings, notes = told(report, "warning"), told(report, "note")
    assert report.ok, report
    for text in (
        r"is 50 at index \[1\], outside its bounds \[-10, 10\], in [67]\d.\d% of",
        r"is unbounded in 1 of 2 elements: raypid passes on a Gaussian's actions, at first",
        r"close\(\) raises RuntimeError: not now",
        "it printed .* lines .* beginning with 'step 0'",
        r"reward: it has shape \(1,\); it must be one number",
    ):
        assert re.search(text, warnings), report
    assert notes == "\n".join(map(str, report.notes))
    assert "terminated: it is 0, an int, not a bool" in notes and "info['image'] is an array of 78 kB" in notes
    assert "comes as float64, its space says float32; raypid converts it" in notes


@pytest.mark.parametrize(
    ("env", "config", "severity", "text"),
    [
        (broken.Endless, {}, "warning", "none ended within .* no time limit. -> time_limit=1000"),
        (broken.NoSeed, {}, "warning", "takes no seed, and there is no seed"),
        (broken.Aliased, {}, "note", "changes after it was returned"),
    ],
)
def test_what_does_little_harm_is_no_problem(env: object, config: Any, severity: str, text: str) -> None:
    report = looked_at(env, env_config=config, seconds=10.0)
    assert report.ok and re.search(text, told(report, severity)), report


@pytest.mark.ci_slow
def test_a_leak_shows_also_where_memory_was_freed_before() -> None:
    keep_freed_memory()  # as training from images does
    _ = [np.ones(2_000) for _ in range(20_000)]
    del _
    report = looked_at(broken.Grows, seconds=10.0)
    assert report.ok and re.search(r"memory: it grows by (9|1\d) MB in 1,000 steps", told(report, "warning")), report


@pytest.mark.parametrize(
    ("env", "config", "during"),
    [
        (broken.HangingConstructor, {}, "constructor: it"),
        pytest.param(broken.HangingClose, {}, r"close: close\(\)", marks=pytest.mark.ci_slow),
        pytest.param(broken.HangingReset, {}, r"reset\(\) before episode 1", marks=pytest.mark.ci_slow),
        pytest.param(broken.Fault, {"fault": "hang"}, r"step\(\) at step 10 of episode 1", marks=pytest.mark.ci_slow),
        (broken.Fault, {"fault": "print"}, r"step\(\) at step 10 of episode 1"),
    ],
)
def test_what_hangs_is_ended_and_named(env: object, config: Any, during: str) -> None:
    report = looked_at(env, env_config=config, timeout_s=0.7)
    text = during + r" gives no answer within 0.7 s. \(.*broken.py:\d+ in (__init__|reset|step|close)\)"
    assert re.search(text, told(report, "problem")), report
    assert ("looking for a way out" in told(report, "warning")) == (config.get("fault") == "print")


def test_what_cannot_be_sent_to_workers_is_named() -> None:
    lock = threading.Lock()

    def locked() -> broken.Fine:
        with lock:
            return broken.Fine()

    report = looked_at(locked)
    assert report.ok and "cannot be sent to workers" in told(report, "warning"), report


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    report = looked_at(broken.Fine)
    assert report.ok and not report.warnings and not report.of("note"), report
    assert report.facts["episodes"]["length_min"] == report.facts["episodes"]["length_max"] == 30  # type: ignore[index]
    assert report.facts["reset"]["seeds_differ"] and report.facts["seeding"]["same_episode"]  # type: ignore[index]
    limited = looked_at(broken.Endless, time_limit=20)
    assert limited.ok and limited.facts["episodes"]["time_limit"] == 20, limited  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Parallel", "is PettingZoo's parallel environment .* raypid trains one"),
        ("Turns", "is PettingZoo's environment"),
        ("make_parallel", "is PettingZoo's parallel environment"),
        ("ByMethod", "is an environment in PettingZoo's or RLlib's form .* raypid trains one"),
        ("ByMapping", "is an environment in PettingZoo's or RLlib's form"),
        ("ByList", "is an environment in PettingZoo's or RLlib's form"),
        ("Specs", "is dm_env's environment .* shimmy"),
        ("OldGym", "is Gym's environment, of the old package gym .* imports gymnasium"),
    ],
)
def test_environments_of_other_packages_are_answered(name: str, text: str) -> None:
    env = f"foreign_packages:{name}"
    report = looked_at(env)
    assert not report.ok and report.found and re.search(text, told(report, "problem")), report
    with pytest.raises(raypid.envs.EnvError, match=text):
        raypid.PPO(env=env)


def test_spaces_of_the_old_gym_are_answered() -> None:
    with pytest.raises(SpaceError, match=r"is gym\.spaces.*Box, .* all from gymnasium.spaces"):
        space_leaves(foreign_packages.OldBox(), "observation")


@pytest.mark.parametrize("env", [broken.two, "envpool:CartPole-v1"])
def test_functions_that_make_vectors_are_looked_at(env: Callable[..., object]) -> None:
    report = looked_at(env)
    assert report.ok and report.facts["episodes"]["steps"] > 30, report  # type: ignore[index]


@pytest.mark.parametrize(
    ("episodes", "settings", "flags"),
    [
        ({"episodes": 0, "steps": 900}, {}, " --time-limit 1000"),
        (
            {"episodes": 0, "steps": 900, "time_limit": 50},
            {"time_limit": 50, "frame_stack": 2},
            " --time-limit 50 --frame-stack 2",
        ),
        ({"episodes": 40, "steps": 900}, {}, ""),
        ({"episodes": 0, "steps": 9}, {}, " --time-limit 1000"),
    ],
    ids=["none ends", "limited by a flag", "they end", "too few steps to say"],
)
def test_the_next_command_has_what_the_environment_needs(episodes: Any, settings: Any, flags: str) -> None:
    """A run on episodes that never end reports no return."""
    facts = {
        "episodes": {"time_limit": None, "unfinished_steps": 900, "length_max": 9, "length_min": 3, "length_mean": 5, "terminated": 40, **episodes},
        "reward": {"min": 0.0, "max": 1.0, "return_min": 0.0, "return_max": 5.0}, "step": {"mean_s": 1e-5}, "reset": {"mean_s": 1e-5},
        "training": {"PPO": {"seconds": 9.0, "env_share": 0.1, "env_s_per_step": 1e-5}},
        "action": {"space": "Discrete(2)"},
    }  # fmt: skip
    (found,) = (f for f in findings(facts, Config(**settings), "mine.py", healthy=True) if f.topic == "algorithm")
    assert found.advice == f"raypid train --run PPO --env mine.py{flags} --stop 1000000"


def test_costs_count_resets_and_steps_that_rarely_take_long() -> None:
    spec = EnvSpec(env=broken.Waits, num_envs=8)
    exam = Exam(spec, Channel(lambda message: None), 0.5)
    examine(exam)
    rows = {str(row["vectorizer"]): row for row in measure_vectors(exam, 0.2)}
    rates = {name: row["steps_per_s"] for name, row in rows.items()}
    assert isinstance(rates["sync"], float) and isinstance(rates["threads"], float)
    assert 1 / rates["sync"] >= (8 * 0.001 + 2 * 0.01 + 0.02) / 10 > exam.facts["step"]["median_s"]
    assert rates["threads"] > rates["sync"] and {row["num_envs"] for row in rows.values()} == {8}
    assert exam.facts["step"]["waits"] and exam.facts["step"]["max_s"] >= 0.01


def test_one_that_does_not_close_is_given_up() -> None:
    code = "import broken; from raypid.envs.closing import close_all; close_all([broken.HangingClose()], 'slow', seconds=0.05)"
    command = [sys.executable, "-c", code]  # the limit of a test is a signal, too
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Environment slow: close() did not come back within 0.05 s" in done.stderr


def test_an_array_of_one_element_is_a_reward_in_every_vector() -> None:
    vector = make_vector(EnvSpec(env=broken.ArrayReward, num_envs=2, vectorizer="async"))
    vector.reset()
    assert vector.step(np.zeros(2, np.int64)).reward.shape == (2,)
    vector.close()


@pytest.mark.ci_slow
def test_everything_is_measured_where_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v1", "--seconds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["problems"] == found["warnings"] == [] and set(FACTS) <= found.keys()
    rows = {row["vectorizer"]: row for row in found["vectorizers"]}
    assert rows.keys() - {"processes"} == {"native", "sync", "threads", "async"} and rows["native"]["auto"]
    assert rows["sync"]["steps_per_s"] > 0 and rows["native"]["num_envs"] == 8
    assert found["episodes"]["time_limit"] == 500 and found["step"]["p5_s"] <= found["step"]["p95_s"]
    for run in ("PPO", "SAC"):
        cost = found["training"][run]
        per_step = cost["env_s_per_step"] + cost["learning_s_per_step"]
        assert cost["seconds"] == pytest.approx(1e6 * per_step) and 0 < cost["env_share"] < 1


@pytest.mark.ci_slow
def test_an_agent_of_another_space_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "raypid/MultiMatch-v0", "--seconds", "0.3", "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert (
        training["PPO"]["seconds"]
        and training["SAC"]["seconds"] is None
        and re.match("SAC: .*MultiDiscrete", training["SAC"]["note"])
    )


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["Nope-v0"], 2, "Unknown environment 'Nope-v0'"),
        (["nosuch.py"], 2, "There is no file"),
        ([], 2, "Name one environment: raypid check-env CartPole-v1"),
        (["CartPole-v1", "Pendulum-v1"], 2, "Unexpected argument 'Pendulum-v1'"),
        (["CartPole-v1", "--run", "PPO"], 2, "Unknown option '--run'"),
        (["CartPole-v1", "--env-config", "foo"], 2, "JSON such as '{\"size\": 8}'"),
        (["broken:Nope"], 2, "module 'broken' has no 'Nope'"),
        (["CartPole-v1", "--seconds", "-1"], 2, "a number of seconds above 0, or such as 90s, 10m, 1h30m: not '-1'"),
        (["CartPole-v1", "--time-limit", "0"], 2, "time_limit must be at least 1"),
        (["CartPole-v1", "--nonsense"], 2, "Unknown option '--nonsense'"),
        (["broken:RaisingConstructor"], 1, ""),
    ],
)
def test_exit_codes(argv: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(["check-env", *argv, "--no-speed"]) == code
    except SystemExit as error:
        assert error.code == code
    out = capsys.readouterr()
    assert text in out.err and (code == 2 or "problem     constructor: it raises RuntimeError: no licence" in out.out)


def test_options_that_an_environment_declares_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (
        ["broken:Declared", "--length", "12"],
        ["--length=12", "--env", "broken:Declared", "--time-limit", "99"],
    ):
        assert main(["check-env", *argv, "--no-speed", "--seconds", "0.5", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["episodes"]["length_max"] == 12
    assert main(["check-env", "broken:Declared", "--help"]) == 0
    assert "steps of an episode" in capsys.readouterr().out


def test_json_is_one_document_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["Nope-v0"], ["broken:RaisingConstructor"], ["broken:Fault", "--env-config", '{"fault": "exit"}']):
        assert main(["check-env", *argv, "--seconds", "0.5", "--json"]) > 0
        found = json.loads(capsys.readouterr().out)
        assert not found["ok"] and found["problems"][0]["text"] and set(FACTS) <= found.keys()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="check_env takes no setting 'time_limt'. Did you mean 'time_limit'"):
        raypid.check_env("CartPole-v1", time_limt=3)
    with pytest.raises(ConfigError, match="seconds must be a number above 0, not 0"):
        raypid.check_env("CartPole-v1", seconds=0)


def test_screens_fit() -> None:
    report = looked_at(broken.Endless, seconds=3.0)
    for width, height in ((80, 24), (60, 16), (140, 40)):
        lines = report.screen(width, height).splitlines()
        assert len(lines) < height and max(map(len, lines)) <= width
    assert repr(report) == report.screen(100) and lines[1].startswith("warning ")
    assert [duration(s) for s in (4e-6, 2e-4, 0.03, 5.0, 400.0, 9000.0)] == ["4 us", "200 us", "30 ms", "5 s", "6.7 min", "2.5 h"]  # fmt: skip


@pytest.mark.ci_slow
def test_the_process_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import os, time, broken\n"
        "class Stuck(broken.Fine):\n"
        "    def step(self, action):\n"
        "        open('pid', 'w').write(str(os.getpid()))\n"
        "        while True: time.sleep(0.01)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "raypid", "check-env", "stuck:Stuck"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(gymnasium.registry))
def test_environments_of_gymnasium_have_no_problems(name: str) -> None:
    report = raypid.check_env(name, seconds=2.0, speed=False)
    missing = any("which is not installed" in p.text for p in report.problems)
    assert report.ok or missing, report
