"""Kinds of replay: one of a user's own trains like ours, wherever its buffers are; what is no kind is refused."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragments import World

import raypid.replay
from raypid.algorithms.dqn import DQN
from raypid.errors import UserError
from raypid.plugins.registry import ALGORITHMS, REPLAYS
from raypid.replay.base import Replay
from raypid.replay.buffer import ReplaySpec
from raypid.replay.prioritized import PrioritizedReplay
from raypid.replay.uniform import UniformReplay
from raypid.run.agent import Agent
from raypid.run.resolve import resolve_config
from raypid.types import Array


def newest_class() -> type[Replay]:
    """A kind as a notebook has it: actors cannot import it by name."""

    class Newest(Replay):
        """Draws among the 100 newest rows."""

        def draw(self, num: int) -> tuple[Array, Array]:
            ids = np.arange(self.oldest, self.count)
            ids = ids[self.columns["ready"][self.slots(ids)]][-100:]
            return self.rng.choice(ids, num), np.full(num, 1 / len(ids))

    return Newest


SMALL = {
    "env": "CartPole-v1", "model": {"hidden": (16,)}, "batch_size": 16, "num_envs_per_worker": 2, "start_steps": 60,
    "buffer_size": 2000, "steps_per_iteration": 200, "samples_per_insert": 2.0, "seed": 0,
}  # fmt: skip


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> type[Replay]:
    """A kind and an algorithm that learns from it, registered as a script does."""
    for registry in (REPLAYS, ALGORITHMS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))

    class NewestDQN(DQN):
        @classmethod
        def replay_kind(cls, config: Any) -> str:
            return "newest"

    kind = newest_class()
    REPLAYS.register("newest", kind)
    ALGORITHMS.register("NewestDQN", NewestDQN)
    return kind


def test_a_kind_of_ones_own_draws_by_its_rule() -> None:
    world = World(ReplaySpec(capacity=500, n_step=2), "next_step", restarts=0)
    world.replay = newest_class()(world.spec)
    world.turns(80)
    newest = world.naive.drawable()[-100:]
    sample = world.replay.sample(1000, 0.5)
    assert set(sample.id.tolist()) == set(newest)
    np.testing.assert_allclose(sample.probability, 1 / len(newest))
    starts = world.replay.sample_sequences(20, 3).id  # sequences begin with rows that it draws, too
    assert set(starts.tolist()) <= set(newest)


def test_a_kind_of_ones_own_trains_in_process(newest: type[Replay], tmp_path: Path) -> None:
    with Agent("NewestDQN", SMALL) as agent:
        result = [agent.train() for _ in range(2)][-1]
        replay = agent.context.learner.role.replay.buffer  # type: ignore[attr-defined]
        assert type(replay) is newest and result["learner_updates_total"] > 20
        path, count = agent.save(tmp_path), replay.count
    with Agent.from_checkpoint(path) as agent:
        replay = agent.context.learner.role.replay.buffer  # type: ignore[attr-defined]
        assert type(replay) is newest and replay.count == count


def test_a_kind_of_ones_own_trains_in_shards(newest: type[Replay], ray_session: Any) -> None:
    with Agent(
        "NewestDQN",
        SMALL,
        num_workers=2,
        num_replay_shards=2,
        fragment_length=8,
        updates_per_call=2,
        num_cpus_per_worker=0.1,
    ) as agent:
        # the first iterations may be over before the shards have started
        assert any(agent.train()["learner_updates_total"] > 5 for _ in range(20))
        source: Any = agent.context.replay.source  # type: ignore[union-attr]
        for shard in source.buffers:
            kind = ray_session.get(shard.actor.__ray_call__.remote(lambda role: type(role.role.buffer).__name__))
            assert kind == "Newest"


@pytest.mark.parametrize(
    ("run", "settings", "kind"),
    [
        ("DQN", {}, UniformReplay),
        ("DQN", {"prioritized": True}, PrioritizedReplay),
        ("DQN", {"prioritized": True, "priority_exponent": 0.0}, UniformReplay),
        ("R2D2", {"batch_size": 160, "buffer_size": 20_000}, PrioritizedReplay),
    ],
)
def test_the_settings_say_which_kind_a_run_takes(run: str, settings: dict[str, Any], kind: type[Replay]) -> None:
    config = resolve_config(run, {**SMALL, **settings})
    found = REPLAYS.get(ALGORITHMS.get(run).replay_kind(config))(ReplaySpec(capacity=10), 0)
    assert type(found) is kind


def test_what_is_no_kind_is_refused() -> None:
    with pytest.raises(UserError, match="Unknown replay 'prioritised'. Did you mean 'prioritized'"):
        REPLAYS.get("prioritised")
    with pytest.raises(
        UserError, match=r"'raypid.settings.config:Config' must be a subclass of raypid.replay.base:Replay"
    ):
        REPLAYS.get("raypid.settings.config:Config")


def test_no_file_imports_one_that_imports_it() -> None:
    """Imports within functions and for type checkers count."""
    files = {f"raypid.replay.{path.stem}": path for path in Path(raypid.replay.__path__[0]).glob("[a-z]*.py")}
    needs = {}
    for name, path in files.items():
        modules = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        needs[name] = {module for module in modules if module in files}
    while needs:
        free = {name for name, others in needs.items() if not others & set(needs)}
        assert free, f"a circle among {sorted(needs)}"
        needs = {name: others for name, others in needs.items() if name not in free}
