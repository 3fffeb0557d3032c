"""The one reader of a run's folder: settings, results, errors, checkpoints and how the run ended. Reads only; imports no code that a
folder names."""

from __future__ import annotations

import math
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeGuard

from raypid.errors import UserError, reason, shorten
from raypid.storage.changes import CHANGES, Change, compact, read_changes
from raypid.storage.outputs import ERRORS
from raypid.storage.plain_data import read_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.float64]

PARAMS = "params.json"
RESULTS = "result.json"
LOCK = ".lock"
DIVERGED = "diverged"
"""The folder of a divergence: its batch, and the last good policy, which `raypid.load_policy` and `raypid eval` read."""
TRAINING = "episode_reward_mean"
EVALUATION = "evaluation/episode_reward_mean"
FINAL = "final/episode_reward_mean"
"""What the best policy reached at the end; not in result.json, but `RunFolder.last` knows it."""
NAMES = {
    EVALUATION: "evaluation return",
    TRAINING: "training return",
    FINAL: "final return",
    "time_total_s": "time",
    "timesteps_total": "steps",
    "training_iteration": "iterations",
    "episodes_total": "episodes",
    "learner_updates_total": "updates",
}
"""Keys of a result, as people call them."""
COUNTS = frozenset(NAMES) - {EVALUATION, TRAINING, FINAL}
"""Keys of what only grows, whatever is learnt."""
MIN_EPISODES = 20
"""Training episodes before a stop criterion on episode_reward_* counts."""
State: TypeAlias = Literal["finished", "stopped early", "diverged", "failed", "killed", "running"]
"""finished: a stop criterion was reached; stopped early: from outside; killed: no end is recorded."""
Row: TypeAlias = "dict[str, int | float | str]"
"""A result; NaN stands for a null of the file."""
_ALWAYS = {"env", "seed", "model", "num_workers", "num_envs_per_worker", "fragment_length", "gamma", "run", "stop"}
"""Keys that every version wrote into params.json, and that files of settings hardly ever have all together."""
_TAIL_BYTES = 1 << 16
"""How much of errors.txt is read, from its end: the error that ended the run is the last one."""
_ENDED = re.compile(r"^The run ended in iteration (\d+):$", re.MULTILINE)
_NEXT = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.*\]$|^on_\w+ of .+ raised:$", re.MULTILINE)
"""The line with which the next entry begins, or, since earlier versions wrote no such line, a traceback that did not end the run."""
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")
"""The line of a traceback that names the exception."""
OWN = re.compile(r"^raypid\.[\w.]+: ")
"""Such a line of an exception of raypid, whose text may end with the traceback of an environment."""
_MAX_ERROR = 400
"""Characters of an error."""


class Ending(NamedTuple):
    """How a run ended."""

    state: State
    reached: frozenset[str] = frozenset()
    """The stop criteria by which it finished."""
    error: str = ""
    """The error that ended it, if it failed or diverged."""
    failed_in: int = 0
    """The iteration in which it failed or diverged; 0 if it did not."""

    @property
    def at_goal(self) -> bool:
        """Whether a return or another metric reached its goal, so that the run did not need the rest of its steps or time."""
        return any(key not in COUNTS for key in self.reached)


