"""The lineage of a population, as a picture: who went on from whom and when, with the scores and the settings of all members."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypid.errors import UserError, reason
from raypid.report.logger import EXPLOITS
from raypid.report.plots import COLOURS, STYLES
from raypid.storage.outputs import replacing
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
    """A member's training between two exploits. Its first point is the donor's last one."""

    steps: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    training: list[tuple[float, float]] = field(default_factory=list)
    """(environment steps, mean training return), where scores are evaluations."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The perturbed ones."""


@dataclass(slots=True)
class Member:
    """A member of a population, and what it went through."""

    name: str
    stretches: list[Stretch]
    exploits: list[tuple[float, str]]
    """(environment steps, donor) of each."""

    def score_at(self, steps: float) -> float | None:
        """The newest score by then."""
        found = [y for part in self.stretches for x, y in zip(part.steps, part.scores) if x <= steps]
        return found[-1] if found else None


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
        found = [_member(out / str(trial["name"]), trial["settings"], list(perturbed)) for trial in plan["trials"]]
        _join(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{_PLAN} or an {EXPLOITS} in {out} is damaged: {reason(error)}") from None
    members = [one for one in found if any(part.steps for part in one.stretches)]
    if not members:
        raise UserError(f"no member of {out} has a score yet: there is no lineage to draw")
    _draw(members, perturbed, out / LINEAGE)
    return out / LINEAGE


def _member(folder: Path, settings: Mapping[str, Any], perturbed: Sequence[str]) -> Member:
    """Read a member from its folder."""
    rows = RunFolder(folder).results
    evaluated, trained = _points(rows, EVALUATION), _points(rows, TRAINING)
    stretches = [Stretch(settings={name: settings.get(name) for name in perturbed})]
    file = folder / EXPLOITS
    records: Any = read_json(file.read_bytes()) if file.exists() else []
    stretches += [Stretch(settings=record["settings"]) for record in records]
    for x, y, i in evaluated or trained:
        stretches[min(i, len(records))].steps.append(x)
        stretches[min(i, len(records))].scores.append(y)
    for x, y, i in trained if evaluated else ():
        stretches[min(i, len(records))].training.append((x, y))
    return Member(folder.name, stretches, [(float(r["timesteps_total"]), str(r["donor"])) for r in records])


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float, int]]:
    """(environment steps, value, exploits so far) of each row that has the key."""
    found = (row for row in rows if known(row.get(key)))
    return [(float(row["timesteps_total"]), float(row[key]), int(row.get("pbt/exploits", 0))) for row in found]


def _join(members: Sequence[Member]) -> None:
    """Begin each stretch after an exploit where the donor was."""
    named = {member.name: member for member in members}
    exploits = [(x, donor, one, i) for one in members for i, (x, donor) in enumerate(one.exploits, start=1)]
    for x, donor, member, index in sorted(exploits, key=lambda e: e[0]):
        if donor in named and (score := named[donor].score_at(x)) is not None:
            member.stretches[index].steps.insert(0, x)
            member.stretches[index].scores.insert(0, score)


# -- drawing ---------------------------------------------------------------------------------------------------------


