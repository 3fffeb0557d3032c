"""DistributedAgent: actors that fill storages, learners that empty them, and two methods to override."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

from raypid import checkpoint
from raypid.config import ConfigError, ModelConfig
from raypid.envs import entry_of
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights
from raypid.registry import ALGORITHMS
from raypid.reporting.lines import Lines
from raypid.roles.actor import DistributedWrapper
from raypid.run.agent import Agent
from raypid.run.assembly import new_run_folder, resolve_config
from raypid.run.experiment import Run, RunOptions, lock_folder
from raypid.runtime.resources import ResourceError
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


class DistributedAgent:
    """Trainer for distributed algorithms: `num_actors` actors fill rollout storages, `num_learners` learners empty them, none waits
    for another.

    A subclass names its `algorithm`, and may override `run`, which is what an actor does, and `update`, which is what a learner
    does. Each actor and each learner has a copy of the agent, as it was when training began.

    Args:
        env: environment to train in: an id, a gymnasium.Env class, a function that makes an environment or a vector of them, or
            a gymnasium.vector.VectorEnv. A vector's environments are dealt out to the actors, at least one each.
        eval_env: environment to evaluate in, given as `env`; None: the same.
        tag: begins the name of the run's folder, runs/<tag>_...
        seed: of everything random.
        device: where the learners compute: cpu, cuda, cuda:1, mps, auto.
        num_steps: rows of a rollout, of each environment of an actor.
        num_actors: actors. They and the learners are processes on Ray; where the machine has fewer CPUs, fewer of them are started and
            a line says so. backend="local" runs everything in this process.
        num_learners: learners that update side by side, each with rollouts of its own; 1 learns in this process.
        num_storages: rollouts there may be at once: being filled, waiting, or being learnt from. An actor that finds no free one waits.
        pretraining: learn by an intrinsic reward in place of the task's: random network distillation, or what the setting
            intrinsic_reward names.
        kwargs: settings of the algorithm (batch_size, lr, entropy_coef, num_envs_per_worker, model, ...); hidden_dim is the width of
            all hidden layers.

    Raises:
        ConfigError: a setting that does not exist or does not fit. EnvError: the environment.
    """

    algorithm: ClassVar[str] = "IMPALA"

    def __init__(
        self,
        env: Any,
        eval_env: Any = None,
        tag: str = "default",
        seed: int = 1,
        device: str = "cpu",
        num_steps: int = 80,
        num_actors: int = 45,
        num_learners: int = 4,
        num_storages: int = 60,
        *,
        pretraining: bool = False,
        **kwargs: Any,
    ) -> None:
        self.tag, self.num_steps, self.num_actors = tag, num_steps, num_actors
        self.num_learners, self.num_storages, self.pretraining = num_learners, num_storages, pretraining
        given = _settings(kwargs, [f.name for f in fields(ALGORITHMS.get(self.algorithm).Config)])
        self._check(given)
        local = given.get("backend") == "local"
        entry = entry_of(env, dict(given.get("env_config", {})))
        settings = {
            "env": entry.env,
            "evaluation_env": None if eval_env is None else entry_of(eval_env, {}).env,
            "evaluation_interval": 0,  # train() says when
            "seed": seed,
            "device": device,
            "fragment_length": num_steps,
            "num_workers": num_actors,
            "num_learners": 0 if local or num_learners == 1 else num_learners,
            "fit": True,
            **({"env_config": entry.config} if entry.config else {}),
            **({"intrinsic_reward": "rnd"} if pretraining else {}),
        }
        if entry.num_envs is not None:
            settings["num_envs_per_worker"] = math.ceil(entry.num_envs / (num_actors if entry.shared else 1))
        self.settings, self.given = settings, given
        """What `raypid.Agent` takes: settings of this class, and the user's over them."""
        self.config = resolve_config(self.algorithm, given, settings)
        self._check_storages()
        self.learner: Any = None
        """In a learner: the algorithm, with its networks. None elsewhere."""
        self._agent: Agent | None = None
        self._steps_per_iteration = 0

    def _check(self, given: Mapping[str, Any]) -> None:
        """Raises:
        ConfigError: what does not fit, under the names that it has here."""
        algorithm = ALGORITHMS.get(self.algorithm)
        if (algorithm.flow, algorithm.collect) != ("async", "trajectory"):
            raise ConfigError(f"A DistributedAgent runs IMPALA, APPO or a subclass of theirs, not {self.algorithm}.")
        if not self.tag or Path(self.tag).name != self.tag:
            raise ConfigError(f"tag begins a folder's name, so it has no slashes: {self.tag!r} does not fit.")
        for name in ("num_steps", "num_actors", "num_learners", "num_storages"):
            if not isinstance(value := getattr(self, name), int) or value < 1:
                raise ConfigError(f"{name} is a whole number of at least 1, not {value!r}.")
        if self.num_learners > self.num_actors:
            raise ConfigError(
                f"num_learners must be at most num_actors, not {self.num_learners} for {self.num_actors}: "
                "each learner learns from actors of its own."
            )

    def _check_storages(self) -> None:
        update = max(ALGORITHMS.get(self.algorithm).update_size(self.config), self.config.num_learners)
        if self.num_storages < update:
            raise ConfigError(
                f"num_storages {self.num_storages} can never hold the {update} rollouts that an update takes: set it to at "
                f"least {update}, or lower fragments_per_update ({self.config.fragments_per_update}) or num_learners."
            )

    # -- what a subclass may override ------------------------------------------------------------------------------

    def run(self, env: DistributedWrapper, actor_idx: int) -> Iterator[Trajectory]:
        """What actor `actor_idx` does: a generator that yields trajectories of num_steps rows, for ever.

        A yield puts the trajectory into a storage and comes back when one is free, with the newest weights.
        """
        while True:
            yield env.rollout()

    def update(self, batch: Trajectory, timesteps: int) -> Update:
        """What a learner does with a batch, which has the rollouts of an update side by side. `timesteps`: environment steps so far.

        `self.learner` is the algorithm. Of several learners, all call `self.learner.update` equally often.
        """
        done: Update = self.learner.update(batch, timesteps)
        return done

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
    ) -> dict[str, Any]:
        """Train; a second call goes on. The run's folder is what `raypid train` writes: params.json, result.json with a line an
        iteration, checkpoints. Returns the last iteration's result.

        Args:
            num_train_steps: environment steps of this call, of all actors together.
            init_model_path: a checkpoint, run folder or policy folder; training starts from its weights.
            log_interval: iterations between printed lines; 0 prints none. An iteration is a rollout of every actor, or less where an
                interval is shorter.
            eval_interval: environment steps between evaluations; 0: none. Actors go on with what they have begun meanwhile.
            save_interval: environment steps between checkpoints, all of which stay; 0: only at the end.
            num_eval_episodes: episodes of an evaluation.
            th_compile: compile the networks with torch.compile, for long runs and GPUs. Small networks learn with PyTorch
                then, not with the faster NumPy kernel.

        Raises:
            ConfigError: a value that does not fit. ResourceError: not even one actor fits on the machine. KeyboardInterrupt: after
            the checkpoint that Ctrl-C asks for.
        """
        for name, value, low in (
            ("num_train_steps", num_train_steps, 1),
            ("log_interval", log_interval, 0),
            ("eval_interval", eval_interval, 0),
            ("save_interval", save_interval, 0),
            ("num_eval_episodes", num_eval_episodes, 1),
        ):
            if value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value}.")
        if self._agent is not None:
            self._agent.check_open()
        initial = None
        if init_model_path is not None:
            initial = read_policy_weights(checkpoint.find_policy(Path(init_model_path)))[1]
        agent = self._built(th_compile)
        if initial is not None:
            agent.set_weights(initial)
        plan = agent.context.plan
        assert plan is not None
        intervals = [steps for steps in (num_train_steps, eval_interval, save_interval) if steps]
        plan.steps_per_iteration = min(self._steps_per_iteration, *intervals)
        agent.config.evaluation_num_episodes = num_eval_episodes
        options = RunOptions(
            stop={"timesteps_total": agent.context.timesteps + num_train_steps},
            evaluation_steps=eval_interval,
            checkpoint_steps=save_interval,
            keep_checkpoints=sys.maxsize,
            final_episodes=0,
        )
        with lock_folder(agent.default_out()):
            outcome = Run(agent, options, Lines(log_interval))()
        if outcome.interrupted:
            raise KeyboardInterrupt
        return outcome.result

    def eval(self, num_eval_episodes: int) -> dict[str, float]:
        """Play episodes with the current weights, greedily; episode_reward_mean, episode_reward_ci95 and more."""
        return self._built().eval(num_eval_episodes)

    def save(self, folder: str | Path | None = None) -> Path:
        """Write a checkpoint, by default among those of the run's folder; returns its folder."""
        return self._built().save(folder)

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint or a run's folder (its newest checkpoint): weights, optimizer, normaliser, counters. This agent's
        settings, `run` and `update` hold; its results go to a folder of its own.

        Raises:
            CheckpointError: nothing there, or damaged. ConfigError: it belongs to another algorithm or network.
        """
        like = read_policy_weights(checkpoint.find(Path(path)) / "policy")[0]
        self._built(like=like).restore(path)

    def _built(self, th_compile: bool | None = None, like: NetworkSpec | None = None) -> Agent:
        """The agent that trains; built anew, from where it was, if it is to compile now or no longer."""
        before = self._agent
        if before is not None and th_compile in (None, before.config.th_compile):
            return before
        out = new_run_folder(self.tag, self.config) if before is None else before.default_out()
        saved = None
        if before is not None:
            saved = before.save()
            before.close()
            self._agent = None
        given = self.given | {"th_compile": bool(th_compile)}
        try:
            self._agent = agent = Agent(self.algorithm, given, out=out, program=self, like=like, below=self.settings)
        except ResourceError as error:
            raise ResourceError(_in_our_words(str(error))) from None
        agent.notes = [_in_our_words(note) for note in agent.notes]
        if saved is not None:
            agent.restore(saved)
        if self.config.backend == "local" and self.num_learners > 1:
            agent.notes.append(f"backend local has one learner, in this process, not {self.num_learners}")
        assert agent.context.plan is not None
        agent.context.plan.max_parts = self.num_storages
        c = agent.config
        self._steps_per_iteration = (
            c.steps_per_iteration or max(1, c.num_workers) * c.num_envs_per_worker * c.fragment_length
        )
        return agent

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._built().default_out()

    def close(self) -> None:
        """End actors, learners, environments and, where this agent started it, Ray."""
        if self._agent is not None:
            self._agent.close()

    def __enter__(self) -> DistributedAgent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """What crosses to actors and learners."""
        return self.__dict__ | {"_agent": None}


class IMPALAAgent(DistributedAgent):
    """IMPALA (Espeholt et al. 2018, arXiv:1802.01561)."""

    algorithm = "IMPALA"


class APPOAgent(DistributedAgent):
    """APPO: IMPALA with PPO's clipped surrogate (Luo et al. 2020, arXiv:1912.00167)."""

    algorithm = "APPO"