class RunFolder:
    """A run's folder. Each file is read once, when something of it is first asked for; a last line that was cut off is left out.

    Args:
        tolerant: leave out what is damaged and name it in `damage`, instead of raising.

    Raises:
        UserError: by the properties of a file that is not what a run writes, unless `tolerant`.
    """

    def __init__(self, path: str | os.PathLike[str], *, tolerant: bool = False) -> None:
        self.path = Path(path)
        self.tolerant = tolerant
        self.damage: list[str] = []
        """What is missing or left out among the files that have been read."""

    def read(self) -> RunFolder:
        """Read all files now, so that they fit together even if the run goes on."""
        _ = self.params, self.results, self.ending, self.final
        return self

    # -- settings ------------------------------------------------------------------------------------------------------

    @cached_property
    def params(self) -> dict[str, Any]:
        """The values of params.json; empty if there is none."""
        path = self.path / PARAMS
        if not os.path.isfile(path):  # Path.is_file raises where a name is too long
            self.damage.append(f"{PARAMS} is missing")
            return {}
        params: object = None
        try:
            params = read_json(path.read_bytes())
        except (OSError, ValueError) as error:
            if not self.tolerant:
                raise UserError(f"{path} is not JSON: {reason(error)}.") from None
        if not isinstance(params, dict):
            self.damage.append(f"{PARAMS} is not a JSON object")
            return {}
        return params

    @property
    def algorithm(self) -> str:
        """The algorithm's name; "" if it is not known."""
        return str(self.params.get("algorithm") or self.params.get("run") or "")

    @property
    def seed(self) -> int | None:
        seed = self.params.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def task(self) -> str:
        """The environment and its arguments. Returns of different tasks do not compare."""
        env, arguments = str(self.params.get("env") or ""), self.params.get("env_config")
        has_arguments = isinstance(arguments, dict) and arguments
        return f"{env} {compact(arguments)}" if has_arguments else env

    @property
    def stop(self) -> dict[str, Any]:
        """The stop criteria, {result key: value}."""
        stop = self.params.get("stop")
        return stop if isinstance(stop, dict) else {}

    @property
    def changes(self) -> list[Change]:
        """What changed after the run had begun.

        Raises:
            ValueError: the list is damaged.
        """
        return read_changes(self.params.get(CHANGES))

    def setting(self, name: str) -> float | None:
        """A setting that is a number; None if it is not known or not a number."""
        return float(value) if known(value := self.params.get(name)) else None

    # -- results -------------------------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> list[Row]:
        """The results, oldest first; empty if there is no result.json."""
        path = self.path / RESULTS
        if not os.path.isfile(path):
            self.damage.append(f"{RESULTS} is missing")
            return []
        bad: list[int] = []
        rows = read_rows(path, bad if self.tolerant else None)
        results = [{sys.intern(k): math.nan if v is None else v for k, v in row.items()} for _, row in rows]
        if bad:
            self.damage.append(f"{RESULTS} has {len(bad)} lines that are no JSON object, the first is line {bad[0]}")
        return results

    @cached_property
    def keys(self) -> set[str]:
        """Keys of which some result has a finite number."""
        return {key for row in self.results for key, value in row.items() if known(value)}

    @property
    def steps(self) -> float:
        """Environment steps so far; NaN if there is no result."""
        return self.last("timesteps_total")

    def last(self, key: str, default: float = math.nan) -> float:
        """The newest finite value of a key; `default` if no result has one. Keys of `final` begin with "final/"."""
        if key.startswith("final/"):
            return (self.final or {}).get(key.removeprefix("final/"), default)
        return next((float(row[key]) for row in reversed(self.results) if known(row.get(key))), default)

    def column(self, key: str) -> Column:
        """Values of a key, [num_results]: NaN where a result has no such number, infinite where the file has null instead of one."""
        import numpy as np

        values = [row.get(key, "") for row in self.results]
        floats = [math.nan if isinstance(v, str) else math.inf if math.isnan(v) else v for v in values]
        return np.array(floats, np.float64)

    def finite(self, key: str) -> Column:
        """The finite values of a key, oldest first."""
        column = self.column(key)
        return column[abs(column) < math.inf]

    def curve(self, x: str, key: str) -> tuple[Column, Column]:
        """Points at which `key` is known: (x [K], value [K]). An evaluation's x is that of the weights that played it."""
        import numpy as np

        own = f"evaluation/{x}" if key.startswith("evaluation/") else x
        points = [(row.get(own, row[x]), row[key]) for row in self.results if known(row.get(key)) and known(row.get(x))]
        points.sort(key=lambda point: point[0])  # an evaluation beside training may end after a newer one
        xs, ys = np.array(points, np.float64).reshape(-1, 2).T
        return xs, ys

    # -- the end -------------------------------------------------------------------------------------------------------

    @cached_property
    def has_lock(self) -> bool:
        """Whether the file of the lock is there. A run that ends by itself removes it."""
        return (self.path / LOCK).exists()

    @cached_property
    def ending(self) -> Ending:
        """How the run ended."""
        if self.has_lock and is_held(self.path / LOCK):
            return Ending("running")
        iteration, error = self.last_error
        if 0 < iteration - self.last("training_iteration", 0) <= 2:  # a run that went on has left its error behind
            return Ending("diverged" if "Diverged: " in error else "failed", error=error, failed_in=iteration)
        state: State = "finished" if self.reached else "killed" if self.has_lock else "stopped early"
        return Ending(state, self.reached)

    @cached_property
    def reached(self) -> frozenset[str]:
        """The stop criteria that the last result meets, also if the run failed afterwards."""
        last = self.results[-1] if self.results else {}
        return frozenset(key for key, goal in self.stop.items() if is_reached(key, goal, last))

    @cached_property
    def last_error(self) -> tuple[int, str]:
        """(iteration, error) of the last end by an error; (0, "") if none is recorded."""
        path = self.path / ERRORS
        if not path.is_file():
            return 0, ""
        text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        ends = list(_ENDED.finditer(text))
        return (int(ends[-1][1]), _error_in(text[ends[-1].end() :])) if ends else (0, "")

    @cached_property
    def final(self) -> dict[str, float] | None:
        """episode_reward_mean, episode_reward_ci95 and episodes that the best policy reached at the end; None if it played none."""
        try:
            final = read_json((self.path / "best" / "policy.json").read_bytes())["spec"]["info"]["final"]  # type: ignore[index]
            numbers = {key: float(value) for key, value in final.items() if known(value)}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return numbers if "episode_reward_mean" in numbers else None

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        from raypid.storage.checkpoint import list_checkpoints  # imports NumPy

        return list_checkpoints(self.path / "checkpoints")

    @property
    def ran_here(self) -> bool:
        """Whether this machine wrote the results: the events' files are named after their machine."""
        return any(path.name.endswith(f".{socket.gethostname()}") for path in self.path.glob("events.out.tfevents.*"))


