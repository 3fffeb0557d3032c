"""DistributedAgent: every argument does what it says, overrides run where actors and learners are, storages are bounded."""

from __future__ import annotations

import json
import math
import re
import signal
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import raypid
from raypid.envs import EnvError
from raypid.errors import UserError
from raypid.loops import loops
from raypid.loops.weights import ByReference
from raypid.run.distributed import _renamed
from raypid.runtime.handle import places
from raypid.runtime.local import LocalBackend
from raypid.runtime.resources import ResourceError
from raypid.runtime.supervisor import Group, Losses
from raypid.settings.config import ConfigError
from raypid.types import Metrics, Report, Update

SMALL: dict[str, Any] = {
    "num_steps": 16, "num_actors": 2, "num_learners": 1, "num_storages": 4, "num_envs_per_worker": 2, "batch_size": 32, "hidden_dim": 16,
}  # fmt: skip
QUIET: dict[str, Any] = {"log_interval": 0, "num_eval_episodes": 2}


@pytest.fixture(params=["local", "ray"])
def where(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a backend, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return {"backend": request.param, **({"num_cpus_per_worker": 0.5} if request.param == "ray" else {})}


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return {**SMALL, "backend": "local"}


def results(agent: raypid.DistributedAgent) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (agent.folder / "result.json").read_text().splitlines()]


def checkpoints(agent: raypid.DistributedAgent) -> list[str]:
    return sorted(p.name for p in (agent.folder / "checkpoints").iterdir())


def test_trains_evaluates_and_saves_at_its_intervals(where: dict[str, Any]) -> None:
    with raypid.IMPALAAgent("CartPole-v1", tag="mine", **SMALL, **where) as agent:
        agent.train(1000, eval_interval=300, save_interval=500, **QUIET)
        rows = results(agent)
        steps = [row["timesteps_total"] for row in rows]
        assert steps[-1] >= 1000 > steps[-2]
        for names, interval in (("evaluation/episodes", 300), ("saved", 500)):
            if names == "saved":
                at = [int(name.removeprefix("checkpoint_")) for name in checkpoints(agent)]
                expected = [row["training_iteration"] for row in due(rows, interval)]
                assert at == sorted({*expected, len(rows)})
            else:
                assert [row for row in rows if names in row] == due(rows, interval)
        assert {row.get("evaluation/episodes") for row in rows} == {None, 2}
        assert agent.folder.name.startswith("mine_CartPole-v1_seed1_")
        params = json.loads((agent.folder / "params.json").read_text())
        assert (params["run"], params["fragment_length"], params["model"]["hidden"]) == ("IMPALA", 16, [16, 16])
        for row in rows:
            states = [row[f"storages/{state}"] for state in ("free", "filling", "full")]
            assert sum(states) == 4 and min(states) >= 0
        agent.train(300, eval_interval=0, save_interval=0, **QUIET)
        more = results(agent)[len(rows) :]
        assert more[-1]["timesteps_total"] >= steps[-1] + 300 and not any("evaluation/episodes" in r for r in more)
        assert agent.eval(3)["episodes"] == 3


def due(rows: list[dict[str, Any]], interval: int) -> list[dict[str, Any]]:
    """The first result of each period of `interval` steps."""
    found, periods = [], 0
    for row in rows:
        if row["timesteps_total"] // interval > periods:
            periods = row["timesteps_total"] // interval
            found.append(row)
    return found


