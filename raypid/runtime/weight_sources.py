"""How the newest weights reach workers and evaluator: with each call, or from parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from raypid.runtime.handle import Argument, Backend, Future, Handle, Place, WorkerLost
from raypid.runtime.learner_group import LearnerRole
from raypid.runtime.supervisor import Losses, cause_of, how_lost
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

    def of(self, handle: Handle | None) -> object:
        return self.newest

    def mend(self, handle: Handle | None) -> bool:
        """If the newest weights were lost with the node that held them, or with a learner, take the learner's."""
        try:
            self.backend.get(self.newest)
            return False
        except WorkerLost:
            self.start(self.learner.submit(LearnerRole.weights))
            return True

    def for_evaluator(self) -> Future[Weights]:
        """The newest weights."""
        return self.learner.submit(LearnerRole.weights)

    def metrics(self) -> dict[str, float]:
        return {}


class ByServers(ByReference):
    """The newest weights go to a server on each of `nodes`. Each call pulls them from the server on its worker's node.

    A server that is lost is rebuilt with the newest weights, at most `max_restarts` times an hour. One that was lost with its node
    is left out while there are others, and a node that workers come to gets one.
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
        ByReference.__init__(self, backend, learner)
        self.factory, self.timeout_s, self.losses = factory, timeout_s, losses
        self.places = {node: Place("server", i, node=node) for i, node in enumerate(nodes)}
        self.servers: dict[str, Handle] = {node: backend.spawn(factory, place) for node, place in self.places.items()}
        self._generation = -1
        """`LearnerGroup.generation` when weights were published last; -1: the next ones replace all others, whatever their version."""
        self._asked = WeakKeyDictionary[object, tuple[str, Handle]]()
        """The server that each worker (this object: the evaluator) asked last, and its node. Workers that were replaced drop out."""

    def start(self, weights: Future[Weights]) -> None:
        self._generation = -1
        ByReference.start(self, weights)

    def publish(self, weights: Future[Weights]) -> None:
        ByReference.publish(self, weights)
        before, self._generation = self._generation, getattr(self.learner, "generation", 0)
        # learners that were rebuilt may go on from an older version, which push refuses
        method = ServerRole.push if self._generation == before else ServerRole.reset
        for server in self.servers.values():
            server.submit(method, self.newest)

    def of(self, handle: Handle | None) -> Future[Weights]:
        node = self.backend.node_of(handle) if handle is not None else ""
        if handle is not None and node and node not in self.servers:
            self._open(node)
        if node not in self.servers:  # the worker is not there yet, or its node was lost
            node = next(iter(self.servers))
        self._asked[handle or self] = node, self.servers[node]
        return self.servers[node].submit(ServerRole.pull)

    def for_evaluator(self) -> Future[Weights]:
        return self.of(None)

    def mend(self, handle: Handle | None) -> bool:
        renewed = ByReference.mend(self, handle)
        node, asked = self._asked[handle or self]
        return self.servers.get(node) is not asked or self._rebuilt(node) or renewed

    def _open(self, node: str) -> None:
        """Build a server on a node that workers have come to."""
        place = Place("server", len(self.places), node=node)
        if self.backend.has_room(place):
            self.places[node] = place
            self.servers[node] = self.backend.spawn(self.factory, place)
            self.servers[node].submit(ServerRole.reset, self.newest)

    def _rebuilt(self, node: str) -> bool:
        """Rebuild the server of a node if it is gone or hangs; returns whether it was.

        Raises:
            WorkersFailed: more servers were lost within an hour than `max_restarts`.
        """
        try:
            self.backend.get(self.servers[node].submit(ServerRole.ready), timeout=self.timeout_s)
            return False
        except (WorkerLost, TimeoutError) as error:
            lost_by = error
        place = self.backend.where(self.servers[node])
        who = f"The parameter server on {place}" if place else "A parameter server"
        what = f"{who} {how_lost(lost_by, self.timeout_s)}{cause_of(lost_by)}."
        self.backend.kill(self.servers[node])
        if len(self.servers) > 1 and not self.backend.has_room(self.places[node]):  # it was lost with its node
            del self.servers[node]  # `of` opens a new one for workers that come to that node again
            self.losses.add("parameter_servers")
            self.losses.errors.add(f"{what}\n{lost_by}\n\n")
            self.losses.tell(f"{what} Workers elsewhere have others.")
            return True
        self.losses.count("parameter_servers", what, lost_by)
        self.servers[node] = self.backend.spawn(self.factory, self.places[node])
        self.servers[node].submit(ServerRole.reset, self.newest)
        self.losses.tell(f"{what} Another one has the newest weights.")
        return True

    def metrics(self) -> dict[str, float]:
        """The oldest version on any server, and sums of the servers' counts. A server that is gone or hangs is rebuilt first."""
        try:
            asked = [server.submit(ServerRole.metrics) for server in self.servers.values()]
            found = [self.backend.get(numbers, timeout=self.timeout_s) for numbers in asked]
        except (WorkerLost, TimeoutError):
            for node in list(self.servers):
                self._rebuilt(node)
            return self.metrics()
        return {k: (min if k == "version" else sum)(m[k] for m in found) for k in found[0]}
