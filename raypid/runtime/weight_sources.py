"""How the newest weights come to workers and evaluator: with each call, or from parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raypid.runtime.handle import Argument, Backend, Handle, WorkerLost
from raypid.runtime.supervisor import WorkersFailed


class ByReference(Argument):
    """The newest weights go with each call, by reference. Ray keeps a copy on each node."""

    lost = 0
    """Servers that were lost so far; here there are none."""

    def __init__(self, backend: Backend, learner: Handle) -> None:
        self.backend, self.learner = backend, learner
        self._newest: Any = None

    def start(self, weights: Any) -> None:
        """Publish the weights (a future) that a loop begins with: whatever was published before is no longer true."""
        self.publish(weights)

    def publish(self, weights: Any) -> None:
        """From here on calls get these weights (a future)."""
        self._newest = self.backend.put(weights)

    def of(self, handle: Handle | None) -> Any:
        return self._newest

    def for_evaluator(self) -> Any:
        """A future of the newest weights."""
        return self.learner.submit("weights")

    def metrics(self) -> dict[str, float]:
        return {}


class ByServers(ByReference):
    """The newest weights go to a server on each of the nodes; each call pulls them from the server of its worker's node.

    A server that is lost is built anew, with the newest weights, within `max_restarts`.
    """

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        factory: Callable[[], Any],
        nodes: Sequence[str],
        *,
        timeout_s: float,
        max_restarts: int,
    ) -> None:
        ByReference.__init__(self, backend, learner)
        self.factory, self.timeout_s, self.max_restarts = factory, timeout_s, max_restarts
        self.servers: dict[str, Handle] = {node: backend.spawn(factory, node=node) for node in nodes}
        self._asked: dict[Handle | None, tuple[str, Handle]] = {}
        """Who asked which server last."""

    def start(self, weights: Any) -> None:
        ByReference.publish(self, weights)
        for server in self.servers.values():
            server.submit("reset", self._newest)

    def publish(self, weights: Any) -> None:
        ByReference.publish(self, weights)
        for server in self.servers.values():
            server.submit("push", self._newest)

    def of(self, handle: Handle | None) -> Any:
        node = self.backend.node_of(handle) if handle is not None else ""
        if node not in self.servers:  # a worker that is not there yet, or has come to another node
            node = next(iter(self.servers))
        self._asked[handle] = node, self.servers[node]
        return self.servers[node].submit("pull")

    def for_evaluator(self) -> Any:
        return self.of(None)

    def mend(self, handle: Handle | None) -> bool:
        node, asked = self._asked[handle]
        return self.servers[node] is not asked or self._rebuilt(node)

    def _rebuilt(self, node: str) -> bool:
        """Build the server of a node anew if it is gone or hangs; returns whether it was.

        Raises:
            WorkersFailed: the budget is used up.
        """
        try:
            self.backend.get(self.servers[node].submit("ready"), timeout=self.timeout_s)
            return False
        except (WorkerLost, TimeoutError) as error:
            self.lost += 1
            if self.lost > self.max_restarts:
                raise WorkersFailed(
                    f"A parameter server died. That is loss number {self.lost}; max_restarts allows {self.max_restarts}."
                ) from error
        self.backend.kill(self.servers[node])
        self.servers[node] = self.backend.spawn(self.factory, node=node)
        self.servers[node].submit("reset", self._newest)
        return True

    def metrics(self) -> dict[str, float]:
        """The newest version on all servers, and counts of all of them. A server that is gone is built anew first."""
        try:
            found = [self.backend.get(s.submit("metrics")) for s in self.servers.values()]
        except WorkerLost:
            for node in self.servers:
                self._rebuilt(node)
            return self.metrics()
        return {k: (min if k == "version" else sum)(m[k] for m in found) for k in found[0]}
