"""What a folder may import: each door, each way of being trusted, and nothing from inside a run's folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import raypid
from raypid.cli import main
from raypid.envs import EnvSpec
from raypid.plugins.registry import ENVS, NETWORKS
from raypid.plugins.trust import UntrustedError, check_names
from raypid.report.plots import learning_curve
from raypid.run.deploy import environment_of, evaluate_policy, record_video
from raypid.storage.checkpoint import CheckpointError
from raypid.storage.ownership import mark_project

SAVED = Path(__file__).parent / "fixtures" / "saved"
CODE = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
from subprocess import getoutput
import torch
from gymnasium.envs.classic_control import CartPoleEnv
import raypid
from raypid.algorithms.ppo import PPO

class Env(CartPoleEnv):
    pass

class Metrics(raypid.Callbacks):
    pass

class Mine(PPO):
    pass

class Net(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layer = torch.nn.Linear(spec.pipeline.vector_size, 4)

    def forward(self, x):
        return self.layer(x)
"""
SMALL = {"num_envs_per_worker": 1, "fragment_length": 8, "batch_size": 8, "num_epochs": 1, "seed": 1}


class Code:
    """A module on the path, in a folder of its own. It leaves a mark when it is imported."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file, self.name = folder / f"{name}.py", name
        self.file.write_text(CODE)

    def ran(self) -> bool:
        """Whether it was imported since this was last asked."""
        sys.modules.pop(self.name, None)
        NETWORKS._entries.pop(f"{self.name}:Net", None)  # a run in this process has registered it
        mark = self.file.with_suffix(".ran")
        was = mark.exists()
        mark.unlink(missing_ok=True)
        return was


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    place = tmp_path / "code"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.chdir(place)
    yield (module := Code(place, "their_code"))
    module.ran()


@pytest.fixture
def as_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "another"))


def alter(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON index and make its checksum right again."""
    values = json.loads(path.read_text())
    change(values)
    values["checksum"] = "0" * 64
    text = json.dumps(values)
    path.write_text(text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1))


@pytest.fixture
def foreign(tmp_path: Path) -> Callable[..., Path]:
    """foreign(policy={"env": ...}, config={...}, algorithm=...) -> a run of somebody else that names these."""

    def make(
        policy: dict[str, object] | None = None,
        network: dict[str, object] | None = None,
        config: dict[str, object] | None = None,
        algorithm: str = "PPO",
    ) -> Path:
        run = Path(shutil.copytree(SAVED / "ppo", tmp_path / "runs" / "theirs", dirs_exist_ok=True))
        checkpoint = next(run.glob("checkpoints/*"))

        def in_policy(values: Any) -> None:
            values["spec"]["info"]["env"].update(policy or {})
            values["spec"]["network"].update(network or {})

        def in_manifest(values: Any) -> None:
            values["config"].update(config or {})
            values["algorithm"] = algorithm

        alter(run / "best" / "policy.json", in_policy)
        alter(checkpoint / "manifest.json", in_manifest)
        if algorithm != "PPO":
            params = json.loads((run / "params.json").read_text())
            (run / "params.json").write_text(json.dumps(params | {"run": algorithm}))
        return run

    return make


def own_run(folder: Path, **settings: Any) -> Path:
    with raypid.Agent("PPO", {**SMALL, **settings}) as agent:
        return agent.save(folder)


RESUMED = ("env", "evaluation_env", "callbacks", "intrinsic_reward", "model", "model.network", "env_config", "address")
NAMED = {"callbacks": "their_code:Metrics", "model": {"network": "their_code:Net"}, "model.network": "their_code:Net"}
NAMED |= {"env_config": {"inner": ["their_code:Env-v0"]}, "address": "their.host:6379"}


