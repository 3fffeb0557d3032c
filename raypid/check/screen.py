"""A report on one screen: what is wrong first, then what was measured, then what is good to know."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raypid.check.finding import SEVERITIES, Finding

LABEL = 12
"""Columns of the labels."""


def screen(
    env: str, findings: Sequence[Finding], facts: Mapping[str, Any], seconds: float, width: int, height: int | None
) -> str:
    """Arrange a report in lines of at most `width` columns.

    Args:
        height: lines that there are: what would not fit is counted, notes first. None: all of it.
    """
    width = max(40, width)
    lines = textwrap.wrap(_headline(env, findings, facts, seconds), width)
    of = {s: [(s, _finding(f, width)) for f in findings if f.severity == s] for s in SEVERITIES}
    measured = [("measurement", _row(label, text, width)) for label, text in _facts(facts) if text]
    if of["problem"] and height is not None:  # they come first, and of the rest as much as fits
        measured = [(kind, _shortened(rows, width)) for kind, rows in measured]
    left: dict[str, int] = {}
    for kind, rows in (*of["problem"], *of["warning"], *measured, *of["note"]):
        if left or (height is not None and len(lines) + len(rows) + 1 >= height):
            left[kind] = left.get(kind, 0) + 1
        else:
            lines += rows
    more = " and ".join(f"{num} {kind}{'s' * (num > 1)}" for kind, num in left.items())
    return "\n".join([*lines, *([f"{more} more: --all or --json"] if left else [])])


def _shortened(rows: list[str], width: int) -> list[str]:
    """The first of a measurement's lines, with a mark that there are more."""
    return rows if len(rows) == 1 else [f"{rows[0][: width - 4].rstrip(' ,;')} ..."]


def _headline(env: str, findings: Sequence[Finding], facts: Mapping[str, Any], seconds: float) -> str:
    nums = {severity: sum(f.severity == severity for f in findings) for severity in SEVERITIES[:2]}
    counts = [f"{num} {severity}{'s' * (num > 1)}" for severity, num in nums.items() if num]
    if not nums["problem"]:
        counts = ["no problems", *counts]
    steps = (facts.get("episodes") or {}).get("steps")
    after = f" after {num_of(steps, 'random step')}" if steps else ""
    return f"{env}: {' and '.join(counts)}{after}, {seconds:.1f} s"


def _finding(finding: Finding, width: int) -> list[str]:
    where = f" [{finding.where}]" if finding.where else ""
    advice = f" -> {finding.advice}" if finding.advice else ""
    return _row(finding.severity, f"{finding.topic}: {finding.text}{where}{advice}", width)


