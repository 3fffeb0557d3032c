"""Learning curves: which runs are drawn together, what they are called, and that a picture comes out."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import write_run

from raypid.cli import plot
from raypid.errors import UserError
from raypid.report.logger import RunLogger
from raypid.report.plots import LOOKS, MOST, Curve, View, XAxis, _looks, _title, curves, grid, learning_curve
from raypid.report.runs import find_runs, group_by_seed
from raypid.storage.run_folder import RunFolder


def groups_of(*folders: Path) -> tuple[str, list[tuple[str, int]]]:
    groups = group_by_seed([RunFolder(folder) for folder in folders])
    return _title(groups), [(group.label, len(group.runs)) for group in groups]


def drawn(folder: Path, x: XAxis = "timesteps_total", **options: Any) -> list[Curve]:
    return curves(find_runs([folder])[0], View(x, **options))


def test_runs_that_differ_only_in_seed_are_one_curve(tmp_path: Path) -> None:
    ppo = [write_run(tmp_path / f"ppo{seed}", seed=seed) for seed in range(3)]
    a2c = write_run(tmp_path / "a2c", run="A2C")
    assert groups_of(*ppo) == ("PPO on CartPole-v1, 3 seeds", [("", 3)])
    assert groups_of(ppo[0])[0] == "PPO on CartPole-v1, seed 0"
    assert groups_of(*ppo, a2c) == ("PPO, A2C on CartPole-v1", [("PPO", 3), ("A2C", 1)])


def test_runs_with_other_settings_are_told_apart(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", lr=3e-4, seed=1)
    assert groups_of(one, other) == ("PPO on CartPole-v1", [("lr=0.001", 1), ("lr=0.0003", 1)])
    again = write_run(tmp_path / "again")
    assert groups_of(one, again)[1] == [("one", 1), ("again", 1)]
    pole = write_run(tmp_path / "pole", env="Acrobot-v1")
    assert groups_of(one, pole) == ("PPO on CartPole-v1, Acrobot-v1", [("", 1), ("", 1)])


def test_centre_and_interval_are_over_the_seeds(tmp_path: Path) -> None:
    for seed, scale in enumerate([1.0, 2.0, 3.0, 4.0, 50.0]):
        write_run(tmp_path / str(seed), seed=seed, scale=scale)
    (curve,) = drawn(tmp_path)
    assert curve.is_evaluation and curve.counted == 5 and not curve.singles
    assert (curve.x[0], curve.x[-1]) == (5 * 256, 20 * 256)
    assert curve.centre[-1] == pytest.approx(12 * 20 * 3.0)  # the middle three
    assert curve.low[-1] >= 240 and 240 * 3 < curve.high[-1] <= 240 * 50
    assert drawn(tmp_path, centre="mean")[0].centre[-1] == pytest.approx(12 * 20 * 12.0)
    assert drawn(tmp_path, centre="median")[0].centre[-1] == pytest.approx(12 * 20 * 3.0)


def steepest(curve: Curve) -> float:
    return float(np.abs(np.diff(curve.centre)).max())


@pytest.mark.parametrize("x", ["timesteps_total", "time_total_s"])
def test_no_cliff_where_a_seed_ends(tmp_path: Path, x: XAxis) -> None:
    """One seed has ten times the return of the others: its end must not be seen in the curve."""
    for seed in range(3):
        scale, iterations = (10.0, 10) if seed == 0 else (1.0, 20)
        write_run(tmp_path / str(seed), seed=seed, iterations=iterations, scale=scale, evaluated=False)
    (curve,) = drawn(tmp_path, x)
    assert steepest(curve) < 10.0
    if x == "timesteps_total":  # nobody knows where the first seed would be: the others go on by themselves
        assert curve.x[-1] == 10 * 256 and not curve.is_carried
        assert [(xs[0], xs[-1]) for xs, _ in curve.singles] == [(10 * 256, 20 * 256)] * 2
    else:  # its training is over: after that time it has what it had
        assert curve.x[-1] == pytest.approx(2.0) and curve.is_carried and not curve.singles
        assert curve.centre[-1] == pytest.approx((1000 + 200 + 200) / 3)


def test_a_seed_at_its_goal_keeps_its_value(tmp_path: Path) -> None:
    write_run(tmp_path / "0", seed=0, iterations=10, stop={"evaluation/episode_reward_mean": 120})
    write_run(tmp_path / "1", seed=1, iterations=20, scale=0.5, stop={"evaluation/episode_reward_mean": 120})
    (curve,) = drawn(tmp_path)
    assert curve.is_carried and curve.x[-1] == 20 * 256 and curve.centre[-1] == pytest.approx(120)


def test_a_seed_that_was_broken_off_early_is_drawn_by_itself(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, evaluated=False)
    write_run(tmp_path / "3", seed=3, iterations=5, scale=-9, stop={"timesteps_total": 1e9}, evaluated=False)
    (curve,) = drawn(tmp_path)
    assert curve.counted == 3 and len(curve.group.runs) == 4 and curve.x[-1] == 20 * 256
    assert len(curve.singles) == 1 and curve.singles[0][0][-1] == 5 * 256


def test_settings_without_an_evaluation_are_drawn_by_training_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lr, evaluated in ((1, True), (2, False)):
        for seed in range(2):
            write_run(tmp_path / f"{lr}-{seed}", seed=seed, lr=lr, evaluated=evaluated)
            write_run(tmp_path / f"other-{lr}-{seed}", seed=seed, lr=lr, env="Acrobot-v1")
    kinds = {(curve.group.task, curve.group.label): curve.is_evaluation for curve in drawn(tmp_path)}
    assert [label for label, is_evaluation in kinds.items() if not is_evaluation] == [("CartPole-v1", "lr=2")]
    plot.main(parse(str(tmp_path), "--out", str(tmp_path / "c.png")))
    told = "CartPole-v1: training returns are drawn, thin, where there are no evaluations: lr=2."
    assert told in capsys.readouterr().err


def test_a_run_that_failed_at_once_does_not_spoil_the_picture(tmp_path: Path) -> None:
    good, bad = write_run(tmp_path / "0"), write_run(tmp_path / "1", seed=1)
    (bad / "result.json").write_text("")
    assert learning_curve([good, bad], tmp_path / "c.png").is_file()
    assert [len(curve.group.runs) for curve in drawn(tmp_path)] == [1]


def test_a_single_evaluation_of_each_seed_is_drawn(tmp_path: Path) -> None:
    """Each setting by its evaluations, though those of one are a single point."""
    for lr, iterations in ((1, 9), (2, 20)):
        for seed in range(2):
            write_run(tmp_path / f"{lr}-{seed}", seed=seed, lr=lr, iterations=iterations)
    few, many = drawn(tmp_path)
    assert few.is_evaluation and many.is_evaluation and len(few.x) == 1 and few.centre[0] == 60


def test_a_seed_with_a_single_evaluation_does_not_end_the_curve(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed)
    folder = write_run(tmp_path / "3", seed=3)
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    for row in rows[5:]:
        row.pop("evaluation/episode_reward_mean", None)
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (curve,) = drawn(tmp_path)
    assert curve.counted == 3 and curve.x[-1] == 20 * 256 and [len(xs) for xs, _ in curve.singles] == [1]


def test_the_interval_of_a_run_ends_where_its_episodes_do(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run") as logger:
        played = {"mean": 495.0, "ci95": 20.0, "min": 400.0, "max": 500.0}
        row = {"training_iteration": 1, "timesteps_total": 9, "time_total_s": 1.0}
        logger.log(row | {f"evaluation/episode_reward_{key}": value for key, value in played.items()})
    (curve,) = drawn(tmp_path)
    assert (curve.low[0], curve.high[0]) == (475, 500)


def test_any_key_and_a_running_mean(tmp_path: Path) -> None:
    write_run(tmp_path / "run", iterations=9)
    (curve,) = drawn(tmp_path, y="learner/entropy")
    np.testing.assert_allclose(curve.centre, 1 / np.arange(1, 10))
    (smooth,) = drawn(tmp_path, y="learner/entropy", smooth=3)
    assert smooth.centre[0] == 1.0 and smooth.centre[4] == pytest.approx((1 / 4 + 1 / 5 + 1 / 6) / 3)
    (part,) = drawn(tmp_path, y="learner/entropy", smooth=0.34)
    np.testing.assert_array_equal(part.centre, smooth.centre)
    (returns,) = drawn(tmp_path, smooth=3)
    np.testing.assert_allclose(returns.centre, [60.0])  # evaluations stay as they are
    with pytest.raises(UserError, match="learner/entropi.*Did you mean 'learner/entropy'"):
        drawn(tmp_path, y="learner/entropi")


def test_each_environment_has_a_panel(tmp_path: Path) -> None:
    for env in range(5):
        for seed in range(2):
            write_run(tmp_path / f"{env}-{seed}", env=f"Env{env}-v0", seed=seed, scale=10.0**env)
    for panels, shape in ((1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (5, (2, 3)), (12, (3, 4))):
        assert grid(panels) == shape
    assert [curve.group.task for curve in drawn(tmp_path)] == [f"Env{env}-v0" for env in range(5)]
    assert learning_curve([tmp_path], tmp_path / "panels.svg").read_text().count("Env") >= 5


def test_more_settings_than_colours(tmp_path: Path) -> None:
    for k in range(MOST + 5):
        write_run(tmp_path / f"trial-{k}", lr=float(k + 1), scale=k + 1)
    found = drawn(tmp_path)
    looks = _looks(found, ranked=True)
    assert list(looks) == [f"lr={k + 1}" for k in range(5, MOST + 5)]  # not the worst ones
    assert list(looks.values()) == LOOKS[:MOST]
    assert learning_curve([tmp_path], tmp_path / "many.png").stat().st_size > 20_000


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
    plot.add_options(parser, ["plot"])
    return parser.parse_args(words)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(str(write_run(tmp_path / "run")), "--out", str(tmp_path / "c.png"), "--x", "time")
    assert plot.main(args) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "c.png")
    assert (tmp_path / "c.png").exists()


def test_command_prints_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        write_run(tmp_path / f"runs/{seed}", seed=seed)
    assert plot.main(parse(str(tmp_path / "runs"), "--out", str(tmp_path / "c.png"), "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    (curve,) = printed["curves"]
    assert curve["task"] == "CartPole-v1" and curve["centre"][-1] == 240 and len(curve["runs"]) == 2


@pytest.mark.parametrize("value", ["-1", "2.5", "nan", "much"])
def test_command_refuses_a_window_that_is_none(value: str) -> None:
    with pytest.raises(SystemExit):
        parse("run", "--smooth", value)


def test_command_says_what_is_wrong(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    early = write_run(tmp_path / "early", iterations=1)
    (tmp_path / "empty").mkdir()
    for words, message in [
        (["no-such"], "There is nothing at 'no-such'"),
        ([str(tmp_path / "empty")], r"no result\.json"),
        ([str(early)], "no episode has ended"),
        ([str(run), "--out", str(tmp_path / "c.xyz")], "xyz"),
    ]:
        args = parse(*words)
        with pytest.raises(ValueError, match=message):
            plot.main(args)
