"""Train an entry of `raypid list tuned` as it was measured for that list: until a greedy evaluation of 10 episodes reaches
the goal and one of 50 confirms it.

Prints return and seconds of training beside the recorded median and range. The entry is reproduced if every seed reaches the
goal; the time depends on the machine and is only told. Exit code 0: reproduced, or reached where nothing is recorded; 1: not
reached on every seed; 2: wrong input or a missing package.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from raypid.cli.options import reader
from raypid.errors import UserError, shown
from raypid.plugins.registry import did_you_mean
from raypid.sweep.budget import read_seconds

if TYPE_CHECKING:
    from raypid.run.reproduce import Measurement, Task
    from raypid.settings.tuned import Record

_MOST_SEEDS = 1000
_WIDTHS = (10, 33, 22, 22)
"""Widths of the columns seed, steps, return and seconds. A remark follows."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.epilog = "`raypid reproduce PPO:CartPole-v1` takes a few seconds, others take up to half an hour."
    add = parser.add_argument
    add("entry", metavar="NAME", help="algorithm and environment, such as PPO:CartPole-v1")
    text = "seeds to train with: 1000-1002 or 0,1,5 (default: the one after the recorded ones)"
    add("--seeds", metavar="SEEDS", type=read_seeds, help=text)
    text = "most seconds of training for each seed, by the clock (default: 60 to 3600, by entry)"
    add("--limit", metavar="SECONDS", type=reader(read_seconds), help=text)
    add("--json", action="store_true", help="print one JSON object, at the end")


def read_seeds(text: str) -> list[int]:
    """Read seeds and ranges of them: 1000-1002, or 0,1,5."""
    seeds: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part, re.ASCII)
        found = range(int(ends[1]), int(ends[2] or ends[1]) + 1) if ends else range(0)
        if not 0 < len(found) <= _MOST_SEEDS:
            valid = f"whole numbers such as 0,1,5 or a range such as 1000-1002, of {_MOST_SEEDS} at most"
            raise argparse.ArgumentTypeError(f"takes {valid}, not {shown(text)}")
        seeds += found
    return [*dict.fromkeys(seeds)]


def main(options: argparse.Namespace) -> int:
    """Train the entry with each seed, and print how that compares with the record.

    Raises:
        UserError: there is no such entry, or a package is missing; nothing has been trained then.
    """
    algorithm, env = _entry(options.entry)
    from raypid.run.reproduce import TUNED_TASKS, measure, other_versions, prepare, versions
    from raypid.settings.tuned import FIRST_SEED, record

    task, recorded = TUNED_TASKS[algorithm, env], record(algorithm, env)
    task = replace(task, seconds=options.limit or task.seconds)
    seeds = options.seeds or [max((FIRST_SEED - 1, *(recorded.seeds if recorded else ()))) + 1]
    prepare(task)
    if not options.json:
        _show_record(task, recorded)
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        tell = None if options.json else partial(_show_row, f"seed {seed}")
        found = measure(task, seed, tell)
        row = {"seed": seed, "reached": found.solved, "return": found.mean_return, "seconds": found.seconds}
        rows.append({**row, "steps": found.steps, "remark": _remark(found, recorded)})
        if tell is not None:
            tell(found.steps, found.seconds, found.mean_return, rows[-1]["remark"])
    reached = sum(row["reached"] for row in rows)
    is_reproduced = reached == len(rows)
    if options.json:
        about = {"name": f"{algorithm}:{env}", "goal": task.threshold, "limit": task.seconds}
        compared = {"reproduced": recorded and is_reproduced, "recorded": recorded and asdict(recorded)}
        here = {"versions": versions(env), "other_versions": other_versions(recorded) if recorded else ""}
        print(json.dumps({**about, **compared, "seeds": rows, **here}))
    else:
        outcome = "Reached" if recorded is None else "Reproduced"
        outcome = outcome if is_reproduced else f"Not {outcome.lower()}"
        counted = f"{reached} of {len(rows)} seed{'s' * (len(rows) > 1)}"
        print(f"{outcome}: {counted} reached {task.threshold:g}, within {task.seconds:g} s of training each.")
    return 0 if is_reproduced else 1


def _entry(name: str) -> tuple[str, str]:
    """Algorithm and environment of an entry of the list.

    Raises:
        UserError: there is none of this name. What `raypid tune` has saved has no record to compare with.
    """
    from raypid.envs.ids import bare
    from raypid.settings.tuned import TUNED

    if same := [entry for entry in TUNED if ":".join(entry).lower() == name.lower()]:
        return same[0]
    raise UserError(
        f"There are no recorded settings called {shown(name)}.{did_you_mean(bare(name), map(':'.join, TUNED))} "
        "`raypid list tuned` shows all."
    )


def _show_record(task: Task, recorded: Record | None) -> None:
    from raypid.run.reproduce import CHECK_EPISODES, CONFIRM_EPISODES, other_versions
    from raypid.settings.tuned import cells

    print(f"{task.algo} on {task.env} with tuned settings, at most {task.seconds:g} s of training a seed.")
    print(
        f"Goal: a mean return of {task.threshold:g} in a greedy evaluation of {CHECK_EPISODES} episodes, confirmed by one of {CONFIRM_EPISODES}."
    )
    if recorded is None:
        print("This entry was not measured yet: there is nothing to compare with.")
    elif not recorded.versions:
        print("The versions of packages were not recorded.")
    elif changed := other_versions(recorded):
        print(changed)
    clock = "CPU" if task.backend == "local" else "the clock"
    _show_cells("", "steps", "return", f"seconds of {clock}")
    if recorded is not None:
        _, returns, seconds, seeds = cells(task.algo, task.env)
        median, *span = (f"{steps:,.0f}" for steps in (recorded.steps.median, recorded.steps.low, recorded.steps.high))
        steps = f"{median} ({' to '.join(span)})" if len(set(span)) > 1 else median
        _show_cells("recorded", steps, returns, seconds, f"seeds: {seeds}")


def _show_row(seed: str, steps: int, seconds: float, mean_return: float, remark: str = "") -> None:
    _show_cells(seed, f"{steps:,}", f"{mean_return:.5g}", f"{seconds:.1f}", remark)


def _show_cells(*cells: str) -> None:
    """Print a row of the table at once, also into a pipe."""
    print("".join(f"{cell:{width - 2}}  " for cell, width in zip(cells, (*_WIDTHS, 2))).rstrip(), flush=True)


def _remark(found: Measurement, recorded: Record | None) -> str:
    """Whether a seed reached the goal, and how its time lies to the recorded range."""
    if not found.solved:
        return "not reached"
    if recorded is None or recorded.seconds is None:
        return "reached"
    if found.seconds > recorded.seconds.high:
        return "reached, slower than recorded"
    return f"reached, {'faster than' if found.seconds < recorded.seconds.low else 'in the time'} recorded"
