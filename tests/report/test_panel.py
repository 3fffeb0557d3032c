"""What the terminal shows: the right display for the place, the right numbers, at little cost, the cursor restored."""

import io
import math
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raypid.phases import duration
from raypid.report.panel import (
    Panel,
    PlainLines,
    Quiet,
    State,
    bottleneck,
    clock,
    count,
    flow,
    make_progress,
    reading,
    sparkline,
    summary_lines,
)
from raypid.report.streams import StatusLine

INFO = {"algorithm": "PPO", "env": "CartPole-v1", "seed": 3, "num_workers": 2, "backend": "ray", "folder": "runs/x"}
STOP = {"evaluation/episode_reward_mean": 475, "time_total_s": 600, "timesteps_total": 1e6}


def result(i: int, **more: Any) -> dict[str, Any]:
    times = {"env": 0.07, "inference": 0.01, "transport": 0.0, "learner": 0.015, "evaluation": 0.0}
    return {
        "training_iteration": i,
        "timesteps_total": 1000 * i,
        "episodes_total": 5 * i,
        "episode_reward_mean": 20.0 * i,
        "episode_reward_min": 1.0,
        "episode_reward_max": 200.0,
        "time_this_iter_s": 0.1,
        "time_total_s": 0.1 * i,
        "env_steps_per_s": 10_000.0,
        "learner_updates_total": 10 * i,
        **{f"timing/{part}": seconds for part, seconds in times.items()},
        **more,
    }


def evaluation(mean: float) -> dict[str, float]:
    return {"evaluation/episode_reward_mean": mean, "evaluation/episode_reward_ci95": 4.5}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def draw(panel: Panel, width: int, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    panel._console = console
    with console.capture() as capture:
        console.print(panel.render())
    return capture.get().splitlines()


def test_the_display_fits_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_progress({}, False, Terminal()), Panel)
    assert isinstance(make_progress({}, True, Terminal()), Quiet)
    assert isinstance(make_progress({}, False, io.StringIO()), PlainLines)
    for name, value in (("TERM", "dumb"), ("CI", "true")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert isinstance(make_progress({}, False, Terminal()), PlainLines)
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    assert isinstance(make_progress({}, False, Terminal()), PlainLines)


def test_fractions_of_stop_criteria() -> None:
    state = State({**STOP, "episode_reward_mean": -100.0, "loss": 1.0})
    assert all(state.fraction(key) == 0 for key in state.stop)
    state.update(result(1, episode_reward_mean=math.nan))
    state.update(result(2, episode_reward_mean=-300.0, **evaluation(75.0)))
    state.update(result(250, episode_reward_mean=-200.0, **evaluation(175.0)))
    assert state.fraction("evaluation/episode_reward_mean") == pytest.approx(0.25)  # of the way from 75 to 475
    assert state.fraction("episode_reward_mean") == pytest.approx(0.5)
    assert state.fraction("timesteps_total") == pytest.approx(0.25)
    assert state.fraction("time_total_s") == pytest.approx(25 / 600)
    assert state.fraction("loss") == 0
    state.update(result(251, **evaluation(480.0)))
    assert state.fraction("evaluation/episode_reward_mean") == 1


def test_best_is_of_evaluations_where_there_are_any() -> None:
    state = State({})
    state.update(result(1, episode_reward_mean=90.0))
    assert state.best == 90
    state = State({})
    for i, mean in enumerate((10.0, 30.0, 20.0)):
        state.update(result(i, **evaluation(mean)))
    assert state.best == 30 and state.evaluation() == "20.0 ± 4.50"


def test_shares_sum_to_one_with_what_nobody_timed() -> None:
    state = State({})
    state.update(result(1))
    assert state.shares()["other"] == pytest.approx(0.05)
    state.update(result(2, time_this_iter_s=0.01))  # parts that overlap
    assert sum(state.shares().values()) == pytest.approx(1)
    assert State({}).shares() == {}


@pytest.mark.parametrize(
    ("shares", "info", "text"),
    [
        (
            {"env": 0.71, "learner": 0.29},
            {"num_workers": 1, "num_cpus": 4},
            "environment 71% of the time: more workers",
        ),
        ({"env": 0.71, "learner": 0.29}, {"num_workers": 4, "num_cpus": 4}, "environment 71% of the time: a faster"),
        ({"env": 0.2, "learner": 0.8}, {}, "learner 80% of the time: fewer updates"),
        ({"env": 0.34, "learner": 0.33, "inference": 0.33}, {}, "balanced: environment 34%, learner 33%"),
        ({}, {}, ""),
    ],
)
def test_bottleneck(shares: dict[str, float], info: dict[str, Any], text: str) -> None:
    assert bottleneck(shares, info, time_s=60).startswith(text)
    assert ("that were lost" in bottleneck(shares, info, time_s=60, waited=True)) == text.startswith("environment")


@pytest.mark.parametrize(("cpus", "time_s", "pay"), [(4, 60.0, True), (4, 5.0, False), (2, 60.0, False)])
def test_workers_are_advised_where_they_pay(cpus: int, time_s: float, pay: bool) -> None:
    said = bottleneck({"env": 1.0}, {"num_workers": 0, "num_cpus": cpus}, time_s=time_s)
    assert ("num_workers=" in said) == pay and said.startswith("environment 100%")


def test_a_gpu_is_advised_where_an_update_is_long() -> None:
    def said(seconds: float, updates: int, **info: float) -> str:
        state = State({})
        state.info = dict(info)
        for i in range(2):
            state.update(result(i, **{"learner_updates_total": 40 + i * updates, "timing/learner": seconds}))
        return state.bottleneck()

    assert "learner" in said(2.0, 1000) and "GPU" not in said(2.0, 1000)
    assert said(2.0, 100).endswith(", or a GPU") and "GPU" not in said(2.0, 100, num_gpus=1)


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(list(range(5000)), 40)) == 40 and sparkline(list(range(5000)), 40)[-1] == "█"
    assert sparkline([5, 5], 10) == "▁▁" and sparkline([], 10) == ""


