"""Learning curves: which runs are drawn together, what they are called, and that a picture comes out."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypid.cli import plot
from raypid.reporting.logger import RunLogger
from raypid.reporting.plots import _load, _over_seeds, _title, group_by_seed, learning_curve


def write_run(folder: Path, *, iterations: int = 20, evaluated: bool = True, **settings: Any) -> Path:
    with RunLogger(folder) as logger:
        logger.write_params(
            {"algorithm": "PPO", "env": "CartPole-v1", "seed": 0, "lr": 1e-3, "out": folder, **settings}
        )
        for i in range(1, iterations + 1):
            row = {"training_iteration": i, "timesteps_total": 256 * i, "time_total_s": 0.1 * i}
            row["episode_reward_mean"] = float("nan") if i == 1 else 10.0 * i
            if evaluated and i % 5 == 0:
                row |= {"evaluation/episode_reward_mean": 12.0 * i, "evaluation/episode_reward_ci95": 3.0}
            logger.log(row)
    return folder


def groups_of(*folders: Path) -> tuple[str, list[tuple[str, int]]]:
    groups = group_by_seed([_load(folder) for folder in folders])
    return _title(groups), [(group.label, len(group.runs)) for group in groups]


def test_runs_that_differ_only_in_seed_are_one_curve(tmp_path: Path) -> None:
    ppo = [write_run(tmp_path / f"ppo{seed}", seed=seed) for seed in range(3)]
    a2c = write_run(tmp_path / "a2c", algorithm="A2C")
    assert groups_of(*ppo) == ("PPO on CartPole-v1, 3 seeds", [("(3 seeds)", 3)])
    assert groups_of(ppo[0])[0] == "PPO on CartPole-v1, seed 0"
    assert groups_of(*ppo, a2c) == ("CartPole-v1", [("PPO (3 seeds)", 3), ("A2C", 1)])


def test_runs_with_other_settings_are_told_apart(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", lr=3e-4, seed=1)
    assert groups_of(one, other) == ("PPO on CartPole-v1", [("lr=0.001", 1), ("lr=0.0003", 1)])
    again = write_run(tmp_path / "again")
    assert groups_of(one, again)[1] == [("one", 1), ("again", 1)]
    pole = write_run(tmp_path / "pole", env="Acrobot-v1")
    assert groups_of(one, pole) == ("PPO learning curves", [("CartPole-v1", 1), ("Acrobot-v1", 1)])


def test_median_and_band_cover_the_seeds_that_got_there() -> None:
    columns = [(np.array([0.0, 10.0]), np.array([0.0, 10.0])), (np.array([0.0, 5.0]), np.array([2.0, 7.0]))]
    grid, common, median, low, high = _over_seeds(columns)
    np.testing.assert_allclose(median[common], grid[common] + 1)
    np.testing.assert_allclose((low[common], high[common]), (grid[common], grid[common] + 2))
    assert grid[common].max() <= 5 and grid.max() == 10
    np.testing.assert_allclose(median[~common], grid[~common])


@pytest.mark.parametrize("x", ["timesteps_total", "time_total_s"])
def test_pictures(tmp_path: Path, x: Any) -> None:
    runs = [write_run(tmp_path / f"{seed}", seed=seed, iterations=20 - 5 * seed) for seed in range(2)]
    runs.append(write_run(tmp_path / "no-evaluation", env="Pendulum-v1", evaluated=False))
    out = learning_curve(runs, tmp_path / "new" / "curves.png", x)
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 20_000


def test_a_run_without_params_or_with_one_point_is_drawn(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "bare") as logger:
        logger.log({"training_iteration": 1, "timesteps_total": 9, "evaluation/episode_reward_mean": 1.0})
    assert learning_curve([tmp_path / "bare"], tmp_path / "bare.svg").exists()


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    plot.add_parser(parser.add_subparsers())
    return parser.parse_args(["plot", *words])


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(str(write_run(tmp_path / "run")), "--out", str(tmp_path / "c.png"), "--x", "time")
    assert plot.main(args) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "c.png")
    assert (tmp_path / "c.png").exists()


def test_command_says_what_is_wrong(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    early = write_run(tmp_path / "early", iterations=1)
    (tmp_path / "empty").mkdir()
    for words, message in [
        (["no-such"], "no such folder: 'no-such'"),
        ([str(tmp_path / "empty")], r"no result\.json"),
        ([str(early)], "no episode has ended"),
        ([str(run), "--out", str(tmp_path / "c.xyz")], "xyz"),
    ]:
        args = parse(*words)
        with pytest.raises(ValueError, match=message):
            plot.main(args)
