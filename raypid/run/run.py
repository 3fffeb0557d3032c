"""One run from start to end: `Run` trains an agent, and writes and shows what comes of it."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raypid.errors import ConfigError, Diverged, Halted, UserError, reason, shown
from raypid.outcome import Outcome, end_by
from raypid.phases import phase
from raypid.plugins.modules import entry_name
from raypid.report.logger import FolderLost, RunLogger, read_params
from raypid.report.panel import Progress
from raypid.run.best import BestPolicy
from raypid.run.evaluation import Played
from raypid.run.events import Listener
from raypid.run.folder import clear_folder, lock_folder
from raypid.run.known_keys import check_stop, known_keys
from raypid.run.remarks import Remarks, iteration_of
from raypid.run.signals import Interrupts
from raypid.run.stopping import as_it_is, met
from raypid.run.training import Training
from raypid.runtime.handle import ClusterLost
from raypid.settings.files import OPTIONS, PROGRAM
from raypid.settings.stops import STEPS
from raypid.storage import checkpoint
from raypid.storage.changes import CHANGES
from raypid.storage.outputs import ERRORS, Unwritten
from raypid.storage.run_folder import EVALUATION, PARAMS, RESULTS

SAVE_SECONDS = 60.0
"""Seconds between checkpoints, unless an interval is given."""
FIRST_SAVE_SECONDS = 10.0
"""Seconds before the first checkpoint, so that a run that is killed early can be resumed too."""
RESCUE_S = 5.0
"""Seconds that a run which an error ends waits for the state of its workers."""
RESCUE_LEARNER_S = 60.0
"""Seconds that it waits for its learner, which may be in an update."""
BRIEFLY_S = 2.0
"""Seconds that a finished run waits for an evaluation that cannot change the outcome."""


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
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep. The best is kept too."""
    final_episodes: int = 50
    """Episodes that the best policy plays at the end, fewer if they would take longer than the run, or over a minute; 0: none."""
    plot: bool = True
    """Draw learning_curve.png at the end."""
    python: bool = False
    """Python has started the run, not the command line: for what messages say."""
    overwrite: bool = False
    """Remove what another run has left in the folder."""
    closes_agent: bool = False
    """Close the agent at the end, before the summary says how long everything took."""

    def __post_init__(self) -> None:
        """Check the counts.

        Raises:
            ConfigError: one is not a whole number, or too small.
        """
        for name, low in OPTIONS.items():
            count: object = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or not low <= count < 2**63:
                raise ConfigError(f"{name} takes a whole number of at least {low}, not {shown(count)}.")


