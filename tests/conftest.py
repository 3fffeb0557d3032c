"""The real command line in processes of its own, what these leave behind, and one Ray for the session."""

from __future__ import annotations

import ast
import compileall
import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CHAOS = str(Path(__file__).parent / "chaos")
sys.path.insert(0, CHAOS)
_DATA = tempfile.TemporaryDirectory(prefix="raypid-tests-")
os.environ["RAYPID_DATA"] = _DATA.name  # the secret of these tests, not that of whoever runs them
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (CHAOS, os.environ.get("PYTHONPATH")) if p)

from patience import PATIENCE_S, wait_until  # noqa: E402  (it lies in CHAOS)
from processes import end, end_with_this_process, marked, with_mark  # noqa: E402  (it lies in benchmarks)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs in two processes, where there are two cores; tests that are named run in this one, which starts sooner."""
    from raypid.runtime.resources import num_cores

    return 2 if config.args_source is pytest.Config.ArgsSource.TESTPATHS and num_cores() > 1 else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests on Ray run in one process, which has the only Ray; the others go, file by file, to the process that is free."""
    from xdist.scheduler import LoadFileScheduling

    class OneRay(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path, name = nodeid.split("[")[0].split("::", 1)
            return "ray" if name in _on_ray(config.rootpath / path) else path

    return OneRay(config, log)


@functools.cache
def _on_ray(path: Path) -> set[str]:
    """Functions in a file of tests that name a fixture with Ray, or another function that does. A few too many do no harm."""
    words = {
        function.name: {
            getattr(node, name)
            for node in ast.walk(function)
            for kind, name in ((ast.Name, "id"), (ast.arg, "arg"), (ast.Constant, "value"))
            if isinstance(node, kind)
        }
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
    }
    found = {"ray_session", "members"}
    while more := {name for name, named in words.items() if named & found} - found:
        found |= more
    return found


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is compiled also where PYTHONDONTWRITEBYTECODE is set, as it is in many containers.

    To compile the tests is half of their collection, and each of the hundreds of processes that they start would compile raypid.
    """
    for folder in (ROOT / "raypid", ROOT / "benchmarks", CHAOS):
        compileall.compile_dir(folder, quiet=2)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking the half million objects of the collected tests, here and in forks of this process."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart() -> None:
    """What tests start ends with them, also where pytest-timeout ends them, which leaves no time for fixtures."""
    if sys.platform == "linux":
        mark = uuid.uuid4().hex
        os.environ.update(with_mark(mark, {**os.environ}))
        end_with_this_process(mark)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray swallows what a signal handler raises while it waits, so a test that hangs in Ray ends by a thread's hand."""
    for item in items:
        if any(name in getattr(item, "fixturenames", ()) for name in ("ray_session", "request")):
            if item.get_closest_marker("timeout") is not None:
                continue
            item.add_marker(pytest.mark.timeout(method="thread"))


@pytest.fixture(autouse=True)
def unflushed_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process saves need not outlast a power cut, so nothing waits until it is on the disk (test_checkpoint does)."""
    from raypid.storage import checkpoint

    monkeypatch.setattr(checkpoint, "_fsync", lambda path: None)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Any]:
    """One Ray of 8 logical CPUs for all tests in this process; agents join it and leave it running."""
    import logging

    from raypid.runtime.ray import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(address="local", num_cpus=8, num_gpus=0, **options)
    yield ray
    ray.shutdown()


NUM_IDLE = 3
"""Processes of Ray that wait for roles: more than two are seldom taken by a test."""


@pytest.fixture(autouse=True)
def idle_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have Ray start the processes that the next roles take while the tests go on: a role waits most of a second for a new one."""
    yield
    if "ray_session" in request.fixturenames:
        from raypid.runtime.ray import ray

        def rest() -> None:
            time.sleep(0.2)

        for _ in range(NUM_IDLE if ray.is_initialized() else 0):  # at a time, so that each needs a process, which stays
            ray.remote(num_cpus=0, max_retries=0)(rest).remote()


@pytest.fixture(scope="session")
def members(ray_session: Any) -> Iterator[Any]:
    """Three learner processes that have met (torch is seconds of each): `Members` of tests/chaos/member.py."""
    from member import SIZE, Members

    from raypid.runtime.ray import RayBackend

    backend = RayBackend()
    yield Members(backend, SIZE)
    backend.shutdown()


def _heed_signals() -> None:
    """As a terminal's commands do, also where the tests were sent to the background, or by nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Command:
    """`raypid ...` as a process group of its own, as a terminal starts it. Its descendants are known by a mark."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.shm = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        self.cwd = cwd
        pipe = subprocess.PIPE
        environment = {**with_mark(self.mark, {**os.environ}), **env}
        self.process = subprocess.Popen(
            argv, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True,
            preexec_fn=_heed_signals,
        )  # fmt: skip

    def results(self, folder: str = "run") -> list[dict[str, Any]]:
        path = self.cwd / folder / "result.json"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for_results(self, num: int, folder: str = "run") -> None:
        wait_until(lambda: len(self.results(folder)) >= num or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        finally:
            self.kill_all()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)

    def processes(self) -> dict[int, str]:
        """pid -> command line of what carries the mark and is no zombie."""
        return marked(self.mark)

    def kill_all(self) -> None:
        """Used where a test has failed: nothing that it started outlives it."""
        if self.process.poll() is None:
            end(self.mark)

    def assert_nothing_left(self) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.processes())
        assert self.processes() == {}
        left = self.shared_memory_left()
        deadline = time.monotonic() + 20
        while left and time.monotonic() < deadline:  # what tests beside this one are about to open or to remove
            time.sleep(0.1)
            left &= self.shared_memory_left()
        assert left == set()

    def shared_memory_left(self) -> set[str]:
        """Files in /dev/shm that came after the command was started and that nobody holds."""
        new = (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) - self.shm
        return {name for name in new if os.path.isfile(f"/dev/shm/{name}") and not _is_open(f"/dev/shm/{name}")}


def _is_open(path: str) -> bool:
    """Does a process of anybody hold the file? Then it is none that was left behind.

    By inode: a semaphore is mapped under the temporary name that it was made with.
    """
    try:
        inode = str(os.stat(path).st_ino)
    except FileNotFoundError:
        return True
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            if any(inode in line.split(maxsplit=5)[4:5] for line in maps if "/dev/shm/" in line):
                return True
            if any(os.readlink(fd) == path for fd in Path(f"/proc/{pid}/fd").iterdir()):
                return True
    return not os.path.exists(path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """start("train", "--run", ...) -> Command, in the test's folder; python=... starts a script instead."""
    commands: list[Command] = []

    def begin(*arguments: Any, python: str | None = None, cwd: Path | None = None, **env: str) -> Command:
        script = Path(sys.executable).parent / "raypid"
        argv = [sys.executable, python] if python is not None else [str(script)]
        commands.append(Command([*argv, *map(str, arguments)], cwd or tmp_path, env))
        return commands[-1]

    yield begin
    for command in commands:
        command.kill_all()


@pytest.fixture
def in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `raypid`, in the tests' process, for a test that asks for no process of its own: a second less for each command."""
    from raypid.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def raypid(start: Callable[..., Command]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """raypid("train", ...) -> what it printed and its exit code."""

    def run(*arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
        return start(*arguments, **more).finish()

    return run
