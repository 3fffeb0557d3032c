"""`gym_env`: the Gymnasium environment that the option --env_id names."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import gymnasium

NAME = "gym_env"
DEFAULT_ID = "CartPole-v1"


def gym_env(env_id: str = DEFAULT_ID, **more: object) -> gymnasium.Env[object, object]:
    """Make a Gymnasium environment."""
    return gymnasium.make(env_id, **more)  # type: ignore[arg-type]


def add_args(parser: argparse.ArgumentParser) -> None:
    """Declare --env_id."""
    parser.add_argument("--env_id", default=DEFAULT_ID, help="id of the Gymnasium environment")


gym_env.add_args = staticmethod(add_args)  # type: ignore[attr-defined]


def by_id(env: object, env_config: Mapping[str, object]) -> tuple[object, dict[str, object]]:
    """Replace gym_env by the id in `env_config`, which is vectorised in the fastest way for it; return others as they are."""
    config = dict(env_config)
    return (config.pop("env_id", DEFAULT_ID), config) if env == NAME else (env, config)
