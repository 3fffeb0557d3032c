"""Names for what can be plugged in. An entry is an object, or a string "module:attribute" that is imported when used."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from raypid.errors import CodeError, ConfigError, UserError, shown
from raypid.plugins.extras import MissingPackage, install_hint
from raypid.plugins.modules import apart, entry_name, import_named, located, name_of, names_file
from raypid.storage.ownership import path_hint

T = TypeVar("T")


_NEAR, _NEAR_SHORT = 0.74, 0.66
"""How alike names must be to be suggested (`difflib`'s ratio); names of at most four letters need less: DNQ is one swap away from DQN."""
_NEAR_PART = 0.65
"""Least similarity of the parts of two names with equally many parts."""
_ALIKE = 0.1
"""Names that are less near than the best by more than this are not suggested beside it."""
_MOST_KNOWN = 40
"""Most names that a message lists."""
_PACKAGE = str(Path(__file__).parents[1])
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def by_name(value: object, key: str = "") -> tuple[str, str]:
    """Describe a value that does not fit; and, if it is a user's own network, model or agent, how to give it, else "".

    Args:
        value: the class, or an object of it.
        key: the setting that it was given for; "" for one that takes something else, such as an environment.
    """
    cls: type = value if isinstance(value, type) else type(value)
    methods = {"choose_actions": "model", "forward": "network", "fetch_grads": "agent"}
    kind = next((kind for method, kind in methods.items() if hasattr(cls, method)), "")
    if not kind or key not in ("", *methods.values()):
        return shown(value), ""
    if key == "agent":
        kind = key
    given = 'agent="mine", agent_config={...}' if kind == "agent" else 'model={"network": "mine", "custom": {...}}'
    told = f' Register it first: raypid.register_{kind}("mine", {cls.__name__}), then {given} with its arguments.'
    return f"{'the class' if value is cls else 'an object of class'} {cls.__name__}", told


def suggest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the names in `known` that `name` may be meant for, best first; none where nothing is near. Case does not matter.

    Near is what is spelt almost the same, and what `name` is a part or a shortening of: workers, num_workers; eval_interval,
    evaluation_interval.
    """
    scores = {other: _nearness(name, other) for other in known}
    best = max(scores.values(), default=0.0)
    near = [other for other, score in scores.items() if score and score >= best - _ALIKE]
    return sorted(near, key=lambda other: -scores[other])[:count]


def _nearness(name: str, other: str) -> float:
    """How near two names are, up to 1; 0 if one cannot be meant by the other."""
    one, two = (re.sub(r"[^0-9a-z]+", "-", text.lower()).strip("-") for text in (name, other))
    if one == two:
        return 1.0
    ratio = difflib.SequenceMatcher(None, one, two).ratio()
    least = _NEAR_SHORT if max(len(one), len(two)) <= 4 else _NEAR
    parts, others = ([part.lower() for part in _PARTS.findall(text)] for text in (name, other))
    if len(parts) == len(others) > 1 and not all(map(_is_typo, parts, others)):
        ratio = 0.0
    long = [part for part in parts if len(part) > 2]
    if long and len(long) == len(parts) and all(any(o.startswith(part) for o in others) for part in parts):
        ratio = max(ratio, 0.8 + 0.1 * len(one) / len(two))
    return ratio if ratio >= least else 0.0


def _is_typo(part: str, other: str) -> bool:
    """Whether a part of a name may be meant for another: grad_clip is not reward_clip, however much of the two is the same."""
    return other.startswith(part) or difflib.SequenceMatcher(None, part, other).ratio() >= _NEAR_PART


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: " Did you mean 'x'?", or all known names where none is near and they are not too many."""
    known = list(known)
    if near := suggest(name, known):
        return meant(near)
    return f" Known: {', '.join(sorted(known))}." if len(known) <= _MOST_KNOWN else ""


def meant(near: Iterable[str]) -> str:
    """The end of an error message that offers names: " Did you mean 'x' or 'y'?"; "" without any."""
    offered = " or ".join(map(repr, near))
    return f" Did you mean {offered}?" if offered else ""


COMING_FROM = "docs/coming-from/ says what other libraries' names are here."


def unknown(kind: str, names: Iterable[str], known: Iterable[str]) -> str:
    """Return the message about names that do not exist: what each is called here, or else the nearest known names.

    Args:
        kind: what they should name, such as "setting".
        known: the names that fit, settings or flags. What is near another name of a setting is near that setting.
    """
    shown = {_plain(name): name for name in known}
    shown |= {other: shown[ours] for other, ours in other_names("ALIASES").items() if ours in shown}
    told, link = list[str](), ""
    for name in names:
        if ours := other_names("ANSWERS").get(_plain(name)):
            told.append(f"{name!r} is {shown.get(ours, ours)!r} here.")
            continue
        near = dict.fromkeys(shown[other] for other in suggest(_plain(name), shown))
        link = link if near else f" {COMING_FROM}"
        told.append(f"Unknown {kind} {name!r}.{meant(near)}")
    return " ".join(told) + link


def _plain(name: str) -> str:
    """The name of a setting, for a flag."""
    return name.removeprefix("--").replace("-", "_")


@functools.cache
def other_names(table: str) -> Mapping[str, str]:
    """Return a table of `raypid.compat.names`: names of other libraries -> ours."""
    names: Mapping[str, str] = import_string(f"raypid.compat.names:{table}")
    return names


def import_string(entry: str) -> Any:
    """Import "module:attribute" or "path/file.py:attribute".

    Raises:
        UserError: there is no such module or file, or it has no such attribute.
    """
    module_name, attribute = apart(entry)
    if not module_name or not attribute:
        raise UserError(f"{entry!r} does not say which class or function: write '{module_name or 'module'}:Name'.")
    try:
        module = import_named(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
            raise UserError(
                f"{entry!r}: there is no module {error.name!r} on the path: run from its folder, or install it.{path_hint(error.name)}"
            ) from error
        if missing := install_hint(error):
            raise MissingPackage(f"{entry!r} imports {error.name}, which is not installed{missing}") from error
        raise
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise UserError(no_attribute(module, module_name, attribute)) from error


def no_attribute(module: ModuleType, named: str, attribute: str) -> str:
    """The message that a module, or file, which users know as `named`, has no such attribute; with the nearest that it has."""
    what = named if names_file(named) else f"module {named!r}"
    names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    hint = meant(f"{named}:{near}" for near in suggest(attribute, names))
    return f"{f'{named}:{attribute}'!r}: {what} has no {attribute!r}.{hint}"


def called(owner: str, method: str, function: Callable[..., T], *args: object, **keywords: object) -> T:
    """Call a method of a user's class.

    Raises:
        CodeError: what it raised, with the traceback from the user's first line on.
    """
    try:
        return function(*args, **keywords)
    except UserError:
        raise
    except Exception as error:
        frames: list[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)[1:]  # the first is this one
        frames = list(itertools.dropwhile(_is_ours, frames)) or frames
        place = f" ({frames[0].filename}:{frames[0].lineno})" if frames else ""
        raise CodeError.after(
            frames, error, f"{owner}.{method}() raised {type(error).__name__}{place}{install_hint(error)}."
        ) from None


def _is_ours(frame: traceback.FrameSummary) -> bool:
    """Whether a line is raypid's or a package's, not the user's."""
    return frame.filename.startswith(_PACKAGE) or "site-packages" in frame.filename


def within_remote(entry: Any) -> Any:
    """Return the class inside an actor class of `@ray.remote`; anything else unchanged. It does not import Ray."""
    metadata = getattr(entry, "__ray_metadata__", None)
    modified = getattr(metadata, "modified_class", None)
    return entry if modified is None else getattr(modified, "__ray_actor_class__", modified)


def _same_code(one: object, other: object) -> bool:
    """Whether both are the same definition, perhaps run twice, as a notebook cell or a module that is loaded again is."""
    if one is other or entry_name(one) == entry_name(other):
        return True
    try:
        same_file = inspect.getfile(one) == inspect.getfile(other)  # type: ignore[arg-type]
    except (TypeError, OSError):
        return False
    return same_file and apart(name_of(one))[1] == apart(name_of(other))[1]


def check_name(name: object, function: str) -> None:
    """Check that a class is registered under a name.

    Raises:
        ConfigError: the class itself was given in its place, as by a decorator without parentheses.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f'{function} takes a name first: @raypid.{function}("mine"), not {name!r}.')


def check_methods(kind: str, entry: object, methods: Sequence[str]) -> None:
    """Check that a class has all methods of its kind.

    Raises:
        ConfigError: names the class and those that it lacks.
    """
    if missing := [method for method in methods if not callable(getattr(entry, method, None))]:
        name = getattr(entry, "__qualname__", repr(entry))
        raise ConfigError(f"{name} lacks {', '.join(missing)}; {kind} has {', '.join(methods)}.")


when_added: list[Callable[[], None]] = []
"""Called after a user has registered something."""


class Registry(Generic[T]):
    """A table from names to objects of type T, which users can add to.

    Args:
        kind: what an entry is, for messages.
        entries: raypid's own entries, "module:attribute" each. Users cannot replace them by `add`.
        hint: ends the message about an unknown name.
        base: "module:Class" that every entry must derive from; "" accepts any object.
        reserved: names that users cannot take either.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T | str] | None = None,
        hint: str = "",
        *,
        base: str = "",
        reserved: Iterable[str] = (),
    ) -> None:
        self.kind, self.hint, self.base = kind, hint, base
        self._entries: dict[str, T | str] = dict(entries or {})
        self._own = frozenset(self._entries).union(reserved)

    def register(self, name: str, entry: T | str) -> None:
        """Add or replace an entry: an object, or a string "module:attribute"."""
        self._entries[name] = entry

    def add(self, name: str, entry: T | str) -> None:
        """Register what a user has written.

        Raises:
            UserError: the name is one of raypid's own or that of other code, or the entry is of the wrong type.
        """
        if name in self._own:
            raise UserError(f"{name!r} is the name of raypid's own {self.kind}: give yours another name.")
        if name in self._entries and not _same_code(self._entries[name], entry):
            raise UserError(
                f"The {self.kind} {name!r} is registered already, by {entry_name(self._entries[name])}: give {entry_name(entry)} another name."
            )
        if not isinstance(entry, str):
            self._check(name, entry)
        self.register(name, entry)
        for told in when_added:
            told()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def is_own(self, name: str) -> bool:
        """Tell whether raypid itself brings the entry."""
        return name in self._own

    def names(self) -> list[str]:
        return sorted(self._entries)

    def canonical(self, name: str) -> str:
        """The entry that differs from `name` by its case at most, "PPO" for "ppo"; a file of the user's with its whole path; else `name`."""
        if name in self._entries or ":" in name or names_file(name):
            return str(located(name))
        same = [known for known in self._entries if known.lower() == name.lower()]
        return same[0] if len(same) == 1 else name

    def entry(self, name: str) -> T | str:
        """Return what was registered, without importing it."""
        return self._entries[name]

    def find(self, name: str, target: str) -> T:
        """Return the entry `name`. Where this process has none, import `target` ("module:attribute") if that is not ""."""
        return self.get(target if target and name not in self._entries else name)

    def get(self, name: str) -> T:
        """Return the entry `name`, or import a "module:attribute" that was never registered.

        Raises:
            UserError: an unknown name, with the nearest known ones, or an object of the wrong type.
        """
        if name not in self._entries and ":" not in name and not names_file(name):
            raise UserError(f"Unknown {self.kind} {name!r}.{did_you_mean(name, self._entries)}{self.hint}")
        entry = self._entries.get(name, name)
        found: T = import_string(entry) if isinstance(entry, str) else entry
        if name not in self._own:
            self._check(name, found)
        return found

    def _check(self, name: str, found: object) -> None:
        if self.base and not (isinstance(found, type) and issubclass(found, import_string(self.base))):
            raise UserError(f"{self.kind.capitalize()} {name!r} must be a subclass of {self.base}, not {found!r}.")


