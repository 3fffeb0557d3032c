"""Settings: keyword-only dataclasses with a docstring for each field, built from dicts, files and dotted overrides.

`Config` and `ModelConfig` hold what every algorithm has. An algorithm's own Config inherits from `Config` and lies beside
the algorithm.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import inspect
import itertools
import json
import math
import os
import re
import textwrap
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    SupportsIndex,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from raypid.errors import UserError, reason, shown
from raypid.plain_data import read_json, read_yaml
from raypid.registry import did_you_mean

C = TypeVar("C", bound="Settings")


class ConfigError(UserError):
    """A setting that does not exist or does not fit."""


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
            ConfigError: an unknown key (the message names the nearest ones) or a value of the wrong type.
        """
        changed = copy.copy(self)
        hints = type_hints(type(self))
        for raw_key, value in values.items():
            if not isinstance(raw_key, str):
                raise ConfigError(f"The name of a setting is text, not {shown(raw_key)}.")
            key, _, rest = raw_key.replace("-", "_").partition(".")
            key = ALIASES.get(key, key)
            if key in ALIASES.values() and values.get(key) not in (None, value):
                raise ConfigError(f"{raw_key!r} and {key!r} are the same setting: give one of them.")
            if key not in hints:
                ours = ELSEWHERE.get(key, "")
                hint = f" Here it is called {ours!r}." if ours in hints else did_you_mean(key, hints)
                raise ConfigError(f"Unknown setting {raw_key!r}.{hint}")
            current = getattr(changed, key)
            if isinstance(current, Settings):
                value = _nested(current, key, {rest: value} if rest else value)
            elif rest:
                if not isinstance(current, dict):
                    raise ConfigError(f"{raw_key!r}: {key} is a single value, it has no {rest!r}.")
                value = {**current, rest: value}
            else:
                value = coerce(key, value, hints[key])
            setattr(changed, key, value)
        return changed

    def to_dict(self) -> dict[str, object]:
        """Return nested plain values, with lists for tuples. They fit into JSON where the values themselves do."""
        plain: dict[str, object] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Settings):
                value = value.to_dict()
            plain[f.name] = list(value) if isinstance(value, tuple) else copy.copy(value)
        return plain


def _nested(current: Settings, key: str, value: object) -> Settings:
    """Lay `value` over the group of settings called `key`."""
    if isinstance(value, Settings):
        return value
    if not isinstance(value, Mapping):
        first = dataclasses.fields(current)[0].name
        raise ConfigError(
            f"{key} takes a mapping such as {{{first!r}: {getattr(current, first)!r}}}, not {shown(value)}."
        )
    try:
        return current.replace(value)
    except ConfigError as error:
        raise ConfigError(f"In {key!r}: {error}") from None


ALIASES = {"weights_file": "init_from"}
"""Older or other names of settings -> their names."""


def overlay(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Lay the settings `above` over those `below`. What is below and says the same as a setting above is dropped."""
    named = _SAME_THING & {key.replace("-", "_") for key in above}
    hidden = _SAME_THING - named if named else set()
    return {**{k: v for k, v in below.items() if k not in hidden}, **above}


_SAME_THING = {"samples_per_insert", "a_l_ratio"}
"""Two settings that say the same: what is given last wins."""

ELSEWHERE = {
    "learning_rate": "lr", "n_envs": "num_envs_per_worker", "num_envs": "num_envs_per_worker", "discount": "gamma",
    "n_steps": "fragment_length", "num_steps": "fragment_length", "rollout_fragment_length": "fragment_length",
    "minibatch_size": "batch_size", "sgd_minibatch_size": "batch_size", "train_batch_size": "batch_size", "n_epochs": "num_epochs",
    "num_sgd_iter": "num_epochs", "update_epochs": "num_epochs", "ent_coef": "entropy_coef", "vf_coef": "value_coef",
    "clip_range": "clip", "clip_coef": "clip", "clip_param": "clip", "lambda": "gae_lambda", "lambda_": "gae_lambda",
    "policy": "model", "net_arch": "model", "num_env_runners": "num_workers",
}  # fmt: skip
"""What other libraries call our settings."""


_hints_of: dict[type[Settings], dict[str, object]] = {}


def type_hints(cls: type[Settings]) -> dict[str, object]:
    """Return the type of each field."""
    if cls not in _hints_of:
        hints = get_type_hints(cls)
        _hints_of[cls] = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    return _hints_of[cls]


def coerce(key: str, value: object, hint: object) -> object:
    """Convert `value` to the type `hint`: 3 fits a float, "1e6" and 1e6 fit an int, a list fits a tuple.

    Raises:
        ConfigError: the value does not fit the type.
    """
    try:
        return _fit(value, hint)
    except _MISFITS:
        kind = type(value).__name__
        raise ConfigError(f"{key} takes {describe_type(hint)}, not {shown(value)} ({kind}).") from None


_MISFITS = (ValueError, OverflowError)
"""What `_fit` raises."""


@runtime_checkable
class _Array(Protocol):
    """An array of NumPy or another framework, none of which is imported for this."""

    ndim: int

    def item(self) -> object: ...


def _fit(value: object, hint: object) -> object:
    """Return `value` as the type `hint`; raise one of _MISFITS where it does not fit."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in _ANYTHING:
        return value
    if isinstance(value, _Array) and value.ndim == 0:
        value = value.item()
    if kind in (Union, types.UnionType):
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
    types.NoneType: "null",
    **dict.fromkeys(_ANYTHING, "anything"),
}


