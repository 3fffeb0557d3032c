"""benchmarks/soak.py: what it says of growth. Its short forms: calls leave nothing behind, and nothing minds a role that stands still."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
COMMAND = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def run(out: Path, *arguments: Any) -> None:
    command = [sys.executable, COMMAND, "--folder", out, "--out", out, *arguments]
    done = subprocess.run([str(part) for part in command], cwd=COMMAND.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    "found, expected",
    [
        ((773.0, -232.0, 1648.0), "cannot be told"),
        ((0.61, 0.36, 0.86), "flat"),
        ((1.55, 0.9, 2.2), "grows"),
        ((0.9, 0.5, 1.5), "cannot be told"),
        ((-3.0, -4.0, -2.0), "shrinks"),
        (None, "cannot be told"),
    ],
)
def test_what_is_flat_is_known_to_be(found: tuple[float, float, float] | None, expected: str) -> None:
    assert soak.verdict(found, 1.0) == expected


def samples(of: Any, num: int = 60, every: float = 20.0) -> list[dict[str, Any]]:
    """A run, of twenty minutes by default. `of`: memory of the driver by the share of the run that is over."""
    noise = np.random.default_rng(0).normal(0, 0.01, num)
    return [
        {"seconds": every * i, "training_iteration": i, "timesteps_total": i, "learner_updates_total": i,
         "values": {"driver: memory": of(i / num) + noise[i], "driver: threads": 9.0}}
        for i in range(num)
    ]  # fmt: skip


def test_growth_that_goes_on_is_told_from_growth_that_ends() -> None:
    def row(of: Any, num: int = 60) -> dict[str, Any]:
        return next(iter(soak.rows_of("sync", samples(of, num))))

    grows = row(lambda x: 80 + 5 * x)
    assert grows["verdict"] == "grows" and "15.0 MB an hour" in soak.past_bound(grows)
    assert row(lambda x: 80 + 5 * min(x, 0.6))["verdict"] == "levels off"
    assert row(lambda x: 80.0)["verdict"] == "flat" and not soak.past_bound(row(lambda x: 80.0))
    assert row(lambda x: 80.0, num=9)["verdict"] == "cannot be told"  # six samples after the first third


def stored(folder: Path, taken: list[dict[str, Any]]) -> Path:
    (folder / "sync").mkdir(parents=True)
    (folder / "sync" / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in taken))
    return folder


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["soak.py", *map(str, arguments)])
    return soak.main()


def test_what_grows_past_its_bound_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grows, flat = (stored(tmp_path / name, samples(lambda x, by=by: 80 + by * x)) for name, by in (("a", 5), ("b", 0)))
    assert run_main(monkeypatch, "--table", grows, "--folder", tmp_path) == 1
    table = (tmp_path / "soak.md").read_text()
    assert "grows by 15.0 an hour | none is allowed" in table and "1 of 2 quantities are flat" in table
    assert run_main(monkeypatch, "--table", flat, "--folder", tmp_path) == 0
    short = stored(tmp_path / "c", samples(lambda x: 80 + 5 * x, every=1.0))
    assert run_main(monkeypatch, "--table", short, "--folder", tmp_path) == 0
    assert "too short to judge growth by" in (tmp_path / "soak.md").read_text()


def test_samples_of_the_end_of_a_run_and_lines_that_are_not_whole_are_left_out(tmp_path: Path) -> None:
    taken = samples(lambda x: 80.0, num=10, every=5.0)
    ending = [taken[-1] | {"seconds": taken[-1]["seconds"] + more} for more in (2.0, 4.0)]
    file = stored(tmp_path, [*taken, *ending]) / "sync" / "samples.jsonl"
    assert soak.read_samples(file) == taken[:-1]
    with file.open("a") as more:
        more.write('{"seconds": 1')
    assert soak.read_samples(file) == taken[:-1]


def test_a_table_of_nothing_is_refused_and_what_is_stored_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "soak.json").write_text("kept")
    with pytest.raises(SystemExit, match="2"):
        run_main(monkeypatch, "--table", tmp_path / "nowhere", "--folder", tmp_path)
    assert "there are no samples" in capsys.readouterr().err
    assert (tmp_path / "soak.json").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_calls_leaves_nothing_behind(tmp_path: Path) -> None:
    run(tmp_path, "--minutes", 1, "--every", 2, "--loops", "asynchronous,replay", "--beside")
    rows = json.loads((tmp_path / "soak.json").read_text())["rows"]
    for loop in ("asynchronous", "replay"):
        found = {f"{r['what']}: {r['quantity']}": r for r in rows if r["loop"] == loop}
        assert found["driver: references"]["highest"] < 200  # there were thousands of calls
        assert found["Ray: objects"]["highest"] < 200
        assert all(
            r["last"] <= r["first"] + 10 for r in found.values() if r["quantity"] in ("files", "sockets", "threads")
        )
        assert found["gcs: memory"]["last"] < found["gcs: memory"]["first"] + 5  # a record of calls took 15 MB a minute


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", ["asynchronous", "replay"])
def test_a_role_that_stands_still_is_waited_for(loop: str, tmp_path: Path) -> None:
    run(tmp_path, "--pause", 5, "--loops", loop, "--roles", "learner,learners,server,driver")
    rows = json.loads((tmp_path / "soak_pauses.json").read_text())["rows"]
    assert {"learner", "server", "driver"} <= {r["role"] for r in rows}
    for r in rows:
        assert r["lost"] == {} and not r["ended"]
        assert r["during"]["references"] < r["before"]["references"] + 200 and r["during"]["objects"] < 200
