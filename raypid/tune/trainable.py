"""Algorithms as Trainables of Ray Tune.

An agent itself is none, so that nothing imports Ray before it is used. A Trainable has an agent, in the process and with the
resources that Tune has given to the trial.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.registry import ENV_CREATOR, _global_registry

from raypid.plugins import project
from raypid.plugins.modules import here
from raypid.plugins.registry import ALGORITHMS, ENVS, adopt, registered
from raypid.run.agent import Agent
from raypid.run.calls import algorithm_of
from raypid.run.evaluation import never
from raypid.run.placement import bundles
from raypid.run.resolve import resolve, tuned_settings
from raypid.runtime.ray_parcel import Carried, enter_folder
from raypid.settings.config import Config, ConfigError, canonical, overlay
from raypid.settings.request import RunRequest
from raypid.tune.exploit import Exploits, write_fingerprints

CPUS, GPUS, DRIVER_CPUS = "cpu", "gpu", "driver_cpu_limit"
"""Keys of `resources`."""


class AgentTrainable(Trainable):
    """A trial that trains an agent: one `step` is one iteration. `trainable` makes subclasses for an algorithm.

    The trial's config holds the settings of the run, as raypid.PPO(config=...) takes them.
    """

    run: ClassVar[str] = ""
    """Name of the algorithm."""
    tuned: ClassVar[bool] = False
    resources: ClassVar[Mapping[str, float]] = {}
    """What the trial takes in all, where that is not what its settings ask for: cpu, gpu, driver_cpu_limit."""
    registrations: ClassVar[Carried[dict[str, dict[str, object]]]] = Carried({})
    """What the user had registered where the class was made; the trial's process knows it too."""
    folder: ClassVar[str] = ""
    """Of the project that was loaded there."""

    agent: Agent
    name: str
    """Of the trial, as its checkpoints say it."""

    # -- what Tune calls -----------------------------------------------------------------------------------------------

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """A bundle for the trial's own process, and one for each worker and each learner."""
        return reserved(cls._request(config), cls.resources)

    def setup(self, config: dict[str, Any]) -> None:
        """Build the agent.

        Raises:
            ConfigError, EnvError, ResourceError: as `Agent` does.
        """
        go_home()
        if self.folder:
            project.load_project(here(self.folder), trust=True)
        adopt(self.registrations.value)
        self._build(config)

    def step(self) -> dict[str, Any]:
        """One iteration. Its result has the newest evaluation, also one of before: a metric of Tune's must be in each result. So the first
        result waits for an evaluation."""
        agent = self.agent
        result = agent.train()
        while agent.evaluations.last is None and agent.config.evaluation_interval != 0:
            agent.evaluations.newest(agent.iteration, never)  # once more if the process that plays was lost
        if (played := agent.evaluations.last) is not None:
            result |= {f"evaluation/{name}": x for name, x in played.summary().items()}
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write all that is needed to go on into a folder."""
        self.agent.export(checkpoint_dir)
        write_fingerprints(self.agent, Path(checkpoint_dir), self.name)

    def load_checkpoint(self, checkpoint: dict[str, Any] | str | None) -> None:
        """Go on from such a folder with the settings of this trial. What is loaded is compared with what was saved.

        Raises:
            ExploitError: the running agent has not all of the saved state, or not all of this trial's settings.
        """
        assert isinstance(checkpoint, str)
        self.agent.restore(checkpoint)
        self.agent.evaluations.forget()
        if (record := self.exploits.check(self.agent, Path(checkpoint), self.name)) is not None:
            self.exploits.add(record)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another trial's place in this process: with a new agent, so that every setting is in force."""
        self.cleanup()
        go_home()
        self._build(new_config)
        return True

    def cleanup(self) -> None:
        """End workers and environments."""
        if (agent := self.__dict__.pop("agent", None)) is not None:
            agent.close()

    # -- the agent -----------------------------------------------------------------------------------------------------

    @classmethod
    def _request(cls, config: Mapping[str, Any]) -> RunRequest:
        """The run that a trial's config asks for."""
        settings = {canonical(key): value for key, value in config.items()}
        below = tuned_settings(cls.run, settings.get("env")) if cls.tuned else {}
        return RunRequest(run=cls.run, settings=overlay({}, settings), recorded=overlay(below, {}))

    def _build(self, config: Mapping[str, Any]) -> None:
        self.name = self.trial_name
        request = self._request(config)
        _find_env(request.settings.get("env"))
        request = replace(share(request, self.resources), out=Path(self.logdir))
        self.agent = Agent(resolve(request))
        self.exploits = Exploits(Path(self.logdir))
        self.agent.listen(self.exploits)
        self.agent.evaluations.plan(in_run=True)  # as `fit` does


