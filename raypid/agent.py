"""Agent: an algorithm and an environment, ready to train. Builds the roles on a backend and drives a loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raypid import checkpoint, loops
from raypid.callbacks import Callbacks
from raypid.config import Config, ConfigError
from raypid.envs import EnvSpec, portable, spaces
from raypid.nn.catalog import build_spec
from raypid.nn.policy import read_policy_weights, save_policy
from raypid.nn.spec import NetworkSpec
from raypid.registry import ALGORITHMS, NETWORKS, import_string
from raypid.roles.evaluator import Evaluation, Evaluator
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout, RolloutSpec
from raypid.runtime.local import LocalBackend
from raypid.runtime.resources import Has, Needs, limit_threads, num_cores, preflight
from raypid.runtime.supervisor import WorkerGroup
from raypid.types import Weights

EPISODE_WINDOW = 100
"""Training episodes behind episode_reward_mean."""
_LOOPS = {"sync": loops.sync}


class Agent:
    """One training run.

    Args:
        run: name of the algorithm; subclasses such as `raypid.PPO` have it fixed.
        config: settings as a mapping; keywords win over it. `DEFAULT_CONFIG` has all of them.
        out: the run's folder, for `save` and errors; a default under runs/ when it is needed.

    Raises:
        ConfigError: a setting that does not exist or does not fit; ResourceError: more workers or GPUs than there are;
        EnvError: the environment. Nothing has been started then.
    """

    algorithm: ClassVar[str | None] = None

    def __init__(
        self,
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        out: str | Path | None = None,
        **settings: Any,
    ) -> None:
        name = run or self.algorithm
        if name is None:
            raise ConfigError(f"Name the algorithm: {', '.join(ALGORITHMS.names())}.")
        self.run = name
        self.config = resolve_config(name, {**(config or {}), **settings})
        self.notes: list[str] = []
        """What was changed to make the run fit."""
        self.out = Path(out) if out is not None else None
        self.num_saves = self.iteration = self.num_episodes = self.num_updates = 0
        self.time_total_s = 0.0
        self.rewards: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self.lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)
        self.last_evaluation: Evaluation | None = None
        self.auto_evaluate = False
        """Without an evaluation_interval, evaluate whenever that takes less than a tenth of the time."""
        self._evaluated_at = time.perf_counter()
        self._crashes = 0
        self._closed = False
        self._build()

    # -- building --------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        c = self.config
        env_spec = env_spec_of(c)
        observation_space, action_space = spaces(env_spec)
        self.network = build_spec(
            observation_space, action_space, c.model, frame_stack=c.frame_stack, normalize=c.normalize_observations
        )
        use_ray = c.backend == "ray" or (c.backend == "auto" and c.num_workers > 0)
        backend = self._ray_backend() if use_ray else LocalBackend()
        limit_threads(1)  # BLAS serves small matrices here; torch has threads of its own
        networks = (
            {}
            if self.network.network in ("mlp", "cnn", "resnet")
            else {self.network.network: NETWORKS.get(self.network.network)}
        )
        spec = RolloutSpec(
            env=env_spec, network=self.network, fragment_length=c.fragment_length, seed=c.seed, observation_noise=c.observation_noise,
            action_noise=c.action_noise, max_crashes=c.max_restarts, callbacks=_callbacks(c.callbacks), networks=networks,
        )  # fmt: skip
        self.callbacks = spec.callbacks
        self.backend = backend
        try:
            workers = WorkerGroup(
                backend, lambda index, restarts: partial(Rollout, spec, index, restarts), max(1, c.num_workers),
                num_cpus=c.num_cpus_per_worker, timeout_s=c.worker_timeout_s, max_restarts=c.max_restarts, describe=str(env_name(c.env)),
            )  # fmt: skip
            build = partial(Learner, self.run, c, self.network, c.seed, networks)
            self._evaluator = Evaluator(spec)
            if use_ray and c.num_learners:
                learner: Any = backend.spawn(build, num_cpus=1, num_gpus=c.num_gpus)
            elif use_ray:
                learner = backend.here(build)  # type: ignore[union-attr]
            else:
                learner = backend.spawn(build)
            self.context = loops.Context(backend, workers, learner)
            backend.get(learner.submit("weights"))  # errors of the learner appear here
            self._set_learner_threads()
            if c.init_from:
                _, weights, _ = read_policy_weights(checkpoint.find_policy(Path(c.init_from)))
                backend.get(learner.submit("set_weights", weights))
        except BaseException:
            backend.shutdown()
            raise
        self._loop = self._new_loop()

    def _new_loop(self) -> Iterator[loops.Iteration]:
        return _LOOPS[ALGORITHMS.get(self.run).flow](self.context)

    def _ray_backend(self) -> Any:
        c = self.config
        if c.address is None:
            self._preflight(Has.here(c.num_cpus))
        from raypid.runtime.ray import RayBackend

        gpus = c.num_gpus if c.address is None else None
        backend = RayBackend(
            c.address, c.num_cpus if c.num_cpus else (num_cores() if c.address is None else None), gpus
        )
        if c.address is not None:
            there = backend.resources()
            memory = there.get("memory", np.inf)
            has = Has(
                cpus=there.get("CPU", 0),
                gpus=there.get("GPU", 0),
                memory=memory,
                shared_memory=np.inf,
                place="the cluster",
            )
            try:
                self._preflight(has)
            except BaseException:
                backend.shutdown()
                raise
        return backend

    def _preflight(self, has: Has) -> None:
        c = self.config
        frame = sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in self.network.pipeline.leaves)
        needs = Needs(
            num_workers=c.num_workers,
            num_cpus_per_worker=c.num_cpus_per_worker,
            learner_cpus=1.0 if c.num_learners else 0.0,
            num_gpus=c.num_gpus,
            worker_bytes=(100 if self.network.torch_free else 400) * 2**20,
            fragment_bytes=(frame + 64) * c.fragment_length * c.num_envs_per_worker,
        )
        changes, self.notes = preflight(needs, has, fit=c.fit)
        self.config = c.replace(changes)

    def _set_learner_threads(self) -> None:
        import sys

        torch = sys.modules.get("torch")
        if torch is not None and not self.config.num_learners:
            torch.set_num_threads(self.config.num_threads or num_cores())

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, num_train_steps: int | None = None) -> dict[str, Any]:
        """One iteration, or as many as `num_train_steps` environment steps take; returns the (last) result."""
        self._check_open()
        if num_train_steps is None:
            return self._iterate()
        goal, result = self.context.timesteps + num_train_steps, {}
        while self.context.timesteps < goal:
            result = self._iterate()
        return result

    def _iterate(self) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            turn = next(self._loop)
        except BaseException:
            self._loop = self._new_loop()  # a generator that raised is spent; after a mended cause one may go on
            raise
        self.iteration += 1
        self.num_updates += turn.update.num_updates
        for report in turn.reports:
            self.rewards.extend(report.episode_rewards)
            self.lengths.extend(report.episode_lengths)
            self.num_episodes += len(report.episode_rewards)
            self._write_crashes(report.crashes, report.worker_index)
            self._crashes += len(report.crashes)
        evaluation: dict[str, Any] = {}
        before = time.perf_counter()
        if self._evaluation_is_due():
            evaluation = self.eval()
            self._evaluated_at = time.perf_counter()
        evaluation_s = time.perf_counter() - before
        seconds = time.perf_counter() - start
        self.time_total_s += seconds
        result = self._result(turn, seconds, evaluation_s)
        result |= {f"evaluation/{k}": v for k, v in evaluation.items()}
        if self.callbacks is not None:
            self.callbacks.on_iteration(result)
        return result

    def _evaluation_is_due(self) -> bool:
        if self.config.evaluation_interval is not None:
            return self.config.evaluation_interval > 0 and self.iteration % self.config.evaluation_interval == 0
        last = 0.02 if self.last_evaluation is None else self.last_evaluation.seconds
        return self.auto_evaluate and time.perf_counter() - self._evaluated_at > 10 * last

    def _result(self, turn: loops.Iteration, seconds: float, evaluation_s: float) -> dict[str, Any]:
        steps = sum(r.num_steps for r in turn.reports)
        rewards, nan = self.rewards, float("nan")
        share = 1.0 if self.backend.name == "local" else 1.0 / len(turn.reports)
        env, inference, total = (share * sum(r.timing[k] for r in turn.reports) for k in ("env", "inference", "total"))
        result: dict[str, Any] = {
            "training_iteration": self.iteration,
            "timesteps_total": self.context.timesteps,
            "episodes_total": self.num_episodes,
            "episode_reward_mean": float(np.mean(rewards)) if rewards else nan,
            "episode_reward_min": min(rewards) if rewards else nan,
            "episode_reward_max": max(rewards) if rewards else nan,
            "episode_len_mean": float(np.mean(self.lengths)) if self.lengths else nan,
            "time_this_iter_s": seconds,
            "time_total_s": self.time_total_s,
            "env_steps_per_s": steps / max(seconds - evaluation_s, 1e-9),
            "learner_updates_total": self.num_updates,
        }
        result |= {f"learner/{k}": v for k, v in turn.update.metrics.items()}
        result |= {f"lost/{k}": v for k, v in self.context.workers.lost.items()}
        result["lost/env_crashes"] = self._crashes
        result |= {
            "timing/env": env,
            "timing/inference": inference,
            "timing/transport": max(0.0, turn.timing["collect"] - total),
            "timing/learner": turn.timing["learner"],
            "timing/evaluation": evaluation_s,
        }
        episodes = [r.episode_metrics for r in turn.reports]
        for name in sorted({n for metrics in episodes for n in metrics}):
            result[name] = float(np.mean([v for metrics in episodes for v in metrics.get(name, [])]))
        return result

    def _write_crashes(self, crashes: list[str], worker_index: int) -> None:
        if crashes and self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            with (self.out / "errors.txt").open("a") as errors:
                for crash in crashes:
                    errors.write(f"An environment of worker {worker_index} raised and was rebuilt:\n{crash}\n")

    def eval(
        self, num_eval_episodes: int | None = None, *, explore: bool = False, seed: int | None = None
    ) -> dict[str, float]:
        """Play whole episodes with the current weights, greedily unless `explore`; normalisers stay as they are.

        Returns episode_reward_mean, episode_reward_ci95 (half width of the 95% interval), and more (`Evaluation.summary`).
        """
        self._check_open()
        seed = self.config.seed if seed is None else seed
        weights = self.get_weights()
        count = num_eval_episodes or self.config.evaluation_num_episodes
        self.last_evaluation = self._evaluator.evaluate(weights, count, seed + self.iteration, explore=explore)
        return self.last_evaluation.summary()

    # -- state -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path | None = None, score: float | None = None) -> Path:
        """Write a checkpoint, whole or not at all; returns its folder. `score` (higher is better) decides what is best."""
        self._check_open()
        parent = Path(folder) if folder is not None else self.default_out() / "checkpoints"
        workers = self.context.workers.call_all("state_dict")
        self.num_saves += 1
        if self.config.exact_resume:
            self.context.workers.call_all("boundary", self.num_saves)
        state = {
            "learner": self.backend.get(self.context.learner.submit("state_dict")),
            "workers": {str(i): w for i, w in enumerate(workers)},
            "episodes": {"rewards": np.array(self.rewards), "lengths": np.array(self.lengths, np.int64)},
        }
        manifest = {"algorithm": self.run, "config": self.plain_config(), "counters": self._counters(), "score": score}
        weights = self.get_weights()
        return checkpoint.save_checkpoint(
            parent,
            f"checkpoint_{self.iteration:06d}",
            state,
            manifest=manifest,
            extra_writer=lambda place: self.write_policy(place / "policy", weights),
        )

    def get_weights(self) -> Weights:
        """A copy of the current weights, with the normaliser's moments."""
        weights: Weights = self.backend.get(self.context.learner.submit("weights"))
        return weights

    def write_policy(self, folder: Path, weights: Weights | None = None) -> None:
        """Write the current policy (or the one of `weights`) as a folder for `load_policy`."""
        weights = weights if weights is not None else self.get_weights()
        c = self.config
        env = {
            "env": env_name(c.env), "env_config": dict(c.env_config), "vectorizer": c.vectorizer, "time_limit": c.time_limit,
            "action_repeat": c.action_repeat, "atari": c.atari,
        }  # fmt: skip
        info = {"algorithm": self.run, "env": env, "timesteps_total": self.context.timesteps}
        save_policy(folder, self.network, weights, info)

    def _counters(self) -> dict[str, Any]:
        names = ("iteration", "num_episodes", "num_updates", "time_total_s", "num_saves")
        return {"timesteps_total": self.context.timesteps, **{n: getattr(self, n) for n in names}}

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint, a run's folder (its newest checkpoint) or a checkpoints folder. This agent's settings hold.

        Raises:
            CheckpointError: nothing there, damaged, or of a newer format. ConfigError: it belongs to another network.
        """
        self._check_open()
        state, manifest = checkpoint.load_checkpoint(checkpoint.find(Path(path)))
        if manifest["algorithm"] != self.run:
            raise ConfigError(f"{path} is a checkpoint of {manifest['algorithm']}, this agent runs {self.run}.")
        self.backend.get(self.context.learner.submit("load_state_dict", state["learner"]))
        counters = dict(manifest["counters"])
        self.context.timesteps = int(counters.pop("timesteps_total"))
        for name, value in counters.items():
            setattr(self, name, value)
        self.rewards.extend(state["episodes"]["rewards"].tolist())
        self.lengths.extend(state["episodes"]["lengths"].tolist())
        for i, handle in enumerate(self.context.workers.handles):
            if str(i) in state["workers"]:
                self.backend.get(handle.submit("load_state_dict", state["workers"][str(i)]))
        self.context.workers.call_all("boundary", self.num_saves)
        self._loop = self._new_loop()

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        config: Mapping[str, Any] | None = None,
        *,
        out: str | Path | None = None,
        **settings: Any,
    ) -> Agent:
        """The agent that wrote a checkpoint, with its settings; those given here win over them."""
        folder = checkpoint.find(Path(path))
        _, manifest = checkpoint.load_checkpoint(folder)
        agent = cls(manifest["algorithm"], {**manifest["config"], **(config or {}), **settings}, out=out)
        agent.restore(folder)
        return agent

    def plain_config(self) -> dict[str, Any]:
        """The settings as JSON: classes and functions by their "module:name"."""
        plain = self.config.to_dict()
        plain["env"] = env_name(plain["env"])
        plain["callbacks"] = None if plain["callbacks"] is None else _entry_name(plain["callbacks"])
        return plain

    def default_out(self) -> Path:
        """The run's folder; the first call chooses one under runs/ if none was given."""
        if self.out is None:
            self.out = new_run_folder(self.run, self.config)
        return self.out

    def close(self) -> None:
        """End workers, environments and, where this agent started it, Ray."""
        if self._closed:
            return
        self._closed = True
        try:
            self._evaluator.close()
            self.context.workers.close()
        finally:
            self.backend.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("This agent is closed; build a new one (Agent.from_checkpoint goes on from a save).")

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# -- what an agent is built from -----------------------------------------------------------------------------------


