"""The interface of vectorised environments: many streams of one environment, ends and resets made uniform.

Axes: B streams; k streams whose episode ended in this step; * event shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import gymnasium

from raypid.spaces import Space
from raypid.types import Array, Tree

Info: TypeAlias = "dict[str, object]"


PythonEnv: TypeAlias = "gymnasium.Env[object, object]"
"""Or what has its interface; the vector checks the results."""


@dataclass(slots=True)
class Step:
    """One step of all streams. Every array is fresh: the caller may keep it."""

    obs: Tree
    """[B, *] what the policy acts on next."""
    reward: Array
    """[B] float32, raw; 0 where not valid."""
    terminated: Array
    """[B] bool."""
    truncated: Array
    """[B] bool."""
    valid: Array
    """[B] bool: False where this row is not a real transition (a NEXT_STEP reset, a crashed step)."""
    first: Array
    """[B] bool: obs[b] begins an episode."""
    final: tuple[Array, Tree] | None = None
    """(streams [k] int64, true last observations [k, *]) of episodes that were reset within this step."""
    infos: dict[int, Mapping[str, object]] = field(default_factory=dict)
    """Stream -> info, for exactly the streams whose episode ended in this step, in order."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of environments that raised and were rebuilt since the last step."""


class VectorEnv(ABC):
    """B streams of one environment. The spaces are those of ONE environment."""

    num_envs: int
    observation_space: Space
    action_space: Space
    vectorizer: str
    """What steps the environments: native, envpool, ale, sync, async or threads; never auto."""

    @abstractmethod
    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Begin an episode in every stream and return the observations [B, *].

        Without seeds, the first call uses those of the spec; later the environments draw on from their own generators.

        Raises:
            EnvError: an observation does not fit the space, or an environment raises again and again.
        """

    @abstractmethod
    def step(self, action: Tree) -> Step:
        """Step all environments with `action` [B, *]: what one takes, stacked; Dict and Tuple spaces as nested dicts.

        Raises:
            EnvError: an observation or reward does not fit or is not finite, or an environment cannot be rebuilt.
        """

    @abstractmethod
    def close(self) -> None:
        """Release environments, threads and processes. Calling it twice is fine."""
