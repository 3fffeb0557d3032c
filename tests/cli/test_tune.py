"""`raypid tune`: what is refused before anything starts, and one whole search that is interrupted and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raypid.cli import main
from raypid.plugins import extras
from raypid.settings import saved as saved_settings

TUNE = ("tune", "--run", "PPO", "--env", "CartPole-v1")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    try:
        assert main(argv) == 2
    except SystemExit as exit_:
        assert exit_.code == 2
    error = capsys.readouterr().err
    assert error.startswith("raypid: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("tune", "--run", "PPOO", "--env", "CartPole-v1"), "Did you mean 'PPO'"),
        (("tune", "--env", "CartPole-v1"), "Name the algorithm"),
        (("tune", "--run", "PPO"), "Name the environment"),
        (("tune", "--run", "PPO", "--env", "CartPol-v1"), "Did you mean 'CartPole-v1'"),
        (("tune", "--run", "TD3", "--env", "CartPole-v1"), "takes continuous (Box) actions"),
        ((*TUNE, "--budget", "5s"), "too small for 4 trials of 1 s"),
        ((*TUNE, "--budget", "soon"), "not 'soon'"),
        ((*TUNE, "--budget", "1m", "--stop", '{"time_total_s": 600}'), "too small for 1 trial of 10 min"),
        ((*TUNE, "--stop", '{"timesteps_total": 5}'), "not 'timesteps_total'"),
        ((*TUNE, "--stop", '{"time_total_s": 0}'), "takes a number above 0"),
        ((*TUNE, "--space", '{"lrr": {"uniform": [0, 1]}}'), "Did you mean 'lr'"),
        ((*TUNE, "--space", '{"lr": {"loguniform": [0, 1]}}'), "begins above 0"),
        ((*TUNE, "--only", "lrr"), "Did you mean 'lr'"),
        ((*TUNE, "--lr", "-1"), "lr must be above 0"),
        ((*TUNE, "--seed", "99"), "[0, 90]"),
        ((*TUNE, "--trials", "0"), "at least 1"),
        ((*TUNE, "--name", "a/b"), "A name for settings"),
        ((*TUNE, "--triols", "3"), "Did you mean '--trials'"),
        ((*TUNE, "--callbacks", "nowhere:Mine"), "there is no module 'nowhere'"),
        (("tune", "--resume", "nowhere"), "There is nothing at 'nowhere'"),
        (("tune", "--resume", ".", "--trials", "3"), "holds no search to resume"),
        ((*TUNE, "--only", "lr", "--lr", "0.1"), "lr is given for every trial"),
        ((*TUNE, "--space", '{"env": {"choice": ["CartPole-v1", "Acrobot-v1"]}}'), "env cannot be searched"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_starts(
    argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start = time.monotonic()
    assert said in refused(capsys, *argv)
    assert time.monotonic() - start < 20 and not list(tmp_path.glob("runs/*"))


def test_names_and_folders_that_are_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved_settings.save("fast", {"algorithm": "PPO", "env": "CartPole-v1", "settings": {}})
    assert "called 'fast' already" in refused(capsys, *TUNE, "--name", "fast")
    (tmp_path / "study.log").write_text("mine\n")
    for argv in ((*TUNE, "--out", "."), ("tune", "--resume", ".")):
        assert "study.log is damaged" in refused(capsys, *argv)


@pytest.mark.parametrize("how", [("--by", "random"), ("--resume", "there")])
def test_without_optuna_one_line_says_what_to_install(
    how: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "installed", lambda module: module != "optuna")
    assert "raypid tune needs Optuna, which is not installed: " in refused(capsys, *TUNE, *how)


@pytest.mark.ci_slow
def test_a_search_ends_in_time_and_its_settings_have_a_name(tmp_path: Path) -> None:
    """Broken off by Ctrl-C, resumed, then trained with. Times are only bounded from above, generously.

    The time that is left for more fresh seeds than the least is not used: each is two more runs.
    """
    least = "from raypid.sweep import budget; budget.MAX_FRESH = budget.MIN_FRESH"
    program = f"{least}; from raypid.cli import main; raise SystemExit(main())"

    def tune(*argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, "tune", *argv]
        heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  # also where the tests run in the background
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed)

    stop = '{"evaluation/episode_reward_mean": 475, "time_total_s": 1}'
    options = ["--trials", "4", "--budget", "60s", "--stop", stop, "--only", "lr,num_epochs"]
    options += ["--name", "found", "--out", "out"]
    from raypid.sweep.search import open_study, runs_of

    first = tune(*TUNE[1:], *options)
    assert first.stdout is not None
    next(line for line in first.stdout if line.startswith("[") and "time" not in line)  # a trial has ended
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130 and "raypid tune --resume out" in said
    assert runs_of(open_study(tmp_path / "out", "search"))
    second = tune("--resume", "out")
    said, _ = second.communicate(timeout=100)
    assert second.returncode == 0, said
    verdict, where = said.splitlines()[-2:]
    trials = runs_of(open_study(tmp_path / "out", "search")).values()
    proof = runs_of(open_study(tmp_path / "out", "proof")).values()
    assert "the settings found are" in verdict.lower() and len(proof) >= 2
    is_saved = "--tuned found" in where  # else it says why not
    assert is_saved == ("found" in saved_settings.names()) and (is_saved or "Nothing is saved under a name" in where)
    page = (tmp_path / "out" / "report.md").read_text()
    assert (
        "raypid tune --run PPO --env CartPole-v1 --trials 4" in page
        and "--out out" not in page
        and "--name" not in page
    )
    named = "found" if is_saved else "out"
    assert f"raypid train --run PPO --env CartPole-v1 --tuned {named}" in page
    assert (tmp_path / "out" / "report.png").exists()
    assert {run.seed for run in trials} <= set(range(100)) and all(run.seed >= 1000 for run in proof)
    assert max(run.ended_at for run in (*trials, *proof)) < 60
    quiet = ("--stop", '{"training_iteration": 1}', "--final-episodes", "0", "--quiet", "--out", "run")
    assert main(("train", *TUNE[1:], "--tuned", named, *quiet)) == 0
    assert main(("eval", "out/found-seed1000", "--episodes", "2")) == 0
