"""The processes of a run, and what `chaos.py` does to them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from processes import marked

if TYPE_CHECKING:  # imports Ray, which takes a second, and which only clusters need
    from ray_nodes import Node, Nodes

ROLES = {
    "worker": r"\w*Rollout|(Single|Multi)AgentEnvRunner|\w*AggregatorActor",
    "learner": r"\w*Learner|_WrappedExecutable",
    "shard": r"\w*Replay",
    "server": r"ParameterServer",
    "evaluator": r"\w*Evaluator",
}
"""Which processes of Ray are which role, by the class that Ray names them after (raypid's and RLlib's)."""
START_S = 300.0
"""Seconds in which Ray or the first iteration must have come up on a busy machine, and in which a run must end."""


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def roles(mark: str) -> dict[str, list[int]]:
    """The processes of each role, oldest first. One that is still being built is none."""
    found: dict[str, list[int]] = {role: [] for role in ROLES}
    for pid, line in sorted(marked(mark).items()):
        name = re.fullmatch(r"ray::(\w+)(\.(?!__init__).*)?", line)
        for role, pattern in ROLES.items():
            if name and re.fullmatch(pattern, name.group(1)):
                found[role].append(pid)
    return found


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def abandoned(before: set[str]) -> list[str]:
    """Files in /dev/shm that are new since `before` and that no living process holds."""
    new = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} - before
    files = {path for path in new if os.path.isfile(path)}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        maps = _read(f"/proc/{pid}/maps").decode(errors="replace") if files else ""
        files -= {path for path in files if path in maps}
        with contextlib.suppress(OSError):
            files -= {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return sorted(path for path in files if os.path.exists(path))


@dataclass(slots=True)
class Injected:
    """A fault that struck."""

    kind: str
    at: float
    """Monotonic clock; of one that lasts: its end."""
    pid: int = 0
    what: str = ""


@dataclass(slots=True)
class Strikes:
    """Strikes at a run that is known by its mark; `log` has what has struck."""

    mark: str
    rng: random.Random
    folder: Path
    """Scratch: `orders` for the environment, `disk`, a file system of its own."""
    cluster: Cluster | None = None
    log: list[Injected] = field(default_factory=list)
    pause_s: float = 5.0
    wait_s: float = 15.0
    """How long to wait for a role that is being built, and for an order to be taken."""

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    def strike(self, fault: str) -> Injected | None:
        """Do it, and log it; None if it was not possible: a role that is not there, an order that nobody took."""
        if fault in ROLES:
            found = self._kill(fault)
        elif fault in ("pause", "stop"):
            found = self._stop(fault)
        elif fault in ("raise", "exit", "hang", "leak"):
            found = self._order(fault)
        elif fault == "disk":
            found = self._fill()
        else:
            assert self.cluster is not None
            found = self.cluster.strike(fault)
        if found is not None:
            self.log.append(found)
        return found

    def _victim(self, role: str) -> int | None:
        """A process of this role, by chance, once there is one."""
        deadline = time.monotonic() + self.wait_s
        while not (found := roles(self.mark)[role]):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return self.rng.choice(found)

    def _kill(self, role: str) -> Injected | None:
        pid = self._victim(role)
        if pid is None:
            return None
        os.kill(pid, signal.SIGKILL)
        return Injected(role, time.monotonic(), pid)

    def _stop(self, fault: str) -> Injected | None:
        """Stop a worker: for `pause_s` seconds, or for good."""
        pid = self._victim("worker")
        if pid is None:
            return None
        os.kill(pid, signal.SIGSTOP)
        if fault == "pause":
            time.sleep(self.pause_s)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        return Injected(fault, time.monotonic(), pid)

    def _order(self, order: str) -> Injected | None:
        """Have one of the environments do it."""
        path = self.orders / f"order-{len(self.log)}"
        hidden = path.with_name(path.name.replace("order", "new"))
        hidden.write_text(order)
        hidden.rename(path)
        deadline = time.monotonic() + self.wait_s
        while path.exists():
            if time.monotonic() > deadline:
                path.unlink(missing_ok=True)
                return None
            time.sleep(0.02)
        return Injected(order, time.monotonic())

    def _fill(self) -> Injected:
        """Leave no space where the run writes, for `pause_s` seconds."""
        path = self.folder / "disk" / "filler"
        with contextlib.suppress(OSError), path.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        time.sleep(self.pause_s)
        path.unlink()
        return Injected("disk", time.monotonic())


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own at `folder`. Only root may make one."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


class Cluster:
    """What is done to the nodes of a cluster. The head, on which the run is, is left alone."""

    def __init__(self, nodes: Nodes, cpus: list[int]) -> None:
        """Add nodes to a head: `cpus` are those of all."""
        self.nodes, self.cpus = nodes, cpus
        self.alive: list[Node] = [nodes.add(num) for num in cpus[1:]]
        """The nodes but the head that nothing was done to."""

    def strike(self, fault: str) -> Injected | None:
        """node-kill, node-stop (cut off: no process of it runs, nothing is closed) or node-add."""
        if fault == "node-add":
            begin = time.monotonic()
            self.alive.append(self.nodes.add(self.cpus[-1]))
            return Injected(fault, begin, what=self.alive[-1].log.stem)
        if not self.alive:
            return None
        node = max(self.alive, key=lambda node: len(_roles_of(node)))
        self.alive.remove(node)
        found = Injected(fault, time.monotonic(), what=f"{node.log.stem}: {' '.join(_roles_of(node))}")
        node.signal(signal.SIGKILL if fault == "node-kill" else signal.SIGSTOP)
        return found

    def processes(self) -> list[str]:
        """The command lines of the roles on nodes that nothing was done to."""
        return [line for node in (self.nodes.head, *self.alive) for line in _roles_of(node)]


def _roles_of(node: Node) -> list[str]:
    """The command lines of the actors on a node; Ray's own agents, whose names end so, are none."""
    return [line for line in node.processes().values() if re.match(r"ray::(?!\w*Agent\b)", line)]
