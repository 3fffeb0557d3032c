"""Which of several groups of runs is better, by how much and how surely.

A group is called better only if Welch's t says so at 5% (`statistics.difference`). Of several groups all pairs count, since the
leader is chosen by the same numbers: all intervals hold at once (Bonferroni). Simulated with 2 to 20 equal groups of 3 to 10 seeds, one is
wrongly called better in at most 5% of the cases. Runs are not paired by seed unless asked for: the seed decides little of a return (the same
seeds of two learning rates, PPO on CartPole-v1: correlation -0.1 to -0.4), and pairs have half the degrees of freedom.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from raypid.errors import UserError, listed, shorten
from raypid.report.panel import count
from raypid.report.runs import check_key, group_by_settings, grouped
from raypid.report.statistics import (
    MIN_SEEDS,
    Column,
    Difference,
    difference,
    probability_of_improvement,
    seeds_needed,
)
from raypid.storage.run_folder import COUNTS, EVALUATION, FINAL, NAMES, TRAINING, RunFolder

LOWER = (*COUNTS, "time_", "lost/", "timing/")
"""Prefixes of keys where less is better."""
UNEQUAL = 1.1
"""Ratio of the steps of two groups above which the comparison says that it is one of unequal steps."""
LEVEL = 0.95
AROUND = 0.25
"""Largest gap between two values that is interpolated, as a fraction of the steps or seconds so far; neighbouring results always are."""
ALIKE = 0.02
"""Sides end alike if all their runs end within this fraction of the range of returns that they went through."""
EVALUATIONS = 10
"""Evaluations that every run needs, all at the same steps, before runs are compared by their mean over training. Curves that are known at
different points differ for that reason alone."""
ASIDE = 0.02
"""Largest distance of evaluations that count as at the same steps, as a fraction of all steps."""
GRID = 1000
"""Points at which a curve is averaged."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A number of environment steps or seconds since a run began."""

    value: float
    x: Literal["timesteps_total", "time_total_s"] = "timesteps_total"

    def __str__(self) -> str:
        return f"{count(self.value)} steps" if self.x == "timesteps_total" else f"{self.value:g} s"


