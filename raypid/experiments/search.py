"""A search for settings, within a budget of wall time: explore, race the best on other seeds, prove the winner on fresh ones.

Settings are only ever chosen on seeds below 100. The proof is on seeds from 1000 on: the winner and the defaults are trained anew,
side by side.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from raypid.config import Config, ConfigError, canonical
from raypid.errors import HEAD, CodeError, UserError
from raypid.experiments import budget as b
from raypid.experiments.budget import Plan
from raypid.experiments.halving import Halving
from raypid.experiments.processes import Event
from raypid.experiments.propose import Proposer, check_proposer, make_proposer
from raypid.experiments.search_trials import Kind, SearchTrial, TrialLog, mean_return, read_trials
from raypid.experiments.space import SearchSpace, at, dotted, fixed_by, sample, search_space
from raypid.experiments.space import units as units_of
from raypid.outputs import Unwritten, explained, replacing
from raypid.plain_data import read_json
from raypid.run.assembly import callbacks_of, resolve_config, spaces_of, without_effect
from raypid.run.experiment import clear_folder
from raypid.spaces import Space

SEARCH = "search.json"
GRACE_S = 5.0
"""Seconds that a trial has to end when its time is over."""
MAX_SEED = 90
"""Of a search; those of the race follow it, and all lie below 100."""
_DRAWS = 200
"""Draws of which one must be valid."""


@dataclass(kw_only=True)
class Task:
    """What is searched: an algorithm on an environment."""

    run: str
    fixed: dict[str, Any]
    """Settings that every trial has, by dotted names; env among them."""
    overrides: dict[str, Any]
    """What the user says of ranges (`search_space`)."""
    only: list[str]
    goal: float | None = None
    """A return that is enough."""
    seed: int = 0
    by: str = "auto"
    """Who proposes settings."""

    def __post_init__(self) -> None:
        """Check all of it.

        Raises:
            UserError: the message says what does not fit.
        """
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(
                f"The seed of a search lies in [0, {MAX_SEED}], not {self.seed}: higher ones are for the proof."
            )
        if "seed" in self.fixed:
            raise ConfigError("seed is no setting of a search, which needs many: give it --seed.")
        self.fixed = {**dotted(self.fixed), **fixed_by(self.overrides)}
        check_proposer(self.by)
        self.config: Config = resolve_config(self.run, {**self.fixed, "seed": self.seed})
        callbacks_of(self.config.callbacks)
        self._spaces: tuple[Space, Space] = spaces_of(self.config)
        self.space: SearchSpace = self._searched(search_space(self.run, self.fixed, self.overrides, self.only))

    def _searched(self, space: SearchSpace) -> SearchSpace:
        """Leave out what never has an effect on this environment."""
        rng, used, reasons = np.random.default_rng(0), set[str](), dict[str, str]()
        for _ in range(30):
            values = sample(space, rng)
            idle = without_effect(self.run, self.config.replace(values), *self._spaces)
            used |= values.keys() - idle.keys()
            reasons |= idle
        for name in map(canonical, (*self.only, *self.overrides)):
            if name in space and name not in used:
                raise ConfigError(f"{name} has no effect {reasons[name]}: there is nothing to search.")
        return {name: range_ for name, range_ in space.items() if name in used}

    def settings(self, units: Mapping[str, float]) -> dict[str, Any]:
        """The settings at places in the unit cube, without those that have no effect beside the others.

        Raises:
            ConfigError: they do not go together.
        """
        values = at(self.space, units)
        idle = without_effect(self.run, self.config.replace(values), *self._spaces)
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if name not in idle}
        resolve_config(self.run, {**self.fixed, **values, "seed": self.seed})
        return values

    def default(self, name: str) -> object:
        """The value of a setting where no trial says otherwise."""
        value: object = self.config
        for part in name.split("."):
            value = getattr(value, part)
        return list(value) if isinstance(value, tuple) else value


class Executor(Protocol):
    """Runs trials side by side (`TrialProcesses`)."""

    @property
    def running(self) -> list[int]: ...
    @property
    def has_room(self) -> bool: ...
    def start(self, trial: int, order: Mapping[str, object]) -> None: ...
    def answer(self, trial: int, *, go_on: bool) -> None: ...
    def stop(self, trial: int) -> None: ...
    def kill(self, trial: int) -> None: ...
    def wait(self, timeout_s: float) -> list[Event]: ...
    def close(self) -> None: ...


class Search:
    """Runs the phases. What has ended is in the folder, so that a search which was ended goes on from there.

    Args:
        out: the folder, which exists.
        trials: those that have ended before.
        tell: shows a line to the user.
        below: settings below all others, that follow from where trials run.
    """

    def __init__(
        self, task: Task, plan: Plan, out: Path, executor: Executor, tell: Callable[[str], None],
        trials: list[SearchTrial], below: Mapping[str, object],
    ) -> None:  # fmt: skip
        self.task, self.plan, self.out, self.executor, self.tell = task, plan, out, executor, tell
        self.below = dict(below)
        self.trials = {trial.number: trial for trial in trials}
        self.halving = Halving(plan.trial_s)
        self.proposer: Proposer = make_proposer(task.by, task.space, task.seed + 1000 * len(trials), plan.trials)
        self.winner: int | None = None
        """Candidate that won the race."""
        self._log = TrialLog(out)
        self._began = time.monotonic() - max((trial.ended_at for trial in trials), default=0.0)
        self._told_traceback = False
        self._baseline = next((t.baseline for t in trials if t.baseline is not None), None)
        for trial in trials:
            self._learn(trial)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the search so far, of all its processes."""
        return time.monotonic() - self._began

    def of(self, kind: Kind) -> list[SearchTrial]:
        """The trials of a kind that have ended."""
        return [t for t in self.trials.values() if t.kind == kind and t.state != "running"]

    def __call__(self) -> None:
        """Search. Afterwards `winner` is known, and `trials` has everything.

        Raises:
            UserError: settings that cannot work. CodeError: the environment raises. Unwritten: the disk is full.
        """
        try:
            self._run_all(self._explore(), self.plan.explore_until_s)
            self.winner = self._race()
            self._run_all(self._prove(self.winner), self.plan.budget_s - b.REPORT_S)
        finally:
            self.executor.close()

    # -- phases ----------------------------------------------------------------------------------------------------

    def _explore(self) -> Iterator[SearchTrial]:
        """Yield trials with new settings; the first has the defaults."""
        done = len(self.of("search"))
        for _ in range(self.plan.trials - done):
            number = self._next_number()
            units, settings = self._proposed() if number > 1 else (self._default_units(), {})
            yield self._trial("search", number, self.task.seed, settings, units)

    def _default_units(self) -> dict[str, float]:
        defaults = {name: self.task.default(name) for name in self.task.space}
        return units_of(self.task.space, defaults)

    def _proposed(self) -> tuple[dict[str, float], dict[str, Any]]:
        for _ in range(_DRAWS):
            units = self.proposer.propose()
            try:
                return units, self.task.settings(units)
            except ConfigError as error:
                refused = error
                self.proposer.tell(units, -math.inf, 0, stopped=True)
        raise ConfigError(f"Of {_DRAWS} drawn settings none is valid; the last: {refused}")

    def best(self) -> list[SearchTrial]:
        """The trials of the exploration that were judged at least once, best first."""
        judged = (t for t in self.of("search") if math.isfinite(t.score))
        return sorted(judged, key=lambda t: t.order, reverse=True)

    def _race(self) -> int:
        """Run the best settings with other seeds, then the best of these with more; returns the winner.

        The first run of a candidate does not count here: it was among the best for its luck too.

        Raises:
            CodeError: no trial has come to its first rung.
        """
        candidates = [t.number for t in self.best()[: b.NUM_CANDIDATES]]
        if not candidates:
            raise RuntimeError(f"No trial has come far enough to be judged: see {self.out}. Give a longer --budget.")
        until, first = self.plan.budget_s - self.plan.fresh_s - b.REPORT_S, self.task.seed + 1
        self._run_all(self._again("race", candidates, [first]), until)
        candidates = sorted(candidates, key=self.score_of, reverse=True)[: b.NUM_FINALISTS]
        more = [first + 1 + i for i in range(b.FINALIST_SEEDS)]
        if len(candidates) > 1:
            self._run_all(self._again("race", candidates, more), until)
        return max(candidates, key=self.score_of)

    def score_of(self, candidate: int) -> float:
        """The mean score of a candidate over the seeds of the race; what it had before if it has not run there."""
        scores = [t.score for t in self.of("race") if t.candidate == candidate and t.state != "cut"]
        return float(np.mean(scores)) if scores else self.trials[candidate].score - 1e6 * (b.NUM_CANDIDATES + 1)

    def _prove(self, winner: int) -> Iterator[SearchTrial]:
        """Yield runs of the winner and of the defaults on fresh seeds, in turns; more of them while there is time."""
        kinds: list[Kind] = ["winner", "defaults"] if self.trials[winner].settings else ["winner"]
        for count in range(b.MAX_FRESH):
            ended = [t.seconds + self.plan.overhead_s for kind in kinds for t in self.of(kind)]
            turn = max(ended, default=self.plan.turn_s) * math.ceil(len(kinds) / self.plan.concurrent)
            if count >= b.MIN_FRESH and self.elapsed_s + 2 * turn > self.plan.budget_s - b.REPORT_S:
                return
            for kind in kinds:
                settings = self.trials[winner].settings if kind == "winner" else {}
                if not self._is_done(kind, winner, b.FIRST_FRESH + count):
                    yield self._trial(kind, winner, b.FIRST_FRESH + count, settings, {})

    def _again(self, kind: Kind, candidates: list[int], seeds: list[int]) -> Iterator[SearchTrial]:
        for seed in seeds:
            for number in candidates:
                if not self._is_done(kind, number, seed):
                    trial = self.trials[number]
                    yield self._trial(kind, number, seed, trial.settings, trial.units)

    def _is_done(self, kind: Kind, candidate: int, seed: int) -> bool:
        return any((t.candidate, t.seed) == (candidate, seed) for t in self.of(kind))

    def _next_number(self) -> int:
        return max(self.trials, default=0) + 1

    def _trial(
        self, kind: Kind, candidate: int, seed: int, settings: dict[str, Any], units: dict[str, float]
    ) -> SearchTrial:
        name = f"trial-{candidate:03}" + (f"-seed{seed}" if kind == "race" else "")
        return SearchTrial(
            number=self._next_number(), kind=kind, candidate=candidate, seed=seed, settings=settings, units=units,
            folder=f"{kind}-seed{seed}" if kind in ("winner", "defaults") else name,
        )  # fmt: skip

    # -- trials ----------------------------------------------------------------------------------------------------

    def _run_all(self, wanted: Iterator[SearchTrial], until_s: float) -> None:
        """Run trials until none is wanted, or the time is over; what runs then is cut."""
        told_to_end: set[int] = set()
        while True:
            over = self.elapsed_s >= until_s
            while not over and self.executor.has_room and (trial := next(wanted, None)) is not None:
                self._start(trial)
            if not self.executor.running:
                return
            for number in self.executor.running if over else ():
                if number not in told_to_end:
                    told_to_end.add(number)
                    self.executor.stop(number)
                elif self.elapsed_s >= until_s + GRACE_S:
                    self.executor.kill(number)
                    self._ended(self.trials[number], {"state": "cut"})
            for event in self.executor.wait(0.1):
                trial = self.trials[event["trial"]]
                if event["event"] == "rung":
                    self._at_rung(trial, event)
                else:
                    self._ended(trial, event)

    def _start(self, trial: SearchTrial) -> None:
        self.trials[trial.number] = trial
        clear_folder(self.out / trial.folder)  # a trial that was broken off begins anew
        judged = trial.kind == "search"
        self.executor.start(trial.number, {
            "run": self.task.run, "settings": {**self.task.fixed, **trial.settings, "seed": trial.seed}, "below": self.below,
            "folder": str(self.out / trial.folder), "rungs": self.halving.rungs if judged else self.halving.rungs[-1:],
            "stop": {} if self.task.goal is None else {"evaluation/episode_reward_mean": self.task.goal},
            "baseline": self._baseline, "keep": trial.kind == "winner", "on_ray": self.task.config.on_ray,
        })  # fmt: skip

    def _at_rung(self, trial: SearchTrial, event: Event) -> None:
        trial.curve, trial.baseline, trial.rung = event["curve"], event["baseline"], event["rung"]
        self._baseline = trial.baseline
        trial.score = self._score(trial, trial.rung)
        goes_on = self.halving.goes_on(trial.rung, trial.score)
        self.executor.answer(
            trial.number, go_on=goes_on or not trial.settings
        )  # the defaults are what others are measured by

    def _score(self, trial: SearchTrial, rung: int) -> float:
        assert trial.baseline is not None
        return mean_return(trial.curve, self.halving.rungs[rung], trial.baseline, self.task.goal)

    def _ended(self, trial: SearchTrial, event: Event) -> None:
        trial.state, trial.ended_at = event["state"], self.elapsed_s
        trial.seconds, trial.timesteps = event.get("seconds", 0.0), event.get("timesteps", 0)
        if trial.state != "failed" and "curve" in event:
            trial.curve, trial.baseline = event["curve"], event["baseline"]
            self._baseline = trial.baseline
        if trial.state in ("finished", "goal"):
            last = len(self.halving.rungs) - 1
            if trial.kind == "search":  # those that come to these rungs later are compared with it
                for rung in range(trial.rung + 1, last):
                    self.halving.goes_on(rung, self._score(trial, rung))
            trial.rung, trial.score = last, self._score(trial, last)
        if trial.state == "failed":
            trial.rung, trial.score = 0, -math.inf
            trial.message = (
                event["message"].strip().splitlines()[-1].removeprefix("raypid: ")
                if event["message"].strip()
                else event["kind"]
            )
        self._log.add(trial)
        self._learn(trial, judged=True)
        self.tell(self.line(trial))
        if trial.state == "failed":
            self._heed_failure(trial, event)

    def _learn(self, trial: SearchTrial, *, judged: bool = False) -> None:
        """Let the proposer, and for a search that goes on the rungs too, know of a trial that has ended."""
        if trial.kind != "search" or trial.rung < 0:
            return
        if trial.units:
            self.proposer.tell(trial.units, trial.score, trial.rung, stopped=trial.state not in ("finished", "goal"))
        for rung in range(trial.rung + 1) if not judged and trial.curve else ():
            self.halving.goes_on(rung, self._score(trial, rung))

    def _heed_failure(self, trial: SearchTrial, event: Event) -> None:
        """Show a traceback once; end the search where nothing can work.

        Raises:
            UserError: the defaults are refused. Unwritten: the disk is full. CodeError: every trial so far has failed.
        """
        if event["kind"] == "unwritten":
            raise Unwritten(event["message"])
        if event["kind"] == "user" and not trial.settings:
            raise CodeError(event["message"]) if event["message"].startswith(HEAD) else UserError(event["message"])
        ended = [t for t in self.trials.values() if t.state != "running"]
        text = event["traceback"].rstrip()
        if len(ended) >= 3 and all(t.state == "failed" for t in ended):
            message = f"The first {len(ended)} trials have failed, so the search ends: see {self.out}."
            raise CodeError(f"{text or HEAD}\nraypid: {message}") if text else RuntimeError(message)
        if text and not self._told_traceback and event["kind"] == "error":
            self._told_traceback = True
            self.tell(text)

    def line(self, trial: SearchTrial) -> str:
        """What the user reads of a trial that has ended."""
        what = {"race": f"{trial.candidate} again", "winner": "winner", "defaults": "defaults"}.get(
            trial.kind, str(trial.number)
        )
        how = {"finished": "", "goal": "reached the goal", "stopped": "stopped", "cut": "cut", "failed": trial.message}[
            trial.state
        ]
        best = trial.kind == "search" and self.best()[:1] == [trial]
        named = ", ".join(f"{k}={json.dumps(v)}" for k, v in trial.settings.items()) or "the defaults"
        score = f"{trial.score:10.5g}" if math.isfinite(trial.score) else " " * 9 + "-"
        about = f", {how}" if how else ""
        seed = f" (seed {trial.seed})" if trial.kind != "search" else ""
        text = (
            f"[{b.shown_seconds(self.elapsed_s):>7}] {what:>9} {score}  {b.shown_seconds(trial.seconds)}{about}{seed}"
        )
        return f"{text}; the best so far: {named}" if best else text


# -- the folder ------------------------------------------------------------------------------------------------------


def write_search(out: Path, task: Task, plan: Plan, more: Mapping[str, object]) -> None:
    """Write what is needed to go on with a search.

    Raises:
        Unwritten: the disk is full.
    """
    about = {name: getattr(task, name) for name in (f.name for f in dataclasses.fields(task))}
    text = json.dumps({"task": about, "plan": dataclasses.asdict(plan), **more}, indent=2)
    with explained(out / SEARCH):
        out.mkdir(parents=True, exist_ok=True)
        with replacing(out / SEARCH) as beside:
            beside.write_text(text + "\n")


def read_search(out: Path) -> tuple[Task, Plan, list[SearchTrial], dict[str, Any]]:
    """What a search was to do, what has ended, and what else `write_search` was given.

    Raises:
        UserError: the folder holds no search, or a damaged one.
    """
    path = out / SEARCH
    if not path.is_file():
        raise UserError(f"{out} holds no search to resume: it has no {SEARCH}.")
    try:
        about = read_json(path.read_text())
        assert isinstance(about, dict)
        task, plan = about.pop("task"), Plan(**about.pop("plan"))
        return Task(**task), plan, read_trials(out), about
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged: {error}.") from None
