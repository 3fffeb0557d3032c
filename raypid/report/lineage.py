"""The lineage of a population, as a picture: who went on from whom and when, with the scores and the settings of all members."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from raypid.errors import UserError, reason
from raypid.report.logger import EXPLOITS
from raypid.report.plots import LOOKS, dress, grid, save
from raypid.report.statistics import Column
from raypid.storage.plain_data import read_json
from raypid.storage.run_folder import EVALUATION, TRAINING, RunFolder, known

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINEAGE = "lineage.png"
"""In the experiment's folder."""
_PLAN = "experiment.json"
_LOGARITHMIC = ("loguniform", "lograndint", "qloguniform")
_IN_LEGEND = 12
"""Members above which they have no names in the picture."""


@dataclass(slots=True)
class Stretch:
    """A member's training between two exploits."""

    start: float
    """Environment steps of the member at the exploit with which it begins; 0 for the first."""
    donor: str
    """The member whose state it began with; "" for the first."""
    settings: Mapping[str, Any]
    """The perturbed ones."""
    scores: list[tuple[float, float]] = field(default_factory=list)
    """(environment steps, score). The first point after an exploit is the donor's last one."""
    training: list[tuple[float, float]] = field(default_factory=list)
    """(environment steps, mean training return), where scores are evaluations."""


Members: TypeAlias = "dict[str, list[Stretch]]"
"""The stretches of each member, by its name."""


