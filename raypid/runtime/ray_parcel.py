"""The user's code along with what is sent to Ray's actors. What this imports of Ray is imported after `raypid.runtime.ray` has set it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import ray
import ray.exceptions

from raypid.errors import HEAD, UserError
from raypid.runtime.code import Code, check_raypid, enter, pack, unpack
from raypid.runtime.handle import T


@dataclass(frozen=True)
class Parcel:
    """The user's code, as all nodes of a cluster can have it."""

    code: Code
    data: ray.ObjectRef[np.ndarray]
    session: str
    """The connection to a cluster that holds the data."""
    is_own: bool = False
    """Whether this process has packed it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.code, self.data, self.session)


_parcel: Parcel | None = None
"""The code that this process sends with its roles: its own, or the code that came with itself."""


def _opened(code: Code, data: ray.ObjectRef[np.ndarray], session: str) -> Parcel:
    """Make the code importable in this process, unless it is the one that packed it: what is read next may need it.

    Raises:
        UserError: raypid is another one here.
    """
    global _parcel
    if _parcel is None or not (_parcel.is_own or _parcel.code.digest == code.digest):
        check_raypid(code.raypid, node_here())
        unpack(code, lambda: bytes(ray.get(data)))
        _parcel = Parcel(code, data, session)
    return _parcel


def packed(code: Code, data: bytes) -> Parcel:
    """Put what this process has packed where all nodes can have it."""
    global _parcel
    _parcel = Parcel(code, ray.put(np.frombuffer(data, np.uint8)), _session(), is_own=True)
    return _parcel


def parcel_now() -> Parcel | None:
    """The parcel that travels with roles from this process: the one that came with itself, or its own code if there are other nodes."""
    if _parcel is not None and not _parcel.is_own:
        return _parcel
    if not sends_code():
        return None
    return _parcel if _parcel is not None and _parcel.session == _session() else packed(*pack())


def sends_code() -> bool:
    """Whether this is a driver whose roles may come to another machine. They do not where it has started its own Ray."""
    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is not None:
        return False
    node: Any = getattr(ray._private.worker, "_global_node", None)
    return node is None or not node.is_head()


def _session() -> str:
    return str(ray.get_runtime_context().get_worker_id())


class Carried(Generic[T]):
    """A value that may name the user's code, on its way to another process, which gets the code first."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (parcel_now(), self.value)


def _arrived(parcel: object, value: T) -> Carried[T]:
    return Carried(value)


def received(ref: ray.ObjectRef[Carried[T]]) -> T:
    """Return the value that another process has sent.

    Raises:
        Exception: why it cannot be read here.
    """
    try:
        value = ray.get(ref).value
    except ray.exceptions.RaySystemError as error:
        raise (error.client_exc if isinstance(error.client_exc, Exception) else error) from None
    enter_folder()
    return value


def enter_folder() -> None:
    """Go to the folder of the user's code that was the current one where it came from, if code has come."""
    if _parcel is not None:
        enter(_parcel.code)


def node_here() -> str:
    """The node of this process, as messages call each: its address, and the first letters of its id."""
    return f"Node {ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:6]})"


def on_this_node(error: Exception) -> Exception:
    """The error that a role met when it was built, with the node's name if that may be the cause."""
    if isinstance(error, ModuleNotFoundError) and not isinstance(error, UserError):
        return UserError(
            f"{node_here()} has no module {error.name!r}: install it there as here. (Modules beside your script or in the current "
            "folder travel by themselves.)"
        )
    if isinstance(error, UserError) and error.args and node_here() not in (said := str(error)):
        node = node_here()
        where = f"{said} ({node})" if said.startswith(HEAD) else f"On {node[0].lower()}{node[1:]}: {said}"
        error.args = (where, *error.args[1:])
    return error
