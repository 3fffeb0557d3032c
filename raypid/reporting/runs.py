"""Runs as their folders tell them: found below parent folders, put together where they differ only in their seed, and named by
what sets them apart."""

from __future__ import annotations

import difflib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from raypid.changes import CHANGES, later, read_changes
from raypid.errors import UserError, reason, shown
from raypid.neighbours import nothing_at
from raypid.registry import did_you_mean, suggest
from raypid.reporting.ending import Ending, read_ending
from raypid.reporting.logger import PROGRESS, RESULTS, read_params, read_results
from raypid.reporting.panel import TRAINING, known, number

if TYPE_CHECKING:
    from raypid.reporting.statistics import Column

# What does not tell two runs apart: where and for how long they ran, what they saved, who wrote it down. Changes are told by themselves.
NOT_SETTINGS = frozenset({
    "seed", "out", "folder", "stop", "address", "algorithm", "run", "env", "env_config", "config", "changes", "signature",
    "checkpoint_interval", "keep_checkpoints", "final_episodes",
})  # fmt: skip
LONGEST_LABEL = 60
"""Characters of a label; runs that differ in more than fits are named by their folder."""
LONGEST_VALUE = 30
EPISODES = 20
"""Training episodes of which a curve shows the mean."""
NEW_EPISODES = "episode_reward_this_iter"
MOST_KEYS = 100
"""Keys among which a near one is looked for."""
_INSIDE = frozenset({"best", "checkpoints", "diverged", "policy"})
"""Folders in which no runs are looked for."""