def _in_our_words(text: str) -> str:
    """What the preflight says of workers and flags, as it is called here."""
    text = re.sub(r"--([a-z-]+) (?=[\d.])", lambda flag: flag[1].replace("-", "_") + "=", text)
    words = {"--fit does": "fit=True does", "workers": "actors", "num_learners=0": "num_learners=1"}
    for theirs, ours in words.items():
        text = text.replace(theirs, ours)
    return text


def _settings(kwargs: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments under the names that the settings have.

    Raises:
        ConfigError: one that has a name of its own here, or is close to one.
    """
    given = dict(kwargs)
    own = [name for name in inspect.signature(DistributedAgent).parameters if name not in ("env", "kwargs")]
    for key in given:
        near = get_close_matches(key, own, 1, 0.85)  # what is further off, the settings' own error knows better
        if near and key not in known:
            raise ConfigError(f"Unknown setting {key!r}. Did you mean {near[0]!r}?")
        if ours := _OURS.get(key.replace("-", "_")):
            raise ConfigError(f"Setting {key!r} is called {ours} here.")
    if (width := given.pop("hidden_dim", None)) is not None:
        if "model.hidden" in given or "hidden" in given.get("model", {}):
            raise ConfigError("hidden_dim and model.hidden are the same setting: give one of them.")
        given["model"] = {**given.get("model", {}), "hidden": [width] * len(ModelConfig().hidden)}
    return given
