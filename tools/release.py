"""Make a release in a folder of this machine. It publishes nothing.

    python tools/release.py version 0.2.0      # write the version where it stands, and turn Unreleased into its section
    python tools/release.py build              # dist/: sdist, wheel, notes and SHA256SUMS, checked and tried

`make version VERSION=0.2.0` and `make release` run them. What is built is the last commit, so the tree has to be clean.
"""

from __future__ import annotations

import argparse
import datetime
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from long_description import without_links
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
PLACES: Mapping[str, str] = {
    "pyproject.toml": r'^(version = ")([^"\n]*)(")$',
    "raypid/__init__.py": r'^(__version__ = ")([^"\n]*)(")$',
    "CITATION.cff": r"^(version: )([^\n]*)()$",
}
"""Files that state the version, and the line that does."""
UNRELEASED = "Unreleased"
HEADING = re.compile(r"^## \[([^\]\n]+)\](?: - (\d{4}-\d{2}-\d{2}))?[ \t]*$", re.MULTILINE)
TRAIN = ("--run", "PPO", "--env", "CartPole-v1", "--tuned", "--seed", "0", "--out", "run", "--quiet")
GOAL = '{"evaluation/episode_reward_mean": 475, "time_total_s": 120}'


class ReleaseError(Exception):
    """Why there is no release, and what to do."""


@dataclass(frozen=True)
class Section:
    """What the changelog says of one version."""

    date: str | None
    text: str


# -- versions ----------------------------------------------------------------------------------------------------------


def stated(root: Path) -> dict[str, str]:
    """The version in each file that states it."""
    found = {}
    for name, line in PLACES.items():
        match = re.search(line, (root / name).read_text(), re.MULTILINE)
        if match is None:
            raise ReleaseError(f"{name} states no version: a line that matches {line} is expected.")
        found[name] = match[2].strip("\"'")
    return found


def version_of(root: Path) -> str:
    """The version, which all files have to agree on."""
    found = stated(root)
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} says {version}" for name, version in found.items())
        raise ReleaseError(
            f"The files disagree on the version: {said}. `make version VERSION=...` writes the same into all of them; "
            "a version whose section CHANGELOG.md has already is put right by hand."
        )
    return found["pyproject.toml"]


def sections(changelog: str) -> dict[str, Section]:
    """The sections of a changelog by version, `Unreleased` among them, in their order."""
    headings = list(HEADING.finditer(changelog))
    ends = [*(heading.start() for heading in headings), len(changelog)][1:]
    return {
        heading[1]: Section(heading[2], changelog[heading.end() : end].strip()) for heading, end in zip(headings, ends)
    }


def section_of(root: Path, version: str) -> Section:
    """What CHANGELOG.md and CITATION.cff say of a version that is to be released.

    Raises:
        ReleaseError: the section is missing, empty or without a date, or Unreleased has entries beside it, or CITATION.cff has another date.
    """
    found = sections((root / "CHANGELOG.md").read_text())
    unreleased = found.get(UNRELEASED)
    section = found.get(version)
    if section is None:
        has = "only Unreleased" if list(found) == [UNRELEASED] else f"sections for {', '.join(found) or 'nothing'}"
        raise ReleaseError(
            f"CHANGELOG.md has no section for {version}, {has}. `make version VERSION={version}` turns Unreleased into it, with today's date, "
            "and writes the version into the other files. Read the diff, commit it, and run `make release` again."
        )
    if not section.text:
        raise ReleaseError(f"The section [{version}] of CHANGELOG.md is empty: its text is the release's notes.")
    if section.date is None:
        raise ReleaseError(f"The section [{version}] of CHANGELOG.md has no date: `## [{version}] - YYYY-MM-DD`.")
    if unreleased is not None and unreleased.text:
        raise ReleaseError(
            f"CHANGELOG.md has entries under Unreleased, above [{version}]: they would be in the release and not in its notes. "
            f"Move them into [{version}], or take the next version: `make version VERSION=...`."
        )
    cited = str(yaml.safe_load((root / "CITATION.cff").read_text()).get("date-released"))
    if cited != section.date:
        raise ReleaseError(
            f"CITATION.cff says date-released: {cited}, the section [{version}] of CHANGELOG.md {section.date}. Make them the same."
        )
    return section


