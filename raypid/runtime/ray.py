"""Roles as Ray actors. Only this module imports Ray."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from raypid.errors import UserError, one_line
from raypid.phases import phase
from raypid.runtime.code import pack, raypid_here
from raypid.runtime.handle import (
    BUSY_S,
    ENDING_S,
    NICENESS,
    OTHER,
    A,
    ArgumentLost,
    B,
    Backend,
    ClusterLost,
    F,
    Future,
    Handle,
    LostNode,
    OutOfMemory,
    Place,
    T,
    WorkerLost,
)
from raypid.runtime.local import Failed, LocalFuture, LocalHandle, bound, full_name, resolve
from raypid.runtime.nodes import Line
from raypid.runtime.plan import Node
from raypid.runtime.resources import limit_threads
from raypid.runtime.sessions import Session, start_guard
from raypid.settings.address import check_answers, chosen, from_environment
from raypid.storage.ownership import outside_of_runs

# Ray reads these when it is imported and when its processes start. A user's own settings win.
for _name, _value in {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # the supervisor reports a dead role, once
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_SCHEDULER_EVENTS": "0",
    # a record of each call, for `ray list tasks`: it took the server 1 GB an hour, up to a bound of 100,000 calls
    "RAY_task_events_report_interval_ms": "0",
    # of each log file of its processes, what environments print included; without it these grow without end
    "RAY_ROTATION_MAX_BYTES": str(16 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_process_group_cleanup_enabled": "1",  # what the environments of a worker that has crashed have started ends with it
    # what Ray pushes to all drivers: the supervisor reports lost workers and nodes, of this run alone and in one line each; the second
    # says nothing if actors take fractions of a CPU
    "RAY_DEDUP_LOGS_SKIP_REGEX": (
        "A worker died or was killed while executing|PYTHON worker processes have been started|Raylet is terminated"
        "|has been marked dead because the detector has missed"
    ),
}.items():
    os.environ.setdefault(_name, _value)
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)  # in a notebook it advertises widgets
# through ray://, that the connection is lost, which is told by whoever needs it; Ray sets this logger's level itself
logging.getLogger("ray.util.client.logsclient").addFilter(lambda record: record.levelno > logging.WARNING)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray
    import ray.exceptions
    from ray._private.state import available_resources_per_node
    from ray.experimental.locations import get_local_object_locations
    from ray.util.client import ray as client
    from ray.util.placement_group import PlacementGroup, get_current_placement_group, placement_group_table
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    from raypid.runtime.ray_joining import joinable
    from raypid.runtime.ray_parcel import Carried, on_this_node, packed, parcel_now, received, sends_code
    from raypid.runtime.ray_reservation import RESERVE_S, Reservation

_CLIENT_GONE = "The Ray cluster is gone: its head, reached through ray://, does not answer."
_WORD_S = 30.0
"""Seconds within which Ray notices that a node was killed."""
_SILENT_S = 45.0
"""Seconds without an answer after which the head is gone. After 60 s Ray would end this process, and nothing could be saved."""
_ANSWER_S = 3.0
"""Seconds for Ray to take leave of a cluster that is gone, or to answer a look."""
_starting = False
"""Whether Ray is being started, so that a process which is forked here is one of Ray's."""


def _leave_our_group() -> None:
    """Take a process of Ray's out of the group and the terminal of this process, in the new process.

    A signal to all, as a terminal and `timeout` send it, then comes to this process alone, which knows what is to be saved and
    in which order processes end. Without half of its processes Ray's start would take half a minute, and a run could not go on.
    """
    if _starting:
        if sys.platform == "linux":  # where it ends with this process; elsewhere Ray finds it by the group
            os.setsid()
        with contextlib.suppress(ValueError):
            signal.signal(
                signal.SIGTERM, signal.SIG_IGN
            )  # one that came to the group until here was not for this process
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # by which Ray ends it
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_our_group)

