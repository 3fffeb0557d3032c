"""Settings: keyword-only dataclasses with a docstring for each field, built from dicts, files and dotted overrides.

`Config` and `ModelConfig` hold what every algorithm has. An algorithm's own Config inherits from `Config` and lies beside
the algorithm.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import json
import math
import re
import textwrap
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from raypid.errors import ConfigError as ConfigError
from raypid.errors import shown
from raypid.plugins.registry import by_name, other_names, unknown
from raypid.settings.address import check_form
from raypid.settings.ranges import tunable
from raypid.settings.variants import word_of
from raypid.storage.plain_data import read_json

C = TypeVar("C", bound="Settings")
SourceKind: TypeAlias = Literal["given", "flag", "file", "tuned", "resume", "adapted"]


@dataclass(kw_only=True, slots=True)
class Settings:
    """Base of dataclasses that users fill in."""

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, object]) -> C:
        """Build from a mapping; unknown keys and wrong types are errors with a suggestion."""
        return cls().replace(values)

    def replace(self: C, values: Mapping[str, object]) -> C:
        """Return a copy with `values` laid over it. Keys may be dotted ("model.hidden"), with "-" in place of "_".

        Raises:
            ConfigError: an unknown key (the message names the nearest ones), a value of the wrong type, or two names of one setting with
                two values.
        """
        changed, hints, names = copy.copy(self), type_hints(type(self)), dict[str, str]()
        check_known(values, hints)
        for raw_key, value in sorted(values.items(), key=lambda item: canonical(item[0]) != item[0]):
            name = canonical(raw_key)
            first = names.setdefault(name, raw_key)
            # another name wins over ours in a copy of all settings
            is_copied = first == name and values[first] == getattr(self, name, values[first])
            if first != raw_key and values[first] != value and not is_copied:
                raise ConfigError(f"{raw_key!r} and {first!r} are the same setting: give one of them.")
            key, _, rest = _name_in(raw_key, hints).partition(".")
            current = getattr(changed, key)
            if isinstance(current, Settings):
                value = nested(current, key, {rest: value} if rest else value)
            elif rest:
                if not isinstance(current, dict):
                    raise ConfigError(f"{raw_key!r}: {key} is a single value, it has no {rest!r}.")
                value = {**current, rest: value}
            else:
                value = coerce(key, value, hints[key])
            object.__setattr__(changed, key, value)
        return changed

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__:  # it would have no effect
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        if is_set(self, name):
            raise AttributeError(f"Settings do not change: take a copy, config.replace({{{name!r}: ...}}).", name=name)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, object]:
        """Return nested plain values, with lists for tuples. They fit into JSON where the values themselves do."""
        plain: dict[str, object] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Settings):
                value = value.to_dict()
            plain[f.name] = list(value) if isinstance(value, tuple) else copy.copy(value)
        return plain


def is_set(settings: Settings, name: str) -> bool:
    """Whether a field has a value: it is given one once, by the constructor. A class without slots has its default beside that."""
    slot = getattr(type(settings), name, None)
    return hasattr(settings, name) if isinstance(slot, types.MemberDescriptorType) else name in vars(settings)


_OF_FIT = ("fit(stop=...)", "fit(checkpoint_interval=...)", "fit(keep_checkpoints=...)", "fit(final_episodes=...)")
"""Arguments of `fit`, where these are given as settings."""


def check_known(values: Mapping[str, object], hints: Mapping[str, object]) -> None:
    """Refuse settings that do not exist, all of them at once.

    Raises:
        ConfigError: names them, and what each is called here or may be meant to be.
    """
    known = {*hints, *(f"model.{name}" for name in type_hints(ModelConfig) if hints.get("model") is ModelConfig)}
    if wrong := [key for key in _flat(values) if _setting(_name_in(key, hints)) not in known]:
        raise ConfigError(unknown("setting", wrong, [*known, *_OF_FIT]))


def nested(current: C, key: str, value: object) -> C:
    """Lay `value` over the group of settings called `key`.

    Raises:
        ConfigError: it is no mapping of such settings.
    """
    if isinstance(value, type(current)):
        return value
    if not isinstance(value, Mapping):
        first = dataclasses.fields(current)[0].name
        what, told = by_name(value, key)
        raise ConfigError(
            f"{key} takes a mapping such as {{{first!r}: {getattr(current, first)!r}}}, not {what}.{told}"
        )
    try:
        return current.replace(value)
    except ConfigError as error:
        raise ConfigError(f"In {key!r}: {error}") from None


def canonical(key: str) -> str:
    """Our name of a setting, with underscores; of the network's also where they were named within it, "model.net_arch".

    Raises:
        ConfigError: it is not text.
    """
    if not isinstance(key, str):
        raise ConfigError(f"The name of a setting is text, not {shown(key)}.")
    full, aliases = key.replace("-", "_"), other_names("ALIASES")
    within = aliases.get(full.removeprefix("model."), "")
    return within if within.startswith("model.") else aliases.get(full, full)


def _name_in(key: str, hints: Collection[str]) -> str:
    """Our name of a setting within the group of settings that has `hints`: within model, "net_arch" is "hidden"."""
    return canonical(key) if "model" in hints else canonical(key).removeprefix("model.")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value came from."""

    kind: SourceKind
    """Of what kind: given in Python; a flag; a file; tuned settings; the run that goes on; or chosen by raypid itself."""
    detail: str
    """Which file, which tuned settings, why it was chosen; "" if there is nothing more to say."""
    value: object


