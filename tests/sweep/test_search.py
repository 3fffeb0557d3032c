"""A search: scores, how time is spent, what the study holds, what a search chooses, and that it goes on after a kill."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from raypid.errors import CodeError, UserError
from raypid.settings.config import ConfigError
from raypid.sweep import budget
from raypid.sweep.budget import Plan, make_plan, read_seconds
from raypid.sweep.processes import Event, TrialProcesses

pytest.importorskip("optuna")

from optuna.trial import TrialState

from raypid.sweep.search import (
    JOURNAL,
    Search,
    Task,
    learned_after,
    mean_return,
    open_study,
    read_search,
    runs_of,
    write_search,
)
from raypid.sweep.search_report import Proof, importances, reached, write_report

CARTPOLE = {"env": "CartPole-v1"}
PLAN = Plan(trials=20, budget_s=1000.0, trial_s=9.0, longest_s=30.0, concurrent=2)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is synchronised to disk after each of some hundred lines, which would take most of the time."""
    monkeypatch.setattr("os.fsync", lambda file: None)


def task(**more: object) -> Task:
    about = {"run": "PPO", "fixed": CARTPOLE, "overrides": {}, "only": ["lr", "clip"], "by": "random", **more}
    return Task(**about)  # type: ignore[arg-type]


# -- scores and time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "seconds", "score"),
    [
        ([(0, 0), (2, 10), (4, 10)], 4, (10 + 20) / 4),  # rises for 2 s, then stays
        ([(0, 0), (2, 10)], 4, (10 + 20) / 4),
        ([(0, 0), (5, 10)], 4, 4.0),  # four fifths of the way up at 4 s
        ([(0, 3), (8, 500)], 4, 3.0),  # what came long after says nothing of these 4 s
        ([(0, 0), (1, 4), (1, 8)], 2, (2 + 8) / 2),
    ],
)
def test_the_score_is_the_mean_return_over_time(
    points: list[tuple[float, float]], seconds: float, score: float
) -> None:
    assert mean_return([(*point, 0.0) for point in points], seconds) == pytest.approx(score)


def test_with_a_goal_it_counts_who_reached_it_sooner() -> None:
    fast, slow, higher = ([(0, 0, 0), (time, mean, 0)] for time, mean in ((1, 100), (2, 100), (2, 200)))
    assert mean_return(fast, 4, goal=100) > mean_return(slow, 4, goal=100)
    assert mean_return(slow, 4, goal=100) == mean_return(higher, 4, goal=100)
    assert mean_return(higher, 4) > mean_return(fast, 4)


def test_something_is_learned_when_the_intervals_are_apart() -> None:
    assert learned_after([(0, 20, 5), (1, 28, 4), (2, 60, 40), (3, 90, 1)]) == 2
    for nothing in ([(0, 20, 5), (1, 28, 4)], [(0, 20, 5), (1, 90, math.nan)], []):
        assert learned_after(nothing) is None


def test_times() -> None:
    assert [read_seconds(t) for t in ("90", 90, "90s", "1.5m", "1h30m", " 2 h ")] == [90, 90, 90, 90, 5400, 7200]
    for bad in ("", "x", "10x", "-5", "0s", True, math.nan, "1 0q"):
        with pytest.raises(ConfigError, match="time"):
            read_seconds(bad)


