"""What the terminal shows while a run trains: a live panel, plain lines if there is no terminal, or nothing.

`update` takes the result of an iteration. It is cheap enough to call a hundred times a second: it keeps the numbers,
and draws only from time to time.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import textwrap
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, TypeGuard

from raypid.reporting.streams import lenient

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

TRAINING = "episode_reward_mean"
EVALUATION = "evaluation/episode_reward_mean"

NAMES = {
    EVALUATION: "evaluation return",
    TRAINING: "training return",
    "time_total_s": "time",
    "timesteps_total": "steps",
    "training_iteration": "iterations",
    "episodes_total": "episodes",
    "learner_updates_total": "updates",
}
COUNTS = frozenset(NAMES) - {EVALUATION, TRAINING}

# timing/<key>: (name, colour, glyph for terminals without colours, advice if it takes most of the time)
PARTS = {
    "env": ("environment", "blue", "█", "a faster vectorizer or more CPUs; if the CPUs idle, more workers or envs"),
    "inference": ("inference", "cyan", "▓", "more envs per worker, so larger batches"),
    "transport": ("transport", "magenta", "▒", "longer fragments, so fewer messages"),
    "learner": ("learner", "green", "▚", "fewer updates for each step, narrower layers or a GPU"),
    "evaluation": ("evaluation", "yellow", "░", "evaluate less often or fewer episodes"),
    "other": ("other work", "bright_black", "·", "more steps per iteration"),
}


class Progress:
    """Shows a run to its user."""

    def start(self, run_info: Mapping[str, object]) -> None:
        """Show the header. Keys: algorithm, backend, folder and the settings; each may be missing."""

    def update(self, result: Mapping[str, object]) -> None:
        """Add the result of an iteration."""

    def message(self, text: str) -> None:
        """Show a line of text."""

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        """Show the last state and the summary, and leave the terminal as it was. A second call does nothing."""


def make_progress(stop: Mapping[str, float], quiet: bool, file: IO[str] | None = None) -> Progress:
    """The panel on a terminal that can show it; plain lines elsewhere (a pipe, TERM=dumb, CI); nothing if `quiet`."""
    file = lenient(file or sys.stdout)
    if quiet:
        return Quiet()
    capable = file.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("CI")
    utf8 = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return Panel(stop, file) if capable and utf8 else PlainLines(stop, file)


class State:
    """The numbers of a run so far."""

    def __init__(self, stop: Mapping[str, float]) -> None:
        self.stop = dict(stop)
        self.info: dict[str, object] = {}
        self.latest: dict[str, object] = {}
        self.first: dict[str, float] = {}
        self.best = math.nan
        self.history = array("d")
        self.lost: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def update(self, result: Mapping[str, object]) -> None:
        """Add an iteration; a value that it does not report, such as an evaluation, stays as it was."""
        self.latest.update(result)
        for key in self.stop:
            if key not in self.first and known(first := result.get(key)):
                self.first[key] = first
        if known(mean := result.get(TRAINING)):
            self.history.append(mean)
        score = self.latest.get(EVALUATION, mean)
        if known(score) and not score <= self.best:
            self.best = score
        for key, value in result.items():
            if (key.startswith("lost/") or key.endswith("restarts")) and known(value) and value:
                name = key.removeprefix("lost/").replace("_", " ")
                self.lost[name] = max(value, self.lost.get(name, 0))
        self._add_times(result)

    def _add_times(self, result: Mapping[str, object]) -> None:
        parts = {part: number(result, f"timing/{part}") for part in PARTS}
        total = number(result, "time_this_iter_s")
        parts["other"] = max(0.0, total - sum(parts.values()))
        keep = math.exp(-total / 30)  # shares are those of about the last half minute
        self._seconds = {part: keep * self._seconds.get(part, 0.0) + seconds for part, seconds in parts.items()}

    def shares(self) -> dict[str, float]:
        """Share of the time of each part; they add up to 1 even if parts overlap (asynchronous runs). Empty at first."""
        total = sum(self._seconds.values())
        return {part: seconds / total for part, seconds in self._seconds.items()} if total else {}

    def fraction(self, key: str) -> float:
        """Progress towards this stop criterion, in [0, 1]; returns count from the first one seen."""
        value, target = self.latest.get(key), self.stop[key]
        start = 0.0 if key in COUNTS else self.first.get(key, 0.0)
        if not known(value) or value >= target:
            return float(known(value))
        return max(0.0, (value - start) / (target - start)) if target > start else 0.0

    def title(self) -> str:
        return " on ".join(str(self.info[key]) for key in ("algorithm", "env") if self.info.get(key))

    def facts(self) -> list[str]:
        """Seed, workers, learners, backend and folder, as far as they are known."""
        info, workers = self.info, self.info.get("num_workers")
        facts = {
            f"seed {info.get('seed')}": info.get("seed") is not None,
            f"{workers} worker{'s' * (workers != 1)}" if workers else "one process": workers is not None,
            f"{info.get('num_learners')} learners": number(info, "num_learners") > 1,
            f"backend {info.get('backend')}": workers and info.get("backend"),
            str(info.get("folder")): info.get("folder"),
        }
        return [fact for fact, applies in facts.items() if applies]

    def evaluation(self) -> str:
        half = self.latest.get("evaluation/episode_reward_ci95")
        return reading(self.latest.get(EVALUATION)) + (f" ± {reading(half)}" if known(half) else "")

    def losses(self) -> str:
        """What was lost so far: "1 worker, 3 timeouts"; empty if nothing was."""
        return ", ".join(
            f"{count(value)} {name if value != 1 else singular(name)}" for name, value in self.lost.items()
        )


def singular(name: str) -> str:
    return name.removesuffix("es") if name.endswith("shes") else name.removesuffix("s")


def bottleneck(shares: Mapping[str, float], info: Mapping[str, object]) -> str:
    """One line that names what takes most of the time and what to do about it; empty if nothing is known."""
    if not shares:
        return ""
    ranked = sorted(shares, key=lambda part: -shares[part])
    if shares[top := ranked[0]] < 0.4:
        return "balanced: " + ", ".join(f"{PARTS[part][0]} {shares[part]:.0%}" for part in ranked[:2])
    name, _, _, advice = PARTS[top]
    cpus = number(info, "num_cpus") or os.cpu_count() or 1
    if top == "env" and number(info, "num_workers") < cpus and cpus > 1:
        advice = f"more workers (--num-workers {cpus:g})"
    return f"{name} {shares[top]:.0%} of the time: {advice}"


class Quiet(Progress):
    """Shows messages alone, on stderr."""

    def message(self, text: str) -> None:
        print(text, file=lenient(sys.stderr), flush=True)


class PlainLines(Progress):
    """Prints an aligned line about every second, less often in long runs so that the log of a night stays readable."""

    WIDTHS = {"time": 8, "iteration": 10, "steps": 8, "steps/s": 8, "return": 9, "min": 9, "max": 9, "evaluation": 18}

    def __init__(self, stop: Mapping[str, float], file: IO[str] | None = None) -> None:
        self._state = State(stop)
        self._file = lenient(file or sys.stdout)  # that nobody reads it is no reason to end hours of training
        self._started = time.monotonic()
        self._due = 0.0
        self._is_new = self._stopped = False
        self._losses = ""

    def start(self, run_info: Mapping[str, object]) -> None:
        self._state.info = dict(run_info)
        self.message(", ".join([f"raypid {self._state.title()}", *self._state.facts()]))
        self._print_row(list(self.WIDTHS))

    def update(self, result: Mapping[str, object]) -> None:
        self._state.update(result)
        self._is_new = True
        now = time.monotonic()
        if now >= self._due:
            self._due = now + min(60.0, max(1.0, 0.01 * (now - self._started)))
            self._print_state()

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._is_new:
            self._print_state()
        hint = bottleneck(self._state.shares(), self._state.info)
        for line in [hint] * bool(hint) + summary_lines(summary):
            self.message(line)

    def _print_state(self) -> None:
        state, latest, self._is_new = self._state, self._state.latest, False
        counts = [count(latest.get(key)) for key in ("training_iteration", "timesteps_total", "env_steps_per_s")]
        returns = [reading(latest.get(f"episode_reward_{kind}")) for kind in ("mean", "min", "max")]
        self._print_row((clock(latest.get("time_total_s")), *counts, *returns, state.evaluation()))
        if (losses := state.losses()) != self._losses:
            self._losses = losses
            self.message(f"lost so far: {losses}")

    def _print_row(self, cells: Sequence[str]) -> None:
        self.message("".join(f"{cell:>{width}}" for cell, width in zip(cells, self.WIDTHS.values(), strict=True)))

    def message(self, text: str) -> None:
        print(text, file=self._file, flush=True)


class IntervalLines(Progress):
    """Prints a line every `interval` iterations and after each evaluation, messages and the summary; nothing if it is 0."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._state = State({})

    def start(self, run_info: Mapping[str, object]) -> None:
        self.message(f"{run_info['algorithm']} on {run_info['env']}, folder {run_info['folder']}")

    def update(self, result: Mapping[str, object]) -> None:
        before = self._state.losses()
        self._state.update(result)
        if (losses := self._state.losses()) != before:
            self.message(f"lost so far: {losses}")
        evaluated = result.get(EVALUATION) is not None
        if not self.interval or not (evaluated or number(result, "training_iteration") % self.interval == 0):
            return
        cells = [
            f"steps {result['timesteps_total']:,}",
            f"updates {result['learner_updates_total']:,}",
            f"training return {result[TRAINING]:.1f}",
            f"{result['env_steps_per_s']:,.0f} steps/s",
        ]
        if evaluated:
            cells.append(f"evaluation return {self._state.evaluation()}")
        self.message("  ".join(cells))

    def message(self, text: str) -> None:
        if self.interval:
            print(text, file=lenient(sys.stdout), flush=True)

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        for name, text in summary:
            if "--resume" not in text:  # the command line cannot resume a subclass of DistributedAgent
                self.message(f"{name:16}{text}")


