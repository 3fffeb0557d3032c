"""One run from start to end: folder, stop criteria, checkpoints, evaluation and progress."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from raypid import checkpoint
from raypid.changes import CHANGES, read_changes
from raypid.config import Config, ConfigError
from raypid.errors import Diverged, Halted, UserError, reason, shown
from raypid.neighbours import nothing_at
from raypid.outcome import Outcome as Outcome
from raypid.outcome import end_by
from raypid.outputs import (
    ERRORS,
    FIRST_ERRORS,
    OLDER_ERRORS,
    ErrorFile,
    Unwritten,
    check_folder_writable,
    explained,
    usable,
)
from raypid.ownership import why_unsigned
from raypid.phases import Phases, listening, parts_text, phase
from raypid.registry import ALGORITHMS
from raypid.reporting.logger import EXPLOITS, PARAMS, RESULTS, FolderLost, RunLogger, read_params
from raypid.reporting.panel import COUNTS, EVALUATION, Progress
from raypid.run.assembly import entry_name
from raypid.run.best import BestPolicy, return_text
from raypid.run.evaluation import Played
from raypid.run.known_keys import check_stop, known_keys
from raypid.run.known_return import films, remedies, shortfall
from raypid.run.post_mortem import DIVERGED
from raypid.run.training import Training, totals_of
from raypid.run_file import OPTIONS, PROGRAM
from raypid.runtime.handle import ClusterLost
from raypid.stops import STEPS

MIN_EPISODES = 20
"""Training episodes before a stop criterion on episode_reward_* counts."""
SAVE_SECONDS = 60.0
"""Seconds between checkpoints, unless an interval is given."""
FIRST_SAVE_SECONDS = 10.0
"""Seconds before the first checkpoint, so that a run that is killed early can be resumed too."""
RESCUE_S = 5.0
"""Seconds that a run which an error ends waits for the state of its workers."""
RESCUE_LEARNER_S = 60.0
"""Seconds that it waits for its learner, which may be in an update."""
HALT_S = 5.0
"""Seconds after the end of a run by time or by a signal when an iteration that waits for whole episodes is broken off."""
NO_END_STEPS = 2_000
"""Steps of each environment after which a run says that no episode has ended."""
BRIEFLY_S = 2.0
"""Seconds that a finished run waits for an evaluation that cannot change the outcome."""
STOP = "stop"
"""Key of the stop criteria in params.json."""
_RUN_FILES = (
    PARAMS, RESULTS, "checkpoints", "progress.csv", EXPLOITS, ERRORS, FIRST_ERRORS, OLDER_ERRORS, "learning_curve.png",
    DIVERGED, checkpoint.BEST, checkpoint.OLD_BEST,
)  # fmt: skip
"""What a run writes into its folder, besides its events and its lock."""


@dataclass(kw_only=True, slots=True)
class RunOptions:
    """What a run does besides training."""

    stop: Mapping[str, float] = field(default_factory=dict)
    """{result key: value}: the run ends when a key reaches its value."""
    checkpoint_interval: int = 0
    """Training iterations between checkpoints; 0: one per minute."""
    checkpoint_steps: int | None = None
    """Environment steps between checkpoints, instead of iterations; 0: only one at the end."""
    evaluation_steps: int = 0
    """Environment steps between evaluations; 0: as the agent's settings say."""
    evaluation_episodes: int | None = None
    """Episodes per evaluation; None: as the agent's settings say."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep. The best is kept too."""
    final_episodes: int = 50
    """Episodes that the best policy plays at the end, fewer if they would take longer than the run, or over a minute; 0: none."""
    plot: bool = True
    """Draw learning_curve.png at the end."""


def check_folder(out: Path, *, resume: bool, overwrite: bool, python: bool = False) -> None:
    """Check that a run may write to a folder: a folder with another run is not touched unless asked for.

    `python`: name what to do as arguments, not as flags.

    Raises:
        ConfigError: it holds a run (or none, for `resume`), is a file, or cannot be written to.
    """
    with usable(out, "The run's folder"):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file, not a folder.")
    if (out / ".lock").exists():
        with lock_folder(out):
            pass
    results = out / "result.json"  # empty if a run failed in its first iteration: nothing would be lost
    holds_run = (out / "checkpoints").exists() or (results.exists() and results.stat().st_size > 0)
    if holds_run and not (resume or overwrite):
        resuming, replacing, other = f"--resume {shlex.quote(str(out))}", "--overwrite", "--out"
        if python:
            resuming, replacing, other = f"raypid.train(resume={str(out)!r})", "overwrite=True", "out"
        raise ConfigError(
            f"{out} holds another run. Resume it ({resuming}), replace it ({replacing}), or choose another {other}."
        )
    if resume and not holds_run:
        raise ConfigError(f"{out} holds no run to resume." if out.exists() else nothing_at(out))
    check_folder_writable(out, "The run's folder")


