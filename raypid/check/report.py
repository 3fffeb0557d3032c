"""What a check of an environment has found: findings and facts, as plain data and on one screen."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from raypid.phases import duration

Severity: TypeAlias = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
FACTS = (
    "observation", "action", "reward", "episodes", "reset", "seeding", "step", "render", "info", "memory", "printed", "made_in_s",
    "vectorizers", "training",
)  # fmt: skip
"""Keys of `EnvReport.facts`, and of the JSON document. What was not reached is null there."""
FORMAT = 1
LABEL = 12
"""Columns of the labels on the screen."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a user may want to know."""

    severity: Severity
    """problem: training would fail or learn something wrong. warning: it may. note: raypid copes, or it is only good to know."""
    topic: str
    text: str
    advice: str = ""
    """What to do, with the setting that does it."""
    where: str = ""
    """The user's line, as "file:line in function"."""

    def __str__(self) -> str:
        where, advice = self.where and f" ({self.where})", self.advice and f" -> {self.advice}"
        return f"{self.topic}: {self.text}{where}{advice}"


@dataclass(slots=True)
class EnvReport:
    """What `raypid.check_env` returns. Its repr is the screen of `raypid check-env`."""

    env: str
    """The name that was given."""
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    """What was measured, by topic: the keys of `FACTS`, as far as they were reached (docs/environments.md has them)."""
    seconds: float = 0.0
    """How long the check took."""
    found: bool = True
    """Whether `env` names anything at all; else the only problem says what is wrong with the name."""

    @property
    def problems(self) -> list[Finding]:
        """What must be mended."""
        return self.of("problem")

    @property
    def warnings(self) -> list[Finding]:
        """What may be wrong."""
        return self.of("warning")

    @property
    def notes(self) -> list[Finding]:
        """What raypid copes with, or what is only good to know."""
        return self.of("note")

    @property
    def advice(self) -> list[str]:
        """What to do, as sentences with the settings that do it; the most important first."""
        return [f.advice for severity in SEVERITIES for f in self.of(severity) if f.advice]

    @property
    def ok(self) -> bool:
        """Whether there is no problem; there may be warnings."""
        return not self.problems

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity, in the order in which they were found."""
        return [f for f in self.findings if f.severity == severity]

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON can hold it: keys that do not change between versions, null for what is unknown."""
        found = {
            "format": FORMAT,
            "env": self.env,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            **{f"{severity}s": [asdict(f) for f in self.of(severity)] for severity in SEVERITIES},
            "advice": self.advice,
            **{key: self.facts.get(key) for key in FACTS},
        }
        plain: dict[str, object] = json.loads(json.dumps(found), parse_constant=lambda not_finite: None)
        return plain

    def screen(self, width: int, height: int | None = None) -> str:
        """The report in lines of at most `width` columns.

        Args:
            height: lines that there are: what would not fit is counted, notes first. None: all of it.
        """
        width = max(40, width)
        lines = textwrap.wrap(self._headline(self.facts), width)
        # problems come first, and of the rest as much as fits
        found = {s: [(s, _row(f.severity, str(f), width)) for f in self.of(s)] for s in SEVERITIES}
        measured = [("measurement", _row(label, text, width)) for label, text in _measurements(self.facts)]
        left: Counter[str] = Counter()
        for kind, rows in (*found["problem"], *found["warning"], *measured, *found["note"]):
            if left or (height is not None and len(lines) + len(rows) + 1 >= height):
                left[kind] += 1
            else:
                lines += rows
        if left:
            lines.append(f"{' and '.join(num_of(num, kind) for kind, num in left.items())} more: --all or --json")
        return "\n".join(lines)

    def _headline(self, facts: Mapping[str, Any]) -> str:
        counts = [num_of(len(found), found[0].severity) for found in (self.problems, self.warnings) if found]
        steps = (facts.get("episodes") or {}).get("steps")
        after = f" after {num_of(steps, 'random step')}" if steps else ""
        return f"{self.env}: {' and '.join(['no problems'] * self.ok + counts)}{after}, {self.seconds:.1f} s"

    def __repr__(self) -> str:
        return self.screen(100)


def _row(label: str, text: str, width: int) -> list[str]:
    """A text in lines, with a label before the first one."""
    head = f"{label:<{LABEL}}"
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * LABEL, break_on_hyphens=False)