class Given(dict[str, object]):
    """Settings that know where each came from; to whom that is no matter they are a dict. `overlay` keeps what it knows.

    Args:
        kind, detail: where all of `values` came from (`Source`).
    """

    def __init__(self, values: Mapping[str, object], kind: SourceKind = "given", detail: str = "") -> None:
        super().__init__(values)
        self.sources: dict[str, list[Source]] = {key: [Source(kind, detail, value)] for key, value in self.items()}
        """Name of a setting, as it was given -> where its value came from, last, and before it the values that it has replaced."""

    def sources_of(self, key: str) -> list[Source]:
        return self.sources.get(key) or [Source("given", "", self[key])]

    def without(self, *names: str) -> Given:
        """A copy that lacks these settings."""
        rest = Given({key: value for key, value in self.items() if key not in names})
        rest.sources = {key: self.sources_of(key) for key in rest}
        return rest


def overlay(below: Mapping[str, object], above: Mapping[str, object]) -> Given:
    """Lay the settings `above` over those `below`; the network's one by one. What is below and says the same as a setting above is
    dropped."""
    under, over = _flat(below), _flat(above)
    named = {canonical(key) for key in over}
    hidden = named | (_RATIO if _RATIO & named else set())

    def is_kept(key: str) -> bool:
        name = canonical(key)
        return not (name in hidden or any(name.startswith(f"{other}.") for other in named))

    laid = Given({**{key: value for key, value in under.items() if is_kept(key)}, **over})
    before = {canonical(key): under.sources_of(key) for key in under}
    for key in laid:
        own = over.sources_of(key) if key in over else []
        laid.sources[key] = [*before.get(canonical(key), []), *own]
    return laid


def _flat(values: Mapping[str, object]) -> Given:
    """The settings with those of `model` (a mapping or a ModelConfig) by their full names ("model.hidden"), so that one of them does not
    replace all, and by our names where the other ones need no remark."""
    flat, plain = Given({}), other_names("UNREMARKED")
    for written, value in values.items():
        sources = values.sources_of(written) if isinstance(values, Given) else [Source("given", "", value)]
        key = plain.get(str(written).replace("-", "_"), written)
        if isinstance(value, ModelConfig):
            value = value.to_dict()
        if key == "model" and isinstance(value, Mapping) and not word_of(value):
            for name, part in value.items():
                flat[f"model.{name}"] = part
                flat.sources[f"model.{name}"] = [replace(sources[-1], value=part)]
        else:
            flat[key], flat.sources[key] = value, sources
    return flat


def sources_by_setting(values: Mapping[str, object]) -> dict[str, list[Source]]:
    """Name of each setting that `values` have ("lr", "model.hidden") -> where its value came from, as in `Given.sources`."""
    found: dict[str, list[Source]] = {}
    given = _flat(values)
    for key in given:
        found.setdefault(_setting(key), []).extend(given.sources_of(key))
    return found


def given_names(values: Mapping[str, object]) -> dict[str, str]:
    """Return the full names ("lr", "model.hidden") of the settings in a mapping, each with the name that was given."""
    return {_setting(key): key.replace("-", "_") for key in _flat(values)}


def _setting(key: str) -> str:
    """The full name of the setting that a key names, or a part of: "env_config" for "env_config.size"."""
    name, _, rest = canonical(key).partition(".")
    return f"model.{rest.partition('.')[0]}" if name == "model" and rest else name


def renamed(values: Mapping[str, object]) -> list[str]:
    """Say of settings that were given by another name what they are called here: a sentence, or none."""
    given, aliases = [key.replace("-", "_") for key in _flat(values)], other_names("ALIASES")
    plain = dict.fromkeys(name if name in aliases else name.removeprefix("model.") for name in given)
    told = [f"{name} is called {aliases[name]}" for name in plain if name in aliases]
    return [f"{', '.join(told)} here"] if told else []


