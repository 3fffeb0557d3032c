"""The table at the end of an experiment."""

from pathlib import Path

import pytest
from run_folders import write_final, write_run, write_runs

from raypid.errors import UserError
from raypid.report.summary_table import MOST_ROWS, summary_table


def test_best_setting_first_and_how_to_go_on(tmp_path: Path) -> None:
    for lr, values in ((1e-3, [400.0, 410.0, 390.0]), (1e-2, [480.0, 470.0, 491.0])):
        write_runs(tmp_path / f"{lr}", values, lr=lr)
    lines = summary_table([tmp_path], picture=tmp_path / "curves.png", width=300).splitlines()
    assert lines[0].split() == ["lr", "seeds", "return", "steps", "seconds", "state"]
    # Student's t: 4.3027 * sd / sqrt(3)
    assert lines[1].split() == ["0.01", "3", "480.3", "±", "26.1", "5,120", "2.0", "finished"]
    assert lines[2].split() == ["0.001", "3", "400.0", "±", "24.8", "5,120", "2.0", "finished"]
    best = tmp_path / "0.01" / "seed-2"
    text = dict(line.split(maxsplit=1) for line in lines[4:])
    assert text["answer"].startswith("lr=0.01 is better than lr=0.001: final return 480.3 against 400.0")
    assert text["best"] == f"trial   {best}: final return 491.0 ± 1.5 (50 episodes)"
    assert text["evaluate"] == f"raypid eval {best}"
    assert text["repeat"] == f"raypid train --config {best}/params.json --out {best}-again"
    assert text["picture"] == f"{tmp_path}/curves.png"


def test_settings_that_end_alike_are_ranked_by_the_way(tmp_path: Path) -> None:
    for lr, scale, end in ((1, 1.0, 500.0), (2, 2.0, 500.0), (3, 3.0, 100.0)):
        for seed in range(3):
            folder = write_run(tmp_path / f"{lr}-{seed}", seed=seed, lr=lr, scale=scale * (1 + 0.01 * seed))
            write_final(folder, end)
    lines = summary_table([tmp_path], width=300).splitlines()
    assert lines[0].split() == ["lr", "seeds", "return", "on", "the", "way", "steps", "seconds", "state"]
    rows = [line.split() for line in lines[1:4]]
    assert [row[0] for row in rows] == ["2", "1", "3"] and rows[0][5] == "222.2" and rows[2][5] == "-"
    text = dict(line.split(maxsplit=1) for line in lines[5:])
    assert text["answer"].startswith("2 of 3 end at 500.0 (final return); on the way lr=2 is better than lr=1")
    assert text["best"].startswith(f"trial   {tmp_path}/2-2: final return 500.0 ± 1.5 (50 episodes), mean training")


def test_unequal_steps_are_a_range(tmp_path: Path) -> None:
    for seed, iterations in enumerate((10, 20, 30)):
        write_run(tmp_path / str(seed), seed=seed, iterations=iterations)
    assert "2,560 to 7,680" in summary_table([tmp_path], width=100).splitlines()[1]


def test_failures_have_their_error_and_do_not_count(tmp_path: Path) -> None:
    write_runs(tmp_path / "good", [10.0, 20.0], lr=1)
    for seed in range(5):
        run = write_run(tmp_path / f"bad-{seed}", seed=seed, lr=2, iterations=3, stop={"timesteps_total": 1e9})
        write_final(run, 1e6)
        (run / "errors.txt").write_text("The run ended in iteration 4:\nValueError: no licence\n\n")
    (tmp_path / "never").mkdir()
    folders = [tmp_path / "good", *sorted(tmp_path.glob("bad-*")), tmp_path / "never"]
    lines = summary_table(folders, width=120).splitlines()
    assert lines[1].split()[0] == "1" and lines[2].split() == ["2", "5", "-", "768", "0.3", "failed"]
    text = "\n".join(lines)
    assert text.count("ValueError: no licence") == 3 and "... and 2 more; errors.txt" in text
    assert "not started  never" in text and "answer" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit(tmp_path: Path, width: int) -> None:
    for k in range(MOST_ROWS + 40):
        run = write_run(
            tmp_path / f"trial-{k:03}", lr=0.1**k, iterations=2, model={"network": "mypackage.networks:" + "x" * k}
        )
        write_final(run, float(k))
    table = summary_table([tmp_path], width=width).split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= width and table[-1] == "... and 40 more"
    assert table[0].split()[0] == "lr" and "finished" in table[1]


def test_each_environment_has_a_table(tmp_path: Path) -> None:
    for env in ("One-v0", "Two-v0"):
        for lr, value in ((1, 10.0), (2, 30.0)):
            write_runs(tmp_path / f"{env}-{lr}", [value, value + 1, value + 2], lr=lr, env=env)
    parts = summary_table([tmp_path], width=100).split("\n\n")
    assert [part.splitlines()[0] for part in parts[::2]] == ["One-v0", "Two-v0", parts[-1].splitlines()[0]]
    assert parts[-1].startswith("overall      lr=2 is better than lr=1: final return on 2 environments")


def test_settings_with_a_goal_are_ranked_by_the_steps_to_it(tmp_path: Path) -> None:
    for lr, iterations in ((1, 15), (2, 10)):
        write_run(tmp_path / str(lr), lr=lr, iterations=iterations, stop={"evaluation/episode_reward_mean": 120})
    lines = summary_table([tmp_path], width=100).splitlines()
    assert lines[1].split()[:4] == ["2", "1", "2,560", "2,560"] and "to goal" in lines[0]


def test_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="None of 1 folders holds results"):
        summary_table([tmp_path])
