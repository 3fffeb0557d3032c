"""Agent: an algorithm and an environment, ready to train. Builds the roles on a backend and drives a loop."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from raypid import checkpoint
from raypid.config import ConfigError, overlay
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights, save_policy
from raypid.registry import ALGORITHMS
from raypid.roles.actor import Program
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout
from raypid.run import loops
from raypid.run.assembly import assemble, entry_name, new_run_folder, resolve_config, tuned_settings
from raypid.runtime.learner_group import losses_named
from raypid.types import Weights

EPISODE_WINDOW = 100
"""Training episodes behind episode_reward_mean."""
_LOOPS = {"sync": loops.sync, "async": loops.asynchronous, "replay": loops.replay}

T = TypeVar("T")


class Agent:
    """One training run.

    Args:
        run: name of the algorithm; subclasses such as `raypid.PPO` have it fixed, and may be given `config` in its place.
        config: settings as a mapping; keywords win over it. `DEFAULT_CONFIG` has all of them.
        tuned: begin from the tuned settings for this algorithm and environment (`raypid list tuned`).
        out: the run's folder, for `save` and errors; a default under runs/ when it is needed.
        program: what workers and learner do in place of the algorithm's collecting and learning (`raypid.DistributedAgent`).
        like: the network that it must have, as a checkpoint that will be restored needs it.

    Raises:
        ConfigError: a setting that does not exist or does not fit; ResourceError: more workers or GPUs than there are;
        EnvError: the environment. Nothing has been started then.
    """

    algorithm: ClassVar[str | None] = None

    def __init__(
        self,
        run: str | Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        out: str | Path | None = None,
        tuned: bool = False,
        program: Program | None = None,
        like: NetworkSpec | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(run, Mapping):  # raypid.PPO({...})
            run, config = None, run
        name = run or self.algorithm
        if name is None:
            raise ConfigError(f"Name the algorithm: {', '.join(ALGORITHMS.names())}.")
        self.run = name
        given = {**(config or {}), **settings}
        if tuned:
            given = overlay(tuned_settings(name, given.get("env")), given)
        checked = resolve_config(name, given)
        self.out = Path(out) if out is not None else None
        self.num_saves = self.iteration = self.num_episodes = self.num_updates = 0
        self.time_total_s = 0.0
        self.rewards: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self.lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)
        self._crashes = 0
        self._closed = False
        self.replay_restored = False
        """Whether the last restore brought a replay buffer back."""
        self._replay_at: Path | None = None
        """The newest saved replay buffer of this run."""
        self.program = "" if program is None else entry_name(type(program))
        """"module:Class" of what a user may have overridden."""
        system = assemble(name, checked, program, like)
        self.config, self.network, self.backend = system.config, system.network, system.backend
        self.context, self.callbacks, self.evaluations = system.context, system.callbacks, system.evaluations
        self.notes = system.notes
        """What was changed to make the run fit."""
        self._loop = self._new_loop()

    def _new_loop(self) -> Iterator[loops.Iteration]:
        return _LOOPS[ALGORITHMS.get(self.run).flow](self.context)

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, num_train_steps: int | None = None) -> dict[str, Any]:
        """One iteration, or as many as `num_train_steps` environment steps take; returns the (last) result."""
        self.check_open()
        if num_train_steps is None:
            return self._iterate()
        goal, result = self.context.timesteps + num_train_steps, {}
        while self.context.timesteps < goal:
            result = self._iterate()
        return result

    def _iterate(self) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            with losses_named(self.config.num_learners, "update()"):
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
        before = time.perf_counter()
        played = self.evaluations.turn(self.iteration, self._evaluation_seconds(turn))
        evaluation_s = time.perf_counter() - before
        seconds = time.perf_counter() - start
        self.time_total_s += seconds
        result = self._result(turn, seconds, evaluation_s)
        if played is not None:
            result |= {f"evaluation/{k}": v for k, v in played.summary().items()}
        if self.callbacks is not None:
            self.callbacks.on_iteration(result)
        return result

    def _evaluation_seconds(self, turn: loops.Iteration) -> float | None:
        """How long an evaluation would take whose episodes are those of training, at the pace of the workers."""
        if not self.lengths or not turn.reports:
            return None
        seconds, steps = (
            sum(column) for column in zip(*((r.timing["total"], r.num_steps) for r in turn.reports), strict=True)
        )
        return float(np.mean(self.lengths)) * seconds * self.config.num_envs_per_worker / max(1, steps)

    def _result(self, turn: loops.Iteration, seconds: float, evaluation_s: float) -> dict[str, Any]:
        steps = sum(r.num_steps for r in turn.reports)
        rewards, nan = self.rewards, float("nan")
        share = 1.0 if self.backend.name == "local" else 1.0 / len(self.context.workers)
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
        if self.context.plan is not None:
            result |= {f"lost/{k}": v for k, v in self.context.plan.lost.items()}
            result |= {f"storages/{k}": v for k, v in self.context.plan.storages.items()}
        result |= {"lost/env_crashes": self._crashes, "lost/evaluators": self.evaluations.lost}
        if self.config.parameter_server:
            result |= {f"parameter_server/{k}": v for k, v in self.context.weights.metrics().items()}
            result["lost/parameter_servers"] = self.context.weights.lost
        result |= {
            "timing/env": env,
            "timing/inference": inference,
            "timing/transport": max(0.0, turn.timing["collect"] - total),
            "timing/learner": turn.timing["learner"],
            "timing/evaluation": evaluation_s,
        }
        episodes = [r.episode_metrics for r in turn.reports]
        for name in sorted({n for metrics in episodes for n in metrics}):
            result[f"custom/{name}"] = float(np.mean([v for metrics in episodes for v in metrics.get(name, [])]))
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
        self.check_open()
        seed = self.config.seed if seed is None else seed
        weights = self.get_weights()
        count = num_eval_episodes or self.config.evaluation_num_episodes
        return self.evaluations.evaluator.evaluate(weights, count, seed + self.iteration, explore=explore).summary()

    # -- state -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path | None = None, score: float | None = None) -> Path:
        """Write a checkpoint, whole or not at all; returns its folder. `score` (higher is better) decides what is best."""
        self.check_open()
        parent = Path(folder) if folder is not None else self.default_out() / "checkpoints"
        workers = self.context.workers.call_all(Rollout.state_dict)
        self.num_saves += 1
        in_turn = self.backend.name == "local" or ALGORITHMS.get(self.run).flow == "sync"
        if self.config.exact_resume and in_turn:  # elsewhere runs differ anyway, by who comes first
            self.context.workers.call_all(Rollout.boundary, self.num_saves)
            self._loop = self._new_loop()  # as a resumed run does: it acts with the newest moments
        state = {
            "learner": self._from_learner(Learner.state_dict),
            "workers": {str(i): w for i, w in enumerate(workers)},
            "episodes": {"rewards": np.array(self.rewards), "lengths": np.array(self.lengths, np.int64)},
        }
        manifest = {"algorithm": self.run, "config": self.plain_config(), "counters": self._counters(), "score": score}
        manifest["program"] = self.program
        weights = self.get_weights()
        name = f"checkpoint_{self.iteration:06d}"

        def more(place: Path) -> None:
            self.write_policy(place / "policy", weights)
            if self.context.replay is not None and self.config.save_replay:
                self.context.replay.source.save(place / checkpoint.REPLAY, self._replay_at)

        path = checkpoint.save_checkpoint(parent, name, state, manifest=manifest, extra_writer=more)
        if (
            self.context.replay is not None and self.config.save_replay
        ):  # the buffer is large: it stays with the newest checkpoint only
            if (
                self._replay_at is not None
                and self._replay_at.parent != path
                and self._replay_at.parent.parent == parent
            ):
                shutil.rmtree(self._replay_at, ignore_errors=True)
            self._replay_at = path / checkpoint.REPLAY
        return path

    def get_weights(self) -> Weights:
        """A copy of the current weights, with the normaliser's moments."""
        return self._from_learner(Learner.weights)

    def _from_learner(self, method: Callable[[Learner], T]) -> T:
        with losses_named(self.config.num_learners, f"{method.__name__}()"):
            return self.backend.get(self.context.learner.submit(method))

    def set_weights(self, weights: Weights) -> None:
        """Go on from these weights, and their moments.

        Raises:
            ConfigError: they belong to another network.
        """
        self.check_open()
        self.context.workers.drop()  # what is being collected belongs to others
        self.backend.get(self.context.learner.submit(Learner.set_weights, weights))
        self._loop = self._new_loop()

    def write_policy(self, folder: Path, weights: Weights | None = None, info: Mapping[str, Any] | None = None) -> None:
        """Write the current policy (or the one of `weights`) as a folder for `load_policy`; `info` goes along with it."""
        weights = weights if weights is not None else self.get_weights()
        c = self.config
        env = {
            "env": entry_name(c.env), "env_config": dict(c.env_config), "vectorizer": c.vectorizer, "time_limit": c.time_limit,
            "action_repeat": c.action_repeat, "atari": c.atari,
        }  # fmt: skip
        about = {"algorithm": self.run, "env": env, "timesteps_total": self.context.timesteps, "score": None}
        save_policy(folder, self.network, weights, {**about, "weights_version": weights.version, **(info or {})})

    def _counters(self) -> dict[str, Any]:
        names = ("iteration", "num_episodes", "num_updates", "time_total_s", "num_saves")
        counters = {"timesteps_total": self.context.timesteps, **{n: getattr(self, n) for n in names}}
        return counters if self.context.replay is None else {**counters, "owed_updates": self.context.replay.owed}

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint, a run's folder (its newest checkpoint) or a checkpoints folder. This agent's settings hold.

        Raises:
            CheckpointError: nothing there, damaged, or of a newer format. ConfigError: it belongs to another network.
        """
        self.check_open()
        folder = checkpoint.find(Path(path))
        state, manifest = checkpoint.load_checkpoint(folder)
        if manifest["algorithm"] != self.run:
            raise ConfigError(f"{path} is a checkpoint of {manifest['algorithm']}, this agent runs {self.run}.")
        self.evaluations.close()  # what is being evaluated belongs to before
        self.context.workers.drop()  # and so does what is being collected
        self.backend.get(self.context.learner.submit(Learner.load_state_dict, state["learner"]))
        self.context.weights.start(self.context.learner.submit(Learner.weights))
        counters = dict(manifest["counters"])
        self.context.timesteps = int(counters.pop("timesteps_total"))
        self._restore_replay(folder, float(counters.pop("owed_updates", 0.0)))
        for name, value in counters.items():
            setattr(self, name, value)
        self.rewards.clear()
        self.lengths.clear()
        self.rewards.extend(state["episodes"]["rewards"].tolist())
        self.lengths.extend(state["episodes"]["lengths"].tolist())
        for i, handle in enumerate(self.context.workers.handles):
            if str(i) in state["workers"]:
                self.backend.get(handle.submit(Rollout.load_state_dict, state["workers"][str(i)]))
        self.context.workers.call_all(Rollout.boundary, self.num_saves)
        self._loop = self._new_loop()

    def _restore_replay(self, folder: Path, owed: float) -> None:
        """Fill the replay buffer from a checkpoint; where it has none (an older one), it fills anew."""
        if self.context.replay is None:
            return
        self.context.replay.owed = owed
        self.context.replay.filled = False
        saved, source = folder / checkpoint.REPLAY, self.context.replay.source
        if saved.is_dir():
            source.load(saved)
            self._replay_at, self.replay_restored = saved, True
            return
        source.clear()
        self._replay_at, self.context.replay.owed = None, 0.0
        self.notes.append(f"{folder} has no replay buffer: it fills anew before learning goes on")

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
        program = manifest.get("program", "")
        if program and not program.startswith("raypid."):
            raise ConfigError(
                f"{path} was trained by {program}, whose run and update are its own: build one in Python, call restore({str(path)!r}) "
                "and then train."
            )
        like = read_policy_weights(folder / "policy")[0]
        saved = {**manifest["config"], "init_from": None}  # that was where it began
        agent = cls(manifest["algorithm"], overlay(saved, {**(config or {}), **settings}), out=out, like=like)
        try:
            agent.restore(folder)
        except BaseException:
            agent.close()
            raise
        return agent

    def plain_config(self) -> dict[str, Any]:
        """The settings as JSON: classes and functions by their "module:name"."""
        plain = self.config.to_dict()
        for name in ("env", "evaluation_env", "callbacks", "intrinsic_reward"):
            if plain.get(name) is not None:
                plain[name] = entry_name(plain[name])
        plain["init_from"] = None if plain["init_from"] is None else str(plain["init_from"])
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
            self.evaluations.close()
            self.context.workers.close()
        finally:
            self.backend.shutdown()

    def check_open(self) -> None:
        """Raises:
        RuntimeError: it was closed.
        """
        if self._closed:
            raise RuntimeError(
                "This agent is closed; build a new one (Agent.from_checkpoint, or restore(), goes on from a save)."
            )

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
