"""How a run ended: what `raypid.train`, `agent.fit` and the hook `on_end` give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from raypid.errors import reason
from raypid.names import METRICS, RESULTS, STOPS, STOPS_ANSWERED, Named
from raypid.registry import suggest

if TYPE_CHECKING:
    from raypid.nn.policy import DeployedPolicy


class NoSuchResult(KeyError):
    """A key that a result does not have."""

    __str__ = Exception.__str__  # a KeyError quotes its message


class Result(dict[str, float]):
    """What an iteration, or an evaluation, gave by name: a dict that says of a missing key what is meant.

    It is copied and pickled as a plain dict. `dict(result)` is one for programs that look at the exact type, as `yaml.safe_dump` does.
    """

    __slots__ = ()

    def __missing__(self, key: object) -> NoReturn:
        raise NoSuchResult(f"This result has no {key!r}. {self._meant(str(key))}")

    def __reduce__(self) -> tuple[type[dict[str, float]], tuple[dict[str, float]]]:
        return dict, (dict(self),)

    def _meant(self, key: str) -> str:
        """What a key is called here, or which is near."""
        last = key.rpartition("/")[2]
        name = STOPS.get(last) or METRICS.get(last, last)
        ours = STOPS.get(key) or (f"evaluation/{name}" if key.startswith(("eval/", "evaluation/")) else name)
        if ours in self:
            return f"It is {ours}."
        if told := RESULTS.get(key):
            return told
        if ours.startswith("evaluation/") and "training_iteration" in self:
            return f"{RESULTS['evaluation']} eval() evaluates now."
        by_last = {known.rpartition("/")[2]: known for known in self}
        if name in by_last:
            return f"It is {by_last[name]}."
        near = suggest(key, self) or [by_last[name] for name in suggest(last, by_last)]
        if near:
            return f"Did you mean {' or '.join(map(repr, near))}?"
        return STOPS_ANSWERED.get(key) or f"It has {', '.join(self)}."


@dataclass(slots=True, repr=False)
class Outcome(Named):
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
