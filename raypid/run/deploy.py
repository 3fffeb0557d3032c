"""Evaluation and video of a saved policy, without the run that trained it."""

from __future__ import annotations

import errno
import inspect
import math
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raypid.envs import EnvSpec, VectorEnv, make_vector, resolve, spaces, stream_seeds
from raypid.envs.creators import is_envpool_atari
from raypid.envs.make import choose_vectorizer
from raypid.envs.python_vector import PythonVector
from raypid.envs.resolve import GYM
from raypid.envs.screen import choose_mujoco_gl, hide_pygame
from raypid.errors import UserError, reason, shown
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import DeployedPolicy, check_network_name, load_policy, read_policy_weights, try_policy
from raypid.plugins.extras import need
from raypid.plugins.trust import check_names
from raypid.roles.acting import RolloutSpec
from raypid.roles.evaluator import EVALUATION_INDEX, MAX_STREAMS, Evaluator, Order
from raypid.roles.setup import WorkerSetup
from raypid.runtime.resources import limit_threads
from raypid.settings.config import coerce
from raypid.storage.checkpoint import CheckpointError, find_policy, refusing
from raypid.storage.outputs import check_file_writable, replacing, usable
from raypid.types import Array, Tree, as_tree, tree_leaves, tree_map

_ENV_HINTS = {
    "env": str, "env_config": dict, "args": dict, "vectorizer": str, "time_limit": int | None, "action_repeat": int, "atari": bool | None,
    "worker_index": int, "num_envs": int,
}  # fmt: skip
"""What policy.json says of the environment."""
VIDEOS = (".mp4", ".gif")
MAX_VIDEO_STEPS = 5000
FPS = 30.0
"""Frames a second of a video of an environment that does not say in `metadata["render_fps"]` how many it has."""
ATARI_FPS, ATARI_SKIP = 60.0, 4
"""Frames of the console in a second, and how many each step of its environments takes where they do not say."""
GIF_FPS = 50.0
"""What programs that show a GIF keep up with; its times are in hundredths of a second."""
_PALETTE = "split[frames][seen];[seen]palettegen[palette];[frames][palette]paletteuse=dither=none"
_GIF = {"codec": "gif", "pix_fmt_out": "pal8", "output_params": ["-filter_complex", _PALETTE]}
"""How ffmpeg makes a GIF: with the colours that most frames have."""
_LITTLE = 1 << 20
"""Bytes that are free on a disk which has just become full: those of the part of a video that was written."""


