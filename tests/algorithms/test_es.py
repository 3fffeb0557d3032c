"""Evolution strategies: rank shaping and gradients against what they should be, state, and learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from setups import learner_setup, worker_setup

from raypid.algorithms.es import ARS, ES, ARSConfig, ESConfig
from raypid.envs import EnvSpec
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.policy import load_policy, save_policy
from raypid.ops.evolution import noise_table, weighted_sum
from raypid.ops.normalizer import moments_of
from raypid.roles.acting import RolloutSpec
from raypid.roles.evaluator import Evaluator, Order
from raypid.roles.fitness_worker import FitnessWorker
from raypid.roles.learner import Learner
from raypid.run.resolve import resolve_config
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Fitness

F = np.float32
BOX4 = spaces.Box(-9, 9, (4,), F)


def network_of(config: Any, observation: Any = BOX4, action: Any = None) -> NetworkSpec:
    normalize = config.normalize_observations
    return ES.network_spec(
        config, build_spec(observation, action or spaces.Discrete(2), config.model, normalize=normalize)
    )


def make(algorithm: Any = ES, seed: int = 0, **settings: Any) -> Any:
    given = {"seed": seed, "noise_table_size": 200_000, "model": {"hidden": [3]}, "normalize_observations": False}
    config = algorithm.Config().replace(given | settings)
    config.validate()
    return algorithm(config, network_of(config), seed)


def fitness_of(index: Any, value: Any, length: Any = None) -> Fitness:
    value = np.array(value, np.float64)
    return Fitness(np.array(index), value, np.ones(value.shape, np.int64) if length is None else np.array(length))


def test_a_gradient_step_of_es_by_hand() -> None:
    """Ranks of (5, 1), (3, 3) are 0.5, -0.5, 0, 0: only the first pair counts, 1 / (2 * 2 * sigma)."""
    es = make(optimizer="sgd", momentum=0.0, lr=0.1, sigma=0.5)
    before, noise = es.network.flat.copy(), es.noise
    update = es.update(fitness_of([10, 500], [[5, 1], [3, 3]]), 0)
    step = noise[10 : 10 + len(before)] / (2 * 2 * 0.5)
    np.testing.assert_allclose(es.network.flat - before, 0.1 * step, rtol=1e-4, atol=1e-6)
    assert update.num_updates == 1 and es.version == es.weights().version == 1
    assert update.metrics["grad_norm"] == pytest.approx(np.linalg.norm(step), rel=1e-5)
    assert update.metrics["fitness_mean"] == 3 and update.metrics["fitness_max"] == 5


def test_a_step_of_ars_by_hand() -> None:
    """b = 2 of three pairs: (0, 4) and (3, 1) have the highest of their two; the deviation of 0, 4, 3, 1 is sqrt(2.5)."""
    ars = make(ARS, lr=0.1, top_directions=2, population=3)
    before, noise, p = ars.network.flat.copy(), ars.noise, len(ars.network.flat)
    ars.update(fitness_of([10, 500, 900], [[0, 4], [2, -50], [3, 1]]), 0)
    step = (-4 * noise[10 : 10 + p] + 2 * noise[900 : 900 + p]) / (2 * np.sqrt(2.5))
    np.testing.assert_allclose(ars.network.flat - before, 0.1 * step, rtol=1e-4, atol=1e-6)


def test_ars_begins_at_zero_with_a_linear_policy() -> None:
    config = ARSConfig(seed=0, noise_table_size=1_000)
    ars = ARS(config, network_of(config), 0)
    assert ars.network.table == (("policy.weight", (4, 2)), ("policy.bias", (2,))) and (ars.network.flat == 0).all()
    assert config.normalize_observations and config.optimizer == "sgd"


@pytest.mark.parametrize("algorithm", [ES, ARS])
def test_equal_returns_move_nothing(algorithm: Any) -> None:
    es = make(algorithm)
    before = es.network.flat.copy()
    es.update(fitness_of([1, 2, 3], np.full((3, 2), 500.0)), 0)
    np.testing.assert_array_equal(es.network.flat, before)


@pytest.mark.parametrize("shaping", ["rank", "normalize", "none"])
def test_swapping_the_sides_of_every_pair_turns_the_gradient_round(shaping: Any) -> None:
    es, value = make(fitness_shaping=shaping), np.random.default_rng(0).normal(size=(6, 2))
    np.testing.assert_allclose(es.weigh(value), -es.weigh(value[:, ::-1]))
    ars = make(ARS, top_directions=3)
    np.testing.assert_allclose(ars.weigh(value), -ars.weigh(value[:, ::-1]))


def test_shaping_by_rank_and_deviation_does_not_see_scale_and_shift() -> None:
    value = np.random.default_rng(0).normal(size=(6, 2))
    for es in (make(), make(fitness_shaping="normalize"), make(ARS)):
        factor = 100 if isinstance(es, ARS) else 1  # the mean falls out of the pairs' differences
        np.testing.assert_allclose(es.weigh(value), es.weigh(100 * value + 7 * factor), rtol=1e-5)


def test_the_expected_gradient_of_a_quadratic_is_the_analytic_one() -> None:
    """f(x) = -(x - goal)^T A (x - goal): antithetic differences are exact for a quadratic, the mean of e e^T is the identity."""
    es = make(fitness_shaping="none", sigma=0.2, noise_table_size=2_000_000)
    rng, x, p = np.random.default_rng(0), es.network.flat.astype(np.float64), len(es.network.flat)
    goal, diagonal = rng.normal(size=p), rng.uniform(0.5, 2, p)

    def f(points: Any) -> Any:
        return -(diagonal * (points - goal) ** 2).sum(-1)

    index = rng.integers(len(es.noise) - p, size=40_000)
    noise = np.lib.stride_tricks.sliding_window_view(es.noise, p)[index]
    value = np.stack([f(x + 0.2 * noise), f(x - 0.2 * noise)], 1)
    gradient = weighted_sum(es.noise, index, es.weigh(value), p)
    exact = -2 * diagonal * (x - goal)
    assert np.linalg.norm(gradient - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd"}, {"fitness_shaping": "normalize"}, {"algorithm": ARS}])
def test_it_climbs_a_quadratic(settings: dict[str, Any]) -> None:
    es = make(**({"lr": 0.05, "sigma": 0.05, "lr_schedule": "linear", "schedule_steps": 300} | settings))
    rng, p = np.random.default_rng(0), len(es.network.flat)
    goal = rng.normal(size=p)
    before = np.square(es.network.flat - goal).sum()
    for step in range(300):
        index = rng.integers(len(es.noise) - p, size=16)
        noise = np.stack([es.noise[i : i + p] for i in index]) * es.config.sigma
        value = [[-np.square(es.network.flat + s * e - goal).sum() for s in (1, -1)] for e in noise]
        es.update(fitness_of(index, value), step)
    assert np.square(es.network.flat - goal).sum() < 0.02 * before


def test_weight_decay_and_reward_shift_and_schedule() -> None:
    es = make(weight_decay=0.1, lr=0.5, lr_schedule="linear", schedule_steps=100)
    before = es.network.flat.copy()
    update = es.update(fitness_of([1, 2], [[1, 1], [1, 1]]), 50)
    assert update.metrics["lr"] == 0.25
    np.testing.assert_allclose(es.network.flat, before * (1 - 0.025), rtol=1e-5)
    shifted = make(reward_shift=1.0, fitness_shaping="none")
    flat = shifted.network.flat.copy()
    shifted.update(fitness_of([5], [[7, 4]], [[7, 4]]), 0)  # one a step, for being there
    np.testing.assert_array_equal(shifted.network.flat, flat)


def test_moments_are_merged_and_travel_with_the_weights() -> None:
    es = make(normalize_observations=True)
    rows = np.random.default_rng(0).normal(3, 2, (50, 4))
    for part in (rows[:20], rows[20:]):
        batch = fitness_of([1], [[1, 0]])
        batch.moments = moments_of(part)
        es.update(batch, 0)
    for ours, want in zip(es.moments, moments_of(rows)):
        np.testing.assert_allclose(ours, want)
    np.testing.assert_allclose(es.weights().extra["obs_mean"], rows.mean(0))


class Small:
    """An ES or ARS on CartPole: worker, learner, evaluator, as the loop connects them."""

    def __init__(self, algorithm: Any = ES, seed: int = 0, num_workers: int = 1, **settings: Any) -> None:
        self.algorithm = algorithm
        self.config = c = algorithm.Config().replace({"seed": seed, "noise_table_size": 200_000, **settings})
        network = network_of(c)
        env = EnvSpec(
            env="CartPole-v1", num_envs=c.num_envs_per_worker, vectorizer="native", seed=seed, time_limit=c.time_limit
        )
        self.spec = RolloutSpec(env=env, network=network, fragment_length=1, seed=seed)
        self.workers = [FitnessWorker(self.spec, i, 0, *ES.shared(self.config)) for i in range(num_workers)]
        self.learner = Learner(learner_setup(algorithm, self.config, network, seed))

    def train(self, updates: int) -> Any:
        for _ in range(updates):
            weights, call = self.learner.weights(), self.algorithm.exploration(self.config, 0, 0)
            results = [w.collect(weights, call) for w in self.workers]
            _, weights = self.learner.update(0, *(fitness for _, fitness in results))
        return weights


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("algorithm", [ES, ARS])
def test_it_solves_cartpole_in_seconds(algorithm: Any, seed: int, tmp_path: Any) -> None:
    run = Small(algorithm, seed, num_envs_per_worker=32, population=32)
    evaluator, best = Evaluator(worker_setup(run.spec)), 0.0
    for _ in range(20):
        weights = run.train(1)
        best = float(evaluator.play(weights, Order(10, 99)).rewards.mean())
        if best >= 475:
            break
    assert best >= 475
    save_policy(tmp_path, run.spec.network, weights)
    policy = load_policy(tmp_path)
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(F)
    evaluator.policy.load(weights)
    actions = evaluator.policy.act(obs, None, np.ones(8, bool), np.random.default_rng(0), explore=False).action
    np.testing.assert_array_equal(policy.act(obs), actions)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd"}, {"algorithm": ARS}])
def test_a_restored_run_goes_on_the_same(settings: dict[str, Any]) -> None:
    small_settings = {"population": 8, "num_envs_per_worker": 8, "num_workers": 2, "time_limit": 40, **settings}

    def run(restored: bool) -> Any:
        small = Small(**small_settings)
        small.train(2)
        if restored:
            before, small = small, Small(**small_settings)
            small.learner.load_state_dict(before.learner.state_dict())
            for old, new in zip(before.workers, small.workers):
                new.load_state_dict(old.state_dict())
        for worker in small.workers:
            worker.boundary(1)
        return small.train(3)

    ours, theirs = run(True), run(False)
    np.testing.assert_array_equal(ours.flat, theirs.flat)
    assert ours.version == theirs.version == 5
    np.testing.assert_array_equal(ours.extra["obs_mean"], theirs.extra["obs_mean"])


def test_another_optimizer_begins_anew_on_restored_weights() -> None:
    adam, sgd = make(), make(optimizer="sgd", seed=1)
    adam.update(fitness_of([1, 2], [[1, 0], [3, 2]]), 0)
    sgd.load_state_dict(adam.state_dict())
    np.testing.assert_array_equal(sgd.network.flat, adam.network.flat)
    assert sgd.version == 1 and (sgd.optimizer.velocity == 0).all()


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(ConfigError, match="belong to another network"):
        make().set_weights(make(model={"hidden": [5]}).weights())
    with pytest.raises(ConfigError, match="weights"):
        make().load_state_dict(make(model={"hidden": [5]}).state_dict())
    es, other = make(), make(seed=1)
    es.set_weights(other.weights())
    np.testing.assert_array_equal(es.network.flat, other.network.flat)


@pytest.mark.parametrize(
    ("action", "distribution", "kinds"),
    [
        (spaces.Discrete(3), "auto", ["categorical"]),
        (spaces.Box(-2, 2, (2,), F), "auto", ["deterministic"]),
        (spaces.Box(-2, 2, (2,), F), "squashed_gaussian", ["squashed_deterministic"]),
        (spaces.Dict(a=spaces.MultiBinary(2), b=spaces.Box(-1, 1, (1,), F)), "auto", ["bernoulli", "deterministic"]),
    ],
)
def test_policies_are_deterministic(action: Any, distribution: Any, kinds: list[str]) -> None:
    config = ESConfig(model=ModelConfig(distribution=distribution))
    spec = network_of(config, action=action)
    assert [leaf.kind for leaf in spec.actions] == kinds and spec.head == "actor" and not spec.num_values


def test_images_are_convolved_unless_the_network_is_flat() -> None:
    image = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    assert network_of(ESConfig(), image).network == "cnn"
    assert network_of(ESConfig(model=ModelConfig(network="mlp", hidden=(4,))), image).network == "mlp"
    with pytest.raises(ConfigError, match="noise_table_size must be at least .*, not 4,000,000"):
        network_of(ESConfig(model=ModelConfig(network="mlp", hidden=(64,))), image)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (ESConfig, {"population": 0}, "population"),
        (ESConfig, {"sigma": 0.0}, "sigma"),
        (ESConfig, {"normalize_rewards": True}, "reward_shift"),
        (ESConfig, {"reward_scale": 0.1}, "reward_shift"),
        (ESConfig, {"kernel": "torch"}, "kernel"),
        (ESConfig, {"lr_schedule": "linear"}, "schedule_steps"),
        (ESConfig, {"momentum": 1.5}, "momentum"),
        (ESConfig, {"weight_decay": -0.1}, "weight_decay"),
        (ARSConfig, {"top_directions": 40}, "top_directions"),
        (ARSConfig, {"fitness_shaping": "none"}, "fitness_shaping"),
    ],
)
def test_settings_out_of_range(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config(config.__name__.removesuffix("Config"), {"env": "CartPole-v1", **settings})


def test_a_call_takes_a_workers_share_of_the_population() -> None:
    assert ES.exploration(ESConfig(population=10, num_workers=4), 0, 0) == {"pairs": 3, "sigma": 0.05}
    assert ES.exploration(ESConfig(population=10), 0, 0)["pairs"] == 10
    each = [ES.exploration(ESConfig(population=32, num_workers=5), 0, i)["pairs"] for i in range(5)]
    assert each == [7, 7, 6, 6, 6] and ES.exploration(ESConfig(population=2, num_workers=4), 0, 3)["pairs"] == 1


def test_the_table_is_one_for_all_in_a_process() -> None:
    a, b = make(), make(seed=0)
    assert a.noise is b.noise is noise_table(0, 200_000) and not a.noise.flags.writeable
    assert not np.array_equal(noise_table(1, 1_000), noise_table(2, 1_000))
