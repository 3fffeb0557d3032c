"""Print how large the code is and how it hangs together.

    python benchmarks/code_size.py [FOLDER]            # a checkout; default: this one
    python benchmarks/code_size.py --check             # no part may have more lines than results/code_size.json says
    python benchmarks/code_size.py --write             # lower the numbers there to what parts have now
    python benchmarks/code_size.py --write --because "users can now do X"      # raise numbers, too, and say why

A row for each part of the package: files, bare lines (without blanks, comments and docstrings) and the word Any. Then
functions over 60 lines, and import circles between files. Generated files (their first line says so) do not count. Data files
(JSON, YAML, TOML) count, so that code does not become data to look smaller; tuned settings and their records do not.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

TABLE = Path("benchmarks", "results", "code_size.json")
"""Lines that each part may have, and why any of these numbers was raised."""
ALL = "all"
DATA = (".json", ".yaml", ".yml", ".toml")
TUNED = ("tuned.json", "tuned_results.json")
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def bare_lines(source: str) -> int:
    """Count the lines that hold code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for part in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                documented |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SKIPPED:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def data_lines(text: str) -> int:
    """Count the lines of a data file that are neither blank nor comments; each 120 characters of a line count as one."""
    lines = (line.strip() for line in text.splitlines())
    return sum(-(-len(line) // 120) for line in lines if line and not line.startswith("#"))


def long_functions(source: str, most: int = 60) -> list[str]:
    """Functions of more than `most` lines, each as "name (lines)"."""
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    sizes = ((f.name, (f.end_lineno or f.lineno) - f.lineno + 1) for f in functions)
    return [f"{name} ({size})" for name, size in sizes if size > most]


def imported_files(tree: ast.AST, package: Path) -> Iterator[tuple[int, Path]]:
    """Yield (line, file) for every import of a file of `package`, also within functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == package.name:
                yield node.lineno, _file_of(name, package)


def _file_of(name: str, package: Path) -> Path:
    """The file that a dotted name lies in: a module, the module that defines it, or a package's __init__.py."""
    path = package.parent.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py"), path.parent.with_suffix(".py")):
        if file.exists():
            return file
    return path.parent / "__init__.py"


def import_graph(package: Path) -> dict[str, set[str]]:
    """Files of the package, by their path in it, and the files that each imports."""

    def name_of(path: Path) -> str:
        return path.relative_to(package).as_posix()

    return {
        name_of(path): {name_of(file) for _, file in imported_files(ast.parse(path.read_text()), package)}
        for path in sorted(package.rglob("*.py"))
    }


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other: the strongly connected components of more than one node."""
    reached = {node: _reachable(graph, node) for node in graph}
    groups = {tuple(sorted(m for m in reached[n] if n in reached[m])) for n in graph if n in reached[n]}
    return sorted(list(group) for group in groups)


def _reachable(graph: Mapping[str, Set[str]], start: str) -> set[str]:
    found: set[str] = set()
    queue = [start]
    while queue:
        new = graph[queue.pop()] - found
        found |= new
        queue += new
    return found


def measure(package: Path) -> tuple[dict[str, list[int]], list[str]]:
    """Return [files, lines, word Any] of each part and of all, and the functions over 60 lines."""
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    long = []
    for path in sorted(package.rglob("*")):
        if path.suffix not in (".py", *DATA) or path.name in TUNED:
            continue
        source = path.read_text()
        if source.startswith("# Generated"):
            continue
        counts = [1, data_lines(source), 0]
        if path.suffix == ".py":
            counts = [1, bare_lines(source), len(re.findall(r"\bAny\b", source))]
            long += [f"{path.relative_to(package)}: {function}" for function in long_functions(source)]
        for part in (path.relative_to(package).parts[0], ALL):
            for i, n in enumerate(counts):
                rows[part][i] += n
    return rows, long


def excess(sizes: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """The parts that have more lines than they may, each as a sentence. A part that is not in the table may have none."""
    return [
        f"{part} has {size:,} lines, {allowed.get(part, 0):,} are allowed."
        for part, size in sizes.items()
        if size > allowed.get(part, 0)
    ]


def write(path: Path, sizes: Mapping[str, int], because: str) -> None:
    """Lower the numbers in the table `path` to `sizes`; with a reason raise them, too. The first table needs none."""
    table = json.loads(path.read_text()) if path.exists() else {"lines": sizes, "reasons": {}}
    before = table["lines"]
    grown = {part for part, size in sizes.items() if size > before.get(part, 0)}
    kept = sizes if because else {part: min(size, before[part]) for part, size in sizes.items() if part in before}
    reasons = {**table["reasons"], **{part: because for part in grown if because}}
    new = {"lines": kept, "reasons": {part: reason for part, reason in sorted(reasons.items()) if part in kept}}
    path.write_text(json.dumps(new, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent.parent, help="a checkout")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a part is larger than the table allows")
    parser.add_argument("--write", action="store_true", help="lower the numbers of the table, then check")
    parser.add_argument("--because", default="", metavar="REASON", help="with --write: raise numbers, too")
    options = parser.parse_args(argv)
    if options.because and not options.write:
        parser.error("--because goes with --write")
    package, path = options.folder / "raypid", options.folder / TABLE
    rows, long = measure(package)
    sizes = {part: lines for part, (_, lines, _) in rows.items()}
    if options.write:
        write(path, sizes, options.because)
    if options.check or options.write:
        if found := excess(sizes, json.loads(path.read_text())["lines"]):
            advice = "Make it smaller, or say why it must grow: python benchmarks/code_size.py --write --because REASON"
            print("\n".join([*found, advice]), file=sys.stderr)
        return 1 if found else 0
    print(f"{'part':20}{'files':>8}{'bare lines':>12}{'Any':>8}")
    for part, row in sorted(rows.items(), key=lambda row: row[0] == ALL):
        print(f"{part:20}{row[0]:>8}{row[1]:>12,}{row[2]:>8,}")
    print(f"functions over 60 lines: {', '.join(long) or 'none'}")
    groups = circles(import_graph(package))
    print(f"import circles between files: {len(groups)}")
    for circle in groups:
        print(f"  {', '.join(circle)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
