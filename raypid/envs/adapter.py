"""Environments that are written without Gymnasium's interface: `OBSERVATION` in place of its tuples, `args` in place of keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium


class OBSERVATION(NamedTuple):
    """What `reset` and `step` of an environment return. A reset uses the observation and the info.

    `OBSERVATION(obs)` after a reset, `OBSERVATION(obs, reward, terminated, truncated)` after a step.
    """

    observation: Any
    """As observation_space says."""
    reward: float = 0.0
    """Reward of the step that led here."""
    terminated: bool = False
    """The episode has ended, and its value is known: nothing follows."""
    truncated: bool = False
    """The episode was cut off: more would have followed."""
    info: Mapping[str, Any] = {}
    """Anything else, by name."""


class Adapted(gymnasium.Env[Any, Any]):
    """An environment of any class as a Gymnasium environment.

    `reset` may lack `seed`; then `seed(n)` is called before it, if there is one. Both methods may return OBSERVATION; all else that
    they return goes on as it is, to those who check it.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render_mode = getattr(env, "render_mode", None)
        self._takes_seed = takes(env.reset, "seed")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._takes_seed:
            result = self.env.reset(seed=seed)
        else:
            if seed is not None and callable(getattr(self.env, "seed", None)):
                self.env.seed(seed)
            result = self.env.reset()
        return (result.observation, dict(result.info)) if isinstance(result, OBSERVATION) else result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        return tuple(result) if isinstance(result, tuple) else result

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        if callable(getattr(self.env, "close", None)):
            self.env.close()


def takes(function: Callable[..., object], name: str) -> bool:
    """Whether a function takes a keyword, as far as its signature says."""
    names = parameters(function)
    return name in names or any(p.kind is p.VAR_KEYWORD for p in names.values())


def parameters(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable, without those that @ray.remote adds; empty if it does not tell."""
    try:
        return {name: p for name, p in inspect.signature(function).parameters.items() if not name.startswith("_ray_")}
    except (TypeError, ValueError):
        return {}


def required(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The positional parameters of a callable that have no default, as far as its signature says."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters(function).values() if p.default is p.empty and p.kind in kinds]


def is_seeded(env: Any) -> bool:
    """Whether a run can choose what happens in this environment: by `reset(seed=...)`, or by `seed(n)`."""
    inner = getattr(env, "unwrapped", env)
    return not isinstance(inner, Adapted) or inner._takes_seed or callable(getattr(inner.env, "seed", None))
