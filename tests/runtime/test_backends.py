"""One contract, three backends."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import fragile
import numpy as np
import pytest
from patience import wait_until

from raypid.runtime.handle import Place, WorkerLost
from raypid.runtime.local import LocalBackend
from raypid.runtime.process import ProcessBackend


def made(name: str, request: pytest.FixtureRequest) -> Any:
    if name == "local":
        return LocalBackend()
    if name == "process":
        return ProcessBackend()
    request.getfixturevalue("ray_session")
    from raypid.runtime.ray import RayBackend

    return RayBackend()


@pytest.fixture(params=["local", "process", "ray"])
def backend(request: pytest.FixtureRequest) -> Any:
    backend = made(request.param, request)
    yield backend
    backend.shutdown()


@pytest.fixture(params=["process", "ray"])
def remote_backend(request: pytest.FixtureRequest) -> Any:
    """A backend whose roles are in processes of their own."""
    backend = made(request.param, request)
    yield backend
    backend.shutdown()


@pytest.fixture
def ray_backend(request: pytest.FixtureRequest) -> Any:
    backend = made("ray", request)
    yield backend
    backend.shutdown()


@pytest.fixture(scope="module", params=["local", "process", "ray"])
def echo(request: pytest.FixtureRequest) -> Any:
    """(backend, role) for tests that leave the role as it was: a process of Ray's is most of a second."""
    backend = made(request.param, request)
    yield backend, backend.spawn(fragile.Echo)
    backend.shutdown()


def test_calls_run_in_order_and_keep_state(backend: Any) -> None:
    handle = backend.spawn(partial(fragile.Echo, 10))
    futures = [handle.submit(fragile.Echo.add, 1) for _ in range(3)]
    assert [backend.get(future) for future in futures] == [11, 12, 13]
    backend.get(handle.ready)


def test_futures_are_arguments(backend: Any) -> None:
    handle, other = backend.spawn(fragile.Echo), backend.spawn(fragile.Echo)
    assert backend.get(other.submit(fragile.Echo.add, handle.submit(fragile.Echo.add, 4))) == 4
    put = backend.put(5)
    assert backend.put(put) is put
    assert backend.get(handle.submit(fragile.Echo.add, put)) == 9


def test_futures_are_arguments_of_a_factory(backend: Any) -> None:
    table = backend.put(np.arange(100_000, dtype=np.float32))
    handles = [backend.spawn(partial(fragile.Table, i, table)) for i in range(2)]
    assert [backend.get(h.submit(fragile.Table.sum_from, 99_998)) for h in handles] == [
        99_998.0 + 99_999.0,
        99_998.0 + 99_999.0 + 1,
    ]


def test_an_array_in_a_factory_is_shared_and_not_copied(ray_backend: Any) -> None:
    table = ray_backend.put(np.ones(10_000_000, np.float32))
    handles = [ray_backend.spawn(partial(fragile.Table, i, table)) for i in range(2)]
    for handle in handles:
        owns, private_bytes = ray_backend.get(handle.submit(fragile.Table.owns))
        assert not owns and private_bytes < 10_000_000, private_bytes  # of 40,000,000


def test_parts_have_a_future_each(echo: Any) -> None:
    backend, handle = echo
    report, data = handle.submit_parts(fragile.Echo.pair, np.arange(1000))
    assert backend.get(report) == "small"
    np.testing.assert_array_equal(backend.get(data), np.arange(1000))


def test_errors_keep_their_type_and_text(echo: Any) -> None:
    backend, handle = echo
    before = backend.get(handle.submit(fragile.Echo.add, 0))
    fail = fragile.Echo.fail
    for future in (handle.submit(fail, "lost key"), *handle.submit_parts(fail, "lost key")):
        with pytest.raises(KeyError, match="lost key"):
            backend.get(future)
    assert backend.get(handle.submit(fragile.Echo.add, 0)) == before  # the role is still there


def test_a_factory_that_raises_shows_at_the_first_get_as_itself(backend: Any) -> None:
    handle = backend.spawn(fragile.Broken)
    for future in (handle.ready, handle.submit(fragile.Echo.add, 1)):
        with pytest.raises(LookupError, match="no such simulator"):
            backend.get(future)


def test_wait_returns_once_num_are_ready(echo: Any) -> None:
    backend, handle = echo
    futures = [handle.submit(fragile.Echo.add, 0), handle.submit(fragile.Echo.add, 0)]
    ready, rest = backend.wait(futures, num=1)
    assert len(ready) == 1 and len(rest) == 1
    ready, rest = backend.wait(futures, num=2)
    assert ready == futures and rest == []


