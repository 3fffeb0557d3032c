"""What raypid's vectors share: they check what environments return, replace those that raise, and name the culprit in errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from raypid.envs.env_spec import EnvSpec, stream_seeds
from raypid.envs.errors import EnvError, user_traceback
from raypid.envs.observation_checks import ObservationError, ObservationLayout, check_rewards
from raypid.envs.vector import Step, VectorEnv
from raypid.spaces import Space, space_leaves
from raypid.types import Array, Tree

MAX_REBUILDS = 3
"""Failed attempts in a row after which an environment, or a vector of them, is given up."""


class CheckedVector(VectorEnv):
    """A VectorEnv whose errors name the environment, the stream and the step."""

    def __init__(self, spec: EnvSpec, name: str) -> None:
        self._spec, self._name = spec, name
        self.num_envs = spec.num_envs
        self._num_steps = 0
        self._crashes: list[str] = []
        self._seeded = False

    def _set_spaces(self, observation_space: Space, action_space: Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        space_leaves(action_space, "action")
        self._layout = ObservationLayout(observation_space)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        with self._located():
            return self._reset(seeds)

    def step(self, action: Tree) -> Step:
        self._num_steps += 1
        with self._located():
            step = self._step(action)
            check_rewards(step.reward)
        step.crashes, self._crashes = self._crashes, []
        return step

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
        self._layout.check(arrays)
        if of_reset:
            self._layout.check_bounds(arrays)
        return self._layout.tree(arrays)

    @contextmanager
    def _located(self, streams: Array | None = None, inside: str = "") -> Iterator[None]:
        """Say where an observation was wrong; `streams` are those of the rows, where some are missing."""
        try:
            yield
        except ObservationError as error:
            stream = error.row if streams is None or error.row is None else int(streams[error.row])
            raise EnvError(f"{self._where(stream)}: {inside}{error}") from None

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
            except Exception:
                text = user_traceback()
        raise EnvError(
            f"{self._where(stream)}: it raised and could not be rebuilt in {MAX_REBUILDS} attempts. The last:\n{text}"
        )
