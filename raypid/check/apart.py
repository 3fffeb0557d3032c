"""A process of its own for code that may hang, crash or print without end, and what is seen of it from outside."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import multiprocessing
import os
import re
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
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Literal, TypeAlias

from raypid.check.finding import Finding
from raypid.envs.closing import ENDING_S, end_by_parent, end_processes, inheriting
from raypid.envs.errors import relative
from raypid.errors import CodeError

Message: TypeAlias = "Finding | Mapping[str, object] | Stage | CodeError | None"
"""A finding, facts by topic, or a Stage; CodeError and None only say how the process ends."""
CALLS = ("its constructor", "reset()", "step()", "step() after the end of an episode", "close()")
MAKE, RESET, STEP, STEP_AFTER_END, CLOSE = range(5)
POLL_S = 0.05
KEPT = 2000
"""Characters of what it prints that are kept."""
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = (_OURS, sysconfig.get_paths()["stdlib"], "<frozen", "<string>")


class Pulse:
    """The call that the process is making, in memory that both sides share. A message before each call would slow it down.

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


def subject(during: str) -> tuple[str, str]:
    """The topic of a finding on a call, from the words of a Pulse ("" while the environment is imported), and how its sentence begins."""
    topic = {"": "import", CALLS[MAKE]: "constructor"}.get(during)
    return (topic, "it") if topic else (during.partition("(")[0], during)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the process does from here on, and how long it may be silent meanwhile."""

    name: str
    patience_s: float


@dataclass(frozen=True, slots=True)
class Channel:
    """What the process has in hand: `send` tells something, `pulse` shows that it lives."""

    send: Callable[[Message], None]
    pulse: Pulse


@dataclass(slots=True)
class Ending:
    """How the process ended."""

    how: Literal["done", "died", "hung"]
    stage: str = ""
    """The last Stage that it has begun."""
    during: str = ""
    """The call that was running, in words."""
    call: int = -1
    """Index into CALLS of the call that was running."""
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

    A Stage that it sends changes how long it may be silent from then on. Whatever it has started ends with it.

    Raises:
        CodeError: `body` raised.
    """
    pulse = Pulse()
    if not hasattr(os, "fork"):  # without one there is no deadline
        body(Channel(hear, pulse))
        return Ending("done")
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    printed, to_print = context.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+b") as stacks, told, printed:
        process = context.Process(target=_inside, args=(body, Channel(tell.send, pulse), to_print.fileno(), stacks))
        with inheriting(), warnings.catch_warnings():
            # Python warns of threads; what runs there needs none of those that were here
            warnings.simplefilter("ignore")
            process.start()
        tell.close()
        to_print.close()
        try:
            ending = _watch(process, pulse, told, printed, hear, timeout_s)
            ending.during, ending.call = str(pulse), pulse.call
            if ending.how == "hung":
                os.kill(process.pid or 0, signal.SIGUSR1)  # faulthandler writes where it is
                time.sleep(0.2)
            elif ending.how == "died":
                ending.exit_words = _exit_words(process)
            if ending.how != "done":
                stacks.seek(0)
                ending.where = _in_words(_STACK_LINE.findall(stacks.read().decode(errors="replace")))
            return ending
        finally:
            _kill(process)


def _inside(body: Callable[[Channel], None], channel: Channel, to_print: int, stacks: IO[bytes]) -> None:
    """Be the process: never returns."""
    try:
        os.setpgid(0, 0)
        end_by_parent()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in ((0, nothing), (1, to_print), (2, to_print)):
            os.dup2(source, descriptor)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, errors="replace", closefd=False)
        faulthandler.enable(stacks, all_threads=False)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        body(channel)
        channel.send(None)
    except BaseException as error:  # ours: whatever the environment raises is caught in `body`
        text = "".join(traceback.format_exception(error)).rstrip()
        channel.send(CodeError(f"{text}\nraypid: the check itself failed: please report this."))
    finally:
        os._exit(0)


def _end_with_parent() -> None:
    """End this process and those that it has started once its parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGTERM)
    time.sleep(ENDING_S)
    os.killpg(0, signal.SIGKILL)


def _watch(
    process: BaseProcess,
    pulse: Pulse,
    told: Connection,
    printed: Connection,
    hear: Callable[[Message], None],
    timeout_s: float,
) -> Ending:
    """Listen to the process until it is done, dead or silent for too long."""
    ending, head = Ending("died"), b""
    seen, since = pulse.count, time.monotonic()
    while ending.how == "died":
        ready = wait([told, printed], POLL_S)
        if printed in ready:
            text = os.read(printed.fileno(), 1 << 16)
            ending.printed += len(text)
            ending.lines += text.count(b"\n")
            head = (head + text)[:KEPT]
        if told in ready:
            try:
                message = told.recv()
            except (EOFError, OSError):
                break  # its end without a word
            if message is None:
                ending.how = "done"
            elif isinstance(message, CodeError):
                raise message
            elif isinstance(message, Stage):
                ending.stage, timeout_s = message.name, message.patience_s
            else:
                hear(message)
        if not ready and process.exitcode is not None:
            break  # processes that it has started may still hold its pipes
        if told in ready or pulse.count != seen:
            seen, since = pulse.count, time.monotonic()
        elif time.monotonic() - since > timeout_s:
            ending.how = "hung"
    ending.head = head.decode(errors="replace")
    return ending


def _kill(process: BaseProcess) -> None:
    """End the process, which closes its environments before, and then all that it has started."""
    end_processes([process], interrupt=True)
    with contextlib.suppress(OSError):
        os.killpg(process.pid or 0, signal.SIGKILL)


def _exit_words(process: BaseProcess) -> str:
    process.join(5.0)
    code = process.exitcode
    if code is None:
        return "its pipes are closed"
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


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
