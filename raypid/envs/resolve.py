"""Which environment is meant, and whether its package is installed: checked in milliseconds, before anything starts."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import gymnasium
from gymnasium.envs import registration

from raypid.envs.adapter import required
from raypid.envs.errors import EnvError, import_failed, relative
from raypid.envs.foreign import refuse
from raypid.envs.ids import PACKAGES, bare, brought_by, gone
from raypid.envs.quiet import quiet
from raypid.errors import UserError, listed
from raypid.plugins.extras import extra_of, install_command, installed
from raypid.plugins.modules import apart, defined, import_named, located, names_file
from raypid.plugins.registry import ENVS, meant, no_attribute, suggest, within_remote
from raypid.storage.ownership import path_hint

GYM_PACKAGES = {
    "gymnasium.envs.box2d": "Box2D",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.phys2d": "jax",
    "gymnasium.envs.tabular": "jax",
}
"""Which package an entry point's module needs."""

Kind = Literal["gym", "ale", "envpool", "class", "function", "vector_class"]
GYM = ("gym", "ale")
"""Kinds that gymnasium.make makes."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a spec's `env` turned out to be."""

    name: str
    """For messages. For gym and ale this is the id, for envpool "envpool:<task>"."""
    kind: Kind
    creator: Callable[..., Any] = gymnasium.make
    """What makes the environment or the vector; for class, function and vector_class."""


def resolve(env: object) -> Resolved:
    """Find the environment that `env` names, without making it.

    Raises:
        EnvError: unknown id (with the nearest ones), missing package (with the extra to install), failing import, or
            something that is not an environment.
    """
    if isinstance(env, str):
        return _resolve_name(env)
    if isinstance(env, registration.EnvSpec):
        gymnasium.registry.setdefault(env.id, env)
        return _resolve_gym(env.id)
    return _resolve_object(env, getattr(env, "__name__", type(env).__name__))


def portable(env: object) -> object:
    """Return what means `env` in another process too, whose registries lack what this process has registered.

    Raises:
        EnvError: as resolve.
    """
    resolved = resolve(env)
    if not isinstance(env, str):
        return env
    if env in ENVS:
        return resolved.name if resolved.kind in (*GYM, "envpool") else resolved.creator
    if env.startswith("__main__:") and resolved.kind not in GYM:  # another process has another __main__
        return resolved.creator
    if resolved.kind == "gym" and ":" not in env:
        registered = gymnasium.registry[resolved.name]
        if not str(registered.entry_point).startswith(("gymnasium.", "ale_py.")):
            return registered
    return located(env)


def list_envs() -> list[str]:
    """List registered names and Gymnasium's ids, sorted, without EnvPool's tasks ("envpool:...") and without ids that nothing can make."""
    _register_ale()
    return sorted({*ENVS.names(), *(name for name in gymnasium.registry if gone(name) is None)})


def missing_package(name: str) -> tuple[str, str] | None:
    """The package that a registered name or id needs and that is not installed, and the command that installs it; None if none is."""
    if name in ENVS or name not in gymnasium.registry:
        return None
    package, own = package_of(name), module_of(name).partition(".")[0]
    if package != own and not installed(package):
        return package, _command(package)
    # a folder of the user's without __init__.py counts too
    return None if own in sys.modules or importlib.util.find_spec(own) is not None else (own, _command(own))


def package_of(name: str) -> str:
    """The package that a registered name or id needs, as it is imported: Box2D for LunarLander, gymnasium for CartPole."""
    module = module_of(name)
    known = (package for prefix, package in GYM_PACKAGES.items() if module.startswith(prefix))
    return next(known, module.partition(".")[0])


def register_packages() -> None:
    """Import every installed package of `raypid.envs.ids.PACKAGES`, so that its ids are known. One that fails is left out."""
    for brought in PACKAGES:
        with contextlib.suppress(Exception):
            _register_from_package(brought.example)


