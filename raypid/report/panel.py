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
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from raypid.report.status_line import StatusLine, is_terminal
from raypid.report.streams import lenient
from raypid.storage.run_folder import COUNTS, EVALUATION, NAMES, TRAINING, known, number

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
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
        self.first: dict[str, float] = {}
        self.best = math.nan
        self.history: dict[str, array[float]] = {TRAINING: array("d"), EVALUATION: array("d")}
        """All values so far of both returns and of the learner's metrics."""
        self.has_ended = False
        self.doing = ""
        """What is done besides training."""
        self._paces: deque[tuple[float, dict[str, float]]] = deque(maxlen=PACE_SECONDS)
        self.lost: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._update_s = math.nan
        """Seconds of one update in the newest iteration that made any; NaN in the first one, which also sets things up."""

    def update(self, result: Mapping[str, object]) -> None:
        """Add an iteration; a value that it does not report, such as an evaluation, stays as it was."""
        before = self.latest.get("learner_updates_total")
        if known(before) and (updates := number(result, "learner_updates_total") - before) > 0:
            self._update_s = number(result, "timing/learner") / updates
        self.latest.update(result)
        for key in self.stop:
            if key not in self.first and known(first := result.get(key)):
                self.first[key] = first
        score = self.latest.get(EVALUATION, result.get(TRAINING))
        if known(score) and not score <= self.best:
            self.best = score
        for key, value in result.items():
            if not known(value):
                continue
            if key in (TRAINING, EVALUATION) or key.startswith(LEARNER):
                self.history.setdefault(key, array("d")).append(value)
            elif value and (key.startswith("lost/") or key.endswith("restarts")):
                name = key.removeprefix("lost/").replace("_", " ")
                self.lost[name] = max(value, self.lost.get(name, 0))
        self._add_times(result)
        self._add_pace()

    def _add_pace(self) -> None:
        """Remember about once a second how far the counts were; learning starts a new pace."""
        now = number(self.latest, "time_total_s")
        if self._paces and self._paces[-1][1]["timesteps_total"] < number(self.info, "warm_up_steps"):
            self._paces.clear()
        if not self._paces or now >= self._paces[-1][0] + 1:
            self._paces.append((now, {key: number(self.latest, key) for key in COUNTS}))

    def seconds_left(self, key: str) -> float | None:
        """Estimate the seconds until this stop criterion is reached, at the pace of the last half minute; None for returns, during warm-up
        and in the first seconds."""
        left = self.stop[key] - number(self.latest, key)
        now = number(self.latest, "time_total_s")
        if self.has_ended or key not in COUNTS or left <= 0 or not self._paces:
            return None
        if key == "time_total_s":
            return left
        then, counts = self._paces[0]
        gained = number(self.latest, key) - counts[key]
        if gained <= 0 or now - then < MIN_PACE_SECONDS:
            return None
        return left * (now - then) / gained

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

    def metrics(self) -> dict[str, tuple[str, str]]:
        """(title, newest value) of the learner's metrics, by name: those that the algorithm shows, or all if it names none."""
        names = self.info.get("shown_metrics") or [
            key.removeprefix(LEARNER) for key in self.latest if key.startswith(LEARNER)
        ]
        assert isinstance(names, Iterable)
        values = {str(name): self.latest.get(f"{LEARNER}{name}") for name in names}
        return {name: (title(name), metric(value)) for name, value in values.items() if known(value)}

    def training_returns(self) -> tuple[str, str, str]:
        """Mean, minimum and maximum of the training returns, as text."""
        mean, low, high = (reading(self.latest.get(f"episode_reward_{kind}")) for kind in ("mean", "min", "max"))
        return mean, low, high

    def times(self) -> dict[str, tuple[float, str]]:
        """(share of the time, the same as text) of each part that takes half a percent or more."""
        return {
            part: (share, f"{PARTS[part][0]} {share:.0%}") for part, share in self.shares().items() if share >= 0.005
        }

    def returns_drawn(self) -> tuple[str, array[float]]:
        """(name, values) of the curve: evaluations if there are several, else training returns."""
        key = EVALUATION if len(self.history[EVALUATION]) > 1 else TRAINING
        return NAMES[key], self.history[key]

    def totals(self) -> list[str]:
        """The numbers of steps, episodes, updates and iterations, as text."""
        totals = ("timesteps_total", "episodes_total", "learner_updates_total")
        told = [f"{count(self.latest[key])} {NAMES[key]}" for key in totals if key in self.latest]
        return [*told, f"iteration {count(self.latest.get('training_iteration'))}"]

    def evaluation(self) -> str:
        half = self.latest.get("evaluation/episode_reward_ci95")
        return reading(self.latest.get(EVALUATION)) + (f" ± {reading(half)}" if known(half) else "")

    def bottleneck(self) -> str:
        """Describe what takes most of the time (see `bottleneck`)."""
        waited = not self.lost.keys().isdisjoint(("workers", "timeouts", "nodes"))
        time_s = number(self.latest, "time_total_s")
        return bottleneck(self.shares(), self.info, time_s=time_s, waited=waited, update_s=self._update_s)

    def losses(self) -> str:
        """Describe what was lost so far: "1 worker, 3 timeouts"; "" if nothing was."""
        return ", ".join(
            f"{count(value)} {name if value != 1 else singular(name)}" for name, value in self.lost.items()
        )


