"""Nodes whose end is noticed, and a group of workers some of whom are lost with theirs."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from functools import partial
from typing import Any

import fragile
import pytest
from patience import wait_until

from raypid.errors import Halted, UserError
from raypid.loops.loops import Context
from raypid.run.evaluation import InWorker
from raypid.runtime.handle import ClusterLost, LostNode, Place, WorkerLost, places
from raypid.runtime.local import Failed, LocalBackend
from raypid.runtime.nodes import Line, numbers_text, roles_text
from raypid.runtime.supervisor import Group, Losses
from raypid.settings.config import Config


class Greeter:
    """A server that greets whoever connects, as a raylet does."""

    def __init__(self, port: int = 0) -> None:
        self.server = socket.create_server(("127.0.0.1", port))
        self.port: int = self.server.getsockname()[1]
        self.guests: list[socket.socket] = []
        threading.Thread(target=self._greet, daemon=True).start()

    def _greet(self) -> None:
        while True:
            try:
                guest, _ = self.server.accept()
            except OSError:
                return
            self.guests.append(guest)
            guest.sendall(b"\0\0\0\4\0\0\0\0\0")

    def hang_up(self) -> None:
        for guest in self.guests:
            guest.close()

    def end(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.hang_up()


def test_a_line_tells_at_once_that_a_process_has_ended() -> None:
    lively = Greeter()
    line = Line("127.0.0.1", lively.port)
    assert not line.has_ended() and not line.has_ended()
    wait_until(lambda: lively.guests)  # one whom it accepts later would stay
    lively.end()
    wait_until(line.has_ended)


def test_a_server_that_hangs_up_has_not_ended() -> None:
    lively = Greeter()
    line = Line("127.0.0.1", lively.port)
    for num in range(1, 4):
        wait_until(lambda: not line.has_ended() and len(lively.guests) == num)  # noqa: B023
        lively.hang_up()
    lively.end()
    wait_until(line.has_ended)


def test_a_host_that_does_not_answer_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr("raypid.runtime.nodes.socket.create_connection", silent)
    assert not Line("127.0.0.1", 1).has_ended()


def test_numbers_and_roles_in_words() -> None:
    assert numbers_text([0, 1, 3, 5, 6, 7]) == "0, 1, 3 and 5 to 7"
    places = [Place("worker", i) for i in (4, 5, 6)] + [Place("shard", 1), Place("server", 0), Place("other")]
    assert roles_text(places) == "workers 4 to 6, replay shard 1 and the parameter server"


def test_a_node_that_is_started_again_at_its_address_is_another_one(
    ray_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before was lost once, and is lost for good; its role names that, and not what raypid did with the role then."""
    from raypid.runtime import ray as module

    raylet, nodes = Greeter(), list[dict[str, Any]]()

    def start(id: str) -> None:
        nodes.append({"NodeID": id, "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": raylet.port})
        backend._look()

    def all_lost() -> bool:
        backend._look()
        return backend._lost >= {node["NodeID"] for node in nodes}

    def lose() -> list[str]:
        wait_until(lambda: raylet.guests)
        raylet.end()
        wait_until(all_lost)
        return [f"{node.name} {node.how}" for node in backend.lost_nodes()]

    monkeypatch.setattr(module.ray, "nodes", lambda: list(nodes))
    backend = module.RayBackend()
    role = backend.spawn(partial(fragile.Echo, 1))
    assert backend.get(role.submit(fragile.Echo.add, 1)) == 2
    role.node = "firstid"
    start("firstid")
    assert backend.lost_nodes() == [] and backend._is_alive("firstid")
    assert lose() == ["127.0.0.1 (firsti) its Ray has ended"] and not backend._is_alive("firstid")
    with pytest.raises(WorkerLost, match=r"^Its node 127\.0\.0\.1 \(firsti\) was lost\.$"):
        wait_until(lambda: backend.get(role.submit(fragile.Echo.add, 1)) < 0)  # Ray kills when it comes to it
    raylet = Greeter(raylet.port)
    start("secondid")
    other = backend.spawn(partial(fragile.Echo, 1))
    other.node = "secondid"
    backend._look()
    assert backend.lost_nodes() == [] and backend.where(other) == "127.0.0.1 (second)"
    assert lose() == ["127.0.0.1 (second) its Ray has ended"] and not backend._is_alive("firstid")
    start("thirdid")
    third = backend.spawn(partial(fragile.Echo, 1))
    third.node, nodes[2]["Alive"] = "thirdid", False
    threading.Thread(target=module._looks, args=(weakref.ref(backend), backend._wake), daemon=True).start()
    assert [node.how for node in backend.lost_nodes(third)] == ["Ray lists it as dead"]  # at once
    backend.shutdown()


