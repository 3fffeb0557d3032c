"""What an experiment leaves and says at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from raypid.errors import UserError
from raypid.phases import phase
from raypid.report.lineage import lineage
from raypid.report.plots import learning_curve
from raypid.report.summary_table import summary_table
from raypid.storage.outputs import Unwritten
from raypid.storage.run_folder import RESULTS
from raypid.sweep.board import Ended

CURVES = "learning_curves.png"
"""In the experiment's folder."""


def finish(out: Path, ended: Sequence[Ended]) -> str:
    """Draw the learning curves of all trials; returns the table of how they ended, and how to go on."""
    folders = [Path(trial.folder) for trial in ended]
    lines: list[str] = []
    picture: Path | None = out / CURVES
    try:
        with phase("drawing", f"drawing {CURVES}"):
            learning_curve([folder for folder in folders if (folder / RESULTS).is_file()], out / CURVES)
    except (UserError, Unwritten) as error:
        picture = None
        lines.append(f"No picture: {error}")
    try:
        with phase("comparing", "comparing the trials"):
            lines.append(summary_table(folders, picture=picture))
    except UserError as error:
        lines.append(str(error))
    try:
        if (drawn := lineage(out)) is not None:
            lines.append(f"lineage      {drawn}")
    except (UserError, ValueError, Unwritten) as error:
        lines.append(f"No lineage: {error}")
    if left := sum(trial.state == "unfinished" for trial in ended):
        trials = "trial has" if left == 1 else "trials have"
        lines.append(
            f"{left} of {len(ended)} {trials} not ended: `raypid train --resume {shlex.quote(str(out))}` goes on."
        )
    return "\n".join(lines)
