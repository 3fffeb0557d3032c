"""Folders that somebody altered or made, with right checksums or not: they load unaltered, or are refused in one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import AGENTS, sign

import raypid
from raypid.agents import Agent
from raypid.errors import UserError
from raypid.replay.disk import ReplayDamaged
from raypid.storage import checkpoint
from raypid.storage.checkpoint import CheckpointError

Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one run of DQN, the newer one with its replay."""
    out = tmp_path_factory.mktemp("saved")
    run, config = AGENTS["dqn"]
    with Agent(run, config, out=out) as agent:
        agent.train()
        agent.save()
        agent.train()
        agent.save()
    return out / "checkpoints"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """The newer one, to be altered."""
    return Path(shutil.copytree(saved / "checkpoint_000002", tmp_path / "checkpoint_000002"))


def restored(folder: Path) -> None:
    """Load it into an agent."""
    run, config = AGENTS["dqn"]
    with Agent(run, config) as agent:
        agent.restore(folder)


def change(file: Path, how: Change) -> None:
    """Change a JSON file and make the checksums right again."""
    tree = json.loads(file.read_bytes())
    how(tree)
    file.write_text(json.dumps(tree))
    sign(next(p for p in (file.parent, *file.parents) if (p / "manifest.json").exists() or p.parent == p))


def refuses(load: Callable[[], object], *parts: str) -> None:
    with pytest.raises(CheckpointError) as error:
        load()
    text = str(error.value)
    assert "\n" not in text and all(part in text for part in parts), text


def test_every_file_is_in_the_manifest(saved: Path, folder: Path) -> None:
    manifest = checkpoint.read_manifest(folder)
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"} and manifest["format_version"] == 2  # type: ignore[typeddict-item]
    assert any(name.startswith("replay/segment_") for name in files)
    for name, expected in manifest["files"].items():  # type: ignore[typeddict-item]
        assert expected["sha256"] == checkpoint.sha256_of(folder / name)
    # only the newest keeps its replay, and the older one is whole without it
    assert not (saved / "checkpoint_000001" / "replay").exists()
    assert checkpoint.open_checkpoint(saved / "checkpoint_000001")


def test_every_byte_of_the_replays_index_counts(folder: Path) -> None:
    index = folder / "replay" / "index.json"
    content = index.read_bytes()
    for place in {0, len(content) - 1, *np.random.default_rng(0).integers(0, len(content), 120).tolist()}:
        altered = bytearray(content)
        altered[place] ^= 1
        index.write_bytes(altered)
        refuses(lambda: checkpoint.open_checkpoint(folder), "replay/index.json was altered")
    index.write_bytes(content[:-1])
    refuses(lambda: checkpoint.open_checkpoint(folder), "replay/index.json is truncated")


def test_a_part_of_the_replay_that_nobody_saved(folder: Path) -> None:
    shutil.copytree(folder / "replay", folder / "replay" / "learner_7")
    refuses(lambda: checkpoint.open_checkpoint(folder), "replay/learner_7/index.json is not in manifest.json")


def test_an_altered_segment(folder: Path) -> None:
    file = next((folder / "replay").glob("segment*"))
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ReplayDamaged, match=rf"{file.name} was altered"):
        restored(folder)


def test_an_older_format_says_what_was_not_verified(folder: Path) -> None:
    def older(manifest: Any) -> None:
        manifest["format_version"] = 1
        manifest["files"] = {k: v for k, v in manifest["files"].items() if not k.startswith("replay/")}

    change(folder / "manifest.json", older)
    run, config = AGENTS["dqn"]
    with Agent(run, config) as agent:
        agent.restore(folder)
        assert agent.replay_restored and any("was not verified" in note for note in agent.notes)


