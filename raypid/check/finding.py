"""One thing that a check of an environment has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a user may want to know."""

    severity: Severity
    """problem: training would fail or learn something wrong. warning: it may. note: raypid copes, or it is only good to know."""
    topic: str
    text: str
    advice: str = ""
    """What to do, with the setting that does it."""
    where: str = ""
    """The user's line, as "file:line in function"."""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return " ".join(filter(None, [f"{self.topic}: {self.text}{place}", self.advice]))
