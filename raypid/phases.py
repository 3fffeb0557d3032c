"""What a command does besides training, such as starting Ray: said while it goes on, and timed.

What may take a second says so with `phase`, wherever it is. A `Phases` that is `heard` at that time counts the seconds, and tells
whoever shows the command to its user. Where nobody listens, as in a Python program of the user's own, nothing happens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

Tell = Callable[[str], None]


def nobody(text: str) -> None:
    """Tell nobody."""


def duration(seconds: float) -> str:
    """A time in a unit that suits it: "30 ms", "45 s", "6.7 min"."""
    units = ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)
    unit, size = next((u for u in units if seconds >= u[1] * (2 if u[1] > 1 else 1)), ("us", 1e-6))
    value = seconds / size
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


class Phases:
    """Seconds by phase. They add up to `total`, since an inner phase stops the clock of the one around it."""

    def __init__(self, tell: Tell = nobody) -> None:
        self.tell = tell
        """Called with what is being done, such as "starting Ray"; with "" when it is done."""
        self.seconds: dict[str, float] = {}
        self.began = self._since = time.perf_counter()
        self._open: list[tuple[str, str]] = []

    @property
    def total(self) -> float:
        """Seconds since this was made, those outside of every phase included."""
        return time.perf_counter() - self.began

    @property
    def innermost(self) -> str:
        """The name of the phase that goes on; "" if none does."""
        return self._open[-1][0] if self._open else ""

    @contextlib.contextmanager
    def heard(self) -> Iterator[Phases]:
        """Count and tell the phases that begin inside."""
        token = _listening.set(self)
        try:
            yield self
        finally:
            _listening.reset(token)

    @contextlib.contextmanager
    def during(self, name: str, text: str) -> Iterator[None]:
        """Count what is inside as a phase of this name; `text` says what is being done, "" nothing."""
        self._count()
        self._open.append((name, text))
        if text:
            self.tell(text)
        try:
            yield
        finally:
            self._count()
            self._open.pop()
            if text:
                self.tell(next((outer for _, outer in reversed(self._open) if outer), ""))

    def _count(self) -> None:
        now = time.perf_counter()
        if name := self.innermost:
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


_listening: ContextVar[Phases | None] = ContextVar("phases", default=None)


def listening() -> Phases | None:
    """Return the `Phases` that is told of phases now; None if there is none."""
    return _listening.get()


@contextlib.contextmanager
def phase(name: str, text: str | None = None) -> Iterator[None]:
    """Do what is inside as a phase of this name; `text` says more of it than the name, or with "" nothing."""
    phases = _listening.get()
    with contextlib.nullcontext() if phases is None else phases.during(name, name if text is None else text):
        yield


def say(name: str, text: str) -> None:
    """Say how far the phase `name` is, such as "8 of 64 workers are up"; nothing if another one, or none, goes on."""
    phases = _listening.get()
    if phases is not None and phases.innermost == name:
        phases.tell(text)


def parts_text(total: float, seconds: Mapping[str, float], always: str = "") -> str:
    """Say how long something took, and on what: "8.0 s: 4.2 s starting Ray, 1.1 s training, 2.7 s other". The parts add up. Small ones
    are left out, except the one that is `always` named."""
    size, unit, digits = (3600.0, "h", 2) if total >= 3 * 3600 else (60.0, "min", 1)
    if total < 300:
        size, unit, digits = 1.0, "s", 1 if total >= 2 and seconds.get(always, 1.0) >= 1 else 2
    whole = rest = round(total / size, digits)
    parts = []
    for name, spent in sorted(seconds.items(), key=lambda part: -part[1]):
        if (rounded := round(spent / size, digits)) and (name == always or rounded >= whole / 50):
            parts.append(f"{rounded:.{digits}f} {unit} {name}")
            rest -= rounded
    if round(rest, digits) > 0:
        parts.append(f"{rest:.{digits}f} {unit} other")
    return f"{whole:.{digits}f} {unit}" + (f": {', '.join(parts)}" if parts else "")
