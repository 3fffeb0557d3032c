"""The text at the end of an experiment: a row for each setting, the best trial, and how to go on from it."""

from __future__ import annotations

import io
import math
import shlex
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from raypid.errors import UserError, listed, shorten
from raypid.report.comparison import Comparison, Side, Standing, compare, figure, headline, steps_of
from raypid.report.panel import summary_lines
from raypid.report.runs import Group, find_runs, group_by_seed, grouped, short
from raypid.report.statistics import mean_half_width
from raypid.storage.run_folder import EVALUATION, FINAL, OWN, PARAMS, RunFolder

MOST_ROWS = 20
MOST_FAILURES = 3
MOST_COLUMNS = 4
"""Settings that have a column each; with more, one column has them all."""
WIDEST = 160
LONGEST_ERROR = 160
ON_THE_WAY = "on the way"


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
        ends.append(("not started", listed(missing, MOST_FAILURES)))
    if picture is not None:
        ends.append(("picture", str(picture)))
    last = "\n".join(_entries(ends, columns))
    return ("\n\n" if len(tasks) > 1 else "\n").join([*parts, *([last] if last else [])])


def _task_text(groups: Sequence[Group], title: str, width: int) -> str:
    """The table of one task, and its best trial."""
    found: Comparison | None = None
    with suppress(UserError):  # no run counts
        found = compare([Side(group.label, group.runs) for group in groups], skip_empty=True)
    parts = {"to goal" if found and found.measure.is_lower_better else "return": found}
    if found and found.way:
        parts[ON_THE_WAY] = found.way
    columns = {name: {s.label: s for s in part.standings} if part else {} for name, part in parts.items()}
    by_label = {group.label: group for group in groups}
    best_first = [by_label.pop(label) for label in next(iter(columns.values()))]
    ordered = [*best_first, *by_label.values()]
    lines = [title] if title else []
    lines.append(_table(ordered[:MOST_ROWS], columns, width))
    if len(groups) > MOST_ROWS:
        lines.append(f"... and {len(groups) - MOST_ROWS} more")
    lines.append("")
    if found:
        means = "mean of the seeds ± half of its 95% interval", "likewise; decides between settings that end alike"
        entries = [(name, f"{part.measure.name}, {text}") for (name, part), text in zip(parts.items(), means) if part]
        if found.rivals:
            entries.append(("answer", headline(found)))
        lines += _entries([*entries, *_best(found)], width)
    return "\n".join(lines)


def _entries(entries: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Lines of names and texts, one below the other also across calls."""
    return summary_lines([(f"{name:<11}", text) for name, text in entries], width)


def _table(groups: Sequence[Group], columns: Mapping[str, Mapping[str, Standing]], width: int) -> str:
    """A row for each group; `columns` have the standings by label."""
    from rich.console import Console
    from rich.table import Table

    keys = list(dict.fromkeys(key for group in groups for key in group.apart))
    separate = 0 < len(keys) <= MOST_COLUMNS
    table = Table(box=None, pad_edge=False, show_edge=False)
    for key in keys if separate else ["setting"]:
        table.add_column(key, overflow="fold", min_width=8)
    cells = [_numbers(group, columns.values()) for group in groups]
    for name, column in zip(["seeds", *columns, "steps", "seconds"], zip(*cells)):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(len(name), *map(len, column)))
    table.add_column("state", overflow="fold", min_width=10)
    for group, numbers in zip(groups, cells):
        settings = [short(group.apart.get(key, "")) for key in keys] if separate else [group.label or "all"]
        states = Counter(run.ending.state for run in group.runs).most_common()
        named = [f"{number} {state}" if len(states) > 1 else state for state, number in states]
        table.add_row(*settings, *numbers, ", ".join(named))
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").splitlines())


def _numbers(group: Group, columns: Iterable[Mapping[str, Standing]]) -> list[str]:
    """The numbers of a row: seeds, means with half their intervals, steps, and the median of the seconds."""
    means = []
    for standings in columns:
        text = "-"
        if standing := standings.get(group.label):
            values = standing.values[group.task]
            mean, half = float(values.mean()), mean_half_width(values)
            text = figure(mean) + (f" ± {figure(half, abs(mean))}" if math.isfinite(half) else "")
        means.append(text)
    seconds = [value for run in group.runs if math.isfinite(value := run.last("time_total_s"))]
    middle = f"{statistics.median_high(seconds):,.1f}" if seconds else "-"
    return [str(len(group.runs)), *means, steps_of(group.runs), middle]


def _overall(groups: Sequence[Group], tasks: Sequence[str]) -> list[tuple[str, str]]:
    """The comparison over all environments, if there are several and each setting was tried in all."""
    sides = grouped(groups, lambda group: group.label)
    if len(sides) > 1 and len(tasks) > 1 and all(len(there) == len(tasks) for there in sides.values()):
        with suppress(UserError):  # no run of a setting counts
            every = [Side(label, [run for group in there for run in group.runs]) for label, there in sides.items()]
            return [("overall", headline(compare(every)))]
    return []


def _best(found: Comparison) -> list[tuple[str, str]]:
    """The best trial of the best setting, and what to do with it."""
    (task,), key = found.tasks, found.measure.key
    decides = (found.way or found).leader.values[task]
    index = int(decides.argmin() if found.measure.is_lower_better else decides.argmax())
    run, value = found.leader.runs[task][index], float(found.leader.values[task][index])
    text = f"{run.path}: {found.measure.name} {figure(value)}"
    half = run.last(key.replace("_mean", "_ci95")) if key in (EVALUATION, FINAL) else math.nan
    if math.isfinite(half):
        episodes = run.last(key.replace("episode_reward_mean", "episodes"), 0)
        text += f" ± {figure(half, abs(value))}" + (f" ({episodes:.0f} episodes)" if episodes > 0 else "")
    if found.way:
        text += f", {found.way.measure.name} {figure(float(decides[index]))}"
    again = shlex.quote(f"{run.path}-again")
    return [
        ("best trial", text),
        ("evaluate", f"raypid eval {shlex.quote(str(run.path))}"),
        ("repeat", f"raypid train --config {shlex.quote(str(run.path / PARAMS))} --out {again}"),
    ]


def _failures(runs: Sequence[RunFolder]) -> Iterator[tuple[str, str]]:
    """Yield the trials that an error ended, each with its error."""
    failed = [run for run in runs if run.ending.error]
    for run in failed[:MOST_FAILURES]:
        error = OWN.sub("", run.ending.error)  # its text says it all
        yield run.ending.state, f"{run.path.name}: {shorten(error, LONGEST_ERROR)}"
    if len(failed) > MOST_FAILURES:
        yield "", f"... and {len(failed) - MOST_FAILURES} more; errors.txt in their folders has the tracebacks"
