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
        ("distributed_pays", ["--wait", "-1"]),
        ("distributed_pays", ["--cores", "100000"]),
        ("distributed_pays", ["--sides", "two"]),
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


@pytest.mark.parametrize(
    ("ratios", "least", "told"),
    [
        (
            {1: 0.9, 2: 1.5, 4: 2.0},
            2,
            "pay from 2 cores on: their steps over those of one process are 0.90 on 1 core, 1.50 on 2 cores",
        ),
        ({1: 1.2, 2: 1.01, 4: 1.3}, 4, "pay from 4 cores on"),
        ({1: 1.2}, 1, "pay from 1 core on"),
        ({1: 1.2, 2: 1.04}, None, "do not pay on 2 cores or fewer"),
        ({1: 0.5}, None, "do not pay on 1 core:"),
        ({}, None, "Not measured yet"),
    ],
)
def test_from_how_many_cores_workers_pay(
    ratios: dict[int, float], least: int | None, told: str, tmp_path: Path
) -> None:
    """From the rows of a file, which a second call reads again."""
    pays = importlib.import_module("distributed_pays")
    for cores, ratio in ratios.items():
        for side, rate in (("process", 800.0), ("workers", 800 * ratio)):
            pays.append(pays.Run("steps", 0.02, side, cores, 1000), {"steps_per_s": rate}, tmp_path)
    rows = pays.read(tmp_path)
    assert len(rows) == 2 * len(ratios) and pays.pays_from(ratios) == least
    assert told in pays.told(rows)
    assert all(
        f"| {cores} | – | 800 | {800 * ratio:,.0f} | {ratio:.2f} |" in pays.tables(rows)
        for cores, ratio in ratios.items()
    )
