"""A trained policy by itself: evaluation and video from its folder, without the run."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raypid.envs import EnvSpec, spaces, stream_seeds
from raypid.errors import UserError
from raypid.nn.policy import DeployedPolicy, as_tree, load_policy, read_policy_weights
from raypid.roles.evaluator import EVALUATION_INDEX, Evaluator
from raypid.roles.rollout import RolloutSpec
from raypid.runtime.resources import limit_threads
from raypid.types import tree_leaves

MAX_VIDEO_STEPS = 5000


def evaluate_policy(
    folder: Path, num_episodes: int, *, seed: int = 1, explore: bool = False, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, float], dict[str, Any]]:
    """Play episodes in the policy's environment: (`Evaluation.summary`, the policy's info, where `actions` says how they were chosen).

    overrides: fields of its environment to change.

    Raises:
        UserError: the environment is not there, or its spaces are not the policy's.
    """
    limit_threads(1)
    network, weights, info = read_policy_weights(folder)
    env = _environment(info, overrides)
    _check_spaces(network, env, folder)
    spec = RolloutSpec(env=env, network=network, fragment_length=1, seed=seed)
    evaluator = Evaluator(spec)
    try:
        summary = evaluator.evaluate(weights, num_episodes, seed, explore=explore).summary()
    finally:
        evaluator.close()
    info["env"]["env"] = env.env
    info["actions"] = "sampled" if explore else "greedy" if evaluator.policy.greedy else "the model's own"
    return summary, info


def _environment(info: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> EnvSpec:
    overrides = dict(overrides or {})
    values = {**info["env"], **overrides}
    values["env_config"] = {**info["env"]["env_config"], **overrides.get("env_config", {})}
    if str(values["env"]).startswith("__main__:"):
        raise UserError(
            f"This policy was trained in {values['env']}, a class of a script or notebook that is not there now. "
            "Name an environment that can be imported: --env module:Name."
        )
    return EnvSpec(**values)


def _check_spaces(network: Any, env: EnvSpec, folder: Path) -> None:
    from raypid.config import ModelConfig
    from raypid.nn.catalog import build_spec

    theirs = build_spec(*spaces(env), ModelConfig(network="auto"), frame_stack=network.pipeline.frame_stack)
    wanted = {leaf.path: leaf.shape for leaf in network.pipeline.leaves}
    given = {leaf.path: leaf.shape for leaf in theirs.pipeline.leaves}
    if wanted != given or [a.shape for a in network.actions] != [a.shape for a in theirs.actions]:
        raise UserError(
            f"The policy in {folder} takes observations {wanted}; {env.env} gives {given}, or its actions differ."
        )


def check_video(out: Path) -> None:
    """Can a film go to `out`? Known before a single episode is played.

    Raises:
        UserError: imageio is not installed, or an ending that is no film.
    """
    if out.suffix not in (".mp4", ".gif"):
        raise UserError(f"--video takes a file that ends in .mp4 or .gif, not {out.name!r}.")
    if importlib.util.find_spec("imageio") is None:
        raise UserError('Video needs imageio: pip install "raypid[video]".')


def record_video(
    folder: Path, out: Path, *, seed: int = 1, explore: bool = False, overrides: Mapping[str, Any] | None = None
) -> None:
    """Film one episode into a .mp4 or .gif. Environments that cannot draw are filmed through their image observation.

    Raises:
        UserError: imageio is not installed, an ending that is no film, or nothing to film.
    """
    check_video(out)
    for kind in ("VIDEO", "AUDIO"):  # pictures are taken without a screen; SDL complains where there is none
        os.environ.setdefault(f"SDL_{kind}DRIVER", "dummy")
    import imageio.v2 as imageio

    _, _, info = read_policy_weights(folder)
    env = _environment(info, overrides)
    policy = load_policy(folder, seed)
    frames, fps = _rendered(env, policy, seed, explore)
    if not frames:
        raise UserError(
            f"{env.env} cannot be filmed: it has no render_mode 'rgb_array' and its observation is no image."
        )
    height, width = (s - s % 2 for s in frames[0].shape[:2])  # video codecs take even sizes
    frames = [f[:height, :width] for f in frames]
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".gif":
        imageio.mimsave(out, frames, duration=1000 / fps, loop=0)
    else:
        imageio.mimsave(out, frames, fps=fps, macro_block_size=2)


def _rendered(env: EnvSpec, policy: DeployedPolicy, seed: int, explore: bool) -> tuple[list[Any], int]:
    """The frames of one episode, and frames a second."""
    from raypid.envs import make_vector
    from raypid.envs.render import frame_of, renderable

    spec = renderable(replace(env, num_envs=1, seed=seed, worker_index=EVALUATION_INDEX))
    vector = make_vector(spec)
    try:
        obs = vector.reset(stream_seeds(spec))  # as the evaluator's first stream
        frames: list[Any] = []
        for _ in range(MAX_VIDEO_STEPS):
            frame = frame_of(vector)
            frame = frame if frame is not None else _image_of(obs)
            if frame is None:
                return [], 1
            frames.append(frame)
            step = vector.step(as_tree(policy.act(obs, explore=explore)))
            obs = step.obs
            if (step.terminated | step.truncated).any():
                break
        return frames, 30
    finally:
        vector.close()


def _image_of(obs: Any) -> Any:
    """The first image of an observation, enlarged, as [H, W, 3]; None where there is none."""
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
