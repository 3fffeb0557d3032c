"""What is wrong with the runs that pages show: commands of raypid, run files, and settings and ends in Python.

raypid's own parsers and checks are asked. What a page leaves open (`N`, `DIR`, `$lr`, a variable) is taken to be right.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import gymnasium
import numpy as np
import tables

from raypid import cli
from raypid.cli.train import flags_of
from raypid.errors import UserError
from raypid.plugins.registry import ENVS, NETWORKS
from raypid.run.known_keys import KnownKeys, check_stop, known_keys
from raypid.settings.config import Config, ModelConfig, canonical, given_names, overlay
from raypid.settings.files import read_block, read_run, read_values
from raypid.settings.marked import Marked, parse_marked
from raypid.settings.stops import read_stop
from raypid.settings.variants import variants
from raypid.sweep.experiment import experiments_from

OPEN: Any = object()
"""A value that cannot be said without running the code."""
_PLACEHOLDER = re.compile(r"[A-Z]|[A-Z][A-Z|]+|\.\.\.|.*\$.*")
_NETWORKS = ("auto", "custom_model")
"""Networks that nobody registers here: the second is that of `raypid init`."""
_ENV = ("--env", "--env-name")
_HELP = ("-h", "--help", "--help-all")
_PREFIX = r"\$|do|then|time|nohup|srun|uv|run|(?:\S*/)?python[\d.]*|-m|[A-Za-z_]+=.*"
"""What may stand before `raypid` in a text that is not all commands."""


# -- commands --------------------------------------------------------------------------------------------------------------


def commands(text: str, *, all_commands: bool) -> list[list[str]]:
    """The words of the `raypid` commands in a text, each from `raypid` on.

    Args:
        all_commands: whether nothing else than commands stands there, so that any program may stand before `raypid`.
    """
    return [words for line in text.replace("\\\n", " ").splitlines() for words in _commands_of(line, all_commands)]


def _commands_of(line: str, all_commands: bool) -> Iterator[list[str]]:
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a sentence with an apostrophe
        words = line.split()
    part, last = list[str](), ""
    for word in [*words, ";"]:
        if not re.fullmatch(r"[();<>|&]+", word):
            part.append(word)
            if re.search(r"\braypid [a-z]", word):  # ssh NODE 'raypid ...'
                yield from _commands_of(word, all_commands)
            continue
        at = next((i for i, word in enumerate(part) if word.rpartition("/")[2] == "raypid"), None)
        before = part[: at or 0]
        if at is not None and part[at + 1 :] and re.fullmatch(r"[a-z][\w-]*", part[at + 1]):
            in_sentence = line.startswith(" ") and " --" not in line or last.endswith(";")
            is_prose = in_sentence and part[at + 1] not in cli.COMMANDS
            if all_commands or all(re.fullmatch(_PREFIX, word) for word in before) and not is_prose:
                yield ["raypid", *part[at + 1 :]]
        part, last = [], word


def command_problems(words: Sequence[str], own: set[str], *, whole: bool) -> list[str]:
    """What raypid would refuse in a command.

    Args:
        own: words of the page's code, whose classes may have flags and names of their own.
        whole: whether it is to be run as it is; else it may be the beginning of a command, such as `raypid eval`.
    """
    shown, name = shlex.join(words), words[1]
    if name == "help":
        return []
    if name not in cli.COMMANDS:
        return [f"there is no command `raypid {name}`"]
    rest = [cli.dashed(word) for word in words[2:]]
    run = tables.ALGORITHMS.canonical(_value(rest, "--run"))
    if ":" in run or run.endswith(".py") or run in own or _is_open(run):
        rest, run = _without(rest, "--run"), ""
    any_run = ["", *tables.ALGORITHMS.names()] if name in ("train", "tune") else [""]
    first: list[str] = []
    for one in [run] if run else any_run:
        if not (found := _parsed(name, one, rest, own, whole)):
            return []
        first = first or found
    return [f"{problem}, in: {shown}" for problem in first]


def _value(words: Sequence[str], *flags: str) -> str:
    pairs = [word.partition("=")[::2] if "=" in word else (word, after) for word, after in zip(words, [*words[1:], ""])]
    return next((value for flag, value in pairs if flag in flags), "")


def _without(words: Sequence[str], *flags: str) -> list[str]:
    gone = {i + offset for i, word in enumerate(words) if word in flags for offset in (0, 1)}
    return [word for i, word in enumerate(words) if i not in gone]


def _parsed(command: str, run: str, words: list[str], own: set[str], whole: bool) -> list[str]:
    """What is wrong with the options of a command, if it runs this algorithm; "" is that none is named."""
    named = [("--run", run)] if run in tables.ALGORITHMS.names() else []
    named += [(flag, word) for flag, word in zip(words, words[1:]) if flag in _ENV and word in ENVS.names()]
    try:
        parser = _parser(command, *named)
    except UserError:  # a setting without a docstring, which tables.py reports
        return []
    flags, open_flags = parser._option_string_actions, set[str]()
    while at := next((i for i, word in enumerate(words) if i and _is_open(word) and words[i - 1] in flags), 0):
        open_flags.add(words[at - 1])
        words = words[: at - 1] + words[at + 1 :]
    if asks := [word for word in words if word in _HELP]:
        words = [word for word in words if word not in asks]
    try:
        options, rest = parser.parse_known_args(words)
    except UserError as error:
        is_cut = "required" in str(error) or "expected" in str(error)
        return [] if is_cut and (not whole or asks) else [f"`raypid {command}` refuses: {error}"]
    has_own = any(re.search(r"\w:\w|\.py$", word) for word in words)
    unknown = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    found = [
        f"`raypid {command}` has no flag {flag}"
        for flag in unknown
        if not (has_own and flag.lstrip("-").replace("-", "_") in own)
    ]
    if found or command not in ("train", "tune"):
        return found
    knows_all = bool(run) and not any(getattr(options, name, None) for name in ("resume", "file", "tuned"))
    files = [text for text in options.config if text.lstrip().startswith("{")]
    knows_all = knows_all and whole and len(files) == len(options.config) and not has_own and not open_flags
    return [*_asked(lambda: _check_options(options, run, files, knows_all, own))]


def _check_options(
    options: argparse.Namespace, run: str, files: Sequence[str], knows_all: bool, own: Collection[str]
) -> None:
    given: Mapping[str, object] = {}
    for text in files:
        file = read_run(text)
        given, run = overlay(given, file.settings), run or file.run or ""
        check_end(run, file.stop)
    given = overlay(given, flags_of(options))
    check_settings(run, given, knows_all=knows_all)
    check_parts(given, own)
    searched = (getattr(options, "only", None) or "").split(",")  # raypid tune
    if (space := getattr(options, "space", None) or "").startswith("{"):
        searched += read_values(space, "--space")
    check_settings(run, {name.strip(): OPEN for name in searched if name}, knows_all=False)
    check_end(run, options.stop)


def _is_open(word: str) -> bool:
    return bool(_PLACEHOLDER.fullmatch(word)) and word not in tables.ALGORITHMS.names()


class _Parser(cli._Parser):
    """Raises what the command line would print."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


