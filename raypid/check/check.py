"""`check_env`: an environment is made, stepped and measured in a process of its own; what was found becomes a report."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from raypid.check import advice
from raypid.check.apart import run_apart
from raypid.check.checks import run_checks
from raypid.check.report import EnvReport, Finding
from raypid.errors import ConfigError, shown
from raypid.plugins.modules import entry_name
from raypid.plugins.registry import did_you_mean
from raypid.run.resolve import resolve_config
from raypid.settings.config import canonical, overlay

SECONDS, TIMEOUT_S = 8.0, 30.0
SETTINGS = (
    "time_limit", "action_repeat", "atari", "frame_stack", "num_envs_per_worker", "vectorizer", "env_config", "custom_args",
)  # fmt: skip
"""Settings of a run that bear on the environment."""


def check_env(
    env: object,
    env_config: Mapping[str, object] | None = None,
    *,
    seconds: float = SECONDS,
    timeout_s: float = TIMEOUT_S,
    speed: bool = True,
    **settings: object,
) -> EnvReport:
    """Find out whether an environment is right, how fast it is, and what training on it will cost.

    It is made and stepped with random actions in a process of its own, so it may hang, crash or print. Nothing that is wrong with the
    environment is raised: all of it is in the report.

    Args:
        env: whatever an agent takes: an id, "module:Name", a registered name, a class, or a function.
        env_config: its keyword arguments.
        seconds: about how long to look. An environment with slow steps takes a few steps more than that.
        timeout_s: how long its constructor, a reset or a step may take before they are called hanging.
        speed: also measure the vectors and what training costs. It is left out where there are problems.
        settings: `time_limit`, `action_repeat`, `atari`, `frame_stack`, `num_envs_per_worker`, `vectorizer` and `custom_args`, as for
            an agent.

    Returns:
        A report: `ok`, `problems`, `warnings`, `advice`, `facts`, `to_dict()`; its repr is what `raypid check-env` prints.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
    """
    for name, value in (("seconds", seconds), ("timeout_s", timeout_s)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a number above 0, not {shown(value)}.")
    for name in settings:
        if canonical(name).partition(".")[0] not in SETTINGS:
            raise ConfigError(f"check_env takes no setting {name!r}.{did_you_mean(name, SETTINGS)}")
    given = overlay({"env": env, "env_config": dict(env_config or {}), "num_envs_per_worker": 8}, settings)
    config = resolve_config("PPO", {**given, "seed": 0})
    report = EnvReport(env if isinstance(env, str) else entry_name(config.env))
    start = time.monotonic()
    for message in run_apart(lambda channel: run_checks(config, channel, seconds, speed=speed), timeout_s):
        if isinstance(message, Finding):
            report.findings.append(message)
        elif isinstance(message, Mapping):
            report.facts |= message
    report.seconds = time.monotonic() - start
    report.found = bool(report.facts.pop("found", True))
    report.findings += advice.findings(report.facts, config, report.env, healthy=report.ok)
    return report
