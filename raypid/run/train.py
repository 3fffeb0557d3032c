"""`raypid.train`: a run in one call, as `raypid train` is on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raypid.outcome import Outcome
from raypid.phases import Phases, listening
from raypid.report.notebook import progress_here
from raypid.run.agent import Agent
from raypid.run.calls import algorithm_of, named_algorithm, request_of
from raypid.run.distributed import DistributedAgent
from raypid.run.reproduce import hints
from raypid.run.resolve import settle, standing
from raypid.run.run import Run, RunOptions
from raypid.run.stopping import already_finished
from raypid.settings.config import ConfigError
from raypid.settings.files import OPTIONS
from raypid.settings.request import RunRequest


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
        settings: those of the algorithm, and `callbacks`.

    Raises:
        UserError: something does not fit; nothing has been trained then. What ends a run by an error, after what was learnt was saved.
    """
    run = named_algorithm("train", run, env, settings)
    name = None if run is None else algorithm_of(run)
    counts = zip(OPTIONS, (checkpoint_interval, keep_checkpoints, final_episodes), strict=True)
    options = {count: number for count, number in counts if number is not None}
    asked = {"stop": stop, "out": out, "tuned": tuned, "resume": resume, "trust": trust, "overwrite": overwrite}
    return train_request(request_of(name, [env], config, settings, options=options, **asked), run, quiet=quiet)


def train_request(request: RunRequest, run: Any = None, *, quiet: bool = False) -> Outcome:
    """Resolve what is asked for, and train until a stop criterion is met; errors as `train`.

    Args:
        run: the class of agents to train with; by default `raypid.Agent`.
    """
    request = replace(request, is_whole=True)
    progress = progress_here({}, quiet)
    phases = listening() or Phases()
    phases.tell = progress.working
    with phases.heard():
        request = standing(request)
        kind: type = run if isinstance(run, type) else Agent
        if issubclass(kind, DistributedAgent) and request.resume is None:  # it resolves its settings itself
            if request.tuned:
                raise ConfigError(f"tuned is for agents of {kind.algorithm} itself, not for a DistributedAgent.")
            settings: Mapping[str, Any] = request.settings
            counts: Mapping[str, Any] = request.options
            with kind(**settings) as program:
                return program.fit(request.stop, out=request.out, overwrite=request.overwrite, quiet=quiet, **counts)
        settled = settle(request)
        if (done := already_finished(settled)) is not None:
            progress.note(done[1])
            return done[0]
        kept: Mapping[str, Any] = settled.request.options
        overwrite, python = request.overwrite, request.python
        options = RunOptions(stop=settled.stop, overwrite=overwrite, python=python, closes_agent=True, **kept)
        cls = kind if issubclass(kind, Agent) else Agent
        agent = cls.of(settled)
        agent.notes += hints(agent, settled, "tuned=True" if python else "--tuned")
        with agent:
            if cls.fit is not Agent.fit:
                return agent.fit(settled.stop, out=request.out, overwrite=overwrite, quiet=quiet, **kept)
            return Run(agent, options, progress_here(settled.stop, quiet, progress))()
