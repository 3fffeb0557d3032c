"""Hooks for users: metrics of their own, from episodes (in the workers) and from iterations (in the driver)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callbacks:
    """Subclass this and pass it as `callbacks`. Each worker has its own copy; the driver has the original."""

    def on_episode_end(self, info: dict[str, Any]) -> Mapping[str, float] | None:
        """Called in the worker when a training episode ends.

        `info` is the environment's last info, plus episode_reward, episode_length, worker_index and stream_index.
        The numbers returned become metrics custom/<name>: each iteration reports their mean over its episodes.
        """

    def on_iteration(self, result: dict[str, float]) -> None:
        """Called in the driver after each iteration, before its result is logged. Entries may be added."""
