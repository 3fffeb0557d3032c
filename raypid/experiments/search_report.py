"""What a search says at its end: one page and one picture."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raypid.experiments.budget import FIRST_FRESH, shown_seconds
from raypid.experiments.halving import NUM_RUNGS, REDUCTION
from raypid.experiments.importance import MIN_TRIALS, Importance, importances
from raypid.experiments.search import Search
from raypid.experiments.search_trials import SearchTrial
from raypid.outputs import explained, replacing
from raypid.reporting.plots import COLOURS
from raypid.reporting.statistics import MIN_SEEDS, Difference, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT, PICTURE = "report.md", "report.png"
_NUM_SHOWN = 10
"""Rows of the tables."""


@dataclass(slots=True)
class Proof:
    """The winner beside the defaults, on fresh seeds that both have."""

    winner: list[SearchTrial]
    defaults: list[SearchTrial]
    better: Difference | None
    """By score; None without runs of both."""

    @classmethod
    def of(cls, search: Search) -> Proof:
        runs = {kind: {t.seed: t for t in search.of(kind) if math.isfinite(t.score)} for kind in ("winner", "defaults")}
        seeds = sorted(runs["winner"].keys() & runs["defaults"].keys()) or sorted(runs["winner"])
        winner, defaults = ([runs[kind][s] for s in seeds if s in runs[kind]] for kind in ("winner", "defaults"))
        scores = [np.array([t.score for t in trials]) for trials in (winner, defaults)]
        return cls(winner, defaults, difference([scores[0]], [scores[1]]) if defaults else None)

    def __str__(self) -> str:
        """The answer, as a sentence."""
        if self.better is None:
            return "No run has ended on fresh seeds, so nothing is proven: give a longer budget."
        d, seeds = self.better, len(self.winner)
        how = f"{d.estimate:+.4g} in score on {_count(seeds, 'fresh seed')}"
        if not math.isfinite(d.low):
            return f"Cannot tell whether the winner is better than the defaults: {how}, and one seed says nothing of others."
        how += f", 95% interval {d.low:+.4g} to {d.high:+.4g}"
        if not d.is_sure:
            few = f" (with fewer than {MIN_SEEDS} seeds nothing is called sure)" if seeds < MIN_SEEDS else ""
            return f"Cannot tell whether the winner is better than the defaults: {how}{few}."
        return f"The winner is {'better' if d.estimate > 0 else 'worse'} than the defaults: {how}."


def answer(search: Search, proof: Proof) -> str:
    """What the search found, as a sentence."""
    assert search.winner is not None
    if not search.trials[search.winner].settings:
        return (
            f"No settings were found that are better than the defaults, of {_count(len(search.of('search')), 'trial')}."
        )
    return str(proof)


def reached(search: Search, proof: Proof) -> str:
    """What the winner reached on fresh seeds, for `raypid list tuned`."""
    if not proof.winner:
        return "not measured on fresh seeds"
    returns = [t.last_return for t in proof.winner]
    text = f"{np.mean(returns):.4g} after {shown_seconds(search.plan.trial_s)} of training"
    goal = search.task.goal
    if goal is not None:
        there = [t.seconds for t in proof.winner if t.state == "goal"]
        text = f"{goal:g} in {np.median(there):.2g} s" if there else f"{goal:g} not reached: {max(returns):.4g} at best"
        text += f" ({len(there)} of {_count(len(returns), 'seed')})"
        return text
    return f"{text} (mean of {_count(len(returns), 'seed')})"


def write_report(search: Search, proof: Proof, commands: Sequence[tuple[str, str]]) -> Path:
    """Write page and picture into the search's folder; returns the page.

    Args:
        commands: (what for, command line).

    Raises:
        Unwritten: the disk is full.
    """
    order = {t.number: t.order for t in search.of("search") if t.units and t.rung >= 0}
    found = importances(search.task.space, [search.trials[n].units for n in order], _places(list(order.values())))
    page = search.out / REPORT
    lines = _page(search, proof, found, commands)
    draw(search, proof, found, search.out / PICTURE)
    with explained(page), replacing(page) as beside:
        beside.write_text("\n".join(lines) + "\n")
    return page


def _places(order: Sequence[tuple[int, float]]) -> list[float]:
    """The place of each trial in the order of all."""
    ranked = sorted(set(order))
    return [float(ranked.index(one)) for one in order]


def _page(search: Search, proof: Proof, found: Sequence[Importance], commands: Sequence[tuple[str, str]]) -> list[str]:
    task, plan = search.task, search.plan
    ended = search.of("search")
    stopped = sum(t.state == "stopped" for t in ended)
    goal = (
        ""
        if task.goal is None
        else f" Returns count up to {task.goal:g}, and a run that has reached it stands there for the rest."
    )
    lines = [
        f"# {task.run} on {task.fixed['env']}: a search of {_count(len(ended), 'trial')}", "", f"**{answer(search, proof)}**", "",
        f"The score is the mean return over the first {shown_seconds(plan.trial_s)} of training: what a user has who wants the most "
        f"return soon.{goal}",
        f"Proposals by {search.proposer.name}; {stopped} of {len(ended)} trials were stopped early; "
        f"{shown_seconds(search.elapsed_s)} of a budget of {shown_seconds(plan.budget_s)}, {plan.concurrent} at a time.",
        "", f"![the search](./{PICTURE})", "",
        *_settings(search), *_proof(search, proof), *_mattered(search, found), *_trials(search), "## Commands", "", "```",
    ]  # fmt: skip
    for what, command in commands:
        lines += [f"# {what}", command]
    return [*lines, "```"]


def _settings(search: Search) -> list[str]:
    assert search.winner is not None
    settings = search.trials[search.winner].settings
    if not settings:
        return []
    rows = [(name, search.task.default(name), value) for name, value in settings.items()]
    changed = [f"| `{name}` | `{json.dumps(old)}` | `{json.dumps(new)}` |" for name, old, new in rows if old != new]
    same = [f"`{name}`" for name, old, new in rows if old == new]
    rest = [f"As by default: {', '.join(same)}.", ""] if same else []
    return ["## The settings", "", "| setting | default | winner |", "|---|---|---|", *changed, "", *rest]


def _proof(search: Search, proof: Proof) -> list[str]:
    if not proof.winner:
        return []
    head = [
        "",
        "score, mean",
        "return at the end, mean",
        *(["reached the goal after"] if search.task.goal is not None else []),
    ]
    lines = [
        "## On fresh seeds", "",
        f"Trained anew on seeds {FIRST_FRESH} and up, which chose nothing, side by side.", "",
        f"| {' | '.join(head)} |", "|---" * len(head) + "|",
    ]  # fmt: skip
    for name, trials in (("winner", proof.winner), ("defaults", proof.defaults)):
        if trials:
            seeds = "seeds " + ", ".join(str(t.seed) for t in trials)
            cells = [
                f"{name} ({seeds})",
                f"{np.mean([t.score for t in trials]):.5g}",
                f"{np.mean([t.last_return for t in trials]):.5g}",
            ]
            if search.task.goal is not None:
                cells.append(", ".join(f"{t.seconds:.2g} s" if t.state == "goal" else "not" for t in trials))
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


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
    race = {t.candidate: [r for r in search.of("race") if r.candidate == t.candidate] for t in best}
    lines = [
        "## The best trials",
        "",
        "| trial | score | judged after | on other seeds | settings |",
        "|---|---|---|---|---|",
    ]
    for t in best:
        again = ", ".join(f"{r.score:.4g}" if math.isfinite(r.score) else "cut" for r in race[t.number])
        settings = ", ".join(f"{k} {json.dumps(v)}" for k, v in t.settings.items()) or "the defaults"
        mark = " (winner)" if t.number == search.winner else ""
        judged = shown_seconds(search.halving.rungs[t.rung])
        lines.append(f"| {t.number}{mark} | {t.score:.4g} | {judged} | {again} | {settings} |")
    shares = ", ".join(f"1/{REDUCTION**i}" for i in range(NUM_RUNGS - 1, 0, -1))
    failed = [f"Trial {t.number} failed: {t.message}" for t in search.of("search") if t.state == "failed"]
    return [
        *lines, "", f"Trials are judged after {shares} and all of their time; of three that come so far one goes on.", *failed[:5], "",
    ]  # fmt: skip


# -- the picture ------------------------------------------------------------------------------------------------------


def draw(search: Search, proof: Proof, found: Sequence[Importance], path: Path) -> None:
    """Draw the scores over the time of the search, what mattered, and the winner beside the defaults.

    Raises:
        Unwritten: the disk is full.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.4), dpi=130, layout="constrained")
    panels = figure.subplot_mosaic([["scores", "mattered"], ["curves", "curves"]], width_ratios=[1.25, 1])
    _draw_scores(panels["scores"], search)
    _draw_importances(panels["mattered"], found)
    _draw_curves(panels["curves"], search, proof)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    figure.suptitle(
        f"{search.task.run} on {search.task.fixed['env']}: {_count(len(search.of('search')), 'trial')}",
        fontsize=13,
        fontweight="bold",
    )
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    with explained(path), replacing(path) as beside:
        beside.write_bytes(picture.getbuffer())


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _draw_scores(axes: Axes, search: Search) -> None:
    """Scores over the time of the search: full trials, stopped ones at the score at which they were, the best so far as a line."""
    trials = [t for t in search.of("search") if math.isfinite(t.score)]
    unit, name = _unit(search.plan.budget_s)
    last = len(search.halving.rungs) - 1
    full = sorted((t for t in trials if t.rung == last), key=lambda t: t.ended_at)
    part = [t for t in trials if t.rung < last]
    axes.scatter(
        [t.ended_at / unit for t in part],
        [t.score for t in part],
        s=22,
        facecolors="none",
        edgecolors="#888888",
        label="stopped early",
    )
    axes.scatter(
        [t.ended_at / unit for t in full], [t.score for t in full], s=26, color=COLOURS[0], label="whole time", zorder=3
    )
    if full:
        best = np.maximum.accumulate([t.score for t in full])
        end = max(t.ended_at for t in trials)
        axes.step(
            [*(t.ended_at / unit for t in full), end / unit],
            [*best, best[-1]],
            where="post",
            color=COLOURS[0],
            lw=2,
            label="best so far",
        )
    defaults = search.trials.get(1)
    if defaults is not None and math.isfinite(defaults.score) and defaults.rung == last:
        axes.axhline(defaults.score, color=COLOURS[1], ls="--", lw=1.3, label="defaults")
    axes.set_xlabel(f"time of the search ({name})")
    axes.set_ylabel("score (mean return over a trial's time)")
    axes.set_title("The trials", loc="left", fontsize=11)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=8.5, loc="best")
    axes.grid(True, color="#E8E8E8", lw=0.8)
    axes.set_axisbelow(True)


def _draw_importances(axes: Axes, found: Sequence[Importance]) -> None:
    axes.set_title("Which settings mattered", loc="left", fontsize=11)
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
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the variance of ranks, 95% interval\n(grey: cannot tell)")


def _draw_curves(axes: Axes, search: Search, proof: Proof) -> None:
    """Returns over seconds of training on fresh seeds: a thin line for each run, a thick one for the mean of the runs."""
    seconds = search.plan.trial_s
    grid = np.linspace(0, seconds, 200)
    groups = ((proof.defaults, COLOURS[1], "defaults"), (proof.winner, COLOURS[0], "winner"))
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
    axes.set_title(
        "On fresh seeds: " + ("the winner beside the defaults" if proof.defaults else "the winner"),
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("mean return of an evaluation")
    axes.set_xlim(0, seconds)
    axes.grid(True, color="#E8E8E8", lw=0.8)
    if proof.winner:
        axes.legend(frameon=False, fontsize=9, loc="best")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
