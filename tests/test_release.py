"""What stops a release, and what each refusal says to do; how a version is written; the notes."""

from __future__ import annotations

import datetime
import hashlib
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import release
from release import (
    ReleaseError,
    Section,
    check_metadata,
    check_sdist,
    check_tag,
    check_tree,
    check_wheel,
    notes,
    section_of,
    sections,
    sums,
    version_of,
    write_version,
)

DAY = datetime.date(2030, 1, 2)
CHANGELOG = """# Changelog

Words before.

## [Unreleased]

### Added

- A thing ([docs/roles.md](docs/roles.md#learner), [measured](benchmarks/results/x.md), [a page](https://example.org/x)).

## [0.1.0] - 2029-05-06

- The first.
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clone with the files that state a version, and what has changed since 0.1.0."""
    root = tmp_path / "clone"
    (root / "raypid").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "raypid"\nversion = "0.1.0"\ndependencies = ["x>=1"]\n')
    (root / "raypid" / "__init__.py").write_text('"""It."""\n\n__version__ = "0.1.0"\n')
    (root / "CITATION.cff").write_text("title: it\nversion: 0.1.0\nlicense: Apache-2.0\n")
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    commit(root)
    return root


def commit(root: Path) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, "commit", "-qam", "it", "--allow-empty"], cwd=root, check=True)


# -- the version -------------------------------------------------------------------------------------------------------


def test_a_version_is_written_where_it_stands(tree: Path) -> None:
    write_version(tree, "0.2.0", DAY)
    assert version_of(tree) == "0.2.0"
    assert (
        tree / "pyproject.toml"
    ).read_text() == '[project]\nname = "raypid"\nversion = "0.2.0"\ndependencies = ["x>=1"]\n'
    assert (
        tree / "CITATION.cff"
    ).read_text() == "title: it\nversion: 0.2.0\ndate-released: 2030-01-02\nlicense: Apache-2.0\n"
    before = sections(CHANGELOG)
    assert sections((tree / "CHANGELOG.md").read_text()) == {
        "Unreleased": Section(None, ""),
        "0.2.0": Section("2030-01-02", before["Unreleased"].text),
        "0.1.0": before["0.1.0"],
    }
    assert section_of(tree, "0.2.0").date == "2030-01-02"


def test_the_next_version_replaces_the_date(tree: Path) -> None:
    write_version(tree, "0.2.0", DAY)
    log = (tree / "CHANGELOG.md").read_text()
    (tree / "CHANGELOG.md").write_text(log.replace("## [Unreleased]\n", "## [Unreleased]\n\n- More.\n"))
    write_version(tree, "0.3.0", DAY + datetime.timedelta(1))
    assert re.findall("date-released.*", (tree / "CITATION.cff").read_text()) == ["date-released: 2030-01-03"]
    assert section_of(tree, "0.3.0").text == "- More."


def test_the_first_release_takes_the_version_that_the_files_have(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("## [Unreleased]\n\n- All of it.\n")
    write_version(tree, "0.1.0", DAY)
    assert section_of(tree, version_of(tree)).text == "- All of it."


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("", "Which version? `make version VERSION=0.2.0`"),
        ("v0.2", "'v0.2' is no version as Python packages have it: 0.2.0"),
        ("0.1.0", "a section for 0.1.0 already: 0.1.0 has to be later"),
        ("0.0.9", "0.0.9 has to be later"),
    ],
)
def test_what_is_no_next_version(tree: Path, version: str, says: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(says)):
        write_version(tree, version, DAY)
    assert (tree / "CHANGELOG.md").read_text() == CHANGELOG


