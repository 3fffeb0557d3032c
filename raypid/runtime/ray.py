"""Roles as Ray actors. The only module of the training path that imports Ray."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from raypid.errors import UserError
from raypid.runtime.handle import ArgumentLost, WorkerLost, name_of
from raypid.runtime.local import LocalFuture, LocalHandle

# Read by Ray when it is imported and when its processes start; a user's own settings win.
for _name, _value in {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # what a dead role leaves behind is told once, by the supervisor
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_SCHEDULER_EVENTS": "0",
    # the supervisor says the first, in one line; the second means nothing where actors take fractions of a CPU
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed while executing|PYTHON worker processes have been started",
}.items():
    os.environ.setdefault(_name, _value)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray
    import ray.exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_LOST = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.WorkerCrashedError)


class _Role:
    """The actor: builds the role from its factory and passes calls on. What the factory raised, each call raises."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        from raypid.runtime.resources import limit_threads

        limit_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        warnings.simplefilter("ignore", UserWarning)
        self.error: Exception | None = None
        try:
            self.role = _resolved(factory)()
        except Exception as error:  # kept: of an actor that fails to start Ray tells the text, not the type
            self.error = error

    def ready(self) -> None:
        if self.error is not None:
            raise self.error

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def call(self, method: str, *args: Any) -> Any:
        self.ready()
        return getattr(self.role, method)(*args)


@functools.cache
def _actor_class(role: str) -> Any:
    """An actor class for each kind of role: Ray calls the processes after it ("ray::Rollout"), and makes each known to its cluster once."""
    return ray.remote(max_restarts=0)(type(role, (_Role,), {}))


def _role_name(factory: Callable[[], Any]) -> str:
    while isinstance(factory, partial):
        factory = factory.func
    return getattr(factory, "__name__", "Role")


def _resolved(factory: Callable[[], Any]) -> Callable[[], Any]:
    """A factory with the values of the futures among its arguments; arrays stay in the store, and the roles of a node share them."""
    if not isinstance(factory, partial):
        return factory
    given = [ray.get(a) if isinstance(a, ray.ObjectRef) else a for a in factory.args]
    return partial(factory.func, *given, **factory.keywords)


