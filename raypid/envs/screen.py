"""Drawing environments on machines without a screen."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import suppress

from raypid.errors import UserError

_WAYS = ("egl", "osmesa")
"""Values of MUJOCO_GL that draw into memory."""
_TRIAL = "import mujoco; mujoco.GLContext(16, 16).make_current()"
_TRIAL_S = 20.0


def hide_pygame() -> None:
    """Let pygame draw frames without a screen, about which SDL would complain."""
    for kind in ("VIDEO", "AUDIO"):
        os.environ.setdefault(f"SDL_{kind}DRIVER", "dummy")


def choose_mujoco_gl(env: object) -> None:
    """Let MuJoCo draw without a screen, unless the user has said by what (MUJOCO_GL).

    Raises:
        UserError: it cannot.
    """
    if not draws_mujoco():
        raise UserError(
            f"{env} cannot be drawn here: there is no screen, and MuJoCo draws by neither MUJOCO_GL=egl nor MUJOCO_GL=osmesa. Install the "
            "library of one of them (on Debian and Ubuntu: libegl1 with a driver, or libosmesa6)."
        )
    if _lacks_screen():
        os.environ["MUJOCO_GL"] = _way_without_screen()


def draws_mujoco() -> bool:
    """Whether MuJoCo can draw here, as far as that is known before it does."""
    return not _lacks_screen() or bool(_way_without_screen())


def _lacks_screen() -> bool:
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"))
    return sys.platform.startswith("linux") and not named


@functools.cache
def _way_without_screen() -> str:
    """The way by which MuJoCo draws without a screen; "" if none works. Tried in another process: one that fails leaves its traces."""
    for way in _WAYS:
        with suppress(subprocess.SubprocessError, OSError):
            command, variables = [sys.executable, "-c", _TRIAL], {**os.environ, "MUJOCO_GL": way}
            subprocess.run(command, env=variables, capture_output=True, timeout=_TRIAL_S, check=True)
            return way
    return ""
