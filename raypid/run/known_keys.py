"""Which keys the results of a run will have, known before it starts, and the stop criteria that name them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from raypid.algorithms.actor_critic import ActorCriticConfig
from raypid.algorithms.base import Algorithm
from raypid.algorithms.intrinsic import intrinsic_class
from raypid.algorithms.off_policy import OffPolicyConfig
from raypid.errors import shown
from raypid.plugins.registry import ALGORITHMS, suggest
from raypid.roles.evaluator import EVALUATION_METRICS
from raypid.settings.config import Config, ConfigError
from raypid.settings.stops import SECONDS, SHORT, read_stop
from raypid.storage.run_folder import COUNTS

_ALWAYS = (
    "training_iteration", "timesteps_total", "episodes_total", "time_this_iter_s", "time_total_s", "env_steps_per_s",
    "learner_updates_total", "episode_reward_mean", "episode_reward_min", "episode_reward_max",
    "episode_reward_this_iter", "episode_len_mean",
    "lost/workers", "lost/timeouts", "lost/env_crashes", "lost/evaluators",
    "timing/env", "timing/inference", "timing/transport", "timing/learner", "timing/evaluation",
)  # fmt: skip


USUAL = tuple(dict.fromkeys(SHORT.values()))
"""Stop criteria that have a short form."""


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The keys of results, as far as they are declared."""

    keys: frozenset[str]
    """Keys that this run will report, sooner or later."""
    open: tuple[str, ...]
    """Beginnings of keys that may be anything: what users' callbacks and algorithms report is not declared."""


def known_keys(run: str, config: Config) -> KnownKeys:
    """Return the keys that results of the algorithm `run` have with these settings."""
    algorithm: type[Algorithm[Config]] = ALGORITHMS.get(run)
    keys = set(_ALWAYS)
    learner = _learner_metrics(algorithm, config)
    is_open = learner is None or algorithm.more_metrics
    keys |= {f"learner/{name}" for name in learner or ()}
    keys |= {f"lost/{kind}" for kind in kinds_of_losses(config)}
    if algorithm.flow == "async":
        keys.add("lost/stale")
    if config.on_divergence == "rollback":
        keys.add("lost/rollbacks")
    if config.parameter_server:
        keys |= {f"parameter_server/{name}" for name in ("version", "pushes", "pulls", "refused")}
    if config.evaluation_interval != 0:
        keys |= {f"evaluation/{name}" for name in (*EVALUATION_METRICS, "timesteps_total")}
    return KnownKeys(frozenset(keys), ("custom/", "learner/") if is_open else ("custom/",))


def kinds_of_losses(config: Config) -> list[str]:
    """The names under lost/ of roles that may be lost, and of what goes with them."""
    kinds = ["workers", "timeouts", *(["parameter_servers"] if config.parameter_server else [])]
    if not config.on_ray:
        return kinds
    kinds += ["nodes", "fragments"]
    if config.num_learners:
        kinds += ["learners", "updates"]
    if isinstance(config, OffPolicyConfig):
        kinds += ["shards"] if config.num_replay_shards else []
        kinds += ["replay_rows"] if config.num_replay_shards or config.num_learners else []
        kinds += ["shared_parameters"] if config.num_learners > 1 and config.learner_sync == "asynchronous" else []
    return kinds


def _learner_metrics(algorithm: type[Algorithm[Config]], config: Config) -> set[str] | None:
    """Return the names under learner/; None if the algorithm, or the intrinsic reward, declares none itself."""
    names: set[str] = set()
    makers: list[type] = [algorithm]
    if isinstance(config, ActorCriticConfig) and config.intrinsic_reward is not None:
        makers.append(intrinsic_class(config.intrinsic_reward))
    for maker in makers:
        declared: frozenset[str] | None = vars(maker).get("metric_names")
        if declared is None:
            return None
        names |= declared
    if algorithm.flow == "async":
        names.add("staleness")
    if isinstance(config, OffPolicyConfig):
        explored = {name for steps in (0, 2**62) for name in algorithm.exploration(config, steps, 0)}
        names |= {"samples_per_insert", "a_l_ratio", "replay_rows", *explored} - {"random"}
        names |= {"reward_factor"} if config.normalize_rewards else set()
        if config.prioritized and config.priority_exponent and config.learner_sync == "all_reduce":
            names.add("replay_skipped_priorities")
    return names


def check_stop(stop: object, known: KnownKeys) -> dict[str, float]:
    """Return stop criteria, in any form that `read_stop` takes, as numbers by our names.

    Raises:
        ConfigError: a key that no result of this run will have, a value that is no number, or one that is met before the run begins.
            Metrics of callbacks are written "custom/<name>".
    """
    checked: dict[str, float] = {}
    for key, value in read_stop(stop).items():
        if key not in known.keys and not key.startswith(known.open):
            if key.startswith("evaluation/") and not any(k.startswith("evaluation/") for k in known.keys):
                raise ConfigError(f"Stop criterion {key!r} can never be met: evaluation_interval is 0.")
            raise ConfigError(f"Unknown stop criterion {key!r}. {_meant(key, known)} A callback's metric is custom/x.")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            raise ConfigError(f"The stop criterion {key!r} takes a number, not {shown(value)}.")
        if value <= 0 and key in COUNTS:
            raise ConfigError(f"The stop criterion {key!r} takes a number above 0, not {value}.")
        if key in COUNTS and key != SECONDS and value != int(value):
            raise ConfigError(f"The stop criterion {key!r} takes a whole number, not {value}.")
        checked[key] = float(value)
    return checked


def _meant(key: str, known: KnownKeys) -> str:
    """The criteria that an unknown one may be meant for, else those that are usual."""
    keys = [name for name in known.keys if "/" in key or not name.startswith(("lost/", "timing/"))]
    if near := suggest(key, [*keys, *SHORT]):
        return f"Did you mean {' or '.join(map(repr, near))}?"
    return f"Usual criteria are {', '.join(name for name in USUAL if name in known.keys)}; docs/run-folder.md has all."
