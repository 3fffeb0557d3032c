"""A Ray cluster of real nodes on this machine, each of which can be killed, cut off, or added."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

from patience import wait_until

RAY = str(Path(sys.executable).parent / "ray")


class Node:
    """What one `ray start --block` started. Its processes are known by a mark of their own in their environment."""

    def __init__(self, folder: Path, *options: str, **env: str) -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / f"node-{self.mark[:8]}.log"
        command = [
            RAY,
            "start",
            "--block",
            "--disable-usage-stats",
            "--min-worker-port=0",
            "--max-worker-port=0",
            *options,
        ]
        with self.log.open("w") as log:
            environment = {**os.environ, **env, "RAYPID_NODE_MARK": self.mark, "PYTHONUNBUFFERED": "1"}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def pids(self) -> list[int]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(int(pid))
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all its processes: SIGKILL for a node that is lost, SIGSTOP for one that is cut off."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def kill(self) -> None:
        while self.pids():
            self.signal(signal.SIGKILL)
            self.process.wait(60)


class Nodes:
    """A cluster with a head of `num_cpus`. `add` starts another node; `address` is where to join."""

    def __init__(self, folder: Path, num_cpus: float = 1, **env: str) -> None:
        from raypid.runtime.ray import ray

        self.folder = folder
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        self.nodes: list[Node] = []
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self.address = f"{ray.util.get_node_ip_address()}:{port}"
        options = [f"--port={port}", "--include-dashboard=false", f"--temp-dir=/tmp/ray-{uuid.uuid4().hex[:8]}"]
        self.head = self._start("--head", *options, f"--num-cpus={num_cpus}", **env)
        self._wait()

    def add(self, num_cpus: float) -> Node:
        node = self._start(f"--address={self.address}", f"--num-cpus={num_cpus}")
        self._wait(node)
        return node

    def _start(self, *options: str, **env: str) -> Node:
        self.nodes.append(Node(self.folder, *options, **self.env, **env))
        return self.nodes[-1]

    def _wait(self, node: Node | None = None) -> None:
        """Wait until a node is up; None: the head."""
        who, status = node or self.head, [RAY, "health-check", "--address", self.address]

        def is_up() -> bool:
            assert who.process.poll() is None, who.log.read_text()
            if node is not None:
                return "--block" in node.log.read_text()  # it says that it now blocks
            return subprocess.run(status, capture_output=True, env={**os.environ, **self.env}).returncode == 0

        wait_until(is_up)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
