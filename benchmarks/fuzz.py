"""Give every loader altered and crafted inputs, and count what becomes of them.

    python benchmarks/fuzz.py                              # 100,000 inputs, spread over all loaders; about 15 minutes of CPU time
    python benchmarks/fuzz.py --inputs 2000 --only replay --seed 7

Folders (checkpoints, policies, replay buffers) are altered in two ways: "raw", bytes of any file, which the checksums
must catch; and "crafted", the JSON and the files, after which the checksums are made right again, so that only checks of
the structure are left. Allowed are: the unaltered content or a CheckpointError for raw; a load or a CheckpointError (a
ConfigError for other networks, an UntrustedError for code that is named) for crafted. For settings, results and command
lines: a valid value or a UserError (argparse's exit code 2). Anything else is printed with its traceback, as is an input
that takes over 20 seconds of CPU time or hangs.

While a loader runs, an audit hook forbids the import of modules that were not there before, exec of text, other processes,
connections, and writing outside the temporary folder. Hypothesis draws the crafted inputs, a byte mutator the raw ones; both
are repeated by --seed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

SLOW_S, HANGS_S = 20, 60
"""Seconds of CPU time, and of waiting. A process that somebody has paused gets one signal late, so it takes two to be hung."""
DEPTH = 1200
MOST_BYTES = 6 << 30
Check = Callable[[], str]
"""Loads what lies in the folder; returns what became of it: "loaded", or "refused" with the defined error."""


class Forbidden(BaseException):
    """Something was about to happen that no input may cause."""


class Watch:
    """An audit hook that can be switched on and off."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on, self.named = os.path.realpath(folder), False, ""
        """`named`: text of the command line, which may name modules to import."""
        self.caught: Forbidden | None = None
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def __call__(self, named: str = "") -> Iterator[None]:
        self.on, self.named, self.caught = True, named, None
        try:
            yield
        finally:
            self.on = False
        if self.caught is not None:  # somebody has swallowed it
            raise self.caught

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        bad = event.startswith(
            ("subprocess.", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect", "pickle.")
        )
        if event == "import":
            module = str(args[0])
            bad = module.split(".")[0] not in _KNOWN_MODULES and module not in self.named
        elif event == "exec":
            bad = not os.path.isabs(getattr(args[0], "co_filename", "/")) or args[0].co_filename.startswith(self.folder)
        elif event == "open":
            path, mode, flags = args
            writes = (
                bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) if isinstance(flags, int) else "r" not in str(mode)
            )
            bad = writes and not self._is_ours(path)
        elif event in (
            "os.remove",
            "os.rename",
            "os.mkdir",
            "os.rmdir",
            "shutil.rmtree",
            "os.link",
            "os.symlink",
            "os.truncate",
        ):
            bad = not self._is_ours(args[1] if event in ("os.link", "os.symlink") else args[0])
            bad |= event == "os.rename" and not self._is_ours(args[1])
        if bad:
            self.on = False
            self.caught = Forbidden(f"{event} {args!r:.200}")
            raise self.caught

    def _is_ours(self, path: object) -> bool:
        if isinstance(path, int) or path == os.devnull:
            return True
        return os.path.realpath(os.fsdecode(path)).startswith(self.folder + os.sep)  # type: ignore[arg-type]


_KNOWN_MODULES = {
    *sys.stdlib_module_names, "raypid", "numpy", "torch", "safetensors", "yaml", "gymnasium", "matplotlib", "farama_notifications",
}  # fmt: skip

# -- inputs ------------------------------------------------------------------------------------------------------------

_SPLICES = (
    b"\0", b"\xff\xfe", b"9" * 400, b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'"', b"../../etc/passwd", b"/etc/passwd",
    b'{"$npy": 0}', b'{"$tensor": "x"}', b"18446744073709551616", b"true", b"0", b"[" * 50, b"&a [*a, *a]", b"!!python/object:os.system",
)  # fmt: skip