def test_a_dead_process_is_a_lost_worker(remote_backend: Any) -> None:
    handle = remote_backend.spawn(fragile.Echo)
    pid = remote_backend.get(handle.submit(fragile.Echo.pid))
    assert pid != os.getpid()
    waiting = handle.submit(fragile.Echo.sleep, 1000.0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        remote_backend.get(waiting)
    with pytest.raises(WorkerLost):
        remote_backend.get(handle.submit(fragile.Echo.add, 1))


def test_an_overdue_call_is_a_timeout_and_kill_ends_it(remote_backend: Any) -> None:
    handle = remote_backend.spawn(fragile.Echo)
    pid = remote_backend.get(handle.submit(fragile.Echo.pid))
    waiting = handle.submit(fragile.Echo.sleep, 1000.0)
    with pytest.raises(TimeoutError):
        remote_backend.get(waiting, timeout=0.2)
    ready, rest = remote_backend.wait([waiting], num=1, timeout=0.1)
    assert (ready, rest) == ([], [waiting])
    remote_backend.kill(handle)
    with pytest.raises(WorkerLost):
        remote_backend.get(waiting)
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_timeout_that_the_role_itself_raises_is_its_error(echo: Any) -> None:
    """A simulator that does not answer, for instance: the call has ended, and nobody goes on waiting for it."""
    backend, handle = echo
    waiting = handle.submit(fragile.Echo.time_out, "the simulator is silent")
    with pytest.raises(TimeoutError, match="the simulator is silent"):
        backend.get(waiting)


def test_what_cannot_be_unpickled_there_is_named(remote_backend: Any) -> None:
    handle = remote_backend.spawn(partial(fragile.Echo, fragile.Unreadable()))
    with pytest.raises((RuntimeError, ModuleNotFoundError), match="left_at_home"):
        remote_backend.get(handle.submit(fragile.Echo.add, 1))


def test_a_role_here_takes_futures_from_there(remote_backend: Any) -> None:
    there, here = remote_backend.spawn(fragile.Echo), remote_backend.here(fragile.Echo)
    assert remote_backend.get(here.submit(fragile.Echo.add, there.submit(fragile.Echo.add, 3))) == 3
    assert remote_backend.get(here.submit(fragile.Echo.pid)) == os.getpid()
    assert remote_backend.get(remote_backend.put(here.submit(fragile.Echo.add, 1))) == 4


class Nice:
    """How nice the process was when this was read, built and called."""

    def __init__(self, read: int = 0) -> None:
        self.read, self.built = read, os.nice(0)

    def __reduce__(self) -> Any:
        return _read_nice, ()

    def __call__(self) -> Nice:
        return Nice(self.read)

    def all(self) -> tuple[int, int, int]:
        return self.read, self.built, os.nice(0)


def _read_nice() -> Nice:
    return Nice(os.nice(0))


@pytest.mark.skipif(not hasattr(os, "nice"), reason="processes have no niceness")
def test_an_evaluator_yields_before_its_factory_is_read(ray_backend: Any) -> None:
    """So does what it imports, which takes longer than to build it."""
    evaluator, worker = (ray_backend.spawn(Nice(), Place(kind)) for kind in ("evaluator", "worker"))
    (nice,) = {*ray_backend.get(evaluator.submit(Nice.all))}
    (other,) = {*ray_backend.get(worker.submit(Nice.all))}
    assert nice == min(19, other + 10)


def test_shutdown_ends_its_actors_and_leaves_a_joined_ray(ray_session: Any) -> None:
    from raypid.runtime.ray import RayBackend

    backend, other = RayBackend(), RayBackend()
    handle, kept = backend.spawn(fragile.Echo), other.spawn(fragile.Echo)
    backend.get(handle.submit(fragile.Echo.add, 1))
    backend.shutdown()
    assert ray_session.is_initialized()
    with pytest.raises(WorkerLost):  # Ray kills when it comes to it: a call that is quicker is still answered
        wait_until(lambda: backend.get(handle.submit(fragile.Echo.add, 1)) < 0)
    assert other.get(kept.submit(fragile.Echo.add, 1)) == 1
    assert other.resources()["CPU"] == 8
    other.shutdown()


def test_workers_have_one_blas_thread(remote_backend: Any) -> None:
    handle = remote_backend.spawn(fragile.Echo)
    assert remote_backend.get(handle.submit(fragile.Echo.blas_threads)) == [1]


def test_what_ray_pushes_to_all_drivers_about_nodes_is_not_printed(ray_backend: Any) -> None:
    """The supervisor says it, of this run's nodes; other lines pass."""
    from ray._private.ray_logging import stdout_deduplicator

    lines = [
        "Raylet is terminated. Termination is unexpected. Last 20 lines of the Raylet logs:\n    [state-dump] 1",
        "The node with node id: ab and address: 10.0.0.3 and node name: c has been marked dead because the detector has missed too "
        "many heartbeats from it.",
        "the user's own",
    ]
    printed = stdout_deduplicator.deduplicate({"lines": lines, "pid": "raylet", "is_err": False})
    assert [line for batch in printed for line in batch["lines"]] == ["the user's own"]
