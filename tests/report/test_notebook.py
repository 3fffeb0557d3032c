"""The table of a notebook, alone and in a real kernel."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.report.notebook import NotebookDisplay, as_html, as_text, in_notebook, progress_here
from raypid.report.panel import PlainLines, Quiet


def test_the_table_says_what_the_numbers_are() -> None:
    display = NotebookDisplay({"timesteps_total": 1000, "evaluation/episode_reward_mean": 475})
    display._state.info = {"algorithm": "PPO", "env": "<b>", "seed": 1, "folder": "runs/a", "num_workers": 0}
    assert ("", "waiting for the first iteration", None) in display._rows()
    display._state.update(
        {"timesteps_total": 250, "episode_reward_mean": 20.0, "env_steps_per_s": 9e3, "time_total_s": 61}
    )
    rows = {label: (text, share) for label, text, share in display._rows()}
    assert rows["run"] == ("seed 1 · one process · runs/a", None)
    assert rows["training return"][0].startswith("20.0") and rows["speed"] == ("9,000 steps/s", None)
    assert ("steps 250 of 1,000", 0.25) in [
        (text, share) for label, text, share in display._rows() if label == "stop at"
    ]
    page = as_html("PPO on <b>", display._rows(), ["<script>"])
    assert "<script>" not in page and "PPO on &lt;b&gt;" in page and "width:25%" in page
    assert "stop at" in as_text("t", display._rows(), []) and "25%" in as_text("t", display._rows(), [])
    display._state.update({"episode_reward_mean": math.nan})
    assert display._rows()


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
        tables = [data for data in first if "text/html" in data]
        assert "seed" in tables[0]["text/html"] and "timesteps_total reached" in tables[-1]["text/html"]
        assert any("image/png" in data for data in first) and first[-1]["text/plain"] == "1.0"
        new = [data for data in first if data["message"] == "display_data" and "image/png" not in data]
        assert len(new) == 1, "one table, without an empty output above it"
        assert not any("stream" in data for data in first), "nothing is printed beside the table"
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
