"""Nodes that answer, refuse or are silent, and a group of workers some of whom are lost with theirs."""

from __future__ import annotations

import math
import socket
import threading
import time
from functools import partial
from typing import Any

import fragile
import pytest
from patience import wait_until

from raypid.errors import Halted
from raypid.loops.loops import Context
from raypid.run.evaluation import InWorker
from raypid.runtime.handle import ClusterLost, LostNode, Place, WorkerLost, places
from raypid.runtime.local import Failed, LocalBackend
from raypid.runtime.nodes import Line, NodeState, Watch, knock, numbers_text, roles_text
from raypid.runtime.supervisor import Group, Losses
from raypid.settings.config import Config


class Greeter:
    """A server that greets whoever connects, as a raylet does, or, `mute`, lets the kernel alone answer, as one that is stopped."""

    def __init__(self, port: int = 0, *, mute: bool = False) -> None:
        self.server = socket.create_server(("127.0.0.1", port))
        self.port: int = self.server.getsockname()[1]
        self.guests: list[socket.socket] = []
        if not mute:
            threading.Thread(target=self._greet, daemon=True).start()

    def _greet(self) -> None:
        while True:
            try:
                guest, _ = self.server.accept()
            except OSError:
                return
            self.guests.append(guest)
            guest.sendall(b"\0\0\0\4\0\0\0\0\0")

    def end(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for guest in self.guests:
            guest.close()


def test_only_a_greeting_is_an_answer() -> None:
    lively, mute = Greeter(), Greeter(mute=True)
    assert knock("127.0.0.1", lively.port) == "answers"
    assert knock("127.0.0.1", mute.port, 0.2) == "silent"  # though the kernel has accepted the connection
    lively.end()
    assert knock("127.0.0.1", lively.port) == "refuses"


def test_a_line_tells_at_once_that_a_process_has_ended() -> None:
    lively = Greeter()
    line = Line("127.0.0.1", lively.port)
    assert not line.has_ended() and not line.has_ended()
    wait_until(lambda: lively.guests)  # one whom it accepts later would stay
    lively.end()
    wait_until(line.has_ended)


def test_a_watch_tells_of_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raypid.runtime.nodes.KNOCK_S", 0.05)
    lively, told = Greeter(), list[tuple[str, NodeState]]()
    watch = Watch(lambda name, state: told.append((name, state)))
    watch.add("a", "127.0.0.1", lively.port)
    watch.add("a", "127.0.0.1", lively.port)
    time.sleep(0.3)
    assert told == []
    lively.end()
    wait_until(lambda: told)
    time.sleep(0.3)
    watch.close()
    assert told == [("a", "refuses")]


def test_a_watch_tells_of_silence_before_it_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raypid.runtime.nodes.KNOCK_S", 0.05)
    monkeypatch.setattr("raypid.runtime.nodes.QUIET_S", 0.2)
    monkeypatch.setattr("raypid.runtime.nodes.SILENT_S", 0.6)
    monkeypatch.setattr("raypid.runtime.nodes.knock", lambda host, port: answer[0])
    told, answer = list[NodeState](), list[NodeState](["answers"])
    watch = Watch(lambda name, state: told.append(state))
    watch.add("a", "127.0.0.1", 1)
    for state, expected in (("silent", "quiet"), ("answers", "answers"), ("silent", "silent"), ("answers", "answers")):
        answer[0] = state  # type: ignore[assignment]
        wait_until(lambda: told and told[-1] == expected)  # noqa: B023
    assert told == ["quiet", "answers", "quiet", "silent", "answers"]
    watch.drop("a")
    answer[0] = "refuses"
    time.sleep(0.3)
    assert told[-1] == "answers"
    watch.close()


def test_a_line_to_a_process_that_is_stopped_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raypid.runtime.nodes.KNOCK_S", 0.1)
    monkeypatch.setattr("raypid.runtime.nodes.knock", lambda host, port: "silent")
    lively = Greeter()
    line = Line("127.0.0.1", lively.port)
    lively.end()  # no other line can be opened
    wait_until(lambda: not line.has_ended())


def test_numbers_and_roles_in_words() -> None:
    assert numbers_text([0, 1, 3, 5, 6, 7]) == "0, 1, 3 and 5 to 7"
    places = [Place("worker", i) for i in (4, 5, 6)] + [Place("shard", 1), Place("server", 0), Place("other")]
    assert roles_text(places) == "workers 4 to 6, replay shard 1 and the parameter server"


def test_a_node_that_is_started_again_at_its_address_is_another_one(
    ray_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before was lost once, and is lost for good; its role names that, and not what raypid did with the role then."""
    from raypid.runtime import ray as module

    monkeypatch.setattr("raypid.runtime.nodes.KNOCK_S", 0.05)
    monkeypatch.setattr(module, "_SURE_S", 0.0)
    raylet, nodes = Greeter(), list[dict[str, Any]]()

    def start(id: str) -> None:
        nodes.append({"NodeID": id, "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": raylet.port})
        backend._look()

    def lose() -> list[str]:
        raylet.end()
        wait_until(lambda: backend._known[nodes[-1]["NodeID"]].lost)
        return [node.name for node in backend.lost_nodes()]

    monkeypatch.setattr(module.ray, "nodes", lambda: list(nodes))
    backend = module.RayBackend()
    backend._watch = Watch(backend._changed)
    role = backend.spawn(partial(fragile.Echo, 1))
    assert backend.get(role.submit(fragile.Echo.add, 1)) == 2
    role.node = "firstid"
    start("firstid")
    assert backend.lost_nodes() == [] and lose() == ["127.0.0.1 (firsti)"] and not backend._is_alive("firstid")
    with pytest.raises(WorkerLost, match=r"^Its node 127\.0\.0\.1 \(firsti\) was lost\.$"):
        backend.get(role.submit(fragile.Echo.add, 1))
    raylet = Greeter(raylet.port)
    start("secondid")
    assert (
        backend._known["firstid"].over
        and not backend._known["secondid"].over
        and "firstid" not in backend._watch._doors
    )
    other = backend.spawn(partial(fragile.Echo, 1))
    other.node = "secondid"
    assert backend.lost_nodes() == [] and backend.where(other) == "127.0.0.1 (second)"
    assert lose() == ["127.0.0.1 (second)"] and not backend._is_alive("firstid")
    raylet = Greeter(raylet.port)
    wait_until(lambda: backend._known["secondid"].back < math.inf)  # the same one: nothing else is listed there
    backend._look()
    assert backend._is_alive("secondid") and not backend._is_alive("firstid")
    nodes[1]["Alive"] = False
    backend._look()
    assert [node.name for node in backend.lost_nodes()] == ["127.0.0.1 (second)"]
    backend._watch.close()
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
        self.said = list[str]()
        self.room, self.gone = True, False

    def has_room(self, place: Any) -> bool:
        return self.room

    def remarks(self) -> list[str]:
        said, self.said = self.said, []
        return said

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
    backend.said, workers._looked = ["Node 10.0.0.4 (def) has not answered for 10 s."], 0.0
    assert len(workers.call_all(Role.collect)) == 4 and told[2:] == ["Node 10.0.0.4 (def) has not answered for 10 s."]


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
