"""Which return an environment is known to allow, and what to try where a run stays far below it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from raypid.envs.screen import draws_mujoco
from raypid.extras import has
from raypid.tuned import TUNED, Record, records

CLOSE = 0.1
"""A return within this part of the known one is as good as that."""
MIN_STEPS = 10_000
"""Environment steps below which a run is a trial, of which nobody expects anything."""


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
    """The known return if `reached`, of evaluations, is well below it after as many environment steps as the quickest recorded run took; else
    None."""
    known = known_return(settings) if steps >= MIN_STEPS else None
    if known is None or known.value - reached <= CLOSE * abs(known.value):
        return None
    quickest = min((record.steps.median for record in records(str(settings["env"]))), default=0.0)
    return known if steps >= quickest else None


class Remedy(NamedTuple):
    """What may help a run that stays below the known return."""

    why: str
    command: str
    """As a shell takes it, or a line of Python."""


def remedies(run: str, settings: Mapping[str, object], goal: float, *, python: bool = False) -> list[Remedy]:
    """What to try on this environment with a run's settings: tuned ones of its algorithm, or the quickest other that is recorded; where
    nothing is recorded, a reward for what is new and a search, or else a look at the environment. What needs a package that is not
    installed is left out. `python`: as lines of Python."""
    env = str(settings["env"])
    there = [record for record in records(env) if record.goal >= goal * (1 - CLOSE if goal > 0 else 1 + CLOSE)]
    there = [record for record in there if tuned_runs_here(record.algorithm, env)]
    own = TUNED.get((run, env))
    is_untried = own is not None and any(settings.get(key) != value for key, value in own.items())
    if is_untried and tuned_runs_here(run, env):
        record = next((record for record in there if record.algorithm == run), None)
        return [Remedy(_reached("its tuned settings", record), _train(run, env, "--tuned", python))]
    if others := [record for record in there if record.algorithm != run]:
        best = min(others, key=_seconds)
        command = _train(best.algorithm, env, "--tuned", python)
        return [Remedy(_reached(f"tuned settings of {best.algorithm}", best), command)]
    tried = []
    if settings.get("intrinsic_reward", "") is None and run != "A3C" and has("torch"):
        command = _train(run, env, "--intrinsic-reward rnd", python)
        tried.append(Remedy("where rewards are rare, one for what is new", command))
    if has("tune") and not python:
        tried.append(Remedy("other settings, by a search", f"raypid tune --run {run} --env {shlex.quote(env)}"))
    check = f'raypid.check_env("{env}")' if python else f"raypid check-env {shlex.quote(env)}"
    return tried or [Remedy("is the environment right, and how fast", check)]


def tuned_runs_here(run: str, env: object) -> bool:
    """Whether torch is installed, or these tuned settings do without: those that learn from replay or with a memory need it."""
    if has("torch"):
        return True
    from raypid.registry import ALGORITHMS

    model = TUNED.get((run, str(env)), {}).get("model")
    network = model.get("network", "mlp") if isinstance(model, Mapping) else "mlp"
    return network == "mlp" and not ALGORITHMS.get(run).learns_with_torch


def _train(run: str, env: str, more: str, python: bool) -> str:
    if python:
        return f'raypid.train("{run}", "{env}", {_IN_PYTHON[more]})'
    return f"raypid train --run {run} --env {shlex.quote(env)} {more}"


_IN_PYTHON = {"--tuned": "tuned=True", "--intrinsic-reward rnd": 'intrinsic_reward="rnd"'}


def _reached(whose: str, record: Record | None) -> str:
    """Whose settings they are, and what its record says if there is one."""
    if record is None:
        return whose
    return f"{whose}: {record.goal:g} in {_seconds(record):.1f} s of training, {len(record.seeds)} seeds"


def _seconds(record: Record) -> float:
    assert record.seconds is not None, "records() has only what reached its goal"
    return record.seconds.median


def films(env: object) -> bool:
    """Whether `raypid eval --video` works here for an environment that Gymnasium knows: it draws, the packages are there, and for
    MuJoCo a screen or a way to draw without one."""
    if not isinstance(env, str) or not has("video"):
        return False
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    spec = gymnasium.registry.get(env)
    module = str(spec.entry_point).partition(":")[0] if spec is not None else ""
    if spec is None or not (module in sys.modules or module.startswith("gymnasium.envs.")):
        return False  # workers have imported it, this process has not
    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    metadata = getattr(creator, "metadata", {})  # of a vector environment's class this is a property
    if ".mujoco" in module and not draws_mujoco():
        return False
    modes: object = metadata.get("render_modes", ()) if isinstance(metadata, dict) else ()
    return "rgb_array" in modes if isinstance(modes, list | tuple) else False