_TOYS = ("Catch", "DictCartPole", "MultiMatch", "PositionCartPole", "RepeatFirst", "TMaze", "Wait")
"""Classes of raypid.envs.toy, whose ids are such as "raypid/Catch-v0"."""
ENVS: Registry[Any] = Registry("environment", {
    "gym_env": "raypid.envs.gym_env:gym_env",
    **{f"raypid/{name}-v0": f"raypid.envs.toy:{name}" for name in _TOYS},
})  # fmt: skip
NETWORKS: Registry[type] = Registry("network", {
    **dict.fromkeys(("mlp", "cnn", "resnet", "lstm", "gru"), "raypid.nn.networks:OwnNetwork"),
    "ppo": "raypid.algorithms.models:PPOModel",
    "a2c": "raypid.algorithms.models:A2CModel",
}, " One of your own is 'module:Class', or registered before (raypid.register_network).",
    reserved=["auto"])  # fmt: skip
OWN_MODELS = ("a2c", "ppo")
"""Entries of NETWORKS that are whole models."""
MODEL_METHODS = ("choose_actions", "step", "get_weights", "set_weights")
AGENT_METHODS = ("set_weights", "send_trajectory", "fetch_grads")
AGENTS: Registry[type] = Registry("agent", {
    "default_agent": "raypid.nn.user_agent:DefaultAgent",
}, " One of your own is 'module:Class', or registered before (raypid.register_agent).")  # fmt: skip


