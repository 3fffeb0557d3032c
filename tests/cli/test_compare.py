"""`raypid compare`: the answer, what it is about, and what is refused."""

import fcntl
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from run_folders import write_final, write_run, write_runs

from raypid.cli import main
from raypid.report.logger import RunLogger

LOW, HIGH, WIDE = [400.0, 410.0, 395.0, 405.0], [480.0, 470.0, 490.0, 475.0], [300.0, 500.0, 350.0, 480.0]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*words: str | Path) -> str:
        code = main(["compare", *map(str, words)])
        printed = capsys.readouterr()
        return printed.out if code == 0 else f"{code}: {printed.err}"

    return ask


def test_says_which_is_better_by_how_much_and_how_surely(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW, lr=1e-3), write_runs(tmp_path / "b", HIGH, lr=1e-2)
    # scipy.stats.ttest_ind(HIGH, LOW, equal_var=False): p = 0.0000133, interval 62.914 to 89.586
    assert answer(a, b).splitlines()[0] == (
        "lr=0.01 is better than lr=0.001: final return 478.8 against 402.5, higher by 76.2 (95% interval 62.9 to 89.6), "
        "4 seeds each, p < 0.001."
    )
    assert answer(a, b) == answer(b, a)


def test_says_when_it_cannot_tell(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW), write_runs(tmp_path / "b", WIDE)
    first = answer(a, b).splitlines()[0]
    assert first.startswith("Cannot tell b from a: final return 407.5 against 402.5, difference 5.0 (95% interval ")
    assert first.endswith("too small to be seen with 1,000 seeds of each.")
    few = answer(write_runs(tmp_path / "c", HIGH[:1]), write_runs(tmp_path / "d", LOW[:1]))
    assert "1 seed each. A single seed says nothing of others: at least 3 of each are needed." in few
    # variances 1633 and 1108 over a gap of 35: (1.96 + 0.84)^2 * 2741 / 35^2 = 17.6, and a little more for Student's t
    more = answer(write_runs(tmp_path / "e", [400.0, 480.0, 450.0]), write_runs(tmp_path / "f", [500.0, 440.0, 495.0]))
    assert (
        more.startswith("Cannot tell f from e")
        and "About 19 seeds of each would show a difference of this size." in more
    )


def test_one_parent_is_ranked(tmp_path: Path, answer: Any) -> None:
    for lr, values in ((1e-3, LOW), (1e-2, HIGH), (1e-1, [481.0, 468.0, 489.0, 470.0])):
        write_runs(tmp_path / f"{lr}", values, lr=lr)
    lines = answer(tmp_path).splitlines()
    assert lines[0].startswith(
        "lr=0.01 leads by final return: better than 1 of the 2 others, cannot be told from lr=0.1."
    )
    assert [line.split()[0] for line in lines[2:5]] == ["lr=0.01", "lr=0.1", "lr=0.001"]
    assert lines[4].endswith("worse") and lines[3].endswith("cannot tell") and "98.33% interval" in lines[1]
    runs = sorted(tmp_path.glob("*/seed-*"))
    assert answer(*runs) == answer(tmp_path)  # as the shell's globs give them


def test_environments_are_never_averaged_raw(tmp_path: Path, answer: Any) -> None:
    """On the second the differences are a thousand times smaller, and the other way round."""
    for env, scale in (("One-v0", 1.0), ("Two-v0", -1e-3)):
        for lr, values in ((1, LOW), (2, HIGH)):
            write_runs(tmp_path / f"{env}-{lr}", [scale * value for value in values], lr=lr, env=env)
    lines = answer(tmp_path).splitlines()
    assert (
        lines[0].startswith("Cannot tell")
        and "on 2 environments, in parts of each one's range, difference 0" in lines[0]
    )
    verdicts = {line.split()[0]: line.split()[-1] for line in lines[2:4]}
    assert sorted(verdicts.values()) == ["better", "worse"]


