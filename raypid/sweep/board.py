"""What the terminal shows while the trials of an experiment run: a live table, plain lines if there is no terminal, or errors alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from raypid.report.panel import clock, count
from raypid.report.streams import is_terminal, lenient
from raypid.storage.run_folder import EVALUATION, TRAINING, known

if TYPE_CHECKING:
    from rich.console import Group, JustifyMethod
    from rich.live import Live

_ROWS = 12
"""Running trials that the table shows."""
_LINE_S = 30.0
"""Seconds between lines about what runs, where there is no terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a trial ended."""

    name: str
    """Such as trial-001-lr=0.001: also the name of its folder."""
    folder: str
    """The folder of its run."""
    state: str
    """finished, stopped (by the scheduler), failed, or unfinished (the experiment was interrupted)."""
    reason: str
    """Why it ended; of a failed one, the last line of the error."""
    result: Mapping[str, Any]
    """Its last result."""
    final: Mapping[str, float] | None = None
    """episode_reward_mean, episode_reward_ci95 and episodes of the best policy, if it played at the end."""


class Board:
    """Follows the trials of an experiment.

    Args:
        total: how many there are; 0: nobody knows.
        done: how many had ended before.
        quiet: show errors alone, on stderr.
        place: the experiment's folder, where Ray must start before any trial does.
    """

    def __init__(self, total: int, done: int, quiet: bool, place: str = "", file: IO[str] | None = None) -> None:
        from rich.console import Console

        self.total, self.done, self.quiet = total, done, quiet
        left = f"{total - done} of {total} trials" if done else f"{total} trial{'s' if total != 1 else ''}"
        self._starting = f"{left} in {place}, starting Ray" if place else ""
        """What is said until the first trial starts."""
        self.file = lenient(sys.stderr if quiet else file or sys.stdout)
        self.num_failed = 0
        self._running: dict[str, Mapping[str, Any]] = {}
        self._said: set[str] = set()
        self._began = self._line_at = time.monotonic()
        self._console = Console(file=self.file, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None

    def __enter__(self) -> Board:
        if is_terminal(self.file) and not self.quiet:
            from rich.live import Live

            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=2, transient=True)
            self._live.start()
        elif self._starting:
            self._print(f"{self._starting}.")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def started(self, name: str) -> None:
        """A trial begins, or goes on."""
        self._starting = ""
        self._running.setdefault(name, {})

    def update(self, name: str, result: Mapping[str, Any]) -> None:
        """A trial has reported."""
        self._running[name] = result
        if self._live is None and time.monotonic() - self._line_at > _LINE_S:
            self._line_at = time.monotonic()
            going = [
                f"{name} {_newest(r)} at {count(r['timesteps_total'])} steps" for name, r in self._running.items() if r
            ]
            self._print(f"{self._progress()}. {'; '.join(going[:3])}{' ...' if len(going) > 3 else ''}")

    def message(self, name: str, text: str) -> None:
        """A run says something; what several of them say is shown once."""
        if text not in self._said:
            self._said.add(text)
            self._print(f"{name}: {text}")

    def note(self, text: str) -> None:
        """Show a line about the experiment."""
        self._print(text, always=True)

    def ended(self, trial: Ended) -> None:
        """A trial has ended. A failed one's traceback is shown under its name, unless another's was the same."""
        self._running.pop(trial.name, None)
        self.done += 1
        of = f"{self.done} of {self.total}" if self.total else f"{self.done} done"
        if trial.state == "failed":
            self.num_failed += 1
            *traceback, last = trial.reason.strip().splitlines() or ["no reason is known"]
            if traceback and (text := "\n".join(traceback)) not in self._said:
                self._said.add(text)
                self._print(f"{trial.name}:\n{text}", always=True)
            self._print(f"{trial.name}  failed: {last.removeprefix('raypid: ')}  ({of})", always=True)
            return
        steps, seconds = count(trial.result.get("timesteps_total", 0)), trial.result.get("time_total_s", 0.0)
        best = "" if trial.final is None else f"return {trial.final[TRAINING]:.1f} (best policy)"
        self._print(
            f"{trial.name}  {best or _newest(trial.result)}, {steps} steps in {seconds:.1f} s, {trial.reason}  ({of})"
        )

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _print(self, text: str, always: bool = False) -> None:
        if always or not self.quiet:
            self._console.print(text, soft_wrap=True)

    def _progress(self) -> str:
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        of = f" of {self.total}" if self.total else ""
        return f"{self.done}{of} trials ended{failed}, {len(self._running)} running, {clock(time.monotonic() - self._began)}"

    def _table(self) -> Group:
        """The line about all trials, and a table of those that run."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        title = Text(self._starting or self._progress(), style="bold", no_wrap=True, overflow="ellipsis")
        if not self._running:
            return Group(title)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("trial", "steps", "time", "return", "evaluation"):
            justify: JustifyMethod = "left" if heading == "trial" else "right"
            table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis")
        for name, r in list(self._running.items())[:_ROWS]:
            number = {key: f"{r[key]:.1f}" if known(r.get(key)) else "" for key in (TRAINING, EVALUATION)}
            steps, seconds = (count(r["timesteps_total"]), f"{r['time_total_s']:.0f} s") if r else ("starting", "")
            table.add_row(name, steps, seconds, number[TRAINING], number[EVALUATION])
        if len(self._running) > _ROWS:
            table.add_row(f"and {len(self._running) - _ROWS} more")
        return Group(title, table)


def _newest(result: Mapping[str, Any]) -> str:
    for key, name in ((EVALUATION, "evaluation"), (TRAINING, "training return")):
        if known(result.get(key)):
            return f"{name} {result[key]:.1f}"
    return "no return yet"
