"""What a check of an environment has found: findings, facts, and both as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from raypid.check.finding import SEVERITIES, Finding, Severity
from raypid.check.screen import screen

FACTS = (
    "observation",
    "action",
    "reward",
    "episodes",
    "reset",
    "seeding",
    "step",
    "render",
    "info",
    "memory",
    "printed",
    "made_in_s",
    "vectorizers",
    "training",
)
"""Keys of `EnvReport.facts`, and of the JSON document. What was not reached is null there."""
FORMAT = 1


@dataclass(slots=True)
class EnvReport:
    """What `raypid.check_env` returns. Its repr is the screen of `raypid check-env`."""

    env: str
    """The name that was given."""
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """What was measured, by topic: the keys of `FACTS`, as far as they were reached (docs/environments.md has them)."""
    seconds: float = 0.0
    """How long the check took."""
    found: bool = True
    """Whether `env` names anything at all; else the only problem says what is wrong with the name."""

    @property
    def problems(self) -> list[Finding]:
        """What must be mended."""
        return self.of("problem")

    @property
    def warnings(self) -> list[Finding]:
        """What may be wrong."""
        return self.of("warning")

    @property
    def notes(self) -> list[Finding]:
        """What raypid copes with, or what is only good to know."""
        return self.of("note")

    @property
    def advice(self) -> list[str]:
        """What to do, as sentences with the settings that do it; the most important first."""
        return [f.advice for severity in SEVERITIES for f in self.of(severity) if f.advice]

    @property
    def ok(self) -> bool:
        """Whether there is no problem; there may be warnings."""
        return not self.problems

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity, in the order in which they were found."""
        return [f for f in self.findings if f.severity == severity]

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON can hold it: keys that do not change between versions, null for what is unknown."""
        found: dict[str, object] = {
            "format": FORMAT,
            "env": self.env,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            **{f"{severity}s": [asdict(f) for f in self.of(severity)] for severity in SEVERITIES},
            "advice": self.advice,
        }
        plain = _plain({**found, **{key: self.facts.get(key) for key in FACTS}})
        assert isinstance(plain, dict)
        return plain

    def screen(self, width: int, height: int | None = None) -> str:
        """The report in lines of at most `width` columns; only what fits into `height` lines, if that is given."""
        return screen(self.env, self.findings, self.facts, self.seconds, width, height)

    def __repr__(self) -> str:
        return self.screen(100)


def _plain(value: object) -> object:
    """Replace numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
