"""What a search says at its end: one page and one picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from raypid.report.plots import COLOURS
from raypid.report.statistics import MIN_SEEDS, Difference, difference
from raypid.storage.outputs import explained, replacing
from raypid.sweep.budget import FIRST_FRESH, shown_seconds
from raypid.sweep.importance import MIN_TRIALS, Importance, importances
from raypid.sweep.search import Search
from raypid.sweep.search_trials import SearchTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT, PICTURE = "report.md", "report.png"
_NUM_SHOWN = 10
"""Rows of the tables."""


@dataclass(slots=True)
class Proof:
    """The settings found beside the defaults, on fresh seeds that both have."""

    found: list[SearchTrial]
    defaults: list[SearchTrial]
    seconds: float
    """Of training that all these runs have, at which their scores are taken."""
    scores: list[list[float]]
    """Of `found`, of `defaults`."""
    better: Difference | None
    """By score; None without runs of both."""
    failure: str = ""
    """What was wrong with the last run that failed."""

    @classmethod
    def of(cls, search: Search) -> Proof:
        """Compare runs that ended, and those that were cut after more than half of their time, by what all have."""
        tried = [*search.of("found"), *search.of("defaults")]
        ran = [t for t in tried if t.state in ("finished", "goal") or t.seconds > search.plan.trial_s / 2]
        runs = {kind: {t.seed: t for t in ran if t.kind == kind and t.curve} for kind in ("found", "defaults")}
        seeds = sorted(runs["found"].keys() & runs["defaults"].keys())
        found, defaults = ([runs[kind][seed] for seed in seeds] for kind in ("found", "defaults"))
        seconds = min([search.plan.trial_s, *(t.seconds for t in (*found, *defaults) if t.state != "goal")])
        scores = [[search.score(t, seconds) for t in side] for side in (found, defaults)]
        better = difference([np.array(scores[0])], [np.array(scores[1])]) if seeds else None
        failure = next((t.message for t in tried if t.state == "failed"), "")
        return cls(found, defaults, seconds, scores, better, failure)

    @property
    def verdict(self) -> Literal["better", "worse", "cannot tell"]:
        """What is shown of the settings found."""
        if self.better is None or not self.better.is_sure:
            return "cannot tell"
        return "better" if self.better.estimate > 0 else "worse"

    @property
    def is_worth_saving(self) -> bool:
        """Whether the settings found did no worse than the defaults, so far as is known."""
        return not self.failure if self.better is None else self.better.estimate > 0

    def __str__(self) -> str:
        """The answer, as a sentence."""
        cannot = "Cannot tell whether the settings found are better than the defaults:"
        if self.better is None and self.failure:
            return f"{cannot} their runs on fresh seeds failed: {self.failure}"
        if self.better is None:
            return f"{cannot} no run on fresh seeds has ended in time."
        d, seeds = self.better, len(self.found)
        how = f"{d.estimate:+.4g} in score on {_count(seeds, 'fresh seed')}"
        if not math.isfinite(d.low):
            return f"{cannot} {how}, and one seed says nothing of others."
        how += f", 95% interval {d.low:+.4g} to {d.high:+.4g}"
        if self.verdict == "cannot tell":
            few = f" (with fewer than {MIN_SEEDS} seeds nothing is called sure)" if seeds < MIN_SEEDS else ""
            return f"{cannot} {how}{few}."
        return f"The settings found are {self.verdict} than the defaults: {how}."


def answer(search: Search, proof: Proof) -> str:
    """What the search found, as a sentence."""
    if search.found is None:
        return f"Nothing was found to compare with the defaults: of {_asked(search)}, none with other settings came far enough to be judged."
    return str(proof)


def _asked(search: Search) -> str:
    return _count(search.plan.trials, "trial")


def reached(search: Search, proof: Proof) -> str:
    """What the settings found have reached on fresh seeds and whether the defaults are worse, for `raypid list tuned`."""
    if not proof.found:
        return "not measured on fresh seeds"
    shown = {"cannot tell": "not shown to be better than the defaults"}.get(
        proof.verdict, f"{proof.verdict} than the defaults"
    )
    returns = [t.last_return for t in proof.found]
    goal, seeds = search.task.goal, _count(len(returns), "seed")
    if goal is None:
        return f"{np.mean(returns):.4g} after {shown_seconds(proof.seconds)} (mean of {seeds}), {shown}"
    there = [t.seconds for t in proof.found if t.state == "goal"]
    text = f"{goal:g} in {np.median(there):.2g} s" if there else f"{goal:g} not reached: {max(returns):.4g} at best"
    return f"{text} ({len(there)} of {seeds}), {shown}"


def write_report(search: Search, proof: Proof, commands: Sequence[tuple[str, str]]) -> Path:
    """Write page and picture into the search's folder; returns the page.

    Args:
        commands: (what for, command line).

    Raises:
        Unwritten: the disk is full.
    """
    best = search.best()[::-1]  # all ordered by the same measure
    lost = [t for t in search.of("search") if t.state == "failed"]
    order = [0.0] * len(lost) + [float(i) for i in range(1, len(best) + 1)]
    found = importances(search.task.space, [t.units for t in (*lost, *best)], order)
    page = search.out / REPORT
    lines = _page(search, proof, found, commands)
    draw(search, proof, found, search.out / PICTURE)
    with explained(page), replacing(page) as beside:
        beside.write_text("\n".join(lines) + "\n")
    return page


def _page(search: Search, proof: Proof, found: Sequence[Importance], commands: Sequence[tuple[str, str]]) -> list[str]:
    task, plan = search.task, search.plan
    goal = (
        ""
        if task.goal is None
        else f" Returns count up to {task.goal:g}, and a run that has reached it stands there for the rest."
    )
    lines = [
        f"# {task.run} on {task.fixed['env']}: a search of {_asked(search)}", "", f"**{answer(search, proof)}**", "",
        f"The score is the mean return over the first {shown_seconds(plan.trial_s)} of training: what a user has who wants the most "
        f"return soon.{goal}",
        f"Proposals by {search.proposer.name}. {_ends(search)} The search took {shown_seconds(search.elapsed_s)} of a budget of "
        f"{shown_seconds(plan.budget_s)}, with {plan.concurrent} at a time.",
        "", f"![the search](./{PICTURE})", "",
        *_settings(search), *_proof(search, proof), *_mattered(search, found), *_trials(search), "## Commands", "", "```",
    ]  # fmt: skip
    for what, command in commands:
        lines += [f"# {what}", command]
    return [*lines, "```"]


def _ends(search: Search) -> str:
    """How the trials of the exploration ended."""
    ended = search.of("search")
    names = {"goal": "reached the goal", "finished": "had their whole time", "stopped": "were stopped as hopeless"}
    names |= {"cut": "were cut when the time was over", "failed": "failed"}
    counts = [f"{num} {name}" for state, name in names.items() if (num := sum(t.state == state for t in ended))]
    if missing := search.plan.trials - len(ended):
        counts.append(f"{missing} never started, for want of time")
    return f"Of {_asked(search)}, {', '.join(counts)}."


def _settings(search: Search) -> list[str]:
    if search.found is None:
        return []
    settings = search.trials[search.found].settings
    rows = [(name, search.task.default(name), value) for name, value in settings.items()]
    changed = [(f"`{name}`", f"`{json.dumps(old)}`", f"`{json.dumps(new)}`") for name, old, new in rows if old != new]
    same = [f"`{name}`" for name, old, new in rows if old == new]
    rest = [f"As by default: {', '.join(same)}.", ""] if same else []
    return ["## The settings found", "", *_table(("setting", "default", "found"), changed), "", *rest]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _proof(search: Search, proof: Proof) -> list[str]:
    if not proof.found:
        return []
    head = ["", f"score after {shown_seconds(proof.seconds)}, mean", "return at the end, mean"]
    head += ["reached the goal after"] if search.task.goal is not None else []
    rows = []
    for name, trials, scores in zip(("found", "defaults"), (proof.found, proof.defaults), proof.scores, strict=True):
        seeds = "seeds " + ", ".join(str(t.seed) for t in trials)
        cells = [f"{name} ({seeds})", f"{np.mean(scores):.5g}", f"{np.mean([t.last_return for t in trials]):.5g}"]
        if search.task.goal is not None:
            cells.append(", ".join(f"{t.seconds:.2g} s" if t.state == "goal" else "not" for t in trials))
        rows.append(cells)
    how = f"Trained anew on seeds {FIRST_FRESH} and up, which chose nothing, side by side."
    return ["## On fresh seeds", "", how, "", *_table(head, rows), ""]


def _mattered(search: Search, found: Sequence[Importance]) -> list[str]:
    lines = ["## Which settings mattered", ""]
    if not found:
        return [*lines, f"Cannot tell: that takes {MIN_TRIALS} trials that were judged and differ.", ""]
    sure = [one for one in found if one.is_sure]
    lines += [f"- {one}" for one in sure]
    rest = ", ".join(f"`{one.setting}`" for one in found if not one.is_sure)
    lines += [f"- {'Of the others' if sure else 'Of all settings'} cannot tell: {rest}"] if rest else []
    learns = search.proposer.name != "random"
    shared = (
        ", and since good values of several settings are proposed together, they share their effect" if learns else ""
    )
    return [
        *lines, "",
        "The share of the variance of the trials' ranks that a setting explains by itself; what several do only together is not seen"
        f"{shared}. A setting is named only if chance would give the greatest share of all settings as much in fewer than 5% of the cases.", "",
    ]  # fmt: skip


def _trials(search: Search) -> list[str]:
    best = search.best()[:_NUM_SHOWN]
    first = search.halving.first or 0
    rungs = [shown_seconds(seconds) for seconds in search.halving.rungs[first:]]
    head = ["trial", *(f"score after {rung}" for rung in rungs), "whole time on other seeds"]
    rows = []
    for t in best:
        scores = [f"{score:.4g}" for score in t.scores[first:]]
        again = [f"{r.score:.4g}" if r.scores else r.state for r in search.of("race") if r.candidate == t.number]
        mark = " (found)" if t.number == search.found else "" if t.settings else " (defaults)"
        rows.append([f"{t.number}{mark}", *scores, *[""] * (len(rungs) - len(scores)), ", ".join(again)])
    early = " The defaults had not learned anything by an earlier time at which to judge." if first else ""
    if first == search.halving.last:
        early = " No trial was judged before its end, since the defaults had not learned anything until then: a longer budget gives longer trials."
    failed = [f"Trial {t.number} failed: {t.message}" for t in search.of("search") if t.state == "failed"]
    return [
        "## The best trials", "", *_table(head, rows), "",
        "Trials are ordered by their first score here; the best third of all are put first, in the order of the next score, and so on. "
        f"A trial was stopped unless its score was among the best third of those before it; the defaults never were.{early}",
        *failed[:5], "", "Their settings:", "", *(f"- {t.number}: {_named(t)}" for t in best), "",
    ]  # fmt: skip


def _named(trial: SearchTrial) -> str:
    return ", ".join(f"{k} {json.dumps(v)}" for k, v in trial.settings.items()) or "the defaults"


# -- the picture ------------------------------------------------------------------------------------------------------


def draw(search: Search, proof: Proof, found: Sequence[Importance], path: Path) -> None:
    """Draw the scores of the trials, what mattered, and the settings found beside the defaults.

    Raises:
        Unwritten: the disk is full.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"axes.titlelocation": "left", "axes.titlesize": 11}):
        figure = Figure(figsize=(10, 7.4), dpi=130, layout="constrained")
        panels = figure.subplot_mosaic([["scores", "mattered"], ["curves", "curves"]], width_ratios=[1.25, 1])
        _draw_scores(panels["scores"], search)
        _draw_importances(panels["mattered"], found)
        _draw_curves(panels["curves"], search, proof)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
        axes.set_axisbelow(True)
    title = f"{search.task.run} on {search.task.fixed['env']}: {_asked(search)}"
    figure.suptitle(title, fontsize=13, fontweight="bold")
    with explained(path), replacing(path) as beside:
        figure.savefig(beside)


