"""The seam between training and what surrounds it: listeners are told what happens, and may ask for a stop or a save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec

from raypid.callbacks import Callbacks, check_hooks
from raypid.errors import ConfigError, shown
from raypid.outcome import Outcome
from raypid.run.evaluation import Played

P = ParamSpec("P")
HALT_S = 5.0
"""Seconds after the end of a run by time or by request when an iteration that waits for whole episodes is broken off."""


class Listener:
    """Is told what happens in training: override what you need, and call `agent.listen(listener)`.

    A listener cannot change training. It may ask for an end or a checkpoint (`agent.request_stop`, `agent.request_save`). What a method
    raises ends the run as any error does, except in `on_checkpoint` and `on_end`: a run with a folder goes on and reports it.
    """

    def on_start(self, config: dict[str, object]) -> None:
        """Training starts. `config` is that of `raypid.Callbacks.on_start`."""

    def on_iteration(self, result: dict[str, float]) -> None:
        """An iteration has ended. The callbacks have added their entries to `result`, to which entries may be added."""

    def on_evaluation(self, played: Played) -> None:
        """An evaluation has ended. It may be of earlier weights than the newest."""

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint was written into this folder."""

    def on_lost(self, text: str) -> None:
        """A process or a node was lost, or is back. The text is one line."""

    def on_rollback(self, iteration: int, text: str) -> None:
        """Training diverged and has gone back to the end of `iteration`. The text is one line."""

    def on_failed(self, hook: str, error: Exception) -> bool:
        """A listener or the callbacks raised in `hook` where nothing is lost by it. Returns whether training goes on; else it raises."""
        return False

    def on_end(self, outcome: Outcome) -> None:
        """Training has ended, and all is written."""


_AFTERWARDS = (Listener.on_checkpoint.__name__, Listener.on_end.__name__)
"""Hooks that are called when what they tell of is done, so that nothing is lost if one raises."""


class Events:
    """The listeners of a training, the user's callbacks first."""

    def __init__(self, callbacks: Callbacks | None) -> None:
        self._listeners: list[Callbacks | Listener] = [] if callbacks is None else [callbacks]
        self.has_begun = False
        """Whether on_start was called, and on_end not yet."""

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` too; returns a function that ends this.

        Raises:
            ConfigError: it is not a Listener, or has a method on_... that is no hook.
        """
        if not isinstance(listener, Listener):
            raise ConfigError(f"listen takes a raypid.run.events.Listener, not {shown(listener)}.")
        check_hooks(listener, Listener)
        self._listeners.append(listener)
        return partial(self._remove, listener)

    def _remove(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def emit(self, event: Callable[Concatenate[Listener, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a hook of all listeners that have it."""
        for listener in tuple(self._listeners):
            try:
                if (hook := getattr(listener, event.__name__, None)) is not None:
                    hook(*args, **kwargs)
            except Exception as error:
                if event.__name__ not in _AFTERWARDS or not self._goes_on(listener, event.__name__, error):
                    raise

    def _goes_on(self, raised: Callbacks | Listener, hook: str, error: Exception) -> bool:
        whose = "the callbacks" if isinstance(raised, Callbacks) else type(raised).__name__
        told = [one.on_failed(f"{hook} of {whose}", error) for one in self._listeners if isinstance(one, Listener)]
        return any(told)

    def start(self, config: dict[str, object]) -> None:
        """Tell that training starts, unless it was told already."""
        if not self.has_begun:
            self.emit(Listener.on_start, config)
        self.has_begun = True

    def end(self, outcome: Outcome) -> None:
        """Tell that training has ended, if it was told that it started."""
        had_begun, self.has_begun = self.has_begun, False
        if had_begun:
            self.emit(Listener.on_end, outcome)


class Control:
    """What training was asked for: to stop or to save after this iteration, and to be over after some time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, *, in_run: bool = False, time_s: float = math.inf) -> None:
        """Forget all requests.

        Args:
            in_run: a run answers those that follow.
            time_s: seconds of training, those before the run included, after which it is over.
        """
        self.in_run, self._time_s = in_run, time_s
        self.stop_reason = ""
        self.save = False
        """Whether a checkpoint was asked for since the last one."""
        self._deadline = self._over_since = math.inf

    def begin_iteration(self, spent_s: float) -> None:
        """An iteration begins after `spent_s` seconds of training."""
        self._deadline = time.monotonic() + self._time_s - spent_s

    def is_over(self) -> bool:
        """Whether training should stop now, whatever the iteration under way says."""
        return bool(self.stop_reason) or time.monotonic() >= self._deadline

    def must_halt(self) -> bool:
        """Whether the iteration goes on though training should have ended HALT_S seconds ago."""
        now = time.monotonic()
        if self.is_over():
            self._over_since = min(self._over_since, now)
        return now - self._over_since >= HALT_S
