"""One run from start to end: its folder, stop criteria, checkpoints, evaluation and what the user sees."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from raypid import checkpoint
from raypid.config import ConfigError
from raypid.registry import did_you_mean
from raypid.reporting.logger import RunLogger
from raypid.run.agent import Agent
from raypid.run.assembly import entry_name
from raypid.run.best import BestPolicy
from raypid.run.evaluation import Played
from raypid.run.known_keys import KnownKeys, known_keys

MIN_EPISODES = 20
"""Training episodes that a stop on episode_reward_* needs."""
SAVE_SECONDS = 60.0
FIRST_SAVE_SECONDS = 10.0
"""After the start: a run that is killed young is worth going on with too."""
BRIEFLY_S = 2.0
"""How long a run that ends waits for an evaluation that cannot change how it ended."""
_EVALUATION = "evaluation/episode_reward_mean"
_RUN_FILES = ("params.json", "result.json", "checkpoints")


@dataclass(kw_only=True, slots=True)
class RunOptions:
    """What a run does besides training."""

    stop: Mapping[str, float] = field(default_factory=dict)
    """{result key: value}: the run ends when one of them is reached."""
    checkpoint_interval: int = 0
    """Training iterations between checkpoints; 0: one a minute."""
    checkpoint_steps: int | None = None
    """Environment steps between checkpoints, in place of that; 0: one at the end."""
    evaluation_steps: int = 0
    """Environment steps between evaluations; 0: as the agent's settings say."""
    keep_checkpoints: int = 3
    """Newest checkpoints that stay; the best stays too."""
    final_episodes: int = 50
    """Episodes that the best policy plays at the end, fewer where these would take over a minute; 0: none."""
    plot: bool = True
    """Draw learning_curve.png at the end."""


