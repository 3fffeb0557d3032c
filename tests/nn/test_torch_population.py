"""A population in torch: each stream acts as a network of its own with the same weights would, from the layers to whole episodes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import raypid
from raypid.algorithms.es import ARS, ES, ARSConfig, ESConfig
from raypid.envs import EnvSpec
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import TorchNetwork
from raypid.nn.pipeline import Inputs
from raypid.nn.population import make_population
from raypid.ops.evolution import noise_table
from raypid.plugins.registry import NETWORKS
from raypid.roles.acting import RolloutSpec
from raypid.roles.fitness_worker import FitnessWorker
from raypid.runtime.handle import places
from raypid.runtime.local import LocalBackend
from raypid.runtime.supervisor import Group, Losses
from raypid.settings.config import ConfigError, ModelConfig
from raypid.types import Weights, flat_views

F = np.float32
IMAGE = spaces.Box(0, 255, (20, 18), np.uint8)
MIXED = spaces.Dict(image=spaces.Box(0, 255, (12, 10, 3), np.uint8), speed=spaces.Box(-1, 1, (2,), F))
CATCH: dict[str, Any] = {
    "env": "raypid/Catch-v0", "seed": 0, "population": 4, "num_envs_per_worker": 4, "noise_table_size": 100_000,
    "model": {"network": "cnn", "channels": [4, 8], "hidden": [8]},
}  # fmt: skip


class Features(torch.nn.Module):
    """A user's network, for an image."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(width), torch.nn.LayerNorm(width)
        )  # fmt: skip
        self.layers(torch.zeros(1, 1, 20, 18))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(image))


