"""`check_env`: an environment is made, stepped and measured in a process of its own; what was found becomes a report."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from raypid.check import advice
from raypid.check.apart import (
    STEP_AFTER_END,
    Channel,
    Ending,
    Message,
    Stage,
    place_of,
    run_apart,
    subject,
)
from raypid.check.costs import measure_training, measure_vectors
from raypid.check.exam import Broken, Exam
from raypid.check.finding import Finding
from raypid.check.report import EnvReport
from raypid.envs.env_spec import EnvSpec
from raypid.envs.errors import HEAD, ImportFailed
from raypid.envs.foreign import ForeignEnv
from raypid.envs.quiet import quiet
from raypid.errors import ConfigError, UserError, shorten, shown
from raypid.plugins.modules import entry_name
from raypid.plugins.registry import did_you_mean
from raypid.run.resolve import env_spec_of, resolve_config
from raypid.runtime.resources import limit_threads
from raypid.settings.config import Config, canonical, overlay

SECONDS, TIMEOUT_S = 8.0, 30.0
SETTINGS = (
    "time_limit", "action_repeat", "atari", "frame_stack", "num_envs_per_worker", "vectorizer", "env_config", "custom_args",
)  # fmt: skip
"""Settings of a run that bear on the environment."""
EXAM_SHARE, VECTORS_SHARE, PPO_SHARE, SAC_SHARE = 0.35, 0.3, 0.1, 0.25
"""Parts of the time."""


FEW_LINES = 20
"""Lines of output that nobody minds."""
LEARNING_S = 60.0
"""Seconds that an iteration of training may take, the import of torch included."""


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
    given = overlay({"env": env, "env_config": dict(env_config or {}), "num_envs_per_worker": 8}, settings)
    for name in settings:
        if canonical(name).partition(".")[0] not in SETTINGS:
            raise ConfigError(f"check_env takes no setting {name!r}.{did_you_mean(name, SETTINGS)}")
    config = resolve_config("PPO", {**given, "seed": 0})
    report = EnvReport(_shown_name(env, config.env))

    def hear(message: Message) -> None:
        if isinstance(message, Finding):
            report.findings.append(message)
        elif isinstance(message, Mapping):
            report.facts |= message

    start = time.monotonic()
    ending = run_apart(lambda channel: _inside(config, channel, seconds, timeout_s, speed=speed), hear, timeout_s)
    report.seconds = time.monotonic() - start
    report.found = bool(report.facts.pop("found", True))
    if ending.how != "done":
        _judge_ending(report, ending, timeout_s)
    _judge_prints(report, ending)
    report.findings += advice.findings(report.facts, config, report.env, healthy=report.ok)
    return report


def _shown_name(given: object, entry: object) -> str:
    """The name as it was given, or else that of the class or function."""
    return given if isinstance(given, str) else entry_name(entry)


def _inside(config: Config, channel: Channel, seconds: float, timeout_s: float, *, speed: bool) -> None:
    """What is done in the process apart."""
    limit_threads(1)
    with quiet():
        try:
            spec = replace(env_spec_of(config), seed=0)
        except BaseException as error:  # of a module that is imported, too
            ours = isinstance(error, UserError)
            channel.send({"found": not ours or isinstance(error, (ForeignEnv, ImportFailed))})
            where = "" if ours and not str(error).startswith(HEAD) else place_of(error)
            text = str(error).rpartition("\nraypid: ")[2] if ours else f"it raises {type(error).__name__}: {error}"
            topic = "interface" if isinstance(error, ForeignEnv) else "import"
            channel.send(Finding("problem", topic, shorten(text, 900), where=where))
            return
        exam = Exam(spec, channel, EXAM_SHARE * seconds)
        try:
            exam.run()
            if not exam.num_problems:
                if exam.mean_step_s() < 0.01:
                    exam.ask_gymnasium()
                if speed:
                    _measure(spec, config, exam, seconds, timeout_s)
                channel.send(Stage("end", timeout_s))
                exam.step_after_end()
        except Broken:
            pass
        finally:
            exam.close()


def _measure(spec: EnvSpec, config: Config, exam: Exam, seconds: float, timeout_s: float) -> None:
    """Measure the vectors, then what training costs."""
    channel = exam.channel
    channel.send(Stage("vectors", timeout_s))
    vectors = measure_vectors(spec, exam, VECTORS_SHARE * seconds)
    exam.tell(vectorizers=vectors)
    training: dict[str, object] = {}
    for run, share in (("PPO", PPO_SHARE), ("SAC", SAC_SHARE)):
        channel.send(Stage(run, LEARNING_S))
        training[run] = measure_training(run, config, exam, vectors, share * seconds)
        exam.tell(training=training)


def _judge_ending(report: EnvReport, ending: Ending, timeout_s: float) -> None:
    """Say how the process ended, which was not as it should."""
    text, advice_text, where = f"ends its process ({ending.exit_words})", "", ending.where
    if ending.how == "hung":
        text, advice_text = f"gives no answer within {timeout_s:g} s", "A longer timeout waits for it."
    if ending.call == STEP_AFTER_END:
        report.findings.append(Finding("note", "end", f"{ending.during} {text}; raypid never does that.", where=where))
    elif ending.stage in ("PPO", "SAC"):
        found = Finding("note", "training", f"the cost of {ending.stage} could not be measured: it {text}.")
        report.findings.append(found)
    elif ending.stage == "vectors":
        report.findings.append(Finding("problem", "vectors", f"several of them side by side: it {text}.", where=where))
    else:
        topic, who = subject(ending.during)
        report.findings.append(Finding("problem", topic, f"{who} {text}.", advice_text, where))


def _judge_prints(report: EnvReport, ending: Ending) -> None:
    """Say how much it printed."""
    first = ending.head.split("\n")[0]
    report.facts["printed"] = {"lines": ending.lines, "characters": ending.printed, "first": first[:200]}
    steps = (report.facts.get("episodes") or {}).get("steps") or 0  # type: ignore[attr-defined]
    if ending.lines < FEW_LINES and ending.printed < 10_000:
        return
    text = f"it printed {ending.lines:,} lines ({ending.printed / 1e3:,.0f} kB), beginning with {shorten(first, 80)!r}."
    often = ending.lines > steps / 2 or ending.printed > 1e6
    advice_text = "Remove the print: it takes time and hides what raypid says." if often else ""
    report.findings.append(Finding("warning" if often else "note", "output", text, advice_text))