def test_the_plan_fits_into_the_budget_and_follows_what_the_task_needs() -> None:
    for trials, seconds, concurrent in ((30, 600, 2), (6, 40, 2), (100, 3600, 16), (1, 60, 1)):
        plan = make_plan(trials, seconds, concurrent)
        assert (
            budget.MIN_TRIAL_S <= plan.trial_s <= plan.longest_s * 1.05
            and 0 < plan.explore_until_s(plan.trial_s) < seconds
        )
    plan = make_plan(30, 120, 2)
    assert 5 < plan.trial_s < 10 < plan.longest_s < 15
    for learned_s, trial_s, first in ((0.3, plan.trial_s, 0), (2.0, plan.trial_s, 1), (3.6, 10.8, 1)):
        fitting = plan.for_task(learned_s)
        assert fitting.trial_s == pytest.approx(trial_s) and fitting.first_rung(learned_s) == first
    never = plan.for_task(math.inf)
    assert never.trial_s == plan.longest_s and never.first_rung(math.inf) == 2
    with pytest.raises(ConfigError, match=r"A budget of 10 s is too small for 4 trials of 1 s .* give 22 s or more"):
        make_plan(30, 10, 2)
    make_plan(30, 22, 2)
    with pytest.raises(ConfigError, match="too small for 1 trial of 60 s"):
        make_plan(30, 60, 2, trial_s=60)


# -- the search --------------------------------------------------------------------------------------------------------


def failure(trial: str, kind: str, message: str, text: str = "") -> Event:
    about = {"event": "ended", "trial": trial, "state": "failed", "kind": kind}
    return {**about, "message": message, "traceback": text}


class Formula:
    """Runs trials at once, by a formula of their settings; the first seed flatters settings with a high clip."""

    def __init__(self, **more: object) -> None:
        self.orders = dict[str, Mapping[str, object]]()
        self._left: dict[str, list[Event]] = {}
        self.fails: dict[str, Event] = {}
        """Folder -> how it fails; "*": all."""
        self.bad = 0.0
        """How much worse all settings are than the defaults, on fresh seeds."""
        self.learns_s = 0.1
        self.kill_after = math.inf
        vars(self).update(more)

    @property
    def running(self) -> list[str]:
        return list(self._left)

    @property
    def has_room(self) -> bool:
        return len(self._left) < 2

    def curve(self, settings: Mapping[str, float], seed: int) -> list[tuple[float, float, float]]:
        level = 100 - 20 * abs(math.log10(settings.get("lr", 5e-4) / 2e-3))
        level += 40 * ((settings.get("clip") or 0.2) - 0.2) * (1 if seed == 0 else -1)
        level -= self.bad * (seed >= 1000 and "lr" in settings) + seed % 7
        return [(0.0, 0.0, 1.0), (self.learns_s, level, 1.0)]

    def start(self, trial: str, order: Mapping[str, object]) -> None:
        if len(self.orders) >= self.kill_after:
            raise KeyboardInterrupt
        self.orders[trial] = order
        if failed := self.fails.get(trial) or self.fails.get("*"):
            self._left[trial] = [{**failed, "trial": trial}]
        else:
            self.go_on(trial, order["until"])  # type: ignore[arg-type]

    def _now(self, trial: str, seconds: float) -> Event:
        settings = self.orders[trial]["settings"]
        assert isinstance(settings, dict)
        curve = [point for point in self.curve(settings, settings["seed"]) if point[0] <= seconds]
        return {"trial": trial, "curve": curve, "seconds": seconds, "wall_s": 0.01}

    def go_on(self, trial: str, until: float) -> None:
        self._left[trial] = [{"event": "moment", "until": until, **self._now(trial, until)}]

    def end(self, trial: str, state: str) -> None:
        assert state != "cut", "there is time"
        seconds = 12.0 if state == "finished" else 1.0
        self._left[trial] = [{"event": "ended", "state": state, **self._now(trial, seconds)}]

    def wait(self, timeout_s: float) -> list[Event]:
        events = [left.pop(0) for left in self._left.values()]
        self._left = {trial: left for trial, left in self._left.items() if left}
        return events

    def close(self) -> None:
        pass


def run_search(out: Path, processes: Formula, **more: object) -> tuple[Search, list[str]]:
    out.mkdir(exist_ok=True)
    said: list[str] = []
    about = task(**more)
    if not (out / JOURNAL).exists():
        write_search(out, about, PLAN, {})
    search = Search(about, PLAN, out, processes, said.append)  # type: ignore[arg-type]
    search()
    return search, said