class Run(Listener):
    """Trains an agent until a stop criterion is met or Ctrl-C ends it, and writes the run's folder: by default the agent's."""

    def __init__(self, agent: Training, options: RunOptions, progress: Progress, folder: Path | None = None) -> None:
        self.agent, self.options, self.progress = agent, options, progress
        known = known_keys(agent.run, agent.config)
        self.stop = check_stop(options.stop, known)
        agent.end_schedules(self.stop.get(STEPS))
        self.folder = folder or agent.default_out()
        self.best = BestPolicy(self.folder)
        self.result: dict[str, float] = {}
        """The last iteration's."""
        self.reason = ""
        """Why the run ends; "" while it goes on."""
        self.remarks = Remarks(agent, progress, self.stop, known.open, self.best, options.python)
        again = "Interrupting again" if self.remarks.notebook else "Ctrl-C again"
        self.interrupts = Interrupts(lambda: agent.request_stop("interrupted"), progress.message, again, options.python)
        self._saved_at, self._saved_iteration = time.monotonic(), -1
        """When the newest checkpoint of this run was written, or the run began; its iteration."""
        self._save_periods = agent.timesteps // (options.checkpoint_steps or sys.maxsize)
        self.has_begun = self._broke_off = False

    def __call__(self) -> Outcome:
        """Run to the end. The folder is complete whenever this returns or raises.

        One that goes on and has reached its end already is left as it is: a command that a machine repeats changes nothing.
        """
        agent, python = self.agent, self.options.python
        if (done := as_it_is(self.folder, agent.config, self.stop, agent.totals(), python=python)) is not None:
            self.progress.note(done[1])
            return done[0]
        with lock_folder(self.folder):
            if self.options.overwrite:
                clear_folder(self.folder)
            self.begin()
            with self._failing(), self.interrupts.heard():
                while not self.reason:
                    self._turn()
                saved = self._close()
            return self._ended(saved)

    def _turn(self) -> None:
        """One iteration: train, evaluate, log, show, and save if it is due."""
        agent = self.agent
        try:
            with phase("training", ""):
                self.result = result = agent.train()
        except Halted as halt:
            self._halt(str(halt))
            return
        if not isinstance(result, dict):
            raise UserError(f"{type(agent).__name__}.train() returned {shown(result)}; it must return a result.")
        self.reason = self._reason(result)
        self.remarks.look_at(result)
        if self.reason and self._last_evaluation(result):
            self.reason = self._reason(result) or self.reason
        self._log(result)
        self.progress.update(result)
        if not self.reason and (self._is_save_due() or agent.control.save):
            self.write_checkpoint(result)

    # -- for those who do not run it by one call ---------------------------------------------------------------------

    def begin(self) -> None:
        """Write the settings, and say what is going to happen."""
        agent, resumed = self.agent, self.agent.iteration
        self.has_begun = True
        agent.use_folder(self.folder)
        agent.evaluations.plan(in_run=True, goal=self.stop.get(EVALUATION), every_steps=self.options.evaluation_steps)
        agent.control.reset(in_run=True, time_s=self.stop.get("time_total_s", math.inf))
        self._end_listening = agent.listen(self)
        if resumed:
            self.best.load()
            self._note_stop()
        self._logger = self._open_files(resumed or None)
        self.reason = met(self.stop, agent.totals()) if resumed else ""
        self.remarks.begin(resumed > 0)
        with self._failing():
            agent.events.start(self._params() | {"folder": str(self.folder)})

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
            self.write_checkpoint(self.result)

    def leave(self) -> None:
        """Close the files as they are, and let `train` be on its own again."""
        self._logger.close()
        self._end_listening()
        self.agent.control.reset()
        self.agent.evaluations.plan()

    # -- what training tells ---------------------------------------------------------------------------------------------

    def on_lost(self, text: str) -> None:
        self.progress.message(text)

    def on_rollback(self, iteration: int, text: str) -> None:
        """Drop the results after the checkpoint that training went back to, as a resumed run does."""
        self.progress.message(text)
        self._logger.close()
        self._logger = self._open_files(iteration)

    def on_evaluation(self, played: Played) -> None:
        self.best.offer(played, self.agent)

    def on_failed(self, hook: str, error: Exception) -> bool:
        """Say that a hook raised where nothing is lost by it, and write its traceback to the run's folder."""
        text = "".join(traceback.format_exception(error)).rstrip()
        where = self.agent.errors.add(f"{hook} raised:\n{text}\n\n") or "errors.txt has the traceback."
        self.progress.message(f"{hook} raised {type(error).__name__}: {reason(error)}. {where}")
        return True

    # -- its end ---------------------------------------------------------------------------------------------------------

    def _reason(self, result: Mapping[str, float]) -> str:
        """Why the run ends; "" if it goes on."""
        return self.agent.control.stop_reason or met(self.stop, result)

    def _halt(self, why: str) -> None:
        """End the run, whose iteration was broken off, and say `why` unless it waited for whole episodes."""
        self._broke_off, agent = True, self.agent
        self.reason = agent.control.stop_reason or f"time_total_s reached {agent.time_total_s:.6g}"
        dropped = f"Iteration {agent.iteration + 1} did not end in time and was dropped: {agent.run} learns from whole episodes."
        self.progress.message(why or f"{dropped} If those of {entry_name(agent.config.env)} never end, set time_limit.")

    def _close(self, play: bool = True) -> Path | None:
        """Save, and play the final episodes; returns the checkpoint."""
        saved = self._finish(self.result)
        if play and saved is not None and not self.interrupts.number and not self._broke_off:
            self._play_final()
        self._logger.close()
        return saved

    def _finish(self, result: Mapping[str, float]) -> Path | None:
        if not result:
            return None
        if self._broke_off and not self._falls_back():
            return self.newest
        if self._saved_iteration != self.agent.iteration:
            self.write_checkpoint(result, patience_s=RESCUE_S if self._broke_off else None)
        if gone_back := self._note_gone_back():
            self.progress.message(gone_back)
        if self.options.plot:
            from raypid.report.plots import learning_curve

            try:
                with phase("drawing", "drawing learning_curve.png"):
                    learning_curve([self.folder], self.folder / "learning_curve.png")
            except (ValueError, Unwritten) as error:
                if self.agent.lengths:  # otherwise no episode has ended: nothing to draw
                    self.progress.message(f"No learning curve: {error}")
        return self.folder / "checkpoints" / checkpoint.checkpoint_name(self.agent.iteration)

    def _play_final(self) -> None:
        """Play the final episodes, and say if environments raised in them: no result follows that would count it."""
        self.interrupts.is_saved, before = True, self.agent.num_crashes
        run_s = self.agent.time_total_s - self.remarks.before["time_total_s"]
        self.best.play(self.agent, self.options.final_episodes, run_s, self.interrupts.any, self.progress.message)
        self.remarks.flaws()
        if num := self.agent.num_crashes - before:
            self.progress.message(f"Environments raised {num} times in the final episodes (errors.txt has it).")

    def _ended(self, saved: Path | None) -> Outcome:
        outcome = self._outcome(self.reason, saved or self.newest)
        try:
            with self.remarks.phases.heard():
                self.agent.events.end(outcome)  # before the agent is closed, which would tell of another end
                if self.options.closes_agent:
                    self.agent.close()
        finally:
            self.progress.stop(self.remarks.summary(self.result, self.reason, saved))
            self.leave()
        return outcome

    def _outcome(self, reason: str, saved: Path | None, error: BaseException | None = None) -> Outcome:
        result = self.result or self.agent.totals()  # a run that is resumed at its end has no iteration of its own
        best = self.best
        return Outcome(reason, result, self.folder, saved, self.interrupts.any(), best.final, best.score, error)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Before an error ends the run, save what was learnt, write the error to the folder, and close the files."""
        try:
            with self.remarks.phases.heard():
                yield
        except BaseException as error:
            # what the second signal broke off said something of its own
            cut_off = isinstance(error, Exception) and self.interrupts.number > 1
            ending = KeyboardInterrupt() if cut_off else error
            try:
                saved = self._rescue(ending)
                ending.saved = saved  # type: ignore[attr-defined]  # the command line says it too
                self.progress.stop(self._failure(error))
                self.agent.events.end(self._outcome(end_by(error), self.newest, error))
            finally:
                self.leave()
            if cut_off:
                raise ending from error
            if self.options.python and saved and isinstance(error, Exception):
                self.progress.message(f"raypid: {saved}")
            raise

    def _failure(self, error: BaseException) -> list[tuple[str, str]]:
        """The summary of a run that an error ended. In a notebook it stands above the error; a command prints that itself."""
        where = [("folder", str(self.folder))]
        if not self.remarks.notebook:
            return where
        errors = self.folder / ERRORS
        return [("ended", end_by(error)), *where, *([("traceback", str(errors))] if errors.is_file() else [])]

    def _rescue(self, ending: BaseException) -> str:
        """Save what was learnt before the error `ending` ends the run, and write it down, with the worker's own traceback if there is one;
        returns what to say of that."""
        if not isinstance(ending, Exception):  # a second Ctrl-C
            return self.remarks.unsaved(self.newest, self.result)
        if isinstance(ending, Diverged):  # it says itself what there is
            self.agent.keep_evidence(ending)
        self._renew_record()
        head = f"The run ended in iteration {self.agent.iteration + 1}:"
        text = getattr(ending, "worker_traceback", "") or "".join(traceback.format_exception(ending))
        unwritten = self.agent.errors.add(f"{head}\n{text.rstrip()}\n\n")
        saved = "" if isinstance(ending, Diverged) else self._save_after(ending)
        return saved if isinstance(ending, Unwritten) else f"{saved} {unwritten}".strip()

    def _save_after(self, ending: Exception) -> str:
        """Save what was learnt; returns what was saved and how to go on."""
        is_saved = False
        try:
            patience_s = RESCUE_S if isinstance(ending, ClusterLost) else RESCUE_LEARNER_S
            self.agent.fall_back(patience_s)
            why = self.agent.fallback.unsaved_reason(patience_s, self.agent.num_updates)
            if not why and not self._is_saved():
                self.write_checkpoint({}, patience_s=RESCUE_S)
                is_saved = True
        except Exception as error:
            why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            if why in str(ending) or (isinstance(error, Unwritten) and isinstance(ending, Unwritten)):
                why = ""  # it is said already
        newest = self.newest
        if not is_saved or newest is None:
            return self.remarks.unsaved(newest, self.result, why)
        saved = f"Saved: {newest.name} and {checkpoint.BEST}/ in {self.folder}; {self.remarks.goes_on()}."
        return f"{saved} {self._note_gone_back()}".strip()

    def _falls_back(self) -> bool:
        """After an iteration was broken off: go back to what there is, if learners are lost; returns whether it is to be saved."""
        try:
            self.agent.fall_back(RESCUE_LEARNER_S)
        except Halted:
            return False
        return not self._is_saved()

    def _is_saved(self) -> bool:
        """Whether the agent has gone back, and the newest checkpoint is as new as that."""
        newest, has_gone_back = self.newest, self.agent.fallback.gone_back != ""
        return newest is not None and has_gone_back and iteration_of(newest) >= self.agent.iteration

    def _note_gone_back(self) -> str:
        """Write to errors.txt which parts of what was saved are older than the rest; returns that text, or ""."""
        if gone_back := self.agent.fallback.gone_back:
            self.agent.errors.add(f"{gone_back}\n\n")
        return gone_back

    # -- its folder ------------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint in the folder."""
        return checkpoint.latest(self.folder / "checkpoints")

    def write_checkpoint(self, result: Mapping[str, float], *, patience_s: float | None = None) -> None:
        """Save the agent and the best policy, and remove old checkpoints. `patience_s`: see `Training.save`."""
        agent, parent = self.agent, self.folder / "checkpoints"
        # an evaluator in its own process scores earlier weights than those of this checkpoint
        same_weights = result.get("evaluation/timesteps_total") == agent.timesteps
        agent.save(parent, score=result.get(EVALUATION) if same_weights else None, patience_s=patience_s)
        self.best.write(agent)
        checkpoint.prune(parent, self.options.keep_checkpoints)
        self._saved_at, self._saved_iteration = time.monotonic(), agent.iteration

    def _is_save_due(self) -> bool:
        """Whether to write a checkpoint after this iteration: by steps, by iterations, or by time. Called after each."""
        if (every := self.options.checkpoint_steps) is not None:
            before, self._save_periods = self._save_periods, self.agent.timesteps // (every or sys.maxsize)
            return self._save_periods > before
        if self.options.checkpoint_interval:
            return self.agent.iteration % self.options.checkpoint_interval == 0
        wait_s = SAVE_SECONDS if self._saved_iteration >= 0 else FIRST_SAVE_SECONDS
        return time.monotonic() - self._saved_at > wait_s

    def _params(self) -> dict[str, object]:
        """What params.json has: settings in force, algorithm, end, what is saved when as far as it was said, and what has changed."""
        plain, default = RunOptions(), self.options
        options = {name: value for name in OPTIONS if (value := getattr(default, name)) != getattr(plain, name)}
        changes = {CHANGES: self.agent.changes} if self.agent.changes else {}
        program = {PROGRAM: self.agent.program} if self.agent.has_own_program else {}
        return self.agent.plain_config() | {"run": self.agent.run, "stop": self.stop} | program | options | changes

    def _note_stop(self) -> None:
        """Write down that a run that goes on has another end than before: than in the folder that it goes on from, which may be another one."""
        agent = self.agent
        with contextlib.suppress(UserError):  # a damaged file: it is written anew
            before = (read_params(self.folder) or read_params(agent.went_on_from or self.folder)).get("stop")
            if isinstance(before, dict) and before != self.stop:
                agent.note_change("stop", before, dict(self.stop))

    def _open_files(self, last: int | None) -> RunLogger:
        """The files of results, without those after iteration `last`, and params.json anew."""
        logger = RunLogger(self.folder, resume_iteration=last, tell=self.progress.message)
        logger.write_params(self._params())
        return logger

    def _log(self, result: Mapping[str, float]) -> None:
        """Add the result to the folder's, and check at the end that they are still there."""
        try:
            self._logger.log(result)
        except Unwritten:
            self.agent.uncount_iteration()  # a run that goes on from here has it again
            raise
        if self.reason:
            self._logger.check()

    def _renew_record(self) -> None:
        """If the run's folder was deleted, write settings and the last result anew, so that it holds a run that ended."""
        if (self.folder / RESULTS).exists() or (self.folder / PARAMS).exists():
            return  # it is there, or another run's has taken its place
        with contextlib.suppress(Unwritten, FolderLost), RunLogger(self.folder, tell=lambda text: None) as logger:
            logger.write_params(self._params())
            if self.result:
                logger.log(self.result)

    # -- its last evaluation ---------------------------------------------------------------------------------------------

    def _last_evaluation(self, result: dict[str, float]) -> bool:
        """As a run ends, add the running evaluation to its last result, or better one of the newest weights; returns if there is one."""
        if self.interrupts.number or EVALUATION in result:
            return False
        decides = self.best.score is None or EVALUATION in self.stop
        evaluations, interrupted = self.agent.evaluations, self.interrupts.any
        played = evaluations.finish(math.inf if decides else BRIEFLY_S, interrupted)
        if self._owes_evaluation() and not interrupted():
            played = evaluations.newest(self.agent.iteration, interrupted) or played
        if played is not None:
            result |= {f"evaluation/{k}": v for k, v in played.summary().items()}
            result["lost/env_crashes"] = self.agent.num_crashes
        return played is not None

    def _owes_evaluation(self) -> bool:
        """Whether a run that ends evaluates its newest weights: if it has no evaluation yet, or if one takes at most a tenth of its time."""
        last = self.agent.evaluations.last
        if self.agent.config.evaluation_interval is not None or not self.agent.lengths:
            return False
        if last is None:
            return self.best.score is None
        older = last.timesteps < self.agent.timesteps
        return older and last.evaluation.seconds < 0.1 * self.agent.time_total_s
