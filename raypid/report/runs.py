"""Runs as their folders tell them: found below parent folders, put together where they differ only in their seed, and named by
what sets them apart."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from raypid.errors import UserError, reason, shorten, shown
from raypid.plugins.registry import did_you_mean
from raypid.report.logger import PROGRESS
from raypid.storage.changes import compact, described, later
from raypid.storage.neighbours import nothing_at
from raypid.storage.run_folder import RESULTS, RunFolder

# Keys that do not distinguish two runs: where and for how long they ran, what they saved, who wrote it down. Changes count separately.
NOT_SETTINGS = frozenset({
    "seed", "out", "folder", "stop", "address", "algorithm", "run", "env", "env_config", "config", "changes", "signature",
    "checkpoint_interval", "keep_checkpoints", "final_episodes",
})  # fmt: skip
LONGEST_LABEL = 60
"""Characters of a label; runs that differ in more than fits are named by their folder."""
LONGEST_VALUE = 30
_INSIDE = frozenset({"best", "checkpoints", "diverged", "policy"})
"""Folders that are not searched for runs."""


K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one task that differ only in their seed."""

    task: str
    label: str
    """The settings that distinguish the group from others of its task, as text; "" if there are none."""
    apart: dict[str, str]
    """These settings by name: {"algorithm": "PPO", "model.hidden": "[64,64]"}."""
    runs: list[RunFolder]


def find_runs(paths: Iterable[Path], *, empty: bool = False) -> tuple[list[RunFolder], list[str]]:
    """Read the runs in these folders: each is the folder of a run, or a parent at any depth.

    Args:
        empty: also runs without a result, such as those that failed in their first iteration.

    Returns:
        The runs in the order of their names, each once, and a line for each folder below a parent that looks like a run
        and cannot be read.

    Raises:
        UserError: a path is no folder, or neither a run nor a parent of one.
    """
    runs: dict[Path, RunFolder] = {}
    skipped: list[str] = []
    for path in map(Path, paths):
        # os.walk raises on names that no folder can have
        folders = list(_folders_of_runs(path)) if os.path.isdir(path) else []
        if not folders:
            raise UserError(_why_none(path))
        for folder in folders:
            if (real := Path(os.path.realpath(folder))) in runs:
                continue
            try:
                run = RunFolder(folder).read()
                if not run.results and not empty:
                    raise UserError(f"{folder / RESULTS} holds no whole result")
                runs[real] = run
            except (UserError, OSError) as error:
                if folder == path:
                    raise
                skipped.append(f"{folder} is left out: {reason(error).removeprefix(f'{folder / RESULTS}, ')}.")
    if not runs:
        raise UserError(" ".join(["No run here can be read.", *skipped[:1]]))
    return list(runs.values()), skipped


def _why_none(path: Path) -> str:
    """Say why there are no results in a folder, and which folder would do."""
    if not os.path.exists(path):
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


def check_key(runs: Sequence[RunFolder], key: str) -> None:
    """Check that a result of these runs has a number of this name.

    Raises:
        UserError: none has; the message names what may be meant.
    """
    keys = {key for run in runs for key in run.keys}
    if key not in keys:
        hint = did_you_mean(key, filter(str.isprintable, keys))
        raise UserError(
            f"No result of these runs has a number {shown(key)}.{hint} {PROGRESS} of a run has all in its first line."
        )


def _folders_of_runs(path: Path) -> Iterator[Path]:
    """Yield the folders of runs at and below `path`, in the order in which people count: trial-2 before trial-10."""
    for folder, below, files in os.walk(path):
        if RESULTS in files:
            below.clear()
            yield Path(folder)
        below[:] = sorted((name for name in below if not name.startswith(".") and name not in _INSIDE), key=_counting)


