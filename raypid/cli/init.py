"""Write a project: a folder for environments, models and agents of your own, which commands that run in it find by name.

In a folder with files of yours it adds what is missing and replaces nothing. In a project that you have moved or cloned it
only marks the folder as yours, after you have read what is in it.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from raypid.errors import UserError, reason
from raypid.plugins.extras import installed, pip
from raypid.plugins.project import registered
from raypid.storage.ownership import MARKER, mark_project, project_of, run_folder_of

TEMPLATE = Path(__file__).parent.parent / "project_template"
PARTS = {"env": "envs/custom_env.py", "agent": "agents/custom_agent.py", "model": "models/custom_model.py"}
"""What a run is made of -> its file in a project."""
TESTS = ("conftest.py", "tests/test_project.py")
"""They test the classes of the template, so they are written beside these alone."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.add_argument("path", metavar="PROJECT", help="the folder to write; . is the current one")


def main(options: argparse.Namespace) -> int:
    """Write what the folder lacks and say how to go on.

    Raises:
        UserError: it is a file, lies in a run's folder, or cannot be written.
    """
    folder = Path(options.path)
    if (folder / MARKER).is_file() and project_of(folder) is None:
        mark_project(folder)
        print(f"{folder} is marked as your project: raypid imports its code by name where commands run in it.")
        return 0
    if folder.resolve() in (Path.home(), Path(folder.resolve().anchor)):
        raise UserError(
            f"{folder} holds more than one project: name a folder of its own, such as {folder / 'project'}."
        )
    if (inside := run_folder_of(folder)) is not None:
        raise UserError(
            f"{folder} is or lies in a run's folder ({inside}), where code is never imported from. Name another one."
        )
    files = [
        file.relative_to(TEMPLATE).as_posix()
        for file in sorted(TEMPLATE.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    kept = [file for file in files if os.path.lexists(folder / file)]
    same, _, _ = filecmp.cmpfiles(folder, TEMPLATE, kept, shallow=False)
    has_own = any(file.endswith(".py") and file not in same for file in kept)
    skipped = [file for file in TESTS if has_own and file not in kept]
    written = [file for file in files if file not in (*kept, *skipped)]
    try:
        for file in written:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TEMPLATE / file, folder / file)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {reason(error)}.") from None
    mark_project(folder)
    print(f"{folder} is a project.")
    print(f"  written: {', '.join(written) or 'nothing, since no file is missing'}")
    if kept:
        print(f"  left as they were: {', '.join(kept)}")
    if skipped:
        print(f"  left out: {', '.join(skipped)}, which test the example's classes, not yours")
    print()
    if folder.resolve() != Path.cwd():
        print(f"cd {shlex.quote(str(folder))}")
    names = " ".join(
        f"--{kind}_name {registered(folder / file).get(kind, f'custom_{kind}')}" for kind, file in PARTS.items()
    )
    print(f"raypid train {names} --lr 0.1 --stop 60000 --out runs/first")
    if TESTS[-1] not in skipped:
        print("pytest" if installed("pytest") else f"{pip()} install pytest\npytest")
    return 0