_MARKET = "ray.io/market-type"
"""Ray's label of nodes that a provider may take away."""
LOOK_S = 1.0
"""Seconds between looks after Ray's servers and nodes."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,  # the node where it was to be ended meanwhile
    ray.exceptions.ObjectLostError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
)


class _NotYet(TimeoutError):
    """A value is not there yet. (A role's own TimeoutError is a value that is there.)"""


class _Role(LocalHandle):
    """The actor of a role: builds it from its factory and passes calls on. Each call raises what the factory raised: of an actor
    that fails to start, Ray would give the text and not the type."""

    def __init__(self, factory: list[ray.ObjectRef[Carried[Callable[[], object]]]], niceness: int) -> None:
        if hasattr(os, "nice"):  # before the factory is read, since that imports what the role needs
            os.nice(niceness)
        limit_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        warnings.simplefilter("ignore", UserWarning)
        self._is_busy, self._is_closing = True, False
        # Ctrl-C is the driver's business; a KeyboardInterrupt here is the environment's own
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            build = received(factory[0])
        except Exception as error:
            self.ready = Failed(error)
        else:  # arrays stay in Ray's store, so that the roles of a node share them
            super().__init__(build, lambda x: ray.get(x) if isinstance(x, ray.ObjectRef) else x)
        if isinstance(self.ready, Failed) and parcel_now() is not None:
            self.ready = Failed(on_this_node(self.ready.error))
        self._is_busy = False

    def built(self) -> tuple[str, int]:
        """The node where it is, and its process there."""
        self.ready.result()
        return str(ray.get_runtime_context().get_node_id()), os.getpid()

    def call(self, method: str, *args: object, **kwargs: object) -> object:
        self.ready.result()
        self._is_busy = True
        try:
            return bound(self.role, method)(*args, **kwargs)
        except SystemExit:
            self.close()
            raise
        finally:
            self._is_busy = False

    def close(self) -> None:
        """Close the role; a signal does not interrupt that."""
        self._is_closing = True
        super().close()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Leave the call under way, for which the role is closed; without one close it here."""
        if self._is_closing:
            return
        if not self._is_busy:
            self.close()
        raise SystemExit(128 + number)


@functools.cache
def _actor_class(role: str) -> Any:
    """The actor class for a kind of role. Ray names the processes after it ("ray::Rollout") and sends it to the cluster once."""
    return ray.remote(max_restarts=0)(type(role, (_Role,), {}))


def _role_name(factory: Callable[[], object]) -> str:
    while isinstance(factory, partial):
        factory = factory.func
    return getattr(factory, "__name__", "Role")


class RayHandle:
    """A role in an actor."""

    def __init__(self, actor: Any, place: Place = OTHER) -> None:
        self.actor, self.place = actor, place
        self.ready: Future[tuple[str, int]] = actor.built.remote()
        """Resolves to the node where the role is, and its process there."""
        self.node, self.pid = "", 0
        """The same, once they are known."""

    def submit(self, method: Callable[..., T], *args: object) -> Future[T]:
        with _through_client():
            return self.actor.call.remote(full_name(method), *args)

    def submit_parts(
        self, method: Callable[..., tuple[A, B]], *args: object, **kwargs: object
    ) -> tuple[Future[A], Future[B]]:
        with _through_client():
            a, b = self.actor.call.options(num_returns=2).remote(full_name(method), *args, **kwargs)
        return a, b


@contextlib.contextmanager
def _through_client() -> Iterator[None]:
    """For a call that through ray:// says at once that the cluster is gone.

    Raises:
        ClusterLost: it is.
        Exception: what the call raises otherwise.
    """
    try:
        yield
    except Exception as error:  # once it is not connected any more, Ray raises no special one
        if isinstance(error, ConnectionError) or "Ray Client is not connected" in str(error):
            raise ClusterLost(_CLIENT_GONE) from error
        raise


class RayBackend(Backend):
    """Uses the cluster at `address`, or the Ray that this process runs already, or starts Ray here.

    In an actor that has a placement group, as a trial of Ray Tune has, roles take what is reserved there and nothing else.

    `shutdown` stops Ray if it was started here. Where it does not start, `without` says what works without it. To the nodes of a cluster
    that is joined, by this or by the user, the user's code travels (`raypid.runtime.code`).
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        without: str = "num_workers=0 trains without Ray.",
    ) -> None:
        self._handles: list[RayHandle] = []
        self._session: Session | None = None
        """The session of the Ray that was started here; None on a cluster that was joined."""
        self._owns = not ray.is_initialized()
        self._group: PlacementGroup | None = None if self._owns else get_current_placement_group()
        self._reserved = Reservation()
        self._lines: dict[str, Line] = {}
        """A message -> the connection to Ray on this machine, or to the head, whose end it tells. A call that needs Ray on this machine
        once it has ended would end this process without a word."""
        self._end_guard: Callable[[], object] = bool
        """Ends the process that says so if that happens in the midst of a call."""
        self._is_over = False
        """Whether nodes need not be watched any more."""
        self._wake = threading.Event()
        """Set to have them looked at now."""
        self._nodes: list[dict[str, Any]] = []
        """All nodes, as Ray's head listed them last. Only a thread asks it, since it may be gone."""
        self._heard = math.inf
        """When the newest look began that it has answered, by time.monotonic()."""
        self._raylets: dict[str, Line] = {}
        """Node -> the connection to its raylet, where a role is."""
        self._lost: set[str] = set()
        """Nodes that are lost for good: what is started again on a machine is another node."""
        self._lost_with: dict[str, str] = {}
        """Actor -> which node it was lost with, as a clause."""
        self._news: list[LostNode] = []
        """A node comes here once, and before its roles are seen to be dead."""
        self._suspected: dict[str, float] = {}
        """Node -> when a role has died there, and only Ray can say whether the node is lost."""
        self._gone = ""
        """Why there is no cluster any more, once it is gone."""
        self.notes: list[str] = []
        """Remarks for the user on how the cluster was joined."""
        if self._owns:
            self.notes += filter(None, [from_environment(address)])
            address = chosen(address)
        code = pack() if (address is not None if self._owns else sends_code()) else None
        if self._owns:
            self._start(address, num_cpus, num_gpus, without)
        self._is_client = client.is_connected()
        """Whether the cluster is reached through ray://. (Once it is gone, Ray says no.)"""
        if code is not None and packed(*code).code.left_out:
            self.notes.append(f"not sent to other nodes, being too large or unreadable: {', '.join(code[0].left_out)}")

    def _start(self, address: str | None, num_cpus: float | None, num_gpus: float | None, without: str) -> None:
        """Start Ray, or join it.

        Raises:
            UserError: it does not start, or is not there.
        """
        if address is not None:
            address = joinable(address)
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
        if address is None:
            options |= {"include_dashboard": False, "num_cpus": num_cpus, "num_gpus": num_gpus}
        doing, session = "starting Ray" if address is None else "joining Ray", Session()
        with (
            phase(doing, doing if address is None else f"joining Ray at {address}"),
            _environment_of_children(session.variables),
            outside_of_runs(),
        ):
            try:
                if address is None:
                    session.watch()
                with _signals_wait():
                    started: Any = ray.init("local" if address is None else address, **options)
                if address is None:
                    session.begin(Path(started.address_info["session_dir"]))
                    self._session = session
                    ended = "Ray's {} was ended from outside, and nothing on Ray answers without it."
                    self._connect(ended.format("raylet"), ended.format("gcs_server"))
            except KeyboardInterrupt:
                ray.shutdown()
                raise
            except Exception as error:  # on a timeout Ray raises one without a message
                said = one_line(str(error) or type(error).__name__)
                if address is None:
                    raise UserError(
                        f"Ray did not start on this machine: {said} Is it overloaded, or short of memory or of "
                        f"space under /tmp? {without}"
                    ) from error
                raise UserError(f"The Ray cluster at {address!r} could not be joined: {said.rstrip('.')}.") from error
            finally:
                if self._session is None:
                    session.close()

    @property
    def is_shared(self) -> bool:
        """Whether others may take what is free: on a cluster that was joined, and not within a trial. A Ray that was started here is
        this run's alone: nothing has to be reserved there."""
        return self._session is None and self._group is None

    @property
    def place(self) -> str:
        """The name of what `resources` describes, as messages have it."""
        return "the cluster now" if self._group is None else "the trial's placement group"

    def resources(self) -> dict[str, float]:
        """All that the cluster has, or what the placement group reserves for roles: CPU, GPU, memory, object_store_memory, ..."""
        if self._group is None:
            return ray.cluster_resources()
        bundles = self._bundles()
        return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in set().union(*bundles)}

    def _bundles(self) -> list[dict[str, float]]:
        """Return the bundles that the placement group reserves for roles: all, less what this process takes of the first one."""
        assert self._group is not None
        own = ray.get_runtime_context().get_assigned_resources()
        first, *rest = self._group.bundle_specs
        return [{name: amount - own.get(name, 0.0) for name, amount in first.items()}, *rest]

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes, or the bundles of the placement group, with what is free there."""
        here = self._own_node()
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        hosts = Counter(node["NodeManagerAddress"] for node in alive.values())

        def node(id: str, total: Mapping[str, float], free: Mapping[str, float]) -> Node:
            about = alive.get(id, {})
            name: str = about.get("NodeManagerAddress", "a node")
            name = f"{name} ({id[:6]})" if hosts[name] > 1 else name  # several nodes on one host
            is_spot = about.get("Labels", {}).get(_MARKET) == "spot"
            return Node(id, name, total, free, has_driver=id == here, is_spot=is_spot)

        if self._group is not None:
            at: dict[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
            return tuple(node(at[i], bundle, bundle) for i, bundle in enumerate(self._bundles()))
        free = _free_by_node()
        return tuple(node(id, about["Resources"], free.get(id, {})) for id, about in alive.items())

    def reserve(self, places: Sequence[Place], wait_s: float = RESERVE_S) -> None:
        """Reserve CPUs and GPUs for all roles of a run at once, before any is built: all of them or none.

        Nothing is to be done in a trial, which has its own, and on a Ray of our own.

        Raises:
            ResourceError: there was no room within `wait_s` seconds.
        """
        if self.is_shared:
            self._reserved.make(places, wait_s)
        if self._session is None and not self._nodes:
            self._begin_watch()

    def nodes_of(self, places: Iterable[Place]) -> list[str]:
        """The nodes where places are reserved."""
        return [self._reserved.node_of(place) for place in places]

    def _begin_watch(self) -> None:
        """Watch the head, Ray on this machine, and the nodes where roles are."""
        self._look()
        threading.Thread(target=_looks, args=(weakref.ref(self), self._wake), daemon=True, name="watch").start()
        if self._is_client:
            self.notes.append("through ray:// a node that is lost is noticed when Ray says so, 15 to 30 s later")
            return
        self._connect(self._cluster_gone("Ray on this machine has ended"), self._cluster_gone("its head has ended"))
        if self._group is None:  # a trial's words would come to a log of Ray's
            raylet, _ = self._lines.values()
            if (process := start_guard("", *map(str, raylet.address))) is not None:
                self._end_guard = weakref.finalize(self, _end, process)

    def _cluster_gone(self, why: str) -> str:
        return f"The Ray cluster at {ray.get_runtime_context().gcs_address} is gone: {why}."

    def _connect(self, raylet_ended: str, head_ended: str) -> None:
        """Keep connections to Ray on this machine and to the head; what to say if they end."""
        here = next(node for node in ray.nodes() if node["NodeID"] == self._own_node())
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._lines = {raylet_ended: Line(*_door(here)), head_ended: Line(host.strip("[]"), int(port))}

    def spawn(self, factory: Callable[[], object], place: Place = OTHER) -> RayHandle:
        role = _actor_class(_role_name(factory))
        reserved = role.options(
            num_cpus=place.num_cpus, num_gpus=place.num_gpus, scheduling_strategy=self._where(place)
        )
        handle = RayHandle(reserved.remote([self.put(Carried(factory))], NICENESS.get(place.kind, 0)), place)
        self._handles.append(handle)
        return handle

    def _where(self, place: Place) -> NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy | str:
        """Ray's scheduling strategy for a role."""
        if seat := self._reserved.strategy(place):
            return seat
        if place.node and self._is_alive(place.node):
            # soft=False, since Ray would place an actor that reserves nothing anywhere
            return NodeAffinitySchedulingStrategy(place.node, soft=False)
        if self._group is not None:
            return PlacementGroupSchedulingStrategy(self._group)
        # Ray would also place it on a node whose loss it has not noticed yet
        cut_off = any(node["Alive"] and node["NodeID"] in self._lost for node in self._nodes)
        return NodeAffinitySchedulingStrategy(self._own_node(), soft=False) if cut_off else "SPREAD"

    def _own_node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def _is_alive(self, node: str) -> bool:
        self._check()  # without its server Ray would wait for a minute, and then end this process
        return node not in self._lost and any(n["NodeID"] == node and n["Alive"] for n in self._nodes or ray.nodes())

    def _look(self) -> None:
        """Ask Ray's head which nodes there are, and where what is reserved is; find lost nodes. Waits where the head is gone: for a thread."""
        began = time.monotonic()
        try:
            self._nodes = ray.nodes()
        except ConnectionError:
            if self._is_client:
                self._gone = _CLIENT_GONE
            raise
        self._reserved.look()
        used = {self._where_is(handle) for handle in list(self._handles)}
        for node in self._nodes:
            if node["NodeID"] in used - self._lost:
                self._lose_if_gone(node)
        self._heard = began

    # -- nodes that come and go ----------------------------------------------------------------------------------------

    def has_room(self, place: Place) -> bool:
        if self._gone:
            return False
        if self._reserved.holds(place):
            if not (node := self._reserved.node_of(place)):
                self._reserved.unpin(place)
            return bool(node) and self._is_alive(node)
        return place.kind != "server" or not place.node or self._is_alive(place.node)

    def lost_nodes(self, suspect: Handle | None = None) -> list[LostNode]:
        self._check()
        if not self._nodes:
            return []
        for handle in self._handles:  # of a role without a reservation the node becomes known here
            self.node_of(handle, 0.0)
        if isinstance(suspect, RayHandle):
            self._suspect(self._where_is(suspect))
        return [self._news.pop(0) for _ in range(len(self._news))]

    def is_lost(self, future: object) -> bool:
        if not self._lost or not isinstance(future, ray.ObjectRef) or self._is_client:
            return False
        found = get_local_object_locations([future]).get(future, {}).get("node_ids") or []
        return bool(found) and self._lost.issuperset(found)

    def _suspect(self, name: str) -> None:
        """Look at once whether a node is lost where a role has died: Ray's notice of the role may come first.

        A client cannot look at a node itself, and Ray takes a while to notice that it was killed. If another role dies there meanwhile,
        wait for what Ray says: what is built there until then dies too, and would count for max_restarts.
        """
        asked = time.monotonic()
        is_again = self._is_client and asked - self._suspected.get(name, -math.inf) < _WORD_S
        until = self._suspected[name] + _WORD_S if is_again else asked + _ANSWER_S
        if not is_again:
            self._suspected[name] = asked
        self._wake.set()
        while name not in self._lost and time.monotonic() < until and (is_again or self._heard < asked):
            time.sleep(0.01)

    def _lose_if_gone(self, node: Mapping[str, Any]) -> None:
        """Note that a node is lost, if it is, and end the calls of its roles, for which Ray would wait."""
        id, how = node["NodeID"], "Ray lists it as dead"
        if node["Alive"]:
            how = "its Ray has ended"
            if self._is_client or not self._raylets.setdefault(id, Line(*_door(node))).has_ended():
                return
        if not self._is_client and id == self._own_node():
            self._gone = self._cluster_gone("Ray on this machine has ended")
            return
        handles = [handle for handle in list(self._handles) if self._where_is(handle) == id]
        lost = LostNode(self._name(id), how, tuple(handle.place for handle in handles), tuple(handles))
        self._lost_with |= {_actor_id(handle): f"its node {lost.name} was lost" for handle in handles}
        self._news.append(lost)
        self._lost.add(id)
        for handle in handles:
            _kill(handle)

    def _name(self, id: str) -> str:
        """The name of a node in messages: its host, and the first letters of its id."""
        host = next((node["NodeManagerAddress"] for node in self._nodes if node["NodeID"] == id), "")
        return f"{host} ({id[:6]})".strip()

    def where(self, handle: Handle) -> str:
        """The node of a role, as messages call it; "" where there is one alone, or nobody knows."""
        several = sum(node["Alive"] for node in self._nodes) > 1
        node = self._where_is(handle) if several and isinstance(handle, RayHandle) else ""
        return self._name(node) if node else ""

    def _where_is(self, handle: RayHandle) -> str:
        return handle.node or self._reserved.node_of(handle.place)

    def node_of(self, handle: Handle, wait_s: float = 0.1) -> str:
        """The node's id, or "" if the actor is still being built after `wait_s` seconds and nothing is reserved for it."""
        if not isinstance(handle, RayHandle):
            return self._own_node()
        if not handle.node and ray.wait([handle.ready], timeout=0.0 if self._where_is(handle) else wait_s)[0]:
            with contextlib.suppress(Exception):  # what its factory raised is told to whoever calls it
                handle.node, handle.pid = self.get(handle.ready)
        return self._where_is(handle)

    def here(self, factory: Callable[[], object]) -> LocalHandle:
        """Build a role in the driver. Futures among the arguments of its calls are fetched before the call."""
        return LocalHandle(factory, lambda x: self._argument(x) if isinstance(x, ray.ObjectRef) else resolve(x))

    def _argument(self, ref: Any) -> object:
        """The value of an argument of a role in this process.

        Raises:
            ArgumentLost: it is gone with its process or its node.
        """
        while True:
            try:
                return self.get(ref, LOOK_S)
            except _NotYet:
                if self.is_lost(ref):
                    raise ArgumentLost("It was on a node that does not answer.") from None
            except WorkerLost as error:
                raise ArgumentLost(str(error)) from error

    def _check(self) -> None:
        """Look whether Ray is still there, before a call that would wait for it, or end this process.

        Raises:
            ClusterLost: it is not.
        """
        if self._is_client and not client.is_connected():
            self._gone = _CLIENT_GONE
        if time.monotonic() - self._heard > _SILENT_S and not self._is_client:
            try:
                check_answers(ray.get_runtime_context().gcs_address)
                self._heard = time.monotonic()  # it was this process that stood still
            except UserError:
                self._gone = self._cluster_gone("its head does not answer")
        self._gone = self._gone or next((said for said, line in self._lines.items() if line.has_ended()), "")
        if self._gone:
            raise ClusterLost(self._gone)

    def put(self, value: T | Future[T]) -> Future[T]:
        ref: Any = value.passed() if isinstance(value, LocalFuture) else value
        if not isinstance(ref, ray.ObjectRef):
            self._check()
            with self._breaking():
                ref = ray.put(resolve(ref))
        return ref

    def get(self, future: Future[T], timeout: float | None = None) -> T:
        if isinstance(future, LocalFuture):
            return future.result()
        assert isinstance(future, ray.ObjectRef)
        ref: ray.ObjectRef[T] = future
        try:
            for seconds in self._patiently(timeout):
                with contextlib.suppress(_NotYet), self._breaking():
                    return _fetched(ref, seconds)
        except WorkerLost as error:
            if self._session is not None:
                time.sleep(0.3)  # was it all of Ray, whose servers take longer to end? Then none could be replaced.
                self._check()
            raise self._with_node(error) from error.__cause__
        raise _NotYet

    def _with_node(self, error: WorkerLost) -> WorkerLost:
        """The error, or if the role was lost with its node, one that says so: Ray names what came of it, that the role was killed here."""
        actor = _actor_in(error.__cause__)
        for handle in list(self._handles):
            if not self._is_client and _actor_id(handle) == actor:
                self._suspect(self._where_is(handle))
        why = self._lost_with.get(actor, "")
        return type(error)(f"{why[0].upper()}{why[1:]}.", why) if why else error

    def wait(self, futures: Sequence[F], num: int = 1, timeout: float | None = None) -> tuple[list[F], list[F]]:
        refs: list[Any] = list(futures)
        ready: list[Any] = []
        others: list[Any] = refs
        for seconds in self._patiently(timeout):
            with self._breaking():
                ready, others = ray.wait(refs, num_returns=num, timeout=seconds)
            if len(ready) >= num:
                break
        return ready, others

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[None]:
        """For a call of Ray's, in the middle of which its servers may end.

        Raises:
            ClusterLost: they did.
            Exception: what the call raises otherwise.
        """
        try:
            yield
        except (OSError, ray.exceptions.RaySystemError) as error:  # a broken pipe
            if self._is_client and isinstance(error, ConnectionError):
                self._gone = _CLIENT_GONE
            self._check()
            raise

    def _patiently(self, timeout: float | None) -> Iterator[float]:
        """Portions of the time that a call may take (None: of any time). Before each it looks whether Ray is still there."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        seconds = min(LOOK_S, math.inf if timeout is None else timeout)
        while True:
            self._check()
            yield seconds
            if (seconds := min(LOOK_S, until - time.monotonic())) <= 0:
                return

    def kill(self, handle: Handle) -> None:
        if isinstance(handle, RayHandle) and not self._gone:
            _kill(handle)
            with contextlib.suppress(ValueError):
                self._handles.remove(handle)

    def end(self, handles: Sequence[Handle], *, interrupt: bool = False) -> None:
        there = [handle for handle in handles if isinstance(handle, RayHandle)]
        try:
            with contextlib.suppress(ClusterLost), _through_client():
                closing = {handle.actor.close.remote(): handle for handle in there}
                for wait_s in (0.0 if interrupt else BUSY_S, ENDING_S):
                    ready, _ = self.wait(list(closing), num=len(closing), timeout=wait_s)
                    closing = {future: handle for future, handle in closing.items() if future not in ready}
                    for handle in closing.values():
                        self._interrupt(handle)
        finally:
            for handle in there:
                self.kill(handle)

    def _interrupt(self, handle: RayHandle) -> None:
        """Interrupt what a role on this node is doing; one that closes goes on."""
        if self.node_of(handle, 0.0) == self._own_node() and handle.pid:
            with contextlib.suppress(OSError):
                os.kill(handle.pid, signal.SIGTERM)

    def shutdown(self) -> None:
        self._is_over = True
        if self._gone or (self._is_client and not client.is_connected()):  # every call of Ray's would wait for it
            leaving = threading.Thread(target=ray.shutdown, daemon=True)
            leaving.start()
            leaving.join(_ANSWER_S)
            return self._leave()
        self.end([handle for handle in self._handles if handle.place.kind in ("worker", "evaluator")])
        for handle in list(self._handles):
            self.kill(handle)
        self._reserved.close()
        if self._owns and ray.is_initialized():
            with phase("stopping Ray"):
                ray.shutdown()
        self._leave()

    def _leave(self) -> None:
        self._end_guard()
        if self._session is not None:
            self._session.close()


def _looks(backend: weakref.ref[RayBackend], wake: threading.Event) -> None:
    """Let a backend look after nodes until it is over, or was forgotten without having been closed."""
    while True:
        wake.wait(LOOK_S)
        wake.clear()
        if (it := backend()) is None or it._is_over:
            return
        with contextlib.suppress(Exception):  # there is no answer; `_check` sees how long
            it._look()
        del it


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _kill(handle: RayHandle) -> None:
    """End an actor. Once Ray was shut down by somebody else, there is none, and the call would start Ray anew."""
    if ray.is_initialized():
        with contextlib.suppress(Exception):
            ray.kill(handle.actor)


def _actor_id(handle: RayHandle) -> str:
    return str(handle.actor._actor_id.hex())


def _actor_in(error: BaseException | None) -> str:
    """The actor that was lost, of an error of Ray's; "" if it names none."""
    lost = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return (lost.actor_id or "") if isinstance(lost, ray.exceptions.RayActorError) else ""