def evaluate_policy(
    folder: Path,
    num_episodes: int,
    *,
    seed: int = 1,
    explore: bool = False,
    env: EnvSpec | None = None,
    trust: bool = False,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Play episodes with the policy in `folder`: a run, a checkpoint or a policy folder.

    Args:
        explore: sample actions as in training, in place of greedy ones.
        env: from `environment_of`; None: the environment that the policy was trained in.
        trust: import what only the folder names, though this user's raypid did not write it.

    Returns:
        (`Evaluation.summary`, what policy.json says of the policy). The latter also has `actions`: how they were chosen.

    Raises:
        UserError: the environment cannot be found, or its spaces differ from the policy's.
        UntrustedError: as `environment_of`.
    """
    limit_threads(1)
    place = find_policy(folder)
    network, weights, info, signed = read_policy_weights(place)
    check_network_name(folder, network, trusted=trust or signed)
    try_policy(place, network, weights)
    env = env or environment_of(folder, trust=trust)
    _check_spaces(network, env, folder)
    spec = RolloutSpec(env=env, network=network, fragment_length=1, seed=seed)
    evaluator = Evaluator(WorkerSetup(spec=spec, evaluation=spec, checks=False))
    summary = evaluator.play(weights, Order(num_episodes, seed, explore=explore)).summary()
    info.setdefault("algorithm", "unknown")
    info["actions"] = "sampled" if explore else "greedy" if evaluator.policy.greedy else "the model's own"
    return summary, info


def environment_of(
    folder: Path, env: str | None = None, env_config: Mapping[str, object] | None = None, *, trust: bool = False
) -> EnvSpec:
    """The environment that the policy in `folder` was trained in, or `env` in its place; `env_config` is added to its arguments.

    Raises:
        UserError: it cannot be imported.
        UntrustedError: only the folder names it, and it is not trusted.
    """
    *_, info, signed = read_policy_weights(find_policy(folder))
    with refusing(f"The policy {folder}", passing=CheckpointError):
        about: dict[str, Any] = {name: coerce(name, value, _ENV_HINTS[name]) for name, value in info["env"].items()}
        spec = EnvSpec(**{"worker_index": 1, "num_envs": MAX_STREAMS, **about})  # what earlier versions left out
    spec = replace(spec, env=env or spec.env, env_config={**spec.env_config, **(env_config or {})})
    if spec.vectorizer == "processes":  # which only makes a training faster that has several cores
        spec = replace(spec, vectorizer="sync")
    given = {"env": env or "", "env_config": env_config or {}}
    names = {"env": spec.env, "env_config": spec.env_config, "custom_args": spec.args}
    check_names(folder, names, trusted=trust or signed, given=given)
    if str(spec.env).startswith("__main__:"):
        raise UserError(f"{spec.env} is of a script or notebook: name one that can be imported, env='module:Name'.")
    return spec


def _check_spaces(network: NetworkSpec, env: EnvSpec, folder: Path) -> None:
    from raypid.nn.catalog import build_spec
    from raypid.settings.config import ModelConfig

    theirs = build_spec(*spaces(env), ModelConfig(network="auto"), frame_stack=network.pipeline.frame_stack)
    wanted = {leaf.path: leaf.shape for leaf in network.pipeline.leaves}
    given = {leaf.path: leaf.shape for leaf in theirs.pipeline.leaves}
    if wanted != given or [a.shape for a in network.actions] != [a.shape for a in theirs.actions]:
        what = f"The policy in {folder} takes observations {wanted}"
        raise UserError(f"{what}; {env.env} has {given}, or its actions differ.")


def check_video(out: Path) -> None:
    """Check that a video can be written to `out`, before any episode is played.

    Raises:
        UserError: imageio is not installed, the ending is not that of a video, the file cannot be written, or it lies in a folder that is
            not there and whose parent is not there either, as where the name is mistyped or an address.
    """
    if out.suffix.lower() not in VIDEOS:
        raise UserError(f"--video takes a file that ends in .mp4 or .gif, not {shown(out.name)}.")
    if not os.path.exists(out.parent.parent):
        raise UserError(f"--video cannot be {shown(str(out))}: there is no folder {shown(str(out.parent.parent))}.")
    need({"video": "--video"})
    check_file_writable(out, "--video")


def record_video(
    folder: Path, out: Path, env: EnvSpec, *, seed: int = 1, explore: bool = False, trust: bool = False
) -> None:
    """Record one episode as a .mp4 or .gif, as fast as it is in the environment's own time; `env`, `seed`, `explore` and `trust` as for
    `evaluate_policy`.

    Environments that cannot draw are shown by their image observation. `check_video` has been asked before.

    Raises:
        UserError: there is nothing to show.
        Unwritten: the disk is full. An earlier file is as it was.
    """
    hide_pygame()
    _check_spaces(read_policy_weights(find_policy(folder))[0], env, folder)
    frames, fps = _rendered(env, load_policy(folder, seed, trust=trust), seed, explore)
    height, width = (s - s % 2 for s in frames[0].shape[:2])  # video codecs need even sizes
    images = [f[:height, :width] for f in frames]
    every, more = (math.ceil(fps / GIF_FPS), _GIF) if out.suffix.lower() == ".gif" else (1, {})
    with usable(out, "The video"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as beside:
            _encode(beside, images[::every], fps / every, more)


def _encode(file: Path, images: list[Array], fps: float, more: Mapping[str, Any]) -> None:
    """Write a video of frames [H, W, 3] uint8. `more`: arguments for its format.

    Raises:
        OSError: it is not whole. (ffmpeg runs in a process of its own, of which nobody looks at the end.)
    """
    from imageio_ffmpeg import count_frames_and_secs, write_frames

    height, width = images[0].shape[:2]
    try:
        ffmpeg = write_frames(str(file), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="quiet", **more)
        ffmpeg.send(None)  # starts it
        for image in images:
            ffmpeg.send(np.ascontiguousarray(image))
        ffmpeg.close()
        written, _ = count_frames_and_secs(str(file))  # raises if it cannot be read
        if written < len(images):  # a GIF is read as far as it goes
            raise OSError(f"it has {written} frames of {len(images)}")
    except (OSError, RuntimeError) as error:
        if shutil.disk_usage(file.parent).free < _LITTLE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise OSError(f"ffmpeg did not write it: {reason(error)}") from error


def _rendered(env: EnvSpec, policy: DeployedPolicy, seed: int, explore: bool) -> tuple[list[Array], float]:
    """The frames [H, W, 3] of one episode, and how many there are in a second; errors as `_drawn`."""
    spec = _renderable(replace(env, num_envs=1, seed=seed, seed_index=EVALUATION_INDEX))
    with closing(make_vector(spec)) as vector:
        obs = vector.reset(stream_seeds(spec))  # those of the evaluator's first stream
        if "mujoco" in sys.modules:
            choose_mujoco_gl(spec.env)
        frames: list[Array] = []
        for _ in range(MAX_VIDEO_STEPS):
            frames.append(_drawn(vector, obs, spec.env))
            step = vector.step(tree_map(np.asarray, as_tree(policy.act(obs, explore=explore))))
            obs = step.obs
            if (step.terminated | step.truncated).any():
                break
        return frames, _steps_a_second(spec, vector)


def _renderable(spec: EnvSpec) -> EnvSpec:
    """Change a spec so that its environments can render; EnvPool's and ALE's vectors stay as they are."""
    resolved = resolve(spec.env)
    if choose_vectorizer(spec, resolved) in ("envpool", "ale") or resolved.kind == "vector_class":
        return spec
    if resolved.kind not in GYM and "render_mode" not in inspect.signature(resolved.creator).parameters:
        return replace(spec, vectorizer="sync")
    return replace(spec, vectorizer="sync", env_config={**spec.env_config, "render_mode": "rgb_array"})


def _steps_a_second(spec: EnvSpec, vector: VectorEnv) -> float:
    """Steps of the policy in a second of the environment's own time."""
    resolved = resolve(spec.env)
    if resolved.kind == "ale" or (resolved.kind == "envpool" and is_envpool_atari(resolved)):
        skip = spec.env_config.get("frameskip", spec.env_config.get("frame_skip", ATARI_SKIP))
        if resolved.kind == "ale" and spec.atari is not False and isinstance(vector, PythonVector):
            skip = ATARI_SKIP  # that of AtariPreprocessing
        fps: object = ATARI_FPS / skip if isinstance(skip, int | float) and skip > 0 else None
    else:
        env: object = vector.envs[0] if isinstance(vector, PythonVector) else None
        metadata = getattr(env, "metadata", None)
        fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    if not isinstance(fps, int | float | np.integer | np.floating) or not 0 < fps < math.inf:
        fps = FPS
    return float(fps) / spec.action_repeat


def _drawn(vector: VectorEnv, obs: Tree, name: object) -> Array:
    """The first stream as [H, W, 3] uint8: as it renders, or the first image of its observation, enlarged.

    Raises:
        UserError: it has neither, or its `render` raised.
    """
    env: object = vector.envs[0] if isinstance(vector, PythonVector) else None
    if getattr(env, "render_mode", None) == "rgb_array" and hasattr(env, "render"):
        try:
            frame: Array | None = env.render()
        except Exception as error:  # MuJoCo has errors of its own
            why = f"its render raised {type(error).__name__}: {reason(error)}"
            raise UserError(f"{name} cannot be filmed: {why}") from error
        if frame is not None:
            return frame
    for _, x in tree_leaves(obs):
        if x.dtype != np.uint8 or x[0].ndim not in (2, 3):
            continue
        image = x[0] if x[0].ndim == 2 else (x[0] if x[0].shape[-1] == 3 else x[0][-1])
        if image.max() <= 1:
            image = image * 255
        scale = max(1, 240 // max(image.shape[:2]))
        image = image.repeat(scale, 0).repeat(scale, 1)
        return image if image.ndim == 3 else np.repeat(image[..., None], 3, -1)
    raise UserError(f"{name} cannot be filmed: it has no render_mode 'rgb_array' and does not return images.")
