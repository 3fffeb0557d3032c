"""A Ray cluster of real nodes on this machine, each of which can be killed, cut off or added; for tests and benchmarks."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processes import end, marked, send, with_mark

START_S = 300.0
"""Seconds in which a node must have come up on a busy machine."""
TRIES = 3
"""Ray's own limit for the start of a node, 30 s, cannot be set, and may be too short on a busy machine."""


class Node:
    """What one `ray start --block` has started. Its processes are known by a mark of their own."""

    def __init__(self, log: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        self.mark, self.log = uuid.uuid4().hex, log
        environment = {**with_mark(self.mark, environment), "PYTHONUNBUFFERED": "1"}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd="/", env=environment, stdout=out, stderr=out, start_new_session=True
            )

    def wait(self) -> bool:
        """Wait until it is up, or has given up in Ray's own time; returns whether it is up. Any other end is an error."""
        deadline = time.monotonic() + START_S
        while "Ray runtime started" not in (said := self.log.read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                end(self.mark)
                if "timed out during startup" not in said:
                    raise RuntimeError(f"A node did not start: {self.log}\n{said}")
                return False
            time.sleep(0.05)
        return True

    def processes(self) -> dict[int, str]:
        """pid -> command line."""
        return marked(self.mark)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes. SIGSTOP cuts it off: no process of it runs, and no connection is closed."""
        send(self.mark, number)

    def kill(self) -> None:
        """Kill all its processes, as when the machine is lost; returns when they are gone."""
        end(self.mark)
        self.process.wait()


class Nodes:
    """A cluster whose head has `num_cpus`; `add` starts another node, `close` ends all. It has a port, a folder and a token of its own.

    `address` is where to join, `env` what a process needs in its environment for it. `environment` is that of all nodes (None: of this
    process), to which the head adds `variables`. `python` runs them: workers have its packages.
    """

    def __init__(
        self,
        folder: Path,
        num_cpus: float = 1,
        *,
        environment: dict[str, str] | None = None,
        python: str = sys.executable,
        **variables: str,
    ) -> None:
        from raypid.runtime.ray import ray

        self.folder, self.token, self.ray = folder, uuid.uuid4().hex, str(Path(python).parent / "ray")
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        self.environment = {**(os.environ if environment is None else environment), **self.env}
        self.temp = Path(f"/tmp/ray-{self.token[:8]}")
        self.nodes: list[Node] = []
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.address = f"{ray.util.get_node_ip_address()}:{port}"
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.temp}"]
        self.head = self._start([*head, f"--num-cpus={num_cpus}"], [], variables)

    def add(self, num_cpus: float, *, hide: Path | None = None, before: Sequence[str] = (), **variables: str) -> Node:
        """Add a node; returns when it is up. It does not see what is in the folder `hide`; `before` are words before its command."""
        hidden = f"mount -t tmpfs none {shlex.quote(str(hide))} && cd / && exec "
        apart = [] if hide is None else ["unshare", "-m", "sh", "-c", hidden + '"$@"', "sh"]
        return self._start([f"--address={self.address}", f"--num-cpus={num_cpus}"], [*apart, *before], variables)

    def _start(self, options: list[str], before: list[str], variables: dict[str, str]) -> Node:
        ports = [
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--disable-usage-stats",
            "--object-store-memory=200000000",
        ]
        command = [*before, self.ray, "start", "--block", *options, *ports]
        for _ in range(TRIES):
            log = self.folder / f"node{len(self.nodes)}.log"
            self.nodes.append(Node(log, command, {**self.environment, **variables}))
            if self.nodes[-1].wait():
                return self.nodes[-1]
        raise RuntimeError(f"A node did not start in {TRIES} tries: {log}")

    def close(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGKILL)  # all at once: one alone would be noticed by the others
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.temp, ignore_errors=True)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
