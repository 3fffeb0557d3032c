"""`raypid train -f FILE`: one run as by flags; what would run; what is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.cli import main

SMALL = "num_envs_per_worker: 2\nfragment_length: 16\nbatch_size: 32\n"
ONE = f"run: PPO\nenv: CartPole-v1\nstop: {{training_iteration: 2}}\nfinal_episodes: 0\nseed: 3\n{SMALL}"
SWEEP = ONE + "lr: {grid_search: [1e-3, 1e-4]}\nrepeat: 2\n"
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """shell("train", ...) -> (code, stdout, stderr), in a folder with one.yaml and sweep.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text(ONE)
    Path("sweep.yaml").write_text(SWEEP)

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([*map(str, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def params(folder: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(folder, "params.json").read_text())
    assert len(values.pop("signature")) == 64
    return values


def test_a_flat_file_is_the_run_that_its_flags_are(shell: Shell) -> None:
    flags = [
        "--num-envs-per-worker",
        2,
        "--fragment-length",
        16,
        "--batch-size",
        32,
        "--seed",
        3,
        "--final-episodes",
        0,
    ]
    stop = ["--stop", '{"training_iteration": 2}']
    assert shell("train", "--run", "PPO", "--env", "CartPole-v1", *flags, *stop, "--out", "flags", "--quiet")[0] == 0
    assert shell("train", "-f", "one.yaml", "--out", "file", "--quiet") == (0, "", "")
    assert params("file") == params("flags")
    last = [
        json.loads((Path(f) / "result.json").read_text().splitlines()[-1])["episode_reward_mean"]
        for f in ("file", "flags")
    ]
    assert last[0] == last[1]
    assert not Path("file/experiment.json").exists()


def test_flags_win_over_a_file(shell: Shell) -> None:
    Path("out.yaml").write_text(ONE.replace("run: PPO\n", "") + "out: named\nconfig: {num_sgd_iter: 2}\n")
    more = ("--run", "A2C", "--stop", '{"training_iteration": 1}', "--seed", 4)
    code, _, err = shell("train", "-f", "out.yaml", *more)
    assert code == 2 and err == (
        "raypid: out.yaml:9: Unknown setting 'num_sgd_iter'. docs/coming-from/ says what other libraries' names are here.\n"
    )
    code, out, err = shell("train", "--file", "out.yaml", "--run", "PPO", *more[2:], "--num-epochs", 3)
    assert (code, err) == (0, "")
    assert (
        "num_sgd_iter is called num_epochs here"
        in shell("train", "-f", "out.yaml", "--run", "PPO", "--out", "x", "--explain")[1]
    )
    saved = params("named")
    assert (saved["stop"], saved["seed"], saved["num_epochs"]) == ({"training_iteration": 1}, 4, 3)
    assert shell("train", "-f", "out.yaml", "--run", "PPO")[2].count("named holds another run") == 1
    assert shell("train", "-f", "out.yaml", "--run", "PPO", "--overwrite", "--quiet")[0] == 0
    # a run's params.json is such a file
    assert shell("train", "-f", "named/params.json", "--out", "again", "--quiet")[0] == 0
    assert params("again") == params("named")


def test_the_trials_are_shown(shell: Shell) -> None:
    code, out, err = shell("train", "-f", "sweep.yaml", "--dry-run", "--gamma", 0.5)
    assert (code, err) == (0, "") and not Path("runs").exists()
    lines = out.splitlines()
    assert lines[0] == "sweep: 4 trials of PPO in runs/sweep/, each until training_iteration 2"
    assert [line.split() for line in lines[1:6]] == [
        ["trial", "lr", "seed", "CPUs"],
        *([f"00{i}", lr, seed, "1"] for i, (seed, lr) in enumerate(
            [("3", "0.001"), ("3", "0.0001"), ("4", "0.001"), ("4", "0.0001")], start=1
        )),
    ]  # fmt: skip
    code, out, err = shell("train", "-f", "one.yaml", "--dry-run")  # its settings, since nothing varies
    assert (code, err) == (0, "") and "fragment_length" in out and out.endswith("Nothing was run.\n")


def test_a_list_of_one_seed_is_one_run(shell: Shell) -> None:
    Path("one.yaml").write_text(ONE.replace("seed: 3", "seed: [5]"))
    code, out, err = shell("train", "-f", "one.yaml", "--explain", "--json")
    assert (code, err) == (0, "") and json.loads(out)["settings"]["seed"]["value"] == 5


def test_a_dry_run_ends_as_the_run_would(shell: Shell) -> None:
    Path("sweep").mkdir()
    Path("sweep/notes.txt").touch()
    code, out, err = shell("train", "-f", "sweep.yaml", "--dry-run", "--out", "sweep")
    assert code == 2 and "sweep is not empty and holds no experiment" in err and "sweep: 4 trials" in out
    Path("file").touch()
    for file in ("one.yaml", "sweep.yaml"):
        assert shell("train", "-f", file, "--dry-run", "--out", "file/x")[0] == 2


def test_the_examples_can_be_run(shell: Shell) -> None:
    for file in sorted((Path(__file__).parents[2] / "examples" / "experiments").glob("*.yaml")):
        code, out, err = shell("train", "-f", file, "--dry-run", "--num-workers", 0)
        assert (code, err) == (0, "") and "6 trials" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-f", "nowhere.yaml"], "There is no file 'nowhere.yaml'"),
        (["-f", "sweep.yaml", "--lr", "0.1"], "sweep.yaml:9: lr varies here, and --lr fixes it"),
        (["-f", "sweep.yaml", "--lrr", "0.1"], "Unknown option '--lrr'"),
        (["-f", "sweep.yaml", "--lr-schedule", "square"], "raypid: lr_schedule takes"),
        (
            ["-f", "sweep.yaml", "--stop", '{"lr": 1}'],
            "sweep.yaml:1: trial-001-lr=0.001,seed=3: Unknown stop criterion 'lr'",
        ),
        (["-f", "sweep.yaml", "--resume", "x"], "not both"),
        (["-f", "sweep.yaml", "--out", "taken"], "taken is not empty and holds no experiment"),
        (["-f", "sweep.yaml", "--out", "planned"], "Resume it (raypid train --resume planned)"),
        (["-f", "sweep.yaml", "--out", "x" * 300], "The experiment's folder cannot be"),
        (["-f", "sweep.yaml", "--out", "one.yaml"], "one.yaml is a file"),
        (
            ["-f", "sweep.yaml", "--tuned", "nosuch"],
            "sweep.yaml:1: trial-001-lr=0.001,seed=3: There are no tuned settings called 'nosuch'",
        ),
        (["-f", "sweep.yaml", "--stop", "{}"], "sweep.yaml:1: 'sweep' has no stop criterion"),
        (["-f", "."], "'.' is a folder"),
        (["--resume", "."], "/experiment.json is damaged"),
        (["-f", "one.yaml", "--env", "CartPol-v1"], "'CartPole-v1'"),
        (["-f", "one.yaml", "--overwrite"], "--overwrite replaces the run in a folder: name it, such as --out runs/a"),
        (["--dry-run", "--run", "PPO"], "--dry-run has no effect without --file"),
        (["--max-concurrent", "2", "--run", "PPO"], "no effect without --file or --resume"),
        (
            ["--resume", "planned", "--lr", "1"],
            "The experiment in planned goes on as it was planned: leave --lr out",
        ),
        (["--resume", "planned", "--stop", "{}", "--overwrite"], "leave --stop, --overwrite out"),
        (["--resume", "damaged"], "damaged/experiment.json is damaged"),
    ],
)
def test_what_is_refused(shell: Shell, arguments: list[str], words: str) -> None:
    for name in ("taken", "planned", "damaged"):
        Path(name).mkdir()
        (Path(name) / ("notes.txt" if name == "taken" else "experiment.json")).write_text("{}")
    Path("planned/trials.json").write_text("{}")
    before = sorted(map(str, Path().rglob("*")))
    code, out, err = shell("train", *arguments)
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1, err
    assert sorted(map(str, Path().rglob("*"))) == before


def test_a_file_in_a_run_of_somebody_else_names_no_code(shell: Shell) -> None:
    assert shell("train", "-f", "one.yaml", "--out", "theirs", "--quiet")[0] == 0
    file = Path("theirs/params.json")
    file.write_text(file.read_text().replace('"CartPole-v1"', '"subprocess:run"'))
    code, _, err = shell("train", "-f", file, "--out", "x")
    assert code == 2 and "subprocess:run" in err and "--trust" in err
    for text in (SWEEP, f"a: {{{', '.join(SWEEP.splitlines())}}}"):
        Path("theirs/sweep.yaml").write_text(text.replace("run: PPO", "run: subprocess:Popen"))
        code, _, err = shell("train", "-f", "theirs/sweep.yaml", "--out", "x")
        assert code == 2 and "subprocess:Popen" in err and "--trust" in err


@pytest.mark.slow  # the document's example is a sweep too, and the CI runs that
def test_a_sweep_leaves_a_run_for_each_trial_and_goes_on(raypid: Any, tmp_path: Path) -> None:
    """In a process of its own, whose output is no terminal; the folder is relative, and processes take one trial after another."""
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    done = raypid("train", "-f", "sweep.yaml", "--out", "sweep", "--max-concurrent", 1)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    trials = sorted(path.name for path in (tmp_path / "sweep").glob("trial-*"))
    assert len(trials) == 4 and trials[2] == "trial-003-lr=0.001,seed=4"
    for name in trials:
        rows = (tmp_path / "sweep" / name / "result.json").read_text().splitlines()
        assert json.loads(rows[-1])["training_iteration"] == 2
        saved = json.loads((tmp_path / "sweep" / name / "params.json").read_text())
        assert name.endswith(f"lr={saved['lr']:g},seed={saved['seed']}") and saved["num_envs_per_worker"] == 2
    again = raypid("train", "--resume", "sweep", "--quiet")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    over = raypid("train", "-f", "sweep.yaml", "--out", "sweep", "--overwrite", "--quiet", "--repeat", 3)
    assert over.returncode == 2 and "Unknown option '--repeat'" in over.stderr


@pytest.mark.slow
def test_all_experiments_of_a_file_go_on_from_the_folder_above_them(raypid: Any, tmp_path: Path) -> None:
    block = "".join(f"  {line}\n" for line in ONE.splitlines())
    (tmp_path / "two.yaml").write_text(f"b:\n{block}a:\n{block}")
    done = raypid("train", "-f", "two.yaml", "--out", "both")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith("1 trial in both/b, starting Ray.\n")
    (tmp_path / "both" / "a" / "trials.json").unlink()  # as if it had not come to it
    shutil.rmtree(tmp_path / "both" / "a" / "trial-001")
    again = raypid("train", "--resume", "both")
    assert (again.returncode, again.stderr) == (0, ""), again.stderr
    assert again.stdout.index("Experiment 1 of 2: both/b") < again.stdout.index("1 trial in both/a, starting Ray.")
    assert again.stdout.count("starting Ray") == 1
    assert (tmp_path / "both" / "a" / "trial-001" / "result.json").stat().st_size
