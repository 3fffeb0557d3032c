"""What a search says at its end: one page and one picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator

from raypid.phases import duration
from raypid.report.plots import View, curves, draw
from raypid.report.statistics import MIN_SEEDS, difference
from raypid.storage.outputs import write_whole
from raypid.storage.run_folder import RunFolder
from raypid.sweep.search import FULL, Search, State

REPORT, PICTURE = "report.md", "report.png"
MIN_TRIALS = 12
"""Trials below which nothing is said of what mattered."""
_SHUFFLES = 19
"""Orders of the trials by chance; in 1 of 20 cases the true one would give the greatest importance of all of them by chance too."""
_TOP = 0.25
"""Share of the trials that count as good."""
_NUM_SHOWN = 10
"""Rows of the table."""


class Proof:
    """The settings found beside the defaults, on fresh seeds that both have.

    Runs that ended, and those that were cut after more than half of their time, are compared by what all have.
    """

    def __init__(self, search: Search) -> None:
        tried = search.of("found", "defaults")
        ran = [t for t in tried if t.state in FULL or t.seconds > search.plan.trial_s / 2]
        runs = {kind: {t.seed: t for t in ran if t.kind == kind and t.curve} for kind in ("found", "defaults")}
        seeds = sorted(runs["found"].keys() & runs["defaults"].keys())
        self.found, self.defaults = ([runs[kind][seed] for seed in seeds] for kind in ("found", "defaults"))
        ended = (t.seconds for t in (*self.found, *self.defaults) if t.state != "goal")
        self.seconds = min([search.plan.trial_s, *ended])
        """Of training that all these runs have, at which their scores are taken."""
        self.scores = [[search.score(t, self.seconds) for t in side] for side in (self.found, self.defaults)]
        """Of `found`, of `defaults`."""
        self.better = difference(*([np.array(scores)] for scores in self.scores)) if seeds else None
        """By score; None without runs of both."""
        self.failure = next((f"runs on fresh seeds failed: {t.message}" for t in tried if t.state == "failed"), "")
        """Why there are no runs of both, unless for want of time."""
        if search.found is None:
            self.failure = "no trial with other settings came far enough to be judged"

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
        if self.better is None:
            return f"{cannot} {self.failure or 'no run on fresh seeds has ended in time'}."
        d, seeds = self.better, len(self.found)
        how = f"{d.estimate:+.4g} in score on {_count(seeds, 'fresh seed')}"
        if math.isfinite(d.low):  # which takes two seeds
            how += f", 95% interval {d.low:+.4g} to {d.high:+.4g}"
        if self.verdict == "cannot tell":
            few = f" (with fewer than {MIN_SEEDS} seeds nothing is called sure)" if seeds < MIN_SEEDS else ""
            return f"{cannot} {how}{few}."
        return f"The settings found are {self.verdict} than the defaults: {how}."


def reached(search: Search, proof: Proof) -> str:
    """What the settings found have reached on fresh seeds and whether the defaults are worse, for `raypid list tuned`."""
    if not proof.found:
        return "not measured on fresh seeds"
    shown = "not shown to be better" if proof.verdict == "cannot tell" else proof.verdict
    returns = [t.curve[-1][1] for t in proof.found]
    goal, seeds = search.task.goal, _count(len(returns), "seed")
    if goal is None:
        return f"{np.mean(returns):.4g} after {duration(proof.seconds)} (mean of {seeds}), {shown} than the defaults"
    there = [t.seconds for t in proof.found if t.state == "goal"]
    text = f"{goal:g} in {np.median(there):.2g} s" if there else f"{goal:g} not reached: {max(returns):.4g} at best"
    return f"{text} ({len(there)} of {seeds}), {shown} than the defaults"


def importances(search: Search) -> dict[str, float]:
    """How much each setting matters for being among the best quarter of the trials (PED-ANOVA, Watanabe et al. 2023,
    arXiv:2304.10255), the greatest first; {} for too few trials.

    Only settings are named that matter more than any one does in orders by chance: without an effect, that is so in 1 of 20 searches.
    """
    ranked = search.ranked()
    if len(ranked) < MIN_TRIALS:
        return {}
    trials = {trial.number: trial for trial in search.study.get_trials(deepcopy=False)}
    tried = [trials[run.candidate] for run in ranked]

    def measured(order: Sequence[int]) -> dict[str, float]:
        study = optuna.create_study()
        for t, value in zip(tried, order, strict=True):
            judged = optuna.trial.create_trial(params=t.params, distributions=t.distributions, value=float(value))
            study.add_trial(judged)
        return PedAnovaImportanceEvaluator(target_quantile=_TOP).evaluate(study)

    rng = np.random.default_rng(0)
    by_chance = max(max(measured(rng.permutation(len(tried)).tolist()).values()) for _ in range(_SHUFFLES))
    return {name: share for name, share in measured(range(len(tried))).items() if share > by_chance}


def write_report(search: Search, proof: Proof, commands: Sequence[tuple[str, str]]) -> Path:
    """Write page and picture into the search's folder; returns the page.

    Args:
        commands: (what for, command line).

    Raises:
        Unwritten: the disk is full.
    """
    page = search.out / REPORT
    lines = _page(search, proof, commands)
    if proof.found:
        _draw(search, proof)
        lines += ["", f"![found and defaults](./{PICTURE})"]
    write_whole(page, "\n".join(lines) + "\n")
    return page


def _page(search: Search, proof: Proof, commands: Sequence[tuple[str, str]]) -> list[str]:
    task, plan, ended = search.task, search.plan, search.of("search")
    goal, states = "", [run.state for run in ended]
    if task.goal is not None:
        goal = f" Returns count up to {task.goal:g}, and a run that has reached it stands there for the rest."
    counts = [f"{states.count(state)} {state}" for state in get_args(State) if state in states]
    matter = ", ".join(f"`{name}` ({share:.2g})" for name, share in importances(search).items())
    lines = [
        f"# {task.run} on {task.fixed['env']}: a search of {_count(len(ended), 'trial')}", "", f"**{proof}**", "",
        f"The score is the mean return over the first {duration(plan.trial_s)} of training: what a user has who wants the most "
        f"return soon.{goal}", "",
        f"Trials: {', '.join(counts)}. They were judged from "
        f"{duration(plan.rungs[search.first_rung or 0])} of training on. The search took {duration(search.elapsed_s)} of a budget of "
        f"{duration(plan.budget_s)}, with {plan.concurrent} at a time.", "",
        f"Settings that mattered (importance by PED-ANOVA): {matter or 'cannot tell'}.", "",
        "| trial | score | on other seeds | settings other than the defaults |", "|---|---|---|---|",
    ]  # fmt: skip
    for run in search.ranked()[:_NUM_SHOWN]:
        mark = " (found)" if run is search.found else ""
        scores = f"{run.scores[-1]:.4g} after {duration(plan.rungs[len(run.scores) - 1])}"
        others = ", ".join(f"{score:.4g}" for score in search.again(run))
        changed = {name: value for name, value in run.settings.items() if value != task.default(name)}
        settings = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in changed.items()) or "the defaults"
        lines.append(f"| {run.candidate}{mark} | {scores} | {others} | {settings} |")
    for name, runs, values in zip(("found", "defaults"), (proof.found, proof.defaults), proof.scores, strict=True):
        if runs:
            seeds = ", ".join(str(run.seed) for run in runs)
            ends = f"{np.mean([run.curve[-1][1] for run in runs]):.5g}"
            lines += ["", f"- {name}, fresh seeds {seeds}: score {np.mean(values):.5g}, return at the end {ends}"]
    lines += ["", "```", *(line for what, command in commands for line in (f"# {what}", command)), "```"]
    return lines


def _draw(search: Search, proof: Proof) -> None:
    """Draw the returns of the settings found and of the defaults on fresh seeds over seconds of training."""
    runs = [RunFolder(search.out / run.folder) for run in (*proof.found, *proof.defaults)]
    view = View("time_total_s")
    drawn = curves(runs, view)
    for curve in drawn:
        curve.group = replace(curve.group, label=curve.group.runs[0].path.name.partition("-")[0])
    draw(drawn, search.out / PICTURE, view)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
