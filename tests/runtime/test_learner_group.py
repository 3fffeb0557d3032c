"""Several learners answer as one, and of several errors the cause is told. A scripted backend: no processes, no clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raypid.runtime.collective import CollectiveLost
from raypid.runtime.handle import WorkerLost
from raypid.runtime.learner_group import LearnerGroup, LearnerRole, LearnersFailed, split


class Scripted:
    """A backend on which each learner answers what a script says; a number is a value, None never comes."""

    name = "scripted"

    def __init__(self, script: list[Any]) -> None:
        self.script, self.calls = script, []

    def spawn(self, factory: Any, place: Any) -> Any:
        return ScriptedLearner(self, factory())

    def get(self, future: Any, timeout: float | None = None) -> Any:
        if hasattr(future, "result"):
            return future.result()
        if isinstance(future[1], Exception):
            raise future[1]
        return future[1]

    def wait(self, futures: Any, num: int = 1, timeout: float | None = None) -> Any:
        ready = [f for f in futures if f[1] is not None]
        assert ready or timeout is not None, "this would wait without end"
        return ready[:1], []


class ScriptedLearner:
    def __init__(self, backend: Scripted, rank: int) -> None:
        self.backend, self.rank, self.ready = backend, rank, (rank, rank)

    def submit(self, method: Callable[..., Any], *args: Any) -> Any:
        self.backend.calls.append((self.rank, method.__name__, args))
        scripted = method.__name__ in ("update", "learn")
        return self.rank, self.backend.script[self.rank] if scripted else self.rank

    def submit_parts(self, method: Callable[..., Any], *args: Any) -> Any:
        return self.submit(method, *args), f"weights of {self.rank}"


def group(script: list[Any]) -> LearnerGroup:
    backend: Any = Scripted(script)
    return LearnerGroup(backend, lambda rank: lambda: rank, len(script), num_cpus=1, num_gpus=0, start_s=5)


def test_fragments_go_to_their_learner_in_worker_order() -> None:
    learners = group([10, 11])
    learners.backend.calls.clear()  # type: ignore[attr-defined]
    update, weights = learners.submit_parts(LearnerRole.update, 77, "a", "b", "c", "d", "e")
    assert learners.backend.calls == [(0, "update", (77, "a", "b")), (1, "update", (77, "c", "d", "e"))]  # type: ignore[attr-defined]
    assert (update.result(), weights) == (10, "weights of 0")
    learners.submit(LearnerRole.weights)
    assert learners.backend.calls[2:] == [(0, "weights", ())]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (
            [CollectiveLost("x"), WorkerLost("ray says")],
            LearnersFailed,
            r"Learner 1 of 2 died in update\(\)",
        ),
        ([WorkerLost("ray says"), None], LearnersFailed, r"Learner 0 of 2 died in update\(\)"),
        ([CollectiveLost("x"), 5, None], LearnersFailed, r"Learner 2 of 3 did not answer in update\(\)"),
        ([CollectiveLost("Learner 1 is gone"), CollectiveLost("y")], LearnersFailed, "Learner 1 is gone"),
        ([CollectiveLost("x"), FloatingPointError("diverged")], FloatingPointError, "diverged"),
        ([None, FloatingPointError("diverged")], FloatingPointError, "diverged"),
    ],
)
def test_the_cause_is_found_among_the_errors(
    script: list[Any], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raypid.runtime.learner_group._GRACE_S", 0.0)
    learners = group(script)
    update, _ = learners.submit_parts(LearnerRole.update, 0, *"abc")
    with pytest.raises(error, match=words):
        update.result()
    with pytest.raises(error, match=words):  # a torn group is not asked again
        learners.submit(LearnerRole.weights).result()


def test_one_learner_is_called_and_named() -> None:
    learners = group([10, 11])
    learners.backend.calls.clear()  # type: ignore[attr-defined]
    assert learners.submit_to(1, LearnerRole.update, "x").result() == 11
    assert learners.backend.calls == [(1, "update", ("x",))]  # type: ignore[attr-defined]
    learners.backend.calls.clear()  # type: ignore[attr-defined]
    done: Any
    done, weights = learners.submit_parts(LearnerRole.learn, 77, 8, "a", "b", "c", "d")
    assert learners.backend.calls == [(0, "learn", (77, 8, "a", "b")), (1, "learn", (77, 8, "c", "d"))]  # type: ignore[attr-defined]
    assert (done.results(), done.result(), weights) == ([10, 11], 10, "weights of 0")
    lost = group([10, WorkerLost("ray says")])
    with pytest.raises(LearnersFailed, match=r"Learner 1 of 2 died in update\(\)"):
        lost.submit_to(1, LearnerRole.update).result()
    with pytest.raises(LearnersFailed, match="Learner 1 of 2"):
        lost.submit_to(0, LearnerRole.update).result()


def test_split() -> None:
    assert split("abcde", 2) == ["ab", "cde"] and split("ab", 2) == ["a", "b"] and split("abc", 1) == ["abc"]
