"""The user's own code, as it travels to the other nodes of a cluster, whatever disks these have.

Ray ships folders too (`runtime_env`), but uploads local ones only at `ray.init`. That is too early, or somebody else's call: in a
notebook where Ray is up already, in a trial of Ray Tune, and in a job that a cluster runs. So raypid sends the code itself, with each role.

What this process finds on its path of modules, and no package manager has put there, is packed once: the script's folder, the
current one of a command, a project, PYTHONPATH, the folder of `--env reacher.py:Reach`. Each node unpacks it once, and its
roles have it first on their path, files beside the code included. Edited code has another digest and thus another folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import IO

from raypid.errors import UserError, reason
from raypid.plugins import modules
from raypid.storage.ownership import MARKER, is_run, run_folder_of

IGNORE = ".raypidignore"
"""File in a folder that travels: names and patterns, one a line, of what stays behind."""
MOST_FILE = 16 * 2**20
MOST_BYTES = 128 * 2**20
MOST_FILES = 20_000
_STAYS = (".*", "*.pyc", "__pycache__", "node_modules", "runs", "site-packages")
"""Patterns of what stays behind in every folder."""
_PACKAGE = Path(__file__).resolve().parents[1]
"""raypid itself, which does not travel: each node has its own."""


@dataclass(frozen=True)
class Code:
    """The description of packed code, without its bytes."""

    digest: str
    folders: tuple[str, ...]
    """The folders that were packed, by their paths on the machine where they were."""
    path: tuple[str, ...]
    """These and folders in them, in the order in which modules are looked for."""
    current: str
    """The current folder."""
    files: Mapping[str, str]
    """Modules that were imported by their file -> the file."""
    raypid: str
    """Which raypid it came from; see `raypid_here`."""
    left_out: tuple[str, ...] = ()
    """Files that should perhaps have come too, and why they did not."""


Files = dict[str, tuple[Path, int]]
"""Files that travel: path inside of what is packed -> the file, and its bytes."""


def pack() -> tuple[Code, bytes]:
    """Pack what other nodes lack; returns what it is, and its bytes.

    Raises:
        UserError: it is too much. The message says what takes most, and how to leave it out.
    """
    path = _own_path()
    folders = [one for one in path if not any(one != other and one.is_relative_to(other) for other in path)]
    files: Files = {}
    left_out: list[str] = []
    for number, folder in enumerate(folders):
        _find(folder, number, files, left_out)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, (file, _) in sorted(files.items()):
            try:
                name.encode()
                archive.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
            except (OSError, UnicodeError) as error:
                left_out.append(f"{str(file)!r} ({reason(error)})")
    names, on_path, imported = tuple(map(str, folders)), tuple(map(str, path)), dict(modules.imported_files)
    digest = hashlib.sha256(f"{names}".encode() + data.getbuffer()).hexdigest()[:32]
    return Code(digest, names, on_path, os.getcwd(), imported, raypid_here(), tuple(left_out)), data.getvalue()


def _own_path() -> list[Path]:
    """The folders on the path of modules that are the user's: neither Python's nor installed, and no run's."""
    installed = [Path(place).resolve() for place in (*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)]
    current = Path.cwd()

    def is_own(folder: Path) -> bool:
        is_installed = any(folder.is_relative_to(place) for place in installed)
        is_source = folder == _PACKAGE.parent and folder != current  # of raypid
        packages = {"site-packages", "dist-packages"} & set(folder.parts)
        return folder.is_dir() and not (is_installed or is_source or packages) and run_folder_of(folder) is None

    return list(filter(is_own, dict.fromkeys(Path(entry or current).resolve() for entry in sys.path)))


def _find(root: Path, number: int, files: Files, left_out: list[str]) -> None:
    """Add the files of a folder that travel. A folder that is too large stays if nothing in it has been imported, such as a home folder.

    Raises:
        UserError: they are too many or too large.
    """
    found: Files = {}
    num_bytes = sum(size for _, size in files.values())
    seen: set[Path] = set()
    patterns = [*_STAYS, *_ignored(root)]
    for place, folders, names in os.walk(root, followlinks=True):
        here = Path(place)
        if (real := here.resolve()) in seen:  # a link in a circle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not _stays(here / name, root, patterns)]
        for name in names:
            file = here / name
            if (name != MARKER and _matches(file, root, patterns)) or not os.path.isfile(file):
                continue
            if (size := os.path.getsize(file)) > MOST_FILE:
                left_out.append(f"{file} ({size / 2**20:,.0f} MB)")
                continue
            found[f"{number}/{file.relative_to(root).as_posix()}"] = file, size
            num_bytes += size
        if len(files) + len(found) > MOST_FILES or num_bytes > MOST_BYTES:
            if _is_used(root):
                raise _too_much(root, files | found)
            left_out.append(f"{root} (nothing in it was imported)")
            return
    files |= found


