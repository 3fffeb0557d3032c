"""Agent: an algorithm and an environment, ready to train. Builds the roles on a backend and runs a training loop."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from raypid import checkpoint
from raypid.config import ConfigError, overlay, renamed
from raypid.errors import Diverged, Halted, shown
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights, save_policy
from raypid.outputs import ErrorFile
from raypid.phases import phase
from raypid.registry import ALGORITHMS, Registries, get_registry
from raypid.replay.disk import checksums_in
from raypid.roles.evaluator import Evaluation, Order, cut_note
from raypid.roles.fitness import FitnessRollout
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout
from raypid.run import loops
from raypid.run.assembly import RunProgram, assemble, entry_name, new_run_folder, resolve_config, tuned_settings
from raypid.run.evaluation import Played
from raypid.run.post_mortem import write_post_mortem
from raypid.run.saved import saved_run
from raypid.runtime.learner_group import losses_named
from raypid.runtime.local import LocalHandle
from raypid.types import Array, Report, Weights

T = TypeVar("T")

EPISODE_WINDOW = 100
"""Number of training episodes in episode_reward_mean."""
_LOOPS = {"sync": loops.sync, "async": loops.asynchronous, "replay": loops.replay}


A = TypeVar("A", bound="Agent")


_COUNTERS = ("timesteps_total", "iteration", "num_episodes", "num_updates", "time_total_s", "num_saves")


def _checked(counters: Mapping[str, float]) -> Mapping[str, float]:
    """The counters of a checkpoint. (Larger ones than 2^53 would not be exact as results.)

    Raises:
        ValueError, KeyError: one is missing or cannot be.
    """
    for name in (*_COUNTERS, *({"owed_updates", "rollbacks"} & counters.keys())):
        if not 0 <= counters[name] < 2**53:
            raise ValueError(f"the counter {name!r} is {shown(counters[name])}")
    return counters


def _numbers(array: Array) -> list[float]:
    """The numbers of an array [n] that was saved."""
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f"the returns and lengths of episodes are arrays of numbers, not {array.dtype} {array.shape}")
    numbers: list[float] = array.tolist()
    return numbers


class _DefaultConfig:
    """All settings of an agent's algorithm with their defaults; a new dict whenever it is asked for."""

    def __get__(self, agent: Agent | None, owner: type[Agent]) -> dict[str, object]:
        if owner.algorithm is None:
            raise AttributeError("DEFAULT_CONFIG: an Agent has none before its algorithm is named; raypid.PPO has.")
        return ALGORITHMS.get(owner.algorithm).Config().to_dict()


