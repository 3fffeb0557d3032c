"""Which of several groups of runs is better, by how much and how surely.

A group is called better only if Welch's t says so at 5% (`statistics.difference`). Of several groups all pairs count, since the
leader is chosen by the same numbers: the intervals hold together (Bonferroni). Simulated with 2 to 20 equal groups of 3 to 10 seeds, one is
wrongly called better in at most 5% of the cases. Runs are not paired by seed unless asked for: the seed decides little of a return (the same
seeds of two learning rates, PPO on CartPole-v1: correlation -0.1 to -0.4), and pairs have half the degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raypid.errors import UserError
from raypid.reporting.panel import EVALUATION, NAMES, TRAINING, count
from raypid.reporting.runs import Group, RunRecord, check_key, group_by_settings
from raypid.reporting.statistics import (
    MIN_SEEDS,
    Column,
    Difference,
    difference,
    probability_of_improvement,
    seeds_needed,
)

LOWER = (
    "timesteps_total",
    "time_",
    "training_iteration",
    "episodes_total",
    "learner_updates_total",
    "lost/",
    "timing/",
)
"""Beginnings of keys of which less is better."""
UNEQUAL = 1.1
"""Ratio of the steps of two groups above which the comparison says that it is one of unequal steps."""
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Side:
    """Runs that are compared with others: of one setting, of one or several tasks, with different seeds."""

    label: str
    runs: list[RunRecord]


@dataclass(frozen=True, slots=True)
class Measure:
    """The number by which runs are compared."""

    name: str
    value: Callable[[RunRecord], float]
    """Of a run; NaN if it has none."""
    is_lower_better: bool = False
    precision: Callable[[RunRecord], tuple[float, float]] | None = None
    """Half the width of the 95% interval of a run's value, and the number of its episodes; None: not known."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a side reached: for each task, a value for each seed."""

    label: str
    runs: dict[str, list[RunRecord]]
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
    probability: float
    """Probability that a run of the leader is better than one of this side."""
    seeds_needed: int | None
    """Seeds of each with which such a difference would be called sure in 80% of the cases; None: over 1,000, or not known."""


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

    @property
    def is_sure(self) -> bool:
        """Whether the leader is better than every other side."""
        return all(rival.overall.is_sure for rival in self.rivals)


def make_side(label: str, runs: Sequence[RunRecord], name: str) -> tuple[Side, list[str]]:
    """Make a side of the runs below a folder; returns it and what the user has to be told.

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
    kept: dict[tuple[str, str], RunRecord] = {}
    for run in runs:
        first = kept.setdefault((run.task, str(run.folder if run.seed is None else run.seed)), run)
        if first is not run:
            notes.append(f"{run.folder} has the seed of {first.folder} and does not count: it is no further sample.")
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
    at: int | None = None,
    lower: bool = False,
    paired: bool = False,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare two or more sides.

    Args:
        metric: a key of the results; None: the best measure of performance that all runs have (`choose_measure`).
        at: environment steps; runs that came less far do not count. None: the end of each run.
        lower: less of the metric is better.
        paired: compare runs of the same seeds with each other.
        notes: said after the answer, before those of the comparison.

    Raises:
        UserError: the sides share a run or no task, no run of a side counts, no result has the metric, or runs cannot be paired.
    """
    said = list(notes)
    _check_apart(sides)
    tasks = _common_tasks(sides, said)
    counted = [_countable(side, tasks, at, said) for side in sides]
    measure = choose_measure([run for runs in counted for run in runs], metric, at, lower)
    standings = [_standing(side, runs, tasks, measure, said) for side, runs in zip(sides, counted)]
    if at is None and not measure.name.startswith("environment steps"):
        _note_steps(standings, said)
    if paired:
        standings = [_sorted_by_seed(standing, standings[0]) for standing in standings]
    sign = -1.0 if measure.is_lower_better else 1.0
    scales = _scales(standings, tasks)
    scaled = {id(s): [sign * s.values[task] / scales[task] for task in tasks] for s in standings}
    ranked = sorted(standings, key=lambda s: -np.mean([values.mean() for values in scaled[id(s)]]))
    pairs = len(ranked) * (len(ranked) - 1) // 2
    leader, level = ranked[0], 1 - (1 - LEVEL) / pairs
    rivals = [
        _rival(leader, other, tasks, sign, scaled[id(leader)], scaled[id(other)], level, paired) for other in ranked[1:]
    ]
    return Comparison(measure, tasks, leader, rivals, paired, said)


