"""What does not fit: advice and `fit` are taken as they stand, by all that checks settings and by a machine with a little less memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from raypid.run.placement import needs_of
from raypid.run.resolve import resolve
from raypid.runtime.plan import Node
from raypid.runtime.resources import Has, ResourceError, assignment, preflight
from raypid.settings.config import Given
from raypid.settings.request import RunRequest

GIB = 2**30


class Camera(gymnasium.Env[Any, Any]):
    """Images of 2 MiB."""

    observation_space: Any = Box(0, 255, (3, 960, 720), np.uint8)
    action_space: Any = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((3, 960, 720), np.uint8), {}


class Discretes(Camera):
    action_space: Any = Discrete(2)


def judge(run: str, given: dict[str, Any], has: Has) -> dict[str, object]:
    """The settings that a run goes on with, checked as a run checks them; nothing is started."""
    found = resolve(RunRequest(run=run, settings=Given(given)))
    needs, _ = preflight(needs_of(found.config, found.network), has, fit=found.config.fit)
    return found.config.replace(needs.changes).to_dict()


def machine(**changed: Any) -> Has:
    values = {"cpus": 64.0, "gpus": 0.0, "memory": 20.0 * GIB, "shared_memory": 100.0 * GIB, "place": "this machine"}
    return Has(**{**values, **changed})


def cluster(*memory: float) -> Has:
    sizes = [{"CPU": 16.0, "memory": one * GIB} for one in memory]
    nodes = tuple(Node(f"n{i}", f"n{i}", size, size) for i, size in enumerate(sizes))
    return machine(memory=100.0 * GIB, shared_memory=1000.0 * GIB, nodes=nodes, cpus=16.0 * len(nodes))


def smaller(has: Has) -> Has:
    """A moment later, when others have taken 9% of the memory."""
    nodes = tuple(replace(node, free={**node.free, "memory": 0.91 * node.has("memory")}) for node in has.nodes)
    return replace(has, memory=0.91 * has.memory, shared_memory=0.91 * has.shared_memory, nodes=nodes)


CASES: dict[str, tuple[str, dict[str, Any], Has, set[str]]] = {
    "buffer and warm-up": ("SAC", {"frame_stack": 4}, machine(), {"buffer_size", "start_steps"}),
    "buffer and fragments": (
        "SAC",
        {"fragment_length": 2_000, "num_envs_per_worker": 1, "start_steps": 0, "updates_per_call": 1},
        machine(memory=10 * GIB),
        {"buffer_size", "fragment_length"},
    ),
    "buffer of sequences": ("R2D2", {"batch_size": 160, "updates_per_call": 1}, machine(), {"buffer_size"}),
    "buffer in shards": (
        "DQN", {"num_workers": 4, "num_replay_shards": 4, "batch_size": 64}, machine(memory=40 * GIB), {"buffer_size"},
    ),
    "buffer in shards on nodes": (
        "DQN", {"num_workers": 4, "num_replay_shards": 4, "batch_size": 64}, cluster(6, 8, 6, 8), {"buffer_size"},
    ),
    "fragments": ("PPO", {"num_envs_per_worker": 64}, machine(), {"fragment_length"}),
    "fragments in shared memory": ("PPO", {"num_workers": 1}, machine(shared_memory=2 * GIB), {"fragment_length"}),
    "workers in shared memory": ("PPO", {"num_workers": 8}, machine(memory=500 * GIB, shared_memory=50 * GIB), {"num_workers"}),
    "workers, learners and shards": (
        "DQN",
        {"num_workers": 8, "num_learners": 4, "num_replay_shards": 4, "batch_size": 64, "buffer_size": 2_000},
        machine(cpus=5.0),
        {"num_workers", "num_learners", "num_replay_shards"},
    ),
    "one learner is not in step with others": (
        "SAC",
        {"num_workers": 4, "num_learners": 2, "learner_sync": "asynchronous", "normalize_observations": False, "buffer_size": 4_000},
        machine(cpus=2.0),
        {"num_workers", "num_learners", "learner_sync"},
    ),
    "GPUs and learners": (
        "PPO", {"num_workers": 3, "num_learners": 3, "num_gpus": 3, "fragment_length": 8}, machine(gpus=2.0), {"num_gpus", "num_learners"},
    ),
    "batch of whole sequences": ("R2D2", {"batch_size": 3_200, "buffer_size": 4_000}, machine(), {"batch_size"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_advised_is_taken(case: str) -> None:
    run, asked, has, names = CASES[case]
    given = {"env": Discretes if run in ("DQN", "R2D2") else Camera, "seed": 0, **asked}
    with pytest.raises(ResourceError) as refused:
        judge(run, given, has)
    fits = refused.value.fits
    assert set(fits) == names, str(refused.value)
    assert all(assignment(name, value) in str(refused.value) for name, value in fits.items())
    judge(run, {**given, **fits}, smaller(has))
    if "batch_size" in names:
        return  # what is learnt is the user's
    assert "fit=True does it by itself" in str(refused.value)
    fitted = judge(run, {**given, "fit": True}, has)
    assert {name: fitted[name] for name in fits} == fits


def test_where_nothing_fits_smaller_images_do(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"env": Camera, "seed": 0, "batch_size": 1024, "updates_per_call": 1}
    for more in ({}, {"fit": True}):
        with pytest.raises(
            ResourceError, match=r"Nothing fits but smaller observations .*: of at most ([\d.]+) KiB each\.$"
        ) as refused:
            judge("SAC", {**given, **more}, machine(memory=3 * GIB))
        assert not refused.value.fits
    side = int((1024 * float(str(refused.value).split()[-3])) ** 0.5)
    monkeypatch.setattr(Camera, "observation_space", Box(0, 255, (1, side, side), np.uint8))
    judge("SAC", given, smaller(machine(memory=3 * GIB)))
