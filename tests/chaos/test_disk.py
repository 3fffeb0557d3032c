"""Disks that are full or read-only: a clear message, and what was there stays whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bad_disk
import pytest

from raypid.cli import main
from raypid.report.logger import read_results
from raypid.storage import checkpoint, ownership

TRAIN = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 16, "--batch-size", 32, "--seed", 0)
ENV = ("--env", "fragile:Fragile", "--evaluation-interval", 0, "--final-episodes", 0)
EACH = ("--checkpoint-interval", 1, "--quiet")
REPLAY = (
    "--run",
    "DQN",
    "--start-steps",
    20,
    "--buffer-size",
    500,
    "--fragment-length",
    1,
    "--steps-per-iteration",
    20,
)
FULL = "No space left on device"


def stop(iterations: int) -> tuple[str, str]:
    return "--stop", json.dumps({"training_iteration": iterations})


class Kind(NamedTuple):
    """One kind of file that cannot be written while a run is resumed."""

    pattern: str
    names: str
    """What the message names."""
    saved: str = ""
    """What else the message that ends the run says; "": the run goes on."""
    more: tuple[Any, ...] = ()
    """Arguments of the resumed run."""
    run: tuple[Any, ...] = ()
    """Arguments of the run before."""
    at_open: bool = False
    plot: bool = False


ENDS = {
    "state": Kind(r"/\.tmp-checkpoint_\d+-\d+/state\.safetensors$", "checkpoint_000003 needs more than", "checkpoint_000002"),
    "manifest": Kind(r"/\.tmp-checkpoint_\d+-\d+/manifest\.json$", "checkpoint_000003 needs more than", "checkpoint_000002"),
    "policy": Kind(r"/\.tmp-policy-\d+/policy\.safetensors$", "checkpoint_000003 needs more than", "checkpoint_000002"),
    "folder": Kind(r"/checkpoints/\.tmp", "checkpoint_000003", "checkpoint_000002", at_open=True),
    "best": Kind(r"/run/\.tmp-best-", "run/best needs more than", "checkpoint_000003"),
    "replay rows": Kind(r"/replay/segment_", "checkpoint_000003 needs more than", "checkpoint_000002", run=REPLAY),
    "replay links": Kind(r"/replay/links", "checkpoint_000003 needs more than", "checkpoint_000002", run=REPLAY),
    "replay index": Kind(r"/replay/index\.json", "checkpoint_000003 needs more than", "checkpoint_000002", run=REPLAY),
    "results": Kind(r"/result\.json$", "run/result.json", "Saved: checkpoint_000002 and best/"),
    "settings": Kind(r"/run/\.tmp-\d+\.json$", "run/params.json", "Free some space"),
    "lock": Kind(r"/\.lock$", "run/.lock", "Free some space", at_open=True),
}  # fmt: skip
GOES_ON = {
    "progress": Kind(r"/progress\.csv$|/run/\.tmp-\d+\.csv$", "run/progress.csv"),
    "events": Kind(r"/events\.out\.", "run/events.out.tfevents."),
    "new events": Kind(r"/events\.out\.", "run/events.out.tfevents.", at_open=True),
    "tracebacks": Kind(
        r"/errors\.txt$", "run/errors.txt", more=("--env-config", '{"mode": "raise"}', "--max-restarts", 1000)
    ),
    "curve": Kind(r"/run/\.tmp-\d+\.png$", "No learning curve: The disk is full: ", plot=True),
}


def brief(names: Iterable[str], *usual: str) -> list[Any]:
    """The names as parameters; all but the `usual` ones are for slower runs of the tests."""
    return [name if name in usual else pytest.param(name, marks=pytest.mark.ci_slow) for name in names]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[Any, ...]], Path]:
    """Runs of two iterations, by the arguments that they were given."""
    made: dict[tuple[Any, ...], Path] = {}

    def run(more: tuple[Any, ...] = ()) -> Path:
        if more not in made:
            made[more] = tmp_path_factory.mktemp("before") / "run"
            assert command(*TRAIN, *ENV, *EACH, *stop(2), *more, "--out", made[more]) == 0
        return made[more]

    return run


def command(*arguments: Any) -> int:
    return main([str(a) for a in arguments])


@contextlib.contextmanager
def failing(pattern: str, **more: Any) -> Iterator[None]:
    end = bad_disk.install(pattern, **more)
    try:
        yield
    finally:
        end()


def digest(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def assert_whole(run: Path, num_rows: int, saved: dict[str, bytes]) -> None:
    """What was saved is as it was, what is there can be read, nothing unfinished lies about."""
    now = digest(run / "checkpoints")
    assert all(now[name] == content for name, content in saved.items() if "/replay/" not in name)
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        checkpoint.open_checkpoint(path).state()
    checkpoint.read_policy(run / "best")
    assert [row["training_iteration"] for row in read_results(run)] == list(range(1, num_rows + 1))
    assert not [path for path in run.rglob(".*") if path.name != ".lock"]


def resumed(kind: Kind, run: Path) -> tuple[Any, ...]:
    return ("train", "--resume", run, *EACH, *stop(4), *kind.more, *(() if not kind.plot else ("--final-episodes", 0)))


@pytest.mark.parametrize("name", brief(ENDS, "state", "best", "results", "settings", "lock"))
def test_a_full_disk_that_ends_a_run(
    name: str, before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = ENDS[name]
    run = shutil.copytree(before(kind.run), tmp_path / "run")
    saved = digest(run / "checkpoints" / "checkpoint_000002")
    capsys.readouterr()
    with failing(kind.pattern, at_open=kind.at_open):
        assert command(*resumed(kind, run)) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said.err
    assert said.err.startswith("raypid: The disk is full: ") and kind.names in said.err and kind.saved in said.err
    begun = name not in ("results", "settings", "lock")
    assert_whole(run, 2 + begun, {} if name == "results" else saved)  # what was learnt replaces checkpoint 2
    # with space again it goes on
    assert command(*resumed(kind, run)) == 0
    assert_whole(run, 4, {})


@pytest.mark.parametrize("name", brief(GOES_ON, "progress", "events", "tracebacks", "curve"))
def test_a_full_disk_that_ends_no_run(
    name: str, before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = GOES_ON[name]
    run = shutil.copytree(before(), tmp_path / "run")
    kept = digest(run)
    with failing(kind.pattern, at_open=kind.at_open):
        assert command(*resumed(kind, run)) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and kind.names in said and "The disk is full" in said, said
    assert_whole(run, 4, {})
    if name == "curve":
        assert (run / "learning_curve.png").read_bytes() == kept[str(run / "learning_curve.png")]
    if "events" in name:
        old = {path: content for path, content in kept.items() if "tfevents" in path}
        assert old.items() <= digest(run).items()
    assert command("train", "--resume", run, *EACH, *stop(5)) == 0  # with space again
    assert len((run / "progress.csv").read_text().splitlines()) == 6


def test_the_error_that_ends_a_run_without_room_for_its_traceback(
    before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(before(), tmp_path / "run")
    with failing(r"/errors\.txt$"):
        assert command(*resumed(Kind("", "", more=("--env-config", '{"mode": "nan"}')), run)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "not finite" in said
    assert said.endswith(f"goes on. The disk is full: {run}/errors.txt cannot be written. Free some space.\n")


@pytest.mark.parametrize("pattern", [r"/\.tmp-diverged-\d+/state\.safetensors$", r"/\.tmp-diverged-.*/policy\.json"])
def test_what_a_divergence_cannot_leave(
    pattern: str, before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(before(), tmp_path / "run")
    with failing(pattern):
        assert command(*resumed(Kind("", "", more=("--lr", 1e30)), run)) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "diverged at environment step" in said and "The batch could not be kept" in said
    assert "The disk is full: " in said and "the newest checkpoint is checkpoint_000002" in said
    assert not (run / "diverged").exists()
    assert_whole(run, 2, {})


def test_a_picture(before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("curves.png", "curves.svg", "curves.pdf"):
        (tmp_path / name).write_text("an earlier one")
        with failing(rf"^{tmp_path}/"):
            assert command("plot", before(), "--out", tmp_path / name) == 1
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"raypid: The disk is full: {tmp_path / name} cannot be written. Free some space.\n")
        assert (tmp_path / name).read_text() == "an earlier one"
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "link.png").symlink_to("curves.png")
    assert command("plot", before(), "--out", tmp_path / "link.png") == 0
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_secret_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "data"))
    with failing(r"/data/\.secret"):
        assert command(*TRAIN, *ENV, *EACH, *stop(2), "--out", tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "This run is not signed as yours" in said and FULL in said
    assert list((tmp_path / "data").iterdir()) == []
    assert ownership.mark_project(tmp_path)
    mark = (tmp_path / ownership.MARKER).read_text()
    with failing(r"/\.tmp-"), pytest.raises(ValueError, match=FULL):
        ownership.mark_project(tmp_path)
    assert (tmp_path / ownership.MARKER).read_text() == mark and not list(tmp_path.glob(".tmp*"))


OWN_PROCESS = ("state", "replay rows", "results", "events", "curve")
"""Kinds whose tests in a process of its own the CI runs; in the tests' process it runs all of them."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.ci_slow if n in OWN_PROCESS else pytest.mark.slow) for n in (*ENDS, *GOES_ON)],
)
def test_a_process_of_its_own(
    name: str, before: Callable[..., Path], tmp_path: Path, start: Callable[..., Any]
) -> None:
    kind = {**ENDS, **GOES_ON}[name]
    run = shutil.copytree(before(kind.run), tmp_path / "run")
    done = start(*resumed(kind, run), **disk(kind.pattern, at_open=kind.at_open)).finish()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (int(name in ENDS), "", 1), done
    assert "The disk is full: " in done.stderr and kind.names in done.stderr and kind.saved in done.stderr