MANIFEST: dict[str, Change] = {
    "files is a list": lambda m: m.update(files=[]),
    "a file without a size": lambda m: m["files"].update({"state.safetensors": 3}),
    "a file elsewhere": lambda m: m["files"].update({"../x": {"bytes": 1, "sha256": "0"}}),
    "an absolute file": lambda m: m["files"].update({"/etc/passwd": {"bytes": 1, "sha256": "0"}}),
    "an array elsewhere": lambda m: m["state"].update(learner={"$npy": "../../../etc/passwd"}),
    "an array that is not there": lambda m: m["state"].update(learner={"$tensor": "x"}),
    "no state": lambda m: m.pop("state"),
    "no learner": lambda m: m["state"].pop("learner"),
    "no generator": lambda m: m["state"]["learner"].update(rng={}),
    "an optimizer of another size": lambda m: m["state"]["learner"]["optimizers"]["acting"].update(m=1),
    "no counters": lambda m: m.pop("counters"),
    "a counter of text": lambda m: m["counters"].update(iteration="3"),
    "a counter below 0": lambda m: m["counters"].update(timesteps_total=-1),
    "a huge counter": lambda m: m["counters"].update(num_saves=10**30),
    "returns of text": lambda m: m["state"].update(episodes="many"),
    "a score of text": lambda m: m.update(score="high"),
    "settings that are none": lambda m: m.update(config=[1]),
    "a version of text": lambda m: m.update(format_version="2"),
}


@pytest.mark.parametrize("name", MANIFEST)
def test_a_crafted_manifest(name: str, folder: Path) -> None:
    change(folder / "manifest.json", MANIFEST[name])
    refuses(lambda: restored(folder), str(folder) if "optim" not in name and "generator" not in name else "learner")
    checkpoint.prune(folder.parent, 1)  # one that cannot be read is passed over


def test_a_checkpoint_of_an_algorithm_with_an_odd_name(folder: Path) -> None:
    change(folder / "manifest.json", lambda m: m.update(algorithm="A\n" * 5000))
    with pytest.raises(UserError, match="this agent runs DQN") as error:
        restored(folder)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


INDEX: dict[str, Change] = {
    "count is text": lambda i: i.update(count="9"),
    "more rows than there are": lambda i: i.update(count=i["count"] + 5),
    "rows below 0": lambda i: i.update(oldest=-4),
    "a huge count": lambda i: i.update(count=2**70),
    "a segment elsewhere": lambda i: i["segments"][0].update(file="../../state.safetensors"),
    "a segment that overlaps": lambda i: i["segments"].append(dict(i["segments"][0])),
    "no segments": lambda i: i.update(segments=[]),
    "tails of text": lambda i: i.update(tails={"0": "x"}),
    "tails of rows to come": lambda i: i.update(tails={"0": [[10**6, 10**6]]}),
    "no generator": lambda i: i.update(rng=None),
    "a priority of text": lambda i: i.update(max_priority="high"),
    "a list": lambda i: i.clear(),
}


@pytest.mark.parametrize("name", INDEX)
def test_a_crafted_index_of_the_replay(name: str, folder: Path) -> None:
    change(folder / "replay" / "index.json", INDEX[name])
    refuses(lambda: restored(folder), "replay")