def mutated(rng: random.Random, data: bytes) -> bytes:
    """`data` with one to three changes of a bit, a byte, or a few bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            del out[at : at + rng.randint(1, 8)]
        elif kind == 3:
            out[at:at] = out[at : at + rng.randint(1, 64)]
        elif kind == 4:
            out[at : at + rng.randint(0, 4)] = rng.choice(_SPLICES)
        elif kind == 5 and rng.random() < 0.3:
            del out[at:]
        else:
            out[at:at] = rng.randbytes(rng.randint(1, 4))
    return bytes(out)


TEXT = st.text(alphabet="aZ0._-/\\$ \0\n\u00e9\u20ac\ud800", max_size=8)
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400]),
    st.floats(), TEXT,
    st.sampled_from(["", ".", "..", "../x", "/etc/passwd", "a/../../b", "C:\\x", "nan", "1e6", "mlp", "cnn", "float32", "object", "state", "$npy",
                     "subprocess:getoutput", "os.path:join", "a.b:c"]),
)  # fmt: skip
_MARKS = st.one_of(
    st.builds(
        lambda mark, inner: {mark: inner}, st.sampled_from(["$npy", "$tensor", "$float", "$dict", "$x"]), _SCALARS
    ),
    st.just({"$npy": "../../../etc/passwd"}),
)
VALUES = st.recursive(
    _SCALARS | _MARKS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
"""What JSON can hold, with the marks of `raypid.state_tree`."""
EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from("replace delete add rename deepen copy scale".split()), VALUES),
    min_size=1,
    max_size=3,
)
"""Changes of a JSON document: (place, kind, value)."""


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found: list[tuple[Any, Any]] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            found.append((node, key))
            pending.append(value)
    return found


def edited(tree: Any, edits: list[tuple[int, str, Any]], *, avoid: tuple[str, ...] = ()) -> Any:
    """A copy of a JSON tree with some changes, none of them at the top-level keys `avoid`."""
    top = {"": copy.deepcopy(tree)}
    for number, kind, drawn in edits:
        value = copy.deepcopy(drawn)  # Hypothesis draws one object often, which would come to contain itself
        spots = [spot for spot in places(top) if spot[1] not in avoid]
        node, key = spots[number % len(spots)]
        if kind == "delete" and node is not top:
            del node[key]
        elif kind == "add" and isinstance(node[key], (dict, list)):
            node[key].append(value) if isinstance(node[key], list) else node[key].update({str(value)[:20]: value})
        elif kind == "rename" and isinstance(node, dict) and node is not top:
            node[str(value)[:20]] = node.pop(key)
        elif kind == "deepen":
            for _ in range(number % 2000):
                node[key] = [node[key]] if number % 2 else {"a": node[key]}
        elif kind == "copy":
            other, place = spots[number * 7919 % len(spots)]
            with contextlib.suppress(RecursionError):
                node[key] = copy.deepcopy(other[place])
        elif kind == "scale" and type(node[key]) in (int, float):
            node[key] = node[key] * [0, -1, 2, 0.5, 10**9, 2**62][number % 6]
        else:
            node[key] = value
    return top[""]


def sign(folder: Path) -> None:
    """Make all checksums of a checkpoint, a policy or a replay buffer right again. What cannot be parsed stays as it is."""
    for replay in folder.rglob("index.json"):
        with contextlib.suppress(Exception):
            assert not replay.is_symlink()
            index = json.loads(replay.read_bytes())
            for segment in index["segments"]:
                segment["sha256"] = _sha256(replay.parent / segment["file"])
            index["links_sha256"] = _sha256(replay.parent / "links.safetensors")
            replay.write_text(json.dumps(index))
    for name in ("policy.json", "manifest.json"):
        for head in folder.rglob(name):
            with contextlib.suppress(Exception):
                _sign_head(head)


def _sign_head(head: Path) -> None:
    assert not head.is_symlink()
    entries = json.loads(head.read_bytes())
    for name, expected in entries["files"].items():
        with contextlib.suppress(Exception):
            file = head.parent / name
            expected.update(bytes=file.stat().st_size, sha256=_sha256(file))
    entries["checksum"] = "0" * 64
    text = json.dumps(entries)
    head.write_text(text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1))


def _sha256(file: Path) -> str:
    assert not file.is_symlink()  # it may lead to a device without an end
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Fixture:
    """A folder that is altered and put back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {
            p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
        }

    def put_back(self) -> None:
        """Restore what was altered."""
        here = {p.relative_to(self.folder).as_posix(): p for p in self.folder.rglob("*") if not p.is_dir()}
        for name in here.keys() - self.files.keys():
            here[name].unlink()
        for name, content in self.files.items():
            file = self.folder / name
            if file.is_symlink() or name not in here or file.read_bytes() != content:
                file.unlink(missing_ok=True)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)

    def alter(self, rng: random.Random) -> None:
        """Change bytes of a file; now and then remove one, put a link in its place, or exchange two."""
        name = rng.choice(list(self.files))
        file, chance = self.folder / name, rng.random()
        if chance < 0.03:
            file.unlink()
        elif chance < 0.05:
            file.unlink()
            file.symlink_to(rng.choice(["/etc/passwd", "..", str(self.folder), "nowhere", "/dev/zero"]))
        elif chance < 0.08:
            file.write_bytes(self.files[rng.choice(list(self.files))])
        else:
            file.write_bytes(mutated(rng, self.files[name]))

    def craft(self, number: int, edits: list[tuple[int, str, Any]]) -> None:
        """Change the JSON files, or an array's header or numbers, and make the checksums right again."""
        rng = random.Random(number)
        heads = [name for name in self.files if name.endswith(".json")]
        arrays = [name for name in self.files if not name.endswith(".json")]
        if arrays and number % 4 == 0:
            file = self.folder / rng.choice(arrays)
            file.write_bytes(_crafted_arrays(file.read_bytes(), rng, edits))
        else:
            file = self.folder / rng.choice(heads)
            tree = edited(json.loads(file.read_bytes()), edits, avoid=("checksum",) if number % 8 else ())
            with contextlib.suppress(RecursionError, ValueError):
                file.write_text(json.dumps(tree))
        if number % 50 == 0:
            self.alter(rng)
        sign(self.folder)


