"""Training: an algorithm and an environment. Builds the roles on a backend and runs a training loop, one iteration a call."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from raypid.errors import Diverged, Halted, UserError, shown
from raypid.loops import loops
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import DeployedPolicy, make_policy, save_policy
from raypid.outcome import Outcome
from raypid.phases import phase
from raypid.plugins.modules import entry_name
from raypid.plugins.registry import ALGORITHMS
from raypid.replay.disk import checksums_in, link_save
from raypid.roles.evaluator import Order
from raypid.roles.fitness_worker import FitnessWorker
from raypid.roles.learner import Learner
from raypid.roles.rollout import Rollout
from raypid.run.assembly import assemble, new_run_folder
from raypid.run.evaluation import Evaluations
from raypid.run.events import Control, Events, Listener
from raypid.run.rescue import Fallback, Mark, write_post_mortem
from raypid.run.resolve import ResolvedRun
from raypid.runtime.handle import Backend, WorkerLost
from raypid.runtime.local import LocalHandle
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import Group
from raypid.settings.config import Config, ConfigError, renamed
from raypid.spaces import brief
from raypid.storage import checkpoint
from raypid.storage.changes import CHANGES, FIT, RESUME, ROLLBACK, Change, described, differences, without_code
from raypid.storage.neighbours import check_folder, refuse_file_name
from raypid.storage.outputs import ErrorFile
from raypid.types import Report, Weights

if TYPE_CHECKING:
    from raypid.run.explain import Explanation

T = TypeVar("T")

EPISODE_WINDOW = 100
"""Number of training episodes in episode_reward_mean."""
_LOOPS = {"sync": loops.sync, "async": loops.asynchronous, "replay": loops.replay}


A = TypeVar("A", bound="Training")


def totals_of(counters: Mapping[str, float]) -> dict[str, float]:
    """The counters of a checkpoint, by the names that results have for them."""
    return {
        "training_iteration": counters["iteration"],
        "timesteps_total": counters["timesteps_total"],
        "episodes_total": counters["num_episodes"],
        "learner_updates_total": counters["num_updates"],
        "time_total_s": counters["time_total_s"],
    }


class Training:
    """An algorithm and an environment, and how far learning has come. `raypid.Agent` adds ways to ask for it, and whole runs (`fit`).

    Args:
        resolved: what to train, everything decided. If it goes on from a checkpoint, the state is restored.

    Raises:
        ConfigError, ResourceError: it does not fit on the machine; nothing has been started then.
    """

    time_total_s: float
    """Seconds of training so far, evaluations included."""
    _closed = True  # until there is something to close
    _policy: DeployedPolicy | None = None
    _policy_is_current = False

    def __init__(self, resolved: ResolvedRun) -> None:
        self.rollbacks = 0
        """How often the run has gone back to a checkpoint because it diverged. Each time halves the learning rate."""
        self.run_end: int | None = None
        """Environment step at which the run ends, and with it schedules whose end the settings leave open; None: not known."""
        self.out = resolved.request.out
        self._last_save: Path | None = None
        """The checkpoint that a rollback goes to."""
        self.replay_restored = False
        """Whether the last restore included a replay buffer."""
        program = resolved.request.program
        self.program = "" if program is None else entry_name(type(program))
        """Class of the program, as "module:Class"; "" without one."""
        self.resolved, self.context, self.evaluations, notes = assemble(resolved)
        """The run as it was resolved: the only settings that are in force."""
        self._go_on_from(Mark(dict.fromkeys(checkpoint.COUNTERS, 0), (), ()))
        self.observation_space, self.action_space = resolved.sample.observation_space, resolved.sample.action_space
        """Of one environment, as it gives and takes them."""
        self.backend = self.context.backend
        self._end = weakref.finalize(self, _end, os.getpid(), self.evaluations, self.context.workers, self.backend)
        atexit.register(self._end)  # before Ray's own end, which would kill workers
        self.notes = [*notes, *renamed(resolved.request.settings), *resolved.notes]
        """What was changed to make the run fit, and settings that have another name."""
        self.changes: list[Change] = []
        """What was changed in this run, oldest first (`raypid.storage.changes`)."""
        fitted = list(differences(resolved.record(), self.resolved.record()))
        for name, before, after in fitted:
            self.note_change(name, before, after, FIT)
        self._made_to_fit = {name for name, _, _ in fitted}
        self.fallback = Fallback(self.context)
        self.events, self.control = Events(resolved.callbacks), Control()
        self._connect()
        self._loop = self._new_loop()
        self._mark()
        self._closed = False
        if resolved.saved is not None:
            try:
                with phase("loading", "loading the checkpoint"):
                    self._restore(resolved.saved)
            except BaseException:
                self.close()
                raise

    @property
    def run(self) -> str:
        """The algorithm's name."""
        return self.resolved.run

    @property
    def config(self) -> Config:
        """The settings in force. They are immutable."""
        return self.resolved.config

    @property
    def network(self) -> NetworkSpec:
        """The network for the environment's spaces."""
        return self.resolved.network

    def _new_loop(self) -> Iterator[loops.Iteration]:
        return _LOOPS[ALGORITHMS.get(self.run).flow](self.context)

    def _connect(self) -> None:
        """Let the roles tell of losses and evaluations, and ask whether training is over. None of this refers to the agent itself, which
        could not be collected then."""
        context, events, this = self.context, self.events, weakref.ref(self)
        context.losses.tell = lambda text: events.emit(Listener.on_lost, text)
        context.losses.stopping = self.control.is_over
        self.evaluations.ended = lambda played: events.emit(Listener.on_evaluation, played)
        if ALGORITHMS.get(self.run).collect == "fitness":  # whole episodes, which may never end
            context.halted = self.control.must_halt
            for handle in context.workers.handles:
                if isinstance(handle, LocalHandle) and isinstance(handle.role, Rollout):
                    worker = handle.role.worker
                    assert isinstance(worker, FitnessWorker)
                    worker.halted = self.control.must_halt
        self.errors.folder = self.out
        self.errors.where = lambda: f"iteration {a.iteration + 1}, step {a.timesteps:,}" if (a := this()) else ""

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` what happens from here on. Call what is returned to end that."""
        return self.events.add(listener)

    def request_stop(self, reason: str) -> None:
        """End the run, or the call of `train`, after the iteration under way. `reason` is that of the outcome."""
        self.control.stop_reason = self.control.stop_reason or reason

    def request_save(self) -> None:
        """Let the run write a checkpoint after the iteration under way. Without a run, call `save`."""
        self.control.save = True

    @property
    def timesteps(self) -> int:
        """Environment steps so far."""
        return self.context.timesteps

    @property
    def num_updates(self) -> int:
        """Updates that the learner's state contains."""
        return self._updates_reported - self.context.losses.counts["updates"]

    @property
    def went_on_from(self) -> Path | None:
        """The run's folder of the newest checkpoint that this agent has written or restored; None if there is none."""
        return None if self._last_save is None else self._last_save.parent.parent

    @property
    def warm_up_steps(self) -> tuple[int, int]:
        """Environment steps with random actions before learning starts: as a rule, and where too few episodes end. 0 once they are over."""
        plan = self.context.replay
        if plan is None or not plan.pace.warms_up():
            return 0, 0
        return plan.config.start_steps, plan.config.warm_up_steps(plan.pace.episodes)

    @property
    def has_own_program(self) -> bool:
        """Whether a program of the user's replaces collecting or learning, so that the command line cannot go on with the run."""
        return bool(self.program) and not self.program.startswith("raypid.")

    @property
    def errors(self) -> ErrorFile:
        """Where the tracebacks go of what was lost."""
        return self.context.losses.errors

    def note_change(self, name: str, before: object, after: object, by: str = RESUME) -> None:
        """Write down that a setting, or the stop criteria, have another value from here on."""
        place = {"step": self.timesteps, "iteration": self.iteration}
        self.changes.append({**place, "key": name, "from": before, "to": after, "by": by})

    def take_notes(self) -> list[str]:
        """The notes so far, each of which is shown once."""
        notes, self.notes = self.notes, []
        return notes

    def explain(self) -> Explanation:
        """Every setting, where it came from, and what raypid chose itself. Printed, it shows what differs from the defaults."""
        from raypid.run.explain import explain

        return explain(self.resolved, self.changes, run_end=self.run_end)

    # -- training --------------------------------------------------------------------------------------------------

    def train(self, num_train_steps: int | None = None) -> dict[str, float]:
        """Run one iteration, or as many as `num_train_steps` environment steps take; returns the last one's result.

        A linear schedule without schedule_steps ends with the last `fit`, or with these steps if they go further.

        Raises:
            Diverged: weights, losses or actions are no longer finite, and on_divergence is stop or max_rollbacks are used up.
            Halted: within `fit`, the run should have ended a while ago.
            ConfigError: a linear schedule has no end, or has fallen to 0 at the stop of the last `fit`.
        """
        self.check_open()
        steps = num_train_steps
        if steps is not None and not (isinstance(steps, (int, float, np.integer)) and steps >= 0):
            raise ConfigError(f"num_train_steps takes a number of environment steps, at least 0, not {shown(steps)}.")
        goal = None if steps is None else self.timesteps + steps
        if goal is not None and max(self.timesteps, self.run_end or 0) < goal < math.inf:
            self.end_schedules(goal)
        if self.config.lacks_end() and (told := self.config.ended(self.timesteps, self.run_end)):
            raise ConfigError(told)
        if not self.events.has_begun:
            self.events.start({**self.plain_config(), "run": self.run, "stop": None, "folder": None})
        if not self.control.in_run:
            self.control.reset()
        self._policy_is_current = False
        result: dict[str, float] = {}
        while goal is None or self.timesteps < goal:
            if self.config.on_divergence == "rollback" and self._last_save is None:
                self.save()
            start, steps_before = time.perf_counter(), self.timesteps
            self.control.begin_iteration(self.time_total_s)
            try:
                if (turn := next(self._loop, None)) is None:  # a generator that raised is spent, but the run goes on
                    self._loop = self._new_loop()
                    turn = next(self._loop)
                result = self._count(turn, start)
            except Halted as halt:
                if not halt.args:  # nothing of it was learnt from
                    self.context.timesteps = steps_before
                self.time_total_s += time.perf_counter() - start
                raise
            except Diverged as error:
                self.keep_evidence(error)
                if self.config.on_divergence != "rollback" or self.rollbacks >= self.config.max_rollbacks:
                    raise
                self._roll_back()
                continue
            except WorkerLost as error:
                self._drop_lost(error)
                continue
            if self.control.stop_reason or goal is None:
                break
        return result

    def _drop_lost(self, error: Exception) -> None:
        """Go on without what workers had collected for an update, which was lost on its way to the learner.

        Raises:
            RolesFailed: that happened more than max_restarts times within an hour.
        """
        what = "Data on their way between workers and learner were lost."
        self.context.losses.count("fragments", what, error)
        if self.context.replay is not None:
            self.context.replay.source.forget()
        self.context.losses.tell(f"{what} That update is left out.")

    def end_schedules(self, steps: float | None) -> None:
        """Let linear schedules whose end the settings leave open end with the run, which stops at this environment step.

        Raises:
            ConfigError: there is such a schedule, and `steps` is None.
        """
        if not (told := self.config.lacks_end()):
            return
        if steps is None:
            raise ConfigError(told)
        self.run_end = math.ceil(steps)
        self.backend.get(self.context.learner.submit(Learner.end_schedules, self.run_end, self.timesteps))

    # -- divergence ------------------------------------------------------------------------------------------------

    def keep_evidence(self, error: Diverged) -> None:
        """Write what is needed to look into a divergence, if there is a folder, and say in the error where it is. Once for each error."""
        if error.kept:
            return
        if error.timesteps is None:
            error.timesteps = self.timesteps
        if self.out is not None:
            about = {"algorithm": self.run, "config": self.plain_config(), "rollbacks": self.rollbacks}
            good = self.backend.get(self.context.weights.newest)
            error.kept = write_post_mortem(self.out, error, about, lambda at: self.write_policy(at / "policy", good))
        if self.rollbacks:
            error.kept += f" Rollbacks before: {self.rollbacks}."

    def _roll_back(self) -> None:
        """Go back to the newest checkpoint with half the learning rate, and save it anew so that this outlives the process."""
        assert self._last_save is not None
        rollbacks, elapsed_s, run_end = self.rollbacks + 1, self.time_total_s, self.run_end
        score = checkpoint.read_manifest(self._last_save).get("score")
        self.restore(self._last_save)
        self.time_total_s = elapsed_s
        self.end_schedules(run_end)
        self._slow_down(rollbacks)
        for name, rate in self.config.learning_rates().items():
            self.note_change(name, rate * 0.5 ** (rollbacks - 1), rate * 0.5**rollbacks, ROLLBACK)
        self.save(score=score)
        rates = " and ".join(f"{n} {x * 0.5**rollbacks:.3g}" for n, x in self.config.learning_rates().items())
        text = f"Training diverged: rollback {rollbacks} of {self.config.max_rollbacks}, to iteration {self.iteration} with {rates}."
        self.events.emit(Listener.on_rollback, self.iteration, text)

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

    @property
    def num_streams(self) -> int:
        """Environments of all workers."""
        return self.config.num_envs_per_worker * max(1, self.config.num_workers)

    def limit_iterations(self, num_steps: int | None) -> None:
        """End each iteration of an asynchronous algorithm after `num_steps` environment steps at the latest; None: as it likes."""
        assert self.context.plan is not None
        self.context.plan.max_steps = num_steps

    def _count(self, turn: loops.Iteration, start: float) -> dict[str, float]:
        """Count a turn of the loop that began at `start`, evaluate if it is due; returns the iteration's result."""
        self._updates_reported += turn.update.num_updates
        for report in turn.reports:
            self.rewards.extend(report.episode_rewards)
            self.lengths.extend(report.episode_lengths)
            self.num_episodes += len(report.episode_rewards)
            self.context.count_crashes(report.crashes, f"worker {report.worker_index}")
        before = time.perf_counter()
        played = self.evaluations.turn(self.iteration + 1, self._evaluation_seconds(turn.reports))
        self.iteration += 1  # not if the evaluation raised: the iteration has no result then
        evaluation_s = time.perf_counter() - before
        seconds = time.perf_counter() - start
        self.time_total_s += seconds
        result = self._result(turn, seconds, evaluation_s)
        if played is not None:
            result |= {f"evaluation/{k}": v for k, v in played.summary().items()}
        told = dict(result)
        self.events.emit(Listener.on_iteration, told)
        self._mark()
        return told | result  # entries may be added, not changed

    def uncount_iteration(self) -> None:
        """Forget an iteration that leaves no result: training that goes on from here has it again."""
        self.iteration -= 1

    @property
    def num_crashes(self) -> int:
        """Environments that raised and were rebuilt, evaluations included."""
        return self.context.num_crashes

    def _mark(self) -> None:
        """Let a copy of the learners' state that is asked for from here on know how far the run is."""
        if isinstance(self.context.learner, StatefulGroup):
            self.context.learner.mark = Mark(self._counters(), tuple(self.rewards), tuple(self.lengths))

    def _evaluation_seconds(self, reports: list[Report]) -> float | None:
        """Estimated seconds of an evaluation, from the length of training episodes and the workers' speed; None if unknown."""
        if not self.lengths or not reports:
            return None
        seconds, steps = sum(r.timing["total"] for r in reports), sum(r.num_steps for r in reports)
        return float(np.mean(self.lengths)) * seconds * self.config.num_envs_per_worker / max(1, steps)

    def totals(self) -> dict[str, float]:
        """The counts and times of the run so far, as results have them."""
        return totals_of(self._counters())

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
        result |= {f"learner/{k}": v for k, v in turn.update.items()}
        result |= {f"lost/{k}": v for k, v in self.context.losses.counts.items()}
        if self.context.plan is not None:
            result |= {f"lost/{k}": v for k, v in self.context.plan.lost.items()}
            result |= {f"storages/{k}": v for k, v in self.context.plan.storages.items()}
        result |= {"lost/env_crashes": self.context.num_crashes, "lost/evaluators": self.evaluations.lost}
        if self.config.on_divergence == "rollback":
            result["lost/rollbacks"] = self.rollbacks
        result |= {f"parameter_server/{k}": v for k, v in self.context.weights.metrics().items()}
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

    # -- evaluation ------------------------------------------------------------------------------------------------

    def eval(
        self, num_eval_episodes: int | None = None, *, explore: bool = False, seed: int | None = None
    ) -> dict[str, float]:
        """Play whole episodes with the current weights, greedily unless `explore`. Normalisers are not updated.

        Returns episode_reward_mean, episode_reward_ci95 (half width of the 95% interval), and more (`Evaluation.summary`).

        Raises:
            ConfigError: not a whole number of episodes, or none.
            RuntimeError: the agent is closed.
        """
        self.check_open()
        seed = (self.config.seed or 0) if seed is None else seed
        count = self.config.evaluation_num_episodes if num_eval_episodes is None else num_eval_episodes
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"num_eval_episodes takes a whole number of at least 1, not {shown(count)}.")
        try:
            return self.evaluations.ask(Order(count, seed + self.iteration, explore=explore)).summary()
        except Diverged as error:
            self.keep_evidence(error)
            raise

    def change_evaluations(self, **settings: object) -> None:
        """Change settings of evaluations from here on."""
        self.resolved = replace(self.resolved, config=self.config.replace(settings))
        self.evaluations.config = self.config
        undone = [{"key": key, "from": value, "step": self.timesteps} for key, value in settings.items()]
        self.changes = [c for c in self.changes if not any(one.items() <= c.items() for one in undone)]

    # -- acting -----------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> DeployedPolicy:
        """The current policy, to act with; always the same object, with the newest weights. `policy.reset()` begins new episodes."""
        self.check_open()
        if self._policy is None:
            self._policy = DeployedPolicy(make_policy(self.network, self.config.seed or 0), self.config.seed)
        if not self._policy_is_current:
            self._policy.policy.load(self.get_weights())
            self._policy_is_current = True
        return self._policy

    def act(self, obs: object, *, explore: bool = False) -> Any:
        """Choose an action for one observation [*], or actions for a batch [B, *], with the current weights; greedy unless `explore`.

        Frame stacks and memories of recurrent networks are kept from call to call, as `load_policy(...).act` keeps them:
        `agent.policy.reset()` at the start of an episode clears them. Normalisers are not updated.

        Raises:
            ValueError: the observation does not have the shape that the policy takes.
            RuntimeError: the agent is closed.
        """
        return self.policy.act(obs, explore=explore)

    def __repr__(self) -> str:
        """Algorithm, environment, spaces, processes, how far it has come, its folder."""
        if not hasattr(self, "_loop"):
            return f"<{type(self).__name__}, not built>"
        workers = self.config.num_workers
        parts = [
            f"observation {brief(self.observation_space)}",
            f"action {brief(self.action_space)}",
            f"{workers} worker{'s' * (workers != 1)} ({self.backend.name})" if workers else "one process",
            f"{self.timesteps:,} steps",
            f"folder {self.out}" if self.out is not None else "no folder yet",
        ]
        return f"<{self.run} on {entry_name(self.config.env)}: {', '.join(parts)}{', closed' * self._closed}>"

    # -- state -----------------------------------------------------------------------------------------------------

    def save(
        self, folder: str | Path | None = None, score: float | None = None, *, patience_s: float | None = None
    ) -> Path:
        """Write a checkpoint, completely or not at all; returns its folder. The checkpoint with the highest `score` is the best.

        Args:
            folder: where the folder of the checkpoint goes, such as checkpoint_000012; by default checkpoints/ in the run's folder.
            score: higher is better.
            patience_s: where the run has failed: leave out the state of workers that do not answer within these seconds.

        Raises:
            UserError: `folder` has the name of a file, such as model.zip.
        """
        if folder is not None:
            check_folder("save", folder)
            refuse_file_name(folder, "save")
        self.control.save = False
        path = self._last_save = self._write_checkpoint(folder, score, patience_s)
        replay = self.context.replay
        if replay is not None and (path / checkpoint.REPLAY).is_dir():
            before = replay.source.saved
            replay.source.note_save(path / checkpoint.REPLAY)
            if before is not None and before.parent != path and before.parent.parent == path.parent:
                checkpoint.remove_replay(before.parent)  # it is large: only the newest checkpoint keeps one
        self.events.emit(Listener.on_checkpoint, path)
        return path

    @phase("saving", "saving a checkpoint")
    def _write_checkpoint(
        self, folder: str | Path | None, score: float | None = None, patience_s: float | None = None
    ) -> Path:
        """Write a checkpoint on which nothing relies yet; arguments as for `save`."""
        self.check_open()
        parent = Path(folder) if folder is not None else self.default_out() / "checkpoints"
        group = self.context.workers
        told = group.call_each if patience_s is None else partial(group.answers, patience_s=patience_s)
        workers = told(Rollout.state_dict)
        self.num_saves += 1
        in_order = self.backend.name == "local" or ALGORITHMS.get(self.run).flow != "async"
        replay = self.context.replay
        # without an order runs differ anyway, by which worker is first
        if self.config.exact_resume and in_order and patience_s is None:
            group.call_all(Rollout.boundary, self.num_saves)
            if replay is not None:
                replay.source.forget()  # a resumed run, too, begins without samples that are on their way
            self._loop = self._new_loop()  # a resumed run, too, acts with the newest moments
        learner = self.context.learner
        asked = learner.submit(Learner.state_dict), learner.submit(Learner.weights)  # one round trip for both
        learnt, weights = self.backend.get(asked[0]), self.backend.get(asked[1])
        state: dict[str, object] = {
            "learner": learnt,
            "workers": {str(i): w for i, w in workers.items()},
            "episodes": {"rewards": np.array(self.rewards), "lengths": np.array(self.lengths, np.int64)},
        }
        manifest: dict[str, object] = {"algorithm": self.run, "config": self.plain_config(), "score": score}
        manifest |= {"program": self.program, "counters": self._counters(), CHANGES: self.changes}
        manifest |= {"gone_back": self.fallback.gone_back} if self.fallback.gone_back else {}

        def more(place: Path) -> dict[str, str]:
            self.write_policy(place / "policy", weights)
            if replay is None or not replay.config.save_replay:
                return {}
            rows, before = place / checkpoint.REPLAY, replay.source.saved
            if not self.fallback.buffers_gone:
                replay.source.save(rows, before)
            elif before is not None and before.is_dir():
                link_save(before, rows)  # those of the newest checkpoint, once more
            return {f"{checkpoint.REPLAY}/{name}": checksum for name, checksum in checksums_in(rows).items()}

        name = checkpoint.checkpoint_name(self.iteration)
        return checkpoint.save_checkpoint(parent, name, state, manifest=manifest, extra_writer=more)

    def fall_back(self, patience_s: float) -> None:
        """Where roles are gone for good, go back to what is left of them, so that it can be saved (`Fallback.fall_back`)."""
        if (mark := self.fallback.fall_back(patience_s, self.iteration)) is not None:
            self._go_on_from(mark)

    def export(self, folder: str | Path) -> Path:
        """Write a checkpoint into a folder that others may move or delete: neither a rollback nor the next save relies on it."""
        return self._write_checkpoint(folder)

    def get_weights(self) -> Weights:
        """A copy of the current weights, with the normaliser's moments."""
        return self.ask_learner(Learner.weights)

    def ask_learner(self, method: Callable[[Learner], T]) -> T:
        """The result of a method of the running learner's; of several, that of the first."""
        return self.backend.get(self.context.learner.submit(method))

    def set_weights(self, weights: Weights) -> None:
        """Go on from these weights, and their moments.

        Raises:
            ConfigError: they belong to another network.
        """
        self.check_open()
        if not isinstance(weights, Weights):
            raise UserError(f"set_weights takes Weights, as get_weights() returns them, not {shown(weights)}.")
        self.context.workers.drop()  # fragments on their way were made with other weights
        self.backend.get(self.context.learner.submit(Learner.set_weights, weights))
        self._loop = self._new_loop()
        self._policy_is_current = False

    def write_policy(
        self, folder: Path, weights: Weights | None = None, info: checkpoint.Entries | None = None
    ) -> None:
        """Write the current policy, or the one of `weights`, as a folder for `load_policy`. `info` is stored with it."""
        weights = weights if weights is not None else self.get_weights()
        c = self.config
        env = {
            "env": entry_name(c.env), "env_config": dict(c.env_config), "args": dict(c.custom_args),
            "vectorizer": c.vectorizer, "time_limit": c.time_limit,
            "action_repeat": c.action_repeat, "atari": c.atari,
            "worker_index": self.evaluations.env.worker_index, "num_envs": self.evaluations.env.num_envs,
        }  # fmt: skip
        about = {"algorithm": self.run, "env": env, "timesteps_total": self.timesteps, "score": None}
        save_policy(folder, self.network, weights, {**about, "weights_version": weights.version, **(info or {})})

    def _counters(self) -> dict[str, float]:
        """How far the run has come, for a checkpoint's manifest. `restore` reads them by name."""
        owed = {} if self.context.replay is None else {"owed_updates": self.context.replay.pace.owed}
        counts = {"iteration": self.iteration, "num_episodes": self.num_episodes, "num_updates": self.num_updates}
        saved = {"num_saves": self.num_saves, "time_total_s": self.time_total_s}
        end = {} if self.run_end is None else {"run_end": self.run_end}
        return {"timesteps_total": self.timesteps, **counts, **saved, **owed, "rollbacks": self.rollbacks, **end}

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint, a run's folder (its newest checkpoint) or a folder of checkpoints, with this agent's settings.

        Raises:
            CheckpointError: there is none, it is damaged, or of a newer format.
            ConfigError: it belongs to another algorithm or network.
        """
        self.check_open()
        self._restore(checkpoint.open_checkpoint(Path(check_folder("restore", path))))

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        folder, manifest, state = saved.path, saved.manifest, saved.state()
        if (counters := manifest.get("counters")) is None:
            raise checkpoint.CheckpointError(f"{folder} is what a divergence left, not a checkpoint of a run.")
        with checkpoint.refusing(f"The checkpoint {folder}"):
            learnt, workers = dict(state["learner"]), dict(state["workers"])
            if "returns" in state:  # where earlier versions have them
                learnt["returns"] = state["returns"]
            rewards = [float(reward) for reward in state["episodes"]["rewards"]]
            lengths = [int(length) for length in state["episodes"]["lengths"]]
            if (algorithm := manifest["algorithm"]) != self.run:
                what = f"{folder} is a checkpoint of {shown(algorithm)}, this agent runs {self.run}"
                raise ConfigError(f"{what}: raypid.Agent.from_checkpoint makes one that fits.")
        self.evaluations.close()  # evaluations and fragments on their way belong to the time before
        self._drop_calls()
        self.backend.get(self.context.learner.submit(Learner.load_state_dict, learnt))
        self.context.weights.start(self.context.learner.submit(Learner.weights))
        self._go_on_from(Mark(counters, rewards, lengths))
        if run_end := counters.get("run_end"):
            self.end_schedules(run_end)
        self._slow_down(int(counters.get("rollbacks", 0)))
        self._take_history(manifest)
        self._last_save = folder
        self._restore_replay(saved, float(counters.get("owed_updates", 0.0)))
        for i in self.context.workers.present:
            if str(i) in workers:
                handle = self.context.workers.handles[i]
                with contextlib.suppress(WorkerLost):  # the next call replaces it
                    self.backend.get(handle.submit(Rollout.load_state_dict, workers[str(i)]))
        self.context.workers.call_all(Rollout.boundary, self.num_saves)
        self._loop = self._new_loop()
        self._policy_is_current = False
        self._mark()
        if isinstance(self.context.learner, StatefulGroup):  # the copy is of what was loaded
            self.context.learner.kept_mark = self.context.learner.mark

    def _go_on_from(self, mark: Mark) -> None:
        """Go on counting from here."""
        counters = mark.counters
        self.context.timesteps = int(counters["timesteps_total"])
        if self.context.replay is not None:
            self.context.replay.pace.timesteps = self.context.timesteps
        self.iteration: int = int(counters["iteration"])
        self.num_episodes: int = int(counters["num_episodes"])
        self._updates_reported: int = int(counters["num_updates"]) + self.context.losses.counts["updates"]
        """Updates so far, those included that were lost with a learner afterwards."""
        self.time_total_s = float(counters["time_total_s"])
        self.num_saves: int = int(counters["num_saves"])
        self.rewards, self.lengths = deque(mark.rewards, EPISODE_WINDOW), deque(mark.lengths, EPISODE_WINDOW)

    def _take_history(self, manifest: checkpoint.Manifest) -> None:
        """Go on with the changes up to a checkpoint, and write down which of its settings are others from here on."""
        saved, changes = manifest["config"], manifest.get("changes", [])
        self.changes = list(changes) if manifest["signed"] else without_code(changes)
        if self.config.init_from is None and (began := saved.get("init_from")) is not None:
            self.resolved = replace(self.resolved, config=replace(self.config, init_from=str(began)))
        for name, before, after in differences(saved, self.plain_config()):
            self.note_change(name, before, after, FIT if name in self._made_to_fit else RESUME)
            if name not in self._made_to_fit:  # that is said where it is done
                self.notes.append(f"{described(self.changes[-1]).rpartition(' at step ')[0]} from here")

    def _restore_replay(self, saved: checkpoint.Checkpoint, owed: float) -> None:
        """Fill the replay buffer from a checkpoint. If that has none (an older one), the buffer fills by collecting."""
        replay = self.context.replay
        if replay is None:
            return
        replay.pace.episodes = max(self.num_episodes, self.num_updates)  # an update shows that the warm-up is over
        folder = saved.path / checkpoint.REPLAY
        self.replay_restored, replay.filled = folder.is_dir(), False
        replay.source.saved, replay.rows_needed = folder if self.replay_restored else None, None
        replay.pace.owed = owed if self.replay_restored else 0.0
        if not self.replay_restored:
            replay.source.clear()
            self.notes.append(f"{saved.path} has no replay buffer: it fills up before learning goes on")
            return
        with phase("loading", "loading the replay buffer"):
            replay.source.load(folder)
        if saved.manifest["format_version"] < 2:
            what = f"{saved.path} is of an older format, in which replay/**/index.json has no checksum"
            self.notes.append(f"{what}: that file was not verified.")

    def plain_config(self) -> dict[str, object]:
        """The settings as JSON, with "module:name" for classes and functions."""
        return self.resolved.record()

    def default_out(self) -> Path:
        """The run's folder. If none was given, the first call chooses one under runs/."""
        folder = self.out or new_run_folder(self.run, self.config)
        self.use_folder(folder)
        return folder

    def use_folder(self, folder: Path) -> None:
        """Save into this folder from here on, and write errors there."""
        self.out = self.errors.folder = folder

    def close(self) -> None:
        """End workers, environments and, if this agent started it, Ray."""
        if self._closed:
            return
        self._closed = True
        try:
            self.events.end(Outcome("closed", self.totals(), self.out or Path(), self._last_save))
        finally:
            self._end()
            atexit.unregister(self._end)

    def check_open(self) -> None:
        """Refuse to go on after `close`.

        Raises:
            RuntimeError: the agent is closed.
        """
        if self._closed:
            raise RuntimeError("This agent is closed: Agent.from_checkpoint goes on, raypid.load_policy only acts.")

    def __enter__(self: A) -> A:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _end(pid: int, evaluations: Evaluations, workers: Group[Any, Any], backend: Backend) -> None:
    """End workers, environments and Ray as far as it was started here; in a copy of the process that made them do nothing."""
    if os.getpid() != pid:
        return
    try:
        workers.close()
        evaluations.close()
    finally:
        backend.shutdown()