@dataclass(frozen=True, slots=True)
class Question:
    """What is compared, and how."""

    metric: str | None = None
    """A key of the results; None: the best measure of performance that all runs have."""
    at: Moment | None = None
    """What was there at this moment; runs that came less far do not count. None: the end of each run."""
    on_the_way: bool = False
    """The mean up to `at`, or up to where the shortest run ends."""
    lower: bool = False
    """Less of the metric is better."""
    paired: bool = False
    """Runs of the same seeds are compared with each other."""

    def measure(self, name: str, key: str, value: Callable[[RunFolder], float]) -> Measure:
        """Make a measure of a key."""
        return Measure(name, key, value, self.lower or key.startswith(LOWER))


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one setting with different seeds, on one or several tasks."""

    label: str
    runs: list[RunFolder]


@dataclass(frozen=True, slots=True)
class Measure:
    """The number by which runs are compared."""

    name: str
    key: str
    """The key of the results from which the number is made."""
    value: Callable[[RunFolder], float]
    """The number of one run; NaN if it has none."""
    is_lower_better: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What a side reached, and what the leader reached beyond it."""

    label: str
    runs: dict[str, list[RunFolder]]
    """By task."""
    values: dict[str, Column]
    """By task, one for each seed."""
    gap: Difference = Difference(0.0, math.nan, math.nan, math.nan, LEVEL, False)
    """Leader minus this side, in the measure's unit; of several tasks, in parts of each task's range."""
    by_task: dict[str, Difference] = field(default_factory=dict)
    """Leader minus this side, in the measure's unit."""
    probability: float | None = None
    """Fraction of all pairs (a run of each side; if paired, of the same seed) in which the leader's run is better. A tie counts half.
    None if a side has fewer than MIN_SEEDS runs of a task."""
    seeds_needed: int | None = None
    """Seeds of each side with which such a difference would be called sure in 80% of cases; None if over 1,000 or not known."""

    @property
    def seeds(self) -> str:
        """The number of seeds, such as "3" or "3 to 5" in different tasks."""
        counts = sorted(map(len, self.values.values()))
        return " to ".join(str(number) for number in dict.fromkeys([counts[0], counts[-1]]))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer."""

    measure: Measure
    tasks: list[str]
    standings: list[Standing]
    """All sides, best first. The first one is the leader, surely or not."""
    paired: bool
    notes: list[str]
    way: Comparison | None = None
    """The comparison by mean return over training, of the leader and the sides that end like it. It decides which of them leads."""

    @property
    def leader(self) -> Standing:
        return self.standings[0]

    @property
    def rivals(self) -> list[Standing]:
        """All but the leader."""
        return self.standings[1:]

    @property
    def others(self) -> list[Standing]:
        """The rivals that do not end like the leader."""
        return self.standings[len(self.way.standings) :] if self.way else self.rivals

    @property
    def is_sure(self) -> bool:
        """Whether the leader is better than every other side."""
        return all(rival.gap.is_sure for rival in self.others) and (self.way is None or self.way.is_sure)


def check_one_setting(runs: Sequence[RunFolder], name: str) -> None:
    """Check that the runs of a folder of this name have the same settings but for the seed.

    Raises:
        UserError: the message names what differs.
    """
    for groups in grouped(group_by_settings(runs), lambda group: group.task).values():
        if len(groups) > 1:
            texts = [" ".join(f"{key}={value}" for key, value in group.apart.items()) for group in groups]
            raise UserError(
                f"{name} holds runs of {len(groups)} settings, so it is not one side of a comparison ({shorten('; '.join(texts), 300)}). "
                f"`raypid compare {name}` alone compares them with each other; or give folders with one setting each."
            )


def compare(sides: Sequence[Side], question: Question = Question(), *, skip_empty: bool = False) -> Comparison:
    """Compare two or more sides. Sides that end alike are also compared by their mean return over training.

    Args:
        skip_empty: leave out sides without a run that counts; it is no error if a single side is left.

    Raises:
        UserError: the sides share a run or no task, no run of a side counts, no result has the metric, or runs cannot be paired.
    """
    notes: list[str] = []
    _check_apart(sides)
    if question.paired:
        sides = [Side(side.label, sorted(side.runs, key=lambda run: str(run.seed))) for side in sides]
    tasks = _common_tasks(sides, notes)
    runs = [run for side in sides for run in side.runs if run.task in tasks and _counts(run, question.at)]
    if question.metric is not None:
        check_key(runs, question.metric)
    measure = _mean_on_the_way(runs, question) if question.on_the_way else _choose_measure(runs, question, notes)
    if measure is None:
        raise UserError("These runs have no stretch in common over which a mean could be taken.")
    if skip_empty:
        sides = [side for side in sides if any(math.isfinite(measure.value(run)) for run in side.runs if run in runs)]
    if not sides:
        raise UserError(f"No run has a {measure.name} that counts.")
    standings = [_standing(side, tasks, measure, question.at, notes) for side in sides]
    if question.paired:
        _check_pairs(standings)
    by_end = question.at is None and not question.on_the_way and not measure.is_lower_better
    if by_end:
        _note_steps(standings, notes)
    pairs = max(1, math.comb(len(standings), 2))
    ranked = _ranked(standings, measure, pairs, question.paired)
    found = Comparison(measure, tasks, ranked, question.paired, notes)
    return _break_ties(found, pairs) if by_end and question.metric is None else found


def _ranked(
    standings: Sequence[Standing], measure: Measure, pairs: int, paired: bool, first: Sequence[str] = ()
) -> list[Standing]:
    """Rank sides, best mean first, and compare each with the leader.

    Args:
        pairs: number of pairs of sides for which the intervals hold together.
        first: labels of sides that come first, in this order.
    """
    tasks = list(standings[0].values)
    sign = -1.0 if measure.is_lower_better else 1.0
    scales = dict.fromkeys(tasks, 1.0)
    if len(tasks) > 1:  # the range from a task's worst run to its best
        scales = {task: float(np.ptp(np.concatenate([s.values[task] for s in standings]))) or 1.0 for task in tasks}

    def place(side: Standing) -> tuple[int, float]:
        mean = float(np.mean([side.values[task].mean() / scales[task] for task in tasks]))
        return first.index(side.label) if side.label in first else len(first), -sign * mean

    level = 1 - (1 - LEVEL) / pairs
    ranked = sorted(standings, key=place)
    compared = []
    for side in ranked:
        columns = [[sign * one.values[task] for task in tasks] for one in (ranked[0], side)]
        ours, theirs = ([column / scales[task] for column, task in zip(part, tasks)] for part in columns)
        each = 1 - (1 - level) / len(tasks)
        by_task = {task: difference([a], [b], paired=paired, level=each) for task, a, b in zip(tasks, *columns)}
        gap = difference(ours, theirs, paired=paired, level=level)
        few = min(map(len, [*ours, *theirs])) < MIN_SEEDS
        chance = None if few else probability_of_improvement(ours, theirs, paired=paired)
        needed = seeds_needed(ours, theirs, paired=paired, level=level)
        compared.append(replace(side, gap=gap, by_task=by_task, probability=chance, seeds_needed=needed))
    return compared


def _break_ties(found: Comparison, pairs: int) -> Comparison:
    """If sides end like the leader, rank them and the leader by their mean return over training."""
    alike = [s for s in found.standings if s is found.leader or not s.gap.is_sure and _end_alike(found.leader, s)]
    runs = [run for standing in alike for there in standing.runs.values() for run in there]
    measure = _mean_on_the_way(runs, Question())
    if len(alike) < 2 or measure is None:
        return found
    on_the_way = [replace(standing, values=_values(standing.runs, measure)) for standing in alike]
    way = replace(found, measure=measure, standings=_ranked(on_the_way, measure, pairs, found.paired), notes=[])
    first = [standing.label for standing in way.standings]
    return replace(found, standings=_ranked(found.standings, found.measure, pairs, found.paired, first), way=way)


def _end_alike(a: Standing, b: Standing) -> bool:
    """Whether all runs of two sides end within ALIKE of each other."""
    for task in a.values:
        ends = np.concatenate([a.values[task], b.values[task]])
        returns = [run.curve("timesteps_total", TRAINING)[1] for run in [*a.runs[task], *b.runs[task]]]
        if np.ptp(ends) > ALIKE * np.ptp(np.concatenate([ends, *returns])):
            return False
    return True


# -- what is compared --------------------------------------------------------------------------------------------------


def _choose_measure(runs: Sequence[RunFolder], question: Question, notes: list[str]) -> Measure:
    """Choose the number by which runs are compared, at a moment or at their ends.

    Without a metric: the environment steps to the goal, if all runs stopped at the same one; else the best policy's final episodes, if all
    have played them; else an evaluation, unless some run has none near; else the training return. The best evaluation does not serve,
    because it grows with the number of evaluations.
    """
    metric, at = question.metric, question.at
    if at is not None:
        evaluated = all(math.isfinite(_value_at(run, EVALUATION, at)) for run in runs)
        if metric is None and not evaluated and any(EVALUATION in run.keys for run in runs):
            notes.append(f"Not every run was evaluated shortly before and after {at}: training returns are compared.")
        key = metric or (EVALUATION if evaluated else TRAINING)
        name = f"{_name_of(key)} at {at}"
    elif metric is None and (goal := _common_goal(runs)) is not None:
        return Measure(f"environment steps to {goal}", "timesteps_total", lambda run: run.steps, True)
    else:
        newest = [(run.curve("timesteps_total", EVALUATION)[0].max(initial=-1), run.steps) for run in runs]
        evaluated = all(step >= (1 - AROUND) * end for step, end in newest)
        key = metric or (FINAL if all(run.final for run in runs) else EVALUATION if evaluated else TRAINING)
        name = f"{'last ' if key == EVALUATION else ''}{_name_of(key)}"
    return question.measure(name, key, lambda run: run.last(key) if at is None else _value_at(run, key, at))


def _value_at(run: RunFolder, key: str, at: Moment) -> float:
    """The value of a key at a moment, interpolated; NaN if the run has no values close around it.

    After its end, a run that diverged keeps its last value, and so does a run that stopped because this key reached its goal.
    """
    xs, ys = run.curve(at.x, key)
    if not len(xs) or at.value < xs[0]:
        return math.nan
    if at.value > xs[-1]:
        return float(ys[-1]) if key in run.ending.reached or run.ending.state == "diverged" else math.nan
    iteration = _gap_around(run.curve(at.x, at.x)[0], at.value)
    is_close = _gap_around(xs, at.value) <= max(AROUND * at.value, iteration)
    return float(np.interp(at.value, xs, ys)) if is_close else math.nan


def _gap_around(xs: Column, place: float) -> float:
    """The distance between the values before and after a place; 0 if a value is there, or if it is beyond either end."""
    after = int(np.searchsorted(xs, place))
    return 0.0 if after in (0, len(xs)) or xs[after] == place else float(xs[after] - xs[after - 1])


def _mean_on_the_way(runs: Sequence[RunFolder], question: Question) -> Measure | None:
    """The mean of the metric up to a moment, or to where the shortest run of each task ends: the area under the curve, by its length.

    Without a metric: of evaluations if all runs were often evaluated, at the same steps, else of training returns. None if the runs of a
    task have no stretch in common.
    """
    metric, until = question.metric, question.at
    x = until.x if until else "timesteps_total"
    by_task = grouped(runs, lambda run: run.task)
    for key in [metric] if metric else [EVALUATION, TRAINING]:
        spans = {task: _span(there, x, key, until) for task, there in by_task.items()}
        is_alike = (
            key != EVALUATION or metric or all(_evaluated_alike(by_task[t], x, *span) for t, span in spans.items())
        )
        if spans and is_alike and all(first < last for first, last in spans.values()):
            break
    else:
        return None
    first, last = next(iter(spans.values()))
    stretch = "over equal steps"
    if len(spans) == 1:
        begin = "over the first" if first <= 0.1 * last else f"from {Moment(first, x)} to"
        stretch = f"{begin} {Moment(last, x)}"

    def mean(run: RunFolder) -> float:
        return float(np.interp(np.linspace(*spans[run.task], GRID), *run.curve(x, key)).mean())

    return question.measure(f"mean {_name_of(key)} {stretch}", key, mean)


def _span(runs: Sequence[RunFolder], x: str, key: str, until: Moment | None) -> tuple[float, float]:
    """(where all runs have begun, where the first one ends); (inf, -inf) if a run has no values. Runs that diverged do not end it."""
    columns = [run.curve(x, key)[0] for run in runs]
    if not all(map(len, columns)):
        return math.inf, -math.inf
    ends = [xs[-1] for xs, run in zip(columns, runs) if run.ending.state != "diverged"]
    last = min(ends) if ends else max(xs[-1] for xs in columns)
    return float(max(xs[0] for xs in columns)), min(float(last), until.value if until else math.inf)


def _evaluated_alike(runs: Sequence[RunFolder], x: str, first: float, last: float) -> bool:
    """Whether all runs were evaluated often enough between these places, and at the same ones."""
    columns = [run.curve(x, EVALUATION)[0] for run in runs]
    places = [xs[(xs >= first * (1 - ASIDE)) & (xs <= last * (1 + ASIDE))] for xs in columns]
    if not min(map(len, places)) == max(map(len, places)) >= EVALUATIONS:
        return False
    return float(np.ptp(np.stack(places), axis=0).max()) <= ASIDE * last


def _name_of(key: str) -> str:
    return "time in seconds" if key == "time_total_s" else NAMES.get(key, key)


def _common_goal(runs: Sequence[RunFolder]) -> str | None:
    """The return at which all runs stopped, such as "evaluation return 475"; None if they did not."""
    goals = set()
    for run in runs:
        key = next((key for key in run.ending.reached if key.endswith(TRAINING)), "")
        goals.add((key, float(run.stop.get(key, 0)), run.task))
    keys = {key for key, _, _ in goals}
    if len(keys) != 1 or "" in keys or len(goals) > len({task for _, _, task in goals}):
        return None
    key, goal, _ = next(iter(goals))
    return f"{NAMES[key]} {goal:g}" if len(goals) == 1 else f"the goal of the {NAMES[key]}"


def _check_apart(sides: Sequence[Side]) -> None:
    """Check that no run is on two sides, nor a copy of it.

    Raises:
        UserError
    """
    seen: dict[str, tuple[RunFolder, Side]] = {}
    for side in sides:
        for run in side.runs:
            fingerprint = repr((run.params, run.results[-1:]))  # with the seconds of the run
            other, there = seen.setdefault(fingerprint, (run, side))
            if there is not side:
                raise UserError(f"{run.path} is on both sides, once as {other.path}: give each run once.")


def _common_tasks(sides: Sequence[Side], notes: list[str]) -> list[str]:
    by_side = {side.label: dict.fromkeys(run.task for run in side.runs) for side in sides}
    every = dict.fromkeys(task for tasks in by_side.values() for task in tasks)
    common = [task for task in every if all(task in tasks for tasks in by_side.values())]
    if not common:
        theirs = "; ".join(f"{label}: {', '.join(sorted(tasks))}" for label, tasks in by_side.items())
        raise UserError(
            f"Returns of different environments do not compare, and the sides have none in common ({theirs})."
        )
    if alone := [task for task in every if task not in common]:
        notes.append(f"Not all sides have runs on {', '.join(alone)}: left out.")
    return common


def _counts(run: RunFolder, at: Moment | None) -> bool:
    """Whether a run counts. At a moment, it does if it came so far, reached its goal before, or diverged; else unless it is under way or was
    broken off, since it might have done better."""
    if at is None:
        return bool(run.results) and run.ending.state in ("finished", "stopped early", "diverged")
    return run.last(at.x) >= at.value or run.ending.at_goal or run.ending.state == "diverged"


def _standing(side: Side, tasks: Sequence[str], measure: Measure, at: Moment | None, notes: list[str]) -> Standing:
    """The values of the runs of a side that count, with notes on those that do not, or not with all that they might have reached."""
    counted: dict[str, dict[object, RunFolder]] = {task: {} for task in tasks}
    before = len(notes)
    for run in side.runs:
        if run.task not in tasks:
            continue
        there, seed = counted[run.task], run.path if run.seed is None else run.seed
        state = "stopped at its goal" if run.ending.at_goal else run.ending.state
        came = f"{run.path}: {state} at step {count(run.steps)},"
        if not _counts(run, at):
            notes.append(f"{came} does not count{f' at {at}' if at else ''}.")
        elif not math.isfinite(measure.value(run)):
            notes.append(f"{run.path}: no {measure.name}, does not count.")
        elif seed in there:
            notes.append(f"{run.path} has the seed of {there[seed].path}, does not count: it is no further sample.")
        else:
            there[seed] = run
            if run.ending.state == "diverged" or (at is not None and run.last(at.x) < at.value):
                notes.append(f"{came} counts with what it had reached.")
    if lacking := [task for task, there in counted.items() if not there]:
        hint = "" if at else " `--at STEPS` also compares runs that have not ended."
        raise UserError(f"No run of {side.label} on {lacking[0]} counts. {''.join(notes[before : before + 1])}{hint}")
    runs = {task: list(there.values()) for task, there in counted.items()}
    return Standing(side.label, runs, _values(runs, measure))


def _values(runs: Mapping[str, Sequence[RunFolder]], measure: Measure) -> dict[str, Column]:
    return {task: np.array([measure.value(run) for run in there]) for task, there in runs.items()}


def _note_steps(standings: Sequence[Standing], notes: list[str]) -> None:
    """Say so if runs stopped at a goal, or had other numbers of steps."""
    at_goal = {s.label: [run.ending.at_goal for runs in s.runs.values() for run in runs] for s in standings}
    stopped = [f"{label} ({sum(there)} of {len(there)} runs)" for label, there in at_goal.items() if any(there)]
    if stopped:
        notes.append(f"Stopped at a goal and might have got further: {', '.join(stopped)}.")
    for task in standings[0].runs:
        sides = {s.label: [run for run in s.runs[task] if not run.ending.at_goal] for s in standings}
        every = [run.steps for runs in sides.values() for run in runs]
        if every and max(every) > UNEQUAL * min(every):
            ranges = "; ".join(f"{label}: {steps_of(runs)}" for label, runs in sides.items() if runs)
            on = f" on {task}" if len(standings[0].runs) > 1 else ""
            notes.append(f"Unequal steps{on} ({ranges}): `--at {min(every):.0f}` compares after equally many.")


def steps_of(runs: Sequence[RunFolder]) -> str:
    """The median number of steps, or the range if runs differ in it."""
    every = sorted(run.steps for run in runs if math.isfinite(run.steps))
    if every and every[-1] > UNEQUAL * every[0]:
        return f"{count(every[0])} to {count(every[-1])}"
    return count(every[len(every) // 2]) if every else "-"


def _check_pairs(standings: Sequence[Standing]) -> None:
    """Check that all sides have the same seeds.

    Raises:
        UserError
    """
    first = standings[0]
    for standing, task in itertools.product(standings, first.runs):
        ours, theirs = ([str(run.seed) for run in one.runs[task]] for one in (standing, first))
        if ours != theirs or "None" in ours:
            raise UserError(
                f"Runs are paired by seed, and {first.label} and {standing.label} have different seeds on {task}: "
                f"{', '.join(theirs)} and {', '.join(ours)}. Leave out --paired, or run the same seeds."
            )


# -- as text -----------------------------------------------------------------------------------------------------------


def headline(found: Comparison) -> str:
    """The answer in one line."""
    if found.way is not None:
        return _headline_with_way(found, found.way)
    if len(found.rivals) > 1:
        return _headline_of_many(found)
    a, b, name = found.leader, found.rivals[0], found.measure.name
    seeds = f"{a.seeds} and {b.seeds} seeds" if a.seeds != b.seeds else f"{a.seeds} seed{'s' * (a.seeds != '1')} each"
    size, on = 1.0, f"{name} on {len(found.tasks)} environments, in parts of each one's range"
    if len(found.tasks) == 1:
        ours, theirs, size = _means(a, b, found.tasks[0])
        on = f"{name}{':' * name[-1].isdigit()} {ours} against {theirs}"
    interval = f"{_level(b.gap)} {_interval(b.gap, size)}" if math.isfinite(b.gap.low) else "no interval"
    by = f"{figure(b.gap.estimate, size)} ({interval}), {seeds}"
    if not b.gap.is_sure:
        return f"Cannot tell {a.label} from {b.label}: {on}, difference {by}. {_needed(b)}"
    way = "lower" if found.measure.is_lower_better else "higher"
    p = "p < 0.001" if b.gap.p < 0.001 else f"p = {b.gap.p:.2g}"
    return f"{a.label} is better than {b.label}: {on}, {way} by {by}, {p}."


def _headline_with_way(found: Comparison, way: Comparison) -> str:
    alike = len(way.standings)
    who = "Both" if len(found.standings) == 2 else f"{alike} of {len(found.standings)}"
    where = "alike"
    if len(found.tasks) == 1:
        means = dict.fromkeys(figure(float(s.values[found.tasks[0]].mean())) for s in found.standings[:alike])
        where = f"at {', '.join(list(means)[:3])} ({found.measure.name})"
    answer = headline(way).replace("Cannot tell", "one cannot tell", 1)
    for what, is_sure in (("Worse", True), ("Cannot be told from the first", False)):
        if labels := [rival.label for rival in found.others if rival.gap.is_sure is is_sure]:
            answer += f" {what} at the end: {listed(labels, 3)}."
    return f"{who} end {where}; on the way {answer}"


def _headline_of_many(found: Comparison) -> str:
    unsure = [rival for rival in found.rivals if not rival.gap.is_sure]
    leader, others, name = found.leader.label, len(found.rivals), found.measure.name
    if not unsure:
        return f"{leader} is the best of {others + 1}, by {name}."
    if len(unsure) == others:
        return f"Cannot tell which of {others + 1} is best by {name}: {leader} leads. {_needed(unsure[0])}"
    than = f"better than {others - len(unsure)} of the {others} others"
    near = listed([rival.label for rival in unsure], 3)
    return f"{leader} leads by {name}: {than}, cannot be told from {near}. {_needed(unsure[0])}"


def _needed(rival: Standing) -> str:
    """Say how many seeds would be needed."""
    if not math.isfinite(rival.gap.low):
        return f"A single seed says nothing of others: at least {MIN_SEEDS} of each are needed."
    if rival.gap.estimate == 0:
        return "They are alike."
    if rival.seeds_needed is None:
        return "If it is real, it is too small to be seen with 1,000 seeds of each."
    return f"About {rival.seeds_needed} seeds of each would show a difference of this size."


def figure(value: float, size: float | None = None, sign: str = "") -> str:
    """A number with as many decimals as one of this size deserves."""
    size = abs(value) if size is None else size
    exponent = math.floor(math.log10(size)) if size > 0 and math.isfinite(size) else 0
    decimals = 0 if exponent >= 3 else 1 if exponent >= 1 else min(8, 2 - exponent)
    return f"{value:{sign},.{decimals}f}"


def _means(a: Standing, b: Standing, task: str) -> tuple[str, str, float]:
    """The means of two sides as text, and the size that decides how many decimals they have."""
    means = [float(side.values[task].mean()) for side in (a, b)]
    size = max(map(abs, means))
    return figure(means[0], size), figure(means[1], size), size


def _level(gap: Difference) -> str:
    return f"{100 * gap.level:.4g}% interval"


def _interval(gap: Difference, size: float) -> str:
    return f"{figure(gap.low, size)} to {figure(gap.high, size)}" if math.isfinite(gap.low) else "-"


def table_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of a table and its head: a row for each task if there are two sides, else one for each side. Empty for one task and
    two sides."""
    one = found.tasks[0] if len(found.tasks) == 1 else ""
    if len(found.rivals) > 1:
        return _rows_of_sides(found, one)
    (rival,) = found.rivals
    labels = found.leader.label, rival.label
    rows = []
    for task, gap in rival.by_task.items():
        ours, theirs, size = _means(found.leader, rival, task)
        verdict = "cannot tell" if not gap.is_sure else "better" if gap.estimate > 0 else "worse"
        rows.append((task, ours, theirs, figure(gap.estimate, size, "+"), _interval(gap, size), verdict))
    return [] if one else [("environment", *labels, "difference", _level(gap), ""), *rows]