def test_a_common_goal_is_compared_by_the_steps_to_it(tmp_path: Path, answer: Any) -> None:
    for name, extra in (("a", 0), ("b", 10)):
        for seed in range(3):
            iterations = 10 + 5 * (seed % 2) + extra
            goal = {"evaluation/episode_reward_mean": 120.0}
            write_run(tmp_path / name / str(seed), seed=seed, iterations=iterations, stop=goal, lr=extra + 1)
    told = answer(tmp_path)
    assert told.startswith(
        "lr=1 is better than lr=11: environment steps to evaluation return 120: 2,987 against 5,547, lower by 2,560"
    )


def test_the_measure_is_one_that_all_have(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW, lr=1), write_runs(tmp_path / "b", HIGH, lr=2)
    write_run(a / "seed-9", seed=9, lr=1)
    assert "last evaluation return" in answer(a, b)
    write_run(b / "seed-9", seed=9, lr=2, evaluated=False)
    assert "Both end at 200.0 (training return); on the way one cannot tell" in answer(a, b)
    assert "learner/entropy 0.05" in answer(a, b, "--metric", "learner/entropy")
    assert answer(a, b, "--metric", "learner/entropi").startswith("2: ") and "Did you mean" in answer(
        a, b, "--metric", "learner/entropi"
    )


def test_an_evaluation_long_before_the_end_does_not_count_for_it(tmp_path: Path, answer: Any) -> None:
    for lr in (1, 2):
        for seed in range(3):
            write_run(tmp_path / f"{lr}-{seed}", lr=lr, seed=seed, scale=lr, iterations=[9, 20, 20][seed])
    assert ": training return" in answer(tmp_path)  # evaluated last in iteration 5 of 9


def test_less_is_better_where_it_is(tmp_path: Path, answer: Any) -> None:
    a, b = (write_runs(tmp_path / name, LOW, lr=i, iterations=10 + 5 * i) for i, name in enumerate("ab"))
    write_run(a / "x", seed=8, iterations=9, lr=0)
    write_run(b / "x", seed=8, iterations=16, lr=1)
    assert answer(a, b, "--metric", "time_total_s").startswith(
        "lr=0 is better than lr=1: time in seconds 0.98 against 1.52, lower by 0.54"
    )
    assert answer(a, b, "--metric", "training_iteration", "--lower").startswith("lr=0 is better")


