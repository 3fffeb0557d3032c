"""Without torch and Ray: what runs, and how the rest is refused. The command that installs a package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import raypid
from raypid.cli import init, main
from raypid.plugins import extras
from raypid.plugins.extras import OWN, PACKAGES, MissingPackage, install_command, install_hint, need

ROOT = Path(__file__).parent.parent
SAVED = Path(__file__).parent / "fixtures" / "saved"
HIDE = """
import sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden)
"""
"""A sitecustomize.py that hides packages from a Python process and from those that it starts."""
Without = Callable[[str], str]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Without:
    """Run code in a process that has neither torch nor Ray, in a folder that all share; returns what it printed."""
    place, folder = tmp_path_factory.mktemp("hide"), tmp_path_factory.mktemp("runs")
    (place / "sitecustomize.py").write_text(HIDE.format(names=("torch", "ray")))
    path = os.pathsep.join(filter(None, [str(place), str(ROOT), os.environ.get("PYTHONPATH")]))

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


# -- what runs ---------------------------------------------------------------------------------------------------------

STOP = ["--stop", '{"timesteps_total": 500}', "--final-episodes", "2", "--seed", "1"]
RUNS = [
    ["train", "--run", "PPO", "--env", "CartPole-v1", *STOP, "--out", "ppo"],
    ["train", "--run", "ES", "--env", "CartPole-v1", *STOP, "--out", "es"],
    ["train", "-f", "one.yaml", "--final-episodes", "2", "--out", "one"],
    ["train", "-f", "grid.yaml", "--dry-run"],
    ["train", "--resume", "ppo", "--stop", '{"timesteps_total": 9000}', "--final-episodes", "2"],
    ["eval", "ppo", "--episodes", "2"],
    ["plot", "ppo", "es", "--out", "curves.png"],
    ["compare", "ppo", "es"],
    ["doctor", "ppo"],
    ["list", "agents"],
    ["list", "networks"],
    ["list", "tuned"],
    ["train", "--run", "SAC", "--help"],
]  # fmt: skip


@pytest.mark.ci_slow
def test_small_networks_train_and_act_without_torch_and_ray(without: Without) -> None:
    said = without(f"""
import sys
from pathlib import Path
import numpy, raypid
from raypid.cli import main

one = "run: PPO\\nenv: CartPole-v1\\nstop: {{timesteps_total: 500}}\\n"
Path("one.yaml").write_text(one)
Path("grid.yaml").write_text(one + "config: {{lr: {{grid_search: [0.001, 0.0001]}}}}\\n")
for argv in {RUNS!r}:
    try:
        code = main(argv)
    except SystemExit as error:
        code = error.code
    assert not code, (argv, code)
assert raypid.load_policy("ppo").act(numpy.zeros(4, numpy.float32)) in (0, 1)
assert raypid.load_policy({str(SAVED / "sac")!r}).act(numpy.zeros(3, numpy.float32)).shape == (1,)
few = {{"fragment_length": 8, "num_envs_per_worker": 2, "seed": 1}}
for run in ("A2C", "A3C", "APPO", "IMPALA"):
    with raypid.Agent(run, few, env="Pendulum-v1", num_workers=2, backend="local") as agent:
        assert agent.train()["learner_updates_total"], run
with raypid.ARS(env="CartPole-v1", population=2) as agent:
    assert agent.train()["learner_updates_total"]
with raypid.PPO(few, env="CartPole-v1", model={{"hidden": [256]}}) as agent:
    print(agent.notes, agent.train()["timesteps_total"])
assert not {{"torch", "ray"}} & set(sys.modules)
""")
    assert "torch is not installed, so layers of 256 learn with NumPy" in said


SEARCH = [
    "tune",
    "--run",
    "PPO",
    "--env",
    "CartPole-v1",
    "--trials",
    "2",
    "--stop",
    '{"time_total_s": 0.3}',
    "--budget",
    "60s",
]


@pytest.mark.slow
def test_settings_are_searched_without_torch_and_ray(without: Without) -> None:
    said = without(f"""
