"""How a run ended, from its folder: its end by an error, its lock, its stop criteria."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from raypid.outputs import ERRORS
from raypid.reporting.panel import COUNTS, known, number

LOCK = ".lock"
MIN_EPISODES = 20
"""Training episodes before a stop criterion on episode_reward_* counts."""
State: TypeAlias = Literal["finished", "stopped early", "diverged", "failed", "killed", "running"]
"""finished: a stop criterion was reached; stopped early: from outside; killed: no end is recorded."""
_TAIL_BYTES = 1 << 16
"""How much of errors.txt is looked at, from its end: the error that ended the run is the last one."""
_ENDED = re.compile(r"^The run ended in iteration (\d+):$", re.MULTILINE)
_ENTRY = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.*\]$", re.MULTILINE)
"""The line with which an entry begins."""
_HOOK = re.compile(r"^on_\w+ of .+ raised:$", re.MULTILINE)
"""The line above a traceback that did not end the run, though it may follow the one that did. (Earlier versions wrote no _ENTRY.)"""
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
"""The line of a traceback that names the exception."""
OWN = re.compile(r"^raypid\.[\w.]+: ")
"""The same of an exception of raypid, whose text may end with the traceback of an environment."""


class Ending(NamedTuple):
    """How a run ended."""

    state: State
    reached: frozenset[str] = frozenset()
    """The stop criteria that the last result met."""
    error: str = ""
    """What ended it, if it failed or diverged."""

    @property
    def at_goal(self) -> bool:
        """Whether a return or another metric reached its goal, so that the run did not need the rest of its steps or time."""
        return any(key not in COUNTS for key in self.reached)


def read_ending(folder: Path, stop: object, last: Mapping[str, object]) -> Ending:
    """Return how the run in this folder ended.

    Args:
        stop: its stop criteria, {result key: value}, as params.json has them.
        last: its last result; empty if it has none.
    """
    locked = (folder / LOCK).exists()
    if locked and is_held(folder / LOCK):
        return Ending("running")
    iteration, error = read_end_by_error(folder / ERRORS)
    if 0 < iteration - number(last, "training_iteration") <= 2:  # a run that went on after an error has left it behind
        return Ending("diverged" if "Diverged: " in error else "failed", error=error)
    goals = stop.items() if isinstance(stop, Mapping) else ()
    reached = frozenset(key for key, goal in goals if _is_reached(key, goal, last))
    return Ending("finished" if reached else "killed" if locked else "stopped early", reached)


def _is_reached(key: str, goal: object, last: Mapping[str, object]) -> bool:
    value = last.get(key, last.get(key.removeprefix("custom/")))
    counts = not key.startswith("episode_reward") or number(last, "episodes_total") >= MIN_EPISODES
    return counts and known(goal) and known(value) and value >= goal


def read_end_by_error(path: Path) -> tuple[int, str]:
    """(iteration, error) of the last end by an error; (0, "") if none is recorded."""
    if not path.is_file():
        return 0, ""
    text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    ends = list(_ENDED.finditer(text))
    if not ends:
        return 0, ""
    entry = _ENTRY.split(text[ends[-1].end() :])[0]
    lines = _HOOK.split(entry)[0].strip().splitlines()
    ours = next((i for i in reversed(range(1, len(lines))) if lines[i].startswith("raypid: ")), None)
    if ours is not None:  # after the traceback of a user's class
        kind = next((line.partition(":")[0] for line in reversed(lines[:ours]) if line.startswith("raypid.")), "")
        said = f"{kind}: {lines[ours].removeprefix('raypid: ')} The last error: {lines[ours - 1]}".removeprefix(": ")
        return int(ends[-1][1]), said if len(said) <= 400 else f"{said[:400]} ..."
    first = next((i for i in reversed(range(len(lines))) if _RAISED.match(lines[i])), len(lines) - 1)
    start = max((i for i, line in enumerate(lines) if line.startswith("Traceback (")), default=0)
    own = next((i for i, line in enumerate(lines[start:first], start) if OWN.match(line)), first)
    message = " ".join(" ".join([*lines[own : own + 1], *lines[max(first, own + 1) :]]).split())
    return int(ends[-1][1]), message if len(message) <= 400 else f"{message[:400]} ..."


def is_held(path: Path) -> bool:
    """Whether a process has locked the file. Where there are no such locks, none is known to."""
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ModuleNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    return False
