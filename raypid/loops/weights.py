"""How the newest weights reach workers and evaluator: with each call, or from a parameter server on each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from raypid.roles.learner import Learner
from raypid.roles.parameter_server import ParameterServer
from raypid.runtime.handle import Argument, Backend, Future, Handle, Place, WorkerLost
from raypid.runtime.supervisor import Group, Losses
from raypid.types import Weights


class ByReference(Argument):
    """The newest weights go with each call, by reference. Ray keeps a copy on each node."""

    def __init__(self, backend: Backend, learner: Handle) -> None:
        self.backend, self.learner = backend, learner
        self.newest: Future[Weights]
        """The weights that were published last: of the newest update that has ended well."""

    def start(self, weights: Future[Weights]) -> None:
        """Publish the first weights of a loop, whatever version was published before."""
        self.backend.get(weights)  # if their learner is lost, it is rebuilt here
        self.publish(weights)

    def publish(self, weights: Future[Weights]) -> None:
        """Send these weights with all calls from now on."""
        self.newest = self.backend.put(weights)

    def of(self, handle: Handle | None) -> Future[Weights]:
        return self.newest

    def mend(self, handle: Handle | None) -> bool:
        """If the newest weights were lost with the node that held them, or with a learner, take the learner's."""
        try:
            self.backend.get(self.newest)
            return False
        except WorkerLost:
            self.start(self.learner.submit(Learner.weights))
            return True

    def for_evaluator(self) -> Future[Weights]:
        """The newest weights."""
        return self.learner.submit(Learner.weights)

    def metrics(self) -> dict[str, float]:
        return {}


class ByServers(ByReference):
    """The newest weights go to a server on each of `nodes`. Each call pulls them from the server on its worker's node.

    While a server is being rebuilt, the weights go with the call, so nobody waits for it. One that was lost with its node is absent
    until there is room for it, and a node that workers come to gets one.
    """

    def __init__(
        self,
        backend: Backend,
        learner: Handle,
        factory: Callable[[], object],
        nodes: Sequence[str],
        *,
        timeout_s: float,
        losses: Losses,
    ) -> None:
        super().__init__(backend, learner)
        places = [Place("server", i, node=node) for i, node in enumerate(nodes)]
        self.servers: Group[Any, Any] = Group(
            backend, lambda index, restarts: factory, places, timeout_s=timeout_s, losses=losses, elastic=True
        )
        self.servers.revived = self._revived
        self._generation = -1
        """Generation of the learners when weights were published last; -1: the next ones replace all others, whatever their version."""
        self._counts: list[dict[str, float]] = [{} for _ in places]
        """The newest metrics of each server."""
        self._asked = WeakKeyDictionary[object, tuple[int, int]]()
        """The server that each worker (this object: the evaluator) asked last, and how often that had been rebuilt."""

    def _revived(self, indices: Sequence[int], how: str) -> str:
        for index in indices:
            self.servers.handles[index].submit(ParameterServer.reset, self.newest)
        return "Another one has the newest weights."

    def start(self, weights: Future[Weights]) -> None:
        self._generation = -1
        super().start(weights)
        for index, counts in self.servers.call_each(ParameterServer.metrics).items():  # they are up
            self._counts[index] = counts

    def publish(self, weights: Future[Weights]) -> None:
        super().publish(weights)
        before, self._generation = self._generation, getattr(self.learner, "generation", 0)
        # learners that were rebuilt may go on from an older version, which push refuses
        method = ParameterServer.push if self._generation == before else ParameterServer.reset
        for index in self.servers.present:
            self.servers.handles[index].submit(method, self.newest)

    def of(self, handle: Handle | None) -> Future[Weights]:
        index = self._server_of(handle)
        self._asked[handle or self] = index, self.servers.restarts[index]
        pull: Callable[..., Any] = ParameterServer.pull  # weights, since some were pushed before
        return self.servers.handles[index].submit(pull) if self.servers.is_up(index) else self.newest

    def _server_of(self, handle: Handle | None) -> int:
        """The server on the node of a worker (None: the evaluator), or one elsewhere if it has none."""
        servers, node = self.servers, self.backend.node_of(handle) if handle is not None else ""
        there = [i for i, place in enumerate(servers.places) if place.node == node]
        place = Place("server", len(servers), node=node)
        if node and not there and self.backend.has_room(place):  # workers have come to this node
            there = [servers.add(place)]
            self._counts.append({})
            self._revived(there, "")
        return next((i for i in [*there, *servers.present] if i not in servers.absent), 0)

    def for_evaluator(self) -> Future[Weights]:
        return self.of(None)

    def mend(self, handle: Handle | None) -> bool:
        renewed = super().mend(handle)
        self._look_after()
        index, restarts = self._asked[handle or self]
        return renewed or self.servers.restarts[index] > restarts

    def _look_after(self) -> None:
        """Take the counts of the servers that are up. Those that are gone or hang are rebuilt."""
        self.servers.look()
        for index in filter(self.servers.is_up, self.servers.present):
            call = self.servers.ask(index, ParameterServer.metrics)
            if call.ended(call.deadline):
                self._counts[index] = call.values[index]

    def metrics(self) -> dict[str, float]:
        """The oldest version on any server, and sums of the servers' counts; those of one that is being rebuilt are the last ones."""
        self._look_after()
        found = [counts for counts in self._counts if counts]
        names = found[0] if found else ()
        return {name: (min if name == "version" else sum)(counts[name] for counts in found) for name in names}
