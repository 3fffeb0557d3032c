"""The models of examples/models: one actor-critic in NumPy, JAX and TensorFlow.

Those whose package is not installed are skipped (`pip install ".[jax]"`, `".[tensorflow]"`).
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import raypid

FOLDER = Path(__file__).parents[2] / "examples" / "models"
CLASSES = {"numpy": "NumpyModel", "jax": "JaxModel", "tensorflow": "TensorFlowModel"}
SETTINGS: dict[str, Any] = {"env": "CartPole-v1", "fragment_length": 32, "lr": 0.01}
F = np.float32


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=":")


def model_of(framework: str, seed: int = 1) -> Any:
    pytest.importorskip(framework)
    entry = getattr(import_module(f"{framework}_model"), CLASSES[framework])
    parser = ArgumentParser()
    entry.add_args(parser)
    env = gymnasium.make("CartPole-v1")
    facts = Namespace(observation_space=env.observation_space, action_space=env.action_space, seed=seed)
    return entry(parser.parse_args(["--hidden", "8"], facts))


def fragment(seed: int) -> tuple[Any, Any]:
    """A trajectory of 6 rows and 3 environments, of which some rows are no real steps, and its returns."""
    rng = np.random.default_rng(seed)
    obs, action = rng.normal(size=(7, 3, 4)).astype(F), rng.integers(2, size=(6, 3))
    valid = rng.random((6, 3)) < 0.8
    assert not valid.all()
    Rs = np.where(valid, 5 * rng.normal(size=(6, 3)) + 8, 0).astype(F)
    return SimpleNamespace(obs=obs, action=action, valid=valid), Rs


def flat(parts: Any) -> Any:
    return np.concatenate([np.ravel(np.asarray(part)) for name in ("policy", "value") for part in parts[name]])


def random_weights(model: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    draw = {
        k: [rng.normal(size=np.shape(part)).astype(F) for part in parts] for k, parts in model.get_weights().items()
    }
    model.set_weights(draw)
    return draw


def loss(weights: Any, t: Any, Rs: Any, advantage: Any, entropy_coef: float) -> float:
    """The loss in float64, written without the models' code."""

    def outputs(name: str) -> Any:
        w1, b1, w2, b2 = (np.asarray(part, np.float64) for part in weights[name])
        return np.tanh(t.obs[:-1][t.valid] @ w1 + b1) @ w2 + b2

    odds = np.exp(outputs("policy"))
    p = odds / odds.sum(-1, keepdims=True)
    chosen = p[np.arange(len(p)), t.action[t.valid]]
    value_loss = ((outputs("value")[:, 0] - Rs[t.valid]) ** 2).mean()
    return float(value_loss - (np.log(chosen) * advantage).mean() + entropy_coef * (p * np.log(p)).sum(-1).mean())


@pytest.mark.parametrize("framework", CLASSES)
def test_the_gradient_is_that_of_the_loss(framework: str) -> None:
    """Against central differences; so the three models agree."""
    model = model_of(framework)
    model.entropy_coef = 0.3
    weights = random_weights(model, 2)
    t, Rs = fragment(3)
    advantage = Rs[t.valid] - model.values(t.obs[:-1][t.valid])
    advantage = (advantage - advantage.mean()) / advantage.std()
    gradient, metrics = model.step(t, Rs)
    differences = []
    for name in ("policy", "value"):
        for k, part in enumerate(weights[name]):
            for place in np.ndindex(part.shape):
                ends = []
                for h in (1e-4, -1e-4):
                    moved = {key: [np.array(array, np.float64) for array in parts] for key, parts in weights.items()}
                    moved[name][k][place] += h
                    ends.append(loss(moved, t, Rs, advantage, 0.3))
                differences.append((ends[0] - ends[1]) / 2e-4)
    np.testing.assert_allclose(flat(gradient), differences, rtol=1e-3, atol=1e-4)
    value = model.values(t.obs[:-1][t.valid])
    assert float(metrics["value_loss"]) == pytest.approx(((value - Rs[t.valid]) ** 2).mean(), rel=1e-4)
    assert 0 < float(metrics["entropy"]) < np.log(2)