@pytest.mark.parametrize("by", ["random", "auto"])
def test_a_search_chooses_on_low_seeds_runs_again_and_proves_on_fresh_ones(by: str, tmp_path: Path) -> None:
    search, said = run_search(tmp_path, Formula(), by=by)
    explored, again = search.of("search"), search.of("again")
    assert len(explored) == 20 and explored[0].settings == {} and explored[0].state == "finished"
    assert {run.seed for run in explored} == {0} and {run.seed for run in again} == {1, 2}
    fresh = list(range(budget.FIRST_FRESH, budget.FIRST_FRESH + budget.MAX_FRESH))
    assert [run.seed for run in search.of("found")] == [run.seed for run in search.of("defaults")] == fresh
    assert sum(run.state == "stopped" for run in explored) >= 8 and len(said) == len(search.runs)
    # on the first seed a high clip looks good, on all others it is bad: the runs with other seeds see through it
    assert search.found is not None and search.found.settings
    means = {run.candidate: np.mean(search.again(run)) for run in explored if search.again(run)}
    assert len(means) >= 2 and means[search.found.candidate] == max(means.values())
    trials = {trial.number: trial for trial in open_study(tmp_path, "search").trials}
    states = {"finished": TrialState.COMPLETE, "stopped": TrialState.PRUNED}
    assert all(trials[run.candidate].state == states[run.state] for run in explored)
    assert trials[0].values == explored[0].scores[-1:] and len(open_study(tmp_path, "proof").trials) == 2 * len(fresh)


def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_search(tmp_path, Formula(kill_after=13))
    done = runs_of(open_study(tmp_path, "search"))
    assert 10 <= len(done) <= 13
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"op_code": 9, "tri')
    (tmp_path / f"{JOURNAL}.lock").symlink_to(JOURNAL)
    processes = Formula()
    search, _ = run_search(tmp_path, processes)
    assert len(search.of("search")) == 20 and len(processes.orders) == len(search.runs) - len(done)
    assert {folder: search.runs[folder] for folder in done} == done
    again = Formula()
    same, _ = run_search(tmp_path, again)
    assert not again.orders and same.found is not None and search.found is not None
    assert same.found.folder == search.found.folder


def test_the_page_says_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raypid.sweep.search_report._draw", lambda *_: None)  # there are no folders of runs
    search, _ = run_search(tmp_path, Formula())
    proof = Proof(search)
    assert proof.better is not None and len(proof.found) == budget.MAX_FRESH
    page = write_report(search, proof, [("train", "raypid train --tuned x")]).read_text()
    assert str(proof) in page and "raypid train --tuned x" in page and "`lr`" in page
    assert "are better than the defaults" in page and proof.verdict == "better" and proof.is_worth_saving
    assert reached(search, proof).endswith("better than the defaults")
    assert list(importances(search))[:1] in ([], ["lr"])


def test_what_is_worse_than_the_defaults_is_not_worth_a_name(tmp_path: Path) -> None:
    search, _ = run_search(tmp_path, Formula(bad=200.0))
    proof = Proof(search)
    assert "are worse than the defaults" in str(proof) and not proof.is_worth_saving


def test_runs_of_the_proof_are_compared_after_the_same_time(tmp_path: Path) -> None:
    search, _ = run_search(tmp_path, Formula())
    cut = search.of("found")[0]
    cut.state, cut.seconds, cut.scores = "cut", 6.0, []
    proof = Proof(search)
    assert proof.seconds == 6.0 and len(proof.found) == budget.MAX_FRESH and cut in proof.found
    cut.seconds = 1.0
    proof = Proof(search)
    assert proof.seconds == PLAN.trial_s and len(proof.found) == len(proof.defaults) == budget.MAX_FRESH - 1