def _counting(name: str) -> list[tuple[int, str]]:
    """A key that sorts digits within names as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, in the order in which they come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


# -- groups ------------------------------------------------------------------------------------------------------------


def group_by_seed(runs: Sequence[RunFolder]) -> list[Group]:
    """Put runs together that have the same settings and different seeds, for each task; in the order of their first runs."""
    return _labelled(
        [replace(group, runs=part) for group in group_by_settings(runs) for part in _without_repetitions(group.runs)]
    )


def group_by_settings(runs: Sequence[RunFolder]) -> Iterator[Group]:
    """Put runs together that have the same settings, for each task; in the order of their first runs. A seed may be there twice, and groups have
    no labels."""
    flat = {run: {**flat_settings(run.params), **_changed(run)} for run in runs}
    by_algorithm = grouped(runs, lambda run: run.algorithm)
    apart = {algorithm: _keys_apart(there, flat) for algorithm, there in by_algorithm.items()}

    def identity(run: RunFolder) -> tuple[str, ...]:
        return run.task, run.algorithm, *(flat[run].get(key, "unset") for key in apart[run.algorithm])

    for (task, algorithm, *values), same in grouped(runs, identity).items():
        named = {"algorithm": algorithm or "unknown"} if len(by_algorithm) > 1 else {}
        yield Group(task, "", named | dict(zip(apart[algorithm], values)), same)


def _changed(run: RunFolder) -> dict[str, str]:
    """The changes of settings during the run, as one more setting: the run did not learn with its final settings alone."""
    try:
        changes = later(run.changes)
    except ValueError:
        return {"changed": "unknown"}
    return {"changed": "; ".join(described(c) for c in changes if c["key"] not in NOT_SETTINGS) or "nothing"}


def flat_settings(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings that can distinguish two runs, {dotted name: value as text}."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if not prefix and key in NOT_SETTINGS:
            continue
        if isinstance(value, dict) and value:
            flat |= flat_settings(value, f"{prefix}{key}.")
        elif value != {}:
            flat[prefix + key] = compact(value)
    return flat


def _keys_apart(runs: Sequence[RunFolder], flat: dict[RunFolder, dict[str, str]]) -> list[str]:
    """The settings in which runs of one algorithm differ within a task, in the order of params.json.

    One that some runs do not have is no difference if the others agree on it: versions of raypid add settings.
    """
    tasks = [[flat[run] for run in there] for there in grouped(runs, lambda run: run.task).values()]
    keys = dict.fromkeys(key for run in runs for key in flat[run])
    return [key for key in keys if any(len({s[key] for s in there if key in s}) > 1 for there in tasks)]


def _without_repetitions(same: list[RunFolder]) -> list[list[RunFolder]]:
    """Split runs so that no part has a seed twice: by parent folder (before/0, after/0) if that does it, or into single runs."""
    for parts in ([same], list(grouped(same, lambda run: run.path.parent).values())):
        if all(len({str(run.seed) for run in part}) == len(part) for part in parts):
            return parts
    return [[run] for run in same]


def _labelled(groups: Sequence[Group]) -> list[Group]:
    """Name groups by what sets them apart, and by a folder where that is long or does not tell two groups of a task apart."""
    folders = [
        os.path.abspath(group.runs[0].path if len(group.runs) == 1 else group.runs[0].path.parent) for group in groups
    ]
    above = os.path.commonpath([os.path.dirname(folder) for folder in folders]) if folders else ""
    names = [os.path.relpath(folder, above) for folder in folders]
    texts = [_text_of(group) for group in groups]
    alike = Counter((group.task, text) for group, text in zip(groups, texts))
    labelled: list[Group] = []
    for group, name, text in zip(groups, names, texts):
        if text.endswith("...") and names.count(name) == 1:
            text = f"{group.apart.get('algorithm', '')} {name}".strip()
        elif alike[group.task, text] > 1:
            text = f"{text} {name}".strip()
        labelled.append(replace(group, label=text))
    return labelled


def _text_of(group: Group) -> str:
    """The algorithm and the settings that distinguish a group; if they are long, their beginning."""
    settings = dict(group.apart)
    algorithm, changed = settings.pop("algorithm", ""), settings.pop("changed", "")
    words = [f"{key}={short(value)}" for key, value in settings.items() if f"; {key} " not in f"; {changed}"]
    words += ["unchanged" if changed == "nothing" else changed] * bool(changed)
    return shorten(f"{algorithm} {', '.join(words)}", LONGEST_LABEL)


def short(text: str) -> str:
    """Shorten the text of a setting's value in the middle."""
    half = LONGEST_VALUE // 2
    return text if len(text) <= LONGEST_VALUE else f"{text[: half - 1]}…{text[-half:]}"
