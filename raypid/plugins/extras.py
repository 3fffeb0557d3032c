"""Packages that only some runs need: whether one is installed, and the command that installs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from raypid.errors import ConfigError

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "ray": ("ray",),
    "tune": ("ray", "pandas", "pyarrow", "fsspec", "requests"),
    "box2d": ("Box2D",),
    "mujoco": ("mujoco",),
    "atari": ("ale_py", "cv2"),
    "envpool": ("envpool",),
    "video": ("imageio", "imageio_ffmpeg", "pygame"),
    "optuna": ("optuna",),
    "completion": ("argcomplete",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow",),
}
"""Extra -> the modules that it brings, as they are imported."""
OWN = ("gymnasium", "matplotlib", "numpy", "rich", "safetensors", "threadpoolctl", "yaml")
"""The modules that raypid brings without any extra."""
TORCH_SIZE = "5 GB with CUDA, 1.4 GB for CPU only: docs/install.md"
"""What torch brings along, which pip says only while it downloads."""


class MissingPackage(ConfigError, ImportError):
    """A package is not installed; the message has the command that installs it."""


def installed(module: str) -> bool:
    """Whether a package can be imported, by its top-level module. A folder of that name beside the user's files is none."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def has(extra: str) -> bool:
    """Whether all of an extra is installed."""
    return all(installed(module) for module in PACKAGES[extra])


def extra_of(module: str | None) -> str | None:
    """The extra that brings a module, given by its dotted name; "" if raypid itself brings it, None if nothing does."""
    root = (module or "").partition(".")[0]
    if root in OWN:
        return ""
    return next((extra for extra, modules in PACKAGES.items() if root in modules), None)


def need(needs: Mapping[str, str], instead: str = "") -> None:
    """Check that the extras of a run are installed.

    Args:
        needs: extra -> what needs it, as the subject of a sentence: {"torch": "SAC"}. At most two.
        instead: a sentence that says what works without.

    Raises:
        MissingPackage: names what is missing and the command that installs it.
    """
    missing = {extra: what for extra, what in needs.items() if not has(extra)}
    if not missing:
        return
    said = " and ".join(f"{what} needs {_name(extra)}" for extra, what in missing.items())
    which = "which is not installed" if len(missing) == 1 else "neither of which is installed"
    size = f" ({TORCH_SIZE})" if "torch" in missing else ""
    raise MissingPackage(f"{said}, {which}: {install_command(*missing)}{size}{f'. {instead}' if instead else ''}")


def _name(extra: str) -> str:
    """What a missing extra is called: as a project calls itself, or the first module that is not there."""
    lacks = [module for module in PACKAGES[extra] if not installed(module)]
    return {"ray": "Ray", "tune": "Ray Tune", "optuna": "Optuna"}.get(extra, lacks[0])


def install_hint(error: BaseException) -> str:
    """After the text of an error that a module is missing: the command that installs it; "" where no extra has it."""
    extra = extra_of(error.name) if isinstance(error, ModuleNotFoundError) else None
    return "" if extra is None else f": {install_command(extra)}{f' ({TORCH_SIZE})' if extra == 'torch' else ''}"


def install_command(*extras: str) -> str:
    """The command that installs the raypid that runs, with extras: its files in place, or from where it was installed from, or else by its
    name."""
    wanted = f"[{','.join(extras)}]" if any(extras) else ""
    tree = Path(__file__).resolve().parents[2]
    if (tree / "pyproject.toml").is_file():
        return f'{pip()} install -e "{"." if tree == Path.cwd() else tree}{wanted}"'
    url = _url()
    return f'{pip()} install "raypid{wanted}{f" @ {url}" if url else ""}"'


def _url() -> str:
    """The folder, archive or repository that raypid was installed from, as pip takes it; "" if it was an index."""
    import importlib.metadata
    import json

    try:  # pip and uv leave it there (PEP 610)
        about = json.loads(importlib.metadata.distribution("raypid").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return ""
    url, repository = str(about.get("url", "")), about.get("vcs_info")
    if repository is None:
        return url
    asked = repository.get("requested_revision")
    return f"{repository.get('vcs', 'git')}+{url}{f'@{asked}' if asked else ''}"


def pip() -> str:
    """pip of this environment: a plain `pip` where the shell finds that one."""
    import shlex
    import shutil

    if not installed("pip") and shutil.which("uv"):
        return "uv pip"
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"