@contextlib.contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Lock the folder for this process.

    Raises:
        ConfigError: a running process has locked it.
        Unwritten: the lock cannot be written.
    """
    path = out / ".lock"
    with explained(path):
        out.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file as lock:
        with contextlib.suppress(ModuleNotFoundError):  # systems without flock have no protection
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"Another run is writing to {out}. Stop it, or choose another --out.") from None
        yield
        with contextlib.suppress(OSError):  # a file took the folder's place, or it is read-only by now
            path.unlink(missing_ok=True)


def clear_folder(out: Path) -> None:
    """Remove the files of a run, and nothing else."""
    for path in [*(out / name for name in _RUN_FILES), *out.glob("events.out.tfevents.*")]:
        with explained(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _reported(key: str, result: Mapping[str, float]) -> float:
    """What a result has of a stop criterion; less than anything if it has nothing. on_iteration may add entries of any name."""
    return result.get(key, result.get(key.removeprefix("custom/"), -math.inf))


def further(stop: Mapping[str, float], reached: Mapping[str, float]) -> dict[str, float]:
    """Stop criteria by which a run that has reached one of these goes on, for about as long again. `reached`: its last result and its
    counts."""
    met = {key for key, goal in stop.items() if _reported(key, reached) >= goal}
    spent = met & COUNTS
    if not spent:  # it was a return, or another metric: it would end the run again
        size = 10 ** max(0, len(str(int(reached["timesteps_total"]))) - 2)
        return {"timesteps_total": -(-2 * int(reached["timesteps_total"]) // size) * size}
    longer = {key: goal for key, goal in stop.items() if key not in met - spent}
    for key in spent:
        longer[key] *= math.ceil(1.5 * reached[key] / stop[key])  # twice it, or more if the run went far beyond
    return {key: int(goal) if goal == int(goal) else goal for key, goal in longer.items()}


def going_on(config: Config, stop: Mapping[str, float], timesteps: int, *, python: bool) -> list[str]:
    """The arguments, or flags, by which a run goes on from `timesteps` to these stop criteria, and learns until then."""
    one: object = stop[STEPS] if stop.keys() == {STEPS} else dict(stop)
    words = [f"stop={one}" if python else f"--stop {shlex.quote(json.dumps(stop))}"] if stop else []
    steps = int(stop.get(STEPS, 2 * timesteps))
    if stop and config.ended(steps - 1, steps):
        words.append(f"schedule_steps={steps}" if python else f"--schedule-steps {steps}")
    return words


def quoted(command: str, folder: Path) -> str:
    """The command with the folder, as a shell takes it."""
    return f"{command} {shlex.quote(str(folder))}"


def _of_main(settings: Mapping[str, object]) -> list[str]:
    """The settings that name code of a script or of a notebook's cells, which no other process can import."""
    named = ("env", "evaluation_env", "callbacks", "intrinsic_reward", "agent")
    return [key for key in named if str(settings.get(key)).startswith("__main__:")]


def met(stop: Mapping[str, float], result: Mapping[str, float]) -> str:
    """The first stop criterion that a result has met, in words; "" if there is none."""
    for key, target in stop.items():
        value = _reported(key, result)
        if key.startswith("episode_reward") and result["episodes_total"] < MIN_EPISODES:
            continue
        if value >= target:
            return f"{key} reached {value:,.0f}" if float(value).is_integer() else f"{key} reached {value:,.6g}"
    return ""


def left_alone(
    folder: Path, config: Config, stop: Mapping[str, float], *, python: bool = False
) -> tuple[Outcome, str] | None:
    """Of a run that would go on by Ray and is at its stop already: how it ended, and what to say. None if there is something to do.

    Nothing is built for it: a Ray that starts takes seconds, and a cluster may be gone. (Without Ray the run is built, and finds out.)
    """
    if not config.on_ray or config.init_from is not None:
        return None
    totals: dict[str, float] = {}
    with contextlib.suppress(ValueError, KeyError, TypeError):  # whoever goes on says what is wrong with the checkpoint
        totals = totals_of(checkpoint.read_manifest(checkpoint.find(folder))["counters"])
    reached = met(stop, totals) if totals.get("training_iteration") else ""
    return _as_it_is(folder, config, stop, totals, reached, python=python) if reached else None


def _as_it_is(
    folder: Path, config: Config, stop: Mapping[str, float], totals: dict[str, float], reached: str, *, python: bool
) -> tuple[Outcome, str]:
    """How a run ended that is at its stop, and what to say of it."""
    words = going_on(config, further(stop, totals), int(totals[STEPS]), python=python)
    how = ", ".join(words) if python else " ".join([quoted("raypid train --resume", folder), *words])
    saved, best = checkpoint.latest(folder / "checkpoints"), BestPolicy(folder)
    if saved is not None:
        best.load()
    return (
        Outcome(reached, totals, folder, saved, False, best.final, best.score),
        f"The run is at its stop already ({reached}): nothing was trained, no setting was changed. With a higher one: {how}",
    )