def test_numbers_as_text() -> None:
    assert [count(v) for v in (None, math.nan, 0, 750, 9_999, 12_345, 1_000_000, 1_234_567, 1.25e9)] == [
        *("-", "-", "0", "750", "9,999", "12.3k", "1M", "1.23M", "1.25G")
    ]
    assert [count(v, like=150_000) for v in (6_094, 150_000)] == ["6.09k", "150k"]
    assert [reading(v) for v in (math.nan, 0.913, -187.34, 3210.4, 1e6)] == ["-", "0.91", "-187.3", "3,210", "1M"]
    assert [reading(v) for v in (-2e-5, 0.0, 3e12, 2.5e38)] == ["-2.0e-05", "0.00", "3T", "2.5e+38"]
    assert [clock(v) for v in (None, 59.9, 61, 3661)] == ["-", "0:59", "1:01", "1:01:01"]
    assert flow(["a a", "bb", "c c"], 9) == "a a · bb\n· c c"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_panel_shows_the_run(width: int) -> None:
    panel = Panel(STOP, console=Console(file=io.StringIO()))
    panel._state.info = dict(INFO)
    assert "waiting" in "\n".join(draw(panel, width))
    for i in range(1, 30):
        panel.update(result(i, **(evaluation(10.0 * i) if i % 10 == 0 else {})))
    lines = draw(panel, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) == min(width, 160) and len(lines) <= 24
    for words in ("PPO on CartPole-v1", "seed 3", "2 workers", "200.0 ± 4.50", "best 200.0", "200.0 / 475.0", "10.0k"):
        assert words.replace("10.0k", "10k steps/s") in text
    assert "environment 70%" in text and "bottleneck" in text and "lost" not in text
    panel.update(result(30, **{"lost/workers": 1, "lost/stale": 0}))
    panel.update(result(31))
    assert draw(panel, 10)
    assert "lost       1 worker " in "\n".join(draw(panel, width)) and "stale" not in "\n".join(draw(panel, width))
    assert len(draw(panel, width, height=12)) < 12


def test_the_panel_is_drawn_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Panel(STOP, console=Console(file=io.StringIO(), width=80, force_terminal=True))
    draws = []
    monkeypatch.setattr(panel, "render", lambda: draws.append(1) or "")
    panel.start(INFO)
    started = time.perf_counter()
    for i in range(500):
        panel.update(result(i))
    took = time.perf_counter() - started
    panel.stop()
    panel.stop()
    assert len(draws) <= 4 + took / 0.2