@pytest.mark.parametrize("framework", CLASSES)
def test_weights_and_actions(framework: str) -> None:
    one, same, other = model_of(framework), model_of(framework), model_of(framework, seed=2)
    before = flat(one.get_weights())
    assert before.dtype == F and np.array_equal(before, flat(same.get_weights()))
    assert not np.array_equal(before, flat(other.get_weights()))
    assert not np.array_equal(one.get_weights()["policy"][0], one.get_weights()["value"][0])
    given = random_weights(one, 4)
    np.testing.assert_array_equal(flat(one.get_weights()), flat(given))
    obs = np.random.default_rng(5).normal(size=(1000, 4)).astype(F)
    for rows in (1, 3, 1000):
        assert one.values(obs[:rows]).shape == (rows,)
    greedy = one.choose_actions(obs, deterministic=True)
    w1, b1, w2, b2 = given["policy"]
    logits = np.tanh(obs @ w1 + b1) @ w2 + b2
    np.testing.assert_array_equal(greedy, logits.argmax(-1))
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    drawn = one.choose_actions(obs, rng=np.random.default_rng(6))
    assert abs(drawn.mean() - p.mean()) < 4 * np.sqrt((p * (1 - p)).sum()) / 1000


def num_compiled(model: Any) -> int:
    if hasattr(model, "logits"):
        return sum(f.experimental_get_tracing_count() for f in (model.gradient, model.value, model.logits))
    return model.gradient._cache_size() + model.forward._cache_size()


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_other_numbers_of_rows_compile_nothing_new(framework: str) -> None:
    model = model_of(framework)
    counts = []
    for seed in range(4):
        t, Rs = fragment(seed)  # each has its own number of valid rows
        model.step(t, Rs)
        model.choose_actions(t.obs[0], deterministic=True)
        model.values(np.resize(t.obs, (8 - seed, 4)))  # 5 to 8
        counts.append(num_compiled(model))
    assert counts == counts[:1] * 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize(
    "framework", ["numpy", *(pytest.param(name, marks=pytest.mark.slow) for name in list(CLASSES)[1:])]
)
def test_reaches_475(framework: str, seed: int) -> None:
    """It took 25,000 to 75,000 steps in NumPy (1 s), 25,000 to 100,000 in JAX (6 to 8 s) and 50,000 to 75,000 in TensorFlow (5 to 13 s)."""
    pytest.importorskip(framework)
    network = f"{framework}_model:{CLASSES[framework]}"
    with raypid.CustomModel(seed=seed, model={"network": network}, **SETTINGS) as agent:
        for _ in range(12):
            agent.train(num_train_steps=25_000)
            if agent.eval(20)["episode_reward_mean"] >= 475:
                return
    raise AssertionError("475 was not reached")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", CLASSES)
def test_the_command_trains_on_ray(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    stop = json.dumps({"evaluation/episode_reward_mean": 475, "timesteps_total": 400_000})
    names = (
        "--model_name",
        f"{framework}_model:{CLASSES[framework]}",
        "--env_name",
        "gym_env",
        "--env_id",
        "CartPole-v1",
    )
    more = (
        "--num_workers",
        "2",
        "--num-cpus-per-worker",
        "0.5",
        "--fragment-length",
        "32",
        "--lr",
        "0.01",
        "--hidden",
        "32",
    )
    command = [sys.executable, "-m", "raypid", "train", *names, *more, "--stop", stop, "--quiet", "--seed", "0"]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    *_, last = (tmp_path / "run" / "result.json").read_text().splitlines()
    assert json.loads(last)["evaluation/episode_reward_mean"] >= 475


@pytest.mark.slow
@pytest.mark.parametrize("framework", CLASSES)
def test_runs_as_a_script(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(framework)
    runpy.run_path(str(FOLDER / f"{framework}_model.py"), run_name="__main__")
    assert float(capsys.readouterr().out.split()[-1]) > 200