def describe_type(hint: object) -> str:
    """Describe a type for users: "a whole number or null", "one of 'auto', 'ray'"."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(describe_type(a) for a in arguments)
    if kind is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if kind is tuple and arguments:
        return f"a list, each {describe_type(arguments[0])}"
    return _WORDS.get(kind, str(getattr(kind, "__name__", kind)))


_docs_of: dict[type[Settings], dict[str, str]] = {}


def field_docs(cls: type[Settings]) -> dict[str, str]:
    """Map each field to its docstring: the string that follows it in the class body. Base classes are included."""
    if cls not in _docs_of:
        docs: dict[str, str] = {}
        for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
            definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
            assert isinstance(definition, ast.ClassDef)
            for pair in itertools.pairwise(definition.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=doc)):
                        docs[name] = " ".join(str(doc).split())
        _docs_of[cls] = {f.name: docs[f.name] for f in dataclasses.fields(cls) if f.name in docs}
    return _docs_of[cls]


def parse_value(text: str) -> object:
    """Parse a value of the command line as JSON; return the text itself where it is not JSON."""
    try:
        return read_json(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    except ValueError as error:
        raise ConfigError(f"{shown(text)} is no setting: {error}.") from None


def load_file(path: str | Path) -> dict[str, object]:
    """Read settings from a JSON or YAML file.

    Raises:
        ConfigError: the file does not exist, cannot be read, or does not hold a mapping.
    """
    path = Path(path)
    if not os.path.isfile(path):
        raise ConfigError(f"There is no settings file {shown(str(path))}.")
    parse = read_json if path.suffix == ".json" else read_yaml
    try:
        values = parse(path.read_text())
    except Exception as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, not {type(values).__name__}.")
    if other := next((key for key in values if not isinstance(key, str)), None):
        raise ConfigError(f"{path} must hold a mapping of settings, whose names are text, not {shown(other)}.")
    return values


@dataclass(kw_only=True, slots=True)
class ModelConfig(Settings):
    """The network. Which one fits a space is chosen by `raypid.nn.catalog` where `network` is auto."""

    network: str = "auto"
    """auto, mlp, cnn (sized to the image; Nature's for 84x84), resnet (IMPALA's), lstm or gru (mlp with that memory), or the name of a registered
    torch.nn.Module."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers (after the convolutions, where there are any)."""
    channels: tuple[int, ...] = ()
    """Output channels of the convolutions; empty: as published (cnn 32, 64, 64; resnet 16, 32, 32). Fewer are faster: 16, 32 for Pong."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation of the fully connected layers; convolutions use ReLU."""
    memory: Literal["none", "lstm", "gru"] = "none"
    """A recurrent layer between the trunks and the heads of any network, one for each trunk, for what a single observation does not show."""
    memory_size: int = 64
    """Units of the recurrent layer."""
    shared: bool = False
    """One trunk for policy and value instead of two. Image networks always share their convolutions."""
    distribution: Literal["auto", "gaussian", "squashed_gaussian", "deterministic"] = "auto"
    """Distribution of continuous actions; auto is a diagonal Gaussian."""
    log_std_init: float = 0.0
    """Initial log standard deviation of a Gaussian."""
    custom: dict[str, object] = field(default_factory=dict)
    """Keyword arguments for a registered network."""

    @property
    def cell(self) -> str:
        """The memory that is asked for, by either name: lstm, gru, or "" for none.

        Raises:
            ConfigError: two different ones, or one without units.
        """
        named = self.network if self.network in ("lstm", "gru") else ""
        if named and self.memory not in ("none", named):
            raise ConfigError(
                f"model.network {named!r} is an mlp with that memory, model.memory asks for {self.memory!r}: set one of them."
            )
        if self.memory_size < 1:
            raise ConfigError(f"model.memory_size must be at least 1, not {self.memory_size}.")
        return named or ("" if self.memory == "none" else self.memory)


