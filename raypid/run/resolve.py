"""From a RunRequest to a ResolvedRun, once: settings with their origins, environment and network looked at, defaults chosen, end, folder.

`settle` does what needs no environment, `look` the rest; `resolve` is both. Nothing has started then but the look at one environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias, TypeVar

import numpy as np
from gymnasium.spaces import Box

from raypid.algorithms.base import Algorithm
from raypid.callbacks import Callbacks, check_hooks
from raypid.envs import EnvSpec, portable, sample, sample_apart, spaces
from raypid.envs.gym_env import by_id
from raypid.envs.make import FAST_S, LOOK, Depth, Looks, Sample, is_native, only_spaces
from raypid.errors import ConfigError, UserError, shown
from raypid.nn import network_spec
from raypid.nn.catalog import beyond_plain, build_spec, has_open_bounds, needs_look
from raypid.nn.idle_settings import idle_settings
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import read_policy_weights
from raypid.phases import phase
from raypid.plugins import project
from raypid.plugins.arguments import arguments
from raypid.plugins.extras import need
from raypid.plugins.modules import entry_name, located, names_file, to_json
from raypid.plugins.registry import ALGORITHMS, NETWORKS, import_string, is_model
from raypid.plugins.trust import check_names
from raypid.report.logger import read_params
from raypid.roles.evaluator import MAX_STREAMS
from raypid.run.folder import check_folder
from raypid.run.known_keys import check_stop, known_keys
from raypid.runtime.plan import Placement
from raypid.runtime.resources import num_cores
from raypid.settings.config import Config, Given, Source, canonical, given_names, gpu_ids, overlay, sources_by_setting
from raypid.settings.files import PROGRAM, for_algorithm, read_run, refuse_program, saved_options
from raypid.settings.request import RunRequest, join
from raypid.settings.saved import settings_for
from raypid.settings.stops import STEPS
from raypid.settings.tuned import TUNED
from raypid.storage import checkpoint
from raypid.storage.changes import RESUME, Change, differences
from raypid.storage.ownership import has_signature
from raypid.storage.run_folder import PARAMS, RunFolder, is_record
from raypid.types import Weights

AlgorithmClass: TypeAlias = type[Algorithm[Config]]
Choices: TypeAlias = Mapping[str, tuple[object, str]]
"""Settings that were left open -> the value that raypid chooses, and why."""
_BEGINS_FROM = ("init_from", "weights_file")
"""Settings that say where a new run begins."""
S = TypeVar("S", bound="SettledRun")
LONG_EPISODES = range(501, 1_001)
"""Time limits, in steps, at which settings take the values of `where_long`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledRun:
    """What is known of a run without its environment. It is immutable: a change makes a new one."""

    request: RunRequest
    """What was asked for, as it turned out: new, resumed or begun once more."""
    run: str
    """The algorithm's name."""
    config: Config
    """The settings in force: the only ones of the run."""
    sources: Mapping[str, tuple[Source, ...]]
    """Name of a setting ("lr", "model.hidden") -> where its value came from, last, and before it the values that it replaced. One
    that is missing has its default."""
    stop: Mapping[str, float] = field(default_factory=dict)
    """The stop criteria, by the names of results."""
    saved: checkpoint.Checkpoint | None = None
    """The checkpoint that the run goes on from; None: it is new."""
    notes: tuple[str, ...] = ()
    """What the user should know of how the settings came about."""

    @property
    def algorithm(self) -> AlgorithmClass:
        """The algorithm's class."""
        cls: AlgorithmClass = ALGORITHMS.get(self.run)
        return cls

    @property
    def changes(self) -> list[Change]:
        """What was changed in the run so far, and is changed by going on with it (`raypid.storage.changes`)."""
        if self.saved is None:
            return []
        manifest, counters = self.saved.manifest, self.saved.manifest["counters"]
        place = {"step": int(counters["timesteps_total"]), "iteration": int(counters["iteration"]), "by": RESUME}
        differing = [*differences({**manifest["config"], "init_from": None}, self.record())]
        folder = self.request.out
        end = read_params(folder).get("stop") if folder is not None and self.request.is_whole else None
        if isinstance(end, Mapping) and dict(end) != dict(self.stop):
            differing.append(("stop", end, dict(self.stop)))
        new = [{**place, "key": key, "from": old, "to": value} for key, old, value in differing]
        return [*manifest.get("changes", []), *new]

    def record(self) -> dict[str, object]:
        """The settings as params.json and checkpoints have them. A kernel that raypid has chosen stays open: another machine chooses its own."""
        values: dict[str, object] = to_json(self.config.to_dict())
        chosen = {source[-1].kind for name, source in self.sources.items() if name == "kernel"}
        return values | ({"kernel": "auto"} if "adapted" in chosen else {})

    def choose(self: S, choices: Choices) -> S:
        """Return the run with settings that raypid itself has chosen. A switch that was open and is off counts as left alone."""
        sources = dict(self.sources)
        for name, (value, why) in choices.items():
            before = attrgetter(name)(self.config)
            if value != (False if isinstance(value, bool) and before is None else before):
                sources[name] = (*sources.get(name, ()), Source("adapted", why, value))
        config = self.config.replace({name: value for name, (value, _) in choices.items()})
        return replace(self, config=config, sources=sources)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedRun(SettledRun):
    """Everything that a run needs to know before anything starts. Driver, roles, params.json, --explain and checkpoints read it."""

    sample: Sample
    """What one environment showed: its spaces, a first observation."""
    evaluation_env: EnvSpec
    network: NetworkSpec
    callbacks: Callbacks | None
    initial: Weights | None
    """The weights of init_from."""
    plan: Placement | None = None
    """What goes where; None before the run was placed (`raypid.run.placement`)."""


