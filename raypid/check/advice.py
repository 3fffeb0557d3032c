"""From what was measured to what to do: sentences with the setting that does it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raypid.check.finding import Finding
from raypid.check.screen import duration, num_of
from raypid.runtime.resources import num_cores
from raypid.settings.config import Config

MILLION = 1_000_000
LONG_RESETS = 0.3
"""Part of the environment's time from which resets are said to take long."""
MORE_ENVS = 4
"""How many times as many environments are proposed where they wait."""
SLOW_STEP_S = 2e-3
"""Step time from which workers pay more than anything else."""
UNEVEN = 100.0
"""Ratio of the deviations of an observation's elements from which they should be normalised."""
GROWTH_MB = 5.0
"""Megabytes in 1,000 steps from which memory is said to grow."""
_FLAGS = ("time_limit", "action_repeat", "frame_stack", "atari")
"""Settings of a check that change what is learnt."""
_USUAL_LIMIT = 1000
"""The time limit of a command for an environment of which no episode was seen to end: that of most robots of Gymnasium."""
FEW_STEPS = 300
"""Steps from which episodes that have not ended are a finding."""


def findings(facts: Mapping[str, Any], config: Config, name: str, *, healthy: bool) -> list[Finding]:
    """Turn facts into findings. Facts that were not reached give none."""
    found = [*_of_ends(facts, config), *_of_observations(facts, config), *_of_rewards(facts)]
    return [*found, *_of_speed(facts, config), *_of_algorithms(facts, config, name)] if healthy else found