def test_crafted_rows(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = next((folder / "replay").glob("segment*"))
    rows, links = load_file(file), load_file(folder / "replay" / "links.safetensors")
    others: tuple[tuple[Path, dict[str, Any]], ...] = (
        (file, {**rows, "obs/": rows["obs/"][:, :3].copy()}),
        (file, {**rows, "reward": rows["reward"].astype(np.int64)}),
        (file, {**rows, "more": rows["reward"]}),
        (file, {name: values for name, values in rows.items() if name != "action/"}),
        (folder / "replay" / "links.safetensors", {**links, "follow": links["follow"] - 10**6}),
        (folder / "replay" / "links.safetensors", {**links, "priority": -links["priority"] - 1}),
    )
    for place, columns in others:
        before = place.read_bytes()
        save_file(columns, place)
        sign(folder)
        refuses(lambda: restored(folder), "replay")
        place.write_bytes(before)


POLICY: dict[str, Change] = {
    "no network": lambda p: p["spec"].pop("network"),
    "a network of text": lambda p: p["spec"].update(network="mlp"),
    "a wider layer than there are weights": lambda p: p["spec"]["network"].update(hidden=[10**9, 10**9]),
    "an activation that is none": lambda p: p["spec"]["network"].update(activation="x"),
    "a setting that is unknown": lambda p: p["spec"]["network"].update(x=1),
    "other widths": lambda p: p["spec"]["network"].update(hidden=[9]),
    "another table": lambda p: p["spec"]["table"].pop(),
    "huge observations": lambda p: p["spec"]["network"]["pipeline"]["leaves"][0].update(shape=[2**40]),
    "no observations": lambda p: p["spec"]["network"]["pipeline"].update(leaves=[]),
    "a dtype that is none": lambda p: p["spec"]["network"]["pipeline"]["leaves"][0].update(dtype="object"),
    "actions without a kind": lambda p: p["spec"]["network"]["actions"][0].update(kind="x"),
    "no weights": lambda p: p["state"].pop("flat"),
    "a spec of text": lambda p: p.update(spec="x"),
}


@pytest.mark.parametrize("name", POLICY)
def test_a_crafted_policy(name: str, folder: Path) -> None:
    change(folder / "policy" / "policy.json", POLICY[name])
    refuses(lambda: raypid.load_policy(folder), "policy")


def test_links_that_lead_out(folder: Path, tmp_path: Path) -> None:
    for name in ("state.safetensors", "policy/policy.safetensors", "replay/links.safetensors"):
        file, elsewhere = folder / name, tmp_path / Path(name).name
        shutil.move(file, elsewhere)
        file.symlink_to(elsewhere)
        refuses(lambda: restored(folder), name, "leads out")
        file.unlink()
        shutil.move(elsewhere, file)
    restored(folder)


def test_arrays_that_declare_more_than_there_is(tmp_path: Path) -> None:
    path = checkpoint.save_checkpoint(tmp_path, "checkpoint_000001", {"w": np.array(["a"])}, manifest={})
    file = path / "state" / "0.npy"
    content = file.read_bytes()
    for altered in (content.replace(b"(1,), ", b"(9000000000000,), "), b"PK\3\4" + content, b"\x80\4K\1."):
        file.write_bytes(altered)
        sign(path)
        refuses(lambda: checkpoint.open_checkpoint(path).state(), str(path))
    (path / "manifest.json").write_text("[" * 100_000)
    refuses(lambda: checkpoint.open_checkpoint(path), "nested too deep")


def test_settings_and_results_that_are_deep_long_or_circular(tmp_path: Path) -> None:
    from raypid.report.logger import RunLogger, read_params, read_results
    from raypid.settings.config import Config
    from raypid.settings.marked import read_marked

    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("abcdefgh", "bcdefghi"):
        bomb += f"{other}: &{other} [{', '.join([f'*{one}'] * 9)}]\n"
    for text in (
        bomb + "lr: *i\n",
        "lr: &l [*l]\n",
        "lr: " + "9" * 4000,
        "lr: " + "[" * 3000,
        "model: [" + "1, " * 9999 + "]",
    ):
        (tmp_path / "settings.yaml").write_text(text)
        with pytest.raises(UserError) as error:
            Config().replace({"lr": read_marked(tmp_path / "settings.yaml").values.get("lr", "x")})
        assert len(str(error.value)) < 1000 and "\n" not in str(error.value)
    (tmp_path / "result.json").write_text('{"training_iteration": 1, "x\\ud800": 1.0, "y": "\\ud800"}\n')
    with RunLogger(tmp_path, resume_iteration=1) as logger:
        logger.log({"training_iteration": 2, "x\ud800": 2.0})
    assert "\\ud800" in (tmp_path / "progress.csv").read_text()
    (tmp_path / "params.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="params.json is not JSON"):
        read_params(tmp_path)
    for line in ("[" * 100_000, '{"a": [1]}', '{"a": ' + "9" * 400 + "}", '{"a": {}}'):
        (tmp_path / "result.json").write_text(line + "\n")
        with pytest.raises(UserError, match="line 1, is not a JSON object"):
            read_results(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="There is no file"):
        read_marked(tmp_path / "pipe")
