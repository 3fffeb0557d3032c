"""Whether what a folder names may be imported. Files of a run name code: environments, networks, algorithms, callbacks.

What this user's raypid wrote is signed (`raypid.storage.ownership`). Of any other folder, a name is imported only if it is
registered in this process, was given by the user, lies in the user's project, or is an id that an installed package
registers with Gymnasium. Nothing is ever imported from inside a run's folder.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from raypid.errors import UserError
from raypid.plugins.modules import apart, import_named, names_file
from raypid.plugins.registry import AGENTS, ALGORITHMS, ENVS, INTRINSIC_REWARDS, NETWORKS, REPLAYS
from raypid.storage.ownership import project_of, run_folder_of
from raypid.storage.plain_data import texts

_REGISTRIES = {
    "agent": AGENTS, "algorithm": ALGORITHMS, "env": ENVS, "evaluation_env": ENVS, "intrinsic_reward": INTRINSIC_REWARDS, "network": NETWORKS,
    "replay": REPLAYS,
}  # fmt: skip
_PATHS = ("init_from", "weights_file")
"""Settings whose values are files."""
_FREE = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_][^\s]*")
"""Pattern of texts that name code in arguments of environments and networks, whose meaning only these know."""
_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARY = [Path(path).resolve() for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))]


class UntrustedError(UserError):
    """A folder that this user did not write names code."""


def check_names(
    folder: Path | str, names: Mapping[str, object], *, trusted: bool, given: Mapping[str, object] | None = None
) -> None:
    """Check that what `folder` names may be imported.

    Args:
        folder: the run, checkpoint or policy, or the file, that holds the names.
        names: settings as the folder has them, groups of settings as mappings.
        trusted: this user wrote the names (they are signed), or says that the folder may be trusted.
        given: settings of this command or call. What they name, the user has named.

    Raises:
        UntrustedError: a name that may not be imported; the message has it, the folder, and what allows it.
    """
    allowed = {text for _, text in texts(given or {})}
    for written, text in texts(names):
        key = written.replace("-", "_")
        if text not in allowed and _names_code(key, text):
            _check(Path(folder), key, text, trusted)


def _names_code(key: str, text: str) -> bool:
    if key in _PATHS:
        return False
    groups = key.split(".")
    if {"env_config", "custom", "agent_config", "custom_args"} & set(groups):
        return names_file(text) or _FREE.fullmatch(text) is not None
    registry = _REGISTRIES.get(groups[-1])
    if registry is not None and (text in registry or text in map(registry.entry, registry.names())):
        return False
    return names_file(text) or (":" in text and not (registry is ENVS and text.startswith("envpool:")))


def _check(folder: Path, key: str, text: str, trusted: bool) -> None:
    if key == "address":
        if not trusted:
            raise UntrustedError(
                f"{folder} names the Ray cluster {text!r}, which could run any code here, and you did not write it. Give an address "
                "of your own (address='local' starts Ray here), or trust=True if you know where it comes from."
            )
        return
    module, attribute = apart(text)
    places = _places(module)
    if inside := next((p for p in places if p.is_relative_to(folder.resolve()) or run_folder_of(p) is not None), None):
        raise UntrustedError(
            f"{folder} names {text!r} ({key}), which lies in a run's folder ({inside}), from which no code is imported: move it."
        )
    if trusted or _registered_by_package(module, attribute) or _in_project(folder, module, attribute, places):
        return
    is_here = not names_file(text) or places[0].is_file()
    own = repr(text) if is_here else f"'PATH/TO/{Path(text).name}' (where you have it)"
    is_env = key in ("env", "evaluation_env")
    named = f"If you know this environment, name it yourself: {key}={own}. " if is_env else ""
    raise UntrustedError(
        f"{folder} names {text!r} ({key}), which would be imported and run. That is neither registered here nor in your project, "
        "and the folder is not signed as yours (it comes from elsewhere or from an earlier version, or was altered). "
        f"{named}If you trust {'all that the folder names' if named else 'it'}: trust=True."
    )


def _places(module: str) -> list[Path]:
    """Find the file, or the files and folders of a dotted module and its packages, without importing any."""
    if names_file(module):
        return [Path(module).expanduser().resolve()]
    places: list[Path] = []
    search: list[str] | None = None
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return places
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        finders = (finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = getattr(sys.modules.get(name), "__spec__", None)
        spec = spec or next((found for find in finders if (found := find(name, search)) is not None), None)
        if spec is None:
            return []
        if spec.has_location and spec.origin:
            places.append(Path(spec.origin).resolve())
        if spec.submodule_search_locations is None:
            return places if count == len(parts) else []
        search = list(spec.submodule_search_locations)
        places += [Path(location).resolve() for location in search]
    return places


def _registered_by_package(module: str, name: str) -> bool:
    """Whether "module:id" is an id of an installed package that Gymnasium knows by its entry points."""
    if name.isidentifier():  # could be an attribute too, which would be looked up in the module first
        return False
    import gymnasium

    packages = {
        entry.value.partition(":")[0].partition(".")[0]
        for entry in importlib.metadata.entry_points(group="gymnasium.envs")
    }
    return module in packages and name in gymnasium.registry


def _in_project(folder: Path, module: str, attribute: str, places: list[Path]) -> bool:
    """Whether the user's project, in which this command runs, defines the attribute."""
    project = project_of(Path.cwd())
    if project is None:
        return False
    place, others = folder.resolve(), list(_LIBRARY)
    if project in place.parents:  # what was unpacked together with the folder is not the user's
        others.append(project / place.relative_to(project).parts[0])

    def own(file: Path) -> bool:
        is_others = bool(_INSTALLED & set(file.parts)) or any(file.is_relative_to(other) for other in others)
        return file.is_relative_to(project) and not is_others

    if not (places and all(map(own, places))):
        return False
    try:
        found = getattr(import_named(module), attribute, None)
    except Exception:
        return True  # importing it again will say what is wrong with it
    defined = _places(getattr(found, "__module__", None) or module)  # a project's `subprocess.run` is not its own
    return bool(defined) and all(map(own, defined))