def disk(pattern: str, **more: Any) -> dict[str, str]:
    """The environment of a process, and of those that it starts, for which `pattern` cannot be written."""
    paths = [f"{bad_disk.__file__.removesuffix('bad_disk.py')}full", os.environ["PYTHONPATH"]]
    return {"RAYPID_TEST_DISK": json.dumps({"pattern": pattern, **more}), "PYTHONPATH": os.pathsep.join(paths)}


RAY = ("--num-workers", 2, "--num-cpus-per-worker", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--num-replay-shards", 2), ("--num-learners", 2, "--num-cpus", 4)], ids=str)
def test_a_replay_buffer_in_another_process(more: tuple[Any, ...], tmp_path: Path, start: Callable[..., Any]) -> None:
    begin = (*TRAIN, *ENV, *EACH, *REPLAY, *RAY, *more, "--out", "run")
    done = start(
        *begin, *stop(30), **disk("/replay/.*segment_", after=str(tmp_path / "run/checkpoints/checkpoint_000003"))
    ).finish()
    warm_up, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout, warm_up[:7]) == (1, "", "Warm-up"), done
    assert "The disk is full: " in last and "goes on from checkpoint_0000" in last, done
    assert not [path for path in (tmp_path / "run").rglob(".*") if path.name != ".lock"]
    newest = checkpoint.open_checkpoint(tmp_path / "run").path
    done = start("train", "--resume", "run", *EACH, *stop(int(newest.name[-6:]) + 2)).finish()
    assert (done.returncode, done.stderr) == (0, "")