def singular(name: str) -> str:
    return name.removesuffix("es") if name.endswith("shes") else name.removesuffix("s")


def advice_on(
    part: str, info: Mapping[str, object], update_s: float, more_workers: str = "", *, waited: bool = False
) -> str:
    """Advise what to do if a part takes most of the time.

    Args:
        update_s: seconds of one update. If it is long enough, a GPU is advised.
        more_workers: the advice if more workers would help; replaces the ordinary one.
        waited: whether workers were lost, and so waited for.
    """
    gpu = part == "learner" and update_s >= GPU_HELPS_S and not number(info, "num_gpus")
    advice = more_workers or f"{PARTS[part][3]}{', or a GPU' if gpu else ''}"
    if waited and part in ("transport", "env"):
        return f"{advice}; but the wait for workers that were lost is part of it"
    return advice


def workers_pay(part: str, num_workers: float, cpus: float, time_s: float) -> bool:
    """Whether more workers would help a run of so many seconds of which this part takes most."""
    return part == "env" and num_workers < cpus and cpus >= WORKERS_PAY_CPUS and time_s >= WORKERS_PAY_S


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
    cpus = number(info, "num_cpus") or os.cpu_count() or 1
    pays = workers_pay(top, number(info, "num_workers"), cpus, time_s)
    advice = advice_on(top, info, update_s, f"more workers (num_workers={cpus:g})" if pays else "", waited=waited)
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
    """Prints an aligned line about every second, less often in long runs so that the log of a night stays readable."""

    WIDTHS = {"time": 8, "iteration": 10, "steps": 8, "steps/s": 8, "return": 9, "min": 9, "max": 9, "evaluation": 18}

    def __init__(self, stop: Mapping[str, float], file: IO[str] | None = None) -> None:
        self._state = State(stop)
        self._file = lenient(file or sys.stdout)  # a reader that is gone must not end hours of training
        self._started = time.monotonic()
        self._due = 0.0
        self._is_new = self._stopped = self._has_head = False
        self._losses = ""
        self._announced: set[tuple[str, ...]] = set()

    def start(self, run_info: Mapping[str, object]) -> None:
        self._state.info = dict(run_info)
        self.message(", ".join([f"raypid {self._state.title()}", *self._state.facts()]))

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
        # only of a run that ended as it should: one that an error ended has other worries than its speed
        hint = self._state.bottleneck() if "ended" in dict(summary) else ""
        for line in [hint] * bool(hint) + summary_lines(summary):
            self.message(line)

    def _print_state(self) -> None:
        state, latest, self._is_new = self._state, self._state.latest, False
        counts = [count(latest.get(key)) for key in ("training_iteration", "timesteps_total", "env_steps_per_s")]
        if not self._has_head:  # not before: what is said of the run as it starts comes above the table
            self._has_head = True
            self._print_row(list(self.WIDTHS))
        self._print_row((clock(latest.get("time_total_s")), *counts, *state.training_returns(), state.evaluation()))
        if (losses := state.losses()) != self._losses:
            self._losses = losses
            self.message(f"lost so far: {losses}")

    def working(self, text: str) -> None:
        """Print what the run waits for before it trains (Ray, room on a cluster), each once."""
        kind = next((kind for kind in _WAITS if text.startswith(kind)), None)
        if kind is not None and kind not in self._announced:
            self._announced.add(kind)
            self.message(f"{text} ...")

    def _print_row(self, cells: Sequence[str]) -> None:
        self.message("".join(f" {cell:>{width - 1}}" for cell, width in zip(cells, self.WIDTHS.values(), strict=True)))

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