def is_model(network: str) -> bool:
    """Return whether a name of NETWORKS, or "module:Class", is a whole model, which acts and differentiates by
    itself."""
    return network in OWN_MODELS or (
        network != "auto" and not NETWORKS.is_own(network) and hasattr(NETWORKS.get(network), "choose_actions")
    )


ALGORITHMS: Registry[Any] = Registry("algorithm", {
    "PPO": "raypid.algorithms.ppo:PPO",
    "A2C": "raypid.algorithms.a2c:A2C",
    "A3C": "raypid.algorithms.a3c:A3C",
    "IMPALA": "raypid.algorithms.impala:IMPALA",
    "APPO": "raypid.algorithms.impala:APPO",
    "DQN": "raypid.algorithms.dqn:DQN",
    "Rainbow": "raypid.algorithms.dqn:Rainbow",
    "ApeX": "raypid.algorithms.dqn:ApeX",
    "R2D2": "raypid.algorithms.r2d2:R2D2",
    "SQN": "raypid.algorithms.sqn:SQN",
    "SAC": "raypid.algorithms.sac:SAC",
    "TD3": "raypid.algorithms.td3:TD3",
    "DDPG": "raypid.algorithms.td3:DDPG",
    "CustomModel": "raypid.algorithms.custom_model:CustomModel",
    "ES": "raypid.algorithms.es:ES",
    "ARS": "raypid.algorithms.es:ARS",
}, " One of your own is 'module:Class', or registered before (raypid.register_algorithm).",
    base="raypid.algorithms.base:Algorithm")  # fmt: skip