# -- real disks --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """2 MB."""
    with mounted(tmp_path / "disk", "size=2m") as disk:
        yield disk


def test_a_full_disk(small_disk: Path, start: Callable[..., Any], in_process: Callable[..., Any]) -> None:
    run = small_disk / "run"
    more = ("--env", "fragile:Fragile", "--checkpoint-interval", 1, "--evaluation-interval", 0, "--quiet")
    first = in_process(*TRAIN, *more, "--stop", '{"training_iteration": 2}', "--out", run)
    assert (first.returncode, first.stderr) == (0, "")
    rows = (run / "result.json").read_text()
    policy = checkpoint.read_policy(run / "best")[1]
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - 24_000)))
    second = start("train", "--resume", run, "--stop", '{"training_iteration": 500}', "--quiet").finish()
    assert second.returncode == 1 and second.stdout == ""
    *others, last = second.stderr.splitlines()
    assert last.startswith("raypid: The disk is full: "), second.stderr
    assert all("The disk is full: " in line and "Training goes on" in line for line in others), second.stderr
    # every line is whole, the checkpoint and the policy are readable, nothing unfinished lies about
    now = (run / "result.json").read_text()
    assert now.startswith(rows)
    for line in now.splitlines():
        json.loads(line)
    assert checkpoint.open_checkpoint(run).path.name >= "checkpoint_000002"
    assert checkpoint.read_policy(run / "best")[1].keys() == policy.keys()
    assert not list(run.rglob(".tmp-*"))
    # with space again it goes on
    (small_disk / "ballast").unlink()
    goal = json.dumps({"training_iteration": len(now.splitlines()) + 2})
    third = in_process("train", "--resume", run, "--stop", goal, "--quiet")
    assert (third.returncode, third.stderr) == (0, "")


