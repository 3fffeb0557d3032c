"""The processes that run the trials of a search, side by side. Each runs one trial after another, so that none waits for Python, torch or
Ray to start."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from raypid.envs.closing import within
from raypid.envs.errors import EnvError
from raypid.errors import HEAD, Diverged, UserError
from raypid.plugins.project import find_project
from raypid.report.panel import Messages
from raypid.run.agent import Agent
from raypid.run.resolve import resolve
from raypid.run.run import Run, RunOptions
from raypid.runtime.handle import Future, Handle, WorkerLost
from raypid.runtime.process import ProcessBackend
from raypid.runtime.resources import num_cores, num_gpus
from raypid.settings.config import is_none, overlay
from raypid.settings.request import RunRequest
from raypid.storage.outputs import Unwritten
from raypid.storage.ownership import put_on_path
from raypid.storage.run_folder import EVALUATION
from raypid.sweep.budget import LATE

INTERVAL = "evaluation/episode_reward_ci95"
FRESH = 0.9
"""An evaluation counts as that of a moment if it is not older than this part of its seconds."""
Point: TypeAlias = tuple[float, float, float]
"""Seconds of training, mean return of an evaluation, half width of its 95% interval (NaN: it played one episode)."""
Event: TypeAlias = dict[str, Any]
"""What is said of a trial: "moment" (then it waits for `go_on` or `end`) or "ended", with trial, curve, seconds."""


class _TooLong(BaseException):  # no Exception, for which a run would save what it has
    """Raised inside an iteration that takes longer than a whole trial."""


_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (_TooLong, "slow"), (EnvError, "error"), (UserError, "user"), (Unwritten, "unwritten"), (Diverged, "diverged"), (Exception, "error"),
)  # fmt: skip
"""Errors -> what has failed, as an event says it (`raypid.sweep.search.BY_SETTINGS`); the first that fits."""


class TrialProcesses:
    """A few processes that take trials as they come.

    Args:
        num: most trials at a time.
        log: what the processes print is added to this file.
    """

    def __init__(self, num: int, log: Path) -> None:
        self._num, self._log = num, log
        self._backend = ProcessBackend()
        self._idle: list[Handle] = []
        self._at: dict[str, Handle] = {}
        """Where trials run."""
        self._next: dict[str, Future[Event]] = {}
        """What is said of them next."""

    @property
    def running(self) -> list[str]:
        """Names of the trials under way."""
        return list(self._at)

    @property
    def has_room(self) -> bool:
        return len(self._at) < self._num

    def start(self, trial: str, order: Mapping[str, object]) -> None:
        """Start a trial. There must be room."""
        process = self._idle.pop() if self._idle else self._backend.spawn(partial(Trials, self._log))
        self._at[trial] = process
        self._next[trial] = process.submit(Trials.start, {"trial": trial, **order})

    def go_on(self, trial: str, until: float) -> None:
        """Let a trial that waits train up to a later moment."""
        self._next[trial] = self._at[trial].submit(Trials.go_on, until, "")

    def end(self, trial: str, state: str) -> None:
        """Tell a trial that waits to end as it is; it says how far it came."""
        self._next[trial] = self._at[trial].submit(Trials.go_on, 0.0, state)

    def kill(self, trial: str) -> None:
        """End a trial, with its process: its environments are closed."""
        del self._next[trial]
        self._backend.end([self._at.pop(trial)], interrupt=True)

    def wait(self, timeout_s: float) -> list[Event]:
        """What has happened within the timeout. A process that died has ended its trial with state "failed"."""
        self._backend.wait(list(self._next.values()), timeout=timeout_s)
        known, _ = self._backend.wait(list(self._next.values()), len(self._next), timeout=0.0)
        return [self._said(trial) for trial, said in list(self._next.items()) if said in known]

    def _said(self, trial: str) -> Event:
        try:
            event = self._backend.get(self._next.pop(trial))
            if event["event"] == "ended":
                self._idle.append(self._at.pop(trial))
            return event
        except WorkerLost as lost:
            self._backend.kill(self._at.pop(trial))
            message = f"Its trial was lost: {lost.how}; {self._log} has what it printed."
            return _failed(trial, "died", message)

    def close(self) -> None:
        """End all processes, and what they run."""
        self._backend.end([*self._idle, *self._at.values()], interrupt=True)
        self._backend.shutdown()


def _failed(trial: str, kind: str, message: str, text: str = "") -> Event:
    about = {"event": "ended", "trial": trial, "state": "failed", "kind": kind}
    return {**about, "message": message, "traceback": text}


class Trials:
    """The role of such a process: it runs the trials that it is given."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as file:
            for printed in (1, 2):
                os.dup2(file.fileno(), printed)
        put_on_path([])
        find_project(Path.cwd())

    def start(self, order: Mapping[str, Any]) -> Event:
        """Begin a trial, and train up to the first moment."""
        self.trial, self.run = order["trial"], _train(order)
        return self._event(partial(next, self.run))

    def go_on(self, until: float, state: str) -> Event:
        """Train up to a later moment, or end it with a state."""
        return self._event(partial(self.run.send, (until, state)))

    def _event(self, train: Callable[[], Event]) -> Event:
        """What is to be said of the trial next. An error of any kind ends the trial alone."""
        try:
            return {"event": "moment", "trial": self.trial, **train()}
        except StopIteration as end:
            return {"event": "ended", "trial": self.trial, **end.value}
        except (Exception, _TooLong) as error:
            kind = next(kind for cls, kind in _KINDS if isinstance(error, cls))
            message = str(error)
            own = message.rpartition("\nraypid: ")[0] if message.startswith(HEAD) else ""  # the user's code raised
            text = getattr(error, "worker_traceback", "") or own or "".join(traceback.format_exception(error))
            return _failed(self.trial, kind, message, text)