def lineage(out: Path) -> Path | None:
    """Draw lineage.png into the folder of an experiment; returns its path, or None if the experiment has no population.

    Raises:
        UserError: no member has a score yet.
        ValueError: a file is damaged.
        Unwritten: the picture cannot be written.
    """
    if not (out / _PLAN).is_file():
        return None
    plan: Any = read_json((out / _PLAN).read_bytes())
    if not isinstance(plan, dict) or not plan.get("population"):
        return None
    try:
        perturbed: dict[str, Mapping[str, Any]] = plan["population"]["perturb"]
        trials = {str(trial["name"]): trial["settings"] for trial in plan["trials"]}
        members = {name: _stretches(out / name, settings, list(perturbed)) for name, settings in trials.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{_PLAN} or an {EXPLOITS} in {out} is damaged: {reason(error)}") from None
    _join(members)
    members = {name: stretches for name, stretches in members.items() if any(part.scores for part in stretches)}
    if not members:
        raise UserError(f"no member of {out} has a score yet: there is no lineage to draw")
    return _draw(members, perturbed, out / LINEAGE)


def _stretches(folder: Path, settings: Mapping[str, Any], perturbed: Sequence[str]) -> list[Stretch]:
    """Read what a member went through from its folder."""
    file = folder / EXPLOITS
    records: Any = read_json(file.read_bytes()) if file.exists() else []
    stretches = [Stretch(0.0, "", {name: settings.get(name) for name in perturbed})]
    stretches += [Stretch(float(r["timesteps_total"]), str(r["donor"]), r["settings"]) for r in records]
    run = RunFolder(folder)
    evaluated = EVALUATION in run.keys
    for row in run.results:
        part = stretches[min(int(row.get("pbt/exploits", 0)), len(records))]
        for key, points in ((EVALUATION, part.scores), (TRAINING, part.training if evaluated else part.scores)):
            if known(value := row.get(key)):
                points.append((float(row["timesteps_total"]), value))
    return stretches


def _join(members: Members) -> None:
    """Begin each stretch after an exploit where the donor was."""
    exploits = [part for stretches in members.values() for part in stretches[1:]]
    for part in sorted(exploits, key=lambda part: part.start):
        theirs = [point for other in members.get(part.donor, []) for point in other.scores if point[0] <= part.start]
        if theirs:
            part.scores.insert(0, (part.start, theirs[-1][1]))


# -- drawing ---------------------------------------------------------------------------------------------------------


def _draw(members: Members, perturbed: Mapping[str, Mapping[str, Any]], file: Path) -> Path:
    from matplotlib.figure import Figure

    rows, columns = grid(len(perturbed))
    figure = Figure(figsize=(10, 4.6 + 1.9 * rows), dpi=120, layout="constrained")
    cells = figure.add_gridspec(1 + rows, columns, height_ratios=[4.2, *[1.9] * rows])
    top = figure.add_subplot(cells[0, :])
    _draw_scores(top, members)
    for i, (name, spec) in enumerate(perturbed.items()):
        axes = figure.add_subplot(cells[1 + i // columns, i % columns], sharex=top)
        _draw_setting(axes, members, name, spec)
    return save(figure, file)


def _draw_scores(axes: Axes, members: Members) -> None:
    """Each member's scores; at an exploit an arrow from the donor's to where the member's own line ends."""
    for (name, stretches), look in zip(members.items(), itertools.cycle(LOOKS)):
        colour = look["color"]
        label = name[:6] + name[6:].partition("-")[0]  # trial-001
        for part in stretches:
            marker = "." if part.training else None
            axes.plot(*_columns(part.scores), lw=1.8, marker=marker, ms=5, label=label, **look)
            axes.plot(*_columns(part.training), lw=0.8, alpha=0.35, color=colour)
            label = ""
        for before, after in itertools.pairwise(stretches):
            if before.scores and after.scores and after.scores[0][0] == after.start:
                end, begin = (after.start, before.scores[-1][1]), after.scores[0]
                axes.plot(*_columns([before.scores[-1], end]), lw=0.9, color=colour, ls=":")
                arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.1, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", end, begin, arrowprops=arrow)
                axes.plot(*end, marker="x", color=colour, ms=7, mew=1.8)
                axes.plot(*begin, marker="o", color=colour, ms=4.5)
    thin = any(part.training for stretches in members.values() for part in stretches)
    axes.set_ylabel("evaluation return (thin: training)" if thin else "training return")
    num = sum(len(stretches) - 1 for stretches in members.values())
    what = "at × a member gives up its state and goes on from the donor's, at ●"
    axes.set_title(f"Exploits: {num}; {what}", fontsize=10, loc="left")
    if len(members) <= _IN_LEGEND:
        axes.legend(frameon=False, fontsize=8, loc="best", handlelength=1.6)
    dress(axes, "timesteps_total")


def _columns(points: Sequence[tuple[float, float]]) -> Column:
    """Points as [2, N], to be plotted."""
    return np.array(points, np.float64).reshape(-1, 2).T


def _draw_setting(axes: Axes, members: Members, name: str, spec: Mapping[str, Any]) -> None:
    """The values of a setting over time; a choice that is not of numbers has one line for each of its values."""
    dress(axes, "timesteps_total")
    ((word, arguments),) = spec.items()
    values = list(arguments) if word == "choice" else []
    is_named = any(isinstance(value, bool) or not isinstance(value, int | float) for value in values)
    if is_named:
        axes.yaxis.update_units([str(value) for value in values])
    for stretches, look in zip(members.values(), itertools.cycle(LOOKS)):
        end = max(x for part in stretches for x, _ in part.scores)
        ys: list[Any] = [part.settings.get(name) for part in (*stretches, stretches[-1])]
        axes.step(
            [*(part.start for part in stretches), end], [str(y) for y in ys] if is_named else ys, where="post",
            lw=1.5, marker="o", ms=3.5, markevery=slice(1, len(stretches)), **look,
        )  # fmt: skip
    if word in _LOGARITHMIC or (values and not is_named and min(values) > 0 and max(values) / min(values) >= 8):
        axes.set_yscale("log")
    if values:
        axes.set_yticks(range(len(values)) if is_named else values, [str(value) for value in values], minor=False)
        axes.minorticks_off()
    axes.set_title(name, fontsize=9.5, loc="left", color="0.2")
    axes.set_xlabel("environment steps of each member", fontsize=8)
    axes.tick_params(labelsize=8)
