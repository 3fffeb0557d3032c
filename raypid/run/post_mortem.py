"""What a divergence leaves in the run's folder: diverged/, with the batch and, in policy/, the last good weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from raypid import checkpoint
from raypid.errors import Diverged

DIVERGED = "diverged"
"""The folder's name in that of the run. `raypid.load_policy` and `raypid eval` read its policy."""


def write_post_mortem(
    folder: Path, error: Diverged, about: Mapping[str, object], write_policy: Callable[[Path], None]
) -> None:
    """Write `folder`/diverged in one piece, in the place of an earlier one, and say in the error where it is.

    Args:
        about: entries of its manifest besides what the error says.
        write_policy: writes the policy with the last good weights into a folder.
    """
    manifest = {**about, "what": error.what, "advice": error.advice, "timesteps_total": error.timesteps}
    try:
        place = checkpoint.save_checkpoint(
            folder,
            DIVERGED,
            {"batch": error.batch},
            manifest=manifest,
            extra_writer=lambda place: write_policy(place / "policy"),
        )
        kept = f"The batch and the last good weights are in {place}"
    except (OSError, RuntimeError) as failure:
        kept = f"The batch could not be kept ({str(failure).rstrip('.')})"
    newest = checkpoint.latest(folder / "checkpoints")
    there = "there is no checkpoint" if newest is None else f"the newest checkpoint is {newest.name}"
    error.kept = f"{kept}; {there}."
