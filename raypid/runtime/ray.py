"""Roles as Ray actors. Only this module imports Ray."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from raypid.errors import UserError
from raypid.ownership import outside_of_runs
from raypid.phases import phase
from raypid.runtime.handle import A, ArgumentLost, B, F, Future, Handle, OutOfMemory, T, WorkerLost
from raypid.runtime.local import LocalFuture, LocalHandle, resolve
from raypid.runtime.resources import Capacity, limit_threads

# Ray reads these when it is imported and when its processes start. A user's own settings win.
for _name, _value in {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # the supervisor reports a dead role, once
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_SCHEDULER_EVENTS": "0",
    # the supervisor reports the first in one line; the second says nothing if actors take fractions of a CPU
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed while executing|PYTHON worker processes have been started",
}.items():
    os.environ.setdefault(_name, _value)
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)  # in a notebook it advertises widgets

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray
    import ray.exceptions
    from ray.util.placement_group import PlacementGroup, get_current_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

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

_TASK_EVENTS = "RAY_task_events_report_interval_ms"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.OutOfMemoryError,
)


class _Role(LocalHandle):
    """The actor of a role: builds it from its factory and passes calls on. Each call raises what the factory raised: of an actor
    that fails to start, Ray would give the text and not the type."""

    def __init__(self, factory: Callable[[], object]) -> None:
        limit_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        warnings.simplefilter("ignore", UserWarning)
        with contextlib.suppress(
            ValueError
        ):  # Ctrl-C is the driver's business; a KeyboardInterrupt here is the environment's own
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        # arrays stay in Ray's store, so that the roles of a node share them
        super().__init__(factory, lambda x: ray.get(x) if isinstance(x, ray.ObjectRef) else x)

    def built(self) -> None:
        self.ready.result()

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def call(self, method: str, *args: object) -> object:
        self.built()
        return getattr(self.role, method)(*args)


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

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.ready: Future[None] = actor.built.remote()
        self.node: str | None = None
        """Where the role is, once the actor has answered."""
        self.node_future: ray.ObjectRef[str] | None = None

    def submit(self, method: Callable[..., T], *args: object) -> Future[T]:
        return self.actor.call.remote(method.__name__, *args)

    def submit_parts(self, method: Callable[..., tuple[A, B]], *args: object) -> tuple[Future[A], Future[B]]:
        a, b = self.actor.call.options(num_returns=2).remote(method.__name__, *args)
        return a, b


class RayBackend:
    """Uses the cluster at `address`, or the Ray that this process runs already, or starts Ray here.

    In an actor that has a placement group, as a trial of Ray Tune has, roles take what is reserved there and nothing else.

    `shutdown` stops Ray if it was started here. Where it does not start, `without` says what works without it. The folder `code` is
    sent to every node of a cluster that is joined, where roles find its modules.
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        code: Path | None = None,
        without: str = "num_workers=0 (--num-workers 0) trains without Ray.",
    ) -> None:
        self._handles: list[RayHandle] = []
        self._owns = not ray.is_initialized()
        self._group: PlacementGroup | None = None if self._owns else get_current_placement_group()
        if not self._owns:
            return
        if address is not None:
            _check_reachable(address)
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
        if address is None:
            options |= {"include_dashboard": False, "num_cpus": num_cpus, "num_gpus": num_gpus}
        elif code is not None:
            options["runtime_env"] = {
                "working_dir": str(code),
                "excludes": ["runs/", ".git/", ".venv/", "__pycache__/"],
            }
        doing = "starting Ray" if address is None else "joining Ray"
        with (
            phase(doing, doing if address is None else f"joining Ray at {address}"),
            _environment_of_children(alone=address is None),
            outside_of_runs(),
        ):
            try:
                with _signals_wait():
                    ray.init("local" if address is None else address, **options)
            except KeyboardInterrupt:
                ray.shutdown()
                raise
            except Exception as error:  # on a timeout Ray raises one without a message
                said = (str(error) or type(error).__name__).splitlines()[0]
                if address is None:
                    raise UserError(
                        f"Ray did not start on this machine: {said} Is it overloaded, or short of memory or of "
                        f"space under /tmp? {without}"
                    ) from error
                raise UserError(
                    f"No Ray cluster could be joined at {address!r}: {said.rstrip('.')}. If the cluster asks for a token, set "
                    "RAY_AUTH_MODE=token here too."
                ) from error

    @property
    def place(self) -> str:
        """What `available` is a part of, in words."""
        return "the cluster (free now)" if self._group is None else "the trial's placement group"

    def resources(self) -> dict[str, float]:
        """All that the cluster has, or what the placement group reserves for roles: CPU, GPU, memory, object_store_memory, ..."""
        return ray.cluster_resources() if self._group is None else _sum_of(self._bundles())

    def available(self) -> dict[str, float]:
        """The part of `resources` that is free."""
        return ray.available_resources() if self._group is None else self.resources()

    def _bundles(self) -> list[dict[str, float]]:
        """What the placement group reserves for roles: all but what this process takes of the first bundle."""
        assert self._group is not None
        own = ray.get_runtime_context().get_assigned_resources()
        first, *rest = self._group.bundle_specs
        return [{name: amount - own.get(name, 0.0) for name, amount in first.items()}, *rest]

    def nodes(self) -> tuple[Capacity, ...]:
        """What each living node declares, or each bundle of the placement group."""
        if self._group is not None:
            return tuple(Capacity(b.get("CPU", 0.0), b.get("memory", math.inf)) for b in self._bundles())
        declared = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return tuple(Capacity(r.get("CPU", 0.0), r.get("memory", math.inf)) for r in declared)

    def spawn(
        self, factory: Callable[[], object], *, num_cpus: float = 0, num_gpus: float = 0, node: str | None = None
    ) -> RayHandle:
        where: NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy | str = "SPREAD"
        if self._group is not None:
            where = PlacementGroupSchedulingStrategy(self._group)
        if node and any(n["NodeID"] == node and n["Alive"] for n in ray.nodes()):
            # soft=False, since Ray would place an actor that reserves nothing anywhere
            where = NodeAffinitySchedulingStrategy(node, soft=False)
        role = _actor_class(_role_name(factory))
        reserved = role.options(num_cpus=num_cpus, num_gpus=num_gpus, scheduling_strategy=where)
        handle = RayHandle(reserved.remote(factory))
        self._handles.append(handle)
        return handle

    def node_of(self, handle: Handle, wait_s: float = 0.1) -> str:
        """The node's id, or "" if the actor is busy or still being built after `wait_s` seconds."""
        if not isinstance(handle, RayHandle):
            return str(ray.get_runtime_context().get_node_id())
        asked = handle.node_future = handle.node_future or handle.actor.node.remote()
        if handle.node is None and ray.wait([asked], timeout=wait_s)[0]:
            with contextlib.suppress(ray.exceptions.RayError):
                handle.node = ray.get(asked)
        return handle.node or ""

    def here(self, factory: Callable[[], object]) -> LocalHandle:
        """Build a role in the driver. Futures among the arguments of its calls are fetched before the call."""
        return LocalHandle(factory, lambda x: _fetched(x, None) if isinstance(x, ray.ObjectRef) else resolve(x))

    def put(self, value: T | Future[T]) -> Future[T]:
        ref: Any = value
        if not isinstance(value, ray.ObjectRef):
            ref = ray.put(resolve(value))
        return ref

    def get(self, future: Future[T], timeout: float | None = None) -> T:
        if isinstance(future, LocalFuture):
            return future.result()
        assert isinstance(future, ray.ObjectRef)
        return _fetched(future, timeout)

    def wait(self, futures: Sequence[F], num: int = 1, timeout: float | None = None) -> tuple[list[F], list[F]]:
        refs: list[Any] = list(futures)
        answer: tuple[list[Any], list[Any]] = ray.wait(refs, num_returns=num, timeout=timeout)
        return answer

    def kill(self, handle: Handle) -> None:
        if isinstance(handle, RayHandle):
            with contextlib.suppress(Exception):
                ray.kill(handle.actor)
            if handle in self._handles:
                self._handles.remove(handle)

    def shutdown(self) -> None:
        for handle in list(self._handles):
            self.kill(handle)
        if self._owns and ray.is_initialized():
            with phase("stopping Ray"):
                ray.shutdown()