MAX_WIDTH, TWO_COLUMNS = 160, 116
"""Columns of the widest panel, and those from which it has two columns of sections."""
INSIDE = frozenset({"learner", "spent on", "bottleneck", "lost"})
"""Sections of the right column."""
LEAST_FIRST = ("bottleneck", "facts", "spent on", "pace", "learner", "lost", "stop at")
"""Sections that are left out where there is no room for all."""
NARROW = 45
"""Columns of a section below which only its main numbers are shown."""
MAX_METRICS = 10
WRAPPED = frozenset({"took", "try", "best policy"})
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
        if state.doing:
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
        """Draw the panel, as wide and as high as the terminal allows."""
        from rich.panel import Panel as Box

        width, room = min(self._console.width, MAX_WIDTH), max(1, self._console.height - 3)
        lines = (
            self._side_by_side(width - 4, room)
            if width >= TWO_COLUMNS
            else self._below(self._sections(width - 4), room)
        )
        body = styled("\n").join(lines[:room])
        body.no_wrap, body.overflow = True, "ellipsis"
        title = styled("raypid ", (self._state.title(), "bold cyan"))
        now = styled((f"{self._state.doing} ...", "bold")) if self._state.doing else None
        return Box(
            body,
            title=title,
            title_align="left",
            subtitle=now,
            subtitle_align="left",
            width=width,
            border_style="bright_black",
        )

    def _below(self, sections: Mapping[str, list[Text]], room: int) -> list[Text]:
        """The sections one below the other, with gaps if there is room; without room, the least important are left out."""
        there = {name: lines for name, lines in sections.items() if lines}
        for name in LEAST_FIRST:
            if sum(map(len, there.values())) > room and len(there) > 1:
                there.pop(name, None)
        gaps = room >= sum(map(len, there.values())) + len(there) - 1
        lines: list[Text] = []
        for name, section in there.items():
            lines += [styled()] * (gaps and bool(lines) and name != "bottleneck") + section
        return lines

    def _side_by_side(self, width: int, room: int) -> list[Text]:
        """Two columns: how far the run is, and what goes on inside."""
        half = int(0.54 * width) - 2
        left, right = self._sections(half), self._sections(width - half - 4)
        facts = [styled((line, "bright_black")) for line in flow(self._state.facts(), width)]
        parts = (
            {name: lines for name, lines in left.items() if name not in {*INSIDE, "facts"}},
            {name: lines for name, lines in right.items() if name in INSIDE},
        )
        columns = [self._below(part, room - len(facts)) for part in parts]
        rows = []
        for i in range(max(map(len, columns))):
            a, b = (column[i].copy() if i < len(column) else styled() for column in columns)
            a.truncate(half, overflow="ellipsis", pad=True)
            rows.append(styled(a, "    ", b))
        gap = [styled()] if len(facts) + 1 + len(rows) <= room else []
        return [*facts, *gap, *rows]

    def _sections(self, width: int) -> dict[str, list[Text]]:
        """The sections by name, in their order; those of which nothing is known are empty."""
        state, latest, room = self._state, self._state.latest, width - 11
        facts = [styled((line, "bright_black")) for line in flow(state.facts(), width)]
        if not latest:
            return {"facts": facts, "return": [styled("waiting for the first iteration")]}
        pace = [f"{count(latest.get('env_steps_per_s'))} steps/s", *state.totals()]
        pace.append(f"{clock(latest.get('time_total_s'))} so far")
        hint = textwrap.wrap(state.bottleneck(), room)
        return {
            "facts": facts,
            "return": labelled("return", self._returns(room)),
            "stop at": labelled("stop at", self._criteria(room)),
            "pace": labelled("pace", [styled(line) for line in flow(pace, room)]),
            "learner": labelled("learner", self._metrics(room)),
            "spent on": labelled("spent on", self._times(room)),
            "bottleneck": labelled("bottleneck", [styled((line, "bold")) for line in hint]),
            "lost": labelled("lost", [styled((line, "yellow")) for line in textwrap.wrap(state.losses(), room)]),
        }

    def _returns(self, width: int) -> list[Text]:
        state, latest = self._state, self._state.latest
        mean, low, high = state.training_returns()
        spread = f"   min {low}  max {high}" if width >= NARROW else ""
        lines = [styled("training   ", (mean, "bold"), spread)]
        if known(latest.get(EVALUATION)):
            lines.append(styled("evaluation ", (state.evaluation(), "bold cyan")))
        lines[-1].append(f"   best {reading(state.best)}" if width >= NARROW else "")
        name, values = state.returns_drawn()
        if len(values) > 1:
            what = f"{name} {reading(values[0])} → {reading(values[-1])}"
            drawn = sparkline(values, min(width - len(what) - 1, 40)) if width >= NARROW else sparkline(values, width)
            lines.append(styled((drawn, "cyan"), (f" {what}" if width >= NARROW else "", "bright_black")))
        return lines

    def _criteria(self, width: int) -> list[Text]:
        """A line for each stop criterion: name, value and target, bar, percent, and of what only grows about how long it takes."""
        state = self._state
        names = [NAMES.get(key, key)[:22] for key in state.stop]
        values = [
            f"{value_text(key, state.latest.get(key), like=target):>6} / {value_text(key, target)}"
            for key, target in state.stop.items()
        ]
        size, longest = max(map(len, names), default=0), max(map(len, values), default=0)
        room = min(30, width - size - longest - 3 - 18)
        lines = []
        for key, name, value in zip(state.stop, names, values, strict=True):
            fraction, left = state.fraction(key), state.seconds_left(key)
            full = int(fraction * room)
            bar = [("━" * full, "green" if fraction >= 1 else "cyan"), ("─" * (room - full), "bright_black")]
            drawn = [f"{name:<{size}} {value:<{longest}} ", *bar] if room >= 4 else [f"{name} {value.strip()}"]
            ends = "" if left is None else f"  {about(left)}"
            lines.append(styled(*drawn, f" {math.floor(100 * fraction):>3}%{ends}"))
        return lines

    def _metrics(self, width: int) -> list[Text]:
        """The learner's metrics: one after the other, or with enough room a line for each with its curve."""
        metrics = self._state.metrics()
        if self._console.width < TWO_COLUMNS:
            return [styled(line) for line in flow([" ".join(pair) for pair in metrics.values()], width)]
        lines = []
        for name, (called, value) in list(metrics.items())[:MAX_METRICS]:
            course = sparkline(self._state.history[f"{LEARNER}{name}"], max(4, min(30, width - 32)))
            lines.append(styled(f"{called[:19]:<20}{value:>9}  ", (course if len(course) > 1 else "", "cyan")))
        return lines

    def _times(self, width: int) -> list[Text]:
        """A bar split by part, and its legend on as many lines as it needs."""
        times = self._state.times()
        if not times:
            return []
        bar, done, total = styled(), 0.0, sum(share for share, _ in times.values())
        for part, (share, _) in times.items():
            done += share / total
            glyph = PARTS[part][2] if self._console.no_color else "█"
            bar.append(glyph * (round(min(width, 60) * done) - len(bar)), PARTS[part][1])
        lines = [bar, *map(styled, flow([text for _, text in times.values()], width))]
        for part, (_, text) in times.items():
            for line in lines[1:]:
                line.highlight_words([text], PARTS[part][1])
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


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are: "a, b, c and 2 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
    width = max((len(key) for key, _ in summary), default=0)
    lines = []
    for key, value in summary:
        parts = [value]
        if columns > width + 20 and key in WRAPPED:
            parts = textwrap.wrap(value, columns - width - 3, break_long_words=False, break_on_hyphens=False)
        lines += [f"{key if i == 0 else '':<{width}}  {part}" for i, part in enumerate(parts)]
    return lines


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


def about(seconds: float) -> str:
    """A duration that nobody knows exactly: "about 3 min"."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"{minutes} min left" if minutes < 120 else f"{seconds / 3600:.3g} h left"


def clock(seconds: object) -> str:
    """Seconds as m:ss, or h:mm:ss."""
    if not known(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
