"""Fitness is what each perturbation was worth: whole episodes of its own policy, whatever the streams and the resets."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from raypid.algorithms.es import ES, ESConfig
from raypid.callbacks import Callbacks
from raypid.envs import EnvError, EnvSpec
from raypid.errors import UserError
from raypid.nn.catalog import build_spec
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.numpy_mlp import SmallNetwork, initial_mlp
from raypid.nn.pipeline import Inputs
from raypid.nn.population import Population
from raypid.ops.evolution import noise_table
from raypid.ops.normalizer import moments_of
from raypid.roles import acting, fitness_worker
from raypid.roles.acting import RolloutSpec
from raypid.roles.fitness_worker import FitnessWorker
from raypid.runtime.handle import WorkerLost, places
from raypid.runtime.local import LocalBackend
from raypid.runtime.supervisor import Group, Losses
from raypid.settings.config import ModelConfig
from raypid.types import Weights, concat_fitness

F = np.float32
NOISE = noise_table(0, 10_000)
LENGTHS = (3, 1, 5, 2)
CALL = {"pairs": 5, "sigma": 0.3}


class Told(gymnasium.Env):
    """The reward is the action; the observation is [step, 1, 0]. Episode lengths go round, every other episode is truncated.

    `crash_at`: stream 0 raises in this step of its life, once in the process (or `always`).
    """

    crashed = False

    def __init__(self, stream_index: int = 0, crash_at: int = 0, always: bool = False, endless: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), F)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), F)
        self.stream, self.episode, self.life = stream_index, -1, 0
        self.crash_at, self.always, self.endless = crash_at, always, endless

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t, self.life = self.t + 1, self.life + 1
        if self.crash_at and self.life >= self.crash_at and not self.stream and (self.always or not Told.crashed):
            Told.crashed = True
            raise RuntimeError("boom")
        end = not self.endless and self.t >= LENGTHS[(self.episode + self.stream) % len(LENGTHS)]
        return self._obs(), float(action[0]), end and self.episode % 2 == 1, end and self.episode % 2 == 0, {}

    def _obs(self) -> Any:
        return np.array([self.t, 1, 0], F)


@pytest.fixture(autouse=True)
def not_crashed() -> None:
    Told.crashed = False


def vector_of(num_envs: int, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv(
        [lambda i=i: Told(stream_index=i) for i in range(num_envs)], autoreset_mode=AutoresetMode(mode)
    )


def next_step(num_envs: int) -> SyncVectorEnv:
    return vector_of(num_envs, "NextStep")


def same_step(num_envs: int) -> SyncVectorEnv:
    return vector_of(num_envs, "SameStep")


def network_of(action: Any = None, *, normalize: bool = False, stack: int = 1, hidden: Any = (4,)) -> NetworkSpec:
    space = spaces.Box(-np.inf, np.inf, (3,), F)
    action = action or spaces.Box(-np.inf, np.inf, (1,), F)
    spec = build_spec(space, action, ModelConfig(hidden=hidden), normalize=normalize, frame_stack=stack)
    return ES.network_spec(ESConfig(), spec)


def make(env: Any = Told, num_envs: int = 3, *, worker: int = 0, restarts: int = 0, **kwargs: Any) -> FitnessWorker:
    network = network_of(normalize=kwargs.pop("normalize", False), stack=kwargs.pop("stack", 1))
    seed, config = kwargs.pop("seed", 0), kwargs.pop("env_config", {})
    vectorizer = "sync" if isinstance(env, type) else "native"
    env_spec = EnvSpec(env=env, env_config=config, num_envs=num_envs, vectorizer=vectorizer, seed=seed)
    spec = RolloutSpec(env=env_spec, network=network, fragment_length=8, seed=seed, **kwargs)
    return FitnessWorker(spec, worker, restarts, NOISE)


def weights_for(network: NetworkSpec, version: int = 7) -> Weights:
    inputs, extra = network.pipeline.vector_size, {}
    if network.pipeline.normalize:
        count, mean, m2 = moments_of(np.random.default_rng(0).normal(0, 2, (20, 3)))
        extra = {"obs_count": np.asarray(count), "obs_mean": mean, "obs_m2": m2}
    flat = 10 * initial_mlp(network, inputs, np.random.default_rng(0))
    return Weights(version, flat, network.mlp_table(inputs), extra)


def collect(rollout: FitnessWorker, **call: Any) -> Any:
    return rollout.collect(weights_for(rollout.spec.network), CALL | call)


def expected(rollout: FitnessWorker, index: int, sign: int, length: int, sigma: float = 0.3) -> float:
    """The return of `length` steps of a single network with the perturbed weights."""
    weights = weights_for(rollout.spec.network)
    noise = NOISE[index : index + len(weights.flat)]
    single = SmallNetwork(rollout.spec.network, weights.flat + F(sign * sigma) * noise)
    obs = np.array([[t, 1, 0] for t in range(length)], F)
    if rollout.spec.network.pipeline.normalize:
        obs = rollout.policy.pipeline.step(obs, None, np.zeros(length, bool))[0].vector
    return float(single.policy(Inputs(obs, {}))[0].sum())


def check(rollout: FitnessWorker, fit: Any, sigma: float = 0.3) -> None:
    for k, index in enumerate(fit.index):
        for side, sign in enumerate((1, -1)):
            want = expected(rollout, index, sign, int(fit.length[k, side]), sigma)
            np.testing.assert_allclose(fit.value[k, side], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden", [(), (5,), (6, 4)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_each_stream_of_a_population_is_a_network_of_its_own(hidden: Any, activation: Any) -> None:
    space = spaces.Box(-np.inf, np.inf, (3,), F)
    spec = build_spec(space, spaces.Discrete(4), ModelConfig(hidden=hidden, activation=activation))
    spec = ES.network_spec(ESConfig(), spec)
    rng = np.random.default_rng(0)
    population = Population(spec, 5)
    obs = rng.normal(size=(5, 3)).astype(F)
    population.load(np.zeros(population.flat.shape[1], F))
    assert (population.policy(Inputs(obs, {}))[0] == 0).all()
    population.flat[:] = rng.normal(size=population.flat.shape)
    params, *_ = population.policy(Inputs(obs, {}))
    assert params.shape == (5, 4)
    for b in range(5):
        single = SmallNetwork(spec, population.flat[b].copy()).policy(Inputs(obs[b : b + 1], {}))[0]
        np.testing.assert_allclose(params[b], single[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("env", [Told, next_step, same_step])
@pytest.mark.parametrize("num_envs", [1, 3, 16])
@pytest.mark.parametrize("normalize", [False, True])
def test_value_is_the_return_of_the_perturbed_policy(env: Any, num_envs: int, normalize: bool) -> None:
    rollout = make(env, num_envs, normalize=normalize)
    report, fit = collect(rollout)
    check(rollout, fit)
    assert fit.index.shape == (5,) and fit.value.shape == fit.length.shape == (5, 2)
    assert set(fit.length.ravel()) <= set(LENGTHS) and fit.version == report.version == 7
    assert report.num_steps == fit.length.sum() and report.size == 5
    assert sorted(report.episode_rewards) == pytest.approx(sorted(fit.value.ravel()))
    assert sorted(report.episode_lengths) == sorted(fit.length.ravel())
    assert set(report.timing) == {"env", "inference", "total"}


def test_calls_follow_each_other_with_new_perturbations_and_whole_episodes() -> None:
    rollout = make(num_envs=4)
    seen = [collect(rollout, pairs=n, sigma=0.1 * n)[1] for n in (1, 4, 2)]
    for n, fit in zip((1, 4, 2), seen):
        check(rollout, fit, 0.1 * n)
    joined = concat_fitness(seen)
    assert len(set(joined.index)) == 7 and joined.value.shape == (7, 2) and joined.version == 7


def test_antithetic_pairs_of_a_linear_policy_lie_around_the_unperturbed_one() -> None:
    network = network_of(hidden=())
    env = EnvSpec(env=Told, num_envs=3, vectorizer="sync", seed=0)
    rollout = FitnessWorker(RolloutSpec(env=env, network=network, fragment_length=8, seed=0), 0, 0, NOISE)
    weights = weights_for(network)
    _, fit = rollout.collect(weights, {"pairs": 40, "sigma": 0.5})

    def middle(length: int) -> float:
        obs = np.array([[t, 1, 0] for t in range(length)], F)
        return float(SmallNetwork(network, weights.flat).policy(Inputs(obs, {}))[0].sum())

    equal = [k for k in range(40) if fit.length[k, 0] == fit.length[k, 1]]
    off = fit.value - [[middle(n) for n in row] for row in fit.length]
    np.testing.assert_allclose(off[equal, 0], -off[equal, 1], rtol=1e-3, atol=1e-3)
    assert len(equal) >= 5 and (abs(off) > 0.01).mean() > 0.9


def test_frames_are_stacked_from_each_episodes_beginning() -> None:
    rollout = make(num_envs=2, stack=2)
    _, fit = collect(rollout)
    weights = weights_for(rollout.spec.network)
    for k, index in enumerate(fit.index):
        noise = NOISE[index : index + len(weights.flat)]
        for side, sign in enumerate((1, -1)):
            single = SmallNetwork(rollout.spec.network, weights.flat + F(sign * 0.3) * noise)
            steps = [max(0, t - 1) for t in range(fit.length[k, side])]
            obs = np.array([[before, 1, 0, t, 1, 0] for t, before in enumerate(steps)], F)
            want = single.policy(Inputs(obs, {}))[0].sum()
            np.testing.assert_allclose(fit.value[k, side], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("env", [Told, same_step])
def test_moments_are_those_of_the_observations_acted_upon(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness_worker, "_CHUNK", 3)  # several chunks
    report, fit = collect(make(env, normalize=True))
    seen = np.array([[t, 1, 0] for length in fit.length.ravel() for t in range(length)], np.float64)
    assert fit.moments[0] == report.num_steps
    for ours, want in zip(fit.moments, moments_of(seen)):
        np.testing.assert_allclose(ours, want)
    assert collect(make(env))[1].moments is None


@pytest.mark.parametrize("crash_at", [1, 2, 4, 5])
def test_what_a_crash_broke_off_is_played_again(crash_at: int) -> None:
    rollout = make(env_config={"crash_at": crash_at})
    report, fit = collect(rollout)
    assert len(report.crashes) == 1 and "boom" in report.crashes[0] and rollout.num_crashes == 1
    check(rollout, fit)
    assert (fit.length > 0).all() and len(report.episode_rewards) == 10
    assert report.num_steps >= fit.length.sum()


def test_environments_that_crash_again_and_again_end_the_run() -> None:
    with pytest.raises(EnvError, match="raised 3 times in so few steps; max_restarts=2 allows 2"):
        collect(make(env_config={"crash_at": 1, "always": True}, max_crashes=2))


def test_an_episode_without_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MAX_EPISODE_STEPS", 50)
    with pytest.raises(UserError, match="time_limit"):
        collect(make(env_config={"endless": True}))


def test_noise_on_observations_and_actions() -> None:
    quiet, noisy = make(), make(action_noise=0.5)
    (_, a), (_, b) = collect(quiet), collect(noisy)
    np.testing.assert_array_equal(a.index, b.index)
    off = (b.value - a.value) / np.sqrt(a.length)
    assert 0.2 < off.std() < 1.0
    _, c = collect(make(observation_noise=0.5))
    assert not np.allclose(a.value, c.value)


def test_callbacks_hear_of_every_episode() -> None:
    heard: list[Any] = []

    class Listen(Callbacks):
        def on_episode_end(self, info: Any) -> Any:
            heard.append(info)
            return {"double": 2 * info["episode_reward"]}

    report, fit = collect(make(callbacks=Listen()))
    assert len(heard) == 10 and {h["stream_index"] for h in heard} == {0, 1, 2}
    assert report.episode_metrics["double"] == [2 * r for r in report.episode_rewards]


def cartpole(worker: int = 0, restarts: int = 0, seed: int = 0) -> FitnessWorker:
    space = spaces.Box(-9, 9, (4,), F)
    network = ES.network_spec(ESConfig(), build_spec(space, spaces.Discrete(2), ModelConfig(hidden=(4,))))
    env = EnvSpec(env="CartPole-v1", num_envs=3, vectorizer="sync", seed=seed)
    return FitnessWorker(RolloutSpec(env=env, network=network, fragment_length=8, seed=seed), worker, restarts, NOISE)


def test_same_seed_same_data_and_others_differ() -> None:
    def played(**kwargs: Any) -> Any:
        rollout = cartpole(**kwargs)
        return concat_fitness([collect(rollout)[1] for _ in range(2)])

    first, again = played(), played()
    np.testing.assert_array_equal(first.value, again.value)
    np.testing.assert_array_equal(first.index, again.index)
    for other in ({"seed": 1}, {"worker": 1}, {"restarts": 1}):
        assert not np.array_equal(first.index, played(**other).index), other


def test_boundary_and_state_decide_what_comes() -> None:
    runs = []
    for before, count in ((1, 3), (2, 3), (1, 4)):
        rollout = cartpole()
        for _ in range(before):
            collect(rollout)
        rollout.boundary(count)
        rollout.load_state_dict(cartpole().state_dict())
        runs.append(collect(rollout)[1])
    np.testing.assert_array_equal(runs[0].value, runs[1].value)
    assert not np.array_equal(runs[0].value, runs[2].value)
    rollout.close()


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_workers_of_a_group_and_their_successors_read_the_table(backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "ray":
        request.getfixturevalue("ray_session")
        from raypid.runtime.ray import RayBackend

        roles: Any = RayBackend()
    else:
        roles = LocalBackend()
    spec, table = cartpole().spec, roles.put(NOISE)
    workers = Group(
        roles,
        lambda index, restarts: partial(FitnessWorker, spec, index, restarts, table),
        places("worker", 2, num_cpus=1),
        timeout_s=60,
        losses=Losses(2),
    )
    weights = roles.put(weights_for(spec.network))
    for restarts in (0, 1):
        here = [collect(cartpole(i, restarts if i == 1 else 0)) for i in range(2)]
        if restarts:  # worker 0 has played a call already
            here[0] = [collect(r) for r in [cartpole()] for _ in range(2)][1]
        there = workers.call_all_parts(FitnessWorker.collect, weights, CALL)
        for (report, ours), (again, data) in zip(here, there):
            np.testing.assert_array_equal(roles.get(data).value, ours.value)
            assert again.episode_rewards == report.episode_rewards and again.size == 5
        if not restarts:
            workers.lose(1, "collect()", WorkerLost("gone"))
    workers.close()
    roles.shutdown()


LIGHT = """
import sys
import numpy as np
from raypid.settings.config import Given
from raypid.run.assembly import assemble
from raypid.run.resolve import resolve
from raypid.settings.request import RunRequest
from raypid.nn.policy import load_policy, save_policy
given = Given({{"env": "CartPole-v1", "population": 4, "seed": 0, "noise_table_size": 100_000}})
run, context, *_ = assemble(resolve(RunRequest(run={run!r}, settings=given)))
worker, learner = context.workers.handles[0].role.worker, context.learner.role
report, fitness = worker.collect(learner.weights(), learner.algorithm.exploration(run.config, 0, 0))
update, weights = learner.update(report.num_steps, fitness)
assert update.num_updates == 1 and weights.version == 1 and report.size == 4
assert worker.noise is learner.algorithm.noise  # one table in the process
from pathlib import Path
save_policy(Path({folder!r}), run.network, weights)
assert load_policy({folder!r}).act(np.zeros(4, np.float32)) in (0, 1)
heavy = {{"torch", "ray", "tensorboardX", "matplotlib", "pandas", "scipy"}} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("run", ["ES", "ARS"])
def test_neither_worker_nor_learner_nor_policy_imports_torch(run: str, tmp_path: Any) -> None:
    code = LIGHT.format(run=run, folder=str(tmp_path / "policy"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
