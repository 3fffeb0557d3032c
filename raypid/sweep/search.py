"""A search for settings within a budget of wall time: an Optuna study of short trials, then a proof on fresh seeds.

Settings are only ever chosen on seeds below 100. The proof is on seeds from 1000 on: the settings found and the defaults are trained
side by side. Both are studies in the folder's journal, which `optuna-dashboard` opens.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from raypid.envs.make import Sample
from raypid.errors import CodeError, UserError
from raypid.phases import duration
from raypid.run.folder import clear_folder
from raypid.run.resolve import callbacks_of, resolve_config, spaces_of, without_effect
from raypid.runtime.resources import num_cores
from raypid.settings.config import Config, ConfigError, canonical
from raypid.settings.ranges import Choices
from raypid.storage.checkpoint import refusing
from raypid.storage.neighbours import nothing_at
from raypid.storage.outputs import Unwritten, explained
from raypid.storage.run_folder import EVALUATION
from raypid.sweep import budget as b
from raypid.sweep.budget import Plan
from raypid.sweep.processes import Event, Point, TrialProcesses
from raypid.sweep.space import SearchSpace, at, dotted, fixed_by, sample, search_space, units

JOURNAL = "study.log"
FORMAT = 2
"""Of what the studies hold."""
GRACE_S = 3.0
"""Seconds that a trial has to end when its time is over."""
MAX_SEED = 90
"""Of a search; those of further runs follow it, and all lie below 100."""
MAX_FAILED = 5
"""Trials that may fail in a row; after that many, something else is wrong than their settings."""
_STEPS = 100
"""Environment steps of an iteration with replay, so that it can end where a trial is judged. Nothing else depends on them."""
BY_SETTINGS = ("user", "diverged", "slow")
"""Failures that speak against the settings of a trial. Others are the environment's, or the machine's."""
_SAME_FOR_ALL = (
    "env", "env_config", "time_limit", "seed", "init_from", "evaluation_env", "evaluation_num_episodes", "evaluation_interval",
    "evaluation_parallel",
)  # fmt: skip
"""Settings that say what is learned and how it is measured: trials that differ in them cannot be compared."""
Kind: TypeAlias = Literal["search", "again", "found", "defaults"]
State: TypeAlias = Literal["running", "goal", "finished", "stopped", "cut", "failed"]
FULL = ("finished", "goal")
"""States of runs that had their whole time, or did not need it."""
Curve: TypeAlias = Sequence[Point]


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
    """Who proposes settings: auto, optuna (both are Optuna's TPE) or random."""

    def __post_init__(self) -> None:
        """Check all of it.

        Raises:
            UserError: the message says what does not fit.
        """
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"The seed of a search lies in [0, {MAX_SEED}], not {self.seed}: the proof has the rest.")
        if "seed" in self.fixed:
            raise ConfigError("seed is no setting of a search, which needs many: give it --seed.")
        self.fixed = dotted(self.fixed)
        for raw, value in self.overrides.items():
            name = canonical(raw)
            if isinstance(value, Mapping) and name in _SAME_FOR_ALL:
                raise ConfigError(f"{name} cannot be searched: trials that differ in it cannot be compared.")
            if name in self.fixed and self.fixed[name] != value:
                raise ConfigError(f"{name} is given for every trial and in the search space: leave one out.")
        self.fixed |= fixed_by(self.overrides)
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

    def below(self, concurrent: int) -> dict[str, object]:
        """Settings below all others, which follow from how many trials run side by side, and from when they are judged."""
        below: dict[str, object] = {} if self.config.on_ray else {"num_threads": max(1, num_cores() // concurrent)}
        steps = getattr(self.config, "steps_per_iteration", None)  # of replay; others have iterations of their own
        return below if steps is None else {**below, "steps_per_iteration": min(steps, _STEPS)}

    def settings(self, units: Mapping[str, float]) -> dict[str, Any]:
        """The settings at places in the unit cube, without those that have no effect beside the others."""
        values = at(self.space, units)
        idle = without_effect(self.run, self.config.replace(values), self._sample)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if name not in idle}

    def default(self, name: str) -> object:
        """The value of a setting where no trial says otherwise."""
        value = attrgetter(name)(self.config)
        return list(value) if isinstance(value, tuple) else value


@dataclass(kw_only=True)
class TrialRun:
    """One run of a search, as a study holds it: the user attribute "run" of a trial."""

    kind: Kind
    """search: settings are tried; again: good ones with another seed; found, defaults: the best and the defaults on fresh seeds."""
    folder: str
    candidate: int
    """Number of the trial in which these settings were first tried."""
    seed: int
    settings: dict[str, Any]
    """Those of the search space, by their dotted names; {}: the defaults."""
    state: State = "running"
    message: str = ""
    """What was wrong with one that failed."""
    curve: Curve = ()
    """Its evaluations, from the one before training on."""
    scores: list[float] = dataclasses.field(default_factory=list)
    """Those at the moments at which it was judged."""
    seconds: float = 0.0
    """Of training."""
    wall_s: float = 0.0
    """Seconds of everything from its order to its end; 0 if it was killed."""
    ended_at: float = 0.0
    """Seconds of the search when it ended."""


def mean_return(curve: Curve, seconds: float, goal: float | None = None) -> float:
    """The score of a trial: the mean over its first `seconds` of training of the return that its policy had.

    That is what a user gets who wants the most return soon: of two settings that end equally high the faster has the higher score, and one
    that is slow at the start, or makes steps slow, must make up for it by the end. Returns count up to the `goal`, and a trial that has
    reached it stands there for the rest, so that with a goal the score tells who reached it sooner. Between evaluations it is
    interpolated; after the last one it stays. Evaluations that came long after these `seconds` (LATE) say nothing of them and do not
    count.
    """
    times, returns, _ = np.array([point for point in curve if point[0] <= b.LATE * seconds]).T
    returns = np.minimum(returns, math.inf if goal is None else goal)
    early = times < seconds
    at, height = np.append(times[early], seconds), np.append(returns[early], np.interp(seconds, times, returns))
    return float(np.diff(at) @ (height[1:] + height[:-1])) / 2 / seconds


def learned_after(curve: Curve) -> float | None:
    """Seconds of training until the return was half way from the one before training to the best; None if nothing was learned.

    Something was learned if the best is better than the one before training by more than both 95% intervals.
    """
    if not curve:
        return None
    _, before, half = curve[0]
    _, best, half_of_best = max(curve, key=lambda point: point[1])
    if not best - half_of_best > before + half:  # NaN: one episode says nothing
        return None
    return next(time for time, mean, _ in curve if mean >= (before + best) / 2)


# -- the folder ------------------------------------------------------------------------------------------------------


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Optuna's distributions of the places in the unit intervals; a few values have one place each."""
    return {
        name: CategoricalDistribution([(i + 0.5) / len(range_.options) for i in range(len(range_.options))])
        if isinstance(range_, Choices)
        else FloatDistribution(0.0, 1.0)
        for name, range_ in space.items()
    }


def open_study(out: Path, name: Literal["search", "proof"]) -> optuna.Study:
    """Open a study in the journal of a folder.

    Raises:
        KeyError: there is none.
    """
    return optuna.load_study(study_name=name, storage=_storage(out))


def _storage(out: Path) -> JournalStorage:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return JournalStorage(JournalFileBackend(str(out / JOURNAL)))


def repair_journal(out: Path) -> None:
    """Remove what a killed process may have left: its lock, and a line that it had begun. The folder must be locked."""
    journal = out / JOURNAL
    (out / f"{JOURNAL}.lock").unlink(missing_ok=True)
    data = journal.read_bytes()
    if not data.endswith(b"\n"):
        journal.write_bytes(data[: data.rfind(b"\n") + 1])


def runs_of(study: optuna.Study) -> dict[str, TrialRun]:
    """The runs of a study that have ended, by their folders."""
    trials = study.get_trials(deepcopy=False)
    found = [TrialRun(**t.user_attrs["run"]) for t in trials if t.state.is_finished() and "run" in t.user_attrs]
    return {run.folder: run for run in found if run.state != "running"}


def write_search(out: Path, task: Task, plan: Plan, more: Mapping[str, object]) -> None:
    """Make the studies in the journal of a folder, in place of an earlier one, with what is needed to go on with the search.

    Raises:
        Unwritten: the disk is full.
    """
    about = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    with explained(out / JOURNAL):
        (out / JOURNAL).unlink(missing_ok=True)
        optuna.create_study(study_name="proof", storage=_storage(out), direction="maximize")
        study = optuna.create_study(study_name="search", storage=_storage(out), direction="maximize")
        for key, value in {"task": about, "plan": dataclasses.asdict(plan), **more, "format": FORMAT}.items():
            study.set_user_attr(key, value)


def read_search(out: Path) -> tuple[Task, Plan, dict[str, Any]]:
    """What a search was to do, and what else `write_search` was given.

    Raises:
        UserError: the folder holds no search, one of another format, or a damaged one.
    """
    if not (out / JOURNAL).is_file():
        raise UserError(f"{out} holds no search to resume: it has no {JOURNAL}." if out.exists() else nothing_at(out))
    with refusing(str(out / JOURNAL)):
        about = dict(open_study(out, "search").user_attrs)
        if (version := about.pop("format")) != FORMAT:
            raise UserError(f"{out} holds a search of format {version}; this raypid resumes format {FORMAT}.")
        return Task(**about.pop("task")), Plan(**about.pop("plan")), about


# -- the search ------------------------------------------------------------------------------------------------------


class Search:
    """Runs the trials and the proof. What has ended is in the studies, so that a search which was ended goes on from there.

    Args:
        out: the folder, which this process has locked, with a study (`write_search`).
        tell: shows a line to the user.
    """

    def __init__(
        self, task: Task, plan: Plan, out: Path, processes: TrialProcesses, tell: Callable[[str], None]
    ) -> None:
        self.task, self.plan, self.out, self.processes, self.tell = task, plan, out, processes, tell
        repair_journal(out)
        self.study, self.proof = open_study(out, "search"), open_study(out, "proof")
        self.runs = {**runs_of(self.study), **runs_of(self.proof)}
        self.found: TrialRun | None = None
        """The settings that did best; None: there were none beside the defaults."""
        self.first_rung: int | None = None
        """The first rung at which trials are judged; None until it is known when the defaults have learned."""
        self._trials: dict[str, optuna.Trial] = {}
        """Optuna's trials of the runs under way, by their folders."""
        self._proof_s = plan.trial_s
        """Seconds of training of each run of the proof."""
        self._began = time.monotonic() - max((run.ended_at for run in self.runs.values()), default=0.0)
        self._told_traceback = False
        self._num_failed = 0
        """Runs that have failed in a row until now."""
        self._prepare()

    def _prepare(self) -> None:
        """Choose the sampler, begin with the defaults, and repeat what was under way when the search was ended."""
        trials = self.study.get_trials(deepcopy=False)
        seed = self.task.seed + 1000 * len(trials)
        if self.task.by == "random":
            self.study.sampler = optuna.samplers.RandomSampler(seed)
        else:
            num_random = min(10, max(4, self.plan.trials // 3))
            self.study.sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=num_random, multivariate=True, constant_liar=True
            )
        self.study.pruner = optuna.pruners.NopPruner()
        if not trials:
            defaults = {name: self.task.default(name) for name in self.task.space}
            self.study.enqueue_trial(units(self.task.space, defaults), user_attrs={"settings": {}})
        for study in (self.study, self.proof):
            for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                study.tell(trial.number, state=TrialState.FAIL)
                if study is self.study:
                    about = {key: value for key, value in trial.user_attrs.items() if key != "run"}
                    study.enqueue_trial(trial.params, user_attrs=about)
        for run in self.of("search"):
            self._fit_plan(run, math.inf)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the search so far, of all its processes."""
        return time.monotonic() - self._began

    def of(self, *kinds: Kind) -> list[TrialRun]:
        """The runs of some kinds that have ended."""
        return [run for run in self.runs.values() if run.kind in kinds and run.state != "running"]

    def __call__(self) -> None:
        """Search. Afterwards `found` is known, and `runs` has everything.

        Raises:
            UserError: settings that cannot work.
            CodeError: the environment raises.
            Unwritten: the disk is full.
            RuntimeError: no trial could be judged, or they die.
        """
        try:
            with explained(self.out / JOURNAL):
                self._run_all(self._next_trial, self._explore_until)
                self.found = self._best()
                if self.found is not None:
                    self._run_all(partial(next, self._prove(self.found), None), lambda: self.plan.budget_s - b.REPORT_S)
        finally:
            self.processes.close()

    # -- which runs ------------------------------------------------------------------------------------------------

    def _next_trial(self) -> TrialRun | None:
        """Ask for the next trial: settings that wait to run again, or new ones. None if there is none to begin now."""
        if self._explore_until() - self.elapsed_s < self.plan.rungs[self.first_rung or 0]:
            return None  # it would not be judged
        tried = [run for run in self.runs.values() if run.kind == "search"]
        waiting = self.study.get_trials(deepcopy=False, states=[TrialState.WAITING])
        if not waiting and len(tried) >= self.plan.trials:
            return None
        trial = self.study.ask(distributions(self.task.space))
        about = {"candidate": trial.number, "seed": self.task.seed, **trial.user_attrs}
        if "settings" not in about:
            about["settings"] = self.task.settings(trial.params)
        kind: Kind = "search" if about["candidate"] == trial.number else "again"
        run = TrialRun(kind=kind, folder=f"trial-{trial.number:03}", **about)
        self._trials[run.folder] = trial
        return run

    def _explore_until(self) -> float:
        """When exploring must have ended. While nothing can be compared with the defaults, there is nothing to save time for."""
        if self.plan.trials > 1 and not any(run.settings for run in self.ranked()):
            return self.plan.budget_s - b.REPORT_S
        return self.plan.explore_until_s(self._turn_s())

    def _turn_s(self) -> float:
        """Seconds of a whole run, as planned or, where that is more, as measured: the median, since the first in a process waits for imports."""
        walls = [run.wall_s for run in self.runs.values() if run.state in FULL]
        return max(self.plan.trial_s + self.plan.overhead_s, float(np.median(walls)) if walls else 0.0)

    def ranked(self) -> list[TrialRun]:
        """The trials that were judged, best first: those that came further, then those with the higher score."""
        first = math.inf if self.first_rung is None else self.first_rung
        judged = [run for run in self.of("search") if len(run.scores) > first and run.state != "failed"]
        return sorted(judged, key=lambda run: (len(run.scores), run.scores[-1]), reverse=True)

    def again(self, trial: TrialRun) -> list[float]:
        """The scores of a trial's settings with other seeds. Its first run does not count, since luck has put it among the best too."""
        return [run.scores[-1] for run in self.of("again") if run.candidate == trial.candidate and run.scores]

    def _best(self) -> TrialRun | None:
        """The settings with the best mean score on other seeds; None if only the defaults were judged.

        Raises:
            RuntimeError: no trial was judged.
        """
        ranked = self.ranked()
        if not ranked:
            raise RuntimeError(f"No trial came far enough to be judged: give a longer --budget, or see {self.out}.")
        tried = [run for run in ranked if run.settings]
        scores = {run.folder: self.again(run) for run in tried}
        return max(tried, key=lambda run: (len(scores[run.folder]), np.mean(scores[run.folder] or 0.0)), default=None)

    def _prove(self, found: TrialRun) -> Iterator[TrialRun]:
        """Yield runs of the best settings and of the defaults on fresh seeds, in turns; more of them while there is time.

        If the trials took longer than planned, these runs are shorter, so that there are enough of them.
        """
        plan, until = self.plan, self.plan.budget_s - b.REPORT_S
        turns = math.ceil(max(1, 2 * b.MIN_FRESH - len(self.of("found", "defaults"))) / plan.concurrent)
        spare_s = (until - self.elapsed_s) / turns - self._turn_s()
        self._proof_s = min(plan.trial_s, max(plan.trial_s + spare_s, plan.rungs[0]))
        kinds: list[Kind] = ["found", "defaults"]
        for count in range(b.MAX_FRESH):
            num_turns = math.ceil(len(kinds) / plan.concurrent) + bool(self.processes.running)
            if count >= b.MIN_FRESH and self.elapsed_s + num_turns * self._turn_s() > until:
                return
            for kind in kinds:
                seed = b.FIRST_FRESH + count
                if (folder := f"{kind}-seed{seed}") not in self.runs:
                    self._trials[folder] = self.proof.ask()
                    settings = found.settings if kind == "found" else {}
                    yield TrialRun(kind=kind, folder=folder, candidate=found.candidate, seed=seed, settings=settings)

    # -- runs ------------------------------------------------------------------------------------------------------

    def _run_all(self, wanted: Callable[[], TrialRun | None], until: Callable[[], float]) -> None:
        """Run trials until none is wanted, or the time is over; what runs then is cut."""
        while True:
            left_s = until() - self.elapsed_s
            while left_s > 0 and self.processes.has_room and (run := wanted()):
                self._start(run, left_s)
            if not self.processes.running:
                return
            for folder in self.processes.running if left_s <= -GRACE_S else ():
                self.processes.kill(folder)
                self._ended(self.runs[folder], {"state": "cut", "message": "its iteration did not end in time"})
            for event in self.processes.wait(0.1):
                handle = self._at_moment if event["event"] == "moment" else self._ended
                handle(self.runs[event["trial"]], event)

    def _start(self, run: TrialRun, left_s: float) -> None:
        self.runs[run.folder] = run
        clear_folder(self.out / run.folder)  # a run that was broken off begins from the start
        self._trials[run.folder].set_user_attr("run", vars(run))
        moments = self._moments(run)
        self.processes.start(run.folder, {
            "run": self.task.run, "settings": {**self.task.fixed, **run.settings, "seed": run.seed},
            "below": self.task.below(self.plan.concurrent), "folder": str(self.out / run.folder),
            "until": moments[0], "ends_at": time.monotonic() + left_s,
            "keep": run.kind == "found", "on_ray": self.task.config.on_ray,
            "stop": {} if self.task.goal is None else {EVALUATION: self.task.goal},
            "before": next((other.curve[0] for other in self.runs.values() if other.curve), None),
            "first_within": b.LATE * moments[-1] if run.kind == "search" and run.settings else None,
        })  # fmt: skip

    def _moments(self, run: TrialRun) -> list[float]:
        """Seconds of training after which a run says what it has reached; the last is its end."""
        if run.kind != "search":
            return [self.plan.trial_s if run.kind == "again" else self._proof_s]
        if self.first_rung is not None:
            return self.plan.rungs
        longer = np.arange(self.plan.trial_s, self.plan.longest_s, self.plan.rungs[0])
        return [*self.plan.rungs, *map(float, longer[1:]), self.plan.longest_s]

    def score(self, run: TrialRun, seconds: float) -> float:
        """Compute the score of a run after so many seconds of training."""
        return mean_return(run.curve, seconds, self.task.goal)

    def _fit_plan(self, run: TrialRun, seconds: float) -> None:
        """Settle how long trials are and when they are judged, once the defaults have had their time.

        They have more of it as long as they have learned nothing. If they failed, the plan stays as it is, and trials are judged from the
        first rung on.
        """
        if run.settings or self.first_rung is not None or seconds < self.plan.trial_s:
            return
        learned_s = learned_after(run.curve)
        if learned_s is None and seconds < self.plan.longest_s:
            return
        if learned_s is None:
            learned_s = 0.0 if run.state == "failed" else math.inf
        self.plan = self.plan.for_task(learned_s)
        self.first_rung = self.plan.first_rung(learned_s)
        self.study.pruner = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=1, reduction_factor=b.REDUCTION, min_early_stopping_rate=self.first_rung
        )

    def _report(self, run: TrialRun, seconds: float) -> bool:
        """Report the scores at the rungs that have passed; whether the pruner would end the trial at the last of them.

        The defaults do not compete, so that some other settings get their whole time even if the defaults are best.
        """
        prune, trial = False, self._trials[run.folder]
        # a run that reached the goal before the defaults had their time is not judged, but has its scores
        is_settled = self.first_rung is not None or seconds == math.inf
        passed = sum(rung <= seconds for rung in self.plan.rungs) if is_settled else 0
        for i in range(len(run.scores), passed):
            run.scores.append(self.score(run, self.plan.rungs[i]))
            trial.report(run.scores[-1], b.REDUCTION**i)
            prune = bool(run.settings) and trial.should_prune()
        return prune

    def _at_moment(self, run: TrialRun, event: Event) -> None:
        run.curve = event["curve"]
        self._fit_plan(run, event["until"])
        later = [moment for moment in self._moments(run) if moment > event["until"]]
        if not later:
            self.processes.end(run.folder, "finished")
        elif self._report(run, event["until"]):
            self.processes.end(run.folder, "stopped")
        else:
            self.processes.go_on(run.folder, later[0])

    def _ended(self, run: TrialRun, event: Event) -> None:
        run.state, run.ended_at, run.message = event["state"], self.elapsed_s, event.get("message", "").strip()
        run.seconds, run.wall_s = event.get("seconds", 0.0), event.get("wall_s", 0.0)
        run.curve = event.get("curve", run.curve)
        if run.state == "failed":
            run.message = run.message.splitlines()[-1].removeprefix("raypid: ") if run.message else event["kind"]
        self._fit_plan(run, math.inf)
        self._tell_study(run, event.get("kind") in BY_SETTINGS)
        self.tell(self.line(run))
        self._heed_failure(run, event)

    def _tell_study(self, run: TrialRun, is_blamed: bool) -> None:
        """End Optuna's trial. Settings that failed count as stopped; a failure that says nothing about them does not count."""
        full, promising = run.state in FULL, False
        if run.kind != "search":
            run.scores = [self.score(run, self._moments(run)[-1])] if full else []
        elif full or run.state == "cut":
            stop = self._report(run, math.inf if full else run.seconds)
            promising = full and not stop and bool(run.settings)
        counts = is_blamed if run.state == "failed" else bool(run.scores)
        state = TrialState.COMPLETE if full else TrialState.PRUNED if counts else TrialState.FAIL
        trial = self._trials.pop(run.folder)
        trial.set_user_attr("run", vars(run))
        trial.study.tell(trial, run.scores[-1] if full else None, state)
        for i in range(b.SEEDS_AGAIN if promising else 0):
            about = {"settings": run.settings, "candidate": run.candidate, "seed": run.seed + 1 + i}
            self.study.enqueue_trial(trial.params, user_attrs=about)

    def _heed_failure(self, run: TrialRun, event: Event) -> None:
        """Show a traceback once; end the search where nothing can work.

        Raises:
            UserError: the defaults are refused.
            Unwritten: the disk is full.
            CodeError, RuntimeError: MAX_FAILED have failed in a row.
        """
        if run.state != "failed":
            self._num_failed = 0
            return
        kind, text = event["kind"], event["traceback"].rstrip()
        if kind == "unwritten":
            raise Unwritten(event["message"])
        if kind == "user" and not run.settings:
            raise UserError(event["message"])
        if kind in BY_SETTINGS:
            return
        self._num_failed += 1
        if self._num_failed == MAX_FAILED:
            said = f"The last {MAX_FAILED} trials failed, so the search ends. The last: {run.message} See {self.out}."
            raise CodeError(f"{text}\nraypid: {said}") if text else RuntimeError(said)
        if text and not self._told_traceback:
            self._told_traceback = True
            self.tell(text)

    def line(self, run: TrialRun) -> str:
        """What the user reads of a run that has ended."""
        names = {"search": str(run.candidate), "again": f"{run.candidate} again", "found": f"{run.candidate} anew"}
        what = names.get(run.kind, run.kind)
        ways = {"finished": "", "goal": ", reached the goal", "failed": f", {run.message}"}
        how = ways.get(run.state, f", {run.state}")
        score = f"{run.scores[-1]:10.5g}" if run.scores else " " * 9 + "-"
        seed = f" (seed {run.seed})" if run.kind != "search" else ""
        best = "; the best so far" if run.state in FULL and self.ranked()[:1] == [run] else ""
        elapsed = duration(self.elapsed_s)
        return f"[{elapsed:>7}] {what:>9} {score}  {duration(run.seconds)}{how}{seed}{best}"