def _of_ends(facts: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    episodes = facts.get("episodes")
    if not episodes:
        return
    num, steps = episodes["episodes"], episodes["steps"]
    if _is_unlimited(episodes) and steps >= FEW_STEPS:
        yield Finding(
            "warning", "episodes", f"none ended within {num_of(episodes['unfinished_steps'], 'step')}, and there is no time limit.",
            f"time_limit={_round_limit(episodes['unfinished_steps'])} cuts them, and evaluations end.",
        )  # fmt: skip
    elif _is_unlimited(episodes):
        yield Finding(
            "note", "episodes", f"there is no time limit, and none ended within {num_of(steps, 'step')}: too few to say that none does.",
            "More seconds show it; time_limit sets one.",
        )  # fmt: skip
    longest, shortest = episodes["length_max"], episodes["length_min"]
    if num > 20 and longest == 1:
        yield Finding(
            "note", "episodes", f"all {num} end after one step.",
            "If they should be longer: does reset() set back what ended the last one?",
        )  # fmt: skip
    elif num > 20 and shortest == longest and episodes["terminated"] == num:
        yield Finding(
            "note", "episodes", f"all {num} are terminated after exactly {longest:,} steps.",
            "If that is a time limit, return truncated=True, not terminated: learning then goes on behind it.",
        )  # fmt: skip


def _is_unlimited(episodes: Mapping[str, Any]) -> bool:
    """Whether no episode has ended, and no time limit cuts them."""
    return bool(episodes) and not episodes["episodes"] and episodes["time_limit"] is None


def _round_limit(steps: int) -> int:
    return 1_000 if steps < 10_000 else 10_000


def _of_observations(facts: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    observation = facts.get("observation") or {}
    for part in observation.get("parts", []):
        name = f"part {part['path']!r} of the observation" if part["path"] else "the observation"
        if part["outside"] and not part["space"].startswith(("Discrete", "Multi")):
            yield Finding(
                "warning", "observation", f"{part['outside']}, in {part['outside_share']:.1%} of the steps.",
                "Declare the bounds that hold, or infinite ones, or clip.",
            )  # fmt: skip
        other = [d for d in part["given_dtypes"] if d != part["dtype"]]
        if other and part["space"].startswith("Box"):
            text = f"{name} comes as {', '.join(other)}, its space says {part['dtype']}; raypid converts it."
            yield Finding("note", "observation", text)
        if observation["count"] >= FEW_STEPS:
            yield from _of_scale(part, name)


def _of_scale(part: Mapping[str, Any], name: str) -> Iterator[Finding]:
    """Whether the elements should be brought to one size."""
    if not part["space"].startswith("Box") or part["picture"] or part["max"] is None:
        return
    if part["symbols"]:
        text = f"{name} could be a picture, but holds nothing beyond {part['max']:g}: training takes it for numbers."
        yield Finding("note", "observation", text, "model.network='cnn' makes it a picture.")
    spread = part["std_max"] / part["std_min"] if part["std_min"] else 1.0
    if spread > UNEVEN and not part["normalized"]:
        text = f"{name} has elements that vary {spread:.0f} times more than others."
        yield Finding("note", "observation", text, "normalize_observations=True helps networks.")
    if part["size"] > 1 and part["constant_elements"] and part["size"] <= 10_000:
        text = f"{part['constant_elements']:,} of the {part['size']:,} elements of {name} never changed."
        yield Finding("note", "observation", text)


def _of_rewards(facts: Mapping[str, Any]) -> Iterator[Finding]:
    reward, episodes = facts.get("reward"), facts.get("episodes")
    if not reward or reward["min"] is None or not episodes:
        return
    if episodes["episodes"] >= 5 and reward["return_min"] == reward["return_max"]:
        text = f"every random episode had the same return, {reward['return_min']:g}: nothing to learn from until one differs."
    elif reward["min"] == reward["max"] == 0:
        text = f"it was 0 in all {episodes['steps']:,} steps."
    else:
        return
    yield Finding("note", "reward", text, "If that is rare, reward steps on the way, or try intrinsic_reward='rnd'.")


def _of_speed(facts: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    step, measured = facts.get("step"), [row for row in facts.get("vectorizers") or [] if row["steps_per_s"]]
    auto = next((row for row in measured if row["auto"]), None)
    if auto and config.vectorizer == "auto" and (best := measured[0])["steps_per_s"] > 1.3 * auto["steps_per_s"]:
        yield Finding(
            "note", "speed",
            f"raypid takes {auto['vectorizer']} by itself; {best['vectorizer']} steps it "
            f"{best['steps_per_s'] / auto['steps_per_s']:.1f} times as fast.",
            f"vectorizer={best['vectorizer']!r}, or num_workers={max(2, num_cores())}.",
        )  # fmt: skip
    if step and (step["mean_s"] or 0) > SLOW_STEP_S:
        if auto and auto["waits"] and (config.vectorizer in ("auto", "threads", "async")):
            num = MORE_ENVS * auto["num_envs"]
            yield Finding(
                "note", "speed", f"a step takes {duration(step['mean_s'])}, most of it waiting, which many can do at once.",
                f"num_envs_per_worker={num} is up to {MORE_ENVS} times as fast as {auto['num_envs']}.",
            )  # fmt: skip
        else:
            yield Finding(
                "note", "speed", f"a step takes {duration(step['mean_s'])} on average, which bounds training.",
                f"num_workers={max(2, num_cores())} steps it on all cores (more on a cluster).",
            )  # fmt: skip
    yield from _of_resets(facts)
    memory = facts.get("memory")
    if memory and memory["mb_per_1000_steps"] > GROWTH_MB:
        yield Finding(
            "warning", "memory", f"it grows by {memory['mb_per_1000_steps']:.0f} MB in 1,000 steps.",
            "Does something keep every observation or info? Empty it in reset().",
        )  # fmt: skip


def _of_resets(facts: Mapping[str, Any]) -> Iterator[Finding]:
    step, reset, episodes = facts.get("step"), facts.get("reset"), facts.get("episodes")
    if not step or not reset or not episodes or not step["mean_s"] or not reset.get("mean_s"):
        return
    length = episodes["length_mean"] or episodes["time_limit"] or max(1, episodes["unfinished_steps"])
    share = reset["mean_s"] / (reset["mean_s"] + length * step["mean_s"])
    if share > LONG_RESETS and reset["mean_s"] > SLOW_STEP_S:
        yield Finding(
            "note", "speed", f"resets take {share:.0%} of the environment's time: {duration(reset['mean_s'])} for each episode of "
            f"{'' if episodes['length_mean'] else 'at least '}{num_of(round(length), 'step')}.",
        )  # fmt: skip


def _of_algorithms(facts: Mapping[str, Any], config: Config, env: str) -> Iterator[Finding]:
    """Which algorithm to begin with."""
    training, space = facts.get("training") or {}, (facts.get("action") or {}).get("space", "")
    ppo, sac = training.get("PPO") or {}, training.get("SAC") or {}
    if not ppo.get("seconds"):
        return
    slow = ppo["env_share"] > 0.8 and 1 / ppo["env_s_per_step"] < 2_000 and (sac.get("env_share") or 1.0) > 0.3
    name, why = "PPO", "these actions" if slow else "steps are cheap"
    replaying = {"Discrete": "DQN", "Box": sac.get("seconds") and "SAC"}.get(space.partition("(")[0])
    if slow and replaying:
        name, why = replaying, "steps are dear, so learn more from each"
    yield Finding(
        "note", "algorithm", f"begin with {name}: {why}.", _command(name, env, config, facts.get("episodes") or {})
    )


def _command(run: str, env: str, config: Config, episodes: Mapping[str, Any]) -> str:
    """What trains it, to be pasted, with the settings that it was checked with, and a time limit where episodes may never end."""
    default = Config()
    flags = {name: getattr(config, name) for name in _FLAGS if getattr(config, name) != getattr(default, name)}
    if _is_unlimited(episodes):
        many = episodes["steps"] >= FEW_STEPS
        flags["time_limit"] = _round_limit(episodes["unfinished_steps"]) if many else _USUAL_LIMIT
    more = "".join(f" --{name.replace('_', '-')} {json.dumps(value)}" for name, value in flags.items())
    more += (
        f" --env-config {shlex.quote(json.dumps(dict(config.env_config), default=str))}" if config.env_config else ""
    )
    return f"raypid train --run {run} --env {shlex.quote(env)}{more} --stop {MILLION}"