def _draw_scores(axes: Axes, search: Search) -> None:
    """The score of each trial at the rungs that it reached: at the same seconds all had the same time."""
    rungs = search.halving.rungs
    trials = sorted(
        (t for t in search.of("search") if t.scores), key=lambda t: (t.number == search.found, not t.settings)
    )
    named = {"#888888": "stopped", COLOURS[1]: "defaults", COLOURS[0]: "found"}
    for t in trials:
        colour = COLOURS[0] if t.number == search.found else "#888888" if t.settings else COLOURS[1]
        special = colour != "#888888"
        at, on_top = rungs[: len(t.scores)], 3 if special else 2
        axes.plot(at, t.scores, color=colour, lw=2.2 if special else 0.8, alpha=1 if special else 0.6, zorder=on_top)
        ended = t.state in ("finished", "goal")
        face = colour if ended else "white"
        label = named.pop(colour, None) if special or not ended else None
        axes.plot(at[-1:], t.scores[-1:], "o", ms=5, mfc=face, mec=colour, zorder=on_top + 1, label=label)
    axes.set(title="The trials", xscale="log", xlabel="seconds of training", ylabel="score (mean return until then)")
    axes.set_xticks(rungs, [shown_seconds(rung) for rung in rungs])
    axes.minorticks_off()
    if trials:
        axes.legend(frameon=False, fontsize=8.5)
    axes.grid(color="#E8E8E8")