K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as read from its folder."""

    folder: Path
    settings: dict[str, Any]
    results: list[dict[str, int | float | str]]
    algorithm: str
    env: str
    seed: int | None
    ending: Ending
    final: dict[str, float] | None
    """episode_reward_mean, episode_reward_ci95 and episodes that the best policy reached at the end; None if it played none."""

    @property
    def task(self) -> str:
        """The environment and its arguments. Returns of different tasks do not compare."""
        arguments = self.settings.get("env_config")
        return self.env + (f" {_compact(arguments)}" if isinstance(arguments, dict) and arguments else "")

    @property
    def steps(self) -> float:
        """Environment steps so far."""
        return self.last("timesteps_total")

    def last(self, key: str) -> float:
        """The newest value of a key; NaN if no result has one."""
        return next((float(row[key]) for row in reversed(self.results) if known(row.get(key))), float("nan"))

    def column(self, x: str, key: str) -> tuple[Column, Column]:
        """Points at which `key` is known: (x [K], value [K]). An evaluation's x is that of the weights that played it."""
        import numpy as np

        own = f"evaluation/{x}" if key.startswith("evaluation/") else x
        points = [(row.get(own, row[x]), row[key]) for row in self.results if known(row.get(key)) and known(row.get(x))]
        points.sort(key=lambda point: point[0])  # an evaluation beside training may end after a newer one
        xs, ys = zip(*points, strict=True) if points else ((), ())
        return np.asarray(xs, np.float64), np.asarray(ys, np.float64)

    def training(self, x: str) -> tuple[Column, Column]:
        """Training returns (x [K], value [K]): the means of EPISODES episodes that ended one after the other, each at the mean of the
        x at which they ended, so that the curve is not late by the episodes that it is a mean of. Of a run of an earlier version, which
        has no returns of single iterations: the mean of the last 100 episodes."""
        import numpy as np

        rows = [
            row
            for row in self.results
            if known(row.get(NEW_EPISODES)) and known(row.get(x)) and known(row.get("episodes_total"))
        ]
        if not rows:
            return self.column(x, TRAINING)
        xs, means, totals = (
            np.array([row[key] for row in rows], np.float64) for key in (x, NEW_EPISODES, "episodes_total")
        )
        before = {id(row): number(earlier, "episodes_total") for earlier, row in zip(self.results, self.results[1:])}
        counts = np.maximum(totals - [before.get(id(row), 0.0) for row in rows], 1.0)
        ended, returns, places = (
            np.concatenate([[0.0], np.cumsum(part)]) for part in (counts, counts * means, counts * xs)
        )
        first = np.maximum(np.searchsorted(ended, ended[1:] - EPISODES, side="right") - 1, 0)
        size = ended[1:] - ended[first]
        whole = size >= min(EPISODES, ended[-1]) / 4  # a mean of the first one or two would be a matter of luck
        return ((places[1:] - places[first]) / size)[whole], ((returns[1:] - returns[first]) / size)[whole]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one task that differ only in their seed."""

    task: str
    label: str
    """What sets the group apart, besides the task; "" if nothing does."""
    apart: dict[str, str]
    """The same by setting: {"algorithm": "PPO", "model.hidden": "[64,64]"}."""
    runs: list[RunRecord]


def load_run(folder: Path) -> RunRecord:
    """Read a run.

    Raises:
        UserError: the folder holds no run, or one of its files is not what a run writes.
    """
    settings, results = read_params(folder), read_results(folder)
    algorithm, env = settings.get("algorithm") or settings.get("run"), settings.get("env")
    ending = read_ending(folder, settings.get("stop"), results[-1] if results else {})
    return RunRecord(
        folder, settings, results, str(algorithm or ""), str(env or ""), settings.get("seed"), ending, _final(folder)
    )


def find_runs(paths: Iterable[Path], *, empty: bool = False) -> tuple[list[RunRecord], list[str]]:
    """Read the runs in these folders: each is the folder of a run, or a parent at any depth.

    Args:
        empty: also runs without a result, such as those that failed in their first iteration.

    Returns:
        The runs in the order of their names, each once, and a line for each folder below a parent that looks like a run
        and cannot be read.

    Raises:
        UserError: a path is no folder, or neither a run nor a parent of one.
    """
    runs: dict[Path, RunRecord] = {}
    skipped: list[str] = []
    for path in map(Path, paths):
        folders = list(_folders_of_runs(path)) if os.path.isdir(path) else []
        if not folders:
            raise UserError(_why_none(path))
        for folder in folders:
            if (real := Path(os.path.realpath(folder))) in runs:
                continue
            try:
                run = load_run(folder)
                if not run.results and not empty:
                    raise UserError(f"{folder / RESULTS} holds no whole result")
                runs[real] = run
            except (UserError, OSError) as error:
                if folder == path:
                    raise
                skipped.append(f"{folder} is left out: {reason(error).removeprefix(f'{folder / RESULTS}, ')}.")
    if not runs:
        raise UserError(f"No run here can be read. {skipped[0]}")
    return list(runs.values()), skipped


def _why_none(path: Path) -> str:
    """Say why there are no results in a folder, and which folder would do."""
    whole = next((folder for folder in path.parents if (folder / RESULTS).is_file() and folder.name), None)
    if os.path.exists(path) and whole is not None:
        return f"{shown(str(path))} is a part of the run {shown(str(whole))}: give that folder."
    if os.path.exists(path) and not os.path.isdir(path):
        return f"{shown(str(path))} is a file: give the folder of a run, or one with runs in it"
    if not os.path.isdir(path):
        return nothing_at(path)
    return (
        why_without_results(path)
        or f"no {RESULTS} in {path} or in a folder below it: give the folder of a run (the --out of `raypid train`), or one with runs in it"
    )


def why_without_results(folder: Path) -> str:
    """Why a folder with checkpoints has no results; "" if it has no checkpoints."""
    if not any((folder / "checkpoints").glob("*/manifest.json")) and not any(folder.glob("*/manifest.json")):
        return ""
    return (
        f"{folder} has checkpoints and no results: agent.train() returns them, and writes none. `raypid train`, raypid.train and agent.fit "
        f"write {RESULTS}, of which curves are drawn; `raypid eval {shlex.quote(str(folder))}` plays what was saved."
    )


def check_key(runs: Sequence[RunRecord], key: str) -> None:
    """Check that a result of these runs has a number of this name.

    Raises:
        UserError: none has; the message names the nearest.
    """
    keys = {name for run in runs for row in run.results for name, value in row.items() if known(value)}
    if key not in keys:
        printable = sorted(name for name in keys if name.isprintable())[:MOST_KEYS]
        nearest = difflib.get_close_matches(key, printable, 5, 0.0)
        more = f" The nearest of {len(keys)}: {', '.join(nearest)}. {PROGRESS} of a run has them all in its first line."
        hint = did_you_mean(key, printable) if suggest(key, printable) else more
        raise UserError(f"No result of these runs has a number {shown(key)}.{hint}")


def _folders_of_runs(path: Path) -> Iterator[Path]:
    """Yield the folders of runs at and below `path`, in the order in which people count: trial-2 before trial-10."""
    if (path / RESULTS).is_file():
        yield path
        return
    try:
        entries = [entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # a folder of somebody else's
        return
    for entry in sorted(entries, key=lambda entry: _counting(entry.name)):
        if not entry.name.startswith(".") and entry.name not in _INSIDE:
            yield from _folders_of_runs(path / entry.name)


def _counting(name: str) -> list[tuple[int, str]]:
    """A key that sorts digits within names as numbers."""
    import re

    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def _final(folder: Path) -> dict[str, float] | None:
    """Read what the best policy reached in the final episodes; None if there is no such number."""
    try:
        final = json.loads((folder / "best" / "policy.json").read_bytes())["spec"]["info"]["final"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None
    if not isinstance(final, dict) or not known(final.get("episode_reward_mean")):
        return None
    return {key: float(value) for key, value in final.items() if known(value)}


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, in the order in which they come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


# -- groups ------------------------------------------------------------------------------------------------------------


def group_by_seed(runs: Sequence[RunRecord]) -> list[Group]:
    """Put runs together that have the same settings and different seeds, for each task; in the order of their first runs."""
    return _labelled(
        [replace(group, runs=part) for group in group_by_settings(runs) for part in _without_repetitions(group.runs)]
    )


def group_by_settings(runs: Sequence[RunRecord]) -> list[Group]:
    """Put runs together that have the same settings, for each task; in the order of their first runs. A seed may be there twice."""
    flat = {id(run): {**flat_settings(run.settings), **_changed(run.settings)} for run in runs}
    apart = {algorithm: _keys_apart(runs, algorithm, flat) for algorithm in {run.algorithm for run in runs}}

    def identity(run: RunRecord) -> tuple[str, ...]:
        return run.task, run.algorithm, *(flat[id(run)].get(key, "unset") for key in apart[run.algorithm])

    several = len({run.algorithm for run in runs}) > 1
    groups: list[Group] = []
    for (task, algorithm, *values), same in grouped(runs, identity).items():
        named = ({"algorithm": algorithm or "unknown"} if several else {}) | dict(zip(apart[algorithm], values))
        groups.append(Group(task, "", named, same))
    return _labelled(groups)


def _changed(settings: dict[str, Any]) -> dict[str, str]:
    """How settings changed while the run went on, as one more setting: it did not learn with those that it has now."""
    try:
        changes = later(read_changes(settings.get(CHANGES)))
    except ValueError:
        return {"changed": "unknown"}
    said: dict[str, str] = {}
    for change in changes:
        if (key := change["key"]) not in NOT_SETTINGS:
            begin = said.get(key, f"{key}={_compact(change['from'])}")
            said[key] = f"{begin}, then {_compact(change['to'])} at {change['step']:,}"
    return {"changed": "; ".join(said.values()) or "nothing"}


def flat_settings(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """The settings that can tell two runs apart as {dotted name: value as text}."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if not prefix and key in NOT_SETTINGS:
            continue
        if isinstance(value, dict) and value:
            flat |= flat_settings(value, f"{prefix}{key}.")
        elif value != {}:
            flat[prefix + key] = _compact(value)
    return flat


