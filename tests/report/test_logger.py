"""The files of a run: what is in them, and what is left after a crash, a resume and on a full disk."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raypid.report.logger import EventFile, RunLogger, read_params, read_results
from raypid.storage.outputs import AppendFile
from raypid.storage.ownership import has_signature

GOLDEN_EVENT = "1a00000000000000129bd82d09000000000000044010ac022a0c0a0a0a03612f62150000c03fd070276f"


def result(iteration: int, **more: object) -> dict[str, object]:
    return {"training_iteration": iteration, "timesteps_total": 256 * iteration, **more}


def read_progress(folder: Path) -> list[dict[str, str]]:
    with open(folder / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_result_json_is_strict_and_numbers_are_plain(tmp_path: Path) -> None:
    with RunLogger(tmp_path) as logger:
        logger.log(
            result(
                1,
                episode_reward_mean=float("nan"),
                kl=np.float32(0.5),
                episodes_total=np.int64(3),
                solved=True,
                one=np.array([2.0]),
                ratio=float("inf"),
            )
        )
    line = (tmp_path / "result.json").read_text()
    assert line.endswith("}\n")
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert row["episode_reward_mean"] is None and row["ratio"] is None
    assert (row["kl"], row["episodes_total"], row["solved"], row["one"]) == (0.5, 3, 1, 2.0)
    assert math.isnan(read_results(tmp_path)[0]["episode_reward_mean"])
    assert read_progress(tmp_path)[0]["episode_reward_mean"] == ""


@pytest.mark.parametrize("value", [[1.0], {"a": 1}, np.zeros(2), object()])
def test_a_metric_that_is_no_number_is_named(tmp_path: Path, value: object) -> None:
    with RunLogger(tmp_path) as logger, pytest.raises(ValueError, match="'custom'"):
        logger.log(result(1, custom=value))
    assert read_results(tmp_path) == []


def test_late_keys_widen_progress_csv(tmp_path: Path) -> None:
    with RunLogger(tmp_path) as logger:
        for i in range(1, 6):
            logger.log(result(i, **({"evaluation/episode_reward_mean": 10.0 * i} if i == 3 else {})))
        for i in range(6, 20):  # a new key each time: not every one can be worth a rewrite at once
            logger.log(result(i, **{f"level_{i}": i}))
    rows = read_progress(tmp_path)
    assert [int(row["training_iteration"]) for row in rows] == list(range(1, 20))
    assert [row["evaluation/episode_reward_mean"] for row in rows[:4]] == ["", "", "30.0", ""]
    assert all(rows[i - 1][f"level_{i}"] == str(i) for i in range(6, 20))


def test_opening_drops_a_half_written_line(tmp_path: Path) -> None:
    with RunLogger(tmp_path) as logger:
        logger.log(result(1, a=1.0))
        logger.log(result(2, a=2.0))
    with open(tmp_path / "result.json", "ab") as file:
        file.write(b'{"training_iteration": 3, "a"')
    assert [row["a"] for row in read_results(tmp_path)] == [1.0, 2.0]
    with RunLogger(tmp_path) as logger:
        logger.log(result(3, a=3.0, b=4.0))
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [1, 2, 3]
    assert [row["b"] for row in read_progress(tmp_path)] == ["", "", "4.0"]


def test_resume_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    with RunLogger(tmp_path) as logger:
        for i in range(1, 6):
            logger.log(result(i, a=i))
    with RunLogger(tmp_path, resume_iteration=3) as logger:
        logger.log(result(4, a=40))
    assert [row["a"] for row in read_results(tmp_path)] == [1, 2, 3, 40]
    assert [row["a"] for row in read_progress(tmp_path)] == ["1", "2", "3", "40"]


def test_kill_loses_nothing_that_was_logged(tmp_path: Path) -> None:
    code = (
        "import os, sys; from raypid.report.logger import RunLogger; logger = RunLogger(sys.argv[1])\n"
        "for i in range(1, 4): logger.log({'training_iteration': i})\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], check=False)
    assert len(read_results(tmp_path)) == len(read_progress(tmp_path)) == 3


def test_params_are_json_whatever_they_hold(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "new" / "run") as logger:
        logger.write_params({"env": RunLogger, "lr": 3e-4, "clip": float("inf"), "out": tmp_path, "sizes": (64, 64)})
    params = read_params(tmp_path / "new" / "run")
    assert has_signature("params.json", params) and not has_signature("params.json", {**params, "lr": 1})
    assert {key: value for key, value in params.items() if key != "signature"} == {
        "env": "raypid.report.logger:RunLogger",
        "lr": 3e-4,
        "clip": None,
        "out": str(tmp_path),
        "sizes": [64, 64],
    }
    assert [path.name for path in (tmp_path / "new" / "run").iterdir() if "params" in path.name] == ["params.json"]
    assert read_params(tmp_path) == {}


def test_tensorboard_reads_the_events_and_forgets_dropped_ones(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunLogger(tmp_path) as logger:
        for i in range(1, 6):
            logger.log(result(i, a=i / 2, b=float("nan"), big=1e300, text="x"))
    with RunLogger(tmp_path, resume_iteration=3) as logger:
        logger.log(result(4, a=40))
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"training_iteration", "timesteps_total", "a", "big"}
    assert [(point.step, point.value) for point in events.Scalars("a")] == [
        (256, 0.5),
        (512, 1.0),
        (768, 1.5),
        (1024, 40.0),
    ]


def test_event_bytes_are_those_of_tensorboardx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # time 2.5, step 300, tag "a/b", value 1.5; recorded from tensorboardX 2.6.5
    monkeypatch.setattr("raypid.report.logger.time.time", lambda: 2.5)
    events = EventFile(tmp_path)
    events.add(0, {"a/b": 0.0})
    before = events.path.stat().st_size
    events.add(300, {"a/b": 1.5})
    events.close()
    assert events.path.read_bytes()[before:].hex() == GOLDEN_EVENT


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_error() -> None:
    with pytest.raises(RuntimeError, match=r"^The disk is full: /dev/full cannot be written\. Free some space\.$"):
        AppendFile(Path("/dev/full")).append(b"x")


def test_a_short_write_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk:
        """Takes three bytes, then it is full."""

        def __init__(self, file: object) -> None:
            self.file, self.calls = file, 0

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def write(self, data: memoryview) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError(28, "No space left on device")
            return int(self.file.write(data[:3]))  # type: ignore[attr-defined]

    file = AppendFile(tmp_path / "x")
    file.append(b"whole\n")
    monkeypatch.setattr(file, "_file", Disk(file._file))
    with pytest.raises(RuntimeError, match="The disk is full: .*/x cannot be written"):
        file.append(b"second\n")
    assert (tmp_path / "x").read_bytes() == b"whole\n"


def test_reading_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is nothing at"):
        read_results(tmp_path / "no")
    with pytest.raises(ValueError, match=r"no result\.json"):
        read_results(tmp_path)
    (tmp_path / "result.json").write_text('{"a": 1}\nrubbish\n')
    with pytest.raises(ValueError, match="line 2"):
        read_results(tmp_path)


def test_importing_the_logger_imports_nothing_heavy() -> None:
    code = "import sys, raypid.report.logger; print([m for m in ('numpy', 'torch', 'tensorboardX', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
