"""What is asked for in Python: the arguments of `raypid.train`, `raypid.setup` and of agents, as a RunRequest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raypid.errors import shown
from raypid.plugins.registry import ALGORITHMS, by_name
from raypid.settings.config import Config, ConfigError, Given, overlay
from raypid.settings.files import read_runs
from raypid.settings.request import RunRequest, join


def request_of(
    run: str | None, given: Sequence[object], config: object, settings: Mapping[str, object], **asked: Any
) -> RunRequest:
    """Build the request of a call.

    Args:
        run: the algorithm's name; None: a file may name it.
        given: what was given by position: the environment, or a mapping of settings.
        config: a mapping of settings, or a file that says the same of a run as `--config`.
        asked: other fields of the request, in the forms that people write.

    Raises:
        ConfigError: something was given twice, or the file is wrong.
    """
    file = RunRequest()
    if isinstance(config, str | Path):
        file = read_runs([config], run, trust=asked.get("trust", False), given=settings, option="config")
        config = None
    return join(file, RunRequest(run=run, settings=settings_of(given, config, settings), **asked))


def settings_of(given: Sequence[object], config: object, settings: Mapping[str, object]) -> Given:
    """The settings of an agent: keywords over `config`. What was given by position is the environment, or a mapping, which is `config`.

    Raises:
        ConfigError: one of the two was given twice.
    """
    envs = [value for value in given if not isinstance(value, Mapping) and value is not None]
    configs = [value for value in (*given, config) if isinstance(value, Mapping)]
    if config is not None and not isinstance(config, Mapping):
        more = f" A number of steps is stop={config}." if isinstance(config, (int, float)) else ""
        raise ConfigError(f"config takes a mapping of settings, not {shown(config)}.{more}")
    if len(each := [*envs, *([settings["env"]] if "env" in settings else [])]) > 1:
        found = [by_name(value) for value in each]
        told = next((told for _, told in found if told), " Settings are keywords: lr=0.001.")
        raise ConfigError(f"Give one environment: {' or '.join(what for what, _ in found)}?{told}")
    if len(configs) > 1:
        raise ConfigError("config was given twice: give one mapping of settings; keywords override it.")
    return overlay(configs[0] if configs else {}, {**({"env": envs[0]} if envs else {}), **settings})


def named_algorithm(call: str, run: object, env: object, settings: dict[str, object]) -> object:
    """The algorithm of `raypid.train` or `raypid.setup`: `run`, or what was given as algorithm=..., which is taken out of `settings`.

    Raises:
        ConfigError: it was given twice, or after the environment, as other libraries have it.
    """
    if "algorithm" in settings:
        other = settings.pop("algorithm")
        if run is not None:
            raise ConfigError(f"Give one algorithm: {shown(run)} or {shown(other)}?")
        run = other
    named = isinstance(run, str) and isinstance(env, str) and ALGORITHMS.canonical(run) not in ALGORITHMS
    if named and ALGORITHMS.canonical(str(env)) in ALGORITHMS:
        raise ConfigError(f'The algorithm comes first: raypid.{call}("{ALGORITHMS.canonical(str(env))}", "{run}").')
    return run


def algorithm_of(run: object) -> str:
    """The name of the algorithm that a name, or a class such as raypid.PPO, stands for. An Algorithm class of the user's own is
    registered under its name.

    Raises:
        ConfigError: it is neither.
        UserError: an unknown name, with the nearest known ones.
    """
    if isinstance(run, str):
        ALGORITHMS.get(run := ALGORITHMS.canonical(run))
        return run
    named: object = getattr(run, "algorithm", None)
    if isinstance(run, type) and isinstance(named, str):
        return named
    known = next((name for name in ALGORITHMS.names() if ALGORITHMS.entry(name) is run), "")
    if known:
        return known
    if isinstance(run, type) and hasattr(run, "Config"):
        if not (isinstance(run.Config, type) and issubclass(run.Config, Config)):
            raise ConfigError(f"{run.__name__}.Config must be a dataclass that extends raypid.settings.config.Config.")
        if run.__name__ not in ALGORITHMS or ALGORITHMS.get(run.__name__) is not run:
            ALGORITHMS.add(run.__name__, run)
        return run.__name__
    raise ConfigError(f"An algorithm is a name or a class, such as 'PPO' or raypid.PPO, not {shown(run)}.")