def _draw(members: Sequence[Member], perturbed: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    from matplotlib.figure import Figure

    columns = len(perturbed) if len(perturbed) <= 4 else 3 if len(perturbed) in (5, 6, 9) else 4
    rows = math.ceil(len(perturbed) / columns)
    figure = Figure(figsize=(10, 4.6 + 1.9 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[4.2, *[1.9] * rows])
    top = figure.add_subplot(grid[0, :])
    _draw_scores(top, members)
    for i, (name, spec) in enumerate(perturbed.items()):
        axes = figure.add_subplot(grid[1 + i // columns, i % columns], sharex=top)
        _draw_setting(axes, members, name, spec)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0")
        axes.grid(axis="y", color="0.93", lw=0.8)
        axes.set_axisbelow(True)
    top.set_xlim(left=0)
    with replacing(file) as beside:
        figure.savefig(beside, dpi=120, format="png")


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index // len(COLOURS) % len(STYLES)]}


def _draw_scores(axes: Axes, members: Sequence[Member]) -> None:
    """Each member's scores; at an exploit an arrow from the donor's to where the member's own line ends."""
    for i, member in enumerate(members):
        look = _look(i)
        label = member.name[:6] + member.name[6:].partition("-")[0]  # trial-001
        for part in member.stretches:
            axes.plot(part.steps, part.scores, lw=1.8, marker="." if part.training else None, ms=5, label=label, **look)
            xs, ys = [x for x, _ in part.training], [y for _, y in part.training]
            axes.plot(xs, ys, lw=0.8, alpha=0.35, color=look["color"])
            label = ""
        for j, (x, _) in enumerate(member.exploits):
            before, after = member.stretches[j], member.stretches[j + 1]
            if before.steps and after.steps and after.steps[0] == x:
                axes.plot([before.steps[-1], x], [before.scores[-1]] * 2, lw=0.9, color=look["color"], ls=":")
                axes.annotate(
                    "", (x, before.scores[-1]), (x, after.scores[0]),
                    arrowprops={"arrowstyle": "-|>", "color": look["color"], "lw": 1.1, "shrinkA": 0, "shrinkB": 3},
                )  # fmt: skip
                axes.plot(x, before.scores[-1], marker="x", color=look["color"], ms=7, mew=1.8)
                axes.plot(x, after.scores[0], marker="o", color=look["color"], ms=4.5)
    thin = any(part.training for member in members for part in member.stretches)
    axes.set_ylabel("evaluation return (thin: training)" if thin else "training return")
    num = sum(len(member.exploits) for member in members)
    what = "no member has gone on from another"
    if num:
        what = "at × a member gives up its state and goes on from the donor's, at ●"
    axes.set_title(f"{num} exploit{'s' if num != 1 else ''}: {what}", fontsize=10, loc="left")
    if len(members) <= _IN_LEGEND:
        axes.legend(frameon=False, fontsize=8, loc="best", handlelength=1.6)


def _draw_setting(axes: Axes, members: Sequence[Member], name: str, spec: Mapping[str, Any]) -> None:
    """The values of a setting over time; a choice that is not of numbers has one line for each of its values."""
    ((word, arguments),) = spec.items()
    values = list(arguments) if word == "choice" else []
    named = [value for value in values if isinstance(value, bool) or not isinstance(value, int | float)]
    positions = {repr(value): i for i, value in enumerate(values)} if named else {}
    for i, member in enumerate(members):
        look, before = _look(i), None
        ends = [x for x, _ in member.exploits]
        last = max((x for part in member.stretches for x in part.steps), default=0.0)
        for part, start, end in zip(member.stretches, [0.0, *ends], [*ends, last]):
            value = part.settings.get(name)
            y = positions.get(repr(value)) if positions else value
            if isinstance(y, int | float):
                axes.plot([start, end], [y, y], lw=1.8, solid_capstyle="butt", **look)
                if start and before is not None:
                    axes.plot([start, start], [before, y], lw=0.8, ls=":", color=look["color"])
                    axes.plot(start, y, marker="o", ms=3.5, color=look["color"])
                before = y
    if positions:
        axes.set_yticks(range(len(values)), [str(value) for value in values])
    elif word in _LOGARITHMIC or (values and min(values) > 0 and max(values) / min(values) >= 8):
        axes.set_yscale("log")
    if values and not positions:
        axes.set_yticks(values, [f"{value:g}" for value in values], minor=False)
        axes.minorticks_off()
    axes.set_title(name, fontsize=9.5, loc="left", color="0.2")
    axes.set_xlabel("environment steps of each member", fontsize=8)
    axes.tick_params(labelsize=8)
