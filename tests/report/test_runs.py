"""Runs from folders: which are found, put together, what they are called, and how they ended."""

import fcntl
import re
from pathlib import Path

import numpy as np
import pytest
from run_folders import write_final, write_run

from raypid.errors import UserError
from raypid.report.logger import RunLogger
from raypid.report.plots import training_curve
from raypid.report.runs import find_runs, group_by_seed
from raypid.storage.run_folder import RunFolder


def groups_of(*folders: Path) -> list[tuple[str, str, int]]:
    runs, _ = find_runs(folders)
    return [(group.task, group.label, len(group.runs)) for group in group_by_seed(runs)]


def test_runs_are_found_below_parents_and_counted_once(tmp_path: Path) -> None:
    for name in ("trial-10", "trial-2", "deep/er/trial-1"):
        write_run(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "tensorboard").mkdir()
    write_run(tmp_path / ".trash" / "old")
    write_run(tmp_path / "trial-2" / "checkpoints" / "odd")
    runs, skipped = find_runs([tmp_path, tmp_path / "trial-2"])
    assert [run.path.name for run in runs] == ["trial-1", "trial-2", "trial-10"] and not skipped


def test_what_is_not_ours_below_a_parent_is_left_out_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "ours")
    foreign = tmp_path / "theirs"
    foreign.mkdir()
    (foreign / "result.json").write_text('{"config": {"lr": 1}}\n')
    runs, skipped = find_runs([tmp_path])
    assert len(runs) == 1 and len(skipped) == 1 and "theirs" in skipped[0] and "line 1" in skipped[0]
    with pytest.raises(UserError, match="line 1"):
        find_runs([foreign])
    with pytest.raises(UserError, match="No run here can be read"):
        (tmp_path / "all").mkdir()
        find_runs([foreign.rename(tmp_path / "all" / "theirs").parent])


def test_no_run_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no result\.json in .* or in a folder below it: give the folder of a run"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="There is nothing at"):
        find_runs([tmp_path / "none"])


def test_labels_name_the_settings_that_differ(tmp_path: Path) -> None:
    for seed in range(2):
        for hidden in ([64, 64], [256]):
            name = f"{hidden[0]}-{seed}"
            write_run(tmp_path / "ppo" / name, seed=seed, model={"hidden": hidden, "network": "auto"})
    assert groups_of(tmp_path) == [("CartPole-v1", "model.hidden=[64,64]", 2), ("CartPole-v1", "model.hidden=[256]", 2)]
    write_run(tmp_path / "z", run="A2C", model={"hidden": [8], "network": "auto"})
    assert [label for _, label, _ in groups_of(tmp_path)] == [
        "PPO model.hidden=[64,64]",
        "PPO model.hidden=[256]",
        "A2C",
    ]


def test_settings_that_only_newer_versions_have_are_no_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "old")
    write_run(tmp_path / "new", seed=1, added_later=3)
    assert groups_of(tmp_path) == [("CartPole-v1", "", 2)]
    write_run(tmp_path / "other", seed=1, added_later=4)
    assert [label for _, label, _ in groups_of(tmp_path)] == ["added_later=3", "added_later=unset", "added_later=4"]


def test_tasks_have_labels_of_their_own(tmp_path: Path) -> None:
    """Tuned settings differ between environments; that tells no two runs of one environment apart."""
    write_run(tmp_path / "a", env="CartPole-v1", lr=1e-3)
    write_run(tmp_path / "b", env="Acrobot-v1", lr=1e-2)
    write_run(tmp_path / "c", env="Acrobot-v1", lr=1e-2, env_config={"length": 3})
    assert groups_of(tmp_path) == [
        ("CartPole-v1", "", 1), ("Acrobot-v1", "", 1), ('Acrobot-v1 {"length":3}', "", 1)
    ]  # fmt: skip


def test_many_or_long_settings_are_cut(tmp_path: Path) -> None:
    for i in range(2):
        settings = {f"a_rather_long_name_{k}": i for k in range(9)}
        write_run(tmp_path / f"run-{i}", env_config={}, first="x" * 50 + str(i), **settings)
    assert [label for _, label, _ in groups_of(tmp_path)] == ["run-0", "run-1"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "run-0").rename(tmp_path / "a" / "run")
    (tmp_path / "run-1").rename(tmp_path / "b" / "run")
    assert [label for _, label, _ in groups_of(tmp_path)] == ["a/run", "b/run"]


