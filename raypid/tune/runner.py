"""Runs the trials of an experiment by Ray Tune, each in a folder of its own.

Tune gives each trial its place and decides which one goes on. What a trial leaves is what any run leaves (`run.run.Run`), and
an experiment goes on from these folders: nothing that Tune keeps for itself is read again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import ray
from ray import tune

from raypid.outcome import Outcome
from raypid.report.logger import FolderLost
from raypid.report.panel import Progress
from raypid.run.agent import Agent
from raypid.run.folder import clear_folder, lock_folder
from raypid.run.resolve import resolve
from raypid.run.run import Run, RunOptions
from raypid.run.signals import signals_call
from raypid.runtime.ray import RayBackend
from raypid.runtime.ray_parcel import node_here
from raypid.runtime.resources import ResourceError, num_cores, num_gpus
from raypid.settings.config import ConfigError
from raypid.storage.checkpoint import latest, read_json, read_manifest, refusing
from raypid.storage.outputs import ErrorFile, Unwritten, write_whole
from raypid.storage.run_folder import TRAINING, RunFolder, known
from raypid.sweep.board import Board, Ended
from raypid.sweep.plan import PLAN, STATES, Planned, Trial, write_plan
from raypid.sweep.population import Population
from raypid.tune.evolve import ROUND, RUN, SCORE, Evolution, Members
from raypid.tune.exploit import ExploitError, Exploits
from raypid.tune.trainable import AgentTrainable, carrying, reserved, share

REPORT_S = 1.0
"""Seconds of training between two reports of a trial."""
MAX_LOST = 2
"""How often a trial whose process is lost goes on from its newest checkpoint."""


class _Messages(Progress):
    """Keeps what a run says until the trial's next report."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


