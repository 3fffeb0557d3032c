"""Roles in processes without Ray: what test_backends.py does not ask of every backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fragile
import numpy as np
import pytest
from patience import wait_until

from raypid.runtime.handle import NICENESS, ArgumentLost, Place, WorkerLost, places
from raypid.runtime.process import ProcessBackend
from raypid.runtime.supervisor import Group, Losses


class Tally:
    """A role that has nothing to do with learning. It counts, and says so in a file when it is closed."""

    def __init__(self, start: int = 0, closed: Path | None = None) -> None:
        self.total, self.closed = start, closed

    def add(self, x: int) -> tuple[int, str]:
        self.total += x
        return self.total, f"from {os.getpid()}"

    def crash(self, marker: Path) -> str:
        """Die, unless another role has before."""
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    def fail(self) -> None:
        raise Unbuildable(3, "the table is full")

    def exit(self) -> None:
        sys.exit(3)

    def about(self) -> tuple[int, int, bool]:
        return os.getpid(), os.nice(0), "ray" in sys.modules

    def child(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        if self.closed is not None:
            self.closed.write_text("closed")


class Unbuildable(Exception):
    """An exception that pickle can take apart and not put together."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{what}, {number} times")


@pytest.fixture
def backend() -> Iterator[ProcessBackend]:
    backend = ProcessBackend()
    yield backend
    backend.shutdown()


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_processes_start_in_other_ways_too(start_method: Any) -> None:
    backend = ProcessBackend(start_method)
    handles = [backend.spawn(partial(Tally, i)) for i in range(2)]
    assert [backend.get(handle.submit(Tally.add, 1))[0] for handle in handles] == [1, 2]
    pids = [backend.get(handle.submit(Tally.about))[0] for handle in handles]
    backend.shutdown()
    assert not any(is_there(pid) for pid in pids)


def test_an_evaluator_yields_and_nobody_imports_ray(backend: ProcessBackend) -> None:
    for kind, niceness in (("worker", 0), ("evaluator", NICENESS["evaluator"])):
        pid, nice, has_ray = backend.get(backend.spawn(Tally, Place(kind)).submit(Tally.about))  # type: ignore[arg-type]
        assert pid != os.getpid() and nice == os.nice(0) + niceness and not has_ray


def test_errors_have_the_traceback_of_the_process(backend: ProcessBackend) -> None:
    handle = backend.spawn(fragile.Echo)
    with pytest.raises(KeyError) as caught:
        backend.get(handle.submit(fragile.Echo.fail, "lost key"))
    assert "fragile.py" in caught.value.worker_traceback and "lost key" in caught.value.worker_traceback  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="Unbuildable: the table is full, 3 times"):
        backend.get(backend.spawn(Tally).submit(Tally.fail))
    with pytest.raises(TypeError, match="pickle"):
        backend.get(handle.submit(fragile.Echo.pair, os.scandir()))
    assert backend.get(handle.submit(fragile.Echo.add, 2)) == 2


@pytest.mark.parametrize("how", ["exit code 3", "signal 9"])
def test_how_a_process_ended_is_known(backend: ProcessBackend, how: str, tmp_path: Path) -> None:
    handle = backend.spawn(Tally)
    marker = tmp_path / "marker"
    lost: Any = handle.submit(Tally.exit) if how == "exit code 3" else handle.submit(Tally.crash, marker)
    for future in (lost, *handle.submit_parts(Tally.add, 1)):
        with pytest.raises(WorkerLost) as caught:
            backend.get(future)
        assert caught.value.how == f"its process ended with {how}"
    other = backend.spawn(Tally)
    for call in (other.submit(Tally.add, lost), backend.here(Tally).submit(Tally.add, lost)):
        with pytest.raises(ArgumentLost):
            backend.get(call)


def test_wait_returns_what_comes_first_of_several_processes(backend: ProcessBackend) -> None:
    slow, quick = backend.spawn(Tally), backend.spawn(Tally)
    never, soon = slow.submit(Tally.sleep, 1000.0), quick.submit(Tally.sleep, 0.0)
    assert backend.wait([never, soon]) == ([soon], [never])
    backend.kill(slow)
    assert backend.wait([never, soon], num=2, timeout=60.0) == ([never, soon], [])


def test_large_messages_both_ways_do_not_wait_for_each_other(backend: ProcessBackend) -> None:
    handle, data = backend.spawn(fragile.Echo), np.arange(1_000_000.0)
    calls = [handle.submit_parts(fragile.Echo.pair, data) for _ in range(4)]
    for report, answer in calls:
        assert backend.get(report) == "small"
        np.testing.assert_array_equal(backend.get(answer), data)


@pytest.mark.parametrize("busy", [False, True])
def test_a_role_is_closed_at_its_end(backend: ProcessBackend, busy: bool, tmp_path: Path) -> None:
    handle = backend.spawn(partial(Tally, 0, tmp_path / "closed"))
    pid, _, _ = backend.get(handle.submit(Tally.about))
    child = backend.get(handle.submit(Tally.child))
    if busy:
        handle.submit(Tally.sleep, 1000.0)
    backend.end([handle], interrupt=busy)
    assert (tmp_path / "closed").exists() and not is_there(pid)
    wait_until(lambda: not is_there(child))


SCRIPT = """
import os, pathlib, sys, time
from raypid.runtime.process import ProcessBackend

class Mine:
    def __init__(self): self.error = Oops
    def pid(self): return os.getpid()
    def fail(self): raise self.error("mine")
    def sleep(self, seconds): time.sleep(seconds)
    def close(self): pathlib.Path(sys.argv[1]).write_text("closed")

class Oops(Exception): ...

backend = ProcessBackend()
role = backend.spawn(Mine)
try:
    backend.get(role.submit(Mine.fail))
except Oops as error:
    print(error, backend.get(role.submit(Mine.pid)), flush=True)
if sys.argv[2] == "killed":
    role.submit(Mine.sleep, 1000.0)
    time.sleep(1000.0)
"""


@pytest.mark.parametrize("end", ["exits", "killed"])
def test_a_script_needs_no_guard_and_its_roles_end_with_it(end: str, tmp_path: Path) -> None:
    script, closed = tmp_path / "script.py", tmp_path / "closed"
    script.write_text(SCRIPT)
    driver = subprocess.Popen([sys.executable, str(script), str(closed), end], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    name, pid = driver.stdout.readline().split()
    assert name == "mine" and int(pid) != driver.pid
    if end == "killed":
        driver.kill()
    assert driver.wait(60) == (-signal.SIGKILL if end == "killed" else 0)
    assert driver.stdout.read() == ""  # the script ran once
    wait_until(lambda: not is_there(int(pid)) and closed.exists())


def test_a_supervised_role_comes_back_and_its_call_is_made_again(backend: ProcessBackend, tmp_path: Path) -> None:
    losses = Losses(3)
    roles = Group[int, str](
        backend, lambda i, restarts: partial(Tally, i), places("worker", 2), timeout_s=60.0, losses=losses
    )
    assert roles.call_all(Tally.crash, tmp_path / "marker") == ["alive", "alive"]
    assert losses.counts["workers"] in (1, 2)  # both may have come upon no marker
    assert [total for total, _ in roles.call_all_parts(Tally.add, 5)] == [5, 6]
    roles.close()
