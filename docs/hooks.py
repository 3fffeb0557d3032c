"""What the site adds to its pages, and what it refuses: `mkdocs build --strict` fails on each warning that is logged here.

- Lines such as `<!-- settings: PPO -->` become tables (tables.py).
- Links to files of the repository outside docs/ lead to copies of these.
- Refused: names of raypid, files, flags and settings that do not exist; code that cannot be parsed; metrics of an algorithm that its page
  does not explain, or explains without reporting them. (MkDocs itself refuses dead links; tests/test_documentation.py runs the code.)
"""

from __future__ import annotations

import ast
import html
import importlib
import logging
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import tables

LOG = logging.getLogger("mkdocs.hooks.raypid")
DOCS = Path(__file__).parent
ROOT = DOCS.parent
_MARKER = re.compile(r"^<!-- (settings|results): (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_FOREIGN = ("names.md", "coming-from/")
"""Pages that are full of other libraries' names."""
_TOP = {"raypid", "docs", "tests", "benchmarks", "examples"}


# -- events of MkDocs ------------------------------------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the repository that pages link to."""
    linked = {path for page in files.documentation_pages() for path in _outside(page.src_uri, page.content_string)}
    queue = sorted(linked)
    while queue:
        path = queue.pop()
        if (ROOT / path).is_dir():
            queue += [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / path).iterdir()) if p.is_file()]
            continue
        uri = _uri(path)
        if files.get_file_from_path(uri) is None:
            files.append(_file(config, path, uri))
            if path.endswith(".md"):
                queue += sorted(p for p in _outside(uri, (ROOT / path).read_text(), ROOT / path) if p not in linked)
                linked |= set(queue)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Check a page, and put in its tables."""
    uri = page.file.src_uri
    own = not uri.startswith("repository/")
    if own:
        for problem in problems(uri, markdown):
            LOG.warning(f"{uri}: {problem}")
    try:
        markdown = _MARKER.sub(lambda found: tables.table(found[1], found[2]), markdown)
    except ValueError as error:
        LOG.warning(f"{uri}: {error}")
    return _rewritten(uri, markdown, (DOCS / uri) if own else ROOT / _path(uri))


# -- files outside docs/ ---------------------------------------------------------------------------------------------------


def _uri(path: str) -> str:
    """Where a file of the repository lies on the site. What browsers would not show is shown as text."""
    shown = path if path.endswith((".md", ".csv", ".png", ".svg", ".json")) else f"{path}.txt"
    return f"repository/{shown}"


def _path(uri: str) -> str:
    return uri.removeprefix("repository/").removesuffix(".txt")


def _file(config: Any, path: str, uri: str) -> File:
    return File.generated(config, uri, content=(ROOT / path).read_bytes())


def _targets(text: str) -> list[str]:
    """The paths that links lead to, outside code."""
    return [found[2] for found in _LINK.finditer(_INLINE.sub("", _BLOCK.sub("", text)))]


def _outside(uri: str, text: str, source: Path | None = None) -> set[str]:
    """The files of the repository outside docs/ that a page links to."""
    base = (source or DOCS / uri).parent
    paths = {Path(os.path.normpath(base / target)) for target in _targets(_MARKER.sub(_expanded, text))}
    inside = {p for p in paths if p.is_relative_to(ROOT) and not p.is_relative_to(DOCS) and p.exists()}
    return {p.relative_to(ROOT).as_posix() for p in inside}


def _expanded(found: re.Match[str]) -> str:
    try:
        return tables.table(found[1], found[2])
    except ValueError:  # `on_page_markdown` says so
        return ""


def _rewritten(uri: str, text: str, source: Path) -> str:
    """The links to files of the repository, as links of the site."""
    here = Path(uri).parent

    def link(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / found[2]))
        if not path.is_relative_to(ROOT) or not path.exists():
            return found[0]
        if path.is_relative_to(DOCS):
            to = path.relative_to(DOCS).as_posix()
        elif path == ROOT / "README.md":
            to = "index.md"
        elif path.is_dir():
            first = next((p for p in sorted(path.iterdir()) if p.is_file()), None)
            to = _uri((first or path).relative_to(ROOT).as_posix())
        else:
            to = _uri(path.relative_to(ROOT).as_posix())
        anchor = "" if to == "index.md" else found[3] or ""
        return f"{found[1]}{os.path.relpath(to, here)}{anchor}{found[4]}"

    return _LINK.sub(link, text)


# -- what is refused -------------------------------------------------------------------------------------------------------


def problems(uri: str, text: str) -> list[str]:
    """What is wrong with a page."""
    found = [
        problem for language, code in _BLOCK.findall(text) for problem in _code_problems(language.split()[:1], code)
    ]
    prose = _BLOCK.sub("", text)
    if not uri.startswith(_FOREIGN):
        for name in sorted(set(_INLINE.findall(prose))):
            if not _exists(html.unescape(name)):
                found.append(f"`{name}` does not exist")
    name = re.match(r"algorithms/(\w+)\.md", uri)
    if name and name[1] != "index":
        found += _metric_problems(name[1], prose)
    return found


def _code_problems(language: list[str], code: str) -> list[str]:
    """Python and YAML that cannot be parsed. A line that takes in a file is the file's own affair."""
    if code.startswith("--8<--"):
        return []
    try:
        if language == ["python"]:
            ast.parse(code)
        elif language == ["yaml"]:
            yaml.safe_load(code)
    except (SyntaxError, yaml.YAMLError) as error:
        return [f"a block of code cannot be parsed: {error}"]
    return []


