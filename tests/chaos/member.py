"""Members of a collective for tests: they sum, gather, and learn from fragments as one of several learners."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from raypid.ops.normalizer import moments_of
from raypid.roles.learner import Learner
from raypid.roles.replay_learner import ReplayLearner
from raypid.runtime.collective import TorchCollective
from raypid.types import Final, Report, Trajectory, tree_map

SIZE = 3
T, B = 14, 2
F = np.float32


class Member:
    def __init__(self, rank: int, size: int, timeout_s: float = 60.0) -> None:
        import torch.distributed  # noqa: F401  (seconds, which are not to be those of the first meeting)

        self.collective = TorchCollective(rank, size, timeout_s=timeout_s)

    def open(self) -> str:
        return self.collective.open()

    def join(self, address: str) -> None:
        self.collective.join(address)

    def total(self, values: list[float], kind: str = "float32") -> Any:
        if kind == "torch":
            import torch

            return self.collective.sum(torch.tensor(values)).numpy()
        x = np.array(values, kind)
        assert self.collective.sum(x) is x
        return x

    def gather(self, value: Any) -> list[Any]:
        return self.collective.gather(value)

    def learn(self, setup: Any, batches: list[Any], state: Any = None) -> Any:
        """Updates with each of `batches` (this member's fragments); returns what came of each, and the state at the end."""
        learner = Learner(setup)
        learner.algorithm.meet(self.collective)
        if state is not None:
            learner.load_state_dict(state)
        return [learner.update(100 * (k + 1), *batch) for k, batch in enumerate(batches)], learner.state_dict()

    def replay(self, setup: Any, rounds: list[Any]) -> Any:
        """One of several learners with a buffer each. A round is the moments that all observe before it, the (worker, fragment) that are
        inserted here, and its number of updates. Returns the samples that were drawn, the priorities that were set, metrics, and the state."""
        learner = ReplayLearner(setup, self.collective.rank, self.collective.size, self.collective)
        learner.algorithm.meet(self.collective)
        drawn: list[Any] = []
        set_: list[Any] = []
        buffer = learner.replay.buffer
        sample, set_priorities = buffer.sample, buffer.set_priorities

        def recorded(*args: Any) -> Any:
            drawn.append(sample(*args))
            return drawn[-1]

        def recording(ids: Any, priorities: Any) -> None:
            set_.append(priorities)
            set_priorities(ids, priorities)

        buffer.sample, buffer.set_priorities = recorded, recording  # type: ignore[method-assign]
        for k, (moments, inserts, num_updates) in enumerate(rounds):
            for one in moments:
                learner.observe(Report(0, 0, 0, moments=one))
            for worker, fragment in inserts:
                learner.replay.add(worker, fragment)
            learner.learn_from_replay(100 * k, num_updates)
        return drawn, set_, learner.metrics(), learner.state_dict()

    def follow(self, algorithm: Any, parts: list[Any]) -> Any:
        """One update of an algorithm with this member's gradients; returns its weights and metrics."""
        built = algorithm()
        built.meet(self.collective)
        update = built.update(parts, 0)
        return built.network.numpy(), update.metrics


class Members:
    """SIZE processes that have met."""

    def __init__(self, backend: Any, size: int, timeout_s: float = 60.0) -> None:
        self.backend = backend
        self.handles = [backend.spawn(partial(Member, rank, size, timeout_s)) for rank in range(size)]
        for handle in self.handles:
            backend.get(handle.ready)
        address = self.handles[0].submit(Member.open)
        self.call(Member.join, *[(address,)] * size)

    def call(self, method: Callable[..., Any], *each: tuple[Any, ...]) -> list[Any]:
        futures = [h.submit(method, *args) for h, args in zip(self.handles, each, strict=True)]
        return [self.backend.get(future) for future in futures]


def fragment(seed: int, masked: bool, no_valid: bool = False, streams: int = B, rows: int = T) -> Trajectory:
    """Random rows, some invalid, with episodes that end and final observations."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, rows, streams)) < 0.15
    x = rng.normal(1, 2, (rows + 1, streams, 4)).astype(F)
    action = rng.integers(3, size=(rows, streams))
    obs: Any = x
    if masked:
        mask = rng.random((rows + 1, streams, 3)) < 0.6
        np.put_along_axis(mask[:-1], action[..., None], True, -1)
        obs = {"action_mask": mask.astype(np.int8), "x": x}
    t = Trajectory(
        obs=obs,
        first=rng.random((rows + 1, streams)) < 0.2,
        action=action,
        reward=rng.normal(size=(rows, streams)).astype(F),
        terminated=terminated,
        truncated=truncated & ~terminated,
        valid=np.zeros((rows, streams), bool) if no_valid else rng.random((rows, streams)) < 0.8,
        behaviour={
            "log_prob": rng.normal(-1.1, 0.2, (rows, streams)).astype(F),
            "value": rng.normal(size=(rows + 1, streams)).astype(F),
        },
    )
    t.moments = moments_of(x[:-1][t.valid])
    if seed % 2:
        ended, columns = np.nonzero(t.terminated | t.truncated)
        t.final = Final(ended, columns, tree_map(lambda a: a[ended, columns], t.obs))
        t.behaviour["final_value"] = rng.normal(5, 1, len(ended)).astype(F)
    return t