def _door(node: Mapping[str, Any]) -> tuple[str, int]:
    """The address and port at which a node answers."""
    return node["NodeManagerAddress"], node["NodeManagerPort"]


def _free_by_node() -> dict[str, dict[str, float]]:
    """Return the free amounts of each node. A client of a cluster asks by a task there."""
    if client.is_connected():
        asked = ray.remote(num_cpus=0)(available_resources_per_node).remote()
        return _fetched(asked, 10.0)
    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals wait until Ray has started, since a half-started Ray crashes the process, or leaves processes behind.

    Ctrl-C is raised then; a second one does at once what it did before. SIGTERM and SIGHUP end Ray, do what they did before, and
    end the process. (Ray's processes, which inherit what is blocked, never see the end of the terminal.) Windows, which cannot block
    signals, lets only Ctrl-C wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 and callable(before):
            before(number, frame)

    can_block = hasattr(signal, "pthread_sigmask")
    ends = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if can_block and hasattr(signal, name)}
    heeded = {number for number in ends if signal.getsignal(number) is not signal.SIG_IGN}  # as under nohup
    unblocked = ends - signal.pthread_sigmask(signal.SIG_BLOCK, ends) if can_block else ends
    terminate = signal.getsignal(signal.SIGTERM)
    before = signal.signal(signal.SIGINT, on_signal)
    pending: set[signal.Signals] = set()
    try:
        yield
    finally:
        if unblocked and (pending := signal.sigpending() & unblocked & heeded):
            ray.shutdown()
        if terminate not in (None, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, terminate)  # Ray put one of its own in its place
        if unblocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if pending:
        raise SystemExit(128 + min(pending))
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _environment_of_children(more: Mapping[str, str]) -> Iterator[None]:
    """Start Ray's processes with one BLAS thread, in sessions of their own, and let them find the modules that this process finds."""
    global _starting
    own = [path for path in sys.path if path and not path.startswith((sys.prefix, sys.base_prefix))]
    settings = {**dict.fromkeys(_THREAD_VARIABLES, "1"), "PYTHONPATH": os.pathsep.join(own), **more}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    _starting = True
    try:
        yield
    finally:
        _starting = False
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _fetched(ref: ray.ObjectRef[T], timeout: float | None) -> T:
    """The value of a reference; `Backend.get` lists the errors."""
    try:
        return ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError as error:
        raise _NotYet(str(error)) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, _LOST):
            raise ArgumentLost(str(error.cause)) from error
        cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
        raise _with_traceback(cause, re.sub(r"\x1b\[\d+m", "", str(error))) from error
    except _LOST as error:
        if isinstance(error, ray.exceptions.ActorDiedError):
            _raise_creation_error(error)
        # Ray's memory monitor kills what takes most
        kind = OutOfMemory if isinstance(error, ray.exceptions.OutOfMemoryError) else WorkerLost
        raise kind(str(error), _how_it_ended(str(error))) from error


