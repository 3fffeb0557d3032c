"""Nodes that are lost, cut off and added while a run trains, on a Ray cluster of real nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes import Nodes
from patience import wait_until

LOOPS = {
    "PPO": ("--env", "fragile:Fragile", "--batch-size", 32),
    "IMPALA": ("--env", "fragile:Fragile"),
    "DQN": ("--env", "CartPole-v1", "--buffer-size", 1000, "--start-steps", 64, "--steps-per-iteration", 128),
}
SHARED = ("--num-workers", 4, "--num-envs-per-worker", 2, "--fragment-length", 16, "--seed", 0, "--evaluation-interval", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(num_cpus: float = 1, **env: str) -> Nodes:
        made.append(Nodes(tmp_path, num_cpus, **env))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()


def train(start: Callable[..., Any], nodes: Nodes, run: str, *more: object) -> Any:
    command = start("train", "--run", run, *LOOPS[run], *SHARED, "--address", nodes.address, "--out", "run", *more, **nodes.env)
    command.wait_for_results(3)
    return command


def result(command: Any) -> dict[str, float]:
    newest: dict[str, float] = command.results("run")[-1]
    return newest


def wait_for_more(command: Any, num: int = 3) -> None:
    command.wait_for_results(len(command.results("run")) + num)


@pytest.mark.slow
@pytest.mark.parametrize("run", LOOPS)
def test_a_killed_node_is_named_and_its_workers_come_back_on_a_new_one(
    cluster: Callable[..., Nodes], start: Callable[..., Any], run: str
) -> None:
    nodes = cluster(2)
    second = nodes.add(2)
    command = train(start, nodes, run)
    assert result(command)["lost/nodes"] == 0
    second.kill()
    wait_until(lambda: result(command)["lost/nodes"] == 1)
    assert result(command)["lost/workers"] == 2
    wait_for_more(command)
    nodes.add(2)
    folder: Path = command.cwd / "run"
    wait_until(lambda: "4 of 4 workers go on" in (folder / "losses.txt").read_text() if False else _is_back(command))
    wait_for_more(command)
    command.ctrl_c()
    done = command.finish()
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "was lost (its Ray has ended) with workers" in done.stdout and "2 of 4 workers go on" in done.stdout
    assert "are back: 4 of 4 workers go on" in done.stdout
    assert (folder / "checkpoints").is_dir()
