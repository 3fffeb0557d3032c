"""Which environment is meant, and whether its package is installed: checked in milliseconds, before anything starts."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
from gymnasium.envs import registration

from raypid.envs.errors import EnvError
from raypid.envs.foreign import refuse
from raypid.envs.quiet import quiet
from raypid.extras import extra_of, install_command, install_hint, installed
from raypid.ownership import path_hint
from raypid.registry import ENVS, suggest, within_remote

GYM_PACKAGES = {
    "gymnasium.envs.box2d": "Box2D",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.phys2d": "jax",
    "gymnasium.envs.tabular": "jax",
}
"""Which package an entry point's module needs."""
VERSIONED = re.compile(r"-v\d+$")
OLD_ATARI = re.compile(r"(Deterministic|NoFrameskip)$")
"""What Gym's ids of Atari games ended in, before the version."""

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
    return env


def list_envs() -> list[str]:
    """List registered names and Gymnasium's ids, sorted, without EnvPool's tasks ("envpool:...")."""
    _register_ale()
    return sorted({*ENVS.names(), *gymnasium.registry})


def _resolve_name(name: str) -> Resolved:
    if name.startswith("envpool:"):
        return _resolve_envpool(name)
    if name in ENVS:
        try:
            entry = ENVS.get(name)
        except Exception as error:
            raise EnvError(f"Environment {name!r} is registered, but cannot be imported: {error}") from error
        return _resolve_name(entry) if isinstance(entry, str) else _resolve_object(entry, name)
    if ":" in name:
        return _resolve_path(name)
    if name.startswith("ALE/"):
        require("ale_py", name)
    if name not in gymnasium.registry:
        _register_ale()
    if name not in gymnasium.registry:
        raise _unknown(name)
    return _resolve_gym(name)


def _resolve_gym(name: str) -> Resolved:
    entry = gymnasium.registry[name].entry_point
    if isinstance(entry, str):
        module = entry.partition(":")[0]
        for prefix, package in GYM_PACKAGES.items():
            if module.startswith(prefix):
                require(package, name)
        require(module.partition(".")[0], name)
    return Resolved(name, "ale" if name.startswith("ALE/") else "gym")


def _resolve_envpool(name: str) -> Resolved:
    require("envpool", name)
    task = name.partition(":")[2]
    with quiet():
        import envpool

        known = envpool.list_all_envs()
    if task not in known:
        raise EnvError(f"EnvPool has no task {task!r}.{_suggestion(task, known, 'envpool:')}")
    return Resolved(name, "envpool")


def _resolve_path(name: str) -> Resolved:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise EnvError(
                f"Environment {name!r}: there is no module {missing!r} on the Python path. "
                'Give "module:Name" with the module as you would import it, and run from its folder or install it.'
                + path_hint()
            ) from error
        raise EnvError(
            f"Environment {name!r}: importing {module_name!r} failed: {error!r}{install_hint(error)}"
        ) from error
    if attribute and hasattr(module, attribute):
        return _resolve_object(getattr(module, attribute), name)
    if attribute in gymnasium.registry:
        return _resolve_gym(attribute)
    names = [n for n, v in vars(module).items() if not n.startswith("_") and callable(v)]
    near = suggest(attribute, names)
    if module_name == "__main__" or "<" in attribute:
        raise EnvError(
            f"Environment {name!r} was defined in a script, a notebook or a function, and is not there now. Give the environment itself: "
            "in Python env=..., on the command line --env module:Name."
        )
    hint = f" Did you mean {' or '.join(repr(f'{module_name}:{n}') for n in near)}?" if near else ""
    raise EnvError(f"Environment {name!r}: module {module_name!r} has no {attribute!r}.{hint}")


def _resolve_object(target: object, name: str) -> Resolved:
    target = within_remote(target)
    refuse(target, name)
    if inspect.isclass(target):
        if issubclass(target, gymnasium.vector.VectorEnv):
            return Resolved(name, "vector_class", target)
        if all(callable(getattr(target, method, None)) for method in ("reset", "step")):
            return Resolved(name, "class", target)
    elif callable(target) and not isinstance(target, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        return Resolved(name, "function", target)
    what = f"class {target.__name__}" if inspect.isclass(target) else f"a {type(target).__name__}"
    exists = isinstance(target, (gymnasium.Env, gymnasium.vector.VectorEnv))
    wrong = "which exists already: every worker makes its own." if exists else "which is not an environment."
    raise EnvError(
        f"env is {what}, {wrong} Give a Gymnasium id ('CartPole-v1'), 'envpool:Pong-v5', "
        "'module:Name', a registered name, a gymnasium.Env class, or a function that returns an environment."
    )


def require(package: str, name: str) -> None:
    """Check that `package` is installed.

    Raises:
        EnvError: it is missing; the text has the extra to install.
    """
    if installed(package):
        return
    extra = extra_of(package)
    command = install_command(extra) if extra else f"pip install {package}"
    raise EnvError(f"Environment {name!r} needs the package {package!r}, which is not installed: {command}")


def _register_ale() -> None:
    if not installed("ale_py"):
        return
    with quiet():
        import ale_py

        gymnasium.register_envs(ale_py)


def _unknown(name: str) -> EnvError:
    """Say why a name is not a Gymnasium id: another version, or the nearest names."""
    try:
        namespace, base, version = registration.parse_env_id(name)
    except gymnasium.error.Error:
        return EnvError(f"{name!r} is not an environment id.{_suggestion(name, list_envs())}")
    game = OLD_ATARI.sub("", base)
    if namespace is None and (game != base or f"ALE/{game}-v5" in gymnasium.registry):
        return EnvError(f"Unknown environment {name!r}. Atari games are named 'ALE/{game}-v5' or 'envpool:{game}-v5'.")
    newest = registration.find_highest_version(namespace, base)
    if newest is not None:
        full = f"{namespace}/{base}" if namespace else base
        problem = "has no version" if version is None else "does not exist in this version"
        return EnvError(f"Environment {name!r} {problem}; the newest is {f'{full}-v{newest}'!r}.")
    return EnvError(f"Unknown environment {name!r}.{_suggestion(name, list_envs())}")


def _suggestion(name: str, known: list[str], prefix: str = "") -> str:
    near = suggest(name, known)
    if not near:
        # a forgotten version or namespace hides what is near
        bare = {VERSIONED.sub("", k).rpartition("/")[2]: k for k in known}
        near = [bare[n] for n in suggest(VERSIONED.sub("", name).rpartition("/")[2], bare)]
    if near:
        return f" Did you mean {' or '.join(repr(prefix + n) for n in near)}?"
    return " `raypid list envs` shows all; for your own give 'module:Name' or use raypid.register_env."
