"""What benchmarks take on the command line: what does not fit is one line and exit code 2, before anything starts."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from flags import add_results_folder, json_object, one_of, positive, results_folder, several, whole, writable


@pytest.mark.parametrize(
    "read, text, expected",
    [
        (positive, "0.5", 0.5),
        (whole(), "3", 3),
        (several(whole(0)), "0, 2", [0, 2]),
        (several(one_of({"a": 1, "b": 2})), "b,a", ["b", "a"]),
        (json_object, '{"lr": 0.1}', {"lr": 0.1}),
    ],
)
def test_what_fits_is_read(read: Any, text: str, expected: object) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "read, text",
    [
        *((positive, text) for text in ("0", "-1", "nan", "inf", "x", "")),
        *((whole(), text) for text in ("0", "1.5", "x")),
        *((several(whole()), text) for text in ("1,", "1,x", "")),
        (several(one_of(("a", "b"))), "a,c"),
        *((json_object, text) for text in ("x", "[1]", "1")),
        (writable, f"{__file__}/results"),
    ],
)
def test_what_does_not_fit_is_refused(read: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"not|no "):
        read(text)


def test_quick_results_go_into_a_new_folder_that_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_results_folder(parser)
    made = [results_folder(parser.parse_args(["--quick"])) for _ in range(2)]
    said = capsys.readouterr().out
    assert made[0] != made[1] and all(str(one) in said for one in made)
    assert results_folder(parser.parse_args(["--folder", str(tmp_path)])) == tmp_path
    for one in made:
        one.rmdir()


@pytest.mark.parametrize(
    "script, arguments",
    [
        ("scaling", ["--algorithms", "FOO"]),
        ("scaling", ["--workers", "a,b"]),
        ("scaling", ["--workers", "0"]),
        ("distributed_pays", ["--seeds", "x"]),
        ("distributed_pays", ["--seeds", "5"]),
        ("soak", ["--loops", "foo"]),
        ("soak", ["--roles", "worker"]),
        ("leftovers", ["--kill", "foo"]),
        ("leftovers", ["--times", "0"]),
    ],
)
def test_scripts_refuse_flags_in_one_line(
    script: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(script).main()
    assert f"{script}.py: error: " in capsys.readouterr().err
