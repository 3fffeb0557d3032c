"""The policy that scored highest in evaluation: its weights are kept in best/, and it plays once more at the end of the run."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from raypid.nn.policy import read_policy_weights
from raypid.phases import Tell
from raypid.run.evaluation import Interrupted, Played
from raypid.run.training import Training
from raypid.storage.checkpoint import BEST, OLD_BEST, CheckpointError, refusing
from raypid.types import Weights

MIN_FINAL_EPISODES = 10
MIN_FINAL_S, MAX_FINAL_S = 1.0, 60.0
"""Bounds of the seconds for the final episodes, which may otherwise take as long as the run did."""
_FINAL = ("episode_reward_mean", "episode_reward_ci95", "episodes")
_FINAL_SEED = 1_000_000_000
"""Seeds the final episodes, which must differ from those by which the policy was chosen."""


class BestPolicy:
    """The policy that scored highest in evaluation so far; the newest in a tie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / BEST
        self.score: float | None = None
        self.weights: Weights | None = None
        self.timesteps = 0
        self.final: dict[str, float] | None = None
        """Mean, ci95 and number of the final episodes; None if these weights have not played any."""
        self._episode_s = math.inf

    def load(self) -> None:
        """Load the best policy of a run that is resumed."""
        for folder in (self.folder, self.folder.with_name(OLD_BEST)):
            with contextlib.suppress(CheckpointError), refusing(f"The policy {folder}"):
                _, weights, info, _ = read_policy_weights(folder)
                if info.get("score") is not None:
                    self.score, self.timesteps = float(info["score"]), int(info["timesteps_total"])
                    if (final := info.get("final")) is not None:
                        self.final = {k: math.nan if final[k] is None else final[k] + 0 for k in _FINAL}
                    self.weights = weights
                return

    def offer(self, played: Played, agent: Training) -> None:
        """Keep the weights of an evaluation if they are the best so far."""
        evaluation = played.evaluation
        score, episodes = float(evaluation.rewards.mean()), len(evaluation.rewards)
        self._episode_s = evaluation.seconds / episodes
        if self.score is not None and not score >= self.score:
            return
        self.score, self.timesteps = score, played.timesteps
        self.weights = agent.backend.get(played.weights)
        self.final = _final(evaluation.summary()) if evaluation.confirms else None

    def write(self, agent: Training) -> None:
        """Write the policy into its folder, or the newest policy if none was evaluated."""
        info = {"score": self.score, "timesteps_total": self.timesteps, "final": self.final}
        agent.write_policy(self.folder, self.weights, None if self.weights is None else info)

    def play(self, agent: Training, num_episodes: int, run_s: float, interrupted: Interrupted, tell: Tell) -> None:
        """Play the final episodes and set `final`, unless these weights have already played that many since they were chosen.

        The newest weights play the same episodes and become the best if they do better. If `num_episodes` would take longer than
        the `run_s` seconds of the run, or than MAX_FINAL_S, fewer are played, but at least MIN_FINAL_EPISODES. If interrupted, `final`
        stays as it was.
        """
        most_s = min(max(run_s, MIN_FINAL_S), MAX_FINAL_S)
        num = min(num_episodes, max(MIN_FINAL_EPISODES, int(most_s / max(self._episode_s, 1e-9))))
        if self.weights is None or num == 0 or (self.final is not None and self.final["episodes"] >= num):
            return
        if math.inf > num * self._episode_s > MAX_FINAL_S / 10:
            tell(f"Playing {num} episodes with the best policy; Ctrl-C skips them.")
        seed = (agent.config.seed or 0) + _FINAL_SEED
        played = agent.evaluations.play(self.weights, num, seed, interrupted)
        if played is None:
            if not interrupted():
                tell("No final episodes: the process that played them was lost (errors.txt says how).")
            return
        newest = agent.get_weights()
        if newest.version != self.weights.version:
            # the best was chosen by few episodes: is it better than the newest on the same ones?
            rival = agent.evaluations.play(newest, num, seed, interrupted)
            if rival is not None and rival.rewards.mean() > played.rewards.mean():
                played, self.weights, self.timesteps = rival, newest, agent.timesteps
                self.score = float(rival.rewards.mean())
        self.final = _final(played.summary())
        self.write(agent)

    def line(self) -> str:
        """One line for the summary of a run."""
        assert self.score is not None
        where = f"weights of step {self.timesteps:,}"
        if self.final is None:
            return f"{return_text(self.score)} in evaluation ({where})"
        mean, half = self.final["episode_reward_mean"], self.final["episode_reward_ci95"]
        interval = f" ± {return_text(half, mean)}" if half is not None and math.isfinite(half) else ""
        return f"{return_text(mean)}{interval} ({self.final['episodes']} episodes, {where})"


def _final(summary: dict[str, float]) -> dict[str, float]:
    return {key: summary[key] for key in _FINAL}


def return_text(value: float, size: float | None = None) -> str:
    """A mean return as text, such as 213.4 or -1,324.9, with the decimals that suit a number of this size (default: its own)."""
    size = abs(value if size is None else size)
    if 0 < size < 0.05 or size >= 1e9:
        return f"{value:.4g}"
    return f"{value:,.{1 if size >= 10 else 2}f}"
