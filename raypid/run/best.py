"""The best policy of a run by evaluation: the weights that were evaluated, kept apart in best/, and played once more at the end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raypid.checkpoint import BEST, OLD_BEST, CheckpointError
from raypid.nn.policy import read_policy_weights
from raypid.run.agent import Agent
from raypid.run.evaluation import Played
from raypid.types import Weights

MIN_FINAL_EPISODES = 10
MAX_FINAL_S = 60.0
_FINAL_SEED = 1_000_000_000
"""The final episodes are none of those that chose the policy."""


class BestPolicy:
    """What scored highest in evaluation so far; of equal ones the newest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / BEST
        self.score: float | None = None
        self.weights: Weights | None = None
        self.timesteps = 0
        self.final: dict[str, Any] | None = None
        """Mean, ci95 and number of the episodes played at the end; None where these weights have not played any."""
        self._episode_s = math.inf

    def load(self) -> None:
        """Go on with what an earlier part of the run has left."""
        for folder in (self.folder, self.folder.with_name(OLD_BEST)):
            with contextlib.suppress(CheckpointError):
                _, weights, info = read_policy_weights(folder)
                if info.get("score") is not None:
                    self.score, self.weights = info["score"], weights
                    self.timesteps, self.final = info["timesteps_total"], info.get("final")
                return

    def offer(self, played: Played, agent: Agent) -> None:
        """Take over what was evaluated, if it is the best."""
        evaluation = played.evaluation
        score, episodes = float(evaluation.rewards.mean()), len(evaluation.rewards)
        self._episode_s = evaluation.seconds / episodes
        if self.score is not None and not score >= self.score:
            return
        self.score, self.timesteps = score, played.timesteps
        self.weights = agent.backend.get(played.weights)
        self.final = _final(evaluation.summary()) if evaluation.confirms else None

    def write(self, agent: Agent) -> None:
        """Into its folder; the newest policy where none was evaluated."""
        if self.weights is None:
            agent.write_policy(self.folder)
            return
        info = {"score": self.score, "timesteps_total": self.timesteps, "final": self.final}
        agent.write_policy(self.folder, self.weights, info)

    def play(self, agent: Agent, num_episodes: int, *, hurry: Callable[[], bool], tell: Callable[[str], None]) -> None:
        """The final episodes, unless these weights have played as many since they were chosen; what comes out is `final`.
        The newest weights play the same episodes, and are the best if they do better.

        They are fewer, but MIN_FINAL_EPISODES, where as many would take over MAX_FINAL_S. Ends without a result once there is a hurry.
        """
        fit = max(MIN_FINAL_EPISODES, int(min(num_episodes, MAX_FINAL_S / max(self._episode_s, 1e-9))))
        num = min(num_episodes, fit)
        if self.weights is None or num == 0 or (self.final is not None and self.final["episodes"] >= num):
            return
        if math.inf > num * self._episode_s > MAX_FINAL_S / 10:
            tell(f"Playing {num} episodes with the best policy; Ctrl-C skips them.")
        seed = agent.config.seed + _FINAL_SEED
        played = agent.evaluations.play(self.weights, num, seed, hurry)
        if played is None:
            return
        newest = agent.get_weights()
        if (
            newest.version != self.weights.version
        ):  # chosen by few episodes: is it better than the newest on the same ones?
            rival = agent.evaluations.play(newest, num, seed, hurry)
            if rival is not None and rival.rewards.mean() > played.rewards.mean():
                played, self.weights, self.timesteps = rival, newest, agent.context.timesteps
                self.score = float(rival.rewards.mean())
        self.final = _final(played.summary())
        self.write(agent)

    def line(self) -> str:
        """One line for the summary of a run."""
        assert self.score is not None
        where = f"weights of step {self.timesteps:,}"
        if self.final is None:
            return f"{_number(self.score, self.score)} in evaluation ({where})"
        mean, half = self.final["episode_reward_mean"], self.final["episode_reward_ci95"]
        interval = f" ± {_number(half, mean)}" if half is not None and math.isfinite(half) else ""
        return f"{_number(mean, mean)}{interval} ({self.final['episodes']} episodes, {where})"


def _final(summary: dict[str, float]) -> dict[str, Any]:
    return {key: summary[key] for key in ("episode_reward_mean", "episode_reward_ci95", "episodes")}


def _number(x: float, size: float) -> str:
    return f"{x:,.{1 if abs(size) >= 10 else 2}f}"
