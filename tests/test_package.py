"""What is shipped: the sdist, the wheel, the citation, the images. All is built from the files that git tracks, without network."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from release import (
    build,
    build_both,
    check_metadata,
    check_sdist,
    check_wheel,
    check_with_twine,
    export,
    tracked,
    version_of,
)

import raypid

ROOT = Path(__file__).parents[1]
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))
GIT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked sdist: git cannot say what belongs to it")


@dataclass(frozen=True)
class Shipped:
    files: set[str]
    source: Path
    sdist: Path
    wheel: Path


def copied(files: set[str], folder: Path) -> Path:
    """A copy of these files of the repository, as they are in the tree."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """What a release of the tree as it is would hold."""
    files = tracked(ROOT)
    source = copied(files, tmp_path_factory.mktemp("source"))
    return Shipped(files, source, *build_both(source, tmp_path_factory.mktemp("dist"), "0"))


# -- sdist and wheel ---------------------------------------------------------------------------------------------------


@GIT
def test_the_sdist_is_the_repository(shipped: Shipped) -> None:
    check_sdist(shipped.sdist, shipped.files)
    with tarfile.open(shipped.sdist) as archive:
        modes = {member.name.partition("/")[2]: member.mode for member in archive}
    assert modes[".ci/run"] & stat.S_IXUSR  # and the tests in it find what they need with its mode


@GIT
def test_the_wheel_has_the_package_and_nothing_else(shipped: Shipped) -> None:
    check_wheel(shipped.wheel, shipped.files)
    with zipfile.ZipFile(shipped.wheel) as archive:
        names = set(archive.namelist())
    for needed in (
        "py.typed",
        "settings/tuned.json",
        "settings/tuned_results.json",
        "project_template/train.yaml",
        "project_template/.gitignore",
    ):
        assert f"raypid/{needed}" in names
    check_metadata(shipped.wheel, raypid.__version__)


@GIT
def test_the_description_has_no_link_that_an_index_cannot_follow(shipped: Shipped) -> None:
    with zipfile.ZipFile(shipped.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        description = archive.read(name).decode().partition("\n\n")[2]
    assert re.findall(r"\]\((?!https?://)([^)]*)\)", (ROOT / "README.md").read_text())  # the README has such links
    assert re.findall(r"\]\((?!https?://)([^)]*)\)", description) == []
    assert "Algorithms (`docs/algorithms/index.md`)" in description and "https://www.ray.io" in description


@GIT
def test_what_else_lies_in_the_tree_is_not_shipped(shipped: Shipped, tmp_path: Path) -> None:
    """What runs and editors leave, and what an environment beside it holds."""
    source = tmp_path / "source"
    shutil.copytree(shipped.source, source)
    for left in (
        "runs/cartpole/policy.json",
        "notes.md",
        "raypid/__pycache__/x.pyc",
        "env/raypid/x.py",
        "x/README.md",
        "raypid/a.mp4",
    ):
        (source / left).parent.mkdir(parents=True, exist_ok=True)
        (source / left).write_text("left")
    check_sdist(build(source, tmp_path / "dist", "sdist"), shipped.files)
    check_wheel(build(source, tmp_path / "dist", "wheel"), shipped.files)


@GIT
def test_an_index_would_take_both(shipped: Shipped) -> None:
    check_with_twine(shipped.sdist, shipped.wheel)


@GIT
def test_the_same_files_give_the_same_bytes(shipped: Shipped, tmp_path: Path) -> None:
    assert build(shipped.source, tmp_path, "sdist", "0").read_bytes() == shipped.sdist.read_bytes()
    assert build(shipped.source, tmp_path, "wheel", "0").read_bytes() == shipped.wheel.read_bytes()


@GIT
def test_the_export_of_the_last_commit_has_its_files(tmp_path: Path) -> None:
    export(ROOT, tmp_path / "source")
    listed = subprocess.run(
        ["git", "ls-tree", "-rz", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = {
        path.relative_to(tmp_path / "source").as_posix() for path in (tmp_path / "source").rglob("*") if path.is_file()
    }
    assert found == set(listed.stdout.split("\0")) - {""}


@GIT
@pytest.mark.ci_slow
def test_the_installed_wheel_runs_the_main_command(shipped: Shipped, tmp_path: Path) -> None:
    """In a fresh environment that borrows the packages of this one, but not its raypid: `make release` lets pip fetch them."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    place = (
        "Lib/site-packages"
        if sys.platform == "win32"
        else f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    )
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (venv / place / "borrowed.pth").write_text(
        "\n".join(borrowed)
    )  # whose own .pth files, such as an editable raypid's, do not count
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", shipped.wheel]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)

    def run(*command: str) -> str:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(str(python), "-c", "import raypid; print(raypid.__file__)")
    assert Path(where.strip()).is_relative_to(venv)
    command = str(python.with_name("raypid"))
    run(
        command,
        "train",
        "--run",
        "PPO",
        "--env",
        "CartPole-v1",
        "--stop",
        "3000",
        "--final-episodes",
        "2",
        "--out",
        "run",
        "--quiet",
    )
    run(command, "eval", "run", "--episodes", "2")
    assert "CartPole-v1" in run(command, "list", "tuned")
    run(command, "init", "mine")
    assert (tmp_path / "mine" / ".gitignore").is_file()


