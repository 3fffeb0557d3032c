"""What went wrong in a run and what slowed it, judged from its folder alone: `diagnose` gives findings with their numbers.

Each check says what the numbers say and no more. The bounds between usual and unusual stand at the top.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from raypid import checkpoint
from raypid.changes import CHANGES, described, later, read_changes
from raypid.errors import UserError, one_line
from raypid.outputs import ERRORS
from raypid.registry import ALGORITHMS
from raypid.reporting.logger import PARAMS, RESULTS
from raypid.reporting.panel import COUNTS, PARTS, WAITED, advice_on, bottleneck, workers_pay
from raypid.run.known_return import remedies, shortfall
from raypid.run.record import DIVERGED, Record, Saved, has_finite_weights, newest_sound
from raypid.runtime.resources import num_cores
from raypid.types import Array

Severity: TypeAlias = Literal["error", "warning", "note"]
Topic: TypeAlias = Literal["learning", "end", "losses", "speed"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
TOPICS: tuple[Topic, ...] = ("learning", "end", "losses", "speed")
"""A cause before its consequence: a diverged learner before the end that it brought."""

MIN_EPISODES = 20
"""Training episodes before a mean return says something."""
FLAT_EPISODES = 200
"""Training episodes before a return that has not risen is a finding."""
RANGE_PER_NOISE = 12.0
"""Two means of 100 episodes differ by less than the range of the 100 divided by this, unless something has changed: the range of
100 normal numbers is 5 deviations, the deviation of the difference of two means a seventh of one, and three of these are allowed."""
EXPLODED, EXPLODED_RATIO = 1e6, 1e4
"""A metric that is larger than this, and than this many times what it was."""
HUGE = 1e10
"""A loss or a return beyond this says nothing, whatever it was at first."""
USUAL_CLIP_FRACTION, USUAL_KL = 0.4, 0.1
SHORT_STEPS = 1000
"""Steps of one environment after which it is a warning that no episode has ended."""
SLOWED, SLOWED_AFTER_S = 0.6, 20.0
"""Speed at the end beside that at the start. Shorter runs may be slowed by whatever else the machine does."""
BINDS, MANY_EVALUATIONS = 0.6, 0.2
"""Shares of the time."""
MANY_STALE, OLD_WEIGHTS, RATIO_OFF = 0.05, 10.0, 0.1
"""Share of the steps that was dropped; mean staleness in updates; distance of samples_per_insert from the setting."""
_FINITE = ("policy_loss", "value_loss", "critic_loss", "loss", "q", "td_error", "entropy", "kl", "grad_norm", "alpha")
"""Metrics of learners that are finite wherever they are reported, unless the learner has diverged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the folder says about the run."""

    topic: Topic
    severity: Severity
    """error: it ended the run, or spoilt what it learnt. warning: it did harm. note: worth knowing."""
    finding: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    """What the finding goes by; None: not known, or not set."""
    advice: str = ""


Findings: TypeAlias = Iterator[Finding]


@np.errstate(all="ignore")  # the numbers of a run that went wrong may be anything
def diagnose(record: Record) -> list[Finding]:
    """What the folder says, most important first."""
    found = [finding for check in CHECKS for finding in check(record)]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), TOPICS.index(f.topic)))


# -- the end -----------------------------------------------------------------------------------------------------------


def end(record: Record) -> Findings:
    """How the run ended, and from where it can go on."""
    last = int(record.last("training_iteration"))
    numbers: dict[str, float | None] = {"iteration": last, "step": record.last("timesteps_total")}
    if record.is_locked:
        yield Finding("end", "note", "It is still running.", numbers)
        return
    saved, wrong = newest_sound(record.folder)
    if _is_saved_alone(record) and saved is not None:
        text = "It has checkpoints alone, as agent.save() in Python leaves them: nothing here says how training went."
        advice = "raypid.train, agent.fit and `raypid train` write the results of each iteration."
        yield Finding("end", "warning", text, {"step": saved.timesteps}, advice)
        return
    numbers["resumes_from_step"] = saved.timesteps if saved is not None else None
    resume = _resume(record, saved, last)
    if wrong:
        text = f"Checkpoints that cannot be used: {len(wrong)}. The newest of them: {wrong[0]}."
        yield Finding("end", "warning", text, {"checkpoints": len(wrong)}, resume)
    if saved is not None and saved.gone_back:
        text = f"Roles were lost after its last iteration. {saved.gone_back}"
        yield Finding("end", "warning", text, {"iteration_saved": saved.iteration}, "errors.txt says which.")
    reached = [f"{key} {record.last(key):,.6g}" for key in record.stop if _reached(record, key)]
    if _ended_by_error(record):
        first = _before_going_on(record)
        text = f"An error ended it in iteration {record.error_iteration}: {record.error}"
        yield Finding("end", "error", text, numbers, f"{first}errors.txt has the traceback. {resume}")
    elif reached:
        late = ", but it was killed before the final episodes were played" if record.lock_left else ""
        yield Finding("end", "note", f"It reached its stop: {' and '.join(reached)}{late}.", numbers)
    elif record.lock_left and not record.ran_here:
        text = "No process of this machine holds the folder: the run was killed, or it is running on another machine."
        yield Finding("end", "warning", text, numbers, resume)
    elif record.lock_left:
        text = "It was killed: no end is recorded. (kill -9, out of memory, a crash in C code, a second Ctrl-C?)"
        yield Finding("end", "error", text, numbers, f"{resume}{_against_crashes(record)}")
    elif saved is not None and saved.iteration == last:
        text = "It was stopped from outside (Ctrl-C, SIGTERM) before its stop criterion."
        yield Finding("end", "note", text, numbers, resume)
    else:
        yield Finding("end", "warning", "No end is recorded: killed, or copied while it ran.", numbers, resume)


def damage(record: Record) -> Findings:
    """Files that could not be read."""
    if record.damage and not _is_saved_alone(record):
        text = f"{'; '.join(record.damage)}. What is said here goes by the rest."
        yield Finding("end", "warning", text, {"problems": len(record.damage)})


def _is_saved_alone(record: Record) -> bool:
    """Whether the folder is that of an agent in Python, which was saved and wrote nothing else."""
    return not any((record.folder / name).exists() for name in (PARAMS, RESULTS, ERRORS))


def _resume(record: Record, saved: Saved | None, last: int) -> str:
    if saved is None:
        has_some = any((record.folder / "checkpoints").glob("*"))
        if record.params and not _ended_by_error(record) and not has_some:
            return (
                f"It has no checkpoint yet: `raypid train --resume {shlex.quote(str(record.folder))}` begins it anew."
            )
        return "There is no sound checkpoint to go on from: start anew."
    lost = f" (iterations lost: {last - saved.iteration})" if last > saved.iteration else ""
    if saved.path != checkpoint.latest(record.folder / "checkpoints"):
        return f"Move what is newer than {saved.path} away: then --resume goes on from step {saved.timesteps:,}{lost}."
    return f"`raypid train --resume {shlex.quote(str(record.folder))}` goes on from step {saved.timesteps:,}{lost}."


def _before_going_on(record: Record) -> str:
    """What to do before a run that an error ended is resumed; "" if nothing is known."""
    if _diverged(record):
        return "Look at the divergence first. "
    if "EnvError: " in record.error:
        return "Mend the environment first: until then --resume fails again. "
    if "The disk is full" in record.error or "No space left on device" in record.error:
        return "Free space on the disk first. "
    return ""


def _against_crashes(record: Record) -> str:
    """What outlives an environment that ends its process, where that ended the run."""
    if record.setting("num_workers") != 0 or record.params.get("vectorizer") == "async":
        return ""
    return (
        " If the environment did it (os._exit, a crash in C code): --num-workers 1 or --vectorizer async outlives that."
    )


def _broke_off(record: Record) -> bool:
    """Whether an error ended the run, or it was killed."""
    return _ended_by_error(record) or (record.lock_left and not record.is_locked)


def _reached(record: Record, key: str) -> bool:
    """Whether the last iteration met a stop criterion."""
    values = record.column(key if key in record.columns else key.removeprefix("custom/"))[-1:]
    counts = not key.startswith("episode_reward") or record.last("episodes_total") >= MIN_EPISODES
    return counts and bool((np.isfinite(values) & (values >= record.stop[key])).any())


def _ended_by_error(record: Record) -> bool:
    """Whether the error in errors.txt is newer than the last result. A run that went on after one has left it behind."""
    return 0 < record.error_iteration - record.last("training_iteration") <= 2


# -- learning ----------------------------------------------------------------------------------------------------------


class Bad(NamedTuple):
    """A metric that is not finite."""

    name: str
    row: int
    """The first iteration in which it is not."""
    num_rows: int


def _not_finite(record: Record) -> Bad | None:
    """The metric of the learner that was the first to be NaN or infinite."""
    rows = {name: np.flatnonzero(np.isinf(record.column(f"learner/{name}"))) for name in _FINITE}
    found = [Bad(name, int(at[0]), len(at)) for name, at in rows.items() if len(at)]
    return min(found, key=lambda bad: bad.row, default=None)


def _those(record: Record, *settings: str) -> str:
    """The names of those settings that the run's algorithm has."""
    return ", ".join(name for name in settings if name in record.params or not record.params)