def _rival(
    leader: Standing,
    other: Standing,
    tasks: Sequence[str],
    sign: float,
    ours: list[Column],
    theirs: list[Column],
    level: float,
    paired: bool,
) -> Rival:
    each = 1 - (1 - level) / len(tasks)
    by_task = {
        task: difference([sign * leader.values[task]], [sign * other.values[task]], paired=paired, level=each)
        for task in tasks
    }
    overall = difference(ours, theirs, paired=paired, level=level)
    chance = probability_of_improvement(ours, theirs)
    return Rival(other, overall, by_task, chance, seeds_needed(ours, theirs, paired=paired, level=level))


def _scales(standings: Sequence[Standing], tasks: Sequence[str]) -> dict[str, float]:
    """What a task's values are divided by: 1 for a single task, else the range from its worst run to its best."""
    if len(tasks) == 1:
        return {tasks[0]: 1.0}
    scales = {}
    for task in tasks:
        values = np.concatenate([standing.values[task] for standing in standings])
        scales[task] = float(np.ptp(values)) or 1.0
    return scales


# -- what is compared --------------------------------------------------------------------------------------------------


def choose_measure(
    runs: Sequence[RunRecord], metric: str | None = None, at: int | None = None, lower: bool = False
) -> Measure:
    """Choose the number by which these runs are compared.

    Without a metric: the environment steps to the goal, if all runs stopped at the same one; else the best policy's final episodes, if all
    have played them; else the last evaluation; else the training return. The best evaluation is none, since it grows with their number.
    """
    if metric is not None:
        check_key(runs, metric)
    if metric is None and at is None:
        if (goal := _common_goal(runs)) is not None:
            return Measure(f"environment steps to {goal}", lambda run: run.steps, True)
        if all(run.final is not None for run in runs):
            return Measure(
                "final return", lambda run: _final(run, "episode_reward_mean"),
                precision=lambda run: (_final(run, "episode_reward_ci95"), _final(run, "episodes")),
            )  # fmt: skip
    evaluated = all(len(run.column("timesteps_total", EVALUATION)[0]) for run in runs)
    key = metric or (EVALUATION if evaluated else TRAINING)
    is_lower = lower or key.startswith(LOWER)
    name = NAMES.get(key, key)
    if at is None:
        last = "last " if key == EVALUATION else ""
        precision = _precision_of_last if key == EVALUATION else None
        return Measure(f"{last}{name}", lambda run: run.last(key), is_lower, precision)
    return Measure(f"{name} at {count(at)} steps", lambda run: _value_at(run, key, at), is_lower)


def _final(run: RunRecord, key: str) -> float:
    return math.nan if run.final is None else run.final.get(key, math.nan)


def _precision_of_last(run: RunRecord) -> tuple[float, float]:
    return run.last("evaluation/episode_reward_ci95"), run.last("evaluation/episodes")


def _value_at(run: RunRecord, key: str, at: int) -> float:
    """The newest value of a key at or before this step; NaN if there is none."""
    xs, ys = run.column("timesteps_total", key)
    place = int(np.searchsorted(xs, at, side="right"))
    return float(ys[place - 1]) if place else math.nan


def _common_goal(runs: Sequence[RunRecord]) -> str | None:
    """The return at which all runs stopped, such as "evaluation return 475"; None if they did not."""
    goals = set()
    for run in runs:
        stop = run.settings.get("stop")
        reached = [key for key in run.ending.reached if key.endswith(TRAINING)]
        if not reached or not isinstance(stop, dict):
            return None
        goals.add((reached[0], float(stop[reached[0]]), run.task))
    keys = {key for key, _, _ in goals}
    if len(keys) != 1 or len(goals) != len({task for _, _, task in goals}):
        return None
    key, goal, _ = next(iter(goals))
    return f"{NAMES[key]} {goal:g}" if len(goals) == 1 else f"the goal of the {NAMES[key]}"


