"""The group stays complete within its budget. A scripted backend: no processes, no clocks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.runtime.handle import WorkerLost, places
from raypid.runtime.supervisor import Group, Losses, RolesFailed

CALL = "collect()"
Script = Callable[[int, int, str], Any]
"""(worker, restarts, method) -> the value, or the exception to raise."""


class ScriptedBackend:
    name = "scripted"

    def __init__(self, script: Script) -> None:
        self.script, self.killed, self.up = script, [], True

    def spawn(self, factory: Any, place: Any = None) -> Any:
        return ScriptedHandle(self, *factory())

    def get(self, future: Any, timeout: float | None = None) -> Any:
        if isinstance(future, Exception):
            raise future
        return future

    def wait(self, futures: Any, num: int = 1, timeout: float | None = None) -> Any:
        return (list(futures), []) if self.up else ([], list(futures))

    def has_room(self, place: Any) -> bool:
        return True

    def lost_nodes(self, suspect: Any = None) -> list[Any]:
        return []

    def where(self, handle: Any) -> str:
        return "10.0.0.3 (abc)"

    def kill(self, handle: Any) -> None:
        self.killed.append((handle.index, handle.restarts))

    def end(self, handles: Any, *, interrupt: bool = False) -> None:
        for handle in handles:
            self.kill(handle)


class ScriptedHandle:
    ready = None

    def __init__(self, backend: ScriptedBackend, index: int, restarts: int) -> None:
        self.backend, self.index, self.restarts = backend, index, restarts

    def submit(self, method: Callable[..., Any], *args: Any) -> Any:
        return self.backend.script(self.index, self.restarts, method.__name__)

    def submit_parts(self, method: Callable[..., Any], *args: Any) -> Any:
        return self.submit(method), f"data {self.index}"


class Role:
    """Names the methods; the script answers."""

    def ready(self) -> Any: ...

    def collect(self) -> Any: ...

    def state_dict(self) -> Any: ...


def group(script: Script, num_workers: int = 3, max_restarts: int = 2, timeout_s: float = 5.0) -> Group[Any, str]:
    return Group(
        ScriptedBackend(script),  # type: ignore[arg-type]
        lambda index, restarts: lambda: (index, restarts),
        places("worker", num_workers, num_cpus=1),
        timeout_s=timeout_s,
        losses=Losses(max_restarts),
        describe="Walker",
    )


def test_results_come_in_worker_order() -> None:
    workers = group(lambda i, r, m: f"{m} {i}")
    assert workers.call_all(Role.collect) == ["collect 0", "collect 1", "collect 2"]
    assert workers.call_all_parts(Role.collect) == [(f"collect {i}", f"data {i}") for i in range(3)]
    assert workers.losses.counts == {}


@pytest.mark.parametrize(
    ("error", "key"), [(WorkerLost("gone", "its process was killed"), "workers"), (TimeoutError("late"), "timeouts")]
)
def test_a_lost_share_is_collected_anew_by_a_new_worker(error: Exception, key: str, tmp_path: Path) -> None:
    workers = group(lambda i, r, m: error if (i, r) == (1, 0) else (i, r))
    workers.losses.errors.folder, workers.losses.errors.where, told = (
        tmp_path,
        lambda: "iteration 3, step 40",
        list[str](),
    )
    workers.losses.tell = told.append
    assert workers.call_all(Role.collect) == [(0, 0), (1, 1), (2, 0)]
    assert workers.backend.killed == [(1, 0)]  # type: ignore[attr-defined]
    assert workers.losses.counts == {key: 1}
    text = (tmp_path / "errors.txt").read_text()
    what = f"did not answer within 5 s in {CALL}." if key == "timeouts" else f"died in {CALL}: its process was killed."
    assert told == [f"Worker 1 (Walker) on 10.0.0.3 (abc) {what} It is built anew."]
    when, said, cause = text.rstrip().splitlines()
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, iteration 3, step 40\]", when)
    assert f"{said} It is built anew." == told[0] and cause == str(error)


def test_the_budget_is_for_all_workers_together() -> None:
    workers = group(lambda i, r, m: WorkerLost("gone") if r < 1 else i, max_restarts=3)
    assert workers.call_all(Role.collect) == [0, 1, 2]
    workers = group(lambda i, r, m: WorkerLost("gone") if r < 1 else i, max_restarts=2)
    with pytest.raises(
        RolesFailed,
        match=r"Worker 2 \(Walker\) on 10\.0\.0\.3 \(abc\) died in collect\(\).*number 3 within an hour; max_restarts allows 2",
    ):
        workers.call_all(Role.collect)


def test_a_worker_that_always_hangs_names_the_setting() -> None:
    workers = group(lambda i, r, m: TimeoutError(), max_restarts=0)
    with pytest.raises(RolesFailed, match=r"did not answer within 5 s in collect\(\).*worker_timeout_s"):
        workers.call_all(Role.collect)


def test_other_errors_are_not_mended() -> None:
    workers = group(lambda i, r, m: ValueError("a bug") if i == 1 else i)
    with pytest.raises(ValueError, match="a bug"):
        workers.call_all(Role.collect)
    assert workers.losses.counts == {}


def test_the_start_of_a_process_is_not_the_calls_time() -> None:
    workers = group(lambda i, r, m: i, num_workers=1, timeout_s=1.0)
    workers.backend.up = False  # type: ignore[attr-defined]
    call = workers.ask(0, Role.collect)
    assert call.deadline - time.monotonic() > 30
    workers.backend.up = True  # type: ignore[attr-defined]
    assert call.deadline - time.monotonic() <= 1.0


def test_a_worker_that_is_lost_with_calls_under_way_is_lost_once() -> None:
    gone = (1, 0)
    workers = group(lambda i, r, m: WorkerLost("gone") if (i, r) == gone and m != "ready" else (m, i, r))
    for _ in range(2):
        for i in range(3):
            workers.start(i, Role.collect)
    assert workers.call_all(Role.state_dict) == [("state_dict", 0, 0), ("state_dict", 1, 1), ("state_dict", 2, 0)]
    assert [workers.running(i) for i in range(3)] == [2, 0, 2]
    assert [i for i, _ in workers.finished(0.0)] == [0, 0, 2, 2]
    assert workers.losses.counts == {"workers": 1} and workers.backend.killed == [gone]  # type: ignore[attr-defined]


def test_a_call_behind_others_has_their_time_too() -> None:
    workers = group(lambda i, r, m: i, num_workers=2, timeout_s=1000.0)
    workers.call_all(Role.ready)
    workers.start(1, Role.collect)
    workers.start(1, Role.collect)
    asked = [workers.ask(i, Role.state_dict).deadline - time.monotonic() for i in (0, 1)]
    assert asked == [pytest.approx(1000, abs=90), pytest.approx(3000, abs=90)]
