"""How one environment, or one vector of them, is made from a spec.

Constructors get env_config as keyword arguments, and worker_index and stream_index where they name them. What has a single
positional parameter gets one dict with all of it (RLlib's style); a class whose parameter is called args gets a Namespace.
"""

from __future__ import annotations

import inspect
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from raypid.envs.adapter import Adapted, parameters, required, takes
from raypid.envs.closing import end_by_parent
from raypid.envs.env_spec import EnvSpec
from raypid.envs.errors import HEAD, EnvError, is_users, reraise_ours, user_traceback
from raypid.envs.foreign import refuse
from raypid.envs.gym_vector import AnyVector, GymVector, close_vector
from raypid.envs.ids import brought_by
from raypid.envs.python_vector import PythonVector
from raypid.envs.quiet import quiet, quiet_mujoco
from raypid.envs.resolve import GYM, Resolved, resolve
from raypid.envs.vector import PythonEnv
from raypid.envs.wrappers import ActionRepeat, InProcess
from raypid.plugins.arguments import arguments
from raypid.spaces import SpaceError

CONFIG_NAMES = ("config", "env_config", "cfg")


class EnvConfig(dict[str, Any]):
    """env_config as one dict. Which environment it is for lies beside: `config["worker_index"]` and `config.worker_index`, but
    `**config` has env_config alone."""

    def __init__(self, values: Mapping[str, object], indices: Mapping[str, object]) -> None:
        super().__init__(values)
        vars(self).update(indices)

    def __missing__(self, key: str) -> object:
        return vars(self)[key]

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, vars(self).get(key, default))


ATARI_TASK = {"stack_num": 1, "reward_clip": False, "episodic_life": False}
"""EnvPool's Atari: single frames and raw rewards; stacking and clipping happen in the learner's pipeline."""


def make_env(spec: EnvSpec, resolved: Resolved, stream: int) -> PythonEnv:
    """Make one Python environment with its wrappers, for stream `stream`.

    Raises:
        EnvError: its constructor raised, or did not return an environment.
    """
    with quiet(), _making(resolved.name):
        quiet_mujoco()
        made = _make_gym(spec, resolved, stream) if resolved.kind in GYM else call(resolved.creator, spec, stream)
        env = wrap(made, spec, resolved)
        quiet_mujoco()
    return env


def wrap(env: Any, spec: EnvSpec, resolved: Resolved) -> PythonEnv:
    """Check that `env` is an environment; put the spec's wrappers around it."""
    refuse(env, resolved.name)
    missing = [n for n in ("reset", "step", "observation_space", "action_space") if not hasattr(env, n)]
    if missing or isinstance(env, gymnasium.vector.VectorEnv):
        lacking = f" without {', '.join(missing)}" if missing else ""
        raise EnvError(
            f"Environment {resolved.name!r} gave an object of type {type(env).__name__}{lacking}; "
            "it must give a gymnasium.Env, an object with these, or (vectorizer auto or native) a gymnasium.vector.VectorEnv."
        )
    if not isinstance(env, gymnasium.Env) or not takes(env.reset, "seed"):
        env = Adapted(env)
    if spec.time_limit is not None and (resolved.kind not in GYM or _with_atari(spec, resolved)):
        env = gymnasium.wrappers.TimeLimit(env, spec.time_limit)
    if spec.action_repeat > 1:
        env = ActionRepeat(env, spec.action_repeat)
    for wrapper in spec.wrappers:
        env = wrapper(env)
    return env


def call(target: Callable[..., Any], spec: EnvSpec, stream: int, **more: object) -> Any:
    """Call a class or function in the style that its signature shows, with those of `more` and of `spec.args` that it names.

    A class whose one parameter without a default is called `args` gets a Namespace; anything else with one positional parameter
    without a default, whatever its name, gets an EnvConfig; all others get keywords.
    """
    names = parameters(target)
    indices = {"worker_index": spec.worker_index, "stream_index": stream, **more}
    offered = {**indices, **spec.args}
    needed = required(target)
    single = needed[0] if len(needed) == 1 else None
    if single is not None and single.name == "args" and inspect.isclass(target):
        args = arguments(target, target.__qualname__, "env_config", spec.env_config, offered)
        made: Any = target
        return made(args)
    name = single.name if single is not None else next(iter(names), "")
    is_dict = (single is not None and name not in offered) or (len(names) == 1 and name in CONFIG_NAMES)
    if is_dict and name not in spec.env_config:
        return target(EnvConfig(spec.env_config, indices))
    return target(**_with_named(offered, target, spec))


def _with_named(offered: Mapping[str, object], target: Callable[..., Any], spec: EnvSpec) -> dict[str, Any]:
    """What is `offered` and `target` names as a parameter, below env_config."""
    names = parameters(target)
    return {**{k: v for k, v in offered.items() if k in names}, **spec.env_config}


