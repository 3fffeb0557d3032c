"""Hooks for users: metrics of their own, from episodes (in the workers) and from iterations (in the driver)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callbacks:
    """Subclass it and give it as `callbacks`. Each worker has a copy of its own; the driver has the original."""

    def on_episode_end(self, info: dict[str, Any]) -> Mapping[str, float] | None:
        """Called in the worker when a training episode ends.

        `info` is the environment's last info with episode_reward, episode_length, worker_index and stream_index added.
        Numbers that are returned become metrics: the result of an iteration has their mean over its episodes.
        """

    def on_iteration(self, result: dict[str, Any]) -> None:
        """Called in the driver after each iteration, with the result before it is logged; entries may be added."""
