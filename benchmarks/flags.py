"""What benchmarks take on the command line. What does not fit is refused in one line, with exit code 2, before anything starts."""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from reporting import RESULTS

T = TypeVar("T")


def positive(text: str) -> float:
    """A number above zero, for `type=` of argparse, as are all of these."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return number


def whole(least: int = 1) -> Callable[[str], int]:
    """A whole number, `least` or more."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number, {least} or more, not {text!r}")
        return number

    return read


def one_of(choices: Collection[str]) -> Callable[[str], str]:
    """One of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"there is no {text!r}; there are {', '.join(choices)}")
        return text

    return read


def several(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Some of them, such as 1,2,3."""
    return lambda text: [one(part.strip()) for part in text.split(",")]


def json_object(text: str) -> dict[str, Any]:
    """Settings, such as {"lr": 0.001}."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'expected JSON such as {{"lr": 0.001}}, not {text!r}')
    return found


def writable(text: str) -> Path:
    """A folder that is there, or that can be made."""
    path = Path(text)
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "no folder" if not there.is_dir() else "not writable"
        raise argparse.ArgumentTypeError(f"nothing can be written to {text}: {there} is {why}")
    return path


def add_results_folder(parser: argparse.ArgumentParser, quick: str = "little time") -> None:
    """Add --folder, where the results go, and --quick. `quick` says what else --quick does."""
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--folder", type=writable, default=RESULTS, help="of the results (default: benchmarks/results)")
    words = f"{quick}; the results go into a new temporary folder, which is printed"
    place.add_argument("--quick", action="store_true", help=words)


def results_folder(args: argparse.Namespace) -> Path:
    """Where the results go; to be called once, after all flags were checked, since it makes the folder of --quick."""
    if not args.quick:
        return Path(args.folder)
    made = Path(tempfile.mkdtemp(prefix="raypid-quick-"))
    print(f"Results go to {made}", flush=True)
    return made
