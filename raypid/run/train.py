"""`raypid.train`: a run in one call, as `raypid train` is on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raypid import checkpoint
from raypid.config import Config, ConfigError, Given
from raypid.outcome import Outcome
from raypid.phases import Phases
from raypid.reporting.logger import read_params
from raypid.reporting.notebook import progress_here
from raypid.run.agent import Agent, check_counts
from raypid.run.assembly import resolve_config, with_tuned
from raypid.run.distributed import DistributedAgent
from raypid.run.folder import check_folder
from raypid.run.known_keys import check_stop, known_keys
from raypid.run.reproduce import hints
from raypid.run.run import RunOptions
from raypid.run.saved import begun_run, check_beside_resume, continued
from raypid.run.stopping import left_alone
from raypid.run.training import algorithm_of, named_algorithm, refuse_policy, settings_of
from raypid.run_file import OPTIONS, RunFile, for_algorithm, is_record, joined, notes_of, read_for
from raypid.stops import STEPS, read_stop, stop_with


def train(
    run: object = None,
    env: object = None,
    config: Mapping[str, object] | str | Path | None = None,
    *,
    stop: int | float | Mapping[str, object] | None = None,
    out: str | Path | None = None,
    tuned: bool | str = False,
    resume: str | Path | bool | None = None,
    trust: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    checkpoint_interval: int | None = None,
    keep_checkpoints: int | None = None,
    final_episodes: int | None = None,
    **settings: object,
) -> Outcome:
    """Train an agent until a stop criterion is met, and leave all that `raypid train` leaves. Workers and environments are ended.

        outcome = raypid.train("PPO", "CartPole-v1", stop=100_000, out="runs/a", lr=1e-3, num_workers=2)

    Ctrl-C ends the run as it ends `Agent.fit`; a second one within 5 s, also in the next run of a loop, raises KeyboardInterrupt.

    Args:
        run: the algorithm: its name, a subclass of `raypid.algorithms.base.Algorithm`, or a class of agents such as raypid.PPO or your own.
        env: the environment, in any form that agents take: an id, a class, a function, "module:Name", a whole vector.
        config: settings as a mapping, or a file that says the same of a run as `-f` and `--config` read: with the params.json of a
            run the run is repeated, its algorithm and end included. Arguments and keywords override it.
        stop: environment steps, or {key of a result: value}; the first that is reached ends the run. Without it a new run goes on until
            Ctrl-C, a resumed one to the criteria that it had.
        out: the run's folder; by default a new one under runs/.
        tuned: start from tuned settings: True, or the name of those that a search has saved.
        resume: go on with the run in this folder, with its settings and those given here. True: with the run in `out`, or begin it there,
            so that a machine may repeat the call. A run that was ended before its first checkpoint begins anew.
        trust: import what only that folder names, though this user's raypid did not write it.
        overwrite: as in `Agent.fit`, like the four that follow. None: as a file says, or as there.
        quiet: see overwrite.
        checkpoint_interval: see overwrite.
        keep_checkpoints: see overwrite.
        final_episodes: see overwrite.
        settings: those of the algorithm, and `callbacks`. total_timesteps, timesteps and their kin are stop criteria, as elsewhere.

    Raises:
        UserError: something does not fit; nothing has been trained then. What ends a run by an error, after what was learnt was saved.
    """
    stop, settings = stop_with(stop, settings)
    run = named_algorithm("train", run, env, settings)
    again = resume is True
    folder = _taken_up(out, overwrite) if again else None if resume is None else Path(str(resume))
    if run is not None and not _is_distributed(run):
        refuse_policy(f'raypid.train("{algorithm_of(run)}", ', algorithm_of(run), (env, config), settings)
    name, file = _read(config, run, trust, settings)
    run = name if run is None else run
    given = settings_of([env], file.settings if isinstance(config, str | Path) else config, settings)
    if folder is not None:
        check_beside_resume(folder, out, tuned and not again, overwrite)
        file, given, is_anew = _goes_on(folder, run, name, file, given, again, trust)
        tuned = False
        if is_anew:
            run, name, out, folder, overwrite = run or file.run, file.run, folder, None, True
    counts = _counts(file, checkpoint_interval, keep_checkpoints, final_episodes)
    stop = file.stop if stop is None and folder is None else stop
    progress = progress_here({}, quiet)
    agent: Agent | DistributedAgent
    with Phases(progress.working).heard():
        if folder is None:
            agent = _new(run, name, file, given, stop, out := out or file.out, tuned or file.tuned, overwrite)
        else:
            check_folder(folder, resume=True, overwrite=False)
            goes_on, given, below, criteria = continued(folder, file, given, stop, run=name, trust=trust)
            saved, stop = _settled(goes_on, given, below, criteria)
            if (done := left_alone(folder, saved, stop, python=True)) is not None:
                progress.note(done[1])
                return done[0]
            agent = _agent_class(run).from_checkpoint(folder, given, out=folder, trust=trust)
        with agent:
            if isinstance(agent, Agent):
                agent.notes += notes_of(file, given, stop)
                agent.notes += hints(agent, folder is not None, tuned or file.tuned, bool(file.recorded))
                agent._shown_before = progress
            return agent.fit(stop, out=folder or out, overwrite=overwrite, quiet=quiet, **counts)


def _counts(file: RunFile, *asked: int | None) -> dict[str, int]:
    """How often to save and how many to play at the end: what a file says, and above it what was asked for."""
    counts = {**file.options, **{name: count for name, count in zip(OPTIONS, asked) if count is not None}}
    check_counts(RunOptions(**counts))  # type: ignore[arg-type]
    return counts


def _read(config: object, run: object, trust: bool, settings: Mapping[str, object]) -> tuple[str | None, RunFile]:
    """The algorithm's name, None for a DistributedAgent's or if nothing names it; and what a file says, if `config` is one."""
    name = None if run is None or _is_distributed(run) else algorithm_of(run)
    if isinstance(config, str | Path):
        return read_for(name, config, trust=trust, given=settings)
    return name, RunFile()


def _is_distributed(run: object) -> bool:
    return inspect.isclass(run) and issubclass(run, DistributedAgent)


def _new(
    run: Any,
    name: str | None,
    file: RunFile,
    given: Given,
    stop: object,
    out: str | Path | None,
    tuned: bool | str,
    overwrite: bool,
) -> Agent | DistributedAgent:
    """The agent of a new run. All that can be wrong is found before its environment is made."""
    if run is None:
        raise ConfigError('Name the algorithm: raypid.train("PPO", "CartPole-v1", stop=100_000).')
    if overwrite and out is None:
        raise ConfigError("overwrite replaces the run in the folder of out: name that folder.")
    check_folder(Path(out or Path("runs", "new")), resume=False, overwrite=overwrite)
    criteria = read_stop(stop)
    if name is None:
        if tuned:
            raise ConfigError(f"tuned is for agents of {run.algorithm} itself, not for a DistributedAgent.")
        distributed: DistributedAgent = run(**given)
        return distributed
    below = with_tuned(name, tuned, file.recorded, given)
    _settled(name, given, below, criteria)
    return _agent_class(run)(run=name, config=given, below=below)


def _settled(name: str, given: Given, below: Given, stop: Mapping[str, object]) -> tuple[Config, dict[str, float]]:
    """Check settings and stop criteria, and return both in force."""
    config = resolve_config(name, given, below, open_end=STEPS in stop)
    return config, check_stop(stop, known_keys(name, config))


def _agent_class(run: object) -> type[Agent]:
    return run if inspect.isclass(run) and issubclass(run, Agent) else Agent


def _taken_up(out: str | Path | None, overwrite: bool) -> Path | None:
    """The folder of the run that `resume=True` goes on with: that of `out`, if a run is there.

    Raises:
        ConfigError: `out` is missing, or `overwrite` was given.
    """
    if out is None:
        raise ConfigError(
            "resume=True means the folder of out, where the run goes on or begins: give out, or resume=FOLDER."
        )
    folder = Path(out)
    check_beside_resume(folder, out, False, overwrite)
    has_checkpoint = checkpoint.latest(folder / "checkpoints") is not None
    return folder if has_checkpoint or is_record(read_params(folder)) else None


def _goes_on(
    folder: Path, run: object, name: str | None, file: RunFile, given: Given, again: bool, trust: bool
) -> tuple[RunFile, Given, bool]:
    """What a file and the call say of the run in a folder, and whether it begins anew: then its own settings are below.

    Args:
        again: the same call may have begun it; what only its beginning needs is left out once it has a checkpoint.
    """
    begun = None if _is_distributed(run) else begun_run(folder, given, run=name, trust=trust)
    if begun is not None:
        return replace(joined([for_algorithm(begun, str(begun.run)), file]), tuned=False), given, True
    if again:
        return replace(file, tuned=False), given.without("init_from", "weights_file"), False
    return file, given, False
