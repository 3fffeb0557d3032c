"""From an EnvSpec to a VectorEnv: which environment is meant, and which vectoriser fits it."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import gymnasium

from raypid.envs.adapter import takes
from raypid.envs.creators import load, vectorize
from raypid.envs.env_spec import VECTORIZERS, EnvSpec
from raypid.envs.errors import EnvError
from raypid.envs.forked import Forked, ForkedLost
from raypid.envs.observation_checks import to_tree
from raypid.envs.resolve import GYM, Resolved, resolve
from raypid.envs.vector import VectorEnv
from raypid.plugins.registry import did_you_mean
from raypid.spaces import Space
from raypid.types import Tree, tree_concat

NATIVE_FROM = 7
"""Streams from which the vector entry point of Gymnasium's CartPole (50 us a step, however many) outruns the loop."""


def make_vector(spec: EnvSpec) -> VectorEnv:
    """Make the environments of one worker.

    Raises:
        EnvError: a bad spec, an unknown environment, one that cannot be made, or unsupported spaces.
    """
    return vectorize(spec, *check(spec))


def check(spec: EnvSpec) -> tuple[Resolved, str]:
    """Check a spec without making anything; returns the environment and the vectoriser.

    The vectoriser may still be "auto": then a measurement will decide between sync and threads.

    Raises:
        EnvError: as make_vector, as far as can be known without an environment.
    """
    if spec.vectorizer not in VECTORIZERS:
        raise EnvError(f"Unknown vectorizer {spec.vectorizer!r}.{did_you_mean(str(spec.vectorizer), VECTORIZERS)}")
    for key in ("num_envs", "action_repeat", "time_limit", "num_threads"):
        value = getattr(spec, key)
        if not (value is None and key == "time_limit") and not (isinstance(value, int) and value >= 1):
            raise EnvError(f"{key} is {value!r}; it must be a whole number of at least 1.")
    resolved = resolve(spec.env)
    return resolved, choose_vectorizer(spec, resolved)


