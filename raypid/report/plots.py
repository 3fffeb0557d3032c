"""Learning curves of one or several runs, as a picture with one panel for each task.

Of a single run, thin lines are training returns as reported; thick lines are evaluation means with their 95% intervals. Runs that
differ only in their seed are drawn as one curve: the interquartile mean over the seeds, with its bootstrap interval. Settings without an
evaluation are drawn by their training returns, thinner where others of the panel have evaluations.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from raypid.errors import UserError, listed, shorten
from raypid.report.panel import count
from raypid.report.runs import Group, check_key, find_runs, group_by_seed, grouped
from raypid.report.statistics import CENTRES, Centre, Column, bootstrap_interval
from raypid.storage.outputs import replacing, usable
from raypid.storage.run_folder import EVALUATION, NAMES, TRAINING, RunFolder, known

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPISODES = 20
"""Training episodes of which a curve shows the mean."""
NEW_EPISODES = "episode_reward_this_iter"
INTERVAL = "evaluation/episode_reward_ci95"
LOWEST, HIGHEST = "evaluation/episode_reward_min", "evaluation/episode_reward_max"

XAxis: TypeAlias = Literal["timesteps_total", "time_total_s"]
Look: TypeAlias = dict[str, Any]
"""The colour and the style of a setting's line, the same in every panel."""

# Okabe and Ito's colours: people with any kind of colour vision can tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
STYLES = ("-", (0, (2.2, 1.0)), (0, (4, 0.9, 0.8, 0.9)))
LOOKS: list[Look] = [{"color": colour, "ls": style} for style in STYLES for colour in COLOURS]
GREY: Look = {"color": "#BBBBBB", "ls": "-"}
MOST = 20
"""Settings with colours of their own. If there are more, the best ones have colours and the others are grey."""
MAX_TITLE = 200
POINTS = 200
"""Points of a curve over seeds."""
UNFINISHED = 0.5
"""Fraction below which a seed is drawn by itself: if it did not finish and came less far than this part of the longest, or if its values
(such as a single evaluation) span less than this part of the widest. If some seeds have no values before this part, all are."""
TRAINING_LINES = 4
"""Settings with evaluations above which their training returns are left out of a panel."""
EPISODE_BANDS = 6
"""Curves of a panel above which single runs have neither points nor the intervals of their evaluations."""
FURTHER = 0.02
"""The end of a seed after another one has ended is drawn by itself from this fraction on."""


@dataclass(frozen=True, slots=True)
class View:
    """What of runs is drawn."""

    x: XAxis = "timesteps_total"
    y: str | None = None
    """A key of the results; None: evaluations, or training returns."""
    centre: Centre = "iqm"
    smooth: float = 0.0
    """A running mean over this many points of each run, or over this part of them if it is below 1. Evaluation means are smoothed only if
    `y` names them."""


@dataclass(slots=True)
class Curve:
    """The curve of the runs of one task that differ only in their seed."""

    group: Group
    counted: int
    """Seeds that the centre is over."""
    x: Column = field(default_factory=lambda: np.zeros(0))
    """[K], empty if nothing can be drawn over the seeds."""
    centre: Column = field(default_factory=lambda: np.zeros(0))
    low: Column = field(default_factory=lambda: np.zeros(0))
    """The interval [K]; NaN where there is none."""
    high: Column = field(default_factory=lambda: np.zeros(0))
    is_evaluation: bool = False
    is_carried: bool = False
    """Whether a seed that has finished keeps its last value from there on."""
    singles: list[tuple[Column, Column]] = field(default_factory=list)
    """Seeds drawn by themselves: where others have ended, and unfinished ones."""
    training: tuple[Column, Column] | None = None
    """Training returns, in addition to evaluations."""


def learning_curve(folders: Sequence[Path], out: Path, x: XAxis = "timesteps_total") -> Path:
    """Draw the learning curves of these runs into `out`, whose ending is the format (png, svg, pdf); returns its path.

    Args:
        folders: of runs, or of parents of runs.

    Raises:
        ValueError: a folder has no results, no episode has ended in any of the runs, or the format is unknown.
        Unwritten: the disk is full. An earlier picture is as it was.
    """
    runs, _ = find_runs(folders, empty=True)
    with_results = [run for run in runs if run.results]
    view = View(x)
    return draw(curves(with_results or runs, view), out, view)


