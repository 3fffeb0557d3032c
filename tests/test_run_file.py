"""A file says the same of a run by --config, by -f and in Python; a run's params.json repeats the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raypid
from raypid.cli import main
from raypid.plugins.trust import UntrustedError
from raypid.settings.config import ConfigError
from raypid.settings.files import read_run

SAVED = Path(__file__).parent / "fixtures" / "saved"
SMALL = {"num_envs_per_worker": 2, "fragment_length": 16, "batch_size": 32, "evaluation_interval": 0}
ONE = {"run": "PPO", "env": "CartPole-v1", "seed": 3, "stop": {"training_iteration": 3}, "final_episodes": 0, **SMALL}
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    Path("one.json").write_text(json.dumps(ONE))

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main(["train", *map(str, arguments)])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    return run


def params(folder: str | Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(folder, "params.json").read_text())
    return {key: value for key, value in values.items() if key != "signature"}


def learnt(folder: str) -> list[dict[str, float]]:
    """The numbers of a run that do not depend on the clock."""
    rows = [json.loads(line) for line in Path(folder, "result.json").read_text().splitlines()]
    clocks = ("time", "timing/", "env_steps_per_s")
    return [
        {key: x for key, x in row.items() if not key.startswith(clocks) or key == "timesteps_total"} for row in rows
    ]


def explained(shell: Shell, *arguments: object) -> tuple[dict[str, Any], list[str]]:
    """What a command would run with, and its notes; nothing is run."""
    code, out, err = shell(*arguments, "--explain", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    return {name: row["value"] for name, row in found["settings"].items()}, found["notes"]


def test_a_run_repeats_bit_for_bit(shell: Shell) -> None:
    assert shell("--config", "one.json", "--out", "first", "--quiet")[0] == 0
    assert shell("--config", "first/params.json", "--out", "again", "--quiet") == (0, "", "")
    assert params("again") == params("first") and params("first")["final_episodes"] == 0
    assert learnt("again") == learnt("first") and len(learnt("first")) == 3
    other = [explained(shell, flag, "first/params.json", "--seed", 4, "--lr", 1)[0] for flag in ("--config", "-f")]
    assert other[0] == other[1] and (other[0]["seed"], other[0]["lr"]) == (4, 1)
    assert other[0]["stop"] == {"training_iteration": 3}


def test_an_end_and_parts_of_a_group_by_flags_change_nothing_else(shell: Shell) -> None:
    flags = ("--lr-schedule", "linear", "--stop", '{"timesteps_total": 96}')
    assert shell("--config", "one.json", *flags, "--out", "first", "--quiet")[0] == 0
    assert params("first")["schedule_steps"] is None  # its end is that of the run
    more = ("--stop", '{"timesteps_total": 64}', "--model", '{"activation": "relu"}', "--model.hidden", "[8]")
    again, _ = explained(shell, "--config", "first/params.json", *more)
    assert again["schedule_steps"] == 64  # the schedule ended with the run, and does so again
    assert (again["model.activation"], again["model.hidden"], again["model.memory_size"]) == ("relu", [8], 64)
    changed = {"stop", "schedule_steps", "model.activation", "model.hidden", "out"}
    first, _ = explained(shell, "--config", "first/params.json")
    assert {name for name in first if first[name] != again[name]} == changed - {"out"}


FILES = {
    "flat.yaml": "run: PPO\nenv: CartPole-v1\nseed: 3\nstop: {training_iteration: 1}\nlr: 1e-3\nmodel: {hidden: [8]}\nfinal_episodes: 0\n",
    "nested.yaml": "run: PPO\nenv: CartPole-v1\nseed: 3\nstop: {training_iteration: 1}\ncheckpoint_interval: 2\nfinal_episodes: 0\n"
    "config: {lr: 1e-3, model.hidden: [8]}\n",
    "nested.json": '{"run": "PPO", "final_episodes": 0, "stop": {"training_iteration": 1}, "config": '
    '{"env": "CartPole-v1", "seed": 3, "lr": 1e-3, "model": {"hidden": [8]}}, "out": "named"}',
}


@pytest.mark.parametrize("name", FILES)
def test_both_read_the_same_keys(name: str, shell: Shell) -> None:
    Path(name).write_text(FILES[name])
    (one, _), (other, _) = explained(shell, "--config", name), explained(shell, "-f", name)
    assert one == other
    assert (one["run"], one["lr"], one["model.hidden"], one["seed"]) == ("PPO", 1e-3, [8], 3)
    assert one.get("checkpoint_interval") == (2 if "checkpoint_interval" in FILES[name] else None)
    assert one["out"] == ("named" if "named" in FILES[name] else "a new folder") and one["final_episodes"] == 0


def test_plain_settings_and_several_files_lie_over_each_other(shell: Shell) -> None:
    Path("lr.yaml").write_text("lr: 1e-2\nrun: A2C\n")
    found, _ = explained(shell, "--config", "one.json", "--config", "lr.yaml", "--gamma", 0.5)
    assert [found[key] for key in ("run", "lr", "gamma", "seed")] == ["A2C", 0.01, 0.5, 3]


def test_another_algorithm_takes_over_what_it_has(shell: Shell) -> None:
    assert shell("--config", "one.json", "--clip", 0.1, "--lr", 0.02, "--out", "ppo", "--quiet")[0] == 0
    a2c, notes = explained(shell, "--run", "A2C", "--config", "ppo/params.json")
    assert notes == ["A2C has no num_epochs (5), clip (0.1), desired_kl (0.0): left out."]
    assert (a2c["run"], a2c["lr"], a2c["seed"], a2c["fragment_length"]) == ("A2C", 0.02, 3, 16)
    assert a2c["entropy_coef"] == raypid.A2C.DEFAULT_CONFIG["entropy_coef"] and "clip" not in a2c


@pytest.mark.parametrize("run", ["ppo", "dqn", "es", "ppo_lstm", "impala_agent"])
def test_what_an_older_version_wrote_repeats(run: str, shell: Shell) -> None:
    old = {**json.loads((SAVED / run / "params.json").read_text()), "gone_setting": 3}
    Path("old").mkdir()
    Path("old/params.json").write_text(json.dumps(old))
    new, notes = explained(shell, "--config", "old/params.json")
    assert notes[0].endswith(" has no gone_setting (3): left out.")
    kept = [
        key for key in old if key in new and key not in ("device", "kernel", "backend", "num_threads", "num_workers")
    ]
    assert len(kept) > 35 and all(new[key] == old[key] for key in kept)


REFUSED = [
    ("lr: {grid_search: [1, 2]}", "lr makes several runs: use -f file.yaml"),
    ("env_config: {size: {choice: [1, 2]}}", "env_config makes several runs: use -f"),
    ("seed: [1, 2]", "seed makes several runs: use -f file.yaml"),
    ("repeat: 3", "repeat makes several runs: use -f file.yaml"),
    ("num_samples: 2", "use -f file.yaml"),
    ("population: {interval: 10}", "use -f file.yaml"),
    ("mine: {run: PPO, env: CartPole-v1}", "mine makes several runs: use -f file.yaml"),
    ("lr: 1\nconfig: {lr: 2}", "file.yaml:2: lr stands here twice, as lr and as config.lr"),
    ("config: 3", "config takes a mapping"),
    ("stop: []", "stop takes a number"),
    ("keep_checkpoints: 0", "keep_checkpoints must be at least 1 (or none), not 0"),
    ("", "is empty; it must hold a mapping"),
    ("- 1", "holds [1]; it must hold a mapping"),
    ("\x00", "is not YAML"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_what_is_no_run_is_answered(text: str, words: str, shell: Shell) -> None:
    Path("file.yaml").write_text(text)
    code, out, err = shell("--run", "PPO", "--env", "CartPole-v1", "--config", "file.yaml")
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1 and "file.yaml" in err, err


def test_what_is_no_file_of_settings_is_answered(shell: Shell) -> None:
    assert shell("--config", "one.json", "--out", "run", "--quiet")[0] == 0
    Path("settings.yaml").write_text("lr: 1")
    Path("code.py").write_text("lr = 1")
    Path("run.toml").write_text("lr = 1")
    Path("binary.yaml").write_bytes(b"\xff\xfe")
    Path("found").mkdir()
    Path("found/best.json").write_text('{"algorithm": "PPO", "env": "CartPole-v1", "settings": {}}')
    Path("planned").mkdir()
    Path("planned/experiment.json").write_text('{"format": 1, "trials": []}')
    said = {
        "setings.yaml": "There is no file 'setings.yaml'. Did you mean 'settings.yaml'? --config takes JSON such as",
        "settings.yml": "Did you mean 'settings.yaml'?",
        "nowhere/x.yaml": "There is no folder 'nowhere' either.",
        "lr=0.1": "--config takes JSON such as '{\"lr\": 0.001}' or a YAML or JSON file.",
        "run": "is a folder: name a YAML or JSON file, such as the params.json of a run",
        "run/result.json": "this is not JSON: Extra data",
        "found/best.json": "Unknown setting 'settings'",
        "planned/experiment.json": "trials",
        "code.py": "it must hold a mapping",
        "run.toml": "it must hold a mapping",
        "binary.yaml": "binary.yaml cannot be read: ",
        "https://example.com/x.yaml": "There is no file",
        "[1]": "or a YAML or JSON file, not '[1]'",
        '{"lr": ': "or a YAML or JSON file, not '{\"lr\": '",
        "": "or a YAML or JSON file, not ''",
    }
    for text, words in said.items():
        code, _, err = shell("--run", "PPO", "--env", "CartPole-v1", "--config", text)
        assert code == 2 and words in err and err.count("\n") == 1, (text, err)


def test_a_search_takes_settings_alone(shell: Shell, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--run", "PPO", "--env", "CartPole-v1", "--config", "one.json"]) == 2
    assert "leave stop, final_episodes out" in capfd.readouterr().err


def test_infinity_repeats(shell: Shell) -> None:
    """JSON has none."""
    flags = ("--run", "IMPALA", "--rho-clip", "Infinity", "--max-grad-norm", "Infinity")
    assert shell("--config", "one.json", *flags, "--out", "run", "--quiet")[0] == 0
    assert params("run")["rho_clip"] is None is params("run")["max_grad_norm"]
    found, _ = explained(shell, "--config", "run/params.json")
    assert found["rho_clip"] == float("inf") and found["max_grad_norm"] is None  # none means the same there


CODE = (
    "import gymnasium\nopen('ran', 'w').close()\n"
    "class Env(gymnasium.Wrapper):\n    def __init__(self):\n        super().__init__(gymnasium.make('CartPole-v1'))\n"
)


def test_a_run_of_ones_own_repeats_with_its_own_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """params.json is signed: the same file, altered, is somebody else's."""
    Path("owncode.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert shell("--config", "one.json", "--env", "owncode:Env", "--out", "mine", "--quiet")[0] == 0
    for flag in ("--config", "-f"):
        assert explained(shell, flag, "mine/params.json")[0]["env"] == "owncode:Env"
    with raypid.PPO(config="mine/params.json") as agent:
        assert agent.config.env == "owncode:Env"
    theirs = {**json.loads(Path("mine/params.json").read_text()), "lr": 0.5}
    Path("mine/params.json").write_text(json.dumps(theirs))
    for flag in ("--config", "-f"):
        code, _, err = shell(flag, "mine/params.json", "--out", "other")
        assert code == 2 and "names 'owncode:Env' (env)" in err and "--trust" in err
        assert explained(shell, flag, "mine/params.json", "--trust")[0]["lr"] == 0.5
    with pytest.raises(UntrustedError, match="owncode:Env"):
        raypid.PPO(config="mine/params.json")


def test_what_a_foreign_list_of_changes_names_is_not_imported(shell: Shell) -> None:
    assert shell("--config", "one.json", "--out", "theirs", "--quiet")[0] == 0
    change = {"step": 10, "iteration": 1, "key": "env", "from": "their_code:Env", "to": "CartPole-v1", "by": "resume"}
    values = json.loads(Path("theirs/params.json").read_text()) | {"changes": [change]}
    Path("theirs/params.json").write_text(json.dumps(values))
    code, _, err = shell("--config", "theirs/params.json", "--out", "x")
    assert code == 2 and "their_code:Env" in err
    for damaged in (3, [3], [{**change, "step": "x"}]):
        Path("theirs/params.json").write_text(json.dumps(values | {"changes": damaged}))
        code, _, err = shell("--config", "theirs/params.json", "--out", "x")
        assert code == 2 and "params.json is damaged: changes" in err and err.count("\n") == 1


def test_an_agent_takes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("run: PPO\nenv: CartPole-v1\nseed: 3\nconfig: {lr: 1e-2, model: {hidden: [8], activation: relu}}\n")
    with raypid.Agent(config=file, gamma=0.5, model={"hidden": [4]}) as agent:
        c = agent.config
        assert (agent.run, c.lr, c.gamma, c.model.hidden, c.model.activation) == ("PPO", 0.01, 0.5, (4,), "relu")
    with raypid.A2C(config=str(file)) as other:
        assert (other.run, other.config.lr) == ("A2C", 0.01)
    with pytest.raises(ConfigError, match="Name the algorithm"):
        file.write_text("env: CartPole-v1")
        raypid.Agent(config=file)
    with pytest.raises(ConfigError, match="There is no file"):
        raypid.PPO(config=tmp_path / "b.yaml")
    assert read_run('{"lr": 1}').settings == {"lr": 1}
    assert read_run('{"run": "ES", "config": {"population": 4}, "tuned": null}').settings == {"population": 4}


def test_a_run_without_a_stop_is_repeated_as_far_as_it_went(tmp_path: Path) -> None:
    """It was ended by Ctrl-C, which params.json does not know."""
    params = {**raypid.PPO.DEFAULT_CONFIG, "env": "CartPole-v1", "run": "PPO", "stop": {}}
    (tmp_path / "params.json").write_text(json.dumps(params))
    assert not read_run(tmp_path / "params.json").stop
    for rows, steps in (('{"timesteps_total": 64}\n{"timesteps_total": 128}\n', 128), ('{"timesteps_total": nul', 0)):
        (tmp_path / "result.json").write_text(rows)
        found = read_run(tmp_path / "params.json")
        assert found.stop == ({"timesteps_total": steps} if steps else {}) and any(
            "128" in n for n in found.notes
        ) == bool(steps)


def test_a_run_with_a_program_of_its_own_is_not_repeated_without_it(tmp_path: Path) -> None:
    params = {**raypid.IMPALA.DEFAULT_CONFIG, "env": "CartPole-v1", "run": "IMPALA", "stop": {}, "program": "mine:Own"}
    (tmp_path / "params.json").write_text(json.dumps(params))
    with pytest.raises(ConfigError, match="trained by mine:Own, which has its own run and update"):
        read_run(tmp_path / "params.json")


def test_a_wrong_setting_in_a_file_is_named_with_its_line(shell: Shell) -> None:
    Path("a.yaml").write_text("lr: 0.1\nconfig:\n  gama: 0.9\n")
    Path("b.yaml").write_text("lr: 0.1\nnum_epochs: many\n")
    for name, words in (("a.yaml", "a.yaml:3: Unknown setting 'gama'. Did you mean 'gamma'"), ("b.yaml", "b.yaml:2: ")):
        code, _, err = shell("--run", "PPO", "--env", "CartPole-v1", "--config", name)
        assert code == 2 and err.startswith(f"raypid: {words}"), err


def test_tuned_settings_beside_a_whole_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps({**raypid.PPO.DEFAULT_CONFIG, "env": "CartPole-v1", "run": "PPO", "stop": {}}))
    for make in (lambda: raypid.PPO(config=path, tuned=True), lambda: raypid.train(config=path, tuned=True, stop=9)):
        with pytest.raises(ConfigError, match="which has a value for every setting: not both"):
            make()
