"""A member of a collective for tests: it sums, gathers, and learns from fragments as one of several learners."""

from __future__ import annotations

from typing import Any

import numpy as np

from raypid.roles.learner import Learner
from raypid.roles.replay_learner import ReplayLearner
from raypid.runtime.collective import TorchCollective


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

    def learn(self, arguments: Any, batches: list[Any], state: Any = None) -> Any:
        """Updates with each of `batches` (this member's fragments); returns what came of each, and the state at the end."""
        learner = Learner(*arguments)
        learner.algorithm.meet(self.collective)
        if state is not None:
            learner.load_state_dict(state)
        return [learner.update(100 * (k + 1), *batch) for k, batch in enumerate(batches)], learner.state_dict()

    def replay(self, arguments: Any, replay: Any, rounds: list[Any]) -> Any:
        """One of several learners with a buffer each. A round is the (worker, fragment) that are inserted before it and its
        number of updates. Returns the samples that were drawn, the priorities that were set, metrics, and the state."""
        learner = ReplayLearner(*arguments, replay=replay, rank=self.collective.rank, collective=self.collective)
        learner.algorithm.meet(self.collective)
        drawn: list[Any] = []
        set_: list[Any] = []
        sample, set_priorities = learner.replay.sample, learner.replay.set_priorities

        def recorded(*args: Any) -> Any:
            drawn.append(sample(*args))
            return drawn[-1]

        def recording(ids: Any, priorities: Any) -> None:
            set_.append(priorities)
            set_priorities(ids, priorities)

        learner.replay.sample, learner.replay.set_priorities = recorded, recording  # type: ignore[method-assign]
        for k, (inserts, num_updates) in enumerate(rounds):
            for worker, fragment in inserts:
                learner.add(worker, fragment)
            learner.learn(100 * k, num_updates)
        return drawn, set_, learner.metrics(), learner.state_dict()