def go_home() -> None:
    """Leave the trial's folder, where Tune goes before each trial: paths in settings are meant from where the user is."""
    with contextlib.suppress(KeyError):
        os.chdir(os.environ["TUNE_ORIG_WORKING_DIR"])
    enter_folder()  # on a cluster


def _find_env(env: object) -> None:
    """Take an environment that is registered with Tune and not with raypid from there."""
    if isinstance(env, str) and env not in ENVS and _global_registry.contains(ENV_CREATOR, env):
        ENVS.register(env, _global_registry.get(ENV_CREATOR, env))


def reserved(request: RunRequest, resources: Mapping[str, float]) -> PlacementGroupFactory:
    """What a trial reserves."""
    config = _config_of(share(request, resources))
    parts = bundles(config)
    if DRIVER_CPUS in resources or (CPUS in resources and not config.on_ray):
        parts[0]["CPU"] = float(resources.get(DRIVER_CPUS, resources.get(CPUS, 1)))
    return PlacementGroupFactory([{k: x for k, x in part.items() if x} for part in parts], strategy="PACK")


def share(request: RunRequest, resources: Mapping[str, float]) -> RunRequest:
    """Lay below the settings of a run those that share out what `resources` gives to its trial.

    Raises:
        ConfigError: the trial has less than it needs.
    """
    config = _config_of(request)
    found: dict[str, object] = {"num_gpus": resources[GPUS]} if GPUS in resources else {}
    if config.on_ray and CPUS in resources and "num_cpus_per_worker" not in {**request.recorded, **request.settings}:
        driver, num = resources.get(DRIVER_CPUS, 0), max(1, config.num_workers)
        left = resources[CPUS] - driver - config.num_learners
        if left <= 0:
            raise ConfigError(
                f"resources leave no CPU to {num} workers: of cpu {resources[CPUS]:g}, driver_cpu_limit takes {driver:g} and learners "
                f"{config.num_learners}."
            )
        found["num_cpus_per_worker"] = min(1.0, int(1000 * left / num) / 1000)
    return replace(request, recorded=overlay(found, request.recorded))


def _config_of(request: RunRequest) -> Config:
    config: Config = ALGORITHMS.get(str(request.run)).Config().replace(request.laid)
    return config


def trainable(
    run: str | type, *, tuned: bool = False, resources: Mapping[str, float] | None = None
) -> type[AgentTrainable]:
    """Make a Trainable class for Ray Tune from an algorithm.

    Its placement group has what the settings of a trial ask for: a CPU for the trial's own process if that is all there is, else
    CPUs for its workers and learners, and its GPUs. `setup`, `step`, `save_checkpoint`, `load_checkpoint` and `reset_config` are there, so
    that pausing, resuming, `reuse_actors` and population-based training work.

    Args:
        run: name of an algorithm, a class such as raypid.PPO, or an Algorithm of your own.
        tuned: start from the tuned settings for the trial's environment.
        resources: what a trial takes in all, if not that: {"cpu": 2, "gpu": 1, "driver_cpu_limit": 1}.

    Raises:
        ConfigError: `run` names no algorithm.
        UserError: an unknown name, with the nearest known ones.
    """
    name = algorithm_of(run)
    given = dict(resources or {})
    if unknown := sorted(given.keys() - {CPUS, GPUS, DRIVER_CPUS}):
        raise ConfigError(f"resources takes {CPUS}, {GPUS} and {DRIVER_CPUS}, not {', '.join(map(repr, unknown))}.")
    return carrying(AgentTrainable, name, run=name, tuned=tuned, resources=given)


def carrying(base: type[AgentTrainable], name: str, **about: object) -> type[AgentTrainable]:
    """Make a subclass that takes what is registered here, and the project's folder, to the process of a trial."""
    about |= {"registrations": Carried(registered()), "folder": str(project.loaded or "")}
    return type(name, (base,), {**about, "__module__": base.__module__})
