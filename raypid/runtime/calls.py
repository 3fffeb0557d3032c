"""How a method of a role is called, split among several roles, and repeated after a loss: said at the method's definition.

The supervision (`raypid.runtime.supervisor`) reads it, for every kind of role, and knows nothing else of what roles do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How a group of roles that answer as one passes a call on."""

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


_DEFAULT = Rule()


def called(
    *,
    to: Literal["all", "first"] = "all",
    splits_after: int | None = None,
    repeats: bool = True,
    lasts: bool = False,
    gives_state: bool = False,
    progress: Callable[[Any], int] | None = None,
) -> Callable[[F], F]:
    """Say how a role's method is called; arguments as the fields of `Rule`. Methods without this have the defaults."""
    rule = Rule(
        to=to, splits_after=splits_after, repeats=repeats, lasts=lasts, gives_state=gives_state, progress=progress
    )

    def mark(method: F) -> F:
        method.rule = rule  # type: ignore[attr-defined]
        return method

    return mark


def rule_of(method: Callable[..., object]) -> Rule:
    """How a method is called."""
    return getattr(method, "rule", _DEFAULT)
