"""What a Ray that raypid starts leaves behind: processes of a driver that is gone, folders of sessions that are over."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from patience import wait_until

from raypid.runtime import guard
from raypid.runtime.sessions import KEPT, Session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

DRIVER = """
import os, subprocess, sys
from raypid.runtime.sessions import Session

session = Session()
session.watch()
marked = {**os.environ, **session.variables}
quiet = {"stdout": subprocess.DEVNULL, "start_new_session": True}
child = subprocess.Popen(["sleep", "600"], env=marked, **quiet)
other = subprocess.Popen(["sleep", "600"], **quiet)
print(session.mark, child.pid, other.pid, flush=True)
sys.stdin.read()
"""


def test_what_carries_the_mark_ends_with_the_driver_and_nothing_else() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    mark, child, other = driver.stdout.readline().split()
    assert guard.left(mark, []) == [int(child)]
    driver.kill()
    driver.communicate()
    try:
        wait_until(lambda: not guard.left(mark, []))
        assert os.path.exists(f"/proc/{other}/environ")
    finally:
        os.kill(int(other), 9)


def test_the_guard_ends_with_the_session() -> None:
    session = Session()
    session.watch()
    process = session._guard
    assert process is not None and process.poll() is None
    session.close()
    assert process.poll() is not None


def test_a_session_that_is_forgotten_is_held_until_the_process_ends(tmp_path: Path) -> None:
    session = Session()
    session.watch()
    session.begin(living := folder(tmp_path, 0))
    process, known = session._guard, weakref.ref(session)
    del session
    gc.collect()
    assert process is not None and process.poll() is None
    for number in range(1, 3 + KEPT):
        folder(tmp_path, number)
    other = Session()
    other.begin(folder(tmp_path, 59))
    assert living.exists()
    other.close()
    left = known()
    assert left is not None
    left.close()


def folder(parent: Path, number: int, *, ours: bool = True) -> Path:
    made = parent / f"session_2026-01-01_00-00-{number:02}_000000_1"
    (made / "logs").mkdir(parents=True)
    if ours:
        (made / "raypid").touch()
    return made


def test_the_newest_folders_stay_and_those_of_others_and_of_living_sessions(tmp_path: Path) -> None:
    foreign, living = folder(tmp_path, 0, ours=False), folder(tmp_path, 1)
    lives = Session()
    lives.begin(living)
    over = [folder(tmp_path, i) for i in range(2, 4 + KEPT)]
    target = tmp_path / "target"
    target.mkdir()
    (target / "raypid").touch()
    link = tmp_path / "session_2026-01-01_00-00-00_link"
    link.symlink_to(target)
    mine = Session()
    mine.begin(folder(tmp_path, 59))
    assert [path.exists() for path in over] == [False, False, *[True] * KEPT]
    assert foreign.exists() and living.exists() and link.is_symlink() and target.exists()
    lives.close()
    mine.close()
    again = Session()
    again.begin(folder(tmp_path, 58))
    assert not living.exists()
    again.close()


def test_the_guard_speaks_if_ray_has_ended_before_the_driver() -> None:
    """Its stdin ends with the driver."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [
            sys.executable,
            "-I",
            "-S",
            guard.__file__,
            str(os.getpid()),
            "",
            "127.0.0.1",
            str(server.getsockname()[1]),
        ]
        assert subprocess.run(command, input="", capture_output=True, text=True).stderr == ""
    said = subprocess.run(command, input="", capture_output=True, text=True).stderr
    assert said.startswith("raypid: Ray on this machine (127.0.0.1) has ended") and said.count("\n") == 1
