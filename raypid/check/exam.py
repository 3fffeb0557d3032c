"""One environment, stepped with random actions. Every call is timed, and its result is checked. Runs in the process apart.

What it finds is sent at once, so that it is kept when the environment ends the process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import gymnasium
import numpy as np

from raypid.check.apart import CLOSE, MAKE, RESET, STEP, Channel
from raypid.check.report import Finding, Severity
from raypid.check.single import inner_limit, made_alone
from raypid.check.watch import ObservedPart, quantiles, spread
from raypid.envs import EnvSpec, results
from raypid.envs.observation_checks import ObservationError
from raypid.errors import shown
from raypid.types import Array

Read = TypeVar("Read")
SEED = 7
FEW, MORE_S = 40, 2.0
"""Steps that are made in any case, if they take no more than so many seconds beyond the time."""
REPLAYED = 200
"""Steps of the episode that is played again with the same seed and actions."""
KEPT_OBSERVATIONS = 256
LARGE_INFO = 10_000
"""Bytes of arrays in an info from which it is called large."""


class Broken(Exception):
    """The environment cannot be examined any further; what is wrong with it has been sent."""


class Exam:
    """Makes one environment and steps it, for about `seconds` seconds.

    Raises:
        Broken: it cannot be made.
    """

    def __init__(self, spec: EnvSpec, channel: Channel, seconds: float) -> None:
        self.spec, self.channel, self.seconds = spec, channel, seconds
        self.facts: dict[str, Any] = {}
        self.num_problems = 0
        self._said: set[tuple[str, ...]] = set()
        self.times: dict[int, list[tuple[float, float]]] = {STEP: [], RESET: []}
        """Seconds of each step and reset, and those in which this thread computed rather than waited."""
        self.rewards: list[float] = []
        self.lengths: list[int] = []
        self.returns: list[float] = []
        """Of episodes that have ended."""
        self.kept: list[Any] = []
        """Valid observations, as the environment gave them."""
        self.num_steps = self.num_terminated = 0
        self.episode = 0
        """Number of the last episode that has had a step."""
        self.unfinished = 0
        """Steps of the last episode, if it had not ended when the time was up; of the longest one where none has ended."""
        self._info: dict[str, object] | None = None
        self._before: tuple[Any, Any] | None = None
        """The last observation, and a copy of it as it was returned."""
        start = time.monotonic()
        with self.calling(MAKE):
            self.env, self._limit = made_alone(spec)
        self.time_limit = int(self._limit) if self._limit < math.inf else inner_limit(self.env)
        self.began = time.monotonic()
        self.made_again_s = self.began - start
        """How long the newest environment took to make; for a second one, modules are imported already."""
        self.tell(made_in_s=self.made_again_s)
        self.parts: list[ObservedPart] = []
        """Of the observation; empty until its space is known to be supported."""

    def close(self) -> None:
        """Close the environment."""
        with suppress(Broken), self.calling(CLOSE, severity="warning"):
            self.env.close()

    # -- telling ---------------------------------------------------------------------------------------------------

    def find(self, severity: Severity, topic: str, text: str, advice: str = "", key: str = "") -> None:
        """Send a finding. Of one severity, topic and key only the first counts."""
        if (severity, topic, key) not in self._said:
            self._said.add((severity, topic, key))
            self.send(Finding(severity, topic, text, advice))

    def send(self, finding: Finding) -> None:
        """Send a finding."""
        self.num_problems += finding.severity == "problem"
        self.channel.send(finding)

    def tell(self, **facts: object) -> None:
        """Send facts by topic."""
        self.facts |= facts
        self.channel.send(facts)

    def tell_play(self) -> None:
        """Send what the episodes have shown so far."""
        rewards, steps, resets = self.rewards, self.usual_times(STEP), self.usual_times(RESET)
        self.tell(
            observation={
                **self.facts["observation"], "count": self.parts[0].num_looks, "parts": [part.facts() for part in self.parts],
            },
            reward={
                **spread(rewards), **spread(self.returns, "return_"),
                "nonzero_share": float(np.count_nonzero(rewards)) / len(rewards) if rewards else None,
            },
            step={"calls": len(self.times[STEP]), **quantiles(steps[:, 0]), "waits": steps.size > 0 and self.waits()},
            reset={**self.facts["reset"], "calls": len(self.times[RESET]), **quantiles(resets[:, 0])},
            episodes={
                "episodes": len(self.lengths), "steps": self.num_steps, "terminated": self.num_terminated,
                "truncated": len(self.lengths) - self.num_terminated, "unfinished_steps": self.unfinished,
                **spread(self.lengths, "length_"), "time_limit": self.time_limit,
            },
            info=self._info,
        )  # fmt: skip

    # -- time ------------------------------------------------------------------------------------------------------

    def is_over(self, share: float = 1.0) -> bool:
        """Whether so much of its time is up; the first FEW steps may take MORE_S seconds more."""
        late = time.monotonic() - self.began - share * self.seconds
        return late > 0 and (self.num_steps >= FEW or late > MORE_S)

    def has_stepped_enough(self, share: float = 1.0) -> bool:
        """Whether so much of its time is up, and steps have taken a part of it: resets that take long leave time to see an episode."""
        return self.is_over(share) and sum(wall for wall, _ in self.times[STEP]) > 0.2 * share * self.seconds

    def usual_times(self, call: int) -> Array:
        """Seconds of the steps or resets [N, 2]: in all, and computing. The first call, which warms up, is left out if there are others."""
        return np.array(self.times[call][1:] or self.times[call], float).reshape(-1, 2)

    def mean_times(self) -> tuple[float, float]:
        """Seconds of a step with its share of the resets: in all, and computing."""
        step, reset = self.usual_times(STEP), self.usual_times(RESET)
        wall, cpu = (step.mean(0) + reset.mean(0) / self.mean_length()).tolist()
        return wall, cpu

    def mean_length(self) -> float:
        """Steps of an episode on average; where none has ended, at least those that were seen."""
        return float(np.mean(self.lengths or [self.time_limit or max(self.unfinished, 1)]))

    def waits(self) -> bool:
        """Whether steps and resets wait rather than compute for most of their time."""
        wall, cpu = self.mean_times()
        return cpu < wall / 2

    # -- calling ---------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self, call: int, step: int = 0, severity: Severity = "problem") -> Iterator[None]:
        """Call the environment. What it raises is sent.

        Raises:
            Broken: it raised.
        """
        with self.channel.running(call, self.episode + (call == RESET), step):
            try:
                yield
            except BaseException as error:
                self.send(replace(self.channel.finding(error), severity=severity))
                raise Broken from error

    def _call(self, call: int, *args: Any, step: int = 0, **more: Any) -> Any:
        """Step or reset the environment, and time it.

        Raises:
            Broken: it raised, or returned no tuple of the right length.
        """
        function, length = (self.env.step, results.STEP) if call == STEP else (self.env.reset, results.RESET)
        with self.calling(call, step):
            start, start_cpu = time.perf_counter(), time.thread_time()
            result = function(*args, **more)
            self.times[call].append((time.perf_counter() - start, time.thread_time() - start_cpu))
            if not results.fits(result, length):
                raise results.misfit(result, length)
        return result

    def reset(self, **given: Any) -> Any:
        """Reset, check what comes, and return the observation."""
        obs, info = self._call(RESET, **given)
        self._judge("info", 0, results.check_info, info, "reset")
        self._judge_observation(obs, 0)
        return obs

    def step(self, action: Any, number: int) -> tuple[Any, float, bool, bool]:
        """Step, check what comes, and return the observation, the reward (0 where it is none) and the two flags."""
        self.episode += number == 1
        obs, reward, terminated, truncated, info = self._call(STEP, action, step=number)
        self.num_steps += 1
        self._judge_observation(obs, number)
        value = self._judge("reward", number, results.reward_number, reward)
        if value is not None:
            value += 0.0  # no -0
            self.rewards.append(value)
            if isinstance(reward, np.ndarray) and reward.ndim:
                text = (
                    f"it has shape {reward.shape}; it must be one number. raypid converts it, other libraries may not."
                )
                self.find("warning", "reward", text, "Return float(reward).")
        self._judge("info", number, results.check_info, info, "step")
        self._look_at_info(info)
        terminates = self._judge_flag("terminated", terminated, number)
        return obs, value or 0.0, terminates, self._judge_flag("truncated", truncated, number) or number >= self._limit

    def play(self, obs: Any, actions: Sequence[Any] | None = None) -> Iterator[tuple[Any, Any, float, bool]]:
        """Step an episode that begins with `obs` until it ends, with random actions or those given.

        Yields:
            The action, the observation, the reward, and whether the episode has ended. The caller may stop before that.
        """
        length, total, has_ended = 0, 0.0, False
        while not has_ended and (actions is None or length < len(actions)):
            action = self.action(obs) if actions is None else actions[length]
            obs, reward, terminated, truncated = self.step(deepcopy(action), length + 1)
            length, total, has_ended = length + 1, total + reward, terminated or truncated
            if has_ended:
                self.num_terminated += terminated
                self.lengths.append(length)
                self.returns.append(total)
            else:
                self.unfinished = length if self.lengths else max(self.unfinished, length)
            yield action, obs, reward, has_ended

    def action(self, obs: Any) -> Any:
        """A random action, one that an action_mask allows."""
        space: Any = self.env.action_space
        mask = np.asarray(obs["action_mask"], np.int8) if isinstance(obs, Mapping) and "action_mask" in obs else None
        if mask is not None and isinstance(space, gymnasium.spaces.Discrete):
            if mask.any():
                return space.sample(mask=mask)
            self.find("problem", "action_mask", "an action_mask forbids every action.")
        elif mask is not None and isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return space.sample(mask=tuple(np.split(mask.ravel(), np.cumsum(space.nvec)[:-1])))
        return space.sample()

    # -- checking what comes ---------------------------------------------------------------------------------------

    def _judge(self, topic: str, number: int, read: Callable[..., Read], *args: Any) -> Read | None:
        """Return `read(*args)`; None if that finds a fault, which is then sent."""
        try:
            return read(*args)
        except ObservationError as error:
            self.find("problem", topic, f"at {self._place(number)}: {error.text}", error.advice)
            return None

    def _place(self, number: int) -> str:
        return f"step {number:,} of episode {self.episode:,}" if number else f"reset() {self.episode + 1:,}"

    def _judge_observation(self, obs: Any, number: int) -> None:
        misfits = [found for part in self.parts if (found := part.look(obs, of_reset=number == 0))]
        for key, text in misfits:
            self.find("problem", "observation", f"at {self._place(number)}: {text}", key=key)
        if not misfits and len(self.kept) < KEPT_OBSERVATIONS:
            self.kept.append(deepcopy(obs))
        if self.num_steps <= REPLAYED:
            if self._before is not None and not same(*self._before, exact=True):
                text = "an observation changes after it was returned: the same array is filled again. raypid copies, other libraries do not."
                self.find("note", "observation", text, "Return a copy: obs.copy().")
            self._before = obs, deepcopy(obs)

    def _judge_flag(self, name: str, flag: Any, number: int) -> bool:
        meant = self._judge(name, number, results.flag, flag, name)
        if meant is not None and not isinstance(flag, (bool, np.bool_)):
            text = f"it is {shown(flag)}, {results.described(flag)}, not a bool; raypid converts it."
            self.find("note", name, text)
        return bool(meant)

    def _look_at_info(self, info: Any) -> None:
        if isinstance(info, Mapping) and self.num_steps % 50 == 1:
            sizes = {str(k): v.nbytes for k, v in info.items() if isinstance(v, np.ndarray) and v.nbytes > LARGE_INFO}
            self._info = {"keys": sorted(map(str, info))[:50], "large": sizes}
            for key in sorted(sizes, key=lambda key: -sizes[key])[:1]:
                text = f"info[{key!r}] is an array of {sizes[key] / 1e3:,.0f} kB in every step."
                self.find("note", "info", text, "Leave it out in training: it costs time in each step.")


def same(one: Any, other: Any, *, exact: bool = False) -> bool:
    """Whether two observations are equal, but for rounding unless `exact`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k], exact=exact) for k in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(same(a, b, exact=exact) for a, b in zip(one, other))
    try:
        a, b = np.asarray(one), np.asarray(other)
        are_numbers = {a.dtype.kind, b.dtype.kind} <= set("iuf")
        if exact or a.shape != b.shape or not are_numbers:
            return bool(np.array_equal(a, b, equal_nan=are_numbers))
        return bool(np.allclose(a, b, 1e-4, 1e-5, equal_nan=True))
    except (TypeError, ValueError):
        return False