class Agent:
    """One training run.

    Args:
        run: name of the algorithm. Subclasses such as `raypid.PPO` fix it, and accept `config` in its place.
        config: settings as a mapping; keywords override it. `DEFAULT_CONFIG` has all of them.
        tuned: start from the tuned settings for this algorithm and environment (`raypid list tuned`), or from those that a search has
            saved, given by their name or file.
        out: the run's folder, for `save` and errors. By default one under runs/ is chosen when it is needed.
        below: settings below those given, from a checkpoint. They may be without effect.
        program: replaces the algorithm's collecting and learning (`raypid.DistributedAgent`).
        like: the network that the agent must have, for instance that of a checkpoint that will be restored.
        registry: what `raypid.get_registry()` returns, or nothing: names are looked up in this process in either case.

    Raises:
        ConfigError: a setting that does not exist or does not fit. ResourceError: more workers or GPUs than there are.
            EnvError: the environment cannot be used. Nothing has been started then.
    """

    algorithm: ClassVar[str | None] = None
    DEFAULT_CONFIG = _DefaultConfig()

    def __init__(
        self,
        run: str | Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
        *,
        out: str | Path | None = None,
        tuned: bool | str = False,
        program: RunProgram | None = None,
        like: NetworkSpec | None = None,
        below: Mapping[str, object] | None = None,
        registry: Registries | None = None,
        **settings: object,
    ) -> None:
        if registry is not None and registry is not get_registry():
            raise ConfigError(
                f"registry takes what raypid.get_registry() returns, not {shown(registry)}. Register with raypid.register_env and "
                "its kin; what is registered in this process is found without a registry too."
            )
        if isinstance(run, Mapping):  # raypid.PPO({...})
            run, config = None, run
        name = run or self.algorithm
        if name is None:
            raise ConfigError(f"Name the algorithm: {', '.join(ALGORITHMS.names())}.")
        self.run = name = ALGORITHMS.canonical(name)
        given = overlay(config or {}, settings)
        if tuned:
            below = tuned_settings(name, given.get("env"), tuned)
        checked = resolve_config(name, given, below)
        self.out = Path(out) if out is not None else None
        self.num_saves = self.iteration = self.num_episodes = self.num_updates = 0
        self.time_total_s = 0.0
        self.rewards = deque[float](maxlen=EPISODE_WINDOW)
        self.lengths = deque[int](maxlen=EPISODE_WINDOW)
        self.num_crashes = 0
        """Environments that raised and were rebuilt, evaluations included."""
        self.rollbacks = 0
        """How often the run has gone back to a checkpoint because it diverged. Each time halves the learning rate."""
        self.on_rollback: Callable[[], None] = lambda: None
        """Called after each rollback."""
        self.more_metrics: Callable[[], Mapping[str, float]] = dict
        """What is added to each result."""
        self._last_save: Path | None = None
        """The checkpoint that a rollback goes to."""
        self._closed = False
        self.replay_restored = False
        """Whether the last restore included a replay buffer."""
        self._replay_at: Path | None = None
        """The newest saved replay buffer of this run."""
        self.program = "" if program is None else entry_name(type(program))
        """Class of the program, as "module:Class"; "" without one."""
        system = assemble(name, checked, program, like, given)
        self.config, self.network, self.context = system.config, system.network, system.context
        self.callbacks, self.evaluations = system.callbacks, system.evaluations
        self.backend = system.context.backend
        self.notes = [*system.notes, *renamed(given)]
        """What was changed to make the run fit, and settings that have another name."""
        self._loop = self._new_loop()

    def _new_loop(self) -> Iterator[loops.Iteration]:
        return _LOOPS[ALGORITHMS.get(self.run).flow](self.context)

    @property
    def timesteps(self) -> int:
        """Environment steps so far."""
        return self.context.timesteps

    @property
    def warm_up_steps(self) -> int:
        """Environment steps with random actions before learning starts; 0 once they are over."""
        plan = self.context.replay
        return plan.config.start_steps if plan is not None and self.timesteps < plan.config.start_steps else 0

    @property
    def errors(self) -> ErrorFile:
        """Where the tracebacks go of what was lost."""
        return self.context.workers.errors

    def write_losses_to(self, folder: Path) -> None:
        """Write the tracebacks of workers that are lost to errors.txt in `folder`, which must exist by then."""
        self.errors.folder = folder

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, num_train_steps: int | None = None) -> dict[str, float]:
        """Run one iteration, or as many as `num_train_steps` environment steps take; returns the last one's result.

        Raises:
            Diverged: weights, losses or actions are no longer finite, and on_divergence is stop or max_rollbacks are used up.
            Halted: see `halt_when`.
        """
        self.check_open()
        goal = None if num_train_steps is None else self.timesteps + num_train_steps
        result: dict[str, float] = {}
        while goal is None or self.timesteps < goal:
            if self.config.on_divergence == "rollback" and self._last_save is None:
                self.save()
            start, steps_before = time.perf_counter(), self.timesteps
            try:
                try:
                    with losses_named(self.config.num_learners, "update()"):
                        turn = next(self._loop)
                except BaseException:
                    self._loop = self._new_loop()  # a generator that raised is spent, but the run may go on
                    raise
                result = self._count(turn, start)
            except Halted:
                self.context.timesteps = steps_before
                self.time_total_s += time.perf_counter() - start
                raise
            except Diverged as error:
                self._keep(error)
                if not self._may_roll_back():
                    raise
                self._roll_back()
                continue
            if goal is None:
                break
        return result

    # -- divergence ------------------------------------------------------------------------------------------------

    def _keep(self, error: Diverged) -> None:
        """Complete the error, and write what is needed to look into it, if the run has a folder."""
        if error.kept:
            return
        if error.timesteps is None:
            error.timesteps = self.timesteps
        if self.out is not None:
            about = {"algorithm": self.run, "config": self.plain_config(), "rollbacks": self.rollbacks}
            good = self.backend.get(self.context.weights.newest)
            write_post_mortem(self.out, error, about, lambda place: self.write_policy(place, good))
        if self.rollbacks:
            rates = " and ".join(f"{name} was {rate:.3g}" for name, rate in self.config.learning_rates().items())
            start = f" At the start, {rates}." if rates else ""
            error.kept += f" Rollbacks before: {self.rollbacks}.{start}"

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """For evaluations outside of `train`: count environments that raised, keep what is needed to look into actions that are not
        finite."""
        try:
            yield
            self._take_crashes()
        except Diverged as error:
            self._keep(error)
            raise

    def _may_roll_back(self) -> bool:
        return self.config.on_divergence == "rollback" and self.rollbacks < self.config.max_rollbacks

    def _roll_back(self) -> None:
        """Go back to the newest checkpoint with half the learning rate, and save it anew so that this outlives the process."""
        assert self._last_save is not None
        rollbacks, elapsed_s = self.rollbacks + 1, self.time_total_s
        score = checkpoint.read_manifest(self._last_save).get("score")
        self.restore(self._last_save)
        self.time_total_s = elapsed_s
        self._slow_down(rollbacks)
        self.save(score=score)
        self.on_rollback()

    def _slow_down(self, rollbacks: int) -> None:
        """Learn at the rate that is left after so many rollbacks."""
        if rollbacks != self.rollbacks:
            self.backend.get(self.context.learner.submit(Learner.scale_lr, 0.5**rollbacks))
        self.rollbacks = rollbacks

    def _drop_calls(self) -> None:
        """Drop what workers have under way; of those that acted with diverged weights too."""
        while True:
            with contextlib.suppress(Diverged):
                return self.context.workers.drop()

    def limit_iterations(self, num_steps: int) -> None:
        """End each iteration of an asynchronous algorithm after `num_steps` environment steps at the latest."""
        assert self.context.plan is not None
        self.context.plan.max_steps = num_steps

    def halt_when(self, halted: Callable[[], bool]) -> None:
        """Let `halted` break off iterations that wait for whole episodes, which may never end: `train` then raises Halted."""
        if ALGORITHMS.get(self.run).collect != "fitness":
            return
        self.context.halted = halted
        for handle in self.context.workers.handles:
            if isinstance(handle, LocalHandle) and isinstance(handle.role, FitnessRollout):
                handle.role.halted = halted

    def _count(self, turn: loops.Iteration, start: float) -> dict[str, float]:
        """Count a turn of the loop that began at `start`, evaluate if it is due; returns the iteration's result."""
        self.iteration += 1
        self.num_updates += turn.update.num_updates
        for report in turn.reports:
            self.rewards.extend(report.episode_rewards)
            self.lengths.extend(report.episode_lengths)
            self.num_episodes += len(report.episode_rewards)
            self._write_crashes(report.crashes, f"worker {report.worker_index}")
        before = time.perf_counter()
        try:
            played = self.evaluations.turn(self.iteration, self._evaluation_seconds(turn.reports))
        except Exception:
            self.iteration -= 1  # without a result; a run that goes on from here has it again
            raise
        self._take_crashes()
        evaluation_s = time.perf_counter() - before
        seconds = time.perf_counter() - start
        self.time_total_s += seconds
        result = self._result(turn, seconds, evaluation_s)
        if played is not None:
            result |= {f"evaluation/{k}": v for k, v in played.summary().items()}
        if self.callbacks is not None:
            self.callbacks.on_iteration(result)
        return result

    def _evaluation_seconds(self, reports: list[Report]) -> float | None:
        """Estimated seconds of an evaluation, from the length of training episodes and the workers' speed; None if unknown."""
        if not self.lengths or not reports:
            return None
        seconds, steps = sum(r.timing["total"] for r in reports), sum(r.num_steps for r in reports)
        return float(np.mean(self.lengths)) * seconds * self.config.num_envs_per_worker / max(1, steps)

    def totals(self) -> dict[str, float]:
        """The counts and times of the run so far, as results have them."""
        return {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps,
            "episodes_total": self.num_episodes,
            "learner_updates_total": self.num_updates,
            "time_total_s": self.time_total_s,
        }

    def _result(self, turn: loops.Iteration, seconds: float, evaluation_s: float) -> dict[str, float]:
        steps = sum(r.num_steps for r in turn.reports)
        rewards, nan = self.rewards, float("nan")
        ended = [reward for r in turn.reports for reward in r.episode_rewards]
        share = 1.0 if self.backend.name == "local" else 1.0 / len(self.context.workers)
        env, inference, total = (share * sum(r.timing[k] for r in turn.reports) for k in ("env", "inference", "total"))
        result: dict[str, float] = {
            "training_iteration": self.iteration,
            "timesteps_total": self.timesteps,
            "episodes_total": self.num_episodes,
            "episode_reward_mean": float(np.mean(rewards)) if rewards else nan,
            "episode_reward_min": min(rewards) if rewards else nan,
            "episode_reward_max": max(rewards) if rewards else nan,
            "episode_reward_this_iter": float(np.mean(ended)) if ended else nan,
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
        result |= {"lost/env_crashes": self.num_crashes, "lost/evaluators": self.evaluations.lost}
        if self.config.on_divergence == "rollback":
            result["lost/rollbacks"] = self.rollbacks
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
        return {**result, **self.more_metrics()}

    def _write_crashes(self, crashes: list[str], where: str) -> None:
        """Count environments that raised and were rebuilt, and write their tracebacks to the run's folder."""
        self.num_crashes += len(crashes)
        for crash in crashes:
            self.errors.add(f"An environment of {where} raised and was rebuilt:\n{crash}\n", self.out)

    def _take_crashes(self) -> None:
        crashes, self.evaluations.crashes = self.evaluations.crashes, []
        self._write_crashes(crashes, "an evaluation")

    # -- evaluation ------------------------------------------------------------------------------------------------

    def eval(
        self, num_eval_episodes: int | None = None, *, explore: bool = False, seed: int | None = None
    ) -> dict[str, float]:
        """Play whole episodes with the current weights, greedily unless `explore`. Normalisers are not updated.

        Returns episode_reward_mean, episode_reward_ci95 (half width of the 95% interval), and more (`Evaluation.summary`).
        """
        self.check_open()
        seed = (self.config.seed or 0) if seed is None else seed
        count = num_eval_episodes or self.config.evaluation_num_episodes
        with self._keeping():
            return self.evaluations.ask(Order(count, seed + self.iteration, explore=explore)).summary()

    def plan_evaluations(self, goal: float | None, every_steps: int, num_episodes: int | None = None) -> None:
        """Say when `train` evaluates, besides the settings.

        Args:
            goal: a mean return; an evaluation that reaches it is repeated with more episodes.
            every_steps: environment steps between evaluations; 0: as the settings say, or by time if they say nothing.
            num_episodes: episodes of an evaluation, from here on a setting of this agent; None: as the settings say.
        """
        if num_episodes is not None:
            self.config.evaluation_num_episodes = num_episodes
        self.evaluations.goal = goal
        self.evaluations.automatic = self.config.evaluation_interval is None
        self.evaluations.every(every_steps)

    @property
    def last_evaluation(self) -> Played | None:
        """The newest evaluation that has ended."""
        return self.evaluations.last

    @property
    def cut_episodes(self) -> str:
        """What to say if evaluation episodes have been cut since they did not end; "" if none has."""
        return cut_note(self.evaluations.env, self.evaluations.cut) if self.evaluations.cut else ""

    def finish_evaluation(self, patience_s: float, interrupted: Callable[[], bool]) -> Played | None:
        """Wait up to `patience_s` seconds for the evaluation that runs beside training; None if there is no result by then."""
        with self._keeping():
            return self.evaluations.finish(patience_s, interrupted)

    def evaluate_newest(self, interrupted: Callable[[], bool]) -> Played | None:
        """Evaluate the current weights, as `train` does, and wait for the result; None if interrupted."""
        with self._keeping():
            return self.evaluations.newest(self.iteration, interrupted)

    def evaluate_weights(
        self, weights: Weights, num_episodes: int, seed: int, interrupted: Callable[[], bool]
    ) -> Evaluation | None:
        """Play episodes with given weights, after training; None if interrupted or if the evaluator was lost."""
        with self._keeping():
            return self.evaluations.play(weights, num_episodes, seed, interrupted)

    def weights_of(self, played: Played) -> Weights:
        """The weights that an evaluation played with."""
        return self.backend.get(played.weights)

    # -- state -----------------------------------------------------------------------------------------------------

    def save(
        self, folder: str | Path | None = None, score: float | None = None, *, patience_s: float | None = None
    ) -> Path:
        """Write a checkpoint, completely or not at all; returns its folder. The checkpoint with the highest `score` is the best.

        patience_s: where the run has failed: leave out the state of workers that do not answer within these seconds.
        """
        self.check_open()
        with phase("saving", "saving a checkpoint"):
            return self._save(folder, score, patience_s)

    def _save(self, folder: str | Path | None, score: float | None, patience_s: float | None) -> Path:
        parent = Path(folder) if folder is not None else self.default_out() / "checkpoints"
        group = self.context.workers
        if patience_s is None:
            workers = dict(enumerate(group.call_all(Rollout.state_dict)))
        else:
            workers = group.answers(Rollout.state_dict, patience_s)
        self.num_saves += 1
        in_order = self.backend.name == "local" or ALGORITHMS.get(self.run).flow == "sync"
        # without an order runs differ anyway, by which worker is first
        if self.config.exact_resume and in_order and patience_s is None:
            self.context.workers.call_all(Rollout.boundary, self.num_saves)
            self._loop = self._new_loop()  # a resumed run, too, acts with the newest moments
        state: dict[str, object] = {
            "learner": self.ask_learner(Learner.state_dict),
            "workers": {str(i): w for i, w in workers.items()},
            "episodes": {"rewards": np.array(self.rewards), "lengths": np.array(self.lengths, np.int64)},
        }
        manifest: dict[str, object] = {"algorithm": self.run, "config": self.plain_config(), "score": score}
        manifest |= {"program": self.program, "counters": self._counters()}
        weights, replay = self.get_weights(), self.context.replay

        def more(place: Path) -> dict[str, str]:
            self.write_policy(place / "policy", weights)
            if replay is None or not replay.config.save_replay:
                return {}
            rows = place / checkpoint.REPLAY
            replay.source.save(rows, self._replay_at)
            return {f"{checkpoint.REPLAY}/{name}": checksum for name, checksum in checksums_in(rows).items()}

        name = checkpoint.checkpoint_name(self.iteration)
        path = self._last_save = checkpoint.save_checkpoint(parent, name, state, manifest=manifest, extra_writer=more)
        if replay is not None and replay.config.save_replay:
            before, self._replay_at = self._replay_at, path / checkpoint.REPLAY
            if before is not None and before.parent != path and before.parent.parent == parent:
                checkpoint.remove_replay(before.parent)  # it is large: only the newest checkpoint keeps one
        return path

    def export(self, folder: str | Path) -> Path:
        """Write a checkpoint into a folder that others may move or delete: neither a rollback nor the next save relies on it."""
        before = self._last_save, self._replay_at
        path = self.save(folder)
        self._last_save, self._replay_at = before
        return path

    def unsaved_reason(self, patience_s: float) -> str:
        """Why the learner, which answers within `patience_s` seconds, has nothing that should be saved; "" if it has."""
        whole, weights = self.context.learner.submit(Learner.is_whole), self.context.learner.submit(Learner.weights)
        if not self.backend.get(whole, patience_s):
            return "the learner broke off in an update"
        return "" if self.backend.get(weights, patience_s).version else "nothing had been learnt"

    def get_weights(self) -> Weights:
        """A copy of the current weights, with the normaliser's moments."""
        return self.ask_learner(Learner.weights)

    def ask_learner(self, method: Callable[[Learner], T]) -> T:
        """The result of a method of the running learner's; of several, that of the first."""
        with losses_named(self.config.num_learners, f"{method.__name__}()"):
            return self.backend.get(self.context.learner.submit(method))

    def set_weights(self, weights: Weights) -> None:
        """Go on from these weights, and their moments.

        Raises:
            ConfigError: they belong to another network.
        """
        self.check_open()
        self.context.workers.drop()  # fragments on their way were made with other weights
        self.backend.get(self.context.learner.submit(Learner.set_weights, weights))
        self._loop = self._new_loop()

    def write_policy(
        self, folder: Path, weights: Weights | None = None, info: Mapping[str, object] | None = None
    ) -> None:
        """Write the current policy, or the one of `weights`, as a folder for `load_policy`. `info` is stored with it."""
        weights = weights if weights is not None else self.get_weights()
        c = self.config
        env = {
            "env": entry_name(c.env), "env_config": dict(c.env_config), "args": dict(c.custom_args),
            "vectorizer": c.vectorizer, "time_limit": c.time_limit,
            "action_repeat": c.action_repeat, "atari": c.atari,
        }  # fmt: skip
        about = {"algorithm": self.run, "env": env, "timesteps_total": self.timesteps, "score": None}
        save_policy(folder, self.network, weights, {**about, "weights_version": weights.version, **(info or {})})

    def _counters(self) -> dict[str, float]:
        """How far the run has come, for a checkpoint's manifest. `restore` reads them by name."""
        owed = {} if self.context.replay is None else {"owed_updates": self.context.replay.owed}
        counts = {"iteration": self.iteration, "num_episodes": self.num_episodes, "num_updates": self.num_updates}
        saved = {"num_saves": self.num_saves, "time_total_s": self.time_total_s}
        return {"timesteps_total": self.timesteps, **counts, **saved, **owed, "rollbacks": self.rollbacks}

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint, a run's folder (its newest checkpoint) or a folder of checkpoints, with this agent's settings.

        Raises:
            CheckpointError: there is none, it is damaged, or of a newer format. ConfigError: it belongs to another algorithm or network.
        """
        self.check_open()
        folder = checkpoint.find(Path(path))
        state, manifest = checkpoint.load_checkpoint(folder)
        if "counters" not in manifest:
            raise checkpoint.CheckpointError(f"{folder} is what a divergence left, not a checkpoint of a run.")
        with checkpoint.refusing(f"The checkpoint {folder}"):
            counters = _checked(manifest["counters"])
            learnt, workers = state["learner"], dict(state["workers"])
            rewards, lengths = (_numbers(state["episodes"][name]) for name in ("rewards", "lengths"))
            whole_lengths = [int(length) for length in lengths]
            if (algorithm := manifest["algorithm"]) != self.run:
                raise ConfigError(f"{path} is a checkpoint of {shown(algorithm)}, this agent runs {self.run}.")
        self.evaluations.close()  # evaluations and fragments on their way belong to the time before
        self._drop_calls()
        self.backend.get(self.context.learner.submit(Learner.load_state_dict, learnt))
        self.context.weights.start(self.context.learner.submit(Learner.weights))
        self.context.timesteps, self.iteration = int(counters["timesteps_total"]), int(counters["iteration"])
        self.num_episodes, self.num_updates = int(counters["num_episodes"]), int(counters["num_updates"])
        self.time_total_s, self.num_saves = float(counters["time_total_s"]), int(counters["num_saves"])
        self._slow_down(int(counters.get("rollbacks", 0)))
        self._last_save = folder
        self._restore_replay(folder, float(counters.get("owed_updates", 0.0)))
        if self.replay_restored and manifest["format_version"] < 2:
            self.notes.append(
                f"{folder} is of an older format, in which replay/**/index.json has no checksum: that file was not verified."
            )
        self.rewards, self.lengths = deque(rewards, EPISODE_WINDOW), deque(whole_lengths, EPISODE_WINDOW)
        for i, handle in enumerate(self.context.workers.handles):
            if str(i) in workers:
                self.backend.get(handle.submit(Rollout.load_state_dict, workers[str(i)]))
        self.context.workers.call_all(Rollout.boundary, self.num_saves)
        self._loop = self._new_loop()

    def _restore_replay(self, folder: Path, owed: float) -> None:
        """Fill the replay buffer from a checkpoint. If that has none (an older one), the buffer fills by collecting."""
        replay = self.context.replay
        if replay is None:
            return
        saved = folder / checkpoint.REPLAY
        self.replay_restored, replay.filled = saved.is_dir(), False
        if self.replay_restored:
            with phase("loading", "loading the replay buffer"):
                replay.source.load(saved)
            self._replay_at, replay.owed = saved, owed
        else:
            replay.source.clear()
            self._replay_at, replay.owed = None, 0.0
            self.notes.append(f"{folder} has no replay buffer: it fills up before learning goes on")

    @classmethod
    def from_checkpoint(
        cls: type[A],
        path: str | Path,
        config: Mapping[str, object] | None = None,
        *,
        out: str | Path | None = None,
        trust: bool = False,
        **settings: object,
    ) -> A:
        """The agent that wrote a checkpoint, with its settings; those given here override them.

        Args:
            trust: import what only the checkpoint names, though this user's raypid did not write it.

        Raises:
            CheckpointError: there is none, or it is damaged. UntrustedError: it names code that may not be imported.
        """
        given = {**(config or {}), **settings}
        folder, manifest = saved_run(path, given, trust=trust)
        program = manifest.get("program", "")
        if program and not program.startswith("raypid."):
            raise ConfigError(
                f"{path} was trained by {program}, which has its own run and update: build one in Python, call restore({str(path)!r}) "
                "and then train."
            )
        like = read_policy_weights(folder / "policy")[0]
        saved = {**manifest["config"], "init_from": None}  # that was where it began
        if given.keys() & {"init_from", "weights_file"}:
            raise ConfigError(
                "init_from has no effect here: the checkpoint's weights are those that training goes on with."
            )
        agent = cls(manifest["algorithm"], given, out=out, like=like, below=saved)
        try:
            with phase("loading", "loading the checkpoint"):
                agent.restore(folder)
        except BaseException:
            agent.close()
            raise
        return agent

    def plain_config(self) -> dict[str, object]:
        """The settings as JSON, with "module:name" for classes and functions."""
        plain: dict[str, object] = self.config.to_dict()
        for name in ("env", "evaluation_env", "callbacks", "intrinsic_reward"):
            if plain.get(name) is not None:
                plain[name] = entry_name(plain[name])
        plain["init_from"] = None if plain["init_from"] is None else str(plain["init_from"])
        return plain

    def default_out(self) -> Path:
        """The run's folder. If none was given, the first call chooses one under runs/."""
        if self.out is None:
            self.out = new_run_folder(self.run, self.config)
        return self.out

    def close(self) -> None:
        """End workers, environments and, if this agent started it, Ray."""
        if self._closed:
            return
        self._closed = True
        try:
            self.evaluations.close()
            self.context.workers.close()
        finally:
            self.backend.shutdown()

    def check_open(self) -> None:
        """Refuse to go on after `close`.

        Raises:
            RuntimeError: the agent is closed.
        """
        if self._closed:
            raise RuntimeError(
                "This agent is closed. Build a new one; Agent.from_checkpoint, or restore(), goes on from a checkpoint."
            )

    def __enter__(self: A) -> A:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def algorithm_of(run: object) -> str:
    """The name of the algorithm that a name, or a class such as raypid.PPO, stands for. An Algorithm class of the user's own is
    registered under its name.

    Raises:
        ConfigError: it is neither. UserError: an unknown name, with the nearest known ones.
    """
    if isinstance(run, str):
        ALGORITHMS.get(run)
        return ALGORITHMS.canonical(run)
    named: object = getattr(run, "algorithm", None)
    if isinstance(run, type) and issubclass(run, Agent) and isinstance(named, str):
        return named
    known = next((name for name in ALGORITHMS.names() if ALGORITHMS.entry(name) is run), "")
    if known:
        return known
    if isinstance(run, type) and hasattr(run, "Config"):
        same = next((name for name in ALGORITHMS.names() if name == run.__name__ and ALGORITHMS.get(name) is run), "")
        if not same:
            ALGORITHMS.add(run.__name__, run)
        return run.__name__
    raise ConfigError(f"An algorithm is a name or a class, such as 'PPO' or raypid.PPO, not {shown(run)}.")
