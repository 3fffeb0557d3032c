"""Pictures of an environment, for video."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from raypid.envs.env_spec import EnvSpec
from raypid.envs.make import choose_vectorizer
from raypid.envs.python_vector import PythonVector
from raypid.envs.resolve import resolve
from raypid.envs.vector import VectorEnv


def renderable(spec: EnvSpec) -> EnvSpec:
    """The same environments, made so that they can draw; EnvPool's and ALE's vectors stay as they are."""
    resolved = resolve(spec.env)
    if choose_vectorizer(spec, resolved) in ("envpool", "ale") or resolved.kind == "vector_class":
        return spec
    if resolved.kind != "gym" and "render_mode" not in inspect.signature(resolved.target).parameters:
        return replace(spec, vectorizer="sync")
    return replace(spec, vectorizer="sync", env_config={**spec.env_config, "render_mode": "rgb_array"})


def frame_of(vector: VectorEnv) -> Any:
    """The picture [H, W, 3] uint8 of the first stream; None where it cannot draw."""
    if not isinstance(vector, PythonVector):
        return None
    env = vector._envs[0]
    return env.render() if getattr(env, "render_mode", None) == "rgb_array" else None
