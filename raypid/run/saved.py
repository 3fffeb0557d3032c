"""What a saved run says of itself: its algorithm and settings, once it is sure that what they name may be imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from raypid import checkpoint
from raypid.checkpoint import Manifest
from raypid.config import Config, ConfigError, Given, canonical, overlay
from raypid.ownership import has_signature
from raypid.registry import ALGORITHMS
from raypid.reporting.logger import PARAMS, read_params
from raypid.run_file import PROGRAM, RunFile, is_record, read_run, steps_reached
from raypid.stops import read_stop
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
        CheckpointError: there is none, or it is damaged.
        UntrustedError: it names code that may not be imported.
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


def check_algorithm(folder: str | Path, held: str | None, asked: str | None) -> None:
    """Refuse to go on with a run of the algorithm `held` as one of `asked`, if that is given.

    Raises:
        ConfigError
    """
    if asked and asked != held:
        raise ConfigError(
            f"{folder} holds a run of {held}, not of {asked}: leave the algorithm out, and the run goes on with its own."
        )


def continued(
    folder: str | Path, file: RunFile, given: Given, stop: object, *, run: str | None = None, trust: bool = False
) -> tuple[str, Given, Given, dict[str, object]]:
    """Return algorithm, settings given, those below (the saved ones) and stop criteria (the saved ones where `stop` is None) of a run that
    goes on; `run` and `trust` as in `saved_run`, which says what is raised.

    Args:
        file: what files say of it beside `given`.
    """
    given = overlay(file.recorded.without("init_from"), given)  # that was where the other run began
    _, manifest = saved_run(folder, given, run=run, trust=trust)
    check_algorithm(folder, manifest["algorithm"], run)
    saved = read_params(folder).get("stop")
    below = Given({**manifest["config"], "init_from": None}, "resume", str(folder))
    stop = saved if stop is None and isinstance(saved, Mapping) else stop
    return manifest["algorithm"], given, below, read_stop(stop)


def check_beside_resume(
    resume: str | Path, out: str | Path | None, tuned: object, overwrite: bool, dashes: str = ""
) -> None:
    """Refuse what only a new run can have. `dashes` stand before the names of options.

    Raises:
        ConfigError: names the two options.
    """
    resuming = f"{dashes}resume"
    if out is not None and Path(out) != Path(resume):
        raise ConfigError(f"Give {resuming} or {dashes}out, not both: a resumed run goes on in its own folder.")
    if overwrite:
        raise ConfigError(
            f"Give {resuming}, which goes on with a run, or {dashes}overwrite, which replaces it: not both."
        )
    if tuned:
        raise ConfigError(
            f"{dashes}tuned is for new runs: {resuming} goes on with the saved settings and those given beside it."
        )


def saved_algorithm(path: str | Path, manifest: Manifest, *, run: str | None = None, trust: bool = False) -> str:
    """The algorithm of the run at `path`, which may be imported; `run` and `trust` as in `saved_run`.

    Raises:
        UntrustedError: it may not.
    """
    trusted, name = trust or manifest["signed"], manifest["algorithm"]
    check_names(path, {"algorithm": name}, trusted=trusted, given={"algorithm": run or ""})
    return name


def begun_run(
    folder: str | Path, given: Mapping[str, object], *, run: str | None = None, trust: bool = False
) -> RunFile | None:
    """Read the settings of a run that was ended before its first checkpoint, so that it can begin anew; None if `folder` holds no such
    run. Nothing is imported.

    `best/` is written with a checkpoint: a folder that has it and no checkpoint has lost its checkpoints, which beginning anew would
    hide. A run with a program of its own begins anew in Python alone. Arguments as in `saved_run`.

    Raises:
        ConfigError: it is a run of another algorithm than `run`.
        UntrustedError: it names code that may not be imported.
    """
    folder = Path(folder)
    params = read_params(folder)
    policies = [folder / name for name in (checkpoint.BEST, checkpoint.OLD_BEST)]
    if not is_record(params) or any(path.exists() for path in policies) or params.get(PROGRAM):
        return None
    if checkpoint.latest(folder / "checkpoints") is not None:
        return None
    file = read_run(folder / PARAMS)
    trusted = trust or has_signature(PARAMS, params)
    check_names(folder, {"algorithm": file.run}, trusted=trusted, given={"algorithm": run or ""})
    check_algorithm(folder, file.run, run)
    names = overlay(file.recorded, given)
    where = {key: value for key, value in names.items() if canonical(key) in ("backend", "num_workers")}
    if not Config().replace(where).on_ray:
        names = names.without("address")  # nothing will be joined
    check_names(folder, names, trusted=trusted, given=given)
    steps = steps_reached(folder)
    lost = f" Steps lost: {steps:,}." if steps else ""
    note = f"{folder} was ended before its first checkpoint: it begins anew.{lost}"
    return replace(file, stop=params["stop"], tuned=False, notes=(note,), is_begun=True)