def test_a_folder_that_a_full_disk_has_no_room_for(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=4", str(small_disk)], check=True)
    for number in range(3):
        with contextlib.suppress(OSError):
            (small_disk / str(number)).touch()
    assert command(*TRAIN, *ENV, *EACH, *stop(2), "--out", small_disk / "run") == 1
    said = capsys.readouterr().err
    assert said == f"raypid: The disk is full: {small_disk}/run cannot be written. Free some space.\n"


@pytest.mark.parametrize("ending", brief(["mp4", "gif"], "mp4"))
def test_a_video(ending: str, before: Callable[..., Path], tmp_path: Path, raypid: Callable[..., Any]) -> None:
    pytest.importorskip("imageio_ffmpeg")
    (tmp_path / "noise.py").write_text(NOISE)
    with mounted(tmp_path / "disk", "size=64k") as small:
        (small / f"film.{ending}").write_text("an earlier one")
        more = ("--env", "noise:Noise", "--episodes", 1)
        done = raypid("eval", before(), *more, "--video", small / f"film.{ending}", "--trust")
        assert (done.returncode, done.stdout) == (1, ""), done
        assert done.stderr == f"raypid: The disk is full: {small}/film.{ending} cannot be written. Free some space.\n"
        assert (small / f"film.{ending}").read_text() == "an earlier one" and len(list(small.iterdir())) == 1
    done = raypid("eval", before(), *more, "--video", f"film.{ending}", "--trust")
    assert done.returncode == 0 and (tmp_path / f"film.{ending}").stat().st_size > 64_000


NOISE = """
import numpy as np
from fragile import Fragile

class Noise(Fragile):
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None, **more):
        super().__init__(**more)
        self.render_mode = render_mode

    def render(self):
        return np.random.default_rng(self.t).integers(0, 255, (160, 160, 3)).astype(np.uint8)
"""


# -- read-only ---------------------------------------------------------------------------------------------------------

READ_ONLY = "Read-only file system"


def test_a_read_only_place(before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "disk", "size=2m") as disk:
        run = shutil.copytree(before(), disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for arguments in (
            (*TRAIN, *ENV, "--out", disk / "new"),
            (*TRAIN, *ENV, "--out", run, "--overwrite"),
            ("train", "--resume", run),
            ("plot", run, "--out", disk / "curves.png"),
            ("eval", run, "--video", disk / "film.gif"),
        ):
            assert command(*arguments) == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and READ_ONLY in err and str(disk) in err, err
        # what only reads, reads
        assert command("eval", run, "--episodes", 1) == command("doctor", run) == 0
        assert command("plot", run, "--out", tmp_path / "curves.png") == 0
        assert command(*TRAIN, *ENV, *EACH, *stop(1), "--init-from", run, "--out", tmp_path / "run") == 0


@pytest.mark.parametrize("pattern", brief(["/run/", "/run/checkpoints/", "/run/.tmp-best"], "/run/"))
def test_a_folder_that_becomes_read_only(
    pattern: str, before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the kernel finds a damaged disk: open files cannot be written either."""
    run = shutil.copytree(before(), tmp_path / "run")
    saved = digest(run / "checkpoints" / "checkpoint_000002")
    third = run / "checkpoints" / "checkpoint_000003"
    with failing(pattern, number=bad_disk.READ_ONLY, after=str(third)):
        assert command("train", "--resume", run, *EACH, *stop(9)) == 1
    *others, last = capsys.readouterr().err.splitlines()
    assert last.startswith("raypid: ") and f"cannot be written: {READ_ONLY}." in last and str(run) in last
    assert all("Training goes on" in line for line in others)
    assert_whole(run, len(read_results(run)), saved)
    assert command("train", "--resume", run, *EACH, *stop(9)) == 0


@pytest.mark.ci_slow
def test_a_mount_that_becomes_read_only(before: Callable[..., Path], tmp_path: Path, start: Callable[..., Any]) -> None:
    with mounted(tmp_path / "disk", "size=2m") as disk:
        run = shutil.copytree(before(), disk / "run")
        going = start("train", "--resume", run, *EACH, *stop(10**6), "--env-config", '{"sleep_s": 0.002}')
        going.wait_for_results(4, str(run))
        # open files keep a file system writable, so a read-only view of it is laid over it
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
        try:
            done = going.finish()
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
        *others, last = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (1, ""), done
        assert READ_ONLY in last and "goes on from checkpoint_" in last, done
        assert all("Training goes on" in line for line in others), done
        for path in checkpoint.list_checkpoints(run / "checkpoints"):
            checkpoint.open_checkpoint(path).state()


@pytest.mark.parametrize(
    "name", brief(["checkpoints", "best", "result.json", "params.json", ".lock"], "best", "result.json")
)
def test_something_else_in_its_place(
    name: str, before: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(before(), tmp_path / "run")
    if is_folder := (run / name).is_dir():
        shutil.rmtree(run / name)
        (run / name).write_text("mine")
    else:
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()
    more = ("--out", run, "--overwrite") if name == "checkpoints" else ()
    code = command(*(("train", "--resume", run) if not more else (*TRAIN, *ENV, *more)), *EACH, *stop(6))
    said = capsys.readouterr().err
    if name == "checkpoints":  # --overwrite clears what a run would write
        assert (code, said) == (0, "")
        return
    assert code in (1, 2) and said.count("\n") == 1 and f"{run}/{name}" in said, (code, said)
    assert (run / name).read_text() == "mine" if is_folder else (run / name).is_dir()
    assert len(checkpoint.list_checkpoints(run / "checkpoints")) >= 2
    assert not list(run.glob(".old-*"))
