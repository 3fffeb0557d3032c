"""The interface of vectorised environments: many streams of one environment, ends and resets made uniform.

Axes: B streams; k streams whose episode ended in this step; * event shape.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from raypid.envs.env_spec import EnvSpec, stream_seeds
from raypid.envs.errors import HEAD, EnvError, reraise_signal, user_traceback
from raypid.envs.infos import Info
from raypid.envs.observation_checks import ObservationError, ObservationLayout
from raypid.envs.results import reward_number
from raypid.spaces import Space, space_leaves
from raypid.types import Array, Tree

# what overflows is a reward, of which `VectorEnv.step` says more
warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning, r"raypid\.envs\.")
MAX_REBUILDS = 3
"""Failed attempts in a row after which an environment, or a vector of them, is given up."""
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
    infos: dict[int, Info] = field(default_factory=dict)
    """Stream -> info, for exactly the streams whose episode ended in this step, in order."""
    cut: list[int] = field(default_factory=list)
    """Streams, of those in `infos`, whose episode was cut early (`EnvSpec.staggers`): its return says nothing."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of environments that raised and were rebuilt since the last step."""


class VectorEnv(ABC):
    """B streams of one environment. The spaces are those of ONE environment.

    It checks what the environments return, replaces those that raise, and names environment, stream and step in errors.
    """

    observation_space: Space
    action_space: Space
    vectorizer: str
    """What steps the environments: native, envpool, ale, sync, async or threads; never auto."""
    is_seeded = True
    """Whether seeds decide what happens in the environments."""
    time_limit = math.inf
    """Steps after which Gymnasium's TimeLimit cuts an episode; infinite where there is none."""

    def __init__(self, spec: EnvSpec, name: str) -> None:
        self._spec, self._name = spec, name
        self.num_envs = spec.num_envs
        self._num_steps = 0
        self._crashes: list[str] = []
        self._given: Array = np.zeros(0)
        """The rewards [B] of the last step before they became float32."""
        self._seeded = False

    def _set_spaces(self, observation_space: Space, action_space: Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        space_leaves(action_space, "action")
        self._layout = ObservationLayout(observation_space)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Begin an episode in every stream and return the observations [B, *].

        Without seeds, the first call uses those of the spec; later the environments draw on from their own generators.

        Raises:
            EnvError: an observation does not fit the space, or an environment raises again and again.
        """
        with self._located():
            return self._reset(seeds)

    def step(self, action: Tree) -> Step:
        """Step all environments with `action` [B, *]: what one takes, stacked; Dict and Tuple spaces as nested dicts.

        Raises:
            EnvError: an observation or reward does not fit or is not finite, or an environment cannot be rebuilt.
        """
        self._num_steps += 1
        try:  # not `_located`: this runs at each step
            step = self._step(action)
            check_rewards(step.reward, self._given)
        except ObservationError as error:
            raise EnvError(f"{self._where(error.row)}: {error}") from None
        step.crashes, self._crashes = self._crashes, []
        return step

    @abstractmethod
    def close(self) -> None:
        """Release environments, threads and processes. Calling it twice is fine."""

    @abstractmethod
    def _reset(self, seeds: Sequence[int] | None) -> Tree: ...

    @abstractmethod
    def _step(self, action: Tree) -> Step:
        """Step all environments; `step` checks the rewards and adds the crashes."""

    def _seeds(self, seeds: Sequence[int] | None) -> Sequence[int] | None:
        """The seeds of a reset: those given; for the first reset, else those of the spec."""
        first, self._seeded = not self._seeded, True
        return stream_seeds(self._spec) if seeds is None and first else seeds

    def _checked(self, arrays: list[Array], *, of_reset: bool = False) -> Tree:
        """Check observations [B, *] and arrange them as a tree."""
        self._layout.check(arrays, of_reset=of_reset)
        return self._layout.tree(arrays)

    def _rewards(self, rewards: Any) -> Array:
        """Convert the rewards of a step to float32 [B]; each is a number, or an array of one.

        Raises:
            ObservationError: one is something else.
        """
        try:
            array = np.asarray(rewards)
        except (TypeError, ValueError, RuntimeError):  # such as arrays of several shapes
            array = np.empty(len(rewards), object)
        if array.dtype.kind not in "biuf" or array.size != self.num_envs:
            if array.shape[:1] != (self.num_envs,):
                raise ObservationError(f"the rewards have shape {array.shape} for {self.num_envs} environments.")
            array = np.array([reward_number(reward, stream) for stream, reward in enumerate(rewards)])
        self._given = array if array.ndim == 1 else array.reshape(self.num_envs)
        return self._given.astype(np.float32)

    @contextmanager
    def _located(self, streams: Array | None = None) -> Iterator[None]:
        """Say where an observation was wrong; `streams` are those of the rows, where some are missing."""
        try:
            yield
        except ObservationError as error:
            stream = error.row if streams is None or error.row is None else int(streams[error.row])
            raise EnvError(f"{self._where(stream)}: {error}") from None

    def _where(self, stream: int | None = None) -> str:
        which = "" if stream is None else f", stream {stream}"
        return f"Environment {self._name}{which}, step {self._num_steps}"

    def _replaced(self, replace: Callable[[], object], stream: int | None = None) -> object:
        """Call `replace` for what has just raised, until it succeeds; returns its result.

        Raises:
            EnvError: it raised in every attempt.
        """
        text = user_traceback()
        self._crashes.append(f"{self._where(stream)}:\n{text}")
        for _ in range(MAX_REBUILDS):
            try:
                return replace()
            except BaseException as error:
                reraise_signal(error)
                said = str(error)
                told = isinstance(error, EnvError) and said.startswith(HEAD)  # it has the user's traceback already
                text = said.removeprefix(HEAD).partition("\nraypid: ")[0] if told else user_traceback()
        raise EnvError(f"{HEAD}{text}\nraypid: {self._where(stream)}: could not be rebuilt in {MAX_REBUILDS} attempts.")


def check_rewards(reward: Array, given: Array) -> None:
    """Check the rewards of a step, float32 [B]; `given` are the numbers that the environments returned.

    Raises:
        ObservationError: one is not finite.
    """
    if not math.isfinite(sum(reward.tolist())):  # Python's floats overflow later, and without a warning
        for stream in np.flatnonzero(~np.isfinite(reward)).tolist():
            reward_number(given[stream], stream)
