"""`raypid init PROJECT`: write a folder for environments, models and agents of one's own."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.errors import UserError
from raypid.extras import installed, pip
from raypid.ownership import MARKER, mark_project, run_folder_of

if TYPE_CHECKING:
    from raypid.cli import Subparsers

NEXT = (
    "raypid train --env_name custom_env --agent_name custom_agent --model_name custom_model --lr 0.1 "
    "--stop '{\"timesteps_total\": 60000}' --out runs/first"
)
TEMPLATE = Path(__file__).parent.parent / "project_template"


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    parser = subparsers.add_parser(
        "init",
        help="write a project: a folder for environments, models and agents of your own",
        description="Write a project: a folder for environments, models and agents of your own, which commands that run in it find "
        "by name. In a project that you have moved or cloned it only marks the folder as yours, after you have read what is in it.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="PROJECT", help="the folder to write; . is the current one")


def main(options: argparse.Namespace) -> int:
    """Write the folder and say how to go on.

    Raises:
        UserError: it holds other files, or cannot be written.
    """
    folder = Path(options.path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder.")
    if (folder / MARKER).is_file():
        mark_project(folder)
        print(f"{folder} is marked as your project: raypid imports its code by name where commands run in it.")
        return 0
    if (inside := run_folder_of(folder)) is not None:
        raise UserError(
            f"{folder} is or lies in a run's folder ({inside}), where code is never imported from. Name another one."
        )
    files = [
        file.relative_to(TEMPLATE)
        for file in sorted(TEMPLATE.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    if present := [str(file) for file in files if (folder / file).exists()]:
        raise UserError(f"{folder} has a {present[0]} already, which would be replaced: name a new folder.")
    try:
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TEMPLATE / file, folder / file)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from None
    mark_project(folder)
    go = "" if folder.resolve() == Path.cwd() else f"cd {folder}\n"
    written = ", ".join(str(f) for f in files if f.suffix in (".py", ".yaml") and f.name[0] != "_")
    test = "pytest" if installed("pytest") else f"{pip()} install pytest\npytest"
    print(f"{folder} is a project: {written}.\n\n{go}{NEXT}\n{test}")
    return 0