_RATIO = {"samples_per_insert", "a_l_ratio"}
"""Two settings that say the same: what is given last wins."""


_hints_of: Callable[[type], dict[str, object]] = functools.cache(get_type_hints)


def type_hints(cls: type[Settings]) -> dict[str, object]:
    """Return the type of each field."""
    hints = _hints_of(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def is_none(value: object) -> bool:
    """Whether a value says that a setting has none: None, or the word as help, JSON and Python write it."""
    return value is None or (isinstance(value, str) and value in ("none", "None", "null"))


def coerce(key: str, value: object, hint: object) -> object:
    """Convert `value` to the type `hint`: 3 fits a float, "1e6" and 1e6 fit an int, a list fits a tuple, "none" is None where that fits.

    Raises:
        ConfigError: the value does not fit the type.
    """
    try:
        return _fit(value, hint)
    except _MISFITS:
        what, told = by_name(value, key)
        what = what if told else f"{what} ({type(value).__name__})"
        raise ConfigError(f"{key} takes {describe_type(hint)}, not {what}.{told}") from None


_MISFITS = (ValueError, OverflowError)
"""What `_fit` raises."""


def _fit(value: object, hint: object) -> object:
    """Return `value` as the type `hint`; raise one of _MISFITS where it does not fit."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in _ANYTHING:
        return value
    if getattr(value, "ndim", None) == 0 and (item := getattr(value, "item", None)) is not None:
        value = item()  # of a number of NumPy or another framework, none of which is imported for this
    if kind in (Union, types.UnionType):
        if types.NoneType in arguments and Path not in arguments and is_none(value):
            return None  # a path may have that name
        for argument in sorted(arguments, key=lambda a: type(value) is not a):  # the value's own type comes first
            with contextlib.suppress(*_MISFITS):
                return _fit(value, argument)
    elif kind is int or kind is float:
        return _fit_number(value, whole=kind is int)
    elif kind is tuple and arguments and isinstance(value, (list, tuple)):
        return tuple(_fit(v, arguments[0]) for v in value)
    elif kind is dict and isinstance(value, Mapping):
        return dict(value)
    elif (kind is Literal and value in arguments) or (isinstance(kind, type) and isinstance(value, kind)):
        return value
    raise ValueError


def _fit_number(value: object, *, whole: bool) -> float:
    if isinstance(value, str):  # YAML reads 1e6 as a string
        value = int(value) if value.lstrip("+-").isdigit() else float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, SupportsIndex)):
        raise ValueError
    if whole and isinstance(value, float) and not value.is_integer():
        raise ValueError
    if abs(int(value) if whole else 0) >= 2**1000:
        raise OverflowError
    return int(value) if whole else float(value)


_ANYTHING = (object, Any)
_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    Callable: "a function",
    types.NoneType: "none",
    **dict.fromkeys(_ANYTHING, "anything"),
}


def describe_type(hint: object) -> str:
    """Describe a type for users: "a whole number or none", "one of 'auto', 'ray'"."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(describe_type(a) for a in arguments)
    if kind is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if kind is tuple and arguments:
        return f"a list, each {describe_type(arguments[0])}"
    return _WORDS.get(kind, str(getattr(kind, "__name__", kind)))


def field_docs(cls: type[Settings]) -> dict[str, str]:
    """Map each field to its docstring: the string that follows it in the class body. Base classes are included."""
    docs: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        docs |= _own_docs(base)
    return {f.name: docs[f.name] for f in dataclasses.fields(cls) if f.name in docs}


@functools.cache  # reading the source takes a tenth of a second
def _own_docs(cls: type) -> dict[str, str]:
    definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for pair in itertools.pairwise(definition.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=doc)):
                docs[name] = " ".join(str(doc).split())
    return docs


