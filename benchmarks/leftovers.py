"""What stays when a process of a run on Ray is killed: processes, shared memory, sockets, folders; and how long.

    python benchmarks/leftovers.py                              # every row once, about 5 minutes
    python benchmarks/leftovers.py --kill driver,raylet --times 5
    python benchmarks/leftovers.py --quick                      # the driver alone, results elsewhere

`kill -9` to a process of IMPALA with a worker, an evaluator, a learner in an actor and a parameter server, or SIGTERM to all of its
processes, one by one, as systemd sends it. "at start" is a random moment in the first seconds, "at end" one after Ctrl-C. A run that goes on
(a worker is replaced) is then ended by Ctrl-C. Seconds are until the driver has ended, and from there until all processes have.

Results are written to leftovers.md and .json in --folder, when all rows are there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from flags import add_results_folder, one_of, results_folder, several, whole
from processes import end_with_this_process, exit_on_signals, marked, with_mark
from reporting import markdown, save
from soak import roles

TRAIN = [
    "train", "--run", "IMPALA", "--env", "CartPole-v1", "--num-workers", "1", "--num-cpus-per-worker", "0.1", "--num-learners", "1",
    "--num-cpus", "4", "--parameter-server", "true", "--evaluation-parallel", "true", "--evaluation-interval", "20",
    "--num-envs-per-worker", "2", "--fragment-length", "16", "--batch-size", "32", "--final-episodes", "0", "--seed", "0", "--quiet",
]  # fmt: skip
KILLS = (
    "driver",
    "driver at start",
    "driver at end",
    "worker",
    "evaluator",
    "server",
    "learner",
    "raylet",
    "gcs",
    "all by SIGTERM",
)
LONGEST_S = 200.0
A_ROW_S = 30
"""About how long a row takes."""
STAYS = """
Shared memory: files under Ray's names in /dev/shm. Session folders: that of the run's own Ray, under /tmp/ray; sockets: those in it.
The folder is meant to stay, for its logs: of those whose drivers have ended the newest five do. A run that starts Ray removes older ones.
"""
"""What the last columns of the table are, and who removes what they count."""


def session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        return 0 if state == "Z" else int(session)
    return 0


def sockets_in(folder: Path) -> int:
    return sum(path.is_socket() for path in folder.rglob("*"))


class Victim:
    """A run whose processes are known by a mark."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.folder = uuid.uuid4().hex, folder
        self.sessions: set[int] = set()
        """Of its processes so far: a title may be written over the environment of one, and with it the mark."""
        self.shm = set(os.listdir("/dev/shm"))
        command = [sys.executable, "-m", "raypid", *TRAIN, "--out", str(folder)]
        self.log = (folder.parent / "log").open("w+")
        environment = with_mark(self.mark, {**os.environ})
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env=environment, start_new_session=True
        )
        end_with_this_process(self.mark)

    def left(self) -> dict[int, str]:
        """pid -> name of its processes, zombies left out."""
        found, known = {}, marked(self.mark)
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if (session := session_of(pid)) in self.sessions or pid in known:
                    found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
                    self.sessions |= {session} - {0}
        return found

    def wait_for_rows(self, num: int) -> None:
        results = self.folder / "result.json"
        while self.process.poll() is None and not (results.exists() and results.read_bytes().count(b"\n") >= num):
            self.left()
            time.sleep(0.2)

    def wait(self) -> float:
        """Seconds until the driver has ended; the longest if it does not, and then it is killed."""
        started = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LONGEST_S)
        self.process.kill()
        self.process.wait()
        return time.monotonic() - started

    def wait_until_gone(self) -> tuple[float, str]:
        """Seconds until none of its processes is left, and which were the last ones."""
        started, last = time.monotonic(), ""
        while (left := self.left()) and time.monotonic() - started < LONGEST_S:
            last = ", ".join(sorted(left.values()))
            time.sleep(0.1)
        return time.monotonic() - started, last


def strike(victim: Victim, kill: str) -> None:
    """Do to a run what `kill` says; returns when the signal was sent."""
    who, _, when = kill.partition(" at ")
    if when == "start":
        until = time.monotonic() + random.uniform(0.5, 12)
        while time.monotonic() < until:
            victim.left()
            time.sleep(0.2)
        return victim.process.kill()
    victim.wait_for_rows(30)
    victim.left()
    if when == "end":
        victim.process.send_signal(signal.SIGINT)
        time.sleep(random.uniform(0.0, 3))
        return victim.process.kill()
    if who == "all by SIGTERM":
        for pid in victim.left():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        return None
    while not (pids := [pid for role, pid in roles(victim.process.pid).items() if role.split()[0] == who]):
        time.sleep(0.2)
    os.kill(pids[0], signal.SIGKILL)
    if who in ("worker", "evaluator", "server", "learner"):  # the run goes on
        rows = (victim.folder / "result.json").read_bytes().count(b"\n")
        victim.wait_for_rows(rows + 30)
        victim.process.send_signal(signal.SIGINT)
    return None


def row_of(kill: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="leftovers-") as place:
        victim = Victim(Path(place) / "run")
        strike(victim, kill)
        ended_s = victim.wait()
        gone_s, last = victim.wait_until_gone()
        sessions = list(Path(tempfile.gettempdir(), "ray").glob(f"session_*_{victim.process.pid}"))
        shm = {name for name in os.listdir("/dev/shm") if name.startswith(("plasma", "ray"))} - victim.shm
        victim.log.seek(0)
        said = victim.log.read().strip().splitlines()
    row = {
        "kill": kill,
        "code": victim.process.returncode,
        "ended_s": ended_s,
        "gone_s": gone_s,
        "last": last,
        "shm": len(shm),
    }
    row |= {
        "sockets": sum(map(sockets_in, sessions)),
        "folders": len(sessions),
        "said": said[-1][:160] if said else "",
        "lines": len(said),
    }
    print(
        f"{kill}: exit code {row['code']} after {ended_s:.1f} s, all gone {gone_s:.1f} s later; {len(shm)} in shared memory, "
        f"{row['sockets']} sockets, {len(sessions)} session folders",
        flush=True,
    )
    return row


def table_of(rows: list[dict[str, Any]]) -> str:
    header = (
        "killed",
        "exit code",
        "driver ends after, s",
        "all gone after, s",
        "last to go",
        "shared memory",
        "sockets",
        "session folders",
    )
    cells = [
        (
            r["kill"], r["code"], f"{r['ended_s']:.1f}", f"{r['gone_s']:.1f}", r["last"] or "-", r["shm"], r["sockets"], r["folders"],
        ) for r in rows
    ]  # fmt: skip
    return markdown(header, cells) + STAYS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kill_help = f"some of: {', '.join(KILLS)} (default: all)"
    parser.add_argument("--kill", type=several(one_of(KILLS)), help=kill_help)
    parser.add_argument("--times", type=whole(), default=1, help="how often each is done")
    add_results_folder(parser, "the driver alone, unless --kill says more")
    args = parser.parse_args()
    kills = args.kill or (["driver"] if args.quick else KILLS)
    folder = results_folder(args)
    random.seed(0)
    exit_on_signals()  # its folders are removed too
    number = len(kills) * args.times
    print(f"{number} kills, each in a run of its own: about {number * A_ROW_S} s in all", flush=True)
    rows = [row_of(kill) for kill in kills for _ in range(args.times)]
    save("leftovers", table_of(rows), {"rows": rows}, folder)


if __name__ == "__main__":
    main()
