"""Write the tables, files and functions that pages show, for readers of the repository, below markers such as `<!-- settings: PPO -->` (tables.py).

python docs/make_pages.py            # rewrite the pages
python docs/make_pages.py --check    # exit 1 if one is out of date, or cannot be written
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tables
from checks import BLOCK, DOCS, KINDS, MARKER


def written(text: str) -> str:
    """A page with what its markers stand for, made anew. What other blocks of code show stays.

    Raises:
        MarkerError: a marker stands for nothing.
    """
    return re.sub(f"{MARKER.pattern}|{BLOCK.pattern}", _filled, text, flags=MARKER.flags | BLOCK.flags)


def _filled(found: re.Match[str]) -> str:
    kind, name, options = found[1], found[2], found[3] or ""
    if kind not in KINDS:
        return found[0]
    return f"<!-- {kind}: {name}{options} -->\n{tables.made(found, site=False)}\n\n<!-- end: {kind} -->"


def main() -> int:
    """0 if the pages are (now) up to date."""
    old, wrong = dict[Path, str](), dict[str, str]()
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        try:
            if (made := written(text)) != text:
                old[path] = made
        except tables.MarkerError as error:
            wrong.setdefault(str(error), f"{path.relative_to(DOCS.parent)}:{error.line}")
    for why, place in wrong.items():
        print(f"{place}: {why}", file=sys.stderr)
    if "--check" in sys.argv:
        for path in old:
            print(f"{path.relative_to(DOCS.parent)} is out of date: python docs/make_pages.py")
        return int(bool(old or wrong))
    for path, made in old.items():
        path.write_text(made)
        print(path.relative_to(DOCS.parent))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
