"""How the end of one of Ray's servers is noticed within 2 s, and how messages name roles.

Ray itself notices a killed node after 15 to 30 s, and until then lets calls wait that nobody will answer. A run that loses a node every
minute would stand still for a third of the time. The system closes the connections of a process that ends, so a connection to each
node's raylet tells at once. A node that is cut off closes nothing. Ray gives it up after about 65 s, by its own health check, and ends
what still runs there; raypid leaves that to Ray, since a node is seldom cut off, and may come back before.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import groupby

from raypid.runtime.handle import Place, kind_name

CONNECT_S = 1.0
"""Seconds that a connection may take."""


class Line:
    """A connection to one of Ray's servers that is kept open, and so tells whether its process has ended."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port
        self._line: socket.socket | None = None

    def has_ended(self) -> bool:
        """Whether no process listens there any more. Connects where that is necessary: at first, and after the server has closed a
        connection on which nothing is said."""
        if self._line is not None:
            try:
                if self._line.recv(4096):  # its greeting
                    return False
            except BlockingIOError:
                return False
            except OSError:
                pass
        self._line = None
        try:
            self._line = socket.create_connection(self.address, CONNECT_S)
            self._line.setblocking(False)
        except ConnectionRefusedError:
            return True
        except OSError:  # it does not answer, which is no end
            pass
        return False


def roles_text(places: Sequence[Place]) -> str:
    """Roles of a node in words: "workers 4 to 7, replay shard 1 and the parameter server"."""
    parts: list[str] = []
    for kind in dict.fromkeys(place.kind for place in places if place.kind != "other"):
        found = sorted(place.index for place in places if place.kind == kind)
        word, has_one = kind_name(kind), kind in ("server", "evaluator")
        parts.append(f"the {word}" if has_one else f"{word}{'s' * (len(found) > 1)} {numbers_text(found)}")
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
