"""What the site refuses: `problems` says what is wrong with a page. hooks.py logs each as a warning, and the build fails on it.

- Code: Python and YAML that cannot be parsed, `raypid` commands and flags that do not exist.
- Names: dotted names of raypid, files, flags, settings and metrics that do not exist.
- Pages of algorithms: metrics that are reported and not explained, or explained and never reported; a missing table of settings.

MkDocs itself refuses dead links and anchors of the site's pages; `dead_links` does so for README.md, which is no page of the site.
"""

from __future__ import annotations

import argparse
import ast
import html
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import tables
import yaml
from markdown.extensions.toc import slugify

from raypid import cli
from raypid.errors import UserError

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
"""A link within the repository: `](`, path, anchor, `)`."""
MARKER = re.compile(r"^<!-- (settings|results): (\w+) -->$", re.MULTILINE)
FOREIGN = ("names.md", "coming-from/")
"""Pages that are full of other libraries' names: only what is plainly ours is looked up there."""
_ANSWERED = "names.md"
"""The page with names that do not exist on purpose. tests/test_names.py runs its rows."""
_TOP = ("raypid", "docs", "tests", "benchmarks", "examples")
_OTHERS = {"runtime_env"}
"""Words of Ray that look like settings."""
_FOREIGN_FLAGS = {
    *("dashboard_port", "node_manager_port", "object_manager_port", "ray_client_server_port"),  # Ray
    *("build_arg", "shm_size"),  # Docker
    *("index_url", "signal", "weights_file"),  # pip, SLURM, an alias
}
"""Flags of other programs that pages name alone."""


def problems(uri: str, text: str) -> list[str]:
    """Say what is wrong with a page.

    Args:
        uri: path of the page below docs/, or of README.md and its like below the repository.
        text: the page in Markdown.
    """
    blocks = [(head.split()[:1], code) for head, code in BLOCK.findall(text) if not code.startswith("--8<--")]
    prose = BLOCK.sub("", text)
    inline = sorted({html.unescape(name) for name in INLINE.findall(prose)})
    own = set(re.findall(r"[A-Za-z_]\w*", " ".join(code for language, code in blocks if language)))
    """Words of the page's code: what is not ours may be its own."""
    found = [problem for language, code in blocks for problem in _code_problems(language, code)]
    if uri != _ANSWERED:
        commands = [code for language, code in blocks if language in ([], ["text"])]
        for command in dict.fromkeys(c for code in [*commands, *inline] for c in _commands(code)):
            found += _command_problems(command, own)
        found += [f"the file {path} does not exist" for path in _missing_files([*commands, *inline])]
        found += [f"`{name}` does not exist" for name in inline if not _is_there(name)]
    if not uri.startswith(FOREIGN):
        for name in inline:
            found += [f"the file {name} does not exist"] if _is_unknown_file(name) else []
            found += [f"the flag `--{flag}` does not exist" for flag in _unknown_flags(name)]
            found += [
                f"`{word}` is no setting, metric or name of the code"
                for word in _unknown_words(name)
                if word not in own
            ]
    found += [
        f"{line} is no marker of a table: write <!-- settings: NAME --> or <!-- results: NAME -->"
        for line in re.findall(r"^<!-- \w+: .*$", prose, re.MULTILINE)
        if not MARKER.match(line) and not line.startswith("<!-- end: ")
    ]
    page = re.fullmatch(r"algorithms/(\w+)\.md", uri)
    return found + (_algorithm_problems(page[1], prose) if page and page[1] != "index" else [])


# -- code ------------------------------------------------------------------------------------------------------------------


def _code_problems(language: list[str], code: str) -> list[str]:
    """Python and YAML that cannot be parsed, and imports from raypid of what it does not have."""
    try:
        if language == ["yaml"]:
            yaml.safe_load(code)
        if language != ["python"]:
            return []
        names = [
            f"{node.module}.{name.name}"
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "raypid"
            for name in node.names
        ]
    except (SyntaxError, yaml.YAMLError) as error:
        return [
            f"a block of code cannot be parsed: {' '.join(str(error).split())}. It begins with {code.splitlines()[0]!r}"
        ]
    return [f"`{name}`, which a block of code imports, does not exist" for name in names if not _importable(name)]


def _commands(code: str) -> list[str]:
    """The `raypid` commands of a block or of a word in backquotes, a line each."""
    lines = code.replace("\\\n", " ").splitlines()
    found = [re.match(r"(?:.*(?:\bdo|&&|;) )?(raypid [a-z][\w-]*(?: .*)?)$", line) for line in lines]
    return [match[1] for match in found if match]