def _rows_of_sides(found: Comparison, one: str) -> list[tuple[str, ...]]:
    """The rows of sides, with their means if there is only `one` task."""
    size = abs(found.leader.values[one].mean()) if one else 1.0
    rows = [("", "seeds", *([found.measure.name] if one else []), "behind", _level(found.rivals[0].gap), "")]
    for side in found.standings:
        gap = side.gap
        verdict = "worse" if gap.is_sure else "cannot tell" if side in found.others else "ends alike"
        behind = (figure(gap.estimate, size), _interval(gap, size), verdict)
        mean = [figure(side.values[one].mean(), size)] if one else []
        rows.append((side.label, side.seeds, *mean, *(("", "", "leads") if side is found.leader else behind)))
    return rows


def method_line(found: Comparison) -> str:
    """Describe the statistics behind the answer; of two sides also in how many pairs of runs the leader's was better."""
    several = f", over {len(found.tasks)} environments" if len(found.tasks) > 1 else ""
    test = "paired t-test" if found.paired else "Welch's t-test"
    if len(found.rivals) > 1:
        return f"Means over seeds{several}, {test}; the intervals hold together."
    text, (rival,) = f"Means over seeds{several}, {test}.", found.rivals
    if rival.probability is None:
        return text
    pairs = "pairs of the same seed" if found.paired else "pairs of runs"
    return f"{text} {found.leader.label} did better than {rival.label} in {rival.probability:.0%} of all {pairs}."
