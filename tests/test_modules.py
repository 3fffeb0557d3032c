"""Modules that are named by their file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raypid.errors import UserError
from raypid.plugins.modules import apart, import_named, located, names_file


def test_names_are_taken_apart() -> None:
    assert apart("a.b:C") == ("a.b", "C") and apart("a") == ("a", "")
    assert apart("../x/reacher.py:Reach") == ("../x/reacher.py", "Reach") and apart("reacher.py") == ("reacher.py", "")
    assert apart(r"C:\x\reacher.py:Reach") == (r"C:\x\reacher.py", "Reach") and apart(r"C:\x\r.py") == (
        r"C:\x\r.py",
        "",
    )
    assert not names_file("CartPole-v1") and not names_file("happy:Env") and not names_file(3) and names_file("a.py:B")


def test_places_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("a.py:B") == f"{tmp_path}/a.py:B" and located("../a.py") == f"{tmp_path.parent}/a.py"
    assert located("CartPole-v1") == "CartPole-v1" and located(int) is int


def test_a_file_is_its_own_module_whatever_others_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "json.py").write_text(f"import helper_{folder}\nNAME = helper_{folder}.NAME\n")
        (tmp_path / folder / f"helper_{folder}.py").write_text(f"NAME = '{folder}'\n")
    found = [import_named(f"{tmp_path}/{folder}/json.py") for folder in ("one", "two", "one")]
    assert [module.NAME for module in found] == ["one", "two", "one"] and found[0] is found[2]
    import json

    assert json.loads("1") == 1


def test_a_file_on_the_path_is_the_module_that_others_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_here.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    module = import_named(str(tmp_path / "named_here.py"))
    assert module.__name__ == "named_here" and sys.modules["named_here"] is module


def test_what_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        import_named(str(tmp_path / "nosuch.py"))
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    for _ in range(2):  # a module that failed is not kept
        with pytest.raises(ZeroDivisionError):
            import_named(str(tmp_path / "wrong.py"))
    (tmp_path / "params.json").write_text('{"run": "PPO", "env": "CartPole-v1"}')
    with pytest.raises(UserError, match="lies in a run's folder"):
        import_named(str(tmp_path / "wrong.py"))