def _how_it_ended(said: str) -> str:
    """Sum up in a few words how a process ended, according to Ray; "" if it does not say."""
    if code := re.search(r"exit code (-?\d+)", said):
        return f"its process ended with exit code {code[1]}"
    return "its process was killed, or crashed" if "unexpectedly exits" in said else ""


def _raise_creation_error(error: Exception) -> None:
    """Raise the reason why an actor could not start, such as a missing module. Ray keeps it as text only."""
    text = str(error)
    if "creation task" not in text and "__init__" not in text:
        return
    found = re.search(r"\bip=([^,)\s]+)", text)
    node = f"the node {found[1]}" if found else "a node"
    last = [line.strip() for line in text.splitlines() if line.strip()][-1]
    why: Exception = RuntimeError(f"A worker could not start on {node}: {last}")
    if re.search(r"(No module named|from) 'raypid['.]", text):
        why = UserError(
            f"{node[0].upper()}{node[1:]} has no raypid, or another one than this run, {raypid_here()}: install the same there, and "
            "start its Ray again."
        )
    raise _with_traceback(why, text) from error


def _with_traceback(error: Exception, text: str) -> Exception:
    """The error, with the worker's traceback as `worker_traceback`."""
    error.worker_traceback = text  # type: ignore[attr-defined]
    return error
