"""`raypid init`, and what a command finds in the project that it runs in; the documented command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raypid.cli import main
from raypid.cli.init import TEMPLATE, TESTS
from raypid.cli.train import fitting_command
from raypid.plugins.project import foreign_project
from raypid.storage.ownership import MARKER

NAMES = ("--env_name", "custom_env", "--agent_name", "custom_agent", "--model_name", "custom_model")
SHORT = ("--stop", '{"timesteps_total": 2000}', "--final-episodes", "0", "--seed", "0")
DOCUMENTED = (
    "--env_name", "gym_env", "--agent_name", "default_agent", "--model_name", "ppo", "--num_envs_per_worker", "3", "--num_workers", "3",
    "--gpu", "0,1,2", "--num_gpus", "3", "--num_cpus", "8", "--batch_size", "10",
)  # fmt: skip


def raypid(
    place: Path, *arguments: object, python: tuple[str, ...] = ("-m", "raypid")
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, *map(str, arguments)]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    done = raypid(place, "init", "mine")
    assert (done.returncode, done.stderr) == (0, "") and "cd mine" in done.stdout
    return place / "mine"


@pytest.mark.ci_slow
def test_a_project_trains(project: Path) -> None:
    """Its classes are found by name, its options are flags, and what was trained is found again."""
    flags = ("--step-cost", 0.5, "--corridor_size=4", "--passes", 3, "--entropy_coef", 0.5, "--quiet")
    done = raypid(project, "train", *NAMES, *SHORT, *flags, "--out", "runs/a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    params = json.loads((project / "runs/a/params.json").read_text())
    assert params["custom_args"] == {"step_cost": 0.5} and params["env_config"] == {"corridor_size": 4}
    assert params["agent_config"] == {"passes": 3} and params["model"]["custom"] == {"entropy_coef": 0.5}
    done = raypid(project / "envs", "eval", "../runs/a", "--json")  # from within the project
    assert done.returncode == 0 and "custom_env" in done.stdout, done
    more = ("--stop", '{"timesteps_total": 3000}', "--entropy-coef", 0.25, "--quiet", "--final-episodes", 0)
    assert raypid(project, "train", "--resume", "runs/a", *more).returncode == 0
    outside = raypid(project.parent, "eval", "mine/runs/a")
    assert outside.returncode == 2 and "there is no module 'models' on the path" in outside.stderr, outside


def test_its_options_are_in_the_help(project: Path) -> None:
    done = raypid(project, "train", *NAMES, "--help")
    found = re.findall(r"arguments of (.*):\n  (--[\w-]+)", done.stdout)
    assert found == [
        ("environment custom_env", "--corridor-size"), ("network custom_model", "--entropy-coef"),
        ("agent custom_agent", "--passes"), ("options/custom_options.py", "--step-cost"),
    ]  # fmt: skip


@pytest.mark.ci_slow
def test_its_tests_pass_and_its_file_of_settings_trains(project: Path) -> None:
    done = raypid(project, "-q", "-p", "no:cacheprovider", python=("-m", "pytest"))
    assert done.returncode == 0, done.stdout
    done = raypid(project, "train", "--config", "train.yaml", *SHORT, "--out", "runs/yaml", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.ci_slow
def test_its_classes_reach_ray_s_workers(project: Path) -> None:
    ray = ("--num_workers", 2, "--num_cpus_per_worker", 0.5)
    done = raypid(project, "train", *NAMES, *SHORT, *ray, "--out", "runs/ray", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_wrong_with_a_project(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    done = raypid(copy, "train", *NAMES, *SHORT)  # this user did not make it
    assert done.returncode == 2 and "Unknown environment 'custom_env'" in done.stderr
    assert f"`raypid init {copy}` marks it" in done.stderr
    assert raypid(copy, "init", ".").returncode == 0
    model = copy / "models" / "custom_model.py"
    text = model.read_text()
    model.write_text(text.replace("def step(", "def step(("))
    done = raypid(copy, "train", *NAMES, *SHORT)
    line = 1 + text[: text.index("def step(")].count("\n")
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"raypid: {re.escape(str(model))}:{line}: .*\n", done.stderr), done.stderr
    model.write_text(text + "\nprint(undefined)\n")
    done = raypid(copy, "train", *NAMES, *SHORT)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines[0].startswith("Traceback") and "NameError" in lines[-2], done.stderr
    assert lines[-1] == "raypid: models/custom_model.py of the project cannot be imported."
    model.write_text(text.replace("--entropy_coef", "--lr"))
    done = raypid(copy, "train", *NAMES, *SHORT)
    assert "network custom_model: argument --lr: conflicting option string" in done.stderr
    model.write_text(text.replace("--entropy_coef", "--corridor_size"))
    done = raypid(copy, "train", *NAMES, *SHORT)
    assert "network custom_model: argument --corridor-size: conflicting option string" in done.stderr


FILES = {file.relative_to(TEMPLATE).as_posix() for file in TEMPLATE.rglob("*") if file.is_file()}
FILES -= {file for file in FILES if "__pycache__" in file}


@pytest.mark.parametrize(
    ("there", "left_out"),
    [
        ((), ()),
        (("README.md", "train.yaml", ".gitignore"), ()),
        (("envs/custom_env.py",), TESTS),
        (("tests/test_project.py", "models/custom_model.py"), TESTS[:1]),
        (tuple(FILES), ()),
    ],
)
def test_init_adds_what_is_missing(
    there: tuple[str, ...], left_out: tuple[str, ...], tmp_path: Path, capsys: Any
) -> None:
    """It replaces nothing, tells all that it wrote and left, and its command has the names of the files that were there."""
    folder = tmp_path / "a" / "b"
    for file in there:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f'register_env("mine")  # {file}')
    assert main(["init", str(folder)]) == 0 and (folder / MARKER).exists()
    found = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert found == FILES - set(left_out) | {MARKER}
    for file in FILES - set(left_out):
        mine = f'register_env("mine")  # {file}'.encode()
        assert (folder / file).read_bytes() == (mine if file in there else (TEMPLATE / file).read_bytes()), file
    said = {key: rest for key, _, rest in (line.partition(": ") for line in capsys.readouterr().out.splitlines())}
    written, kept = said["  written"], said.get("  left as they were", "")
    assert set(written.split(", ")) == FILES - set(there) - set(left_out) or written.startswith("nothing")
    assert set(filter(None, kept.split(", "))) == set(there)
    assert [file in said.get("  left out", "") for file in TESTS] == [file in left_out for file in TESTS]
    name = "mine" if "envs/custom_env.py" in there else "custom_env"
    assert any(line.startswith(f"raypid train --env_name {name} --agent_name custom_agent ") for line in said)


def test_where_a_project_is_not_written(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["init", str(tmp_path / "file")]) == 2 and "cannot be written" in capsys.readouterr().err
    (tmp_path / "envs").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2 and "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "envs").read_text() == "mine"


# -- a folder that is laid out by hand -----------------------------------------------------------------------------------


BY_HAND = """
import pathlib

