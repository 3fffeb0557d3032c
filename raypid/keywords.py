"""Keywords of methods by the names of other libraries: what means the same is taken, anything else is answered."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from raypid.errors import ConfigError
from raypid.names import keyword_told
from raypid.registry import ALGORITHMS, did_you_mean
from raypid.stops import stop_with

EPISODES = dict.fromkeys(("episodes", "num_episodes", "n_eval_episodes"), "num_eval_episodes")
DIR = dict.fromkeys(("path", "checkpoint_dir"), "folder")
OBS = dict.fromkeys(("observation", "observations"), "obs")
"""Other names of arguments -> ours."""

P = ParamSpec("P")
R = TypeVar("R")


def other_words(
    same: Mapping[str, str] | None = None, *, stop: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method, or the constructor of a role by hand, take keywords by other names, and answer the others.

    Args:
        same: other names of its arguments -> ours.
        stop: it has an argument `stop`, its first one, which other libraries write as `total_timesteps=N` and the like.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        known = {name: name for name in inspect.signature(method).parameters if name != "self"}
        is_init = method.__name__ == "__init__"

        @functools.wraps(method)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs.keys() <= known.keys():
                try:
                    return method(*args, **kwargs)
                except TypeError as error:
                    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                        raise  # from within
                    raise ConfigError(_how_to_call(method, args[0], [*args[1:], *kwargs.values()])) from None
            given: dict[str, Any] = dict(kwargs)
            if stop:
                before = args[1] if len(args) > 1 else given.get("stop")
                end, given = stop_with(before, given)
                if len(args) > 1:
                    args = cast(Any, (args[0], end, *args[2:]))
                else:
                    given["stop"] = end
            for other, ours in (same or {}).items():
                if other in given and ours not in given:
                    given[ours] = given.pop(other)
            if unknown := [key for key in given if key not in known]:
                agent = args[0] if args else None
                what = method.__qualname__.removesuffix(".__init__") if is_init else method.__name__
                advice = _advice_on_role if is_init else _advice
                raise ConfigError(" ".join(f"{what} takes no {key!r}.{advice(agent, key, known)}" for key in unknown))
            return method(*args, **cast(Any, given))

        return called

    return decorate


def _how_to_call(method: Callable[..., object], owner: object, given: Sequence[object]) -> str:
    """What to say of a call with too few arguments, or too many: how it is written, and what its docstring says of those it needs."""
    signature = inspect.signature(method)
    # Ray adds a parameter of its own, with an underscore, to classes that it makes actors of
    own = [p for p in signature.parameters.values() if p.name != "self" and not p.name.startswith("_")]
    parameters = [p.replace(annotation=p.empty) for p in own]
    form = signature.replace(parameters=parameters, return_annotation=signature.empty)
    name = type(owner).__name__ + (f".{method.__name__}" if method.__name__ != "__init__" else "")
    doc = inspect.getdoc(owner if method.__name__ == "__init__" else method) or ""
    listed = re.split(r"\n    (\w+): ", doc.partition("\nArgs:")[2].partition("\n\n")[0])
    about = dict(zip(listed[1::2], listed[2::2], strict=True))
    told = [
        f"{p.name}: {' '.join(about[p.name].split())}" for p in parameters if p.default is p.empty and p.name in about
    ]
    were = ", ".join(type(value).__name__ for value in given) or "nothing"
    text = " ".join(told or [doc.partition("\n")[0]])
    return f"Write {name}{form}; given: {were}. {text}".replace("`", "")


def _advice(agent: object, key: str, known: Collection[str]) -> str:
    """What to say of an argument that a method of `agent` lacks: it may be a setting, which is given before."""
    config, run = getattr(agent, "config", None), getattr(agent, "run", None)
    if told := keyword_told(key):
        return f" {told}"
    if isinstance(run, str) and config is not None:
        from raypid.config import ELSEWHERE, canonical  # a policy by itself does without

        if hasattr(config, name := ELSEWHERE.get(key, canonical(key)).removeprefix("model.")):
            return f" It is a setting of the agent: raypid.{run}(..., {name}=...)."
    return did_you_mean(key, known)


def _advice_on_role(role: object, key: str, known: Collection[str]) -> str:
    """What to say of an argument that a role by hand lacks: it may be a setting, which the setup has."""
    from raypid.config import ELSEWHERE, canonical, type_hints

    name = ELSEWHERE.get(key, canonical(key))
    configs = (ALGORITHMS.get(run).Config for run in ALGORITHMS.names() if ALGORITHMS.is_own(run))
    if any(name.partition(".")[0] in type_hints(config) for config in configs):
        given = "model={...}" if name.startswith("model.") else f"{name}=..."
        return f" Settings belong to the setup: raypid.setup(algorithm, env, {given})."
    return did_you_mean(key, known)
