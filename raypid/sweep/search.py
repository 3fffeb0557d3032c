"""A search for settings, within a budget of wall time: explore, race the best on other seeds, measure the best of these on fresh ones.

Settings are only ever chosen on seeds below 100. The proof is on seeds from 1000 on: the settings found and the defaults are trained
anew, side by side.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raypid.envs.make import Sample
from raypid.errors import CodeError, UserError
from raypid.plugins.registry import ALGORITHMS
from raypid.run.folder import clear_folder
from raypid.run.resolve import callbacks_of, resolve_config, spaces_of, without_effect
from raypid.settings.config import Config, ConfigError, canonical
from raypid.storage.neighbours import nothing_at
from raypid.storage.outputs import Unwritten, explained, replacing
from raypid.storage.plain_data import read_json
from raypid.sweep import budget as b
from raypid.sweep.budget import Plan
from raypid.sweep.halving import LATE, Halving, ranked
from raypid.sweep.processes import Event, TrialProcesses
from raypid.sweep.propose import Proposer, check_proposer, make_proposer
from raypid.sweep.search_trials import BY_SETTINGS, Kind, SearchTrial, TrialLog, mean_return, read_trials
from raypid.sweep.space import SearchSpace, at, dotted, fixed_by, sample, search_space
from raypid.sweep.space import units as units_of

SEARCH = "search.json"
GRACE_S = 3.0
"""Seconds that a trial has to end when its time is over."""
MAX_SEED = 90
"""Of a search; those of the race follow it, and all lie below 100."""
MAX_FAILED = 5
"""Trials that may fail in a row; after that many, something else is wrong than their settings."""
_SAME_FOR_ALL = (
    "env", "env_config", "time_limit", "seed", "init_from", "evaluation_env", "evaluation_num_episodes", "evaluation_interval",
    "evaluation_parallel",
)  # fmt: skip
"""Settings that say what is learned and how it is measured: trials that differ in them cannot be compared."""
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
        self.fixed = dotted(self.fixed)
        for raw, value in self.overrides.items():
            name = canonical(raw)
            if isinstance(value, Mapping) and name in _SAME_FOR_ALL:
                raise ConfigError(f"{name} cannot be searched: trials that differ in it cannot be compared.")
            if name in self.fixed and self.fixed[name] != value:
                raise ConfigError(
                    f"{name} is given for every trial ({json.dumps(self.fixed[name])}) and in the search space: leave one out."
                )
        self.fixed |= fixed_by(self.overrides)
        check_proposer(self.by)
        self.config: Config = resolve_config(self.run, {**self.fixed, "seed": self.seed})
        callbacks_of(self.config.callbacks)
        self._sample: Sample = spaces_of(self.config)
        self.space: SearchSpace = self._searched(search_space(self.run, self.fixed, self.overrides, self.only))

    def _searched(self, space: SearchSpace) -> SearchSpace:
        """Leave out what never has an effect on this environment."""
        rng, used, reasons = np.random.default_rng(0), set[str](), dict[str, str]()
        for _ in range(30):
            values = sample(space, rng)
            idle = without_effect(self.run, self.config.replace(values), self._sample)
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
        idle = without_effect(self.run, self.config.replace(values), self._sample)
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if name not in idle}
        config = resolve_config(self.run, {**self.fixed, **values, "seed": self.seed})
        sizes: list[int | None] = [config.fragment_length, config.num_envs_per_worker, max(1, config.num_workers)]
        rows = math.prod(size or math.inf for size in sizes)  # a run chooses those that are left open large enough
        if ALGORITHMS.get(self.run).flow == "sync" and "batch_size" in values and config.batch_size > rows:
            raise ConfigError(f"batch_size {config.batch_size} is more than the {rows} rows of an iteration.")
        return values

    def default(self, name: str) -> object:
        """The value of a setting where no trial says otherwise."""
        value: object = self.config
        for part in name.split("."):
            value = getattr(value, part)
        return list(value) if isinstance(value, tuple) else value


class Search:
    """Runs the phases. What has ended is in the folder, so that a search which was ended goes on from there.

    Args:
        out: the folder, which exists.
        trials: those that have ended before.
        tell: shows a line to the user.
        below: settings below all others, that follow from where trials run.
    """

    def __init__(
        self, task: Task, plan: Plan, out: Path, executor: TrialProcesses, tell: Callable[[str], None],
        trials: list[SearchTrial], below: Mapping[str, object],
    ) -> None:  # fmt: skip
        self.task, self.plan, self.out, self.executor, self.tell = task, plan, out, executor, tell
        self.below = dict(below)
        self.trials = {trial.number: trial for trial in trials}
        self.halving = Halving(plan.trial_s)
        self.proposer: Proposer = make_proposer(task.by, task.space, task.seed + 1000 * len(trials), plan.trials)
        self.found: int | None = None
        """The candidate that won the race; None: there was none beside the defaults."""
        self._proof_s = plan.trial_s
        """Seconds of training of each run of the proof."""
        self._log = TrialLog(out)
        self._began = time.monotonic() - max((trial.ended_at for trial in trials), default=0.0)
        self._told_traceback = False
        self._failed: list[SearchTrial] = []
        """The newest trials, as far as they have failed in a row."""
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

    @property
    def measured(self) -> Plan:
        """The plan, with what a trial takes beside its seconds where that is more: the defaults, the best, and those after them.

        It is the median of theirs, since the first in a process waits for imports.
        """
        best = [1, *(t.number for t in self.best()[: b.NUM_CANDIDATES])]
        full = [t for t in self.trials.values() if t.wall_s and (t.kind != "search" or t.number in best)]
        beside = np.median([t.wall_s - min(t.seconds, self.plan.trial_s) for t in full]) if full else 0.0
        return dataclasses.replace(self.plan, overhead_s=max(self.plan.overhead_s, float(beside)))

    def __call__(self) -> None:
        """Search. Afterwards `found` is known, and `trials` has everything.

        Raises:
            UserError: settings that cannot work.
            CodeError: the environment raises.
            Unwritten: the disk is full.
            RuntimeError: no trial could be judged, or they die.
        """
        try:
            self._run_all(self._explore(), self._explore_until, lambda: self.halving.rungs[self.halving.first or 0])
            self.found = self._race()
            if self.found is not None:
                self._run_all(self._prove(self.found), lambda: self.plan.budget_s - b.REPORT_S)
        finally:
            self.executor.close()

    # -- phases ----------------------------------------------------------------------------------------------------

    def _explore(self) -> Iterator[SearchTrial]:
        """Yield trials with new settings; the first has the defaults."""
        done = len(self.of("search"))
        defaults = {name: self.task.default(name) for name in self.task.space}
        for _ in range(self.plan.trials - done):
            number = self._next_number()
            units, settings = self._proposed() if number > 1 else (units_of(self.task.space, defaults), {})
            yield self._trial("search", number, self.task.seed, settings, units)

    def _proposed(self) -> tuple[dict[str, float], dict[str, Any]]:
        for _ in range(_DRAWS):
            units = self.proposer.propose()
            try:
                return units, self.task.settings(units)
            except ConfigError as error:
                refused = error
                self.proposer.tell(units, -math.inf, 0, stopped=True)
        raise ConfigError(f"Of {_DRAWS} drawn settings none is valid; the last: {refused}")

    def _explore_until(self) -> float:
        """When exploring must have ended. While nothing can be compared with the defaults, there is nothing to save time for."""
        candidates = min(sum(bool(t.settings) for t in self.best()), b.NUM_CANDIDATES)
        if not candidates and self.plan.trials > 1:
            return self.plan.budget_s - b.REPORT_S
        return self.measured.explore_until_s(candidates)

    def best(self) -> list[SearchTrial]:
        """The trials of the exploration that were judged at least once, best first."""
        first = self.halving.first or 0
        return [
            self.trials[n]
            for n in ranked({t.number: t.scores for t in self.of("search") if len(t.scores) > first}, first)
        ]

    def _race(self) -> int | None:
        """Run the best settings with other seeds, then the best of these with more; returns the best, None without any.

        The defaults do not take part: the proof compares with them. Where time is short, the race is: the proof needs it more.

        Raises:
            RuntimeError: no trial has come to its first rung.
        """
        best = self.best()
        if not best:
            raise RuntimeError(f"No trial has come far enough to be judged. {self._why_none()} See {self.out}.")
        candidates = [t.number for t in best if t.settings][: b.NUM_CANDIDATES]
        first = self.task.seed + 1
        for num, seeds in ((b.NUM_FINALISTS, [first]), (1, [first + 1 + i for i in range(b.FINALIST_SEEDS)])):
            if len(candidates) > 1:
                self._run_all(self._again(candidates, seeds), self._race_until, lambda: self.measured.turn_s)
            candidates = sorted(candidates, key=self._race_score(candidates), reverse=True)[:num]
        return candidates[0] if candidates else None

    def _race_until(self) -> float:
        """When the proof must begin."""
        plan = self.measured
        return plan.budget_s - plan.fresh_s - b.REPORT_S

    def _race_score(self, candidates: list[int]) -> Callable[[int], float]:
        """The mean score of each candidate over the seeds of the race that all of them have run; the first run of one does not count, since
        luck has put it among the best too. Without such seeds all are equal."""
        runs = {(t.candidate, t.seed): t.score for t in self.of("race") if t.state != "cut"}
        seeds = [seed for seed in {seed for _, seed in runs} if all((c, seed) in runs for c in candidates)]
        return lambda candidate: float(np.mean([runs[candidate, seed] for seed in seeds])) if seeds else 0.0

    def _why_none(self) -> str:
        ended = self.of("search")
        if failed := [t for t in ended if t.state == "failed"]:
            return f"Trial {failed[-1].number} failed: {failed[-1].message}."
        if all(t.message for t in ended):  # each had to be killed
            return "Not one iteration has ended: the environment may hang, or it is slow and needs a longer --budget."
        rung = self.halving.rungs[self.halving.first or 0]
        return f"They train for {b.shown_seconds(rung)} until then: give a longer --budget."

    def _prove(self, found: int) -> Iterator[SearchTrial]:
        """Yield runs of the best settings and of the defaults on fresh seeds, in turns; more of them while there is time.

        If the first phases took longer than planned, these runs are shorter, so that there are enough of them.
        """
        plan, until = self.measured, self.plan.budget_s - b.REPORT_S
        done = len(self.of("found")) + len(self.of("defaults"))
        turns = math.ceil(max(1, 2 * b.MIN_FRESH - done) / plan.concurrent)
        enough_s = (until - self.elapsed_s) / turns - plan.overhead_s
        self._proof_s = min(plan.trial_s, max(enough_s, self.halving.rungs[0]))
        kinds: list[Kind] = ["found", "defaults"]
        for count in range(b.MAX_FRESH):
            turn_s = max((t.wall_s for kind in kinds for t in self.of(kind)), default=plan.turn_s)
            turn_s *= math.ceil(len(kinds) / plan.concurrent) + bool(self.executor.running)
            if count >= b.MIN_FRESH and self.elapsed_s + turn_s > until:
                return
            for kind in kinds:
                settings = self.trials[found].settings if kind == "found" else {}
                if not self._is_done(kind, found, b.FIRST_FRESH + count):
                    yield self._trial(kind, found, b.FIRST_FRESH + count, settings, {})

    def _again(self, candidates: list[int], seeds: list[int]) -> Iterator[SearchTrial]:
        for seed in seeds:
            for number in candidates:
                if not self._is_done("race", number, seed):
                    trial = self.trials[number]
                    yield self._trial("race", number, seed, trial.settings, trial.units)

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
            folder=f"{kind}-seed{seed}" if kind in ("found", "defaults") else name,
        )  # fmt: skip

    # -- trials ----------------------------------------------------------------------------------------------------

    def _run_all(
        self, wanted: Iterator[SearchTrial], until: Callable[[], float], least: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Run trials until none is wanted, or the time is over; what runs then is cut. None is started that has less time than the `least`."""
        told_to_end: dict[int, float] = {}
        while True:
            left_s = until() - self.elapsed_s
            while left_s > least() and self.executor.has_room and (trial := next(wanted, None)) is not None:
                self._start(trial)
            if not self.executor.running:
                return
            for number in self.executor.running if left_s <= 0 else ():
                if number not in told_to_end:
                    told_to_end[number] = self.elapsed_s
                    self.executor.stop(number)
                elif self.elapsed_s >= told_to_end[number] + GRACE_S:
                    self.executor.kill(number)
                    self._ended(self.trials[number], {"state": "cut", "message": "its iteration did not end in time"})
            for event in self.executor.wait(0.1):
                trial = self.trials[event["trial"]]
                if event["event"] == "rung":
                    self._at_rung(trial, event)
                else:
                    self._ended(trial, event)

    def _start(self, trial: SearchTrial) -> None:
        self.trials[trial.number] = trial
        clear_folder(self.out / trial.folder)  # a trial that was broken off begins anew
        rungs = self._rungs(trial)
        self.executor.start(trial.number, {
            "run": self.task.run, "settings": {**self.task.fixed, **trial.settings, "seed": trial.seed}, "below": self.below,
            "folder": str(self.out / trial.folder), "rungs": rungs,
            "stop": {} if self.task.goal is None else {"evaluation/episode_reward_mean": self.task.goal},
            "baseline": self._baseline, "keep": trial.kind == "found", "on_ray": self.task.config.on_ray,
            "settle_steps": getattr(self.task.config, "steps_per_iteration", None) or 0,
            "first_within": LATE * rungs[-1] if trial.kind == "search" and trial.settings else None,
        })  # fmt: skip

    def _rungs(self, trial: SearchTrial) -> list[float]:
        """Seconds of training after which a trial is judged; the last is its end."""
        return {"search": self.halving.rungs, "race": self.halving.rungs[-1:]}.get(trial.kind, [self._proof_s])

    def _take(self, trial: SearchTrial, event: Event, rungs: list[float]) -> None:
        """Keep what a trial says of itself, and its scores at all of the `rungs`: at each by what it had there, however late it says so."""
        trial.curve, trial.baseline, trial.first_s = event["curve"], event["baseline"], event["first_s"]
        if self._baseline is None:
            self._baseline = trial.baseline
        trial.scores += [self.score(trial, rung) for rung in rungs[len(trial.scores) :]]
        if trial.number == 1:
            self._time_first(trial)

    def score(self, trial: SearchTrial, seconds: float) -> float:
        """That of a trial after so many seconds of training. All are measured from the same return before training."""
        assert self._baseline is not None
        return mean_return(trial.curve, seconds, self._baseline, self.task.goal)

    def _time_first(self, defaults: SearchTrial) -> None:
        """Judge nobody before the defaults have learned, which may be never; from the beginning, if it is not known since they failed."""
        if defaults.first_s is not None or defaults.state != "running":
            never = 0.0 if defaults.state == "failed" else math.inf
            self.halving.begin_behind(never if defaults.first_s is None else defaults.first_s)

    def _at_rung(self, trial: SearchTrial, event: Event) -> None:
        rung = event["rung"]
        self._take(trial, event, self.halving.rungs[: rung + 1])
        there = [t.scores[rung] for t in self.trials.values() if t.kind == "search" and len(t.scores) > rung]
        goes_on = self.halving.goes_on(rung, trial.scores[rung], there)
        # the defaults are what others are measured by
        self.executor.answer(trial.number, go_on=goes_on or not trial.settings)

    def _ended(self, trial: SearchTrial, event: Event) -> None:
        trial.state, trial.ended_at, trial.message = event["state"], self.elapsed_s, event.get("message", "").strip()
        trial.seconds, trial.timesteps, trial.wall_s = (event.get(k, 0) for k in ("seconds", "timesteps", "wall_s"))
        if "curve" in event:
            rungs = self._rungs(trial)
            passed = {"stopped": [], "cut": [rung for rung in rungs if rung <= trial.seconds]}.get(trial.state, rungs)
            self._take(trial, event, passed)
        if trial.state == "failed":
            trial.scores, trial.failure = [], event["kind"]
            trial.message = trial.message.splitlines()[-1].removeprefix("raypid: ") if trial.message else event["kind"]
        self._log.add(trial)
        self._learn(trial)
        self.tell(self.line(trial))
        self._heed_failure(trial, event)

    def _learn(self, trial: SearchTrial) -> None:
        """Let the proposer know of a trial that has ended, and the rungs of the first."""
        if trial.number == 1:
            self._time_first(trial)
        if trial.kind != "search" or not trial.units:
            return
        if trial.scores or trial.failure in BY_SETTINGS:
            rung = max(0, len(trial.scores) - 1)
            self.proposer.tell(trial.units, trial.score, rung, stopped=trial.state not in ("finished", "goal"))
        else:
            self.proposer.forget(trial.units)

    def _heed_failure(self, trial: SearchTrial, event: Event) -> None:
        """Show a traceback once; end the search where nothing can work.

        Raises:
            UserError: the defaults are refused.
            Unwritten: the disk is full.
            CodeError, RuntimeError: many have failed in a row, or all.
        """
        if trial.state != "failed":
            self._failed = []
            return
        if event["kind"] == "unwritten":
            raise Unwritten(event["message"])
        if event["kind"] == "user" and not trial.settings:
            raise UserError(event["message"])
        if event["kind"] in ("diverged", "slow"):
            return  # its settings did it
        self._failed.append(trial)
        text, ended = event["traceback"].rstrip(), sum(t.state != "running" for t in self.trials.values())
        if len(self._failed) >= (3 if len(self._failed) == ended else MAX_FAILED):
            which = f"{'first' if len(self._failed) == ended else 'last'} {len(self._failed)}"
            message = f"The {which} trials have failed, so the search ends. The last: {trial.message} See {self.out}."
            raise CodeError(f"{text}\nraypid: {message}") if text else RuntimeError(message)
        if text and not self._told_traceback and event["kind"] == "error":
            self._told_traceback = True
            self.tell(text)

    def line(self, trial: SearchTrial) -> str:
        """What the user reads of a trial that has ended."""
        what = {"race": f"{trial.candidate} again", "found": f"{trial.candidate} anew", "defaults": "defaults"}.get(
            trial.kind, str(trial.number)
        )
        how = {"finished": "", "goal": "reached the goal", "failed": trial.message}.get(trial.state, trial.state)
        is_best = trial.kind == "search" and trial.state in ("finished", "goal") and self.best()[:1] == [trial]
        score = f"{trial.score:10.5g}" if trial.scores else " " * 9 + "-"
        about = f", {how}" if how else ""
        seed = f" (seed {trial.seed})" if trial.kind != "search" else ""
        text = (
            f"[{b.shown_seconds(self.elapsed_s):>7}] {what:>9} {score}  {b.shown_seconds(trial.seconds)}{about}{seed}"
        )
        return f"{text}; the best so far: {shortened(trial.settings)}" if is_best else text