REPLAYS: Registry[type] = Registry("replay", {
    "uniform": "raypid.replay.uniform:UniformReplay",
    "prioritized": "raypid.replay.prioritized:PrioritizedReplay",
}, base="raypid.replay.base:Replay")  # fmt: skip
INTRINSIC_REWARDS: Registry[object] = Registry("intrinsic reward", {
    "rnd": "raypid.algorithms.intrinsic:RandomNetworkDistillation",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Registries:
    """All names that this process knows: raypid's own, and those that have been registered here.

    It shows what is there: `raypid.get_registry().envs.names()`, `"mine" in raypid.get_registry().networks`. An agent that is
    given it (`raypid.PPOAgent(env="mine", registry=raypid.get_registry())`) finds no more by it: every agent of a process looks
    its names up here, and its workers on Ray are told what they need.
    """

    envs: Registry[Any]
    """Registered by `raypid.register_env`. Gymnasium has a registry of its own."""
    networks: Registry[type]
    """Registered by `raypid.register_network` or `register_model`."""
    algorithms: Registry[Any]
    """Registered by `raypid.register_algorithm`."""
    agents: Registry[type]
    """Registered by `raypid.register_agent`."""
    replays: Registry[type]
    intrinsic_rewards: Registry[object]


_THE_REGISTRIES = Registries(ENVS, NETWORKS, ALGORITHMS, AGENTS, REPLAYS, INTRINSIC_REWARDS)


def registered() -> dict[str, dict[str, object]]:
    """Return what users have registered in this process, by registry and name."""
    found: dict[str, dict[str, object]] = {}
    for field in fields(Registries):
        registry: Registry[Any] = getattr(_THE_REGISTRIES, field.name)
        found[field.name] = {name: registry.entry(name) for name in registry.names() if not registry.is_own(name)}
    return found


def adopt(entries: Mapping[str, Mapping[str, object]]) -> None:
    """Register here what another process has in `registered`."""
    for registry, named in entries.items():
        for name, entry in named.items():
            getattr(_THE_REGISTRIES, registry).register(name, entry)


def get_registry() -> Registries:
    """Return all names that this process knows; the same object each time."""
    return _THE_REGISTRIES