@dataclass(kw_only=True, slots=True)
class Config(Settings):
    """What every algorithm shares."""

    env: object = None
    """Environment: an id (CartPole-v1, ALE/Pong-v5), "envpool:Pong-v5", "module:Name", a registered name, a class or a function."""
    env_config: dict[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorizer: Literal["auto", "native", "envpool", "ale", "sync", "threads", "async"] = "auto"
    """How a worker steps its environments; auto takes the fastest that fits: its own vector entry point, ALE's, or sync (threads, where it waits)."""
    num_workers: int = 0
    """Rollout workers. 0: everything in this process, without Ray."""
    num_envs_per_worker: int = 8
    """Environments that one worker steps side by side."""
    num_learners: int = 0
    """0: the learner lives in this process; 1: an actor of its own (for ray:// and GPU nodes); N: data-parallel actors that learn what one would."""
    parameter_server: bool = False
    """On Ray, weights go through an actor of their own, one on each node that has workers: these pull the newest with every fragment, the evaluator
    whenever it is free. false: they go along with each call by reference, which Ray caches on each node."""
    num_cpus: float | None = None
    """CPUs to start Ray with; none: all. Workers are bound by the machine's own in any case; more make room for learners."""
    num_gpus: float = 0
    """GPUs of the learner, or of all learners together; 0 learns on the CPU."""
    num_cpus_per_worker: float = 1
    """CPUs that each rollout worker reserves; fractions are allowed."""
    backend: Literal["auto", "local", "ray"] = "auto"
    """auto: ray where num_workers > 0; local runs the same roles in turn in this process (PPO and A2C: with the same numbers)."""
    address: str | None = None
    """A running Ray cluster to join ("auto", "host:6379", "ray://host:10001"); none starts Ray here."""
    fit: bool = False
    """Shrink workers, learners, GPUs, environments, fragment_length and buffer_size to what there is, and say so, instead of stopping."""
    seed: int | None = None
    """Seed of everything; none draws one (it is written to params.json)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network."""
    device: str = "auto"
    """Where the learner computes: auto, cpu, cuda, cuda:1. auto: cuda where num_gpus > 0."""
    kernel: Literal["auto", "numpy", "torch"] = "auto"
    """How small fully connected networks learn: a hand-written NumPy kernel or torch autograd; auto takes the faster."""
    num_threads: int = 0
    """Threads of the learner; 0: all cores for convolutions and layers of 256 and more, else one, which is faster then."""
    fragment_length: int = 128
    """Rows that one call collects from each environment."""
    batch_size: int = 256
    """Rows in one gradient step."""
    lr: float = 3e-4
    """Learning rate."""
    gamma: float = 0.99
    """Discount."""
    normalize_observations: bool = False
    """Subtract the running mean and divide by the running deviation of each element (merged over workers, saved, frozen in evaluation)."""
    normalize_rewards: bool = False
    """Divide rewards, in the learner, by the running deviation of the discounted return."""
    reward_scale: float = 1.0
    """Factor on rewards in the learner; reported returns stay raw."""
    reward_clip: float | None = None
    """Clip rewards to [-x, x] in the learner; reported returns stay raw."""
    frame_stack: int = 1
    """The policy sees the last k observations."""
    atari: bool | None = None
    """Atari preprocessing (84x84 grey, frame skip 4, no-op starts, in ALE's own code); none: yes for ALE/ ids."""
    action_repeat: int = 1
    """Repeat each action this many times and add up the rewards."""
    time_limit: int | None = None
    """Truncate episodes after this many steps."""
    observation_noise: float = 0.0
    """Standard deviation of Gaussian noise that training adds to float observations."""
    action_noise: float = 0.0
    """Standard deviation of Gaussian noise that training adds to continuous actions, in units of the canonical action (1 is half the range)."""
    callbacks: object = None
    """A `raypid.Callbacks` subclass, its instance, or "module:Name"."""
    evaluation_interval: int | None = None
    """Training iterations between evaluations; 0: never; none: `raypid train` evaluates in up to a tenth of the time, the Python API not at all."""
    evaluation_env: object = None
    """Environment of evaluations, given as env is (without env_config), with the same spaces; none: the one that is trained on."""
    evaluation_num_episodes: int = 10
    """Episodes of one evaluation."""
    evaluation_parallel: bool | None = None
    """On Ray, evaluate in a process of its own while training goes on; none: where a CPU is to spare. Else training waits."""
    init_from: str | Path | None = None
    """Checkpoint, run folder or policy folder whose weights training starts from. It may also be called weights_file."""
    exact_resume: bool = False
    """Make a save an episode boundary, so that a resumed run equals an uninterrupted one bit for bit; on Ray that holds for PPO and A2C alone, whose
    workers are heard in turn."""
    worker_timeout_s: float = 300.0
    """Seconds that one call of a worker on Ray may take before it is killed and replaced, and that one of several learners waits for another."""
    max_restarts: int = 10
    """Lost processes within an hour, and crashes of a worker's environments beyond one in 1,000 steps, after which the run stops with the last."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """When weights, losses or actions are no longer finite. stop: the run ends, and keeps the batch and the last good weights in diverged/.
    rollback: it goes back to its last checkpoint (the first is written at the start) with half the learning rate."""
    max_rollbacks: int = 3
    """Rollbacks after which a run that diverges again stops."""

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Settings that never have an effect for this algorithm -> the end of the sentence "NAME has no effect ..."."""

    ranges: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "be at least 0": (
            "num_workers", "num_learners", "num_gpus", "num_cpus_per_worker", "observation_noise", "action_noise",
            "evaluation_interval", "max_restarts", "max_rollbacks", "reward_clip", "seed",
        ),
        "be at least 1": (
            "num_envs_per_worker", "fragment_length", "batch_size", "frame_stack", "action_repeat", "time_limit",
            "evaluation_num_episodes",
        ),
        "be at least 0.001": ("worker_timeout_s",),
        "lie in [0, 1024]": ("num_threads",),
        "lie in [0, 1]": ("gamma",),
        "be above 0 and finite": ("lr",),
        "be a finite number": ("reward_scale",),
    }  # fmt: skip
    """What a value must be (`RANGES`) -> the settings, of this class, that must; none is always allowed."""

    @property
    def on_ray(self) -> bool:
        """Whether the run uses Ray."""
        return self.backend == "ray" or (self.backend == "auto" and self.num_workers > 0)

    def idle(self) -> dict[str, str]:
        """Return the settings that have no effect beside the others, with the end of the sentence "NAME has no effect ...".

        What depends on the environment is in `raypid.nn.idle_settings`. Each class says in `own_idle` what it knows.
        """
        idle: dict[str, str] = {}
        for owner in reversed(type(self).__mro__):
            if "own_idle" in vars(owner):
                idle |= vars(owner)["own_idle"](self)
        return {**idle, **self.no_effect}

    def own_idle(self) -> dict[str, str]:
        """The part of `idle` that this class adds to those of its bases."""
        scales = not self.normalize_rewards or self.reward_clip is not None or self.reward_scale <= 0
        return {
            **unless(self.on_ray, "unless something runs on Ray: set num_workers, or backend ray", *_ON_RAY),
            **unless(self.address is None, "on a cluster that is joined by its address", "num_cpus"),
            **unless(scales, "with normalize_rewards, which divides any scale out again", "reward_scale"),
            **unless(self.model.cell, "without a memory: set model.memory to lstm or gru", "model.memory_size"),
            **unless(self.on_divergence == "rollback", "unless on_divergence is rollback", "max_rollbacks"),
        }

    def learning_rates(self) -> dict[str, float]:
        """Return the settings that are learning rates, as far as they are set."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name.partition("_")[0] == "lr"}
        return {name: value for name, value in named.items() if isinstance(value, float)}

    def refuse(self, idle: Mapping[str, str], given: Collection[str]) -> None:
        """Refuse settings that the user gave for nothing: those in `idle` and `given` that differ from the defaults.

        Values of saved runs and of tuned settings are not given, and may have no effect.

        Raises:
            ConfigError: names the setting, the reason and the default.
        """
        default = type(self)()
        for name in sorted(idle.keys() & set(given)):
            plain = attrgetter(name)(default)
            if attrgetter(name)(self) != plain:
                shown = "none" if plain is None else json.dumps(plain)
                raise ConfigError(f"{name} has no effect {idle[name]}. Leave it at its default, {shown}.")

    def validate(self) -> None:
        """Check what types cannot say.

        Raises:
            ConfigError: a value out of range.
        """
        _check_size(self)
        owners = type(self).__mro__[::-1]
        for owner in owners:
            for rule, names in vars(owner).get("ranges", {}).items():
                for name in names:
                    value = getattr(self, name)
                    if value is not None and not RANGES[rule](value):
                        none = " (or none)" if type(None) in get_args(type_hints(type(self))[name]) else ""
                        raise ConfigError(f"{name} must {rule}{none}, not {value!r}.")
        for owner in owners:
            if "own_checks" in vars(owner):
                vars(owner)["own_checks"](self)

    def own_checks(self) -> None:
        """What this class checks beside its `ranges`; those of its bases are checked before."""
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", self.device):
            raise ConfigError(f"device is auto, cpu, cuda, cuda:N or mps, not {self.device!r}.")
        if self.num_learners > max(1, self.num_workers):
            raise ConfigError(
                f"num_learners must be at most num_workers, not {self.num_learners} for {self.num_workers}: each learner learns from "
                f"workers of its own. Set num_workers to {self.num_learners} or more."
            )
        if not divides(self.num_gpus, self.num_learners):
            raise ConfigError(
                f"num_gpus {self.num_gpus:g} cannot be divided among {self.num_learners} learners: "
                "take a multiple of num_learners, or a whole fraction."
            )
        if self.num_learners and self.backend == "local":
            raise ConfigError("backend local keeps the learner in this process: set num_learners to 0.")
        for name in ("num_learners", "evaluation_parallel", "parameter_server"):
            if getattr(self, name) and not self.on_ray:
                raise ConfigError(f"{name} asks for an actor on Ray: set num_workers, or backend ray.")


def _check_size(config: Config) -> None:
    """Refuse numbers that no machine integer holds; a seed may be any.

    Raises:
        ConfigError: names the setting.
    """
    for prefix, settings in (("", config), ("model.", config.model)):
        for field_ in dataclasses.fields(settings):
            value: object = getattr(settings, field_.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if field_.name != "seed" and any(isinstance(n, int) and abs(n) >= 2**63 for n in numbers):
                raise ConfigError(f"{prefix}{field_.name} must be below 2^63, not {value!r}.")


def unless(condition: object, why: str, *names: str) -> dict[str, str]:
    """Say of settings that they have no effect unless `condition` holds: {} if it does, else {name: why}."""
    return {} if condition else dict.fromkeys(names, why)


def given_names(values: Mapping[str, object]) -> set[str]:
    """Return the full names ("lr", "model.hidden") of the settings in a mapping."""
    names: set[str] = set()
    for key, value in values.items():
        name, _, rest = key.replace("-", "_").partition(".")
        if isinstance(value, ModelConfig):
            value = value.to_dict()
        parts = value if name == "model" and not rest and isinstance(value, Mapping) else [rest.partition(".")[0]]
        names |= {f"model.{part}" for part in parts} if name == "model" else {ALIASES.get(name, name)}
    return names


_ON_RAY = ("address", "num_cpus", "num_cpus_per_worker", "worker_timeout_s")


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
}
"""What a number must be, in words -> whether it is."""