import gymnasium

from raypid import OBSERVATION, register_env

pathlib.Path(__file__).with_name("imported").touch()


@register_env('custom_env')
class CustomEnvWrapper(object):
    def __init__(self, args):
        self.env = gymnasium.make("CartPole-v1")
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.scale = args.scale

    def reset(self):
        return OBSERVATION(self.env.reset()[0])

    def step(self, action, **kwargs):
        observation, reward, *rest = self.env.step(action)
        return OBSERVATION(observation, reward * self.scale, *rest)
"""
OPTIONS = "def get_custom_args(parser):\n    parser.add_argument('--scale', type=float, default=1.0)\n"


@pytest.mark.parametrize(
    ("file", "text", "is_found"),
    [
        ("envs/custom_env.py", BY_HAND, True),
        ("envs/custom_maze.py", "import raypid\nraypid.register_env(\n    'maze', Maze)", True),
        ("models/custom_model.py", "@raypid.register_model('custom_model')", True),
        ("agents/custom_agent.py", '@register_agent("custom_agent")', True),
        ("envs/custom_env.py", "class CustomEnv: ...", False),
        ("models/model.py", "@register_model('model')", False),
        ("custom_env.py", BY_HAND, False),
        ("inner/envs/custom_env.py", BY_HAND, False),
    ],
)
def test_which_folder_is_laid_out_as_a_project(file: str, text: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert foreign_project(tmp_path) == (tmp_path if is_found else None)
    (tmp_path / "params.json").write_text('{"run": "PPO", "env": "CartPole-v1"}')
    assert foreign_project(tmp_path) is None  # a run's folder


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("by") / "hand"
    shutil.copytree(TEMPLATE / "models", place / "models")
    shutil.copytree(TEMPLATE / "agents", place / "agents")
    for file, text in (("envs/custom_env.py", BY_HAND), ("options/custom_options.py", OPTIONS)):
        (place / file).parent.mkdir()
        (place / file).write_text(text)
    return place


@pytest.mark.parametrize(
    "ray", [(), pytest.param(("--num_workers", 2, "--num_cpus_per_worker", 0.5), marks=pytest.mark.ci_slow)]
)
def test_a_folder_laid_out_by_hand_trains_as_it_stands(ray: tuple[object, ...], laid_out: Path, tmp_path: Path) -> None:
    done = raypid(laid_out, "train", *NAMES, *SHORT, *ray, "--scale", 2, "--out", tmp_path / "run", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "run" / "params.json").read_text())["custom_args"] == {"scale": 2.0}
    done = raypid(laid_out, "eval", tmp_path / "run", "--episodes", 1)
    assert done.returncode == 0 and "custom_env" in done.stdout, done.stderr
    assert not (laid_out / MARKER).exists()


@pytest.mark.parametrize("beside", ["a run of somebody else's", "the mark of somebody else", "the folder above"])
def test_an_unmarked_folder_is_not_imported(
    beside: str, laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may have come in one archive with a run is not imported, nor what lies above the current folder."""
    place = Path(shutil.copytree(laid_out, tmp_path / "theirs"))
    (place / "envs" / "imported").unlink(missing_ok=True)
    command: tuple[object, ...] = ("train", *NAMES, *SHORT)
    if beside.startswith("a run"):
        shutil.copytree(Path(__file__).parents[1] / "fixtures" / "saved" / "ppo", place / "runs" / "ppo")
        command = ("eval", "runs/ppo", "--env", "custom_env")
    elif beside.startswith("the mark"):
        (place / MARKER).write_text("0" * 64)
    done = raypid(place / "envs" if beside.endswith("above") else place, *command)
    assert done.returncode == 2 and "Unknown environment 'custom_env'" in done.stderr, done
    assert f"`raypid init {place}` marks it" in done.stderr and not (place / "envs" / "imported").exists()
    assert main(["init", str(place)]) == 0
    assert raypid(place, "list", "envs", "custom_env").returncode == 0 and (place / "envs" / "imported").exists()