def _crafted_arrays(data: bytes, rng: random.Random, edits: list[tuple[int, str, Any]]) -> bytes:
    """A safetensors or .npy file with another header, or arrays of other dtypes and shapes."""
    if data[:1] == b"\x93" or rng.random() < 0.2:
        return mutated(rng, data)
    from safetensors.numpy import load, save

    if rng.random() < 0.5:
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.dumps(edited(json.loads(data[8 : 8 + size]), edits)).encode()
        except (RecursionError, ValueError):
            header = b"[" * 3000
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    arrays = load(data)
    name = rng.choice(list(arrays) or ["x"])
    array = arrays.pop(name, np.zeros(3))
    change = rng.randrange(8)
    with contextlib.suppress(Exception), np.errstate(all="ignore"):
        if change == 0:
            array = array.astype(rng.choice(["int64", "float64", "bool", "uint8", "float16", "int32"]))
        elif change == 1:
            array = array[: len(array) // 2]
        elif change == 2:
            array = array[None]
        elif change == 3:
            array = np.concatenate([array, array])
        elif change == 4:
            array = array * array.dtype.type(rng.choice([0, -1, 100]))
        elif change == 5:
            array = np.full_like(array, rng.choice([np.nan, np.inf, -1, 2**40]))
        elif change == 6:
            name += "x"
        else:
            array = np.array(rng.choice([0.0, 1, True]))
    return bytes(save({**arrays, name: np.ascontiguousarray(array)}))


# -- loaders -----------------------------------------------------------------------------------------------------------


def refused(check: Callable[[], object], *, may_lack_network: bool = False) -> str:
    """Run a loader; returns what became of it. Anything but the defined errors is raised.

    Args:
        may_lack_network: a UserError that a network is not registered is one of them.
    """
    from raypid.errors import UserError
    from raypid.plugins.trust import UntrustedError
    from raypid.settings.config import ConfigError
    from raypid.storage.checkpoint import CheckpointError

    try:
        check()
    except UserError as error:
        is_network = may_lack_network and type(error) is UserError and str(error).startswith("Unknown network ")
        if not is_network and not isinstance(error, (CheckpointError, ConfigError, UntrustedError)):
            raise
        _assert_plain(error)
        return "refused"
    return "loaded"


def _assert_plain(error: BaseException) -> None:
    """Errors are of one line and of bounded length, and do not stand for memory that ran out."""
    cause: BaseException | None = error
    while cause is not None:
        assert not isinstance(cause, MemoryError), "more memory was asked for than there is"
        cause = cause.__cause__
    assert "\n" not in str(error).strip() and len(str(error)) < 5000, (
        f"the message is not one short line: {error!s:.300}"
    )


class Loader:
    """What is given inputs. `crafted` and `raw` alter; `check` loads."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def raw(self, rng: random.Random) -> Check:
        raise NotImplementedError

    def crafted(self, number: int, edits: list[tuple[int, str, Any]]) -> Check:
        raise NotImplementedError

    def put_back(self) -> None: ...

    def named(self) -> str:
        """Text of a command line, whose modules may be imported."""
        return ""


class FolderLoader(Loader):
    """Loads one of several folders."""

    may_lack_network = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fixtures = [Fixture(place) for place in self.made()]
        self.expected = [self.load(fixture.folder) for fixture in self.fixtures]

    def made(self) -> list[Path]:
        """Write the folders."""
        raise NotImplementedError

    def load(self, folder: Path) -> object:
        """Load a folder; returns its content as something that can be compared."""
        raise NotImplementedError

    def _checked(self, index: int, *, same: bool) -> Check:
        def check() -> str:
            found: list[object] = []
            outcome = refused(
                lambda: found.append(self.load(self.fixtures[index].folder)), may_lack_network=self.may_lack_network
            )
            if same and found:
                assert found[0] == self.expected[index], "altered content was loaded"
            return outcome

        self.last = self.fixtures[index]
        return check

    def raw(self, rng: random.Random) -> Check:
        index = rng.randrange(len(self.fixtures))
        self.fixtures[index].alter(rng)
        return self._checked(index, same=True)

    def crafted(self, number: int, edits: list[tuple[int, str, Any]]) -> Check:
        index = number % len(self.fixtures)
        self.fixtures[index].craft(number // len(self.fixtures), edits)
        return self._checked(index, same=False)

    def put_back(self) -> None:
        self.last.put_back()


SMALL: dict[str, Any] = {"num_envs_per_worker": 2, "seed": 1, "evaluation_interval": 0, "model.hidden": (8,)}
REPLAY: dict[str, Any] = {
    **SMALL,
    "start_steps": 8,
    "batch_size": 8,
    "fragment_length": 4,
    "buffer_size": 64,
    "steps_per_iteration": 32,
    "samples_per_insert": 1.0,
    "save_replay": True,
}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("PPO", {**SMALL, "env": "CartPole-v1", "fragment_length": 8, "batch_size": 8, "normalize_observations": True, "normalize_rewards": True}),
    "impala": ("IMPALA", {**SMALL, "env": "CartPole-v1", "fragment_length": 8}),
    "es": ("ES", {**SMALL, "env": "CartPole-v1", "population": 4}),
    "dqn": ("DQN", {**REPLAY, "env": "CartPole-v1", "prioritized": True}),
    "sac": ("SAC", {**REPLAY, "env": "Pendulum-v1"}),
    "r2d2": ("R2D2", {**REPLAY, "env": "CartPole-v1", "sequence_length": 4, "burn_in": 2, "model.memory_size": 4}),
}  # fmt: skip


def digest(tree: object) -> str:
    """A checksum of nested dicts and lists of arrays and values."""
    found = hashlib.sha256()
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            found.update(f"{len(node)} {list(node)!r}".encode("utf-8", "surrogatepass"))
            pending += node.values()
        elif isinstance(node, (list, tuple)):
            found.update(f"{len(node)}".encode())
            pending += node
        elif isinstance(node, np.ndarray):
            found.update(f"{node.dtype} {node.shape}".encode() + node.tobytes())
        else:
            found.update(repr(node)[:10_000].encode("utf-8", "surrogatepass"))
    return found.hexdigest()


class Checkpoints(FolderLoader):
    """Manifest, state and policy of checkpoints, without an agent."""

    name = "checkpoint"

    def made(self) -> list[Path]:
        from raypid.agents import Agent
        from raypid.storage.checkpoint import save_checkpoint, write_policy

        def extra(place: Path) -> None:
            write_policy(place / "policy", {"n": 1}, {"w": np.arange(4.0)})

        state = {
            "w": np.arange(4.0),
            "names": np.array(["a", "b"]),
            "when": [np.zeros(2, "M8[s]"), {"x": float("nan")}],
            "n": 2**70,
        }
        folders = [
            save_checkpoint(
                self.folder / "odd", "checkpoint_000001", state, manifest={"score": 1.0}, extra_writer=extra
            )
        ]
        for name in ("ppo", "dqn", "es"):
            run, config = AGENTS[name]
            with Agent(run, config, out=self.folder / name) as agent:
                agent.train()
                folders.append(agent.save())
        return folders

    def load(self, folder: Path) -> object:
        from raypid.storage import checkpoint

        checkpoint.prune(folder.parent, 1)
        manifest, opened = checkpoint.read_manifest(folder), checkpoint.open_checkpoint(folder.parent)
        return digest((opened.state(), opened.manifest)) + digest(manifest)


class Agents(FolderLoader):
    """`Agent.restore`, with the learner, the workers and the replay buffer."""

    name = "restore"

    def made(self) -> list[Path]:
        from raypid.agents import Agent

        self.agents = []
        folders = []
        for name, (run, config) in AGENTS.items():
            agent = Agent(run, config, out=self.folder / name)
            agent.train()
            agent.train()
            folders.append(agent.save())
            self.agents.append((folders[-1], agent))
        return folders

    def load(self, folder: Path) -> object:
        agent = next(agent for place, agent in self.agents if place == folder)
        agent.notes.clear()
        agent.restore(folder)
        replay = agent.context.replay
        learner = agent.context.learner.role if replay is not None else None  # type: ignore[attr-defined]
        if learner is not None and learner.replay.buffer.num_ready:
            learner.algorithm.sample_from(learner.replay.buffer, 1, 0.4)
        weights = agent.get_weights()
        return digest(
            [weights.flat, weights.extra, agent.totals(), [] if learner is None else learner.replay.buffer.columns]
        )


class Policies(FolderLoader):
    """`read_policy_weights`, `load_policy` and acting."""

    name = "policy"
    may_lack_network = True

    def made(self) -> list[Path]:
        from raypid.agents import Agent

        extra: dict[str, tuple[str, dict[str, Any]]] = {
            **{name: AGENTS[name] for name in ("ppo", "dqn", "sac")},
            "lstm": ("PPO", {**SMALL, "env": "raypid/DictCartPole-v0", "model.memory": "gru", "model.memory_size": 4, "frame_stack": 2}),
            "match": ("PPO", {**SMALL, "env": "raypid/MultiMatch-v0"}),
            "rainbow": ("Rainbow", {**REPLAY, "env": "CartPole-v1", "save_replay": False, "num_atoms": 5}),
        }  # fmt: skip
        folders = []
        for name, (run, config) in extra.items():
            with Agent(run, config, out=self.folder / name) as agent:
                agent.write_policy(self.folder / name / "best")
                folders.append(self.folder / name / "best")
        return folders

    def load(self, folder: Path) -> object:
        import raypid
        from raypid.nn.policy import read_policy_weights
        from raypid.run.deploy import environment_of

        spec, weights, info, _ = read_policy_weights(folder)
        raypid.load_policy(folder.parent)
        environment_of(folder)
        return digest([spec.to_dict(), weights.flat, weights.extra, weights.version, info])


class Replays(FolderLoader):
    """Replay buffers by themselves; their index is under no checksum here."""

    name = "replay"

    def made(self) -> list[Path]:
        from raypid.agents import Agent

        self.buffers: dict[Path, Any] = {}
        for name in ("dqn", "sac", "r2d2"):
            run, config = AGENTS[name]
            agent = Agent(run, config, out=self.folder / name)
            for _ in range(3):
                agent.train()
            buffer = agent.context.learner.role.replay.buffer  # type: ignore[attr-defined]
            buffer.save(self.folder / name / "a")
            agent.train()
            buffer.save(self.folder / name / "b", self.folder / name / "a")
            self.buffers[self.folder / name / "b"] = buffer
        return list(self.buffers)

    def load(self, folder: Path) -> object:
        buffer = self.buffers[folder]
        buffer.load(folder)
        with np.errstate(all="ignore"):
            sample = buffer.sample(8, 0.4) if buffer.num_ready else None
        del sample
        return digest(buffer.columns)

    def raw(self, rng: random.Random) -> Check:
        check = super().raw(rng)
        index = next(i for i, fixture in enumerate(self.fixtures) if fixture is self.last)
        head = self.last.folder / "index.json"
        is_signed = not head.is_file() or head.read_bytes() == self.last.files["index.json"]
        return check if is_signed else self._checked(index, same=False)


DOCUMENTS = (
    "lr: 0.001\nmodel:\n  hidden: [64, 64]\n  activation: relu\nenv: CartPole-v1\ngamma: 0.99\n",
    '{"lr": 0.001, "model": {"hidden": [64, 64]}, "env": "CartPole-v1", "num_envs_per_worker": 4, "time_limit": 100}',
    "base: &a {x: 1, y: [1, 2]}\nenv_config: *a\nenv: CartPole-v1\nbatch_size: 1e3\nfragment_length: 64\n",
    '{"timesteps_total": 1000, "evaluation/episode_reward_mean": 200.0}',
)


class SettingsFiles(Loader):
    """YAML and JSON for --config and --stop, up to the checked settings."""

    name = "settings"

    def _check(self, file: Path) -> Check:
        from raypid.errors import UserError
        from raypid.run.known_keys import check_stop, known_keys
        from raypid.run.resolve import resolve_config
        from raypid.settings.files import read_values

        def check() -> str:
            outcomes = []
            for run, option in (("PPO", "--config"), ("DQN", "--config"), ("SAC", "--stop")):
                try:
                    if option == "--stop":
                        check_stop(
                            read_values(str(file), option),
                            self.known or known_keys(run, resolve_config(run, {"env": "Pendulum-v1"})),
                        )
                    else:
                        resolve_config(run, {"env": "CartPole-v1", **read_values(str(file), option)})
                    outcomes.append("loaded")
                except UserError as error:
                    _assert_plain(error)
                    outcomes.append("refused")
            return "loaded" if "loaded" in outcomes else "refused"

        return check

    known: Any = None

    def raw(self, rng: random.Random) -> Check:
        text = rng.choice(DOCUMENTS)
        file = self.folder / ("settings.json" if text.startswith("{") and rng.random() < 0.5 else "settings.yaml")
        file.write_bytes(mutated(rng, text.encode()))
        return self._check(file)

    def crafted(self, number: int, edits: list[tuple[int, str, Any]]) -> Check:
        import yaml

        tree = edited(yaml.safe_load(DOCUMENTS[number % len(DOCUMENTS)]), edits)
        file = self.folder / ("settings.json" if number % 3 else "settings.yaml")
        with contextlib.suppress(RecursionError, ValueError, yaml.YAMLError):
            file.write_text(json.dumps(tree) if number % 3 else yaml.safe_dump(tree))
            return self._check(file)
        file.write_text("[" * 3000)
        return self._check(file)


class Results(Loader):
    """params.json and result.json, as `plot` and a resumed run read them."""

    name = "results"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows = [
            {"training_iteration": i, "timesteps_total": 64 * i, "episode_reward_mean": None if i < 2 else 9.5}
            for i in range(1, 6)
        ]
        self.params = {
            "run": "PPO",
            "env": "CartPole-v1",
            "seed": 1,
            "stop": {"timesteps_total": 1000},
            "model": {"hidden": [8]},
        }

    def _write(self, params: bytes, results: bytes) -> Check:
        from raypid.errors import UserError
        from raypid.report.comparison import Side, check_one_setting, compare, headline
        from raypid.report.logger import RunLogger, read_params, read_results
        from raypid.report.plots import View, curves
        from raypid.report.runs import find_runs
        from raypid.report.summary_table import summary_table

        def plot(folder: Path) -> object:
            return curves(find_runs([folder])[0], View())

        def side(folder: Path, name: str) -> Side:
            runs, _ = find_runs([folder])
            for run in runs:
                run.params["out"] = name
            check_one_setting(runs, name)
            return Side(name, runs)

        def tell(folder: Path) -> object:
            return headline(compare([side(folder, name) for name in "ab"]))

        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (self.folder / "params.json").write_bytes(params)
        (self.folder / "result.json").write_bytes(results)

        def check() -> str:
            outcome = "loaded"
            ours = (plot, tell, lambda folder: summary_table([folder]))
            for load in (
                read_params,
                read_results,
                *ours,
                lambda folder: RunLogger(folder, resume_iteration=3).close(),
            ):
                try:
                    load(self.folder)
                except UserError as error:
                    _assert_plain(error)
                    outcome = "refused"
            return outcome

        return check

    def raw(self, rng: random.Random) -> Check:
        params, results = (
            json.dumps(self.params).encode(),
            "".join(json.dumps(row) + "\n" for row in self.rows).encode(),
        )
        return (
            self._write(mutated(rng, params), results)
            if rng.random() < 0.3
            else self._write(params, mutated(rng, results))
        )

    def crafted(self, number: int, edits: list[tuple[int, str, Any]]) -> Check:
        try:
            params = json.dumps(edited(self.params, edits)).encode()
            rows = edited(self.rows, edits)
            results = "".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows])).encode()
        except (RecursionError, ValueError):
            params = results = b"[" * 3000
        return self._write(params, results)


class Reached(BaseException):
    """The command line was accepted: training, an evaluation or a plot would begin."""


WORDS = (
    "train", "eval", "plot", "compare", "list", "--run", "PPO", "DQN", "SAC", "ES", "--env", "CartPole-v1", "--stop", '{"timesteps_total": 100}',
    "--config", '{"lr": 0.1}', "--lr", "0.001", "--model.hidden", "[8, 8]", "--out", "run", "--resume", "saved", "saved/checkpoints", "--quiet",
    "--overwrite", "--tuned", "--num-workers", "2", "--seed", "-1", "1e400", "--gamma=2", "--model.activation", "relu", "--help", "--version",
    "--episodes", "--json", "--explore", "--video", "a.gif", "envs", "agents", "--x", "steps", "--env-config", "{}", "--checkpoint-interval", "0",
    "--keep-checkpoints", "--final-episodes", "nan", "null", "true", "9" * 400, "[" * 3000, "x" * 5000, "\0", "--", "-", "@x", "--num_learners=3",
    "/proc/x/y", "/dev/null", "../x", "--model", '{"hidden": [1]}', "settings.yaml", "--backend", "local", "--batch-size", "64", "-f", "--dry-run",
    "sweep.yaml", "--max-concurrent", "--at", "--on-the-way",
)  # fmt: skip


class CommandLines(Loader):
    """`raypid ...`, parsed in this process up to where training, an evaluation or a plot would begin."""

    name = "command line"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import raypid.cli.experiment
        import raypid.run.reproduce  # noqa: F401  # making its dataclasses would count as running code
        from raypid.agents import Agent
        from raypid.settings.config import type_hints
        from raypid.settings.files import Words
        from raypid.sweep.experiment import Resources
        from raypid.sweep.population import Population

        for words in (Words, Resources, Population):
            type_hints(words)  # so would reading their types

        run, config = AGENTS["ppo"]
        with Agent(run, config, out=folder / "saved") as agent:
            agent.train()
            agent.save()
            (folder / "saved" / "params.json").write_text(json.dumps({"run": run, "stop": {"timesteps_total": 100}}))
            (folder / "saved" / "result.json").write_text('{"training_iteration": 1, "timesteps_total": 16}\n')
        (folder / "settings.yaml").write_text("lr: 0.1\n")
        (folder / "sweep.yaml").write_text(
            "run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 9}\nlr: {grid_search: [1e-3, 1e-4]}\n"
        )

    def _check(self, argv: list[str]) -> Check:
        self.argv = argv

        def check() -> str:
            with (
                self._stopped(),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()) as told,
            ):
                from raypid.cli import _command

                try:
                    code = _command(argv)
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 1
                except Reached:
                    code = 0
            lines = told.getvalue().splitlines()
            assert code in (0, 2), f"exit code {code}: {lines}"
            assert len(lines) <= 1 and len("".join(lines)) < 20_000, f"{len(lines)} lines: {told.getvalue():.500}"
            return "refused" if code else "loaded"

        return check

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Where a command would begin its work, `Reached` is raised in its place."""
        from unittest import mock

        def reached(*args: object, **more: object) -> None:
            raise Reached

        agent = "raypid.run.agent.Agent"
        before = os.getcwd(), list(sys.path), dict(os.environ)
        os.chdir(self.folder)
        try:
            with (
                mock.patch(f"{agent}.__init__", reached), mock.patch(f"{agent}.from_checkpoint", reached),
                mock.patch("raypid.run.resolve.look", reached), mock.patch("raypid.run.agent.look", reached),
                mock.patch("raypid.run.deploy.evaluate_policy", reached),
                mock.patch("raypid.report.runs.find_runs", reached), mock.patch("raypid.envs.list_envs", reached),
                mock.patch("raypid.cli.experiment._run", reached),
            ):  # fmt: skip
                yield
        finally:
            os.chdir(before[0])
            sys.path[:] = before[1]

    def named(self) -> str:
        return " ".join(self.argv)

    def raw(self, rng: random.Random) -> Check:
        start = ["train", "--run", rng.choice(["PPO", "DQN", "SAC"]), "--env", "CartPole-v1"]
        words = (
            [*start, *rng.choices(WORDS, k=rng.randint(0, 5))]
            if rng.random() < 0.7
            else rng.choices(WORDS, k=rng.randint(0, 6))
        )
        if words and rng.random() < 0.7:
            at = rng.randrange(len(words))
            words[at] = mutated(rng, words[at].encode()).decode("utf-8", "surrogateescape")
        return self._check(words)

    def crafted(self, number: int, edits: list[tuple[int, str, Any]]) -> Check:
        words = ["train", "--run", ("PPO", "DQN", "A2C")[number % 3], "--env", "CartPole-v1"]
        flags = [word for word in WORDS if word.startswith("--") and "help" not in word]
        for place, kind, value in edits:
            with contextlib.suppress(RecursionError, ValueError):
                text = value if isinstance(value, str) else json.dumps(value)
                words += [flags[place % len(flags)], *([] if kind == "delete" else [text])]
        return self._check(words)


LOADERS: dict[str, type[Loader]] = {
    loader.name: loader for loader in (Checkpoints, Agents, Policies, Replays, SettingsFiles, Results, CommandLines)
}

# -- running -----------------------------------------------------------------------------------------------------------


_alarms: list[int] = []


def limit_time(seconds: int | None) -> None:
    """Raise `Forbidden` after so many seconds of CPU time, or at the second alarm; None: not any more."""
    _alarms.clear()
    signal.setitimer(signal.ITIMER_PROF, seconds or 0)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S if seconds else 0, HANGS_S if seconds else 0)