def _metric_problems(page: str, prose: str) -> list[str]:
    """Metrics that a page does not explain, or that its algorithm never reports."""
    names = {name.lower(): name for name in tables.ALGORITHMS.names()}
    if page not in names:
        return [f"there is no algorithm {page!r}"]
    reported = tables.metrics(names[page])
    section = prose.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line) for line in section.splitlines() if line.startswith("|")]
    explained = {
        name
        for row in rows
        if len(row) > 2 and len(row[2].strip()) > 5
        for name in re.findall(r"`(learner/\w+)`", row[1])
    }
    return [
        *(f"the metric {name} is not explained under Metrics" for name in sorted(reported - explained)),
        *(f"the metric {name} is never reported" for name in sorted(explained - reported)),
    ]


def _exists(name: str) -> bool:
    """Whether what stands in backquotes exists, if it is a dotted name of raypid, a path of the repository or a flag."""
    if re.fullmatch(r"raypid(\.\w+)+", name) and not name.endswith(".NAME"):
        return _importable(name)
    if re.fullmatch(r"[\w-]+(/[\w.-]+)+", name) and name.split("/")[0] in _TOP:
        return (ROOT / name).exists() or name.startswith("raypid/") and name.endswith(("-v0", "-v1"))
    if flag := re.match(r"--([a-z][\w.-]*)(?![\w.-])", name):
        return flag[1].replace("-", "_") in _flags()
    return True


@cache
def _importable(name: str) -> bool:
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        try:
            for part in parts[i:]:
                found = (
                    found.__dataclass_fields__[part]
                    if part in getattr(found, "__dataclass_fields__", {})
                    else getattr(found, part)
                )
        except (AttributeError, ImportError):
            return False
        return True
    return False


@cache
def _flags() -> frozenset[str]:
    """Every flag of the command line, and of others' commands that the pages show."""
    text = "\n".join(
        path.read_text() for folder in ("raypid/cli", "benchmarks") for path in sorted((ROOT / folder).glob("*.py"))
    )
    flags = {found.replace("-", "_") for found in re.findall(r"[\"'`(\[ ]--([a-z][\w-]*)", text)}
    settings = {
        name
        for algorithm in tables.ALGORITHMS.names()
        for name in tables.ALGORITHMS.get(algorithm).Config.__dataclass_fields__
    }
    networks = {f"model.{name}" for name in tables.ModelConfig.__dataclass_fields__}
    others = {
        "dashboard_port",
        "node_manager_port",
        "object_manager_port",
        "ray_client_server_port",
        "signal",
        "weights_file",
    }  # Ray's, SLURM's; an alias
    return frozenset(flags | settings | networks | others)
