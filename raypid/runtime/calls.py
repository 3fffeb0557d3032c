"""How a method of a role is called, split among several roles, and repeated after a loss: said at the method's definition.

The supervision (`raypid.runtime.supervisor`) reads it, for every kind of role, and knows nothing else of what roles do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """Decorator of a role's method: how a group of roles that answer as one passes a call of it on. Methods without it have the defaults."""

    to: Literal["all", "first"] = "all"
    """"all": every role is called, and the value of the first one counts once all are done. "first": only the first one is called,
    since the call changes nothing and would give the same value everywhere."""
    splits_after: int | None = None
    """Positional arguments after so many are data, of which each role gets a consecutive part; None: every role gets everything."""
    repeats: bool = True
    """Whether the call is made again on a role that was lost in it and rebuilt. If not, the caller gets `RoleRebuilt`."""
    lasts: bool = False
    """What the call sets is no part of the role's state: its last call is made again on a role that is rebuilt."""
    gives_state: bool = False
    """The role's state comes from outside, so earlier copies of it are of no use."""
    progress: Callable[[Any], int] | None = None
    """The progress that a value shows, such as a number of updates, by which copies of the state are compared."""

    def __call__(self, method: F) -> F:
        method.rule = self  # type: ignore[attr-defined]
        return method


_DEFAULT = Called()


def rule_of(method: Callable[..., object]) -> Called:
    """How a method is called."""
    return getattr(method, "rule", _DEFAULT)
