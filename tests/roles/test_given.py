"""What the public roles say of wrong input: what was given, what was expected, what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import raypid
from raypid import roles
from raypid.errors import UserError
from raypid.types import Final

SMALL: dict[str, Any] = {"seed": 0, "num_envs_per_worker": 2, "fragment_length": 8}
REPLAY: dict[str, Any] = {**SMALL, "start_steps": 10, "batch_size": 32, "buffer_size": 2000}


class Run(SimpleNamespace):
    """Roles of one setup, and what they return."""

    def __init__(self, algorithm: str, env: str = "CartPole-v1", **settings: Any) -> None:
        self.setup = raypid.setup(algorithm, env, **settings)
        self.rollout, self.learner = roles.Rollout(self.setup), roles.Learner(self.setup)
        self.server, self.evaluator = roles.ParameterServer(self.setup), roles.Evaluator(self.setup)
        self.weights = self.learner.weights()
        self.report, self.data = self.pair = self.rollout.collect(self.weights)
        if self.setup.replay is not None:
            self.replay = roles.Replay(self.setup)
            for _ in range(3):
                self.replay.add(0, self.rollout.collect(self.weights)[1])
            self.sample = self.replay.sample(32)


@pytest.fixture(scope="module")
def r() -> SimpleNamespace:
    """One run of each kind."""
    return SimpleNamespace(
        ppo=Run("PPO", **SMALL),
        other=Run("PPO", "Pendulum-v1", **SMALL),
        narrow=Run("PPO", **SMALL, model={"hidden": (8,)}),
        dqn=Run("DQN", **REPLAY, prioritized=True, normalize_observations=True),
        sac=Run("SAC", "Pendulum-v1", **REPLAY),
        es=Run("ES", "CartPole-v1", seed=0),
        a3c=Run("A3C", **SMALL),
    )


def short(weights: Any) -> Any:
    """Weights whose array is cut short."""
    return dataclasses.replace(weights, flat=weights.flat[:-1])


SAME_SETUP = r"Make all roles of a run from the same setup"
MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    # what is called -> (the call, what the message says)
    "Rollout of a name": (lambda r: roles.Rollout("PPO"), r"made from a setup, raypid.setup\(algorithm, env\), not from 'PPO'"),  # type: ignore[arg-type]
    "Rollout of a config": (lambda r: roles.Rollout(r.ppo.setup.config), r"not from a PPOConfig"),
    "Learner of a class": (lambda r: roles.Learner(raypid.PPO), r"Learner is made from a setup, .* not from <class"),  # type: ignore[arg-type]
    "Replay of a dict": (lambda r: roles.Replay({"env": 1}), r"not from a dict"),  # type: ignore[arg-type]
    "ParameterServer of None": (lambda r: roles.ParameterServer(None), r"not from None"),  # type: ignore[arg-type]
    "Evaluator of an env": (lambda r: roles.Evaluator("CartPole-v1"), r"Evaluator is made from a setup"),  # type: ignore[arg-type]
    "worker -1": (lambda r: roles.Rollout(r.ppo.setup, -1), r"worker_index must be a whole number of at least 0, not -1"),
    "worker '0'": (lambda r: roles.Rollout(r.ppo.setup, "0"), r"at least 0, not '0'"),  # type: ignore[arg-type]
    "shard beyond": (lambda r: roles.Replay(r.dqn.setup, 2, 2), r"shard 2 must be below num_shards \(2\)"),
    "no shards": (lambda r: roles.Replay(r.dqn.setup, 0, 0), r"shard 0 must be below num_shards \(0\)"),
    "too many shards": (lambda r: roles.Replay(r.dqn.setup, 0, 5000), r"num_shards \(5,000\).*at most buffer_size \(2,000\)"),
    "no replay": (lambda r: roles.Replay(r.ppo.setup), r"PPO on .* has no replay buffer.*Learner.update"),
    # Rollout
    "collect None": (lambda r: r.ppo.rollout.collect(None), r"weights must be of type Weights, not None.*before the first push"),
    "collect an array": (lambda r: r.ppo.rollout.collect(r.ppo.weights.flat), r"not an array of shape \[\d+\]"),
    "collect a dict": (lambda r: r.ppo.rollout.collect(r.ppo.weights.as_dict()), r"not a dict"),
    "collect a pair": (lambda r: r.ppo.rollout.collect(({}, r.ppo.weights)), r"Learner.learn return a pair, of which they are the second"),
    "collect narrow": (lambda r: r.ppo.rollout.collect(r.narrow.weights), r"another network.*\(2, 4, 8\) there.*same setup"),
    "collect of DQN": (lambda r: r.ppo.rollout.collect(r.dqn.weights), r"another network"),
    "collect fitness": (lambda r: r.es.rollout.collect(r.other.weights), r"another network"),
    "collect short": (lambda r: r.ppo.rollout.collect(short(r.ppo.weights)), r"flat must be .*\[9155\] of numbers, not an array of shape \[9154\]"),
    "collect step -1": (lambda r: r.ppo.rollout.collect(r.ppo.weights, -1), r"timesteps must be a number of at least 0, not -1"),
    "collect step nan": (lambda r: r.ppo.rollout.collect(r.ppo.weights, float("nan")), r"not nan"),
    "collect eps": (lambda r: r.dqn.rollout.collect(r.dqn.weights, 0, {"eps": 0.1}), r"random, epsilon, .* not \{'eps': 0.1\}"),
    "collect 0.1": (lambda r: r.dqn.rollout.collect(r.dqn.weights, 0, 0.1), r"random, epsilon, .* not 0.1"),
    "collect report": (lambda r: r.dqn.rollout.collect(r.dqn.weights, r.dqn.report), r"not a Report.*add up report.num_steps"),
    # Replay
    "add a pair": (lambda r: r.dqn.replay.add(0, r.dqn.pair), r"Trajectory, not a tuple of 2 \(Report, .*num_returns=2"),
    "add a report": (lambda r: r.dqn.replay.add(0, r.dqn.report), r"not a Report. Give the second of what"),
    "add None": (lambda r: r.dqn.replay.add(0, None), r"of type Trajectory, not None"),
    "add fitness": (lambda r: r.dqn.replay.add(0, r.es.data), r"not a Fitness"),
    "add swapped": (lambda r: r.dqn.replay.add(r.dqn.data, 0), r"worker_index must be a whole number of at least 0, not a Trajectory"),
    "add worker 'a'": (lambda r: r.dqn.replay.add("a", r.dqn.data), r"worker_index must be a whole number"),
    "add of another": (lambda r: r.dqn.replay.add(0, r.sac.data), r"obs must be .*\[9, 2, 4\].*\[9, 2, 3\].*" + SAME_SETUP),
    "add too much": (lambda r: roles.Replay(r.dqn.setup, 0, 200).add(0, r.dqn.data), r"16 rows does not fit.*lower num_shards"),
    "sample 0": (lambda r: r.dqn.replay.sample(0), r"num must be a whole number of at least 1, not 0"),
    "sample -1": (lambda r: r.dqn.replay.sample(-1), r"not -1"),
    "sample 2.5": (lambda r: r.dqn.replay.sample(2.5), r"not 2.5"),
    "sample at 'a'": (lambda r: r.dqn.replay.sample(8, "a"), r"timesteps must be .* not 'a'"),
    "sample of nothing": (lambda r: roles.Replay(r.dqn.setup).sample(8), r"Of 0 rows none.*add more fragments"),
    "priorities of ids": (lambda r: r.dqn.replay.set_priorities(r.dqn.sample.id, np.ones(32)), r"of type Sample, not an array"),
    "priorities short": (lambda r: r.dqn.replay.set_priorities(r.dqn.sample, np.ones(3)), r"32 rows, not an array of shape \[3\]"),
    "priorities in a list": (lambda r: r.dqn.replay.set_priorities(r.dqn.sample, [np.ones(32)]), r"returns a list with an array"),
    "priorities none": (lambda r: r.dqn.replay.set_priorities(r.dqn.sample, []), r"not a list of 0"),
    "priorities below 0": (lambda r: r.dqn.replay.set_priorities(r.dqn.sample, -np.ones(32)), r"finite number above 0"),
    "priorities nan": (lambda r: r.dqn.replay.set_priorities(r.dqn.sample, np.full(32, np.nan)), r"finite number above 0"),
    "save to None": (lambda r: r.dqn.replay.save(None), r"folder must be the path of a folder, not None"),
    "save below a file": (lambda r: r.dqn.replay.save(f"{__file__}/rows"), r"cannot write .*: Not a directory. Give another"),
    "load nothing": (lambda r: r.dqn.replay.load("no/such/rows"), r"There is nothing at .no/such/rows"),
    # ParameterServer
    "push None": (lambda r: r.ppo.server.push(None), r"push: weights must be of type Weights"),
    "push narrow": (lambda r: r.ppo.server.push(r.narrow.weights), r"ParameterServer.push: .* another network"),
    "push a learner": (lambda r: r.ppo.server.push(r.ppo.learner), r"not a Learner"),
    "reset short": (lambda r: r.ppo.server.reset(short(r.ppo.weights)), r"reset: flat must be"),
    "pull weights": (lambda r: r.ppo.server.pull(r.ppo.weights), r"newer_than must be a whole number"),
    "save no weights": (lambda r: r.ppo.server.save("never"), r"holds no weights yet. Push some first"),
    "restore 3": (lambda r: r.ppo.server.restore(3), r"the path of a folder, not 3"),
    # Learner
    "update alone": (lambda r: r.ppo.learner.update(0), r"takes data after timesteps, and there is none. Give the second of what"),
    "update without steps": (lambda r: r.ppo.learner.update(r.ppo.data), r"not a Trajectory. It is the number of .* and comes before the data"),
    "update a pair": (lambda r: r.ppo.learner.update(0, r.ppo.pair), r"Give the second of what .*num_returns=2"),
    "update a list": (lambda r: r.ppo.learner.update(0, [r.ppo.data]), r"as an argument of its own"),
    "update a dict": (lambda r: r.ppo.learner.update(0, {"obs": 1}), r"not a dict"),
    "update of another": (lambda r: r.ppo.learner.update(0, r.ppo.data, r.other.data), SAME_SETUP),
    "update of DQN": (lambda r: r.ppo.learner.update(0, r.dqn.data), r"behaviour.log_prob must be .*not None.*" + SAME_SETUP),
    "update with gradients": (lambda r: r.ppo.learner.update(0, r.a3c.data), r"of type Trajectory, not a Gradients"),
    "A3C's update": (lambda r: r.a3c.learner.update(0, r.ppo.data), r"of type Gradients, not a Trajectory"),
    "ES' update": (lambda r: r.es.learner.update(0, r.ppo.data), r"of type Fitness, not a Trajectory"),
    "update at 'a'": (lambda r: r.ppo.learner.update("a", r.ppo.data), r"timesteps must be"),
    "update with replay": (lambda r: r.dqn.learner.update(0, r.dqn.data), r"call learn\(timesteps, \*samples\)"),
    "learn without replay": (lambda r: r.ppo.learner.learn(0), r"call update\(timesteps, \*data\)"),
    "observe without replay": (lambda r: r.ppo.learner.observe(*r.ppo.pair), r"PPO learns from what workers collect"),
    "observe a pair": (lambda r: r.dqn.learner.observe(r.dqn.pair), r"not a tuple.*the first of what Rollout.collect returns"),
    "observe two reports": (lambda r: r.dqn.learner.observe(r.dqn.report, r.dqn.report), r"of type Trajectory, not a Report"),
    "learn alone": (lambda r: r.dqn.learner.learn(0), r"takes samples after timesteps, and there is none. Replay.sample"),
    "learn without steps": (lambda r: r.dqn.learner.learn(r.dqn.sample), r"not a Sample. It is the number of .* and comes before the data"),
    "learn a trajectory": (lambda r: r.dqn.learner.learn(0, r.dqn.data), r"samples must be of type Sample, not a Trajectory"),
    "learn a list": (lambda r: r.dqn.learner.learn(0, [r.dqn.sample]), r"learn\(timesteps, \*samples\)"),
    "learn of another": (lambda r: r.dqn.learner.learn(0, r.sac.sample), SAME_SETUP),
    "learn 31 rows": (lambda r: r.dqn.learner.learn(0, r.dqn.replay.sample(31)), r"multiple of batch_size \(32\)"),
    "learn unobserved": (
        lambda r: r.dqn.learner.learn(0, r.dqn.sample),
        r"normalize_rewards and normalize_observations had nothing to go by. Call observe",
    ),
    "load no state": (lambda r: r.ppo.learner.load_state_dict("state"), r"state in the checkpoint is damaged: a value is of another kind"),
    "load a part": (lambda r: r.ppo.learner.load_state_dict({}), r"lacks 'flat'"),
    "load narrow": (lambda r: r.ppo.learner.load_state_dict(r.narrow.learner.state_dict()), r"107 weights for the network"),
    "set a path": (lambda r: r.ppo.learner.set_weights("weights"), r"set_weights: weights must be of type Weights, not 'weights'"),
    "set narrow": (lambda r: r.ppo.learner.set_weights(r.narrow.weights), r"another network"),
    # Evaluator
    "evaluate None": (lambda r: r.ppo.evaluator.evaluate(None, 1), r"Evaluator.evaluate: weights must be of type Weights"),
    "evaluate narrow": (lambda r: r.ppo.evaluator.evaluate(r.narrow.weights, 1), r"another network"),
    "no episodes": (lambda r: r.ppo.evaluator.evaluate(r.ppo.weights, 0), r"num_episodes must be a whole number of at least 1"),
    "seed -1": (lambda r: r.ppo.evaluator.evaluate(r.ppo.weights, 1, -1), r"seed must be a whole number of at least 0"),
}  # fmt: skip


def cut(data: Any, path: str, change: Callable[[Any], object]) -> Any:
    """A copy whose field `path` is what `change` makes of it."""
    name, _, rest = path.partition(".")
    if isinstance(data, dict):
        return {**data, name: cut(data[name], rest, change) if rest else change(data[name])}
    here = getattr(data, name)
    return dataclasses.replace(data, **{name: cut(here, rest, change) if rest else change(here)})


def truncated(data: Any) -> Any:
    """Trajectory whose first episode was truncated and reset in row 3 of stream 1."""
    row = np.arange(data.num_rows)[:, None] == 3
    final = Final(np.array([3]), np.array([1]), data.obs[4:5, 1])
    return dataclasses.replace(data, truncated=row & np.array([False, True]), final=final)


SHORT: Callable[[Any], object] = lambda x: x[:-1]  # noqa: E731
TEXT: Callable[[Any], object] = lambda x: x.astype(str)  # noqa: E731
LIST: Callable[[Any], object] = lambda x: x.tolist()  # noqa: E731
NONE: Callable[[Any], object] = lambda x: None  # noqa: E731
FRAGMENTS = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
ALTERED: dict[str, tuple[tuple[str, ...], tuple[Callable[[Any], object], ...]]] = {
    # what is altered -> fields, and how
    "trajectory": (FRAGMENTS, (SHORT, TEXT, LIST, NONE, lambda x: x[:0], lambda x: x[:, :1], lambda x: x.ravel())),
    "final": (("final.t", "final.b"), (lambda x: x + 8, lambda x: x - 9, lambda x: x * 1.0, SHORT)),
    "final.obs": (("final.obs",), (SHORT, lambda x: x[:, :1])),
    "behaviour": (("behaviour.log_prob", "behaviour.value"), (SHORT, TEXT, NONE)),
    "sample": (("data.obs", "data.action", "data.reward", "data.discount", "data.next_obs", "weight", "probability"), (SHORT, TEXT, NONE)),
    "id": (("id",), (SHORT, lambda x: x - 10**6, lambda x: x + 0.5, NONE)),
    "gradients": (("flat",), (SHORT, TEXT, NONE)),
    "fitness": (("index", "value", "length"), (SHORT, TEXT, NONE)),
    "weights": (("flat",), (TEXT, LIST)),
    "version": (("version",), (lambda x: "3", lambda x: -1, NONE)),
    "extra": (("extra",), (lambda x: {**x, "obs_mean": "a"},)),
}  # fmt: skip
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {
    # name of an entry of ALTERED, and the call that gets it -> what is right, and the call
    "trajectory: add": (lambda r: r.dqn.data, lambda r, x: r.dqn.replay.add(0, x)),
    "trajectory: observe": (lambda r: r.dqn.data, lambda r, x: r.dqn.learner.observe(r.dqn.report, x)),
    "trajectory: update": (lambda r: r.ppo.data, lambda r, x: r.ppo.learner.update(0, x)),
    "final: add": (lambda r: truncated(r.dqn.data), lambda r, x: r.dqn.replay.add(0, x)),
    "final.obs: add": (lambda r: truncated(r.dqn.data), lambda r, x: r.dqn.replay.add(0, x)),
    "behaviour: update": (lambda r: r.ppo.data, lambda r, x: r.ppo.learner.update(0, x)),
    "sample: learn": (lambda r: r.dqn.sample, lambda r, x: r.dqn.learner.learn(0, x)),
    "id: learn": (lambda r: r.dqn.sample, lambda r, x: r.dqn.learner.learn(0, x)),
    "id: set_priorities": (lambda r: r.dqn.sample, lambda r, x: r.dqn.replay.set_priorities(x, np.ones(32))),
    "gradients: update": (lambda r: r.a3c.data, lambda r, x: r.a3c.learner.update(0, x)),
    "fitness: update": (lambda r: r.es.data, lambda r, x: r.es.learner.update(0, x)),
    "weights: collect": (lambda r: r.ppo.weights, lambda r, x: r.ppo.rollout.collect(x)),
    "weights: set_weights": (lambda r: r.ppo.weights, lambda r, x: r.ppo.learner.set_weights(x)),
    "version: push": (lambda r: r.ppo.weights, lambda r, x: r.ppo.server.push(x)),
    "version: set_weights": (lambda r: r.ppo.weights, lambda r, x: r.ppo.learner.set_weights(x)),
    "extra: collect": (lambda r: r.dqn.weights, lambda r, x: r.dqn.rollout.collect(x)),
    "extra: evaluate": (lambda r: r.dqn.weights, lambda r, x: r.dqn.evaluator.evaluate(x, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_arrays_that_do_not_fit_are_answered(r: SimpleNamespace, case: str) -> None:
    right, call = CALLS[case]
    paths, changes = ALTERED[case.partition(":")[0]]
    for path in paths:
        for change in changes:
            with pytest.raises(UserError, match=rf"{case.partition(': ')[2]}\b"):
                call(r, cut(right(r), path, change))


def test_a_fragment_takes_a_row_more_for_each_last_observation(r: SimpleNamespace) -> None:
    """16 rows and one: a buffer of 16 is too small, which is said; one of 17 is not."""
    spec, fragment = r.dqn.setup.replay, truncated(r.dqn.data)
    fits, small = (
        roles.Replay(dataclasses.replace(r.dqn.setup, replay=dataclasses.replace(spec, capacity=n))) for n in (17, 16)
    )
    assert fits.add(0, fragment) > 0
    with pytest.raises(
        UserError,
        match=r"17 rows .1 of them for the last observations.* buffer of 16: raise buffer_size to 17 or more, .* in parts",
    ):
        small.add(0, fragment)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered(r: SimpleNamespace, mistake: str) -> None:
    call, said = MISTAKES[mistake]
    with pytest.raises((UserError, AttributeError), match=said):
        call(r)


def test_trajectories_of_an_update_are_equally_long(r: SimpleNamespace) -> None:
    longer = Run("PPO", **{**SMALL, "fragment_length": 9})
    with pytest.raises(
        UserError, match=r"reward must be a NumPy array \[8, B\] of numbers, not an array of shape \[9, 2\]"
    ):
        r.ppo.learner.update(0, r.ppo.data, longer.data)


def test_a_closed_rollout_says_so(r: SimpleNamespace) -> None:
    rollout = roles.Rollout(r.ppo.setup, 1)
    rollout.close()
    rollout.close()
    with pytest.raises(UserError, match="this rollout is closed"):
        rollout.collect(r.ppo.weights)


def test_a_server_refuses_the_saved_weights_of_another_network(r: SimpleNamespace, tmp_path: Path) -> None:
    server = roles.ParameterServer(r.narrow.setup)
    server.push(r.narrow.weights)
    server.save(tmp_path / "narrow")
    with pytest.raises(UserError, match=r"ParameterServer.reset: .* another network"):
        roles.ParameterServer(r.ppo.setup).restore(tmp_path / "narrow")


def test_a_network_that_torch_builds_is_known_before_the_first_weights(r: SimpleNamespace) -> None:
    catch = roles.Rollout(raypid.setup("PPO", "raypid/Catch-v0", **SMALL))
    with pytest.raises(UserError, match="another network"):
        catch.collect(r.ppo.weights)


def test_priorities_are_for_rows_of_the_buffer(r: SimpleNamespace) -> None:
    replay, sample = r.dqn.replay, r.dqn.sample
    before = replay.buffer.tree.total
    with pytest.raises(UserError, match="has rows of another buffer. Give it to the Replay that drew it"):
        replay.set_priorities(dataclasses.replace(sample, id=sample.id + 100_000), np.ones(32))
    assert replay.buffer.tree.total == before
    replay.set_priorities(sample, [5.0] * 32)
    assert replay.buffer.tree.total > before


def test_what_observe_has_seen_is_part_of_the_state(r: SimpleNamespace) -> None:
    """The next update divides rewards by it."""
    one, two = roles.Learner(r.sac.setup), roles.Learner(r.sac.setup)
    one.observe(r.sac.report)
    two.load_state_dict(one.state_dict())
    first, second = (learner.learn(100, r.sac.sample)[1].flat for learner in (one, two))
    np.testing.assert_array_equal(first, second)


def test_actors_answer_too(r: SimpleNamespace, ray_session: Any) -> None:
    """A future inside a list is not resolved by Ray, and a call without num_returns=2 returns a pair."""
    ray = ray_session
    replay = ray.remote(num_cpus=0)(roles.Replay).remote(r.dqn.setup)
    future = ray.put(r.dqn.pair)
    with pytest.raises(UserError, match="Give the second of what .* On Ray, call it with .options"):
        ray.get(replay.add.remote(0, future))
    with pytest.raises(UserError, match="Of 0 rows none"):
        ray.get(replay.sample.remote(8))
    with pytest.raises(UserError, match="not an ObjectRef: call ray.get on it first"):
        r.dqn.replay.add(0, future)
    ray.kill(replay)
