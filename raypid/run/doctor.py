"""What went wrong in a run and what slowed it, judged from its folder alone: `diagnose` gives findings with their numbers.

Each check says what the numbers say and no more. The bounds between usual and unusual stand at the top.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from raypid.errors import ConfigError, UserError, one_line
from raypid.plugins.registry import ALGORITHMS
from raypid.report.panel import PARTS, bottleneck
from raypid.report.runs import why_without_results
from raypid.roles.divergence import HUGE_REWARD, advice
from raypid.run.known_return import remedies, shortfall
from raypid.runtime.resources import num_cores
from raypid.settings.config import Config
from raypid.storage import checkpoint
from raypid.storage.changes import CHANGES, described, later
from raypid.storage.neighbours import refuse_file
from raypid.storage.outputs import ERRORS
from raypid.storage.run_folder import COUNTS, DIVERGED, MIN_EPISODES, PARAMS, RESULTS, RunFolder
from raypid.types import Array

Severity: TypeAlias = Literal["error", "warning", "note"]
Topic: TypeAlias = Literal["learning", "end", "losses", "speed"]
"""Causes come before consequences: a diverged learner before the end that it brought."""

FLAT_EPISODES = 200
"""Training episodes after which a return that has not risen is a finding."""
RANGE_PER_NOISE = 12.0
"""Two means of 100 episodes differ by less than the range of the 100 divided by this, unless something has changed: the range of
100 normal numbers is 5 deviations, the deviation of the difference of two means a seventh of one, and three of these are allowed."""
EXPLODED, EXPLODED_RATIO = 1e6, 1e4
"""A metric has exploded if it exceeds both the first number and its early value times the second."""
HUGE = 1e10
"""A loss or a return beyond this is meaningless, whatever it was at first."""
USUAL_CLIP_FRACTION, USUAL_KL = 0.4, 0.1
SHORT_STEPS = 1000
"""Steps of one environment without the end of an episode that are a warning."""
SLOWED, SLOWED_AFTER_S = 0.6, 20.0
"""Ratio of the last to the first speed below which a run has become slower, and the seconds of a run from which that is judged: shorter
runs may be slowed by whatever else the machine does."""
BINDS, MANY_EVALUATIONS = 0.6, 0.2
"""Shares of the time: of the part that binds, and of evaluations that are too many."""
MANY_STALE, OLD_WEIGHTS, RATIO_OFF = 0.05, 10.0, 0.1
"""Share of the steps that was dropped; mean staleness in updates; distance of samples_per_insert from the setting."""
_ADVISED = ("lr", "max_grad_norm", "normalize_rewards", "reward_")
"""How the settings begin that help against a divergence."""
_FINITE = ("policy_loss", "value_loss", "critic_loss", "loss", "q", "td_error", "entropy", "kl", "grad_norm", "alpha")
"""Metrics of learners that are finite wherever they are reported, unless the learner has diverged."""


class Finding(NamedTuple):
    """One thing that the folder says about the run."""

    topic: Topic
    severity: Severity
    """error: it ended the run, or spoilt what it learnt. warning: it did harm. note: worth knowing."""
    finding: str
    numbers: Mapping[str, float | None]
    """The numbers behind the finding; None if not known or not set."""
    advice: str = ""


Findings: TypeAlias = Iterator[Finding]


@np.errstate(all="ignore")  # the numbers of a run that went wrong may be anything
def diagnose(run: RunFolder) -> list[Finding]:
    """Return the findings, most important first."""
    found = [finding for check in CHECKS for finding in check(run)]
    return sorted(found, key=lambda f: (get_args(Severity).index(f.severity), get_args(Topic).index(f.topic)))


def open_run(folder: Path) -> RunFolder:
    """Read a run's folder, whatever in it is damaged.

    Raises:
        UserError: there is no such folder, or nothing in it that a run writes.
    """
    refuse_file(folder)
    if not any((folder / name).exists() for name in (PARAMS, RESULTS, ERRORS)):
        nothing = f"{folder} holds no run: it has no {PARAMS}, {RESULTS} or {ERRORS}, and no checkpoint."
        raise UserError(why_without_results(folder) or nothing)
    run = RunFolder(folder, tolerant=True)
    try:
        run.read()
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from error
    try:
        _ = run.changes
    except ValueError as error:
        run.damage.append(f"in {PARAMS}, {error}")
        del run.params[CHANGES]
    return run


# -- the end -----------------------------------------------------------------------------------------------------------


def end(run: RunFolder) -> Findings:
    """How the run ended, and from where it can go on."""
    ending, last = run.ending, int(run.last("training_iteration", 0.0))
    numbers: dict[str, float | None] = {"iteration": last, "step": run.last("timesteps_total", 0.0)}
    if ending.state == "running":
        yield Finding("end", "note", "It is still running.", numbers)
        return
    path, manifest, wrong = _newest_sound(run)
    saved = manifest.get("counters", {})
    numbers["resumes_from_step"] = saved.get("timesteps_total")
    advice = _resume(run, path, saved, last)
    if wrong:
        text = f"Checkpoints that cannot be used: {len(wrong)}. The newest of them: {wrong[0]}."
        yield Finding("end", "warning", text, {"checkpoints": len(wrong)}, advice)
    if gone_back := manifest.get("gone_back"):
        text = f"Roles were lost after its last iteration. {gone_back}"
        yield Finding("end", "warning", text, {"iteration_saved": saved.get("iteration")}, "errors.txt says which.")
    severity: Severity = "warning"
    if ending.failed_in:
        severity, text = "error", f"An error ended it in iteration {ending.failed_in}: {ending.error}"
        advice = f"errors.txt has the traceback: mend the cause first. {advice}"
    elif ending.state == "finished":
        reached = " and ".join(f"{key} {run.last(key, 0.0):,.6g}" for key in run.stop if key in run.reached)
        severity, text, advice = "note", f"It reached its stop: {reached}.", ""
    elif run.has_lock and not run.ran_here:
        text = "No process of this machine holds the folder: the run was killed, or it is running on another machine."
    elif run.has_lock:
        text = "It was killed: no end is recorded. (kill -9, out of memory, a crash in C code, a second Ctrl-C?)"
        severity = "error"
        if run.setting("num_workers") == 0 and run.params.get("vectorizer") != "async":
            advice += " If the environment did it (os._exit, a crash in C code): --num-workers 1 or --vectorizer async outlives that."
    elif saved.get("iteration") == last:
        severity, text = "note", "It was stopped from outside (Ctrl-C, SIGTERM) before its stop criterion."
    else:
        text = "No end is recorded: killed, or copied while it ran."
    yield Finding("end", severity, text, numbers, advice)


def _newest_sound(run: RunFolder) -> tuple[Path | None, checkpoint.Manifest, list[str]]:
    """Return the newest checkpoint that is intact and has finite weights, its manifest, and what is wrong with newer ones."""
    wrong: list[str] = []
    for path in reversed(run.checkpoints):
        try:
            manifest = checkpoint.open_checkpoint(path).manifest
            flaw = _flaw(path / "policy")
        except Exception as error:  # of others' folders: one that is damaged must not hide the others
            flaw = str(error)
        if not flaw:
            return path, manifest, wrong
        wrong.append(f"{path.name}: {flaw}")
    return None, {}, wrong


def _flaw(policy: Path) -> str:
    """Why a saved policy cannot be used: it is damaged, or its weights are not finite; "" if it can. Imports nothing that the folder names."""
    try:
        _, arrays, _ = checkpoint.read_policy(policy)
    except Exception as error:  # of others' folders: whatever is damaged there
        return str(error)
    is_finite = all(bool(np.isfinite(x).all()) for x in arrays.values() if x.dtype.kind == "f")
    return "" if is_finite else "its weights are not finite"


def damage(run: RunFolder) -> Findings:
    """Files that could not be read."""
    if run.damage:
        text = f"{'; '.join(run.damage)}. What is said here goes by the rest."
        yield Finding("end", "warning", text, {"problems": len(run.damage)})


def _resume(run: RunFolder, path: Path | None, saved: Mapping[str, float], last: int) -> str:
    """Say from which checkpoint the run goes on, and by which command. `saved`: its counters."""
    command = f"`raypid train --resume {shlex.quote(str(run.path))}`"
    if path is None:
        is_unsaved = run.params and not run.ending.failed_in and not any((run.path / "checkpoints").glob("*"))
        begins = f"It has no checkpoint yet: {command} begins it anew."
        return begins if is_unsaved else "There is no sound checkpoint to go on from: start anew."
    if path != checkpoint.latest(run.path / "checkpoints"):
        command = f"Move what is newer than {path} away: then --resume"
    num_lost = last - saved.get("iteration", 0)
    lost = f" (iterations lost: {num_lost:.0f})" if num_lost > 0 else ""
    return f"{command} goes on from step {saved.get('timesteps_total', 0):,.0f}{lost}."


# -- learning ----------------------------------------------------------------------------------------------------------


def _not_finite(run: RunFolder) -> tuple[str, Array] | None:
    """The metric of the learner that was the first to be NaN or infinite, and the results [K] in which it was; None if all are finite."""
    rows = {name: np.flatnonzero(np.isinf(run.column(f"learner/{name}"))) for name in _FINITE}
    return min((bad for bad in rows.items() if len(bad[1])), key=lambda bad: int(bad[1][0]), default=None)


def _known_settings(run: RunFolder, *settings: str) -> str:
    """List the settings that the run's algorithm has, as text."""
    return ", ".join(name for name in settings if name in run.params or not run.params)