def test_overrides_run_where_actors_and_learners_are(where: dict[str, Any]) -> None:
    class Mine(raypid.DistributedAgent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.penalty = 5.0  # after the constructor: actors get it all the same
            self.updates = 0

        def run(self, env: Any, actor_idx: int) -> Iterator[Any]:
            obs, _ = env.reset()
            assert obs.shape == (env.num_envs, 4) == (2, 4)
            while True:
                for t in range(self.num_steps):
                    action = env.act() if t else np.full(env.num_envs, actor_idx)
                    obs, reward, terminated, truncated, infos = env.step(action)
                    assert reward.shape == terminated.shape == truncated.shape == (2,) and obs is env.obs
                trajectory = env.trajectory()
                assert (trajectory.action[0] == actor_idx).all()
                trajectory.reward -= self.penalty
                yield trajectory

        def update(self, batch: Any, timesteps: int) -> Any:
            self.updates += 1
            done = super().update(batch, timesteps)
            done.metrics |= {"mine": self.updates, "lowest": float(batch.reward.min()), "steps": timesteps}
            return done

    with Mine("CartPole-v1", **SMALL, **where) as agent:
        agent.train(300, eval_interval=0, save_interval=0, **QUIET)
        rows = results(agent)
        assert all(row["learner/lowest"] <= 1 - 5 for row in rows)
        assert rows[-1]["learner/mine"] > rows[0]["learner/mine"] > 0
        assert rows[-1]["episode_reward_min"] > 0  # returns are the environment's
        assert agent.updates == 0  # learners have copies of the agent


@pytest.mark.slow
def test_learners_run_side_by_side(ray_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Mine(raypid.APPOAgent):
        def update(self, batch: Any, timesteps: int) -> Any:
            import os

            everyone = self.algorithm_instance.collective.gather((os.getpid(), batch.num_streams))
            done = super().update(batch, timesteps)
            done.metrics |= {"processes": len({pid for pid, _ in everyone}), "streams": sum(n for _, n in everyone)}
            return done

    settings = {**SMALL, "num_learners": 2, "num_cpus_per_worker": 0.5, "pretraining": True}
    with Mine("CartPole-v1", **settings) as agent:
        agent.train(400, eval_interval=200, save_interval=0, **QUIET)
        rows = results(agent)
        assert all(row["learner/processes"] == 2 and row["learner/streams"] == 4 for row in rows)
        assert rows[-1]["learner/novelty"] > 0 and math.isfinite(rows[-1]["learner/novelty"])


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda self, env, actor_idx: 3, r"run\(\) gave 3\. It must yield trajectories forever"),
        (lambda self, env, actor_idx: None, r"run\(\) ends a trajectory before any step"),
        (
            lambda self, env, actor_idx: [env.step(env.act()) for _ in range(999)],
            r"run\(\) went on after num_steps=16 steps: there it must `yield env.trajectory\(\)`, or return",
        ),
        (lambda self, env, actor_idx: iter([]), r"run\(\) ended\. It must yield trajectories forever"),
        (lambda self, env, actor_idx: iter([7]), r"run\(\) gave 7\. It must yield"),
        (lambda self, env, actor_idx: (env.trajectory() for _ in range(9)), "before any step"),
        (
            lambda self, env, actor_idx: (env.step(env.act()) and env.trajectory() for _ in range(9)),
            "1 rows; trajectories must have",
        ),
    ],
)
def test_a_run_that_does_not_fit(local: dict[str, Any], program: Any, words: str) -> None:
    agent = type("Mine", (raypid.DistributedAgent,), {"run": program})("CartPole-v1", **local)
    with pytest.raises(UserError, match=words):
        agent.train(100, **QUIET)
    agent.close()


def test_a_run_without_yield_is_called_for_each_trajectory(local: dict[str, Any]) -> None:
    def stepping(self: Any, env: Any, actor_idx: int) -> None:
        for _ in range(self.num_steps):
            env.step(env.act())

    trained = []
    for program in (stepping, lambda self, env, actor_idx: env.rollout(), raypid.DistributedAgent.run):
        with type("Mine", (raypid.DistributedAgent,), {"run": program})("CartPole-v1", **local) as agent:
            agent.train(200, **QUIET)
            trained.append(agent._built().get_weights().flat)
    assert all(np.array_equal(weights, trained[0]) for weights in trained)


def test_each_step_and_episode_of_a_run_counts_once(local: dict[str, Any]) -> None:
    class Ahead(raypid.DistributedAgent):
        def run(self, env: Any, actor_idx: int) -> Iterator[Any]:
            while True:
                one, two = env.rollout(), env.rollout()
                env.act()  # a look ahead: no part of either
                yield one
                env.act()
                yield two

    for model in ({}, {"model": {"memory": "gru"}}):
        with Ahead("CartPole-v1", **{**local, "num_actors": 1}, **model) as agent:
            reports: list[Report] = []
            actor = agent._built().context.workers.handles[0].role.worker  # type: ignore[attr-defined]
            collect = actor.collect

            def collected(*args: Any, collect: Any = collect, reports: Any = reports) -> Any:
                report, trajectory = collect(*args)
                assert trajectory.num_rows == 16
                reports.append(report)
                return report, trajectory

            actor.collect = collected
            agent.train(600, **QUIET, eval_interval=0, save_interval=0)
            steps = sum(report.num_steps for report in reports)
            lengths = [length for report in reports for length in report.episode_lengths]
            rewards = [reward for report in reports for reward in report.episode_rewards]
            assert 600 <= steps <= 800 and lengths == rewards and 0.7 * steps < sum(lengths) <= steps
            assert results(agent)[-1]["timesteps_total"] == sum(report.num_steps for report in reports[: len(reports)])


