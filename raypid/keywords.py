"""Keywords of methods by the names of other libraries: what means the same is taken, anything else is answered."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from raypid.errors import ConfigError
from raypid.names import answer
from raypid.registry import did_you_mean
from raypid.stops import stop_with

P = ParamSpec("P")
R = TypeVar("R")


def other_words(
    same: Mapping[str, str] | None = None, *, stop: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method take keywords by other names.

    Args:
        same: other names of its arguments -> ours.
        stop: it has an argument `stop`, its first one, which other libraries write as `total_timesteps=N` and the like.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(method).parameters if name != "self"]

        @functools.wraps(method)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs.keys() <= set(known):
                return method(*args, **kwargs)
            given: dict[str, Any] = dict(kwargs)
            if stop:
                before = args[1] if len(args) > 1 else given.get("stop")
                end, given = stop_with(before, given)
                if len(args) > 1:
                    args = cast(Any, (args[0], end, *args[2:]))
                else:
                    given["stop"] = end
            for other, ours in (same or {}).items():
                if other in given and ours not in given:
                    given[ours] = given.pop(other)
            for key in given.keys() - set(known):
                told = answer(f"--{key}")
                raise ConfigError(
                    f"{method.__name__} takes no {key!r}.{f' {told}' if told else did_you_mean(key, known)}"
                )
            return method(*args, **cast(Any, given))

        return called

    return decorate