def test_repeated_seeds_are_told_apart_by_their_parents(tmp_path: Path) -> None:
    for name in ("before/0", "before/1", "after/0", "after/1"):
        write_run(tmp_path / name, seed=int(name[-1]))
    assert groups_of(tmp_path / "before", tmp_path / "after") == [
        ("CartPole-v1", "before", 2),
        ("CartPole-v1", "after", 2),
    ]
    write_run(tmp_path / "before" / "0-again", seed=0)
    assert [number for _, _, number in groups_of(tmp_path)] == [1, 1, 1, 1, 1]


def test_endings(tmp_path: Path) -> None:
    assert RunFolder(write_run(tmp_path / "done")).ending.state == "finished"
    early = RunFolder(write_run(tmp_path / "early", stop={"timesteps_total": 1e9}))
    assert early.ending.state == "stopped early" and not early.ending.at_goal
    goal = RunFolder(write_run(tmp_path / "goal", stop={"evaluation/episode_reward_mean": 240, "time_total_s": 99}))
    assert goal.ending.state == "finished" and goal.ending.at_goal
    assert goal.ending.reached == {"evaluation/episode_reward_mean"}
    too_few = RunFolder(write_run(tmp_path / "few", iterations=1, stop={"episode_reward_mean": 0}))
    assert too_few.ending.state == "stopped early"

    failed = write_run(tmp_path / "failed", stop={"timesteps_total": 1e9})
    text = 'The run ended in iteration 21:\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: no licence\n\n'
    (failed / "errors.txt").write_text(text)
    assert RunFolder(failed).ending.state == "failed" and RunFolder(failed).ending.error == "ValueError: no licence"
    (failed / "errors.txt").write_text(text.replace("21", "9"))  # it went on since
    assert RunFolder(failed).ending.state == "stopped early"
    (failed / "errors.txt").write_text(text.replace("ValueError", "raypid.errors.Diverged"))
    assert RunFolder(failed).ending.state == "diverged"

    killed = write_run(tmp_path / "killed", stop={"timesteps_total": 1e9})
    with (killed / ".lock").open("w") as lock:
        assert RunFolder(killed).ending.state == "killed"
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert RunFolder(killed).ending.state == "running"


def test_final_episodes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert RunFolder(run).final is None
    write_final(run, 487.5)
    final = RunFolder(run).final
    assert final is not None and final["episode_reward_mean"] == 487.5
    for text in ("[]", "{", '{"spec": {"info": {"final": {"episode_reward_mean": null}}}}'):
        (run / "best" / "policy.json").write_text(text)
        assert RunFolder(run).final is None


def test_why_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "best").mkdir()
    saved = tmp_path / "python" / "checkpoints" / "checkpoint_000002"
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    (tmp_path / "afile").touch()
    for path, words in (
        (run / "best", f"no result.json in {run}/best or in a folder below it: give the folder of a run"),
        (tmp_path / "python", "agent.train() returns them, and writes none"),
        (tmp_path / "python" / "checkpoints", "agent.train() returns them, and writes none"),
        (tmp_path / "nowhere", "There is nothing at"),
        (tmp_path / "afile", "/afile or in a folder below it: give the folder of a run"),
        (saved, "no result.json in"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            find_runs([path])


def test_training_returns_lie_where_their_episodes_ended(tmp_path: Path) -> None:
    with RunLogger(tmp_path / "run") as logger:
        logger.write_params({"run": "PPO", "env": "CartPole-v1", "seed": 0})
        episodes = 0
        for i in range(1, 41):
            episodes += 10 * (i % 2)
            new = 100.0 if i > 20 else 0.0
            row = {
                "training_iteration": i,
                "timesteps_total": 100 * i,
                "episodes_total": episodes,
                "episode_reward_mean": 7.0,
            }
            logger.log(row | {"episode_reward_this_iter": new if i % 2 else float("nan")})
    xs, ys = training_curve(RunFolder(tmp_path / "run"), "timesteps_total")
    assert (ys[xs < 1900] == 0).all() and (ys[xs > 2200] == 100).all()
    assert ys[np.flatnonzero(xs == 2000)[0]] == 50  # ten episodes of 0 ended at 1,900 and ten of 100 at 2,100
    old = training_curve(RunFolder(write_run(tmp_path / "old")), "timesteps_total")
    assert old[1][-1] == 200  # of a run without the key: the mean of the last 100
