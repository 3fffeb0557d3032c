"""How large the code is: bare lines (without blanks, comments and docstrings), the word Any, functions over 60 lines.

    python benchmarks/code_size.py [FOLDER]     # a checkout; default: this one

Prints a row for each part of the package and the sums. Generated files (their first line says so) do not count.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
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
    """Lines that hold code."""
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
    """ "name (lines)" of functions that do not fit on a screen."""
    functions = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    sizes = ((f.name, (f.end_lineno or f.lineno) - f.lineno + 1) for f in functions)
    return [f"{name} ({size})" for name, size in sizes if size > most]


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


if __name__ == "__main__":
    main()
