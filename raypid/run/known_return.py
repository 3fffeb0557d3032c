"""The return that an environment is known to allow, and what to try if a run stays far below it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from raypid.envs.screen import draws_mujoco
from raypid.plugins.extras import has
from raypid.plugins.registry import ALGORITHMS
from raypid.settings.tuned import TUNED, Record, records

CLOSE = 0.1
"""Fraction of the known return by which a run may miss it."""
MIN_STEPS = 10_000
"""Environment steps below which nobody expects anything of a run."""


class KnownReturn(NamedTuple):
    """The return at which an environment counts as solved."""

    value: float
    source: str
    """Where the value comes from."""


def known_return(settings: Mapping[str, object]) -> KnownReturn | None:
    """The known return of the environment in a run's settings; None if there is none, or if the settings change what returns mean."""
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
    """The known return, if evaluations reached much less in at least as many environment steps as the quickest recorded run took; else None."""
    known = known_return(settings) if steps >= MIN_STEPS else None
    if known is None or known.value - reached <= CLOSE * abs(known.value):
        return None
    quickest = min((record.steps.median for record in records(str(settings["env"]))), default=0.0)
    return known if steps >= quickest else None


class Remedy(NamedTuple):
    """Something that may help a run that stays below the known return."""

    why: str
    command: str
    """A command of the shell."""


def remedies(run: str, settings: Mapping[str, object], goal: float) -> list[Remedy]:
    """Return what to try for a run with these settings that stays below `goal`.

    Tuned settings of its algorithm, or else of the quickest other algorithm that is recorded for the environment. If nothing is recorded: a
    reward for what is new and a search, or else a look at the environment. Nothing that needs a package that is not installed.
    """
    env = str(settings["env"])
    least = goal - CLOSE * abs(goal)
    good = [record for record in records(env) if record.goal >= least and tuned_runs_here(record.algorithm, env)]
    own = next((record for record in good if record.algorithm == run), None)
    is_untried = any(settings.get(key) != value for key, value in TUNED.get((run, env), {}).items())
    if is_untried and tuned_runs_here(run, env):
        return [Remedy(_reached("its tuned settings", own), _train(run, env, "--tuned"))]
    if others := [record for record in good if record is not own]:
        best = min(others, key=_seconds)
        return [Remedy(_reached(f"tuned settings of {best.algorithm}", best), _train(best.algorithm, env, "--tuned"))]
    tried = []
    if settings.get("intrinsic_reward", "") is None and run != "A3C" and has("torch"):
        command = _train(run, env, "--intrinsic-reward rnd")
        tried.append(Remedy("where rewards are rare, one for what is new", command))
    if has("tune"):
        tried.append(Remedy("other settings, by a search", f"raypid tune --run {run} --env {shlex.quote(env)}"))
    check = f"raypid check-env {shlex.quote(env)}"
    return tried or [Remedy("is the environment right, and how fast", check)]


def tuned_runs_here(run: str, env: object) -> bool:
    """Whether these tuned settings can run here: without torch, no replay and no memory."""
    model: Any = TUNED.get((run, str(env)), {}).get("model", {})
    return has("torch") or (model.get("network", "mlp") == "mlp" and not ALGORITHMS.get(run).learns_with_torch)


def _train(run: str, env: str, more: str) -> str:
    return f"raypid train --run {run} --env {shlex.quote(env)} {more}"


def _reached(whose: str, record: Record | None) -> str:
    """Name settings, with their record if there is one."""
    if record is None:
        return whose
    return f"{whose}: {record.goal:g} in {_seconds(record):.1f} s of training, {len(record.seeds)} seeds"


def _seconds(record: Record) -> float:
    assert record.seconds is not None, "records() has only what reached its goal"
    return record.seconds.median


def films(env: object) -> bool:
    """Whether `raypid eval --video` works here for an environment of Gymnasium: it renders, and all packages are installed. MuJoCo also needs
    a screen or a way to render without one."""
    if not isinstance(env, str) or not has("video"):
        return False
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    entry_point = str(getattr(gymnasium.registry.get(env), "entry_point", ""))
    module = entry_point.partition(":")[0]
    is_here = module in sys.modules or module.startswith("gymnasium.envs.")  # others only workers have imported
    if not is_here or (".mujoco" in module and not draws_mujoco()):
        return False
    # of a vector environment's class this is a property
    metadata = getattr(load_env_creator(entry_point), "metadata", {})
    return isinstance(metadata, dict) and "rgb_array" in (metadata.get("render_modes") or ())
