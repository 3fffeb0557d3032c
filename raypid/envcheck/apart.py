"""A process of its own for code that may hang, crash or print without end, and what is seen of it from outside."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import re
import select
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

from raypid.envs.closing import ENDING_S, end_by_parent
from raypid.envs.errors import relative
from raypid.errors import CodeError

Message: TypeAlias = Mapping[str, object]
CALLS = ("its constructor", "reset()", "step()", "step() after the end of an episode", "close()")
MAKE, RESET, STEP, STEP_AFTER_END, CLOSE = range(5)
POLL_S = 0.05
KEPT = 2000
"""Characters of what it prints that are kept."""
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = (_OURS, sysconfig.get_paths()["stdlib"], "<frozen", "<string>")


class Pulse:
    """What the process is doing, in memory that both sides share: written before each call, which a message would slow down.

    Its four numbers are a count of signs of life, the call (an index into CALLS, or -1), the episode and its step.
    """

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 32)).cast("q")
        self.rest()

    def beat(self, call: int = -1, episode: int = 0, step: int = 0) -> None:
        numbers = self._numbers
        numbers[0] += 1
        numbers[1], numbers[2], numbers[3] = call, episode, step

    def rest(self) -> None:
        """Say that no code of the environment is running."""
        self.beat()

    @property
    def count(self) -> int:
        return self._numbers[0]

    @property
    def call(self) -> int:
        """Index into CALLS; -1 where none is running."""
        return self._numbers[1]

    def __str__(self) -> str:
        """Such as "step() at step 12 of episode 3"."""
        if self.call < 0:
            return ""
        episode, step = self._numbers[2], self._numbers[3]
        if self.call == STEP:
            return f"step() at step {step:,} of episode {episode:,}"
        return f"reset() before episode {episode:,}" if self.call == RESET else CALLS[self.call]


@dataclass(frozen=True, slots=True)
class Channel:
    """What the process has in hand: `send` tells something, `pulse` shows that it lives."""

    send: Callable[[Message], None]
    pulse: Pulse


@dataclass(slots=True)
class Ending:
    """How the process ended."""

    how: Literal["done", "died", "hung"]
    during: str = ""
    """The call that was running, in words."""
    call: int = -1
    """The same as an index into CALLS."""
    exit_words: str = ""
    """Exit code or signal of one that died."""
    where: str = ""
    """The user's line that was running, where that is known."""
    printed: int = 0
    """Characters that it has printed."""
    lines: int = 0
    """Lines that it has printed."""
    head: str = ""
    """The beginning of what it has printed."""


def run_apart(body: Callable[[Channel], None], hear: Callable[[Message], None], timeout_s: float) -> Ending:
    """Run `body` in a forked process and call `hear` with what it sends, until it is done, dead or silent for `timeout_s` seconds.

    The message {"patience_s": s} changes how long it may be silent from then on. Whatever it has started ends with it.
    """
    pulse = Pulse()
    if not hasattr(os, "fork"):  # without one there is no deadline
        body(Channel(hear, pulse))
        return Ending("done")
    with tempfile.TemporaryFile("w+b") as stacks, contextlib.ExitStack() as pipes:
        told, tell = os.pipe()
        printed, to_print = os.pipe()
        alive, living = os.pipe()  # the process ends when this one does, whose end of the pipe nobody else has
        for descriptor in (told, printed, living):
            pipes.callback(os.close, descriptor)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns of threads; what runs there needs none of those that were here
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            for descriptor in (told, printed, living):
                os.close(descriptor)
            _inside(body, pulse, tell, to_print, alive, stacks)
        for descriptor in (tell, to_print, alive):
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # also done inside: whoever comes first
        watched = _Watched(pid, pulse, told, printed, hear, timeout_s)
        try:
            return watched.until_the_end(stacks)
        finally:
            watched.kill()


