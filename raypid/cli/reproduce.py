"""`raypid reproduce`: train with tuned settings and compare return and time with what is recorded of them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from raypid.cli.check_env import positive
from raypid.errors import UserError, shown
from raypid.plugins.registry import suggest

if TYPE_CHECKING:
    from raypid.run.reproduce import Measurement, Task
    from raypid.settings.tuned import Record

_LIST = "`raypid list tuned` shows all."
_MOST_SEEDS = 1000
_LARGEST_SEED = 2**31 - 1
_WIDTHS = (10, 33, 22, 22)
"""Of the columns: seed, steps, return, seconds. A remark follows."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.description = (
        "Train an entry of `raypid list tuned` as it was measured for that list: until a greedy evaluation of 10 episodes reaches the "
        "goal and one of 50 confirms it. Prints return and seconds of training beside the recorded median and range. The entry is reproduced if "
        "every seed reaches the goal; the time depends on the machine and is only told. Exit code 0: reproduced, or reached where nothing is "
        "recorded; 1: not reached on every seed; 2: wrong input or a missing package."
    )
    parser.epilog = "`raypid reproduce PPO:CartPole-v1` takes a few seconds, others take up to half an hour."
    add = parser.add_argument
    add("entry", metavar="NAME", nargs="?", help="algorithm and environment, such as PPO:CartPole-v1")
    add(
        "--seeds",
        metavar="SEEDS",
        type=read_seeds,
        help="seeds to train with: 1000-1002 or 0,1,5 (default: the one after the recorded ones)",
    )
    text = "most seconds of training for each seed, by the clock (default: 60 to 3600, by entry)"
    add("--limit", metavar="SECONDS", type=positive, help=text)
    add("--json", action="store_true", help="print one JSON object, at the end")


def read_seeds(text: str) -> list[int]:
    """Read seeds and ranges of them: 1000-1002, or 0,1,5."""
    seeds: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part, re.ASCII)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if first > last or last > _LARGEST_SEED:
            raise argparse.ArgumentTypeError(
                f"takes whole numbers such as 0,1,5 or a range such as 1000-1002, not {shown(text)}"
            )
        if last - first >= _MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"takes at most {_MOST_SEEDS} seeds, not {shown(text)}")
        seeds += range(first, last + 1)
    return [*dict.fromkeys(seeds)]


def main(options: argparse.Namespace) -> int:
    """Train the entry with each seed, and print how that compares with the record.

    Raises:
        UserError: there is no such entry, or a package is missing; nothing has been trained then.
    """
    algorithm, env = _entry(options.entry)
    from raypid.run.reproduce import TUNED_TASKS, measure, prepare
    from raypid.settings.tuned import FIRST_SEED, record

    task, recorded = TUNED_TASKS[algorithm, env], record(algorithm, env)
    limit = options.limit or task.seconds
    seeds = options.seeds or [max((FIRST_SEED - 1, *(recorded.seeds if recorded else ()))) + 1]
    prepare(task, task.backends[0])
    if not options.json:
        _show_record(task, recorded, limit)
    found = []
    for seed in seeds:
        tell = None if options.json else partial(_show_row, f"seed {seed}")
        one = measure(task, seed, task.backends[0], limit=limit, tell=tell)
        if not options.json:
            _show_row(f"seed {seed}", one.steps, one.seconds, one.mean_return, _remark(one, recorded))
        found.append(one)
    reached = sum(one.solved for one in found)
    if options.json:
        print(json.dumps(_plain(task, recorded, limit, found)))
    else:
        said = "Reached" if recorded is None else "Reproduced"
        said = said if reached == len(found) else f"Not {said.lower()}"
        seeds_said = f"{reached} of {len(found)} seed{'s' * (len(found) > 1)}"
        print(f"{said}: {seeds_said} reached {task.threshold:g}, within {limit:g} s of training each.")
    return 0 if reached == len(found) else 1


def _entry(name: str | None) -> tuple[str, str]:
    """Algorithm and environment of an entry of the list.

    Raises:
        UserError: there is none of this name.
    """
    from raypid.envs.ids import bare
    from raypid.settings import saved as saved_settings
    from raypid.settings.tuned import TUNED

    entries = {f"{algorithm}:{env}": (algorithm, env) for algorithm, env in TUNED}
    if name is None:
        raise UserError(f"Name an entry: raypid reproduce PPO:CartPole-v1. {_LIST}")
    for known, entry in entries.items():
        if known.lower() == name.lower():
            return entry
    if name in saved_settings.names():
        raise UserError(
            f"{name} has no record to compare with: `raypid tune` has saved it. `raypid train --tuned {name}` uses it."
        )
    without_version = {bare(known): known for known in entries}
    near = [without_version[found] for found in suggest(bare(name), without_version)]
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UserError(f"There are no tuned settings called {shown(name)}.{meant} {_LIST}")


def _show_record(task: Task, recorded: Record | None, limit: float) -> None:
    from raypid.run.reproduce import CHECK_EPISODES, CONFIRM_EPISODES, other_versions
    from raypid.settings.tuned import cells

    print(f"{task.algo} on {task.env} with tuned settings, at most {limit:g} s of training a seed.")
    print(
        f"Goal: a mean return of {task.threshold:g} in a greedy evaluation of {CHECK_EPISODES} episodes, confirmed by one of {CONFIRM_EPISODES}."
    )
    if recorded is None:
        print("This entry was not measured yet: there is nothing to compare with.")
    elif not recorded.versions:
        print("The versions of packages were not recorded.")
    elif changed := other_versions(recorded):
        print(changed)
    clock = "CPU" if task.backends[0] == "local" else "the clock"
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


def _plain(task: Task, recorded: Record | None, limit: float, found: Sequence[Measurement]) -> dict[str, object]:
    """The comparison as JSON can hold it."""
    from raypid.run.reproduce import other_versions

    seeds = [
        {
            "seed": one.seed, "reached": one.solved, "return": one.mean_return, "seconds": one.seconds, "steps": one.steps,
            "remark": _remark(one, recorded),
        }
        for one in found
    ]  # fmt: skip
    return {
        "name": f"{task.algo}:{task.env}", "goal": task.threshold, "limit": limit,
        "reproduced": None if recorded is None else all(one.solved for one in found),
        "recorded": None if recorded is None else asdict(recorded), "seeds": seeds,
        "versions": found[0].versions, "other_versions": other_versions(recorded) if recorded else "",
    }  # fmt: skip
