"""How a run ended: what `raypid.train`, `agent.fit` and the hook `on_end` give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.errors import reason

if TYPE_CHECKING:
    from raypid.nn.policy import DeployedPolicy


@dataclass(slots=True, repr=False)
class Outcome:
    """How a run ended, and where it is. `load_policy()` gives the best policy."""

    reason: str
    """Why it ended: the stop criterion that was reached with its value, "interrupted", or the error."""
    result: dict[str, float]
    """The last iteration's result, with the keys of result.json."""
    folder: Path
    checkpoint: Path | None
    """The newest checkpoint; None if nothing was saved."""
    interrupted: bool = False
    """Whether Ctrl-C (in a notebook: interrupting the kernel) or SIGTERM ended it."""
    final: dict[str, float] | None = None
    """episode_reward_mean, episode_reward_ci95 and episodes of the best policy, if it played at the end."""
    best: float | None = None
    """The best mean return of an evaluation; None if there was none."""
    error: BaseException | None = None
    """What ended it, for `on_end`; None if it ended as it should."""

    def load_policy(self, seed: int | None = None) -> DeployedPolicy:
        """Load the best policy of the run, as `raypid.load_policy(outcome.folder)` does. `seed` is for `act(explore=True)`.

        Raises:
            CheckpointError: the run has saved none.
        """
        from raypid.nn.policy import load_policy

        return load_policy(self.folder, seed)

    def __repr__(self) -> str:
        """What matters, on one line: why it ended, the best return, how far it came, where it is."""
        parts = [repr(self.reason)]
        if self.final is not None:
            mean, half = self.final["episode_reward_mean"], self.final["episode_reward_ci95"]
            interval = f" ± {half:.4g}" if half is not None and math.isfinite(half) else ""
            parts.append(f"best policy {mean:.4g}{interval} in {self.final['episodes']:.0f} episodes")
        elif self.best is not None:
            parts.append(f"best policy {self.best:.4g} in evaluation")
        if "timesteps_total" in self.result:
            parts.append(f"{self.result['timesteps_total']:,.0f} steps")
        return f"<Outcome {', '.join([*parts, f'folder {self.folder}'])}>"


def end_by(error: BaseException) -> str:
    """What `Outcome.reason` says of an error that ended a run."""
    if not isinstance(error, Exception):  # a second Ctrl-C
        return "stopped at once"
    return f"{type(error).__name__}: {reason(error)}"