def write_version(root: Path, version: str, today: datetime.date) -> None:
    """Write a version and its date into the files that state it, and turn Unreleased into its section."""
    if not version:
        raise ReleaseError("Which version? `make version VERSION=0.2.0`")
    try:
        new = Version(version)
    except InvalidVersion:
        new = None
    if new is None or str(new) != version:
        raise ReleaseError(f"{version!r} is no version as Python packages have it: 0.2.0, 1.0.0rc1 and the like.")
    changelog = (root / "CHANGELOG.md").read_text()
    found = sections(changelog)
    later = [known for known in found if known != UNRELEASED and Version(known) >= new]
    if later:
        raise ReleaseError(f"CHANGELOG.md has a section for {later[0]} already: {version} has to be later.")
    if not found.get(UNRELEASED, Section(None, "")).text:
        raise ReleaseError("CHANGELOG.md has nothing under Unreleased: write what has changed, then ask again.")
    stated(root)  # before anything is written: every file has its line
    for name, line in PLACES.items():
        text = (root / name).read_text()
        (root / name).write_text(re.sub(line, rf"\g<1>{version}\g<3>", text, count=1, flags=re.MULTILINE))
    citation = re.sub(r"^date-released: .*\n", "", (root / "CITATION.cff").read_text(), flags=re.MULTILINE)
    dated = re.sub(r"^version: .*\n", rf"\g<0>date-released: {today}\n", citation, flags=re.MULTILINE)
    (root / "CITATION.cff").write_text(dated)
    heading = f"## [{UNRELEASED}]\n\n## [{version}] - {today}\n"
    (root / "CHANGELOG.md").write_text(
        re.sub(rf"^## \[{UNRELEASED}\][ \t]*\n", lambda _: heading, changelog, count=1, flags=re.MULTILINE)
    )


# -- the tree ----------------------------------------------------------------------------------------------------------


def git(root: Path, *words: str) -> str:
    """What git prints; "" where it finds nothing."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise ReleaseError(f"git {' '.join(words)}: {done.stderr.strip()}. A release is built from a clone.")
    return done.stdout


def check_tree(root: Path) -> None:
    """Refuse a tree that is not the last commit."""
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        more = f"\n  and {len(changed) - 10} more" if len(changed) > 10 else ""
        raise ReleaseError(
            "The tree has changes that are not committed, and a release is built from the last commit. Commit them, remove them, "
            "or name them in .gitignore:\n" + "\n".join(f"  {line}" for line in changed[:10]) + more
        )


def check_tag(root: Path, version: str) -> None:
    """Refuse a version that another commit was tagged with: it is released already."""
    tagged = git(root, "rev-parse", "--verify", "--quiet", f"refs/tags/v{version}^{{commit}}").strip()
    here = git(root, "rev-parse", "HEAD").strip()
    if tagged and tagged != here:
        raise ReleaseError(
            f"The tag v{version} is at {tagged[:10]}, and this is {here[:10]}: {version} is released. Check that commit out, or take "
            "the next version: `make version VERSION=...`."
        )


def tracked(root: Path) -> set[str]:
    """The files that git knows and that are there, relative to the root."""
    return {name for name in git(root, "ls-files", "-z").split("\0") if name and (root / name).is_file()}


def export(root: Path, folder: Path) -> None:
    """Write the files of the last commit into a folder."""
    archive = folder.with_suffix(".tar")
    git(root, "archive", "--format=tar", f"--output={archive}", "HEAD")
    _unpack(archive, folder)
    archive.unlink()


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # older Pythons have none
        files.extractall(folder)


# -- building ----------------------------------------------------------------------------------------------------------


def build(source: Path, out: Path, target: str, seconds: str = "") -> Path:
    """Build `target` ("sdist" or "wheel") from a folder with hatchling, without network; returns the file.

    `seconds` since 1970 is the time of all files in it, so that the same commit gives the same bytes.
    """
    env = {**os.environ, **({"SOURCE_DATE_EPOCH": seconds} if seconds else {})}
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"The {target} could not be built:\n{done.stdout}{done.stderr}")
    (made,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def build_both(source: Path, out: Path, seconds: str = "") -> tuple[Path, Path]:
    """Build the sdist from a folder, and the wheel from what the sdist holds; returns both files."""
    sdist = build(source, out, "sdist", seconds)
    with tempfile.TemporaryDirectory(prefix="raypid-sdist-") as folder:
        _unpack(sdist, Path(folder))
        (inside,) = Path(folder).iterdir()
        return sdist, build(inside, out, "wheel", seconds)


def check_sdist(sdist: Path, files: Iterable[str]) -> None:
    """Check that an sdist holds these files of the repository and its metadata, and nothing else."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if not member.isdir()}
    _compare(
        "The sdist", names, {*files, "PKG-INFO"}, "[tool.hatch.build.targets.sdist] of pyproject.toml lists what it has"
    )


def check_wheel(wheel: Path, files: Iterable[str]) -> None:
    """Check that a wheel holds the package's files of the repository, its metadata and its license, and nothing else."""
    about = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    own = {f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name for name in files if name.startswith("raypid/")}
    _compare("The wheel", names, package | own, "it has what git tracks in raypid/; look at .gitignore")


