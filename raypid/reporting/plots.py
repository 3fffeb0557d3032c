"""Learning curves of one or several runs, as a picture.

Thin lines are training returns as reported; thick lines are evaluation means with their 95% intervals. Runs that differ
only in their seed are drawn as one curve: the median, with a band from the worst to the best seed.
"""

from __future__ import annotations

import io
import itertools
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from raypid.errors import UserError, shown
from raypid.outputs import replacing, usable
from raypid.reporting.logger import read_params, read_results
from raypid.reporting.panel import EVALUATION, TRAINING, count, known, number

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.float64]

INTERVAL = "evaluation/episode_reward_ci95"

XAxis: TypeAlias = Literal["timesteps_total", "time_total_s"]

# Okabe and Ito's colours: people with any kind of colour vision can tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
MAX_TITLE = 200
STYLES = ("-", "--", ":")

# Settings that do not tell two runs apart: where and for how long they ran.
NOT_SETTINGS = frozenset({"seed", "out", "folder", "stop", "address", "algorithm", "run", "env", "config"})


class RunRecord(NamedTuple):
    """A run as read from its folder."""

    folder: Path
    settings: dict[str, Any]
    results: list[dict[str, int | float | str]]
    algorithm: str
    env: str
    seed: int | None

    def column(self, x: str, key: str) -> tuple[Column, Column]:
        """Points at which `key` is known: (x [K], value [K]). An evaluation's x is that of the weights that played it."""
        import numpy as np

        own = f"evaluation/{x}" if key.startswith("evaluation/") else x
        points = [(row.get(own, row[x]), row[key]) for row in self.results if known(row.get(key)) and x in row]
        xs, ys = zip(*points, strict=True) if points else ((), ())
        return np.asarray(xs, np.float64), np.asarray(ys, np.float64)


class Group(NamedTuple):
    """Runs that differ only in their seed, and how they are drawn."""

    label: str
    runs: list[RunRecord]
    style: str
    colour: str


