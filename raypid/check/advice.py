"""From what was measured to what to do: sentences with the setting that does it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raypid.check.report import Finding, num_of
from raypid.errors import shorten
from raypid.phases import duration
from raypid.runtime.resources import num_cores
from raypid.settings.config import Config

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
FEW_LINES = 20
"""Lines of output that nobody minds."""
FEW_STEPS = 300
"""Steps from which episodes that have not ended are a finding."""
Facts = Mapping[str, Any]


def findings(facts: Facts, config: Config, name: str, *, healthy: bool) -> list[Finding]:
    """Turn facts into findings. Facts that were not reached give none."""
    found = [*_of_output(facts), *_of_observations(facts)]
    if facts.get("episodes"):
        found += [*_of_ends(facts["episodes"]), *_of_rewards(facts["reward"], facts["episodes"])]
        if healthy:
            found += [*_of_speed(facts, config), *_of_algorithms(facts, config, name)]
    return found


def _of_output(facts: Facts) -> Iterator[Finding]:
    printed, steps = facts.get("printed"), (facts.get("episodes") or {"steps": 0})["steps"]
    if printed and (printed["lines"] > max(FEW_LINES, steps / 2) or printed["characters"] > 1e6):
        text = f"it printed {printed['lines']:,} lines ({printed['characters'] / 1e3:,.0f} kB), beginning with {shorten(printed['first'], 80)!r}."
        yield Finding("warning", "output", text, "Remove the print: it takes time and hides what raypid says.")


def _of_ends(episodes: Facts) -> Iterator[Finding]:
    num, steps, longest = episodes["episodes"], episodes["steps"], episodes["length_max"]
    if _is_unlimited(episodes) and steps >= FEW_STEPS:
        text = f"none ended within {num_of(episodes['unfinished_steps'], 'step')}, and there is no time limit."
        yield Finding("warning", "episodes", text, f"time_limit={_USUAL_LIMIT} cuts them, and evaluations end.")
    elif num > 20 and 1 < episodes["length_min"] == longest and episodes["terminated"] == num:
        advice = "If that is a time limit, return truncated=True, not terminated: learning then goes on behind it."
        yield Finding("note", "episodes", f"all {num} are terminated after exactly {longest:,} steps.", advice)


def _is_unlimited(episodes: Facts) -> bool:
    """Whether no episode has ended, and no time limit cuts them."""
    return not episodes["episodes"] and episodes["time_limit"] is None


def _of_observations(facts: Facts) -> Iterator[Finding]:
    observation = facts.get("observation") or {}
    for part in observation.get("parts", []):
        name = f"part {part['path']!r} of the observation" if part["path"] else "the observation"
        if part["outside"]:
            text = f"{part['outside']}, in {part['outside_share']:.1%} of the steps."
            yield Finding("warning", "observation", text, "Declare the bounds that hold, or infinite ones, or clip.")
        if not part["space"].startswith("Box"):
            continue
        if other := [dtype for dtype in part["given_dtypes"] if dtype != part["dtype"]]:
            text = f"{name} comes as {', '.join(other)}, its space says {part['dtype']}; raypid converts it."
            yield Finding("note", "observation", text)
        if observation["count"] >= FEW_STEPS and not part["picture"] and part["max"] is not None:
            yield from _of_scale(part, name)


def _of_scale(part: Facts, name: str) -> Iterator[Finding]:
    """Whether the elements should be brought to one size."""
    if part["symbols"]:
        text = f"{name} could be a picture, but holds nothing beyond {part['max']:g}: training takes it for numbers."
        yield Finding("note", "observation", text, "model.network='cnn' makes it a picture.")
    spread = part["std_max"] / part["std_min"] if part["std_min"] else 1.0
    if spread > UNEVEN and not part["normalized"]:
        text = f"{name} has elements that vary {spread:.0f} times more than others."
        yield Finding("note", "observation", text, "normalize_observations=True helps networks.")
    if part["constant_elements"] and 1 < part["size"] <= 10_000:
        text = f"{part['constant_elements']:,} of the {part['size']:,} elements of {name} never changed."
        yield Finding("note", "observation", text)


def _of_rewards(reward: Facts, episodes: Facts) -> Iterator[Finding]:
    if episodes["episodes"] >= 5 and reward["return_min"] == reward["return_max"]:
        text = f"every random episode had the same return, {reward['return_min']:g}: nothing to learn from until one differs."
    elif reward["min"] == reward["max"] == 0:
        text = f"it was 0 in all {episodes['steps']:,} steps."
    else:
        return
    yield Finding("note", "reward", text, "If that is rare, reward steps on the way, or try intrinsic_reward='rnd'.")


def _of_speed(facts: Facts, config: Config) -> Iterator[Finding]:
    workers = f"num_workers={max(2, num_cores())}"
    measured = [row for row in facts.get("vectorizers") or [] if row["steps_per_s"]]
    auto = next((row for row in measured if row["auto"]), None)
    if auto and config.vectorizer == "auto" and (best := measured[0])["steps_per_s"] > 1.3 * auto["steps_per_s"]:
        times = f"{best['steps_per_s'] / auto['steps_per_s']:.1f} times as fast"
        text = f"raypid takes {auto['vectorizer']} by itself; {best['vectorizer']} steps it {times}."
        yield Finding("note", "speed", text, f"vectorizer={best['vectorizer']!r}, or {workers}.")
    step_s = facts["step"]["mean_s"]
    if step_s > SLOW_STEP_S and auto and auto["waits"] and config.vectorizer in ("auto", "threads", "async"):
        text = f"a step takes {duration(step_s)}, most of it waiting, which many can do at once."
        num = auto["num_envs"]
        advice = f"num_envs_per_worker={MORE_ENVS * num} is up to {MORE_ENVS} times as fast as {num}."
        yield Finding("note", "speed", text, advice)
    elif step_s > SLOW_STEP_S:
        text = f"a step takes {duration(step_s)} on average, which bounds training."
        yield Finding("note", "speed", text, f"{workers} steps it on all cores (more on a cluster).")
    growth = (facts.get("memory") or {"mb_per_1000_steps": 0.0})["mb_per_1000_steps"]
    if growth > GROWTH_MB:
        advice = "Does something keep every observation or info? Empty it in reset()."
        yield Finding("warning", "memory", f"it grows by {growth:.0f} MB in 1,000 steps.", advice)


def _of_algorithms(facts: Facts, config: Config, env: str) -> Iterator[Finding]:
    """Which algorithm to begin with."""
    training = facts.get("training") or {}
    ppo, sac = training.get("PPO") or {}, training.get("SAC") or {}
    if not ppo.get("seconds"):
        return
    slow = ppo["env_share"] > 0.8 and 1 / ppo["env_s_per_step"] < 2_000 and (sac.get("env_share") or 1.0) > 0.3
    kind = facts["action"]["space"].partition("(")[0]
    name, why = "PPO", "these actions" if slow else "steps are cheap"
    if slow and (kind == "Discrete" or (kind == "Box" and sac.get("seconds"))):
        name, why = "DQN" if kind == "Discrete" else "SAC", "steps are dear, so learn more from each"
    yield Finding("note", "algorithm", f"begin with {name}: {why}.", _command(name, env, config, facts["episodes"]))


def _command(run: str, env: str, config: Config, episodes: Facts) -> str:
    """What trains it, to be pasted, with the settings that it was checked with, and a time limit where episodes may never end."""
    default = Config()
    flags = {name: getattr(config, name) for name in _FLAGS if getattr(config, name) != getattr(default, name)}
    if _is_unlimited(episodes):
        flags["time_limit"] = _USUAL_LIMIT
    more = "".join(f" --{name.replace('_', '-')} {json.dumps(value)}" for name, value in flags.items())
    if config.env_config:
        more += f" --env-config {shlex.quote(json.dumps(dict(config.env_config), default=str))}"
    return f"raypid train --run {run} --env {shlex.quote(env)}{more} --stop 1000000"
