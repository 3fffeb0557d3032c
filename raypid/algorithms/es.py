"""Evolution strategies (Salimans et al. 2017, arXiv:1703.03864, algorithm 2) and augmented random search (Mania et al. 2018,
arXiv:1803.07055, algorithm 2). No gradient passes through a network, and torch is not needed anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from raypid.algorithms.base import Algorithm, AsynchronousConfig, OptimizerConfig, Parameters
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.population import initial_weights, make_population
from raypid.ops.evolution import centered_ranks, noise_table, weighted_sum
from raypid.ops.optim import SGD, Adam, RMSProp
from raypid.settings.config import Config, ConfigError, ModelConfig
from raypid.settings.ranges import Choices, of_model, tunable
from raypid.types import Array, Fitness, Update, flat_views


@dataclass(kw_only=True, slots=True)
class ESConfig(AsynchronousConfig, OptimizerConfig, Config):
    """Settings of ES."""

    model: ModelConfig = field(
        default_factory=ModelConfig, metadata=of_model(hidden=Choices(((), (16,), (32, 32), (64, 64))))
    )
    """The network."""
    num_envs_per_worker: int = tunable(32, 8, 128, "powers of 2")
    """Environments that one worker steps side by side, each with its own perturbation. A worker's share of the
    population is best a multiple of half of them, since steps after the last perturbation was given out count for
    nothing."""
    normalize_observations: bool | None = True
    """Shift and scale each element of observations by its running mean and deviation. The moments are merged over
    workers, saved, and frozen in evaluation. none: chosen from the environment (--explain shows the value and why)."""
    lr: float = tunable(0.02, 1e-3, 0.3, "log")
    population: int = tunable(32, 16, 128, "powers of 2")
    """Pairs of perturbations in one update, of all workers together. Each pair plays two episodes. More estimate the
    gradient with less noise, but take longer."""
    sigma: float = tunable(0.05, 0.01, 0.3, "log")
    """Standard deviation of the perturbations, in units of the weights. Larger looks farther around the policy, but
    sees less detail."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer that turns the estimated gradient into a step of the weights."""
    momentum: float = 0.9
    """Momentum of optimizer sgd. Higher averages over more updates. 0: none."""
    adam_eps: float = 1e-8
    weight_decay: float = tunable(0.0, 1e-4, 0.1, "log", also=(0.0,))
    """Decoupled weight decay: each update shrinks the weights by the fraction lr * weight_decay (Loshchilov and Hutter
    2019)."""
    fitness_shaping: Literal["rank", "normalize", "none"] = "rank"
    """What takes the place of returns. rank: centred ranks in [-0.5, 0.5]. normalize: returns with mean 0 and deviation
    1. none: returns as they are."""
    reward_shift: float = 0.0
    """Subtracted from every reward before returns are compared. A bonus for staying alive, if it is left in, rewards a
    policy that does not move (Mania et al. 2018, section 4)."""
    noise_table_size: int = 4_000_000
    """Numbers in the table of normal noise from which all perturbations are cut. Each node holds it once, at 4 bytes a
    number."""
    max_staleness: int | None = 1
    """Most updates between the weights that were perturbed and the newest. Older fitness is dropped and counted
    (lost/stale). none: no limit."""
    fragments_in_flight: int = 1

    no_effect = {
        "gamma": "for ES and ARS, which compare undiscounted returns",
        "batch_size": "for ES and ARS, which have no minibatches: set population",
        "noise_persistence": "for ES and ARS, which perturb weights, not actions: set sigma",
        "fragment_length": "for ES and ARS, which play whole episodes: set population or time_limit",
        **dict.fromkeys(
            ("normalize_rewards", "reward_scale", "reward_clip"),
            "for ES and ARS, which compare the returns of whole episodes: set reward_shift",
        ),
        **dict.fromkeys(("kernel", "device", "num_gpus", "num_threads"), "for ES and ARS, which need no gradients"),
    }

    ranges = {
        "be at least 0": ("weight_decay",),
        "be at least 1": ("population", "noise_table_size"),
        "be above 0 and finite": ("sigma",),
        "lie in [0, 1]": ("momentum",),
    }


