"""A run that goes on keeps its settings, and says of each change at which step it came."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raypid
from raypid.cli import main
from raypid.outcome import Outcome
from raypid.report.logger import read_params, read_results
from raypid.report.panel import Quiet
from raypid.report.runs import find_runs, group_by_seed
from raypid.run.agent import Agent
from raypid.run.run import Run, RunOptions
from raypid.settings.files import read_run
from raypid.storage import checkpoint
from raypid.storage.changes import differences, first_settings

SMALL = {"num_envs_per_worker": 4, "fragment_length": 32, "batch_size": 64, "seed": 3, "num_threads": 1}


def drive(agent: Agent, iterations: int, **options: Any) -> Outcome:
    plain = {"plot": False, "checkpoint_interval": 1, "keep_checkpoints": 9, "final_episodes": 0}
    with agent:
        return Run(agent, RunOptions(stop={"training_iteration": iterations}, **{**plain, **options}), Quiet())()


def begin(folder: Path, **settings: Any) -> None:
    drive(Agent("PPO", {"env": "CartPole-v1", "evaluation_interval": 0, **SMALL, **settings}, out=folder), 2)


def resume(folder: Path, iterations: int, place: Path | None = None, **settings: Any) -> None:
    drive(Agent.from_checkpoint(place or folder, settings, out=folder), iterations)


def said(folder: Path) -> list[tuple[int, str, Any, Any]]:
    """Changes but those of the end, by iteration."""
    changes = read_params(folder).get("changes", [])
    return [(c["iteration"], c["key"], c["from"], c["to"]) for c in changes if c["key"] != "stop"]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went on twice, with other settings."""
    folder = tmp_path_factory.mktemp("changes") / "run"
    begin(folder, lr=1e-3)
    resume(folder, 3, lr=1e-4, num_workers=2, backend="local")
    resume(folder, 4, gamma=0.9)
    return folder


def test_each_change_has_its_step_and_settings_in_force_stay_on_top(changed: Path) -> None:
    params = read_params(changed)
    assert [params[key] for key in ("lr", "gamma", "num_workers", "stop")] == [1e-4, 0.9, 2, {"training_iteration": 4}]
    assert [c["step"] for c in params["changes"]] == sorted(c["step"] for c in params["changes"])
    assert said(changed) == [
        (2, "num_workers", 0, 2), (2, "backend", "auto", "local"), (2, "lr", 1e-3, 1e-4), (3, "gamma", 0.99, 0.9),
    ]  # fmt: skip
    stops = [(c["iteration"], c["from"], c["to"]) for c in params["changes"] if c["key"] == "stop"]
    ends = [{"training_iteration": n} for n in (2.0, 3.0, 4.0)]
    assert stops == [(2, ends[0], ends[1]), (3, ends[1], ends[2])]


def test_it_repeats_from_its_beginning(changed: Path) -> None:
    first = first_settings(read_params(changed))
    assert [first[key] for key in ("lr", "gamma", "num_workers", "stop")] == [1e-3, 0.99, 0, {"training_iteration": 4}]
    file = read_run(changed / "params.json")
    assert file.recorded["lr"] == 1e-3 and file.stop == {"training_iteration": 4}
    assert len(file.notes) == 1 and "without what was changed later: num_workers 0 to 2 at step" in file.notes[0]


def test_an_older_checkpoint_knows_nothing_of_later_changes(changed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(changed, tmp_path / "run"))
    resume(folder, 5, folder / "checkpoints" / checkpoint.checkpoint_name(2), lr=0.5)
    assert said(folder) == [(2, "lr", 1e-3, 0.5)] and read_params(folder)["gamma"] == 0.99
    again = Path(shutil.copytree(changed, tmp_path / "again"))
    resume(again, 4, again / "checkpoints" / checkpoint.checkpoint_name(3))
    assert [key for _, key, _, _ in said(again)] == ["num_workers", "backend", "lr"]


def test_a_run_without_changes_has_no_list_and_keeps_where_it_began(tmp_path: Path) -> None:
    begin(tmp_path / "a")
    begin(tmp_path / "b", init_from=str(tmp_path / "a"))
    resume(tmp_path / "b", 2)
    params = read_params(tmp_path / "b")
    assert "changes" not in params and params["init_from"] == str(tmp_path / "a")


def test_a_rollback_says_which_rate_is_left(tmp_path: Path) -> None:
    settings = {"env": "CartPole-v1", "evaluation_interval": 0, **SMALL, "lr": 1e-3, "on_divergence": "rollback"}
    with Agent("PPO", settings, out=tmp_path / "run") as agent:
        agent.train()
        agent.save()
        agent._roll_back()
        agent._roll_back()
        rates = [(c["key"], c["from"], c["to"], c["by"]) for c in agent.changes]
    assert rates == [("lr", 1e-3, 5e-4, "rollback"), ("lr", 5e-4, 2.5e-4, "rollback")]
    assert first_settings({**agent.plain_config(), "changes": agent.changes})["lr"] == 1e-3