def _compare(what: str, names: set[str], expected: set[str], why: str) -> None:
    lacks, more = sorted(expected - names), sorted(names - expected)
    if lacks or more:
        said = [f"lacks {', '.join(lacks[:10])}"] * bool(lacks) + [f"has {', '.join(more[:10])} too"] * bool(more)
        raise ReleaseError(f"{what} {' and '.join(said)}: {why}.")


def check_metadata(wheel: Path, version: str) -> None:
    """Check that a wheel says the version, the license and the command."""
    with zipfile.ZipFile(wheel) as archive:
        about = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
        metadata = email.message_from_bytes(archive.read(f"{about}/METADATA"))
        commands = archive.read(f"{about}/entry_points.txt").decode()
    for field, expected in {"Name": "raypid", "Version": version, "License-Expression": "Apache-2.0"}.items():
        if metadata[field] != expected:
            raise ReleaseError(f"The wheel's metadata say {field}: {metadata[field]}, expected {expected}.")
    if "raypid = raypid.__main__:run" not in commands:
        raise ReleaseError(f"The wheel brings no command `raypid`: {commands!r}.")


def check_with_twine(*files: Path) -> None:
    """Check that an index would take the files."""
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], "twine refuses what was built")


def _run(command: list[str], failed: str, **options: object) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise ReleaseError(f"{failed}: `{' '.join(command)}` ended with {done.returncode}:\n{done.stdout.strip()}")


def try_out(wheel: Path, extras: str, constraints: Path, say: Callable[[str], None] = print) -> None:
    """Install a wheel with pip in a fresh environment, with the pinned versions, and run the main command there: train and evaluate."""
    with tempfile.TemporaryDirectory(prefix="raypid-release-") as name:
        folder = Path(name)
        python = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env["RAYPID_DATA"] = str(folder / "data")
        what = f"{wheel}[{extras}]" if extras else str(wheel)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        _run([sys.executable, "-m", "venv", str(folder / "venv")], "No fresh environment", env=env)
        say(f"installing {Path(what).name} into a fresh environment")
        _run([*pip, "install", "--quiet", "-c", str(constraints), what], "The wheel cannot be installed", env=env)
        _run([*pip, "check"], "What was installed does not fit together", env=env)
        say("training PPO on CartPole-v1 there, and evaluating it")
        raypid = [str(python.with_name("raypid"))]
        _run([*raypid, "train", *TRAIN, "--stop", GOAL], "The main command fails", env=env, cwd=folder)
        _run([*raypid, "eval", "run", "--episodes", "5"], "The main command fails", env=env, cwd=folder)


# -- notes and sums ----------------------------------------------------------------------------------------------------


def notes(version: str, section: Section) -> str:
    """The release's notes: the section of the changelog. Links to files of the repository become their paths, since notes stand alone."""
    return f"# raypid {version} ({section.date})\n\n{without_links(section.text)}\n"


def sums(files: Iterable[Path]) -> str:
    """A line for each file, as `sha256sum --check` reads them."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files))


def release(root: Path, out: Path, extras: str = "", say: Callable[[str], None] = print) -> list[Path]:
    """Build, check and try a release of the last commit; `out` is replaced once all is well. Returns the files."""
    check_tree(root)
    version = version_of(root)
    section = section_of(root, version)
    check_tag(root, version)
    seconds = git(root, "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="raypid-release-") as name:
        source, made = Path(name, "source"), Path(name, "made")
        export(root, source)
        say(f"building raypid {version}")
        sdist, wheel = build_both(source, made, seconds)
        check_sdist(sdist, tracked(root))
        check_wheel(wheel, tracked(root))
        check_metadata(wheel, version)
        check_with_twine(sdist, wheel)
        try_out(wheel, extras, root / "constraints.txt", say)
        (made / f"raypid-{version}-notes.md").write_text(notes(version, section))
        (made / "SHA256SUMS").write_text(sums(made.iterdir()))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)
    return sorted(out.iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("version", help="write a version where it stands")
    write.add_argument("version")
    make = commands.add_parser("build", help="build, check and try the release of the last commit")
    make.add_argument("--extras", default="", help="extras that the trial installs too, such as torch,ray")
    make.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder, which is replaced (default: dist)")
    options = parser.parse_args()
    try:
        if options.command == "version":
            write_version(ROOT, options.version, datetime.date.today())
            print("Read `git diff`, commit it, and run `make release`.")
            return 0
        for file in release(ROOT, options.out, options.extras):
            print(f"  {file}")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"Nothing was published. The tag would be: git tag v{version_of(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
