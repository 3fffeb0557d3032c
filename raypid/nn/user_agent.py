"""Agents of the user's own: in a worker, they turn fragments into gradients, one at a time."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from raypid.errors import UserError
from raypid.nn.network_policy import NetworkPolicy
from raypid.nn.pipeline import nest
from raypid.nn.user_model import Model, ModelPolicy, Parts, facts_of
from raypid.plugins.arguments import arguments
from raypid.plugins.registry import AGENT_METHODS, AGENTS, called, check_methods
from raypid.types import Array, Gradients, Trajectory, Weights, tree_leaves

T = TypeVar("T")


class WorkerAgent(Protocol):
    """The interface of an agent for `raypid.register_agent`. An agent need not inherit from this class.

    It decides which gradients are computed from the fragments that the model has collected. It is built once in each worker, as
    `Agent(args, model)`. `args` has the same entries as the model's (spaces, gamma, batch_size, device, seed) and the values of the
    setting `agent_config`, which a static method add_args(parser) may declare.
    """

    def set_weights(self, weights: Parts) -> None:
        """Load the newest weights, in the structure of the model's get_weights. Called before each fragment is collected."""

    def send_trajectory(self, trajectory: Trajectory, Rs: Array | None = None) -> None:
        """Take a fragment that the model has collected.

        Args:
            trajectory: T rows of B environments (`raypid.types.Trajectory`).
            Rs: [T, B] discounted returns; 0 on rows that are not valid. If the model has values(observation), they bootstrap from it at
                the end of the fragment and at a truncation.
        """

    def fetch_grads(self, weights: Parts) -> object:
        """Compute the next gradient from the fragments so far, at the newest weights. It is called until it returns None; then the
        model collects another fragment.

        Returns:
            None; or a gradient in the structure of the model's get_weights; or (gradient, metrics) with numbers by name; or a
            generator of these, which is used up first, with set_weights before each gradient.
        """


class DefaultAgent:
    """Calls `model.step(trajectory, Rs)` for each fragment: one gradient, or as many as it yields."""

    def __init__(self, args: object, model: Model) -> None:
        self.model = model
        self._step = with_returns(model.step)
        self._waiting: deque[tuple[Trajectory, Array | None]] = deque()

    def set_weights(self, weights: Parts) -> None:
        self.model.set_weights(weights)

    def send_trajectory(self, trajectory: Trajectory, Rs: Array | None = None) -> None:
        self._waiting.append((trajectory, Rs))

    def fetch_grads(self, weights: Parts) -> object:
        self.model.set_weights(weights)
        if not self._waiting:
            return None
        found = self._step(*self._waiting.popleft())
        if found is None:
            raise UserError(f"{type(self.model).__qualname__}.step() returned None, and not a gradient or several.")
        return found


def takes_returns(method: Callable[..., object]) -> bool:
    """Whether a method takes returns after the trajectory, whatever it calls them."""
    parameters = inspect.signature(method).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL or p.name == "Rs" for p in parameters)


def with_returns(method: Callable[..., T]) -> Callable[[Trajectory, Array | None], T]:
    """Wrap a method that may not take returns as one that takes a trajectory and returns."""
    if "Rs" in inspect.signature(method).parameters:
        return lambda trajectory, returns: method(trajectory, Rs=returns)
    return method if takes_returns(method) else lambda trajectory, returns: method(trajectory)


class AgentSource:
    """An agent and the model that it was given, as what a `GradientWorker` asks for gradients.

    Args:
        entry: the agent's class.
        config: the values of its own arguments.
        policy: acts with the model.
    """

    def __init__(self, entry: type, config: Mapping[str, object], policy: NetworkPolicy) -> None:
        assert isinstance(policy, ModelPolicy)
        self.policy, self.entry, self.config = policy, entry, config
        self.restart()
        default = isinstance(self.agent, DefaultAgent)
        self.name = policy.name if default else entry.__qualname__
        self._source = f"{self.name}.{'step' if default else 'fetch_grads'}()"
        self._returns = takes_returns(self.policy.model.step if default else self.agent.send_trajectory)

    def restart(self) -> None:
        """Build a new agent, which has no fragments yet."""
        entry, name = self.entry, self.entry.__qualname__
        args = arguments(entry, name, "agent_config", self.config, facts_of(self.policy.spec, self.policy.seed))
        self.agent: WorkerAgent = called(name, "__init__", entry, args, self.policy.model)
        self._steps: Iterator[object] | None = None
        """The rest of a generator that the agent returned."""

    def begin(self, weights: Weights) -> None:
        """The worker acts with these weights from here on. (Its policy has given them to the model.)"""
        if not isinstance(self.agent, DefaultAgent):
            self._call("set_weights", self.agent.set_weights, self.policy.layout.parts(weights.flat))

    def fetch(self, weights: Weights, trajectory: Trajectory | None) -> Gradients | None:
        """Hand over a new fragment if there is one, then compute the next gradient over the fragments so far, at these weights;
        None if there are no more.

        Raises:
            UserError: what the agent returned is no gradient of the model's weights, or not finite.
            CodeError: the agent or the model raised.
        """
        if trajectory is not None:
            self._newest = trajectory
            returns = self.policy.returns(trajectory) if self._returns else None
            own = replace(trajectory, action=nest(dict(tree_leaves(trajectory.action))))
            self._call("send_trajectory", with_returns(self.agent.send_trajectory), own, returns)
        found = self._call("fetch_grads", self._next, self.policy.layout.parts(weights.flat))
        if found is None:
            return None
        flat, metrics = self.policy.gradient_of(found, self._source)
        newest = self._newest
        return Gradients(flat, weights.version, newest.num_valid, metrics, largest_reward=newest.largest_reward)

    def _next(self, weights: Parts) -> object:
        """Return the next gradient: from a generator that the agent has returned, or else from the agent."""
        for _ in range(2):
            if self._steps is not None:
                self.agent.set_weights(weights)
                if (found := next(self._steps, None)) is not None:
                    return found
                self._steps = None
            found = self.agent.fetch_grads(weights)
            if not inspect.isgenerator(found):
                return found
            self._steps = found
        return None

    def _call(self, method: str, function: Any, *args: object) -> Any:
        return called(self.name, "step" if isinstance(self.agent, DefaultAgent) else method, function, *args)

    def local_state(self) -> dict[str, object]:
        """Return the model's state apart from its weights, if it has get_state()."""
        return self.policy.local_state()

    def load_local_state(self, state: dict[str, object]) -> None:
        self.policy.load_local_state(state)


def agent_class(name: str) -> type:
    """Return the class of a registered agent, or of "module:Class".

    Raises:
        UserError: an unknown agent, or one that lacks a method.
    """
    entry = AGENTS.get(name)
    check_methods("an agent", entry, AGENT_METHODS)
    return entry