def module_of(name: str) -> str:
    """The module of a registered name or id."""
    entry = ENVS.entry(name) if name in ENVS else gymnasium.registry[name].entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "gymnasium")


def _resolve_name(name: str) -> Resolved:
    if name in ENVS:
        try:
            entry = ENVS.get(name)
        except Exception as error:
            raise EnvError(f"Environment {name!r} is registered, but cannot be imported: {error}") from error
        return _resolve_name(entry) if isinstance(entry, str) else _resolve_object(entry, name)
    if names_file(name):
        return _resolve_path(name)
    for prefix, package in (("ALE/", "ale_py"), ("envpool:", "envpool")):
        if name.startswith(prefix) and not installed(package):
            raise _lacking(name, package)
    if name.startswith("envpool:"):
        return _resolve_envpool(name)
    if name not in gymnasium.registry and ":" not in name:
        _register_from_package(name)
    if told := gone(name):
        raise EnvError(told)
    if ":" in name:
        return _resolve_path(name)
    if name not in gymnasium.registry:
        raise _unknown(name)
    return _resolve_gym(name)


def _register_from_package(name: str) -> None:
    """Import the installed package that registers an id.

    Raises:
        EnvError: it is not installed, or cannot be imported.
    """
    brought = brought_by(name)
    if brought is None:
        _register_ale()
        return
    if not installed(brought.module.partition(".")[0]) or _lies_here(brought.module):
        raise _lacking(name, brought.package)
    try:
        with quiet():
            gymnasium.register_envs(importlib.import_module(brought.module))
    except Exception as error:
        raise import_failed(name, brought.module, error) from error


def _lies_here(module: str) -> bool:
    """Tell whether a module lies in the current folder, which somebody else may have filled: nobody has named it."""
    found = importlib.util.find_spec(module.partition(".")[0])
    places = [*(found.submodule_search_locations or ()), found.origin or ""] if found is not None else []
    return any(Path(place).resolve().parent == Path.cwd() for place in places if place)


def _resolve_gym(name: str) -> Resolved:
    if missing := missing_package(name):
        raise _lacking(name, missing[0])
    return Resolved(name, "ale" if name.startswith("ALE/") else "gym")


def _resolve_envpool(name: str) -> Resolved:
    task = name.partition(":")[2]
    with quiet():
        import envpool

        known = envpool.list_all_envs()
    if task not in known:
        raise EnvError(f"EnvPool has no task {task!r}.{_suggestion(task, known, 'envpool:')}")
    return Resolved(name, "envpool")


def _resolve_path(name: str) -> Resolved:
    """The environment in a module or a file: the one that is named, or the only one of a file."""
    place, attribute = apart(str(located(name)))
    before = {*ENVS.names(), *gymnasium.registry}
    try:
        module = import_named(place)
    except UserError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{place}.".startswith(f"{missing}."):
            _register_from_package(attribute)
            raise EnvError(
                f"Environment {name!r}: there is no module {missing!r} on the path: run from its folder, or install it.{path_hint(missing)}"
            ) from error
        raise import_failed(name, place, error) from error
    if attribute or not names_file(place):
        return _resolve_in(module, place, attribute)
    found = defined(module, _is_environment)
    if not found:
        own = {*ENVS.names(), *gymnasium.registry} - before
        found = sorted(own | {n for n in ENVS.names() if getattr(ENVS.entry(n), "__module__", "") == module.__name__})
    if len(found) == 1:
        return _resolve_in(module, place, found[0])
    file = relative(place)
    if found:
        raise EnvError(f"{file} has {len(found)} environments: {listed(found)}. Name one: {f'{file}:{found[0]}'!r}.")
    others = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    raise EnvError(
        f"{file} has no environment: it registers none, and has no class with reset and step that can be made as it is (a wrapper needs "
        f"an environment; names with an underscore do not count). It has {listed(others) or 'nothing'}. If a function makes the "
        f"environment, name it: '{file}:function'."
    )


