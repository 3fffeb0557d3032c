"""Turn a state (nested dicts and lists of arrays and plain values) into strict JSON and a table of arrays, and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from raypid.types import Array, Json

_TENSOR_DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())


def encode(value: object, path: str, tensors: dict[str, Array] | None, others: list[Array] | None) -> Json:
    """Encode `value` as strict JSON. Arrays go to `tensors` or `others`, and a mark of one key takes their place.

    Raises:
        TypeError: a type that cannot be saved, or an array although `tensors` or `others` is None. `path` names it.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, list | tuple):
        return [encode(v, f"{path}/{i}", tensors, others) for i, v in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        inner = {k: encode(v, f"{path}/{k}" if path else k, tensors, others) for k, v in value.items()}
        is_mark = len(value) == 1 and next(iter(value)).startswith("$")
        return {"$dict": inner} if is_mark else inner
    if tensors is None or others is None or not _is_plain_array(value):
        kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{path!r} has a type that a checkpoint cannot hold here: {kind}.")
    if value.dtype.name in _TENSOR_DTYPES and value.dtype.isnative:
        key = path
        while key in tensors or key == "__metadata__":  # keys may contain "/"; safetensors reserves one name
            key += "'"
        tensors[key] = np.asarray(value, order="C")
        return {"$tensor": key}
    others.append(value)
    return {"$npy": len(others) - 1}


def _is_plain_array(value: object) -> TypeGuard[Array]:
    return isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.isbuiltin != 2


def decode(value: Any, arrays: Mapping[str, Array], others: Mapping[int, Array]) -> Any:
    """Undo `encode`, given the arrays that it took out."""
    if isinstance(value, list):
        return [decode(v, arrays, others) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        mark, inner = next(iter(value.items()))
        if mark == "$float":
            return float(inner)
        if mark == "$tensor":
            return arrays[inner]
        if mark == "$npy":
            return others[inner]
        if mark == "$dict":
            value = inner
    return {k: decode(v, arrays, others) for k, v in value.items()}


def read_npy(file: Path) -> Array:
    """Read an array from a .npy file. No more memory is taken than the file has bytes, whatever its header declares.

    Raises:
        ValueError: it holds something else, or less than it declares.
    """
    mapped: Array = np.lib.format.open_memmap(file, mode="r")
    return np.array(mapped)


def fingerprint(state: object) -> str:
    """A checksum of a state, the same for states that are equal bit for bit."""
    tensors: dict[str, Array] = {}
    others: list[Array] = []
    plain = encode(state, "", tensors, others)
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16)
    for name, array in [*sorted(tensors.items()), *((str(i), other) for i, other in enumerate(others))]:
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
