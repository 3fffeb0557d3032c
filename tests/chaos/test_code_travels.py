"""The user's code on nodes with and without the same disk, and nodes that are not like the others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes

from raypid.errors import UserError
from raypid.plugins import modules
from raypid.runtime import code

ENV = """
import os
from pathlib import Path

import gymnasium
import numpy as np

from parts.sub import GAIN


class Reach(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, log=os.environ.get("REACH_LOG")):
        self.goal, self.log = np.load(Path(__file__).parent / "goal.npy"), log
        assert (np.load("goal.npy") == self.goal).all()  # relative paths are right too

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        from parts.sub.late import WORD

        if self.log:
            with open(self.log, "a") as log:
                print(WORD, __file__, file=log)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return (self.goal * action).astype(np.float32), float(action) * GAIN, self.t >= 10, False, {}
"""
SCRIPT = '''
import sys

import raypid
from my_env import Reach


@raypid.register_env("mine")
class Mine(Reach):
    """Of the script itself."""


address, log, *kinds = sys.argv[1:]
if kinds == ["joined"]:
    import logging

    import ray

    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    kinds, address = ["class"], None
envs = {"class": Reach, "script": Mine, "name": "mine", "module": "my_env:Reach"}
small = {"num_envs_per_worker": 1, "fragment_length": 16, "batch_size": 32, "seed": 0}
for kind in kinds:
    with raypid.PPO(env=envs[kind], env_config={"log": log}, num_workers=2, address=address, **small) as agent:
        agent.train()
        assert len({agent.backend.node_of(worker, 30.0) for worker in agent.context.workers.handles}) == 2
'''
TRAIN = ("train", "--run", "PPO", "--fragment-length", 16, "--num-envs-per-worker", 1, "--batch-size", 32, "--seed", 0)
SHORT = ("--num-workers", 2, "--stop", '{"training_iteration": 2}', "--final-episodes", 0)


def write_code(folder: Path, word: str = "first") -> Path:
    (folder / "parts" / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "sub" / "__init__.py").write_text("GAIN = 2\n")
    (folder / "parts" / "sub" / "late.py").write_text(f"WORD = {word!r}\n")
    (folder / "my_env.py").write_text(ENV)
    (folder / "reacher.py").write_text(ENV)
    (folder / "train.py").write_text(SCRIPT)
    import numpy as np

    np.save(folder / "goal.npy", np.ones(3))
    return folder


# -- what is packed ------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with code, which is the current one and all that is on the path. What is imported of it is forgotten."""
    before = {*sys.modules}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), *(path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)))]
    )
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(modules, "moved", {})
    monkeypatch.setenv("TMPDIR", str(tmp_path.parent / f"{tmp_path.name}-tmp"))
    (tmp_path.parent / f"{tmp_path.name}-tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    yield write_code(tmp_path)
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("parts", "my_env", "reacher"):
            del sys.modules[name]


def names_in(data: bytes) -> set[str]:
    import io
    import zipfile

    return {name.removeprefix("0/") for name in zipfile.ZipFile(io.BytesIO(data)).namelist()}


def test_what_travels_and_what_stays(here: Path) -> None:
    own = {
        "my_env.py",
        "reacher.py",
        "train.py",
        "goal.npy",
        "parts/__init__.py",
        "parts/sub/__init__.py",
        "parts/sub/late.py",
    }
    for name in (
        ".env",
        ".git/config",
        "runs/a/x.py",
        "env/pyvenv.cfg",
        "env/lib.py",
        "__pycache__/x.pyc",
        "data/table.csv",
    ):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("secret")
    (here / "old").mkdir()
    (here / "old" / "params.json").write_text('{"run": "PPO", "env": "x"}')
    (here / "old" / "evil.py").write_text("")
    (here / ".raypidignore").write_text("# what roles do not need\ndata/\n")
    with (here / "large.bin").open("wb") as large:
        large.truncate(code.MOST_FILE + 1)
    (here / "circle").symlink_to(here)
    sent, data = code.pack()
    assert names_in(data) == own and sent.folders == (str(here),) and sent.path == (str(here),)
    assert sent.left_out == (f"{here / 'large.bin'} (16 MB)",)
    assert code.pack()[0].digest == sent.digest  # the same code has the same place
    write_code(here, "second")
    assert code.pack()[0].digest != sent.digest


def test_too_much_is_refused_with_what_is_largest(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_FILES", 10)
    for number in range(20):
        (here / "frames").mkdir(exist_ok=True)
        (here / "frames" / f"{number}.txt").write_text("x")
    sent, data = code.pack()
    assert sent.left_out == (f"{here} (nothing in it was imported)",) and not names_in(data)
    modules.import_named("parts.sub")
    with pytest.raises(
        UserError, match=r"too large to be sent .*at most 10 files.*: frames \(20 files, 0 MB\).*\.raypidignore"
    ):
        code.pack()
    (here / ".raypidignore").write_text("frames\n")
    assert len(names_in(code.pack()[1])) == 7


def test_it_is_unpacked_once_and_removed_when_nobody_uses_it(here: Path) -> None:
    sent, data = code.pack()
    asked: list[int] = []

    def fetch() -> bytes:
        asked.append(1)
        return data

    code.unpack(sent, fetch)
    code.unpack(sent, fetch)
    place = Path(modules.here(str(here)))
    assert len(asked) == 1 and (place / "parts" / "sub" / "late.py").read_text() == "WORD = 'first'\n"
    assert sys.path[0] == str(place) and place.parents[1].stat().st_mode & 0o777 == 0o700
    assert modules.import_named(str(here / "reacher.py")).__file__ == str(place / "reacher.py")
    sys.modules.pop("reacher", None)
    write_code(here, "second")
    code.unpack(*(lambda other, more: (other, lambda: more))(*code.pack()))
    assert place.is_dir()  # this process holds it
    for lock in code._held:
        lock.close()
    write_code(here, "third")
    code.unpack(*(lambda other, more: (other, lambda: more))(*code.pack()))
    assert not place.is_dir() and len(list(place.parents[1].glob("*/lock"))) == 1


# -- nodes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not have mount namespaces")
    (tmp_path / "code").mkdir()
    made = Nodes(tmp_path)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


def words(log: Path) -> set[str]:
    return {line.split()[0] for line in log.read_text().splitlines()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_code_of_all_kinds_reaches_every_node(nodes: Nodes, start: Callable[..., Any], tmp_path: Path) -> None:
    """A node that has the driver's disk, the head, and one that has not. (A file of its own has test_nodes.)"""
    folder, log = write_code(tmp_path / "code"), tmp_path / "log"
    nodes.add(1, hide=folder)
    for which in (("class", "script", "name", "module"), ("joined",)):
        done = start(nodes.address, log, *which, python=str(folder / "train.py"), cwd=folder).finish()
        assert (done.returncode, done.stderr) == (0, ""), (which, done)
    assert words(log) == {"first"}
    log.unlink()
    write_code(folder, "second")  # the second run on the same cluster has the new code
    done = start(nodes.address, log, "class", python=str(folder / "train.py"), cwd=folder).finish()
    assert (done.returncode, done.stderr) == (0, ""), done
    places = {line.split()[1] for line in log.read_text().splitlines() if str(folder) not in line}
    assert words(log) == {"second"} and len(places) == 1
    subprocess.run([sys.executable, "-m", "raypid", "init", "mine"], cwd=folder, check=True, capture_output=True)
    own = ("--env_name", "custom_env", "--agent_name", "custom_agent", "--model_name", "custom_model")
    done = start(
        "train", *own, *SHORT, "--fragment-length", 16, "--address", nodes.address, cwd=folder / "mine"
    ).finish()
    assert (done.returncode, done.stderr) == (0, ""), done
    seen = write_code(tmp_path / "seen")
    (seen / "many.yaml").write_text(
        f"many:\n  run: PPO\n  env: my_env:Reach\n  address: {nodes.address}\n  stop: {{training_iteration: 1}}\n"
        "  config: {num_workers: 0, lr: {grid_search: [0.001, 0.002]}}\n"
    )
    done = start("train", "-f", "many.yaml", cwd=seen).finish()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert len([*(seen / "runs" / "many").glob("*/result.json")]) == 2
    done = start("train", "-f", seen / "many.yaml", cwd=folder).finish()  # which the other node does not see
    assert done.returncode == 1 and f"does not see {folder / 'runs' / 'many'}. A trial writes there" in done.stderr, (
        done
    )


LACKS = """
import sys


class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {0!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)


sys.meta_path.insert(0, Lacks())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lacks", ["raypid", "another raypid", "Box2D"])
def test_a_node_that_is_not_like_the_others_is_named(
    nodes: Nodes, start: Callable[..., Any], tmp_path: Path, lacks: str
) -> None:
    """One line with the node and what to do."""
    other, host = tmp_path / "other", nodes.address.partition(":")[0]
    other.mkdir()
    if lacks == "another raypid":
        shutil.copytree(Path(code.__file__).parents[1], other / "raypid", ignore=shutil.ignore_patterns("__pycache__"))
        (other / "raypid" / "errors.py").open("a").write("\nMORE = 1\n")
        said = rf"Node {re.escape(host)} \([0-9a-f]{{6}}\) has another raypid"
    else:
        (other / "sitecustomize.py").write_text(LACKS.format(lacks))
        said = (
            f"node {host} has no raypid, or another one than this run"
            if lacks == "raypid"
            else rf"On node {host} \([0-9a-f]{{6}}\): .* needs the package 'Box2D'"
        )
    nodes.add(2, PYTHONPATH=os.pathsep.join([str(other), os.environ["PYTHONPATH"]]))
    env = "LunarLander-v3" if lacks == "Box2D" else "CartPole-v1"
    done = start(*TRAIN, *SHORT, "--env", env, "--address", nodes.address).finish()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert re.search(said, done.stderr), done


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
def test_clocks_that_differ(nodes: Nodes, start: Callable[..., Any]) -> None:
    """A node that is a year ahead: nothing compares the clocks of two hosts."""
    nodes.add(2, before=["faketime", "-f", "+1y"])
    for run, env in {"PPO": "CartPole-v1", "IMPALA": "CartPole-v1", "SAC": "Pendulum-v1"}.items():
        train = ("train", "--run", run, "--env", env, "--address", nodes.address, "--seed", 0, "--out", run)
        done = start(*train, *SHORT[:2], "--stop", '{"timesteps_total": 3000}', "--worker-timeout-s", 60).finish()
        assert (done.returncode, done.stderr) == (0, "") and "lost" not in done.stdout, done