def _diverged(record: Record) -> bool:
    return _not_finite(record) is not None or ("diverged" in record.error and _ended_by_error(record))


def _against_divergence(record: Record) -> str:
    """What helps against a divergence, of what is not set already and has an effect."""
    name = record.params.get("run")
    idle = ALGORITHMS.get(name).Config.no_effect if isinstance(name, str) and ALGORITHMS.is_own(name) else {}
    off: list[object] = [None, False]

    def is_off(setting: str) -> bool:
        return not record.params or any(record.params.get(setting, ...) is value for value in off)

    rates = [name for name in ("lr", "lr_critic") if record.setting(name) is not None]
    steps = [f"Lower {' and '.join(rates) or 'lr'}"]
    if is_off("max_grad_norm"):
        steps.append("bound gradients (max_grad_norm)")
    bounds = [setting for setting in ("normalize_rewards", "reward_clip") if setting not in idle]
    if bounds and all(map(is_off, bounds)):
        if any((np.abs(record.finite(f"episode_reward_{key}")) > HUGE).any() for key in ("min", "mean", "max")):
            return f"Rewards are huge: bound them ({', '.join([*bounds, 'reward_scale'])})."
        steps.append(f"bound rewards ({', '.join(bounds)})")
    return f"{'; '.join(steps)}."


