"""Arguments that users' classes declare: `add_args(parser)` of environments, models and agents, and a project's `get_custom_args`.

A class declares argparse options with their types and defaults. Settings hold the values (`env_config`, `model.custom`,
`agent_config`, `custom_args`); each class is built with a Namespace of all of its own, as `args`.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from typing import NoReturn

from raypid.errors import ConfigError
from raypid.plugins.registry import did_you_mean


class _Parser(argparse.ArgumentParser):
    """Collects options; refuses values with a ConfigError."""

    def __init__(self, setting: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.setting = setting

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.setting}: {message}.")


def declared(declare: Callable[[argparse.ArgumentParser], object], setting: str) -> dict[str, argparse.Action]:
    """Return the options that a function adds to a parser, by the name of their value."""
    return {action.dest: action for action in _parser(declare, setting)._actions}


def _parser(declare: Callable[[argparse.ArgumentParser], object], setting: str) -> _Parser:
    parser = _Parser(setting)
    declare(parser)
    if bare := next((action for action in parser._actions if not action.option_strings), None):
        raise ConfigError(f"{setting}: {bare.dest!r} is a positional argument; declare an option: '--{bare.dest}'.")
    return parser


def declares(entry: object, name: str) -> Callable[[argparse.ArgumentParser], object] | None:
    """The `add_args` of a class, if it has one.

    Raises:
        ConfigError: it is a method of the object, which does not exist when its arguments are declared.
    """
    if inspect.isclass(entry) and inspect.isfunction(inspect.getattr_static(entry, "add_args", None)):
        raise ConfigError(f"{name}.add_args is called before there is an object: put @staticmethod before it.")
    found: Callable[[argparse.ArgumentParser], object] | None = getattr(entry, "add_args", None)
    return found


def arguments(
    entry: object, name: str, setting: str, given: Mapping[str, object], provided: Mapping[str, object]
) -> argparse.Namespace:
    """Build the `args` of a class: the values `given`, defaults for the others, and what raypid has `provided`.

    Args:
        name: of the class, for messages.
        setting: which setting holds the values.

    Raises:
        ConfigError: a value that the class's add_args does not declare, or of another type; a name that is given twice.
    """
    args, declare = argparse.Namespace(**given), declares(entry, name)
    if declare is not None:
        parser = _parser(declare, setting)
        known = {action.dest: action for action in parser._actions}
        tokens: list[str] = []
        for key, value in given.items():
            if key not in known:
                raise ConfigError(f"{setting}: {name} has no argument {key!r}.{did_you_mean(key, known)}")
            tokens += _tokens(known[key], value)
        args = parser.parse_args(tokens)
    if clash := [key for key in provided if hasattr(args, key)]:
        raise ConfigError(f"{name}: `{clash[0]}` is already provided in args; give its own argument another name.")
    vars(args).update(provided)
    return args


def _tokens(action: argparse.Action, value: object) -> list[str]:
    """Write a value as on a command line, so that argparse checks types and choices."""
    if value is None:
        return []
    if isinstance(action, argparse.BooleanOptionalAction):
        return [next(flag for flag in action.option_strings if flag.startswith("--no-") != bool(value))]
    if action.nargs == 0:  # a switch
        return [action.option_strings[0]] if value == action.const else []
    if isinstance(action, argparse._AppendAction) and isinstance(value, (list, tuple)):
        return [f"{action.option_strings[0]}={one}" for one in value]
    if isinstance(value, (list, tuple)):
        return [action.option_strings[0], *map(str, value)]
    return [f"{action.option_strings[0]}={value}"]
