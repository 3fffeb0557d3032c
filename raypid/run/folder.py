"""The folder of a run: whether it may be used, the lock while it is written to, and what `overwrite` removes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from raypid.report.logger import EXPLOITS
from raypid.settings.config import ConfigError
from raypid.storage import checkpoint
from raypid.storage.neighbours import nothing_at
from raypid.storage.outputs import ERRORS, FIRST_ERRORS, OLDER_ERRORS, check_folder_writable, explained, usable
from raypid.storage.run_folder import DIVERGED, LOCK, PARAMS, RESULTS

_RUN_FILES = (
    PARAMS, RESULTS, "checkpoints", "progress.csv", EXPLOITS, ERRORS, FIRST_ERRORS, OLDER_ERRORS, "learning_curve.png",
    DIVERGED, checkpoint.BEST, checkpoint.OLD_BEST,
)  # fmt: skip
"""What a run writes into its folder, besides its events and its lock."""


def check_folder(out: Path | None, *, resume: bool, overwrite: bool, what: str = "The run's folder") -> None:
    """Check that a run may write to a folder (None: a new one under runs/). A folder with another run is not touched unless asked for.

    Args:
        what: begins messages about the folder.

    Raises:
        ConfigError: it holds a run (or none, for `resume`), is a file, or cannot be written to; or there is none to overwrite.
    """
    if out is None and overwrite:
        raise ConfigError("overwrite=True replaces the run in a folder: name it, such as out='runs/a'.")
    out = out or Path("runs", "new")
    with usable(out, what):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file, not a folder.")
    if (out / LOCK).exists():
        with lock_folder(out):
            pass
    results = out / RESULTS  # empty if a run failed in its first iteration: nothing would be lost
    holds_run = (out / "checkpoints").exists() or (results.exists() and results.stat().st_size > 0)
    if holds_run and not (resume or overwrite):
        how = f"Resume it (resume={str(out)!r}), replace it (overwrite=True), or choose another folder"
        raise ConfigError(f"{out} holds another run. {how}.")
    if resume and not holds_run:
        raise ConfigError(f"{out} holds no run to resume." if out.exists() else nothing_at(out))
    check_folder_writable(out, what)


@contextlib.contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Lock the folder for this process.

    Raises:
        ConfigError: a running process has locked it.
        Unwritten: the lock cannot be written.
    """
    path = out / LOCK
    with explained(path):
        out.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file as lock:
        with contextlib.suppress(ModuleNotFoundError):  # systems without flock have no protection
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"Another run is writing to {out}. Stop it, or choose another folder.") from None
        yield
        with contextlib.suppress(OSError):  # a file took the folder's place, or it is read-only by now
            path.unlink(missing_ok=True)


def clear_folder(out: Path) -> None:
    """Remove the files of a run, and nothing else."""
    for path in [*(out / name for name in _RUN_FILES), *out.glob("events.out.tfevents.*")]:
        with explained(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