def _keys_apart(runs: Sequence[RunRecord], algorithm: str, flat: dict[int, dict[str, str]]) -> list[str]:
    """The settings in which runs of this algorithm differ within a task, in the order of params.json.

    One that some runs do not have is no difference if the others agree on it: versions of raypid add settings.
    """
    alike = [run for run in runs if run.algorithm == algorithm]
    tasks = [[flat[id(run)] for run in there] for there in grouped(alike, lambda run: run.task).values()]
    keys = dict.fromkeys(key for run in alike for key in flat[id(run)])
    return [key for key in keys if any(len({s[key] for s in there if key in s}) > 1 for there in tasks)]


def _without_repetitions(same: list[RunRecord]) -> list[list[RunRecord]]:
    """Split runs so that no part has a seed twice: by parent folder (before/0, after/0) if that does it, or into single runs."""
    for parts in ([same], list(grouped(same, lambda run: run.folder.parent).values())):
        if all(len({str(run.seed) for run in part}) == len(part) for part in parts):
            return parts
    return [[run] for run in same]


def _labelled(groups: Sequence[Group]) -> list[Group]:
    """Name groups by what sets them apart, and by a folder where that does not tell two groups of a task apart."""
    labels = [_label_of(group, groups) for group in groups]
    labelled: list[Group] = []
    for group, label in zip(groups, labels):
        others = [o for o, same in zip(groups, labels) if o is not group and o.task == group.task and same == label]
        if others:
            folder = _folder_of(group)
            unique = all(_folder_of(other).name != folder.name for other in others)
            label = " ".join(filter(None, [label, folder.name if unique else str(folder)]))
        labelled.append(replace(group, label=label))
    return labelled


def _label_of(group: Group, groups: Sequence[Group]) -> str:
    """The algorithm and the settings that set a group apart. Of more settings than fit, which are likely to have nothing to do with each
    other: its folder, or the first ones where another group has a folder of that name."""
    changed = group.apart.get("changed", "")
    others = {key: value for key, value in group.apart.items() if key not in ("algorithm", "changed")}
    words = [f"{key}={short(value)}" for key, value in others.items() if f"; {key}=" not in f"; {changed}"]
    kept = words
    while len(", ".join(kept)) > LONGEST_LABEL and len(kept) > 1:
        kept = kept[:-1]
    cut = ["…"] if len(kept) < len(words) else []
    text = ", ".join([*kept, *cut, *({"nothing": ["unchanged"]}.get(changed, [changed]) if changed else [])])
    folder = _folder_of(group).name
    if cut and [_folder_of(other).name for other in groups].count(folder) == 1:
        text = folder
    return " ".join(filter(None, [group.apart.get("algorithm", ""), text]))


def _folder_of(group: Group) -> Path:
    """The folder that a group is named after: of its run, or the parent of its runs."""
    folder = group.runs[0].folder
    return folder if len(group.runs) == 1 or not folder.parent.name else folder.parent


def _compact(value: object) -> str:
    """A setting as short text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def short(text: str) -> str:
    """A setting's value without the middle of what is long."""
    half = LONGEST_VALUE // 2
    return text if len(text) <= LONGEST_VALUE else f"{text[: half - 1]}…{text[-half:]}"