class RayHandle:
    """A role in an actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.ready = actor.ready.remote()
        self.node: str | None = None
        """Where it is, once that was asked and answered."""
        self.node_future: Any = None

    def submit(self, method: str | Callable[..., Any], *args: Any, num_returns: int = 1) -> Any:
        return self.actor.call.options(num_returns=num_returns).remote(name_of(method), *args)


class RayBackend:
    """Joins the cluster at `address`, an already running Ray of this process, or starts Ray here; `shutdown` stops what it started."""

    name = "ray"

    def __init__(
        self, address: str | None = None, num_cpus: float | None = None, num_gpus: float | None = None
    ) -> None:
        self._handles: list[RayHandle] = []
        if address is not None:
            _check_reachable(address)
        self._owns = not ray.is_initialized()
        if not self._owns:
            return
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": True}
        if address is None:
            options |= {"include_dashboard": False, "num_cpus": num_cpus, "num_gpus": num_gpus, "address": "local"}
        else:
            options["address"] = address
        with _environment_of_children():
            try:
                with _ctrl_c_waits():
                    ray.init(**options)
            except KeyboardInterrupt:
                ray.shutdown()
                raise
            except Exception as error:  # that it timed out Ray says with a bare one
                said = (str(error) or type(error).__name__).splitlines()[0]
                if address is None:
                    raise UserError(
                        f"Ray did not start on this machine: {said} Is it overloaded, or short of memory or of "
                        "space under /tmp? num_workers=0 (--num-workers 0) trains without Ray."
                    ) from error
                raise UserError(
                    f"No Ray cluster could be joined at {address!r}: {said}. "
                    "(One that asks for a token needs RAY_AUTH_MODE=token here too.)"
                ) from error

    def resources(self) -> dict[str, float]:
        """What the cluster has in all: CPU, GPU, memory, object_store_memory, ..."""
        return ray.cluster_resources()

    def available(self) -> dict[str, float]:
        """What nobody has taken."""
        return ray.available_resources()

    def spawn(
        self, factory: Callable[[], Any], *, num_cpus: float = 0, num_gpus: float = 0, node: str | None = None
    ) -> RayHandle:
        alive = bool(node) and any(n["NodeID"] == node and n["Alive"] for n in ray.nodes())
        # not soft: of an actor that reserves nothing, Ray takes that as leave to place it anywhere
        where: Any = NodeAffinitySchedulingStrategy(str(node), soft=False) if alive else "SPREAD"
        actor_class = _actor_class(_role_name(factory)).options(
            num_cpus=num_cpus, num_gpus=num_gpus, scheduling_strategy=where
        )
        handle = RayHandle(actor_class.remote(factory))
        self._handles.append(handle)
        return handle

    def node_of(self, handle: Any, wait_s: float = 0.1) -> str:
        """The node's id; an actor that is busy, or still being built, is not waited for longer than `wait_s`."""
        if not isinstance(handle, RayHandle):
            return str(ray.get_runtime_context().get_node_id())
        if handle.node is None and handle.node_future is None:
            handle.node_future = handle.actor.node.remote()
        if handle.node is None and ray.wait([handle.node_future], timeout=wait_s)[0]:
            with contextlib.suppress(ray.exceptions.RayError):
                handle.node = ray.get(handle.node_future)
        return handle.node or ""

    def here(self, factory: Callable[[], Any]) -> LocalHandle:
        """A role in the driver; the futures that it is given are fetched when it is called."""

        def resolve(x: Any) -> Any:
            if isinstance(x, ray.ObjectRef):
                return self.get(x)
            return x.result() if isinstance(x, LocalFuture) else x

        return LocalHandle(factory, resolve)

    def put(self, value: Any) -> Any:
        if isinstance(value, ray.ObjectRef):
            return value
        return ray.put(value.result() if isinstance(value, LocalFuture) else value)

    def get(self, future: Any, timeout: float | None = None) -> Any:
        if isinstance(future, LocalFuture):
            return future.result()
        try:
            return ray.get(future, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(str(error)) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, _LOST):
                raise ArgumentLost(str(error.cause)) from error
            raise _cause(error) from error
        except ray.exceptions.ActorDiedError as error:
            _raise_creation_error(error)
            raise WorkerLost(str(error)) from error
        except _LOST as error:
            raise WorkerLost(str(error)) from error

    def wait(self, futures: Sequence[Any], num: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        return ray.wait(list(futures), num_returns=num, timeout=timeout)

    def kill(self, handle: Any) -> None:
        if isinstance(handle, RayHandle):
            with contextlib.suppress(Exception):
                ray.kill(handle.actor)
            if handle in self._handles:
                self._handles.remove(handle)

    def shutdown(self) -> None:
        for handle in list(self._handles):
            self.kill(handle)
        if self._owns and ray.is_initialized():
            ray.shutdown()


def _check_reachable(address: str, timeout_s: float = 5.0) -> None:
    """Knock at "host:port": Ray itself tries for two minutes. Names such as "auto" are left to Ray.

    Raises:
        UserError: nobody answers.
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
def _ctrl_c_waits() -> Iterator[None]:
    """Half of a Ray crashes the process at its exit, so Ctrl-C is raised once Ray is there; a second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def on_signal(number: int, frame: Any) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _environment_of_children() -> Iterator[None]:
    """Ray's processes start with one BLAS thread, and find the modules that this process finds."""
    own = [path for path in sys.path if path and not path.startswith((sys.prefix, sys.base_prefix))]
    settings = {**dict.fromkeys(_THREAD_VARIABLES, "1"), "PYTHONPATH": os.pathsep.join(own)}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _cause(error: ray.exceptions.RayTaskError) -> Exception:
    """The exception that the role raised, with the worker's traceback attached as a note."""
    cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
    cause.worker_traceback = re.sub(r"\x1b\[\d+m", "", str(error))  # type: ignore[attr-defined]
    return cause


def _raise_creation_error(error: Exception) -> None:
    """An actor that could not even be told what to build (a module missing there): Ray keeps the reason as text only."""
    text = str(error)
    if "creation task" not in text and "__init__" not in text:
        return
    lines = [line for line in text.splitlines() if line.strip()]
    failed = RuntimeError(f"A worker could not start: {lines[-1].strip()}")
    failed.worker_traceback = text  # type: ignore[attr-defined]
    raise failed from error