def _sum_of(bundles: Sequence[dict[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for bundle in bundles:
        total.update(bundle)
    return dict(total)


def _check_reachable(address: str, timeout_s: float = 5.0) -> None:
    """Try to connect to "host:port", since Ray itself would try for two minutes. Names such as "auto" are left to Ray.

    Raises:
        UserError: there is no answer.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"There is no Ray cluster at {address!r}: {error}. `ray status` on its head node shows whether it runs."
        ) from error


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals wait until Ray has started, since a half-started Ray crashes the process, or leaves processes behind.

    Ctrl-C is raised then; a second one does at once what it did before. SIGTERM and SIGHUP end Ray, do what they did before, and
    end the process. (Ray's processes, which inherit what is blocked, never see the end of the terminal.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 and callable(before):
            before(number, frame)

    ends = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
    heeded = {number for number in ends if signal.getsignal(number) is not signal.SIG_IGN}  # as under nohup
    unblocked = ends - signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    terminate = signal.getsignal(signal.SIGTERM)
    before = signal.signal(signal.SIGINT, on_signal)
    pending: set[signal.Signals] = set()
    try:
        yield
    finally:
        if pending := signal.sigpending() & unblocked & heeded:
            ray.shutdown()
        if terminate not in (None, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, terminate)  # Ray put one of its own in its place
        signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if pending:
        raise SystemExit(128 + min(pending))
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _environment_of_children(*, alone: bool) -> Iterator[None]:
    """Start Ray's processes with one BLAS thread, in sessions of their own, and let them find the modules that this process finds.

    A Ray that is ours `alone` has no dashboard, so nobody reads its events of tasks. Without them a call takes a tenth less of driver
    and worker, and Ray's server does not keep the newest 100,000.
    """
    global _starting
    own = [path for path in sys.path if path and not path.startswith((sys.prefix, sys.base_prefix))]
    settings = {**dict.fromkeys(_THREAD_VARIABLES, "1"), "PYTHONPATH": os.pathsep.join(own)}
    if alone:
        settings[_TASK_EVENTS] = os.environ.get(_TASK_EVENTS, "0")
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
        raise TimeoutError(str(error)) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, _LOST):
            raise ArgumentLost(str(error.cause)) from error
        cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
        raise _with_traceback(cause, re.sub(r"\x1b\[\d+m", "", str(error))) from error
    except ray.exceptions.ActorDiedError as error:
        _raise_creation_error(error)
        raise WorkerLost(str(error)) from error
    except ray.exceptions.OutOfMemoryError as error:  # Ray's memory monitor killed it
        raise OutOfMemory(str(error)) from error
    except _LOST as error:
        raise WorkerLost(str(error)) from error


def _raise_creation_error(error: Exception) -> None:
    """Raise the reason why an actor could not start, such as a missing module. Ray keeps it as text only."""
    text = str(error)
    if "creation task" not in text and "__init__" not in text:
        return
    lines = [line for line in text.splitlines() if line.strip()]
    raise _with_traceback(RuntimeError(f"A worker could not start: {lines[-1].strip()}"), text) from error


def _with_traceback(error: Exception, text: str) -> Exception:
    """The error, with the worker's traceback as `worker_traceback`."""
    error.worker_traceback = text  # type: ignore[attr-defined]
    return error