def test_nothing_to_release(tree: Path) -> None:
    (tree / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [0.1.0] - 2029-05-06\n\n- The first.\n")
    with pytest.raises(ReleaseError, match="nothing under Unreleased: write what has changed"):
        write_version(tree, "0.2.0", DAY)


def test_a_file_without_its_line_stops_before_anything_is_written(tree: Path) -> None:
    (tree / "CITATION.cff").write_text("title: it\n")
    with pytest.raises(ReleaseError, match=r"CITATION.cff states no version"):
        write_version(tree, "0.2.0", DAY)
    assert '"0.1.0"' in (tree / "pyproject.toml").read_text()


def test_files_that_disagree(tree: Path) -> None:
    (tree / "CITATION.cff").write_text("version: 0.0.1\n")
    with pytest.raises(
        ReleaseError, match=r"pyproject.toml says 0.1.0, .*CITATION.cff says 0.0.1. `make version VERSION=...` writes"
    ):
        version_of(tree)


# -- the changelog -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changelog", "says"),
    [
        (
            "## [Unreleased]\n\n- x\n",
            "no section for 0.1.0, only Unreleased. `make version VERSION=0.1.0` turns Unreleased into it",
        ),
        ("Words.\n", "no section for 0.1.0, sections for nothing"),
        (
            "## [0.1.0] - 2029-05-06\n\n## [0.0.9] - 2028-05-06\n\n- x\n",
            r"The section \[0.1.0\] of CHANGELOG.md is empty",
        ),
        ("## [0.1.0]\n\n- x\n", r"has no date: `## \[0.1.0\] - YYYY-MM-DD`"),
        (
            "## [Unreleased]\n\n- y\n\n## [0.1.0] - 2029-05-06\n\n- x\n",
            r"entries under Unreleased, .* Move them into \[0.1.0\]",
        ),
        (
            "## [0.1.0] - 2029-05-06\n\n- x\n",
            "CITATION.cff says date-released: None, .* 2029-05-06. Make them the same",
        ),
    ],
)
def test_a_changelog_that_has_no_notes(tree: Path, changelog: str, says: str) -> None:
    (tree / "CHANGELOG.md").write_text(changelog)
    with pytest.raises(ReleaseError, match=says):
        section_of(tree, "0.1.0")


def test_notes_stand_alone() -> None:
    text = notes("0.2.0", Section("2030-01-02", sections(CHANGELOG)["Unreleased"].text))
    assert text == (
        "# raypid 0.2.0 (2030-01-02)\n\n### Added\n\n"
        "- A thing (`docs/roles.md`, measured (`benchmarks/results/x.md`), [a page](https://example.org/x)).\n"
    )


def test_the_changelog_of_this_repository_is_read_whole() -> None:
    log = (release.ROOT / "CHANGELOG.md").read_text()
    found = sections(log)
    assert found and len(found) == len(re.findall(r"^## ", log, re.MULTILINE))
    assert "](docs/" not in notes("1", Section(None, "\n".join(section.text for section in found.values())))


# -- the tree ----------------------------------------------------------------------------------------------------------


def test_a_clean_tree(tree: Path) -> None:
    check_tree(tree)
    check_tag(tree, "0.1.0")


def test_a_tree_with_changes(tree: Path) -> None:
    (tree / "CITATION.cff").write_text("version: 0.1.0\n")
    (tree / "left.txt").write_text("left")
    with pytest.raises(ReleaseError) as refused:
        check_tree(tree)
    assert " M CITATION.cff" in str(refused.value) and "?? left.txt" in str(refused.value)
    assert "Commit them, remove them" in str(refused.value)


def test_many_changes_are_not_all_listed(tree: Path) -> None:
    for i in range(13):
        (tree / f"{i}.txt").write_text("left")
    with pytest.raises(ReleaseError, match="and 3 more$"):
        check_tree(tree)


def test_no_clone(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="A release is built from a clone"):
        check_tree(tmp_path)


def test_a_version_that_is_released(tree: Path) -> None:
    subprocess.run(["git", "tag", "v0.1.0"], cwd=tree, check=True)
    check_tag(tree, "0.1.0")  # this commit is it: the same files are built again
    commit(tree)
    with pytest.raises(ReleaseError, match="The tag v0.1.0 is at .* 0.1.0 is released. Check that commit out, or take"):
        check_tag(tree, "0.1.0")


