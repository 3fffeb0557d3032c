"""`raypid reproduce`: real runs on CartPole-v1, what it compares, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.cli import main
from raypid.cli.reproduce import read_seeds
from raypid.run.reproduce import versions
from raypid.settings import tuned

ROOT = Path(__file__).parents[2]
ROW = {
    "algorithm": "PPO", "env": "CartPole-v1", "seed": 1000, "backend": "local", "threshold": 475, "solved": True, "steps": 10,
    "return": 490.0, "seconds": 900.0,
}  # fmt: skip


def reproduced(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["reproduce", *words]) == code
    return capsys.readouterr().out


def test_return_and_time_stand_beside_the_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = versions("CartPole-v1")
    monkeypatch.setattr(tuned, "_results", lambda: [{**ROW, "versions": {**here, "gymnasium": "0.29.1"}}])
    lines = reproduced(capsys, "ppo:cartpole-v1", "--seeds", "0-1").splitlines()
    assert lines[2] == f"gymnasium is {here['gymnasium']}, recorded with 0.29.1: returns may differ."
    assert lines[4].split() == ["recorded", "10", "490", "900", "seeds:", "1", "of", "1"]
    done = [line for line in lines if line.endswith("reached, faster than recorded")]
    assert [line.split()[:2] for line in done] == [["seed", "0"], ["seed", "1"]]
    assert lines[-1] == "Reproduced: 2 of 2 seeds reached 475, within 60 s of training each."


def test_a_goal_that_is_not_reached_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    text = reproduced(capsys, "PPO:CartPole-v1", "--limit", "0.01", code=1)
    assert "not reached\nNot reproduced: 0 of 1 seed reached 475" in text
    found = json.loads(reproduced(capsys, "PPO:CartPole-v1", "--limit", "0.01", "--json", "--seeds", "7", code=1))
    assert found["reproduced"] is False and found["seeds"][0]["seed"] == 7 and found["seeds"][0]["return"] < 475


def test_without_a_record_there_is_nothing_to_compare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "_results", lambda: [])
    text = reproduced(capsys, "ES:CartPole-v1")
    assert "This entry was not measured yet: there is nothing to compare with." in text
    assert "seed 1000 " in text and text.splitlines()[-1].startswith("Reached: 1 of 1 seed")


def test_rows_without_versions_are_read(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "_results", lambda: [{**ROW, "seconds": 0.0}])
    text = reproduced(capsys, "PPO:CartPole-v1")
    assert "The versions of packages were not recorded." in text and "reached, slower than recorded" in text
    assert "seed 1001 " in text  # the one after the recorded ones


def test_seeds_are_numbers_and_ranges() -> None:
    assert read_seeds("1000-1002") == [1000, 1001, 1002] and read_seeds("0,5, 4-6") == [0, 5, 4, 6]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "The following arguments are required: NAME. `raypid reproduce --help`"),
        (["PPO:CartPole-v2"], "Did you mean 'PPO:CartPole-v1' or "),
        (["PPO"], "Did you mean 'PPO:CartPole-v1' or 'PPO:"),
        (["CartPole-v1"], ":CartPole-v1' or "),
        (["nosuch"], "There are no recorded settings called 'nosuch'. Known: "),
        (["PPO", "CartPole-v1"], "Unexpected argument 'CartPole-v1'. `raypid reproduce --help`"),
        *((["PPO:CartPole-v1", "--seeds", seeds], "--seeds: takes") for seeds in ("3-1", "a", "1,", "-1", "0-99999", "99999999999")),
        *((["PPO:CartPole-v1", "--limit", limit], "--limit: A time is a number of seconds above 0") for limit in ("0", "nan", "x")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["reproduce", *words])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    said = capsys.readouterr()
    assert code == 2 and told in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize(
    ("env", "hidden", "extra"),
    [("HalfCheetah", "mujoco", "mujoco"), ("LunarLander", "Box2D", "box2d"), ("ALE/", "ale_py", "atari")],
)
def test_a_missing_package_is_one_line_before_anything_is_trained(
    env: str, hidden: str, extra: str, tmp_path: Path
) -> None:
    on_it = [f"{run}:{name}" for run, name in tuned.TUNED if name.startswith(env)]
    entry = next(name for name in on_it if not name.startswith("ApeX:"))  # which would start Ray
    hide = f"""
import sys
class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden)
"""
    (tmp_path / "sitecustomize.py").write_text(hide)
    done = command(entry, PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"needs the package {hidden!r}, which is not installed" in done.stderr and f"[{extra}]" in done.stderr


def command(*words: str, **environ: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "raypid", "reproduce", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
    )


def test_ctrl_c_ends_it_in_a_line(start: Callable[..., Any]) -> None:
    command = start("reproduce", "A2C:CartPole-v1", "--seeds", "0-999")
    while not command.process.stdout.readline().startswith("seed"):
        assert command.process.poll() is None
    command.ctrl_c()
    done = command.finish()
    assert (done.returncode, done.stderr) == (130, "raypid: stopped at once.\n")