def test_plain_lines_are_aligned_and_few() -> None:
    out = io.StringIO()
    lines = PlainLines(STOP, out)
    lines.start(INFO)
    lines.message("Going on from step 5")
    for i in range(1, 201):
        lines.update(result(i, **{**evaluation(float(i)), "lost/workers": int(i == 200)}))
    lines.message("checkpoint at 1000")
    for _ in range(2):
        lines.stop([("return", "475 ± 4"), ("next", "raypid eval runs/x")])
    text = out.getvalue().splitlines()
    assert text[0] == "raypid PPO on CartPole-v1, seed 3, 2 workers, backend ray, runs/x"
    assert text[1] == "Going on from step 5" and text[2].split()[:2] == ["time", "iteration"]
    assert len(text[2]) == len(text[3]) and "200.0 ± 4.50" in out.getvalue()
    assert text[-2:] == ["return  475 ± 4", "next    raypid eval runs/x"]
    assert "lost so far: 1 worker" in text and len(text) <= 11


def test_lines_at_intervals() -> None:
    out = io.StringIO()
    lines = PlainLines({}, out, interval=10)
    row = result(1, **{"lost/workers": 0, "lost/stale": 2.0})
    for lost in ({}, {"lost/workers": 1}, {"lost/env_crashes": 1}):
        row |= lost
        lines.update(row)
    assert out.getvalue() == ""
    lines.update(row | evaluation(7.0))
    lines.update(row | {"training_iteration": 10})
    head, evaluated, lost_so_far, tenth = out.getvalue().splitlines()
    assert head.split()[:2] == ["time", "iteration"] and evaluated.endswith("7.00 ± 4.50")
    assert (evaluated.split()[1], tenth.split()[1]) == ("1", "10")
    assert lost_so_far == "lost so far: 1 worker, 2 stale, 1 env crash"


def test_a_closed_pipe_does_not_end_the_run() -> None:
    read, write = os.pipe()
    os.close(read)
    lines = PlainLines({}, os.fdopen(write, "w"))
    lines.start(INFO)
    lines.update(result(1))
    lines.stop()


def test_quiet_says_nothing_but_messages(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Quiet()
    quiet.start(INFO)
    quiet.update(result(1))
    quiet.message("worker 1 was lost")
    quiet.stop([("return", "1")])
    assert capsys.readouterr() == ("", "worker 1 was lost\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pty")
@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "1 / 0", "progress.stop([('folder', 'runs/x')])"])
def test_the_cursor_comes_back(end: str) -> None:
    code = (
        "from raypid.report.panel import Panel, make_progress\n"
        "progress = make_progress({}, False)\nassert isinstance(progress, Panel)\n"
        f"progress.start({INFO!r})\nprogress.update({result(1)!r})\n{end}"
    )
    driver, terminal = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "CI"} | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], stdout=terminal, stderr=subprocess.DEVNULL, cwd=root, env=env):
        os.close(terminal)
        shown = b""
        try:
            while piece := os.read(driver, 65536):
                shown += piece
        except OSError:  # Linux says so when the other side has closed
            pass
    os.close(driver)
    assert b"CartPole-v1" in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l") >= 0


def test_time_left_is_said_where_it_can_be_known() -> None:
    state = State({**STOP, "episodes_total": 1e4})
    state.info = {"warm_up_steps": 2000}
    state.update(result(1, time_total_s=1.0))
    state.update(result(2, time_total_s=2.0))
    assert state.seconds_left("time_total_s") == 598
    assert state.seconds_left("timesteps_total") is None  # warm-up, whose pace is another
    for i in range(3, 8):
        state.update(result(i, time_total_s=10.0 * i))
    assert state.seconds_left("timesteps_total") == pytest.approx(993_000 * 68 / 5000)  # by the pace since step 2,000
    assert state.seconds_left("evaluation/episode_reward_mean") is None
    state.has_ended = True
    assert state.seconds_left("timesteps_total") is None
    assert [duration(s) for s in (1, 59, 170, 3600 * 2.5)] == ["1 s", "59 s", "2.8 min", "2.5 h"]


def metrics(i: int) -> dict[str, float]:
    return {"learner/kl": 0.01 * i, "learner/value_loss": 1.0 / i, "learner/grad_norm": 3.0}


