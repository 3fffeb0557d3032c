"""Say in one line which of two groups of runs is better, by how much and how surely; or that one cannot tell, and how many
seeds it would take.

Each DIR is a run or has the runs of one setting in it, with different seeds. A single DIR with several settings: they are
compared with each other.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.cli.plot import read_runs
from raypid.errors import UserError, shown
from raypid.report.panel import aligned

if TYPE_CHECKING:
    from raypid.report.comparison import Comparison, Moment, Side
    from raypid.report.statistics import Difference

MOST_NOTES = 8
"""Notes below an answer."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
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
    from raypid.report.comparison import Question, compare, headline, method_line, table_rows

    question = Question(options.metric, options.at, options.on_the_way, options.lower, options.paired)
    found = compare(_sides(options.runs), question)
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
    from raypid.settings.stops import SECONDS, STEPS, read_stop

    with suppress(ValueError):
        ((x, value),) = read_stop(text).items()
        if x in (STEPS, SECONDS) and isinstance(value, int | float) and 0 < value < math.inf:
            return Moment(value, "time_total_s" if x == SECONDS else "timesteps_total")
    raise argparse.ArgumentTypeError(
        f"takes a number of steps such as 50000, 50k or 1M, or a time such as 30s, 5min or 2h, not {shown(text)}"
    )


def _sides(paths: Sequence[Path]) -> list[Side]:
    """The sides of the comparison. A single folder, or more than two of single runs, are put together by their settings."""
    from raypid.report.comparison import Side, check_one_setting
    from raypid.report.runs import group_by_seed, grouped

    found = [read_runs([path]) for path in paths]
    every = [run for runs in found for run in runs]
    label_of = {run: group.label for group in group_by_seed(every) for run in group.runs}
    if len(paths) == 1 or (len(paths) > 2 and all(len(runs) == 1 for runs in found)):
        by_label = grouped(label_of, lambda run: label_of[run])
        if len(by_label) < 2:
            raise UserError("There is one setting here: nothing to compare. Give a folder for each side.")
        return [Side(label, runs) for label, runs in by_label.items()]
    found_labels = [{label_of[run] for run in runs} for runs in found]
    settings = [labels.pop() if len(labels) == 1 else "" for labels in found_labels]
    folders = [path.resolve().name for path in paths]
    distinct = (names for names in (settings, folders) if all(names) and len(set(names)) == len(names))
    labels = next(distinct, [str(path) for path in paths])
    for runs, path in zip(found, paths):
        check_one_setting(runs, str(path))
    return [Side(label, runs) for label, runs in zip(labels, found)]


def _plain(found: Comparison) -> dict[str, object]:
    """A comparison as JSON can hold it."""
    from raypid.report.comparison import headline

    sides = [
        {
            "label": standing.label,
            "values": {task: values.tolist() for task, values in standing.values.items()},
            "runs": {task: [str(run.path) for run in runs] for task, runs in standing.runs.items()},
        }
        for standing in found.standings
    ]
    rivals = [
        {
            "label": rival.label,
            **_plain_difference(rival.gap),
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
