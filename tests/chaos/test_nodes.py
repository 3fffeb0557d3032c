"""Nodes that are lost, cut off and added while a run trains, on a Ray cluster of real nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fragile
import pytest
from patience import PATIENCE_S, wait_until
from ray_nodes import Node, Nodes

from raypid.storage import checkpoint

pytestmark = pytest.mark.timeout(600, method="thread")

LOOPS = {
    "PPO": ("--env", "fragile:Fragile", "--batch-size", 32),
    "IMPALA": ("--env", "fragile:Fragile"),
    "DQN": ("--env", "CartPole-v1", "--buffer-size", 1000, "--start-steps", 64, "--steps-per-iteration", 128),
    "SAC": (
        *("--env", "Pendulum-v1", "--num-replay-shards", 2, "--buffer-size", 100_000, "--start-steps", 128),
        *("--steps-per-iteration", 256, "--a-l-ratio", 16, "--checkpoint-interval", 2),
    ),
}
SHARED = (
    "--num-workers",
    4,
    "--num-envs-per-worker",
    2,
    "--fragment-length",
    16,
    "--seed",
    0,
    "--evaluation-interval",
    0,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(num_cpus: float = 1, **env: str) -> Nodes:
        made.append(Nodes(tmp_path, num_cpus, **env))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()


class Run:
    """A command that trains on a cluster, and what it has said so far."""

    def __init__(
        self, start: Callable[..., Any], nodes: Nodes, run: str, *more: object, cwd: Path | None = None
    ) -> None:
        shared = (*SHARED, "--address", nodes.address, "--out", run)
        self.command = start("train", "--run", run, *LOOPS[run], *shared, *more, cwd=cwd, **nodes.env)
        self.folder = self.command.cwd / run
        self.said: list[str] = []
        self.reader = threading.Thread(target=lambda: self.said.extend(iter(self.command.process.stdout.readline, "")))
        self.reader.start()
        self.wait_for_more()

    def result(self) -> dict[str, float]:
        newest: dict[str, float] = self.command.results(self.folder.name)[-1]
        return newest

    def wait_for_more(self, num: int = 3) -> None:
        """Wait until it has trained for some more iterations."""
        self.command.wait_for_results(len(self.command.results(self.folder.name)) + num, self.folder.name)

    def hears(self, words: str, times: int = 1) -> bool:
        return sum(words in line for line in self.said) >= times

    def wait_to_hear(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.hears(words, times) or self.command.process.poll() is not None)
        assert self.hears(words, times), (self.said, self.command.process.poll(), self.command.process.stderr.read())

    def end(self, *, interrupt: bool = True) -> int:
        """Ctrl-C, if it is to; the exit code."""
        if interrupt:
            self.command.ctrl_c()
        try:
            code: int = self.command.process.wait(PATIENCE_S)
        finally:
            self.command.kill_all()
        self.reader.join()
        return code

    def has_saved_all(self) -> bool:
        """Whether its newest checkpoint is of its last iteration."""
        newest = checkpoint.latest(self.folder / "checkpoints")
        return newest is not None and f"{int(self.result()['training_iteration']):06d}" in newest.name


@pytest.mark.ci_slow
def test_a_killed_node_is_named_and_its_workers_come_back_on_a_new_one(
    cluster: Callable[..., Nodes], start: Callable[..., Any], tmp_path: Path
) -> None:
    """The environment is a file that only the disk of the driver has, where mount namespaces may be made."""
    folder = tmp_path / "code"
    folder.mkdir()
    shutil.copy(fragile.__file__, folder / "own.py")
    alone = shutil.which("unshare") and not subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode
    hidden = folder if alone else None
    nodes = cluster(2, RAY_health_check_period_ms="1000")  # of 3000: Ray gives the places anew after five
    second = nodes.add(2, hide=hidden)
    training = Run(start, nodes, "PPO", "--env", "own.py:Fragile", cwd=folder)
    assert training.result()["lost/nodes"] == 0
    second.kill()
    training.wait_to_hear("was lost (its Ray has ended) with workers")
    assert training.hears("2 of 4 workers go on")
    training.wait_for_more()
    assert training.result()["lost/nodes"] == 1 and training.result()["lost/workers"] == 2
    nodes.add(2, hide=hidden)
    training.wait_to_hear(": 4 of 4 workers go on")
    training.wait_for_more()
    assert training.end() == 0, training.said
    assert training.command.process.stderr.read() == ""
    assert training.has_saved_all()


@pytest.mark.slow
def test_without_any_worker_a_run_waits_and_ctrl_c_saves(
    cluster: Callable[..., Nodes], start: Callable[..., Any]
) -> None:
    nodes = cluster(0)
    second = nodes.add(8)
    trainings = [Run(start, nodes, run) for run in ("PPO", "IMPALA")]
    second.kill()
    for training in trainings:
        training.wait_to_hear("no worker is left")
        assert training.end() == 0, training.said
        assert training.hears("No worker was there")
        assert training.has_saved_all()


@pytest.mark.slow
def test_without_room_for_a_learner_ctrl_c_saves_the_copy_of_it(
    cluster: Callable[..., Nodes], start: Callable[..., Any]
) -> None:
    nodes = cluster(0)
    second = nodes.add(6)
    training = Run(start, nodes, "IMPALA", "--num-learners", 1)
    wait_until(lambda: training.result()["time_total_s"] > 4)  # a copy of what has been learnt comes after a second
    second.kill()
    training.wait_to_hear("Ctrl-C ends the run with a checkpoint")
    assert training.end() == 0, training.said
    assert training.hears("The state of the learner is that of ")
    assert training.command.process.stderr.read() == ""
    newest = checkpoint.latest(training.folder / "checkpoints")
    assert newest is not None
    saved = checkpoint.read_manifest(newest)["counters"]
    row = training.command.results(training.folder.name)[int(saved["iteration"]) - 1]
    assert saved["timesteps_total"] == row["timesteps_total"]


@pytest.mark.slow
def test_workers_of_a_node_that_is_cut_off_move_once_ray_gives_it_up(
    cluster: Callable[..., Nodes], start: Callable[..., Any]
) -> None:
    """Two runs: a node is cut off, another one joins and is killed. The first one, which answers again, is no node any more."""
    nodes = cluster(4, RAY_health_check_period_ms="1000", RAY_health_check_timeout_ms="2000")
    second = nodes.add(4)
    trainings = [Run(start, nodes, run) for run in ("IMPALA", "DQN")]
    second.signal(signal.SIGSTOP)
    for training in trainings:
        training.wait_to_hear("was lost (Ray lists it as dead) with workers")
        training.wait_for_more()
    third = nodes.add(4)
    for training in trainings:
        training.wait_to_hear(": 4 of 4 workers go on")
        training.wait_for_more()
    second.signal(signal.SIGCONT)
    wait_until(lambda: not second.processes())
    third.kill()
    for training in trainings:
        training.wait_to_hear("was lost (its Ray has ended) with workers")
        training.wait_for_more()
    nodes.add(4)
    for training in trainings:
        training.wait_to_hear(": 4 of 4 workers go on", 2)
        training.wait_for_more()
        assert training.end() == 0, training.said
        assert training.result()["lost/nodes"] == 2 and training.result()["lost/workers"] == 4


@pytest.mark.slow
def test_a_head_that_dies_is_named_and_what_was_learnt_is_saved(
    cluster: Callable[..., Nodes], start: Callable[..., Any]
) -> None:
    """Its server alone: Ray on the driver's machine lives."""
    nodes = cluster(8)
    trainings = [Run(start, nodes, run) for run in ("PPO", "IMPALA")]
    nodes.head.process.send_signal(
        signal.SIGSTOP
    )  # it would end the head's raylet too, to which the runs are connected
    kill_its("gcs_server", nodes.head)
    for training in trainings:
        assert training.end(interrupt=False) == 1, training.said
        said = training.command.process.stderr.read()
        assert f"The Ray cluster at {nodes.address} is gone: " in said and "Saved: checkpoint_" in said
        assert "Traceback" not in said and len(said.splitlines()) == 1, said
        assert training.has_saved_all()


