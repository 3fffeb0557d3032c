"""Which nodes of a cluster answer, found out by knocking at their doors, and what is said of one that does not.

Ray itself notices a killed node after 15 to 30 seconds, and one that is cut off when its settings say so. Until then it lets calls
wait that nobody will answer. A node's raylet is a gRPC server, and whoever connects to such a server is greeted at once (RFC 9113,
section 3.4). So a node is lost if it refuses a connection twice, or has greeted nobody for SILENT_S seconds. That a connection is
accepted says nothing: the kernel accepts it for a process that is stopped. Nor does a greeting say whose it is: a node that is started
again may have the address and port of the one before, so whoever is told of an answer has to ask Ray.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal

from raypid.runtime.handle import KIND_NAMES, Place
from raypid.settings.address import GREETING

NodeState = Literal["answers", "refuses", "quiet", "silent"]
"""A node that is quiet has not answered for QUIET_S seconds; it is not lost yet."""

KNOCK_S = 1.0
"""Seconds between two knocks, and how long one waits for an answer."""
SILENT_S = 45.0
"""Seconds without an answer after which a node is lost. Ray's own patience is 15 to 30 s; a machine that swaps may need as long."""
QUIET_S = 10.0
"""Seconds without an answer after which the user is told."""
_REFUSALS = 2
"""Knocks in a row that are refused: then no process is there. One may be an accident."""


def knock(host: str, port: int, timeout_s: float = KNOCK_S) -> NodeState:
    """Connect to a gRPC server and wait for its greeting; with RAY_USE_TLS only for its part of the handshake."""
    try:
        with socket.create_connection((host, port), timeout_s) as door:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return _handshake(door)
            door.sendall(GREETING)
            return "answers" if door.recv(64) else "refuses"
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return "refuses"
    except OSError:
        return "silent"


def _handshake(door: socket.socket) -> NodeState:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is told, nothing is believed
    with contextlib.suppress(ssl.SSLError):  # it wants a certificate of ours
        context.wrap_socket(door).close()
    return "answers"


class Line:
    """A connection to a gRPC server that is kept open, and so tells within microseconds whether its process has ended."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port
        self._open()

    def _open(self) -> None:
        self._line = socket.create_connection(self.address, KNOCK_S)
        self._line.setblocking(False)

    def has_ended(self) -> bool:
        try:
            if self._line.recv(4096):  # its greeting
                return False
        except BlockingIOError:
            return False
        except OSError:
            pass
        if knock(*self.address) == "refuses":
            return True
        with contextlib.suppress(OSError):  # as long as it does not answer, there is none
            self._open()  # it had enough of a client that says nothing
        return False


class Watch:
    """Knocks at doors once a second, each in a thread of its own, and calls `changed` where one stops or starts to answer. One more
    thread calls `look` once a second, which may wait."""

    def __init__(self, changed: Callable[[str, NodeState], None], look: Callable[[], None] = lambda: None) -> None:
        self.look = look
        self.changed = changed
        """Called from a thread, with a name and "quiet", "silent", "refuses", or "answers" if it answers again."""
        self._doors: set[str] = set()
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="watch").start()

    def _look(self) -> None:
        while not self._over.wait(KNOCK_S):
            with contextlib.suppress(Exception):  # there is no answer; the door of the head tells
                self.look()

    def add(self, name: str, host: str, port: int) -> None:
        """Watch this door from now on."""
        if name not in self._doors and not self._over.is_set():
            self._doors.add(name)
            door = (name, host, port)
            threading.Thread(target=self._knock, args=door, daemon=True, name=f"watch {host}:{port}").start()

    def drop(self, name: str) -> None:
        """Watch this door no longer; its thread ends with its next knock."""
        self._doors.discard(name)

    def close(self) -> None:
        """End all threads, without waiting for them."""
        self._over.set()

    def _knock(self, name: str, host: str, port: int) -> None:
        known: NodeState = "answers"
        answered, refused = time.monotonic(), 0
        while not self._over.wait(KNOCK_S) and name in self._doors:
            state = knock(host, port)
            now = time.monotonic()
            refused = refused + 1 if state == "refuses" else 0
            if state == "answers":
                answered = now
            elif now - answered >= SILENT_S:
                state = "silent"
            elif now - answered >= QUIET_S and not refused and known != "refuses":
                state = "quiet"
            elif refused < _REFUSALS:
                continue
            if state != known and name in self._doors and not self._over.is_set():
                known = state
                self.changed(name, state)


def roles_text(places: Sequence[Place]) -> str:
    """Roles in words: "workers 4 to 7, replay shard 1 and a parameter server"."""
    parts: list[str] = []
    for kind in dict.fromkeys(place.kind for place in places if place.kind != "other"):
        found = sorted(place.index for place in places if place.kind == kind)
        word = KIND_NAMES[kind]
        if kind in ("server", "evaluator"):
            parts.append(f"the {word}" if len(found) == 1 else f"{len(found)} {word}s")
        else:
            parts.append(f"{word}{'s' * (len(found) > 1)} {numbers_text(found)}")
    return listed(parts)


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers in rising order, in words: "0, 2 and 4 to 7"."""
    # in a run of successive numbers, each is as far above its position as the others
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run] for run in runs]
    return listed([text for run in texts for text in run])


def listed(parts: Sequence[str]) -> str:
    """Words as a list: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
