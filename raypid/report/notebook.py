"""What a notebook shows while a run trains: the panel under the cell, which stays in place, and the learning curve at the end."""

from __future__ import annotations

import html
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.report.panel import Panel, Progress, make_progress, summary_lines
from raypid.report.streams import in_notebook

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

REFRESH_S = 0.5
"""Seconds between two updates of the panel, which travel to the browser and into the file of the notebook."""
COLUMNS = 100
_PANEL = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;background:none">{code}</pre>'
_BELOW = '<div style="white-space:pre-wrap">{}</div>'


def progress_here(stop: Mapping[str, float], quiet: bool, before: Progress | None = None) -> Progress:
    """The panel in a notebook, in the place of `before` if that is one; what the command line shows anywhere else; nothing if `quiet`."""
    if quiet or not in_notebook():
        return make_progress(stop, quiet)
    return NotebookPanel(stop, before if isinstance(before, NotebookPanel) else None)


class NotebookPanel(Panel):
    """The panel in HTML, and the same as text for what shows no HTML; below it messages and the summary."""

    def __init__(self, stop: Mapping[str, float], before: NotebookPanel | None = None) -> None:
        super().__init__(stop, io.StringIO())
        self._handle: DisplayHandle | None = before._handle if before is not None else None
        self._lines: list[str] = []
        """What stands below the panel."""

    def start(self, run_info: Mapping[str, object]) -> None:
        self._state.info = dict(run_info)
        self._draw()

    def message(self, text: str) -> None:
        self._lines.append(text)
        self._draw()

    def working(self, text: str) -> None:
        self._state.doing = text
        if text or self._handle is not None:
            self._draw()

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        if self._state.has_ended:
            return
        self._state.doing, self._state.has_ended = "", True
        self._lines += summary_lines(summary)
        self._draw()
        curve = Path(str(self._state.info.get("folder"))) / "learning_curve.png"
        if "took" in dict(summary) and curve.is_file():  # not after an error, which leaves the curve of before
            from IPython.display import Image, display

            display(Image(filename=str(curve), width=640, alt="learning curve"))

    def _draw(self) -> None:
        from IPython.display import display

        self._due = time.monotonic() + REFRESH_S
        shown = self._shown()
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def _shown(self) -> dict[str, str]:
        """What stands under the cell, by MIME type."""
        from rich.console import Console
        from rich.terminal_theme import DIMMED_MONOKAI  # its colours are seen on white and on black

        text = page = ""
        lines = self._lines
        if self._state.info:
            self._console = Console(
                file=io.StringIO(),
                record=True,
                width=COLUMNS,
                height=1000,
                color_system="truecolor",
                force_jupyter=False,
            )
            self._console.print(self.render())
            text = self._console.export_text(clear=False)
            page = self._console.export_html(theme=DIMMED_MONOKAI, code_format=_PANEL, inline_styles=True)
        elif self._state.doing:  # before the run has begun: a line, which is gone when that is done
            lines = [*lines, f"{self._state.doing} ..."]
        below = "\n".join(lines)
        return {"text/plain": text + below, "text/html": page + _BELOW.format(html.escape(below))}
