"""What a notebook shows while a run trains: one table under the cell that stays in place, and the learning curve at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.report.panel import Progress, State, clock, count, make_progress, reading, sparkline, value_text
from raypid.report.streams import in_notebook
from raypid.storage.run_folder import EVALUATION, NAMES, known

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

REFRESH_S = 0.5
"""Seconds between two updates of the table, which travel to the browser and into the file of the notebook."""
_CELL = "text-align:left;padding:1px 12px 1px 0;border:none;background:none"
_BAR = (
    '<div style="width:160px;height:6px;background:#8884;display:inline-block;vertical-align:middle;margin-left:8px">'
    '<div style="width:{}%;height:6px;background:#2a9d8f"></div></div>'
)


def progress_here(stop: Mapping[str, float], quiet: bool, before: Progress | None = None) -> Progress:
    """The table in a notebook, in the place of `before` if that is one; what the command line shows anywhere else; nothing if `quiet`."""
    if quiet or not in_notebook():
        return make_progress(stop, quiet)
    return NotebookDisplay(stop, before if isinstance(before, NotebookDisplay) else None)


class NotebookDisplay(Progress):
    """A table in HTML, and the same as text for what shows no HTML."""

    def __init__(self, stop: Mapping[str, float], before: NotebookDisplay | None = None) -> None:
        self._state = State(stop)
        self._handle: DisplayHandle | None = before._handle if before is not None else None
        self._messages: list[str] = []
        self._summary: list[tuple[str, str]] = []
        self._due = 0.0
        self._stopped = False
        self._curve_before: tuple[int, int] | None = None

    def start(self, run_info: Mapping[str, object]) -> None:
        self._state.info = dict(run_info)
        self._curve_before = self._curve_now()
        self._draw()

    def update(self, result: Mapping[str, object]) -> None:
        self._state.update(result)
        if time.monotonic() >= self._due:
            self._draw()

    def message(self, text: str) -> None:
        self._messages.append(text)
        self._draw()

    def working(self, text: str) -> None:
        self._state.doing = text
        if self._state.info:
            self._draw()
        elif text or self._handle is not None:  # before the run has begun: a line, which is gone when that is done
            self._show({"text/plain": f"{text} ..." if text else ""})

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        if self._stopped:
            return
        self._state.doing = ""
        self._stopped, self._summary = True, list(summary)
        self._draw()
        if self._curve_now() not in (None, self._curve_before):
            from IPython.display import Image, display

            display(Image(filename=str(self._curve()), width=640, alt="learning curve"))

    def _curve(self) -> Path:
        return Path(str(self._state.info.get("folder"))) / "learning_curve.png"

    def _curve_now(self) -> tuple[int, int] | None:
        """Which curve the folder has: another one has another time or inode. (The clock of its host may not be this one's.)"""
        try:
            about = self._curve().stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino

    def _draw(self) -> None:
        self._due = time.monotonic() + REFRESH_S
        if not self._state.info:  # no run has begun
            self._show({"text/plain": "\n".join(self._messages)})
            return
        rows, title = self._rows(), f"raypid {self._state.title()}"
        if self._state.doing:
            rows.append(("now", f"{self._state.doing} ...", None))
        self._show(
            {"text/html": as_html(title, rows, self._messages), "text/plain": as_text(title, rows, self._messages)}
        )

    def _show(self, shown: Mapping[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def _rows(self) -> list[tuple[str, str, float | None]]:
        """(label, text, share of the way to the stop criterion or None)."""
        state, latest = self._state, self._state.latest
        rows: list[tuple[str, str, float | None]] = [("run", " · ".join(state.facts()), None)]
        if not latest and not self._stopped:
            return [*rows, ("", "waiting for the first iteration", None)]
        if latest:
            mean, low, high = state.training_returns()
            rows.append(("training return", f"{mean}  (min {low}, max {high})", None))
            drawn, values = state.returns_drawn()
            if spark := sparkline(values, 40):
                span = f"{reading(values[0])} to {reading(values[-1])}"
                rows.append((f"{drawn} so far", f"{spark}  {span}", None))
            if known(latest.get(EVALUATION)):
                rows.append(("evaluation return", state.evaluation(), None))
        for key in state.stop:
            text = f"{NAMES.get(key, key)} {value_text(key, latest.get(key))} of {value_text(key, state.stop[key])}"
            rows.append(("stop at", text, state.fraction(key)))
        if latest:
            rows.append(("so far", " · ".join([*state.totals(), clock(latest.get("time_total_s"))]), None))
            rows.append(("speed", f"{count(latest.get('env_steps_per_s'))} steps/s", None))
            learner = " · ".join(map(" ".join, state.metrics().values()))
            rows += [("learner", learner, None)] if learner else []
            times = " · ".join(text for _, text in state.times().values())
            rows += [("time goes to", times, None)] if times else []
            rows += [("bottleneck", hint, None)] if (hint := state.bottleneck()) else []
            rows += [("lost", losses, None)] if (losses := state.losses()) else []
        ended = {key for key, _ in self._summary}
        return [*(row for row in rows if row[0] not in ended), *((key, text, None) for key, text in self._summary)]


def as_html(title: str, rows: Sequence[tuple[str, str, float | None]], messages: Sequence[str]) -> str:
    """The table, with everything that is not raypid's own words escaped."""
    import html  # only notebooks need it, every run imports this file

    lines = [f"<b>{html.escape(title)}</b>", '<table style="border:none">']
    for label, text, share in rows:
        bar = "" if share is None else f"{_BAR.format(round(100 * share))} {100 * share:.0f}%"
        cells = (
            f'<td style="{_CELL};opacity:.7">{html.escape(label)}</td><td style="{_CELL}">{html.escape(text)}{bar}</td>'
        )
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</table>")
    lines += [f'<div style="white-space:pre-wrap">{html.escape(text)}</div>' for text in messages]
    return "\n".join(lines)


def as_text(title: str, rows: Sequence[tuple[str, str, float | None]], messages: Sequence[str]) -> str:
    """The table in aligned columns, with the messages below it."""
    width = max(len(label) for label, _, _ in rows)
    table = [f"{label:<{width}}  {text}" + ("" if share is None else f"  {share:.0%}") for label, text, share in rows]
    return "\n".join([title, *table, *messages])