from raypid.cli import main
assert main({[*SEARCH, "--out", "found"]!r}) == 0
""")
    assert said.startswith("PPO on CartPole-v1: 2 trials of at most 0.3 s of training")
    # whether the one with other settings comes far enough to be compared is up to the clock
    nothing = r"Nothing was found to compare with the defaults: of 2 trials, none .*"
    compared = (
        r"(Cannot tell whether the settings found are|The settings found are) (better|worse) than the defaults: .*"
    )
    assert re.search(rf"\n({nothing}|{compared})\n.* The report: found/report\.md\n$", said), said


# -- what does not -----------------------------------------------------------------------------------------------------

CARTPOLE = ["train", "--run", "PPO", "--env", "CartPole-v1"]
REFUSED = [
    *((["train", "--run", run, "--env", "CartPole-v1"], f"{run} needs torch")
      for run in ("DQN", "Rainbow", "R2D2", "SQN", "SAC", "TD3", "DDPG")),
    (["train", "--run", "ApeX", "--env", "CartPole-v1"], "ApeX needs torch and num_workers 4 needs Ray"),
    ([*CARTPOLE, "--num-workers", "2"], "num_workers 2 needs Ray"),
    ([*CARTPOLE, "--backend", "ray"], "backend ray needs Ray"),
    ([*CARTPOLE, "--num-workers", "2", "--num-learners", "2"], "num_learners 2 needs torch and num_workers 2 needs Ray"),
    ([*CARTPOLE, "--kernel", "torch"], "kernel torch needs torch"),
    ([*CARTPOLE, "--device", "cuda"], "device cuda needs torch"),
    ([*CARTPOLE, "--th-compile", "true"], "th_compile needs torch"),
    ([*CARTPOLE, "--model.network", "lstm"], "a memory (lstm) needs torch"),
    ([*CARTPOLE, "--model.network", "own_net:Net"], "'own_net:Net' imports torch"),
    (["train", "--run", "PPO", "--env", "raypid/Catch-v0", "--model.network", "cnn"], "model.network cnn needs torch"),
    (["train", "--run", "ES", "--env", "raypid/Catch-v0", "--model.network", "cnn"], "model.network cnn needs torch"),
    (["train", "--run", "IMPALA", "--env", "raypid/PositionCartPole-v0", "--tuned"], "a memory (lstm) needs torch"),
    (["train", "--run", "PPO", "--env", "own_net:Env"], "imports torch, which is not installed"),
    (["train", "-f", "grid.yaml"], "needs Ray Tune"),
    (["tune", "--run", "SAC", "--env", "Pendulum-v1"], "SAC needs torch"),
    (["reproduce", "DQN:CartPole-v1"], "DQN needs torch"),
    (["eval", "cnn"], "network cnn needs torch"),
    (["train", "--resume", str(SAVED / "ppo_lstm"), "--stop", "1000000"], "a memory (lstm) needs torch"),
    (["train", "--resume", str(SAVED / "sac")], "SAC needs torch"),
]  # fmt: skip
CALLS = [
    ("raypid.SAC(env='Pendulum-v1')", "SAC needs torch"),
    ("raypid.PPO(env='CartPole-v1', num_workers=2)", "num_workers 2 needs Ray"),
    ("raypid.IMPALAAgent('CartPole-v1', num_actors=2, num_learners=1)", "num_actors 2 needs Ray"),
    ("raypid.tune", "raypid.tune needs Ray Tune"),
    ("raypid.load_policy('cnn')", "network cnn needs torch"),
    ("raypid.ModelCatalog.get_model(Box(-1, 1, (3,)), Discrete(2))", "ModelCatalog.get_model needs torch"),
]


def test_what_needs_torch_or_ray_is_refused_in_a_line(without: Without, tmp_path: Path) -> None:
    with raypid.PPO(env="raypid/Catch-v0", model={"network": "cnn"}) as agent:
        agent.save(tmp_path / "cnn")
    (tmp_path / "own_net.py").write_text("import torch\n")
    grid = "run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 500}\nconfig: {lr: {grid_search: [0.001, 0.0001]}}\n"
    (tmp_path / "grid.yaml").write_text(grid)
    before = sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts)
    said = without(f"""
import contextlib, io, json, os, sys
import raypid
from gymnasium.spaces import Box, Discrete
from raypid.cli import main

os.chdir({str(tmp_path)!r})
for argv in {[argv for argv, _ in REFUSED]!r}:
    with contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(argv)
    print(json.dumps([code, err.getvalue()]))
for call in {[call for call, _ in CALLS]!r}:
    try:
        eval(call)
    except raypid.plugins.extras.MissingPackage as error:
        print(json.dumps([2, f"raypid: {{error}}\\n"]))