class Panel(Progress):
    """A panel that stays in place at the bottom of the terminal, drawn at most five times a second."""

    def __init__(self, stop: Mapping[str, float], file: IO[str] | None = None, console: Console | None = None) -> None:
        from rich.console import Console

        self._state = State(stop)
        self._console = console or Console(file=lenient(file or sys.stdout), highlight=False)
        self._live: Live | None = None
        self._due = 0.0

    def start(self, run_info: Mapping[str, object]) -> None:
        from rich.live import Live

        self._state.info = dict(run_info)
        self._live = Live(self.render(), console=self._console, auto_refresh=False, vertical_overflow="crop")
        atexit.register(self._live.stop)  # brings the cursor back even if `stop` is never called
        self._live.start(refresh=True)

    def update(self, result: Mapping[str, object]) -> None:
        self._state.update(result)
        now = time.monotonic()
        if self._live is not None and now >= self._due:
            self._live.update(self.render(), refresh=True)
            done = time.monotonic()
            self._due = done + max(0.2, 50 * (done - now))  # at most 2% of the time, also on a slow terminal

    def message(self, text: str) -> None:
        self._console.print(styled(text), soft_wrap=True)

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        if self._live is None:
            return
        self._live.update(self.render())
        self._live.stop()
        atexit.unregister(self._live.stop)
        self._live = None
        for line in summary_lines(summary):
            self.message(line)

    def render(self) -> RenderableType:
        """Draw the panel, as wide and as high as the terminal allows."""
        from rich.panel import Panel as Box

        width = min(self._console.width, 100)
        sections = [section for section in self._sections(width - 4) if section]
        room = self._console.height - 3
        gap = [styled()] if room >= sum(map(len, sections)) + len(sections) - 1 else []
        lines = [line for section in sections for line in (*gap, *section)][len(gap) :]
        title = styled("raypid ", (self._state.title(), "bold cyan"))
        body = styled("\n").join(lines[: max(room, 1)])
        body.no_wrap, body.overflow = True, "ellipsis"
        return Box(body, title=title, title_align="left", width=width, border_style="bright_black")

    def _sections(self, width: int) -> list[list[Text]]:
        state, latest, room = self._state, self._state.latest, width - 11
        facts = [styled((line, "bright_black")) for line in flow(state.facts(), width)]
        if not latest:
            return [facts, [styled("waiting for the first iteration")]]
        pace = [f"{count(latest.get('env_steps_per_s'))} steps/s"]
        totals = ("timesteps_total", "episodes_total", "learner_updates_total")
        pace += [f"{count(latest[key])} {NAMES[key]}" for key in totals if key in latest]
        pace += [f"iteration {count(latest.get('training_iteration'))}", clock(latest.get("time_total_s"))]
        hint = textwrap.wrap(bottleneck(state.shares(), state.info), room)
        return [
            facts,
            labelled("return", self._returns(room)),
            labelled("stop at", [self._criterion(key, room) for key in state.stop]),
            labelled("pace", [styled(line) for line in flow(pace, room)]),
            labelled("time", self._times(room)) + labelled("bottleneck", [styled((line, "bold")) for line in hint]),
            labelled("lost", [styled((line, "yellow")) for line in textwrap.wrap(state.losses(), room)]),
        ]

    def _returns(self, width: int) -> list[Text]:
        state, latest = self._state, self._state.latest
        mean, low, high = (reading(latest.get(f"episode_reward_{kind}")) for kind in ("mean", "min", "max"))
        lines = [styled("training   ", (mean, "bold"), f"   min {low}  max {high}")]
        if known(latest.get(EVALUATION)):
            lines.append(styled("evaluation ", (state.evaluation(), "bold cyan")))
        lines[-1].append(f"   best {reading(state.best)}")
        if spark := sparkline(state.history, min(width, 60)):
            lines.append(styled((spark, "cyan")))
        return lines

    def _criterion(self, key: str, width: int) -> Text:
        """Name, value and target, bar, percent."""
        show = clock if key == "time_total_s" else count if key in COUNTS else reading
        fraction = self._state.fraction(key)
        value = f"{show(self._state.latest.get(key)):>7} / {show(self._state.stop[key])}"
        room = min(30, max(4, width - 18 - 17 - 5))
        full = int(fraction * room)
        bar = [("━" * full, "green" if fraction >= 1 else "cyan"), ("─" * (room - full), "bright_black")]
        return styled(f"{NAMES.get(key, key)[:17]:<18}{value:<17}", *bar, f" {math.floor(100 * fraction):>3}%")

    def _times(self, width: int) -> list[Text]:
        """A bar split by part, and its legend on as many lines as it needs."""
        shares = {part: share for part, share in self._state.shares().items() if share >= 0.005}
        if not shares:
            return []
        bar, done = styled(), 0.0
        for part, share in shares.items():
            done += share / sum(shares.values())
            glyph = PARTS[part][2] if self._console.no_color else "█"
            bar.append(glyph * (round(min(width, 60) * done) - len(bar)), PARTS[part][1])
        legend = {f"{PARTS[part][0]} {share:.0%}": PARTS[part][1] for part, share in shares.items()}
        lines = [bar, *map(styled, flow(list(legend), width))]
        for words, colour in legend.items():
            for line in lines[1:]:
                line.highlight_words([words], colour)
        return lines