def resolve(request: RunRequest) -> ResolvedRun:
    """Resolve what was asked for. Whatever can be wrong is found before the environment is made, as far as it can be.

    Raises:
        ConfigError: a setting that does not exist, does not fit, or has no effect; a folder that does not go with the rest.
        CheckpointError: the run that goes on has no checkpoint, or a damaged one.
        UntrustedError: it names code that may not be imported.
        EnvError: the environment cannot be used.
    """
    return look(settle(standing(request)))


# -- new, resumed, or begun once more ------------------------------------------------------------------------------


def standing(request: RunRequest) -> RunRequest:
    """Answer whether a whole run is new, goes on, or begins once more in its folder, and check the folder for that.

    Raises:
        ConfigError: the folder holds another run or none, or something was given that does not go with resuming.
        UntrustedError: it names code that may not be imported.
    """
    if not request.is_whole:
        return request
    if request.resume is True:
        request = _in_out(request)
    if isinstance(request.resume, Path):
        _check_beside_resume(request, request.resume)
        if (begun := begun_run(request.resume, request)) is not None:
            begun = for_algorithm(begun, str(begun.run))
            request = replace(join(begun, request), out=request.resume, resume=None, overwrite=True, tuned=False)
    folder = request.resume if isinstance(request.resume, Path) else request.out
    check_folder(folder, resume=request.resume is not None, overwrite=request.overwrite)
    return replace(request, out=folder)


def settle(request: RunRequest) -> SettledRun:
    """Resolve what needs no environment; errors as `resolve`. A seed is drawn if none is given."""
    request, saved = _resumed(request) if request.resume is not None else (_new(request), None)
    assert request.run is not None
    algorithm: AlgorithmClass = ALGORITHMS.get(request.run)
    laid, given = request.laid, given_names(request.settings)
    asked = _with_whole_paths(algorithm.Config().replace(laid))
    sources = {key: tuple(each) for key, each in sources_by_setting(laid).items()}
    run = SettledRun(request=request, run=request.run, config=asked, sources=sources, saved=saved, notes=request.notes)
    run = run.choose(_by_themselves(algorithm, asked, given))
    config, num = run.config, run.config.num_learners
    if num > 1 and not algorithm.several_learners:
        raise ConfigError(f"{run.run} does not support several learners: num_learners must be 0 or 1, got {num}.")
    config.validate(open_end=request.stop is None or STEPS in request.stop)
    config.refuse(config.idle(), given)
    _check_packages(run.run, algorithm, config)
    return replace(run, stop=check_stop(request.stop, known_keys(run.run, config)))