def _is_used(root: Path) -> bool:
    """Whether a module that this process has imported lies in the folder, raypid's own aside."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    places = [Path(file).resolve() for file in files if file and os.path.isabs(file) and "site-packages" not in file]
    return any(place.is_relative_to(root) and not place.is_relative_to(_PACKAGE) for place in places)


def _stays(folder: Path, root: Path, patterns: list[str]) -> bool:
    """Whether a folder stays behind: by its name, or as an environment of Python, raypid itself or a run's folder."""
    is_python = (folder / "pyvenv.cfg").is_file()
    return _matches(folder, root, patterns) or is_python or folder.resolve() == _PACKAGE or is_run(folder)


def _ignored(root: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        lines = (root / IGNORE).read_text().splitlines()
        return [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]
    return []


def _matches(place: Path, root: Path, patterns: list[str]) -> bool:
    inside = place.relative_to(root).as_posix()
    return any(fnmatch(place.name, pattern) or fnmatch(inside, pattern.lstrip("/")) for pattern in patterns)


def _too_much(root: Path, files: Files) -> UserError:
    parts = defaultdict[str, list[int]](list)
    for inside, (_, size) in files.items():
        parts[inside.split("/", 2)[1]].append(size)
    largest = sorted(parts.items(), key=lambda part: -(sum(part[1]) / MOST_BYTES + len(part[1]) / MOST_FILES))[:3]
    said = ", ".join(f"{name} ({len(sizes):,} files, {sum(sizes) / 2**20:,.0f} MB)" for name, sizes in largest)
    return UserError(
        f"{root} is too large to be sent to the nodes of a cluster (at most {MOST_FILES:,} files and {MOST_BYTES // 2**20} MB): {said}. "
        f"Name what roles do not need in {root / IGNORE}, one name or pattern a line, or keep your code in a folder of its own."
    )


# -- on a node -----------------------------------------------------------------------------------------------------


def unpack(code: Code, data: Callable[[], bytes]) -> None:
    """Make the code importable in this process. `data` fetches the bytes, where this node does not have them yet."""
    place = _unpacked(code.digest, data)
    modules.moved.update({folder: str(place / str(number)) for number, folder in enumerate(code.folders)})
    sys.path[:0] = [path for path in map(modules.here, code.path) if os.path.isdir(path)]
    sys.meta_path.append(_ByFile(code.files))
    importlib.invalidate_caches()


def enter(code: Code) -> None:
    """Go to the folder that was the current one where the code came from, so that relative paths are right."""
    if (folder := modules.here(code.current)) != code.current and os.path.isdir(folder):
        os.chdir(folder)


class _ByFile:
    """Finds modules that were imported by their file where they came from."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = self.files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, modules.here(file))


_held: list[IO[bytes]] = []
"""Locks on what this process has unpacked or found. They end with it."""


def _unpacked(digest: str, data: Callable[[], bytes]) -> Path:
    """The folder with the code, unpacked by the first process that asks. What no process uses any more is removed."""
    base = _base()
    folder = base / digest
    with _locked(base / "lock"):  # one process at a time looks, unpacks and removes
        if not (folder / "lock").exists():  # which is made once all is unpacked
            for other in base.iterdir():
                _remove_unused(other)
            with zipfile.ZipFile(io.BytesIO(data())) as archive:
                archive.extractall(folder)
        _held.append(_locked(folder / "lock", shared=True))
    return folder


def _base() -> Path:
    """A folder of this user's alone, since what lies in it is imported."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    base = Path(tempfile.gettempdir()) / ("raypid-code" if user is None else f"raypid-code-{user}")
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    about = base.lstat()
    if user is None or (stat.S_ISDIR(about.st_mode) and about.st_uid == user and not about.st_mode & 0o077):
        return base
    return Path(tempfile.mkdtemp(prefix="raypid-code-"))


def _locked(path: Path, *, shared: bool = False) -> IO[bytes]:
    """Open a file and lock it, shared by all that use the code, or for one process alone."""
    file = path.open("ab")
    with contextlib.suppress(ModuleNotFoundError):  # systems without flock have no protection
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    return file


def _remove_unused(folder: Path) -> None:
    """Remove a folder with code that no process holds."""
    with contextlib.suppress(OSError, ModuleNotFoundError), (folder / "lock").open("ab") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "lock").unlink()  # first, so that what is left of it does not count as whole
        shutil.rmtree(folder)


# -- which raypid, and where ---------------------------------------------------------------------------------------


@functools.cache
def raypid_here() -> str:
    """The version of raypid with a digest of its source files: two processes that agree in it understand each other."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        name = file.relative_to(_PACKAGE).as_posix()
        if not name.startswith("project_template/"):
            digest.update(f"{name}\0".encode() + file.read_bytes())
    return f"{sys.modules['raypid'].__version__} ({digest.hexdigest()[:8]})"


def check_raypid(expected: str, node: str) -> None:
    """Check that this process has the raypid of the one that sent the code.

    Raises:
        UserError: it has another.
    """
    if raypid_here() != expected:
        raise UserError(
            f"{node} has another raypid, {raypid_here()} in {_PACKAGE}, than this run, {expected}: install the same there and start "
            "its Ray again."
        )
