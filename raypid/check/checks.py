"""All that is asked of an environment, in order. Runs in the process apart."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import time
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from raypid.check.apart import CLOSE, COPY, PPO, SAC, STEP, VECTORS, Channel
from raypid.check.costs import measure_training, measure_vectors
from raypid.check.exam import MORE_S, REPLAYED, SEED, Broken, Exam, same
from raypid.check.single import AsOne, made_alone
from raypid.check.watch import ObservedPart, words
from raypid.envs.adapter import Adapted, is_seeded, takes
from raypid.envs.errors import ImportFailed
from raypid.envs.foreign import ForeignEnv
from raypid.envs.observation_checks import ObservationLayout
from raypid.envs.quiet import quiet
from raypid.errors import UserError, shorten
from raypid.nn.allocation import return_freed_memory
from raypid.run.resolve import env_spec_of
from raypid.runtime.resources import limit_threads
from raypid.settings.config import Config
from raypid.spaces import space_leaves

Rows: TypeAlias = "list[tuple[Any, Any, float, bool]]"
"""An episode, or its beginning: (action, observation, reward, whether it has ended) of each step; first, what the reset returned."""
EXAM_SHARE, VECTORS_SHARE, PPO_SHARE, SAC_SHARE = 0.35, 0.3, 0.1, 0.25
"""Parts of the time."""
MOST_STEPS, MOST_EPISODES = 5_000, 200
SLIGHT = 0.05
"""Part of the range of its most lively element by which an observation may differ where two episodes part, to be called a little."""


def run_checks(config: Config, channel: Channel, seconds: float, *, speed: bool) -> None:
    """Make the environment, and ask all of it."""
    limit_threads(1)
    with quiet():
        try:
            spec = replace(env_spec_of(config), seed=0)
        except BaseException as error:  # of a module that is imported, too
            ours = isinstance(error, UserError)
            channel.send({"found": not ours or isinstance(error, (ForeignEnv, ImportFailed))})
            channel.send(channel.finding(error))
            return
        with contextlib.suppress(Broken), contextlib.closing(Exam(spec, channel, EXAM_SHARE * seconds)) as exam:
            examine(exam)
            if exam.num_problems:
                return
            if exam.mean_times()[0] < 0.01:
                ask_gymnasium(exam)
            if not speed:
                return
            with exam.channel.running(VECTORS):
                vectors = measure_vectors(exam, VECTORS_SHARE * seconds)
            exam.tell(vectorizers=vectors)
            training: dict[str, object] = {}
            for run, call, share in (("PPO", PPO, PPO_SHARE), ("SAC", SAC, SAC_SHARE)):
                with exam.channel.running(call):
                    training[run] = measure_training(run, config, exam, vectors, share * seconds)
                exam.tell(training=training)


def examine(exam: Exam) -> None:
    """Ask all of it except `ask_gymnasium`.

    Raises:
        Broken: it cannot be stepped, or its spaces are not supported.
    """
    check_spaces(exam)
    check_resets(exam)
    try:
        rows = record_episode(exam, 0.4)
        before = _global_random()
        play_episodes(exam)
    finally:
        exam.tell_play()
    after = _global_random()
    check_seeding(exam, rows, [name for name in before if before[name] != after[name]])
    check_second_copy(exam)


def check_spaces(exam: Exam) -> None:
    """Look at the spaces themselves."""
    env, leaves = exam.env, space_leaves(exam.env.action_space, "action")
    boxes = [leaf.space for leaf in leaves if isinstance(leaf.space, gymnasium.spaces.Box)]
    unbounded = [b for b in boxes if not (np.isfinite(b.low) & np.isfinite(b.high)).all()]
    scaled = [b for b in boxes if b not in unbounded and not ((b.low == -1) & (b.high == 1)).all()]
    scaling = "none" if not boxes else "partly none" if unbounded else "bounds" if scaled else "identity"
    observation = {"space": words(env.observation_space)}
    action = {"space": words(env.action_space), "scaling": scaling}
    metadata = getattr(env, "metadata", None) or {}
    modes, fps = [str(mode) for mode in metadata.get("render_modes") or []], metadata.get("render_fps")
    render = {"modes": modes, "fps": float(fps) if isinstance(fps, (int, float)) else None}
    exam.tell(observation=observation, action=action, render=render)
    exam.parts = [ObservedPart(part) for part in ObservationLayout(env.observation_space).parts]
    env.action_space.seed(SEED)
    for box in unbounded[:1]:
        num = np.count_nonzero(~(np.isfinite(box.low) & np.isfinite(box.high)))
        what = f"{words(box)} is unbounded in {num} of {box.low.size} elements"
        then = "raypid passes on a Gaussian's actions, at first about -3 to 3; SAC, TD3 and DDPG refuse them."
        advice = "Declare bounds: raypid then scales [-1, 1] to them."
        exam.find("warning", "action space", f"{what}: {then}", advice)


def check_resets(exam: Exam) -> None:
    """What does a reset depend on: the seed, what was before, nothing?"""
    first, again = deepcopy(exam.reset(seed=SEED)), deepcopy(exam.reset(seed=SEED))
    others = [deepcopy(exam.reset(seed=SEED + k)) for k in range(1, 5) if not exam.is_over(0.15)]
    unseeded = [deepcopy(exam.reset()) for _ in range(4) if not exam.is_over(0.25)]
    seeds_differ = not all(same(first, other) for other in others) if others else None
    unseeded_differ = not all(same(unseeded[0], other) for other in unseeded) if len(unseeded) > 1 else None
    takes_seed, takes_options = is_seeded(exam.env), takes(exam.env.unwrapped.reset, "options")
    found = {"seeds_differ": seeds_differ, "unseeded_differ": unseeded_differ, "takes_seed": takes_seed}
    exam.tell(reset={**found, "takes_options": takes_options, "same_seed_same_observation": same(first, again)})
    if seeds_differ and unseeded_differ is False and takes_seed:
        text = "reset() without a seed begins every episode alike, though seeds make it differ."
        why = "Training gives a seed only once, so all of it would be one episode."
        advice = "Let the seed default to None, and seed nothing then: super().reset(seed=seed), then self.np_random."
        exam.find("problem", "reset", f"{text} {why}", advice)


def record_episode(exam: Exam, share: float, actions: Sequence[Any] | None = None) -> Rows:
    """Play the beginning of the episode of reset(seed=SEED), until a share of the time is up; the first steps have longer."""
    first = deepcopy(exam.reset(seed=SEED))
    rows = [(None, first, 0.0, False)]
    for action, obs, reward, has_ended in exam.play(first, actions):
        rows.append((action, deepcopy(obs), reward, has_ended))
        if len(rows) > REPLAYED or exam.has_stepped_enough(share if len(rows) > 3 else 2.0):
            break
    return rows


def play_episodes(exam: Exam) -> None:
    """Play episodes with random actions until the time is up, and see whether memory grows."""
    return_freed_memory()  # a training in this process may have kept some, which a leak would use up first
    size = _size()
    while exam.num_steps < MOST_STEPS and len(exam.lengths) < MOST_EPISODES:
        if exam.num_steps and exam.is_over(0.75):
            break
        for _ in exam.play(exam.reset()):
            if exam.num_steps >= MOST_STEPS or exam.has_stepped_enough(0.75):
                break
    if exam.num_steps > 2_000 and size:
        grown = (_size() - size) / 1e6 / (exam.num_steps / 1000)
        exam.tell(memory={"mb_per_1000_steps": round(grown, 3)})


def check_seeding(exam: Exam, before: Rows, drew: list[str]) -> None:
    """Play the same episode again, after others: same seed, same actions. `drew`: the global generators that episodes drew from."""
    found: dict[str, Any] = {"same_episode": None, "differs_at_step": None, "global_random": drew}
    if not exam.facts["reset"]["takes_seed"]:
        exam.tell(seeding=found)
        text = "reset() takes no seed, and there is no seed(n): a run cannot be repeated."
        advice = "def reset(self, *, seed=None, options=None): super().reset(seed=seed), and draw from self.np_random."
        exam.find("warning", "seeding", text, advice)
        return
    rows = record_episode(exam, 1.0, [action for action, *_ in before[1:]])
    at, what = _difference(before, rows)
    exam.tell(seeding=found | {"same_episode": at is None, "differs_at_step": at})
    repeated = "with the same seed and the same actions"
    if drew:
        text = f"it draws from the global generator of {' and '.join(drew)}, which the environments of a worker share: no episode can be repeated."
        advice = "Draw from self.np_random, which super().reset(seed=seed) seeds."
        exam.find("warning" if at is None else "problem", "seeding", text, advice)
    elif at is None or getattr(exam.env.spec, "nondeterministic", False):
        return
    elif at and what == "observation" and _is_slight(before, rows, at):
        why = "as with physics engines that keep something over a reset: a run cannot be repeated to the bit."
        exam.find("warning", "seeding", f"{repeated}, the observation of step {at:,} differs a little, {why}")
    else:
        where = f"the {what} of step {at:,}" if at else "the first observation"
        why = "what happens after the reset is not seeded, or something of earlier episodes is left"
        advice = "super().reset(seed=seed) in reset(), then draw only from self.np_random; set in reset() all that step() changes."
        exam.find("problem", "seeding", f"{repeated}, {where} differs: {why}.", advice)


def _difference(one: Rows, other: Rows) -> tuple[int | None, str]:
    """The first step in which two episodes differ (0: the first observation) and in what; None if they do not."""
    for number, both in enumerate(zip(one, other)):
        for what, a, b in zip(("action", "observation", "reward", "end"), *both):
            if not same(a, b):
                return number, what
    return None, ""


def _is_slight(one: Rows, other: Rows, number: int) -> bool:
    """Whether two episodes part, in step `number`, by little of what the observation varies by."""
    with contextlib.suppress(TypeError, ValueError):  # a Dict or a Tuple
        seen = np.array([obs for _, obs, *_ in one], float)
        apart = np.abs(seen[number] - np.asarray(other[number][1], float)).max()
        return bool(apart <= SLIGHT * (seen.max(0) - seen.min(0)).max())
    return False


def _global_random() -> dict[str, bytes]:
    """The states of the generators that a whole process shares."""
    return {"numpy (np.random)": pickle.dumps(np.random.get_state()), "random": pickle.dumps(random.getstate())}


def check_second_copy(exam: Exam) -> None:
    """Make a second one beside the first, as vectors and workers do, and look whether it can be sent to them."""
    if exam.made_again_s > MORE_S:
        return
    start = time.perf_counter()
    with contextlib.suppress(Broken), exam.calling(COPY):
        other, _ = made_alone(replace(exam.spec, worker_index=1))
        exam.made_again_s = time.perf_counter() - start
        with contextlib.suppress(Exception), exam.channel.running(CLOSE):  # `Exam.close` says what is wrong with it
            other.close()
    import cloudpickle  # type: ignore[import-untyped]  # Gymnasium needs it too

    try:
        cloudpickle.dumps(exam.spec)
    except Exception as error:
        text = f"it cannot be sent to workers of other processes: {type(error).__name__}: {shorten(str(error))}"
        advice = "With num_workers above 0, put it into a module and name it: 'module:Name'."
        exam.find("warning", "workers", text, advice)


def ask_gymnasium(exam: Exam) -> None:
    """Let Gymnasium's own checker look, and quote what it says and we have not."""
    inner: Any = exam.env.unwrapped
    is_masked = "action_mask" in getattr(exam.env.observation_space, "spaces", {})  # it takes random actions
    if isinstance(inner, (Adapted, AsOne)) or not takes(inner.reset, "seed") or is_masked:
        return
    from gymnasium.utils import env_checker

    with exam.channel.running(STEP), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        level, gymnasium.logger.min_level = gymnasium.logger.min_level, gymnasium.logger.WARN
        try:
            env_checker.check_env(inner, skip_render_check=True, skip_close_check=True)
        except Exception as error:
            warnings.warn(str(error), stacklevel=1)
        gymnasium.logger.min_level = level
    for warning in caught:
        text = shorten(re.sub(r"\x1b\[\d+m|WARN(ING)?: ", "", str(warning.message)), 220)
        if text and not any(part in text for part in _NO_CONCERN):
            exam.find("note", "Gymnasium", f'its checker says: "{text}"', key=text)


_NO_CONCERN = (
    "Box ", "Official support for the `seed`", "truncates after 1 step", "requires that `Env.reset` can be passed", "The reward returned",
    "non-deterministic", "random generates", "random number generators", "not equivalent", "not equal although similar",
    "share an object", "not within the observation space", "expecting numpy array dtype", "Expects `terminated`", "Expects `truncated`",
)  # fmt: skip
"""Parts of what Gymnasium's checker says of things that do no harm here, or that we say with more detail."""


def _size() -> int:
    """Bytes of this process in memory; 0 where that is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
