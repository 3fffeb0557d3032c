"""Results of a run that goes on for long: fewer rows, the same sums."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from raypid.report.logger import RunLogger, read_results
from raypid.report.thinning import WHOLE, Thinning


def row(i: int, seconds: float = 0.01) -> dict[str, float]:
    """The result of iteration `i`, counted from 1, of `seconds` each."""
    rate, time_s = float(100 + i % 2), {"time_this_iter_s": seconds, "time_total_s": i * seconds}
    return {
        "training_iteration": i,
        "timesteps_total": 10 * i,
        **time_s,
        "timing/env": seconds / 2,
        "env_steps_per_s": rate,
    }


def test_rows_grow_with_the_logarithm_of_time() -> None:
    thinning, written = Thinning(), 0
    for i in range(1, 5 * WHOLE + 1):
        if thinning.is_due(r := row(i)):
            thinning.written(thinning.joined(r))
            written += 1
        else:
            thinning.put_off(r)
    assert 1.5 * WHOLE < written <= WHOLE * (1 + math.log(5)) + 1


def test_seconds_are_added_and_metrics_averaged_by_what_they_are() -> None:
    thinning = Thinning(WHOLE, time_s=WHOLE)
    first = {**row(1), "time_total_s": WHOLE + 0.1, "time_this_iter_s": 1.0, "env_steps_per_s": 10.0}
    first |= {"learner/loss": 1.0, "learner/kl": 1.0, "lost/workers": 0, "evaluation/episode_reward_mean": 7.0}
    second = {**row(2), "time_total_s": WHOLE + 0.2, "time_this_iter_s": 3.0, "env_steps_per_s": 30.0}
    second |= {"learner/loss": 2.0, "learner/kl": None, "lost/workers": 1, "episode_reward_this_iter": 5.0}
    third = {**row(3), "time_total_s": WHOLE + 5.0, "time_this_iter_s": 0.0, "env_steps_per_s": 99.0}
    third |= {"learner/loss": 6.0, "learner/kl": 1.0, "lost/workers": 1, "episode_reward_this_iter": None}
    for r in (first, second):
        assert not thinning.is_due(r)
        thinning.put_off(r)
    assert thinning.is_due(third)
    joined = thinning.joined(third)
    assert joined["training_iteration"] == 3 and joined["timesteps_total"] == 30
    assert joined["time_this_iter_s"] == 4.0 and joined["timing/env"] == pytest.approx(0.015)
    assert joined["env_steps_per_s"] == pytest.approx(25.0)
    assert joined["learner/loss"] == pytest.approx(3.0)
    assert joined["learner/kl"] is None  # one was not finite, which must not be hidden
    assert joined["lost/workers"] == 1 and joined["episode_reward_this_iter"] == 5.0
    assert joined["evaluation/episode_reward_mean"] == 7.0
    thinning.written(joined)
    assert thinning.owed == {} and not thinning.is_due({**row(4), "time_total_s": WHOLE + 5.5})


def test_files_of_a_long_run_are_shorter_and_say_the_same(tmp_path: Path) -> None:
    num = WHOLE + 500
    (tmp_path / "result.json").write_text("".join(json.dumps(row(i)) + "\n" for i in range(1, WHOLE - 9)))
    with RunLogger(tmp_path) as logger:
        for i in range(WHOLE - 9, num + 1):
            logger.log(row(i))
    rows = read_results(tmp_path)
    assert WHOLE + 200 < len(rows) < num
    assert [r["training_iteration"] for r in rows[:WHOLE]] == list(range(1, WHOLE + 1))
    assert rows[-1]["training_iteration"] == num
    assert sum(float(r["time_this_iter_s"]) for r in rows) == pytest.approx(num * 0.01)
    assert (tmp_path / "progress.csv").read_text().count("\n") == len(rows) + 1
    with RunLogger(tmp_path, resume_iteration=num - 5) as logger:  # it goes on as sparsely
        for i in range(num - 4, num + 200):
            logger.log(row(i))
    assert len(read_results(tmp_path)) < len(rows) + 150