def test_unfinished_runs_are_named_and_do_not_count(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW, lr=1), write_runs(tmp_path / "b", HIGH, lr=2)
    running = write_run(b / "seed-9", seed=9, lr=2, stop={"timesteps_total": 1e9})
    with (running / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = answer(a, b)
        assert "4 seeds each" in told and f"{running}: running at step 5,120, does not count." in told
        at = answer(a, b, "--at", "5000")
        assert "4 and 5 seeds" in at or "5 and 4 seeds" in at
    (running / ".lock").unlink()
    (running / "errors.txt").write_text("The run ended in iteration 21:\nraypid.errors.Diverged: the loss is nan\n\n")
    told = answer(a, b)
    assert "counts with what it had reached" in told and "last evaluation return" in told
    write_final(running, 20.0)
    alone = tmp_path / "alone"
    alone.mkdir()
    (running / "errors.txt").write_text("The run ended in iteration 21:\nValueError: no licence\n\n")
    running.rename(alone / "seed-9")
    assert answer(a, alone).startswith("2: raypid: No run of lr=2 on CartPole-v1 counts.")
    assert "failed at step 5,120" in answer(a, alone)


def test_unequal_steps_are_said(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW, lr=1), write_runs(tmp_path / "b", HIGH, lr=2, iterations=60)
    assert "Unequal steps (lr=1: 5,120; lr=2: 15.4k): `--at 5120` compares after equally many." in answer(a, b)
    write_final(write_run(a / "seed-9", seed=9, lr=1, iterations=10), 400.0)  # one seed of a side, too
    assert "Unequal steps (lr=1: 2,560 to 5,120; lr=2: 15.4k): `--at 2560` compares" in answer(a, b)


def test_pairs(tmp_path: Path, answer: Any) -> None:
    a = write_runs(tmp_path / "a", WIDE, lr=1)
    b = write_runs(tmp_path / "b", [value + gap for value, gap in zip(WIDE, (10, 11, 9, 10))], lr=2)
    assert answer(a, b).startswith("Cannot tell")
    paired = answer(a, b, "--paired")
    assert paired.startswith("lr=2 is better") and "paired t-test" in paired
    write_final(write_run(b / "seed-7", seed=7, lr=2), 1.0)
    assert "different seeds on CartPole-v1: 0, 1, 2, 3" in answer(a, b, "--paired")


def test_what_cannot_be_compared_is_refused(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "both" / "a", LOW, lr=1), write_runs(tmp_path / "both" / "b", HIGH, lr=2)
    c = write_runs(tmp_path / "c", LOW, env="Acrobot-v1")
    for words, message in [
        ((a.parent, c), "holds runs of 2 settings, so it is not one side of a comparison (lr=1; lr=2)."),
        (
            (a, c),
            "Returns of different environments do not compare, and the sides have none in common (a: CartPole-v1; c: Acrobot-v1).",
        ),
        ((a,), "There is one setting here: nothing to compare."),
        ((a, a), f"{a}/seed-0 is on both sides, once as {a}/seed-0: give each run once."),
        ((a, tmp_path / "none"), "There is nothing at"),
        ((a, b, "--at", "100"), "No run of lr=1 on CartPole-v1 counts."),
    ]:
        assert message in answer(*words), words
    again = write_final(write_run(a / "seed-0-again", seed=0, lr=1), 1000.0)
    assert again is None and "has the seed of" in answer(a, b) and "against 402.5" in answer(a, b)


def test_json(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW, lr=1), write_runs(tmp_path / "b", HIGH, lr=2)
    told = json.loads(answer(a, b, "--json"))
    assert told["verdict"] == "better" and told["leader"] == "lr=2" and told["measure"] == "final return"
    assert told["sides"][0]["values"]["CartPole-v1"] == HIGH
    (gap,) = told["leader_minus"]
    assert gap["difference"] == 76.25 and gap["is_sure"] and gap["probability_of_improvement"] == 1.0
    assert json.loads(answer(a / "seed-0", b / "seed-0", "--json"))["leader_minus"][0]["low"] is None


def test_where_all_end_alike_the_way_there_decides(tmp_path: Path, answer: Any) -> None:
    for lr, scale in ((1, 1.0), (2, 2.0)):
        for seed in range(3):
            folder = write_run(tmp_path / f"{lr}-{seed}", seed=seed, lr=lr, scale=scale * (1 + 0.01 * seed))
            write_final(folder, 500.0 - 0.1 * seed)
    # the training return is 10 scale i after 256 i steps, from i = 2 to 20
    assert answer(tmp_path).startswith(
        "Both end at 499.9 (final return); on the way lr=2 is better than lr=1: mean training return over the first 5,120 steps 222.2 against 111.1"
    )
    told = json.loads(answer(tmp_path, "--json"))
    assert told["verdict"] == "better" and told["leader"] == "lr=2" and told["on_the_way"]["leader"] == "lr=2"
    assert answer(tmp_path, "--on-the-way", "--at", "2560").startswith(
        "lr=2 is better than lr=1: mean training return from 512 steps to 2,560 steps 121.2 against 60.6"
    )
    write_runs(tmp_path / "worse", [100.0, 101.0, 102.0], lr=3)
    lines = answer(tmp_path).splitlines()
    assert lines[0].startswith("2 of 3 end at 499.9") and lines[0].endswith("Worse at the end: lr=3.")
    assert lines[1] == "  By final return:"
    assert [line.split()[0] for line in lines[3:6]] == ["lr=2", "lr=1", "lr=3"]
    assert lines[4].endswith("ends alike") and lines[5].endswith("worse")


def test_the_same_training_is_the_same_at_any_step_however_often_it_was_evaluated(tmp_path: Path, answer: Any) -> None:
    """The return rises and falls, and one side was evaluated at a third of the places."""
    rows = [(990 * i, 500 * (i % 4 + 1) / 4) for i in range(1, 31)]
    for every in (1, 3):
        for seed in range(5):
            folder = tmp_path / f"{every}" / str(seed)
            with RunLogger(folder) as logger:
                settings = {"run": "PPO", "env": "CartPole-v1", "seed": seed, "evaluation_interval": every}
                logger.write_params(settings | {"stop": {"timesteps_total": 29_700}})
                for i, (steps, value) in enumerate(rows, 1):
                    times = {"training_iteration": i, "timesteps_total": steps, "time_total_s": i + seed / 10}
                    played = {"evaluation/episode_reward_mean": value + seed} if i % every == 0 else {}
                    logger.log(times | {"episode_reward_mean": value / 2 + seed} | played)
    sides = tmp_path / "1", tmp_path / "3"
    for at in ("2000", "5500", "5.5k", "6s"):
        told = answer(*sides, "--at", at)
        assert "training return at" in told and "difference 0.0" in told and "Not every run was evaluated" in told
    assert "evaluation return at 2,970 steps 502.0 against 502.0, difference 0.0" in answer(*sides, "--at", "2970")
    assert "mean training return" in answer(*sides, "--on-the-way") and "They are alike." in answer(
        *sides, "--on-the-way"
    )
    first = tmp_path / "1"
    for seed in range(5):
        run = first / str(seed)
        other = {**json.loads((run / "params.json").read_text()), "lr": 2}
        copy = tmp_path / "like" / str(seed)
        shutil.copytree(run, copy)
        (copy / "params.json").write_text(json.dumps(other))
    assert "mean evaluation return over the first" in answer(first, tmp_path / "like", "--on-the-way")


def test_a_run_that_stopped_at_its_goal_looks_no_worse_on_the_way(
    tmp_path: Path, answer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both learn alike; one stops at the goal, and its last return is no measure of what it would have reached."""
    for name, iterations, goal in (("a", 10, 120.0), ("b", 40, 1e9)):
        for seed in range(3):
            stop = {"evaluation/episode_reward_mean": goal}
            write_run(tmp_path / name / str(seed), seed=seed, iterations=iterations, stop=stop, lr=len(name))
    sides = tmp_path / "a", tmp_path / "b"
    told = answer(*sides, "--on-the-way")
    assert "to 2,560 steps 60.0 against 60.0, difference 0.0" in told
    assert "Stopped at a goal and might have got further: a (3 of 3 runs)." in answer(*sides)
    assert "a/0: stopped at its goal at step 2,560, counts with what it had reached." in answer(*sides, "--at", "5120")
    assert main(["compare", *map(str, sides), "--at", "5120", "--metric", "episode_reward_mean"]) == 2
    assert "a/0: no training return at 5,120 steps, does not count" in capsys.readouterr().err


def test_places_on_the_way(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", LOW, lr=1), write_runs(tmp_path / "b", HIGH, lr=2, scale=2.0)
    assert "evaluation return at 2,560 steps 240.0 against 120.0" in answer(a, b, "--at", "2.56k")
    # between results of 100 and 110
    assert "training return at 2,688 steps 210.0 against 105.0" in answer(a, b, "--at", "2688")
    assert "training return at 1.05 s 210.0 against 105.0" in answer(a, b, "--at", "1.05s")
    assert "mean learner/entropy over the first 2,560 steps" in answer(
        a, b, "--on-the-way", "--at", "2560", "--metric", "learner/entropy"
    )
    for wrong in ("0", "-5", "5m", "five", "nan"):
        with pytest.raises(SystemExit):
            main(["compare", str(a), str(b), "--at", wrong])


def test_a_copy_and_a_run_without_results_are_no_samples(tmp_path: Path, answer: Any) -> None:
    a = write_runs(tmp_path / "a", LOW)
    shutil.copytree(a, tmp_path / "b")
    assert f"{tmp_path / 'b'}/seed-0 is on both sides, once as {a}/seed-0: give each run once." in answer(
        a, tmp_path / "b"
    )
    c = write_runs(tmp_path / "c", HIGH)
    (c / "seed-0" / "result.json").write_text('{"training_iteration": 1, "times')
    assert "4 and 3 seeds" in answer(a, c) or "3 and 4 seeds" in answer(a, c)


def test_how_often_a_run_does_better(tmp_path: Path, answer: Any) -> None:
    a, b = write_runs(tmp_path / "a", [100.0, 200.0, 300.0]), write_runs(tmp_path / "b", [200.0, 300.0, 400.0])
    assert "b did better than a in 78% of all pairs of runs." in answer(a, b)
    assert "b did better than a in 100% of all pairs of the same seed." in answer(a, b, "--paired")
    assert "did better" not in answer(a / "seed-0", b / "seed-0")
