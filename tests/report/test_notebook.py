"""The panel of a notebook, alone and in a real kernel."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.report.notebook import NotebookPanel, in_notebook, progress_here
from raypid.report.panel import PlainLines, Quiet


def test_the_panel_is_shown_as_text_and_html() -> None:
    panel = NotebookPanel({"timesteps_total": 1000, "evaluation/episode_reward_mean": 475})
    panel._state.info = {"algorithm": "PPO", "env": "<b>", "seed": 1, "folder": "runs/a", "num_workers": 0}
    assert "waiting for the first iteration" in panel._shown()["text/plain"]
    panel._state.update(
        {"timesteps_total": 250, "episode_reward_mean": 20.0, "env_steps_per_s": 9e3, "time_total_s": 61}
    )
    panel._lines = ["<script>", "[red]a", "next  " + "x" * 200]
    shown = panel._shown()
    for words in (
        *(
            "raypid PPO on <b>",
            "seed 1 · one process · runs/a",
            "training   20.0",
            "9,000 steps/s",
            "250 / 1,000",
            "25%",
        ),
        *("<script>", "[red]a", "x" * 200),
    ):
        assert words in shown["text/plain"], words
    assert "<script>" not in shown["text/html"] and "PPO on &lt;b&gt;" in shown["text/html"]
    panel._state.update({"episode_reward_mean": math.nan})
    assert panel._shown()


def test_elsewhere_there_are_lines() -> None:
    assert not in_notebook()
    assert isinstance(progress_here({}, False), PlainLines) and isinstance(progress_here({}, True), Quiet)


CELLS = [
    """
import gymnasium, raypid
class Short(gymnasium.wrappers.TimeLimit):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"), 40)
class Seen(raypid.Callbacks):
    def on_episode_end(self, info):
        return {"short": float(info["episode_length"] <= 40)}
small = dict(fragment_length=32, batch_size=64, final_episodes=2, num_workers=2, num_cpus_per_worker=0.5)
""",
    'raypid.train("PPO", Short, stop=500, out="a", callbacks=Seen, num_envs_per_worker=2, **small).result["custom/short"]',
    'raypid.train("PPO", "CartPole-v1", out="b", seed=0)',
]


@pytest.mark.ci_slow
def test_a_real_notebook_with_classes_in_cells_and_an_interrupt(tmp_path: Path) -> None:
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(cwd=str(tmp_path))
    try:
        assert run_cell(client, CELLS[0]) == []
        first = run_cell(client, CELLS[1])
        panels = [data for data in first if "text/html" in data]
        assert "seed" in panels[-1]["text/html"] and "timesteps_total reached" in panels[-1]["text/html"]
        assert any("image/png" in data for data in first) and first[-1]["text/plain"] == "1.0"
        new = [data for data in first if data["message"] == "display_data" and "image/png" not in data]
        assert len(new) == 1, "one panel, without an empty output above it"
        assert not any("stream" in data for data in first), "nothing is printed beside the panel"
        results = tmp_path / "b/result.json"
        last = run_cell(
            client, CELLS[2], lambda: results.exists() and results.stat().st_size > 0, kernel.interrupt_kernel
        )
        assert last[-1]["text/plain"].startswith("<Outcome 'interrupted'")
        assert list((tmp_path / "b/checkpoints").iterdir())
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def run_cell(
    client: Any, code: str, when: Callable[[], bool] = lambda: False, act: Callable[[], object] = lambda: None
) -> list[dict[str, str]]:
    """Run a cell, and `act` once when `when` is true; returns what the cell showed, each as {type: data}."""
    sent, shown, until = client.execute(code), list[dict[str, str]](), time.monotonic() + 100
    while time.monotonic() < until:
        if when():
            act()
            when = bool
        try:
            message = client.get_iopub_msg(timeout=0.2)
        except queue.Empty:
            continue
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != sent:
            continue
        if kind in ("display_data", "update_display_data", "execute_result"):
            shown.append({**content["data"], "message": kind})
        elif kind == "stream":
            shown.append({"stream": content["text"]})
        elif kind == "error":
            raise AssertionError("\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return shown
    raise AssertionError(f"the cell did not end: {shown[-1:]}")
