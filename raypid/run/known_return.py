"""Which return an environment is known to allow, and what to try where a run stays far below it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from raypid.tuned import TUNED, Record, records

CLOSE = 0.1
"""A return within this part of the known one is as good as that."""
MIN_STEPS = 10_000
"""Environment steps below which a run is a trial, of which nobody expects anything."""
FAIR = 0.25
"""The part of the steps of the quickest recorded run that a run must have had, to be measured by that."""


@dataclass(frozen=True, slots=True)
class KnownReturn:
    """The return at which an environment counts as solved."""

    value: float
    source: str
    """Who says so."""


def known_return(settings: Mapping[str, object]) -> KnownReturn | None:
    """The known return of the environment in a run's settings; None if there is none, or if they change what returns are."""
    env = settings.get("env")
    changed = any(settings.get(name) for name in ("env_config", "time_limit", "evaluation_env"))
    if not isinstance(env, str) or changed or settings.get("action_repeat", 1) != 1:
        return None
    import gymnasium

    spec = gymnasium.registry.get(env)
    if spec is not None and spec.reward_threshold is not None:
        return KnownReturn(float(spec.reward_threshold), "Gymnasium's reward_threshold")
    found = records(env)
    return KnownReturn(max(record.goal for record in found), "raypid's tuned settings") if found else None


def shortfall(settings: Mapping[str, object], reached: float, steps: float) -> KnownReturn | None:
    """The known return if `reached`, of evaluations, is well below it after a fair number of environment steps; else None."""
    known = known_return(settings) if steps >= MIN_STEPS else None
    if known is None or known.value - reached <= CLOSE * abs(known.value):
        return None
    quickest = min((record.steps for record in records(str(settings["env"]))), default=0.0)
    return known if steps >= FAIR * quickest else None


def remedies(run: str, settings: Mapping[str, object], goal: float, *, python: bool = False) -> list[str]:
    """What to try on this environment with a run's settings: tuned ones of its algorithm, or the quickest other that is recorded.

    `python`: in words of Python, not as flags.
    """
    tuned = "tuned=True" if python else "--tuned"
    env = str(settings["env"])
    there = [record for record in records(env) if record.goal >= goal * (1 - CLOSE if goal > 0 else 1 + CLOSE)]
    own = TUNED.get((run, env))
    tried = []
    if own is not None and any(settings.get(key) != value for key, value in own.items()):
        tried.append(f"{tuned}{_reached(there, run)}")
    others = [record for record in there if record.algorithm != run]
    if others and not tried:
        best = min(others, key=lambda record: record.seconds)
        named = f'"{best.algorithm}", {tuned}' if python else f"--run {best.algorithm} {tuned}"
        tried.append(f"{named}{_reached(others, best.algorithm)}")
    return (
        tried or ["other settings"]
        if there
        else ["other settings", f'raypid.check_env("{env}")' if python else f"raypid check-env {env}"]
    )


def _reached(there: list[Record], algorithm: str) -> str:
    """What its record says, in brackets; "" if there is none."""
    own = next((record for record in there if record.algorithm == algorithm), None)
    return "" if own is None else f" ({own.goal:g} in {own.seconds:.1f} s, {own.seeds} seeds)"


def films(env: object) -> bool:
    """Whether `raypid eval --video` works here for an environment that Gymnasium knows: it draws, and the packages are there."""
    if not isinstance(env, str) or any(
        importlib.util.find_spec(name) is None for name in ("imageio", "imageio_ffmpeg", "pygame")
    ):
        return False
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    spec = gymnasium.registry.get(env)
    module = str(spec.entry_point).partition(":")[0] if spec is not None else ""
    if spec is None or not (module in sys.modules or module.startswith("gymnasium.envs.")):
        return False  # workers have imported it, this process has not
    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    metadata = getattr(creator, "metadata", {})  # of a vector environment's class this is a property
    modes: object = metadata.get("render_modes", ()) if isinstance(metadata, dict) else ()
    return "rgb_array" in modes if isinstance(modes, list | tuple) else False