def test_the_panel_shows_the_metrics_that_the_algorithm_names() -> None:
    panel = Panel(STOP, console=Console(file=io.StringIO()))
    panel._state.info = {**INFO, "shown_metrics": ("value_loss", "kl", "never_reported")}
    for i in range(1, 30):
        panel.update(result(i, **metrics(i), **evaluation(20.0 + i)))
    narrow, wide = "\n".join(draw(panel, 80, 40)), "\n".join(draw(panel, 140, 40))
    assert "learner    value loss 0.0345 · KL 0.29" in narrow
    assert "grad norm" not in narrow and "never" not in narrow
    assert "KL" in wide and "spent on" in wide and wide.count("█") > 2
    line = next(line for line in wide.splitlines() if "value loss" in line)
    assert "return" in line  # beside each other
    assert "evaluation return 21.0 → 49.0" in narrow
    panel._state.info = dict(INFO)  # an algorithm that names none
    assert "grad norm 3" in "\n".join(draw(panel, 80, 40))


@pytest.mark.parametrize(("width", "height"), [(40, 10), (60, 14), (80, 24), (140, 16), (200, 60)])
def test_the_panel_fits_any_terminal(width: int, height: int) -> None:
    panel = Panel(STOP, console=Console(file=io.StringIO()))
    panel._state.info = dict(INFO)
    for i in range(1, 30):
        panel.update(result(i, **metrics(i), **evaluation(20.0 + i), **{"lost/workers": 1}))
    lines = draw(panel, width, height)
    assert len(lines) <= height - 1 and max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "training" in text and "580" in text and "stop at" in text
    labels = [line[2:13].strip() for line in lines]
    assert "time" not in labels  # that is a stop criterion, and "so far" the clock


def test_what_is_done_besides_training_stands_in_the_frame() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    panel = Panel(STOP, console=console)
    panel.working("starting Ray")  # before there is a panel
    panel.start(INFO)
    panel.update(result(1))
    panel.working("playing 50 episodes")
    assert "playing 50 episodes ..." in draw(panel, 80)[-1]
    panel.working("")
    assert "playing" not in "\n".join(draw(panel, 80))
    panel.stop()
    panel.working("stopping Ray")


def test_long_lines_of_the_summary_are_wrapped_and_commands_are_not() -> None:
    command = "raypid train --resume '/a b' --stop '{\"timesteps_total\": 120000}'"
    lines = summary_lines([("took", "8.0 s: " + "1.0 s starting Ray, " * 5), ("next", command)], 60)
    assert len(lines) == 3 and max(map(len, lines[:2])) <= 60 and lines[1].startswith("      starting Ray,")
    assert lines[-1] == f"next  {command}"


def test_plain_lines_say_once_that_ray_starts() -> None:
    out = io.StringIO()
    lines = PlainLines(STOP, out)
    for text in ("making CartPole-v1", "starting Ray", "", "starting Ray", "1 of 2 workers are up", ""):
        lines.working(text)
    assert out.getvalue() == "starting Ray ...\n"
    lines.working("waiting for room, up to 600 s: 2 workers of 1 CPU need 2 CPUs")
    assert out.getvalue().splitlines()[1:] == ["waiting for room, up to 600 s: 2 workers of 1 CPU need 2 CPUs ..."]


def test_the_status_line_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    terminal, pipe = Terminal(), io.StringIO()
    for file in (terminal, pipe):
        line = StatusLine(file)
        for text in ("starting Ray", "starting Ray", "a text that is too long for it", ""):
            line(text)
    assert pipe.getvalue() == ""
    assert terminal.getvalue().split("\r\x1b[K") == ["", "starting Ray ...", "a text that is too ", ""]


def test_the_metrics_that_algorithms_show_are_reported() -> None:
    from raypid.plugins.registry import ALGORITHMS
    from raypid.run.known_keys import known_keys

    for name in ALGORITHMS.names():
        algorithm = ALGORITHMS.get(name)
        keys = known_keys(name, algorithm.Config())
        if "learner/" not in keys.open:
            assert algorithm.shown_metrics, name
            missing = {f"learner/{metric}" for metric in algorithm.shown_metrics} - keys.keys
            assert not missing, (name, missing)
