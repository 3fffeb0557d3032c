"""Learners answer as one, of several errors the cause is told, and who is lost is built anew. A scripted backend: no processes, no clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from raypid.errors import Diverged
from raypid.runtime.calls import Called
from raypid.runtime.collective import CollectiveLost
from raypid.runtime.handle import ArgumentLost, WorkerLost, places
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import Losses, RoleRebuilt, RolesFailed, split
from raypid.types import LearnerCopy, Update

LEARNS = ("update", "learn", "learn_from_replay", "learn_from")


class Role:
    """Names the methods; the script answers."""

    @Called(splits_after=0, progress=lambda value: value.num_updates if isinstance(value, Update) else 0)
    def update(self, *parts: object, timesteps: int) -> tuple[Any, Any]: ...

    @Called(repeats=False, progress=lambda value: value[0] if isinstance(value, tuple) else value)
    def learn(self, *, timesteps: int, num_updates: int) -> tuple[Any, Any]: ...

    @Called(to="first")
    def weights(self) -> Any: ...

    @Called(lasts=True)
    def scale_lr(self, factor: float) -> None: ...

    @Called(lasts=True)
    def end_schedules(self, steps: int, timesteps: int) -> None: ...


class Answer(tuple[int, Any]):
    """(rank, value), told apart by which it is."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Scripted:
    """A backend on which each learner answers its calls to learn by a script; a number is a value, None never comes.

    `standing` says how many updates each learner has seen that is there when another is lost; the copies have seen `copied`.
    """

    name = "scripted"

    def __init__(self, script: list[Any]) -> None:
        self.script = [deque(answers if isinstance(answers, list) else [answers]) for answers in script]
        self.calls: list[Any] = []
        self.standing = [0] * len(script)
        self.copied = 0
        self.killed: list[int] = []

    def spawn(self, factory: Any, place: Any) -> Any:
        return ScriptedLearner(self, place.index)

    def has_room(self, place: Any) -> bool:
        return True

    def where(self, handle: Any) -> str:
        return ""

    def kill(self, handle: Any) -> None:
        self.killed.append(handle.rank)

    def put(self, value: Any) -> Any:
        return Answer((-1, value))

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
        self.backend, self.rank, self.ready = backend, rank, Answer((rank, rank))

    def submit(self, method: Callable[..., Any], *args: Any) -> Any:
        name, backend = method.__name__, self.backend
        if name == "copied":
            return Answer((self.rank, LearnerCopy(backend.copied, {"copy": backend.copied}, backend.copied)))
        backend.calls.append((self.rank, name, args))
        if name == "standing":
            return Answer((self.rank, backend.standing[self.rank]))
        script = backend.script[self.rank]
        answer = (script.popleft() if len(script) > 1 else script[0]) if name in LEARNS else self.rank
        return Answer((self.rank, answer))

    def submit_parts(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.submit(method, *args, *([kwargs] if kwargs else [])), f"weights of {self.rank}"


def group(script: list[Any], max_restarts: int = 0, meet: bool = True) -> Any:
    backend: Any = Scripted(script)
    losses = Losses(max_restarts, ["learners", "updates"])
    told: list[str] = []
    losses.tell = told.append
    learners: Any = StatefulGroup(
        backend,
        lambda rank, restarts: lambda: rank,
        places("learner", len(script), num_cpus=1),
        start_s=5,
        losses=losses,
        meet=meet,
    )
    learners.told = told
    backend.calls.clear()
    return learners


def update(number: int) -> Update:
    return Update({}, number)


def names(learners: Any, rank: int) -> list[str]:
    return [name for r, name, _ in learners.backend.calls if r == rank]


def test_fragments_go_to_their_learner_in_worker_order() -> None:
    learners = group([10, 11])
    done, weights = learners.submit_parts(Role.update, "a", "b", "c", "d", "e", timesteps=77)
    how = {"timesteps": 77}
    assert learners.backend.calls == [(0, "update", ("a", "b", how)), (1, "update", ("c", "d", "e", how))]
    assert (done.result(), weights.passed()) == (10, "weights of 0")
    learners.submit(Role.weights)
    assert learners.backend.calls[2:] == [(0, "weights", ())]


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ([CollectiveLost("x"), WorkerLost("ray says")], RolesFailed, r"Learner 1 of 2 died in update\(\)"),
        ([WorkerLost("ray says"), None], RolesFailed, r"Learner 0 of 2 died in update\(\)"),
        ([CollectiveLost("x"), 5, None], RolesFailed, r"Learner 2 of 3 did not answer within 300 s in update\(\)"),
        ([WorkerLost("ray says")], RolesFailed, r"The learner died in update\(\)\. That is loss number 1 within"),
        ([CollectiveLost("x"), CollectiveLost("y")], RolesFailed, "The learners lost their connection"),
        ([CollectiveLost("x"), FloatingPointError("diverged")], FloatingPointError, "diverged"),
        ([None, FloatingPointError("diverged")], FloatingPointError, "diverged"),
    ],
)
def test_the_cause_is_found_among_the_errors(
    script: list[Any], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raypid.runtime.stateful._GRACE_S", 0.0)
    learners = group(script)
    done, _ = learners.submit_parts(Role.update, *"abc", timesteps=0)
    with pytest.raises(error, match=words):
        done.result()
    with pytest.raises(error, match=words):  # a torn group is not asked again
        learners.submit(Role.weights).result()


def test_one_learner_is_called_and_named() -> None:
    learners = group([10, 11])
    assert learners.ask(1, Role.update, "x").result() == 11
    assert learners.backend.calls == [(1, "update", ("x",))]
    learners.backend.calls.clear()
    done, _ = learners.submit_parts(Role.update, *"abcd", timesteps=77)
    how = {"timesteps": 77}
    assert learners.backend.calls == [(0, "update", ("a", "b", how)), (1, "update", ("c", "d", how))]
    assert (done.results(), done.result()) == ({0: 10, 1: 11}, 10)
    lost = group([10, WorkerLost("ray says")])
    with pytest.raises(RolesFailed, match=r"Learner 1 of 2 died in update\(\)"):
        lost.ask(1, Role.update).result()
    with pytest.raises(RolesFailed, match="Learner 1 of 2"):
        lost.ask(0, Role.update).result()


def test_one_that_is_lost_goes_on_from_its_copy_and_the_call_is_made_again() -> None:
    learners = group([[update(40), update(40), WorkerLost("ray says"), update(40)]], 1)
    for _ in range(2):
        learners.submit_parts(Role.update, "a", timesteps=0)[0].result()
    learners.backend.copied = 40
    learners._ask_for_copy()
    done, weights = learners.submit_parts(Role.update, "a", timesteps=7)
    assert done.result().num_updates == 40 and weights.passed() == "weights of 0"
    assert learners.losses.counts == {"learners": 1, "updates": 40} and learners.progress == 80
    assert learners.told == ["The learner died in update(). It goes on from its state of 0 s ago; updates lost: 40."]
    assert names(learners, 0)[-3:] == ["update", "take_over", "update"] and learners.backend.killed == [0]
    taken = next(args for _, name, args in learners.backend.calls if name == "take_over")
    assert taken[0][1].progress == 40


def test_one_that_is_built_anew_is_told_what_was_set() -> None:
    learners = group([[WorkerLost("ray says"), update(5)]], 1)
    for factor in (0.5, 0.25):
        learners.submit(Role.scale_lr, factor).result()
    learners.submit(Role.end_schedules, 1_000, 400).result()
    learners.submit_parts(Role.update, "a", timesteps=7)[0].result()
    calls = [(name, args) for _, name, args in learners.backend.calls]
    after = calls[next(i for i, (name, _) in enumerate(calls) if name == "take_over") + 1 :]
    assert after[:2] == [("scale_lr", (0.25,)), ("end_schedules", (1_000, 400))] and after[2][0] == "update"


def test_survivors_state_is_whole_and_all_meet_again() -> None:
    learners = group([[update(5), CollectiveLost("x"), update(5)], [update(5), WorkerLost("ray says"), update(5)]], 1)
    learners.submit_parts(Role.update, "a", "b", timesteps=0)[0].result()
    learners.backend.standing[0] = 5
    learners.backend.calls.clear()
    assert learners.submit_parts(Role.update, "a", "b", timesteps=0)[0].result().num_updates == 5
    again = ["standing", "newest_whole", "leave", "open", "join", "take_over", "update"]
    assert names(learners, 0) == ["update", *again] and names(learners, 1) == ["update", "join", "take_over", "update"]
    assert learners.told[0].endswith("All go on from the state of learner 0; updates lost: 0.")
    assert learners.losses.counts == {"learners": 1, "updates": 0} and learners.progress == 10


def test_an_update_that_a_survivor_has_ended_is_not_made_again() -> None:
    """The last collective call may reach one learner and not the other: one is an update ahead, and that state is everybody's."""
    learners = group([[WorkerLost("ray says"), update(9)], [update(5), update(9)]], 1)
    learners.backend.standing[1] = 5
    done, weights = learners.submit_parts(Role.update, "a", "b", timesteps=0)
    assert done.result().num_updates == 5 and learners.progress == 5
    assert weights.passed() == "weights of 1" and names(learners, 1).count("update") == 1
    assert "state of learner 1" in learners.told[0]


def test_without_a_whole_survivor_the_copy_is_everybodys() -> None:
    learners = group([[update(5), CollectiveLost("x"), update(5)], [update(5), WorkerLost("ray says"), update(5)]], 1)
    learners.submit_parts(Role.update, "a", "b", timesteps=0)[0].result()
    learners.backend.standing[0] = -1
    learners.submit_parts(Role.update, "a", "b", timesteps=0)[0].result()
    assert learners.losses.counts == {"learners": 1, "updates": 5} and learners.progress == 5


def test_what_draws_from_a_lost_buffer_is_not_made_again() -> None:
    learners = group([[WorkerLost("ray says"), (1, [])]], 1)
    learners.revived = lambda ranks, how: f" Filled: {ranks}."
    with pytest.raises(RoleRebuilt):
        learners.submit_parts(Role.learn, timesteps=0, num_updates=8)[0].result()
    assert learners.told[0].endswith("Filled: [0].")
    assert learners.submit_parts(Role.learn, timesteps=0, num_updates=8)[0].result() == (1, [])


def test_lost_arguments_blame_no_learner_but_the_others_meet_again() -> None:
    learners = group([[ArgumentLost("gone"), 1], [CollectiveLost("x"), 1]], 1)
    with pytest.raises(ArgumentLost):
        learners.submit_parts(Role.update, "a", "b", timesteps=0)[0].result()
    assert learners.losses.counts["learners"] == 0 and "join" in names(learners, 0)
    assert learners.submit_parts(Role.update, "a", "b", timesteps=0)[0].result() == 1


def test_what_was_set_is_set_again_and_divergence_is_no_loss() -> None:
    learners = group([[WorkerLost("ray says"), Diverged("nan"), 1]], 1)
    learners.submit(Role.scale_lr, 0.5).result()
    with pytest.raises(Diverged):
        learners.submit_parts(Role.update, "a", timesteps=0)[0].result()
    assert (0, "scale_lr", (0.5,)) in learners.backend.calls[1:]
    assert learners.submit_parts(Role.update, "a", timesteps=0)[0].result() == 1


def test_split() -> None:
    assert split("abcde", 2) == ["ab", "cde"] and split("ab", 2) == ["a", "b"] and split("abc", 1) == ["abc"]


def test_updates_of_learners_that_do_not_wait_are_lost_with_all_of_them() -> None:
    """An update of one of two is half an update. As long as one is there it has what the others had learnt."""

    @Called(repeats=False, progress=int)
    def learn_from() -> None: ...

    script = [[6, 6, WorkerLost("ray says"), 6], [6, WorkerLost("ray says"), 6]]
    learners = group(script, 9, meet=False)
    for rank in (0, 0, 1):
        call = learners.ask(rank, learn_from, pair=True)
        assert call.result() == 6 and call.result() == 6 and call.seconds[rank] == f"weights of {rank}"
    assert learners.progress == 9
    with pytest.raises(RoleRebuilt):
        learners.ask(1, learn_from, pair=True).result()
    learners.ask(1, learn_from, pair=True).result()
    assert learners.losses.counts == {"learners": 1, "updates": 0} and learners.progress == 12
    learners.backend.standing[1] = -1
    learners.backend.script[1] = deque([WorkerLost("ray says"), 6])
    learners._rebuild([0, 1], "learn_from()", WorkerLost("ray says"))
    assert learners.losses.counts == {"learners": 3, "updates": 12} and learners.progress == 0
