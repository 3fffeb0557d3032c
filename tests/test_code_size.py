"""The table of lines that each part of the package may have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from code_size import TABLE, data_lines, main


def test_a_part_may_only_grow_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part, table = tmp_path / "raypid" / "part.py", tmp_path / TABLE
    part.parent.mkdir()
    table.parent.mkdir(parents=True)

    def run(code: str, *flags: str) -> tuple[int, str]:
        part.write_text(code)
        return main([str(tmp_path), *flags]), capsys.readouterr().err

    assert run("a = 1\nb = 2\n", "--write") == (0, "")
    assert run("a = 1\n\n# why\nb = 2\n", "--check") == (0, "")
    assert run("a = 1\n", "--write") == (0, "")
    for flag in ("--check", "--write"):
        code, told = run("a = 1\nb = 2\n", flag)
        assert code == 1 and "part.py has 2 lines, 1 are allowed." in told and "all has 2 lines" in told
    (tmp_path / "raypid" / "new.json").write_text('{"a": 1}\n')
    assert run("", "--check")[0] == 1  # smaller in all, but new.json is not in the table
    assert run("a = 1\n", "--write", "--because", "a: what b was")[0] == 0
    lines = {"all": 2, "new.json": 1, "part.py": 1}
    assert json.loads(table.read_text()) == {
        "lines": lines,
        "reasons": {"all": "a: what b was", "new.json": "a: what b was"},
    }


def test_data_is_not_made_smaller_by_longer_lines() -> None:
    assert data_lines("# why\n\na: 1\n") == 1 and data_lines("x" * 241) == 3
