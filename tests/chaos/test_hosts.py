"""Two hosts behind a firewall that lets in what docs/cluster.md lists, and nothing else.

Hosts are namespaces of this machine: each has its own network, addresses, processes, name, /tmp and /dev/shm. It takes root, and the
programs ip, nft, nsenter and unshare.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
NEEDED = ("ip", "nft", "nsenter", "unshare")


def run(*words: object, stdin: str | None = None) -> str:
    done = subprocess.run([*map(str, words)], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def listed_ports() -> tuple[str, str]:
    """What the table of ports says: (always, with several learners too), as nft writes them."""
    table = PAGE.split("### What to open")[1].split("\n\n")[2]
    rows = [re.match(r"\| (\d+)(?: to (\d+))?", row) for row in table.splitlines()]
    ports = ["-".join(filter(None, row.groups())) for row in rows if row]
    assert len(ports) == 5
    return ", ".join(ports[:4]), ", ".join(ports)


def start_commands() -> tuple[str, str]:
    """The page's two commands that start nodes."""
    head, node = re.findall(r"^ray start .*$", PAGE, re.MULTILINE)
    return head, node


class Hosts:
    """Two hosts on one bridge. Neither sees a process of the other one or of this machine, so `ray stop` ends its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex[:6]
        self.names = [f"{self.mark}{letter}" for letter in "ab"]
        self.net = f"10.{int(self.mark[:2], 16)}.{int(self.mark[2:4], 16)}"
        self.running: list[subprocess.Popen[str]] = []

    def up(self) -> None:
        bridge = f"{self.mark}br"
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
        for number, name in enumerate(self.names, 1):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}0", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{name}0", "master", bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{self.net}.{number}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "-n", name, "route", "add", "default", "via", f"{self.net}.254")
            (self.folder / name).mkdir()

    def down(self) -> None:
        for process in self.running:
            process.kill()  # with all of its namespace
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{self.mark}br"], capture_output=True)

    def let_in(self, ports: str) -> None:
        for name in self.names:
            accept = ("iif lo", "ct state established,related", f"tcp dport {{ {ports} }}")
            lines = [*(f"{what} accept" for what in accept), "counter drop"]
            hook = "type filter hook input priority 0; policy drop"
            rules = "\n".join(["flush ruleset", "table inet f {", "chain in {", hook, *lines, "}", "}", ""])
            run("ip", "netns", "exec", name, "nft", "-f", "-", stdin=rules)

    def dropped(self) -> int:
        """Packets that the firewalls have dropped since `let_in`."""
        rules = "".join(run("ip", "netns", "exec", name, "nft", "list", "ruleset") for name in self.names)
        return sum(map(int, re.findall(r"counter packets (\d+)", rules)))

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """Run something on a host, with the folder of the host as /tmp, where it begins."""
        own = self.folder / name
        mounts = f"mkdir {own}/code; mount --rbind {ROOT} {own}/code; mount --rbind {own} /tmp; mount -t tmpfs tmpfs /dev/shm"
        apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        environment = {
            **os.environ, "PYTHONPATH": "/tmp/code", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.mark * 6,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RAYPID_DATA": "/tmp/data",
        }  # fmt: skip
        inside = f'hostname {name}; {mounts}; cd /tmp; exec "$@"'
        process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{name}", *apart, "bash", "-c", inside, "-", *words],
            text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.running.append(process)
        return process


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    there = Hosts(Path("/var/tmp") / f"hosts-{uuid.uuid4().hex[:8]}")
    there.folder.mkdir()
    try:
        there.up()
        yield there
    finally:
        there.down()
        shutil.rmtree(there.folder)


class Shell:
    """A shell on a host, which does one line after the other."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self.process = hosts.start(name, "bash")

    def do(self, line: str) -> str:
        """Run a line, which must end well; returns what it said."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\ncode=$?; echo; echo END $code\n")
        self.process.stdin.flush()
        said = ""
        for text in self.process.stdout:
            if text.startswith("END "):
                assert text == "END 0\n", (line, text, said)
                return said.strip()
            said += text
        raise AssertionError(said)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0 or not all(map(shutil.which, NEEDED)),
    reason=f"hosts are made by root with {', '.join(NEEDED)}",
)
def test_training_needs_the_listed_ports_and_no_others(hosts: Hosts) -> None:
    """Workers and a parameter server on both hosts; then two learners, with the ports that these need besides."""
    always, with_learners = listed_ports()
    here, small = f"{hosts.net}.1", "--num-cpus=2 --object-store-memory=200000000"
    head, node = (command.replace("10.0.0.1", here) for command in start_commands())
    hosts.let_in(always)
    first = Shell(hosts, hosts.names[0])
    # Ray gives its start 30 seconds, which may be too few beside other work
    first.do(f"{head} {small} || {{ ray stop --force; {head} {small}; }} || {{ ray stop --force; {head} {small}; }}")
    other = f"{node} {small} --node-ip-address={hosts.net}.2 --block"
    hosts.start(hosts.names[1], "bash", "-c", f"until {other}; do ray stop --force; done")
    first.do(f"timeout 240 sh -c 'until ray status --address {here}:6379 | grep /4.0; do sleep 1; done'")

    train = f"timeout 240 python -m raypid train --address {here}:6379 --seed 0 --quiet"
    more = "--num-workers 4 --parameter-server --stop 20000 --out ppo"
    assert first.do(f"{train} --run PPO --env CartPole-v1 {more}") == ""
    assert hosts.dropped() == 0

    hosts.let_in(with_learners)
    more = "--num-workers 2 --num-learners 2 --num-cpus-per-worker 0.5 --stop 3000 --out sac"
    assert first.do(f"{train} --run SAC --env Pendulum-v1 {more}") == ""
    assert hosts.dropped() == 0