def test_a_head_that_does_not_answer_is_told_from_a_driver_that_stood_still(
    ray_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raypid.runtime import ray as module

    backend = module.RayBackend()
    backend._heard = time.monotonic() - 100
    assert backend.put(1) and backend._heard > time.monotonic() - 10  # it answers when it is asked

    def silent(address: str) -> None:
        raise UserError("no answer")

    monkeypatch.setattr(module, "check_answers", silent)
    backend._heard = time.monotonic() - 100
    with pytest.raises(ClusterLost, match="is gone: its head does not answer"):
        backend.put(1)
    backend._gone = ""  # the other tests' Ray lives
    backend.shutdown()


class Role:
    """Says which worker it is, and how often that was built anew."""

    def __init__(self, index: int, restarts: int) -> None:
        self.text = f"{index} {restarts}"

    def collect(self) -> str:
        return self.text

    def close(self) -> None: ...


class Cluster(LocalBackend):
    """Nodes that are lost when a test says so."""

    def __init__(self) -> None:
        self.news: list[LostNode] = []
        self.room, self.gone = True, False

    def has_room(self, place: Any) -> bool:
        return self.room

    def where(self, handle: Any) -> str:
        return "10.0.0.4 (def)"

    def lost_nodes(self, suspect: Any = None) -> list[LostNode]:
        if self.gone:
            raise ClusterLost("The cluster is gone.")
        news, self.news = self.news, []
        return news

    def lose(self, workers: Any, *indices: int) -> None:
        self.room = False
        handles = tuple(workers.handles[i] for i in indices)
        self.news.append(
            LostNode("10.0.0.3 (abc)", "it does not answer", tuple(workers.places[i] for i in indices), handles)
        )
        workers._looked = 0.0


def cluster() -> tuple[Cluster, Any, list[str]]:
    backend, told = Cluster(), list[str]()
    build = lambda index, restarts: partial(Role, index, restarts)  # noqa: E731
    workers: Any = Group(
        backend, build, places("worker", 4, num_cpus=1), timeout_s=5, losses=Losses(0), elastic=True, told_of_nodes=True
    )
    workers.losses.tell = told.append
    return backend, workers, told


def test_workers_of_a_lost_node_are_absent_until_there_is_room() -> None:
    backend, workers, told = cluster()
    backend.lose(workers, 1, 2)
    assert workers.call_all(Role.collect) == ["0 0", "3 0"]
    assert workers.present == workers.idle == [0, 3] and workers.losses.counts == {"workers": 2, "nodes": 1}
    assert told == [
        "Node 10.0.0.3 (abc) was lost (it does not answer) with workers 1 and 2; 2 of 4 workers go on. "
        "The others come back when there is room for them."
    ]
    assert not workers.losses._times
    backend.room, workers._looked = True, 0.0
    assert workers.call_each(Role.collect) == {i: f"{i} {int(i in (1, 2))}" for i in range(4)}
    assert told[1:] == ["Workers 1 and 2 are back on 10.0.0.4 (def): 4 of 4 workers go on."]
    assert len(workers.call_all(Role.collect)) == 4 and len(told) == 2


def test_the_evaluator_leaves_the_news_of_lost_nodes_to_the_workers() -> None:
    backend, workers, told = cluster()
    evaluator: Any = Group(
        backend,
        lambda index, restarts: partial(Role, index, restarts),
        places("evaluator"),
        timeout_s=5,
        losses=Losses(0),
    )
    backend.lose(workers, 1)
    assert evaluator.call_all(Role.collect) == ["0 0"] and evaluator.finished(0.0) == []
    assert len(workers.call_all(Role.collect)) == 3 and len(told) == 1


def test_a_worker_that_is_built_anew_is_not_blamed_for_the_evaluation_that_was_lost_with_its_node() -> None:
    backend, workers, _ = cluster()
    inline = InWorker(Config(), Context(backend, workers, None, None), None)  # type: ignore[arg-type]
    inline._call = workers.ask(1, Role.collect)
    inline._call.firsts[1] = Failed(WorkerLost("gone"))
    backend.lose(workers, 1)
    backend.room = True
    assert inline.result() is None and not inline.busy
    assert workers.restarts == [0, 1, 0, 0] and not workers.losses._times


def test_without_any_worker_a_group_waits_until_it_is_stopped() -> None:
    backend, workers, told = cluster()
    backend.lose(workers, 0, 1, 2, 3)
    assert workers.call_all(Role.collect) == [] and workers.answers(Role.collect, 1.0) == {}
    assert "no worker is left" in told[0]
    looks: list[int] = []
    workers.losses.stopping = lambda: looks.append(0) or len(looks) > 2
    with pytest.raises(Halted, match="No worker was there"):
        workers.call_all_parts(Role.collect)
    with pytest.raises(Halted):
        workers.finished(None)
    workers.close()


def test_a_cluster_that_is_gone_ends_what_waits_for_workers() -> None:
    backend, workers, _ = cluster()
    backend.gone, workers._looked = True, 0.0
    with pytest.raises(ClusterLost):
        workers.call_all(Role.collect)


def test_a_cluster_that_says_at_once_that_it_is_gone_is_left_and_saved_without_its_workers() -> None:
    """As through ray://, where no call can be made any more."""
    from raypid.runtime.ray import _through_client

    _, workers, _ = cluster()

    def gone(*_: Any) -> Any:
        with _through_client():
            raise ConnectionError("Client is shutting down.")

    for handle in workers.handles:
        handle.submit = gone
    with pytest.raises(ClusterLost, match="its head, reached through ray://, does not answer"):
        workers.call_all(Role.collect)
    assert workers.answers(Role.collect, 1.0) == {}
    workers.close()
