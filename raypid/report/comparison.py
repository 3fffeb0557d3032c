"""Which of several groups of runs is better, by how much and how surely.

A group is called better only if Welch's t says so at 5% (`statistics.difference`). Of several groups all pairs count, since the
leader is chosen by the same numbers: all intervals hold at once (Bonferroni). Simulated with 2 to 20 equal groups of 3 to 10 seeds, one is
wrongly called better in at most 5% of the cases. Runs are not paired by seed unless asked for: the seed decides little of a return (the same
seeds of two learning rates, PPO on CartPole-v1: correlation -0.1 to -0.4), and pairs have half the degrees of freedom.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from raypid.errors import UserError
from raypid.report.panel import count, some
from raypid.report.runs import Group, check_key, group_by_settings, grouped
from raypid.report.statistics import (
    MIN_SEEDS,
    Column,
    Difference,
    difference,
    probability_of_improvement,
    seeds_needed,
)
from raypid.storage.run_folder import EVALUATION, NAMES, TRAINING, RunFolder

LOWER = (
    "timesteps_total",
    "time_",
    "training_iteration",
    "episodes_total",
    "learner_updates_total",
    "lost/",
    "timing/",
)
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
class Side:
    """Runs of one setting with different seeds, on one or several tasks."""

    label: str
    runs: list[RunFolder]


@dataclass(frozen=True, slots=True)
class Measure:
    """The number by which runs are compared."""

    name: str
    value: Callable[[RunFolder], float]
    """The number of one run; NaN if it has none."""
    is_lower_better: bool = False
    precision: Callable[[RunFolder], tuple[float, float]] | None = None
    """(half the width of the 95% interval of a run's value, number of its episodes); None if these are not known."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The values that a side reached, by task, one for each seed."""

    label: str
    runs: dict[str, list[RunFolder]]
    values: dict[str, Column]

    @property
    def seeds(self) -> str:
        """The number of seeds, such as "3" or "3 to 5" in different tasks."""
        counts = sorted({len(values) for values in self.values.values()})
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


@dataclass(frozen=True, slots=True)
class Rival:
    """The leader against another side."""

    standing: Standing
    overall: Difference
    """Leader minus this side, in the measure's unit; of several tasks, in parts of each task's range."""
    by_task: dict[str, Difference]
    probability: float | None
    """Fraction of all pairs (a run of each side; if paired, of the same seed) in which the leader's run is better. A tie counts half.
    None if a side has fewer than MIN_SEEDS runs of a task."""
    seeds_needed: int | None
    """Seeds of each side with which such a difference would be called sure in 80% of cases; None if over 1,000 or not known."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer."""

    measure: Measure
    tasks: list[str]
    leader: Standing
    """The side with the best mean, surely or not."""
    rivals: list[Rival]
    """The others, best first."""
    paired: bool
    notes: list[str]
    way: Comparison | None = None
    """The comparison by mean return over training, of the leader and the sides that end like it. It decides which of them leads."""

    @property
    def standings(self) -> list[Standing]:
        """All sides, best first."""
        return [self.leader, *(rival.standing for rival in self.rivals)]

    @property
    def others(self) -> list[Rival]:
        """The rivals that do not end like the leader."""
        alike = {standing.label for standing in self.way.standings} if self.way else set()
        return [rival for rival in self.rivals if rival.standing.label not in alike]

    @property
    def is_sure(self) -> bool:
        """Whether the leader is better than every other side."""
        return all(rival.overall.is_sure for rival in self.others) and (self.way is None or self.way.is_sure)


def make_side(label: str, runs: Sequence[RunFolder], name: str) -> tuple[Side, list[str]]:
    """Make a side of the runs below a folder; returns it and notes for the user.

    Args:
        label: for the answer.
        name: of the folder, for errors.

    Raises:
        UserError: the runs have several settings; the message names what differs.
    """
    notes: list[str] = []
    groups = group_by_settings(runs)
    for task in dict.fromkeys(run.task for run in runs):
        _check_alike([group for group in groups if group.task == task], name)
    kept: dict[tuple[str, str], RunFolder] = {}
    for run in runs:
        first = kept.setdefault((run.task, str(run.path if run.seed is None else run.seed)), run)
        if first is not run:
            notes.append(f"{run.path} has the seed of {first.path} and does not count: it is no further sample.")
    return Side(label, list(kept.values())), notes


def _check_alike(groups: Sequence[Group], name: str) -> None:
    if len(groups) < 2:
        return
    keys = dict.fromkeys(key for group in groups for key in group.apart)
    found = "; ".join(f"{key}: {', '.join(dict.fromkeys(g.apart.get(key, 'unset') for g in groups))}" for key in keys)
    raise UserError(
        f"{name} holds runs of {len(groups)} settings, so it is not one side of a comparison ({found if len(found) < 300 else ', '.join(keys)}). "
        f"`raypid compare {name}` alone compares them with each other; or give folders with one setting each."
    )


def compare(
    sides: Sequence[Side],
    *,
    metric: str | None = None,
    at: Moment | None = None,
    on_the_way: bool = False,
    lower: bool = False,
    paired: bool = False,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare two or more sides. Sides that end alike are also compared by their mean return over training.

    Args:
        metric: a key of the results; None: the best measure of performance that all runs have (`choose_measure`).
        at: compare what was there at this moment; runs that came less far do not count. None: the end of each run.
        on_the_way: compare the mean up to `at`, or up to where the shortest run ends.
        lower: less of the metric is better.
        paired: compare runs of the same seeds with each other.
        notes: notes that come before those of the comparison.

    Raises:
        UserError: the sides share a run or no task, no run of a side counts, no result has the metric, or runs cannot be paired.
    """
    all_notes = list(notes)
    _check_apart(sides)
    tasks = _common_tasks(sides, all_notes)
    counted = [_countable(side, tasks, at, all_notes) for side in sides]
    if paired:
        counted = [sorted(there, key=lambda run: str(run.seed)) for there in counted]
    runs = [run for side in counted for run in side]
    if metric is not None:
        check_key(runs, metric)
    if on_the_way:
        measure = _measure_on_the_way(runs, metric, at, lower)
    else:
        measure = choose_measure(runs, metric, lower) if at is None else _measure_at(runs, metric, at, lower, all_notes)
    if measure is None:
        raise UserError("These runs have no stretch in common over which a mean could be taken.")
    standings = [_standing(side, there, tasks, measure, all_notes) for side, there in zip(sides, counted)]
    ends = at is None and not on_the_way
    if ends and not measure.is_lower_better:
        _note_steps(standings, all_notes)
    elif at is not None and not on_the_way:
        there = [run for s in standings for task_runs in s.runs.values() for run in task_runs]
        early = [run for run in there if run.ending.at_goal and run.last(at.x) < at.value]
        all_notes += [
            f"{r.path}: stopped at its goal at step {count(r.steps)}, counts with what it had reached." for r in early
        ]
    if paired:
        _check_pairs(standings)
    pairs = len(standings) * (len(standings) - 1) // 2
    ranked = _ranked(standings, tasks, measure)
    found = _against_first(ranked, tasks, measure, pairs, paired, all_notes)
    return _break_ties(found, pairs) if ends and metric is None and not measure.is_lower_better else found


def _ranked(standings: Sequence[Standing], tasks: Sequence[str], measure: Measure) -> list[Standing]:
    """The sides, best mean first."""
    scales = _scales(standings, tasks)
    sign = 1 if measure.is_lower_better else -1
    return sorted(standings, key=lambda s: sign * float(np.mean([s.values[t].mean() / scales[t] for t in tasks])))


def _against_first(
    ranked: Sequence[Standing], tasks: list[str], measure: Measure, pairs: int, paired: bool, notes: list[str]
) -> Comparison:
    """Compare the first side with each other one, with intervals that hold together for this many pairs."""
    sign = -1.0 if measure.is_lower_better else 1.0
    scales = _scales(ranked, tasks)
    leader, *others = ranked
    ours, *theirs = [[sign * s.values[task] / scales[task] for task in tasks] for s in ranked]
    level = 1 - (1 - LEVEL) / pairs
    each = 1 - (1 - level) / len(tasks)
    rivals = []
    for other, scaled in zip(others, theirs):
        by_task = {
            task: difference([sign * leader.values[task]], [sign * other.values[task]], paired=paired, level=each)
            for task in tasks
        }
        overall = difference(ours, scaled, paired=paired, level=level)
        few = min(map(len, [*ours, *scaled])) < MIN_SEEDS
        chance = None if few else probability_of_improvement(ours, scaled, paired=paired)
        needed = seeds_needed(ours, scaled, paired=paired, level=level)
        rivals.append(Rival(other, overall, by_task, chance, needed))
    return Comparison(measure, tasks, leader, rivals, paired, notes)


def _break_ties(found: Comparison, pairs: int) -> Comparison:
    """If sides end like the leader, rank them and the leader by their mean return over training."""
    unsure = [rival.standing for rival in found.rivals if not rival.overall.is_sure]
    alike = [found.leader, *(standing for standing in unsure if _end_alike(found.leader, standing))]
    measure = _measure_on_the_way([run for standing in alike for there in standing.runs.values() for run in there])
    if len(alike) < 2 or measure is None:
        return found
    on_the_way = [
        replace(s, values={task: np.array([measure.value(run) for run in there]) for task, there in s.runs.items()})
        for s in alike
    ]
    way = _against_first(_ranked(on_the_way, found.tasks, measure), found.tasks, measure, pairs, found.paired, [])
    order = [standing.label for standing in way.standings]
    alike.sort(key=lambda standing: order.index(standing.label))
    ranked = [*alike, *(standing for standing in found.standings if standing.label not in order)]
    return replace(_against_first(ranked, found.tasks, found.measure, pairs, found.paired, found.notes), way=way)


def _end_alike(a: Standing, b: Standing) -> bool:
    """Whether all runs of two sides end within ALIKE of each other."""
    for task in a.values:
        ends = np.concatenate([a.values[task], b.values[task]])
        returns = [run.curve("timesteps_total", TRAINING)[1] for run in [*a.runs[task], *b.runs[task]]]
        if np.ptp(ends) > ALIKE * np.ptp(np.concatenate([ends, *returns])):
            return False
    return True


def _scales(standings: Sequence[Standing], tasks: Sequence[str]) -> dict[str, float]:
    """The divisor of each task's values: 1 for a single task, else the range from its worst run to its best."""
    if len(tasks) == 1:
        return {tasks[0]: 1.0}
    return {task: float(np.ptp(np.concatenate([s.values[task] for s in standings]))) or 1.0 for task in tasks}


# -- what is compared --------------------------------------------------------------------------------------------------


def choose_measure(runs: Sequence[RunFolder], metric: str | None = None, lower: bool = False) -> Measure:
    """Choose the number by which the ends of these runs are compared.

    Without a metric: the environment steps to the goal, if all runs stopped at the same one; else the best policy's final episodes, if all
    have played them; else the last evaluation, unless some run went on for long after it; else the training return. The best evaluation
    does not serve, because it grows with the number of evaluations.
    """
    if metric is None:
        if (goal := _common_goal(runs)) is not None:
            return Measure(f"environment steps to {goal}", lambda run: run.steps, True)
        if all(run.final is not None for run in runs):
            return Measure(
                "final return", lambda run: _final(run, "episode_reward_mean"),
                precision=lambda run: (_final(run, "episode_reward_ci95"), _final(run, "episodes")),
            )  # fmt: skip
    evaluated = all(
        run.curve("timesteps_total", EVALUATION)[0].max(initial=-1) >= (1 - AROUND) * run.steps for run in runs
    )
    key = metric or (EVALUATION if evaluated else TRAINING)
    last = "last " if key == EVALUATION else ""
    precision = _precision_of_last if key == EVALUATION else None
    return Measure(f"{last}{_name_of(key)}", lambda run: run.last(key), lower or key.startswith(LOWER), precision)


def _measure_at(runs: Sequence[RunFolder], metric: str | None, at: Moment, lower: bool, notes: list[str]) -> Measure:
    """Measure the metric at a moment. Without a metric: evaluations if all runs have some around it, else the training return."""
    key = metric or EVALUATION
    if metric is None and not all(math.isfinite(_value_at(run, EVALUATION, at)) for run in runs):
        key = TRAINING
        if any(len(run.curve(at.x, EVALUATION)[0]) for run in runs):
            notes.append(f"Not every run was evaluated shortly before and after {at}: training returns are compared.")
    return Measure(
        f"{_name_of(key)} at {at}", lambda run: _value_at(run, key, at), lower or key.startswith(LOWER)
    )  # fmt: skip


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


def _measure_on_the_way(
    runs: Sequence[RunFolder], metric: str | None = None, until: Moment | None = None, lower: bool = False
) -> Measure | None:
    """The mean of the metric up to a moment, or to where the shortest run of each task ends: the area under the curve, by its length.

    Without a metric: of evaluations if all runs were often evaluated, at the same steps, else of training returns. None if the runs of a
    task have no stretch in common.
    """
    x = until.x if until else "timesteps_total"
    by_task = grouped(runs, lambda run: run.task)
    for key in [metric] if metric else [EVALUATION, TRAINING]:
        spans = {task: _span([run.curve(x, key) for run in there], there, until) for task, there in by_task.items()}
        if not all(first < last for first, last in spans.values()):
            continue
        if metric or key == TRAINING or all(_evaluated_alike(by_task[task], x, *spans[task]) for task in by_task):
            break
    else:
        return None
    first, last = next(iter(spans.values()))
    stretch = (
        f"over the first {Moment(last, x)}" if first <= 0.1 * last else f"from {Moment(first, x)} to {Moment(last, x)}"
    )
    name = f"mean {_name_of(key)} {stretch if len(spans) == 1 else 'over equal steps'}"

    def mean(run: RunFolder) -> float:
        return float(np.interp(np.linspace(*spans[run.task], GRID), *run.curve(x, key)).mean())

    return Measure(name, mean, lower or key.startswith(LOWER))


def _span(
    columns: Sequence[tuple[Column, Column]], runs: Sequence[RunFolder], until: Moment | None
) -> tuple[float, float]:
    """(where all runs have begun, where the first one ends); (inf, -inf) if a run has no values. Runs that diverged do not end it."""
    if not all(len(xs) for xs, _ in columns):
        return math.inf, -math.inf
    ends = [xs[-1] for (xs, _), run in zip(columns, runs) if run.ending.state != "diverged"]
    last = min(ends) if ends else max(xs[-1] for xs, _ in columns)
    return float(max(xs[0] for xs, _ in columns)), min(float(last), until.value if until else math.inf)


def _evaluated_alike(runs: Sequence[RunFolder], x: str, first: float, last: float) -> bool:
    """Whether all runs were evaluated often enough between these places, and at the same ones."""
    columns = [run.curve(x, EVALUATION)[0] for run in runs]
    places = [xs[(xs >= first * (1 - ASIDE)) & (xs <= last * (1 + ASIDE))] for xs in columns]
    if not min(map(len, places)) == max(map(len, places)) >= EVALUATIONS:
        return False
    return float(np.ptp(np.stack(places), axis=0).max()) <= ASIDE * last


def _name_of(key: str) -> str:
    return "time in seconds" if key == "time_total_s" else NAMES.get(key, key)


def _final(run: RunFolder, key: str) -> float:
    return (run.final or {}).get(key, math.nan)


def _precision_of_last(run: RunFolder) -> tuple[float, float]:
    return run.last("evaluation/episode_reward_ci95"), run.last("evaluation/episodes")


def _common_goal(runs: Sequence[RunFolder]) -> str | None:
    """The return at which all runs stopped, such as "evaluation return 475"; None if they did not."""
    goals = set()
    for run in runs:
        reached = [key for key in run.ending.reached if key.endswith(TRAINING)]
        if not reached:
            return None
        goals.add((reached[0], float(run.stop[reached[0]]), run.task))
    keys = {key for key, _, _ in goals}
    if len(keys) != 1 or len(goals) != len({task for _, _, task in goals}):
        return None
    key, goal, _ = next(iter(goals))
    return f"{NAMES[key]} {goal:g}" if len(goals) == 1 else f"the goal of the {NAMES[key]}"


def _check_apart(sides: Sequence[Side]) -> None:
    seen: dict[Path | str, tuple[RunFolder, Side]] = {}
    for side in sides:
        for run in side.runs:
            copy = repr((run.params, run.results[-1:]))  # the seconds of a run are its fingerprint
            for mark in (run.path.resolve(), copy):
                other, there = seen.setdefault(mark, (run, side))
                if there is side:
                    continue
                both = "" if there.label == side.label else f", {there.label} and {side.label}"
                what = "is on both sides" if mark != copy else f"is a copy of {other.path}, so one run is on both sides"
                raise UserError(f"{run.path} {what}{both}: give each run once.")


def _common_tasks(sides: Sequence[Side], notes: list[str]) -> list[str]:
    every = dict.fromkeys(run.task for side in sides for run in side.runs)
    tasks = [task for task in every if all(any(run.task == task for run in side.runs) for side in sides)]
    if not tasks:
        theirs = "; ".join(f"{side.label}: {', '.join(sorted({run.task for run in side.runs}))}" for side in sides)
        raise UserError(
            f"Returns of different environments do not compare, and the sides have none in common ({theirs})."
        )
    if alone := [task for task in every if task not in tasks]:
        notes.append(f"Not all sides have runs on {', '.join(alone)}: left out.")
    return tasks


def _countable(side: Side, tasks: Sequence[str], at: Moment | None, notes: list[str]) -> list[RunFolder]:
    """The runs that count. At a moment, all that came so far, reached their goal before, or diverged; else all but those that
    are under way or were broken off, which might have done better."""
    counted = []
    for run in side.runs:
        if run.task not in tasks:
            continue
        state: str = run.ending.state
        counts = state not in ("running", "killed", "failed")
        if at is not None:
            counts = run.last(at.x) >= at.value or run.ending.at_goal or state == "diverged"
        if counts:
            counted.append(run)
        if not counts or state == "diverged":
            what = "counts with what it had reached" if counts else f"does not count{f' at {at}' if at else ''}"
            notes.append(f"{run.path}: {state} at step {count(run.steps)}, {what}.")
    return counted


def _standing(side: Side, runs: list[RunFolder], tasks: Sequence[str], measure: Measure, notes: list[str]) -> Standing:
    by_task: dict[str, list[RunFolder]] = {task: [] for task in tasks}
    for run in runs:
        if math.isfinite(measure.value(run)):
            by_task[run.task].append(run)
        else:
            notes.append(f"{run.path}: no {measure.name}, does not count.")
    for task, there in by_task.items():
        if not there:
            why = next((note for note in notes if any(str(run.path) in note for run in side.runs)), "")
            hint = "" if " at " in measure.name else " `--at STEPS` also compares runs that have not ended."
            raise UserError(f"No run of {side.label} on {task} counts. {why}{hint}")
    values = {task: np.array([measure.value(run) for run in there]) for task, there in by_task.items()}
    return Standing(side.label, by_task, values)


def _note_steps(standings: Sequence[Standing], notes: list[str]) -> None:
    """Say so if runs stopped at a goal, or had other numbers of steps."""
    at_goal = {s.label: sum(run.ending.at_goal for runs in s.runs.values() for run in runs) for s in standings}
    if any(at_goal.values()):
        some = [(at_goal[s.label], sum(map(len, s.runs.values())), s.label) for s in standings if at_goal[s.label]]
        told = ", ".join(
            label if number == total else f"{number} of {total} of {label}" for number, total, label in some
        )
        notes.append(
            f"{told} stopped at {'its' if len(some) == 1 == some[0][0] else 'their'} goal and might have got further."
        )
    for task in standings[0].runs:
        steps = {s.label: [run.steps for run in s.runs[task] if not run.ending.at_goal] for s in standings}
        every = [number for numbers in steps.values() for number in numbers if math.isfinite(number)]
        if every and max(every) > UNEQUAL * min(every):
            told = "; ".join(f"{label}: {_range(numbers)}" for label, numbers in steps.items() if numbers)
            on = f" on {task}" if len(standings[0].runs) > 1 else ""
            notes.append(f"Unequal steps{on} ({told}): `--at {min(every):.0f}` compares after equally many.")


def _range(numbers: Sequence[float]) -> str:
    low, high = count(min(numbers)), count(max(numbers))
    return low if low == high else f"{low} to {high}"


def _check_pairs(standings: Sequence[Standing]) -> None:
    """Check that all sides have the same seeds.

    Raises:
        UserError
    """
    first = standings[0]
    for standing, task in itertools.product(standings, first.runs):
        ours, theirs = ({run.seed for run in one.runs[task]} for one in (standing, first))
        if ours != theirs or None in ours:
            raise UserError(
                f"Runs are paired by seed, and {first.label} and {standing.label} have different seeds on {task}: "
                f"{_listed(theirs)} and {_listed(ours)}. Leave out --paired, or run the same seeds."
            )


def _listed(seeds: set[int | None]) -> str:
    return ", ".join(sorted(map(str, seeds)))


# -- as text -----------------------------------------------------------------------------------------------------------


def headline(found: Comparison) -> str:
    """The answer in one line."""
    if found.way is not None:
        return _headline_with_way(found, found.way)
    if len(found.rivals) > 1:
        return _headline_of_many(found)
    rival = found.rivals[0]
    a, b, gap = found.leader, rival.standing, rival.overall
    each = "1 seed each" if a.seeds == "1" else f"{a.seeds} seeds each"
    seeds = each if a.seeds == b.seeds else f"{a.seeds} and {b.seeds} seeds"
    if len(found.tasks) == 1:
        ours, theirs = (s.values[found.tasks[0]] for s in (a, b))
        size = max(abs(ours.mean()), abs(theirs.mean()))
        name = found.measure.name + ":" * found.measure.name[-1].isdigit()
        on = f"{name} {figure(ours.mean(), size)} against {figure(theirs.mean(), size)}"
    else:
        size = 1.0
        on = f"{found.measure.name} on {len(found.tasks)} environments, in parts of each one's range"
    if gap.is_sure:
        way = "lower" if found.measure.is_lower_better else "higher"
        return f"{a.label} is better than {b.label}: {on}, {way} by {_gap(gap, size)}, {seeds}, {_p(gap.p)}."
    return f"Cannot tell {a.label} from {b.label}: {on}, difference {_gap(gap, size)}, {seeds}. {_needed(rival)}"


def _headline_with_way(found: Comparison, way: Comparison) -> str:
    alike = found.standings[: len(way.standings)]
    means = list(dict.fromkeys(figure(float(standing.values[found.tasks[0]].mean())) for standing in alike))
    where = "alike"
    if len(found.tasks) == 1:
        name = found.measure.name
        where = f"at {means[0]} ({name})" if len(means) == 1 else f"alike ({name} {', '.join(means[:3])})"
    who = "Both" if len(found.standings) == 2 else f"{len(alike)} of {len(found.standings)}"
    answer = headline(way)
    if answer.startswith("Cannot tell"):
        answer = f"one cannot tell{answer.removeprefix('Cannot tell')}"
    worse = [rival.standing.label for rival in found.others if rival.overall.is_sure]
    unsure = [rival.standing.label for rival in found.others if not rival.overall.is_sure]
    rest = f" Worse at the end: {some(worse)}." if worse else ""
    rest += f" Cannot be told from the first at the end: {some(unsure)}." if unsure else ""
    return f"{who} end {where}; on the way {answer}{rest}"


def _headline_of_many(found: Comparison) -> str:
    unsure = [rival for rival in found.rivals if not rival.overall.is_sure]
    leader, others, name = found.leader.label, len(found.rivals), found.measure.name
    if not unsure:
        return f"{leader} is the best of {others + 1}, by {name}."
    if len(unsure) == others:
        return f"Cannot tell which of {others + 1} is best by {name}: {leader} leads. {_needed(unsure[0])}"
    than = f"better than {others - len(unsure)} of the {others} others"
    near = some([rival.standing.label for rival in unsure])
    return f"{leader} leads by {name}: {than}, cannot be told from {near}. {_needed(unsure[0])}"


def _needed(rival: Rival) -> str:
    """Say how many seeds would be needed."""
    if not math.isfinite(rival.overall.low):
        return f"A single seed says nothing of others: at least {MIN_SEEDS} of each are needed."
    if rival.overall.estimate == 0:
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


def _gap(gap: Difference, size: float) -> str:
    text = figure(gap.estimate, size)
    if not math.isfinite(gap.low):
        return f"{text} (no interval)"
    return f"{text} ({100 * gap.level:.3g}% interval {figure(gap.low, size)} to {figure(gap.high, size)})"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def table_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of a table and its head: a row for each task if there are two sides, else one for each side. Empty for one task and
    two sides."""
    if len(found.rivals) > 1:
        return _rows_of_sides(found)
    if len(found.tasks) == 1:
        return []
    rival = found.rivals[0]
    level = next(iter(rival.by_task.values())).level
    rows: list[tuple[str, ...]] = [
        ("environment", found.leader.label, rival.standing.label, "difference", f"{100 * level:.3g}% interval", "")
    ]
    for task, gap in rival.by_task.items():
        ours, theirs = found.leader.values[task].mean(), rival.standing.values[task].mean()
        size = max(abs(ours), abs(theirs))
        verdict = "cannot tell" if not gap.is_sure else "better" if gap.estimate > 0 else "worse"
        numbers = (figure(ours, size), figure(theirs, size), figure(gap.estimate, size, "+"))
        rows.append((task, *numbers, _interval(gap, size), verdict))
    return rows


def _rows_of_sides(found: Comparison) -> list[tuple[str, ...]]:
    one = found.tasks[0] if len(found.tasks) == 1 else None
    level = found.rivals[0].overall.level
    rows = [("", "seeds", *([found.measure.name] if one else []), "behind", f"{100 * level:.4g}% interval", "")]
    size = abs(found.leader.values[one].mean()) if one else 1.0

    def row(standing: Standing, *rest: str) -> tuple[str, ...]:
        return standing.label, standing.seeds, *([figure(standing.values[one].mean(), size)] if one else []), *rest

    rows.append(row(found.leader, "", "", "leads"))
    for rival in found.rivals:
        gap = rival.overall
        verdict = "worse" if gap.is_sure else "cannot tell" if rival in found.others else "ends alike"
        rows.append(row(rival.standing, figure(gap.estimate, size), _interval(gap, size), verdict))
    return rows


def _interval(gap: Difference, size: float) -> str:
    return f"{figure(gap.low, size)} to {figure(gap.high, size)}" if math.isfinite(gap.low) else "-"


def method_line(found: Comparison) -> str:
    """Describe the statistics behind the answer."""
    several = f", over {len(found.tasks)} environments" if len(found.tasks) > 1 else ""
    test = "paired t-test" if found.paired else "Welch's t-test"
    together = "; the intervals hold together" if len(found.rivals) > 1 else ""
    chance = _chance(found, found.rivals[0]) if len(found.rivals) == 1 else ""
    return f"Means over seeds{several}, {test}{together}.{chance}"


def _chance(found: Comparison, rival: Rival) -> str:
    """Say in how many pairs of runs the leader's was better; "" if that is not known."""
    if rival.probability is None:
        return ""
    sizes = [(len(found.leader.values[task]), len(rival.standing.values[task])) for task in found.tasks]
    pairs = sum(a if found.paired else a * b for a, b in sizes)
    what = "pairs of the same seed" if found.paired else "pairs of a run of each"
    return f" {found.leader.label} did better than {rival.standing.label} in {rival.probability:.0%} of the {pairs} {what}."