def _check_apart(sides: Sequence[Side]) -> None:
    seen: dict[Path, Side] = {}
    for side in sides:
        for run in side.runs:
            if (other := seen.setdefault(run.folder.resolve(), side)) is not side:
                both = "" if other.label == side.label else f", {other.label} and {side.label}"
                raise UserError(f"{run.folder} is on both sides{both}: give each run once.")


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


def _countable(side: Side, tasks: Sequence[str], at: int | None, notes: list[str]) -> list[RunRecord]:
    """The runs that count. At a number of steps, all that came so far, reached their goal before, or diverged; else all but those that
    are under way or were broken off, which might have done better."""
    counted = []
    for run in side.runs:
        if run.task not in tasks:
            continue
        state: str = run.ending.state
        counts = state not in ("running", "killed", "failed")
        if at is not None:
            counts = run.steps >= at or run.ending.at_goal or state == "diverged"
        if counts:
            counted.append(run)
        if not counts or state == "diverged":
            what = "counts with what it had reached" if counts else "does not count"
            notes.append(f"{run.folder}: {state} at step {count(run.steps)}, {what}.")
    return counted


def _standing(side: Side, runs: list[RunRecord], tasks: Sequence[str], measure: Measure, notes: list[str]) -> Standing:
    by_task: dict[str, list[RunRecord]] = {task: [] for task in tasks}
    for run in runs:
        if math.isfinite(measure.value(run)):
            by_task[run.task].append(run)
        else:
            notes.append(f"{run.folder}: no {measure.name}, does not count.")
    for task, there in by_task.items():
        if not there:
            why = next((note for note in notes if any(str(run.folder) in note for run in side.runs)), "")
            raise UserError(
                f"No run of {side.label} on {task} counts. {why} `--at STEPS` also compares runs that have not ended."
            )
    values = {task: np.array([measure.value(run) for run in there]) for task, there in by_task.items()}
    return Standing(side.label, by_task, values)


def _note_steps(standings: Sequence[Standing], notes: list[str]) -> None:
    """Say so if runs of one side stopped at a goal, or had more steps than another."""
    at_goal = {s.label: sum(run.ending.at_goal for runs in s.runs.values() for run in runs) for s in standings}
    if any(at_goal.values()):
        told = ", ".join(f"{at_goal[s.label]} of {sum(map(len, s.runs.values()))} of {s.label}" for s in standings)
        notes.append(f"Runs that stopped at their goal, and might have got further: {told}.")
    steps = {
        s.label: float(
            np.median([run.steps for runs in s.runs.values() for run in runs if not run.ending.at_goal] or [math.nan])
        )
        for s in standings
    }
    finite = {label: number for label, number in steps.items() if math.isfinite(number)}
    if not finite or max(finite.values()) <= UNEQUAL * min(finite.values()):
        return
    least, most = min(finite, key=lambda label: finite[label]), max(finite, key=lambda label: finite[label])
    notes.append(
        f"{most} had {count(finite[most])} steps and {least} {count(finite[least])}: `--at {finite[least]:.0f}` compares after equally many."
    )


def _sorted_by_seed(standing: Standing, first: Standing) -> Standing:
    """The same with runs in the order of their seeds.

    Raises:
        UserError: the seeds are not those of `first`.
    """
    runs = {task: sorted(there, key=lambda run: str(run.seed)) for task, there in standing.runs.items()}
    for task, there in runs.items():
        ours, theirs = {run.seed for run in there}, {run.seed for run in first.runs[task]}
        if ours != theirs or None in ours:
            raise UserError(
                f"Runs are paired by seed, and {first.label} and {standing.label} have different seeds on {task}: "
                f"{_listed(theirs)} and {_listed(ours)}. Leave out --paired, or run the same seeds."
            )
    order = {task: np.argsort([str(run.seed) for run in there]) for task, there in standing.runs.items()}
    return Standing(standing.label, runs, {task: values[order[task]] for task, values in standing.values.items()})


def _listed(seeds: set[int | None]) -> str:
    return ", ".join(sorted(map(str, seeds)))


# -- as text -----------------------------------------------------------------------------------------------------------


