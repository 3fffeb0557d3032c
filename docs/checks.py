"""What the site refuses: `problems` says what is wrong with a page. hooks.py logs each as a warning, and the build fails on it.

- Code: Python, YAML and JSON that cannot be parsed; commands, run files, calls and settings that raypid refuses (check_runs.py,
  check_python.py); blocks in a language that nobody checks. tests/test_documentation.py runs the code, this reads it.
- Names: dotted names of raypid, files, flags, settings and metrics that do not exist. On pages for users of other libraries, whose
  names these pages are full of, those in the column "here" of tables.
- Pages of algorithms: metrics that are reported and not explained, or explained and never reported; a missing table of settings.

MkDocs itself refuses dead links and anchors of the site's pages; `dead_links` does so for README.md, which is no page of the site.
"""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import tables
import yaml
from check_python import begun, code_problems, look_up, setting_problems, unbound
from check_runs import OPEN, all_keys, command_problems, commands, run_file_problems
from markdown.extensions.toc import slugify

from raypid.compat.names import ALIASES, ANSWERS, PROMISED

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
"""A link within the repository: `](`, path, anchor, `)`."""
LANGUAGES = ("python", "yaml", "json", "text")
"""Languages of blocks. A block without one is commands."""
MARKER = tables.MARKER
KINDS = ("settings", "results", "expected", "pays", "names", "reference", "file", "code")
"""Kinds of markers."""
FOREIGN = ("names.md", "coming-from/")
"""Pages that are full of other libraries' names: only what is plainly ours is looked up there."""
_SUFFIXES = r"py|md|jsonl?|csv|ya?ml|toml|npz|sh|ipynb"
_TOP = ("raypid", "docs", "tests", "benchmarks", "examples")
_OTHERS = {"runtime_env", "ConstrainRAMSpace", "KillMode"}
"""Words of Ray, SLURM and systemd that look like ours."""
_FOREIGN_OWNERS = {"gymnasium", "jax", "my_package", "net", "np", "os", "ray", "spaces", "torch", "tune"}
"""Modules of others, and what else is no object of ours, before a dot."""
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
    text = MARKER.sub(_only_marker, text)
    blocks = [(_language(head), code) for head, code in BLOCK.findall(text)]
    prose = BLOCK.sub("", text)
    inline = _inline(prose)
    code = "\n".join(code for language, code in blocks if language)
    own = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"\w+/[\w/]+", "", code)))
    """Words of the page's code: what is not ours may be its own."""
    added = set(re.findall(r"register\w*\(\s*[\"'](\w+)", code))
    found = _block_problems(blocks, prose, added)
    shown = [(code, language == "") for language, code in blocks if language in ("", "text")]
    for words in {" ".join(c): c for code, all_ours in shown for c in commands(code, all_commands=all_ours)}.values():
        found += command_problems(words, own, whole=True)
    for words in [c for name in inline for c in commands(name, all_commands=False)]:
        found += command_problems(words, own, whole=False)
    found += [
        f"`{target}` does not exist"
        for code, is_all in shown
        for target in re.findall(r"^make [a-z-]+", code, re.MULTILINE)
        if is_all and not _is_there(target)
    ]
    found += [f"the file {path} does not exist" for path in _missing_files([*(code for code, _ in shown), *inline])]
    found += [f"`{name}` does not exist" for name in inline if not _is_there(name)]
    if not uri.startswith(FOREIGN):
        found += _name_problems(inline, own, added)
        found += _metric_problems([*inline, code], own)
    if uri.startswith("coming-from/"):
        rows = [cells for cells in _rows(prose) if len(cells) > 3]
        here = [cells[1] if cells[2].strip() == "the same" else cells[2] for cells in rows]
        found += _name_problems(_inline("\n".join(here)), own, added, strict=True)
        found += _metric_problems(["\n".join(here), code], own)
    found += [
        f"{line} is no marker of a table: write <!-- KIND: NAME -->, with one of the kinds {', '.join(KINDS)}"
        for line in re.findall(r"^<!-- \w+: .*$", prose, re.MULTILINE)
        if not ((marker := MARKER.match(line)) and marker[1] in KINDS) and not line.startswith("<!-- end: ")
    ]
    page = re.fullmatch(r"algorithms/(\w+)\.md", uri)
    return found + (_algorithm_problems(page[1], prose) if page and page[1] != "index" else [])


def _only_marker(found: re.Match[str]) -> str:
    """A marker without what `make_pages.py` wrote below it, which is made of what is checked elsewhere."""
    return found[0].partition("\n")[0]


# -- code ------------------------------------------------------------------------------------------------------------------


