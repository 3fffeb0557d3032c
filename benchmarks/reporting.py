"""What the benchmarks share: the machine in words, tables as Markdown, results as JSON beside them."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def stored(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What `write` has left in a folder; nothing if there is none. What cannot be read ends the program, and is not written over."""
    file = folder / f"{name}.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        print(f"error: {file} is damaged: remove it, or choose another folder.", file=sys.stderr)
        raise SystemExit(2)
    return found


def write(name: str, table: str, results: Any, folder: Path = RESULTS) -> None:
    """Write the table to `name`.md and the numbers behind it to `name`.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(table)
    (folder / f"{name}.json").write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")


def save(name: str, table: str, results: Any, folder: Path = RESULTS) -> None:
    """Write both, print the table, and say where they are."""
    write(name, table, results, folder)
    print(f"{table}\nResults: {folder / name}.md and .json", flush=True)
