"""A kind of role that raypid does not have is supervised like its own: its methods say how, and nothing in `raypid/runtime` knows it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from raypid.runtime.calls import Called
from raypid.runtime.handle import places
from raypid.runtime.process import ProcessBackend
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import Losses, RolesFailed


@dataclass
class Page:
    """A copy of what an archive holds."""

    progress: int
    words: list[str]
    seconds: float = 0.0


class Archive:
    """Keeps words in the order in which they came."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.ink = "black"

    @Called(splits_after=0, progress=len)
    def write(self, *words: str) -> tuple[list[str], str]:
        self.words += words
        return list(words), self.ink

    @Called(to="first")
    def read(self) -> list[str]:
        return self.words

    @Called(lasts=True)
    def dip(self, ink: str) -> None:
        self.ink = ink

    def pid(self) -> int:
        return os.getpid()

    def copied(self) -> Page:
        return Page(len(self.words), list(self.words))

    newest_whole = copied

    def standing(self) -> int:
        return len(self.words)

    def take_over(self, page: Page) -> None:
        self.words = list(page.words)


@pytest.fixture
def backend() -> Iterator[ProcessBackend]:
    backend = ProcessBackend()
    yield backend
    backend.shutdown()


def test_one_that_is_killed_goes_on_from_its_copy_with_what_was_set(backend: ProcessBackend) -> None:
    losses, told = Losses(1), list[str]()
    losses.tell = told.append
    archive = StatefulGroup(
        backend, lambda index, restarts: Archive, places("other"), start_s=60, losses=losses, unit="words"
    )

    def write(*words: str) -> tuple[Any, Any]:
        first, second = archive.submit_parts(Archive.write, *words)
        return backend.get(first), backend.get(second)

    backend.get(archive.submit(Archive.dip, "red"))
    assert write("a", "b") == (["a", "b"], "red")
    archive._ask_for_copy()
    archive._take_copy()
    write("c")
    os.kill(backend.get(archive.submit(Archive.pid)), signal.SIGKILL)
    assert write("d") == (["d"], "red")  # made again, in the ink that was set
    assert backend.get(archive.submit(Archive.read)) == ["a", "b", "d"] and archive.progress == 3
    assert losses.counts == {"shared_parameters": 1, "words": 1}
    (text,) = told
    assert "died in write()" in text and "words lost: 1." in text
    os.kill(backend.get(archive.submit(Archive.pid)), signal.SIGKILL)
    with pytest.raises(RolesFailed, match="max_restarts allows 1"):
        write("e")


def test_several_share_what_a_call_is_given(backend: ProcessBackend) -> None:
    archives = StatefulGroup(
        backend, lambda index, restarts: Archive, places("other", 2), start_s=60, meet=False, unit="words"
    )
    call = archives.submit_parts(Archive.write, *"abc")[0]
    assert call.results() == {0: ["a"], 1: ["b", "c"]}
    assert backend.get(archives.submit(Archive.read)) == ["a"]
