"""DistributedAgent: actors fill storages with rollouts, learners empty them. `run` and `update` can be overridden."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import ClassVar

from raypid.algorithms.base import Algorithm
from raypid.envs import settings_of
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights
from raypid.outcome import Outcome
from raypid.plugins.extras import need
from raypid.plugins.modules import entry_name
from raypid.plugins.registry import ALGORITHMS
from raypid.report.panel import PlainLines, Progress
from raypid.roles.program_worker import DistributedWrapper as DistributedWrapper
from raypid.run.agent import Agent
from raypid.run.assembly import new_run_folder
from raypid.run.resolve import look, settle
from raypid.run.run import Run, RunOptions
from raypid.runtime.resources import ResourceError
from raypid.settings.config import Config, ConfigError, overlay
from raypid.settings.request import RunRequest
from raypid.storage import checkpoint
from raypid.types import Trajectory, Update

_OURS = {
    "num_workers": "num_actors",
    "fragment_length": "num_steps",
    "evaluation_env": "eval_env",
    "evaluation_interval": "eval_interval, of train()",
    "evaluation_num_episodes": "num_eval_episodes, of train()",
    "init_from": "init_model_path, of train()",
    "th_compile": "th_compile, of train()",
}
"""Settings that have another name here."""


_IN_MESSAGES = {
    "num_workers=": "num_actors=",
    "fragment_length=": "num_steps=",
    "num_learners=0": "num_learners=1",  # where the driver learns
    " worker": " actor",
}
"""What messages about resources say -> what it is called here."""


def _renamed(message: str) -> str:
    for theirs, ours in _IN_MESSAGES.items():
        message = message.replace(theirs, ours)
    return message


class DistributedAgent:
    """Trainer for distributed algorithms: `num_actors` actors fill rollout storages and `num_learners` learners empty them, without
    waiting for each other.

    A subclass chooses its `algorithm`. It may override `run`, which is what an actor does, and `update`, which is what a learner
    does. Each actor and each learner has its own copy of the agent, as it was when training began.

    Args:
        env: environment to train in: an id, a gymnasium.Env class, a function that makes an environment or a vector of them, or
            a gymnasium.vector.VectorEnv. A vector's environments are distributed among the actors, at least one each.
        eval_env: environment to evaluate in, given like `env`; None: the same.
        tag: the start of the run folder's name, runs/<tag>_...
        seed: seeds everything random.
        device: where the learners compute: cpu, cuda, cuda:1, mps, auto.
        num_steps: rows of a rollout, for each environment of an actor.
        num_actors: number of actors. Actors and learners are processes on Ray. If the machine has too few CPUs, fewer are started and a
            message says so. backend="local" runs everything in this process.
        num_learners: learners that update together, each with rollouts of its own; a single one learns in this process.
        num_storages: most rollouts at a time: being filled, waiting, or being learned from. An actor that finds no free storage waits.
            It is a bound and no set of buffers: each rollout is in arrays of its own, which are freed once it was learned from.
        pretraining: learn from an intrinsic reward instead of the task's: random network distillation, or the setting
            intrinsic_reward.
        kwargs: settings of the algorithm (batch_size, lr, entropy_coef, num_envs_per_worker, model, ...). hidden_dim is the width of
            all hidden layers.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
        EnvError: the environment cannot be used.
    """

    algorithm: ClassVar[str] = "IMPALA"

    def __init__(
        self,
        env: object,
        eval_env: object = None,
        tag: str = "default",
        seed: int = 1,
        device: str = "cpu",
        num_steps: int = 80,
        num_actors: int = 45,
        num_learners: int = 4,
        num_storages: int = 60,
        *,
        pretraining: bool = False,
        **kwargs: object,
    ) -> None:
        self.tag, self.num_steps, self.num_actors = tag, num_steps, num_actors
        self.num_learners, self.num_storages, self.pretraining = num_learners, num_storages, pretraining
        given = _settings(kwargs, [f.name for f in fields(ALGORITHMS.get(self.algorithm).Config)])
        self._check()
        local = given.get("backend") == "local"
        if not local:
            several = {"torch": f"num_learners {num_learners}"} if num_learners > 1 else {}
            need({**several, "ray": f"num_actors {num_actors}"}, 'backend="local" runs everything in this process.')
        env_config = given.get("env_config", {})
        settings: dict[str, object] = {
            **settings_of(env, dict(env_config) if isinstance(env_config, Mapping) else {}, num_actors),
            "evaluation_env": None if eval_env is None else settings_of(eval_env, {})["env"],
            "evaluation_interval": 0,  # train() has an interval of its own
            "seed": seed,
            "device": device,
            "fragment_length": num_steps,
            "num_workers": num_actors,
            "num_learners": 0 if local or num_learners == 1 else num_learners,
            "fit": True,
            **({"intrinsic_reward": "rnd"} if pretraining else {}),
        }
        self.settings, self.given = settings, given
        """As `raypid.Agent` takes them: settings of this class, and the user's over them."""
        self.config = settle(self._request()).config
        self._check_storages()
        self.algorithm_instance: Algorithm[Config] | None = None
        """In a learner's process: the algorithm with its networks. None elsewhere."""
        self._agent: Agent | None = None
        self._compiled = False

    def _request(self, **more: object) -> RunRequest:
        """What is asked for; `more` settings lie above the others."""
        given, below = overlay(self.given, more), overlay(self.settings, {})
        return RunRequest(run=self.algorithm, settings=given, recorded=below, program=self)

    def _check(self) -> None:
        """Check the arguments that the algorithm's own settings do not cover.

        Raises:
            ConfigError: a value that does not fit.
        """
        algorithm = ALGORITHMS.get(self.algorithm)
        if (algorithm.flow, algorithm.collect) != ("async", "trajectory"):
            raise ConfigError(f"A DistributedAgent runs IMPALA, APPO or a subclass of theirs, not {self.algorithm}.")
        if not self.tag or Path(self.tag).name != self.tag:
            raise ConfigError(f"tag begins a folder's name: it must not be empty or have slashes, not {self.tag!r}.")
        for name in ("num_steps", "num_actors", "num_learners", "num_storages"):
            if not isinstance(value := getattr(self, name), int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if self.num_learners > self.num_actors:
            raise ConfigError(f"num_learners must be at most num_actors ({self.num_actors}), not {self.num_learners}.")

    def _check_storages(self) -> None:
        update = max(ALGORITHMS.get(self.algorithm).update_size(self.config), self.config.num_learners)
        if self.num_storages < update:
            why = f"num_storages {self.num_storages} can never hold the {update} rollouts of an update"
            raise ConfigError(f"{why}: set it to at least {update}, or lower fragments_per_update or num_learners.")

    # -- what a subclass may override ------------------------------------------------------------------------------

    def run(self, env: DistributedWrapper, actor_idx: int) -> Iterator[Trajectory]:
        """What actor `actor_idx` does: a generator that yields trajectories of num_steps rows, forever.

        A yield puts the trajectory into a storage. It returns once a storage is free, and the policy then has the newest weights.
        An override may also be a plain function. It is called for each trajectory, takes num_steps steps and returns None.
        """
        while True:
            yield env.rollout()

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        """What a learner does with a batch, the rollouts of one update side by side. `timesteps`: environment steps so far.

        `self.algorithm_instance` is the algorithm. With several learners, all must call its `update` equally often.
        """
        assert self.algorithm_instance is not None
        return self.algorithm_instance.update(batch, timesteps)

    @property
    def learner(self) -> Algorithm[Config] | None:
        """The former name of `algorithm_instance`."""
        text = "self.learner of a DistributedAgent is now called self.algorithm_instance."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.algorithm_instance

    # -- training --------------------------------------------------------------------------------------------------

    def train(
        self,
        num_train_steps: int,
        init_model_path: str | Path | None = None,
        log_interval: int = 1,
        eval_interval: int = 5000,
        save_interval: int = 5000,
        num_eval_episodes: int = 10,
        th_compile: bool = False,
    ) -> dict[str, float]:
        """Train for `num_train_steps` more environment steps; returns the last iteration's result.

        The run's folder is like that of `raypid train`: params.json, result.json with a line per iteration, checkpoints.

        Args:
            num_train_steps: environment steps of this call, all actors together.
            init_model_path: a checkpoint, run folder or policy folder; training starts from its weights.
            log_interval: iterations between printed lines; 0 prints none. An iteration is one rollout of every actor, or less if an
                interval is shorter.
            eval_interval: environment steps between evaluations; 0: none. Meanwhile actors finish the rollouts they have started.
            save_interval: environment steps between checkpoints, all of which are kept; 0: only at the end.
            num_eval_episodes: episodes per evaluation.
            th_compile: compile the networks with torch.compile, for long runs and GPUs. Small networks then learn with PyTorch
                instead of the faster NumPy kernel.

        Raises:
            ConfigError: a value that does not fit.
            ResourceError: not even one actor fits on the machine.
            KeyboardInterrupt: after the checkpoint that Ctrl-C asks for.
        """
        counts = {"num_train_steps": num_train_steps, "num_eval_episodes": num_eval_episodes}
        intervals = {"log_interval": log_interval, "eval_interval": eval_interval, "save_interval": save_interval}
        for name, value in (counts | intervals).items():
            if value < int(name in counts):
                raise ConfigError(f"{name} must be at least {int(name in counts)}, not {value}.")
        if self._agent is not None:
            self._agent.check_open()
        begins_from = None if init_model_path is None else checkpoint.find_policy(Path(init_model_path))
        initial = None if begins_from is None else read_policy_weights(begins_from)[1]
        agent = self._built(th_compile)
        if initial is not None:
            agent.set_weights(initial)
        agent.change_evaluations(evaluation_interval=0, evaluation_num_episodes=num_eval_episodes)
        agent.limit_iterations(min(steps for steps in (num_train_steps, eval_interval, save_interval) if steps))
        options = RunOptions(
            stop={"timesteps_total": agent.timesteps + num_train_steps},
            evaluation_steps=eval_interval,
            checkpoint_steps=save_interval,
            keep_checkpoints=sys.maxsize,
            final_episodes=0,
        )
        progress = PlainLines({}, interval=log_interval) if log_interval else Progress()
        outcome = Run(agent, options, progress)()
        if outcome.interrupted:
            raise KeyboardInterrupt
        return outcome.result

    def fit(
        self,
        stop: int | float | Mapping[str, object] | None = None,
        *,
        out: str | Path | None = None,
        overwrite: bool = False,
        quiet: bool = False,
        checkpoint_interval: int = 0,
        keep_checkpoints: int = 3,
        final_episodes: int = 50,
    ) -> Outcome:
        """Train until a stop criterion is met, as `raypid.Agent.fit` does; arguments and errors are the same.

        Evaluations are planned by time, as in `raypid train`; `train` has intervals of its own. By default the folder is runs/<tag>_...
        """
        agent = self._built()
        agent.limit_iterations(None)
        agent.change_evaluations(evaluation_interval=None)  # by time; `train` has an interval of its own
        return agent.fit(
            stop,
            out=out,
            overwrite=overwrite,
            quiet=quiet,
            checkpoint_interval=checkpoint_interval,
            keep_checkpoints=keep_checkpoints,
            final_episodes=final_episodes,
        )

    def eval(self, num_eval_episodes: int) -> dict[str, float]:
        """Play episodes with the current weights, greedily; episode_reward_mean, episode_reward_ci95 and more."""
        return self._built().eval(num_eval_episodes)

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint, by default among those of the run's folder; returns its folder."""
        return self._built().save(folder)

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint or a run's folder (its newest checkpoint): weights, optimizer, normaliser, counters.

        Settings, `run` and `update` are this agent's, and its results go to a folder of its own.

        Raises:
            CheckpointError: there is none, or it is damaged.
            ConfigError: it belongs to another algorithm or network.
        """
        like = NetworkSpec.from_dict(checkpoint.open_checkpoint(path).policy()["network"])
        self._built(like=like).restore(path)

    def _built(self, th_compile: bool | None = None, like: NetworkSpec | None = None) -> Agent:
        """The agent that trains. If `th_compile` changes, it is built again and goes on from where it was."""
        before, compiled = self._agent, bool(th_compile)
        if before is not None and th_compile in (None, self._compiled):
            return before
        out = new_run_folder(self.tag, self.config) if before is None else before.default_out()
        saved = None if before is None else before.save()
        self.close()
        self._agent = None
        request = replace(self._request(th_compile=compiled), out=out)
        try:
            agent = Agent(look(settle(request), like))
        except ResourceError as error:
            raise ResourceError(_renamed(str(error)), error.reason, error.fits) from None
        agent.notes = [*map(_renamed, agent.notes)]
        self._agent, self._compiled = agent, compiled
        if saved is not None:
            agent.restore(saved)
        if self.config.backend == "local" and self.num_learners > 1:
            agent.notes.append(f"backend local has one learner, in this process, not {self.num_learners}")
        return agent

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._built().default_out()

    def close(self) -> None:
        """End actors, learners, environments and, if this agent started it, Ray."""
        if self._agent is not None:
            self._agent.close()

    def __repr__(self) -> str:
        """The agent that trains, or what it would be."""
        name = type(self).__name__
        if self._agent is not None:
            return f"<{name}: {self._agent!r}>"
        actors, learners = self.num_actors, self.num_learners
        return f"<{name}: {self.algorithm} on {entry_name(self.config.env)}, num_actors {actors}, num_learners {learners}, not started>"

    def __enter__(self) -> DistributedAgent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        """What actors and learners get."""
        settings, given = ({**values, "callbacks": None} for values in (self.settings, self.given))
        config = replace(self.config, callbacks=None)  # the driver's object may hold open files
        return self.__dict__ | {"settings": settings, "given": given, "config": config, "_agent": None}


class IMPALAAgent(DistributedAgent):
    """IMPALA (Espeholt et al. 2018, arXiv:1802.01561) as a DistributedAgent. The plain agent is `raypid.IMPALA`; the other names of this
    kind, such as `raypid.PPOAgent`, are plain agents too."""

    algorithm = "IMPALA"


class APPOAgent(DistributedAgent):
    """APPO, IMPALA with PPO's clipped surrogate (Luo et al. 2020, arXiv:1912.00167), as a DistributedAgent. The plain agent is
    `raypid.APPO`."""

    algorithm = "APPO"


def _settings(kwargs: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """Keyword arguments under the names of the settings; hidden_dim becomes model.hidden.

    Raises:
        ConfigError: a keyword that is close to the name of an argument, or that has another name here.
    """
    given = dict(kwargs)
    own = [name for name in inspect.signature(DistributedAgent).parameters if name not in ("env", "kwargs")]
    for key in given:
        near = get_close_matches(key, own, 1, 0.85)  # for worse matches, the settings' own error has better suggestions
        if near and key not in known:
            raise ConfigError(f"Unknown setting {key!r}. Did you mean {near[0]!r}?")
        if ours := _OURS.get(key.replace("-", "_")):
            raise ConfigError(f"Setting {key!r} is called {ours} here.")
    if (width := given.pop("hidden_dim", None)) is not None:
        model = given.get("model")
        if "model.hidden" in given or (isinstance(model, Mapping) and "hidden" in model):
            raise ConfigError("hidden_dim and model.hidden are the same setting: give one of them.")
        given["model.hidden"] = [width] * 2
    return given
