"""The calls from `agent.train()` to the optimizer's `minimise`, as they really happen.

    python benchmarks/call_chains.py      # print them, as docs/architecture.md shows them

Small agents train; the stack is looked at when `minimise` is called. With several learners the calls go on in a learner's process.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import raypid
from raypid.run.agent import Agent

PACKAGE = str(Path(raypid.__file__).parent)
_SMALL = {"num_cpus_per_worker": 0.1}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("PPO", {"env": "CartPole-v1"}),
    "PPO with torch": ("PPO", {"env": "CartPole-v1", "kernel": "torch"}),
    "A2C": ("A2C", {"env": "CartPole-v1"}),
    "SAC": ("SAC", {"env": "Pendulum-v1", "start_steps": 100, "steps_per_iteration": 200}),
    "DQN": ("DQN", {"env": "CartPole-v1", "start_steps": 100, "steps_per_iteration": 200}),
    "APPO on Ray": ("APPO", {"env": "CartPole-v1", "num_workers": 2, **_SMALL}),
    "PPO, two learners": ("PPO", {"env": "CartPole-v1", "num_workers": 2, "num_learners": 2, **_SMALL}),
    "APPO, two learners": ("APPO", {"env": "CartPole-v1", "num_workers": 2, "num_learners": 2, **_SMALL}),
}
MOST = {
    "PPO": 6, "PPO with torch": 6, "A2C": 6, "SAC": 7, "DQN": 7, "APPO on Ray": 8, "PPO, two learners": 11, "APPO, two learners": 11,
}  # fmt: skip
"""Calls that are allowed."""


def stack(frame: FrameType | None) -> list[str]:
    """The package's functions that are running, outermost first."""
    found = []
    while frame is not None:
        # comprehensions are calls of their own in older Pythons only
        if frame.f_code.co_filename.startswith(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            found.append(name_of(frame))
        frame = frame.f_back
    return found[::-1]


def name_of(frame: FrameType) -> str:
    """ "Class.method", by the class that defines it, or the function's name."""
    name, owner = frame.f_code.co_name, frame.f_locals.get("self")
    for cls in type(owner).__mro__:
        if getattr(
            inspect.unwrap(inspect.getattr_static(cls, name, None)), "__code__", None
        ) is frame.f_code and name in vars(cls):
            return f"{cls.__name__}.{name}"
    return name


def traced(algorithm: Any, out: str) -> Any:
    """The algorithm; its first call of `minimise` writes the stack to the file `out`."""

    class Traced(algorithm):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            for optimizer in vars(self).get("optimizers", {}).values() or [self.optimizer]:
                optimizer.minimise = self._told(optimizer.minimise)

        def _told(self, minimise: Any) -> Any:
            def look(*args: Any) -> Any:
                if not Path(out).exists():
                    Path(out).write_text(json.dumps([*stack(sys._getframe().f_back), "minimise"]))
                return minimise(*args)

            return look

    Traced.__name__ = Traced.__qualname__ = algorithm.__name__
    return Traced


def chain(name: str) -> list[str]:
    """The calls of one of RUNS, from Training.train to minimise."""
    from raypid.plugins.registry import ALGORITHMS

    run, settings = RUNS[name]
    sent: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/stack.json"
        ALGORITHMS.register("Traced", traced(ALGORITHMS.get(run), out))
        settings = {"num_envs_per_worker": 2, "seed": 0, **settings}
        with Agent("Traced", settings) as agent:
            if settings.get("num_learners"):
                watch_submit(sent)
            while not Path(out).exists():
                agent.train()
        there = json.loads(Path(out).read_text())
    calls = there if "Training.train" in there else sent[0] + there
    return calls[calls.index("Training.train") :]


def watch_submit(sent: list[list[str]]) -> None:
    """Keep the stacks of this process in which an update is sent to a learner's process."""
    from raypid.runtime.ray import RayHandle

    def watched(name: str) -> None:
        original = getattr(RayHandle, name)

        def submit(self: Any, method: Any, *args: Any, **more: Any) -> Any:
            if getattr(method, "__name__", method) == "update":
                sent.append([*stack(sys._getframe().f_back), f"RayHandle.{name}"])
            return original(self, method, *args, **more)

        setattr(RayHandle, name, submit)

    for name in ("submit", "submit_parts"):
        if hasattr(RayHandle, name):
            watched(name)


def main() -> None:
    from raypid.runtime.ray import ray

    # two learners want two CPUs; here they need not be real
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    for name in RUNS:
        calls = chain(name)
        print(f"{name} ({len(calls) - 1} calls): {' > '.join(calls)}")


if __name__ == "__main__":
    main()