""")
    answers = [json.loads(line) for line in said.splitlines()]
    assert len(answers) == len(REFUSED) + len(CALLS), said
    for (code, err), (what, words) in zip(answers, [*REFUSED, *CALLS]):
        assert code == 2 and err.startswith("raypid: ") and err.count("\n") == 1, (what, err)
        assert words in err and " install " in err and ("[torch" in err or "[ray]" in err or "[tune]" in err), (
            what,
            err,
        )
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts) == before


def test_need_names_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(
        MissingPackage, match=r"^SAC needs torch, which is not installed: .*\[torch\]\" \(5 GB .*\)\. Take PPO\.$"
    ):
        need({"torch": "SAC", "ray": "num_workers 2"}, "Take PPO.")
    with pytest.raises(ImportError, match="--video needs imageio_ffmpeg, which is not installed"):
        need({"video": "--video"})
    need({"ray": "num_workers 2"})


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envpool_of_mine").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not extras.installed("envpool_of_mine") and extras.installed("numpy")


def test_a_missing_module_of_another_name_has_no_hint() -> None:
    assert install_hint(ModuleNotFoundError(name="torchvision")) == install_hint(ValueError("torch")) == ""
    assert "[optuna]" in install_hint(ModuleNotFoundError(name="optuna.samplers"))


def test_what_raypid_itself_brings_is_named_too() -> None:
    code = f"{HIDE.format(names=('gymnasium',))}\nimport raypid; raypid.PPO"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith(f"imports gymnasium, which is not installed: {install_command()}\n"), done.stderr


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Path]:
    """installed_from(what direct_url.json holds) -> a clone; raypid then runs from a site-packages that was made of it."""
    clone, site = tmp_path / "a clone", tmp_path / "site-packages"
    (site / "raypid-0.1.0.dist-info").mkdir(parents=True)
    (site / "raypid-0.1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: raypid\nVersion: 0.1.0\n")
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(extras, "__file__", str(site / "raypid" / "extras.py"))
    monkeypatch.setattr(extras, "pip", lambda: "pip")

    def install(about: object) -> Path:
        if about is not None:
            text = json.dumps(about).replace("CLONE", clone.as_uri())
            (site / "raypid-0.1.0.dist-info" / "direct_url.json").write_text(text)
        return clone

    return install


@pytest.mark.parametrize(
    ("about", "what"),
    [
        (None, "raypid[torch,ray]"),
        ({"url": "CLONE", "dir_info": {}}, "raypid[torch,ray] @ {uri}"),
        ({"url": "CLONE/raypid.whl", "archive_info": {}}, "raypid[torch,ray] @ {uri}/raypid.whl"),
        ({"url": "https://a.org/b", "vcs_info": {"vcs": "git"}}, "raypid[torch,ray] @ git+https://a.org/b"),
        ({"url": "https://a.org/b", "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
         "raypid[torch,ray] @ git+https://a.org/b@v1"),
    ],
)  # fmt: skip
def test_the_command_installs_from_where_raypid_came(
    about: object, what: str, installed_from: Callable[[object], Path]
) -> None:
    clone = installed_from(about)
    assert install_command("torch", "ray") == f'pip install "{what.format(uri=clone.as_uri())}"'


def test_in_its_clone_the_command_is_short(
    installed_from: Callable[[object], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = installed_from({"url": "CLONE", "dir_info": {}})
    monkeypatch.chdir(clone)
    monkeypatch.setattr(extras, "__file__", str(clone / "raypid" / "plugins" / "extras.py"))
    assert install_command("torch") == 'pip install -e ".[torch]"'


def test_the_command_is_that_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras.pip() in ("pip", f"{sys.executable} -m pip")
    (tmp_path / "pip").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert extras.pip() == f"{sys.executable} -m pip"


def test_every_extra_is_in_pyproject() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = project["optional-dependencies"]
    own = {re.split("[<>=]", line)[0].replace("pyyaml", "yaml") for line in project["dependencies"]}
    assert own == {*OWN}
    assert PACKAGES.keys() == offered.keys() - {"all", "dev", "docs"}
    everything = offered["all"][0].removeprefix("raypid[").rstrip("]").split(",")
    assert set(everything) == PACKAGES.keys() - {"jax", "tensorflow"}
    assert offered["dev"][0] == "raypid[all,docs]"


def test_init_says_how_to_install_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(extras, "pip", lambda: "pip")
    monkeypatch.setattr(init, "pip", lambda: "pip")
    assert main(["init", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out.endswith("\npip install pytest\npytest\n")