def _train(order: Mapping[str, Any]) -> Generator[Event, tuple[float, str], Event]:
    """Train to the moments that the search names; at each yield what was reached. Returns how the trial ended, and its curve."""
    began = time.monotonic()
    folder, until, state = Path(order["folder"]), order["until"], ""
    if order["on_ray"] and "raypid.runtime.ray" not in sys.modules:
        _hold_ray(order["settings"])
    settings, below = overlay({}, order["settings"]), overlay(order["below"], {})
    agent = Agent(resolve(RunRequest(run=order["run"], settings=settings, recorded=below, out=folder)))
    try:
        curve: list[Point] = [tuple(order["before"] or _evaluation(agent))]
        options = RunOptions(stop=order["stop"], checkpoint_interval=10**9, final_episodes=0, plot=order["keep"])
        run = Run(agent, options, Messages())
        run.begin()
        agent.control.reset(in_run=True, time_s=until)
        most_s = order["first_within"]
        too_long = _TooLong(f"its first iteration took longer than {most_s or 0:.2g} s")
        while not state:
            with within(None if agent.iteration else most_s, too_long):
                result = run.advance(0.0)  # one iteration
            if EVALUATION in result:
                curve.append((result["time_total_s"], result[EVALUATION], result[INTERVAL]))
            now = agent.time_total_s
            if run.reason:
                state = "goal" if run.reason.startswith("evaluation/") else "finished"
            elif time.monotonic() >= order["ends_at"]:
                state = "cut"
            elif (
                now >= until or now + result["time_this_iter_s"] > LATE * until
            ):  # or one more iteration would end too late
                _refresh(curve, agent)
                until, state = yield {"until": until, "curve": curve}
                agent.control.reset(in_run=True, time_s=until)
        if state == "finished":
            _refresh(curve, agent)
        if order["keep"] and state in ("finished", "goal"):
            run.end("the time of the trial is over")
        else:
            run.leave()
        wall_s = time.monotonic() - began
        return {"curve": curve, "state": state, "seconds": agent.time_total_s, "wall_s": wall_s}
    finally:
        agent.close()


def _hold_ray(settings: Mapping[str, Any]) -> None:
    """Start or join Ray for this process, where it stays: agents find it there and leave it running."""
    from raypid.runtime.ray import RayBackend

    address, cpus = (None if is_none(settings.get(name)) else settings[name] for name in ("address", "num_cpus"))
    RayBackend(address, num_cpus=cpus or num_cores(), num_gpus=num_gpus())


def _evaluation(agent: Agent) -> Point:
    """Evaluate now."""
    found = agent.eval()
    return agent.time_total_s, found["episode_reward_mean"], found["episode_reward_ci95"]


def _refresh(curve: list[Point], agent: Agent) -> None:
    """Evaluate now if the last evaluation of a curve is old."""
    if curve[-1][0] < FRESH * agent.time_total_s:
        curve.append(_evaluation(agent))