def _in_out(request: RunRequest) -> RunRequest:
    """Turn resume=True into the folder of `out` if a run is there, and into nothing else."""
    if request.out is None:
        raise ConfigError("resume=True needs a folder, where the run goes on or begins: give out='runs/a'.")
    _check_beside_resume(replace(request, tuned=False), request.out)
    has_checkpoint = checkpoint.latest(request.out / "checkpoints") is not None
    if not has_checkpoint and not is_record(RunFolder(request.out).params):
        return replace(request, resume=None)
    request = replace(request, resume=request.out, tuned=False)
    return replace(request, settings=request.settings.without(*_BEGINS_FROM)) if has_checkpoint else request


def _check_beside_resume(request: RunRequest, folder: Path) -> None:
    """Refuse what only a new run can have.

    Raises:
        ConfigError: names the two options.
    """
    others = {
        f"out={str(request.out)!r}: a resumed run goes on in its own folder": request.out not in (None, folder),
        "overwrite=True, which replaces it": request.overwrite,
        f"tuned={request.tuned!r}: a resumed run goes on with its own settings and those given beside it": request.tuned,
    }
    for other in (text for text, given in others.items() if given):
        raise ConfigError(f"resume={str(folder)!r} goes on with a run, and does not go with {other}.")


def begun_run(folder: Path, request: RunRequest) -> RunRequest | None:
    """Read the settings of a run that ended before its first checkpoint, so that it can begin once more; None if `folder` holds no such
    run. Nothing is imported.

    `best/` is written with a checkpoint: a folder that has it and no checkpoint has lost its checkpoints, which beginning once more would
    hide. A run with a program of its own begins once more in Python alone.

    Raises:
        ConfigError: it is a run of another algorithm than that of the request.
        UntrustedError: it names code that may not be imported.
    """
    params, policies = read_params(folder), (folder / checkpoint.BEST, folder / checkpoint.OLD_BEST)
    if not is_record(params) or any(path.exists() for path in policies) or params.get(PROGRAM):
        return None
    if checkpoint.latest(folder / "checkpoints") is not None:
        return None
    file = read_run(folder / PARAMS)
    is_signed = has_signature(PARAMS, params)
    _check_algorithm(folder, file.run, request, is_signed=is_signed)
    _check_code(folder, file.recorded, request.settings, trusted=request.trust or is_signed)
    steps = int(RunFolder(folder, tolerant=True).last("timesteps_total", 0))
    lost = f" Steps lost: {steps:,}." if steps else ""
    note = f"{folder} was ended before its first checkpoint: it begins anew.{lost}"
    return replace(file, stop=params["stop"], notes=(note,))


def saved_algorithm(folder: Path, saved: checkpoint.Checkpoint, request: RunRequest) -> str:
    """The algorithm of a checkpoint; errors as `_check_algorithm`."""
    _check_algorithm(folder, saved.manifest["algorithm"], request, is_signed=saved.manifest["signed"])
    return saved.manifest["algorithm"]


def _check_algorithm(folder: Path, held: str | None, request: RunRequest, *, is_signed: bool) -> None:
    """Check that a run of the algorithm `held` may go on as what is asked for.

    Raises:
        UntrustedError: it may not be imported.
        ConfigError: another one is asked for.
    """
    asked, trusted = request.run, request.trust or is_signed
    check_names(folder, {"algorithm": held}, trusted=trusted, given={"algorithm": asked or ""})
    if asked and asked != held:
        how = "leave the algorithm out (raypid.Agent takes any), and the run goes on with its own"
        raise ConfigError(f"{folder} holds a run of {held}, not of {asked}: {how}.")


def _check_code(folder: Path, saved: Given, given: Given, *, trusted: bool) -> None:
    """Check that what the settings of a saved run name may be imported, and that its cluster may be joined if it uses Ray.

    Raises:
        UntrustedError: they name something that may not.
    """
    names = overlay(saved, given)
    where = {key: value for key, value in names.items() if canonical(key) in ("backend", "num_workers")}
    joins = Config().replace(where).on_ray
    check_names(folder, names if joins else names.without("address"), trusted=trusted, given=given)