def test_what_fit_made_of_it_is_a_change_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raypid.run.assembly.place", lambda run, *_: _half(run))
    with Agent("PPO", {"env": "CartPole-v1", **SMALL, "fit": True}, out=tmp_path) as agent:
        (change,) = agent.changes
        assert change == {"step": 0, "iteration": 0, "key": "num_envs_per_worker", "from": 4, "to": 2, "by": "fit"}
        assert first_settings({**agent.plain_config(), "changes": agent.changes})["num_envs_per_worker"] == 2
        assert "adapted: to fit this machine; over 4 (given)" in agent.explain().text(width=120)


def _half(run: Any) -> Any:
    from raypid.run.placement import TO_FIT
    from raypid.runtime.local import LocalBackend
    from raypid.runtime.plan import Node, Roles, plan

    here = plan(Roles({"worker": (1, {})}), [Node("", "this machine", {}, {})])
    return replace(run.choose({"num_envs_per_worker": (2, TO_FIT)}), plan=here), LocalBackend(), []


def test_a_changed_run_does_not_count_as_one_with_its_new_settings(changed: Path, tmp_path: Path) -> None:
    begin(tmp_path / "new", lr=1e-4, gamma=0.9, num_workers=2, backend="local", seed=4)
    shutil.copytree(changed, tmp_path / "old")
    groups = group_by_seed(find_runs([tmp_path])[0])
    assert [list(group.apart) for group in groups] == [["changed"]] * 2
    assert {group.apart["changed"][:17] for group in groups} == {"nothing", "num_workers 0 to "}


def test_the_doctor_names_changes_and_goes_by_the_rest_where_they_are_damaged(
    changed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(changed, tmp_path / "run"))
    assert main(["doctor", str(folder), "--json"]) == 0
    assert "gamma 0.99 to 0.9 at step" in capsys.readouterr().out
    (folder / "params.json").write_text(json.dumps({**read_params(folder), "changes": [3]}))
    assert main(["doctor", str(folder), "--json"]) == 0
    assert "in params.json, changes has 3" in capsys.readouterr().out


def test_a_foreign_checkpoint_brings_no_names_of_code(
    changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says of changes is signed with the next save, so it must not name code."""
    with Agent.from_checkpoint(changed) as agent:
        named = {"step": 1, "iteration": 1, "key": "env", "from": "their_code:Env", "to": "CartPole-v1", "by": "resume"}
        agent.changes = [named, {**named, "key": "lr", "from": 1.0, "to": 2.0}]
        place = agent.save(tmp_path)
    with Agent.from_checkpoint(place) as own:
        assert len(own.changes) == 2
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "of somebody else"))
    with Agent.from_checkpoint(place) as foreign:
        assert [change["key"] for change in foreign.changes] == ["lr"]


def test_differences_go_by_the_networks_settings_one_by_one() -> None:
    before = {"lr": 1, "model": {"hidden": [8], "memory": "none"}, "old": 1, "env_config": {"a": (1, 2)}}
    after = {"lr": 1, "model": {"hidden": [4], "memory": "none"}, "new": 1, "env_config": {"a": [1, 2]}}
    assert list(differences(before, after)) == [("model.hidden", [8], [4])]


def test_a_run_at_its_stop_is_left_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A command that a machine repeats must neither fail nor change what the next one does."""
    run = tmp_path / "run"
    begin(run)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    steps = read_results(run)[-1]["timesteps_total"]
    for words in (["--lr", "0.5"], ["--stop", "100"], ["--lr", "0.5", "--stop", "100", "--quiet"]):
        assert main(["train", "--resume", str(run), *words]) == 0
        out, err = capfd.readouterr()
        assert err == "" and out.count("\n") == ("--quiet" not in words)
        assert "--quiet" in words or ("no setting was changed" in out and f"--resume {run} --stop" in out)
    outcome = raypid.train(resume=run, lr=0.5, num_envs_per_worker=2, stop=int(steps), quiet=True)
    assert outcome.reason == f"timesteps_total reached {steps}" and outcome.checkpoint is not None
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    raypid.train(resume=run, stop=int(steps) + 1, quiet=True, final_episodes=0)
    assert read_params(run)["lr"] != 0.5


def test_stops_are_followed_from_folder_to_folder(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**SMALL, "evaluation_interval": 0}
    with raypid.PPO("CartPole-v1", **settings) as agent:
        agent.fit(100, out=tmp_path / "a", quiet=True)
        assert agent.fit(90, out=tmp_path / "b", quiet=True).reason and not (tmp_path / "b").exists()
        agent.train()
        agent.fit(400, out=tmp_path / "b", quiet=True)
    changes = [(c["key"], c["from"], c["to"]) for c in read_params(tmp_path / "b")["changes"]]
    assert changes == [("stop", {"timesteps_total": 100}, {"timesteps_total": 400})]


def test_a_resumed_run_says_what_is_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begin(tmp_path, lr=1e-3)
    raypid.train(resume=tmp_path, stop={"training_iteration": 3}, lr=1e-4, final_episodes=0)
    assert "lr 0.001 to 0.0001 from here" in capfd.readouterr().out
    with raypid.PPO("CartPole-v1", **{**SMALL, "lr": 0.5}) as other:  # type: ignore[arg-type]
        other.restore(tmp_path)
        assert "lr 0.0001 to 0.5 from here" in other.notes and other.config.lr == 0.5
