"""Waiting for what other processes do: nothing depends on the machine's speed, and nothing waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 90.0
"""Nothing here depends on the machine's speed; this only ends what would never end."""


def wait_until(what: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """The first true value of `what()`."""
    deadline = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