def _on_alarm(number: int, frame: object) -> None:
    _alarms.append(number)
    if number == signal.SIGPROF or len(_alarms) == 2:
        raise Forbidden(f"it took longer than {SLOW_S} s" if number == signal.SIGPROF else "it hangs")


class Fuzz:
    """Gives a loader inputs and counts what becomes of them."""

    def __init__(self, name: str, folder: Path, watch: Watch) -> None:
        self.watch = watch
        place = folder / name.replace(" ", "_")
        place.mkdir()
        self.loader = LOADERS[name](place)
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, tuple[int, str]] = {}
        """Last line of a traceback -> (how often, the whole of the first)."""

    def one(self, way: str, alter: Callable[[], Check]) -> None:
        """Alter, load, count, put back."""
        before = sys.getrecursionlimit()
        try:
            check = alter()
            limit_time(SLOW_S)
            sys.setrecursionlimit(DEPTH)  # Hypothesis raises it
            with self.watch(self.loader.named()):
                outcome = check()
        except (Exception, Forbidden) as error:
            outcome = "FAILED"
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "/raypid/" in f.filename]
            key = (
                f"{type(error).__name__}: {error!s:.60} at {frames[-1].filename.split('/raypid/')[-1]}:{frames[-1].lineno}"
                if frames
                else repr(error)[:100]
            )
            key = re.sub(r"0x[0-9a-f]+", "0x", key)
            number, text = self.failures.get(
                key, (0, f"{way} {getattr(self.loader, 'argv', '')!r:.300}\n" + traceback.format_exc()[-6000:])
            )
            if not number:
                print(f"--- {self.loader.name}: {key}\n{text}", flush=True)
            self.failures[key] = (number + 1, text)
        finally:
            limit_time(None)
            sys.setrecursionlimit(before)
            self.loader.put_back()
        self.counts[f"{way} {outcome}"] += 1

    def run(self, num_inputs: int, start: int) -> None:
        """Half of the inputs raw, half crafted."""
        rng = random.Random(f"{start} {self.loader.name}")
        for _ in range(num_inputs // 2):
            self.one("raw", lambda: self.loader.raw(rng))

        @seed(start)
        @settings(
            max_examples=num_inputs - num_inputs // 2, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )  # fmt: skip
        @given(number=st.integers(0, 2**32), edits=EDITS)
        def crafted(number: int, edits: list[tuple[int, str, Any]]) -> None:
            self.one("crafted", lambda: self.loader.crafted(number, edits))

        crafted()


def _import_everything() -> None:
    """Import what a loader may import later, because dataclasses are made by exec."""
    from importlib import import_module
    from unittest import mock

    import yaml
    from rich import console, table

    from raypid.cli import COMMANDS
    from raypid.plugins.registry import ALGORITHMS
    from raypid.settings.config import Config, ModelConfig, type_hints

    assert yaml and mock and console and table  # rich imports parts of itself when it first draws
    for settings_class in (Config, ModelConfig):
        type_hints(settings_class)
    for name in ALGORITHMS.names():
        type_hints(ALGORITHMS.get(name).Config)
    for name in (
        *(f"cli.{command.replace('-', '_')}" for command in COMMANDS),
        "deploy",
        "run.run",
        "reporting.comparison",
        "reporting.plots",
        "reporting.summary_table",
        "reporting.panel",
        "tuned",
    ):
        import_module(f"raypid.{name}")


@contextlib.contextmanager
def watched() -> Iterator[tuple[Path, Watch]]:
    """A temporary folder, and the hook that confines writing to it. (Hooks cannot be removed: it stays, switched off.)"""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    set_hypothesis_home_dir(folder / "hypothesis")

    _import_everything()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    before = {number: signal.signal(number, _on_alarm) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        yield folder, Watch(folder)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", action="append", choices=tuple(LOADERS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = options.only or list(LOADERS)
    failed = 0
    with watched() as (folder, watch):
        for name in names:
            started = time.perf_counter()
            fuzz = Fuzz(name, folder, watch)
            fuzz.run(options.inputs // len(names), options.seed)
            failed += len(fuzz.failures)
            seconds = time.perf_counter() - started
            print(
                f"{name}: {sum(fuzz.counts.values()):,} inputs in {seconds:.0f} s, seed {options.seed}: {dict(sorted(fuzz.counts.items()))}",
                flush=True,
            )
            for key, (number, _) in fuzz.failures.items():
                print(f"--- {number} times: {key}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    re.purge()
    sys.exit(main())
