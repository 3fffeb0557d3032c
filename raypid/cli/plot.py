"""`raypid plot`: draw the learning curves of one or several runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.cli import Subparsers
    from raypid.reporting.plots import XAxis

X_AXES: dict[str, XAxis] = {"steps": "timesteps_total", "time": "time_total_s"}


def add_parser(subparsers: Subparsers, argv: Sequence[str] = ()) -> None:
    parser = subparsers.add_parser(
        "plot",
        help="draw the learning curves of runs",
        description="Draw the learning curves of runs in one picture. Runs that differ only in their seed become one "
        "curve: the median, with a band from the worst seed to the best.",
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    add("--out", type=Path, default=Path("curves.png"), help="the picture: png, svg or pdf (%(default)s)")
    add("--x", choices=tuple(X_AXES), default="steps", help="the horizontal axis (%(default)s)")
    add("--title", help="title of the picture (default: made from the runs)")


def main(args: argparse.Namespace) -> int:
    """Draw the curves and print the path of the picture.

    Raises:
        ValueError: a folder holds no run, or the ending of `--out` is not a picture format.
    """
    from raypid.reporting.plots import learning_curve

    print(learning_curve(args.runs, args.out, X_AXES[args.x], title=args.title))
    return 0