@pytest.mark.slow
def test_ray_on_the_drivers_machine_that_ends_is_named(
    cluster: Callable[..., Nodes], start: Callable[..., Any]
) -> None:
    """In the midst of a call Ray ends the driver, and another process has to say so."""
    nodes = cluster(8)
    trainings = [Run(start, nodes, run) for run in ("PPO", "IMPALA")]
    nodes.head.process.send_signal(signal.SIGSTOP)
    kill_its("raylet", nodes.head)
    for training in trainings:
        assert training.end(interrupt=False) == 1, training.said
        said = training.command.process.stderr.read()
        assert "Ray on this machine (" in said or f"The Ray cluster at {nodes.address} is gone: " in said, said
        assert "Traceback" not in said and len(said.splitlines()) == 1, said


def kill_its(server: str, node: Node) -> None:
    (found,) = [pid for pid, line in node.processes().items() if server == line.split()[0].rpartition("/")[2]]
    os.kill(found, signal.SIGKILL)


def parts_of(run: Path) -> list[Path]:
    """The indices of the replay buffer of the newest checkpoint."""
    newest = checkpoint.latest(run / "checkpoints")
    return [] if newest is None else sorted(newest.glob("replay/shard_*/index.json"))


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
    reason="this user may not have mount namespaces",
)
def test_rows_of_a_shard_travel_from_and_to_a_node_with_another_disk(
    cluster: Callable[..., Nodes], start: Callable[..., Any], tmp_path: Path
) -> None:
    """With a relative --out. The shard comes back on the driver's node, then on a new one, and all rows on one machine alone."""
    folder = tmp_path / "own"
    folder.mkdir()
    nodes = cluster(2, TMPDIR=str(tmp_path / "first"), RAY_health_check_period_ms="1000")
    second = nodes.add(2, hide=folder, TMPDIR=str(tmp_path / "second"))
    training = Run(start, nodes, "SAC", cwd=folder)
    wait_until(lambda: len(parts_of(training.folder)) == 2)
    first = checkpoint.latest(training.folder / "checkpoints")
    wait_until(
        lambda: checkpoint.latest(training.folder / "checkpoints") != first and len(parts_of(training.folder)) == 2
    )
    place = Path(f"/proc/{next(iter(second.processes()))}/root") / folder.relative_to("/")
    assert place.is_dir() and not list(place.iterdir())
    second.kill()
    training.wait_to_hear("It was filled from checkpoint_")
    training.wait_for_more(4)
    assert training.end() == 0, training.said
    assert training.command.process.stderr.read() == "" and training.has_saved_all()
    rows = training.result()["learner/replay_rows"]
    assert training.result()["lost/shards"] == 1 and len(parts_of(training.folder)) == 2

    third = nodes.add(2, hide=folder, TMPDIR=str(tmp_path / "third"))
    for number, more in enumerate((("--address", nodes.address), ("--num-workers", 0, "--num-replay-shards", 0)), 1):
        until = f'{{"training_iteration": {int(training.result()["training_iteration"]) + 3}}}'
        resumed = start(
            "train", "--resume", "SAC", *more, "--stop", until, "--final-episodes", 0, cwd=folder, **nodes.env
        )
        done = resumed.finish()
        assert (done.returncode, done.stderr) == (0, "") and "no replay buffer" not in done.stdout, done
        assert training.result()["learner/replay_rows"] >= rows + number, done
        if number == 1:
            place = Path(f"/proc/{next(iter(third.processes()))}/root") / folder.relative_to("/")
            assert len(parts_of(training.folder)) == 2 and not list(place.iterdir())
    for name in ("first", "second", "third"):  # nothing lies beside the code either
        assert not [*(tmp_path / name).rglob("*.safetensors")]