def _resumed(request: RunRequest) -> tuple[RunRequest, checkpoint.Checkpoint]:
    """Lay what was asked for over what the checkpoint has. Nothing is imported that may not be."""
    folder = Path(str(request.resume))
    given = overlay(request.recorded.without("init_from"), request.settings)  # that was where the other run began
    saved = checkpoint.open_checkpoint(folder)
    manifest = saved.manifest
    name = saved_algorithm(folder, saved, request)
    below = Given({**manifest["config"], "init_from": None}, "resume", str(folder))
    _check_code(folder, below, given, trusted=request.trust or manifest["signed"])
    how = f"build one in Python, call restore({str(folder)!r}) and then train"
    refuse_program(folder, manifest.get("program", ""), how)
    if any(given.get(name) is not None for name in _BEGINS_FROM):
        raise ConfigError("init_from has no effect here: training goes on with the checkpoint's weights.")
    if not request.is_whole:
        return replace(request, run=name, settings=given, recorded=below), saved
    params = read_params(folder)
    stop = params["stop"] if isinstance(params.get("stop"), Mapping) else None
    before = RunRequest(run=name, out=folder, stop=stop, options=saved_options(params))
    whole = join(before.from_source("resume", str(folder)), request)
    return replace(whole, settings=given, recorded=below, stop=whole.stop or {}), saved


def _new(request: RunRequest) -> RunRequest:
    """Name what a new run cannot do without, and lay tuned settings below if they are asked for.

    Raises:
        ConfigError: something is missing; or both tuned settings and all those of a run are given, of which nobody could say which
            should win.
    """
    if request.run is None:
        raise ConfigError("Name the algorithm: run='PPO' is the first to try (`raypid list agents` shows all).")
    env = request.laid.get("env")
    if env is None:
        raise ConfigError("Name the environment: env='CartPole-v1' (`raypid list envs` shows what there is).")
    if not request.tuned:
        return request
    if request.recorded:
        raise ConfigError("Give tuned settings or a run's params.json, which has a value for every setting: not both.")
    about = request.tuned if isinstance(request.tuned, str) else f"{request.run} on {entry_name(env)}"
    return replace(request, recorded=Given(tuned_settings(request.run, env, request.tuned), "tuned", about))


def tuned_settings(run: str, env: object, name: bool | str = True) -> dict[str, object]:
    """The tuned settings for an algorithm on an environment: those that come with raypid, or by `name` those of a search.

    Raises:
        ConfigError: there are none. The message lists the environments that have some.
        UserError: none of that name, or they are for another algorithm or environment.
    """
    ALGORITHMS.get(run)
    if isinstance(name, str):
        return settings_for(name, run, env)
    if name is not True:
        raise ConfigError(f"tuned takes True, or the name of settings that a search has found, not {shown(name)}.")
    found = TUNED.get((run, env)) if isinstance(env, str) else None
    if found is None:
        known = ", ".join(sorted(name for algorithm, name in TUNED if algorithm == run)) or "none"
        raise ConfigError(f"There are no tuned settings for {run} on {entry_name(env)}; there are for {known}.")
    return dict(found)


# -- settings ------------------------------------------------------------------------------------------------------


def resolve_config(run: str, settings: Mapping[str, object], below: Mapping[str, object] | None = None) -> Config:
    """The algorithm's settings in force without a look at the environment; errors as `resolve`."""
    request = RunRequest(run=run, settings=overlay({}, settings), recorded=overlay(below or {}, {}), stop={})
    return settle(request).config


def _with_whole_paths(config: Config) -> Config:
    """Write files that settings name ("reacher.py:Reach") with their whole paths, so that they are found from every folder."""
    names = ("env", "evaluation_env", "callbacks", "intrinsic_reward", "agent")
    entries = {name: getattr(config, name, None) for name in names} | {"model.network": config.model.network}
    return config.replace({name: located(entry) for name, entry in entries.items() if names_file(entry)})


def _by_themselves(algorithm: AlgorithmClass, config: Config, given: Mapping[str, str]) -> Choices:
    """Choose what follows from other settings: the id within env_config, GPUs and learners, a seed."""
    chosen: dict[str, tuple[object, str]] = {}
    env, env_config = by_id(config.env, config.env_config)
    if env != config.env:
        chosen["env"] = (env, "the id that env_config names")
        chosen["env_config"] = (env_config, "without the id, which is env")
    chosen["custom_args"] = (_custom_args(config.custom_args), "with the project's defaults")
    if config.gpu is not None:
        num_gpus: float = len(gpu_ids(config.gpu))
        if "num_gpus" not in given:
            chosen["num_gpus"] = (num_gpus, "one for each id in gpu")
        if "num_learners" not in given and num_gpus > 1 and algorithm.several_learners and config.on_ray:
            chosen["num_learners"] = (int(config.num_gpus if "num_gpus" in given else num_gpus), "one for each GPU")
    if config.seed is None:
        chosen["seed"] = (int(np.random.SeedSequence().generate_state(1)[0] >> 1), "drawn")
    return chosen