def _command_problems(command: str, own: set[str]) -> list[str]:
    """A command or flags that do not exist; an environment, an agent or a model of the page's own code may have flags of its own."""
    _, name, *words = command.split()
    name = cli.names.SAME_COMMANDS.get(name, name)
    if name == "help" or not re.fullmatch(r"[a-z-]+", name):
        return []
    if name not in cli.COMMANDS:
        return [f"there is no command `raypid {name}`"]
    run = next((words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--run", "--algo")), "")
    known = _parser(name, run if run in tables.ALGORITHMS else "")
    given = [found[1] for word in words if (found := re.match(r"(--[a-z][\w.-]*)", word))]
    has_own = any(re.search(r"\w:\w|\.py$", word) for word in words)
    return [
        f"`raypid {name}` has no flag {flag}, in: {command}"
        for flag in given
        if cli.dashed(flag) not in known and not (has_own and flag[2:].replace("-", "_") in own)
    ]


@cache
def _parser(command: str, run: str) -> frozenset[str]:
    """The flags of a command; of `raypid train` with the settings of one algorithm, or of all where none is named."""
    runs = [run] if run or command not in ("train", "tune") else tables.ALGORITHMS.names()
    found: set[str] = set()
    for one in runs:
        subparsers = argparse.ArgumentParser().add_subparsers(parser_class=cli._Parser)
        module = importlib.import_module(f"raypid.cli.{command.replace('-', '_')}")
        try:
            module.add_parser(subparsers, [command, *(["--run", one] if one else [])])
        except UserError:  # a setting without a docstring, which the table of settings names
            found |= {cli.dashed(f"--{flag}") for flag in _flags()}
            continue
        found |= set(subparsers.choices[command]._option_string_actions)
    return frozenset(found | {"--help", "--help-all"})


# -- names -----------------------------------------------------------------------------------------------------------------


def _is_there(name: str) -> bool:
    """Whether what stands in backquotes exists, if it is a dotted name of raypid or a path of the repository."""
    if re.fullmatch(r"raypid(\.\w+)+", name) and not name.endswith(".NAME"):
        return _importable(name)
    if re.fullmatch(r"[\w-]+(/[\w.-]+)+/?", name) and name.split("/")[0] in _TOP:
        return (ROOT / name).exists() or name.startswith("raypid/") and name.endswith(("-v0", "-v1"))
    if target := re.fullmatch(r"make ([a-z-]+)", name):
        return re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
    return True


def _is_unknown_file(name: str) -> bool:
    """Whether this is the name of a file that neither the repository has, nor its code or a page's code mentions."""
    looks_like_one = re.fullmatch(r"[\w-]+\.(py|md|jsonl?|csv|ya?ml|toml|npz|sh|ipynb)", name) and not name.startswith(
        "my_"
    )
    return bool(looks_like_one) and name not in _file_names() and name not in _texts() and name not in _shown()


def _missing_files(texts: list[str]) -> list[str]:
    """Paths of the repository within commands that do not exist."""
    text = "\n".join(text for text in texts if " " in text)
    paths = re.findall(rf"(?<![\w./~-])((?:{'|'.join(_TOP)})/[\w./-]+\.(?:py|sh|ya?ml|md|ipynb|csv))\b", text)
    return [path for path in dict.fromkeys(paths) if not (ROOT / path).exists()]


def _unknown_flags(name: str) -> list[str]:
    """Flags that no command here has, in what stands in backquotes."""
    ours = name.startswith(("--", "python benchmarks/", "python docs/"))
    flags = re.findall(r"(?:^|(?<= ))--([a-z][\w.-]*)", name) if ours else []
    return [flag for flag in flags if flag.replace("-", "_") not in _flags()]


def _unknown_words(name: str) -> list[str]:
    """Words such as `batch_size` that stand nowhere in the code."""
    words = re.findall(r"(?<![\w./:-])([a-z]+_\w+)\b(?!/)(?!\.(?:py|md|json|yaml)\b)", name.replace("learner/", ""))
    return [word for word in words if word not in _words() | _OTHERS and not word.startswith("my_")]


@cache
def _texts() -> str:
    """The code, without the list of other libraries' names."""
    folders = [ROOT / folder for folder in ("raypid", "examples", "benchmarks", "docs")]
    files = [
        path for folder in folders for path in sorted(folder.rglob("*.*")) if path.suffix in (".py", ".yaml", ".sh")
    ]
    return "\n".join(path.read_text() for path in (*files, ROOT / "pyproject.toml") if path.name != "names.py")


@cache
def _shown() -> str:
    """The code of all pages."""
    return "\n".join(code for path in sorted(DOCS.rglob("*.md")) for _, code in BLOCK.findall(path.read_text()))


@cache
def _words() -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", _texts()))


@cache
def _file_names() -> frozenset[str]:
    folders = [(ROOT, "*"), *((ROOT / top, "**/*") for top in _TOP)]
    return frozenset(path.name for folder, pattern in folders for path in folder.glob(pattern))


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
    return frozenset(flags | settings | networks | _FOREIGN_FLAGS)


# -- pages of algorithms ---------------------------------------------------------------------------------------------------


def _algorithm_problems(page: str, prose: str) -> list[str]:
    """Metrics that a page does not explain, or that its algorithm never reports; a missing table of settings."""
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
    marker = f"<!-- settings: {names[page]} -->"
    return [
        *(f"the metric {name} is not explained under Metrics" for name in sorted(reported - explained)),
        *(f"the metric {name} is never reported" for name in sorted(explained - reported)),
        *(
            []
            if marker in prose.splitlines()
            else [f"the line {marker}, which becomes the table of settings, is missing"]
        ),
    ]


def without_page() -> list[str]:
    """Algorithms of raypid's own that have no page."""
    own = filter(tables.ALGORITHMS.is_own, tables.ALGORITHMS.names())
    return [name for name in own if not (DOCS / "algorithms" / f"{name.lower()}.md").exists()]


# -- links of pages that MkDocs does not build -------------------------------------------------------------------------------


def dead_links(path: Path) -> list[str]:
    """The links of a file of the repository that lead to no file, or to no heading."""
    found = []
    for _, target, anchor, _ in LINK.findall(INLINE.sub("", BLOCK.sub("", path.read_text()))):
        to = path.parent / target if target else path
        if not to.exists():
            found.append(f"the link {target} is dead: there is no such file")
        elif anchor and to.suffix == ".md" and anchor[1:] not in _anchors(to):
            found.append(f"the link {target}{anchor} is dead: {target or 'the page'} has no such heading")
    return found


@cache
def _anchors(path: Path) -> frozenset[str]:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return frozenset(slugify(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading), "-") for heading in headings)
