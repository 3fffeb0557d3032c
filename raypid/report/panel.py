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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, TypeAlias

from raypid.phases import duration
from raypid.report.streams import StatusLine, is_terminal, lenient
from raypid.storage.run_folder import COUNTS, EVALUATION, NAMES, TRAINING, known, number

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

LEARNER = "learner/"
PACE_SECONDS = 30
"""Seconds of a run by whose pace the time to its end is estimated."""
MIN_PACE_SECONDS = 3.0
"""Seconds of training before there is an estimate."""

# timing/<key>: (name, colour, glyph for terminals without colours, advice if it takes most of the time)
PARTS = {
    "env": ("environment", "blue", "█", "a faster vectorizer (raypid check-env measures them), or more workers"),
    "inference": ("inference", "cyan", "▓", "more envs per worker, so larger batches"),
    "transport": ("transport", "magenta", "▒", "longer fragments, so fewer messages"),
    "learner": ("learner", "green", "▚", "fewer updates for each step or narrower layers"),
    "evaluation": ("evaluation", "yellow", "░", "evaluate less often or fewer episodes"),
    "other": ("other work", "bright_black", "·", "more steps per iteration"),
}
GPU_HELPS_S = 0.01
"""Seconds of one update on a CPU from which a GPU is advised: the operations of a smaller one take about as long to start on a GPU."""
WORKERS_PAY_CPUS = 3
"""CPUs from which workers are advised: with two, two workers make 15% more steps a second than one process (docs/index.md, "More cores")."""
WORKERS_PAY_S = 30.0
"""Seconds of a run from which workers are advised: two take 4 s to start."""


class Progress:
    """Shows a run to its user."""

    def start(self, run_info: Mapping[str, object]) -> None:
        """Show the header. Keys: algorithm, backend, folder, shown_metrics (names without learner/, in their order), warm_up_steps (the
        step at which learning starts) and the settings; each may be missing."""

    def update(self, result: Mapping[str, object]) -> None:
        """Add the result of an iteration."""

    def message(self, text: str) -> None:
        """Show a line of text."""

    def note(self, text: str) -> None:
        """Show a line about something that is as it should be, which a quiet run leaves out."""
        self.message(text)

    def working(self, text: str) -> None:
        """Show what is done besides training, such as "starting Ray", before `start` and after `stop` too; "": it is done."""

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        """Show the last state and the summary, and leave the terminal as it was. A second call does nothing."""


