"""The command line: `raypid train | tune | eval | plot | compare | check-env | list | reproduce | doctor | init | completion`, one file per command.

The docstring of a command's module is what its help begins with. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from raypid import __version__
from raypid.cli.options import HELP_ALL, HelpFormatter, with_flags
from raypid.errors import UserError, one_line, reason
from raypid.phases import Phases
from raypid.plugins.project import find_project, foreign_project, not_imported
from raypid.plugins.registry import did_you_mean, unknown
from raypid.report.streams import StatusLine, lenient_output
from raypid.storage.ownership import put_on_path

COMMANDS = {
    "train": "train a policy",
    "tune": "search for settings",
    "eval": "play episodes with a trained policy",
    "plot": "draw the learning curves of runs",
    "compare": "say which runs are better, by how much and how surely",
    "check-env": "say whether an environment is right, how fast it is, and what training will cost",
    "list": "show environments, algorithms and agents, networks, models, tuned settings",
    "reproduce": "train with tuned settings and compare return and time with what is recorded of them",
    "doctor": "say what went wrong in a run and what slowed it",
    "init": "write a project: a folder for environments, models and agents of your own",
    "completion": "print what makes TAB complete commands, options and values in your shell",
}
"""Commands, each a module of this package -> what `raypid --help` says of it."""
USES_PROJECT = ("train", "tune", "eval", "check-env", "list")
USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: success; 1: a run failed, an environment has problems, tuned settings were not reproduced, or the output could not be written;
    2: bad input; 130: Ctrl-C twice, or before a run has started.
    """
    arguments = [dashed(a) for a in (sys.argv[1:] if argv is None else argv)]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    with lenient_output() as output:
        trains = arguments[:1] == ["train"]
        try:
            code = _command(arguments)
        except KeyboardInterrupt as error:
            print(f"raypid: stopped at once. {getattr(error, 'saved', '')}".rstrip(), file=sys.stderr)
            return INTERRUPTED
        except SystemExit as end:
            if end.code:
                raise
            code, trains = 0, False  # --help
        output.flush()
        # a reader that wants no more, as in `| head`, is no failure
        if code == 0 and output.failure is not None and not isinstance(output.failure, BrokenPipeError):
            print(f"raypid: The output could not be written: {reason(output.failure)}.", file=sys.stderr)
            code = 0 if trains else FAILURE
    return code


def _command(arguments: Sequence[str]) -> int:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # set before NumPy is imported: matrices are small here
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    completion = importlib.import_module("raypid.cli.completion") if "_ARGCOMPLETE" in os.environ else None
    if completion is not None:
        arguments = [dashed(word) for word in completion.words_so_far()]
    name, phases = arguments[0] if arguments else "", Phases()
    parser, parsers = _parsers()
    try:
        put_on_path(arguments)  # "module:Name" means the user's own files first
        if name in USES_PROJECT:
            find_project(Path.cwd(), arguments)
            if name == "list" and (foreign := foreign_project(Path.cwd())) is not None:
                print(f"raypid: {not_imported(foreign)}", file=sys.stderr)
        if name in COMMANDS:
            command = importlib.import_module(f"raypid.cli.{name.replace('-', '_')}")
            parsers[name].description = command.__doc__
            command.add_options(parsers[name], arguments if completion is None else [*arguments, HELP_ALL])
        if completion is not None:
            completion.answer(parser, parsers.get(name))
        if name not in ("", *COMMANDS, "-h", "--help", "--version"):
            raise UserError(f"Unknown command {name!r}.{did_you_mean(name, COMMANDS)}")
        options, unknown = parser.parse_known_args(arguments)
        if options.command is None:
            parser.print_help()
            return USER_ERROR
        if hasattr(options, "filter"):  # argparse leaves out texts that stand after an option
            options.filter += [word for word in unknown if not word.startswith("-")]
            unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            _refuse(unknown, parsers[name])
        if not getattr(options, "quiet", False):
            phases.tell = StatusLine()
        if name == "train" and (options.file or options.resume):  # these may mean several runs
            command = importlib.import_module("raypid.cli.experiment")
        with phases.heard():
            code: int = command.main(options)
        return code
    except (UserError, RuntimeError) as error:
        text = _with_saved(error) + _unmarked(error)
        if name in parsers and not getattr(error, "has_traceback", False):
            text = with_flags(text, parsers[name])
        print(text if text.startswith("Traceback ") else f"raypid: {text}", file=sys.stderr)
        return USER_ERROR if isinstance(error, UserError) else FAILURE
    except Exception as error:  # the user's own code; its traceback follows
        if saved := getattr(error, "saved", ""):
            print(f"raypid: {saved}", file=sys.stderr)
        raise


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser of `raypid`, and those of its commands, which have no options yet."""
    parser = _Parser(
        prog="raypid",
        usage="raypid COMMAND [options]",
        description=_FIRST,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"raypid {__version__}", help="print the version")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", prog="raypid", parser_class=_Parser
    )
    return parser, {name: subparsers.add_parser(name, help=text) for name, text in COMMANDS.items()}


_FIRST = """\
Train policies by deep reinforcement learning, on a laptop or a Ray cluster.

  raypid train --run PPO --env CartPole-v1 --stop 50000 --out runs/first
  raypid eval runs/first
  raypid train --run PPO --help      the settings of PPO; so for every command
  raypid list envs                   environments; also agents, networks, tuned"""


def _unmarked(error: Exception) -> str:
    """Say, of a name that is not known, that the project here was not looked at; "" if that cannot be why."""
    if not isinstance(error, UserError) or not str(error).startswith("Unknown "):
        return ""
    project = foreign_project(Path.cwd())
    return "" if project is None else f" {not_imported(project)}"


def _with_saved(error: Exception) -> str:
    """The error, and after it what a run has saved before it ended."""
    text = str(error) if getattr(error, "has_traceback", False) else one_line(error)
    saved = getattr(error, "saved", "")
    return f"{text}{chr(10) if chr(10) in text else ' '}{saved}" if saved else text


class _Parser(argparse.ArgumentParser):
    """Prints errors on one line, without the usage, and takes options by their whole names alone."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **about})

    def error(self, message: str) -> NoReturn:
        text = one_line(message[0].upper() + message[1:])
        end = "" if text.endswith((".", "?")) else "."
        self.exit(USER_ERROR, f"raypid: {text}{end} `{self.prog} --help` shows the options.\n")


def dashed(argument: str) -> str:
    """Spell --num_workers=2 as --num-workers=2, so that both are the same flag."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


def _refuse(arguments: Sequence[str], parser: argparse.ArgumentParser) -> NoReturn:
    """Raise a UserError that says of unknown arguments what was meant: of the first, or of all options."""
    options = [word.partition("=")[0] for word in arguments if re.match(r"--?[^\W\d]", word)]
    if arguments[0].startswith("-") and options:
        flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        raise UserError(unknown("option", dict.fromkeys(options), flags))
    trains = "--run" in parser._option_string_actions
    told = " --run names the algorithm, --env the environment, -f or --config a file." if trains else ""
    raise UserError(f"Unexpected argument {arguments[0]!r}.{told} `{parser.prog} --help` shows the options.")