def _language(head: str) -> str:
    """The language of a block, "" of commands: of "```python", "``` {.python}" and "```python title=..."."""
    return next(iter(re.findall(r"[\w+-]+", head)), "")


def _block_problems(blocks: list[tuple[str, str]], prose: str, added: set[str]) -> list[str]:
    """What is wrong with the code of a page, but for its commands; links in HTML. A block of Python knows the names of those above it."""
    known: dict[str, object] = {}
    trees: list[ast.Module] = []
    found = [
        f"a block in {language!r} is checked by nobody: write one of {', '.join(LANGUAGES)}, or no language for commands"
        for language, _ in blocks
        if language and language not in LANGUAGES
    ]
    found += [
        f"the link {target} is checked by nobody: write it in Markdown, not in HTML"
        for target in re.findall(r"<\w+ [^>]*\b(?:href|src)\s*=\s*[\"']?([^\s\"'>]*)", INLINE.sub("", prose))
    ]
    if re.search(r"^ *(```|~~~)", prose, re.MULTILINE):
        found.append("a block of code is checked by nobody: begin and end it with ``` at the start of a line")
    for language, code in blocks:
        try:
            if language == "python":
                trees.append(ast.parse(code))
                found += [f"{told}, in a block of code" for told in code_problems(trees[-1], known, added)]
            elif language == "yaml":
                yaml.safe_load(code)
                found += run_file_problems(code)
            elif language == "json":
                json.loads(code if code.lstrip().startswith(("{", "[")) else f"{{{code}}}")
        except (SyntaxError, ValueError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())
            found.append(f"a block of code cannot be parsed: {why}. It begins with {code.splitlines()[0]!r}")
    return found + [f"`{name}`, which a block of code uses, is nowhere on the page" for name in unbound(trees)]


# -- names -----------------------------------------------------------------------------------------------------------------


def _inline(prose: str) -> list[str]:
    """What stands in backquotes."""
    return sorted({html.unescape(name) for name in INLINE.findall(prose)})


def _rows(prose: str) -> list[list[str]]:
    """The rows of tables, as cells between an empty first and an empty last one."""
    return [re.split(r"(?<!\\)\|", line) for line in prose.splitlines() if line.startswith("|")]


def _name_problems(inline: Iterable[str], own: set[str], added: set[str], *, strict: bool = False) -> list[str]:
    """What stands in backquotes and is no file, flag, setting, metric or name of raypid.

    Args:
        own: words of the page's code, whose names may be its own.
        strict: whether all words are names of ours.
    """
    found = []
    for name in inline:
        found += [f"the file {name} does not exist"] if _is_unknown_file(name) else []
        found += [f"the flag `--{flag}` does not exist" for flag in _unknown_flags(name)]
        if name.startswith("raypid ") or re.fullmatch(r"raypid(\.\w+)+", name):
            continue  # a command, or a name, which are looked up in any case
        with suppress(SyntaxError):
            if name.partition(".")[0] in begun() and re.match(rf"\w+\.(?!({_SUFFIXES})$)", name):
                found += code_problems(ast.parse(name, mode="eval"), begun(), added)
                continue
        unknown = _unknown_words(name, strict)
        if not {*unknown} - own and name not in own:
            found += (meant := [f"`{name}` is no name of raypid: {told}" for told in _meant(name)])
            unknown = [] if meant else _unknown_attributes(name)
        found += [f"`{word}` is no setting, metric or name of the code" for word in unknown if word not in own]
        if re.match(r"\w+=[^=]", name):  # a setting with a value
            with suppress(SyntaxError):
                found += setting_problems(ast.parse(f"given({name})", mode="eval").body)
    return found


def _meant(name: str) -> list[str]:
    """What a word is called here, if it is another library's name of a setting, or nearly a setting; [] if it is neither."""
    name, _, value = name.removeprefix("model.").partition("=")
    if not re.fullmatch(r"[a-z]\w*", name) or name in _ours():
        return []
    if ours := {**ALIASES, **ANSWERS}.get(name):
        return [f"it is called `{ours}`"]
    near = get_close_matches(name, _settings(), 1, 0.85)
    return [f"is `{near[0]}` meant?"] if near and name != f"{near[0]}s" else []


def _metric_problems(texts: Iterable[str], own: set[str]) -> list[str]:
    """Metrics that nothing reports; those under custom/ and what a page's own code returns may be anything."""
    groups = "|".join(sorted({key.partition("/")[0] for key in all_keys() if "/" in key}))
    named = re.findall(rf"(?<![\w/.])((?:{groups})/([a-z]\w*))(?![\w/.]*/|\.\w)", "\n".join(texts))
    return [
        f"the metric {name} is never reported"
        for name, word in sorted(set(named))
        if name not in all_keys() and word not in own
    ]