class ES(Algorithm[ESConfig]):
    """theta climbs 1 / (2 n sigma) sum_k (u_k+ - u_k-) e_k, with u the shaped returns of n antithetic pairs."""

    Config = ESConfig
    metric_names = frozenset({"fitness_mean", "fitness_std", "fitness_max", "grad_norm", "weight_norm", "lr"})
    shown_metrics = ("fitness_mean", "fitness_std", "fitness_max", "grad_norm", "weight_norm")
    network: Parameters
    optimizer: Adam | RMSProp | SGD
    flow = "async"
    collect = "fitness"

    def __init__(self, config: ESConfig, spec: NetworkSpec, seed: int) -> None:
        super().__init__(config, spec, seed)
        flat, table = initial_weights(spec, seed, self.rng)
        if not spec.hidden:
            # a linear policy needs no random start, and ARS has none; convolutions before it keep theirs
            for name in ("policy.weight", "policy.bias"):
                flat_views(flat, table)[name][:] = 0
        self.network = Parameters(flat, table)
        self.optimizer = config.rule(flat)
        (self.noise,) = self.shared(config)

    @classmethod
    def network_spec(cls, config: ESConfig, spec: NetworkSpec) -> NetworkSpec:
        """Return the network with a deterministic policy and no value.

        Raises:
            ConfigError: a memory, or a network that is large for the noise table.
        """
        if spec.memory:
            raise ConfigError(f"ES and ARS act without a memory, not with {spec.memory}: set frame_stack, or take PPO.")
        kinds = {"gaussian": "deterministic", "squashed_gaussian": "squashed_deterministic"}
        actions = tuple(replace(leaf, kind=kinds.get(leaf.kind, leaf.kind)) for leaf in spec.actions)
        spec = replace(spec, actions=actions, head="actor")
        size = make_population(spec, 1).streams.shape[1]
        if config.noise_table_size < 10 * size:
            raise ConfigError(f"noise_table_size must be at least {10 * size:,}, not {config.noise_table_size:,}.")
        return spec

    @classmethod
    def shared(cls, config: ESConfig) -> tuple[Array, ...]:
        return (noise_table(config.seed or 0, config.noise_table_size),)

    @classmethod
    def update_size(cls, config: ESConfig) -> int:
        return config.population

    @classmethod
    def exploration(cls, config: ESConfig, timesteps: int, worker_index: int) -> dict[str, Any]:
        """Return a worker's share of the population (at least one pair), which one call evaluates."""
        each, more = divmod(config.population, max(1, config.num_workers))
        return {"pairs": max(1, each + (worker_index < more)), "sigma": config.sigma}

    def update(self, batch: Fitness, timesteps: int) -> Update:
        c, lr = self.config, self.lr(timesteps)
        weight = self.weigh(batch.value - c.reward_shift * batch.length)
        gradient = weighted_sum(self.noise, batch.index, weight, len(self.network.flat))
        self.network.flat *= 1 - lr * c.weight_decay
        self.optimizer.step(-gradient, lr)
        self.merge(batch.moments)
        self.version += 1
        metrics = {
            "fitness_mean": float(batch.value.mean()),
            "fitness_std": float(batch.value.std()),
            "fitness_max": float(batch.value.max()),
            "grad_norm": float(np.linalg.norm(gradient)),
            "weight_norm": float(np.linalg.norm(self.network.flat)),
            "lr": lr,
        }
        return Update(metrics, 1)

    def weigh(self, value: Array) -> Array:
        """Compute the weight of each perturbation [n] in the gradient from the returns [n, 2] of its pair."""
        c = self.config
        if c.fitness_shaping == "rank":
            value = centered_ranks(value)
        elif c.fitness_shaping == "normalize":
            value = (value - value.mean()) / (value.std() + 1e-8)
        return (value[:, 0] - value[:, 1]) / (2 * len(value) * c.sigma)


@dataclass(kw_only=True, slots=True)
class ARSConfig(ESConfig):
    """Settings of ARS: V2 of the paper, with top_directions V2-t; normalize_observations false is V1."""

    model: ModelConfig = field(default_factory=partial(ModelConfig, hidden=()))
    """The network."""
    sigma: float = 0.03
    optimizer: Literal["adam", "sgd"] = "sgd"
    momentum: float = 0.0
    top_directions: int | None = tunable(None, 2, 16, "log", also=(None,))
    """Number of pairs that count, which are those with the highest of their two returns (b in the paper). none: all."""

    no_effect = {
        **ESConfig.no_effect,
        "fitness_shaping": "for ARS, which divides by the deviation of the returns: take ES",
    }

    def own_checks(self) -> None:
        if self.top_directions is not None and not 1 <= self.top_directions <= self.population:
            raise ConfigError(f"top_directions must lie in [1, {self.population}], not {self.top_directions}.")


class ARS(ES):
    """theta climbs 1 / (b sigma_R) sum over the b best pairs of (r_k+ - r_k-) e_k, sigma_R the deviation of their 2 b returns."""

    Config = ARSConfig
    metric_names = ES.metric_names
    config: ARSConfig

    def weigh(self, value: Array) -> Array:
        b = min(self.config.top_directions or len(value), len(value))
        best = np.argsort(-value.max(1), kind="stable")[:b]
        deviation = value[best].std()
        weight = np.zeros(len(value))
        if deviation > 0:
            weight[best] = (value[best, 0] - value[best, 1]) / (b * deviation)
        return weight


DEFAULT_CONFIG: dict[str, object]
"""The settings of ES with their defaults, a dict of your own each time."""
