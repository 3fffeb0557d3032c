"""The user's secret, signatures, marks of projects, and which folders are a run's."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raypid.errors import UserError
from raypid.storage.checkpoint import find_policy, read_manifest, read_policy, save_checkpoint, write_policy
from raypid.storage.ownership import (
    MARKER,
    data_folder,
    is_signed,
    mark_project,
    outside_of_runs,
    project_of,
    put_on_path,
    run_folder_of,
    sign,
    why_unsigned,
)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_signature_is_of_kind_text_and_user(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = sign("a", "text")
    assert is_signed("a", "text", signature) and len(signature) == 64
    assert not any((is_signed("b", "text", signature), is_signed("a", "text2", signature), is_signed("a", "text", "")))
    for wrong in (None, 3, [signature], "é", "\ud800"):
        assert not is_signed("a", "text", wrong)
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "another"))
    assert not is_signed("a", "text", signature) and not (tmp_path / "another").exists()  # reading makes no secret
    assert sign("a", "text") != signature


def test_the_secret_is_made_once_and_for_the_user_alone(data: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: sign("a", "text"), range(32)))) == 1
    assert os.listdir(data) == ["secret"] and (data / "secret").stat().st_size == 32
    if os.name != "nt":
        assert (data / "secret").stat().st_mode & 0o777 == 0o600 and why_unsigned() == ""
        (data / "secret").chmod(0o644)
        assert "others may read" in why_unsigned() and sign("a", "text") == ""
    (data / "secret").chmod(0o600)
    (data / "secret").write_bytes(b"short")
    assert "remove it" in why_unsigned() and sign("a", "text") == "" and not is_signed("a", "text", sign("a", "text"))
    with pytest.raises(UserError, match="cannot be marked as your project"):
        mark_project(data)


def test_where_the_data_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYPID_DATA")
    for name, value in (("XDG_DATA_HOME", "/x"), ("LOCALAPPDATA", "/local"), ("HOME", "/home/me")):
        monkeypatch.setenv(name, value)
    places = {"linux": "/x/raypid", "darwin": "/home/me/Library/Application Support/raypid", "win32": "/local/raypid"}
    for platform, place in places.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert data_folder() == Path(place)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert data_folder() == Path("/home/me/.local/share/raypid")


def test_what_is_written_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged: dict[str, Any] = {"note": '"signature": "" ' + "0" * 64}
    policy = write_policy(tmp_path / "policy", forged, {})
    checkpoint = save_checkpoint(tmp_path, "checkpoint_000001", {}, manifest={"config": forged})
    assert read_policy(policy)[2] and read_manifest(checkpoint)["signed"]
    text = (policy / "policy.json").read_text()
    (checkpoint / "manifest.json").write_text(text)  # one kind does not stand for another
    assert not read_manifest_like(checkpoint)
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "another"))
    assert not read_policy(find_policy(policy))[2]


def read_manifest_like(checkpoint: Path) -> bool:
    return bool(read_manifest(checkpoint)["signed"])


def test_a_project_is_where_its_mark_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    assert project_of(project) is None
    assert mark_project(project) == project / MARKER and project_of(project / "inner") == project
    moved = project.rename(tmp_path / "moved")
    assert project_of(moved) is None
    mark_project(moved)
    (moved / "inner" / MARKER).write_bytes(b"\xff")
    assert project_of(moved) == moved and project_of(moved / "inner") is None
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "another"))
    assert project_of(moved) is None
    with pytest.raises(UserError, match="cannot be marked"):
        mark_project(tmp_path / "nowhere")


def test_which_folder_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, run = tmp_path / "project", tmp_path / "project" / "runs" / "a"
    (run / "deep").mkdir(parents=True)
    (project / "manifest.json").write_text('{"name": "of a web page"}')
    (project / "params.json").write_text("[" * 100_000)
    write_policy(project / "policy", {}, {})
    save_checkpoint(project / "checkpoints", "checkpoint_000001", {}, manifest={})
    assert run_folder_of(project) is None and run_folder_of(run / "deep") is None
    assert run_folder_of(project / "policy") == project / "policy"
    (run / "params.json").write_text(json.dumps({"run": "PPO", "env": "CartPole-v1"}))
    assert run_folder_of(run / "deep") == run
    assert run_folder_of(project, ["--resume=" + str(project), "x\0", '{"a": 1}']) == project  # as it is named as one
    monkeypatch.chdir(run / "deep")
    with outside_of_runs():
        assert run_folder_of(Path.cwd()) is None
    assert Path.cwd() == run / "deep"
    monkeypatch.setattr(sys, "path", ["", str(run / "deep"), "/other"])
    put_on_path([])
    assert sys.path == ["/other"]
    monkeypatch.chdir(project)
    put_on_path([])
    assert sys.path == [str(project), "/other"]
