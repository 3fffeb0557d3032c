"""RunRequest: what somebody asks for. Shell, Python, files, grids, trials and --resume are ways to build one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from raypid.plugins.registry import ALGORITHMS
from raypid.settings.config import Given, Source, overlay
from raypid.settings.stops import read_stop


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What is asked of a run, before anything was looked at. `raypid.run.train.train_request` trains it.

    Every field has a value that says nothing, so that requests can be joined: a file's below the flags', for instance.
    """

    run: str | None = None
    """The algorithm's name."""
    settings: Given = field(default_factory=lambda: Given({}))
    """The settings given for this run; one without effect is refused."""
    recorded: Given = field(default_factory=lambda: Given({}))
    """Settings below these, that nobody gave for this run: all of another run's params.json, for instance. They may be without effect."""
    recorded_run: str | None = None
    """The algorithm that had the recorded settings."""
    stop: Mapping[str, object] | None = None
    """Stop criteria; None: not known yet. A new run then ends where somebody says so later, a resumed one where it was to end."""
    tuned: bool | str = False
    """Begin with tuned settings: those of the package, or by their name those that a search has saved."""
    out: Path | None = None
    """The run's folder."""
    resume: Path | bool | None = None
    """Go on from this run or checkpoint; True: from the run in `out`, if one is there."""
    overwrite: bool = False
    """Replace the run in `out`."""
    trust: bool = False
    """Import what only the resumed folder, or a file in a run's folder, names."""
    options: Mapping[str, int] = field(default_factory=dict)
    """What a run does besides training: the fields of RunOptions in `raypid.settings.files.OPTIONS`."""
    origins: Mapping[str, Source] = field(default_factory=dict)
    """run, stop, out and each of `options` -> where it came from."""
    notes: tuple[str, ...] = ()
    """What the user should know of what was read."""
    is_whole: bool = False
    """A run with a folder, as `raypid train` makes one, and not an agent alone: its folder is checked, and it may begin once more."""
    python: bool = True
    """Whether messages speak of arguments, not of flags."""
    program: Any = None
    """What replaces the algorithm's collecting and learning (`raypid.run.assembly.RunProgram`)."""

    def __post_init__(self) -> None:
        """Take the forms in which people write these: names in any case, a folder as text, a stop as a number, settings as a dict."""
        taken: dict[str, object] = {
            "run": None if self.run is None else ALGORITHMS.canonical(self.run),
            "stop": None if self.stop is None else read_stop(self.stop),
            "out": None if self.out is None else Path(self.out),
            "tuned": self.tuned or False,
            "resume": self.resume if self.resume in (None, True) else Path(str(self.resume)),
            "settings": overlay({}, self.settings),
            "recorded": overlay({}, self.recorded),
        }
        for name, value in taken.items():
            object.__setattr__(self, name, value)

    @property
    def laid(self) -> Given:
        """All settings: those given for this run over the recorded ones."""
        return overlay(self.recorded, self.settings)

    def from_source(self, kind: Any, detail: str = "") -> RunRequest:
        """Return the same request, in which run, stop, out and options know that they came from there."""
        said = {"run": self.run, "stop": self.stop, "out": self.out, **self.options}
        origins = {name: Source(kind, detail, value) for name, value in said.items() if value is not None}
        return replace(self, origins=origins)


def join(*requests: RunRequest) -> RunRequest:
    """Lay requests over each other: the later one wins. Recorded settings replace all that was given before them."""
    silent = whole = RunRequest()
    for one in requests:
        said = {f.name: value for f in fields(one) if (value := getattr(one, f.name)) != getattr(silent, f.name)}
        joined: dict[str, Any] = {
            **said,
            "settings": overlay({} if one.recorded else whole.settings, one.settings),
            "recorded": overlay(whole.laid if one.recorded else whole.recorded, one.recorded),
            "options": {**whole.options, **one.options},
            "origins": {**whole.origins, **one.origins},
            "notes": (*whole.notes, *one.notes),
        }
        whole = replace(whole, **joined)
    return whole