@GIT
@pytest.mark.slow
def test_make_release(tmp_path: Path) -> None:
    """The whole of it on a clone of the last commit, with the packages from the index."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    release = [sys.executable, "tools/release.py"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=clone, capture_output=True, text=True, timeout=1200)

    version = str(Version(f"{version_of(clone)}.1"))
    assert run(*release, "version", version).returncode == 0
    assert (
        run("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "Release").returncode == 0
    )
    done = run(*release, "build")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in (clone / "dist").iterdir()}
    assert names == {
        f"raypid-{version}.tar.gz", f"raypid-{version}-py3-none-any.whl", f"raypid-{version}-notes.md", "SHA256SUMS",
    }  # fmt: skip
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=clone / "dist").returncode == 0


# -- what the repository says of itself --------------------------------------------------------------------------------


def test_one_version_everywhere() -> None:
    assert version_of(ROOT) == raypid.__version__


def test_the_versions_of_python_are_those_that_are_named() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    allowed = SpecifierSet(re.search(r'^requires-python = "(.*)"', text, re.MULTILINE)[1])
    named = re.findall(r"Programming Language :: Python :: (\d\.\d+)", text)
    assert named == [f"3.{minor}" for minor in range(30) if f"3.{minor}.5" in allowed]
    assert f'target-version = "py{named[0].replace(".", "")}"' in text


def test_the_citation_is_valid() -> None:
    """By the schema of the Citation File Format 1.2.0: what it requires, and how it writes what is there."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software" and cited["message"] and cited["title"]
    assert cited["authors"] and all("name" in author or "family-names" in author for author in cited["authors"])
    assert f'license = "{cited["license"]}"' in (ROOT / "pyproject.toml").read_text()
    assert isinstance(cited["version"], str) and len(set(cited["keywords"])) == len(cited["keywords"])
    assert cited.keys() <= {
        "cff-version", "message", "title", "abstract", "type", "authors", "version", "date-released", "license", "keywords",
    }  # fmt: skip


# -- images ------------------------------------------------------------------------------------------------------------


def instructions(image: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and what they are given, with continued lines put together."""
    lines = [line for line in image.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def copies(image: Path) -> list[str]:
    """What an image takes from the repository."""
    taken = [
        rest.split()[:-1] for word, rest in instructions(image) if word == "COPY" and not rest.startswith("--from")
    ]
    return [name for names in taken for name in names]


def sent(name: str) -> bool:
    """Whether .dockerignore, a list of what is let through, sends a file of the repository to Docker."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    nothing, *through, never = [line for line in lines if line and not line.startswith("#")]
    assert nothing == "*" and never == "**/__pycache__" and all(line.startswith("!") for line in through)
    above = [name, *(path.as_posix() for path in Path(name).parents)]
    return any(f"!{path}" in through for path in above) and "__pycache__" not in name


@GIT
@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_an_image_builds_the_package_from_what_it_copies(image: Path, shipped: Shipped, tmp_path: Path) -> None:
    """The wheel from the files that it copies, and that are sent to it, is the one that is released."""
    names = copies(image)
    assert names and all((ROOT / name).exists() for name in names), names
    files = {
        file
        for file in shipped.files
        if any(file == name or file.startswith(f"{name}/") for name in names) and sent(file)
    }
    assert "constraints.txt" in files
    check_wheel(build(copied(files, tmp_path / "src"), tmp_path / "dist", "wheel"), shipped.files)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_an_image_is_pinned_and_does_not_run_as_root(image: Path) -> None:
    given = instructions(image)
    pips = [rest for word, rest in given if word == "RUN" and "pip install" in rest]
    assert pips and all("-c /src/constraints.txt" in rest for rest in pips)
    last = max(number for number, (word, _) in enumerate(given) if word == "FROM")
    users = [rest for word, rest in given[last:] if word == "USER"]
    assert users == ["${UID}"] and ("ARG", "UID=1000") in given[last:]
    (entry,) = [rest for word, rest in given if word == "ENTRYPOINT"]
    scripts = configparser.ConfigParser()
    scripts.read_string(re.search(r"\[project\.scripts\]\n.*", (ROOT / "pyproject.toml").read_text())[0])
    assert entry == f'["{scripts.options("project.scripts")[0]}"]'
    assert '"/src[${EXTRAS}]"' in pips[-1] and ("ARG", "EXTRAS=torch,ray") in given


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_an_image_is_linted_and_in_the_documentation(image: Path) -> None:
    assert "hadolint docker/*.Dockerfile" in (ROOT / "Makefile").read_text()
    assert f"-f docker/{image.name}" in (ROOT / "docs" / "install.md").read_text()


def test_what_is_not_needed_is_not_sent_to_an_image() -> None:
    for name in (
        "docs/index.md",
        "tests/conftest.py",
        ".git/config",
        "runs/x/policy.json",
        ".venv/bin/python",
        "raypid/__pycache__/x.pyc",
    ):
        assert not sent(name), name
    assert sent("raypid/ops/returns.py") and sent("constraints.txt")
