"""What a divergence leaves in the run's folder: diverged/, with the batch and, in policy/, the last good weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raypid import checkpoint
from raypid.errors import Diverged

if TYPE_CHECKING:
    from raypid.run.training import Training

DIVERGED = "diverged"
"""The folder's name in that of the run. `raypid.load_policy` and `raypid eval` read its policy."""


def keep_evidence(training: Training, error: Diverged) -> None:
    """Write what is needed to look into a divergence, if the run has a folder, and say in the error where it is. Once for each error."""
    if error.kept:
        return
    if error.timesteps is None:
        error.timesteps = training.timesteps
    if training.out is not None:
        error.kept = _write(training, training.out, error)
    if training.rollbacks:
        rates = " and ".join(f"{name} was {rate:.3g}" for name, rate in training.config.learning_rates().items())
        start = f" At the start, {rates}." if rates else ""
        error.kept += f" Rollbacks before: {training.rollbacks}.{start}"


def _write(training: Training, folder: Path, error: Diverged) -> str:
    """Write `folder`/diverged in one piece, in the place of an earlier one; returns where it is, or why not, as a sentence."""
    good = training.backend.get(training.context.weights.newest)
    manifest: dict[str, object] = {"algorithm": training.run, "config": training.plain_config()}
    manifest |= {"rollbacks": training.rollbacks, "what": error.what, "advice": error.advice}
    manifest |= {"timesteps_total": error.timesteps}

    def write_policy(place: Path) -> None:
        training.write_policy(place / "policy", good)

    try:
        place = checkpoint.save_checkpoint(
            folder, DIVERGED, {"batch": error.batch}, manifest=manifest, extra_writer=write_policy
        )
        kept = f"The batch and the last good weights are in {place}"
    except (OSError, RuntimeError) as failure:
        kept = f"The batch could not be kept ({str(failure).rstrip('.')})"
    newest = checkpoint.latest(folder / "checkpoints")
    there = "there is no checkpoint" if newest is None else f"the newest checkpoint is {newest.name}"
    return f"{kept}; {there}."
