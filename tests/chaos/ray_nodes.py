"""Ray nodes of a cluster of one's own on this machine, of which some see other files than this process: mount namespaces."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from patience import PATIENCE_S, wait_until

RAY = str(Path(sys.executable).parent / "ray")


def namespaces() -> bool:
    """Whether this user may have mount namespaces."""
    try:
        return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _settled(node: subprocess.Popen[bytes], log: Path) -> bool:
    return "Ray runtime started" in log.read_text() or node.poll() is not None


class Nodes:
    """A head node and others; `stop` ends them, known by a mark. The cluster has a port, a folder and a token of its own."""

    def __init__(self, folder: Path, num_cpus: int = 1, *more: str, **env: str) -> None:
        from raypid.runtime.ray import ray

        with socket.socket() as free:
            free.bind(("", 0))
            self.port = free.getsockname()[1]
        self.address = f"{ray.util.get_node_ip_address()}:{self.port}"
        self.mark, self.token, self.folder = uuid.uuid4().hex, uuid.uuid4().hex, folder
        self.env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        self.num = 0
        own = ["--include-dashboard=false", f"--temp-dir=/tmp/ray-{self.mark[:8]}"]
        self._start(["--head", f"--port={self.port}", f"--num-cpus={num_cpus}", *own, *more], [], env)

    def add(self, num_cpus: int, *, hide: Path | None = None, before: Sequence[str] = (), **env: str) -> None:
        """Add a node. It does not see what lies in the folder `hide`; `before` are words before its command."""
        hidden = f"mount -t tmpfs none {shlex.quote(str(hide))} && cd / && exec "
        apart = [] if hide is None else ["unshare", "-m", "sh", "-c", hidden + '"$@"', "sh"]
        self._start([f"--address={self.address}", f"--num-cpus={num_cpus}"], [*apart, *before], env)

    def _start(self, options: list[str], before: list[str], env: dict[str, str]) -> None:
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"]
        environment = {**os.environ, **self.env, "RAYPID_CLUSTER_MARK": self.mark, **env}
        self.num += 1
        log = self.folder / f"node{self.num}.log"
        for _ in range(3):  # Ray gives up after 30 s, which is not enough on a machine that is very busy
            with log.open("w") as out:
                command = [*before, RAY, "start", "--block", *options, *ports]
                node = subprocess.Popen(
                    command, cwd="/", env=environment, stdout=out, stderr=out, start_new_session=True
                )
            wait_until(partial(_settled, node, log), PATIENCE_S)
            if node.poll() is None or "timed out during startup" not in log.read_text():
                break
        assert node.poll() is None, log.read_text()

    def stop(self) -> None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(int(pid), 9)
            except OSError:
                continue