@cache
def _parser(command: str, *named: tuple[str, str]) -> argparse.ArgumentParser:
    """The parser of a command, of `raypid train` with the options of the algorithm and the environment that are named.

    Raises:
        UserError: a setting of it has no docstring.
    """
    parser = _Parser(prog=f"raypid {command}")
    module = importlib.import_module(f"raypid.cli.{command.replace('-', '_')}")
    module.add_options(parser, [command, *(word for pair in named for word in pair)])
    return parser


# -- settings and ends -----------------------------------------------------------------------------------------------------


def check_settings(run: str, given: Mapping[str, object], *, knows_all: bool = True) -> None:
    """Refuse settings as raypid does before anything starts.

    Args:
        run: the algorithm; "": any.
        given: settings by any name; values may be OPEN.
        knows_all: whether no others are given elsewhere, so that these must go together.

    Raises:
        UserError: what raypid says.
    """
    if not run:
        errors = [*_asked(lambda: check_settings("PPO", given, knows_all=False))]
        if errors and not any(_passes(name, given) for name in tables.ALGORITHMS.names()):
            raise UserError(errors[0])
        return
    cls: type[Config] = tables.ALGORITHMS.get(run).Config
    default = cls()
    closed = {key: _closed(key, value, default) for key, value in given.items()}
    config = default.replace(closed)
    if knows_all and closed == {**given}:
        config.validate(open_end=True)
        config.refuse(config.idle(), given_names(given))


