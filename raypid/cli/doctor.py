"""Say what went wrong in a run and what slowed it, with the numbers behind it and what to change.

Reads the folder of a run that has ended, is running or was killed; changes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.run.doctor import Finding

MOST = 8
"""Findings on one screen."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    text = "print a list of {topic, severity, finding, numbers, advice}"
    parser.add_argument("--json", action="store_true", help=text)


def main(options: argparse.Namespace) -> int:
    """Print the findings, most important first, or one line if the run is healthy.

    Raises:
        UserError: the folder holds no run, or cannot be read.
    """
    from raypid.run.doctor import diagnose, headline, healthy_line, open_run

    run = open_run(options.run)
    found = diagnose(run)
    if options.json:
        print(json.dumps([_plain(f) for f in found], indent=1))
    elif all(f.severity == "note" for f in found):
        print(healthy_line(run, found))
    else:
        width = min(120, shutil.get_terminal_size().columns)
        lines = [line for f in found[:MOST] for line in _lines(f, width)]
        more = [f"{len(found) - MOST} more: --json"] if len(found) > MOST else []
        print("\n".join([headline(run), *lines, *more]))
    return 0


def _plain(finding: Finding) -> dict[str, object]:
    """A finding as JSON can hold it."""
    numbers = {key: float(x) if x is not None and math.isfinite(x) else None for key, x in finding.numbers.items()}
    return {**finding._asdict(), "numbers": numbers}


def _lines(finding: Finding, width: int) -> list[str]:
    """A finding as lines: what was found, its numbers, the advice."""
    from raypid.run.doctor import shown

    numbers = ", ".join(f"{key} {shown(value)}" for key, value in finding.numbers.items())
    head = f"{finding.severity:<8} {finding.topic:<9} "
    lines: list[str] = []
    for part in (finding.finding, numbers, f"-> {finding.advice}" if finding.advice else ""):
        lines += textwrap.wrap(part, max(20, width - len(head)), break_on_hyphens=False)
    return [f"{'' if i else head:{len(head)}}{line}" for i, line in enumerate(lines)]
