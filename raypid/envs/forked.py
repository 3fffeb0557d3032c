"""A copy of this process that makes calls for it beside it, on another core."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import numpy as np

from raypid.envs.closing import end_by_parent, end_processes, inheriting

Result = TypeVar("Result")


class ForkedLost(Exception):
    """The copy has ended."""


def can_fork() -> bool:
    """Whether this process may be copied: it has one thread, so no other one holds a lock that nobody in the copy would give back; and macOS'
    own libraries do not bear it."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


class Forked(Generic[Result]):
    """A copy of this process, with all objects as they are now, that waits for arguments of `target`.

    It ends with this process, however that ends, and calls `close` before. Ctrl-C is left to this process.

    Args:
        daemon: it starts no processes of its own, and draws other random numbers than this one. Else it is to be ended by `end`.
    """

    def __init__(self, target: Callable[..., Result], close: Callable[[], object], *, daemon: bool = True) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(target, close, there, self._connection), daemon=daemon)
        with inheriting():
            self._process.start()
        there.close()
        self._number = 0

    def send(self, *arguments: object) -> None:
        """Let the copy call `target`. Each call has one `receive`; where that was left out, the next one skips its result.

        Raises:
            ForkedLost: the copy has ended.
        """
        self._number += 1
        try:
            self._connection.send((self._number, arguments))
        except OSError:
            raise ForkedLost(self._how()) from None

    def receive(self, timeout_s: float | None = None) -> Result:
        """What `target` returned for the arguments that were sent last.

        Raises:
            ForkedLost: the copy has ended.
            TimeoutError: it did not return within `timeout_s` seconds. Otherwise what `target` raised.
        """
        number = 0
        while number != self._number:
            if timeout_s is not None and not self._connection.poll(timeout_s):
                raise TimeoutError
            try:
                number, result, error = self._connection.recv()
            except (OSError, EOFError):
                raise ForkedLost(self._how()) from None
        if error is not None:
            raise error
        return result

    @staticmethod
    def end(copies: Sequence[Forked[Any]], *, interrupt: bool = False) -> None:
        """End copies, each after its `close`. interrupt: they are in the midst of a call."""
        for copy in copies:
            with contextlib.suppress(OSError):  # it has ended
                copy._connection.send(None)  # a younger copy has this pipe too, so that closing it would not be noticed
            copy._connection.close()
        end_processes([copy._process for copy in copies], interrupt=interrupt)

    def _how(self) -> str:
        """How the copy has ended."""
        self._process.join(1.0)
        code = self._process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(
    target: Callable[..., object], close: Callable[[], object], connection: Connection, parents: Connection
) -> None:
    parents.close()  # else the copy would keep open what tells it of its parent's end
    if multiprocessing.current_process().daemon:
        random.seed()
        np.random.seed()
    try:
        end_by_parent()
        with contextlib.suppress(OSError, EOFError):
            while (order := connection.recv()) is not None:
                number, arguments = order
                result, error = None, None
                try:
                    result = target(*arguments)
                except Exception as raised:
                    error = raised
                try:
                    connection.send((number, result, error))
                except (TypeError, AttributeError, pickle.PicklingError) as why:
                    connection.send((number, None, TypeError(f"a result that cannot be pickled: {why}")))
    finally:
        try:
            close()
        finally:
            os._exit(0)