def _own_advice(record: Record) -> str:
    """What the run itself advised when it diverged; "" if that is not known."""
    with contextlib.suppress(UserError):
        manifest: Mapping[str, object] = checkpoint.read_manifest(record.folder / DIVERGED)
        advice = manifest.get("advice")
        return one_line(advice) if isinstance(advice, str) else ""
    return ""


def divergence(record: Record) -> Findings:
    """Losses, returns or weights that are not finite, or larger than numbers that mean anything."""
    advice = _against_divergence(record)
    lr, is_there = record.setting("lr"), (record.folder / DIVERGED).is_dir()
    stopped_it = "diverged" in record.error and _ended_by_error(record)
    if stopped_it or is_there:
        batch = f" {DIVERGED}/ has the batch and the last good weights." if is_there else ""
        text = f"The learner diverged{', which ended the run' if stopped_it else ''}.{batch}"
        yield Finding("learning", "error" if stopped_it else "warning", text, {"lr": lr}, _own_advice(record) or advice)
    if (bad := _not_finite(record)) is not None:
        iteration, step = (record.column(k)[bad.row] for k in ("training_iteration", "timesteps_total"))
        until = "to the end" if np.isinf(record.column(f"learner/{bad.name}")[-1]) else "for a while"
        text = f"It diverged: learner/{bad.name} was not finite from step {step:,.0f} on, {until}."
        numbers = {"iteration": iteration, "step": step, "iterations_not_finite": bad.num_rows, "lr": lr}
        yield Finding("learning", "error", text, numbers, advice)
    for name in _FINITE:
        values = np.abs(record.finite(f"learner/{name}"))
        if not len(values):
            continue
        part = max(1, len(values) // 5)
        early, late = (float(np.median(x)) for x in (values[:part], values[-part:]))
        numbers = {"first": early, "last": late, "lr": lr}
        if late > max(EXPLODED, EXPLODED_RATIO * early):
            yield Finding("learning", "error", f"learner/{name} grew beyond measure.", numbers, advice)
        elif late > HUGE:
            yield Finding("learning", "warning", f"learner/{name} is too large to learn from.", numbers, advice)
    returns = record.column("episode_reward_mean")
    if np.isinf(returns[np.cumsum(np.isfinite(returns)) > 0]).any():
        text = "Returns of training episodes became NaN or infinite."
        yield Finding("learning", "error", text, {}, "Look at the environment's rewards.")


def best_policy(record: Record) -> Findings:
    """A best policy that is of no use. Checkpoints are judged with the end."""
    best = record.folder / checkpoint.BEST
    try:
        try:
            is_finite = not best.is_dir() or has_finite_weights(best)
        except Exception:  # a run that goes on may have replaced it meanwhile
            is_finite = has_finite_weights(best)
        if not is_finite:
            text = "The weights in best/ are not finite: the policy there says nothing."
            yield Finding("learning", "error", text, {}, "Do not use it.")
    except Exception as error:  # of others' folders: whatever is damaged there
        yield Finding("end", "warning", f"best/ cannot be read: {error}", {}, "Evaluate a checkpoint instead.")


def episodes(record: Record) -> Findings:
    """Whether training episodes ended, and evaluations."""
    steps, count = record.last("timesteps_total"), record.last("episodes_total")
    if not record.num_rows:
        return
    if not count:
        streams = max(1.0, record.setting("num_workers") or 1.0) * (record.setting("num_envs_per_worker") or 1.0)
        numbers = {"steps": steps, "steps_per_environment": steps / streams, "time_limit": record.setting("time_limit")}
        advice = "Set time_limit, if an episode of this environment may have no end; else train longer."
        severity: Severity = "warning" if steps / streams >= SHORT_STEPS else "note"
        yield Finding("learning", severity, "No training episode has ended, so there is no return.", numbers, advice)
    if len(record.finite("evaluation/episodes")):
        return
    interval, iterations = record.setting("evaluation_interval"), record.last("training_iteration")
    numbers = {
        "evaluation_interval": interval,
        "iterations": iterations,
        "lost/evaluators": record.counted("lost/evaluators"),
    }
    if interval == 0:
        why, advice = "evaluation_interval is 0", ""
    elif numbers["lost/evaluators"]:
        why, advice = "evaluators were lost", "errors.txt says why."
    elif interval is None and not count:
        why, advice = "that waits for the first training episode to end", ""
    elif _broke_off(record):
        why, advice = "the run ended before one was finished", ""
    elif interval and interval > iterations:
        why, advice = "none was due yet", "Lower evaluation_interval."
    else:
        why, advice = "none had ended when the results did", "Train longer, or set evaluation_interval."
    yield Finding("learning", "note", f"There was no evaluation: {why}.", numbers, advice)


class Curve(NamedTuple):
    """Returns over the run."""

    name: str
    step: Array
    episodes: Array
    """Training episodes so far."""
    value: Array
    noise: Array
    """How far two values may lie apart by chance."""


def _training(record: Record) -> Curve:
    value, low, high = (record.column(f"episode_reward_{k}") for k in ("mean", "min", "max"))
    step, count = record.column("timesteps_total"), record.column("episodes_total")
    keep = np.isfinite(value) & np.isfinite(high) & np.isfinite(low) & np.isfinite(step) & (count >= MIN_EPISODES)
    noise = (high[keep] - low[keep]) / RANGE_PER_NOISE
    return Curve("return of training", step[keep], count[keep], value[keep], noise)


def _evaluation(record: Record) -> Curve:
    value, half = record.column("evaluation/episode_reward_mean"), record.column("evaluation/episode_reward_ci95")
    step = record.column("timesteps_total")
    keep = np.isfinite(value) & np.isfinite(step)
    noise = np.where(np.isfinite(half[keep]), 2 * half[keep], 0.0)
    return Curve("return of evaluations", step[keep], record.column("episodes_total")[keep], value[keep], noise)


def returns(record: Record) -> Findings:
    """A return that fell and stayed low, or that has not risen."""
    evaluation = _evaluation(record)
    fell = _collapse(record, evaluation if len(evaluation.value) >= 5 else _training(record))
    found = fell or _flat(record)
    if found is not None and not _diverged(record):
        yield found


def _collapse(record: Record, curve: Curve) -> Finding | None:
    """A return that lost more than half of what it had gained, and did not come back in the last fifth of the run or longer."""
    if len(curve.value) < 5:
        return None
    at = int(np.argmax(curve.value))
    start, best = float(curve.value[0]), float(curve.value[at])
    fell = int(np.flatnonzero(curve.value >= (start + best) / 2)[-1]) + 1
    after = curve.value[fell:]
    if len(after) < max(3, len(curve.value) / 5):
        return None
    since, noise = float(np.median(after)), float(max(curve.noise[0], curve.noise[at], np.median(curve.noise[fell:])))
    if best - max(start, since) <= noise:
        return None
    step = curve.step[fell]
    text = f"Collapse: the {curve.name} fell from its best, and from step {step:,.0f} on it stayed low."
    numbers = {"first": start, "best": best, "best_at_step": curve.step[at], "low_from_step": step, "since": since}
    look = _those(record, "lr_schedule", "num_epochs", "target_kl", "max_grad_norm")
    advice = f"Lower lr; look at {look}. best/ keeps the best policy."
    return Finding("learning", "warning", text, numbers, advice)


def _flat(record: Record) -> Finding | None:
    """A return that is at no time above that of the first 100 episodes, by more than chance."""
    curve, evaluation = _training(record), _evaluation(record)
    if not record.last("learner_updates_total") or len(curve.value) < 3 or curve.episodes[-1] < FLAT_EPISODES:
        return None
    if any("reward" in key and _reached(record, key) for key in record.stop):
        return None
    if (
        len(evaluation.value)
        and (rise := evaluation.value - evaluation.value[0]).max() > evaluation.noise[np.argmax(rise)]
    ):
        return None
    start = int(np.argmax(curve.episodes >= min(100, curve.episodes[-1])))
    first, best, last = (float(x) for x in (curve.value[start], curve.value[start:].max(), curve.value[-1]))
    noise = float(max(curve.noise[start], curve.noise[-1]))
    if best > first + noise:
        return None
    numbers = {"first": first, "best": best, "last": last, "by_chance": noise, "episodes": curve.episodes[-1]}
    text = "The return of training has not risen above that of the first episodes."
    look = _those(
        record, "entropy_coef", "intrinsic_reward", "start_steps", "normalize_observations", "normalize_rewards"
    )
    advice = f"Is a reward ever seen? Try another lr; look at {look}. `raypid list tuned` has settings that work."
    return Finding("learning", "note" if record.params.get("init_from") else "warning", text, numbers, advice)


def exploration(record: Record) -> Findings:
    """An entropy that falls to its floor early, with no return gained afterwards. Policy gradients over discrete actions only."""
    reported = record.column("learner/entropy")
    entropy, curve = reported[np.isfinite(reported)], _training(record)
    if len(entropy) < 8 or len(curve.value) < 3 or entropy.min() < 0 or "learner/alpha" in record.columns:
        return
    first, low = float(np.median(entropy[:2])), 0.03 * float(np.median(entropy[:2]))
    at = int(np.argmax(entropy <= low))
    if entropy[at] > low or at >= len(entropy) / 2 or entropy[at:].max() > 3 * low or _diverged(record):
        return
    step = record.column("timesteps_total")[np.isfinite(reported)][at]
    now = int(np.argmin(np.abs(curve.step - step)))
    if curve.value[now:].max() > curve.value[now] + curve.noise[now]:
        return
    text = f"The policy stopped exploring at step {step:,.0f}: its entropy fell to its floor, and the return has not risen since."
    numbers = {"first": first, "last": entropy[-1], "at_step": step, "entropy_coef": record.setting("entropy_coef")}
    yield Finding("learning", "warning", text, numbers, "Raise entropy_coef, or lower lr.")


def schedules(record: Record) -> Findings:
    """Linear schedules that fell to 0 by schedule_steps while the run went on."""
    end, step = record.setting("schedule_steps"), record.column("timesteps_total")
    names = [name for name in ("lr_schedule", "clip_schedule") if record.params.get(name) == "linear"]
    if not names or end is None or record.setting("schedule_end"):
        return
    changes = read_changes(record.params.get(CHANGES))
    since = [change["step"] for change in changes if change["key"] in (*names, "schedule_steps", "schedule_end")]
    over = step[step > max([end, *since])]
    if len(over) < 2:  # the last iteration of a run goes a little beyond its stop
        return
    for name in names:
        text = f"{name.removesuffix('_schedule')} has been 0 since step {over[0]:,.0f}: {name} linear ended at schedule_steps {end:,.0f}."
        advice = f"Nothing was learnt since then. Beside --resume, a larger schedule_steps or {name} constant goes on learning."
        yield Finding("learning", "warning", text, {"since_step": over[0], "schedule_steps": end}, advice)


def updates(record: Record) -> Findings:
    """Updates that change the policy far more than is usual, or not at all; values that explain nothing where nothing is learnt."""
    kl, clipped = record.finite("learner/kl"), record.finite("learner/clip_fraction")
    if len(kl) >= 3 and len(clipped) >= 3 and not _diverged(record):
        numbers = {"kl": np.median(kl), "clip_fraction": np.median(clipped), "lr": record.setting("lr")}
        if np.median(clipped) > USUAL_CLIP_FRACTION or np.median(kl) > USUAL_KL:
            text = "Updates change the policy far more than usual (kl below 0.03, clip_fraction 0.05 to 0.3)."
            yield Finding("learning", "warning", text, numbers, "Lower lr or num_epochs, or set target_kl.")
        elif clipped.max() == 0 and np.median(kl) < 1e-6:
            text = "Updates hardly change the policy: the ratio of probabilities is never clipped, the kl next to 0."
            yield Finding("learning", "warning", text, numbers, "Raise lr or num_epochs.")
    explained = record.finite("learner/explained_variance")
    late = explained[len(explained) // 2 :]
    if len(late) >= 5 and np.median(late) < 0 and _flat(record) is not None:
        text = "The value function predicts returns worse than their mean would."
        advice = "Look at lr, value_coef, normalize_rewards."
        yield Finding("learning", "note", text, {"explained_variance": np.median(late)}, advice)


# -- losses ------------------------------------------------------------------------------------------------------------

_LOST = {
    "workers": ("workers that died", "errors.txt says when. Out of memory, or a crash in C code? max_restarts bounds them."),
    "timeouts": ("workers that did not answer in time", "Does the environment hang? Else raise worker_timeout_s, which each of them cost."),
    "nodes": ("nodes that were lost or cut off", "errors.txt says which; their workers come back where there is room."),
    "fragments": ("fragments that were lost with their node", ""),
    "env_crashes": ("environments that raised and were rebuilt", "errors.txt has the tracebacks; each costs its episode, max_restarts bounds them."),
    "evaluators": ("evaluators that died or were overdue", "errors.txt says why; worker_timeout_s bounds an episode."),
    "parameter_servers": ("parameter servers that died", "Out of memory? max_restarts bounds them."),
    "learners": ("learners that died or did not answer", "errors.txt says when. Out of memory? max_restarts bounds them."),
    "updates": ("updates that were lost with a learner", "More learners (num_learners) lose none as long as one is left."),
    "shards": ("replay shards that died or did not answer", "Out of memory? Lower buffer_size; max_restarts bounds them."),
    "replay_rows": ("rows that were lost with a replay buffer", "With save_replay, more checkpoints bring more of them back."),
    "shared_parameters": ("shared parameters that died", "Out of memory? max_restarts bounds them."),
    "rollbacks": ("returns of a diverged learner to its last good checkpoint", ""),
}  # fmt: skip
"""What lost/<name> counts, and what to do; against rollbacks helps what helps against the divergence."""
_LIMITS = {
    "timeouts": ("max_restarts", "worker_timeout_s"),
    "evaluators": ("max_restarts", "worker_timeout_s"),
    "rollbacks": ("max_rollbacks",),
    "nodes": (),
    "fragments": (),
}
"""The settings that bound lost/<name>, where they are not max_restarts alone."""


def losses(record: Record) -> Findings:
    """What was lost, how often, and the settings for it."""
    steps, hours = record.last("timesteps_total"), record.last("time_total_s") / 3600
    for key in sorted(k for k in record.columns if k.startswith("lost/") and k != "lost/stale"):
        if count := record.counted(key):
            what, advice = _LOST.get(name := key.removeprefix("lost/"), (f"lost {name.replace('_', ' ')}", ""))
            rates = {
                "per_hour": count / hours if hours else None,
                "per_1000_steps": 1e3 * count / steps if steps else None,
            }
            names = _LIMITS.get(name, ("max_restarts",))
            if name == "rollbacks":
                advice = _own_advice(record) or _against_divergence(record)
            limits = {setting: record.setting(setting) for setting in names}
            text = f"Number of {what}: {count:,.0f}."
            yield Finding("losses", "warning", text, {key: count, **rates, **limits}, advice)


def stale(record: Record) -> Findings:
    """Fragments that were dropped, and the age of those that were not."""
    count, staleness = record.counted("lost/stale"), record.finite("learner/staleness")
    settings = {name: record.setting(name) for name in ("num_workers", "fragments_in_flight", "max_staleness")}
    look = _those(record, "fragments_in_flight", "fragments_per_update", "batch_size")
    younger = f"Data are younger with fewer workers; look at {look}."
    if count:
        rows = (record.setting("fragment_length") or 0.0) * (record.setting("num_envs_per_worker") or 1.0)
        share = min(1.0, count * rows / max(1.0, record.last("timesteps_total")))
        text = f"Fragments dropped because they were too old to learn from: {count:,.0f}, {share:.0%} of the steps."
        severity: Severity = "warning" if share >= MANY_STALE else "note"
        advice = f"Raise max_staleness. {younger}"
        yield Finding("losses", severity, text, {"lost/stale": count, "share_of_steps": share, **settings}, advice)
    if len(staleness) and staleness.mean() > OLD_WEIGHTS:
        text = f"Data were {staleness.mean():.3g} updates old when they were learnt from."
        numbers = {"staleness_mean": staleness.mean(), "staleness_max": staleness.max(), **settings}
        yield Finding("losses", "warning", text, numbers, f"{younger} max_staleness drops the oldest.")


# -- speed -------------------------------------------------------------------------------------------------------------


def _seconds(record: Record, rows: slice) -> dict[str, float]:
    """Seconds of each part of the work in these iterations."""
    columns = {part: record.column(f"timing/{part}")[rows] for part in PARTS if part != "other"}
    seconds = {part: float(x[np.isfinite(x)].sum()) for part, x in columns.items()}
    total = record.column("time_this_iter_s")[rows]
    return {**seconds, "other": max(0.0, float(total[np.isfinite(total)].sum()) - sum(seconds.values()))}


def shares(record: Record) -> dict[str, float]:
    """Share of the run's time of each part; they add up to 1. Empty if there are no times."""
    seconds = _seconds(record, slice(None))
    total = sum(seconds.values())
    return {part: s / total for part, s in seconds.items()} if total else {}


def _speed(record: Record, rows: slice) -> float | None:
    """Environment steps a second in these iterations, without evaluations; None if not known."""
    evaluation = record.column("timing/evaluation")[rows]
    seconds = record.column("time_this_iter_s")[rows] - np.where(np.isfinite(evaluation), evaluation, 0.0)
    steps = record.column("env_steps_per_s")[rows] * seconds
    known = np.isfinite(steps)
    total = float(seconds[known].sum())
    return float(steps[known].sum()) / total if total > 0 else None


def _update_s(record: Record) -> float:
    """Median seconds of one update, without the first iteration, which also sets things up; NaN if it is not known."""
    updates, seconds = np.diff(record.column("learner_updates_total")), record.column("timing/learner")[1:]
    known = (updates > 0) & np.isfinite(seconds)
    return float(np.median(seconds[known] / updates[known])) if known.any() else math.nan


def _waited(record: Record) -> bool:
    """Whether workers were lost, and so waited for."""
    return any(record.counted(f"lost/{name}") for name in ("workers", "timeouts", "nodes"))


def binding(record: Record) -> Findings:
    """The part of the work that takes most of the time. Evaluations have a finding of their own."""
    share = {part: s for part, s in shares(record).items() if part != "evaluation"}
    if not share or share[top := max(share, key=share.__getitem__)] < BINDS:
        return
    name, advice = PARTS[top][0], advice_on(top, record.params, _update_s(record))
    workers, cores = record.setting("num_workers") or 0.0, num_cores()
    idle = record.ran_here and workers_pay(top, workers, cores, record.last("time_total_s"))
    if idle:
        advice = (
            f"more workers (this machine has {cores} CPUs), or where it waits: vectorizer threads, more environments"
        )
    if top in ("transport", "env") and _waited(record):
        advice = f"{advice}; but {WAITED}"
    severity: Severity = "warning" if idle or top == "transport" else "note"
    numbers = {"share": share[top], "env_steps_per_s": _speed(record, slice(None)), "num_workers": workers}
    numbers["num_envs_per_worker"] = record.setting("num_envs_per_worker")
    text = f"The {name} takes {share[top]:.0%} of the time."
    yield Finding("speed", severity, text, numbers, f"What helps: {advice}.")


def course(record: Record) -> Findings:
    """A run that became slower: its last quarter (by time) beside its first, once it learns."""
    learns = np.flatnonzero(record.column("learner_updates_total") > 0)[1:]  # the first update takes longest
    seconds = np.where(np.isfinite(x := record.column("time_this_iter_s")), x, 0.0)
    if len(learns) < 12 or (total := float(seconds[learns].sum())) < SLOWED_AFTER_S:
        return
    one, three = learns[0] + np.searchsorted(np.cumsum(seconds[learns[0] :]), [total / 4, total * 3 / 4])
    early, late = slice(learns[0], one + 1), slice(three, None)
    fast, slow = _speed(record, early), _speed(record, late)
    if three <= one or not fast or not slow or slow >= SLOWED * fast:
        return
    per_step = []
    for rows, speed in ((early, fast), (late, slow)):
        used = {part: s for part, s in _seconds(record, rows).items() if part != "evaluation"}
        per_step.append({part: 1e6 * s / speed / sum(used.values()) for part, s in used.items()})
    before, after = per_step
    part = max(before, key=lambda p: after[p] - before[p])
    text = f"It became slower, from {fast:,.0f} to {slow:,.0f} steps a second, most of it in the {PARTS[part][0]}."
    numbers = {"first_steps_per_s": fast, "last_steps_per_s": slow}
    numbers |= {f"{part}_us_per_step_first": before[part], f"{part}_us_per_step_last": after[part]}
    advice = (
        "Does it do more work as the run goes on, or does its memory grow? Other work on the machine looks the same."
    )
    yield Finding("speed", "warning", text, numbers, advice)


def evaluations(record: Record) -> Findings:
    """Evaluations that take much of the time, those aside that were repeated with more episodes because they reached the goal."""
    count, usual = record.column("evaluation/episodes"), record.setting("evaluation_num_episodes") or math.inf
    planned, spent = count[count <= usual], record.column("timing/evaluation")
    seconds = float(spent[np.isfinite(spent) & ~(count > usual)].sum())
    share = seconds / total if (total := record.total("time_this_iter_s")) else 0.0
    if share < MANY_EVALUATIONS or len(planned) < 3:
        return
    numbers = {
        "seconds": seconds,
        "evaluations": len(planned),
        "iterations": record.num_rows,
        "episodes_each": planned.mean(),
    }
    numbers["evaluation_interval"] = record.setting("evaluation_interval")
    advice = "Lower evaluation_num_episodes, or bound the length of episodes (time_limit)."
    if numbers["evaluation_interval"] is not None:
        advice = "Raise evaluation_interval, or leave it out (about a tenth of the time then); lower evaluation_num_episodes."
    yield Finding("speed", "warning", f"Evaluations take {share:.0%} of the time.", numbers, advice)


def ratio(record: Record) -> Findings:
    """Rows learnt for each step collected, against what was asked for."""
    batch, per_update = record.setting("batch_size"), record.setting("a_l_ratio")
    wanted = batch / per_update if batch and per_update else record.setting("samples_per_insert")
    held = record.finite("learner/samples_per_insert")
    if not wanted or len(held) < 5 or abs((late := float(np.median(held[len(held) // 2 :]))) / wanted - 1) <= RATIO_OFF:
        return
    text = f"The ratio was not held: {late:.3g} rows were learnt for each step, {wanted:.3g} are asked for."
    slow = (
        "Fewer workers, shorter fragments or a faster learner."
        if late < wanted
        else "More workers, or fewer updates_per_call."
    )
    numbers = {"samples_per_insert": late, "asked_for": wanted, "env_steps_per_s": _speed(record, slice(None))}
    yield Finding("speed", "warning", text, numbers, slow)


def crowding(record: Record) -> Findings:
    """More workers than cores. Said only on the machine that the run was on."""
    workers, cores = record.setting("num_workers") or 0.0, num_cores()
    if workers > cores and record.ran_here and not record.params.get("address"):
        text = f"{workers:.0f} workers share {cores} cores."
        advice = "Fewer workers with more environments each (num_envs_per_worker)."
        yield Finding("speed", "warning", text, {"num_workers": workers, "cores": cores}, advice)


def below_known(record: Record) -> Findings:
    """A run that used up its budget, and whose evaluations all stayed well below what the environment is known to allow."""
    evaluated = record.finite("evaluation/episode_reward_mean")
    if not len(evaluated) or not any(_reached(record, key) for key in COUNTS & record.stop.keys()):
        return
    best, run = float(evaluated.max()), str(record.params.get("run"))
    known = shortfall(record.params, best, record.last("timesteps_total"))
    if known is not None:
        text = f"It ended well below {known.value:g}, which is known for {record.params['env']} ({known.source})."
        tried = [f"`{one.command}` ({one.why})" for one in remedies(run, record.params, known.value)]
        advice = f"Try {', '.join([*tried, 'more steps'])}."
        yield Finding("learning", "warning", text, {"best": best, "known": known.value}, advice)


def changed(record: Record) -> Findings:
    """Settings that are not those that the run began with."""
    changes = later(read_changes(record.params.get(CHANGES)))
    said = [described(change) for change in changes if change["key"] != "stop"]
    if said:
        more = f" and {len(said) - 5} more before" if len(said) > 5 else ""
        text = f"Changed while it went on: {', '.join(said[-5:])}{more}."
        yield Finding("learning", "note", text, {"changes": len(said)})


CHECKS: tuple[Callable[[Record], Findings], ...] = (
    changed, divergence, best_policy, returns, exploration, schedules, updates, episodes, damage, end, losses, stale, evaluations, binding, course,
    ratio, crowding, below_known,
)  # fmt: skip


# -- text --------------------------------------------------------------------------------------------------------------


def headline(record: Record) -> str:
    """The run in a few words: "runs/a: PPO on CartPole-v1, 40,960 steps in 12 s"."""
    about = " on ".join(str(record.params[key]) for key in ("run", "env") if isinstance(record.params.get(key), str))
    steps, seconds = record.last("timesteps_total"), record.last("time_total_s")
    done = f"{steps:,.0f} steps in {seconds:,.0f} s" if record.num_rows else "no iteration finished"
    return f"{record.folder}: {about or 'a run'}, {done}"


@np.errstate(all="ignore")
def healthy_line(record: Record, found: Sequence[Finding]) -> str:
    """What is said of a run in which nothing was found but notes."""
    notes = [f"{f.finding} {f.advice}".rstrip() for f in found if f.topic != "speed"]
    about = {name: record.setting(name) for name in ("num_workers", "num_cpus", "num_gpus")}
    time_s = record.last("time_total_s")
    if bound := bottleneck(shares(record), about, time_s=time_s, waited=_waited(record), update_s=_update_s(record)):
        notes.append(f"Speed: {bound}.")
    return f"{headline(record)}: healthy. {' '.join(notes)}"


def shown(value: float | None) -> str:
    """A number for people."""
    if value is None or not math.isfinite(value):
        return "none"
    if value == int(value) and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if 1e3 <= abs(value) < 1e9 else f"{value:.3g}"