def headline(found: Comparison) -> str:
    """The answer in one line."""
    if len(found.rivals) > 1:
        return _headline_of_many(found)
    rival = found.rivals[0]
    a, b, gap = found.leader, rival.standing, rival.overall
    seeds = f"{a.seeds} seeds each" if a.seeds == b.seeds else f"{a.seeds} and {b.seeds} seeds"
    seeds = seeds.replace("1 seeds each", "1 seed each") if seeds == "1 seeds each" else seeds
    if len(found.tasks) == 1:
        ours, theirs = (s.values[found.tasks[0]] for s in (a, b))
        size = max(abs(ours.mean()), abs(theirs.mean()))
        on = f"{found.measure.name} {figure(ours.mean(), size)} against {figure(theirs.mean(), size)}"
    else:
        size = 1.0
        on = f"{found.measure.name} on {len(found.tasks)} environments, in parts of each one's range"
    if gap.is_sure:
        way = "lower" if found.measure.is_lower_better else "higher"
        return f"{a.label} is better than {b.label}: {on}, {way} by {_gap(gap, size)}, {seeds}, {_p(gap.p)}."
    return f"Cannot tell {a.label} from {b.label}: {on}, difference {_gap(gap, size)}, {seeds}. {_needed(rival)}"


def _headline_of_many(found: Comparison) -> str:
    sure = [rival for rival in found.rivals if rival.overall.is_sure]
    unsure = [rival.standing.label for rival in found.rivals if not rival.overall.is_sure]
    leader, total = found.leader.label, len(found.rivals) + 1
    if not unsure:
        return f"{leader} is the best of {total}, by {found.measure.name}."
    few = ", ".join(unsure[:3]) + (f" and {len(unsure) - 3} more" if len(unsure) > 3 else "")
    if not sure:
        return (
            f"Cannot tell which of {total} is best by {found.measure.name}: {leader} leads. {_needed(found.rivals[0])}"
        )
    return (
        f"{leader} leads by {found.measure.name}: better than {len(sure)} of the {total - 1} others, cannot be told from {few}. "
        f"{_needed(next(rival for rival in found.rivals if not rival.overall.is_sure))}"
    )


def _needed(rival: Rival) -> str:
    """How many seeds would be needed."""
    if not math.isfinite(rival.overall.low):
        return f"A single seed says nothing of others: at least {MIN_SEEDS} of each are needed."
    if rival.overall.estimate == 0:
        return "They are alike there; `--at STEPS` compares them on the way."
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
    """Rows for a table with its head: one for each task if there are two sides, else one for each side. Empty for one task and two sides."""
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
        rows.append(
            (
                task,
                figure(ours, size),
                figure(theirs, size),
                figure(gap.estimate, size, "+"),
                _interval(gap, size),
                verdict,
            )
        )
    return rows


def _rows_of_sides(found: Comparison) -> list[tuple[str, ...]]:
    one = found.tasks[0] if len(found.tasks) == 1 else None
    level = found.rivals[0].overall.level
    rows = [("", "seeds", *([found.measure.name] if one else []), "behind", f"{100 * level:.4g}% interval", "")]
    size = abs(found.leader.values[one].mean()) if one else 1.0
    rows.append(
        (
            found.leader.label,
            found.leader.seeds,
            *([figure(found.leader.values[one].mean(), size)] if one else []),
            "",
            "",
            "leads",
        )
    )
    for rival in found.rivals:
        other, gap = rival.standing, rival.overall
        verdict = "worse" if gap.is_sure else "cannot tell"
        value = [figure(other.values[one].mean(), size)] if one else []
        rows.append((other.label, other.seeds, *value, figure(gap.estimate, size), _interval(gap, size), verdict))
    return rows


def _interval(gap: Difference, size: float) -> str:
    return f"{figure(gap.low, size)} to {figure(gap.high, size)}" if math.isfinite(gap.low) else "-"


def method_line(found: Comparison) -> str:
    """How the answer came about."""
    several = f", over {len(found.tasks)} environments" if len(found.tasks) > 1 else ""
    test = "paired t-test" if found.paired else "Welch's t-test"
    together = "; the intervals hold together" if len(found.rivals) > 1 else ""
    chance = ""
    if len(found.rivals) == 1:
        rival = found.rivals[0]
        chance = f" A run of {found.leader.label} does better than one of {rival.standing.label} with probability {rival.probability:.2f}."
    return f"Means over seeds{several}, {test}{together}.{chance}"
