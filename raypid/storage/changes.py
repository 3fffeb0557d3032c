"""What has changed in a run since it began: the list `changes` of its checkpoints and of params.json, oldest first.

A change says at which step and iteration a setting had another value from then on, and by what: `resume` (given beside --resume, to a later
`fit`, or by another agent's `restore`), `fit` (made to fit the machine), `rollback` (a divergence halved the learning rate, the setting is
as it was).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from raypid.errors import ConfigError, shown
from raypid.storage.plain_data import texts

CHANGES = "changes"
"""Key of the list."""
RESUME, FIT, ROLLBACK = "resume", "fit", "rollback"
Change: TypeAlias = "dict[str, Any]"
"""step, iteration, key ("lr", "model.hidden", "stop"), from, to, by."""
_KINDS: dict[str, type] = {"step": int, "iteration": int, "key": str, "by": str}


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Yield (name, value before, value after) of settings that both have and that differ; of the network's one by one."""
    for key, value in after.items():
        if key not in before:
            continue  # settings of another version
        old = before[key]
        if key == "model" and isinstance(old, Mapping) and isinstance(value, Mapping):
            for name, first, second in differences(old, value):
                yield f"model.{name}", first, second
        elif _plain(old) != _plain(value):
            yield key, old, value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def read_changes(values: object) -> list[Change]:
    """Check a list of changes that was read from a file.

    Raises:
        ValueError: it is no such list.
    """
    changes = [] if values is None else values
    if not isinstance(changes, list):
        raise ValueError(f"{CHANGES} is {shown(changes)}")
    for change in changes:
        sound = isinstance(change, dict) and {"from", "to"} <= change.keys()
        if not sound or any(type(change.get(name)) is not kind for name, kind in _KINDS.items()) or change["step"] < 0:
            raise ValueError(f"{CHANGES} has {shown(change)}")
    return changes


def without_code(changes: Sequence[Change]) -> list[Change]:
    """Those that cannot name code ("module:Name"), for a list that nobody has signed: what it says will be written with a signature."""
    return [c for c in changes if not any(":" in text for _, text in texts([c["from"], c["to"]]))]


def later(changes: Sequence[Change]) -> list[Change]:
    """Those that settings were changed by after the run had begun: neither what a machine made of them at its start nor rollbacks."""
    return [c for c in changes if c["by"] != ROLLBACK and (c["step"] or c["by"] != FIT)]


_SINCE: dict[str, tuple[object, Callable[[object], bool]]] = {
    "noise_persistence": (1.0, lambda run: run not in ("CustomModel", "ES", "ARS")),
    "desired_kl": (0.0, lambda run: run == "PPO"),
    "start_episodes": (0, lambda run: run in ("SAC", "TD3", "DDPG")),
}
"""Settings that came later, with a default that changes what a run does -> what runs did before; whether it concerns an algorithm."""


def as_it_was(settings: Mapping[str, object], algorithm: object) -> dict[str, object]:
    """All settings of a run that were saved, with those that did not exist then at what the run did without them."""
    if not {"env", "num_workers"} <= settings.keys():
        return dict(settings)  # these are not all
    since = {name: was for name, (was, concerns) in _SINCE.items() if name not in settings and concerns(algorithm)}
    return {**settings, **since}


def first_settings(params: Mapping[str, object]) -> dict[str, object]:
    """What params.json says of how its run began: the settings without later changes, the algorithm, and the newest stop criteria, which
    say how far the run went.

    Raises:
        ConfigError: its list of changes is damaged.
    """
    kept = {key: value for key, value in params.items() if key != CHANGES}
    first = as_it_was(copy.deepcopy(kept), kept.get("run"))
    for change in reversed(changes_of(params)):
        key, _, part = change["key"].partition(".")
        group = first.get(key)
        if part and isinstance(group, dict):
            group[part] = change["from"]
        elif key != "stop" and key in first:
            first[key] = change["from"]
    return first


def changes_of(params: Mapping[str, object]) -> list[Change]:
    """The later changes (see `later`) in the values of params.json.

    Raises:
        ConfigError: the list is damaged.
    """
    try:
        return later(read_changes(params.get(CHANGES)))
    except ValueError as error:
        raise ConfigError(f"params.json is damaged: {error}.") from None


def described(change: Change) -> str:
    """A change in words: "lr 0.0003 to 0.0001 at step 40,000"."""
    return f"{change['key']} {compact(change['from'])} to {compact(change['to'])} at step {change['step']:,}"


def compact(value: object) -> str:
    """A setting as short text, such as "0.001", "[64,64]" or "none"."""
    if value is None or isinstance(value, float):
        return "none" if value is None else f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
