"""Suppresses messages that users cannot act on."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium

# read by pygame when it is imported, in the processes of an AsyncVectorEnv too
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


ABOVE_ERROR = 50
"""Gymnasium's loggers go up to ERROR = 40."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and Gymnasium's log lines, while environments are made or torn down."""
    level = gymnasium.logger.min_level
    gymnasium.logger.min_level = ABOVE_ERROR
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gymnasium.logger.min_level = level


def quiet_mujoco() -> None:
    """Handle MuJoCo's warnings, once it is imported: on its own it writes MUJOCO_LOG.TXT into the working folder."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and hasattr(mujoco, "set_mju_user_warning") and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_on_mujoco_warning)


def _on_mujoco_warning(message: bytes | str) -> None:
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    if "deprecated" not in text:
        warnings.warn(f"MuJoCo: {text.strip()}", RuntimeWarning, stacklevel=2)
