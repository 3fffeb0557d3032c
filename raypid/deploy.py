"""Evaluation and video of a saved policy, without the run that trained it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raypid.checkpoint import CheckpointError, refusing
from raypid.config import coerce
from raypid.envs import EnvSpec, spaces, stream_seeds
from raypid.errors import UserError
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import DeployedPolicy, as_tree, load_policy, read_policy_weights, try_policy
from raypid.roles.evaluator import EVALUATION_INDEX, Evaluator
from raypid.roles.rollout import RolloutSpec
from raypid.runtime.resources import limit_threads
from raypid.types import Array, Tree, tree_leaves

_ENV_HINTS = {
    "env": str, "env_config": dict, "vectorizer": str, "time_limit": int | None, "action_repeat": int, "atari": bool | None,
}  # fmt: skip
"""What policy.json says of the environment."""
MAX_VIDEO_STEPS = 5000
FPS = 30


def evaluate_policy(
    folder: Path, num_episodes: int, *, seed: int = 1, explore: bool = False, env: EnvSpec | None = None
) -> tuple[dict[str, float], dict[str, Any]]:
    """Play episodes with the policy in `folder`.

    Args:
        explore: sample actions as in training, in place of greedy ones.
        env: from `environment_of`; None: the environment that the policy was trained in.

    Returns:
        (`Evaluation.summary`, what policy.json says of the policy). The latter also has `actions`: how they were chosen.

    Raises:
        UserError: the environment cannot be found, or its spaces differ from the policy's.
    """
    limit_threads(1)
    network, weights, info = read_policy_weights(folder)
    try_policy(folder, network, weights)
    env = env or environment_of(folder)
    _check_spaces(network, env, folder)
    evaluator = Evaluator(RolloutSpec(env=env, network=network, fragment_length=1, seed=seed))
    try:
        summary = evaluator.evaluate(weights, num_episodes, seed, explore=explore).summary()
    finally:
        evaluator.close()
    info["env"]["env"] = env.env
    info.setdefault("algorithm", "unknown")
    info["actions"] = "sampled" if explore else "greedy" if evaluator.policy.greedy else "the model's own"
    return summary, info


def environment_of(folder: Path, env: str | None = None, env_config: Mapping[str, object] | None = None) -> EnvSpec:
    """The environment that the policy in `folder` was trained in, or `env` in its place; `env_config` is added to its arguments.

    Raises:
        UserError: it cannot be imported.
    """
    saved = read_policy_weights(folder)[2]
    with refusing(f"The policy {folder}", passing=CheckpointError):
        about: dict[str, Any] = {name: coerce(name, value, _ENV_HINTS[name]) for name, value in saved["env"].items()}
        spec = EnvSpec(**about)
    spec = replace(spec, env=env or spec.env, env_config={**spec.env_config, **(env_config or {})})
    if str(spec.env).startswith("__main__:"):
        raise UserError(
            f"This policy was trained in {spec.env}, a class of a script or notebook that cannot be imported here. "
            "Name an environment that can be: --env module:Name."
        )
    return spec


def _check_spaces(network: NetworkSpec, env: EnvSpec, folder: Path) -> None:
    from raypid.config import ModelConfig
    from raypid.nn.catalog import build_spec

    theirs = build_spec(*spaces(env), ModelConfig(network="auto"), frame_stack=network.pipeline.frame_stack)
    wanted = {leaf.path: leaf.shape for leaf in network.pipeline.leaves}
    given = {leaf.path: leaf.shape for leaf in theirs.pipeline.leaves}
    if wanted != given or [a.shape for a in network.actions] != [a.shape for a in theirs.actions]:
        raise UserError(
            f"The policy in {folder} takes observations {wanted}; {env.env} has {given}, or its actions differ."
        )


def check_video(out: Path) -> None:
    """Check that a video can be written to `out`, before any episode is played.

    Raises:
        UserError: imageio is not installed, or the ending is not that of a video.
    """
    if out.suffix not in (".mp4", ".gif"):
        raise UserError(f"--video takes a file that ends in .mp4 or .gif, not {out.name!r}.")
    if importlib.util.find_spec("imageio") is None:
        raise UserError('Video needs imageio: pip install "raypid[video]".')


def record_video(folder: Path, out: Path, env: EnvSpec, *, seed: int = 1, explore: bool = False) -> None:
    """Record one episode as a .mp4 or .gif; `env`, `seed` and `explore` as for `evaluate_policy`.

    Environments that cannot draw are shown by their image observation.

    Raises:
        UserError: imageio is not installed, the ending is not that of a video, or there is nothing to show.
    """
    check_video(out)
    for kind in ("VIDEO", "AUDIO"):  # frames are drawn without a screen, about which SDL would complain
        os.environ.setdefault(f"SDL_{kind}DRIVER", "dummy")
    import imageio.v2 as imageio

    frames = _rendered(env, load_policy(folder, seed), seed, explore)
    if not frames:
        raise UserError(
            f"{env.env} cannot be filmed: it has no render_mode 'rgb_array' and its observation is not an image."
        )
    height, width = (s - s % 2 for s in frames[0].shape[:2])  # video codecs need even sizes
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {"duration": 1000 / FPS, "loop": 0} if out.suffix == ".gif" else {"fps": FPS, "macro_block_size": 2}
    imageio.mimsave(out, [f[:height, :width] for f in frames], **options)


def _rendered(env: EnvSpec, policy: DeployedPolicy, seed: int, explore: bool) -> list[Array]:
    """The frames [H, W, 3] of one episode; empty if the environment cannot be drawn."""
    from raypid.envs import make_vector
    from raypid.envs.render import frame_of, renderable

    spec = renderable(replace(env, num_envs=1, seed=seed, worker_index=EVALUATION_INDEX))
    vector = make_vector(spec)
    try:
        obs = vector.reset(stream_seeds(spec))  # those of the evaluator's first stream
        frames: list[Array] = []
        for _ in range(MAX_VIDEO_STEPS):
            frame = frame_of(vector)
            image = frame if frame is not None else _image_of(obs)
            if image is None:
                return []
            frames.append(image)
            step = vector.step(as_tree(policy.act(obs, explore=explore)))
            obs = step.obs
            if (step.terminated | step.truncated).any():
                break
        return frames
    finally:
        vector.close()


def _image_of(obs: Tree) -> Array | None:
    """The first image of an observation, enlarged, as [H, W, 3]; None if it has no image."""
    for _, x in tree_leaves(obs):
        if x.dtype != np.uint8 or x[0].ndim not in (2, 3):
            continue
        image = x[0] if x[0].ndim == 2 else (x[0] if x[0].shape[-1] == 3 else x[0][-1])
        if image.max() <= 1:
            image = image * 255
        scale = max(1, 240 // max(image.shape[:2]))
        image = image.repeat(scale, 0).repeat(scale, 1)
        return image if image.ndim == 3 else np.repeat(image[..., None], 3, -1)
    return None