class Progress(Protocol):
    """What shows a run to its user."""

    def start(self, run_info: Mapping[str, Any]) -> None: ...
    def update(self, result: Mapping[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None: ...


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    reason: str
    result: dict[str, Any]
    folder: Path
    checkpoint: Path | None
    interrupted: bool = False
    """Ctrl-C or SIGTERM came."""
    final: dict[str, Any] | None = None
    """episode_reward_mean, episode_reward_ci95 and episodes of the best policy, where it was played at the end."""


def check_stop(stop: Mapping[str, object], known: KnownKeys) -> dict[str, float]:
    """Return the stop criteria as numbers.

    Raises:
        ConfigError: a key that no result of this run will have, or a value that is not a number. Metrics of callbacks are
            written "custom/<name>".
    """
    checked = {}
    for key, value in stop.items():
        if key not in known.keys and not key.startswith(known.open):
            if key.startswith("evaluation/") and not known.evaluates:
                raise ConfigError(f"Stop criterion {key!r} can never be met: evaluation_interval is 0.")
            raise ConfigError(
                f"Unknown stop criterion {key!r}.{did_you_mean(key, known.keys)} A callback's metric x is custom/x."
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"The stop criterion {key!r} takes a number, not {value!r}.")
        checked[key] = float(value)
    return checked


def check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """A folder that holds another run is not touched unless asked for.

    Raises:
        ConfigError: it holds a run, or is a file.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder.")
    if (out / ".lock").exists():
        with lock_folder(out):
            pass
    results = out / "result.json"  # empty where a run failed before its first iteration ended: nothing to lose
    holds_run = (out / "checkpoints").exists() or (results.exists() and results.stat().st_size > 0)
    if holds_run and not (resume or overwrite):
        raise ConfigError(
            f"{out} holds another run. Go on with it (--resume {out}), replace it (--overwrite), or choose another --out."
        )
    if resume and not holds_run:
        raise ConfigError(f"{out} holds no run to resume.")
    parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"{parent} cannot be written to.")


@contextlib.contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Hold the folder for this process.

    Raises:
        ConfigError: a run that is still going on holds it.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / ".lock"
    with path.open("w") as lock:
        with contextlib.suppress(ModuleNotFoundError):  # where there is no flock there is no protection
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"A run that is going on writes to {out}. Stop it, or choose another --out."
                ) from None
        yield
        path.unlink(missing_ok=True)


def clear_folder(out: Path) -> None:
    """Remove what a run wrote, and nothing else."""
    for name in (*_RUN_FILES, "progress.csv", "errors.txt", "learning_curve.png", checkpoint.BEST, checkpoint.OLD_BEST):
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for events in out.glob("events.out.tfevents.*"):
        events.unlink()


class Run:
    """Drives an agent until a stop criterion, a budget or Ctrl-C ends it."""

    def __init__(self, agent: Agent, options: RunOptions, progress: Progress) -> None:
        self.agent, self.options, self.progress = agent, options, progress
        known = known_keys(agent.run, agent.config)
        if options.evaluation_steps:
            known = replace(known, evaluates=True)
        self.stop = check_stop(options.stop, known)
        self._may_be_absent = known.open
        """Beginnings of stop criteria of which nobody knows in advance whether they will be reported."""
        self.folder = agent.default_out()
        self.best = BestPolicy(self.folder)
        self._saved_at = time.monotonic()
        self._saved_iteration = -1
        self._periods = agent.context.timesteps // options.checkpoint_steps if options.checkpoint_steps else 0
        self._interrupts = 0
        self._playing = False

    def __call__(self) -> Outcome:
        """Run to the end. The folder is complete whenever this returns or raises."""
        agent, resumed = self.agent, self.agent.iteration
        agent.evaluations.goal = self.stop.get(_EVALUATION)
        agent.evaluations.automatic = agent.config.evaluation_interval is None
        agent.evaluations.every(self.options.evaluation_steps)
        agent.context.workers.folder = self.folder
        if resumed:
            self.best.load()
        logger = RunLogger(self.folder, resume_iteration=resumed or None)
        logger.write_params(agent.plain_config() | {"run": agent.run, "stop": self.stop})
        progress = self.progress
        result: dict[str, Any] = {}
        reason, failed = self._reason(self._so_far()) if resumed else "", True
        progress.start(self._info())
        for note in agent.notes:
            progress.message(note)
        plan = agent.context.replay
        if plan is not None and agent.context.timesteps < plan.start_steps:
            progress.message(f"Warm-up: {plan.start_steps:,} steps with random actions, then learning starts.")
        try:
            with self._interruptible():
                while not reason:
                    result = agent.train()
                    reason = self._reason(result)
                    self._tell_absent(result)
                    self._remember_best(result)
                    if reason and self._last_evaluation(result):
                        reason = self._reason(result) or reason
                    logger.log(result)
                    progress.update(result)
                    if not reason and self._save_is_due():
                        self._save(result)
                saved = self._finish(result)
                if saved is not None and not self._interrupts:
                    self._playing = True
                    self.best.play(agent, self.options.final_episodes, hurry=self._hurries, tell=progress.message)
            failed = False
        except Exception as error:
            self._write_error(error)
            raise
        finally:
            logger.close()
            if failed:
                progress.stop([("folder", str(self.folder))])
        progress.stop(self._summary(result, reason, saved))
        return Outcome(reason, result, self.folder, saved, self._interrupts > 0, self.best.final)

    def _write_error(self, error: Exception) -> None:
        """What ended the run goes to its folder, with the worker's own traceback where there is one."""
        text = getattr(error, "worker_traceback", "") or "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError), (self.folder / "errors.txt").open("a") as errors:
            errors.write(f"The run ended in iteration {self.agent.iteration + 1}:\n{text.rstrip()}\n\n")

    def _so_far(self) -> dict[str, Any]:
        """What a resumed run has already reached of its counts and times."""
        agent = self.agent
        return {
            "training_iteration": agent.iteration,
            "timesteps_total": agent.context.timesteps,
            "episodes_total": agent.num_episodes,
            "learner_updates_total": agent.num_updates,
            "time_total_s": agent.time_total_s,
        }

    # -- turns -----------------------------------------------------------------------------------------------------

    def _remember_best(self, result: Mapping[str, Any]) -> None:
        played = self.agent.evaluations.last
        if played is not None and _EVALUATION in result:
            self.best.offer(played, self.agent)

    def _reason(self, result: Mapping[str, Any]) -> str:
        if self._interrupts:
            return "interrupted"
        for key, target in self.stop.items():
            value = result.get(key, result.get(key.removeprefix("custom/")))  # on_iteration may name its entries freely
            if key.startswith("episode_reward") and result["episodes_total"] < MIN_EPISODES:
                continue
            if value is not None and value >= target:
                return f"{key} reached {value:.6g}"
        return ""

    def _tell_absent(self, result: Mapping[str, Any]) -> None:
        """Once episodes have ended and something was learnt, name stop criteria that no result has. Says so once."""
        if not (self._may_be_absent and result["episodes_total"] and result["learner_updates_total"]):
            return
        for key in self.stop:
            if key.startswith(self._may_be_absent) and not {key, key.removeprefix("custom/")} & result.keys():
                self.progress.message(
                    f"Nothing has reported the stop criterion {key} so far, though {result['episodes_total']} episodes have ended."
                )
        self._may_be_absent = ()

    def _last_evaluation(self, result: dict[str, Any]) -> bool:
        """As a run ends, add to its last result what was being evaluated, or better an evaluation of the newest weights."""
        evaluations = self.agent.evaluations
        if self._interrupts or _EVALUATION in result:
            return False
        decides = self.best.score is None or _EVALUATION in self.stop
        self._add_evaluation(result, evaluations.finish(math.inf if decides else BRIEFLY_S, self._hurries))
        if self._owes_evaluation() and not self._interrupts:
            self._add_evaluation(result, evaluations.newest(self.agent.iteration, self._hurries))
        return _EVALUATION in result

    def _add_evaluation(self, result: dict[str, Any], played: Played | None) -> None:
        if played is not None:
            result |= {f"evaluation/{k}": v for k, v in played.summary().items()}
            self.best.offer(played, self.agent)

    def _owes_evaluation(self) -> bool:
        """Whether a run that ends evaluates its newest weights: if none were so far, or if it takes a tenth of the time at most."""
        evaluations, last = self.agent.evaluations, self.agent.evaluations.last
        if not evaluations.automatic or not self.agent.lengths:
            return False
        if last is None:
            return self.best.score is None
        older = last.timesteps < self.agent.context.timesteps
        return older and last.evaluation.seconds < 0.1 * self.agent.time_total_s

    def _hurries(self) -> bool:
        return self._interrupts > 0

    def _save_is_due(self) -> bool:
        if (every := self.options.checkpoint_steps) is not None:
            periods, self._periods = self._periods, self.agent.context.timesteps // every if every else 0
            return self._periods > periods
        if self.options.checkpoint_interval:
            return self.agent.iteration % self.options.checkpoint_interval == 0
        wait_s = SAVE_SECONDS if self._saved_iteration >= 0 else FIRST_SAVE_SECONDS
        return time.monotonic() - self._saved_at > wait_s

    def _save(self, result: Mapping[str, Any]) -> Path:
        agent, parent = self.agent, self.folder / "checkpoints"
        # an evaluator beside scores earlier weights than those that a checkpoint has now
        its_own = result.get("evaluation/timesteps_total") == agent.context.timesteps
        path = agent.save(parent, score=result.get(_EVALUATION) if its_own else None)
        self.best.write(agent)
        checkpoint.prune(parent, self.options.keep_checkpoints)
        self._saved_at, self._saved_iteration = time.monotonic(), agent.iteration
        return path

    def _finish(self, result: Mapping[str, Any]) -> Path | None:
        if not result:
            return None
        if self._saved_iteration == self.agent.iteration:
            saved = self.folder / "checkpoints" / checkpoint.checkpoint_name(self.agent.iteration)
        else:
            saved = self._save(result)
        if self.options.plot:
            from raypid.reporting.plots import learning_curve

            with contextlib.suppress(ValueError):  # no episode has ended: nothing to draw
                learning_curve([self.folder], self.folder / "learning_curve.png")
        return saved

    # -- what the user sees ----------------------------------------------------------------------------------------

    def _info(self) -> dict[str, Any]:
        c = self.agent.config
        return {
            "algorithm": self.agent.run,
            "env": entry_name(c.env),
            "seed": c.seed,
            "num_workers": c.num_workers,
            "num_learners": c.num_learners,
            "backend": self.agent.backend.name,
            "folder": str(self.folder),
        }

    def _summary(self, result: Mapping[str, Any], reason: str, saved: Path | None) -> list[tuple[str, str]]:
        lines = [("ended", reason)]
        if self.agent.rewards:
            count = len(self.agent.rewards)
            mean = f"{sum(self.agent.rewards) / count:.2f} (mean of the last {count} episodes)"
            lines.append(("training return", mean))
        elif result:
            lines.append(("training return", "no episode has ended yet"))
        if self.best.score is not None:
            lines.append(("best policy", self.best.line()))
        elif self.agent.config.evaluation_interval != 0:
            lines.append(("best policy", "none: the run was too short for an evaluation"))
        seconds, steps = self.agent.time_total_s, self.agent.context.timesteps
        lines.append(("steps", f"{steps:,} in {seconds:.1f} s"))
        lines.append(("folder", str(self.folder)))
        if saved is not None:
            lines.append(("next", f"raypid eval {self.folder}"))
            lines.append(("", f"raypid train --resume {self.folder}"))
        return lines

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) ends the run after this iteration, with a checkpoint; a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        owner = os.getpid()

        def on_signal(number: int, frame: Any) -> None:
            if os.getpid() != owner:  # an environment's process, forked with this handler: it is ended by the owner
                if number == signal.SIGTERM:
                    raise SystemExit
                return
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
            ends = "now" if self._playing else "after this iteration, with a checkpoint"
            self.progress.message(f"Stopping {ends}. Ctrl-C again stops at once.")

        before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
