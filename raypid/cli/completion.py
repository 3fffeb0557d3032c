"""Print what makes a shell complete raypid's commands, options, algorithms, environments and run folders.

One line in the file that your shell reads when it starts is enough.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from raypid.cli.list import rows_of
from raypid.envs import list_envs
from raypid.plugins.extras import need
from raypid.plugins.registry import ALGORITHMS, NETWORKS
from raypid.settings import saved

SHELLS = {
    "bash": ('eval "$(raypid completion bash)"', "~/.bashrc"),
    "zsh": ('eval "$(raypid completion zsh)"', "~/.zshrc"),
    "fish": ("raypid completion fish | source", "~/.config/fish/config.fish"),
}
"""Shells -> the line that turns completion on, and the file that they read when they start."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.epilog = "\n".join(f"{shell:5} {line:38} in {file}" for shell, (line, file) in SHELLS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=tuple(SHELLS), help="your shell")


def main(options: argparse.Namespace) -> int:
    """Print the shell's code.

    Raises:
        UserError: argcomplete is not installed.
    """
    need({"completion": "Completion"})
    argcomplete: Any = importlib.import_module("argcomplete")
    print(argcomplete.shellcode(["raypid"], use_defaults=False, shell=options.shell), end="")
    return 0


def words_so_far() -> list[str]:
    """The words after `raypid` up to the cursor, which say what there is to complete."""
    argcomplete: Any = importlib.import_module("argcomplete")
    line, point = os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", "")
    before = line[: int(point)] if point.isdecimal() else line
    with contextlib.suppress(ValueError):
        _, prefix, _, words, _ = argcomplete.split_line(before)
        if prefix.startswith("--"):  # an option may be written with _ or -
            os.environ["COMP_LINE"] = before[: -len(prefix)] + prefix.replace("_", "-") + line[len(before) :]
        return [*words[1:], prefix]
    return []


def answer(parser: argparse.ArgumentParser, command: argparse.ArgumentParser | None) -> None:
    """Tell the shell what the word under the cursor may become, and end the process.

    Args:
        command: the parser of the command that is typed, if there is one of that name.
    """
    argcomplete: Any = importlib.import_module("argcomplete")
    for action in command._actions if command is not None else []:
        _complete(action)
    argcomplete.autocomplete(
        parser,
        always_complete_options="long",
        default_completer=argcomplete.completers.FilesCompleter(),
        validator=lambda name, prefix: name.lower().startswith(prefix.lower()),
    )


def _complete(action: Any) -> None:
    """Say what an option's value may be, as far as it is known."""
    completers: Any = importlib.import_module("argcomplete.completers")
    names = {action.dest, *(flag.lstrip("-") for flag in action.option_strings)}
    metavar = str(action.metavar)
    if metavar == "PROJECT":
        action.completer = completers.DirectoriesCompleter()
    elif completer := next((found for completes, found in _COMPLETERS if completes & names), None):
        action.completer = _of_this_case(completer)
    elif metavar.startswith("{") or metavar == "true|false":
        action.completer = completers.ChoicesCompleter(re.split(r"[,|]", metavar.strip("{}")))
    elif metavar in ("N", "NUMBER"):
        action.completer = completers.ChoicesCompleter(())


def _of_this_case(found: Callable[..., Iterable[str]]) -> Callable[..., list[str]]:
    """The names that begin as the word does; where none does, all: they are matched without their case."""

    def names(prefix: str, **about: object) -> list[str]:
        known = list(found(prefix=prefix, **about))
        return [name for name in known if name.startswith(prefix)] or known

    return names


def _envs(prefix: str, **_: object) -> list[str]:
    """Ids and files. Of EnvPool's tasks those that ALE has too: to ask EnvPool itself takes seconds."""
    if prefix.startswith("envpool:"):
        return [f"envpool:{name.removeprefix('ALE/')}" for name in list_envs() if name.startswith("ALE/")]
    if ":" in prefix:
        return _classes(prefix.rpartition(":")[0])
    here = [name for name in os.listdir(".") if name.endswith(".py")] if not prefix.startswith(("/", "../")) else []
    return [*list_envs(), "envpool:", *here]


def _classes(module: str) -> list[str]:
    """The classes of a module or file, which is read and not run."""
    file = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        return [f"{module}:{node.name}" for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return []


def _listed(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Names in what `raypid list KIND` shows."""
    if parsed_args.what == "envs":
        return list_envs()
    return [str(row["name"]) for row in rows_of(parsed_args.what)]


def _runs(prefix: str, **_: object) -> list[str]:
    """Folders of runs: those below runs/ and those whose name has begun."""
    from glob import escape, glob

    folders = [*glob("runs/*/"), *glob(f"{escape(prefix)}*/")]
    return sorted({folder.rstrip("/") if os.path.isfile(f"{folder}params.json") else folder for folder in folders})


def _entries(**_: object) -> Iterable[str]:
    from raypid.settings.tuned import TUNED

    return (f"{algorithm}:{env}" for algorithm, env in TUNED)


def _stops(**_: object) -> Iterable[str]:
    from raypid.run.known_keys import USUAL

    return [*(f"{name}=" for name in USUAL), "100000", "10min"]


_COMPLETERS: tuple[tuple[set[str], Callable[..., Iterable[str]]], ...] = (
    ({"run", "algo", "algorithm"}, lambda **_: ALGORITHMS.names()),
    ({"env", "evaluation-env"}, _envs),
    ({"model.network"}, lambda **_: NETWORKS.names()),
    ({"resume", "init-from", "path", "runs"}, _runs),
    ({"tuned"}, lambda **_: saved.names()),
    ({"entry"}, _entries),
    ({"filter"}, _listed),
    ({"stop"}, _stops),
)
"""Names of options, or places of positional arguments -> what completes their values."""