def _check_packages(run: str, algorithm: AlgorithmClass, c: Config) -> None:
    """Check that what the settings need by themselves is installed; `_network` checks what the network needs.

    Raises:
        MissingPackage: names the setting, and the command that installs it.
    """
    needs, instead = {}, []
    if algorithm.learns_with_torch:
        needs["torch"] = run
        instead.append("Without torch PPO, A2C, A3C, IMPALA, APPO, ES and ARS train fully connected networks.")
    elif c.num_learners > 1:
        needs["torch"] = f"num_learners {c.num_learners}"
    if c.on_ray:
        needs["ray"] = f"num_workers {c.num_workers}" if c.num_workers else "backend ray"
        instead.append("num_workers 0 trains in one process without Ray.")
    need(needs, " ".join(instead))


def _custom_args(given: Mapping[str, object]) -> dict[str, object]:
    """The values of all options that the project declares, with `given` over their defaults.

    Raises:
        ConfigError: one is given that the project does not declare.
    """
    declare = project.get_custom_args
    if declare is None and given:
        what = f"custom_args has {next(iter(given))!r}, an option that a project's {project.OPTIONS} declares"
        raise ConfigError(f"{what}: run in the project's folder, or call raypid.load_project(folder) first.")
    if declare is None:
        return {}
    owner = SimpleNamespace(add_args=declare)
    return vars(arguments(owner, project.OPTIONS, "custom_args", given, {}))


# -- environment and network ---------------------------------------------------------------------------------------


def look(run: SettledRun, like: NetworkSpec | None = None, samples: dict[str, Sample] | None = None) -> ResolvedRun:
    """Look at the environment, make the network for it, and choose what the settings leave open.

    Args:
        like: the network that the run must have; by default that of the checkpoint that it goes on from.
        samples: environments that runs like this one have looked at, by `_sample_key`; they are not made again.

    Raises:
        ConfigError, EnvError
    """
    if run.saved is not None:
        like = NetworkSpec.from_dict(run.saved.policy()["network"])
    config, samples = run.config, {} if samples is None else samples
    callbacks, key = callbacks_of(config.callbacks), sample_key(run)
    if key not in samples:
        samples[key] = _sampled(config, _looks(run, is_new=like is None))
        _check_evaluation_env(config, samples[key])
    first = samples[key]
    choices, network, note = _choices(run, first, like)
    run = run.choose(choices)
    initial = read_policy_weights(checkpoint.find_policy(Path(config.init_from)))[1] if config.init_from else None
    settled = {f.name: getattr(run, f.name) for f in fields(SettledRun)}
    return ResolvedRun(
        **{**settled, "notes": (*run.notes, *([note] if note else []))},
        sample=first,
        evaluation_env=_evaluation_env(config),
        network=network,
        callbacks=callbacks,
        initial=initial,
    )


def _choices(run: SettledRun, first: Sample, like: NetworkSpec | None) -> tuple[Choices, NetworkSpec, str]:
    """Choose what the environment and the network decide; returns these settings, the network with them, and a note for the user."""
    config, name = run.config, "normalize_observations"
    is_kept = like is not None and config.normalize_observations is None
    if like is not None and is_kept:
        config = config.replace({name: like.pipeline.normalize})
    network = make_network(run.run, config, first, like)
    by_network = idle_settings(config, network)
    config.refuse(by_network, given_names(run.request.settings))
    idle = {**config.idle(), **by_network}
    chosen = _by_environment(run.algorithm, config, network, first, idle)
    if is_kept and name not in idle:
        chosen[name] = (config.normalize_observations, "a run keeps what it began with")
    if any(value for value, _ in chosen.values()):  # else the network is the one that it is
        config = config.replace({name: value for name, (value, _) in chosen.items()})
        network = make_network(run.run, config, first, like)
    by_spaces = run.algorithm.for_spaces(config, network)
    choices = chosen | {name: choice for name, choice in by_spaces.items() if name not in idle}
    return choices, network, run.algorithm.surprise(config, network)


