"""Write the tables of the pages that readers of the repository see, below markers such as `<!-- settings: PPO -->` (tables.py).

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
    """A page with what its markers stand for, made anew. What stands in blocks of code stays."""
    parts = re.split(f"({BLOCK.pattern})", text, flags=BLOCK.flags)
    step = BLOCK.groups + 2
    return "".join(MARKER.sub(_filled, part) if i % step == 0 else part for i, part in enumerate(parts) if i % step < 2)


def _filled(found: re.Match[str]) -> str:
    kind, name, options = found[1], found[2], found[3] or ""
    if kind not in KINDS:
        return found[0]
    made = tables.table(kind, name, options, site=False)
    return f"<!-- {kind}: {name}{options} -->\n{made}\n\n<!-- end: {kind} -->"


def main() -> int:
    """0 if the pages are (now) up to date."""
    old, wrong = dict[Path, str](), dict[str, None]()
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        try:
            if (made := written(text)) != text:
                old[path] = made
        except ValueError as error:
            wrong[str(error)] = None
    print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
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