def is_record(values: Mapping[str, object]) -> bool:
    """Whether these are the values of a run's params.json."""
    return values.keys() >= _ALWAYS and isinstance(values["run"], str) and isinstance(values["stop"], Mapping)


def read_rows(
    path: Path, damaged: list[int] | None = None
) -> Iterator[tuple[int, dict[str, int | float | str | None]]]:
    """Yield (offset of its end, object) for each complete line of a result.json; a last line without a newline is incomplete.

    Args:
        damaged: gets the numbers of lines that are no JSON object of numbers, which are left out. None: they raise.

    Raises:
        UserError
    """
    end = 0
    with open(path, "rb") as file:
        for line_number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                row = read_json(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and all(map(_is_value, row.values())):
                yield end, row
            elif damaged is not None:
                damaged.append(line_number)
            else:
                what = f"{path}, line {line_number}, is not a JSON object of numbers"
                raise UserError(f"{what}: remove the line to read the others")


def _is_value(value: object) -> bool:
    """Whether it may stand in a result, and fits a float if it is a number."""
    return value is None or isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 2**1000)


def known(value: object) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def number(values: Mapping[str, object], key: str) -> float:
    """The value of `key`, or 0 if it is missing or not a finite number."""
    return value if known(value := values.get(key)) else 0.0


def is_reached(key: str, goal: object, result: Mapping[str, object]) -> bool:
    """Whether a result meets a stop criterion. on_iteration may report a custom/... key without its prefix."""
    value = result.get(key, result.get(key.removeprefix("custom/")))
    counts = not key.startswith("episode_reward") or number(result, "episodes_total") >= MIN_EPISODES
    return counts and known(goal) and known(value) and value >= goal


def _error_in(text: str) -> str:
    """The exception of the first entry of errors.txt in this text, on one line."""
    lines = _NEXT.split(text)[0].strip().splitlines()
    ours = next((i for i in reversed(range(1, len(lines))) if lines[i].startswith("raypid: ")), None)
    if ours is not None:  # after the traceback of a user's class
        kind = next((line.partition(":")[0] for line in reversed(lines[:ours]) if line.startswith("raypid.")), "")
        error = f"{kind}: {lines[ours].removeprefix('raypid: ')} The last error: {lines[ours - 1]}".removeprefix(": ")
    else:
        first = next((i for i in reversed(range(len(lines))) if _RAISED.match(lines[i])), len(lines) - 1)
        start = max((i for i, line in enumerate(lines) if line.startswith("Traceback (")), default=0)
        own = next((i for i, line in enumerate(lines[start:first], start) if OWN.match(line)), first)
        error = " ".join([*lines[own : own + 1], *lines[max(first, own + 1) :]])
    return shorten(error, _MAX_ERROR)


def is_held(path: Path) -> bool:
    """Whether a process has locked the file. Where there are no such locks, none is known to."""
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ModuleNotFoundError) as error:
        return isinstance(error, BlockingIOError)
    return False