def test_an_update_that_does_not_fit(local: dict[str, Any]) -> None:
    class Mine(raypid.DistributedAgent):
        def update(self, batch: Any, timesteps: int) -> Any:
            super().update(batch, timesteps)

    with Mine("CartPole-v1", **local) as agent, pytest.raises(UserError, match=r"update\(\) returned None"):
        agent.train(100, **QUIET)


def test_the_former_name_of_the_algorithm_still_works(local: dict[str, Any]) -> None:
    class Former(raypid.IMPALAAgent):
        def update(self, batch: Any, timesteps: int) -> Update:
            with pytest.warns(DeprecationWarning, match=r"self\.learner .* is now called self\.algorithm_instance"):
                algorithm = self.learner
            assert algorithm is self.algorithm_instance and algorithm.config.fragment_length == 16
            return algorithm.update(batch, timesteps)

    with Former("CartPole-v1", **local) as agent:
        assert agent.train(100, eval_interval=0, **QUIET)["learner_updates_total"] > 0
        assert agent.algorithm_instance is None


def test_a_model_to_begin_with(local: dict[str, Any]) -> None:
    with raypid.IMPALAAgent("CartPole-v1", **local) as first:
        first.train(500, eval_interval=0, **QUIET)
        weights = first._built().get_weights().flat
        folder = first.folder

    class Frozen(raypid.IMPALAAgent):
        def update(self, batch: Any, timesteps: int) -> Any:
            return Update({"first": float(self.algorithm_instance.weights().flat[0])}, 0)

    for path in (folder, folder / "checkpoints" / checkpoints(first)[0], folder / "best"):
        with Frozen("CartPole-v1", **local) as second:
            second.train(100, init_model_path=path, **QUIET)
            np.testing.assert_array_equal(second._built().get_weights().flat, weights)
    with Frozen("CartPole-v1", **{**local, "seed": 2}) as other:
        other.train(100, **QUIET)
        assert (other._built().get_weights().flat != weights).any()
        other.train(100, init_model_path=folder, **QUIET)  # in the middle of a run too
        np.testing.assert_array_equal(other._built().get_weights().flat, weights)
    with raypid.IMPALAAgent("Acrobot-v1", **local) as wrong, pytest.raises(ConfigError, match="another network"):
        wrong.train(100, init_model_path=folder, **QUIET)


def test_lines_at_their_interval(local: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with raypid.IMPALAAgent("CartPole-v1", **local) as agent:
        agent.train(640, log_interval=3, eval_interval=0)
        rows = re.findall(r"^ +\d+:\d\d +(\d+) +([\d,]+) ", capsys.readouterr().out, re.MULTILINE)
        of = [(str(r["training_iteration"]), f"{r['timesteps_total']:,}") for r in results(agent)]
        assert len(of) > 3 and rows == list(dict.fromkeys([*of[2::3], of[-1]]))
        agent.train(640, **QUIET)
        assert capsys.readouterr().out == ""


class Long(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=7))

    def step(self, action: Any) -> Any:
        obs, _, _, truncated, info = self.env.step(action)
        return obs, 1000.0, False, truncated, info


def test_evaluation_has_an_environment_of_its_own(local: dict[str, Any]) -> None:
    with raypid.DistributedAgent("CartPole-v1", Long, **local) as agent:
        agent.train(200, eval_interval=100, **QUIET)
        assert agent.eval(2)["episode_reward_mean"] == 7000.0
        assert {row.get("evaluation/episode_reward_mean") for row in results(agent)} == {None, 7000.0}
        assert results(agent)[-1]["episode_reward_max"] < 500
    with (
        raypid.DistributedAgent("CartPole-v1", "Acrobot-v1", **local) as agent,
        pytest.raises(ConfigError, match="spaces"),
    ):
        agent.train(100)


