"""Several learners answer as one, and of several errors the cause is told. A scripted backend: no processes, no clocks."""

from __future__ import annotations

from typing import Any

import pytest

from raypid.runtime.collective import CollectiveLost
from raypid.runtime.handle import WorkerLost
from raypid.runtime.learner_group import LearnerGroup, LearnersFailed, split


class Scripted:
    """A backend on which each learner answers what a script says; a number is a value, None never comes."""

    name = "scripted"

    def __init__(self, script: list[Any]) -> None:
        self.script, self.calls = script, []

    def spawn(self, factory: Any, **resources: float) -> Any:
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

    def submit(self, method: str, *args: Any, num_returns: int = 1) -> Any:
        self.backend.calls.append((self.rank, method, args))
        answer = (self.rank, self.backend.script[self.rank] if method == "update" else self.rank)
        return answer if num_returns == 1 else [answer, f"weights of {self.rank}"]


def group(script: list[Any]) -> LearnerGroup:
    backend: Any = Scripted(script)
    return LearnerGroup(backend, lambda rank: lambda: rank, len(script), num_cpus=1, num_gpus=0, start_s=5)


def test_fragments_go_to_their_learner_in_worker_order() -> None:
    learners = group([10, 11])
    learners.backend.calls.clear()  # type: ignore[attr-defined]
    update, weights = learners.submit("update", 77, "a", "b", "c", "d", "e", num_returns=2)
    assert learners.backend.calls == [(0, "update", (77, "a", "b")), (1, "update", (77, "c", "d", "e"))]  # type: ignore[attr-defined]
    assert (update.result(), weights) == (10, "weights of 0")
    learners.submit("weights")
    assert learners.backend.calls[2:] == [(0, "weights", ())]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (
            [CollectiveLost("x"), WorkerLost("ray says")],
            LearnersFailed,
            r"Learner 1 of 2 died in update\(\).*checkpoint",
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
    update, _ = learners.submit("update", 0, *"abc", num_returns=2)
    with pytest.raises(error, match=words):
        update.result()
    with pytest.raises(error, match=words):  # a torn group is not asked again
        learners.submit("weights").result()


def test_one_learner_is_called_and_named() -> None:
    learners = group([10, 11])
    learners.backend.calls.clear()  # type: ignore[attr-defined]
    assert learners.submit_to(1, "update", "x").result() == 11
    assert learners.backend.calls == [(1, "update", ("x",))]  # type: ignore[attr-defined]
    first, others = learners.submit_each("update", [("a",), ("b",)], 2)
    assert first.result() == 10 and others == [["weights of 0"], ["weights of 1"]]
    lost = group([10, WorkerLost("ray says")])
    with pytest.raises(LearnersFailed, match=r"Learner 1 of 2 died in update\(\)"):
        lost.submit_to(1, "update").result()
    with pytest.raises(LearnersFailed, match="Learner 1 of 2"):
        lost.submit_to(0, "update").result()


def test_split() -> None:
    assert split("abcde", 2) == ["ab", "cde"] and split("ab", 2) == ["a", "b"] and split("abc", 1) == ["abc"]
