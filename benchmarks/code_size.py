"""Print how large the code is and how it hangs together.

    python benchmarks/code_size.py [FOLDER]     # a checkout; default: this one

A row for each part of the package: files, bare lines (without blanks, comments and docstrings) and the word Any. Then
functions over 60 lines, and import circles between files. Generated files (their first line says so) do not count.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

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


def main() -> None:
    package = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent) / "raypid"
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    long = []
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        if source.startswith("# Generated"):
            continue
        part = path.relative_to(package).parts[0]
        for i, n in enumerate((1, bare_lines(source), len(re.findall(r"\bAny\b", source)))):
            rows[part][i] += n
        long += [f"{path.relative_to(package)}: {function}" for function in long_functions(source)]
    print(f"{'part':20}{'files':>8}{'bare lines':>12}{'Any':>8}")
    for part, row in [*rows.items(), ("all", [sum(column) for column in zip(*rows.values(), strict=True)])]:
        print(f"{part:20}{row[0]:>8}{row[1]:>12,}{row[2]:>8,}")
    print(f"functions over 60 lines: {', '.join(long) or 'none'}")
    found = circles(import_graph(package))
    print(f"import circles between files: {len(found)}")
    for circle in found:
        print(f"  {', '.join(circle)}")


if __name__ == "__main__":
    main()