def curves(runs: Sequence[RunFolder], view: View) -> list[Curve]:
    """Compute the curves of these runs, one for each task and setting.

    Raises:
        UserError: no run has a number `y`; no episode has ended in any of them.
    """
    if view.y is not None:
        check_key(runs, view.y)
    drawn = [_curve(group, view) for group in group_by_seed(runs)]
    drawn = [curve for curve in drawn if len(curve.x) or curve.singles or (curve.training and len(curve.training[0]))]
    if not drawn:
        raise UserError(f"no episode has ended yet in {listed([str(run.path) for run in runs], 3)}: nothing to draw")
    return drawn


def notes_on(drawn: Sequence[Curve]) -> Iterator[str]:
    """Yield a sentence for each task in which some settings have no evaluations, so that their training returns are drawn instead."""
    for task, there in _by_task(drawn).items():
        lacking = [curve.group.label or "one" for curve in there if not curve.is_evaluation]
        if 0 < len(lacking) < len(there):
            yield f"{task}: training returns are drawn, thin, where there are no evaluations: {listed(lacking, 3)}."


def _curve(group: Group, view: View) -> Curve:
    x, y = view.x, view.y
    training = [_smoothed(run.curve(x, y) if y else training_curve(run, x), view.smooth) for run in group.runs]
    if y is not None or not any(EVALUATION in run.keys for run in group.runs):
        return _over_seeds(group, training, view)
    curve = _over_seeds(group, [run.curve(x, EVALUATION) for run in group.runs], view)
    thin = _over_seeds(group, training, view, interval=False)
    curve.is_evaluation, curve.training = True, (thin.x, thin.centre)
    if len(group.runs) == 1:
        (run,) = group.runs
        where, half = run.curve(x, INTERVAL)
        half = half if len(where) == len(curve.x) else np.full(len(curve.x), np.nan)
        # No mean is beyond what episodes can reach: where all reach 500, the interval ends there.
        curve.low = np.maximum(curve.centre - half, min(run.curve(x, LOWEST)[1], default=-math.inf))
        curve.high = np.minimum(curve.centre + half, max(run.curve(x, HIGHEST)[1], default=math.inf))
    return curve


def training_curve(run: RunFolder, x: str) -> tuple[Column, Column]:
    """Return training returns (x [K], value [K]): means of EPISODES episodes that ended one after the other, each at the mean of the x at
    which they ended, so that the curve is not late by the episodes that it is a mean of.

    Runs of earlier versions have no returns of single iterations. Theirs are the means of the last 100 episodes.
    """
    xs, means, totals = (run.column(key) for key in (x, NEW_EPISODES, "episodes_total"))
    counts = np.maximum(np.diff(np.nan_to_num(totals, posinf=0.0), prepend=0.0), 1.0)
    there = np.isfinite(xs) & np.isfinite(means) & np.isfinite(totals)
    if not there.any():
        return run.curve(x, TRAINING)
    xs, means, counts = xs[there], means[there], counts[there]
    ended, returns, places = (np.cumsum([0.0, *part]) for part in (counts, counts * means, counts * xs))
    first = np.maximum(np.searchsorted(ended, ended[1:] - EPISODES, side="right") - 1, 0)
    size = ended[1:] - ended[first]
    whole = size >= min(EPISODES, ended[-1]) / 4  # a mean of the first one or two would be a matter of luck
    return ((places[1:] - places[first]) / size)[whole], ((returns[1:] - returns[first]) / size)[whole]


