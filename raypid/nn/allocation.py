"""How this process allocates memory for large arrays."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@cache
def keep_freed_memory() -> None:
    """Make glibc keep up to 1 GiB of freed memory for later arrays, instead of returning it to the system.

    A batch of images is tens of megabytes, and so is the output of each convolution. Getting new pages for each of them
    takes 40% of a Nature CNN's forward pass and 20% of learning, and an eighth of a SAC update with layers of 256. Does nothing
    where there is no glibc.
    """
    if (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**30)


def return_freed_memory() -> None:
    """Return freed memory to the system, so that from now on this process grows by what it allocates. Does nothing where there is no glibc."""
    if (malloc_trim := _of_glibc("malloc_trim")) is not None:
        malloc_trim(0)


def _of_glibc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