def test_a_trial_is_judged_at_each_rung_by_what_it_had_there(tmp_path: Path) -> None:
    class Late(Formula):
        """The only iteration of a trial with a high lr ends after its whole time, with a high return."""

        def curve(self, settings: Mapping[str, float], seed: int) -> list[tuple[float, float, float]]:
            late = [(0.0, 0.0, 1.0), (12.0, 500.0, 1.0)]
            return late if settings.get("lr", 0) > 1e-3 else super().curve(settings, seed)

    search, _ = run_search(tmp_path, Late())
    late = [run for run in search.of("search") if run.settings.get("lr", 0) > 1e-3]
    assert len(late) >= 3 and all(run.scores[0] == 0.0 for run in late)
    assert sum(run.state == "stopped" for run in late) >= len(late) - 1  # the first of all has its whole time


@pytest.mark.parametrize(("learns_s", "trial_s", "first"), [(2.0, 9.0, 1), (8.0, 24.0, 1), (100.0, 30.0, 2)])
def test_trials_are_as_long_as_the_task_needs_and_not_stopped_before(
    learns_s: float, trial_s: float, first: int, tmp_path: Path
) -> None:
    search, _ = run_search(tmp_path, Formula(learns_s=learns_s))
    stopped = [run for run in search.of("search") if run.state == "stopped"]
    assert (search.plan.trial_s, search.first_rung) == (trial_s, first)
    assert all(len(run.scores) == 2 for run in stopped) and bool(stopped) == (first == 1)


def test_a_trial_that_reaches_the_goal_before_the_defaults_have_had_their_time_counts(tmp_path: Path) -> None:
    class Reaches(Formula):
        def start(self, trial: str, order: Mapping[str, object]) -> None:
            super().start(trial, order)
            if trial == "trial-001":
                self.end(trial, "goal")

    search, _ = run_search(tmp_path, Reaches())
    assert len(search.runs["trial-001"].scores) == 3 and search.again(search.runs["trial-001"])


FLAKY = """
    import os, time
    import gymnasium, numpy as np

    class Flaky(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32), gymnasium.spaces.Discrete(2)

        def __init__(self, construct="pass", step="pass"):
            self._step = step
            exec(construct)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            exec(self._step)
            return np.zeros(1, np.float32), 0.0, False, False, {}
"""
HUGE = {"num_envs_per_worker": 64, "fragment_length": 4096, "num_epochs": 100}


@pytest.mark.parametrize(
    ("args", "settings", "kind", "message"),
    [
        ({}, HUGE, "slow", "its first iteration took longer than 0.4 s"),
        ({"step": "os._exit(3)"}, {}, "died", "exit code 3"),
        ({"step": "raise ConnectionError('no answer')"}, {}, "error", "ConnectionError: no answer"),
        ({"construct": "raise ConnectionError('no answer')"}, {}, "error", "ConnectionError: no answer"),
        ({"construct": "raise MemoryError"}, {}, "error", "MemoryError"),
        ({}, {"batch_size": -1}, "user", "batch_size must be at least 1"),
    ],
)
def test_a_trial_says_what_has_failed(
    args: dict[str, str], settings: dict[str, int], kind: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "flaky.py").write_text(textwrap.dedent(FLAKY))
    processes = TrialProcesses(1, tmp_path / "log")
    order = {"run": "PPO", "below": {}, "stop": {}, "before": (0.0, 9.0, 1.0), "keep": False, "on_ray": False}
    given = {"env": str(tmp_path / "flaky.py"), "env_config": args, "seed": 0, "num_envs_per_worker": 1, **settings}
    try:
        (tmp_path / "trial").mkdir()
        more = {
            "settings": given,
            "folder": str(tmp_path / "trial"),
            "until": 0.1,
            "ends_at": math.inf,
            "first_within": 0.4,
        }
        processes.start("trial", {**order, **more})
        while not (events := [event for event in processes.wait(10) if event["event"] == "ended"]):
            pass
    finally:
        processes.close()
    assert (events[0]["state"], events[0].get("kind")) == ("failed", kind), (
        events[0]["traceback"] + events[0]["message"]
    )
    assert message in events[0]["message"], events
    assert "raypid: " not in events[0]["traceback"]


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("error", TrialState.FAIL),
        ("died", TrialState.FAIL),
        ("diverged", TrialState.PRUNED),
        ("slow", TrialState.PRUNED),
        ("user", TrialState.PRUNED),
    ],
)
def test_one_failure_counts_only_if_the_settings_caused_it(
    kind: str, state: TrialState, number: int, tmp_path: Path
) -> None:
    folder = f"trial-{number:03}"
    processes = Formula(fails={folder: failure(folder, kind, "It failed.")})
    if kind == "user" and number == 0:
        with pytest.raises(UserError, match="It failed"):
            run_search(tmp_path, processes)
        return
    search, _ = run_search(tmp_path, processes)
    failed = search.runs[folder]
    assert (failed.state, failed.message, failed.scores) == ("failed", "It failed.", [])
    assert len(search.of("search")) == 20 and search.found is not None
    trial = search.study.trials[number]
    assert trial.state == state and not trial.intermediate_values