@pytest.mark.parametrize("setting", RESUMED)
def test_a_checkpoint_imports_nothing(
    setting: str, code: Code, foreign: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    joins = {"num_workers": 1} if setting == "address" else {}  # else it would not be joined
    run = foreign(config={setting: NAMED.get(setting, "their_code:Env"), **joins})
    with pytest.raises(UntrustedError, match=r"their[_.].*trust=True"):
        raypid.Agent.from_checkpoint(run)
    assert main(["train", "--resume", str(run)]) == 2
    err = capsys.readouterr().err
    assert str(run) in err and "their" in err and err.count("\n") == 1 and not code.ran()


def test_an_algorithm_is_not_imported(
    code: Code, foreign: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = foreign(algorithm="their_code:Mine")
    with pytest.raises(UntrustedError, match="their_code:Mine"):
        raypid.Agent.from_checkpoint(run)
    for flags in ([], ["--clip", "0.1"], ["--help"]):  # its settings are flags, so it is looked at before anything else
        assert main(["train", "--resume", str(run), *flags]) == 2
        assert "'their_code:Mine' (algorithm)" in capsys.readouterr().err
    alter(next(run.glob("checkpoints/*/manifest.json")), lambda values: values.update(algorithm="PPO"))
    assert main(["train", "--resume", str(run), "--stop", '{"training_iteration": 1}', "--quiet"]) == 0
    assert not code.ran()  # params.json still names it
    with raypid.Agent.from_checkpoint(foreign(algorithm="their_code:Mine"), trust=True):
        assert code.ran()


def test_an_environment_is_not_run(foreign: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    mark = Path.cwd() / "mark-of-a-command"
    run = foreign(policy={"env": "subprocess:getoutput", "env_config": {"cmd": f"touch {mark}"}})
    for play in (environment_of, lambda folder: evaluate_policy(folder, 1)):
        with pytest.raises(UntrustedError, match="'subprocess:getoutput'"):
            play(run / "best")
    assert main(["eval", str(run)]) == 2
    assert "'subprocess:getoutput' (env)" in capsys.readouterr().err and not mark.exists()
    flags = ["--episodes", "1", "--env", "CartPole-v1"]
    assert main(["eval", str(run), *flags]) == 2  # its arguments do not fit, but nothing of the folder is imported
    assert "unexpected keyword argument 'cmd'" in capsys.readouterr().err


@pytest.mark.parametrize("named", [{"network": "their_code:Net"}, {"network": "net", "target": "their_code:Net"}])
def test_a_network_is_not_imported(
    named: dict[str, object], code: Code, foreign: Callable[..., Path], tmp_path: Path
) -> None:
    run = foreign(network=named)
    doors: tuple[Callable[..., object], ...] = (
        lambda **trust: raypid.load_policy(run, **trust),
        lambda **trust: evaluate_policy(run, 1, **trust),
        lambda **trust: record_video(run, tmp_path / "x.gif", EnvSpec(env="CartPole-v1"), **trust),
    )
    for door in doors:
        with pytest.raises(UntrustedError, match=r"'their_code:Net' \(network\)"):
            door()
        assert not code.ran()
        with pytest.raises((ValueError, RuntimeError), match="size of tensor"):  # the weights are another network's
            door(trust=True)
        assert code.ran()


def test_what_imports_nothing_takes_any_folder(code: Code, foreign: Callable[..., Path], tmp_path: Path) -> None:
    run = foreign({"env": "their_code:Env"}, {}, {"env": "their_code:Env"}, "their_code:Mine")
    raypid.load_policy(run).act([0.0] * 4)  # the network is one of ours
    learning_curve([run], tmp_path / "curve.png")
    model = json.loads((run / "params.json").read_text())["model"]
    raypid.PPO(env="CartPole-v1", init_from=run, model=model, **SMALL).close()
    assert not code.ran()


def test_the_author_notices_nothing(code: Code, tmp_path: Path, as_another_user: Callable[[], None]) -> None:
    settings = {"env": "their_code:Env", "callbacks": "their_code:Metrics", "model": {"network": "their_code:Net"}}
    path = own_run(tmp_path / "first", **settings)
    moved = path.rename(tmp_path / "checkpoint_000077")
    copied = Path(shutil.copytree(moved, tmp_path / "elsewhere" / "checkpoint_000000"))
    for folder in (moved, copied):
        assert evaluate_policy(folder, 1)[0]["episodes"] == 1
        with raypid.Agent.from_checkpoint(folder) as agent:
            agent.train()
        assert code.ran()
    alter(copied / "policy" / "policy.json", lambda values: values["spec"].update(version=3))
    with pytest.raises(UntrustedError):
        raypid.load_policy(copied / "policy")  # altered, with a right checksum
    as_another_user()
    for load in (raypid.load_policy, raypid.Agent.from_checkpoint, environment_of):
        with pytest.raises(UntrustedError, match="their_code:"):
            load(moved)
    assert not code.ran()
    raypid.load_policy(moved, trust=True)
    raypid.Agent.from_checkpoint(moved, trust=True).close()
    assert environment_of(moved, trust=True).env == "their_code:Env" and code.ran()


def test_names_that_are_registered_or_given(code: Code, foreign: Callable[..., Path]) -> None:
    run = foreign({"env": "theirs"}, {"network": "net", "target": "their_code:Net"}, {"env": "their_code:Env"})
    ENVS.register("theirs", gymnasium.envs.classic_control.CartPoleEnv)
    NETWORKS.register("net", "their_code:Net")
    try:
        assert environment_of(run).env == "theirs"
        with pytest.raises(CheckpointError, match="size of tensor"):
            raypid.load_policy(run)
    finally:
        del ENVS._entries["theirs"], NETWORKS._entries["net"]
    assert environment_of(run, "their_code:Env").env == "their_code:Env"
    with raypid.Agent.from_checkpoint(run, {"env": "their_code:Env"}) as agent:
        assert agent.config.env == "their_code:Env"
    assert main(["train", "--resume", str(run), "--env", "their_code:Env", "--quiet"]) == 0
    check_names(run, {"env": "ale_py:ALE/Pong-v5"}, trusted=True)
    for own in ("raypid.envs.toy:Catch", "envpool:Pong-v5", "raypid/Catch-v0"):
        check_names(run, {"env": own}, trusted=False)
    for other in ("raypid.plugins.registry:import_string", "gymnasium:make", ":x", "os:", "\0:x", ".a:b"):
        with pytest.raises(UntrustedError):
            check_names(run, {"env": other}, trusted=False)


def test_an_id_that_an_installed_package_registers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = importlib_entry("their_envs", "their_envs.registering:register")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == "gymnasium.envs" else [])
    monkeypatch.setitem(gymnasium.registry, "Theirs-v0", gymnasium.spec("CartPole-v1"))
    monkeypatch.setitem(gymnasium.registry, "main", gymnasium.spec("CartPole-v1"))
    check_names(tmp_path, {"env": "their_envs:Theirs-v0"}, trusted=False)
    for other in ("others:Theirs-v0", "their_envs.tools:Theirs-v0", "their_envs:main", "their_envs:Unknown-v0"):
        with pytest.raises(UntrustedError):
            check_names(tmp_path, {"env": other}, trusted=False)


def importlib_entry(name: str, value: str) -> Any:
    from importlib.metadata import EntryPoint

    return EntryPoint(name, value, "gymnasium.envs")


def test_code_of_the_project(code: Code, foreign: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run, project = foreign({"env": "their_code:Env"}), code.file.parent
    marker = mark_project(project)
    (project / "inner").mkdir()
    monkeypatch.chdir(project / "inner")
    environment_of(run)
    for other in ("their_code:getoutput", "torch:load", "subprocess:getoutput"):  # what it imports is not its own
        with pytest.raises(UntrustedError):
            check_names(run, {"env": other}, trusted=False)
    (project / "lib" / "site-packages").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(project / "lib" / "site-packages"))
    installed = Code(project / "lib" / "site-packages", "installed_code")
    with pytest.raises(UntrustedError):
        check_names(run, {"env": "installed_code:Env"}, trusted=False)
    with pytest.raises(UntrustedError, match="inner"):  # what was unpacked beside the run came with it
        (project / "inner" / "beside.py").write_text(CODE)
        monkeypatch.syspath_prepend(str(project / "inner"))
        check_names(project / "inner" / "run", {"env": "beside:Env"}, trusted=False)
    shutil.copy(marker, project / "inner")  # a marker holds where it was made, and the nearest one counts
    with pytest.raises(UntrustedError):
        environment_of(run)
    assert not installed.ran()


@pytest.mark.parametrize("name", ["{file}", "./their_code.py:Env"])
@pytest.mark.parametrize("setting", ["env", "evaluation_env", "callbacks", "model.network", "env_config", "gym_env"])
def test_files_are_code_too(
    setting: str, name: str, code: Code, foreign: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    named = name.format(file=code.file)
    more: dict[str, object] = {"env_config": {"inner": [named]}, "gym_env": {"env_id": named}}
    run = foreign(
        config={"env": "gym_env", "env_config": more["gym_env"]}
        if setting == "gym_env"
        else {setting: more.get(setting, named)}
    )
    with pytest.raises(UntrustedError, match=r"their_code.*trust=True"):
        raypid.Agent.from_checkpoint(run)
    assert main(["train", "--resume", str(run)]) == 2
    assert "their_code" in capsys.readouterr().err and not code.ran()


def test_files_of_the_project_and_in_a_run(code: Code, foreign: Callable[..., Path]) -> None:
    run = foreign({"env": f"{code.file}:Env"})
    mark_project(code.file.parent)
    assert environment_of(run).env == f"{code.file}:Env"
    with pytest.raises(UntrustedError, match=r"yourself: env='PATH/TO/reach\.py:Reach' \(where you have it\)\."):
        check_names(run, {"env": "/theirs/reach.py:Reach"}, trusted=False)  # a path of another machine
    with pytest.raises(UntrustedError):  # what it imports is not its own
        check_names(run, {"env": f"{code.file}:getoutput"}, trusted=False)
    module = Code(run, "inside")
    for trusted in (False, True):
        with pytest.raises(UntrustedError, match=r"lies in a run's folder .* move it"):
            check_names(run, {"env": f"{module.file}:Env"}, trusted=trusted)
    assert main(["eval", str(run), "--env", f"{module.file}:Env"]) == 2 and not module.ran()


def test_a_downloaded_marker_does_not_count(
    code: Code, foreign: Callable[..., Path], as_another_user: Callable[[], None]
) -> None:
    run = foreign({"env": "their_code:Env"})
    mark_project(code.file.parent)
    as_another_user()
    with pytest.raises(UntrustedError):
        environment_of(run)
    assert not code.ran()


def test_nothing_is_imported_from_inside_a_run(
    foreign: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = "theirs.inside:Env"
    run = foreign({"env": inside}, {"network": "net", "target": "theirs.inside:Net"}, {"env": inside})
    module = Code(run, "inside")
    monkeypatch.syspath_prepend(str(run.parent))
    mark_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for trust in (False, True):
        for load in (raypid.load_policy, raypid.Agent.from_checkpoint, environment_of):
            with pytest.raises(UntrustedError, match=r"lies in a run's folder .* move it"):
                load(run, trust=trust)
    with pytest.raises(UntrustedError, match="lies in a run's folder"):
        check_names(tmp_path / "another", {"env": inside}, trusted=True)
    assert not module.ran()


def test_the_current_folder_is_not_on_the_path_in_a_run(
    raypid: Callable[..., Any], foreign: Callable[..., Path]
) -> None:
    """A module beside policy.json with the name of a package would be imported in its place."""
    run = foreign(network={"network": "net", "target": "payload:Net"})
    shadow, payload = Code(run, "safetensors"), Code(run, "payload")
    (run / "params.json").unlink()  # without which it is a run only because it is named as one
    done = raypid("eval", ".", "--episodes", "1", "--trust", cwd=run)
    assert done.returncode == 2 and "'payload'" in done.stderr and "code is never imported from there" in done.stderr
    assert not shadow.ran() and not payload.ran()


WORKER = """
from raypid.runtime.ray import RayBackend, ray
backend = RayBackend(num_cpus=1)
print(ray.get(ray.remote(lambda: __import__("their_shadow", fromlist=["x"]).__file__).remote()))
"""


@pytest.mark.ci_slow
def test_ray_workers_do_not_look_into_a_run(
    start: Callable[..., Any], foreign: Callable[..., Path], tmp_path: Path
) -> None:
    """Ray puts the folder in which it was started on its workers' path."""
    run = foreign()
    shadow, script = Code(run, "their_shadow"), tmp_path / "worker.py"
    script.write_text(WORKER)
    done = start(python=str(script), cwd=run).finish()
    assert "No module named 'their_shadow'" in done.stderr and not shadow.ran()


def test_a_file_in_a_run_is_not_the_command_line(
    code: Code, foreign: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, settings = foreign(), json.dumps({**SMALL, "env": "their_code:Env"})
    out, stop = str(tmp_path / "new"), '{"training_iteration": 1}'
    command = ["train", "--run", "PPO", "--stop", stop, "--quiet", "--overwrite", "--out", out, "--config"]
    for file in (run / "settings.json", tmp_path / "settings.json"):
        file.write_text(settings)
    assert main([*command, str(run / "settings.json")]) == 2
    told = capsys.readouterr().err
    assert "settings.json names 'their_code:Env' (env)" in told and not code.ran()
    assert "name it yourself: --env their_code:Env. If you trust all that the folder names: --trust" in told
    assert main([*command, str(run / "settings.json"), "--env", "CartPole-v1"]) == 0 and not code.ran()
    assert main([*command, str(run / "settings.json"), "--trust"]) == 0 and code.ran()
    assert main([*command, str(tmp_path / "settings.json")]) == 0 and code.ran()


def test_a_run_that_cannot_be_signed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "file" / "data"))
    settings = json.dumps({**SMALL, "env": "CartPole-v1"})
    command = ["train", "--run", "PPO", "--config", settings, "--stop", '{"training_iteration": 1}', "--out"]
    assert main([*command, str(tmp_path / "run")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "not signed" in line]
    assert len(said) == 1 and "Not a directory" in said[0]
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 0