def _by_environment(
    algorithm: AlgorithmClass, config: Config, network: NetworkSpec, first: Sample, idle: Mapping[str, str]
) -> dict[str, tuple[object, str]]:
    """Choose, where the settings leave it open, whether observations are normalised, and what else a look at the environment decides."""
    chosen: dict[str, tuple[object, str]] = {}
    name = "normalize_observations"

    def is_open(name: str) -> bool:
        return attrgetter(name)(config) is None

    if is_open(name) and name not in idle:
        why = beyond_plain(first.observation_space, network.pipeline)
        chosen[name] = (bool(why), why or "no large numbers in observations")
        if why:
            try:
                config.replace({name: True}).validate(open_end=True)
            except ConfigError:
                chosen[name] = (False, "other settings forbid it")
    as_they_are = not (network.images or chosen.get(name, (config.normalize_observations, ""))[0])
    is_long = as_they_are and first.time_limit in LONG_EPISODES and all(map(is_open, tuple(algorithm.where_long)[:1]))
    is_endless, no_end = first.terminates is False, f"no episode terminates within {LOOK} random steps"
    # a memory's gradients reach back over a whole fragment
    may_split = not network.memory and bool(algorithm.where_native) and all(map(is_open, algorithm.where_native))
    is_fast = may_split and is_endless and first.step_s < FAST_S
    rules = (
        (is_long, algorithm.where_long, f"the time limit is {LONG_EPISODES[0]} to {LONG_EPISODES[-1]:,} steps"),
        (is_endless, algorithm.where_endless, no_end),
        (is_fast, algorithm.where_fast, f"{no_end}, and a step takes under {1000 * FAST_S:g} ms"),
        (may_split and not is_fast and is_native(env_spec_of(config)), algorithm.where_native, "environments step as one vector"),
    )  # fmt: skip
    for _, values, why in filter(itemgetter(0), rules):
        chosen |= {name: (value, why) for name, value in values.items() if name not in idle and is_open(name)}
    return chosen


def sample_key(run: SettledRun) -> str:
    """Equal for runs that look equally far at environments that, also in evaluations, have the same spaces."""
    config = run.config
    return repr((replace(env_spec_of(config), seed=0), config.evaluation_env, _open_to_steps(run)))


def _open_to_steps(run: SettledRun) -> bool:
    """Whether random steps of the environment decide settings."""
    first = next(iter(run.algorithm.where_endless), None)
    return first is not None and attrgetter(first)(run.config) is None


def _looks(run: SettledRun, *, is_new: bool) -> Looks:
    """How far a run looks at its environment: at some observations if these tell pictures from grids of symbols, and at steps if these
    decide a setting."""

    def looks(found: Sample) -> Depth:
        space = found.observation_space
        if is_new and isinstance(found.action_space, Box) and _open_to_steps(run) and has_open_bounds(space):
            return "steps"
        return "reset" if is_new and needs_look(space, found.first) else "spaces"

    return looks


def _sampled(c: Config, looks: Looks) -> Sample:
    """One environment, looked at: the same for all seeds. Where workers will have the environment, it is made in a process of its own, so that
    it can neither end nor stop this one; but not once Ray has started here, whose threads a fork would leave behind."""
    ray, spec = sys.modules.get("ray"), replace(env_spec_of(c), seed=0)
    with phase("making environments", f"making {entry_name(c.env)}"):
        if c.on_ray and hasattr(os, "fork") and not (ray is not None and ray.is_initialized()):
            return sample_apart(spec, c.worker_timeout_s, looks)
        return sample(spec, looks)


