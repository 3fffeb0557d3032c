"""Make the description of the package for an index: the README with its links to files of the repository turned into their paths.

Hatchling runs it when it builds (`tool.hatch.metadata.hooks.custom` in pyproject.toml), in an environment that has only hatchling. An
index shows the description by itself, where relative links would be dead and pictures missing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]\n]*\]\((?![a-z]+:)[^)\s]+\)\n\n?", re.MULTILINE)
"""A line that holds only a picture of the repository."""
LINK = re.compile(r"\[([^\]\n]+)\]\((?![a-z]+:)([^)\s]+)\)")
"""A link of Markdown to a file of the repository."""


def without_links(text: str) -> str:
    """Replace links to files of the repository by their text and the file's path; other links stay."""

    def plain(link: re.Match[str]) -> str:
        name, target = link[1], link[2].partition("#")[0]
        return f"`{target}`" if name in (target, link[2]) else f"{name} (`{target}`)"

    return LINK.sub(plain, text)


class LongDescription(MetadataHookInterface):
    """The hook that hatchling finds in this file."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`, which pyproject.toml declares as dynamic."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_links(PICTURE.sub("", text))}
