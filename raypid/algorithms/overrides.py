"""What a subclass of an algorithm, written elsewhere, overrides: methods that could not be called as they will be, and mistyped ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from types import CodeType, FunctionType

from raypid.errors import ConfigError

OVERRIDDEN = ("loss", "loss_gradient", "critic_loss", "policy_loss", "update", "step", "gradients", "build")
"""Methods that users override. A user's method with one of these names, or nearly, is meant for it."""
_NEAR = 0.8
"""Least similarity of such a name and the method's, from 0 to 1."""


def check_overrides(cls: type) -> None:
    """Check the methods that classes outside raypid add to an algorithm.

    Raises:
        ConfigError: names a method that is meant for one of the algorithm's, and that nothing calls; or one that takes other arguments than
            it is called with.
    """
    own = [base for base in cls.__mro__ if base is not object and base.__module__.partition(".")[0] != "raypid"]
    methods = {
        name: f for base in own for name, f in vars(base).items() if isinstance(f, FunctionType) and name[0] != "_"
    }
    if not methods:
        return
    theirs = [base for base in cls.__mro__ if base not in own]
    hooks = {name: f for base in reversed(theirs) for name, f in vars(base).items() if isinstance(f, FunctionType)}
    called = {name for f in methods.values() for name in _names(f.__code__)}
    for name, method in methods.items():
        if name in hooks:
            _check_arguments(cls, name, method, hooks[name])
        elif name not in called and _is_meant(name):
            there = ", ".join(hook for hook in OVERRIDDEN if hook in hooks)
            raise ConfigError(f"Nothing calls {cls.__name__}.{name}, but {there}. Give a helper of yours another name.")


def _is_meant(name: str) -> bool:
    """Whether a name is, or misspells, that of a method. A longer name such as `losses` is no misspelling of `loss`."""
    others = [hook for hook in OVERRIDDEN if hook not in name]
    return name in OVERRIDDEN or bool(get_close_matches(name, others, 1, _NEAR))


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function may call: those in its code, and in functions, lambdas and comprehensions within
    it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


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