def resolve_config(run: str, settings: Mapping[str, Any]) -> Any:
    """The algorithm's Config with `settings` over its defaults, checked; a seed is drawn where none is given.

    Raises:
        ConfigError: what does not exist or does not fit.
    """
    config: Config = ALGORITHMS.get(run).Config().replace(settings)
    if config.env is None:
        raise ConfigError('Name an environment: env="CartPole-v1" (`raypid list envs` shows what there is).')
    if config.seed is None:
        config.seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
    config.validate()
    return config


def env_spec_of(c: Config) -> EnvSpec:
    """The environment part of a Config. What is registered in this process alone is put in whole, for the workers."""
    return EnvSpec(
        env=portable(c.env),
        num_threads=1 if c.num_workers else num_cores(),
        env_config=dict(c.env_config),
        vectorizer=c.vectorizer,
        num_envs=c.num_envs_per_worker,
        time_limit=c.time_limit,
        action_repeat=c.action_repeat,
        atari=c.atari,
        seed=c.seed or 0,
    )


def env_name(env: Any) -> str:
    """An environment's id, or its "module:name"."""
    return env if isinstance(env, str) else _entry_name(env)


def _entry_name(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}:{named.__qualname__}"


def _callbacks(entry: Any) -> Callbacks | None:
    if isinstance(entry, str):
        entry = import_string(entry)
    if isinstance(entry, type):
        entry = entry()
    if entry is not None and not isinstance(entry, Callbacks):
        raise ConfigError(f"callbacks takes a raypid.Callbacks subclass, its instance or 'module:Name', not {entry!r}.")
    return entry


def new_run_folder(run: str, config: Config) -> Path:
    """A folder under runs/ that does not exist yet."""
    safe = env_name(config.env).replace("/", "-").replace(":", "-")
    base = f"{run}_{safe}_seed{config.seed}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (base if i == 0 else f"{base}-{i}") for i in range(1000))
    return next(p for p in names if not p.exists())


__all__ = ["Agent", "NetworkSpec", "env_name", "new_run_folder", "resolve_config"]
