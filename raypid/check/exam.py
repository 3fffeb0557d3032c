"""One environment, stepped with random actions and looked at from all sides. Runs in the process apart.

What it finds is sent at once, so that it is kept when the environment ends the process.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import gymnasium
import numpy as np

from raypid.check.apart import CLOSE, MAKE, RESET, STEP, STEP_AFTER_END, Channel, cause_of, place_of, subject
from raypid.check.finding import Finding, Severity
from raypid.check.single import AsOne, made_alone, takes_all_as_dict
from raypid.check.watch import Observations, quantiles, reward_facts, unbounded_words, words
from raypid.envs import EnvSpec, results
from raypid.envs.adapter import Adapted, is_seeded, takes
from raypid.envs.errors import EnvError
from raypid.envs.python_vector import waits
from raypid.errors import HEAD, shorten, shown
from raypid.nn.allocation import return_freed_memory
from raypid.spaces import SpaceError, space_leaves

SEED = 7
MOST_STEPS, MOST_EPISODES = 5_000, 200
FEW, MORE_S = 40, 2.0
REPLAYED = 200
"""Steps of the episode that is played again with the same seed and actions."""
KEPT_OBSERVATIONS = 256
LARGE_INFO = 10_000
"""Bytes of arrays in an info from which it is called large."""


class Broken(Exception):
    """The environment cannot be examined any further; what is wrong with it has been sent."""


@dataclass(slots=True)
class Played:
    """An episode, or its beginning, from a reset with SEED on."""

    first: Any
    actions: list[Any] = field(default_factory=list)
    steps: list[tuple[Any, float, bool]] = field(default_factory=list)
    """(observation, reward, whether it ended)."""


class Exam:
    """Examines one environment for about `seconds` seconds once it is made."""

    def __init__(self, spec: EnvSpec, channel: Channel, seconds: float) -> None:
        self.spec, self.channel, self.seconds = spec, channel, seconds
        self.num_problems = 0
        self.kept: list[Any] = []
        """Valid observations, as the environment gave them."""
        self.wall_s: dict[int, list[float]] = {STEP: [], RESET: []}
        self.cpu_s: dict[int, list[float]] = {STEP: [], RESET: []}
        """Seconds of each step and reset in which this thread computed rather than waited."""
        self._fresh: Any = None
        """The observation of reset(seed=SEED), if nothing was done since."""
        self.lengths: list[int] = []
        self.returns: list[float] = []
        self.ends = {"terminated": 0, "truncated": 0}
        self.num_steps = self.episode = 0
        self.unfinished = 0
        """Steps of the last episode, if it had not ended when the time was up; of the longest one where none has ended."""
        self.facts: dict[str, Any] = {}
        self._info: Mapping[str, object] | None = None
        self._size_before = 0
        self._has_stepped = True
        self.made_again_s = 0.0
        """How long the second environment took to make, whose modules were imported by then."""
        self._said: set[str] = set()
        self._aliased: tuple[Any, Any] | None = None

    # -- what was measured -----------------------------------------------------------------------------------------

    def mean_step_s(self) -> float:
        """Seconds that a step takes on average, with its share of the resets."""
        step, reset = self.facts["step"]["mean_s"] or 0.0, self.facts["reset"]["mean_s"] or 0.0
        return float(step + reset / self.mean_length())

    def mean_length(self) -> float:
        """Steps of an episode on average; where none has ended, at least those that were seen."""
        limit = _time_limit(self.env)
        return float(np.mean(self.lengths)) if self.lengths else float(limit or max(self.unfinished, 1))

    def waits(self) -> bool:
        """Whether steps and resets wait rather than compute for most of their time."""
        wall, cpu = (
            float(np.mean(seconds[STEP]) + np.mean(seconds[RESET]) / self.mean_length())
            for seconds in (self.wall_s, self.cpu_s)
        )
        return cpu < wall / 2

    def usually_waits(self) -> bool:
        """Whether a usual step takes long enough, and waits enough, that raypid turns to threads by itself."""
        return waits(float(np.median(self.wall_s[STEP])), float(np.median(self.cpu_s[STEP])))

    # -- telling ---------------------------------------------------------------------------------------------------

    def find(self, severity: Severity, topic: str, text: str, advice: str = "", where: str = "", key: str = "") -> None:
        """Send a finding. Of those with the same `key` only the first counts."""
        if key in self._said and key:
            return
        self._said.add(key)
        self.num_problems += severity == "problem"
        self.channel.send(Finding(severity, topic, text, advice, where))

    def tell(self, **facts: object) -> None:
        """Send facts by topic."""
        self.facts |= facts
        self.channel.send(facts)

    def is_over(self, share: float = 1.0) -> bool:
        """Whether so much of its time is up; the first FEW steps may take MORE_S seconds more."""
        late = time.monotonic() - self.began - share * self.seconds
        return late > 0 and (self.num_steps >= FEW or late > MORE_S)

    def has_stepped_enough(self, share: float = 1.0) -> bool:
        """Whether so much of its time is up, and steps have taken a part of it: resets that take long leave time to see an episode."""
        return self.is_over(share) and sum(self.wall_s[STEP]) > 0.2 * share * self.seconds

    @contextlib.contextmanager
    def _running(self, call: int, step: int = 0) -> Iterator[None]:
        """Show that code of the environment is running, so that the other process can say which."""
        self.channel.pulse.beat(call, self.episode, step)
        try:
            yield
        finally:
            self.channel.pulse.rest()

    def _timed(self, call: int, function: Callable[..., Any], *args: Any, step: int = 0, **more: Any) -> Any:
        """Call a step or a reset of the environment, and time it."""
        with self._running(call, step):
            start, start_cpu = time.perf_counter(), time.thread_time()
            try:
                result = function(*args, **more)
            except BaseException as error:
                self._raised(error)
                raise Broken from error
            self.wall_s[call].append(time.perf_counter() - start)
            self.cpu_s[call].append(time.thread_time() - start_cpu)
        return result

    def _raised(self, error: BaseException) -> None:
        """Say what the running call raised."""
        (topic, who), where = subject(str(self.channel.pulse)), place_of(error)
        if isinstance(error, EnvError) and not where:
            if not self._is_old_gym():
                self.find("problem", "interface", str(error).removeprefix(HEAD))
            return
        if isinstance(error, ValueError) and not where:
            _, step = self._unwrapped_results()
            if step is not None and not results.fits(step, results.STEP):
                return self.find("problem", "step", *results.misfit(step, results.STEP))
        inner = cause_of(error)
        said = f"{type(inner).__name__}: {inner}".rstrip(": ")
        self.find("problem", topic, f"{who} raises {shorten(said)}", where=where)

    # -- the parts of the examination ------------------------------------------------------------------------------

    def run(self) -> None:
        """Do all of it.

        Raises:
            Broken: it cannot be stepped, or its spaces are not supported.
        """
        self.make()
        self.began = time.monotonic()
        self.spaces()
        self.resets()
        try:
            played = self.replay()
            self.episodes()
        finally:
            self._tell_play()
        self.seeding(played)
        self.beside()

    def make(self) -> None:
        start = time.perf_counter()
        with self._running(MAKE):
            try:
                self.env: Any = made_alone(self.spec)
            except BaseException as error:
                is_ours = isinstance(error, EnvError)
                users = error.__cause__ if is_ours and str(error).startswith(HEAD) else None
                if is_ours and users is None:
                    self.find("problem", "constructor", shorten(str(error), 900), where=place_of(error))
                else:
                    self._raised(users or error)
                raise Broken from error
        self.tell(made_in_s=time.perf_counter() - start)
        if name := takes_all_as_dict(self.spec):
            self.find(
                "note", "constructor",
                f"its one parameter {name!r} was given a dict with all of env_config, which is empty: so RLlib's environments are made.",
                f"If it is a setting of its own: env_config={{{name!r}: ...}}.",
            )  # fmt: skip

    def spaces(self) -> None:
        """Look at the spaces themselves."""
        env, parts = self.env, {}
        for role, space in (("observation", env.observation_space), ("action", env.action_space)):
            try:
                parts[role] = space_leaves(space, role)
            except SpaceError as error:
                self.find("problem", f"{role} space", str(error))
        self.tell(
            observation={"space": words(env.observation_space)},
            action={"space": words(env.action_space)},
            render=_render(env),
        )
        if len(parts) < 2:
            raise Broken
        for leaf in parts["observation"]:
            if isinstance(leaf.space, gymnasium.spaces.Box) and (leaf.space.low > leaf.space.high).any():
                part = f"part {leaf.path!r} of the observation" if leaf.path else "the observation"
                self.find("problem", "observation space", f"{part} has a lower bound above its upper one.")
        bounds = [leaf.space for leaf in parts["action"] if isinstance(leaf.space, gymnasium.spaces.Box)]
        self._judge_actions(bounds)
        self.observations = Observations(env.observation_space)
        self.rewards: list[float] = []
        self.is_masked = "action_mask" in getattr(env.observation_space, "spaces", {})
        env.action_space.seed(SEED)

    def _judge_actions(self, boxes: list[gymnasium.spaces.Box]) -> None:
        unbounded = [b for b in boxes if not (np.isfinite(b.low) & np.isfinite(b.high)).all()]
        scaled = [b for b in boxes if b not in unbounded and not ((b.low == -1) & (b.high == 1)).all()]
        action = self.facts["action"]
        action["scaling"] = "none" if not boxes else "partly none" if unbounded else "bounds" if scaled else "identity"
        self.tell(action=action)
        if unbounded:
            self.find(
                "warning", "action space",
                f"{unbounded_words(unbounded[0])}: raypid passes a Gaussian's actions on as they are, about -3 to 3 at first; SAC, TD3 and DDPG "
                "refuse them.",
                "Declare bounds: raypid then scales [-1, 1] to them.",
            )  # fmt: skip
        for box in scaled[:1]:
            if (box.low == box.high).any():
                self.find("warning", "action space", f"{words(box)} has elements whose bounds are equal: they do nothing.")  # fmt: skip

    def reset(self, **given: Any) -> Any:
        """Reset, check what comes, and return the observation."""
        self.episode += self._has_stepped
        self._has_stepped, self._fresh = False, None
        result = self._timed(RESET, self.env.reset, **given)
        if not results.fits(result, results.RESET):
            if self._is_old_gym():
                raise Broken
            self.find("problem", "reset", *results.misfit(result, results.RESET))
            raise Broken
        obs, info = result
        if not isinstance(info, Mapping):
            self.find("problem", "reset", f"reset() returns {shown(info)} as info; it must be a dict.", key="info")
        self._look(obs, 0)
        return obs

    def _unwrapped_results(self) -> tuple[object, object]:
        """What reset() and step() return without the wrappers, which could not take it apart; None where they raise."""
        env: Any = self.env.unwrapped
        env = env.env if isinstance(env, Adapted) else env
        with contextlib.suppress(Exception), self._running(STEP, 1):
            return env.reset(), env.step(self.env.action_space.sample())
        return None, None

    def _is_old_gym(self) -> bool:
        """Whether both methods return what those of Gym before 0.26 did; then that is said."""
        first, step = self._unwrapped_results()
        is_old = not isinstance(first, tuple) and results.fits(step, 4)
        if is_old:
            advice = [_then(results.misfit(*result)[1]) for result in ((first, results.RESET), (step, results.STEP))]
            self.find(
                "problem", "interface", f"this is old Gym's interface: reset() returns {results.described(first)}, step() a tuple of 4.",
                f"In reset() {advice[0]}; in step() {advice[1]}",
            )  # fmt: skip
        return is_old

    def resets(self) -> None:
        """What does a reset depend on: the seed, what was before, nothing?"""
        first = deepcopy(self.reset(seed=SEED))
        again = self._fresh = deepcopy(self.reset(seed=SEED))
        found: dict[str, Any] = {"same_seed_same_observation": same(first, again)}
        others = [deepcopy(self.reset(seed=SEED + k)) for k in range(1, 5) if not self.is_over(0.15)]
        found["seeds_differ"] = not all(same(first, other) for other in others) if others else None
        unseeded = [deepcopy(self.reset()) for _ in range(4) if not self.is_over(0.25)]
        varied = not all(same(unseeded[0], other) for other in unseeded) if len(unseeded) > 1 else None
        found["unseeded_differ"] = varied
        found["takes_seed"] = is_seeded(self.env)
        found["takes_options"] = takes(self.env.unwrapped.reset, "options")
        self.tell(reset=found)
        if found["seeds_differ"] and varied is False and is_seeded(self.env):
            self.find(
                "problem", "reset",
                "reset() without a seed begins every episode alike, though seeds make it differ: all training would be one episode, as seeds are "
                "given only once.",
                "Let the seed default to None, and seed nothing when it is: super().reset(seed=seed), then self.np_random.",
            )  # fmt: skip

    def replay(self) -> Played:
        """Play the beginning of an episode with a seed."""
        played = Played(self._fresh if self._fresh is not None else deepcopy(self.reset(seed=SEED)))
        for action, obs, reward, has_ended in self._play(played.first):
            played.actions.append(action)
            played.steps.append((deepcopy(obs), reward, has_ended))
            num = len(played.steps)
            if num == REPLAYED or self.has_stepped_enough(0.4 if num > 2 else 1.0):
                break
        self._global = _global_random()
        return played

    def _play(self, obs: Any, actions: Sequence[Any] | None = None) -> Iterator[tuple[Any, Any, float, bool]]:
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
                self.ends["terminated" if terminated else "truncated"] += 1
                self.lengths.append(length)
                self.returns.append(total)
            else:
                self.unfinished = length if self.lengths else max(self.unfinished, length)
            yield action, obs, reward, has_ended

    def action(self, obs: Any) -> Any:
        """A random action, one that an action_mask allows."""
        space: Any = self.env.action_space
        mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
        if mask is not None and isinstance(space, gymnasium.spaces.Discrete):
            mask = np.asarray(mask, np.int8)
            if not mask.any():
                self.find("problem", "action_mask", "an action_mask forbids every action.", key="mask")
                return space.sample()
            return space.sample(mask=mask)
        if mask is not None and isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            parts = np.split(np.asarray(mask, np.int8).ravel(), np.cumsum(space.nvec)[:-1])
            return space.sample(mask=tuple(parts))
        return space.sample()

    def step(self, action: Any, number: int) -> tuple[Any, float, bool, bool]:
        """Step, check what comes, and return the observation, the reward and the two flags."""
        result = self._timed(STEP, self.env.step, action, step=number)
        if not results.fits(result, results.STEP):
            self.find("problem", "step", *results.misfit(result, results.STEP))
            raise Broken
        self.num_steps, self._has_stepped = self.num_steps + 1, True
        obs, reward, terminated, truncated, info = result
        self._look(obs, number)
        value = self._judge_reward(reward, number)
        flags = [self._flag(*flag, number) for flag in (("terminated", terminated), ("truncated", truncated))]
        self._judge_info(info)
        return obs, value, flags[0], flags[1]

    def _look(self, obs: Any, number: int) -> None:
        """Check an observation."""
        misfit = self.observations.look(obs, number)
        for key, text in misfit:
            at = f"step {number:,} of episode {self.episode:,}" if number else f"reset() {self.episode:,}"
            self.find("problem", "observation", f"at {at}: {text}", key=key)
        if not misfit and len(self.kept) < KEPT_OBSERVATIONS:
            self.kept.append(deepcopy(obs))
        self._judge_aliasing(obs)

    def _judge_aliasing(self, obs: Any) -> None:
        if self.num_steps > REPLAYED or "alias" in self._said:
            return
        before, self._aliased = self._aliased, (obs, deepcopy(obs))
        if before is not None and not same(before[0], before[1], exact=True):
            self.find(
                "note", "observation",
                "an observation changes after it was returned: the same array is filled again. raypid copies, other libraries do not.",
                "Return a copy: obs.copy().", key="alias",
            )  # fmt: skip

    def _judge_reward(self, reward: Any, number: int) -> float:
        value, wrong, advice = results.judged_reward(reward)
        if wrong:
            at = f"at step {number:,} of episode {self.episode:,}"
            self.find("problem", "reward", f"{at}, it {wrong}", advice, key="reward")
            return 0.0
        if isinstance(reward, np.ndarray) and reward.ndim:
            self.find(
                "warning", "reward", f"it has shape {reward.shape}; it must be one number. raypid converts it, other libraries may not.",
                "Return float(reward).", key="reward array",
            )  # fmt: skip
        value += 0.0  # no -0
        self.rewards.append(value)
        return value

    def _flag(self, name: str, value: Any, number: int) -> bool:
        meant = results.as_flag(value)
        if meant is None:
            self.find(
                "problem", name, f"step() returns {shown(value)} as {name} at step {number:,}; it must be True or False.",
                key=name,
            )  # fmt: skip
        elif not isinstance(value, (bool, np.bool_)):
            self.find("note", name, f"it is {shown(value)}, {results.described(value)}, not a bool; raypid converts it.", key=name)  # fmt: skip
        return bool(meant)

    def _judge_info(self, info: Any) -> None:
        if not isinstance(info, Mapping):
            self.find("problem", "info", f"step() returns {shown(info)} as info; it must be a dict.", key="info")
            return
        if "info size" in self._said or self.num_steps % 50 != 1:
            return
        sizes = {str(k): v.nbytes for k, v in info.items() if isinstance(v, np.ndarray) and v.nbytes > LARGE_INFO}
        self._info = {"keys": sorted(map(str, info))[:50], "large": sizes}
        if sizes:
            key, size = max(sizes.items(), key=lambda item: item[1])
            self.find(
                "note", "info", f"info[{key!r}] is an array of {size / 1e3:,.0f} kB in every step.",
                "Leave it out in training: it costs time in each step.", key="info size",
            )  # fmt: skip

    def episodes(self) -> None:
        """Play episodes with random actions until the time is up."""
        return_freed_memory()  # a training in this process may have kept some, which a leak would use up first
        self._size_before = _size()
        while self.num_steps < MOST_STEPS and len(self.lengths) < MOST_EPISODES:
            if self.is_over(0.75) and self.num_steps:
                return
            for *_, has_ended in self._play(self.reset()):
                if not has_ended and (self.num_steps >= MOST_STEPS or self.has_stepped_enough(0.75)):
                    return

    def _tell_play(self) -> None:
        """Send what the episodes have shown."""
        limit = _time_limit(self.env)
        self.tell(
            observation={**self.facts["observation"], **self.observations.facts()},
            reward=reward_facts(self.rewards, self.returns),
            step={**quantiles(self.wall_s[STEP]), "waits": bool(self.wall_s[STEP]) and self.waits()},
            reset={**self.facts["reset"], **quantiles(self.wall_s[RESET])},
            episodes={
                "episodes": len(self.lengths), "steps": self.num_steps, **self.ends, "unfinished_steps": self.unfinished,
                "length_min": min(self.lengths, default=None), "length_max": max(self.lengths, default=None),
                "length_mean": float(np.mean(self.lengths)) if self.lengths else None, "time_limit": limit,
            },
            info=self._info,
        )  # fmt: skip
        if self.num_steps > 2_000 and self._size_before:
            grown = (_size() - self._size_before) / 1e6 / (self.num_steps / 1000)
            self.tell(memory={"mb_per_1000_steps": round(grown, 3)})

    def seeding(self, before: Played) -> None:
        """Play the same episode again, after others: same seed, same actions."""
        drew = [name for name, state in _global_random().items() if state != self._global[name]]
        found: dict[str, Any] = {"same_episode": None, "differs_at_step": None, "global_random": drew}
        if not self.facts["reset"]["takes_seed"]:
            self.tell(seeding=found)
            return self.find(
                "warning", "seeding", "reset() takes no seed, and there is no seed(n): a run cannot be repeated.",
                "def reset(self, *, seed=None, options=None): super().reset(seed=seed), and draw from self.np_random.",
            )  # fmt: skip
        played = Played(deepcopy(self.reset(seed=SEED)))
        for _, obs, reward, has_ended in self._play(played.first, before.actions):
            played.steps.append((deepcopy(obs), reward, has_ended))
            if self.has_stepped_enough() and len(played.steps) > 2:
                break
        differs, what = _difference(before, played)
        found |= {"same_episode": differs is None, "differs_at_step": differs}
        self.tell(seeding=found)
        if differs is None:
            if drew:
                self._warn_global(drew, "warning")
            return None
        self._judge_seeding(differs, what, drew, slight=_is_slight(before, played, differs))

    def _warn_global(self, drew: list[str], severity: Severity) -> None:
        self.find(
            severity, "seeding",
            f"it draws from the global generator of {' and '.join(drew)}, which the environments of a worker share: no episode can be repeated.",
            "Draw from self.np_random, which super().reset(seed=seed) seeds.",
        )  # fmt: skip

    def _judge_seeding(self, differs: int, what: str, drew: list[str], *, slight: bool) -> None:
        if getattr(self.env.spec, "nondeterministic", False):
            return self.find("note", "seeding", "the same seed gives another episode, as its registration says.")
        if drew:
            return self._warn_global(drew, "problem")
        if differs == 0 and self.facts["reset"]["same_seed_same_observation"]:
            return self.find(
                "problem", "reset",
                f"after some episodes, reset(seed={SEED}) gives another observation than at first: something of earlier episodes is left.",
                "Set everything that step() changes in reset().",
            )  # fmt: skip
        if slight:
            return self.find(
                "warning", "seeding",
                f"with the same seed and the same actions, the observation of step {differs:,} differs a little, as with physics engines that keep "
                "something over a reset: a run cannot be repeated to the bit.",
            )  # fmt: skip
        at = "the first observation" if differs == 0 else f"the {what} of step {differs:,}"
        only = "" if self.facts["reset"]["same_seed_same_observation"] is False or differs == 0 else (
            ": what happens after the reset is not seeded, or something of earlier episodes is left"
        )  # fmt: skip
        self.find(
            "problem", "seeding", f"with the same seed and the same actions, {at} differs{only}.",
            "super().reset(seed=seed) in reset(), then draw only from self.np_random; set in reset() all that step() changes.",
        )  # fmt: skip

    def beside(self) -> None:
        """Make a second one beside the first, as vectors and workers do, and look whether it can be sent to them."""
        self.made_again_s = self.facts["made_in_s"]
        if self.made_again_s > MORE_S:
            return
        start = time.perf_counter()
        try:
            with self._running(MAKE):
                second = made_alone(replace(self.spec, worker_index=1))
        except BaseException as error:
            text = shorten(str(error).rpartition("\nraypid: ")[2])
            text = f"a second one beside the first cannot be made: {text}"
            self.find("problem", "constructor", text, where=place_of(error))
        else:
            self.made_again_s = time.perf_counter() - start
            with contextlib.suppress(Exception), self._running(CLOSE):  # `close` says what is wrong with it
                second.close()
        import cloudpickle  # type: ignore[import-untyped]  # Gymnasium needs it too

        try:
            cloudpickle.dumps(self.spec)
        except Exception as error:
            self.find(
                "warning", "workers", f"it cannot be sent to workers of other processes: {type(error).__name__}: {shorten(str(error))}",
                "With num_workers above 0, put it into a module and name it: 'module:Name'.",
            )  # fmt: skip

    # -- last things -----------------------------------------------------------------------------------------------

    def ask_gymnasium(self) -> None:
        """Let Gymnasium's own checker look, and quote what it says and we have not."""
        inner: Any = self.env.unwrapped
        if isinstance(inner, (Adapted, AsOne)) or not takes(inner.reset, "seed") or self.is_masked:
            return  # (it takes random actions, which a mask may forbid)
        from gymnasium.utils import env_checker

        said: list[str] = []
        with self._running(STEP), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            level, gymnasium.logger.min_level = gymnasium.logger.min_level, gymnasium.logger.WARN
            try:
                env_checker.check_env(inner, skip_render_check=True, skip_close_check=True)
            except Exception as error:
                said.append(str(error))
            finally:
                gymnasium.logger.min_level = level
        said += [str(w.message) for w in caught]
        for text in dict.fromkeys(_plain_words(t) for t in said):
            if text and not text.startswith(_SAID_BY_US) and not any(part in text for part in _NO_CONCERN):
                self.find("note", "Gymnasium", f'its checker says: "{shorten(text, 220)}"')

    def step_after_end(self) -> None:
        """What it does when stepped after the end of an episode; raypid never does that."""
        if time.monotonic() - self.began > 4 * self.seconds + MORE_S:
            return
        with contextlib.suppress(Exception):
            obs = self.env.reset(seed=SEED)[0]
            for number in range(1, 2_000):
                self.channel.pulse.beat(STEP, self.episode, number)
                obs, _, terminated, truncated, _ = self.env.step(self.action(obs))
                if terminated or truncated or self.is_over():
                    break
            else:
                return
            if terminated or truncated:
                self.channel.pulse.beat(STEP_AFTER_END)
                self.env.step(self.env.action_space.sample())
        self.channel.pulse.rest()

    def close(self) -> None:
        try:
            with self._running(CLOSE):
                self.env.close()
        except BaseException as error:
            if not self.num_problems:
                text = f"close() raises {type(error).__name__}: {shorten(str(error))}"
                self.find("warning", "close", text, where=place_of(error))