def test_environments_of_every_kind(local: dict[str, Any]) -> None:
    del local["num_envs_per_worker"]
    vector = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)] * 5)
    native = gymnasium.make_vec("CartPole-v1", num_envs=16, max_episode_steps=20)

    def function() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)] * 3)

    def any_number(num_envs: int) -> Any:
        return gymnasium.wrappers.vector.RecordEpisodeStatistics(
            gymnasium.make_vec("CartPole-v1", num_envs=num_envs, max_episode_steps=20)
        )

    for env, count in ((vector, 3), (native, 8), (function, 3), (any_number, 8), (Long, 8)):
        with raypid.DistributedAgent(env, **local) as agent:
            assert agent.config.num_envs_per_worker == count
            agent.train(400, eval_interval=400, save_interval=0, **QUIET)
            assert results(agent)[-1]["episode_len_mean"] <= 20
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(native)
    with pytest.raises(EnvError, match="a function with a parameter num_envs"):
        raypid.DistributedAgent(wrapped, **local)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rat": 1}, "Unknown setting 'learning_rat'.*Did you mean|Unknown setting"),
        ({"num_workers": 3}, "'num_workers' is called num_actors here"),
        ({"evaluation-interval": 3}, "eval_interval, of train"),
        ({"num_learners": 3}, "num_learners must be at most num_actors"),
        ({"num_storages": 0}, "num_storages must be a whole number of at least 1, not 0"),
        ({"num_storages": 3, "fragments_per_update": 4}, "num_storages 3 can never hold the 4 rollouts.*at least 4"),
        ({"hidden_dim": 3, "model": {"hidden": [4]}}, "the same setting"),
        ({"tag": "a/b"}, "must not be empty or have slashes"),
        ({"th_compile": True}, "th_compile, of train"),
    ],
)
def test_what_does_not_fit(local: dict[str, Any], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        raypid.DistributedAgent("CartPole-v1", **{**local, **settings})
    assert re.search(words, str(error.value)), error.value


def test_names_of_its_own_are_suggested(local: dict[str, Any]) -> None:
    for key, near in (
        ("num_actor", "num_actors"),
        ("num_storage", "num_storages"),
        ("max_grad_norms", "max_grad_norm"),
    ):
        with pytest.raises(ConfigError, match=f"Unknown setting '{key}'. Did you mean '{near}'"):
            raypid.IMPALAAgent("CartPole-v1", **{**local, key: 2})


def test_what_else_does_not_fit(local: dict[str, Any]) -> None:
    class Replays(raypid.DistributedAgent):
        algorithm = "DQN"

    with pytest.raises(ConfigError, match="runs IMPALA, APPO"):
        Replays("CartPole-v1", **local)
    with raypid.DistributedAgent("CartPole-v1", **local) as agent:
        for wrong in ({"num_train_steps": 0}, {"num_train_steps": 9, "eval_interval": -1}):
            with pytest.raises(ConfigError, match="must be at least"):
                agent.train(**wrong)


@pytest.mark.slow  # test_agent has what fits into the Ray that is joined
def test_too_many_actors_and_learners_become_what_fits(
    ray_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with raypid.DistributedAgent(
        "CartPole-v1", num_cpus_per_worker=3
    ) as agent:  # 45 actors, 4 learners; Ray has 8 CPUs
        agent.train(500, eval_interval=0, save_interval=0, num_eval_episodes=1)
        config = agent._built().config
        assert (config.num_workers, config.num_learners) == (2, 2)
    told = [line for line in capsys.readouterr().out.splitlines() if "going on with" in line]
    assert len(told) == 1 and "num_actors=2 and num_learners=2" in told[0]


@pytest.mark.slow
def test_compiles_and_goes_on(local: dict[str, Any]) -> None:
    with raypid.IMPALAAgent("CartPole-v1", **local) as agent:
        agent.train(200, eval_interval=0, **QUIET)
        weights = agent._built().get_weights().flat
        learner: Any = agent._built(th_compile=True).context.learner
        np.testing.assert_array_equal(agent._built().get_weights().flat, weights)
        agent.train(200, th_compile=True, eval_interval=0, **QUIET)
        assert learner is agent._built().context.learner
        assert learner.role.algorithm.network.module._compiled_call_impl is not None
        assert results(agent)[-1]["timesteps_total"] >= 400


# -- storages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_parts", [1, 2, 5])
def test_storages_are_bounded_and_all_workers_get_their_turn(max_parts: int) -> None:
    class Worker:
        def __init__(self, index: int) -> None:
            self.index = index

        def collect(self, weights: Any, timesteps: int, exploration: Any) -> Any:
            made.append(self.index)
            return Report(self.index, 10, weights.version), len(made)

    class Learner:
        def __init__(self) -> None:
            self.version = 0

        def weights(self) -> Any:
            return SimpleNamespace(version=self.version)

        def update(self, timesteps: int, *parts: int) -> Any:
            learnt.extend(parts)
            most.append(len(made) - len(learnt) + len(parts))
            self.version += 1
            return Metrics({}, 1), self.weights()

    made: list[int] = []
    learnt: list[int] = []
    most: list[int] = []
    backend = LocalBackend()
    workers = Group(
        backend, lambda i, r: partial(Worker, i), places("worker", 4), timeout_s=10, losses=Losses(0), describe="e"
    )
    plan = loops.AsynchronousPlan(1, 1, 1, 10, lambda timesteps, i: {}, max_parts=max_parts)
    learner = backend.spawn(Learner)
    weights = ByReference(backend, learner)
    loop = loops.asynchronous(loops.Context(backend, workers, learner, weights, plan=plan))
    for _ in range(40):
        next(loop)
        assert sum(plan.storages.values()) == max_parts and min(plan.storages.values()) >= 0
    assert max(most) <= max_parts
    counts = [made.count(i) for i in range(4)]
    assert max(counts) - min(counts) <= 1, counts
    assert learnt == sorted(learnt)  # in the order in which they came


@pytest.mark.parametrize("num_storages", [pytest.param(1, marks=pytest.mark.ci_slow), 3])
def test_what_is_held_never_exceeds_the_storages(
    num_storages: int, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    start = Group.start

    def started(group: Any, *args: Any) -> None:
        start(group, *args)
        held.append(sum(queues[-1].held.values()))

    class Queue(loops.UpdateQueue):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            queues.append(self)

        def add(self, part: Any) -> None:
            super().add(part)
            held.append(sum(self.held.values()))

    queues: list[Queue] = []
    monkeypatch.setattr(loops, "UpdateQueue", Queue)
    monkeypatch.setattr(Group, "start", started)
    settings = {**SMALL, "num_actors": 2, "num_storages": num_storages, "num_steps": 8}
    with raypid.IMPALAAgent("CartPole-v1", **settings, **where) as agent:
        agent.train(300, eval_interval=0, save_interval=0, **QUIET)
    assert len(held) > 30 and max(held) <= num_storages
    if where["backend"] == "ray":
        assert max(held) == num_storages  # all of them were used


class Watchful(raypid.IMPALAAgent):
    """Remembers the rewards of each rollout, weakly, and how many of them were alive at each update."""

    def run(self, env: Any, actor_idx: int) -> Iterator[Any]:
        while True:
            trajectory = env.rollout()
            made.append(weakref.ref(trajectory.reward))
            yield trajectory
            del trajectory

    def update(self, batch: Any, timesteps: int) -> Update:
        alive.append(sum(reward() is not None for reward in made))
        return super().update(batch, timesteps)


made: list[weakref.ref[Any]] = []
alive: list[int] = []


def test_a_rollout_that_was_learned_from_is_gone(local: dict[str, Any]) -> None:
    made.clear()
    alive.clear()
    settings = {**local, "num_storages": 3, "num_actors": 3, "fragments_per_update": 2}
    with Watchful("CartPole-v1", **settings) as agent:
        agent.train(1000, eval_interval=0, save_interval=0, **QUIET)
    assert len(made) > 20 and max(alive) <= 3, alive


def test_a_subclass_goes_on_from_its_checkpoint(local: dict[str, Any]) -> None:
    class Mine(raypid.IMPALAAgent):
        def update(self, batch: Any, timesteps: int) -> Update:
            done = super().update(batch, timesteps)
            done.metrics["mine"] = 1.0
            return done

    with Mine("CartPole-v1", **local) as agent:
        result = agent.train(500, eval_interval=0, **QUIET)
        assert result == pytest.approx(results(agent)[-1], nan_ok=True) and result["learner/mine"] == 1
        folder, weights = agent.folder, agent.save().parent
    with pytest.raises(ConfigError, match=r"was trained by .*Mine, which has its own run and update: .* restore\("):
        raypid.Agent.from_checkpoint(folder)
    with Mine("CartPole-v1", **local) as agent:
        agent.restore(folder)
        more = agent.train(100, eval_interval=0, **QUIET)
        assert more["timesteps_total"] > result["timesteps_total"] and more["learner/mine"] == 1
        assert more["training_iteration"] > result["training_iteration"] and agent.folder != folder
        assert [row["training_iteration"] for row in results(agent)][0] == result["training_iteration"] + 1
    with pytest.raises(ConfigError, match=r"another network: model.hidden \(16, 16\) there, \(8, 8\) here"):
        Mine("CartPole-v1", **{**local, "hidden_dim": 8}).restore(weights)
    with raypid.IMPALAAgent("CartPole-v1", **local) as agent:
        agent.train(200, eval_interval=0, **QUIET)
    raypid.Agent.from_checkpoint(agent.folder).close()  # nothing of its own is lost


def test_ctrl_c_ends_training_after_a_checkpoint(local: dict[str, Any]) -> None:
    class Stops(raypid.IMPALAAgent):
        interrupted = False

        def update(self, batch: Any, timesteps: int) -> Update:
            if (
                timesteps > 500 and not self.interrupted
            ):  # an iteration may have another update: a second Ctrl-C ends at once
                self.interrupted = True
                signal.raise_signal(signal.SIGINT)
            return super().update(batch, timesteps)

    with Stops("CartPole-v1", **local) as agent:
        with pytest.raises(KeyboardInterrupt):
            agent.train(100_000, eval_interval=0, **QUIET)
        steps = results(agent)[-1]["timesteps_total"]
        assert 500 < steps < 1000 and len(checkpoints(agent)) == 1


def test_another_interval_counts_from_its_own_multiples(local: dict[str, Any]) -> None:
    with raypid.IMPALAAgent("CartPole-v1", **local) as agent:
        agent.train(950, eval_interval=900, **QUIET)
        before = len(results(agent))
        agent.train(400, eval_interval=600, **QUIET)
        rows = results(agent)[before:]
        evaluated = [row["timesteps_total"] for row in rows if "evaluation/episodes" in row]
        assert len(evaluated) == 1 and evaluated[0] >= 1200


def test_what_the_preflight_says_is_said_of_actors(ray_session: Any, local: dict[str, Any]) -> None:
    settings = {**local, "backend": "ray", "num_actors": 60, "num_learners": 2}
    agent = raypid.IMPALAAgent("CartPole-v1", fit=False, **settings)
    with pytest.raises(
        ResourceError, match=r"60 actors of 1 CPU .* What fits: num_actors=\d+, .*fit=True does it by itself"
    ):
        agent.train(10, **QUIET)


@pytest.mark.parametrize(
    ("message", "renamed"),
    [
        ("9 workers of 1 CPU need 9 CPUs", "9 actors of 1 CPU need 9 CPUs"),
        ("fragment_length=8 and num_workers=4", "num_steps=8 and num_actors=4"),
        ("num_learners=0 or num_learners=2", "num_learners=1 or num_learners=2"),
        ("num_cpus_per_worker=0.4 to keep 9 workers", "num_cpus_per_worker=0.4 to keep 9 actors"),
    ],
)
def test_messages_about_resources_have_its_names(message: str, renamed: str) -> None:
    assert _renamed(message) == renamed


def test_settings_and_plan_are_those_of_the_constructor(local: dict[str, Any]) -> None:
    with raypid.IMPALAAgent("CartPole-v1", **local) as agent:
        for limit, episodes in ((40, 3), (1000, 2)):
            agent.train(100, eval_interval=limit, save_interval=0, num_eval_episodes=episodes, log_interval=0)
            inner = agent._built()
            plan = inner.context.plan
            assert plan is not None and (plan.max_parts, plan.max_steps) == (4, min(limit, 100))
            assert plan.steps_per_iteration is None and inner.config.evaluation_num_episodes == episodes
            assert json.loads((agent.folder / "params.json").read_text())["evaluation_num_episodes"] == episodes
