"""Addresses of clusters: how they are written, those that nobody answers at, tokens. Each wrong one is a line, before anything starts."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes

import raypid
from raypid.errors import UserError
from raypid.settings import address
from raypid.settings.config import ConfigError

TRAIN = ("train", "--run", "PPO", "--env", "CartPole-v1", "--fragment-length", 16, "--batch-size", 32, "--seed", 0)
SHORT = ("--stop", '{"training_iteration": 2}', "--final-episodes", 0)
Raypid = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("given", ["auto", "local", "head:6379", "10.0.0.1:6379", "[::1]:6379", "ray://head:10001"])
def test_forms_that_are_taken(given: str) -> None:
    address.check_form(given)


@pytest.mark.parametrize(
    "given",
    [
        "head",
        "Auto",
        "ray://head",
        "http://head:8265",
        "redis://:secret@head:6379",
        "head:99999",
        "head:0",
        "one two:6379",
        "",
    ],
)
def test_forms_that_are_refused(given: str) -> None:
    with pytest.raises(ConfigError) as error:
        raypid.PPO(env="CartPole-v1", num_workers=1, address=given)
    assert str(error.value).startswith("address is auto, local, host:port (6379") and repr(given) in str(error.value)


def test_an_address_where_nothing_runs_on_ray_is_refused() -> None:
    for given in ({"address": "head:6379"}, {"worker_timeout_s": 9}):
        for backend in ({}, {"num_workers": 2, "backend": "local"}):
            with pytest.raises(ConfigError, match="nothing runs on Ray: it needs workers, .*backend=.local."):
                raypid.PPO(env="CartPole-v1", **given, **backend)


def test_the_environment_chooses_where_nothing_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert [address.chosen(given) for given in (None, "local", "auto", "a:1")] == [None, None, "auto", "a:1"]
    assert address.from_environment(None) == ""
    monkeypatch.setenv("RAY_ADDRESS", "b:2")
    assert [address.chosen(given) for given in (None, "local", "auto", "a:1")] == ["b:2", None, "b:2", "a:1"]
    assert "b:2, which RAY_ADDRESS names" in address.from_environment(None) and not address.from_environment("a:1")
    monkeypatch.setenv("RAY_ADDRESS", "head")
    with pytest.raises(ConfigError, match="RAY_ADDRESS is auto, .*not 'head'"):
        address.chosen(None)


@contextlib.contextmanager
def server(says: bytes, *, keeps: bool = False) -> Iterator[str]:
    """Something that listens, and answers each connection so: at once, or if it `keeps` them once something was asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line = listening.accept()[0]
                    if keeps:
                        kept.append(line)
                        line.sendall(says[:9])
                        said = b""
                        while len(said) < 200 and (part := line.recv(1000)):
                            said += part
                        line.sendall(says[9:])
                        continue
                    line.recv(100)
                    line.sendall(says)
                    line.close()

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_what_answers_is_no_ray() -> None:
    for says in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b""):
        with server(says) as at, pytest.raises(UserError, match="is no Ray: another program listens there"):
            address.check_answers(at)
    with server(b"\0\0\0\4\0\0\0\0\0") as at:
        address.check_answers(f"ray://{at}")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        at = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(UserError, match="There is no Ray cluster at .* refused"):
        address.check_answers(at)
    for name in ("no-such-host.invalid", "no..host"):
        with pytest.raises(UserError, match=f"There is no Ray cluster at '{name}:6379': .* Is the address right"):
            address.check_answers(f"{name}:6379")


@pytest.mark.ci_slow
def test_a_server_of_a_node_is_no_head(ray_session: Any) -> None:
    """And what speaks HTTP/2 without being Ray is none."""
    from raypid.runtime.ray_joining import joinable

    (node,) = ray_session.nodes()
    for port in (node["NodeManagerPort"], node["ObjectManagerPort"]):
        with pytest.raises(UserError, match="is not the head of a Ray cluster, but probably another server of one"):
            joinable(f"{node['NodeManagerAddress']}:{port}")
    not_found = b"\0\0\1\1\5\0\0\0\1\x8d"  # HTTP/2: a HEADERS frame that ends stream 1 with status 404
    with server(b"\0\0\0\4\0\0\0\0\0" + not_found, keeps=True) as at:
        with pytest.raises(UserError, match="is no Ray: another program listens there"):
            joinable(at)


def test_a_host_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UserError, match="is no Ray"):
        address.check_answers(f"127.0.0.1:{silent.getsockname()[1]}")
    with socket.create_server(
        ("127.0.0.1", 0), backlog=0
    ) as full:  # its queue is full, so the next are dropped, as a firewall does
        lines = [socket.socket() for _ in range(3)]
        for line in lines:
            line.setblocking(False)
            line.connect_ex(full.getsockname())
        with pytest.raises(UserError, match="There is no Ray cluster at .* timed out"):
            address.check_answers(f"127.0.0.1:{full.getsockname()[1]}")
        for line in lines:
            line.close()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    made = Nodes(tmp_path, num_cpus=2)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_form_joins_and_needs_the_token(nodes: Nodes, raypid: Raypid, tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    workers = (*TRAIN, "--num-workers", 1, *SHORT)
    refused = [{"HOME": str(tmp_path)}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another" * 5}]
    for env in refused:
        done = raypid(*workers, "--address", nodes.address, **env)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert "asks for its token, and there is none here, or another one" in done.stderr
    token.write_text(nodes.token)
    by_file = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    done = raypid(*workers, "--address", nodes.address, "--out", "file", **by_file)
    assert (done.returncode, done.stderr) == (0, ""), done
    done = raypid(*workers, "--redis-address", nodes.address, "--out", "redis", **nodes.env)
    assert (done.returncode, done.stderr) == (0, "") and "redis_address is called address here" in done.stdout, done
    done = raypid(*workers, "--out", "environment", RAY_ADDRESS=nodes.address, **nodes.env)
    assert (done.returncode, done.stderr) == (0, "") and "which RAY_ADDRESS names" in done.stdout, done
    done = raypid(*workers, "--out", "auto", "--address", "auto", RAY_ADDRESS=nodes.address, **nodes.env)
    assert (done.returncode, done.stderr) == (0, ""), done
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"many:\n  run: PPO\n  env: CartPole-v1\n  address: {nodes.address}\n  stop: {{training_iteration: 1}}\n"
        "  config: {num_workers: 1, lr: {grid_search: [0.001, 0.002]}}\n"
    )
    done = raypid("train", "-f", file, **{**nodes.env, "RAY_AUTH_TOKEN": "another" * 5})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "asks for its token" in done.stderr, done