def _is_there(name: str) -> bool:
    """Whether what stands in backquotes exists, if it is a dotted name of raypid or a path of the repository."""
    if re.fullmatch(r"raypid(\.\w+)+", name) and not name.endswith(".NAME"):
        return look_up(name) is not OPEN
    if re.fullmatch(r"[\w-]+(/[\w.-]+)+/?", name) and name.split("/")[0] in _TOP:
        return (ROOT / name).exists() or name.startswith("raypid/") and name.endswith(("-v0", "-v1"))
    if target := re.fullmatch(r"make ([a-z-]+)", name):
        return re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
    return True


def _is_unknown_file(name: str) -> bool:
    """Whether this is the name of a file that neither the repository has, nor its code or a page's code mentions."""
    looks_like_one = re.fullmatch(rf"[\w-]+\.({_SUFFIXES})", name) and not name.startswith("my_")
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


def _unknown_words(name: str, strict: bool) -> list[str]:
    """Words such as `batch_size` and `PPOConfig` that stand nowhere in the code. `strict`: words such as `clip` too."""
    word = (r"[a-z]\w+" if strict else r"[a-z]+_\w+") + r"|[A-Z][a-z]+[A-Z]\w*|[A-Z]{2,}[a-z]\w*"
    rest = re.sub(r"[\w-]+/[\w./-]*|\"[^\"]*\"", "", name)
    words = re.findall(rf"(?<![\w./:-])({word})\b(?![/-])(?!\.(?:py|md|json|yaml)\b)", rest)
    return [word for word in words if word not in _words() | _OTHERS and not word.startswith("my_")]


def _unknown_attributes(name: str) -> list[str]:
    """Words behind a dot, such as `collect` in `rollout.collect(...)`, that nothing of raypid's has."""
    dotted = re.findall(r"(?<![\w./:\"'-])([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)+)\b(?![/-])", name)
    ours = [rest[1:].split(".") for owner, rest in dotted if owner not in _FOREIGN_OWNERS]
    names = [words for words in ours if not re.fullmatch(rf"{_SUFFIXES}|cff|png|txt|tfevents", words[-1])]
    return [word for words in names for word in words if word not in _defined() and word != "remote"]


@cache
def _defined() -> frozenset[str]:
    """Modules, functions, classes, fields and attributes of raypid."""
    files = sorted((ROOT / "raypid").rglob("*.py"))
    binds = r"^ *(?:def|class) (\w+)|^ {0,4}(\w+)(?:: | = )|\bself\.(\w+)|(\bstream_index\b)"
    found = re.findall(binds, "\n".join(path.read_text() for path in files), re.MULTILINE)
    return frozenset(word for words in found for word in words) | {path.stem for path in files}


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
def _settings() -> frozenset[str]:
    """The names of all settings, without "model."."""
    configs = [tables.ALGORITHMS.get(name).Config for name in tables.ALGORITHMS.names()]
    return frozenset(name for cls in (*configs, tables.ModelConfig) for name in cls.__dataclass_fields__)


@cache
def _ours() -> frozenset[str]:
    """Settings, and what other words of raypid's own code are, without its lists of other libraries' names and its sentences."""
    left_out = r'""".*?"""|\s# [^\n]*'
    files = [path for path in sorted((ROOT / "raypid").rglob("*.py")) if path.name != "names.py"]
    code = "\n".join(re.sub(left_out, "", path.read_text(), flags=re.DOTALL | re.MULTILINE) for path in files)
    return _settings() | PROMISED.keys() | set(re.findall(r"[A-Za-z_]\w*", code))


@cache
def _flags() -> frozenset[str]:
    """Every flag of the command line, and of others' commands that the pages show."""
    text = "\n".join(
        path.read_text()
        for folder in ("raypid/cli", "raypid/envs", "benchmarks")
        for path in sorted((ROOT / folder).glob("*.py"))
    )
    flags = {found.replace("-", "_") for found in re.findall(r"[\"'`(\[ ]--([a-z][\w-]*)", text)}
    networks = {f"model.{name}" for name in tables.ModelConfig.__dataclass_fields__}
    return frozenset(flags | _settings() | networks | _FOREIGN_FLAGS)


# -- pages of algorithms ---------------------------------------------------------------------------------------------------


def _algorithm_problems(page: str, prose: str) -> list[str]:
    """Metrics that a page does not explain, or that its algorithm never reports; a missing table of settings."""
    names = {name.lower(): name for name in tables.ALGORITHMS.names()}
    if page not in names:
        return [f"there is no algorithm {page!r}"]
    reported = tables.metrics(names[page])
    section = prose.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = _rows(section)
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