class Chooses(Features):
    """A user's network that looks at its numbers to choose what to do, which vmap cannot."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return super().forward(image if image.max() > 0.5 else -image)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = {"t-features": Features, "t-chooses": Chooses}
    monkeypatch.setattr(NETWORKS, "_entries", {**NETWORKS._entries, **own})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run; beside other processes several wait for each other
    yield
    torch.set_num_threads(threads)


def network_of(space: Any = IMAGE, action: Any = None, *, stack: int = 1, **model: Any) -> NetworkSpec:
    given = {"network": "cnn", "hidden": (6,), "channels": (3, 4)} | model
    spec = build_spec(space, action or spaces.Discrete(3), ModelConfig(**given), frame_stack=stack)
    return ES.network_spec(ESConfig(), spec)


@pytest.mark.parametrize(
    "spec",
    [
        partial(network_of),
        partial(network_of, network="resnet", activation="relu"),
        partial(network_of, MIXED, spaces.Box(-1, 1, (2,), F), stack=2),
        partial(network_of, network="t-features", hidden=(), channels=()),
    ],
    ids=["cnn", "resnet", "image and vector, stacked", "registered"],
)
def test_each_stream_is_a_network_of_its_own(spec: Any) -> None:
    spec, rng = spec(), np.random.default_rng(0)
    population, single = make_population(spec, 5), TorchNetwork(spec)
    images = {path: rng.integers(0, 256, (5, *shape), dtype=np.uint8) for path, shape in spec.images}
    inputs = Inputs(rng.normal(size=(5, spec.pipeline.vector_size)).astype(F), images)
    population.load(single.numpy())
    np.testing.assert_allclose(population.policy(inputs)[0], single.policy(inputs)[0], rtol=1e-4, atol=1e-5)
    population.streams[:] += 0.2 * rng.standard_normal(population.streams.shape, dtype=F)
    params, value, state = population.policy(inputs)
    assert params.shape == (5, spec.num_outputs) and value is state is None
    for b in range(5):
        single.load(population.streams[b])
        want = single.policy(inputs.take(slice(b, b + 1)))[0][0]
        np.testing.assert_allclose(params[b], want, rtol=1e-4, atol=1e-5)
    assert abs(params - params[0]).max() > 0.01


class Shown(gymnasium.Env[Any, Any]):
    """The reward is the action; the image shows the step. Episodes of 3 steps."""

    observation_space, action_space = IMAGE, spaces.Box(-np.inf, np.inf, (1,), F)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return image_of(0), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return image_of(self.t), float(action[0]), self.t == 3, False, {}


def image_of(step: int) -> Any:
    return np.random.default_rng(step).integers(0, 256, IMAGE.shape, dtype=np.uint8)


def test_fitness_is_the_return_of_the_perturbed_network() -> None:
    network = network_of(action=Shown.action_space)
    start, noise = TorchNetwork(network), noise_table(0, 100_000)
    spec = RolloutSpec(
        env=EnvSpec(env=Shown, num_envs=3, vectorizer="sync", seed=0), network=network, fragment_length=1, seed=0
    )
    rollout = FitnessWorker(spec, 0, 0, noise)
    report, fitness = rollout.collect(Weights(0, start.numpy().copy(), start.table), {"pairs": 4, "sigma": 0.3})
    assert report.num_steps == 24 and (fitness.length == 3).all()
    images, single = np.stack([image_of(t) for t in range(3)])[:, None], TorchNetwork(network)
    for k, index in enumerate(fitness.index):
        for side, sign in enumerate((1, -1)):
            single.load(start.numpy() + F(sign * 0.3) * noise[index : index + len(start.flat)])
            want = single.policy(Inputs(np.zeros((3, 0), F), {"": images}))[0].sum()
            np.testing.assert_allclose(fitness.value[k, side], want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("run", ["ES", "ARS"])
def test_a_resumed_run_equals_an_uninterrupted_one_and_its_policy_loads(run: str, tmp_path: Path) -> None:
    settings = {**CATCH, "num_workers": 2, "backend": "local", "exact_resume": True}
    with raypid.Agent(run, settings) as agent:
        agent.train()
        path = agent.save(tmp_path)
        expected = [agent.train()["learner/fitness_mean"] for _ in range(2)]
        weights = agent.get_weights()
        assert -1 <= agent.eval(2)["episode_reward_mean"] <= 1
        policy = raypid.load_policy(agent.save(tmp_path / "later"))
    np.testing.assert_array_equal(policy.policy.network.numpy(), weights.flat)
    assert policy.act(np.zeros((10, 5), np.uint8)) in (0, 1, 2)
    with raypid.Agent.from_checkpoint(path) as resumed:
        assert [resumed.train()["learner/fitness_mean"] for _ in range(2)] == expected
        np.testing.assert_array_equal(resumed.get_weights().flat, weights.flat)


def test_a_linear_policy_on_convolutions_begins_at_zero_and_they_do_not() -> None:
    network = ARS.network_spec(ARSConfig(), network_of(hidden=()))
    ars = ARS(ARSConfig(seed=0), network, 0)
    parts = flat_views(ars.network.flat, ars.network.table)
    assert not parts["policy.weight"].any() and parts["encoders.0.0.weight"].any()
    np.testing.assert_array_equal(
        ES(ESConfig(seed=0), network_of(), 3).network.flat, TorchNetwork(network_of(), 3).numpy()
    )


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        ({"memory": "gru"}, ConfigError, "ES and ARS act without a memory, not with gru"),
        ({"channels": (64, 128), "hidden": (256,)}, ConfigError, "noise_table_size must be at least .*, not 4,000,000"),
        (
            {"network": "t-chooses", "channels": ()},
            UserError,
            r"torch.func.vmap, which network 't-chooses' does not allow",
        ),
    ],
)
def test_what_a_population_cannot_be_is_refused_in_a_line(model: dict[str, Any], error: Any, says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        network_of(**model)
    assert "\n" not in str(refused.value)


def test_widths_that_a_registered_network_does_not_see_are_refused() -> None:
    with pytest.raises(ConfigError, match="a registered network without `spec`"):
        raypid.Agent("ES", {**CATCH, "env": Shown, "model": {"network": "t-features", "hidden": [8]}})


@pytest.mark.slow
def test_workers_on_ray_play_what_they_play_here(ray_session: Any) -> None:
    from raypid.runtime.ray import RayBackend

    model = ModelConfig(network="cnn", channels=(4, 8), hidden=(8,))
    network = ES.network_spec(ESConfig(), build_spec(spaces.Box(0, 1, (10, 5), np.uint8), spaces.Discrete(3), model))
    env = EnvSpec(env="raypid/Catch-v0", num_envs=3, vectorizer="sync", seed=0)
    spec, start = RolloutSpec(env=env, network=network, fragment_length=1, seed=0), TorchNetwork(network)
    found = []
    for backend in (LocalBackend(), RayBackend()):
        table = backend.put(noise_table(0, 100_000))
        build = partial(FitnessWorker, spec)
        workers: Any = Group(
            backend,
            lambda i, r, build=build, table=table: partial(build, i, r, table),
            places("worker", 2, num_cpus=1),
            timeout_s=60,
            losses=Losses(0),
        )
        weights = backend.put(Weights(0, start.numpy().copy(), start.table))
        calls = workers.call_all_parts(FitnessWorker.collect, weights, {"pairs": 6, "sigma": 0.3})
        found.append([backend.get(fitness) for _, fitness in calls])
        workers.close()
        backend.shutdown()
    for here, there in zip(*found, strict=True):
        np.testing.assert_array_equal(here.index, there.index)
        np.testing.assert_array_equal(here.value, there.value)


@pytest.mark.ci_slow
def test_a_registered_network_trains_on_ray(ray_session: Any) -> None:
    settings = {**CATCH, "env": Shown, "num_workers": 2, "num_cpus_per_worker": 0.5, "model": {"network": "t-features"}}
    with raypid.Agent("ES", settings) as agent:
        before = agent.get_weights().flat
        assert np.isfinite(agent.train()["learner/fitness_mean"])
        assert (agent.get_weights().flat != before).any()
