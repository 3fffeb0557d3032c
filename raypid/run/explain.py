"""Why a run has the settings that it has: each value, where it came from, what it replaced, and what raypid chose itself."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from raypid.algorithms.base import USUAL
from raypid.nn.idle_settings import idle_settings
from raypid.plugins.modules import entry_name, to_json
from raypid.run.resolve import ResolvedRun
from raypid.run.setup import learner_threads
from raypid.runtime.plan import NodeShare
from raypid.settings.address import ENVIRONMENT, chosen
from raypid.settings.config import Source, is_none, overlay
from raypid.storage.changes import Change, described

_ORDER = ("run", "environment", "network", "algorithm", "evaluation", "machine")
_ALWAYS = ("run", "env", "stop", "out", "seed")
"""What is shown in any case."""
_NAME, _VALUE = 23, 14
"""Columns of a name and of a value."""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting."""

    name: str
    """Its full name, such as "model.hidden"."""
    value: object
    sources: Sequence[Source] = ()
    """Where its value came from, last, and what it replaced; empty: it has its default."""
    default: object = None
    group: str = "run"
    """Under which heading it stands."""

    @property
    def kind(self) -> str:
        """default, tuned, file, flag, resume, given (in Python) or adapted (chosen by raypid)."""
        return self.sources[-1].kind if self.sources else "default"

    @property
    def is_plain(self) -> bool:
        """Whether it is at its default, or at the usual choice of an open one, and nobody has asked for that here; a file of all settings does not
        count."""
        if self.sources and self.sources[-1].detail == USUAL:
            return True
        asked = self.kind not in ("default", "file", "resume") or self.name in _ALWAYS
        stayed_off = self.kind == "default" and self.default is None and self.value is False
        return (_same(self.value, self.default) or stayed_off) and not asked

    def origin(self) -> str:
        """Where the value came from, in words."""
        if not self.sources:
            return "default"
        *before, last = self.sources
        others = [s for s in before if not _same(s.value, last.value) and not _same(s.value, self.default)]
        said = [_named(last), *(f"over {shown(s.value)} ({_named(s)})" for s in reversed(others))]
        is_open = last.kind == "adapted" and self.default in ("auto", 0, None)
        if self.default is not None and not is_open and not _same(self.value, self.default):
            said.append(f"default {shown(self.default)}")
        return "; ".join(said)

    def as_dict(self) -> dict[str, object]:
        """The row as JSON."""
        replaced = [{"value": to_json(s.value), "from": s.kind, "detail": s.detail} for s in self.sources[:-1]]
        detail = self.sources[-1].detail if self.sources else ""
        about = {"value": to_json(self.value), "from": self.kind, "detail": detail, "default": to_json(self.default)}
        return {**about, "group": self.group, **({"replaced": replaced} if replaced else {})}


_BY_ENVIRONMENT: dict[str, list[object]] = {
    "model.hidden": [(64, 64)],
    "model.log_std_init": [0.0],
    "entropy_coef": [0.0, 0.01],
    "gamma": [0.99],
    "num_epochs": [5, 10],
    "gae_lambda": [0.95, 0.98],
    "clip": [0.2],
    "num_envs_per_worker": [8, 16],
    "fragment_length": [256, 128],
    "n_step": [5],
    "normalize_observations": [False],
    "num_threads": [1],
}
"""Settings that raypid may choose by the environment or the cores -> the usual values, of which a run says nothing."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All settings of a run, with their origins. `print` shows those that differ from the defaults."""

    title: str
    rows: Sequence[Row]
    changes: Sequence[Change] = ()
    """What has been changed since the run began."""
    placement: Sequence[NodeShare] = ()
    """What each node gets of the processes of a run on Ray."""

    def text(
        self, width: int = 80, *, everything: bool = False, how: str = "agent.explain().text(everything=True)"
    ) -> str:
        """Lines of at most `width` columns, by group.

        Args:
            everything: also settings that nobody has touched; `how` says what shows these.
        """
        seen = [row for row in self.rows if everything or not row.is_plain]
        parts = {group: [line for row in seen if row.group == group for line in _lines(row, width)] for group in _ORDER}
        placed = _placement_lines(self.placement, width)
        changes = [textwrap.wrap(described(change), width - 2) for change in self.changes]
        parts["placement (workers and learners reserve CPUs, nothing else does)"] = placed
        parts["changed since the run began"] = [f"  {line}" for lines in changes for line in lines]
        lines = [self.title, *(line for title, part in parts.items() if part for line in (title, *part))]
        hidden = sum(row.is_plain for row in self.rows)
        if hidden and not everything:
            lines.append(f"{hidden} more settings have their defaults: {how} shows them.")
        return "\n".join(lines)

    def adapted(self) -> str:
        """What raypid chose by the environment and the cores, where that is not the usual value: "n_step 3, gamma 0.98"; "" for nothing."""
        chosen = [row for row in self.rows if row.kind == "adapted" and row.name in _BY_ENVIRONMENT]
        unusual = [row for row in chosen if row.value not in _BY_ENVIRONMENT[row.name]]
        return ", ".join(f"{row.name} {shown(row.value)}" for row in unusual)

    def as_dict(self) -> dict[str, Any]:
        """The explanation as JSON: {"settings": {name: {value, from, detail, default, group, replaced}}, "changes": [...], "placement": [{node,
        id, driver, roles, takes, left, total}]}; the last is empty where nothing runs on Ray."""
        settings = {row.name: row.as_dict() for row in self.rows}
        placement = [asdict(share) for share in self.placement]
        return {"settings": settings, "changes": list(self.changes), "placement": placement}

    __str__ = __repr__ = text