class RunTrainable(AgentTrainable):
    """A trial of an experiment: a run with a folder. Its config is a Trial with a whole path."""

    every: ClassVar[int] = 0
    """The environment steps at which a member of a population waits for the others; 0: it does not."""
    perturbed: ClassVar[Sequence[str]] = ()
    """The settings that its population changes."""
    current: Run | None = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        trial: Trial = config[RUN]
        return reserved(trial.request(), trial.resources or {})

    def _build(self, config: Mapping[str, Any]) -> None:
        """Take the config. The run begins with the first step, since a checkpoint may be given before."""
        self.trial: Trial = config[RUN]
        self.name = self.trial.name
        newest = latest(self.trial.folder / "checkpoints")
        self.exploits = Exploits(self.trial.folder, None if newest is None else read_manifest(newest)["config"])
        self.fault: Exception | None = None
        """What kept it from going on from a checkpoint."""
        self.messages = _Messages()
        self.outcome: Outcome | None = None
        self.parked = False
        """The interval has ended and is saved: Tune goes on with this trial here, or in another process."""
        self._lock = contextlib.ExitStack()

    def step(self) -> dict[str, Any]:
        """Train until the next report is due. Errors of the run end the trial, and no other."""
        try:
            if self.fault is not None:
                raise self.fault
            run = self.current or self._begin(None)
            if self.parked:
                self._lock_folder()
            before = run.agent.timesteps
            steps = before + self.every - before % self.every if self.every else math.inf
            result = run.advance(REPORT_S, steps) or run.agent.totals()
            if run.reason:
                self.outcome = run.end()
            elif run.agent.timesteps >= steps:
                self.parked = True
                self._lock.close()
        except Exception as error:
            self._leave()
            text = getattr(error, "worker_traceback", "") or str(error) or type(error).__name__
            fatal = type(error).__name__ if isinstance(error, Unwritten | FolderLost | ExploitError) else ""
            return self._report(-math.inf, 0, {}, done=True, failed=text, fatal=fatal)
        steps, played = run.agent.timesteps, run.agent.evaluations.last
        score = played.summary()[TRAINING] if played is not None else result.get(TRAINING, math.nan)
        score = score if math.isfinite(score) else -math.inf
        if self.outcome is None:
            return self._report(score, steps, result)
        last = self.outcome.result or [{}, *RunFolder(self.trial.folder).results][-1]
        return self._report(score, steps, last, done=True, reason=self.outcome.reason, final=self.outcome.final)

    def _report(self, score: float, steps: int, result: Mapping[str, Any], **more: object) -> dict[str, Any]:
        """What Tune, its scheduler and `_Watch` read."""
        texts, self.messages.texts = self.messages.texts, []
        times = {ROUND: steps // max(1, self.every), "timesteps_total": steps}
        return {SCORE: score, **times, "result": result, "messages": texts, **more}

    def _begin(self, checkpoint: Path | None) -> Run:
        """Start the run, or go on from `checkpoint`, or from what an earlier process of this trial has left."""
        trial, folder = self.trial, self.trial.folder
        if not folder.parent.is_dir():  # nothing is written where nobody would look for it
            raise FolderLost(
                f"{node_here()} does not see {folder.parent}. A trial writes there itself, so an experiment on several nodes needs a "
                "disk that all of them see."
            )
        self._lock_folder()
        before = latest(folder / "checkpoints") if checkpoint is None else None
        if before is not None:
            self.agent = Agent.from_checkpoint(before, out=folder, trust=True)
        else:
            if checkpoint is None:
                clear_folder(folder)
            self.agent = Agent(resolve(share(trial.request(), trial.resources or {})))
        self.agent.listen(self.exploits)
        by_time = self.agent.config.evaluation_interval is None
        # members are compared by the weights that each has at the end of an interval
        steps = {"checkpoint_steps": self.every or None, "evaluation_steps": self.every if by_time else 0}
        if checkpoint is not None:
            self.agent.restore(checkpoint)
            record = self.exploits.check(self.agent, checkpoint, trial.name, self.perturbed)
        self.current = Run(self.agent, RunOptions(stop=trial.stop, **{**trial.options, **steps}), self.messages)
        self.current.begin()
        if checkpoint is not None and record is not None:
            self.exploits.add(record)
            self.current.save()  # a process that goes on with this trial must not find the weights of before
        return self.current

    def _lock_folder(self) -> None:
        self._lock.enter_context(lock_folder(self.trial.folder))
        self.parked = False

    def load_checkpoint(self, checkpoint: dict[str, Any] | str | None) -> None:
        """Go on from such a folder, perhaps another trial's, with this trial's settings."""
        assert isinstance(checkpoint, str)
        self._leave()
        try:
            self._begin(Path(checkpoint))
        except Exception as error:  # raised here it would count as a lost process
            self.fault = error

    def cleanup(self) -> None:
        """Save what was learnt, where the run was ended from outside."""
        try:
            if self.current is not None and self.outcome is None and not self.parked:
                self.current.end("ended from outside", play=False)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Close the agent and the files."""
        run, self.current = self.current, None
        if run is not None:
            run.leave()
        super().cleanup()
        self._lock.close()


class _Watch(tune.Callback, tune.Stopper):
    """What the driver does with reports: shows them, keeps how trials ended, and ends all where nothing more can be written."""

    def __getstate__(self) -> dict[str, object]:
        """Tune pickles it into a file that is never read; the board holds the terminal."""
        return {}

    def __init__(self, out: Path, board: Board, ended: dict[str, Ended]) -> None:
        self.out, self.board, self.ended = out, board, ended
        self.fatal: RuntimeError | None = None
        """Why the experiment cannot go on."""
        self.interrupted = False

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.interrupted or self.fatal is not None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """End all trials, with a checkpoint each; on a second signal at once."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.board.note("Stopping all trials, with a checkpoint each. Ctrl-C again stops at once, without.")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.board.started(trial.config[RUN].name)

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        name = trial.config[RUN].name
        for text in result["messages"]:
            self.board.message(name, text)
        self.board.update(name, result["result"])
        if why := result.get("fatal"):
            text, is_exploit = result["failed"], why == ExploitError.__name__
            self.fatal = ExploitError(f"{name}: {text}") if is_exploit else self._unwritten(text)

    def _unwritten(self, why: object) -> Unwritten:
        return Unwritten(f"{why} `raypid train --resume {shlex.quote(str(self.out))}` goes on with the experiment.")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        result = trial.last_result
        if "reason" in result:
            self._end(trial, "finished", result["reason"])
        elif "failed" in result and not result["fatal"]:  # else it goes on when the experiment is resumed
            self._end(trial, "failed", result["failed"])

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.board.message(trial.config[RUN].name, "its process was lost; it goes on from its newest checkpoint.")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        iteration = trial.last_result.get("result", {}).get("training_iteration", 0) + 1
        reason = f"Its process died {MAX_LOST + 1} times: did the environment end it, or was memory short?"
        ErrorFile(trial.config[RUN].folder).add(f"The run ended in iteration {iteration}:\n{reason}\n\n")
        self._end(trial, "failed", reason)

    def _end(self, trial: Any, state: str, reason: str) -> None:
        """Show how a trial ended, and write it down beside what is known of the others."""
        name, last = trial.config[RUN].name, trial.last_result
        result = {key: x for key, x in last.get("result", {}).items() if known(x)}
        folder, final = str(self.out / name), last.get("final")
        ended = Ended(name=name, folder=folder, state=state, reason=reason, result=result, final=final)
        self.ended[name] = ended
        self.board.ended(ended)
        file = self.out / STATES
        try:
            write_whole(file, json.dumps({name: asdict(one) for name, one in self.ended.items()}, indent=1))
        except Unwritten as error:
            self.fatal = self._unwritten(error)


def read_states(out: Path) -> dict[str, Ended]:
    """How the trials of an experiment ended; those that have not are left out."""
    file = out / STATES
    if not file.exists():
        return {}
    with refusing(str(file)):
        return {str(name): Ended(**about) for name, about in read_json(file).items()}


def run_trials(experiment: Planned, *, resumed: bool = False, quiet: bool = False) -> list[Ended]:
    """Run the trials of an experiment side by side, as many as fit; returns how each ended, in their order.

    Ctrl-C (SIGTERM, SIGHUP) ends all that run with a checkpoint; called with `resumed`, they go on from there.

    Args:
        experiment: without an address it runs on the cluster that RAY_ADDRESS names, or else Ray is started here.
        resumed: leave out those that have ended well before, and go on with the others.

    Raises:
        ConfigError: a population of which some could not train beside the others.
        ResourceError: a trial that never fits.
        UserError: Ray cannot start.
        Unwritten: the disk is full, or the folder is gone.
        ExploitError: a member of a population lacks something of what it took over, or its own settings.
        KeyboardInterrupt: a second Ctrl-C.
    """
    trials, out, population, address, most = experiment
    if population is not None and (most or math.inf) < len(trials):
        raise ConfigError(
            f"The {len(trials)} members of a population wait for each other, so max_concurrent cannot be {most}. Leave it out: as "
            "many train at a time as CPUs suffice for (resources: {cpu: ...} says how many each takes)."
        )
    out.mkdir(parents=True, exist_ok=True)
    ended = {name: one for name, one in read_states(out).items() if one.state != "failed"} if resumed else {}
    left = [trial for trial in trials if trial.name not in ended]
    if left:
        _silence()
        with lock_folder(out), Board(len(trials), len(ended), quiet, str(out)) as board:
            alone = "A single run without workers (`raypid train --run ...`) needs no Ray, nor does `raypid tune`."
            backend = RayBackend(address, num_cores(), num_gpus(), without=alone)
            try:
                for note in backend.notes:
                    board.note(note)
                _check_fits(left, [node["Resources"] for node in ray.nodes() if node["Alive"]])
                _run_all(experiment._replace(trials=left), watch := _Watch(out, board, ended))
            finally:
                backend.shutdown()
                shutil.rmtree(out / _SCRATCH, ignore_errors=True)
        if watch.fatal is not None:
            if not (out / PLAN).exists():  # somebody has deleted the folder; the trials have saved into it
                write_plan(out, trials, population)
            raise watch.fatal
    unfinished = partial(Ended, state="unfinished", reason="", result={})
    return [ended.get(one.name) or unfinished(name=one.name, folder=str(one.folder)) for one in trials]


_SCRATCH = ".tune"
"""Where Tune writes what it needs while it runs; in the experiment's folder, which all nodes must see."""


def _run_all(experiment: Planned, watch: _Watch) -> None:
    """Let Tune run the trials.

    Raises:
        KeyboardInterrupt: a second Ctrl-C.
    """
    trials, out, population, _, most = experiment
    shutil.rmtree(out / _SCRATCH, ignore_errors=True)
    begun, evolution, shared = [_begun(trial, population) for trial in trials], None, {}
    if population is not None:
        seed, reached = trials[0].settings.get("seed"), max(steps for _, steps in begun)
        evolution = Evolution(population, reached // population.interval + 1, seed if isinstance(seed, int) else 0)
        shared = {"every": population.interval, "perturbed": tuple(population.perturb)}
    with signals_call(watch.on_signal):
        tune.run(
            carrying(RunTrainable, "Trial", **shared),
            name="trials",
            config={RUN: tune.grid_search([trial for trial, _ in begun])},
            scheduler=evolution,
            search_alg=None if evolution is None else Members(evolution),
            stop=watch,
            callbacks=[watch],
            storage_path=str((out / _SCRATCH).resolve()),
            # those of a population: one for each member in use, one before
            checkpoint_config=tune.CheckpointConfig(num_to_keep=3),
            max_concurrent_trials=most,
            reuse_actors=True,
            max_failures=MAX_LOST,
            raise_on_failed_trial=False,
            verbose=0,
            trial_dirname_creator=lambda trial: trial.trial_id,
        )


def _begun(trial: Trial, population: Population | None) -> tuple[Trial, int]:
    """A trial as its process gets it, and the environment steps that it has trained before.

    Its folder has a whole path, since the process may have another current folder; its settings are those that a population has given it.
    """
    folder, settings, steps = Path(trial.folder).absolute(), dict(trial.settings), 0
    if population is not None and (newest := latest(folder / "checkpoints")) is not None:
        saved = read_manifest(newest)
        settings |= {name: saved["config"][name] for name in population.perturb}
        steps = int(saved["counters"]["timesteps_total"])
    return replace(trial, folder=folder, settings=settings), steps


def _silence() -> None:
    """Keep Tune from printing, and from writing files of its own about trials."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # signals are ours
    for name in ("ray.tune", "ray.train"):  # of an error, too, the board tells
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _check_fits(trials: Sequence[Trial], nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse trials that would wait for ever.

    Raises:
        ResourceError: names the first of them, and what it needs.
    """
    for trial in trials:
        needed = reserved(trial.request(), trial.resources or {}).bundles
        if not _packs(needed, nodes):
            raise ResourceError(
                f"{trial.name} can never run: it takes {_total(needed)}, and Ray's nodes have {_total(nodes)}. "
                "Give it fewer workers (num_workers), or a part of a CPU for each (num_cpus_per_worker)."
            )


def _total(parts: Sequence[Mapping[str, float]]) -> str:
    """Such as "4 CPU and 1 GPU": of bundles or of nodes together."""
    totals = {name: sum(part.get(name, 0.0) for part in parts) for name in ("CPU", "GPU")}
    return " and ".join(f"{x:g} {name}" for name, x in totals.items() if x or name == "CPU")


def _packs(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether the bundles find places on empty nodes, the largest first."""
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda b: (-b.get("GPU", 0.0), -b.get("CPU", 0.0))):
        place = next((n for n in free if all(n.get(name, 0.0) >= x - 1e-9 for name, x in bundle.items())), None)
        if place is None:
            return False
        for name, x in bundle.items():
            place[name] -= x
    return True
