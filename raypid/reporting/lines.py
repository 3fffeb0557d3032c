"""What DistributedAgent prints while it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Lines:
    """A line of numbers every `interval` iterations and for each evaluation; messages and a summary. Nothing with 0."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._lost = 0.0

    def start(self, run_info: Mapping[str, Any]) -> None:
        self.message(f"{run_info['algorithm']} on {run_info['env']}, folder {run_info['folder']}")

    def update(self, result: Mapping[str, Any]) -> None:
        lost = {k.removeprefix("lost/").replace("_", " "): v for k, v in result.items() if k.startswith("lost/") and v}
        if sum(lost.values()) > self._lost:
            self._lost = sum(lost.values())
            self.message("lost so far: " + ", ".join(f"{name} {count:g}" for name, count in lost.items()))
        mean = result.get("evaluation/episode_reward_mean")
        if not self.interval or (mean is None and result["training_iteration"] % self.interval):
            return
        cells = [
            f"steps {result['timesteps_total']:,}",
            f"updates {result['learner_updates_total']:,}",
            f"training return {result['episode_reward_mean']:.1f}",
            f"{result['env_steps_per_s']:,.0f} steps/s",
        ]
        if mean is not None:
            cells.append(f"evaluation return {mean:.1f} ± {result['evaluation/episode_reward_ci95']:.1f}")
        self.message("  ".join(cells))

    def message(self, text: str) -> None:
        if self.interval:
            print(text, flush=True)

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        for name, text in summary:
            if "--resume" not in text:  # that knows nothing of a subclass
                self.message(f"{name:16}{text}")