def _inside(
    body: Callable[[Channel], None], pulse: Pulse, tell: int, to_print: int, alive: int, stacks: IO[bytes]
) -> None:
    """Be the process: never returns."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        end_by_parent()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in ((0, nothing), (1, to_print), (2, to_print)):
            os.dup2(source, descriptor)
        sys.stdin = open(0, closefd=False)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, errors="replace", closefd=False)
        faulthandler.enable(stacks, all_threads=False)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
        threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
        with open(tell, "w", closefd=False) as out:

            def send(message: Message) -> None:
                pulse.beat(pulse.call)
                out.write(json.dumps(message) + "\n")
                out.flush()

            try:
                body(Channel(send, pulse))
                send({"done": True})
            except BaseException as error:  # ours: whatever the environment raises is caught in `body`
                send({"failed": "".join(traceback.format_exception(error))})
        code = 0
    finally:
        os._exit(code)


def _end_with(alive: int) -> None:
    """End this process and those that it has started once nobody holds the other end of the pipe."""
    os.read(alive, 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(ENDING_S)
    os.killpg(0, signal.SIGKILL)


class _Watched:
    """The process as its parent sees it."""

    def __init__(
        self, pid: int, pulse: Pulse, told: int, printed: int, hear: Callable[[Message], None], timeout_s: float
    ) -> None:
        self.pid, self.pulse, self.told, self.printed = pid, pulse, told, printed
        self.hear, self.timeout_s = hear, timeout_s
        self.ending = Ending("died")
        self._rest, self._head, self._is_over = b"", b"", False
        self._status: int | None = None

    def until_the_end(self, stacks: IO[bytes]) -> Ending:
        seen, since = self.pulse.count, time.monotonic()
        while not self._is_over:
            ready, _, _ = select.select([self.told, self.printed], [], [], POLL_S)
            if self.printed in ready:
                self._take_print()
            if self.told in ready:
                self._take_messages()
            if not ready and self._has_ended():
                break  # processes that it has started may still hold its pipes
            if self.pulse.count != seen:
                seen, since = self.pulse.count, time.monotonic()
            elif time.monotonic() - since > self.timeout_s:
                self.ending.how, self._is_over = "hung", True
        ending = self.ending
        ending.during, ending.call = str(self.pulse), self.pulse.call
        ending.head = self._head.decode(errors="replace")
        if ending.how == "hung":
            os.kill(self.pid, signal.SIGUSR1)  # faulthandler writes where it is
            time.sleep(0.2)
        elif ending.how == "died":
            ending.exit_words = self._exit_words()
        if ending.how != "done":
            stacks.seek(0)
            ending.where = _in_words(_STACK_LINE.findall(stacks.read().decode(errors="replace")))
        return ending

    def kill(self) -> None:
        """End the process with all that it has started, and wait for it. Before, it closes its environments."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)
        self._wait(ENDING_S)
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._status is None:
            os.waitpid(self.pid, 0)

    def _take_print(self) -> None:
        text = os.read(self.printed, 1 << 16)
        self.ending.printed += len(text)
        self.ending.lines += text.count(b"\n")
        self._head = (self._head + text)[:KEPT]

    def _take_messages(self) -> None:
        data = os.read(self.told, 1 << 16)
        if not data:
            self._is_over = True  # its end without a word
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "done" in message:
                self.ending.how, self._is_over = "done", True
            elif "failed" in message:
                raise CodeError(
                    f"{str(message['failed']).rstrip()}\nraypid: the check itself failed: please report this."
                )
            else:
                self.timeout_s = float(message.get("patience_s", self.timeout_s))
                self.hear(message)

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is not None

    def _wait(self, seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while not self._has_ended() and time.monotonic() < give_up:
            time.sleep(POLL_S / 10)

    def _exit_words(self) -> str:
        self._wait(5.0)
        if self._status is None:
            return "its pipes are closed"
        return f"exit code {self._status}" if self._status >= 0 else signal.Signals(-self._status).name


_STACK_LINE = re.compile(r'File "(.*)", line (\d+) in (.*)')
"""A line that faulthandler writes, the innermost first."""


def cause_of(error: BaseException) -> BaseException:
    """The exception from which this one was raised in the end; itself if there is none."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def place_of(error: BaseException) -> str:
    """The innermost line of the user's code through which an exception, or what caused it, came: `_in_words`."""
    return _in_words((f.filename, f.lineno, f.name) for f in traceback.extract_tb(cause_of(error).__traceback__)[::-1])


def _in_words(places: Iterable[tuple[str, object, str]]) -> str:
    """The first place, of (file, line, function), in the user's code as "file:line in function"; "" if none of it is there."""
    for file, line, function in places:
        if not file.startswith(_LIBRARIES) and "site-packages" not in file:
            return f"{relative(file)}:{line} in {function}"
    return ""
