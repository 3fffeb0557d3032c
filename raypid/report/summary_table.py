"""The text at the end of an experiment: a row for each setting, the best trial, and how to go on from it."""

from __future__ import annotations

import io
import math
import shlex
import shutil
import statistics
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raypid.errors import UserError
from raypid.report.comparison import UNEQUAL, Comparison, Measure, Side, choose_measure, compare, figure, headline
from raypid.report.panel import count, some
from raypid.report.runs import Group, find_runs, group_by_seed, grouped, short
from raypid.report.statistics import mean_half_width
from raypid.storage.run_folder import OWN, PARAMS, RunFolder

MOST_ROWS = 20
MOST_FAILURES = 3
MOST_COLUMNS = 4
"""Settings that have a column each; with more, one column has them all."""
WIDEST = 160
LONGEST_ERROR = 160
ON_THE_WAY = "on the way"


@dataclass(frozen=True, slots=True)
class _Row:
    """The runs of one setting, and the values of those that count."""

    group: Group
    values: dict[RunFolder, float]
    on_the_way: dict[RunFolder, float] | None = None
    """Their mean returns over training, if these decide between this setting and others that end alike."""


def summary_table(folders: Sequence[Path], *, picture: Path | None = None, width: int | None = None) -> str:
    """Return the table of these trials as text: for each environment a row for each setting, best first, then the best trial, its
    interval, and the commands that evaluate and repeat it.

    Args:
        folders: of trials, or of parents of trials. One without results, since its trial never started, is named.
        picture: the path of their learning curves, for the last line.
        width: characters of a line. None: those of the terminal, at most 160.

    Raises:
        UserError: no folder holds a run.
    """
    runs: list[RunFolder] = []
    missing: list[str] = []
    for folder in folders:
        try:
            runs.extend(find_runs([folder], empty=True)[0])
        except UserError:
            missing.append(Path(folder).name)
    if not runs:
        raise UserError(f"None of {len(folders)} folders holds results: {', '.join(missing[:3])}.")
    groups = group_by_seed(list({run.path: run for run in runs}.values()))
    columns = width or min(WIDEST, shutil.get_terminal_size().columns)
    tasks = grouped(groups, lambda group: group.task)
    parts = [_task_text(there, task if len(tasks) > 1 else "", columns) for task, there in tasks.items()]
    ends = [*_overall(groups, list(tasks)), *_failures(runs)]
    if missing:
        ends.append(("not started", some(missing, MOST_FAILURES)))
    if picture is not None:
        ends.append(("picture", str(picture)))
    last = "\n".join(_entries(ends, columns))
    return ("\n\n" if len(tasks) > 1 else "\n").join([*parts, *([last] if last else [])])


def _task_text(groups: Sequence[Group], title: str, width: int) -> str:
    """The table of one task, and its best trial."""
    counting = [run for group in groups for run in group.runs if _counts(run)]
    measure = choose_measure(counting) if counting else None
    rows = [_Row(group, _values(group, measure)) for group in groups]
    rows.sort(key=lambda row: not row.values)
    sides = [Side(row.group.label, list(row.values)) for row in rows if row.values]
    found = compare(sides) if len(sides) > 1 else None
    if found is not None:
        rows = [*_in_order(rows, found), *rows[len(sides) :]]
    way = found.way.measure if found and found.way else None
    lines = [title] if title else []
    lines.append(_table(rows[:MOST_ROWS], measure, way, width))
    if len(rows) > MOST_ROWS:
        lines.append(f"... and {len(rows) - MOST_ROWS} more")
    lines.append("")
    if measure is not None and rows[0].values:
        entries = [(_head(measure), f"{measure.name}, mean of the seeds ± half of its 95% interval")]
        if way:
            entries.append((ON_THE_WAY, f"{way.name}, likewise; decides between settings that end alike"))
        if found:
            entries.append(("answer", headline(found)))
        lines += _entries([*entries, *_best(rows[0], measure, way)], width)
    return "\n".join(lines)


def _in_order(rows: Sequence[_Row], found: Comparison) -> list[_Row]:
    """The rows of the compared settings, best first, with the values that decide between those that end alike."""
    by_label = {row.group.label: row for row in rows}
    ordered = [by_label[standing.label] for standing in found.standings]
    for place, standing in enumerate(found.way.standings if found.way else []):
        pairs = (
            (run, value) for task in standing.runs for run, value in zip(standing.runs[task], standing.values[task])
        )
        ordered[place] = replace(ordered[place], on_the_way={run: float(value) for run, value in pairs})
    return ordered


