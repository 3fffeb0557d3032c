"""Frames of an environment, for video."""

from __future__ import annotations

import inspect
from dataclasses import replace

from raypid.envs.env_spec import EnvSpec
from raypid.envs.make import choose_vectorizer
from raypid.envs.python_vector import PythonVector
from raypid.envs.resolve import GYM, resolve
from raypid.envs.vector import VectorEnv
from raypid.types import Array


def renderable(spec: EnvSpec) -> EnvSpec:
    """Change a spec so that its environments can render; EnvPool's and ALE's vectors stay as they are."""
    resolved = resolve(spec.env)
    if choose_vectorizer(spec, resolved) in ("envpool", "ale") or resolved.kind == "vector_class":
        return spec
    if resolved.kind not in GYM and "render_mode" not in inspect.signature(resolved.creator).parameters:
        return replace(spec, vectorizer="sync")
    return replace(spec, vectorizer="sync", env_config={**spec.env_config, "render_mode": "rgb_array"})


def frame_of(vector: VectorEnv) -> Array | None:
    """Render the first stream: [H, W, 3] uint8, or None where it cannot render."""
    env: object = vector.envs[0] if isinstance(vector, PythonVector) else None
    if getattr(env, "render_mode", None) == "rgb_array" and hasattr(env, "render"):
        return env.render()
    return None