def learning_curve(
    folders: Sequence[Path], out: Path, x: XAxis = "timesteps_total", *, title: str | None = None
) -> Path:
    """Draw the learning curves of these runs into `out`, whose ending is the format (png, svg, pdf); returns its path.

    Raises:
        ValueError: a folder has no results, no episode has ended in any of the runs, or the format is unknown.
        Unwritten: the disk is full. An earlier picture is as it was.
    """
    from matplotlib.figure import Figure

    if not folders:
        raise UserError("learning_curve needs the folder of at least one run")
    runs = [_load(Path(folder)) for folder in folders]
    if not any(len(run.column(x, key)[0]) for run in runs for key in (TRAINING, EVALUATION)):
        raise UserError(f"no episode has ended yet in {', '.join(str(run.folder) for run in runs)}: nothing to draw")
    groups = group_by_seed(runs)
    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    unit, label = _x_unit(runs, x)
    dotted, evaluated = False, any(len(run.column(x, EVALUATION)[0]) for run in runs)
    for group in groups:
        if len(group.runs) == 1:
            _draw_run(axes, group, x, unit, evaluated)
        else:
            dotted |= _draw_seeds(axes, group, x, unit)
    _draw_target(axes, runs)
    _dress(axes, label, x)
    text = (title or _title(groups))[:MAX_TITLE].encode(errors="replace").decode()
    axes.set_title(text, loc="left", fontsize=13, fontweight="bold", pad=10)
    handles = _legend(groups, evaluated, dotted)
    columns = _legend_columns([str(handle.get_label()) for handle in handles])
    figure.set_figheight(4.6 + 0.21 * -(-len(handles) // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9.5)
    out = Path(out)
    with usable(out, "The picture"):
        if out.suffix.removeprefix(".") not in (formats := figure.canvas.get_supported_filetypes()):
            raise UserError(f"The picture's name must end in .{', .'.join(sorted(formats))}, not {shown(str(out))}.")
        picture = io.BytesIO()  # what Pillow writes itself hides the error number of a full disk
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a title in letters that the font lacks
            figure.savefig(picture, format=out.suffix.removeprefix("."))
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as beside:
            beside.write_bytes(picture.getbuffer())
    return out


def group_by_seed(runs: Sequence[RunRecord]) -> list[Group]:
    """Group runs that have the same settings and different seeds. Each group is labelled by what sets it apart."""
    together: dict[str, list[RunRecord]] = {}
    for run in runs:
        together.setdefault(json.dumps([run.env, run.algorithm, _settings(run)], sort_keys=True), []).append(run)
    parts: list[list[RunRecord]] = []
    for same in together.values():
        seeds = {str(run.seed) for run in same}
        # The same seed twice: repetitions, which are drawn side by side.
        parts.extend([same] if len(seeds) == len(same) else [[run] for run in same])
    looks = itertools.cycle(itertools.product(STYLES, COLOURS))
    return [Group(_label(part, parts), part, *look) for part, look in zip(parts, looks)]


def _load(folder: Path) -> RunRecord:
    settings = read_params(folder)
    algorithm, env = settings.get("algorithm") or settings.get("run"), settings.get("env")
    return RunRecord(folder, settings, read_results(folder), str(algorithm or ""), str(env or ""), settings.get("seed"))


def _settings(run: RunRecord) -> dict[str, object]:
    return {key: value for key, value in run.settings.items() if key not in NOT_SETTINGS}


def _label(part: list[RunRecord], parts: list[list[RunRecord]]) -> str:
    run = part[0]
    words = [run.algorithm or run.folder.name] if len({p[0].algorithm for p in parts}) > 1 else []
    if len({p[0].env for p in parts}) > 1:
        words.append(f"on {run.env}" if words else run.env)
    alike = [p[0] for p in parts if (p[0].env, p[0].algorithm) == (run.env, run.algorithm)]
    if len(alike) > 1:
        keys = sorted({key for other in alike for key in _settings(other)})
        apart = [key for key in keys if len({json.dumps(r.settings.get(key), sort_keys=True) for r in alike}) > 1]
        few = ", ".join(f"{key}={run.settings.get(key)}" for key in apart) if len(apart) <= 2 else ""
        names = [other.folder.name for other in alike]
        words.append(few or (run.folder.name if names.count(run.folder.name) == 1 else str(run.folder)))
    if len(part) > 1:
        words.append(f"({len(part)} seeds)")
    return " ".join(words)


def _title(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    algorithms, envs = {run.algorithm for run in runs}, {run.env for run in runs}
    if len(envs) > 1:
        return f"{runs[0].algorithm} learning curves" if len(algorithms) == 1 else "Learning curves"
    env = runs[0].env or "Learning curve"
    title = f"{runs[0].algorithm} on {env}" if len(algorithms) == 1 and runs[0].algorithm else env
    if len(groups) == 1:
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else f"seed {runs[0].seed}" if runs[0].seed is not None else ""
        title += f", {seeds}" if seeds else ""
    return title


def _draw_run(axes: Axes, group: Group, x: str, unit: float, evaluated: bool) -> None:
    """Draw one run. `evaluated`: a run of the picture has evaluations, so thick lines mean evaluations."""
    _, (run,), style, colour = group
    xs, ys = run.column(x, TRAINING)
    at, mean = run.column(x, EVALUATION)
    axes.plot(xs / unit, ys, style, color=colour, lw=1.0 if evaluated else 1.8, alpha=0.5 if evaluated else 1.0)
    if not len(at):
        return
    marker = "o" if len(at) <= 30 else None
    axes.plot(at / unit, mean, style, color=colour, lw=2.4, marker=marker, ms=4.5, solid_capstyle="round", zorder=3)
    where, half = run.column(x, INTERVAL)
    if len(where) == len(at):
        axes.fill_between(at / unit, mean - half, mean + half, color=colour, alpha=0.2, lw=0)


def _draw_seeds(axes: Axes, group: Group, x: str, unit: float) -> bool:
    """Draw median and worst-to-best band of the evaluations, or of the training returns if a run has no evaluations.

    Returns whether it drew a dotted end, which stands for steps that not all seeds reached.
    """
    _, runs, style, colour = group
    evaluated = all(len(run.column(x, EVALUATION)[0]) > 1 for run in runs)
    columns = [run.column(x, EVALUATION if evaluated else TRAINING) for run in runs]
    if evaluated:
        thin, _, median, _, _ = _over_seeds([run.column(x, TRAINING) for run in runs])
        axes.plot(thin / unit, median, style, color=colour, lw=1.0, alpha=0.5)
    grid, common, median, low, high = _over_seeds(columns)
    axes.plot(grid[common] / unit, median[common], style, color=colour, lw=2.4, solid_capstyle="round", zorder=3)
    axes.fill_between(grid / unit, low, high, color=colour, alpha=0.18, lw=0)
    if common[-4:].any():
        return False
    # Beyond the end of the shortest run the median is over fewer seeds: draw it differently.
    axes.plot(grid / unit, median, ":", color=colour, lw=1.6, zorder=2)
    return True


def _over_seeds(columns: Sequence[tuple[Column, Column]]) -> tuple[Column, NDArray[np.bool_], Column, Column, Column]:
    """Interpolate runs on a common grid: x [K], whether all seeds reached it, and median, minimum and maximum of those that did."""
    import numpy as np

    columns = [(xs, ys) for xs, ys in columns if len(xs)]
    if not columns:
        nothing = np.zeros(0)
        return nothing, nothing.astype(bool), nothing, nothing, nothing
    grid = np.linspace(min(xs[0] for xs, _ in columns), max(xs[-1] for xs, _ in columns), 400)
    table = np.stack([np.interp(grid, xs, ys, left=np.nan, right=np.nan) for xs, ys in columns])
    reached = np.isfinite(table)
    keep = reached.any(0)
    grid, table, reached = grid[keep], table[:, keep], reached[:, keep]
    return grid, np.asarray(reached.all(0)), np.nanmedian(table, 0), np.nanmin(table, 0), np.nanmax(table, 0)


def _draw_target(axes: Axes, runs: Sequence[RunRecord]) -> None:
    """Draw a line at the return at which the runs stop, if it is the same for all and within or near the plotted range."""
    stops = [stop if isinstance(stop := run.settings.get("stop"), dict) else {} for run in runs]
    targets = {next((float(v) for k, v in stop.items() if k.endswith(TRAINING) and known(v)), None) for stop in stops}
    target = targets.pop() if len(targets) == 1 else None
    low, high = axes.get_ylim()
    if target is not None and low - (high - low) / 2 <= target <= high + (high - low) / 2:
        axes.axhline(target, color="#888888", lw=1.0, ls=(0, (5, 4)), zorder=1)
        left = axes.get_yaxis_transform()
        axes.text(0.005, target, f"target {target:g}", transform=left, va="bottom", fontsize=8.5, color="#666666")


def _dress(axes: Axes, x_label: str, x: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(x_label, fontsize=10.5)
    axes.set_ylabel("episode return", fontsize=10.5)
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


def _legend(groups: Sequence[Group], evaluated: bool, dotted: bool) -> list[Artist]:
    """Legend entries: the colours if there are several groups, then thin and thick lines and shaded areas."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    one, seeds = len(groups) == 1, any(len(group.runs) > 1 for group in groups)
    colour, median = COLOURS[0] if one else "#4D4D4D", ", median of seeds" if one and seeds else ""

    def line(label: str, colour: str = colour, style: str = "-", lw: float = 2.4, alpha: float = 1.0) -> Artist:
        return Line2D([], [], label=label, color=colour, ls=style, lw=lw, alpha=alpha)

    entries = [] if one else [line(group.label, group.colour, group.style) for group in groups]
    entries.append(line(f"training return{median}", lw=1.0 if evaluated else 1.8, alpha=0.6 if evaluated else 1.0))
    if evaluated:
        entries.append(line(f"evaluation mean{median}"))
    bands = ["95% interval"] * (evaluated and any(len(group.runs) == 1 for group in groups))
    bands += ["worst to best seed"] * seeds
    if bands:
        entries.append(Patch(color=colour, alpha=0.2, lw=0, label=" / ".join(bands)))
    if dotted:
        entries.append(line("seeds still running", style=":", lw=1.6))
    return entries


def _legend_columns(labels: Sequence[str]) -> int:
    """Number of columns, at most three, that fit below the picture (about 105 characters of this size)."""
    for columns in (3, 2):
        rows = -(-len(labels) // columns)
        widths = [max(map(len, labels[start : start + rows])) for start in range(0, len(labels), rows)]
        if len(widths) == columns and sum(widths) + 8 * columns <= 105:
            return columns
    return 1


def _x_unit(runs: Sequence[RunRecord], x: str) -> tuple[float, str]:
    """The divisor for x, and the name of the axis."""
    if x == "timesteps_total":
        return 1.0, "environment steps"
    longest = max(number(row, x) for run in runs for row in run.results)
    if longest < 180:
        return 1.0, "wall time (seconds)"
    return (60.0, "wall time (minutes)") if longest < 3 * 3600 else (3600.0, "wall time (hours)")