def _is_stop(value: object) -> bool:
    """Whether it can be stop criteria."""
    return isinstance(value, dict) and all(isinstance(one, int | float) for one in value.values())


@contextlib.contextmanager
def signals_call(
    handler: Callable[[int, FrameType | None], None],
) -> Iterator[Mapping[int, Callable[[int, FrameType | None], object] | int | None]]:
    """Let Ctrl-C, SIGTERM and SIGHUP (but not under nohup) call `handler`, in the main thread; gives what they called before."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {int(number): signal.signal(number, handler) for number in numbers}
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


class Run:
    """Trains an agent until a stop criterion is met or Ctrl-C ends it. `folder` is the run's; by default the agent's."""

    def __init__(self, agent: Training, options: RunOptions, progress: Progress, folder: Path | None = None) -> None:
        self.agent, self.options, self.progress = agent, options, progress
        known = known_keys(agent.run, agent.config)
        self.stop = check_stop(options.stop, known)
        agent.end_schedules(self.stop.get(STEPS))
        self._may_be_absent = known.open
        """Beginnings of stop criteria of which nobody knows in advance whether they will be reported."""
        self.folder = folder or agent.default_out()
        self.best = BestPolicy(self.folder)
        self.result: dict[str, float] = {}
        """The last iteration's."""
        self.reason = ""
        """Why the run ends; "" while it goes on."""
        self._saved_at = time.monotonic()
        self._saved_iteration = -1
        self._periods = agent.timesteps // options.checkpoint_steps if options.checkpoint_steps else 0
        self._rollbacks = agent.rollbacks
        agent.on_rollback = self._tell_rollback
        agent.on_failed_hook = self._tell_failed_hook
        agent.tell_losses(progress.message)
        agent.halt_when(self._must_halt)
        agent.while_workers_are_lost(progress.message, self._is_over)
        self._turn_began = 0.0
        self._over_since = math.inf
        """When the iteration that is under way should have ended."""
        self._broke_off = False
        self._interrupts = 0
        self.ends_at_once_until = -math.inf
        """Until this time (monotonic) the first signal is what a second one is."""
        self._playing = False
        self._told_unwritten = self._told_endless = False
        self._told_cut = set[str]()
        self.phases = listening() or Phases()
        """What it does besides training, and since its command began if one has started it."""
        self.phases.tell = progress.working
        self.closes_agent = False
        """Close the agent at the end, before the summary says how long everything took."""
        self.python = self.notebook = False
        """Whether Python has started it, not the command line, and that in a notebook: for what messages say."""
        self._before = agent.totals()
        """The counts of the run that is resumed."""

    def __call__(self) -> Outcome:
        """Run to the end. The folder is complete whenever this returns or raises.

        One that goes on and has reached its end already is left as it is: a command that a machine repeats changes nothing.
        """
        if reached := self.reached():
            return self._left_alone(reached)
        self.begin()
        with self._failing(), self._interruptible():
            while not self.reason:
                self._turn()
            saved = self._close()
        return self._ended(saved)

    def begin(self) -> None:
        """Write the settings, and say what is going to happen. `advance` and `end` are for those who do not run it by one call."""
        agent, resumed = self.agent, self.agent.iteration
        options = self.options
        agent.plan_evaluations(self.stop.get(EVALUATION), options.evaluation_steps, options.evaluation_episodes)
        agent.errors.folder = self.folder
        last = int(self.stop.get(STEPS, agent.timesteps + 1)) - 1
        if told := agent.config.ended(last, agent.run_end):
            agent.notes.append(told)
        if resumed:
            self.best.load()
            self._note_stop()
        progress = self.progress
        self._logger = RunLogger(self.folder, resume_iteration=resumed or None, tell=progress.message)
        self._logger.write_params(self._params())
        self.reason = self.reached()
        progress.start(agent.plain_config() | self._about())
        notes, agent.notes = agent.notes, []
        for note in notes:
            progress.note(note)
        if not resumed and (adapted := agent.explain().adapted()):
            progress.note(f"Adapted: {adapted} ({'agent.explain()' if self.python else '--explain'} says why).")
        if why := why_unsigned():
            progress.message(f"This run is not signed as yours ({why}): see RAYPID_DATA in SECURITY.md.")
        if agent.warm_up_steps:
            steps, most = agent.warm_up_steps, agent.longest_warm_up
            longer = f" (up to {most:,} until an episode has ended)" if most > steps else ""
            progress.note(f"Warm-up: {steps:,} steps with random actions{longer}, then learning starts.")
        with self._failing():
            agent.start_hooks(self._params() | {"folder": str(self.folder)})

    def reached(self) -> str:
        """The stop criterion that the agent has met before the run begins; "" if there is none."""
        return self._reason(self.agent.totals()) if self.agent.iteration else ""

    def _left_alone(self, reached: str) -> Outcome:
        """Say that there is nothing to do. Nothing is written."""
        agent = self.agent
        outcome, said = _as_it_is(self.folder, agent.config, self.stop, agent.totals(), reached, python=self.python)
        self.progress.note(said)
        self.agent.detach()
        if self.closes_agent:
            self.agent.close()
        return outcome

    def _about(self) -> dict[str, object]:
        """What the progress shows of the run besides its settings."""
        agent = self.agent
        return {
            "algorithm": agent.run,
            "backend": agent.backend.name,
            "folder": str(self.folder),
            "shown_metrics": ALGORITHMS.get(agent.run).shown_metrics,
            "warm_up_steps": agent.warm_up_steps,
        }

    def advance(self, seconds: float, steps: float = math.inf) -> dict[str, float]:
        """Train for at least `seconds`, or up to an environment step, or until there is a `reason` to end; returns the last result."""
        until = time.monotonic() + seconds
        with self._failing():
            while not self.reason:
                self._turn()
                if time.monotonic() >= until or self.agent.timesteps >= steps:
                    break
        return self.result

    def end(self, reason: str = "", *, play: bool = True) -> Outcome:
        """Save, and play the final episodes if `play`; `reason` says why, where the run has none of its own."""
        self.reason = self.reason or reason
        with self._failing():
            saved = self._close(play)
        return self._ended(saved)

    def save(self) -> None:
        """Write a checkpoint now."""
        with self._failing():
            self._save(self.result)

    def leave(self) -> None:
        """Close the files as they are."""
        self._logger.close()
        self.agent.detach()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Before an error ends the run, save what was learnt, write the error to the folder, and close the files."""
        try:
            with self.phases.heard():
                yield
        except BaseException as error:
            try:
                if isinstance(error, Exception) and self._interrupts <= 1:
                    self._renew_record(self.result)
                    unwritten = self._write_error(error)
                    rescued = "" if isinstance(error, Diverged) else self._rescue(error)  # it says itself what there is
                    error.saved = " ".join(filter(None, [rescued, unwritten]))  # type: ignore[attr-defined]  # the command line says it too
                elif not isinstance(error, Exception):
                    error.saved = self._left_at_once()  # type: ignore[attr-defined]
                self.progress.stop(self._failure(error))
                self.agent.end_hooks(
                    self._outcome(end_by(error), checkpoint.latest(self.folder / "checkpoints"), error)
                )
                if isinstance(error, Exception) and self._interrupts > 1:
                    at_once = KeyboardInterrupt()
                    at_once.saved = self._left_at_once()  # type: ignore[attr-defined]
                    raise at_once from error  # what it broke off said something of its own
            finally:
                self.leave()
            raise

    def _failure(self, error: BaseException) -> list[tuple[str, str]]:
        """The summary of a run that an error ended. In a notebook it stands above the error; a command prints that itself."""
        where = [("folder", str(self.folder))]
        if not self.notebook:
            return where
        errors = self.folder / ERRORS
        return [("ended", end_by(error)), *where, *([("traceback", str(errors))] if errors.is_file() else [])]

    def _turn(self) -> None:
        """One iteration: train, evaluate, log, save where that is due."""
        agent = self.agent
        self._turn_began = time.monotonic()
        try:
            with phase("training", ""):
                self.result = result = agent.train()
            if not isinstance(result, dict):
                raise UserError(
                    f"{type(agent).__name__}.train() returned {shown(result)}; it returns the result of an iteration, as super().train() does."
                )
        except Halted as halt:
            self.reason = self._halt(str(halt))
            return
        if agent.rollbacks > self._rollbacks:
            self._rewind()
        self.reason = self._reason(result)
        self._tell_absent(result)
        self._tell_endless(result)
        self._tell_flaws()
        if (played := agent.last_evaluation) is not None and EVALUATION in result:
            self.best.offer(played, agent)
        if self.reason and self._last_evaluation(result):
            self.reason = self._reason(result) or self.reason
        self._log(result)
        if self.reason:
            self._logger.check()
        self.progress.update(result)
        if not self.reason and self._save_is_due():
            self._save(result)

    def _close(self, play: bool = True) -> Path | None:
        """Save, and play the final episodes; returns the checkpoint."""
        saved = self._finish(self.result)
        if play and saved is not None and not self._interrupts and not self._broke_off:
            self._play_final()
        self._logger.close()
        return saved

    def _ended(self, saved: Path | None) -> Outcome:
        outcome = self._outcome(self.reason, saved or checkpoint.latest(self.folder / "checkpoints"))
        try:
            with self.phases.heard():
                self.agent.end_hooks(outcome)  # before the agent is closed, which would tell of another end
                if self.closes_agent:
                    self.agent.close()
        finally:
            self.progress.stop(self._summary(self.result, self.reason, saved))
            self.agent.detach()
        return outcome

    def _outcome(self, reason: str, saved: Path | None, error: BaseException | None = None) -> Outcome:
        result = self.result or self.agent.totals()  # a run that is resumed at its end has no iteration of its own
        best = self.best
        return Outcome(reason, result, self.folder, saved, self._interrupts > 0, best.final, best.score, error)

    def _params(self) -> dict[str, object]:
        """What params.json has: settings in force, algorithm, end, what is saved when as far as it was said, and what has changed."""
        plain, default = RunOptions(), self.options
        options = {name: value for name in OPTIONS if (value := getattr(default, name)) != getattr(plain, name)}
        changes = {CHANGES: self.agent.changes} if self.agent.changes else {}
        program = {PROGRAM: self.agent.program} if self.agent.has_own_program else {}
        return self.agent.plain_config() | {"run": self.agent.run, "stop": self.stop} | program | options | changes

    def _note_stop(self) -> None:
        """Write down that a run that goes on has another end than before, and keep what params.json says of earlier ones: that of the
        folder that it goes on from, which may be another one."""
        agent = self.agent
        with contextlib.suppress(UserError, ValueError):  # no file, or a damaged one: it is written anew
            params = read_params(self.folder) or read_params(agent.went_on_from or self.folder)
            before = [c for c in read_changes(params.get(CHANGES)) if c["key"] == STOP and c["step"] <= agent.timesteps]
            ends = [c for c in before if c not in agent.changes and _is_stop(c["from"]) and _is_stop(c["to"])]
            agent.changes = sorted([*agent.changes, *ends], key=lambda change: change["step"])
            if _is_stop(params.get(STOP)) and params[STOP] != self.stop:
                agent.note_change(STOP, params[STOP], dict(self.stop))

    def _renew_record(self, result: Mapping[str, float]) -> None:
        """If the run's folder was deleted, write settings and the last result anew, so that it holds a run that ended."""
        if (self.folder / RESULTS).exists() or (self.folder / PARAMS).exists():
            return  # it is there, or another run's has taken its place
        with contextlib.suppress(Unwritten, FolderLost), RunLogger(self.folder, tell=lambda text: None) as logger:
            logger.write_params(self._params())
            if result:
                logger.log(result)

    def _log(self, result: Mapping[str, float]) -> None:
        try:
            self._logger.log(result)
        except Unwritten:
            self.agent.iteration -= 1  # without a result; a run that goes on from here has it again
            raise

    def _errors(self) -> ErrorFile:
        """Where this run's own errors are written; those of its roles are written by the agent."""
        return ErrorFile(self.folder, self.agent.errors.where)

    def _write_error(self, error: Exception) -> str:
        """Write the error that ended the run to its folder, with the worker's own traceback if there is one; returns why it could
        not be, unless the error itself is of that kind."""
        text = getattr(error, "worker_traceback", "") or "".join(traceback.format_exception(error))
        errors = self._errors()
        errors.add(f"The run ended in iteration {self.agent.iteration + 1}:\n{text.rstrip()}\n\n")
        return "" if isinstance(error, Unwritten) else errors.unwritten

    def _rescue(self, ending: Exception) -> str:
        """Save what was learnt before the error `ending` ends the run; returns what was saved and how to go on."""
        parent, is_saved = self.folder / "checkpoints", False
        try:
            patience_s = RESCUE_S if isinstance(ending, ClusterLost) else RESCUE_LEARNER_S
            self.agent.fall_back(patience_s)
            why = self.agent.unsaved_reason(patience_s)
            if not why and not self._is_newest(checkpoint.latest(parent)):
                self._save({}, patience_s=RESCUE_S)
                is_saved = True
        except Exception as error:
            why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            known = why in str(ending) or (isinstance(error, Unwritten) and isinstance(ending, Unwritten))
            why = "" if known else why
        newest = checkpoint.latest(parent)
        if not is_saved or newest is None:
            lost = self._lost_since(newest)
            begin = "Nothing was saved" if why or lost or newest is None else "All finished iterations are saved"
            parts = "; ".join(filter(None, [why, lost, self._goes_on_from(newest)]))
            return f"{begin}: {parts}." if parts else f"{begin}."
        saved = f"Saved: {newest.name} and {checkpoint.BEST}/ in {self.folder}; {self._goes_on()}."
        if gone_back := self.agent.gone_back:
            self._errors().add(f"{gone_back}\n\n")
        return f"{saved} {gone_back}".strip()

    def _goes_on(self) -> str:
        own = self.agent.has_own_program
        how = f"restore({str(self.folder)!r})" if own else self._resuming({})
        return f"`{how}` goes on"

    def _goes_on_from(self, newest: Path | None) -> str:
        return "" if newest is None else f"{self._goes_on()} from {newest.name}"

    def _lost_since(self, newest: Path | None) -> str:
        """Say which iterations are lost if the run goes on from its newest checkpoint; "" if none is."""
        first = 1 if newest is None else int(newest.name.rpartition("_")[2]) + 1
        last = max(self.agent.iteration, int(self.result.get("training_iteration", 0)))
        if last < first:
            return ""
        return f"iteration {first} is lost" if first == last else f"iterations {first:,} to {last:,} are lost"

    def _left_at_once(self) -> str:
        """What a run that was ended at once leaves: its newest checkpoint, and what that lacks."""
        newest = checkpoint.latest(self.folder / "checkpoints")
        lost = self._lost_since(newest)
        if newest is None:
            return f"There is no checkpoint: {lost}." if lost else ""
        return f"{lost.capitalize()}; {self._goes_on_from(newest)}." if lost else f"{self._goes_on_from(newest)}."

    def _has_fallen_back(self) -> bool:
        """After an iteration was broken off: go back to what there is, if learners are lost; returns whether it is to be saved."""
        try:
            self.agent.fall_back(RESCUE_LEARNER_S)
        except Halted:
            return False
        return not self._is_newest(checkpoint.latest(self.folder / "checkpoints"))

    def _tell_gone_back(self) -> None:
        """Say what is not of the newest state in what was saved."""
        if gone_back := self.agent.gone_back:
            self._errors().add(f"{gone_back}\n\n")
            self.progress.message(gone_back)

    def _is_newest(self, saved: Path | None) -> bool:
        """Whether a checkpoint is as new as what the agent has gone back to, if it has."""
        if saved is None or not self.agent.gone_back:
            return False
        return int(saved.name.rpartition("_")[2]) >= self.agent.iteration

    # -- turns -----------------------------------------------------------------------------------------------------

    def _rewind(self) -> None:
        """Drop the results since the checkpoint that a rollback went to, as a resumed run does."""
        self._rollbacks = self.agent.rollbacks
        self._logger.close()
        self._logger = RunLogger(self.folder, resume_iteration=self.agent.iteration - 1, tell=self.progress.message)
        self._logger.write_params(self._params())

    def _tell_rollback(self) -> None:
        """Say that the run diverged and went back."""
        agent = self.agent
        rates = " and ".join(f"{n} {x * 0.5**agent.rollbacks:.3g}" for n, x in agent.config.learning_rates().items())
        self.progress.message(
            f"Training diverged: rollback {agent.rollbacks} of {agent.config.max_rollbacks}, to iteration {agent.iteration} with {rates}."
        )

    def _tell_failed_hook(self, hook: str, error: Exception) -> None:
        """Say that a hook raised where nothing is lost by it, and write its traceback to the run's folder."""
        errors = self._errors()
        errors.add(f"{hook} of the callbacks raised:\n{''.join(traceback.format_exception(error)).rstrip()}\n\n")
        where = errors.unwritten or "errors.txt has the traceback."
        self.progress.message(f"{hook} of the callbacks raised {type(error).__name__}: {reason(error)}. {where}")

    def _reason(self, result: Mapping[str, float]) -> str:
        """Why the run ends; "" if it goes on."""
        if self._interrupts:
            return "interrupted"
        return met(self.stop, result)

    def _must_halt(self) -> bool:
        """Whether the iteration goes on though the run should have ended HALT_S seconds ago."""
        now = time.monotonic()
        if self._is_over():
            self._over_since = min(self._over_since, now)
        return now - self._over_since >= HALT_S

    def _is_over(self) -> bool:
        """Whether the run should end now, whatever the iteration under way says."""
        spent_s = self.agent.time_total_s + time.monotonic() - self._turn_began
        return self._interrupts > 0 or spent_s >= self.stop.get("time_total_s", math.inf)

    def _halt(self, why: str) -> str:
        """Say that an iteration was broken off, and `why` unless it waited for whole episodes; returns why the run ends."""
        self._broke_off, agent = True, self.agent
        self.progress.message(
            why
            or f"Iteration {agent.iteration + 1} did not end in time and was dropped: {agent.run} learns from whole episodes. If those of "
            f"{entry_name(agent.config.env)} do not end, set time_limit."
        )
        return "interrupted" if self._interrupts else f"time_total_s reached {agent.time_total_s:.6g}"

    def _tell_absent(self, result: Mapping[str, float]) -> None:
        """Once episodes have ended and something was learnt, name stop criteria that no result has. Says so once."""
        if not (self._may_be_absent and result["episodes_total"] and result["learner_updates_total"]):
            return
        for key in self.stop:
            if key.startswith(self._may_be_absent) and not {key, key.removeprefix("custom/")} & result.keys():
                self.progress.message(
                    f"Nothing has reported the stop criterion {key} so far, though {result['episodes_total']} episodes have ended."
                )
        self._may_be_absent = ()

    def _num_streams(self) -> int:
        """Environments of all workers."""
        return self.agent.config.num_envs_per_worker * max(1, self.agent.config.num_workers)

    def _tell_endless(self, result: Mapping[str, float]) -> None:
        """Say once that no episode has ended, which returns and evaluations wait for."""
        config = self.agent.config
        if self._told_endless or result["timesteps_total"] < NO_END_STEPS * self._num_streams():
            return
        self._told_endless = True
        if not result["episodes_total"] and (config.time_limit or 0) < NO_END_STEPS:
            self.progress.message(
                f"No episode of {entry_name(config.env)} has ended in {NO_END_STEPS:,} steps of each environment. Training goes on; returns and "
                "evaluations wait for an end: if there is none, set time_limit, such as 1000."
            )

    def _tell_flaws(self) -> None:
        """Say once for each cause that evaluation episodes were cut, and once that tracebacks could not be kept."""
        for cause, text in self.agent.cut_episodes.items():
            if cause not in self._told_cut:
                self._told_cut.add(cause)
                self.progress.message(text)
        if not self._told_unwritten and (text := self.agent.errors.unwritten):
            self._told_unwritten = True
            self.progress.message(f"{text} Training goes on; tracebacks are missing there.")

    def _play_final(self) -> None:
        """Play the final episodes, and say if environments raised in them: no result follows that would count it."""
        self._playing, before = True, self.agent.num_crashes
        run_s = self.agent.time_total_s - self._before["time_total_s"]
        self.best.play(self.agent, self.options.final_episodes, run_s, self._is_interrupted, self.progress.message)
        self._tell_flaws()
        if num := self.agent.num_crashes - before:
            self.progress.message(
                f"Environments raised {num} times in the final episodes and were rebuilt (errors.txt has it)."
            )

    def _last_evaluation(self, result: dict[str, float]) -> bool:
        """As a run ends, add the running evaluation to its last result, or better one of the newest weights; returns if there is one."""
        if self._interrupts or EVALUATION in result:
            return False
        decides = self.best.score is None or EVALUATION in self.stop
        patience_s = math.inf if decides else BRIEFLY_S
        self._add_evaluation(result, self.agent.finish_evaluation(patience_s, self._is_interrupted))
        if self._owes_evaluation() and not self._interrupts:
            self._add_evaluation(result, self.agent.evaluate_newest(self._is_interrupted))
        return EVALUATION in result

    def _add_evaluation(self, result: dict[str, float], played: Played | None) -> None:
        if played is not None:
            result |= {f"evaluation/{k}": v for k, v in played.summary().items()}
            result["lost/env_crashes"] = self.agent.num_crashes
            self.best.offer(played, self.agent)

    def _owes_evaluation(self) -> bool:
        """Whether a run that ends evaluates its newest weights: if it has no evaluation yet, or if one takes at most a tenth of its time."""
        last = self.agent.last_evaluation
        if self.agent.config.evaluation_interval is not None or not self.agent.lengths:
            return False
        if last is None:
            return self.best.score is None
        older = last.timesteps < self.agent.timesteps
        return older and last.evaluation.seconds < 0.1 * self.agent.time_total_s

    def _is_interrupted(self) -> bool:
        return self._interrupts > 0

    def _save_is_due(self) -> bool:
        if (every := self.options.checkpoint_steps) is not None:
            periods, self._periods = self._periods, self.agent.timesteps // every if every else 0
            return self._periods > periods
        if self.options.checkpoint_interval:
            return self.agent.iteration % self.options.checkpoint_interval == 0
        wait_s = SAVE_SECONDS if self._saved_iteration >= 0 else FIRST_SAVE_SECONDS
        return time.monotonic() - self._saved_at > wait_s

    def _save(self, result: Mapping[str, float], *, patience_s: float | None = None) -> None:
        agent, parent = self.agent, self.folder / "checkpoints"
        # an evaluator in its own process scores earlier weights than those of this checkpoint
        same_weights = result.get("evaluation/timesteps_total") == agent.timesteps
        agent.save(parent, score=result.get(EVALUATION) if same_weights else None, patience_s=patience_s)
        self.best.write(agent)
        checkpoint.prune(parent, self.options.keep_checkpoints)
        self._saved_at, self._saved_iteration = time.monotonic(), agent.iteration

    def _finish(self, result: Mapping[str, float]) -> Path | None:
        if not result:
            return None
        if self._broke_off and not self._has_fallen_back():
            return checkpoint.latest(self.folder / "checkpoints")
        if self._saved_iteration != self.agent.iteration:
            self._save(result, patience_s=RESCUE_S if self._broke_off else None)
        self._tell_gone_back()
        if self.options.plot:
            from raypid.reporting.plots import learning_curve

            try:
                with phase("drawing", "drawing learning_curve.png"):
                    learning_curve([self.folder], self.folder / "learning_curve.png")
            except (ValueError, Unwritten) as error:
                if self.agent.lengths:  # otherwise no episode has ended: nothing to draw
                    self.progress.message(f"No learning curve: {error}")
        return self.folder / "checkpoints" / checkpoint.checkpoint_name(self.agent.iteration)

    # -- progress --------------------------------------------------------------------------------------------------

    def _summary(self, result: Mapping[str, float], reason: str, saved: Path | None) -> list[tuple[str, str]]:
        lines = [("ended", reason)]
        if self.agent.rewards:
            count = len(self.agent.rewards)
            mean = f"{return_text(sum(self.agent.rewards) / count)} (mean of the last {count} episodes)"
            lines.append(("training return", mean))
        elif result:
            lines.append(("training return", "no episode has ended yet"))
        lines.append(("best policy", self._best_line()))
        lines += self._below_known(reason)
        lines += self._effort()
        lines.append(("folder", str(self.folder)))
        commands = self._next(reason) if saved is not None else []
        return lines + [("next" if i == 0 else "", command) for i, command in enumerate(commands)]

    def _best_line(self) -> str:
        if self.best.score is not None:
            return self.best.line()
        if self.agent.config.evaluation_interval == 0:
            return "none: nothing was evaluated (evaluation_interval is 0)"
        if not self.agent.num_episodes:
            steps = self.agent.timesteps // self._num_streams()
            return f"none: no episode has ended within {steps:,} steps of each environment, so none was evaluated"
        return "none: the run ended before an evaluation did"

    def _below_known(self, reason: str) -> list[tuple[str, str]]:
        """What to try if the run used up its budget and its best policy stays well below the known return."""
        agent, best = self.agent, self.best
        if agent.program or best.score is None or not any(reason.startswith(f"{key} reached") for key in COUNTS):
            return []
        reached = best.score if best.final is None else best.final["episode_reward_mean"]
        known = shortfall(agent.plain_config(), reached, agent.timesteps)
        if known is None:
            return []
        tried = remedies(agent.run, agent.plain_config(), known.value, python=self._speaks_python())
        lines = [line for one in tried for line in (f"{one.why}:", one.command)]
        doctor = f"{'!' * self.notebook}{quoted('raypid doctor', self.folder)}"
        return [
            ("solved at", f"{known.value:g} ({known.source}); this run reached {return_text(reached)}"),
            *(("try" if i == 0 else "", line) for i, line in enumerate([*lines, doctor])),
        ]

    def _next(self, reason: str) -> list[str]:
        """Commands for what may come next. Each does something."""
        reached = {**self.result, **self.agent.totals()}
        stop = further(self.stop, reached) if reason.partition(" reached ")[1] else {}
        command = quoted("raypid eval", self.folder)
        if self._speaks_python():
            command = f"raypid.load_policy({str(self.folder)!r})"
        elif films(self.agent.config.env):
            command = f"{command} --video {shlex.quote(str(self.folder / 'video.mp4'))}"
        return [command, *([] if self.agent.has_own_program else [self._resuming(stop)])]

    def _speaks_python(self) -> bool:
        """Whether what comes next is a line of Python: in a notebook, and where no command can import what the run needs."""
        return self.notebook or bool(_of_main(self.agent.plain_config()))

    def _resuming(self, stop: Mapping[str, float]) -> str:
        """The command, or the call, that goes on with this run, to later stop criteria if `stop` has any."""
        settings, python = self.agent.plain_config(), self._speaks_python()
        words = going_on(self.agent.config, stop, self.agent.timesteps, python=python)
        if not python:
            return " ".join([quoted("raypid train --resume", self.folder), *words])
        given = [f"{key}={str(settings[key]).partition(':')[2]}" for key in _of_main(settings)]
        return f"raypid.train(resume={', '.join([repr(str(self.folder)), *given, *words])})"

    def _effort(self) -> list[tuple[str, str]]:
        """Steps and seconds, and what the seconds were spent on."""
        steps, total, seconds = self.agent.timesteps, self.phases.total, self.phases.seconds
        now = steps - int(self._before["timesteps_total"])
        new = f", {now:,} of them now," if now < steps else ""
        training = seconds.get("training", 0.0)
        text = f"{steps:,}{new} in {training:,.{1 if training >= 1 else 2}f} s of training"
        counted = self.agent.time_total_s - self._before["time_total_s"]
        if round(counted - training, 1) >= 0.1:  # what the column `time` and result.json have
            text += f", {counted:,.1f} s with evaluation"
        return [("steps", text), ("took", parts_text(total, seconds, always="training"))]

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """End the run on a signal: after this iteration and with a checkpoint, or at once on a second one; a third is not ours."""
        owner = os.getpid()

        def on_signal(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a process of an environment, forked with this handler: its owner ends it
                if number == signal.SIGTERM:
                    raise SystemExit
                return
            self._interrupts += 1
            if time.monotonic() < self.ends_at_once_until:
                self._interrupts += 1
            if self._interrupts > 2 and callable(outer := before[number]):
                outer(
                    number, frame
                )  # impatience with what the second one set going: the command line's ends the process
            if self._interrupts > 1:
                raise KeyboardInterrupt
            again = "Interrupting again" if self.notebook else "Ctrl-C again"
            without = "" if self._playing else ", without a checkpoint"
            ends = "now" if self._playing else "after this iteration, with a checkpoint"
            self.progress.message(f"Stopping {ends}. {again} stops at once{without}.")

        with signals_call(on_signal) as before:
            yield