def styled(*parts: str | Text | tuple[str, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)


def labelled(label: str, lines: Sequence[Text]) -> list[Text]:
    return [styled((f"{label if i == 0 else '':<11}", "bright_black"), line) for i, line in enumerate(lines)]


def flow(items: Sequence[str], width: int) -> list[str]:
    """Join items with dots into lines of at most `width`, breaking between items only."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= width:
            lines[-1] += f" · {item}"
        else:
            lines.append(item)
    return lines


def sparkline(values: Sequence[float], width: int) -> str:
    """A series in `width` characters or fewer, from its minimum ▁ to its maximum █."""
    width = min(width, len(values))
    points = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    low, high = min(points, default=0.0), max(points, default=0.0)
    return "".join("▁▂▃▄▅▆▇█"[int(7.999 * (p - low) / (high - low)) if high > low else 0] for p in points)


def summary_lines(summary: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(key) for key, _ in summary), default=0)
    return [f"{key:<{width}}  {value}" for key, value in summary]


def known(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def number(values: Mapping[str, object], key: str) -> float:
    """The value of `key`, or 0 if it is missing or not a finite number."""
    return value if known(value := values.get(key)) else 0.0


def reading(value: object) -> str:
    """A return as text, such as 187.3; a dash if there is none yet."""
    if not known(value):
        return "-"
    size = abs(value)
    return count(value) if size >= 1e5 else f"{value:,.0f}" if size >= 1e3 else f"{value:.{1 if size >= 10 else 2}f}"


def count(value: object) -> str:
    """1234567 as 1.23M."""
    if not known(value):
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}"


def clock(seconds: object) -> str:
    """Seconds as m:ss, or h:mm:ss."""
    if not known(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
