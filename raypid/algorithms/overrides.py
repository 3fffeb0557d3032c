"""What a subclass of an algorithm, written elsewhere, overrides: methods that could not be called as they will be, and names that are nearly
those of methods."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from types import FunctionType

from raypid.errors import ConfigError

_NEAR = 0.8
"""How alike a name and that of a method must be, from 0 to 1, to be taken for it."""


def check_overrides(cls: type) -> None:
    """Check the methods that classes outside raypid add to an algorithm.

    Raises:
        ConfigError: names a method that is nearly called like one of the algorithm's, which nothing would call; or one that takes other
            arguments than it is called with.
    """
    own = [base for base in cls.__mro__ if base is not object and base.__module__.partition(".")[0] != "raypid"]
    methods = {
        name: f for base in own for name, f in vars(base).items() if isinstance(f, FunctionType) and name[0] != "_"
    }
    if not methods:
        return
    theirs = [base for base in cls.__mro__ if base not in own]
    hooks = {name: f for base in reversed(theirs) for name, f in vars(base).items() if isinstance(f, FunctionType)}
    called = {name for f in methods.values() for name in f.__code__.co_names}
    for name, method in methods.items():
        if name in hooks:
            _check_arguments(cls, name, method, hooks[name])
            continue
        near = get_close_matches(name, [hook for hook in hooks if hook not in methods], 1, _NEAR)
        if near and name not in called:
            raise ConfigError(
                f"{cls.__name__}.{name} would never be called. Did you mean {near[0]}? Give a method of your own a name that is less like it."
            )


def _check_arguments(cls: type, name: str, method: FunctionType, hook: FunctionType) -> None:
    given = [
        p
        for p in inspect.signature(hook).parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    try:
        inspect.signature(method).bind(*given)
    except TypeError:
        takes = ", ".join(p.name for p in given)
        ours = ", ".join(inspect.signature(method).parameters)
        raise ConfigError(f"{cls.__name__}.{name} is called as {name}({takes}), and takes ({ours}).") from None