def make_progress(stop: Mapping[str, float], quiet: bool, file: IO[str] | None = None) -> Progress:
    """The panel on a terminal that can show it; plain lines elsewhere (a pipe, TERM=dumb, CI); nothing if `quiet`."""
    file = lenient(file or sys.stdout)
    if quiet:
        return Quiet()
    utf8 = (getattr(file, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return Panel(stop, file) if is_terminal(file) and utf8 else PlainLines(stop, file)


class State:
    """The numbers of a run so far."""

    def __init__(self, stop: Mapping[str, float]) -> None:
        self.stop = dict(stop)
        self.info: dict[str, object] = {}
        self.latest: dict[str, object] = {}
        self.history: dict[str, array[float]] = {key: array("d") for key in (TRAINING, EVALUATION, *stop)}
        """All values so far of both returns, of stop criteria and of the learner's metrics."""
        self.has_ended = False
        self.doing = ""
        """What is done besides training."""
        self._earlier: deque[dict[str, object]] = deque(maxlen=PACE_SECONDS)
        """`latest` as it was about once a second."""
        self._seconds: dict[str, float] = {}
        self._update_s = math.nan
        """Seconds of one update in the newest iteration that made any; NaN in the first one, which also sets things up."""

    def update(self, result: Mapping[str, object]) -> None:
        """Add an iteration; a value that it does not report, such as an evaluation, stays as it was."""
        before = self.latest.get("learner_updates_total")
        if known(before) and (updates := number(result, "learner_updates_total") - before) > 0:
            self._update_s = number(result, "timing/learner") / updates
        self.latest.update(result)
        for key, value in result.items():
            if known(value) and (key in self.history or key.startswith(LEARNER)):
                self.history.setdefault(key, array("d")).append(value)
        self._add_times(result)
        self._add_pace()

    @property
    def best(self) -> float:
        """The best evaluation, or the best training return if there is no evaluation; NaN if there is no return."""
        return max(self.history[EVALUATION] or self.history[TRAINING], default=math.nan)

    def _add_pace(self) -> None:
        """Remember about once a second how far the run was; learning starts a new pace."""
        last = self._earlier[-1] if self._earlier else {}
        if number(last, "timesteps_total") < number(self.info, "warm_up_steps"):
            self._earlier.clear()
        if not self._earlier or number(self.latest, "time_total_s") >= number(last, "time_total_s") + 1:
            self._earlier.append(dict(self.latest))

    def seconds_left(self, key: str) -> float | None:
        """Estimate the seconds until this stop criterion is reached, at the pace of the last half minute; None for returns, during warm-up
        and in the first seconds."""
        left = self.stop[key] - number(self.latest, key)
        if self.has_ended or key not in COUNTS or left <= 0 or not self._earlier:
            return None
        if key == "time_total_s":
            return left
        seconds, gained = (number(self.latest, k) - number(self._earlier[0], k) for k in ("time_total_s", key))
        return left * seconds / gained if gained > 0 and seconds >= MIN_PACE_SECONDS else None

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
        start = 0.0 if key in COUNTS else next(iter(self.history[key]), 0.0)
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

    def metrics(self) -> dict[str, float]:
        """The newest values of the learner's metrics, by name: of those that the algorithm shows, or of all if it names none."""
        names = self.info.get("shown_metrics") or [
            key.removeprefix(LEARNER) for key in self.latest if key.startswith(LEARNER)
        ]
        assert isinstance(names, Iterable)
        return {name: value for name in names if known(value := self.latest.get(f"{LEARNER}{name}"))}

    def training_returns(self) -> tuple[str, str, str]:
        """Mean, minimum and maximum of the training returns, as text."""
        mean, low, high = (reading(self.latest.get(f"episode_reward_{kind}")) for kind in ("mean", "min", "max"))
        return mean, low, high

    def evaluation(self) -> str:
        half = self.latest.get("evaluation/episode_reward_ci95")
        return reading(self.latest.get(EVALUATION)) + (f" ± {reading(half)}" if known(half) else "")

    def bottleneck(self) -> str:
        """Describe what takes most of the time (see `bottleneck`)."""
        waited = any(number(self.latest, f"lost/{name}") for name in ("workers", "timeouts", "nodes"))
        time_s = number(self.latest, "time_total_s")
        return bottleneck(self.shares(), self.info, time_s=time_s, waited=waited, update_s=self._update_s)

    def losses(self) -> str:
        """Describe what was lost so far: "1 worker, 3 timeouts"; "" if nothing was."""
        lost = {
            key.removeprefix("lost/").replace("_", " "): value
            for key, value in self.latest.items()
            if known(value) and value and (key.startswith("lost/") or key.endswith("restarts"))
        }
        return ", ".join(f"{count(value)} {name if value != 1 else singular(name)}" for name, value in lost.items())


def singular(name: str) -> str:
    return name.removesuffix("es") if name.endswith("shes") else name.removesuffix("s")


def bottleneck(
    shares: Mapping[str, float],
    info: Mapping[str, object],
    *,
    time_s: float,
    waited: bool = False,
    update_s: float = math.nan,
) -> str:
    """One line that names what takes most of the time and what to do about it; empty if nothing is known.

    time_s: seconds of the run so far.
    waited: whether workers were lost, and so waited for.
    update_s: seconds of one update; NaN: not known.
    """
    if not shares:
        return ""
    ranked = sorted(shares, key=lambda part: -shares[part])
    if shares[top := ranked[0]] < 0.4:
        return "balanced: " + ", ".join(f"{PARTS[part][0]} {shares[part]:.0%}" for part in ranked[:2])
    advice, cpus = PARTS[top][3], number(info, "num_cpus") or os.cpu_count() or 1
    if top == "env" and number(info, "num_workers") < cpus >= WORKERS_PAY_CPUS and time_s >= WORKERS_PAY_S:
        advice = f"more workers (num_workers={cpus:g})"
    if top == "learner" and update_s >= GPU_HELPS_S and not number(info, "num_gpus"):
        advice += ", or a GPU"
    if top in ("transport", "env") and waited:
        advice += "; but the wait for workers that were lost is part of it"
    return f"{PARTS[top][0]} {shares[top]:.0%} of the time: {advice}"


class Messages(Progress):
    """Shows messages alone, on stderr."""

    def message(self, text: str) -> None:
        print(text, file=lenient(sys.stderr), flush=True)


class Quiet(Messages):
    """Shows what has gone wrong, and answers to signals."""

    def note(self, text: str) -> None:
        pass


_WAITS = (("starting Ray", "joining Ray"), ("waiting for room",))
"""What may take long before a run trains: for each wait, the beginnings of its texts."""


class PlainLines(Progress):
    """Prints an aligned line about every second, less often in long runs so that the log of a night stays readable.

    Args:
        interval: print one after so many iterations and after each evaluation instead; 0: by the clock.
    """

    HEAD = ("time", "iteration", "steps", "steps/s", "return", "min", "max", "evaluation")
    ROW = " {:>7} {:>9} {:>7} {:>7} {:>8} {:>8} {:>8} {:>17}"

    def __init__(self, stop: Mapping[str, float], file: IO[str] | None = None, *, interval: int = 0) -> None:
        self._state, self._interval = State(stop), interval
        self._file = lenient(file or sys.stdout)  # a reader that is gone must not end hours of training
        self._started = time.monotonic()
        self._due = 0.0
        self._printed: object = None
        """The iteration of the newest line."""
        self._losses = ""
        self._announced: set[tuple[str, ...]] = set()

    def start(self, run_info: Mapping[str, object]) -> None:
        self._state.info = dict(run_info)
        self.message(", ".join([f"raypid {self._state.title()}", *self._state.facts()]))

    def update(self, result: Mapping[str, object]) -> None:
        self._state.update(result)
        now = time.monotonic()
        is_due = now >= self._due
        if self._interval:
            is_due = EVALUATION in result or number(result, "training_iteration") % self._interval == 0
        if is_due:
            self._due = now + min(60.0, max(1.0, 0.01 * (now - self._started)))
            self._print_state()

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        if self._state.has_ended:
            return
        self._state.has_ended = True
        if self._state.latest.get("training_iteration") != self._printed:
            self._print_state()
        # only of a run that ended as it should: one that an error ended has other worries than its speed
        hint = self._state.bottleneck() if "ended" in dict(summary) else ""
        for line in [hint] * bool(hint) + summary_lines(summary):
            self.message(line)

    def _print_state(self) -> None:
        state, latest = self._state, self._state.latest
        if self._printed is None:  # not before: what is said of the run as it starts comes above the table
            self.message(self.ROW.format(*self.HEAD))
        self._printed = latest.get("training_iteration")
        counts = (count(latest.get(key)) for key in ("training_iteration", "timesteps_total", "env_steps_per_s"))
        numbers = *counts, *state.training_returns(), state.evaluation()
        self.message(self.ROW.format(clock(latest.get("time_total_s")), *numbers))
        if (losses := state.losses()) != self._losses:
            self._losses = losses
            self.message(f"lost so far: {losses}")

    def working(self, text: str) -> None:
        """Print what the run waits for before it trains (Ray, room on a cluster), each once."""
        kind = next((kind for kind in _WAITS if text.startswith(kind)), None)
        if kind is not None and kind not in self._announced:
            self._announced.add(kind)
            self.message(f"{text} ...")

    def message(self, text: str) -> None:
        print(text, file=self._file, flush=True)


MAX_WIDTH, TWO_COLUMNS = 160, 116
"""Columns of the widest panel, and those from which it has two columns of sections."""
Styled: TypeAlias = "str | Text | tuple[str, str]"
"""A text, or (text, style)."""
_HARD_SPACE = "\N{NO-BREAK SPACE}"
LABEL = 11
"""Columns of a section's label."""
COUNTED = ("timesteps_total", "episodes_total", "learner_updates_total")
MAX_METRICS = 10
WRAPPED = frozenset({"took", "try", "best policy", "answer", "overall", "failed", "diverged", "on the way"})
"""Lines of a summary that may be wrapped."""
SLOW_SECONDS = 1.0
"""Seconds from which an activity besides training is drawn at once."""


class Panel(Progress):
    """A panel that stays in place at the bottom of the terminal, drawn at most five times a second."""

    def __init__(self, stop: Mapping[str, float], file: IO[str] | None = None, console: Console | None = None) -> None:
        from rich.console import Console

        self._state = State(stop)
        self._console = console or Console(file=lenient(file or sys.stdout), highlight=False)
        self._line = StatusLine(self._console.file)
        self._live: Live | None = None
        self._due = self._began = 0.0
        self._took: dict[str, float] = {}
        """Seconds that each activity besides training took the last time."""
        self._says_doing = False
        """Whether one stands on the screen."""

    def start(self, run_info: Mapping[str, object]) -> None:
        from rich.live import Live

        self._line("")
        self._state.info = dict(run_info)
        self._live = Live(self.render(), console=self._console, auto_refresh=False, vertical_overflow="crop")
        atexit.register(self._live.stop)  # brings the cursor back even if `stop` is never called
        self._live.start(refresh=True)

    def update(self, result: Mapping[str, object]) -> None:
        self._state.update(result)
        if time.monotonic() >= self._due:
            self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        now = time.monotonic()
        self._live.update(self.render(), refresh=True)
        self._says_doing = bool(self._state.doing)
        done = time.monotonic()
        self._due = done + max(0.2, 50 * (done - now))  # at most 2% of the time, also on a slow terminal

    def working(self, text: str) -> None:
        if self._live is None:
            self._line(text)
            return
        state, now = self._state, time.monotonic()
        self._took[state.doing] = now - self._began
        state.doing, self._began = text, now
        is_slow = now >= self._due or self._took.get(text, math.inf) > SLOW_SECONDS
        if is_slow if text else self._says_doing:  # what is over does not stay until the next iteration has ended
            self._draw()

    def message(self, text: str) -> None:
        self._line("")
        self._console.print(styled(text), soft_wrap=True)

    def stop(self, summary: Sequence[tuple[str, str]] = ()) -> None:
        if self._live is None:
            return
        self._state.doing, self._state.has_ended = "", True
        self._live.update(self.render())
        self._live.stop()
        atexit.unregister(self._live.stop)
        self._live = None
        for line in summary_lines(summary, self._console.width):
            self.message(line)

    def render(self) -> RenderableType:
        """Draw the panel, as wide as the terminal allows. A low one cuts off the last sections, which matter least."""
        from rich.console import Group
        from rich.panel import Panel as Box
        from rich.segment import SegmentLines
        from rich.table import Table

        state, console = self._state, self._console
        width = min(console.width, MAX_WIDTH)
        left = right = max(LABEL + 1, width - 4)
        if width >= TWO_COLUMNS:
            left = int(0.54 * left) - 2
            right -= left + 4
        parts = labelled(self._course, left), labelled(self._inside, right)
        side_by_side = Table.grid(padding=(0, 4, 0, 0))
        side_by_side.add_row(*parts)
        body = side_by_side if width >= TWO_COLUMNS else Group(*parts)
        lines = console.render_lines(body, console.options.update_width(width - 4))
        return Box(
            SegmentLines(lines[: max(1, console.height - 3)], new_lines=True),
            title=styled("raypid ", (state.title(), "bold cyan")),
            title_align="left",
            subtitle=styled((f"{state.doing} ...", "bold")) if state.doing else None,
            subtitle_align="left",
            width=width,
            border_style="bright_black",
        )

    def _course(self, width: int) -> Iterator[tuple[str, Styled]]:
        """The sections about how far the run is, each with its label, for `width` columns."""
        state, latest = self._state, self._state.latest
        if not latest:
            yield "return", "waiting for the first iteration"
        else:
            yield "return", self._returns(width)
            yield "stop at", self._criteria(width)
            yield "lost", (textwrap.fill(state.losses(), width), "yellow")
            counts = [f"{count(latest[key])} {NAMES[key]}" for key in COUNTED if key in latest]
            speed, iteration = count(latest.get("env_steps_per_s")), count(latest.get("training_iteration"))
            time_s = clock(latest.get("time_total_s"))
            yield "pace", flow([f"{speed} steps/s", *counts, f"iteration {iteration}", f"{time_s} so far"], width)
        yield "run", (flow(state.facts(), width), "bright_black")

    def _inside(self, width: int) -> Iterator[tuple[str, Styled]]:
        """The sections about what goes on inside, each with its label, for `width` columns."""
        state = self._state
        metrics = [(f"{LEARNER}{name}", title(name), metric(value)) for name, value in state.metrics().items()]
        brief = flow([f"{name} {value}" for _, name, value in metrics], width)
        curves = [
            styled(f"{name[:19]:<20}{value:>9}  ", (sparkline(state.history[key], min(30, width - 32)), "cyan"))
            for key, name, value in metrics[:MAX_METRICS]
        ]
        yield "learner", brief if self._console.width < TWO_COLUMNS else styled("\n").join(curves)
        yield "spent on", self._times(width)
        yield "bottleneck", (textwrap.fill(state.bottleneck(), width), "bold")

    def _returns(self, width: int) -> Text:
        state = self._state
        mean, low, high = state.training_returns()
        text = styled("training   ", (mean, "bold"), f"   min {low}  max {high}")
        if known(state.latest.get(EVALUATION)):
            text += styled("\nevaluation ", (state.evaluation(), "bold cyan"))
        text += f"   best {reading(state.best)}"
        key = EVALUATION if len(state.history[EVALUATION]) > 1 else TRAINING
        if len(values := state.history[key]) > 1:
            span = f" {NAMES[key]} {reading(values[0])} → {reading(values[-1])}"
            curve = sparkline(values, max(10, min(40, width - len(span))))
            text += styled("\n", (curve, "cyan"), (span, "bright_black"))
        return text

    def _criteria(self, width: int) -> Text:
        """A line for each stop criterion: name, value and target, bar, percent, and of what only grows about how long it takes."""
        state = self._state
        values = {
            key: f"{value_text(key, state.latest.get(key), like=target):>6} / {value_text(key, target)}"
            for key, target in state.stop.items()
        }
        rows = aligned([(NAMES.get(key, key)[:22], value) for key, value in values.items()])
        longest = max(map(len, rows), default=0)
        room = min(30, width - longest - 20)
        lines = []
        for key, row in zip(state.stop, rows, strict=True):
            fraction, left = state.fraction(key), state.seconds_left(key)
            full = int(fraction * room)
            bar = ("━" * full, "green" if fraction >= 1 else "cyan"), ("─" * (room - full), "bright_black")
            begin = [f"{row:<{longest}} ", *bar] if room >= 4 else [" ".join(row.split())]
            ends = "" if left is None else f"  {duration(max(1, round(left)))} left"
            lines.append(styled(*begin, f" {math.floor(100 * fraction):>3}%{ends}"))
        return styled("\n").join(lines)

    def _times(self, width: int) -> Text:
        """A bar split by part, and its legend on as many lines as it needs."""
        times = {part: share for part, share in self._state.shares().items() if share >= 0.005}
        names = [f"{PARTS[part][0]} {share:.0%}" for part, share in times.items()]
        bar, legend, done = styled(), styled("\n", flow(names, width)), 0.0
        for name, (part, share) in zip(names, times.items(), strict=True):
            _, colour, glyph, _ = PARTS[part]
            done += share / sum(times.values())
            bar.append((glyph if self._console.no_color else "█") * (round(min(width, 60) * done) - len(bar)), colour)
            legend.highlight_words([name], colour)
        return bar + legend if times else bar


def styled(*parts: Styled) -> Text:
    from rich.text import Text

    return Text.assemble(*parts)


def labelled(sections: Callable[[int], Iterable[tuple[str, Styled]]], width: int) -> Table:
    """The sections that are not empty, each beside its label."""
    from rich.table import Table

    grid = Table.grid()
    grid.add_column(width=LABEL, style="bright_black")
    grid.add_column(width=width - LABEL, no_wrap=True)
    for label, section in sections(width - LABEL):
        if text := styled(section):
            grid.add_row(label, text)
    return grid


def flow(items: Iterable[str], width: int) -> str:
    """Join items with dots into lines of at most `width`, breaking between items only."""
    joined = " · ".join(item.replace(" ", _HARD_SPACE) for item in items)
    return textwrap.fill(joined, width, break_on_hyphens=False).replace(_HARD_SPACE, " ")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines of cells below each other, to the left, or to the right in the columns with these indices."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = (
        "  ".join(f"{cell:{'>' if i in right else '<'}{width}}" for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    )
    return [line.rstrip() for line in lines]


def sparkline(values: Sequence[float], width: int) -> str:
    """A series in `width` characters or fewer, from its minimum ▁ to its maximum █."""
    width = min(width, len(values))
    points = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    low, high = min(points, default=0.0), max(points, default=0.0)
    return "".join("▁▂▃▄▅▆▇█"[int(7.999 * (p - low) / (high - low)) if high > low else 0] for p in points)


def summary_lines(summary: Sequence[tuple[str, str]], columns: int = 0) -> list[str]:
    """The lines of a summary. Long ones are wrapped to this many columns, if any; but no command and no path, which are pasted."""
    room = columns - 3 - max((len(key) for key, _ in summary), default=0)
    rows = []
    for key, value in summary:
        parts = [value]
        if room > 17 and key.strip() in WRAPPED:
            parts = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
        rows += [(key if i == 0 else "", part) for i, part in enumerate(parts)]
    return aligned(rows)


def reading(value: object) -> str:
    """A return as text, such as 187.3; a dash if there is none yet."""
    if not known(value):
        return "-"
    size = abs(value)
    if 0 < size < 0.05:
        return f"{value:.1e}"
    return count(value) if size >= 1e5 else f"{value:,.0f}" if size >= 1e3 else f"{value:.{1 if size >= 10 else 2}f}"


def value_text(key: str, value: object, like: float = 0.0) -> str:
    """The value of a stop criterion as text: a time, a count or a return; `like` as in `count`."""
    if key == "time_total_s":
        return clock(value)
    return count(value, like) if key in COUNTS else reading(value)


def count(value: object, like: float = 0.0) -> str:
    """A count as text: 1234567 is 1.23M. Beside a larger number `like` it has the same letter: 6094 of 150000 is 6.09k."""
    if not known(value):
        return "-"
    if abs(value) >= 1e15:
        return f"{value:.1e}"
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if max(abs(value), like) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}"


def metric(value: float) -> str:
    """A learner's metric as text: three digits, also of a small one."""
    return reading(value) if abs(value) >= 10 else f"{value:.3g}" if abs(value) >= 1e-3 or not value else f"{value:.1e}"


def title(name: str) -> str:
    """A metric's name as a person writes it: "kl" as KL, "value_loss" as value loss."""
    return {"kl": "KL", "q": "Q", "td_error": "TD error"}.get(name, name.replace("_", " "))


def clock(seconds: object) -> str:
    """Seconds as m:ss, or h:mm:ss."""
    if not known(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