def test_a_refusal_leaves_what_was_built_before(tree: Path) -> None:
    (tree / "dist").mkdir()
    (tree / "dist" / "raypid-0.0.9.tar.gz").write_text("before")
    (tree / ".git" / "info" / "exclude").write_text("dist\n")
    with pytest.raises(ReleaseError, match="entries under Unreleased"):
        release.release(tree, tree / "dist")
    assert (tree / "dist" / "raypid-0.0.9.tar.gz").read_text() == "before"


def test_the_command_says_it_in_a_line(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "ROOT", tree)
    monkeypatch.setattr("sys.argv", ["release.py", "build", "--out", str(tree / "dist")])
    assert release.main() == 1
    assert capsys.readouterr().err.startswith("release: CHANGELOG.md has entries under Unreleased, above [0.1.0]")


# -- what was built ----------------------------------------------------------------------------------------------------


def sdist_of(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"raypid-0.1.0/{name}"))
    return path


WHEEL = {
    "raypid/__init__.py": "",
    "raypid-0.1.0.dist-info/METADATA": "Name: raypid\nVersion: 0.1.0\nLicense-Expression: Apache-2.0\n",
    "raypid-0.1.0.dist-info/WHEEL": "",
    "raypid-0.1.0.dist-info/RECORD": "",
    "raypid-0.1.0.dist-info/entry_points.txt": "[console_scripts]\nraypid = raypid.__main__:run\n",
    "raypid-0.1.0.dist-info/licenses/LICENSE": "",
}


def wheel_of(folder: Path, **more: str) -> Path:
    path = folder / "raypid-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**WHEEL, **more}.items():
            archive.writestr(name, text)
    return path


def test_an_sdist_that_lacks_a_file_or_has_one_too_many(tmp_path: Path) -> None:
    check_sdist(sdist_of(tmp_path / "1.tar.gz", "PKG-INFO", "README.md"), ["README.md"])
    with pytest.raises(
        ReleaseError, match="The sdist lacks SUPPORT.md and has secret.txt too: .* of pyproject.toml lists what it has"
    ):
        check_sdist(sdist_of(tmp_path / "2.tar.gz", "PKG-INFO", "secret.txt"), ["SUPPORT.md"])


def test_a_wheel_that_lacks_a_file_or_has_one_too_many(tmp_path: Path) -> None:
    check_wheel(wheel_of(tmp_path), ["raypid/__init__.py", "README.md"])
    with pytest.raises(ReleaseError, match="The wheel lacks raypid/py.typed: "):
        check_wheel(wheel_of(tmp_path), ["raypid/__init__.py", "raypid/py.typed"])
    with pytest.raises(ReleaseError, match="The wheel has tests/x.py too: "):
        check_wheel(wheel_of(tmp_path, **{"tests/x.py": ""}), ["raypid/__init__.py"])


def test_metadata_of_another_version_or_without_the_command(tmp_path: Path) -> None:
    check_metadata(wheel_of(tmp_path), "0.1.0")
    with pytest.raises(ReleaseError, match=r"say Version: 0.1.0, expected 0.2.0"):
        check_metadata(wheel_of(tmp_path), "0.2.0")
    with pytest.raises(ReleaseError, match="brings no command `raypid`"):
        check_metadata(wheel_of(tmp_path, **{"raypid-0.1.0.dist-info/entry_points.txt": ""}), "0.1.0")


def test_a_source_that_does_not_build(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "raypid"\n')
    with pytest.raises(ReleaseError, match="The wheel could not be built:\n"):
        release.build(tmp_path, tmp_path / "dist", "wheel")


def test_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    lines = sums(tmp_path.iterdir())
    assert lines == f"{hashlib.sha256(b'1').hexdigest()}  a\n{hashlib.sha256(b'2').hexdigest()}  b\n"