def shortened(settings: Mapping[str, object], most: int = 70) -> str:
    """Settings in one line of a few."""
    parts = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    num = max((i for i in range(len(parts) + 1) if len(", ".join(parts[:i])) <= most), default=0)
    rest = [f"{len(parts) - num} more"] if num < len(parts) else []
    return ", ".join([*parts[:num], *rest]) or "the defaults"


# -- the folder ------------------------------------------------------------------------------------------------------


def write_search(out: Path, task: Task, plan: Plan, more: Mapping[str, object]) -> None:
    """Write what is needed to go on with a search.

    Raises:
        Unwritten: the disk is full.
    """
    about = {name: getattr(task, name) for name in (f.name for f in dataclasses.fields(task))}
    text = json.dumps({"task": about, "plan": dataclasses.asdict(plan), **more}, indent=2)
    with explained(out / SEARCH), replacing(out / SEARCH) as beside:
        beside.write_text(text + "\n")


def read_search(out: Path) -> tuple[Task, Plan, list[SearchTrial], dict[str, Any]]:
    """What a search was to do, what has ended, and what else `write_search` was given.

    Raises:
        UserError: the folder holds no search, or a damaged one.
    """
    path = out / SEARCH
    if not path.is_file():
        raise UserError(f"{out} holds no search to resume: it has no {SEARCH}." if out.exists() else nothing_at(out))
    try:
        about = read_json(path.read_text())
        assert isinstance(about, dict)
        task, plan = about.pop("task"), Plan(**about.pop("plan"))
        return Task(**task), plan, read_trials(out), about
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged: {error}.") from None