def _measurements(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The lines of measurements: (label, text)."""
    if observation := facts.get("observation"):
        yield "observation", observation["space"] + _seen(observation)
    if action := facts.get("action"):
        scaling = {"bounds": "; raypid scales -1..1 to the bounds", "partly none": "; not bounded, so not scaled"}
        yield "action", action["space"] + scaling.get(action["scaling"], "")
    if (reward := facts.get("reward")) and reward["mean"] is not None:
        returns = f"; random episodes return {_spread(reward, 'return_')}" if reward["return_mean"] is not None else ""
        yield "reward", _spread(reward, unit=" a step") + returns
    if (episodes := facts.get("episodes")) and episodes["steps"]:
        yield "episodes", _lengths(episodes)
    begins = {True: "starts differently each time", False: "always starts alike", None: ""}
    reset = facts.get("reset") or {}
    texts = [_time(reset) if reset.get("calls") else "", begins[reset.get("unseeded_differ")]]
    if any(texts):
        yield "reset", "; ".join(filter(None, texts))
    if (seeding := facts.get("seeding")) and seeding["same_episode"] is not None:
        differ = {True: "; other seeds differ", False: "; every seed gives the same first observation", None: ""}
        same = "same" if seeding["same_episode"] else "another"
        yield "seeding", f"same seed, {same} episode{differ[reset['seeds_differ']]}"
    if (step := facts.get("step")) and step["calls"]:
        yield "step", _time(step)
    if rows := facts.get("vectorizers"):
        yield "steps/s", _vectors(rows)
    if training := facts.get("training"):
        yield "1M steps", "; ".join(_training(run, row) for run, row in training.items())


def _seen(observation: Mapping[str, Any]) -> str:
    parts = [p for p in observation.get("parts", []) if p["max"] is not None]
    if not parts:
        return ""
    pictures = [p["path"] for p in parts if p["picture"]]
    text = f"; seen {min(p['min'] for p in parts):.4g} to {max(p['max'] for p in parts):.4g}"
    return text + (f"; a picture{': ' if any(pictures) else ''}{', '.join(pictures)}" if pictures else "")


def _spread(numbers: Mapping[str, Any], prefix: str = "", unit: str = "") -> str:
    low, high, mean = (numbers[f"{prefix}{what}"] for what in ("min", "max", "mean"))
    return f"{low:.4g}{unit}" if low == high else f"{low:.4g} to {high:.4g}{unit}, mean {mean:.4g}"


def _lengths(episodes: Mapping[str, Any]) -> str:
    limit = f"limit {episodes['time_limit']:,}" if episodes["time_limit"] else "no time limit known"
    if not episodes["episodes"]:
        return f"none ended in {num_of(episodes['unfinished_steps'], 'step')}; {limit}"
    low, high = episodes["length_min"], episodes["length_max"]
    lengths = num_of(high, "step") if low == high else f"{low:,} to {num_of(high, 'step')}"
    return f"{lengths}; {episodes['terminated']} terminated, {episodes['truncated']} truncated; {limit}"


def _time(times: Mapping[str, Any]) -> str:
    """The mean and the spread; the longest where it is far outside of that and counts."""
    mean, p95, longest = times["mean_s"], times["p95_s"], times["max_s"]
    rare = f", one took {duration(longest)}" if longest > 10 * p95 and longest > 0.01 * mean * times["calls"] else ""
    return f"{duration(mean)} on average ({duration(times['p5_s'])} to {duration(p95)}{rare})"


def _vectors(rows: Sequence[Mapping[str, Any]]) -> str:
    rates = [
        f"{row['vectorizer']}{' (auto)' * row['auto']} {_number(row['steps_per_s'])} with {row['num_envs']}"
        for row in rows
        if row["steps_per_s"]
    ]
    missing = " and ".join(row["vectorizer"] for row in rows if not row["steps_per_s"])
    return ", ".join([*rates, *([f"not measured: {missing}"] if missing else [])])


def _training(run: str, row: Mapping[str, Any]) -> str:
    if not row["seconds"]:
        return str(row["note"].rstrip("."))
    return f"{run} about {duration(row['seconds'])} ({row['env_share']:.0%} environment)"


def num_of(number: int, thing: str) -> str:
    """A count with its noun: "1 step", "5,000 steps"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
