"""Hooks for users: metrics of their own, from episodes (in the workers) and from iterations (in the driver), and what a run does."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raypid.errors import ConfigError
from raypid.outcome import Outcome


class Callbacks:
    """Subclass this and pass it as `callbacks`. Each worker has its own copy; the driver has the original.

    The methods that begin with on_ are the hooks below and no others: a misspelt one is refused.
    """

    def on_start(self, config: dict[str, object]) -> None:
        """Called in the driver before the first iteration.

        `config` is what params.json has: all settings with their values, `run`, `stop` and `folder`; the last two are None where only
        `train()` is called.
        If it raises, nothing is trained.
        """

    def on_episode_end(self, info: dict[str, Any]) -> Mapping[str, float] | None:
        """Called in the worker when a training episode ends.

        `info` is the environment's last info, plus episode_reward, episode_length, worker_index and stream_index.
        The numbers returned become metrics custom/<name>: each iteration reports their mean over its episodes.
        """

    def on_iteration(self, result: dict[str, float]) -> None:
        """Called in the driver after each iteration, before its result is logged. Entries may be added.

        If it raises, the run ends as by any error: what was learnt is saved first.
        """

    def on_checkpoint(self, path: Path) -> None:
        """Called in the driver after a checkpoint was written, with its folder. Old checkpoints are removed later: copy what you keep.

        If it raises, a run with a folder goes on: the checkpoint is there, errors.txt has the traceback. `agent.save()` raises.
        """

    def on_end(self, outcome: Outcome) -> None:
        """Called in the driver when all is written, once for each `on_start`; also if an error ended the run (`outcome.error`).

        An agent of which only `train()` was called ends when it is closed. If the hook raises in a run with a folder, errors.txt has
        the traceback, and the run ends as it would have.
        """


def check_hooks(listener: object, base: type) -> None:
    """Check that every on_... (and _on_...) that the user's class brings is a hook of `base`, and can be called as one.

    Raises:
        ConfigError: names the class and the method, and the hook that was meant.
    """
    cls = type(listener)
    hooks = [name for name in vars(base) if name.startswith("on_")]
    own = [part for part in cls.__mro__ if issubclass(part, base) and part is not base]
    for name in dict.fromkeys(name for part in own for name in vars(part)):
        if not name.startswith(("on_", "_on_")) or not callable(method := getattr(listener, name)):
            continue
        if name not in hooks:  # _on_step and the like are Stable-Baselines3's
            from difflib import get_close_matches

            near = get_close_matches(name, hooks, 1, 0.7)
            meant = f"Did you mean {near[0]}?" if near else f"The hooks are {', '.join(hooks)}."
            raise ConfigError(
                f"{cls.__name__}.{name} would never be called. {meant} Name a method of your own without on_."
            )
        _, *arguments = inspect.signature(getattr(base, name)).parameters
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError:
            called = f"{name}(self, {', '.join(arguments)})"
            raise ConfigError(f"{cls.__name__}.{name} is called as {called}: take these arguments.") from None
