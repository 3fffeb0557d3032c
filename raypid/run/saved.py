"""What a saved run says of itself: its algorithm and settings, once it is sure that what they name may be imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raypid import checkpoint
from raypid.checkpoint import Manifest
from raypid.config import Config, overlay
from raypid.registry import ALGORITHMS
from raypid.trust import check_names


def saved_run(
    path: str | Path, given: Mapping[str, object], *, run: str | None = None, trust: bool = False
) -> tuple[Path, Manifest]:
    """Find the checkpoint that `path` stands for and read its manifest. Nothing is imported that may not be.

    Args:
        given: the settings that will be laid over the saved ones.
        run: the algorithm, if the user has named it too.
        trust: import what only this folder names, though this user's raypid did not write it.

    Raises:
        CheckpointError: there is none, or it is damaged. UntrustedError: it names code that may not be imported.
    """
    folder = checkpoint.find(Path(path))
    manifest = checkpoint.read_manifest(folder)
    defaults: Config = ALGORITHMS.get(saved_algorithm(path, manifest, run=run, trust=trust)).Config()
    config = defaults.replace(overlay({**manifest["config"], "init_from": None}, given))
    names = config.to_dict()
    if not config.on_ray:
        del names["address"]  # nothing will be joined
    check_names(path, names, trusted=trust or manifest["signed"], given=given)
    return folder, manifest


def saved_algorithm(path: str | Path, manifest: Manifest, *, run: str | None = None, trust: bool = False) -> str:
    """The algorithm of the run at `path`, which may be imported; `run` and `trust` as in `saved_run`.

    Raises:
        UntrustedError: it may not.
    """
    trusted, name = trust or manifest["signed"], manifest["algorithm"]
    check_names(path, {"algorithm": name}, trusted=trusted, given={"algorithm": run or ""})
    return name
