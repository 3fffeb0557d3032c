"""What environments say beside: infos out of vectors, and from process to process. Nothing in an info can spoil a step."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import numpy as np

from raypid.errors import shown

Info: TypeAlias = "Mapping[str, object]"
"""What an environment gives as info. Keys need not be strings."""


class Parcel(NamedTuple):
    """An info on its way between processes, pickled by itself."""

    data: bytes
    left_out: list[str]
    """Keys whose values cannot be pickled."""


def packed(info: Info) -> Parcel:
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


def opened(info: Info | Parcel, name: str) -> Info:
    """Return an info of environment `name` as a dict of its own, out of its parcel if it came in one."""
    if not isinstance(info, Parcel):
        return dict(info)
    found: Info = {}
    try:
        found = pickle.loads(info.data)
        problem = f"{' and '.join(info.left_out)} of its info cannot be pickled" if info.left_out else ""
    except Exception as error:
        problem = f"its info cannot be unpickled ({type(error).__name__}: {error})"
    if problem:
        warnings.warn(
            f"Environment {name}: {problem}, and does not reach callbacks from another process. vectorizer sync and threads step "
            "environments in this one.", RuntimeWarning, stacklevel=2,
        )  # fmt: skip
    return found


def stream_info(infos: object, stream: int, num_envs: int) -> dict[str, object]:
    """Take the info of one stream out of those of a vector: a list of them; or for each key the values of all streams, with a mask
    `_key` if not all have one. What has no value for each stream holds for all."""
    if isinstance(infos, (list, tuple, np.ndarray)):
        own = infos[stream]
        return dict(own) if isinstance(own, Mapping) else {}
    if not isinstance(infos, Mapping):
        return {}
    masks = {f"_{key}" for key in infos}
    found: dict[str, object] = {}
    for key, value in infos.items():
        if isinstance(value, Mapping):
            value = stream_info(value, stream, num_envs)
        elif key in masks:
            continue
        elif _is_of_all(value, num_envs):
            value = value[stream]
        mask = infos.get(f"_{key}")
        if not _is_of_all(mask, num_envs) or mask[stream]:
            found[key] = value
    return found


def _is_of_all(value: object, num_envs: int) -> bool:
    """Whether a value of a vector's infos has one for each stream."""
    if isinstance(value, (list, tuple)):
        return len(value) == num_envs
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and shape[:1] == (num_envs,)
