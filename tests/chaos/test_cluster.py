"""A Ray cluster of its own, joined by address and left running."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes

TRAIN = ("train", "--run", "PPO", "--num-envs-per-worker", 2, "--fragment-length", 16, "--batch-size", 32, "--seed", 0)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a head node of 3 CPUs, with a token of its own, so that no token or setting of the user's plays a part."""
    with Nodes(tmp_path, 3) as nodes:
        for name, value in nodes.env.items():
            monkeypatch.setenv(name, value)
        yield nodes.address


@pytest.mark.slow  # of the tests of the CI the one below joins a cluster twice
def test_a_running_cluster_is_joined_and_left_running(
    cluster: str, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two runs. What the first one trained there goes on elsewhere without it, for a user whose folder it is not."""
    more = ("--env", "fragile:Fragile", "--address", cluster, "--stop", '{"training_iteration": 2}')
    done = start(*TRAIN, *more, "--num-workers", 2, "--out", "a").finish()
    assert (done.returncode, done.stderr) == (0, ""), done
    elsewhere = ("train", "--resume", "a", "--env", "fragile:Fragile", "--stop", '{"training_iteration": 3}')
    with monkeypatch.context() as patched:
        patched.setenv("RAYPID_DATA", str(tmp_path / "laptop"))
        refused = start(*elsewhere).finish()
        assert refused.returncode == 2 and f"a names the Ray cluster '{cluster}'" in refused.stderr
        done = start(*elsewhere, "--num-workers", 0).finish()
        assert (done.returncode, done.stderr) == (0, "") and "Going on from step" in done.stdout
    refused = start(*TRAIN, *more, "--num-workers", 4, "--out", "c").finish()
    assert refused.returncode == 2
    assert "4 workers of 1 CPU need 4 CPUs, the cluster now has 3" in refused.stderr
    fitted = start(*TRAIN, *more, "--num-workers", 4, "--fit", "--out", "c")
    done = fitted.finish()
    assert done.returncode == 0 and "num_workers=3" in done.stdout
    assert json.loads((fitted.cwd / "c" / "params.json").read_text())["num_workers"] == 3
    fitted.assert_nothing_left()


@pytest.mark.slow
def test_two_nodes_have_a_parameter_server_each(start: Callable[..., Any]) -> None:
    done = start(python=str(Path(__file__).with_name("two_nodes.py"))).finish()
    assert done.returncode == 0, done
    report = json.loads(done.stdout.rsplit("REPORT", 1)[1])
    for run in ("PPO", "SAC"):
        found = report[run]
        assert len(found["at"]) == 2 and all(key == node for key, node in found["at"].items())
        assert set(found["workers"]) == set(found["at"])  # each worker has a server on its node
        assert all(pulls >= 3 for pulls in found["pulls"].values())
        assert found["result"]["lost/parameter_servers"] == found["result"]["lost/workers"] == 0
        assert found["result"]["parameter_server/version"] >= 3 and found["result"]["learner_updates_total"] > 0


@pytest.mark.ci_slow
def test_the_documented_command_and_a_project_on_a_cluster(start: Callable[..., Any], tmp_path: Path) -> None:
    """3 GPUs are declared: each learner has one of its own, and all end their updates with the same weights."""
    done = start(tmp_path, python=str(Path(__file__).with_name("documented.py"))).finish()
    assert done.returncode == 0, done
    report = json.loads(done.stdout.rsplit("REPORT", 1)[1])
    assert report["command"] == report["project"] == 0 and report["learners"]["same"]
    assert sorted(report["learners"]["gpus"]) == [[0], [1], [2]] and report["learners"]["updates"] >= 3