def load(entry: str | Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a Gymnasium entry point: a callable, or "module:name" to import."""
    assert entry is not None
    return registration.load_env_creator(entry) if isinstance(entry, str) else entry


def vectorize(spec: EnvSpec, resolved: Resolved, vectorizer: str) -> PythonVector | GymVector:
    """Make the vector that `vectorizer` names ("auto": a loop that may turn to threads)."""
    with quiet(), _making(resolved.name):
        own = {"async": _async_vector, "envpool": _envpool_vector, "ale": _ale_vector}.get(vectorizer)
        if own is not None:
            return own(spec, resolved)
        first = None
        if resolved.kind == "function":  # only a call shows what it makes: one environment, or a whole vector
            made = call(resolved.creator, spec, 0, num_envs=spec.num_envs)
            if isinstance(made, gymnasium.vector.VectorEnv):
                return _made_vector(spec, resolved, vectorizer, made)
            if vectorizer == "native":
                raise EnvError(f"vectorizer native: {resolved.name!r} gave a {type(made).__name__}: take auto or sync.")
            first = wrap(made, spec, resolved)
        elif vectorizer == "native":
            return _native_vector(spec, resolved)
        return PythonVector(spec, resolved.name, partial(make_env, spec, resolved), vectorizer, first)


@contextmanager
def _making(name: str) -> Iterator[None]:
    """Say of which environment an error of its constructor is."""
    try:
        yield
    except SpaceError as error:
        raise EnvError(f"Environment {name}: {error}") from None
    except BaseException as error:
        reraise_ours(error)
        theirs = f"{HEAD}{user_traceback()}\nraypid: " if is_users(error) else ""
        raise EnvError(f"{theirs}Environment {name!r} could not be made: {type(error).__name__}: {error}") from error


def _make_gym(spec: EnvSpec, resolved: Resolved, stream: int) -> object:
    creator = load(gymnasium.registry[resolved.name].entry_point)
    # the entry point has imported mujoco by now, if it needs it
    quiet_mujoco()
    config = _with_named({"worker_index": spec.worker_index, "stream_index": stream}, creator, spec)
    # AtariPreprocessing skips frames itself
    config |= {"frameskip": 1} if _with_atari(spec, resolved) else _limit(spec)
    env: gymnasium.Env[object, object] = gymnasium.make(resolved.name, disable_env_checker=True, **config)
    package = brought_by(resolved.name)
    if package and package.left_out and isinstance(env.observation_space, gymnasium.spaces.Dict):
        kept = [key for key in env.observation_space if key not in package.left_out]
        env = gymnasium.wrappers.FilterObservation(env, kept)
    if _with_atari(spec, resolved):
        env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    return env


def _limit(spec: EnvSpec) -> dict[str, int]:
    """The argument that sets the time limit of an environment or a vector, if one is asked for."""
    return {} if spec.time_limit is None else {"max_episode_steps": spec.time_limit}


def _with_atari(spec: EnvSpec, resolved: Resolved) -> bool:
    return resolved.kind == "ale" if spec.atari is None else spec.atari


def _native_vector(spec: EnvSpec, resolved: Resolved) -> GymVector:
    own = resolved.kind == "vector_class"
    creator = resolved.creator if own else load(gymnasium.registry[resolved.name].vector_entry_point)
    offered = {"autoreset_mode": AutoresetMode.NEXT_STEP, "worker_index": spec.worker_index}
    config = {**_with_named(offered, creator, spec), **_limit(spec)}
    make = creator if own else partial(gymnasium.make_vec, resolved.name, vectorization_mode="vector_entry_point")
    return GymVector(spec, resolved.name, "native", partial(make, num_envs=spec.num_envs, **config))


def _made_vector(spec: EnvSpec, resolved: Resolved, vectorizer: str, env: AnyVector) -> GymVector:
    """The vector that a function has made, which it will make again where that one raises."""
    needs_single = vectorizer not in ("auto", "native") or spec.action_repeat > 1 or spec.wrappers
    if needs_single or spec.time_limit is not None or env.num_envs != spec.num_envs:
        close_vector(env)
        raise EnvError(
            f"Environment {resolved.name!r} gave a vector of {env.num_envs} environments, where num_envs is {spec.num_envs} (a parameter "
            "num_envs would receive it). A vector takes vectorizer auto or native, and neither action_repeat, wrappers nor time_limit."
        )
    seeding = list if isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) else itemgetter(0)
    again = partial(call, resolved.creator, spec, 0, num_envs=spec.num_envs)
    return GymVector(spec, resolved.name, "native", again, seeding=seeding, first=env)


def _ale_vector(spec: EnvSpec, resolved: Resolved) -> GymVector:
    from ale_py.vector_env import AtariVectorEnv

    config = {
        **gymnasium.registry[resolved.name].kwargs,
        "stack_num": 1,
        "reward_clipping": False,
        "num_threads": min(spec.num_threads, spec.num_envs),
        "autoreset_mode": AutoresetMode.NEXT_STEP,
        **spec.env_config,
    }
    if spec.time_limit is not None:
        config["max_num_frames_per_episode"] = spec.time_limit * config["frameskip"]

    make = partial(AtariVectorEnv, num_envs=spec.num_envs, **config)
    seeding = partial(np.array, dtype=np.int32)
    return GymVector(spec, resolved.name, "ale", make, seeding=seeding, unstack=config["stack_num"] == 1)


def is_envpool_atari(resolved: Resolved) -> bool:
    """Whether EnvPool has this environment among its Atari games."""
    from envpool.registration import registry

    return str(registry.specs[resolved.name.partition(":")[2]][0]).startswith("envpool.atari")


def _envpool_vector(spec: EnvSpec, resolved: Resolved) -> GymVector:
    import envpool

    task = resolved.name.partition(":")[2]
    atari = is_envpool_atari(resolved)
    config: dict[str, Any] = {"num_threads": min(spec.num_threads, spec.num_envs)}
    config |= {**(ATARI_TASK if atari else {}), **spec.env_config, **_limit(spec)}
    make: Callable[..., Any] = partial(envpool.make_gymnasium, task, num_envs=spec.num_envs, **config)
    unstack = atari and config.get("stack_num") == 1 and config.get("gray_scale", True)
    return GymVector(spec, resolved.name, "envpool", make, seeding=None, unstack=unstack)


class ProcessVector(AsyncVectorEnv):
    """An AsyncVectorEnv that prints nothing of an error, and raises what the first of its environments raised."""

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        errors = sorted((self.error_queue.get() for success in successes if not success), key=itemgetter(0))
        for stream, *_ in errors:
            self.parent_pipes[stream].close()
        for stream, _, error, *_ in errors:
            self._state = AsyncState.DEFAULT
            error.row = stream
            raise error


def _make_in_process(spec: EnvSpec, resolved: Resolved, stream: int) -> PythonEnv:
    if multiprocessing.current_process().daemon:  # one of the vector's processes
        end_by_parent()
    return InProcess(make_env(spec, resolved, stream))


def _async_vector(spec: EnvSpec, resolved: Resolved) -> GymVector:
    makers = [partial(_make_in_process, spec, resolved, stream) for stream in range(spec.num_envs)]
    make = partial(ProcessVector, makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    return GymVector(spec, resolved.name, "async", make, seeding=list)


# -- a vector that was given whole: how each worker makes environments of its own ---------------------------------------


def settings_of(env: object, env_config: Mapping[str, object], num_workers: int = 1) -> dict[str, object]:
    """Find the settings that make what `env` is or names: `env`, and of a vector also `num_envs_per_worker` and `env_config`.

    Args:
        env: what `resolve` accepts, a gymnasium.vector.VectorEnv, whose streams are shared out among the workers, or a function that
            makes one for each worker.

    Raises:
        EnvError: a vector that cannot be made again; what resolve raises.
    """
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _settings_of_vector(env, math.ceil(env.num_envs / num_workers))
    resolved = resolve(env)
    if resolved.kind != "function" or "num_envs" in parameters(resolved.creator):
        return {"env": env}
    # only a call shows whether the function makes one environment or a vector
    made = call(resolved.creator, EnvSpec(env=env, env_config=env_config), 0)
    try:
        is_vector = isinstance(made, gymnasium.vector.VectorEnv)
        return _settings_of_vector(made, made.num_envs) if is_vector else {"env": env}
    finally:
        close_vector(made)


def _settings_of_vector(vector: gymnasium.vector.VectorEnv[Any, Any, Any], num_envs: int) -> dict[str, object]:
    """The settings with which each worker makes `num_envs` environments like those of a vector."""
    if isinstance(vector, (SyncVectorEnv, AsyncVectorEnv)):
        makers = tuple(vector.env_fns)

        def make(stream_index: int) -> object:
            return makers[stream_index % len(makers)]()

        make.__name__ = make.__qualname__ = vector.spec.id if vector.spec is not None else "vector"
        return {"env": make, "num_envs_per_worker": num_envs}
    if vector.unwrapped is vector and vector.spec is not None:
        made_with = {k: v for k, v in vector.spec.kwargs.items() if k not in ("num_envs", "vectorization_mode")}
        found = {"env": vector.spec.id, "num_envs_per_worker": num_envs}
        return {**found, "env_config": made_with} if made_with else found
    raise EnvError(
        f"A {type(vector).__name__} does not say how it was made: give a function with a parameter num_envs that makes one in each worker."
    )
