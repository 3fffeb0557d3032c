"""How the newest weights reach workers and evaluator: with each call, or from parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from raypid.runtime.handle import Argument, Backend, Future, Handle, WorkerLost
from raypid.runtime.learner_group import LearnerRole
from raypid.runtime.supervisor import LossBudget
from raypid.types import Weights


class ServerRole(Protocol):
    """The methods of a parameter server that are called by name here."""

    def push(self, weights: Weights) -> int: ...

    def reset(self, weights: Weights) -> int: ...

    def pull(self) -> Weights:
        """Callers have pushed some before."""

    def metrics(self) -> dict[str, float]: ...

    def ready(self) -> None: ...


class ByReference(Argument):
    """The newest weights go with each call, by reference. Ray keeps a copy on each node."""

    lost = 0
    """Servers that were lost so far (always 0 here)."""

    def __init__(self, backend: Backend, learner: Handle) -> None:
        self.backend, self.learner = backend, learner
        self._newest: Future[Weights]

    def start(self, weights: Future[Weights]) -> None:
        """Publish the first weights of a loop, whatever version was published before."""
        self.publish(weights)

    def publish(self, weights: Future[Weights]) -> None:
        """Send these weights with all calls from now on."""
        self._newest = self.backend.put(weights)

    def of(self, handle: Handle | None) -> object:
        return self._newest

    @property
    def newest(self) -> Future[Weights]:
        """The weights that were published last: of the newest update that has ended well."""
        return self._newest

    def for_evaluator(self) -> Future[Weights]:
        """The newest weights."""
        return self.learner.submit(LearnerRole.weights)

    def metrics(self) -> dict[str, float]:
        return {}


class ByServers(ByReference):
    """The newest weights go to a server on each of `nodes`. Each call pulls them from the server on its worker's node.

    A server that is lost is built anew with the newest weights, at most `max_restarts` times an hour.
    """

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        factory: Callable[[], object],
        nodes: Sequence[str],
        *,
        timeout_s: float,
        max_restarts: int,
    ) -> None:
        ByReference.__init__(self, backend, learner)
        self.factory, self.timeout_s, self.budget = factory, timeout_s, LossBudget(max_restarts)
        self.servers: dict[str, Handle] = {node: backend.spawn(factory, node=node) for node in nodes}
        self._asked = WeakKeyDictionary[object, tuple[str, Handle]]()
        """The server that each worker (this object: the evaluator) asked last, and its node. Workers that were replaced drop out."""

    def start(self, weights: Future[Weights]) -> None:
        ByReference.publish(self, weights)
        for server in self.servers.values():
            server.submit(ServerRole.reset, self._newest)

    def publish(self, weights: Future[Weights]) -> None:
        ByReference.publish(self, weights)
        for server in self.servers.values():
            server.submit(ServerRole.push, self._newest)

    def of(self, handle: Handle | None) -> Future[Weights]:
        node = self.backend.node_of(handle) if handle is not None else ""
        if node not in self.servers:  # the worker is not there yet, or moved to another node
            node = next(iter(self.servers))
        self._asked[handle or self] = node, self.servers[node]
        return self.servers[node].submit(ServerRole.pull)

    def for_evaluator(self) -> Future[Weights]:
        return self.of(None)

    def mend(self, handle: Handle | None) -> bool:
        node, asked = self._asked[handle or self]
        return self.servers[node] is not asked or self._rebuilt(node)

    def _rebuilt(self, node: str) -> bool:
        """Build the server of a node anew if it is gone or hangs; returns whether it was.

        Raises:
            WorkersFailed: more servers were lost within an hour than `max_restarts`.
        """
        try:
            self.backend.get(self.servers[node].submit(ServerRole.ready), timeout=self.timeout_s)
            return False
        except (WorkerLost, TimeoutError):
            self.lost += 1
            self.budget.spend("A parameter server died.")
        self.backend.kill(self.servers[node])
        self.servers[node] = self.backend.spawn(self.factory, node=node)
        self.servers[node].submit(ServerRole.reset, self._newest)
        return True

    def metrics(self) -> dict[str, float]:
        """The oldest version on any server, and sums of the servers' counts. A server that is gone is built anew first."""
        try:
            found = [self.backend.get(s.submit(ServerRole.metrics)) for s in self.servers.values()]
        except WorkerLost:
            for node in self.servers:
                self._rebuilt(node)
            return self.metrics()
        return {k: (min if k == "version" else sum)(m[k] for m in found) for k in found[0]}
