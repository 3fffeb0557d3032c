"""Settings as options of the command line, in groups: the few that people change in `--help`, all of them in `--help-all`."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from raypid.errors import UserError
from raypid.plugins.registry import other_names
from raypid.settings.config import Config, ModelConfig, Settings, field_docs, parse_value, type_hints
from raypid.settings.ranges import beside_default

SETTING = "setting:"
"""How the destination of a setting's option begins."""
GROUPS = ("algorithm", "run", "environment", "network", "evaluation", "machine")
"""The groups of the help, in their order."""
HELP_ALL = "--help-all"
_VALUE = r"'[^']*'|\[[^]]*\]|[\w.]*\w"
_SETTINGS = re.compile(rf"\w\([^()]*\)|(?<![^\s(])(?P<name>[a-z_.]+)=(?P<value>{_VALUE})(?=[.,;:)]*(?:\s|$))")
"""A call, or a setting with its value."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps to the terminal, with room for the names of options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, 112) - 2)


def add_groups(parser: argparse.ArgumentParser, algorithm: str) -> dict[str, argparse._ArgumentGroup]:
    """Add the groups of the help, and --help-all."""
    titles = {"algorithm": f"algorithm ({algorithm})", "network": "network (--model.hidden '[64, 64]')"}
    groups = {name: parser.add_argument_group(titles.get(name, name)) for name in GROUPS}
    parser.add_argument(HELP_ALL, action="help", help="show all settings")
    return groups


def add_settings(
    groups: Mapping[str, argparse._ActionsContainer],
    settings: Config,
    *,
    full: bool,
    only: Collection[str] = (),
) -> None:
    """Add an option for each setting to the group that it belongs to, unless the command has added one of its own by that name.

    Args:
        settings: the defaults; those of `Config` itself are nobody's, and are not said.
        full: whether the help has all of them, with all that is to be said, or those of `usual_settings` with a line each.
        only: the settings that the command takes, all of which the help has; empty: every setting.
    """
    usual = only or usual_settings(type(settings))
    for name, value, hint, doc in _fields(settings):
        group = groups[type(settings).group_of(name)]
        if option_of(name) in group._option_string_actions or (only and name not in only):
            continue
        about: dict[str, Any] = {"metavar": metavar(hint), "default": argparse.SUPPRESS}
        if about["metavar"] != "TEXT":
            about["type"] = reader(parse_value)
        if bool in (hint, *get_args(hint)):
            about |= {"nargs": "?", "const": "true"}
        text = _described(doc, value if type(settings) is not Config else None, full=full)
        for one in spellings_of(name):
            about["help"] = text if one == name and (full or name in usual) else argparse.SUPPRESS
            group.add_argument(option_of(one), dest=f"{SETTING}{one}", **about)


def spellings_of(name: str) -> list[str]:
    """The name of a setting, and those that other libraries have for it."""
    return [name, *(other for other, ours in other_names("ALIASES").items() if ours == name)]


def reader(read: Callable[[str], object]) -> Callable[[str], object]:
    """A `type` of argparse that reads a text, and passes on what a UserError says."""

    def convert(text: str) -> object:
        try:
            return read(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None

    return convert


def _fields(settings: Settings, prefix: str = "") -> Iterator[tuple[str, object, object, str]]:
    """Yield (full name, default, type, docstring) of every setting."""
    docs, hints = field_docs(type(settings)), type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        yield f"{prefix}{field.name}", value, hints[field.name], docs.get(field.name, "")
        if isinstance(value, Settings):
            yield from _fields(value, f"{field.name}.")


def option_of(name: str) -> str:
    """The option of a setting."""
    return f"--{name}".replace("_", "-")


def without_options(argv: Sequence[str], *options: str) -> list[str]:
    """The words of a command without some options and their values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option)
    return parser.parse_known_args(argv)[1]


def with_flags(message: str, parser: argparse.ArgumentParser) -> str:
    """Turn the settings in a message, which are written as in Python, into options of a command: num_workers=2 into --num-workers 2.

    Calls such as raypid.train(resume="runs/a") stay as they are.
    """

    def option(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name is None or option_of(name) not in parser._option_string_actions:
            return found[0]
        return option_of(name) if value == "True" else " ".join([option_of(name), shlex.quote(value.strip("'"))])

    return _SETTINGS.sub(option, message)


def usual_settings(cls: type[Config]) -> set[str]:
    """The settings of the short help: those with a range to search in, and those that their class names (`Config.usual`)."""
    usual = {name for owner in cls.__mro__ for name in vars(owner).get("usual", ())}
    usual |= {name for name in type_hints(cls) if beside_default(cls, name)}
    model = {name for name in type_hints(ModelConfig) if beside_default(ModelConfig, name)}
    return (usual | {f"model.{name}" for name in (*model, *ModelConfig.usual)}) - set(cls.no_effect)


def _described(doc: str, value: object, *, full: bool) -> str:
    """What the help says of a setting, and its default, where there is one."""
    text = doc if full else _first_words(doc)
    if isinstance(value, Settings) or value is None or value == {} or value == ():
        return text.replace("%", "%%")
    plain = str(value).lower() if isinstance(value, bool) else list(value) if isinstance(value, tuple) else value
    return f"{text.rstrip('.')} (default: {plain})".replace("%", "%%")


def _first_words(doc: str) -> str:
    """The first sentence or its main part, without what stands in parentheses."""
    return re.split(r"(?<=[^.\d])[.;](?=\s|$)", re.sub(r" \([^()]*\)", "", doc))[0]


def metavar(hint: object) -> str:
    """Return what a value looks like in the help: N, NUMBER, TEXT, {a,b} or JSON."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    kinds: dict[object, str] = {int: "N", float: "NUMBER", bool: "true|false", str: "TEXT", object: "TEXT"}
    one_of = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((kinds[kind] for kind in one_of if kind in kinds), "JSON")