def check_parts(given: Mapping[str, object], own: Collection[str]) -> None:
    """Refuse an id of Gymnasium and a name of a network that do not exist.

    Args:
        given: settings by any name.
        own: names that the page registers.

    Raises:
        UserError: there is none.
    """
    named = {canonical(key): value for key, value in given.items() if isinstance(value, str)}
    named |= {f"model.{key}": value for key, value in as_mapping(given.get("model")).items()}
    env, network = named.get("env"), named.get("model.network", "auto")
    if env is not None and re.fullmatch(r"[A-Za-z]\w*-v\d+", env) and env not in {*gymnasium.registry, *own}:
        raise UserError(f"Gymnasium has no environment {env!r}")
    if (
        isinstance(network, str)
        and re.fullmatch(r"\w+", network)
        and network not in {*_NETWORKS, *NETWORKS.names(), *own}
    ):
        NETWORKS.get(network)


def as_mapping(value: object) -> Mapping[str, Any]:
    """A mapping, or an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def _passes(run: str, given: Mapping[str, object]) -> bool:
    return not [*_asked(lambda: check_settings(run, given, knows_all=False))]


def _closed(key: str, value: object, default: object) -> object:
    """A setting's value, or its default where it is not known."""
    if isinstance(value, Mapping) and key == "model":
        return {name: _closed(name, part, ModelConfig()) for name, part in value.items()}
    name = canonical(key).removeprefix("model.")
    if isinstance(default, Config) and canonical(key).startswith("model."):
        default = default.model
    return getattr(default, name, None) if is_open(value) else value


def is_open(value: object) -> bool:
    """Whether a value, or a part of it, cannot be said without running the code."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return value is OPEN or any(map(is_open, parts))


def check_end(run: str, stop: object) -> None:
    """Refuse a stop criterion that no run of the algorithm can meet; "": of any.

    Raises:
        UserError: what raypid says.
    """
    if stop is None or is_open(stop):
        return
    keys = (
        known_keys(run, tables.ALGORITHMS.get(run).Config()) if run else KnownKeys(all_keys(), ("custom/", "learner/"))
    )
    check_stop(read_stop(stop), keys)


@cache
def all_keys() -> frozenset[str]:
    """Every key that results of some run have."""
    return frozenset(key for name in tables.ALGORITHMS.names() for key in tables.keys(name))


def _asked(check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except UserError as error:
        yield str(error).rstrip(".")


# -- run files -------------------------------------------------------------------------------------------------------------


def run_file_problems(text: str) -> list[str]:
    """What raypid would refuse in a YAML file of settings, of a run, or of experiments."""
    return [
        f"raypid refuses a run file: {told}"
        for told in _asked(lambda: check_experiments(parse_marked("file", text).values))
    ]


def check_experiments(values: Mapping[str, Any]) -> None:
    """Refuse a file of settings, of a run, or of experiments, as `-f` and `--config` do.

    Raises:
        UserError: what raypid says.
    """
    blocks = [values, *(value for value in values.values() if isinstance(value, Mapping))]
    if not any("run" in block for block in blocks):
        check_settings("", read_block(Marked("file", dict(values))).settings)
        return
    for block in (block for block in blocks if isinstance(block.get("config"), Mapping)):
        check_settings(
            str(block.get("run", "")), {name: OPEN for name, value in block["config"].items() if is_open(value)}
        )
    for experiment in experiments_from(_closed_parts(values)):
        first = next(variants(experiment.settings, 1, np.random.default_rng(0)))
        check_settings(str(experiment.request.run), first.settings)
        check_parts(first.settings, ())
        check_end(str(experiment.request.run), experiment.request.stop)


def _closed_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values without those that are OPEN."""
    parts = {name: _closed_parts(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    return {name: value for name, value in parts.items() if not is_open(value)}