def make_network(run: str, c: Config, found: Sample, like: NetworkSpec | None = None) -> NetworkSpec:
    """The network for what one environment showed and the algorithm, with the settings `c`.

    Raises:
        ConfigError: `model.network` does not go with the algorithm, or the network differs from `like`.
    """
    algorithm: AlgorithmClass = ALGORITHMS.get(run)
    observation, action, first = found.observation_space, found.action_space, found.first
    normalize = bool(c.normalize_observations)
    network = build_spec(
        observation, action, c.model, frame_stack=c.frame_stack, normalize=normalize, first=first, like=like
    )
    if network.head == "model" and not algorithm.own_model:
        what = f"model.network {network.network!r} is a whole model, which learns by itself"
        raise ConfigError(f"{what}: run CustomModel, not {run}.")
    if algorithm.own_model and network.head != "model":
        models = ", ".join(name for name in NETWORKS.names() if is_model(name))
        what = f"{run} trains a whole model: model.network takes {models}, or 'module:Class', not {c.model.network!r}"
        raise ConfigError(f"{what}. `raypid list models` shows them; raypid.register_model adds one.")
    if why := algorithm.wants_torch(c, network):
        need({"torch": why})
    network = algorithm.network_spec(c, network)
    squashed = [leaf for leaf in network.actions if leaf.kind.startswith("squashed")]
    if like is None and not np.isfinite([bound for leaf in squashed for bound in (*leaf.low, *leaf.high)]).all():
        why = f"{run} chooses actions between the bounds of their space, and a part of {action} has none"
        raise ConfigError(f"{why}: declare finite bounds in the environment, or train with PPO, which needs none.")
    if network.head != "model" and not NETWORKS.is_own(network.network):
        from raypid.nn.networks import check_network

        check_network(network)
    if like is not None and (differs := "; ".join(network_spec.differences(like, network))):
        raise ConfigError(f"The checkpoint has another network: {differs}. Keep these settings, or start a new run.")
    return network


def _evaluation_env(c: Config) -> EnvSpec:
    """The environment of evaluations, which counts them after the workers."""
    if c.evaluation_env is not None:
        c = c.replace({"env": c.evaluation_env, "env_config": {}})
    return replace(env_spec_of(c), worker_index=max(1, c.num_workers), num_envs=c.evaluation_num_envs or MAX_STREAMS)


def _check_evaluation_env(c: Config, found: Sample) -> None:
    """Check that the environment of evaluations has the spaces of the training environment.

    Raises:
        ConfigError: it has others.
    """
    if c.evaluation_env is None:
        return
    there, here = spaces(_evaluation_env(c)), (found.observation_space, found.action_space)
    if there != here:
        raise ConfigError(f"evaluation_env {entry_name(c.evaluation_env)} has the spaces {there}, training has {here}.")


def env_spec_of(c: Config) -> EnvSpec:
    """The environment part of a Config. Environments registered only in this process are included whole, for the workers."""
    return EnvSpec(
        env=portable(c.env),
        env_config=dict(c.env_config),
        args=dict(c.custom_args),
        vectorizer=c.vectorizer,
        num_envs=c.num_envs_per_worker,
        time_limit=c.time_limit,
        action_repeat=c.action_repeat,
        atari=c.atari,
        num_threads=max(1, int(c.num_cpus_per_worker)) if c.num_workers else num_cores(),
        seed=c.seed or 0,
    )


def callbacks_of(entry: object) -> Callbacks | None:
    """The user's callbacks as an object, from a class, an object or "module:Name".

    Raises:
        ConfigError: `entry` is not a Callbacks, or has an on_... that is no hook.
    """
    if isinstance(entry, str):
        try:
            entry = import_string(entry)
        except UserError:
            if not str(entry).startswith("__main__:"):
                raise
            why = f"The callbacks {entry} are of a script or notebook, and cannot be imported here"
            how = "callbacks='module:Name' names a class that can be, callbacks='none' goes on without"
            raise ConfigError(f"{why}: {how}. In Python, give the class or object itself.") from None
    if isinstance(entry, type):
        entry = entry()
    if entry is not None and not isinstance(entry, Callbacks):
        raise ConfigError(f"callbacks takes a raypid.Callbacks subclass, its instance or 'module:Name', not {entry!r}.")
    if entry is not None:
        check_hooks(entry, Callbacks)
    return entry


def without_effect(run: str, config: Config, found: Sample) -> dict[str, str]:
    """Return the settings that have no effect for the algorithm on an environment, with the reasons.

    Raises:
        ConfigError: the algorithm cannot learn there.
    """
    return {**config.idle(), **idle_settings(config, make_network(run, config, found))}


def spaces_of(config: Config) -> Sample:
    """The environment's spaces of observations and actions.

    Raises:
        EnvError: it cannot be made or used.
    """
    return _sampled(config, only_spaces)