def _draw_importances(axes: Axes, found: Sequence[Importance]) -> None:
    axes.set_title("Which settings mattered")
    if not found:
        axes.text(
            0.5,
            0.5,
            "cannot tell:\ntoo few trials",
            ha="center",
            va="center",
            transform=axes.transAxes,
            color="#666666",
        )
        axes.set_axis_off()
        return
    shown = found[:_NUM_SHOWN][::-1]
    for i, one in enumerate(shown):
        colour = COLOURS[2] if one.is_sure else "#BBBBBB"
        axes.barh(i, one.share, color=colour, height=0.6)
        axes.plot([one.low, one.high], [i, i], color="#444444", lw=1.2)
    axes.set_yticks(range(len(shown)), [one.setting for one in shown])
    axes.set(xlim=(0, 1), xlabel="share of the variance of ranks, 95% interval\n(grey: cannot tell)")


def _draw_curves(axes: Axes, search: Search, proof: Proof) -> None:
    """Returns over seconds of training on fresh seeds: a thin line for each run, a thick one for the mean of the runs."""
    seconds = proof.seconds
    grid = np.linspace(0, seconds, 200)
    groups = ((proof.defaults, COLOURS[1], "defaults"), (proof.found, COLOURS[0], "found"))
    for trials, colour, name in groups:
        curves = []
        for trial in trials:
            points = np.array([(0.0, trial.baseline or 0.0), *trial.curve])
            curves.append(np.interp(grid, points[:, 0], points[:, 1]))
        for curve in curves:
            axes.plot(grid, curve, color=colour, lw=0.9, alpha=0.5)
        if curves:
            axes.plot(
                grid, np.mean(curves, 0), color=colour, lw=2.6, label=f"{name}, mean of {_count(len(curves), 'seed')}"
            )
    if search.task.goal is not None:
        axes.axhline(search.task.goal, color="#888888", lw=1, ls=(0, (5, 4)), label="goal")
    axes.set(title="On fresh seeds: the settings found beside the defaults", xlim=(0, seconds))
    axes.set(xlabel="seconds of training", ylabel="mean return of an evaluation")
    axes.grid(color="#E8E8E8")
    if proof.found:
        axes.legend(frameon=False, fontsize=9)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