def _row(label: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(text, width - LABEL, break_on_hyphens=False) or [""]
    return [f"{label if i == 0 else '':<{LABEL}}{line}" for i, line in enumerate(wrapped)]


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The lines of measurements: (label, text)."""
    if observation := facts.get("observation"):
        yield "observation", f"{observation['space']}{_seen(observation)}"
    if action := facts.get("action"):
        scaling = {"bounds": "; raypid scales -1..1 to the bounds", "partly none": "; not bounded, so not scaled"}
        yield "action", f"{action['space']}{scaling.get(action.get('scaling'), '')}"
    if (reward := facts.get("reward")) and reward["min"] is not None:
        yield "reward", _reward(reward)
    if (episodes := facts.get("episodes")) and episodes["steps"]:
        yield "episodes", _episodes(episodes)
    yield from _seeds(facts)
    if (step := facts.get("step")) and step["median_s"] is not None:
        yield "step", _time(step)
    if render := facts.get("render"):
        fps = f" at {render['fps']:g} frames/s" if render["fps"] else ""
        modes = render["modes"]
        yield "video", f"rgb_array{fps}" if "rgb_array" in modes else "none: no render mode rgb_array"
    if rows := facts.get("vectorizers"):
        yield "steps/s", _vectors(rows)
    if training := facts.get("training"):
        yield "1M steps", "; ".join(_training(run, row) for run, row in training.items())


def _seen(observation: Mapping[str, Any]) -> str:
    parts = [p for p in observation.get("parts", []) if p["max"] is not None]
    if not parts:
        return ""
    low, high = min(p["min"] for p in parts), max(p["max"] for p in parts)
    infinite = max(p["infinite_share"] for p in parts)
    pictures = [p["path"] for p in parts if p["picture"]]
    text = f"; seen {low:.4g} to {high:.4g}" + (f", not finite in {infinite:.1%} of the steps" if infinite else "")
    return text + (f"; a picture{': ' if any(pictures) else ''}{', '.join(pictures)}" if pictures else "")


def _reward(reward: Mapping[str, Any]) -> str:
    low, high = reward["min"], reward["max"]
    text = f"always {low:.4g}" if low == high else f"{low:.4g} to {high:.4g} a step, mean {reward['mean']:.4g}"
    if reward["return_mean"] is None:
        return text
    if reward["return_min"] == reward["return_max"]:
        return f"{text}; random episodes return {reward['return_min']:.4g}"
    span = f"{reward['return_min']:.4g} to {reward['return_max']:.4g}"
    return f"{text}; random episodes return {span}, mean {reward['return_mean']:.4g}"


def _episodes(episodes: Mapping[str, Any]) -> str:
    limit = f"limit {episodes['time_limit']:,}" if episodes["time_limit"] else "no time limit known"
    if not episodes["episodes"]:
        return f"none ended in {num_of(episodes['unfinished_steps'], 'step')}; {limit}"
    low, high = episodes["length_min"], episodes["length_max"]
    lengths = num_of(low, "step") if low == high else f"{low:,} to {high:,} steps"
    return f"{lengths}; {episodes['terminated']} terminated, {episodes['truncated']} truncated; {limit}"


def _seeds(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    reset, seeding = facts.get("reset"), facts.get("seeding")
    if not reset:
        return
    varied = {True: "starts differently each time", False: "always starts alike", None: ""}[
        reset.get("unseeded_differ")
    ]
    time = _time(reset) if reset.get("median_s") is not None else ""
    yield "reset", "; ".join(filter(None, [time, varied]))
    if not seeding or seeding["same_episode"] is None:
        return
    same = "same seed, same episode" if seeding["same_episode"] else "same seed, another episode"
    differ = {True: "; other seeds differ", False: "; every seed gives the same first observation", None: ""}[
        reset["seeds_differ"]
    ]
    yield "seeding", same + differ


def _time(times: Mapping[str, Any]) -> str:
    """The mean, and the usual spread; the longest where it is far outside of that and counts."""
    mean, p95, longest = times["mean_s"], times["p95_s"], times["max_s"]
    rare = f", one took {duration(longest)}" if longest > 10 * p95 and longest > 0.01 * mean * times["calls"] else ""
    usual = f", usually {duration(times['median_s'])}" if mean > 1.5 * times["median_s"] else ""
    return f"{duration(mean)} on average{usual} ({duration(times['p5_s'])} to {duration(p95)}{rare})"


def _vectors(rows: list[Mapping[str, Any]]) -> str:
    said = [
        f"{row['vectorizer']}{' (auto)' * row['auto']} {_number(row['steps_per_s'])} with {row['num_envs']}"
        for row in rows
        if row["steps_per_s"]
    ]
    missing = [row["vectorizer"] for row in rows if not row["steps_per_s"]]
    if missing:
        said.append(f"not measured: {' and '.join(missing)}")
    return ", ".join(said)


def _training(run: str, row: Mapping[str, Any]) -> str:
    if not row["seconds"]:
        return str(row["note"].rstrip("."))
    return f"{run} about {duration(row['seconds'])} ({row['env_share']:.0%} environment)"


def num_of(number: int, thing: str) -> str:
    """A count with its noun: "1 step", "5,000 steps"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """A time in a unit that suits it."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * (2 if size > 1 else 1):
            value = seconds / size
            return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return f"{seconds * 1e6:.2g} us" if seconds < 1e-5 else f"{seconds * 1e6:.0f} us"