@pytest.mark.parametrize(
    ("event", "error"),
    [(failure("", "error", "boom", "Traceback\nboom"), CodeError), (failure("", "died", "boom"), RuntimeError)],
)
def test_settings_that_never_work_end_the_search(event: Event, error: type[Exception], tmp_path: Path) -> None:
    processes = Formula(fails={"*": event})
    with pytest.raises(error, match=r"The last 5 trials failed, .* The last: boom"):
        run_search(tmp_path, processes)
    assert len(processes.orders) <= 6


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'CartPole-v1'"):
        task(fixed={"env": "CartPol-v1"})
    with pytest.raises(ConfigError, match="takes continuous"):
        task(run="TD3", only=["lr"])
    with pytest.raises(ConfigError, match="model.log_std_init has no effect"):
        task(only=["model.log_std_init"])
    with pytest.raises(ConfigError, match="seed of a search"):
        task(seed=91)
    for overrides, said in (
        ({"seed": {"choice": [0, 1]}}, "seed cannot be searched"),
        ({"env": {"choice": ["CartPole-v1", "Acrobot-v1"]}}, "env cannot be searched"),
        ({"gamma": {"choice": [0.9, 0.99]}}, r"gamma is given for every trial and in the search space"),
    ):
        with pytest.raises(ConfigError, match=said):
            task(fixed={**CARTPOLE, "gamma": 0.5}, overrides=overrides)
    with pytest.raises(ConfigError, match="seed is no setting of a search"):
        task(fixed={**CARTPOLE, "seed": 3})


def test_what_has_no_effect_on_the_environment_is_not_tried() -> None:
    assert "model.log_std_init" not in task(only=[]).space
    assert "model.log_std_init" in task(fixed={"env": "Pendulum-v1"}, only=[]).space
    linear = task(run="ARS", only=[])
    assert "model.activation" in linear.space
    drawn = [linear.settings({name: float(u) for name in linear.space}) for u in np.linspace(0, 1, 9)]
    assert all(("model.activation" in d) == bool(d["model.hidden"]) for d in drawn)


def test_a_search_is_written_and_read(tmp_path: Path) -> None:
    about = task(fixed={**CARTPOLE, "model": {"activation": "relu"}}, overrides={"gamma": 0.9}, goal=475.0)
    write_search(tmp_path, about, PLAN, {"name": "x"})
    again, plan, more = read_search(tmp_path)
    assert (again.fixed, again.space, plan, more) == (about.fixed, about.space, PLAN, {"name": "x"})
    assert about.fixed == {**CARTPOLE, "model.activation": "relu", "gamma": 0.9} and about.goal == 475
    (tmp_path / JOURNAL).write_text("{\n")
    with pytest.raises(UserError, match="damaged"):
        read_search(tmp_path)