def _diverged(run: RunFolder) -> bool:
    """Whether the learner left the finite numbers, whether or not that ended the run."""
    return _not_finite(run) is not None or run.ending.state == "diverged"


def _against_divergence(run: RunFolder) -> str:
    """Say what helps against a divergence: what the run itself said, or else what it would say of its settings and returns."""
    with contextlib.suppress(UserError):
        manifest: Mapping[str, object] = checkpoint.read_manifest(run.path / DIVERGED)
        if said := manifest.get("advice"):
            return one_line(said)
    config = ALGORITHMS.get(run.algorithm).Config() if ALGORITHMS.is_own(run.algorithm) else Config()
    named = [key for key in config.to_dict() if key in run.params and key.startswith(_ADVISED)]
    with contextlib.suppress(ConfigError):
        config = config.replace({key: run.params[key] for key in named})
    extremes = np.abs([*run.finite("episode_reward_min"), *run.finite("episode_reward_max")])
    huge = not config.normalize_rewards and bool((extremes > HUGE_REWARD).any())
    return f"{'Returns are huge. ' if huge else ''}{advice(config, huge=huge)}"


def divergence(run: RunFolder) -> Findings:
    """Losses, returns or weights that are not finite, or larger than numbers that mean anything."""
    advice, lr = _against_divergence(run), run.setting("lr")
    stopped_it, has_batch = run.ending.state == "diverged", (run.path / DIVERGED).is_dir()
    if stopped_it or has_batch:
        batch = f" {DIVERGED}/ has the batch and the last good weights." if has_batch else ""
        text = f"The learner diverged{', which ended the run' if stopped_it else ''}.{batch}"
        yield Finding("learning", "error" if stopped_it else "warning", text, {"lr": lr}, advice)
    if (bad := _not_finite(run)) is not None:
        name, rows = bad
        iteration, step = (run.column(key)[rows[0]] for key in ("training_iteration", "timesteps_total"))
        until = "to the end" if rows[-1] == len(run.results) - 1 else "for a while"
        text = f"It diverged: learner/{name} was not finite from step {step:,.0f} on, {until}."
        numbers = {"iteration": iteration, "step": step, "iterations_not_finite": len(rows), "lr": lr}
        yield Finding("learning", "error", text, numbers, advice)
    for name in [name for name in _FINITE if f"learner/{name}" in run.keys]:
        values = np.abs(run.finite(f"learner/{name}"))
        part = max(1, len(values) // 5)
        early, late = (float(np.median(x)) for x in (values[:part], values[-part:]))
        numbers = {"first": early, "last": late, "lr": lr}
        if late > max(EXPLODED, EXPLODED_RATIO * early):
            yield Finding("learning", "error", f"learner/{name} grew beyond measure.", numbers, advice)
        elif late > HUGE:
            yield Finding("learning", "warning", f"learner/{name} is too large to learn from.", numbers, advice)
    returns = run.column("episode_reward_mean")
    if np.isinf(returns[np.cumsum(np.isfinite(returns)) > 0]).any():
        text = "Returns of training episodes became NaN or infinite."
        yield Finding("learning", "error", text, {}, "Look at the environment's rewards.")


def best_policy(run: RunFolder) -> Findings:
    """A best policy that is damaged or not finite. Checkpoints are judged with the end."""
    best = run.path / checkpoint.BEST
    # a run that goes on may replace it meanwhile
    if best.is_dir() and _flaw(best) and (flaw := _flaw(best)):
        text = f"The policy in best/ cannot be used: {flaw}."
        yield Finding("learning", "error", text, {}, "Evaluate a checkpoint instead.")


def episodes(run: RunFolder) -> Findings:
    """Whether training episodes ended, and evaluations."""
    steps, count = run.last("timesteps_total", 0.0), run.last("episodes_total", 0.0)
    if not run.results:
        return
    if not count:
        length = steps / max(1.0, run.setting("num_workers") or 1.0) / (run.setting("num_envs_per_worker") or 1.0)
        numbers = {"steps": steps, "steps_per_environment": length, "time_limit": run.setting("time_limit")}
        advice = "Set time_limit, if an episode of this environment may have no end; else train longer."
        severity: Severity = "warning" if length >= SHORT_STEPS else "note"
        yield Finding("learning", severity, "No training episode has ended, so there is no return.", numbers, advice)
    if len(run.finite("evaluation/episodes")):
        return
    interval, iterations = run.setting("evaluation_interval"), run.last("training_iteration", 0.0)
    lost = _counted(run, "lost/evaluators")
    reasons = (
        (interval == 0, "evaluation_interval is 0", ""),
        (lost, "evaluators were lost", "errors.txt says why."),
        (interval is None and not count, "that waits for the first training episode to end", ""),
        (run.ending.state in ("failed", "diverged", "killed"), "the run ended before one was finished", ""),
        ((interval or 0) > iterations, "none was due yet", "Lower evaluation_interval."),
        (True, "none had ended when the results did", "Train longer, or set evaluation_interval."),
    )
    why, advice = next((why, advice) for applies, why, advice in reasons if applies)
    numbers = {"evaluation_interval": interval, "iterations": iterations, "lost/evaluators": lost}
    yield Finding("learning", "note", f"There was no evaluation: {why}.", numbers, advice)


class Curve(NamedTuple):
    """Returns over the run."""

    name: str
    step: Array
    episodes: Array
    """Training episodes so far."""
    value: Array
    noise: Array
    """Differences that chance explains."""


def _curve(run: RunFolder, name: str, value: Array, noise: Array) -> Curve:
    """The points of a curve at which all is known."""
    step, count = run.column("timesteps_total"), run.column("episodes_total")
    keep = np.isfinite(value) & np.isfinite(noise) & np.isfinite(step)
    return Curve(name, step[keep], count[keep], value[keep], noise[keep])


def _training(run: RunFolder) -> Curve:
    value, low, high = (run.column(f"episode_reward_{k}") for k in ("mean", "min", "max"))
    value = np.where(run.column("episodes_total") >= MIN_EPISODES, value, np.nan)
    return _curve(run, "return of training", value, (high - low) / RANGE_PER_NOISE)


def _evaluation(run: RunFolder) -> Curve:
    noise = np.nan_to_num(2 * run.column("evaluation/episode_reward_ci95"), posinf=0.0)
    return _curve(run, "return of evaluations", run.column("evaluation/episode_reward_mean"), noise)


def returns(run: RunFolder) -> Findings:
    """A return that fell and stayed low, or that has not risen."""
    evaluation = _evaluation(run)
    found = _collapse(run, evaluation if len(evaluation.value) >= 5 else _training(run)) or _flat(run)
    if found is not None and not _diverged(run):
        yield found


def _collapse(run: RunFolder, curve: Curve) -> Finding | None:
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
    look = _known_settings(run, "lr_schedule", "num_epochs", "target_kl", "max_grad_norm")
    advice = f"Lower lr; look at {look}. best/ keeps the best policy."
    return Finding("learning", "warning", text, numbers, advice)


def _flat(run: RunFolder) -> Finding | None:
    """A return that is at no time above that of the first 100 episodes, by more than chance."""
    curve, evaluation = _training(run), _evaluation(run)
    rise = evaluation.value - evaluation.value[:1]
    rose = len(rise) and rise.max() > evaluation.noise[np.argmax(rise)]
    reached = any("reward" in key for key in run.reached)
    too_early = not run.last("learner_updates_total", 0.0) or len(curve.value) < 3 or curve.episodes[-1] < FLAT_EPISODES
    if too_early or reached or rose:
        return None
    start = int(np.argmax(curve.episodes >= min(100, curve.episodes[-1])))
    first, best, last = (float(x) for x in (curve.value[start], curve.value[start:].max(), curve.value[-1]))
    noise = float(max(curve.noise[start], curve.noise[-1]))
    if best > first + noise:
        return None
    numbers = {"first": first, "best": best, "last": last, "by_chance": noise, "episodes": curve.episodes[-1]}
    text = "The return of training has not risen above that of the first episodes."
    advised = ("entropy_coef", "intrinsic_reward", "start_steps", "normalize_observations", "normalize_rewards")
    look = _known_settings(run, *advised)
    advice = f"Is a reward ever seen? Try another lr; look at {look}. `raypid list tuned` has settings that work."
    return Finding("learning", "note" if run.params.get("init_from") else "warning", text, numbers, advice)


def exploration(run: RunFolder) -> Findings:
    """An entropy that falls to its floor early, with no return gained afterwards. Policy gradients over discrete actions only."""
    reported = run.column("learner/entropy")
    entropy, curve = reported[np.isfinite(reported)], _training(run)
    if len(entropy) < 8 or len(curve.value) < 3 or entropy.min() < 0 or "learner/alpha" in run.keys:
        return
    first, low = float(np.median(entropy[:2])), 0.03 * float(np.median(entropy[:2]))
    at = int(np.argmax(entropy <= low))
    if entropy[at] > low or at >= len(entropy) / 2 or entropy[at:].max() > 3 * low or _diverged(run):
        return
    step = run.column("timesteps_total")[np.isfinite(reported)][at]
    now = int(np.argmin(np.abs(curve.step - step)))
    if curve.value[now:].max() > curve.value[now] + curve.noise[now]:
        return
    text = f"The policy stopped exploring at step {step:,.0f}: its entropy fell to its floor, and the return has not risen since."
    numbers = {"first": first, "last": entropy[-1], "at_step": step, "entropy_coef": run.setting("entropy_coef")}
    yield Finding("learning", "warning", text, numbers, "Raise entropy_coef, or lower lr.")


def schedules(run: RunFolder) -> Findings:
    """Linear schedules that fell to 0 by schedule_steps while the run went on."""
    end, step = run.setting("schedule_steps"), run.column("timesteps_total")
    names = [name for name in ("lr_schedule", "clip_schedule") if run.params.get(name) == "linear"]
    since = [change["step"] for change in run.changes if change["key"] in (*names, "schedule_steps", "schedule_end")]
    over = step[step > max([math.inf if end is None else end, *since])]
    if len(over) < 2 or run.setting("schedule_end"):  # the last iteration of a run goes a little beyond its stop
        return
    for name in names:
        text = f"{name.removesuffix('_schedule')} has been 0 since step {over[0]:,.0f}: {name} linear ended at schedule_steps {end:,.0f}."
        advice = f"Nothing was learnt since then. Beside --resume, a larger schedule_steps or {name} constant goes on learning."
        yield Finding("learning", "warning", text, {"since_step": over[0], "schedule_steps": end}, advice)


def updates(run: RunFolder) -> Findings:
    """Updates that change the policy far more than is usual, or not at all; values that explain nothing where nothing is learnt."""
    kl, clipped = run.finite("learner/kl"), run.finite("learner/clip_fraction")
    if len(kl) >= 3 and len(clipped) >= 3 and not _diverged(run):
        numbers = {"kl": np.median(kl), "clip_fraction": np.median(clipped), "lr": run.setting("lr")}
        if np.median(clipped) > USUAL_CLIP_FRACTION or np.median(kl) > USUAL_KL:
            text = "Updates change the policy far more than usual (kl below 0.03, clip_fraction 0.05 to 0.3)."
            yield Finding("learning", "warning", text, numbers, "Lower lr or num_epochs, or set target_kl.")
        elif clipped.max() == 0 and np.median(kl) < 1e-6:
            text = "Updates hardly change the policy: the ratio of probabilities is never clipped, the kl next to 0."
            yield Finding("learning", "warning", text, numbers, "Raise lr or num_epochs.")
    explained = run.finite("learner/explained_variance")
    late = explained[len(explained) // 2 :]
    if len(late) >= 5 and np.median(late) < 0 and _flat(run) is not None:
        text = "The value function predicts returns worse than their mean would."
        advice = "Look at lr, value_coef, normalize_rewards."
        yield Finding("learning", "note", text, {"explained_variance": np.median(late)}, advice)


# -- losses ------------------------------------------------------------------------------------------------------------


_DIED = ("errors.txt says when. Out of memory, or a crash in C code?", "max_restarts")
_LOST = {
    "workers": ("workers that died", *_DIED),
    "timeouts": ("workers that did not answer in time", "A hanging environment? Else raise worker_timeout_s.", "worker_timeout_s", "max_restarts"),
    "nodes": ("nodes that were lost or cut off", "errors.txt says which; their workers come back where there is room."),
    "fragments": ("fragments that were lost with their node", ""),
    "env_crashes": ("environments that raised and were rebuilt", "errors.txt has the tracebacks; each costs its episode.", "max_restarts"),
    "evaluators": ("evaluators that died or were overdue", "errors.txt says why.", "worker_timeout_s", "max_restarts"),
    "updates": ("updates that were lost with a learner", "More learners lose none as long as one is left.", "num_learners"),
    "shards": ("replay shards that died or did not answer", "Out of memory? Lower buffer_size.", "buffer_size", "max_restarts"),
    "replay_rows": ("rows that were lost with a replay buffer", "With save_replay, more checkpoints bring more of them back.", "save_replay"),
    "rollbacks": ("returns of a diverged learner to its last good checkpoint", "", "max_rollbacks"),
}  # fmt: skip
"""The name behind lost/ -> what it counts, what helps, settings that bound it; other names say themselves what they count."""


def _counted(run: RunFolder, key: str) -> float:
    """The total of a count that starts at 0 with each process of the run, as those under lost/ do."""
    values = run.finite(key)
    rises = np.diff(values, prepend=0.0)
    return float(np.where(rises < 0, values, rises).sum())


def losses(run: RunFolder) -> Findings:
    """Processes and data that were lost, how often, and the settings that the advice names."""
    steps, hours = run.last("timesteps_total", 0.0), run.last("time_total_s", 0.0) / 3600
    for key in sorted(k for k in run.keys if k.startswith("lost/") and k != "lost/stale"):
        name, count = key.removeprefix("lost/"), _counted(run, key)
        what, advice, *bounds = _LOST.get(name, (f"lost {name.replace('_', ' ')}", *_DIED))
        rates = {"per_hour": count / hours if hours else None, "per_1000_steps": 1e3 * count / steps if steps else None}
        numbers = {key: count, **rates, **{setting: run.setting(setting) for setting in bounds}}
        if count:
            advice = _against_divergence(run) if name == "rollbacks" else advice
            yield Finding("losses", "warning", f"Number of {what}: {count:,.0f}.", numbers, advice)


def stale(run: RunFolder) -> Findings:
    """Fragments that were dropped, and the age of those that were not."""
    count, staleness = _counted(run, "lost/stale"), run.finite("learner/staleness")
    settings = {name: run.setting(name) for name in ("num_workers", "fragments_in_flight", "max_staleness")}
    look = _known_settings(run, "fragments_in_flight", "fragments_per_update", "batch_size")
    younger = f"Data are younger with fewer workers; look at {look}."
    if count:
        rows = (run.setting("fragment_length") or 0.0) * (run.setting("num_envs_per_worker") or 1.0)
        share = min(1.0, count * rows / max(1.0, run.last("timesteps_total", 0.0)))
        text = f"Fragments dropped because they were too old to learn from: {count:,.0f}, {share:.0%} of the steps."
        severity: Severity = "warning" if share >= MANY_STALE else "note"
        numbers = {"lost/stale": count, "share_of_steps": share, **settings}
        yield Finding("losses", severity, text, numbers, f"Raise max_staleness. {younger}")
    if len(staleness) and staleness.mean() > OLD_WEIGHTS:
        text = f"Data were {staleness.mean():.3g} updates old when they were learnt from."
        numbers = {"staleness_mean": staleness.mean(), "staleness_max": staleness.max(), **settings}
        yield Finding("losses", "warning", text, numbers, f"{younger} max_staleness drops the oldest.")


# -- speed -------------------------------------------------------------------------------------------------------------


def _sum(values: Array) -> float:
    """The sum of those that are finite."""
    return float(values[np.isfinite(values)].sum())


def _seconds(run: RunFolder, rows: slice = slice(None)) -> dict[str, float]:
    """Seconds of each part of the work in these iterations."""
    seconds = {part: _sum(run.column(f"timing/{part}")[rows]) for part in PARTS if part != "other"}
    total = _sum(run.column("time_this_iter_s")[rows])
    return {**seconds, "other": max(0.0, total - sum(seconds.values()))}


def _speed(run: RunFolder, rows: slice = slice(None)) -> float | None:
    """Environment steps a second in these iterations, without evaluations; None if not known."""
    evaluation = np.nan_to_num(run.column("timing/evaluation")[rows], posinf=0.0)
    speed, seconds = run.column("env_steps_per_s")[rows], run.column("time_this_iter_s")[rows] - evaluation
    known = np.isfinite(speed * seconds)
    return float(np.average(speed[known], weights=seconds[known])) if seconds[known].sum() > 0 else None


def shares(run: RunFolder) -> dict[str, float]:
    """Share of the run's time of each part; they add up to 1. Empty if there are no times."""
    seconds = _seconds(run)
    total = sum(seconds.values())
    return {part: s / total for part, s in seconds.items()} if total else {}


def _update_s(run: RunFolder) -> float:
    """Median seconds of one update, without the first iteration, which also sets things up; NaN if it is not known."""
    seconds = run.column("timing/learner")[1:] / np.diff(run.column("learner_updates_total"))
    known = seconds[np.isfinite(seconds) & (seconds >= 0)]
    return float(np.median(known)) if len(known) else math.nan


def _bottleneck(run: RunFolder) -> str:
    """What takes most of the time, and what helps, as the panel says it. Workers are advised only by the cores of the run's own machine."""
    waited = any(_counted(run, f"lost/{name}") for name in ("workers", "timeouts", "nodes"))
    about = {**run.params, "num_cpus": num_cores() if run.ran_here else 1}
    time_s = run.last("time_total_s", 0.0)
    return bottleneck(shares(run), about, time_s=time_s, waited=waited, update_s=_update_s(run))


def binding(run: RunFolder) -> Findings:
    """The part of the work that takes most of the time. Evaluations have a finding of their own."""
    share = shares(run)
    top = max(share, key=share.__getitem__, default="evaluation")
    if top == "evaluation" or share[top] < BINDS:
        return
    advice = _bottleneck(run).partition(": ")[2]
    numbers = {"share": share[top], "env_steps_per_s": _speed(run)}
    numbers |= {name: run.setting(name) for name in ("num_workers", "num_envs_per_worker")}
    severity: Severity = "warning" if top == "transport" or "num_workers=" in advice else "note"
    text = f"The {PARTS[top][0]} takes {share[top]:.0%} of the time."
    yield Finding("speed", severity, text, numbers, f"What helps: {advice}.")


def course(run: RunFolder) -> Findings:
    """A run that became slower: compares the speed of the last quarter of its iterations with that of the first, once it learns."""
    learns = np.flatnonzero(run.column("learner_updates_total") > 0)[1:]  # the first update takes longest
    if len(learns) < 12 or _sum(run.column("time_this_iter_s")[learns]) < SLOWED_AFTER_S:
        return
    quarter = len(learns) // 4
    early, late = slice(learns[0], learns[quarter]), slice(learns[-quarter], None)
    fast, slow = _speed(run, early), _speed(run, late)
    if not fast or not slow or slow >= SLOWED * fast:
        return
    before, after = _us_per_step(run, early, fast), _us_per_step(run, late, slow)
    part = max(before, key=lambda p: after[p] - before[p])
    text = f"It became slower, from {fast:,.0f} to {slow:,.0f} steps a second, most of it in the {PARTS[part][0]}."
    numbers = {"first_steps_per_s": fast, "last_steps_per_s": slow}
    numbers |= {f"{part}_us_per_step_first": before[part], f"{part}_us_per_step_last": after[part]}
    advice = "Does it do more work as the run goes on? Does its memory grow? Other work on the machine looks the same."
    yield Finding("speed", "warning", text, numbers, advice)


def _us_per_step(run: RunFolder, rows: slice, speed: float) -> dict[str, float]:
    """Microseconds that each part but evaluations takes for a step, at this speed."""
    used = {part: s for part, s in _seconds(run, rows).items() if part != "evaluation"}
    return {part: 1e6 * s / speed / sum(used.values()) for part, s in used.items()}


def evaluations(run: RunFolder) -> Findings:
    """Evaluations that take much of the time, those aside that were repeated with more episodes because they reached the goal."""
    count, usual = run.column("evaluation/episodes"), run.setting("evaluation_num_episodes") or math.inf
    planned, total = count[count <= usual], _sum(run.column("time_this_iter_s"))
    seconds = _sum(run.column("timing/evaluation")[~(count > usual)])
    if not total or seconds < MANY_EVALUATIONS * total or len(planned) < 3:
        return
    interval = run.setting("evaluation_interval")
    numbers: dict[str, float | None] = {"seconds": seconds, "evaluations": len(planned)}
    numbers |= {"iterations": len(run.results), "episodes_each": planned.mean(), "evaluation_interval": interval}
    advice = "Lower evaluation_num_episodes, or bound the length of episodes (time_limit)."
    if interval is not None:
        advice = "Raise evaluation_interval, or leave it out (about a tenth of the time then); lower evaluation_num_episodes."
    text = f"Evaluations take {seconds / total:.0%} of the time."
    yield Finding("speed", "warning", text, numbers, advice)


def ratio(run: RunFolder) -> Findings:
    """Rows learnt for each step collected, against what was asked for."""
    batch, per_update = run.setting("batch_size"), run.setting("a_l_ratio")
    wanted = batch / per_update if batch and per_update else run.setting("samples_per_insert")
    held = run.finite("learner/samples_per_insert")
    if not wanted or len(held) < 5 or abs((late := float(np.median(held[len(held) // 2 :]))) / wanted - 1) <= RATIO_OFF:
        return
    text = f"The ratio was not held: {late:.3g} rows were learnt for each step, {wanted:.3g} are asked for."
    few, many = "Fewer workers, shorter fragments or a faster learner.", "More workers, or fewer updates_per_call."
    numbers = {"samples_per_insert": late, "asked_for": wanted, "env_steps_per_s": _speed(run)}
    yield Finding("speed", "warning", text, numbers, few if late < wanted else many)


def crowding(run: RunFolder) -> Findings:
    """More workers than cores. Said only on the machine that the run was on."""
    workers, cores = run.setting("num_workers") or 0.0, num_cores()
    if workers > cores and run.ran_here and not run.params.get("address"):
        text, numbers = f"{workers:.0f} workers share {cores} cores.", {"num_workers": workers, "cores": cores}
        advice = "Fewer workers with more environments each (num_envs_per_worker)."
        yield Finding("speed", "warning", text, numbers, advice)


def below_known(run: RunFolder) -> Findings:
    """A run that used up its budget, and whose evaluations all stayed well below what the environment is known to allow."""
    best = float(max(run.finite("evaluation/episode_reward_mean"), default=math.inf))
    known = shortfall(run.params, best, run.last("timesteps_total", 0.0)) if COUNTS & run.reached else None
    if known is not None:
        text = f"It ended well below {known.value:g}, which is known for {run.params.get('env')} ({known.source})."
        tried = [f"`{one.command}` ({one.why})" for one in remedies(run.algorithm, run.params, known.value)]
        advice = f"Try {', '.join([*tried, 'more steps'])}."
        yield Finding("learning", "warning", text, {"best": best, "known": known.value}, advice)


def changed(run: RunFolder) -> Findings:
    """Settings that changed after the start."""
    changes = [described(change) for change in later(run.changes) if change["key"] != "stop"]
    if changes:
        more = f" and {len(changes) - 5} more before" if len(changes) > 5 else ""
        text = f"Changed while it went on: {', '.join(changes[-5:])}{more}."
        yield Finding("learning", "note", text, {"changes": len(changes)})


CHECKS: tuple[Callable[[RunFolder], Findings], ...] = (
    changed, divergence, best_policy, returns, exploration, schedules, updates, episodes, damage, end, losses, stale, evaluations, binding, course,
    ratio, crowding, below_known,
)  # fmt: skip


# -- text --------------------------------------------------------------------------------------------------------------


def headline(run: RunFolder) -> str:
    """The run in a few words: "runs/a: PPO on CartPole-v1, 40,960 steps in 12 s"."""
    about = " on ".join(str(run.params[key]) for key in ("run", "env") if isinstance(run.params.get(key), str))
    steps, seconds = run.last("timesteps_total", 0.0), run.last("time_total_s", 0.0)
    done = f"{steps:,.0f} steps in {seconds:,.0f} s" if len(run.results) else "no iteration finished"
    return f"{run.path}: {about or 'a run'}, {done}"


@np.errstate(all="ignore")
def healthy_line(run: RunFolder, found: Sequence[Finding]) -> str:
    """Describe a run in which only notes were found."""
    notes = [f"{f.finding} {f.advice}".rstrip() for f in found if f.topic != "speed"]
    if bound := _bottleneck(run):
        notes.append(f"Speed: {bound}.")
    return f"{headline(run)}: healthy. {' '.join(notes)}"


def shown(value: float | None) -> str:
    """A number for people."""
    if value is None or not math.isfinite(value):
        return "none"
    is_count = abs(value) < 1e12 and (value == int(value) or abs(value) >= 1e3)
    return f"{value:,.0f}" if is_count else f"{value:.3g}"
