"""What the benchmarks share: the machine in words, tables as Markdown, results as JSON beside them."""

from __future__ import annotations

import json
import os
import platform
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


def write(name: str, table: str, results: Any, folder: Path = RESULTS) -> None:
    """Write the table to `name`.md and the numbers behind it to `name`.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(table)
    (folder / f"{name}.json").write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")


def save(name: str, table: str, results: Any, folder: Path = RESULTS) -> None:
    """Write both, print the table, and say where they are."""
    write(name, table, results, folder)
    print(f"{table}\nResults: {folder / name}.md and .json", flush=True)
