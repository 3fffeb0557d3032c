"""What environments say beside: infos out of vectors, and from process to process. Nothing in an info can spoil a step."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from raypid.errors import shown

Info: TypeAlias = "dict[str, object]"
"""What an environment gives as info. Its keys need not be strings, nor its values anything that can be pickled."""


class Parcel(NamedTuple):
    """An info on its way between processes, pickled by itself."""

    data: bytes
    left_out: list[str]
    """Keys whose values cannot be pickled."""


def packed(info: Mapping[str, object]) -> Parcel:
    """Pickle an info, without the entries that cannot be pickled."""
    with suppress(Exception):
        return Parcel(pickle.dumps(dict(info)), [])
    kept, left_out = {}, []
    for key, value in info.items():
        try:
            pickle.dumps((key, value))
            kept[key] = value
        except Exception:
            left_out.append(shown(key))
    return Parcel(pickle.dumps(kept), left_out)


def opened(info: Mapping[str, object] | Parcel, name: str) -> Info:
    """Return an info of environment `name` as a dict of its own, out of its parcel if it came in one."""
    if not isinstance(info, Parcel):
        return dict(info)
    found: Info = {}
    lost = " and ".join(info.left_out)
    try:
        found = pickle.loads(info.data)
    except Exception as error:
        lost = f"all ({type(error).__name__}: {error})"
    if lost:
        warnings.warn(
            f"Environment {name}: of its info, {lost} cannot be pickled, and so does not reach callbacks from another process. vectorizer "
            "sync and threads have no others.", RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    return found


def stream_info(infos: object, stream: int, num_envs: int) -> Info:
    """Take the info of one stream out of those of a vector: a list of them; or for each key the values of all streams, with a mask
    `_key` if not all have one. A value that is not one for each stream holds for all."""
    if isinstance(infos, (list, tuple, np.ndarray)):
        infos = infos[stream]
        num_envs = 0  # it has no values of others
    if not isinstance(infos, Mapping):
        return {}
    masks = {f"_{key}" for key in infos}
    found: Info = {}
    for key, value in infos.items():
        mask: Any = infos.get(f"_{key}")
        if key in masks or (_is_of_all(mask, num_envs) and not mask[stream]):
            continue
        if isinstance(value, Mapping):
            value = stream_info(value, stream, num_envs)
        found[key] = value[stream] if _is_of_all(value, num_envs) else value
    return found


def _is_of_all(value: object, num_envs: int) -> bool:
    """Whether a value of a vector's infos has one for each stream."""
    shape = (len(value),) if isinstance(value, (list, tuple)) else getattr(value, "shape", None)
    return isinstance(shape, tuple) and shape[:1] == (num_envs,)