def _over_seeds(group: Group, columns: Sequence[tuple[Column, Column]], view: View, *, interval: bool = True) -> Curve:
    """Interpolate the seeds of a group on a common grid, from where all have begun to where the first one ends.

    A run that reached its goal needed no more steps: it keeps its last value, as the policy does that it learnt. Over time, so does
    one that ended at any of its stop criteria. Any other seed would have gone on, nobody knows where to. A single run keeps its points.
    """
    if len(group.runs) == 1:
        xs, ys = columns[0]
        return Curve(group, 1, xs, ys, np.full(len(xs), np.nan), np.full(len(xs), np.nan))
    known_runs = [(run, column) for run, column in zip(group.runs, columns) if len(column[0])]
    if not known_runs:
        return Curve(group, 0)
    end = max(xs[-1] for _, (xs, _) in known_runs)
    widest = max(xs[-1] - xs[0] for _, (xs, _) in known_runs)
    over_time = view.x == "time_total_s"
    seeds: list[tuple[Column, Column, bool]] = []
    singles: list[tuple[Column, Column]] = []
    for run, (xs, ys) in known_runs:
        keeps = run.ending.at_goal or (over_time and run.ending.state == "finished")
        enough = UNFINISHED * min(widest, run.last(view.x))
        is_sparse = not keeps and xs[-1] - xs[0] < enough  # would end the curve of all
        if is_sparse or (run.ending.state != "finished" and xs[-1] < UNFINISHED * end):
            singles.append((xs, ys))
        else:
            seeds.append((xs, ys, keeps))
    start = max(xs[0] for xs, _, _ in seeds)
    last = min((xs[-1] for xs, _, keeps in seeds if not keeps), default=end)
    if last < start <= last + FURTHER * end:  # such as a single evaluation of each, at the end
        last = start
    if last < start:
        return Curve(group, len(seeds), singles=[*singles, *((xs, ys) for xs, ys, _ in seeds)])
    grid = np.unique(np.linspace(start, last, POINTS))
    table = np.stack([np.interp(grid, xs, ys) for xs, ys, _ in seeds])
    low, high = bootstrap_interval(table, view.centre) if interval else (table[0], table[0])
    carried = any(keeps and xs[-1] < last for xs, _, keeps in seeds)
    for xs, ys, keeps in seeds:
        if not keeps and xs[-1] > last + FURTHER * end:
            beyond = np.concatenate([[last], xs[xs > last]])
            singles.append((beyond, np.interp(beyond, xs, ys)))
    return Curve(group, len(seeds), grid, CENTRES[view.centre](table), low, high, is_carried=carried, singles=singles)


