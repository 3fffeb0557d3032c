"""Draw the learning curves of runs in one picture, with a panel for each environment.

Runs that differ only in their seed become one curve: the interquartile mean, with its 95% bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.errors import listed
from raypid.phases import phase

if TYPE_CHECKING:
    from raypid.report.plots import Curve, XAxis
    from raypid.storage.run_folder import RunFolder

X_AXES: dict[str, XAxis] = {"steps": "timesteps_total", "time": "time_total_s"}

MOST_TOLD = 3
"""Folders that are left out, and are named."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="DIR", help="the folder of a run, or one with runs in it")
    add("--out", type=Path, default=Path("curves.png"), help="the picture: png, svg or pdf (%(default)s)")
    add("--x", choices=tuple(X_AXES), default="steps", help="the horizontal axis (%(default)s)")
    add("--y", metavar="KEY", help="a key of the results, such as learner/entropy (default: the return)")
    add(
        "--centre", "--center", choices=("iqm", "median", "mean"), default="iqm",
        help="what is drawn of several seeds; iqm: the mean without the lowest and the highest quarter (%(default)s)",
    )  # fmt: skip
    add(
        "--smooth", type=_smoothing, default=0.0, metavar="N",
        help="a running mean over N points of each run, or over a part of them if below 1; evaluations are not smoothed unless --y names them",
    )  # fmt: skip
    add("--title", help="title of the picture (default: made from the runs)")
    add("--json", action="store_true", help="print the curves' numbers, with the picture's path")


def main(args: argparse.Namespace) -> int:
    """Draw the curves and print the path of the picture.

    Raises:
        ValueError: a folder holds no run, no result has the key `--y`, or the ending of `--out` is not a picture format.
    """
    from raypid.report.plots import View, curves, draw, notes_on

    view = View(X_AXES[args.x], args.y, args.centre, args.smooth)
    runs = read_runs(args.runs)
    with phase("drawing"):
        drawn = curves(runs, view)
        path = draw(drawn, args.out, view, args.title)
    for line in notes_on(drawn) if args.y is None else ():
        print(f"raypid: {line}", file=sys.stderr)
    if args.json:
        print(
            json.dumps({"picture": str(path), "x": view.x, "y": view.y, "curves": [_plain(curve) for curve in drawn]})
        )
    else:
        print(path)
    return 0


def read_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """Read the runs in these folders, and say which folders below them were left out.

    Raises:
        UserError: a folder holds no run.
    """
    from raypid.report.runs import find_runs

    with phase("reading", f"reading the runs in {listed([str(path) for path in paths], 3)}"):
        runs, skipped = find_runs(paths)
    more = [f"{len(skipped) - MOST_TOLD} more folders are left out."] if len(skipped) > MOST_TOLD else []
    for line in [*skipped[:MOST_TOLD], *more]:
        print(f"raypid: {line}", file=sys.stderr)
    return runs


def _smoothing(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf or (value > 1 and value != int(value)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of points nor a part of them between 0 and 1 (0: none)"
        )
    return value


def _plain(curve: Curve) -> dict[str, object]:
    """A curve as JSON can hold it: null where there is no interval."""
    columns = {"x": curve.x, "centre": curve.centre, "low": curve.low, "high": curve.high}
    numbers = {name: [float(v) if math.isfinite(v) else None for v in column] for name, column in columns.items()}
    folders = [str(run.path) for run in curve.group.runs]
    return {
        "task": curve.group.task, "label": curve.group.label, "settings": curve.group.apart, "runs": folders,
        "seeds_counted": curve.counted, "is_evaluation": curve.is_evaluation, **numbers,
    }  # fmt: skip
