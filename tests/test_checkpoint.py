"""Checkpoints survive round trips, crashes, full disks; what is damaged is refused with a clear message."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypid.storage import checkpoint
from raypid.storage.checkpoint import (
    CheckpointError,
    Manifest,
    checkpoint_name,
    latest,
    list_checkpoints,
    open_checkpoint,
    prune,
    read_manifest,
    read_policy,
    refusing,
    save_checkpoint,
    write_policy,
)
from raypid.storage.plain_data import read_json

DTYPES = (
    "bool i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 >f4 >i8 U5 S3 M8[s] m8[ms] longdouble".split()
    + [np.dtype([("a", "f4"), ("b", "i8", (2,))])]  # structured
)  # fmt: skip
WRITER = """
import sys, numpy as np
from raypid.storage.checkpoint import save_checkpoint, write_policy
parent, n = sys.argv[1], 0
while True:
    n += 1
    save_checkpoint(parent, "checkpoint_000001", {"w": np.full(200_000, n), "n": n}, manifest={"score": n})
    write_policy(parent + "/policy", {"n": n}, {"w": np.full(50_000, n)})
    print(n, flush=True)
"""


@pytest.fixture(autouse=True)
def unflushed_saves() -> None:
    """Here saves wait for the disk, as they do for users."""


def same(a: Any, b: Any) -> bool:
    """Equal structure, types, dtypes and bits; tuples are lists, NumPy scalars are Python numbers, nan is nan."""
    if isinstance(a, np.generic):
        a = a.item()
    if isinstance(a, np.ndarray):
        is_alike = isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
        return is_alike and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b and str(a) == str(b)  # -0.0 is not 0.0


def random_array(rng: np.random.Generator) -> np.ndarray:
    shape = tuple(rng.integers(0, 4, size=rng.integers(0, 4)))
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    if dtype.kind in "USVMm" or dtype == np.longdouble:
        return np.ones(shape).astype(dtype) if dtype.kind in "US" else np.zeros(shape, dtype)
    array = np.asarray(rng.normal(size=shape) * 50).astype(dtype)
    return array.T if rng.random() < 0.3 else array


def random_tree(rng: np.random.Generator, depth: int = 0) -> Any:
    kind = rng.integers(10)
    if depth == 0 or (kind < 3 and depth < 4):
        names = ["", "a", "a/b", "b", "$tensor", "$dict", "$float", "__metadata__", "ключ", "a'", "x y", "\n"]
        keys = rng.permutation(names)[: rng.integers(0, 6)]
        return {str(key): random_tree(rng, depth + 1) for key in keys}
    if kind < 7:
        return random_array(rng)
    if kind == 7:
        return [random_tree(rng, depth + 1) for _ in range(rng.integers(0, 4))]
    scalars = [None, True, 0, -(2**127), 2**64, 0.1, -0.0, 1e308, math.nan, math.inf, -math.inf, "", "$x", "ü\0"]
    return scalars[rng.integers(len(scalars))]


def find(path: Path | str) -> Path:
    return open_checkpoint(path).path


def load_checkpoint(path: Path | str) -> tuple[dict[str, Any], Manifest]:
    opened = open_checkpoint(path)
    return opened.state(), opened.manifest


def save(parent: Path, iteration: int, score: float | None = None, **state: Any) -> Path:
    return save_checkpoint(parent, checkpoint_name(iteration), state, manifest={"score": score})


def leftovers(parent: Path) -> list[str]:
    return [p.name for p in parent.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_round_trip_of_every_dtype_and_shape(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape)
    if np.dtype(dtype).names:
        array = np.zeros(shape, dtype)
    state = {"x": array.astype(dtype)}
    loaded, _ = load_checkpoint(save(tmp_path, 1, **state))
    assert same(state, loaded)
    assert loaded["x"].flags.writeable


def test_round_trip_of_random_trees(tmp_path: Path) -> None:
    for seed in range(60):
        state = random_tree(np.random.default_rng(seed))
        path = save_checkpoint(tmp_path, "checkpoint_000001", state, manifest={"config": {"seed": seed}})
        loaded, manifest = load_checkpoint(path)
        assert same(state, loaded), seed
        assert manifest["config"] == {"seed": seed}
    assert leftovers(tmp_path) == []


def test_generators_resume_bit_for_bit(tmp_path: Path) -> None:
    for bits in (np.random.PCG64, np.random.MT19937, np.random.SFC64, np.random.Philox):
        rng = np.random.Generator(bits(7))
        rng.random(11, dtype=np.float32)
        loaded, _ = load_checkpoint(save(tmp_path, 1, rng=rng.bit_generator.state))
        other = np.random.Generator(bits(0))
        other.bit_generator.state = loaded["rng"]
        assert np.array_equal(rng.random(5), other.random(5))


def test_views_and_scalars(tmp_path: Path) -> None:
    base = np.arange(12.0).reshape(3, 4)
    state = {"t": base.T, "step": base[:, ::2], "neg": base[::-1], "wide": np.broadcast_to(base[0], (5, 4))}
    state |= {"f4": np.float32(0.1), "i": np.int64(3), "b": np.bool_(True), "tuple": (1, (2.5, None))}
    loaded, _ = load_checkpoint(save(tmp_path, 1, **state))
    assert same(state, loaded)


@pytest.mark.parametrize(
    "leaf", [object(), {1: 2}, np.array([None]), {1, 2}, b"x"], ids=lambda leaf: type(leaf).__name__
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, leaf: Any) -> None:
    save(tmp_path, 1, n=1)
    with pytest.raises(TypeError, match=r"'optimizer/0/moment'"):
        save(tmp_path, 1, optimizer=[{"moment": leaf}])
    assert load_checkpoint(tmp_path / "checkpoint_000001")[0] == {"n": 1}
    assert leftovers(tmp_path) == []


def test_manifest(tmp_path: Path) -> None:
    def extra(folder: Path) -> None:
        write_policy(folder / "policy", {"kind": "mlp"}, {"w": np.ones(3, np.float32)})
        (folder / "note.txt").write_text("hello")

    counters = {**dict.fromkeys(checkpoint.COUNTERS, 0), "time_total_s": 1.5, "owed_updates": 0.25}
    entries = {"score": math.nan, "config": {"lr": 1e-3, "hidden": [64, 64], "large": 2**70}, "counters": counters}
    path = save_checkpoint(tmp_path, "checkpoint_000009", {"n": 1}, manifest=entries, extra_writer=extra)
    manifest = read_manifest(path)
    assert same(entries, {key: manifest[key] for key in entries})
    assert manifest["format_version"] == 2 and isinstance(manifest["raypid_version"], str)
    assert set(manifest["files"]) == {"note.txt", "policy/policy.json", "policy/policy.safetensors"}
    for name, expected in manifest["files"].items():
        content = (path / name).read_bytes()
        assert expected == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    spec, arrays, _ = read_policy(path / "policy")
    assert spec == {"kind": "mlp"} and same({"w": np.ones(3, np.float32)}, arrays)
    json.loads((path / "manifest.json").read_text(), parse_constant=pytest.fail)  # strict JSON: no NaN


def damaged(parent: Path) -> tuple[Path, dict[str, Path]]:
    def extra(folder: Path) -> None:
        write_policy(folder / "policy", {"n": 1}, {"w": np.arange(10.0)})

    state = {"w": np.arange(100.0), "names": np.array(["a", "b"])}
    path = save_checkpoint(parent, "checkpoint_000001", state, manifest={"score": 1.5}, extra_writer=extra)
    files = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
    assert len(files) == 5
    return path, files


@pytest.mark.parametrize("size", ["half", "empty", "one less"])
def test_truncated_files_are_refused(tmp_path: Path, size: str) -> None:
    path, files = damaged(tmp_path)
    for name, file in files.items():
        content = file.read_bytes()
        file.write_bytes(content[: {"half": len(content) // 2, "empty": 0, "one less": -1}[size]])
        with pytest.raises(CheckpointError, match=rf"damaged: {re.escape(name)} is truncated"):
            load_checkpoint(path)
        file.write_bytes(content)
        load_checkpoint(path)


def test_altered_files_are_refused(tmp_path: Path) -> None:
    path, files = damaged(tmp_path)
    for name, file in files.items():
        content = file.read_bytes()
        for place in {0, len(content) - 1, *np.random.default_rng(0).integers(0, len(content), 60).tolist()}:
            flipped = bytearray(content)
            flipped[place] ^= 1
            file.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=r"altered|has format"):
                load_checkpoint(path)
            if name.startswith("policy/"):
                with pytest.raises(CheckpointError, match=r"altered|has format"):
                    read_policy(path / "policy")
        file.write_bytes(content + b" ")
        with pytest.raises(CheckpointError, match=re.escape(name)):
            load_checkpoint(path)
        file.write_bytes(content)
    load_checkpoint(path)


def test_damage_is_told_in_plain_words() -> None:
    for error, text in (
        (TypeError("unhashable type: 'list'"), "a value is of another kind than it must be"),
        (
            ValueError("Exceeds the limit ...; use sys.set_int_max_str_digits()"),
            "it has a number of thousands of digits",
        ),
        (ValueError("lr takes a number, not 'x' (str)."), "lr takes a number, not 'x' (str)"),
        (KeyError("lr"), "it lacks 'lr'"),
    ):
        with pytest.raises(CheckpointError) as told, refusing("It"):
            raise error
        assert str(told.value) == f"It is damaged: {text}."
    with pytest.raises(ValueError, match="^it has a number of thousands of digits$"):
        read_json("[" + "1" * 9999 + "]")


def test_missing_files_and_strange_folders_are_named(tmp_path: Path) -> None:
    path, files = damaged(tmp_path)
    files["state.safetensors"].unlink()
    with pytest.raises(CheckpointError, match=r"state\.safetensors is missing"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="There is nothing at"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no checkpoint .*; found there: note.txt, other"):
        (tmp_path / "x" / "other").mkdir(parents=True)
        (tmp_path / "x" / "note.txt").touch()
        load_checkpoint(tmp_path / "x")
    with pytest.raises(CheckpointError, match="is a file"):
        load_checkpoint(tmp_path / "x" / "note.txt")
    with pytest.raises(CheckpointError, match="is not a policy: it has no policy.json"):
        read_policy(path)
    for text in ("", "[]", "{}", '{"format_version": 1}', '{"format_version": null, "checksum": ""}', "\xff"):
        files["manifest.json"].write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match="manifest.json is truncated or altered"):
            load_checkpoint(path)


def test_newer_format_says_who_wrote_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 3)
    monkeypatch.setattr(checkpoint, "_raypid_version", lambda: "9.1.0")
    path = save(tmp_path, 1, n=1)
    write_policy(tmp_path / "policy", {}, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"has format 3, written by raypid 9\.1\.0; .* up to format 2"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"policy .* has format 3, written by raypid 9\.1\.0"):
        read_policy(tmp_path / "policy")


@pytest.mark.parametrize("error", [OSError("x"), KeyboardInterrupt()], ids=repr)
def test_a_failed_save_leaves_the_old_one(tmp_path: Path, error: BaseException) -> None:
    def extra(folder: Path) -> None:
        raise error

    save(tmp_path, 1, n=1)
    for name in ("checkpoint_000001", "checkpoint_000002"):
        with pytest.raises(RuntimeError if isinstance(error, OSError) else type(error)):
            save_checkpoint(tmp_path, name, {"n": 2}, manifest={}, extra_writer=extra)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint_000001"]
    assert load_checkpoint(find(tmp_path))[0] == {"n": 1}


@pytest.mark.parametrize("step", range(6))
def test_a_crash_at_each_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Death just before a rename or a removal: nothing is cleaned up, and yet something whole is loaded."""

    class Death(BaseException):
        pass

    calls = 0

    def deadly(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > step:
                raise Death
            return function(*args, **kwargs)

        return wrapped

    for value in (1, 2):
        save(tmp_path, 1, n=value)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", deadly(Path.rename))
        patch.setattr(checkpoint.shutil, "rmtree", deadly(checkpoint.shutil.rmtree))
        try:
            save(tmp_path, 1, n=3)
        except Death:
            pass
    path = find(tmp_path)
    assert load_checkpoint(path)[0]["n"] in (2, 3)
    assert list_checkpoints(tmp_path) == [path] and read_manifest(path)["score"] is None
    save(tmp_path, 1, n=4)
    assert load_checkpoint(path)[0] == {"n": 4} and leftovers(tmp_path) == []


def test_sigkill_while_saving(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parent = tmp_path / "checkpoints"
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(parent)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "1\n"
        time.sleep(rng.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        done = int(["1", *child.stdout.read().split()][-1])
        child.wait()
        state, manifest = load_checkpoint(find(tmp_path))
        assert state["n"] in (done, done + 1) and manifest["score"] == state["n"]
        assert same(np.full(200_000, state["n"]), state["w"])
        spec, arrays, _ = read_policy(parent / "policy")
        assert spec["n"] in (done, done + 1) and same(np.full(50_000, spec["n"]), arrays["w"])
    (parent / ".tmp-checkpoint_000077-1").mkdir()
    save(parent, 2, n=0)
    assert [name for name in leftovers(parent) if "checkpoint" in name] == []


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, n=1)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "_fsync", full)
    for iteration in (1, 2):
        with pytest.raises(
            RuntimeError, match=r"disk is full: .*checkpoint_.* needs more than 8,\d\d\d bytes, [\d,]+ are"
        ):
            save(tmp_path, iteration, w=np.zeros(1000))
    monkeypatch.undo()
    assert leftovers(tmp_path) == [] and load_checkpoint(find(tmp_path))[0] == {"n": 1}


def test_really_full_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        save(tmp_path, 1, n=1)
        write_policy(tmp_path / "policy", {"n": 1}, {})
        for leaf in (np.zeros(100_000), np.zeros(100_000, "c16"), "x" * 400_000):  # safetensors, .npy, manifest
            with pytest.raises(RuntimeError, match="disk is full"):
                save(tmp_path, 2, leaf=leaf)
            with pytest.raises(RuntimeError, match="disk is full"):
                write_policy(tmp_path / "policy", {}, {"leaf": np.zeros(100_000)})
        assert leftovers(tmp_path) == [] and load_checkpoint(find(tmp_path))[0] == {"n": 1}
        assert read_policy(tmp_path / "policy")[0] == {"n": 1}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_order_and_scores(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "none") == [] and latest(tmp_path) is None
    prune(tmp_path / "none", 1)
    scores = {2: None, 10: 3.0, 9: 5.0, 1_234_567: math.nan, 999_999: 5.0, 3: -math.inf}
    for iteration, score in scores.items():
        save(tmp_path, iteration, score)
    (tmp_path / "checkpoint_1").mkdir()
    (tmp_path / "notes").mkdir()
    assert list_checkpoints(tmp_path) == [tmp_path / checkpoint_name(i) for i in sorted(scores)]
    assert latest(tmp_path) == tmp_path / "checkpoint_1234567"
    prune(tmp_path, 1)
    assert list_checkpoints(tmp_path) == [tmp_path / "checkpoint_999999", tmp_path / "checkpoint_1234567"]


def test_prune(tmp_path: Path) -> None:
    for iteration in range(1, 8):
        save(tmp_path, iteration, {2: 9.0, 5: 4.0}.get(iteration), n=iteration)
    prune(tmp_path, 2)
    assert [p.name[-1] for p in list_checkpoints(tmp_path)] == ["2", "6", "7"]
    prune(tmp_path, 5)
    assert len(list_checkpoints(tmp_path)) == 3 and leftovers(tmp_path) == []
    (tmp_path / "checkpoint_000006" / "manifest.json").write_text("")
    save(tmp_path, 8, 10.0, n=8)
    prune(tmp_path, 1)
    assert [p.name[-1] for p in list_checkpoints(tmp_path)] == ["6", "8"]


def test_what_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may become read-only between the writing of a checkpoint and the removal of an old one."""
    for iteration in (1, 2):
        save(tmp_path, iteration, None, n=iteration)

    def read_only(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", read_only)
        prune(tmp_path, 1)
    assert len(list_checkpoints(tmp_path)) == 2
    prune(tmp_path, 1)
    assert len(list_checkpoints(tmp_path)) == 1


def test_find(tmp_path: Path) -> None:
    run = tmp_path / "run"
    parent = run / "checkpoints"
    with pytest.raises(CheckpointError, match="There is nothing at"):
        find(run)
    parent.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="holds no checkpoint .*; found there: checkpoints"):
        find(run)
    paths = [save(parent, iteration, w=np.arange(100) * iteration) for iteration in (1, 2, 3)]
    assert find(run) == find(str(parent)) == find(paths[2]) == paths[2]
    assert find(paths[0]) == paths[0]
    for damaged_path in (paths[2], paths[1]):
        (damaged_path / "state.safetensors").write_bytes(b"")
    for asked in (run, parent, paths[2]):
        with pytest.raises(CheckpointError, match=rf"3 is damaged: .*truncated.* beside it is {paths[0]}\."):
            find(asked)
    (paths[0] / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="1 is not a checkpoint.* No intact checkpoint lies beside it"):
        find(paths[0])
    moved = save_checkpoint(tmp_path, "kept", {"n": 1}, manifest={})
    assert find(moved) == moved


def test_policy_replaces_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "policy"
    for number in range(3):
        spec = {"number": number, "clip": math.inf, "sizes": [64, 64]}
        write_policy(folder, spec, {"pi/0/w": np.full((2, 3), number, np.float32), "count": np.array(number)})
        assert sorted(os.listdir(folder)) == ["policy.json", "policy.safetensors"]
        loaded, arrays, _ = read_policy(folder)
        assert same(spec, loaded) and list(arrays) == ["pi/0/w", "count"] and arrays["count"].shape == ()
    assert os.listdir(folder.parent) == ["policy"]


def test_no_torch_no_ray(tmp_path: Path) -> None:
    code = "import sys; from raypid.storage.checkpoint import *; write_policy(sys.argv[1], {}, {}); read_policy(sys.argv[1]); "
    code += "assert not {'torch', 'ray', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "policy")], check=True)
