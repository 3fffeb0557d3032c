"""Algorithms in Ray Tune: the document's own example, resources of trials, saving and restoring."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from raypid.errors import UserError
from raypid.settings.config import ConfigError

DOCUMENT = """
    from raypid.tune import grid_search, run_experiments

    experiment = {
        'cartpole-ppo': {
            'run': 'PPO',
            'env': 'CartPole-v0',
            'resources': {
                'cpu': 2,
                'driver_cpu_limit': 1},
            'stop': {
                'episode_reward_mean': 200,
                'time_total_s': 180
            },
            'config': {
                'num_sgd_iter': grid_search([1, 4]),
                'num_workers': 2,
                'sgd_batchsize': grid_search([128, 256, 512])
            }
        }
    }

    if __name__ == "__main__":
        run_experiments(experiment)
"""


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(180, marks=[pytest.mark.slow, pytest.mark.timeout(1500)]),
    ],
)
def test_the_documents_own_example(seconds: int, start: Any, tmp_path: Path) -> None:
    (tmp_path / "document.py").write_text(textwrap.dedent(DOCUMENT).replace("180", str(seconds)))
    done = start(python="document.py").finish(60 + 6 * (seconds + 15))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    trials = sorted((tmp_path / "runs" / "cartpole-ppo").glob("trial-*"))
    values = []
    for trial in trials:
        params = json.loads((trial / "params.json").read_text())
        values.append((params["num_epochs"], params["batch_size"]))
        assert params["num_workers"] == 2 and params["num_cpus_per_worker"] == 0.5
        last = json.loads((trial / "result.json").read_text().splitlines()[-1])
        assert last["episode_reward_mean"] == 200 or last["time_total_s"] >= seconds
        if seconds == 180:
            assert last["episode_reward_mean"] == 200
    assert values == [(epochs, rows) for epochs in (1, 4) for rows in (128, 256, 512)]
    assert "best trial" in done.stdout and "raypid eval" in done.stdout
    assert (tmp_path / "runs" / "cartpole-ppo" / "learning_curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_tune_saves_restores_and_runs_by_name_within_a_trials_resources(ray_session: Any, tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.utils import validate_save_restore

    import raypid.tune

    assert validate_save_restore(raypid.tune.trainable("PPO"), {"env": "CartPole-v1", "seed": 1})
    settings = {"env": "CartPole-v1", "num_workers": 2, "seed": 1, "lr": tune.grid_search([1e-3, 1e-4])}
    found = tune.run(
        "PPO", config=settings, stop={"training_iteration": 2}, verbose=0, storage_path=str(tmp_path), max_concurrent_trials=1
    )  # fmt: skip
    for trial, rate in zip(found.trials, (1e-3, 1e-4), strict=True):
        assert trial.placement_group_factory.bundles == [
            {"CPU": 1.0},
            {"CPU": 1.0},
        ]  # the workers'; the driver takes none
        assert trial.last_result["learner/lr"] == rate and trial.last_result["training_iteration"] == 2


def test_a_trial_reserves_what_its_run_needs() -> None:
    from raypid.settings.config import overlay
    from raypid.settings.request import RunRequest
    from raypid.tune.trainable import reserved

    def bundles(settings: dict[str, object], resources: dict[str, float] | None = None) -> list[dict[str, float]]:
        asked = RunRequest(run="PPO", settings=overlay({"env": "CartPole-v1"}, settings))
        factory = reserved(asked, resources or {})
        return [{}] * factory.head_bundle_is_empty + factory.bundles

    assert bundles({}) == [{"CPU": 1}]
    assert bundles({"num_gpus": 1}) == [{"CPU": 1, "GPU": 1}]
    assert bundles({"num_workers": 2, "num_cpus_per_worker": 0.5}) == [{}, {"CPU": 0.5}, {"CPU": 0.5}]
    assert bundles({"num_workers": 2, "num_learners": 2, "num_gpus": 2}) == [
        {},
        *[{"CPU": 1}] * 2,
        *[{"CPU": 1, "GPU": 1}] * 2,
    ]
    assert bundles({"num_workers": 2}, {"cpu": 2, "driver_cpu_limit": 1}) == [{"CPU": 1}, {"CPU": 0.5}, {"CPU": 0.5}]
    assert bundles({"num_workers": 2}, {"cpu": 4}) == [{}, {"CPU": 1}, {"CPU": 1}]
    assert bundles({}, {"cpu": 2}) == [{"CPU": 2}]
    with pytest.raises(ConfigError, match="resources leave no CPU to 2 workers"):
        bundles({"num_workers": 2}, {"cpu": 1, "driver_cpu_limit": 1})


def test_what_trainable_takes() -> None:
    import raypid
    from raypid.algorithms.ppo import PPO
    from raypid.tune import trainable

    assert {trainable(run).run for run in ("PPO", raypid.PPO, PPO)} == {"PPO"}
    with pytest.raises(UserError, match="'DNQ'.*'DQN'"):
        trainable("DNQ")
    with pytest.raises(ConfigError, match="not <class 'int'>"):
        trainable(int)
    with pytest.raises(ConfigError, match="resources takes cpu, gpu and driver_cpu_limit, not 'cpus'"):
        trainable("PPO", resources={"cpus": 2})


def test_what_is_registered_later_is_known_to_tune_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.tune.registry import TRAINABLE_CLASS, _global_registry

    import raypid.tune
    from raypid.algorithms.ppo import PPO
    from raypid.plugins.registry import ALGORITHMS

    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    assert not _global_registry.contains(TRAINABLE_CLASS, "Later")
    raypid.register_algorithm("Later", PPO)
    assert _global_registry.contains(TRAINABLE_CLASS, "Later")


def test_a_trial_that_never_fits_is_refused() -> None:
    from raypid.tune.runner import _packs

    nodes = [{"CPU": 2.0, "GPU": 0.0}, {"CPU": 2.0, "GPU": 1.0}]
    assert _packs([{"CPU": 1.0}] * 4, nodes) and _packs([{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0}], nodes)
    assert not _packs([{"CPU": 1.0}] * 5, nodes) and not _packs([{"CPU": 3.0}], nodes)
    assert not _packs([{"CPU": 2.0, "GPU": 1.0}, {"CPU": 1.5}, {"CPU": 1.0}], nodes)


@pytest.mark.parametrize(
    ("interval", "played"),
    [(3, [1, 1, 3, 3]), (1, [1, 2, 3, 4]), (None, [1, None, None, None]), (0, [])],
)
def test_every_result_has_the_newest_evaluation(interval: int | None, played: list[int | None], tmp_path: Path) -> None:
    from raypid.tune import trainable

    settings = {"env": "CartPole-v1", "seed": 1, "evaluation_interval": interval, "evaluation_num_episodes": 2}
    trial = trainable("PPO")(config=settings)
    try:
        results = [trial.train() for _ in range(4)]
        steps = [0, *(result["timesteps_total"] for result in results)]
        weights = [r["evaluation/timesteps_total"] for r in results if "evaluation/episode_reward_mean" in r]
        assert len(weights) == len(played)
        assert all(
            there in steps if at is None else there == steps[at] for there, at in zip(weights, played, strict=True)
        )
        trial.save(str(tmp_path))
        trial.restore(str(tmp_path))
        if interval != 0:  # other weights, maybe another trial's
            after = trial.train()
            assert after["evaluation/timesteps_total"] == after["timesteps_total"]
    finally:
        trial.stop()