def _smoothed(column: tuple[Column, Column], smooth: float) -> tuple[Column, Column]:
    """A running mean over the values, centred; near the ends over fewer, but as many on each side."""
    xs, ys = column
    width = round(smooth * len(ys)) if smooth < 1 else int(smooth)
    if width < 2 or len(ys) < 3:
        return column
    places = np.arange(len(ys))
    reach = np.minimum.reduce([np.full(len(ys), width // 2), places, places[::-1]])
    sums = np.cumsum([0.0, *ys])
    return xs, (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)


# -- the picture -------------------------------------------------------------------------------------------------------


def draw(drawn: Sequence[Curve], out: Path, view: View, title: str | None = None) -> Path:
    """Draw what `curves` computed of this view, into `out`; returns its path.

    Raises:
        ValueError: the format is unknown.
        Unwritten: the disk is full. An earlier picture is as it was.
    """
    from matplotlib.figure import Figure

    x, y = view.x, view.y
    by_task = _by_task(drawn)
    looks = _looks(drawn, ranked=y is None)
    rows, columns = grid(len(by_task))
    width = max(8.0, 4.1 * columns)
    figure = Figure(figsize=(width, 4.8), dpi=150, layout="constrained")
    unit, x_label = _x_unit([run for curve in drawn for run in curve.group.runs], x)
    evaluated = any(curve.is_evaluation for curve in drawn)
    y_label = NAMES.get(y, y) if y else "episode return" if evaluated else "training return"
    for index, (task, there) in enumerate(by_task.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw_panel(axes, there, looks, unit)
        if y is None or y.endswith(TRAINING):
            _draw_target(axes, [run for curve in there for run in curve.group.runs])
        dress(axes, x)
        if index % columns == 0:
            axes.set_ylabel(y_label, fontsize=10.5)
        if index + columns >= len(by_task):
            axes.set_xlabel(x_label, fontsize=10.5)
        if len(by_task) > 1:
            mixed = y is None and evaluated and not any(curve.is_evaluation for curve in there)
            axes.set_title(shorten(task, 44) + " (training returns)" * mixed, loc="left", fontsize=10.5)
    text = (title or _title([curve.group for curve in drawn], y))[:MAX_TITLE].encode(errors="replace").decode()
    figure.suptitle(text, x=0.01, ha="left", fontsize=13, fontweight="bold")
    shown = {artist.get_gid() for axes in figure.axes for artist in axes.get_children()}
    handles = _legend(drawn, looks, view, shown)
    longest = max(len(str(handle.get_label())) for handle in handles)
    legend_columns = min(4, max(1, int(13 * width) // (longest + 10)))
    height = 4.6 if len(by_task) == 1 else 3.0 * rows + 0.7
    figure.set_figheight(height + 0.21 * -(-len(handles) // legend_columns))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=legend_columns, frameon=False, fontsize=9.5, handlelength=3.2
    )
    return save(figure, Path(out))


def save(figure: Figure, out: Path) -> Path:
    """Write a picture, whole or not at all; the ending of `out` is the format."""
    with usable(out, "The picture"):
        picture = io.BytesIO()  # what Pillow writes itself hides the error number of a full disk
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a title in letters that the font lacks
            figure.savefig(picture, format=out.suffix.removeprefix("."))
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as beside:
            beside.write_bytes(picture.getbuffer())
    return out


def _by_task(drawn: Sequence[Curve]) -> dict[str, list[Curve]]:
    return grouped(drawn, lambda curve: curve.group.task)


def grid(panels: int) -> tuple[int, int]:
    """(rows, columns) for this many panels."""
    columns = panels if panels <= 3 else 2 if panels == 4 else 3 if panels <= 9 else 4
    return -(-panels // columns), columns


def _looks(drawn: Sequence[Curve], *, ranked: bool) -> dict[str, Look]:
    """Colours and line styles by label. With more than MOST labels, only those with the best last value in any task have them, or the
    first ones if more is not better. The others are grey."""
    places: list[tuple[int, str]] = []
    for there in _by_task(drawn).values():
        if ranked:
            there.sort(key=lambda curve: -curve.centre[-1] if len(curve.centre) else math.inf)
        places += [(place, curve.group.label) for place, curve in enumerate(there)]
    best = list(dict.fromkeys(label for _, label in sorted(places, key=lambda place: place[0])))[:MOST]
    labels = dict.fromkeys(curve.group.label for curve in drawn if curve.group.label in best)
    return dict(zip(labels, LOOKS))


def _draw_panel(axes: Axes, drawn: Sequence[Curve], looks: dict[str, Look], unit: float) -> None:
    """Draw the curves of a task. What is drawn has a `gid` by which the legend names it."""
    evaluated = any(curve.is_evaluation for curve in drawn)
    for curve in drawn:
        look = looks.get(curve.group.label, GREY)
        colour, grey = look["color"], look is GREY
        crowded = len(drawn) > EPISODE_BANDS and len(curve.group.runs) == 1
        few = len(curve.x) == 1 or (len(curve.x) <= 30 and curve.counted == 1 and curve.is_evaluation and not crowded)
        is_main = curve.is_evaluation or (curve.counted > 1 and not evaluated)
        if curve.training is not None and len(drawn) <= TRAINING_LINES:
            axes.plot(curve.training[0] / unit, curve.training[1], **look, lw=1.0, alpha=0.5, gid="training")
        axes.plot(
            curve.x / unit, curve.centre, **look, lw=1.0 if grey else 2.4 if is_main else 1.5,
            marker="o" if few else None, ms=4.5, solid_capstyle="round", zorder=1.5 if grey else 3,
            gid="evaluation" if curve.is_evaluation else "training",
        )  # fmt: skip
        if not grey and not crowded and not np.isnan(curve.low).all():
            gid = "seeds" if curve.counted > 1 else "episodes"
            if len(curve.x) == 1:
                axes.vlines(curve.x / unit, curve.low, curve.high, color=colour, lw=5, alpha=0.3, gid=gid)
            axes.fill_between(curve.x / unit, curve.low, curve.high, color=colour, alpha=0.18, lw=0, gid=gid)
        for xs, ys in curve.singles:
            marker = "." if len(xs) == 1 else None
            axes.plot(xs / unit, ys, ":", marker=marker, ms=5, color=colour, lw=1.3, zorder=2, gid="single")


def _title(groups: Sequence[Group], y: str | None = None) -> str:
    runs = [run for group in groups for run in group.runs]
    algorithms = listed([*dict.fromkeys(run.algorithm for run in runs if run.algorithm)], 3)
    tasks = listed([*dict.fromkeys(group.task for group in groups if group.task)], 3)
    title = " on ".join(filter(None, [algorithms, tasks])) or "Learning curve"
    if len(groups) == 1 and (len(runs) > 1 or runs[0].seed is not None):
        title += f", {len(runs)} seeds" if len(runs) > 1 else f", seed {runs[0].seed}"
    return f"{NAMES.get(y, y)}, {title}" if y else title


def _draw_target(axes: Axes, runs: Sequence[RunFolder]) -> None:
    """Draw a line at the return at which the runs stop, if they agree on it and it is within or near the plotted range."""
    goals = {goal for run in runs for key, goal in run.stop.items() if key.endswith(TRAINING) and known(goal)}
    low, high = axes.get_ylim()
    if len(goals) == 1 and low - (high - low) / 2 <= (target := goals.pop()) <= high + (high - low) / 2:
        axes.axhline(target, color="#888888", lw=1.0, ls=(0, (5, 4)), zorder=1)
        left = axes.get_yaxis_transform()
        axes.text(0.005, target, f"target {target:g}", transform=left, va="bottom", fontsize=8.5, color="#666666")


def dress(axes: Axes, x: str) -> None:
    """Give axes over `x` their grid, ticks and colours."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    if x == "timesteps_total":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.grid(True, color="#E3E3E3", lw=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors="#444444", labelsize=9.5)


def _legend(drawn: Sequence[Curve], looks: dict[str, Look], view: View, shown: Set[str | None]) -> list[Artist]:
    """Legend entries: the colours if there are several settings, then what is `shown`."""
    from matplotlib.lines import Line2D

    y, smooth = view.y, view.smooth
    labels = {curve.group.label for curve in drawn}
    entries: list[tuple[str, Look]] = []
    if len(labels) > 1:
        entries = [(_named(label, drawn), look) for label, look in looks.items()]
        if len(looks) < len(labels):
            entries.append((f"the other {len(labels) - len(looks)} settings", {**GREY, "lw": 1.0}))
    seeds = any(curve.counted > 1 and len(curve.x) for curve in drawn)
    cuts = max(curve.counted for curve in drawn) > 3  # of up to three, the interquartile mean is the mean
    kind = f", {CENTRE_NAMES['mean' if view.centre == 'iqm' and not cuts else view.centre]}" if seeds else ""
    points = f"{smooth:g}" if smooth >= 1 else f"{smooth:.0%} of the"
    means = f" (running mean of {points} points)" if smooth else ""
    new = any(NEW_EPISODES in run.keys for curve in drawn for run in curve.group.runs)
    training = NAMES.get(y, y) + kind if y else f"training{kind or ' return'} ({EPISODES if new else 100} episodes)"
    band = {"lw": 7, "alpha": 0.2, "solid_capstyle": "butt"}
    kinds: dict[str, tuple[str, Look]] = {
        "training": (training + means, {"lw": 1.0, "alpha": 0.6} if "evaluation" in shown else {"lw": 1.8}),
        "evaluation": (f"evaluation{kind or ' mean'}", {}),
        "episodes": ("95% interval over the episodes of an evaluation", band),
        "seeds": ("95% interval over seeds", band),
        "single": ("single seeds where others have no values, or that did not finish", {"ls": ":", "lw": 1.3}),
    }
    entries += [entry for gid, entry in kinds.items() if gid in shown]
    if any(curve.is_carried for curve in drawn):
        entries.append(("(seeds that have finished keep their last value)", {"alpha": 0.0}))
    usual = {"color": COLOURS[0] if len(labels) == 1 else "#4D4D4D", "lw": 2.4}
    return [Line2D([], [], label=label, **{**usual, **look}) for label, look in entries]


CENTRE_NAMES: dict[Centre, str] = {"iqm": "interquartile mean", "median": "median", "mean": "mean"}


def _named(label: str, drawn: Sequence[Curve]) -> str:
    """A label with the number of its seeds, such as "lr=0.001 (2 of 3 seeds)"."""
    counts = {(curve.counted, len(curve.group.runs)) for curve in drawn if curve.group.label == label}
    low, high = min(c for c, _ in counts), max(n for _, n in counts)
    seeds = "" if high == 1 else f"({low} of {high} seeds)" if low < high else f"({high} seeds)"
    return f"{label} {seeds}".strip() or "all"


def _x_unit(runs: Sequence[RunFolder], x: str) -> tuple[float, str]:
    """The divisor for x, and the name of the axis."""
    if x == "timesteps_total":
        return 1.0, "environment steps"
    longest = max(run.last(x, 0) for run in runs)
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 3 * size:
            return size, f"wall time ({unit})"
    return 1.0, "wall time (seconds)"
