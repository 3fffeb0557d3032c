"""What the site adds to its pages, and what it refuses: `mkdocs build --strict` fails on each warning that is logged here.

- Lines such as `<!-- settings: PPO -->`, with what make_pages.py wrote below them, become tables and files made anew (tables.py).
- Links to files of the repository outside docs/ lead to copies of these.
- What is wrong with a page (checks.py) is a warning; MkDocs itself warns of dead links and anchors. Neither runs the code of pages:
  `make docs` does, by tests/test_documentation.py.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import tables
from checks import BLOCK, DOCS, INLINE, KINDS, LINK, MARKER, ROOT, dead_links, problems, without_page

LOG = logging.getLogger("mkdocs.hooks.raypid")
UNBUILT = ("README.md", "examples/README.md", "CONTRIBUTING.md", "SUPPORT.md", "SECURITY.md")
"""Files outside docs/ that are checked as its pages are."""
WIDEST = 108
"""Characters of a line of code that fit beside the columns of links."""
CODE = re.compile(r"<code\b.*?</code>", re.DOTALL)
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*(?![^<]*>)")
"""A flag in HTML, outside tags."""
HISTORY = "CHANGELOG.md"
"""Its links are checked. It names on purpose what does not exist, or no longer."""


# -- events of MkDocs ------------------------------------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the repository that pages link to, and check the files that are no pages."""
    for name in UNBUILT:
        for problem in [*problems(name, (ROOT / name).read_text()), *dead_links(ROOT / name)]:
            LOG.warning(f"{name}: {problem}")
    for problem in dead_links(ROOT / HISTORY):
        LOG.warning(f"{HISTORY}: {problem}")
    for name in without_page():
        LOG.warning(f"algorithms/{name.lower()}.md: the page of {name} is missing")
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
        markdown = MARKER.sub(lambda found: tables.made(found) if found[1] in KINDS else found[0], markdown)
    except tables.MarkerError as error:
        LOG.warning(f"{uri}:{error.line}: {error}")
    return _rewritten(uri, _wrapped(markdown), (DOCS / uri) if own else ROOT / _path(uri))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Keep flags such as --num-workers on one line: a browser would break them behind each hyphen."""
    return CODE.sub(lambda found: FLAG.sub(r'<span class="flag">\g<0></span>', found[0]), html)


def _wrapped(markdown: str) -> str:
    """Give blocks of commands, which name no language, and of messages a class whose long lines extra.css breaks."""

    def head(language: str, text: str) -> str:
        lines = text.splitlines()
        is_prose = max(map(len, lines), default=0) > WIDEST and not any(line.startswith(" ") for line in lines)
        return {"": " {.bash .command}", "text": " {.text .command}" if is_prose else "text"}.get(language, language)

    return BLOCK.sub(lambda found: f"```{head(found[1], found[2])}\n{found[2]}```", markdown)


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
    return [found[2] for found in LINK.finditer(INLINE.sub("", BLOCK.sub("", text)))]


def _outside(uri: str, text: str, source: Path | None = None) -> set[str]:
    """The files of the repository outside docs/ that a page links to."""
    base = (source or DOCS / uri).parent
    paths = {Path(os.path.normpath(base / target)) for target in _targets(MARKER.sub(_expanded, text))}
    inside = {p for p in paths if p.is_relative_to(ROOT) and not p.is_relative_to(DOCS) and p.exists()}
    return {p.relative_to(ROOT).as_posix() for p in inside}


def _expanded(found: re.Match[str]) -> str:
    try:
        return tables.made(found) if found[1] in KINDS else found[0]
    except tables.MarkerError:  # `on_page_markdown` says so
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
        anchor = "" if path == ROOT / "README.md" else found[3] or ""
        return f"{found[1]}{os.path.relpath(to, here)}{anchor}{found[4]}"

    return LINK.sub(link, text)