def _is_environment(cls: type) -> bool:
    """Whether a class is an environment. A wrapper is one if it needs no arguments: it then brings what it wraps."""
    is_wrapper = issubclass(cls, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper))
    return _has_methods(cls) and not (is_wrapper and required(cls))


def _has_methods(target: object) -> bool:
    return all(callable(getattr(target, method, None)) for method in ("reset", "step"))


def _resolve_in(module: ModuleType, module_name: str, attribute: str) -> Resolved:
    """What is called `attribute` in a module, or was registered under this name when it was imported."""
    if attribute and hasattr(module, attribute):
        return _resolve_object(getattr(module, attribute), f"{module_name}:{attribute}")
    if attribute in gymnasium.registry:
        return _resolve_gym(attribute)
    if attribute in ENVS:
        return _resolve_name(attribute)
    if module_name == "__main__" or "<" in attribute:
        raise EnvError(
            f"Environment '{module_name}:{attribute}' was defined in a script, a notebook or a function, and is not there now. "
            "Give one that can be imported, env='module:Name', or in Python the environment itself."
        )
    raise EnvError(f"Environment {no_attribute(module, relative(module_name), attribute)}")


def _resolve_object(target: object, name: str) -> Resolved:
    target = within_remote(target)
    refuse(target, name)
    if inspect.isclass(target):
        if issubclass(target, gymnasium.vector.VectorEnv):
            return Resolved(name, "vector_class", target)
        if _has_methods(target):
            return Resolved(name, "class", target)
    elif callable(target) and not isinstance(target, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        return Resolved(name, "function", target)
    what = f"class {target.__name__}" if inspect.isclass(target) else f"a {type(target).__name__}"
    raise EnvError(
        f"env is {what}, and every worker makes its own environment. Give a Gymnasium id ('CartPole-v1'), 'envpool:Pong-v5', 'module:Name', "
        "a registered name, a gymnasium.Env class, or a function that makes the environment with its wrappers, env=lambda: ..."
    )


def _lacking(name: str, package: str) -> EnvError:
    """The error that the package of environment `name` is not installed."""
    return EnvError(f"Environment {name!r} needs the package {package!r}, which is not installed: {_command(package)}")


def _command(package: str) -> str:
    """What installs a package."""
    return install_command(extra) if (extra := extra_of(package)) else f"pip install {shlex.quote(package)}"


def _register_ale() -> None:
    if installed("ale_py"):
        with quiet():
            gymnasium.register_envs(importlib.import_module("ale_py"))


def _unknown(name: str) -> EnvError:
    """Say what an unknown name may mean: a file or something in one, or the nearest ids in their newest versions."""
    module, _, attribute = name.rpartition(".")
    for path, within in ((name, ""), (module, attribute)):
        if os.path.isfile(file := f"{path.replace('.', '/')}.py"):
            meant = f"'{file}:{within}'" if within else f"{file!r}, or '{file}:Name' if it has several environments"
            return EnvError(f"Unknown environment {name!r}. Did you mean {meant}?")
    return EnvError(f"Unknown environment {name!r}.{_suggestion(name, list_envs())}")


def _suggestion(name: str, known: list[str], prefix: str = "") -> str:
    newest = {bare(other): other for other in sorted(known, key=_version) if missing_package(other) is None}
    # the version hides how near two names are, and so may the namespace
    by_end = {n.rpartition("/")[2]: newest[n] for n in sorted(newest, key=len, reverse=True)}
    near = [newest[n] for n in suggest(bare(name), newest)]
    if not near or "/" not in name:
        near = [by_end[n] for n in suggest(bare(name).rpartition("/")[2], by_end)]
    return meant(prefix + n for n in near) or (
        " `raypid list envs` shows all; one of a package is 'package:id', your own 'file.py:Name', 'module:Name' or a name given to "
        "raypid.register_env."
    )


def _version(name: str) -> int:
    return int(found.group(1)) if (found := re.search(r"-v(\d+)$", name)) else -1