_SAID_BY_US = (
    "A Box ", "For Box action spaces", "The environment (<", "Official support for the `seed`", "The observations returned by",
    "The infos returned by", "Environment truncates after 1 step", "It seems a Box observation space is an image",
    "Not able to test alternative render modes", "Current gymnasium version requires that `Env.reset` can be passed",
    "The reward returned by `step()` must be a float",
)  # fmt: skip
"""Beginnings of what Gymnasium's checker says of things that do no harm here, or that we say with more detail."""
_NO_CONCERN = ("is non-deterministic", "random generates are not same", "not equivalent for the same seed", "not equal although similar",
    "share an object", "random number generators are not different", "is not within the observation space",
    "was expecting numpy array dtype", "has not been seeded", "Expects `truncated`", "Expects `terminated`")  # fmt: skip


def _plain_words(text: str) -> str:
    """A sentence without Gymnasium's colours and heading, on one line."""
    for noise in ("\x1b[33m", "\x1b[31m", "\x1b[0m", "WARN: ", "WARNING: "):
        text = text.replace(noise, "")
    return " ".join(text.split())


def _then(sentence: str) -> str:
    """A sentence as it goes on within another."""
    return sentence[0].lower() + sentence[1:]


def same(one: Any, other: Any, *, exact: bool = False) -> bool:
    """Whether two observations are equal, but for rounding unless `exact`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[k], other[k], exact=exact) for k in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(same(a, b, exact=exact) for a, b in zip(one, other))
    try:
        a, b = np.asarray(one), np.asarray(other)
        if a.shape != b.shape:
            return False
        if a.dtype.kind not in "iuf" or b.dtype.kind not in "iuf":
            return bool(np.array_equal(a, b))
        return bool(np.array_equal(a, b, equal_nan=True) if exact else np.allclose(a, b, 1e-4, 1e-5, equal_nan=True))
    except (TypeError, ValueError):
        return False


def _difference(one: Played, other: Played) -> tuple[int | None, str]:
    """The first step in which two episodes differ (0: the first observation) and in what; None if they do not."""
    for number, both in enumerate(zip([(one.first,), *one.steps], [(other.first,), *other.steps])):
        for what, a, b in zip(("observation", "reward", "end"), *both):
            if not same(a, b):
                return number, what
    return None, ""


SLIGHT = 0.05
"""Part of the range of its most lively element by which an observation may differ where two episodes part, to be called a little."""


def _is_slight(one: Played, other: Played, number: int) -> bool:
    """Whether two episodes part, in step `number`, by little of what the observation varies by."""
    if number == 0 or same(one.steps[number - 1][0], other.steps[number - 1][0]):
        return False
    try:
        seen = np.array([step[0] for step in one.steps], float)
        apart = np.abs(seen[number - 1] - np.asarray(other.steps[number - 1][0], float))
    except (TypeError, ValueError):
        return False
    return bool(apart.max() <= SLIGHT * (seen.max(0) - seen.min(0)).max())


def _global_random() -> dict[str, str]:
    """The states of the generators that a whole process shares."""
    state = cast("tuple[Any, ...]", np.random.get_state())
    return {"numpy (np.random)": f"{hash(state[1].tobytes())} {state[2:]}", "random": str(hash(random.getstate()))}


def _size() -> int:
    """Bytes of this process in memory; 0 where that is not known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _time_limit(env: Any) -> int | None:
    """The steps after which a wrapper, or the vector around it, cuts episodes."""
    kwargs = getattr(env.spec, "kwargs", None) or {}
    if isinstance(frames := kwargs.get("max_num_frames_per_episode"), int):  # of ALE
        return frames // 4
    own, limits = getattr(env.unwrapped, "time_limit", None), []
    while isinstance(env, gymnasium.Wrapper):
        limits += [env._max_episode_steps] if isinstance(env, gymnasium.wrappers.TimeLimit) else []
        env = env.env
    return min(limits) if limits else own if isinstance(own, int) else None


def _render(env: Any) -> dict[str, object]:
    metadata = getattr(env, "metadata", None) or {}
    modes = metadata.get("render_modes") or metadata.get("render.modes") or []
    fps = metadata.get("render_fps", metadata.get("video.frames_per_second"))
    return {"modes": [str(m) for m in modes], "fps": float(fps) if isinstance(fps, (int, float)) else None}
