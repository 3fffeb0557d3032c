"""`raypid compare`: which of several groups of runs is better, by how much and how surely."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.cli.plot import tell_skipped
from raypid.errors import UserError, shown
from raypid.phases import phase
from raypid.report.panel import aligned

if TYPE_CHECKING:
    from raypid.report.comparison import Comparison, Moment, Side
    from raypid.report.statistics import Difference
    from raypid.storage.run_folder import RunFolder

MOST_NOTES = 8
"""Notes below an answer."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.description = (
        "Say in one line which of two groups of runs is better, by how much and how surely; or that one cannot tell, and how many "
        "seeds it would take. Each DIR is a run or has the runs of one setting in it, with different seeds. A single DIR with several "
        "settings: they are compared with each other."
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="DIR", help="the folder of a run, or one with runs in it")
    add("--metric", metavar="KEY", help="a key of the results (default: the final episodes, or what all runs have)")
    add(
        "--at", type=_moment, metavar="STEPS",
        help="compare after this many environment steps (50000, 50k, 1M), or after this much time (30s, 5min, 2h)",
    )  # fmt: skip
    add(
        "--on-the-way", action="store_true",
        help="compare the mean over the steps up to --at, or up to where the shortest run ends: who learns sooner",
    )  # fmt: skip
    add("--lower", action="store_true", help="less of the metric is better")
    add("--paired", action="store_true", help="compare runs of the same seeds with each other")
    add("--json", action="store_true", help="print one JSON object")


def main(options: argparse.Namespace) -> int:
    """Print the answer. The exit code is 0 too if one cannot tell.

    Raises:
        UserError: a folder holds no run or runs of several settings, or no two groups can be compared.
    """
    from raypid.report.comparison import compare, headline, method_line, table_rows

    if options.lower and options.metric is None:
        raise UserError("--lower says that less of a metric is better: name it with --metric KEY.")
    sides, notes = _sides(options.runs)
    found = compare(
        sides, metric=options.metric, at=options.at, on_the_way=options.on_the_way, lower=options.lower,
        paired=options.paired, notes=notes,
    )  # fmt: skip
    if options.json:
        print(json.dumps(_plain(found)))
        return 0
    print(headline(found))
    lines: list[str] = []
    for part in filter(None, [found, found.way]):
        if rows := table_rows(part):
            lines += [f"By {part.measure.name}:"] if found.way is not None else []
            lines += aligned(rows, range(1, len(rows[0]) - 1))
    lines += [method_line(found.way or found), *found.notes[:MOST_NOTES]]
    if len(found.notes) > MOST_NOTES:
        lines.append(f"... and {len(found.notes) - MOST_NOTES} more notes: --json")
    print(*(f"  {line}" for line in lines), sep="\n")
    return 0


def _moment(text: str) -> Moment:
    """Read the place of `--at`."""
    from raypid.report.comparison import Moment

    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text.removeprefix(number)
    seconds = {"s": 1, "min": 60, "h": 3600}
    try:
        value = float(number) * ({"": 1, "k": 1e3, "M": 1e6, "G": 1e9} | seconds)[unit]
        if not 0 < value < math.inf:
            raise ValueError
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"takes a number of steps such as 50000, 50k or 1M, or a time such as 30s, 5min or 2h, not {shown(text)}"
        ) from None
    return Moment(value, "time_total_s" if unit in seconds else "timesteps_total")


def _sides(paths: Sequence[Path]) -> tuple[list[Side], list[str]]:
    """The sides of the comparison, and notes. A single folder, or more than two of single runs, are put together by their settings."""
    from raypid.report.comparison import Side, make_side
    from raypid.report.runs import find_runs, group_by_seed

    found = []
    for path in paths:
        with phase("reading", f"reading the runs in {path}"):
            runs, skipped = find_runs([path])
        tell_skipped(skipped)
        found.append(runs)
    if len(paths) == 1 or (len(paths) > 2 and all(len(runs) == 1 for runs in found)):
        every = [run for runs in found for run in runs]
        by_label: dict[str, list[RunFolder]] = {}
        for group in group_by_seed(every):
            by_label.setdefault(group.label, []).extend(group.runs)
        if len(by_label) < 2:
            raise UserError(
                f"There is one setting here, in {len(every)} run{'s' * (len(every) > 1)}: nothing to compare. Give a folder for each side."
            )
        return [Side(label, runs) for label, runs in by_label.items()], []
    labels = _labels(paths, found)
    made = [make_side(label, runs, str(path)) for label, runs, path in zip(labels, found, paths)]
    return [side for side, _ in made], [note for _, notes in made for note in notes]


def _labels(paths: Sequence[Path], found: Sequence[Sequence[RunFolder]]) -> list[str]:
    """A name for each side: what sets its runs apart, or its folder if they have the settings of another side."""
    from raypid.report.runs import group_by_seed

    groups = group_by_seed([run for runs in found for run in runs])
    labels = []
    for runs in found:
        folders = {run.path for run in runs}
        own = {group.label for group in groups if folders & {run.path for run in group.runs}}
        labels.append(own.pop() if len(own) == 1 else "")
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _plain(found: Comparison) -> dict[str, object]:
    """A comparison as JSON can hold it."""
    from raypid.report.comparison import headline

    sides = [
        {
            "label": standing.label,
            "values": {task: [float(v) for v in values] for task, values in standing.values.items()},
            "runs": {task: [str(run.path) for run in runs] for task, runs in standing.runs.items()},
        }
        for standing in found.standings
    ]
    rivals = [
        {
            "label": rival.standing.label,
            **_plain_difference(rival.overall),
            "by_environment": {task: _plain_difference(gap) for task, gap in rival.by_task.items()},
            "probability_of_improvement": rival.probability,
            "seeds_needed": rival.seeds_needed,
        }
        for rival in found.rivals
    ]
    return {
        "answer": headline(found), "verdict": "better" if found.is_sure else "cannot tell", "leader": found.leader.label,
        "measure": found.measure.name, "lower_is_better": found.measure.is_lower_better, "paired": found.paired,
        "sides": sides, "leader_minus": rivals, "notes": found.notes,
        "on_the_way": None if found.way is None else _plain(found.way),
    }  # fmt: skip


def _plain_difference(gap: Difference) -> dict[str, object]:
    plain = {key: value if math.isfinite(value) else None for key, value in gap._asdict().items()}
    return {"difference": plain.pop("estimate"), **plain}
