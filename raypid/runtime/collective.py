"""All-reduce among the learners of one run, over torch.distributed: gloo on CPUs, NCCL where each has a GPU of its own.

Rank 0 opens a store on a free port of its host, and the others find it by the address. If a member dies or hangs, all others
raise an error instead of waiting forever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from raypid.runtime.handle import WorkerLost

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

T = TypeVar("T")

NOTICE_S = 1.0
"""Seconds in which a member closes its connections after a failure, by which the others notice it."""

REACH_S = 10.0
"""Seconds until a connection to rank 0, whose store is open already, has to stand."""


class CollectiveLost(WorkerLost):
    """Another member of a collective died or did not answer in time."""


class TorchCollective:
    """One member of a collective (`raypid.types.Collective`). It is plain data until `join`, so it can be sent to its process.

    Args:
        rank: this member, from 0.
        size: the number of members.
        timeout_s: the longest wait for the others in one call, in seconds. It must be longer than the slowest member can be
            behind the fastest. A process that has died is noticed at once.
        nccl: sum tensors on GPUs with NCCL, which needs a GPU for each member. Otherwise gloo sums them, through the host.
    """

    def __init__(self, rank: int, size: int, *, timeout_s: float, nccl: bool = False) -> None:
        assert 0 <= rank < size
        self.rank, self.size, self.timeout_s, self.nccl = rank, size, timeout_s, nccl
        self._store: TCPStore | None = None
        self._lost: CollectiveLost | None = None

    # -- meeting -------------------------------------------------------------------------------------------------

    def open(self) -> str:
        """Open the store (rank 0 only); returns its address, "host:port"."""
        import torch.distributed as dist

        assert self.rank == 0
        host = _own_ip()
        timeout = timedelta(seconds=self.timeout_s)
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)  # type: ignore[attr-defined]
        return f"{host}:{self._store.port}"

    def join(self, address: str) -> None:
        """Meet the others at the address of the store; returns once all are there.

        Raises:
            CollectiveLost: not all were there in time.
        """
        import torch.distributed as dist

        host, _, port = address.rpartition(":")
        timeout = timedelta(seconds=self.timeout_s)
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # otherwise a timeout ends the process without a message
        _use_interface(_own_ip(host))
        try:
            if self._store is None:
                _try_to_reach(host, int(port))
                self._store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if self.nccl else "gloo"
            dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.size, timeout=timeout)
        except (RuntimeError, OSError) as error:
            raise self._failed(f"meeting at {address}", error) from error
        self.gather(None)

    def leave(self) -> None:
        """Give up the connections to the others, of whom some may be gone. Then all can meet anew, at another address."""
        _close()
        self._store = self._lost = None

    # -- talking ---------------------------------------------------------------------------------------------------

    def sum(self, x: T) -> T:
        """Sum an array or tensor over the members, in place, and return it. Shape and dtype are the same in each.

        Raises:
            CollectiveLost: another member died, or did not make the call within timeout_s.
        """
        import torch
        import torch.distributed as dist

        assert not isinstance(x, np.ndarray) or x.flags.writeable, "arrays from Ray's object store are shared"
        tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        with self._together("a sum"):
            dist.all_reduce(tensor)
        return x

    def gather(self, value: T) -> list[T]:
        """Return every member's value, in rank order. Values are pickled.

        Raises:
            CollectiveLost: another member died, or did not make the call within timeout_s.
        """
        import torch.distributed as dist

        values = [value] * self.size
        with self._together("a gather"):
            dist.all_gather_object(values, value)
        return values

    # -- failing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Turn an error of torch's within `what` into CollectiveLost; every later call raises that, too."""
        if self._lost is not None:
            raise CollectiveLost(str(self._lost))
        assert self._store is not None, "join() comes first"
        try:
            yield
        except RuntimeError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Exception) -> CollectiveLost:
        """Close the connections, so that members that wait for this one fail now: in a thread, since that may hang."""
        closing = threading.Thread(target=_close, daemon=True)
        closing.start()
        closing.join(NOTICE_S)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        waited = REACH_S if isinstance(error, OSError) else self.timeout_s
        self._lost = CollectiveLost(
            f"Another of {self.size} learners died or did not answer within {waited:g} s: learner {self.rank} "
            f"waited in {what} ({reason})"
        )
        return self._lost


def _close() -> None:
    import torch.distributed as dist

    with contextlib.suppress(Exception):  # they are closed already, or never were open
        dist.destroy_process_group()


def _own_ip(peer: str = "192.0.2.1") -> str:
    """This host's address on the route to `peer`, by default to any other host. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"  # there is no network


def _try_to_reach(host: str, port: int) -> None:
    """Connect once, since torch would try for as long as the slowest call may take.

    Raises:
        OSError: there is no answer, with what may be the reason.
    """
    try:
        socket.create_connection((host, port), REACH_S).close()
    except TimeoutError:
        raise OSError("a firewall? several learners talk over ports that the system chooses: docs/cluster.md") from None


def _use_interface(ip: str) -> None:
    """Make gloo and NCCL use the interface with this address. By the host's name they might find the loopback."""
    if not sys.platform.startswith("linux"):
        return
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                packed = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name[:15].encode()))  # SIOCGIFADDR
                if socket.inet_ntoa(packed[20:24]) == ip:
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                    os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
                    return
