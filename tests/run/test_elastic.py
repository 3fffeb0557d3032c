"""A checkpoint goes on with other numbers of workers and learners, and its replay buffer with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypid.agents import Agent
from raypid.run import assembly

DQN: dict[str, Any] = {
    "env": "CartPole-v1", "seed": 0, "num_envs_per_worker": 2, "fragment_length": 8, "start_steps": 64, "batch_size": 16,
    "samples_per_insert": 1.0, "steps_per_iteration": 64, "buffer_size": 4000, "evaluation_interval": 0, "prioritized": True,
}  # fmt: skip
WIDE = {"num_workers": 4, "num_learners": 2, "num_cpus_per_worker": 0.5}
ALONE = {"num_workers": 0, "num_learners": 0}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", ["DQN", "SAC"])
def test_four_workers_and_two_learners_to_none_and_back(
    run: str, ray_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "_PLACE_SECONDS", 300.0)  # a busy machine
    config = DQN if run == "DQN" else {**DQN, "env": "Pendulum-v1"}
    with Agent(run, {**config, **WIDE}, out=tmp_path / "a") as agent:
        for _ in range(3):
            agent.train()
        saved, weights, steps = agent.save(), agent.get_weights().flat, agent.timesteps
    assert sorted(p.name for p in (saved / "replay").iterdir()) == ["learner_0", "learner_1"]
    rows = steps
    for number, shape in enumerate((ALONE, WIDE)):
        with Agent.from_checkpoint(saved, shape, out=tmp_path / str(number)) as agent:
            assert agent.replay_restored and agent.timesteps == steps
            np.testing.assert_array_equal(agent.get_weights().flat, weights)
            result = agent.train()
            # nothing was warmed up again: the rows of before are there beside the new ones
            assert result["learner/replay_rows"] > 0.7 * rows and result["learner_updates_total"] > 0
            saved, weights, steps, rows = agent.save(), agent.get_weights().flat, agent.timesteps, agent.timesteps
