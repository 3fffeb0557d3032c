"""Settings: a keyword-only dataclass, each field with a docstring; from dicts, files and dotted overrides, checked at once."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import json
import math
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from raypid.errors import UserError
from raypid.registry import did_you_mean

C = TypeVar("C", bound="Settings")


class ConfigError(UserError):
    """A setting that does not exist or does not fit."""


@dataclass(kw_only=True, slots=True)
class Settings:
    """Base of dataclasses that users fill in."""

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """Build from a mapping; unknown keys and wrong types are errors with a suggestion."""
        return cls().replace(values)

    def replace(self: C, values: Mapping[str, Any]) -> C:
        """A copy with `values` laid over it. Keys may be dotted ("model.hidden"); "-" and "_" are the same.

        Raises:
            ConfigError: an unknown key (with the nearest ones) or a value that does not fit its type.
        """
        changed = copy.copy(self)
        hints = type_hints(type(self))
        for raw_key, value in values.items():
            if not isinstance(raw_key, str):
                raise ConfigError(f"A setting's name is text, not {raw_key!r}.")
            key, _, rest = raw_key.replace("-", "_").partition(".")
            key = alias_of(key, hints)
            if key in ALIASES.values() and values.get(key) not in (None, value):
                raise ConfigError(f"{raw_key!r} and {key!r} are the same setting: give one of them.")
            if key not in hints:
                raise ConfigError(f"Unknown setting {raw_key!r}.{_elsewhere(key, hints)}")
            current = getattr(changed, key)
            if isinstance(current, Settings):
                if rest:
                    value = {rest: value}
                if not isinstance(value, Settings):
                    if not isinstance(value, Mapping):
                        raise ConfigError(f"{key} takes a mapping such as {{{_example(current)}}}, not {value!r}.")
                    try:
                        value = current.replace(value)
                    except ConfigError as error:
                        raise ConfigError(f"In {key!r}: {error}") from None
            elif rest:
                if not isinstance(current, dict):
                    raise ConfigError(f"{raw_key!r}: {key} is a single value, it has no {rest!r}.")
                value = {**current, rest: value}
            else:
                value = coerce(key, value, hints[key])
            setattr(changed, key, value)
        return changed

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values (tuples become lists), fit for JSON where the values are."""
        plain: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Settings):
                value = value.to_dict()
            plain[f.name] = list(value) if isinstance(value, tuple) else copy.copy(value)
        return plain


ALIASES = {"weights_file": "init_from"}
"""Second names of settings."""


def alias_of(key: str, known: Iterable[str]) -> str:
    """The setting that a second name stands for; any other key as it is."""
    ours = ALIASES.get(key, key)
    return ours if ours in known else key


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings `above` over those `below`: where two set the same thing, what is given above wins in either spelling."""
    named = {key.replace("-", "_") for key in above}
    hidden = {other for key, other in _SAME_THING.items() if key in named and other not in named}
    return {**{k: v for k, v in below.items() if k not in hidden}, **above}


_SAME_THING = {"samples_per_insert": "a_l_ratio"}
"""A setting -> the one that would win over it."""

ELSEWHERE = {
    "learning_rate": "lr", "n_envs": "num_envs_per_worker", "num_envs": "num_envs_per_worker", "discount": "gamma",
    "n_steps": "fragment_length", "num_steps": "fragment_length", "rollout_fragment_length": "fragment_length",
    "minibatch_size": "batch_size", "sgd_minibatch_size": "batch_size", "train_batch_size": "batch_size", "n_epochs": "num_epochs",
    "num_sgd_iter": "num_epochs", "update_epochs": "num_epochs", "ent_coef": "entropy_coef", "vf_coef": "value_coef",
    "clip_range": "clip", "clip_coef": "clip", "clip_param": "clip", "lambda": "gae_lambda", "lambda_": "gae_lambda",
    "policy": "model", "net_arch": "model", "num_env_runners": "num_workers",
}  # fmt: skip
"""What other libraries call our settings."""


def _elsewhere(key: str, known: Iterable[str]) -> str:
    """How an error about an unknown setting ends."""
    if ELSEWHERE.get(key, "") in known:
        return f" Here it is called {ELSEWHERE[key]!r}."
    return did_you_mean(key, known)


def _example(settings: Settings) -> str:
    first = dataclasses.fields(settings)[0].name
    return f"{first!r}: {getattr(settings, first)!r}"


_hints_of: dict[Any, dict[str, Any]] = {}


def type_hints(cls: Any) -> dict[str, Any]:
    if cls in _hints_of:
        return _hints_of[cls]
    names = {f.name for f in dataclasses.fields(cls)}
    _hints_of[cls] = {k: v for k, v in get_type_hints(cls).items() if k in names}
    return _hints_of[cls]


def coerce(key: str, value: Any, hint: Any) -> Any:
    """`value` as the type `hint` says: 3 fits a float, "1e6" and 1e6 fit an int, a list fits a tuple.

    Raises:
        ConfigError: it does not fit.
    """
    fits, result = _fit(value, hint)
    if not fits:
        raise ConfigError(f"{key} takes {describe_type(hint)}, not {value!r} ({type(value).__name__}).")
    return result


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True, value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if origin in (Union, types.UnionType):
        exact = [a for a in arguments if isinstance(a, type) and type(value) is a]
        for argument in exact + list(arguments):
            fits, result = _fit(value, argument)
            if fits:
                return True, result
        return False, value
    if origin is Literal:
        return value in arguments, value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False, value
        parts = [_fit(v, arguments[0]) for v in value]
        return all(p[0] for p in parts), tuple(p[1] for p in parts)
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool), value
    if hint in (int, float):
        return _fit_number(value, hint)
    if hint is type(None):
        return value is None, None
    if origin is dict or hint is dict:
        return isinstance(value, Mapping), dict(value) if isinstance(value, Mapping) else value
    if isinstance(hint, type):
        return isinstance(value, hint), value
    return callable(value), value


def _fit_number(value: Any, kind: type) -> tuple[bool, Any]:
    if isinstance(value, str):  # YAML reads 1e6 as a string
        try:
            value = float(value) if not value.lstrip("+-").isdigit() else int(value)
        except ValueError:
            return False, value
    if not isinstance(value, (int, float)) and not hasattr(value, "__index__"):
        return False, value
    if kind is float:
        return True, float(value)
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        return False, value
    return True, int(value)


_WORDS: dict[Any, str] = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def describe_type(hint: Any) -> str:
    """A type as users read it: "a whole number or null", "one of 'auto', 'ray'"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(a) for a in arguments)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin is tuple:
        return f"a list, each {describe_type(arguments[0])}"
    if hint is type(None):
        return "null"
    if hint is Any:
        return "anything"
    if origin is dict or hint is dict:
        return "a mapping"
    if hint in _WORDS:
        return _WORDS[hint]
    return getattr(hint, "__name__", "a function")


def field_docs(cls: Any) -> dict[str, str]:
    """Field name -> docstring (the string that follows the field in the class body), base classes included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        source = inspect.getsource(base)  # type: ignore[arg-type]
        body = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def parse_value(text: str) -> Any:
    """A command-line value: JSON where it is JSON, otherwise the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def load_file(path: str | Path) -> dict[str, Any]:
    """A mapping from a JSON or YAML file.

    Raises:
        ConfigError: no such file, not readable, or no mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no settings file {str(path)!r}.")
    try:
        if path.suffix == ".json":
            values = json.loads(path.read_text())
        else:
            import yaml

            values = yaml.safe_load(path.read_text())
    except Exception as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, not {type(values).__name__}.")
    return values
