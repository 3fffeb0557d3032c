"""A process of its own for code that may hang, crash or print without end, and what is seen of it from outside."""

from __future__ import annotations

import contextlib
import faulthandler
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import IO, TypeAlias

from raypid.check.report import Finding, Severity
from raypid.envs.closing import ENDING_S, end_by_parent, end_processes, inheriting
from raypid.envs.errors import relative
from raypid.envs.observation_checks import ObservationError
from raypid.errors import HEAD, CodeError, UserError, shorten

Message: TypeAlias = "Finding | Mapping[str, object] | CodeError | None"
"""A finding, or facts by topic; CodeError and None only say how the process ends."""
NOTHING, MAKE, COPY, RESET, STEP, CLOSE, VECTORS, PPO, SAC = range(9)
"""What the process may be doing."""
_FINDINGS: tuple[tuple[Severity, str, str], ...] = (
    ("problem", "import", "it {what}"),
    ("problem", "constructor", "it {what}"),
    ("problem", "constructor", "a second one beside the first cannot be made: it {what}"),
    ("problem", "reset", "reset() before episode {episode:,} {what}"),
    ("problem", "step", "step() at step {step:,} of episode {episode:,} {what}"),
    ("problem", "close", "close() {what}"),
    ("problem", "vectors", "several of them side by side: it {what}"),
    ("note", "training", "the cost of PPO could not be measured: it {what}"),
    ("note", "training", "the cost of SAC could not be measured: it {what}"),
)
"""What to say of each of these if it goes wrong: severity, topic, text."""
LEARNING_S = 60.0
"""Seconds that an iteration of training may take, the import of torch included."""
POLL_S = 0.05
KEPT = 2000
"""Bytes of what it prints that are kept."""
_LIBRARIES = (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"], "<frozen", "<string>")


class Channel:
    """What the process has in hand: `send` tells something, the others show that it lives, and what it is doing.

    A message for each call would slow it down, so these numbers lie in memory that both sides share.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        self.send = send
        self.numbers = RawArray("q", 4)
        """How many signs of life there were; what it is doing; if it is resetting or stepping, the episode and the step."""

    def alive(self) -> None:
        """Give a sign of life."""
        self.numbers[0] += 1

    @contextlib.contextmanager
    def running(self, call: int, episode: int = 0, step: int = 0) -> Iterator[None]:
        """Show what the process is doing, until it has done it."""
        self.numbers[:] = self.numbers[0] + 1, call, episode, step
        try:
            yield
        finally:
            self.numbers[:] = self.numbers[0] + 1, NOTHING, 0, 0

    def describe(self, what: str) -> tuple[Severity, str, str]:
        """What to say if the running call does something such as "raises ValueError": severity, topic, text."""
        _, call, episode, step = self.numbers
        severity, topic, text = _FINDINGS[call]
        return severity, topic, text.format(what=what, episode=episode, step=step)

    def finding(self, error: BaseException) -> Finding:
        """What the running call has raised: by raypid's own words if it was no code of the user's."""
        frames = reversed(traceback.extract_tb(_cause_of(error).__traceback__))
        where = _users_line((frame.filename, frame.lineno, frame.name) for frame in frames)
        if isinstance(error, ObservationError):
            return Finding("problem", self.describe("")[1], error.text, error.advice)
        if isinstance(error, UserError) and not where:
            return Finding("problem", "interface", str(error).rpartition("\nraypid: ")[2].removeprefix(HEAD))
        inner = _cause_of(error)
        return Finding(
            *self.describe(f"raises {shorten(f'{type(inner).__name__}: {inner}'.rstrip(': '))}"), where=where
        )


def run_apart(body: Callable[[Channel], None], timeout_s: float) -> Iterator[Message]:
    """Run `body` in a forked process until it is done, dead or silent for `timeout_s` seconds. Whatever it has started ends with it.

    Yields:
        What it sends; a finding if it did not end well; the fact "printed".

    Raises:
        CodeError: `body` raised.
    """
    if not hasattr(os, "fork"):  # without one there is no deadline
        messages: list[Message] = []
        body(Channel(messages.append))
        yield from messages
        return
    context = multiprocessing.get_context("fork")
    messages_in, messages_out = context.Pipe(duplex=False)
    output, to_print = context.Pipe(duplex=False)
    channel = Channel(messages_out.send)
    with tempfile.TemporaryFile("w+b") as stacks, messages_in, output:
        process = context.Process(target=_inside, args=(body, channel, to_print.fileno(), stacks))
        with inheriting(), warnings.catch_warnings():
            # Python warns of threads; what runs there needs none of those that were here
            warnings.simplefilter("ignore")
            process.start()
        messages_out.close()
        to_print.close()
        try:
            wrong = yield from _listen(process, channel, messages_in, output, timeout_s)
            if not wrong:
                return
            advice = "A longer timeout waits for it." if process.is_alive() else ""
            if advice:
                os.kill(process.pid or 0, signal.SIGUSR1)  # faulthandler writes where it is
                time.sleep(0.2)
            stacks.seek(0)
            where = _users_line(_STACK_LINE.findall(stacks.read().decode(errors="replace")))
            yield Finding(*channel.describe(wrong), advice, where)
        finally:
            end_processes([process], interrupt=True)  # it closes its environments before
            with contextlib.suppress(OSError):
                os.killpg(process.pid or 0, signal.SIGKILL)


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


def _listen(
    process: BaseProcess, channel: Channel, messages_in: Connection, output: Connection, timeout_s: float
) -> Generator[Message, None, str]:
    """Yield what the process sends until it is done, dead or silent for too long; then what it has printed. Returns what went wrong."""
    wrong: str | None = None
    num_lines, size, head = 0, 0, b""
    seen, since = 0, time.monotonic()
    while wrong is None:
        ready = wait([messages_in, output], POLL_S)
        if output in ready:
            text = os.read(output.fileno(), 1 << 16)
            num_lines, size, head = num_lines + text.count(b"\n"), size + len(text), (head + text)[:KEPT]
        if messages_in in ready:
            try:
                message = messages_in.recv()
            except (EOFError, OSError):
                break
            if isinstance(message, CodeError):
                raise message
            if message is None:
                wrong = ""
            else:
                yield message
        elif not ready and process.exitcode is not None:
            break  # processes that it has started still hold its pipes
        count, call = channel.numbers[:2]
        patience_s = max(timeout_s, LEARNING_S if call in (PPO, SAC) else 0.0)
        if messages_in in ready or count != seen:
            seen, since = count, time.monotonic()
        elif time.monotonic() - since > patience_s:
            wrong = f"gives no answer within {patience_s:g} s."
    first = head.decode(errors="replace").partition("\n")[0]
    yield {"printed": {"lines": num_lines, "characters": size, "first": first[:200]}}
    if wrong is None:
        process.join(5.0)
        code = process.exitcode or 0
        wrong = f"ends its process ({f'exit code {code}' if code >= 0 else signal.Signals(-code).name})."
    return wrong


_STACK_LINE = re.compile(r'File "(.*)", line (\d+) in (.*)')
"""A line that faulthandler writes, the innermost first."""


def _cause_of(error: BaseException) -> BaseException:
    """The exception from which this one was raised in the end; itself if there is none."""
    while (cause := error.__cause__) is not None and cause is not error:
        error = cause
    return error


def _users_line(places: Iterable[tuple[str, object, str]]) -> str:
    """The first place, of (file, line, function), in the user's code as "file:line in function"; "" if none of it is there."""
    for file, line, function in places:
        if not file.startswith(_LIBRARIES) and "site-packages" not in file:
            return f"{relative(file)}:{line} in {function}"
    return ""
