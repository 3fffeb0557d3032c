"""The asynchronous loop: nobody waits for another, what is held is bounded, what is stale is dropped and counted."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paced
import pytest
from patience import wait_until

from raypid.loops import loops
from raypid.loops.weights import ByReference
from raypid.roles.learner import Learner
from raypid.run.agent import Agent
from raypid.runtime.handle import places
from raypid.runtime.local import LocalBackend
from raypid.runtime.supervisor import Group, Losses, RolesFailed
from raypid.types import Metrics


def plan(**more: Any) -> loops.AsynchronousPlan:
    given = {"update_size": 2, "min_parts": 1, "in_flight": 2, "steps_per_iteration": 1, **more}
    return loops.AsynchronousPlan(exploration=lambda timesteps, worker: {"at": timesteps}, **given)


def context(backend: Any, plan: Any, seconds: tuple[float, ...], learner: Any) -> loops.Context:
    workers = Group(
        backend,
        lambda i, r: partial(paced.Worker, i, seconds[i]),
        places("worker", len(seconds)),
        timeout_s=60,
        losses=Losses(0),
    )
    return loops.Context(backend, workers, learner, ByReference(backend, learner), plan=plan)


def local(seconds: tuple[float, ...] = (0, 0, 0), **more: Any) -> tuple[loops.Context, paced.Learner]:
    backend = LocalBackend()
    handle = backend.spawn(paced.Learner)
    return context(backend, plan(in_flight=1, **more), seconds, handle), handle.role


def test_in_one_process_workers_take_turns_and_the_newest_weights() -> None:
    ctx, learner = local()
    loop = loops.asynchronous(ctx)
    turns = [next(loop) for _ in range(4)]
    # (worker, version) of each part that was learnt from: after an update those that were consumed go out again
    assert learner.updates[:3] == [[(0, 0), (1, 0)], [(2, 0), (0, 1)], [(1, 1), (0, 2)]]
    assert ctx.timesteps == 10 * sum(len(turn.reports) for turn in turns)
    assert [turn.update.num_updates for turn in turns] == [1, 1, 1, 1]
    assert turns[2].update["staleness"] == 0.5  # versions 1 and 2, learnt from at version 2


def test_what_is_too_stale_is_dropped_and_counted() -> None:
    """Three workers, one part an update: while the first two are learnt from, the third gets old."""
    ctx, learner = local(update_size=1, max_staleness=0)
    loop = loops.asynchronous(ctx)
    for _ in range(6):
        next(loop)
    assert all(version == k for k, [(_, version)] in enumerate(learner.updates))
    assert ctx.plan is not None and ctx.plan.lost["stale"] >= 4
    kept, _ = local(update_size=1)
    free = loops.asynchronous(kept)
    for _ in range(6):
        next(free)
    assert kept.plan is not None and kept.plan.lost["stale"] == 0


def test_an_iteration_has_its_steps_and_an_update() -> None:
    ctx, learner = local(steps_per_iteration=100, update_size=4)
    turn = next(loops.asynchronous(ctx))
    assert 100 <= sum(r.num_steps for r in turn.reports) <= 120 and turn.update.num_updates == len(learner.updates) >= 2
    ctx, learner = local(steps_per_iteration=1, update_size=7)
    assert len(next(loops.asynchronous(ctx)).reports) >= 7 and len(learner.updates) == 1


def test_an_iteration_may_be_limited() -> None:
    for limits in ({"steps_per_iteration": None, "max_steps": 10}, {"steps_per_iteration": 1000, "max_steps": 10}):
        ctx, _ = local(update_size=1, **limits)
        assert sum(r.num_steps for r in next(loops.asynchronous(ctx)).reports) == 3 * 10  # the first round was sent out


def test_an_error_of_the_learner_reaches_the_caller_and_the_loop_begins_anew() -> None:
    ctx, learner = local()
    learner.fails_at = 2
    loop = loops.asynchronous(ctx)
    next(loop), next(loop)
    with pytest.raises(FloatingPointError, match="diverged"):
        next(loop)
    learner.fails_at = None
    assert next(loops.asynchronous(ctx)).update.num_updates == 1


def test_the_learner_says_which_version_it_is_at() -> None:
    """One that learns twice in an update, and then not at all: nothing that is fresh is taken for stale."""
    ctx, learner = local(update_size=1, max_staleness=2)
    steps = iter([2, 0, 0, 2, 2, 0, 0, 0])
    versions = [0]

    def update(timesteps: int, *parts: Any) -> Any:
        versions.append(versions[-1] + next(steps))
        return Metrics({}, 1, versions[-1]), SimpleNamespace(version=versions[-1])

    learner.update = update  # type: ignore[method-assign]
    loop = loops.asynchronous(ctx)
    staleness = [next(loop).update["staleness"] for _ in range(8)]
    assert all(0 <= s <= 2 for s in staleness) and max(staleness) == 2
    assert ctx.plan is not None and ctx.plan.lost["stale"] > 0


def test_staleness_and_metrics_are_of_the_updates_that_ended() -> None:
    ctx, learner = local(update_size=1, steps_per_iteration=200)
    numbers = iter([{"loss": 1.0}, {}, {"loss": 3.0, "more": 5.0}, *[{}] * 30])
    plain = learner.update

    def update(timesteps: int, *parts: Any) -> Any:
        done, weights = plain(timesteps, *parts)
        return Metrics(next(numbers), done.num_updates, done.version), weights

    learner.update = update  # type: ignore[method-assign]
    turn = next(loops.asynchronous(ctx)).update
    assert turn.num_updates == len(learner.updates) > 3
    assert turn["loss"] == 2.0 and turn["more"] == 5.0


def test_an_update_across_iterations_counts_where_it_ends(ray_backend: Any) -> None:
    learner = ray_backend.spawn(partial(paced.Learner, 0.05))
    ctx = context(ray_backend, plan(update_size=3), (0.0, 0.0), learner)
    loop = loops.asynchronous(ctx)
    for _ in range(8):
        assert next(loop).update["staleness"] >= 0


def test_what_waits_as_the_loop_begins_anew_is_counted() -> None:
    ctx, learner = local(update_size=2)
    loop = loops.asynchronous(ctx)
    for _ in range(3):
        next(loop)
    collected = sum(h.role.calls() for h in ctx.workers.handles)  # type: ignore[attr-defined]
    under_way = sum(ctx.workers.running(i) for i in range(3))
    loop.close()
    assert ctx.plan is not None
    assert ctx.plan.lost["stale"] == collected - under_way - sum(map(len, learner.updates)) > 0


@pytest.fixture
def ray_backend(ray_session: Any) -> Any:
    from raypid.runtime.ray import RayBackend

    backend = RayBackend()
    yield backend
    backend.shutdown()


def test_a_slow_worker_holds_nobody_up(ray_backend: Any) -> None:
    ctx = context(ray_backend, plan(update_size=1), (0.01, 1000.0), ray_backend.here(paced.Learner))
    ctx.workers.call_all(paced.Worker.ready)
    loop = loops.asynchronous(ctx)
    done = Counter(r.worker_index for _ in range(30) for r in next(loop).reports)
    assert done[0] >= 30 and done[1] == 0


@pytest.mark.parametrize("place", ["driver", "actor"])
def test_what_waits_for_a_slow_learner_is_bounded(ray_backend: Any, place: str) -> None:
    """At most two parts of each worker are under way or wait, but for what the next update lacks."""
    build = partial(paced.Learner, 0.1)
    learner = ray_backend.here(build) if place == "driver" else ray_backend.spawn(build)
    ctx = context(ray_backend, plan(update_size=1), (0.0, 0.0), learner)
    ctx.workers.call_all(paced.Worker.ready)
    loop = loops.asynchronous(ctx)
    for _ in range(6):
        next(loop)
    begun = sum(ray_backend.get(h.submit(paced.Worker.calls)) for h in ctx.workers.handles)
    learnt = ray_backend.get(learner.submit(paced.Learner.learnt))
    assert 6 <= learnt <= 8 and begun - learnt <= 2 * 2


def test_the_learner_in_an_actor_and_workers_go_on_at_the_same_time(ray_backend: Any) -> None:
    learner = ray_backend.spawn(partial(paced.Learner, 0.2))
    ctx = context(ray_backend, plan(update_size=1, steps_per_iteration=60), (0.2, 0.2), learner)
    ctx.workers.call_all(paced.Worker.ready)
    assert len(next(loops.asynchronous(ctx)).reports) >= 6
    updates = ray_backend.get(learner.submit(paced.Learner.busy))
    for handle in ctx.workers.handles:
        calls = ray_backend.get(handle.submit(paced.Worker.busy))
        assert any(max(a, c) < min(b, d) for a, b in calls for c, d in updates), (calls, updates)


SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_workers": 2,
    "num_cpus_per_worker": 0.5,
    "num_envs_per_worker": 4,
    "fragment_length": 16,
    "batch_size": 32,
    "seed": 0,
}


def test_a_killed_worker_is_replaced(ray_session: Any) -> None:
    with Agent("APPO", SMALL) as agent:
        agent.train()
        handle: Any = agent.context.workers.handles[0]
        ray_session.kill(handle.actor)
        result = wait_until(lambda: next((r for r in [agent.train()] if r["lost/workers"]), None))
        before = result["timesteps_total"]
        result = [agent.train() for _ in range(6)][-1]
        assert result["lost/workers"] == 1 and result["timesteps_total"] > before + 300


@pytest.mark.parametrize("run", ["IMPALA", "A3C", pytest.param("ES", marks=pytest.mark.ci_slow)])
def test_both_backends_a_checkpoint_and_another_number_of_workers(run: str, ray_session: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env": "CartPole-v1", "seed": 0, "num_workers": 2, "num_cpus_per_worker": 0.5}
    if run == "ES":
        settings |= {"population": 16, "num_envs_per_worker": 8}
    else:
        settings |= {"num_envs_per_worker": 4, "fragment_length": 16}
    with Agent(run, settings) as agent:
        for _ in range(3):
            result = agent.train()
        assert result["learner_updates_total"] >= 3 and result["lost/stale"] >= 0
        path = agent.save(tmp_path)
        assert agent.train()["training_iteration"] == 4
    with Agent.from_checkpoint(path, num_workers=0) as resumed:
        result = resumed.train()
        assert result["training_iteration"] == 4 and resumed.get_weights().version > 3


@pytest.mark.parametrize("run", ["IMPALA", "A3C", "ES"])
def test_a_resumed_run_equals_an_uninterrupted_one(run: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": "CartPole-v1",
        "seed": 0,
        "num_workers": 2,
        "backend": "local",
        "exact_resume": True,
    }
    settings |= {"population": 8, "num_envs_per_worker": 4} if run == "ES" else {"fragment_length": 16}
    with Agent(run, settings) as agent:
        for _ in range(3):
            agent.train()
        path = agent.save(tmp_path)
        expected = [agent.train()["timesteps_total"] for _ in range(3)]
        weights = agent.get_weights()
    with Agent.from_checkpoint(path) as resumed:
        assert [resumed.train()["timesteps_total"] for _ in range(3)] == expected
        assert (resumed.get_weights().flat == weights.flat).all()


@pytest.mark.ci_slow
@pytest.mark.parametrize("call", ["train", "save", "get_weights"])
def test_a_learner_process_that_dies_too_often_is_named(call: str, ray_session: Any, tmp_path: Path) -> None:
    with Agent("IMPALA", SMALL, num_workers=1, num_learners=1, max_restarts=0, out=tmp_path) as agent:
        agent.train()
        agent.backend.kill(agent.context.learner.handles[0])  # type: ignore[attr-defined]
        with pytest.raises(RolesFailed, match=r"^The learner died in \w+\(\)\. That is loss number 1"):
            wait_until(lambda: getattr(agent, call)() is None)


def test_a_save_wastes_no_update_of_a_learner_elsewhere(ray_session: Any, tmp_path: Path) -> None:
    with Agent("IMPALA", SMALL, num_workers=1, num_learners=1) as agent:
        agent.train()
        loop = agent._loop
        agent.save(tmp_path)
        assert agent._loop is loop  # with the update under way, and what waits


@pytest.mark.ci_slow
@pytest.mark.parametrize("num_learners", [0, 2])
def test_rewards_are_scaled_by_each_streams_whole_past_however_its_fragments_are_dealt_out(
    num_learners: int, ray_session: Any
) -> None:
    """Episodes of ten steps with reward 1, so what every stream has returned is known. An update takes two fragments of each."""
    settings = {
        "env": "fragile:Fragile", "num_workers": 2, "num_cpus_per_worker": 0.1, "num_learners": num_learners, "seed": 0,
        "num_envs_per_worker": 2, "fragment_length": 7, "batch_size": 14, "fragments_per_update": 4, "fragments_in_flight": 2,
        "normalize_rewards": True, "evaluation_interval": 0,
    }  # fmt: skip
    with Agent("IMPALA", settings) as agent:
        for _ in range(4):
            agent.train()
        state, gamma = agent.ask_learner(Learner.state_dict)["return_scaler"], agent.config.gamma
    episode = np.cumsum(gamma ** np.arange(10))
    found = [
        episode[: carried + 1] for carried in np.abs(state["carry"][:, None] - episode).argmin(1)
    ]  # those under way
    np.testing.assert_allclose(state["carry"], [stream[-1] for stream in found])
    whole, rest = divmod(int(state["count"]) - sum(map(len, found)), 10)
    returns = np.concatenate([*found, *[episode] * whole])
    assert rest == 0 and whole > 0
    np.testing.assert_allclose([state["mean"][0], state["m2"][0]], [returns.mean(), returns.var() * len(returns)])