# -- the documented command --------------------------------------------------------------------------------------------


def test_the_documented_command(capsys: Any) -> None:
    """On a machine with less: one line, with the command that fits."""
    assert main(["train", *DOCUMENTED]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "3 learners of 1 GPU need 3 GPUs" in said.err
    command = said.err.split("The command that fits: ")[1].split()
    assert command[:4] == ["raypid", "train", "--env-name", "gym_env"] and "--gpu" not in command
    large = fitting_command(["train", "--buffer-size", "20000000000"], {"buffer_size": 1234567890})
    assert large == "raypid train --buffer-size 1234567890"


def test_run_and_agent_are_one_of_two(capsys: Any) -> None:
    assert main(["train", "--run", "PPO", "--agent_name", "default_agent", "--env", "CartPole-v1"]) == 2
    assert "--run PPO does not go with --agent_name" in capsys.readouterr().err


def test_gym_env_takes_an_id(tmp_path: Path, capsys: Any) -> None:
    flags = ("--model_name", "ppo", "--env_name", "gym_env", "--env_id", "Acrobot-v1", "--out", str(tmp_path / "run"))
    assert main(["train", *flags, "--stop", '{"training_iteration": 1}', "--final-episodes", "0", "--quiet"]) == 0
    assert json.loads((tmp_path / "run" / "params.json").read_text())["env"] == "Acrobot-v1"


@pytest.mark.ci_slow
def test_the_documented_command_made_to_fit_learns(tmp_path: Path) -> None:
    stop = ("--stop", '{"evaluation/episode_reward_mean": 195, "time_total_s": 200}')
    done = raypid(tmp_path, "train", *DOCUMENTED, "--fit", "--seed", 1, *stop, "--out", "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert (
        json.loads((tmp_path / "run" / "result.json").read_text().splitlines()[-1])["evaluation/episode_reward_mean"]
        >= 195
    )


EVERY = """
import itertools, raypid
raypid.load_project()
for agent, model, env in itertools.product(("custom_agent", "default_agent"), ("custom_model", "ppo", "a2c"), ("custom_env", "gym_env")):
    with raypid.CustomModel(env=env, agent=agent, model_name=model, num_envs_per_worker=2, fragment_length=16, batch_size=16) as run:
        run.train()
        assert run.train()["learner_updates_total"] >= 2, (agent, model, env)
with raypid.PPO(env="custom_env", fragment_length=16) as run:
    run.train()
"""


@pytest.mark.ci_slow
def test_every_part_can_be_exchanged(project: Path) -> None:
    done = raypid(project, EVERY, python=("-c",))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("where", ["home", "root"])
def test_init_marks_no_folder_that_holds_more_than_one_project(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["init", str(tmp_path) if where == "home" else tmp_path.anchor]) == 2
    assert "holds more than one project" in capsys.readouterr().err and not list(tmp_path.iterdir())
