"""What messages about resources call the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Names of workers and settings in messages. The defaults are those of the command line."""

    worker: str = "worker"
    flags: bool = True
    """Write settings that would fit as flags (--num-workers 3), not as keywords (num_workers=3)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Setting -> its name where that differs."""
    driver_learns: int = 0
    """The num_learners at which the driver learns."""

    def workers(self, num: int) -> str:
        """Count workers: "1 worker", "3 workers"."""
        return f"{num} {self.worker}{'s' * (num != 1)}"

    def setting(self, name: str, value: float | bool) -> str:
        """A setting as a keyword: "num_workers=3"."""
        if name == "num_learners":
            value = max(value, self.driver_learns)
        return f"{self.names.get(name, name)}={_text(value)}"

    def option(self, name: str, value: float | bool) -> str:
        """A setting as the user gives it: "--num-workers 3", "--fit", or as a keyword."""
        if not self.flags:
            return self.setting(name, value)
        return f"--{name.replace('_', '-')}" + ("" if isinstance(value, bool) else f" {_text(value)}")


def _text(value: float | bool) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


COMMAND_LINE = Words()