def explain(
    run: ResolvedRun,
    changes: Sequence[Change] = (),
    about: Sequence[Row] = (),
    run_end: float | None = None,
) -> Explanation:
    """Explain the settings of a run.

    Args:
        changes: what has been changed since the run began.
        about: rows for what is no setting: algorithm, stop criteria, folder.
        run_end: environment step at which the run stops; None: not known.
    """
    config, default = run.config, run.algorithm.Config()
    chosen = _chosen(run)
    if run_end is not None and config.lacks_end():
        chosen["schedule_steps"] = int(run_end), "a linear schedule ends with the run"
    rows = list(about)
    for name in overlay({}, default.to_dict()):  # those of the network by their full names
        found, value = list(run.sources.get(name, ())), attrgetter(name)(config)
        if name in chosen:
            value, why = chosen[name]
            found.append(Source("adapted", why, value))
        rows.append(Row(name, value, found, attrgetter(name)(default), config.group_of(name)))
    placement = run.plan.shares() if run.plan is not None and config.on_ray else ()
    return Explanation(f"{run.run} on {entry_name(config.env)}", rows, changes, placement)


def _chosen(run: ResolvedRun) -> dict[str, tuple[object, str]]:
    """Settings that leave a choice to raypid -> what it chooses here, and by what."""
    config, network = run.config, run.network
    kinds = "+".join(dict.fromkeys(leaf.kind for leaf in network.pipeline.leaves))
    size = f" of {network.pipeline.vector_size} numbers" if kinds == "vector" else ""
    widths = " and ".join(map(str, dict.fromkeys(network.hidden)))
    choices: dict[str, tuple[object, Callable[[], object], str]] = {
        # name -> value that leaves it open, choice, why
        "model.network": ("auto", lambda: network.network, f"for {kinds} observations"),
        "model.distribution": ("auto", lambda: "+".join(a.kind for a in network.actions), "for these actions"),
        "model.hidden": (None, lambda: network.hidden, f"for {kinds} observations{size}"),
        "backend": ("auto", lambda: "ray" if config.on_ray else "local", f"num_workers is {config.num_workers}"),
        "address": (config.address, lambda: chosen(config.address) or config.address, f"{ENVIRONMENT} names it"),
        "device": ("auto", lambda: config.learns_on, f"num_gpus is {config.num_gpus:g}"),
        "num_threads": (0, lambda: learner_threads(run.algorithm, config, network), f"for layers of {widths}"),
    }
    idle = {**config.idle(), **idle_settings(config, network)}
    return {
        name: (choice(), why)
        for name, (is_open, choice, why) in choices.items()
        if attrgetter(name)(config) == is_open and name not in idle and choice() != is_open
    }


def _placement_lines(placement: Sequence[NodeShare], width: int) -> list[str]:
    """A line for each node that has something of the run, and one for all others."""
    shares = [share for share in placement if share.roles or share.driver]
    lines = [f"  {share.node:{_NAME}} {share}" for share in shares]
    if rest := placement[len(shares) :]:
        left = " and ".join(f"{sum(share.left[name] for share in rest):g} {name}s" for name in ("CPU", "GPU"))
        lines.append(f"  {f'{len(rest)} more':{_NAME}} nothing of it: {left} left")
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent=" " * (_NAME + 3))]


def _lines(row: Row, width: int) -> list[str]:
    """A row: name, value, origin; what does not fit goes on below."""
    text = f"  {row.name:{_NAME}} {shown(row.value):{_VALUE}} {row.origin()}"
    return textwrap.wrap(text, width, subsequent_indent=" " * (_NAME + _VALUE + 4))


def _named(source: Source) -> str:
    return f"{source.kind}{':' * (source.kind == 'adapted')} {source.detail}".rstrip(" ")


def _same(one: object, other: object) -> bool:
    return json.dumps(to_json(one)) == json.dumps(to_json(other)) or one == other or (is_none(one) and is_none(other))


def shown(value: object) -> str:
    """A value as settings are written: 0.0003, [64, 64], none."""
    if value is None or isinstance(value, str):
        return "none" if value is None else value
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, Mapping) and value and not any(isinstance(part, Mapping) for part in value.values()):
        return ", ".join(f"{key} {shown(part)}" for key, part in value.items())
    return json.dumps(to_json(value))