def is_native(spec: EnvSpec) -> bool:
    """Whether several environments of this kind step as one vector of arrays, where more of them take little longer."""
    return check(replace(spec, num_envs=NATIVE_FROM))[1] == "native"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one environment tells of all."""

    observation_space: Space
    action_space: Space
    is_seeded: bool
    """Whether seeds decide what happens in it."""
    time_limit: float
    """Steps after which an episode is cut; infinite where none is known."""
    first: Tree | None = None
    """The observations [N, *] that were looked at, if it was reset."""
    terminates: bool | None = None
    """Whether an episode terminated within LOOK steps with random actions; None if that many were not made."""
    step_s: float = math.inf
    """Seconds of the fastest of these steps."""


Depth: TypeAlias = Literal["spaces", "reset", "steps"]
"""How far to look at an environment: at its spaces, also at the observation of a reset and, as long as more is to be seen, of FEW steps, or
at LOOK steps."""
Looks: TypeAlias = Callable[[Sample], Depth]
"""How far to look, by what is known so far: the spaces, then also observations."""
FEW = 20
"""Steps of a look at observations: some games begin black, or with a dim picture."""
LOOK = 100
"""Steps of a look: a twentieth of what PPO takes for its first update."""
FAST_S = 1e-3
"""Seconds of a step up to which more streams pay: each call of the network acts for all of them."""


def only_spaces(found: Sample) -> Depth:
    """Look no further than at the spaces."""
    return "spaces"


def sample(spec: EnvSpec, looks: Looks = only_spaces) -> Sample:
    """Make one environment in this process, look at it as far as `looks` says, and close it.

    A reset or a step that fails says nothing here: those who need one will name what is wrong.
    """
    *_, found = _sampling(spec, looks)
    return found


def _sampling(spec: EnvSpec, looks: Looks) -> Generator[Sample, None, None]:
    """Yield what is known of an environment: again after each further look."""
    vectorizer = "sync" if spec.vectorizer in ("async", "threads", "processes") else spec.vectorizer
    vector = make_vector(replace(spec, num_envs=1, vectorizer=vectorizer))
    found = Sample(vector.observation_space, vector.action_space, vector.is_seeded, vector.time_limit)
    try:
        look = looks(found)
        yield found
        if look != "spaces":
            with suppress(EnvError):
                found = replace(found, first=vector.reset())
                if look == "reset":
                    found = _observed(found, vector, looks)
                yield found
                if look == "steps":
                    yield _stepped(found, vector)
    finally:
        vector.close()


def _observed(found: Sample, vector: VectorEnv, looks: Looks) -> Sample:
    """Step a freshly reset environment with random actions, at most FEW times, until its observations say enough."""
    with suppress(EnvError):
        for _, action in zip(range(FEW), _random_actions(vector.action_space)):
            assert found.first is not None
            if looks(found) == "spaces":
                break
            seen = vector.step(action).obs
            found = replace(found, first=tree_concat([found.first, seen]))
    return found


def _random_actions(space: Space) -> Iterator[Tree]:
    """Yield random actions [1, *]."""
    space = copy.deepcopy(space)  # it may be the class's, from which environments draw too
    space.seed(0)
    while True:
        yield to_tree(space, [space.sample()])


def _stepped(found: Sample, vector: VectorEnv) -> Sample:
    """Step a freshly reset environment, whose actions are a Box, with random actions until an episode terminates, at most LOOK times."""
    step_s = math.inf
    for _, action in zip(range(LOOK), _random_actions(vector.action_space)):
        start = time.perf_counter()
        step = vector.step(action)
        if step.valid.all():  # else it was a reset
            step_s = min(step_s, time.perf_counter() - start)
        if step.crashes:
            return found
        if step.terminated.any():
            return replace(found, terminates=True, step_s=step_s)
    return replace(found, terminates=False, step_s=step_s)


def sample_apart(spec: EnvSpec, timeout_s: float, looks: Looks = only_spaces) -> Sample:
    """As `sample`, in a process of its own, which its environment may end. A reset, or the steps, that end it or take longer than
    `timeout_s` count as failed.

    Raises:
        EnvError: it could not be made, ended its process, or took longer than `timeout_s`.
    """
    samples = _sampling(spec, looks)
    copy = Forked(partial(next, samples, None), samples.close, daemon=False)
    found: Sample | None = None
    is_late = False
    try:
        copy.send()
        while more := copy.receive(timeout_s):
            found = more
            copy.send()
    except TimeoutError:
        is_late = True
        problem = f"was not made within {timeout_s:g} s: its constructor hangs? worker_timeout_s is the limit."
    except ForkedLost as lost:
        problem = f"ended its process while it was made ({lost})."
    finally:
        Forked.end([copy], interrupt=is_late)
    if found is None:
        raise EnvError(f"Environment {spec.name!r} {problem}")
    return found


def spaces(spec: EnvSpec) -> tuple[Space, Space]:
    """Find the observation and action space of one environment."""
    vector = sample(spec)
    return vector.observation_space, vector.action_space


def choose_vectorizer(spec: EnvSpec, resolved: Resolved) -> str:
    """Choose the vectoriser that `spec` asks for, or for auto the fastest that fits.

    Raises:
        EnvError: the one asked for cannot step this environment.
    """
    asked, kind, name = spec.vectorizer, resolved.kind, resolved.name
    wrapped = f"action_repeat={spec.action_repeat}" if spec.action_repeat > 1 else "wrappers" if spec.wrappers else ""
    registered = gymnasium.registry[name] if kind in GYM else None
    is_atari = kind == "envpool" or (registered is not None and str(registered.entry_point).startswith("ale_py"))
    own = {"envpool": "envpool", "vector_class": "native"}.get(kind)
    """The only vectoriser for an environment that is a vector itself."""
    can_ale = kind == "ale" and spec.atari is not False
    # ALE's vector entry point preprocesses; it has the vectoriser "ale"
    native = registered.vector_entry_point if registered is not None and kind == "gym" else None
    possible = ["auto", own] if own else ["auto", "sync", "threads", "processes", "async"]
    if can_ale:
        possible.append("ale")
    if native is not None or kind == "function":
        possible.append("native")
    problem = ""
    if spec.atari and not is_atari:
        problem = f"atari=True needs an Atari game such as 'ALE/Pong-v5', but env is {name!r}."
    elif wrapped and (own or asked in ("ale", "native")):
        problem = f"{wrapped} needs Python environments, but {name!r} would step as one vector: leave it out, or take another vectorizer."
    elif asked not in possible:
        problem = f"vectorizer {asked!r} cannot step {name!r}: take {', '.join(possible)}."
    elif asked == "processes" and spec.num_envs > 1 and (spec.num_threads < 2 or not hasattr(os, "fork")):
        problem = "vectorizer 'processes' needs two cores or more (num_cpus_per_worker) and os.fork. Take auto, sync or async."
    if problem:
        raise EnvError(problem)
    if own or wrapped or asked != "auto":
        return own or asked
    if can_ale:
        return "ale"
    return "native" if native is not None and _prefers_native(spec, native) else "auto"


def _prefers_native(spec: EnvSpec, entry: str | Callable[..., object]) -> bool:
    if not all(takes(load(entry), key) for key in spec.env_config):
        return False
    return spec.num_envs >= NATIVE_FROM or not str(entry).startswith("gymnasium.envs.classic_control")