def _entries(entries: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Lines of names and texts, one below the other also across calls. Sentences are wrapped; commands and paths are not, to be copied."""
    lines = []
    for name, text in entries:
        wraps = name in ("answer", "overall", "failed", "diverged", ON_THE_WAY, "")
        parts = textwrap.wrap(text, max(20, width - 13), break_on_hyphens=False) if wraps else [text]
        lines += [f"{name if i == 0 else '':<11}  {part}" for i, part in enumerate(parts)]
    return lines


def _counts(run: RunFolder) -> bool:
    """Whether a run was not broken off, so that its value represents its setting."""
    return bool(run.results) and run.ending.state in ("finished", "stopped early", "diverged")


def _values(group: Group, measure: Measure | None) -> dict[RunFolder, float]:
    if measure is None:
        return {}
    values = {run: measure.value(run) for run in group.runs if _counts(run)}
    return {run: value for run, value in values.items() if math.isfinite(value)}


def _table(rows: Sequence[_Row], measure: Measure | None, way: Measure | None, width: int) -> str:
    from rich.console import Console
    from rich.table import Table

    keys = list(dict.fromkeys(key for row in rows for key in row.group.apart))
    separate = 0 < len(keys) <= MOST_COLUMNS
    table = Table(box=None, pad_edge=False, show_edge=False)
    for key in keys if separate else ["setting"]:
        table.add_column(key, overflow="fold", min_width=8)
    names = ["seeds", _head(measure), *([ON_THE_WAY] if way else []), "steps", "seconds"]
    cells = [_cells(row, has_way=way is not None) for row in rows]
    for name, column in zip(names, zip(*cells)):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(len(name), *map(len, column)))
    table.add_column("state", overflow="fold", min_width=10)
    for row, numbers in zip(rows, cells):
        settings = [short(row.group.apart.get(key, "")) for key in keys] if separate else [row.group.label or "all"]
        table.add_row(*settings, *numbers, _states(row.group.runs))
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").splitlines())


def _cells(row: _Row, *, has_way: bool) -> tuple[str, ...]:
    """The numbers of a row: seeds, means, steps, and the median of the seconds."""
    runs = row.group.runs
    seconds = _middle([run.last("time_total_s") for run in runs])
    time = f"{seconds:,.1f}" if math.isfinite(seconds) else "-"
    way = [_mean(row.on_the_way or {})] if has_way else []
    return str(len(runs)), _mean(row.values), *way, _steps(runs), time


def _steps(runs: Sequence[RunFolder]) -> str:
    """The median number of steps, or the range if runs differ in it."""
    every = [run.steps for run in runs if math.isfinite(run.steps)]
    if every and max(every) > UNEQUAL * min(every):
        return f"{count(min(every))} to {count(max(every))}"
    return count(_middle(every))


def _head(measure: Measure | None) -> str:
    return "to goal" if measure is not None and measure.is_lower_better else "return"


def _mean(values: dict[RunFolder, float]) -> str:
    """The mean of the seeds with the half width of its 95% interval."""
    if not values:
        return "-"
    seeds = np.array(list(values.values()))
    mean, half = float(seeds.mean()), mean_half_width(seeds)
    return figure(mean) + (f" ± {figure(half, abs(mean))}" if math.isfinite(half) else "")


def _middle(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median_high(finite) if finite else math.nan


def _states(runs: Sequence[RunFolder]) -> str:
    states = Counter(run.ending.state for run in runs)
    return ", ".join(f"{number} {state}" if len(states) > 1 else state for state, number in states.most_common())


def _overall(groups: Sequence[Group], tasks: Sequence[str]) -> list[tuple[str, str]]:
    """The comparison over all environments, if there are several and each setting was tried in all."""
    sides: dict[str, list[RunFolder]] = {}
    for group in groups:
        sides.setdefault(group.label, []).extend(run for run in group.runs if _counts(run))
    if len(tasks) < 2 or any({run.task for run in runs} != set(tasks) for runs in sides.values()):
        return []
    every = [Side(label, runs) for label, runs in sides.items()]
    return [("overall", headline(compare(every)))] if len(every) > 1 else []


def _best(row: _Row, measure: Measure, way: Measure | None) -> list[tuple[str, str]]:
    """The best trial of the best setting, and what to do with it."""
    decides = row.on_the_way or row.values
    run = (min if measure.is_lower_better else max)(decides, key=lambda run: decides[run])
    value = row.values[run]
    text = f"{run.path}: {measure.name} {figure(value)}"
    half, episodes = measure.precision(run) if measure.precision else (math.nan, 0)
    if math.isfinite(half):
        text += f" ± {figure(half, abs(value))}" + (f" ({episodes:.0f} episodes)" if episodes > 0 else "")
    if way is not None and row.on_the_way:
        text += f", {way.name} {figure(row.on_the_way[run])}"
    again = shlex.quote(f"{run.path}-again")
    return [
        ("best trial", text),
        ("evaluate", f"raypid eval {shlex.quote(str(run.path))}"),
        ("repeat", f"raypid train --config {shlex.quote(str(run.path / PARAMS))} --out {again}"),
    ]


def _failures(runs: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """The trials that an error ended, each with its error."""
    failed = [run for run in runs if run.ending.error]
    lines: list[tuple[str, str]] = []
    for run in failed[:MOST_FAILURES]:
        error = OWN.sub("", run.ending.error)  # its text says it all
        cut = error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]} ..."
        lines.append((run.ending.state, f"{run.path.name}: {cut}"))
    if len(failed) > MOST_FAILURES:
        lines.append(
            ("", f"... and {len(failed) - MOST_FAILURES} more; errors.txt in their folders has the tracebacks")
        )
    return lines