def parse_value(text: str) -> object:
    """Parse a value of the command line as JSON; return the text itself where it is not JSON."""
    try:
        return read_json(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    except ValueError as error:
        raise ConfigError(f"{shown(text)} is no setting: {error}.") from None


@dataclass(kw_only=True, slots=True)
class ModelConfig(Settings):
    """The network. Which one fits a space is chosen by `raypid.nn.catalog` where `network` is auto."""

    network: str = "auto"
    """Kind of network: auto, mlp, cnn (sized to the image; Nature's for 84x84), resnet (IMPALA's), lstm or gru (an mlp
    with that memory), or the name of a registered torch.nn.Module. auto: a cnn for images of at least 16 by 16 pixels,
    else an mlp."""
    hidden: tuple[int, ...] | None = tunable((64, 64), choices=((32, 32), (64, 64), (128, 128), (256, 256), (400, 300)))
    """Widths of the fully connected layers. They follow the convolutions, if there are any. none: chosen from the
    environment (--explain shows the value and why)."""
    channels: tuple[int, ...] = ()
    """Output channels of the convolutions. Empty: as published (cnn 32, 64, 64; resnet 16, 32, 32). Fewer are faster,
    such as 16, 32 for Pong."""
    activation: Literal["tanh", "relu", "silu"] = tunable("tanh", choices=("tanh", "relu"))
    """Activation function of the fully connected layers. Convolutions use ReLU."""
    memory: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layer before the heads. It helps if one observation does not show enough, and every network takes one.
    Policy and value have one each unless model.shared is true."""
    memory_size: int = tunable(64, 32, 256, "powers of 2")
    """Units of the recurrent layer. More can remember more, but each step and update takes longer."""
    shared: bool = False
    """Whether policy and value share all layers but the last. false: each has its own network. Image networks always
    share their convolutions."""
    distribution: Literal["auto", "gaussian", "squashed_gaussian", "deterministic"] = "auto"
    """Distribution of continuous actions. auto: a diagonal Gaussian, or what the algorithm needs. squashed_gaussian:
    tanh keeps actions within bounds. deterministic: the network's output, without noise."""
    log_std_init: float | None = tunable(None, -2.0, 0.5, also=(None,))
    """Log of the initial standard deviation of a Gaussian policy. 0 is half the range of a bounded action. Lower
    explores less at first. Default: chosen from the environment (--explain shows the value and why)."""
    custom: dict[str, object] = field(default_factory=dict)
    """Keyword arguments for a registered network or model."""

    usual: ClassVar[tuple[str, ...]] = ("network", "memory")
    """What the short help shows beside the settings that can be searched."""

    @property
    def cell(self) -> str:
        """The memory that is asked for, by either name: lstm, gru, or "" for none.

        Raises:
            ConfigError: two different ones, or one without units.
        """
        named = self.network if self.network in ("lstm", "gru") else ""
        if named and self.memory not in ("none", named):
            raise ConfigError(f"model.network {named!r} and model.memory {self.memory!r} are two memories: set one.")
        if self.memory_size < 1:
            raise ConfigError(f"model.memory_size must be at least 1, not {self.memory_size}.")
        return named or ("" if self.memory == "none" else self.memory)


@dataclass(kw_only=True, slots=True)
class Config(Settings):
    """Settings of every algorithm, and the base class of an algorithm's own Config.

    A subclass is a keyword-only dataclass: `@dataclass(kw_only=True, slots=True)`. Each new field has a docstring, which becomes its
    help. Fields that a search may change are declared with `raypid.settings.ranges.tunable`.
    """

    env: object = None
    """Environment: a Gymnasium id such as CartPole-v1 or ALE/Pong-v5, envpool:Pong-v5, a file (reacher.py,
    reacher.py:Reach), module:Name, or a registered name. In Python also a class or a function."""
    env_config: dict[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment, such as {"continuous": true} for LunarLander-v3."""
    custom_args: dict[str, object] = field(default_factory=dict)
    """Values of the options that a project's options/custom_options.py declares. Environments, models and agents find
    them in `args`."""
    vectorizer: Literal["auto", "native", "envpool", "ale", "sync", "threads", "processes", "async"] = "auto"
    """How a worker steps its environments. auto takes the fastest that fits: the environment's own vector entry point,
    ALE's, or sync (threads if its steps wait)."""
    num_workers: int = 0
    """Number of rollout workers. They are processes on Ray that step environments. More collect faster if environments
    are slow. 0: everything runs in this process, without Ray."""
    num_envs_per_worker: int = tunable(8, 4, 64, "powers of 2")
    """Environments that one worker steps side by side. More make fewer, larger calls of the network. With PPO and A2C,
    each update then also learns from more rows."""
    num_learners: int = 0
    """Number of learner processes. 0: the learner runs in this process. 1: it is a Ray actor (for ray:// and GPU
    nodes). N: data-parallel actors that together learn what one would."""
    parameter_server: bool = False
    """On Ray, distribute weights through one actor on each node that has workers. Workers pull the newest weights with
    every fragment, the evaluator when it is free. false: each call has a reference to the weights, which Ray caches on
    each node."""
    num_cpus: float | None = None
    """CPUs to start Ray with, or the most to take of a cluster that is joined. A Ray that is started here never gets
    more workers than the machine has CPUs; a larger number leaves room for learners. none: all CPUs."""
    num_gpus: float = 0
    """GPUs of the learner, or of all learners together. 0: learn on the CPU."""
    gpu: str | None = None
    """Ids of the GPUs that the run may use, such as 0,1,2. There is one learner for each, unless num_gpus or
    num_learners say otherwise. none: all GPUs."""
    num_cpus_per_worker: float = 1
    """CPUs that each rollout worker reserves. With a fraction such as 0.1, workers that mostly wait share a core."""
    backend: Literal["auto", "local", "ray"] = "auto"
    """Where the roles run. local: in this process, in turn (PPO and A2C: with the same numbers). ray: in actors on Ray.
    auto: ray if there are workers, else local."""
    address: str | None = None
    """Ray cluster to join: "auto", "host:6379" or "ray://host:10001". local starts Ray on this machine, as none does
    unless RAY_ADDRESS is set."""
    fit: bool = False
    """Shrink a run that does not fit on the machine. The run says what it lowers: workers, learners, GPUs,
    environments, fragment_length or buffer_size. false: such a run stops before it starts."""
    wait_for_room_s: float = 0.0
    """Seconds to wait for room on a cluster that is full, or that grows on demand (KubeRay, Ray's launcher). The
    cluster sees what the run waits for. Afterwards, a run with fit takes what is there. 0: the run is refused, or
    shrunk, within 10 seconds."""
    seed: int | None = None
    """Seed of all random numbers. In one process, the same seed trains the same again. none: a new seed, which is
    written to params.json."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network."""
    device: str = "auto"
    """Where the learner computes: auto, cpu, cuda, cuda:1 or mps (Apple's GPUs). auto: cuda if num_gpus is above 0,
    else cpu."""
    kernel: Literal["auto", "numpy", "torch"] = "auto"
    """How small fully connected networks learn: with a hand-written NumPy kernel, or with torch's autograd. auto takes
    the faster."""
    num_threads: int = 0
    """Threads of the learner. 0: all cores for convolutions and for layers of 256 and more, else one, which is faster
    there. If other programs keep the cores busy, 1 is faster for layers of 256 too."""
    fragment_length: int = 128
    """Rows that one call collects from each environment. A row is one step. Longer fragments need fewer calls, but
    workers get new weights less often. With a memory, gradients reach back to the start of a fragment."""
    batch_size: int = tunable(256, 32, 1024, "powers of 2")
    """Rows in one gradient step. Larger batches give gradients with less noise, but fewer or slower steps. With several
    learners, it counts the rows of all."""
    lr: float = tunable(3e-4, 3e-5, 1e-2, "log")
    """Learning rate. Too high, and returns collapse or losses jump; too low, and learning is slow."""
    gamma: float = tunable(0.99, 0.9, 0.9995, "log of 1 - x")
    """Discount. Rewards count for about 1 / (1 - gamma) steps ahead: 0.99 looks 100 steps ahead."""
    normalize_observations: bool | None = tunable(None, choices=(False, True))
    """Shift and scale each element of observations by its running mean and deviation. The moments are merged over
    workers, saved, and frozen in evaluation. A resumed run keeps its choice. Default: chosen from the environment
    (--explain shows the value and why)."""
    normalize_rewards: bool = tunable(False, choices=(False, True))
    """Divide rewards, in the learner, by the running deviation of the discounted return. So the same lr suits tasks
    with small and with large rewards."""
    reward_scale: float = 1.0
    """Factor on rewards in the learner. Reported returns stay raw. It comes before reward_clip. normalize_rewards
    divides it out again, so with that it has no effect unless reward_clip is set."""
    reward_clip: float | None = None
    """Clip rewards to [-x, x] in the learner. Reported returns stay raw. 1 is usual for Atari games: large rewards then
    count no more than small ones. none: no clipping."""
    frame_stack: int = 1
    """Number of newest observations that the policy sees. More show what one does not, such as motion."""
    atari: bool | None = None
    """Atari preprocessing in ALE's own code: 84x84 grey, frame skip 4, no-op starts. none: on for ALE/ ids."""
    action_repeat: int = 1
    """Number of steps for which each action is repeated. Their rewards are added up. More make episodes shorter for the
    policy, which decides less often."""
    time_limit: int | None = None
    """Steps after which episodes are truncated. The value of the rest is bootstrapped. none: only the environment ends
    episodes."""
    observation_noise: float = 0.0
    """Standard deviation of Gaussian noise that training adds to float observations, in their own units."""
    action_noise: float = 0.0
    """Standard deviation of Gaussian noise that training adds to continuous actions, in units of the canonical action (1 is half the range)."""
    noise_persistence: float = tunable(16.0, 1.0, 128.0, "log")
    """Steps that exploration noise lasts. In every second episode, the random part of actions stays similar for about
    that long. This explores where single random steps cancel out (Eberhard et al. 2023). Such episodes stop if they
    earn less than the others. 1: new noise at every step."""
    callbacks: object | None = None
    """Hooks that the run calls: a `raypid.Callbacks` subclass, its instance, or "module:Name"."""
    evaluation_interval: int | None = None
    """Training iterations between evaluations. 0: no evaluations. none: `raypid train` and `fit` spend up to a tenth of
    the time on evaluations, `train()` none."""
    evaluation_env: object | None = None
    """Environment of evaluations, given as env is (without env_config). It must have the same spaces. none: the one
    that is trained on."""
    evaluation_num_episodes: int = 10
    """Episodes of one evaluation. More measure the policy more exactly, but take longer."""
    evaluation_num_envs: int | None = None
    """Most environments that play an evaluation, besides those of training. Lower it for simulators with few licences.
    none: 10."""
    evaluation_parallel: bool | None = None
    """On Ray, evaluate in a separate process while training goes on. false: training waits for evaluations. none: true
    if there is a spare CPU."""
    init_from: str | Path | None = None
    """Checkpoint, run folder or policy folder whose weights training starts from. It may also be called weights_file."""
    exact_resume: bool = False
    """Make each save an episode boundary, so that a resumed run equals, bit for bit, one that went on and saved after the
    same iterations (checkpoint_interval). On Ray, workers and learner of algorithms with replay then take turns, and
    asynchronous algorithms, whose runs differ anyway, refuse it."""
    worker_timeout_s: float = 300.0
    """Seconds without an answer after which a worker on Ray is killed and replaced. Several learners wait for each
    other for the same time."""
    max_restarts: int = 10
    """Most lost processes of one kind that are replaced within an hour. One more ends the run. Processes of a lost node
    do not count. The limit also holds for crashes of a worker's environments, apart from one in 1,000 steps."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """What to do if weights, losses or actions are no longer finite. stop: the run ends, and keeps the batch and the
    last good weights in diverged/. rollback: it goes back to its last checkpoint (the first is written at the start)
    with half the learning rate."""
    max_rollbacks: int = 3
    """Most rollbacks of a run. If it diverges once more, it stops."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "run": ("seed", "callbacks", "init_from", "exact_resume", "on_divergence", "max_rollbacks"),
        "environment": (
            "env", "env_config", "custom_args", "vectorizer", "num_envs_per_worker", "normalize_observations", "frame_stack", "atari",
            "action_repeat", "time_limit", "observation_noise", "action_noise", "noise_persistence",
        ),
        "evaluation": (
            "evaluation_interval", "evaluation_env", "evaluation_num_episodes", "evaluation_num_envs", "evaluation_parallel",
        ),
        "machine": (
            "num_workers", "num_learners", "parameter_server", "num_cpus", "num_gpus", "gpu", "num_cpus_per_worker", "backend", "address",
            "fit", "wait_for_room_s", "device", "kernel", "num_threads", "worker_timeout_s", "max_restarts",
        ),
    }  # fmt: skip
    """Groups of the command line's help -> the settings of this class in them; all others belong to the algorithm, or to the network."""
    usual: ClassVar[tuple[str, ...]] = (
        "seed", "env", "frame_stack", "time_limit", "evaluation_interval", "evaluation_num_episodes", "num_workers", "num_gpus", "fit",
    )  # fmt: skip
    """What the short help shows of this class beside the settings that can be searched."""

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Settings that this algorithm ignores -> the end of the sentence "NAME has no effect ...". A user who sets one gets this error."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "be at least 0": (
            "num_workers", "num_learners", "num_gpus", "num_cpus_per_worker", "observation_noise", "action_noise",
            "evaluation_interval", "max_restarts", "max_rollbacks", "reward_clip", "seed", "wait_for_room_s",
        ),
        "be at least 1": (
            "noise_persistence", "num_envs_per_worker", "fragment_length", "batch_size", "frame_stack", "action_repeat", "time_limit",
            "evaluation_num_episodes", "evaluation_num_envs",
        ),
        "be at least 0.001": ("worker_timeout_s",),
        "lie in [0, 1024]": ("num_threads",),
        "lie in [0, 1]": ("gamma",),
        "be above 0 and finite": ("lr", "num_cpus"),
        "be a finite number": ("reward_scale",),
    }  # fmt: skip
    """Rules for values, such as "be at least 0" (the keys of `RANGES` in this module) -> the fields of this class that they apply to. None always
    passes."""

    @classmethod
    def group_of(cls, name: str) -> str:
        """The group that a setting belongs to, by its full name: what `groups` says, or else the algorithm's."""
        if name.partition(".")[0] == "model":
            return "network"
        return next((group for group, names in cls.groups.items() if name in names), "algorithm")

    @property
    def on_ray(self) -> bool:
        """Whether the run uses Ray."""
        return self.backend == "ray" or (self.backend == "auto" and self.num_workers > 0)

    @property
    def learns_on(self) -> str:
        """The device of the learner: `device`, or for auto cuda if num_gpus is above 0, else cpu."""
        return ("cuda" if self.num_gpus > 0 else "cpu") if self.device == "auto" else self.device

    def idle(self) -> dict[str, str]:
        """Return the settings that have no effect beside the present values of the others: name -> the end of the sentence "NAME has no
        effect ...". It joins the `own_idle` of this class and its bases. `raypid.nn.idle_settings` has those that depend on the spaces.
        """
        idle: dict[str, str] = {}
        for owner in reversed(type(self).__mro__):
            if "own_idle" in vars(owner):
                idle |= vars(owner)["own_idle"](self)
        return {**idle, **self.no_effect}

    def own_idle(self) -> dict[str, str]:
        """Return the part of `idle` that this class adds. Do not call that of the base class: `idle` does."""
        scales = not self.normalize_rewards or self.reward_clip is not None or self.reward_scale <= 0
        return {
            **unless(self.on_ray, _NOTHING_ON_RAY, *_ON_RAY),
            **unless(scales, "with normalize_rewards, which divides any scale out again", "reward_scale"),
            **unless(self.model.cell, "without a memory: set model.memory to lstm or gru", "model.memory_size"),
            **unless(self.on_divergence == "rollback", "unless on_divergence is rollback", "max_rollbacks"),
        }

    def learning_rates(self) -> dict[str, float]:
        """Return the settings that are learning rates (their names begin with lr) and are not None, by name."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name.partition("_")[0] == "lr"}
        return {name: value for name, value in named.items() if isinstance(value, float)}

    def refuse(self, idle: Mapping[str, str], given: Mapping[str, str]) -> None:
        """Refuse settings that the user gave for nothing: those in `idle` and `given` (`given_names`) that differ from the defaults.

        Values of saved runs and of tuned settings are not given, and may have no effect. 0 and false of a setting that is open by default may, too.

        Raises:
            ConfigError: names the setting, the reason and the default.
        """
        default = type(self)()
        for name in sorted(idle.keys() & set(given)):
            plain, value = attrgetter(name)(default), attrgetter(name)(self)
            is_off = plain is None and value == 0  # of a setting that is open: it asks for nothing
            if value != plain and not is_off:
                shown = "none" if plain is None else json.dumps(plain)
                called = f"{given[name]}, here {name}," if given[name] in other_names("ALIASES") else name
                raise ConfigError(f"{called} has no effect {idle[name]}. Leave it at its default, {shown}.")

    def lacks_end(self) -> str:
        """Return an error message if a schedule needs an end that the settings do not give, with what to do; "" otherwise."""
        return self.ended(0, None)

    def ended(self, timesteps: int, run_end: int | None) -> str:
        """Return an error message if a schedule has fallen to 0 after `timesteps` environment steps, or has no end; "" otherwise.

        Args:
            run_end: the step at which the run stops, and with it schedules whose end the settings leave open; None: not known.
        """
        return ""

    def validate(self, *, open_end: bool = False) -> None:
        """Check the values: `ranges`, then `own_checks`, of each class from Config on.

        Args:
            open_end: whether a schedule may lack its end (`lacks_end`), since the run has a stop or gets one.

        Raises:
            ConfigError: a value out of range.
        """
        check_values(self)
        for owner in reversed(type(self).__mro__):
            if "own_checks" in vars(owner):
                vars(owner)["own_checks"](self)
        if not open_end and (told := self.lacks_end()):
            raise ConfigError(told)

    def own_checks(self) -> None:
        """Check what `ranges` cannot express; raise ConfigError with what was given and what would do. Do not call that of the base class."""
        if self.gpu is not None and self.num_gpus > len(gpu_ids(self.gpu)):
            raise ConfigError(f"num_gpus is {self.num_gpus:g}, but gpu {self.gpu!r} names {len(gpu_ids(self.gpu))}.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", self.device):
            raise ConfigError(f"device is auto, cpu, cuda, cuda:N or mps, not {self.device!r}.")
        if self.init_from == "":
            raise ConfigError("init_from is empty: leave it out, or name what it should be.")
        if self.address is not None:
            check_form(self.address)
        if self.num_learners > max(1, self.num_workers):
            raise ConfigError(f"num_learners {self.num_learners} must be at most num_workers, {self.num_workers}.")
        if not divides(self.num_gpus, self.num_learners):
            raise ConfigError(f"num_gpus {self.num_gpus:g} cannot be divided among {self.num_learners} learners.")
        for name in ("num_learners", "evaluation_parallel", "parameter_server"):
            if getattr(self, name) and not self.on_ray:
                raise ConfigError(f"{name} asks for an actor on Ray: set num_workers, and not backend local.")


def check_values(settings: Settings, prefix: str = "") -> None:
    """Check numbers by the `ranges` of each class, and that machine integers and float32 hold them: a seed may be any, and a bound infinite.

    Args:
        prefix: stands before names in messages, such as "resources.".

    Raises:
        ConfigError: a value out of range.
    """
    for owner in reversed(type(settings).__mro__):
        for rule, names in vars(owner).get("ranges", {}).items():
            for name in names:
                value = getattr(settings, name)
                if value is not None and not RANGES[rule](value):
                    none = " (or none)" if type(None) in get_args(type_hints(type(settings))[name]) else ""
                    raise ConfigError(f"{prefix}{name} must {rule}{none}, not {value!r}.")
    for field_ in dataclasses.fields(settings):
        name, part = prefix + field_.name, getattr(settings, field_.name)
        if isinstance(part, Settings):
            check_values(part, f"{name}.")
        for number in part if isinstance(part, tuple) else (part,):
            if isinstance(number, int) and abs(number) >= 2**63 and name != "seed":
                raise ConfigError(f"{name} must be below 2^63, not {number!r}.")
            is_wide = isinstance(number, float) and not abs(number) < _FLOAT32 and number != field_.default
            if is_wide and not (name in _BOUNDS and number == math.inf):
                raise ConfigError(f"{name} must be a number below 3.4e38, not {number!r}.")


_FLOAT32 = 3.4e38
_BOUNDS = frozenset({
    "max_grad_norm", "reward_clip", "value_clip", "target_kl", "rho_clip", "c_clip", "huber", "target_noise_clip",
})  # fmt: skip
"""Settings that bound something."""


def unless(condition: object, why: str, *names: str) -> dict[str, str]:
    """Return {} if `condition` holds, else {name: why} for each name: the settings have no effect. For `own_idle`."""
    return {} if condition else dict.fromkeys(names, why)


def gpu_ids(text: str) -> list[str]:
    """The ids in a list such as "0,1,2".

    Raises:
        ConfigError: it is no such list.
    """
    ids = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(re.fullmatch(r"\d+|GPU-[\w-]+", part) for part in ids) or len(set(ids)) < len(ids):
        raise ConfigError(f"gpu takes ids of GPUs such as '0,1,2', each once, not {shown(text)}.")
    return ids


_NOTHING_ON_RAY = "where nothing runs on Ray: it needs workers, such as num_workers=4, and not backend='local'"
_ON_RAY = ("address", "num_cpus", "num_cpus_per_worker", "wait_for_room_s", "worker_timeout_s")


def divides(num_gpus: float, num_learners: int) -> bool:
    """Can each learner have an equal part, of whole GPUs or within one?"""
    share = num_gpus / max(1, num_learners)
    if num_learners <= 1 or share == 0:
        return True
    return share == int(share) if share >= 1 else math.ceil(num_gpus) * int(1 / share + 1e-9) >= num_learners


RANGES: dict[str, Callable[[float], bool]] = {
    "be at least 0": lambda x: x >= 0,
    "be at least 1": lambda x: x >= 1,
    "be at least 0.001": lambda x: x >= 0.001,
    "be 1 or 2": lambda x: x in (1, 2),
    "be above 0": lambda x: x > 0,
    "be above 0 and finite": lambda x: 0 < x < math.inf,
    "be a finite number": math.isfinite,
    "lie in [0, 1]": lambda x: 0 <= x <= 1,
    "lie in [0, 1024]": lambda x: 0 <= x <= 1024,
    "lie in [1, 10000]": lambda x: 1 <= x <= 10_000,
}
"""What a number must be, in words -> whether it is."""
