"""Addresses of Ray clusters: how they are written, and whether a Ray answers there. Nothing here imports Ray."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time

from raypid.errors import ConfigError, UserError, reason, shown

LOCAL, AUTO, CLIENT = "local", "auto", "ray://"
FORMS = "auto, local, host:port (6379 unless ray start prints another) or ray://host:port (10001)"
ENVIRONMENT = "RAY_ADDRESS"
ANSWER_S = 5.0
"""Seconds that a host may take to answer."""
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]@]+)"
# HTTP/2, which Ray speaks, begins with this greeting and an empty SETTINGS frame; the answer begins with such a frame too
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


class NotJoined(UserError):
    """There is no Ray cluster where one was to be joined."""


def check_form(address: str, name: str = "address") -> None:
    """Check how an address is written. `name` is what gives it, for the message.

    Raises:
        ConfigError: it is none.
    """
    if address in (LOCAL, AUTO):
        return
    found = re.fullmatch(rf"(?:ray://)?{_HOST}:(\d+)", address)
    if found and 0 < int(found[2]) < 2**16:
        return
    raise ConfigError(f"{name} is {FORMS}, not {shown(address)}.")


def chosen(address: str | None) -> str | None:
    """The cluster that a run joins, None if it starts Ray here: what was given, or else what the environment names, as Ray has it.

    Raises:
        ConfigError: what the environment names is no address.
    """
    if address is None or address == AUTO:
        named = os.environ.get(ENVIRONMENT, "").strip()
        if named:
            check_form(named, ENVIRONMENT)
            address = named
    return None if address == LOCAL else address


def from_environment(address: str | None) -> str:
    """Say that the environment has chosen, for a note; "" if it has not."""
    joined = chosen(address)
    if address is None and joined is not None:
        return f"the Ray cluster is that at {joined}, which {ENVIRONMENT} names; address='local' starts Ray here"
    return ""


def check_answers(address: str) -> None:
    """Connect to "host:port" or "ray://host:port", since Ray itself would try for minutes.

    Raises:
        NotJoined: there is no answer, or not that of a Ray.
    """
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    place, deadline = (host.strip("[]"), int(port)), time.monotonic() + ANSWER_S
    try:
        _look_up(*place)
        with socket.create_connection(place, max(1.0, deadline - time.monotonic())) as line:
            if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true") and not _greets(line):
                raise no_ray(address)
    except (OSError, UnicodeError) as error:
        raise NotJoined(
            f"There is no Ray cluster at {address!r}: {reason(error)}. Is the address right? `ray status` on its head node shows "
            "whether it runs; is the port open in its firewall?"
        ) from error


def no_ray(address: str) -> NotJoined:
    """The error that something else than Ray answers."""
    return NotJoined(
        f"What answers at {address!r} is no Ray: another program listens there. The cluster's port is that of "
        "`ray start --head --port` (6379); ray:// takes the port of --ray-client-server-port (10001)."
    )


def _look_up(host: str, port: int) -> None:
    """Wait until the system knows whether there is a host of this name, for which it may take half a minute.

    Raises:
        TimeoutError: it does not know it in ANSWER_S.
    """

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):  # whoever connects is told the same
            socket.getaddrinfo(host, port)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if thread.is_alive():
        raise TimeoutError(f"the name {host} could not be looked up in {ANSWER_S:g} s")


def _greets(line: socket.socket) -> bool:
    """Whether the other side speaks HTTP/2, as Ray does."""
    line.settimeout(ANSWER_S)
    answer = b""
    with contextlib.suppress(OSError):
        line.sendall(GREETING)
        while len(answer) < 4 and (part := line.recv(9)):
            answer += part
    return len(answer) >= 4 and answer[3] == 4
