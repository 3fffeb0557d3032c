"""Record what raypid does: weights, results, settings, messages and files. A change that changes nothing keeps all of it.

    python benchmarks/record.py before.json --package OTHER    # another checkout; default: the one that Python finds
    python benchmarks/record.py after.json                     # 4 to 9 minutes on 2 cores; --only weights: a part of it
    python benchmarks/record.py --compare before.json after.json

The script takes what is public in Python, the command line, and the JSON files of runs, so it records every version alike.
Compare records of one machine: weights depend on the processor and on NumPy's and torch's builds. What is recorded: record_cases.py.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from record_cases import (
    COMMANDS,
    DISTRIBUTED,
    EVERY_HELP,
    EXPLAINED,
    FILES,
    IN_STEP,
    ITERATIONS,
    LOCAL,
    OUT_OF_STEP,
    POLE,
    ROOT,
    RUNS,
    SHORTCUTS,
    Settings,
)

SAVED = ROOT / "tests" / "fixtures" / "saved"
JSON = Any
"""What a JSON file holds."""

# -- weights ---------------------------------------------------------------------------------------------------------


def digest(weights: Any) -> str:
    """Hash a raypid `Weights`: the flat buffer, and each extra array by its name."""
    found = hashlib.sha256(weights.flat.tobytes())
    for name, array in sorted(weights.extra.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def is_timed(key: str) -> bool:
    """Tell whether a result depends on how fast the machine is."""
    return key.startswith(("timing/", "time_")) or key.endswith(("_per_s", "_s", "_mb")) or key == "date"


def steady(result: Mapping[str, object]) -> JSON:
    """The results that are the same each time; NaN, which equals nothing, as text."""
    numbers = {key: value for key, value in result.items() if not is_timed(key)}
    return {key: "nan" if isinstance(x, float) and math.isnan(x) else x for key, x in numbers.items()}


def trained(run: str, env: str, settings: Settings) -> JSON:
    """Train and evaluate; returns the digest of the weights and both results, or what was raised."""
    import raypid

    try:
        with raypid.Agent(run, {"env": env, **settings}) as agent:
            for _ in range(ITERATIONS):
                result = agent.train()
            played = agent.eval(num_eval_episodes=2)
            return {"weights": digest(agent.get_weights()), "result": steady(result), "evaluation": steady(played)}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}


def distributed() -> JSON:
    """Train a DistributedAgent, which has actors, learners and storages; returns its results."""
    import raypid

    with raypid.IMPALAAgent(POLE, tag="impala", **DISTRIBUTED) as agent:
        agent.train(128, eval_interval=64, save_interval=0, num_eval_episodes=2, log_interval=0)
        rows = [json.loads(line) for line in (agent.folder / "result.json").read_text().splitlines()]
        return [steady(row) for row in rows]


def weights(files: Path) -> Iterator[tuple[str, JSON]]:
    for name, run in LOCAL.items():
        yield name, trained(*run)
    yield "IMPALAAgent", distributed()


def on_ray(files: Path) -> Iterator[tuple[str, JSON]]:
    import ray

    ray.init(address="local", num_cpus=8, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level=40)
    for name, run in IN_STEP.items():
        yield name, trained(*run)
    for name, run in OUT_OF_STEP.items():
        found = trained(*run)
        yield name, sorted(found.get("result", found))
    ray.shutdown()


# -- the command line ------------------------------------------------------------------------------------------------

VOLATILE = [
    (r"\b\d{4}-\d\d-\d\d[ T_]\d\d[:-]\d\d([:-]\d\d)?|\d{8}-\d{6}", "DATE"),
    (r"Speed: .*", "Speed"),
    (r"\S+ \S+ on average[^;\n]*", "N on average"),
    (r'"((?:mean|median|p5|p95|max|made_in)_s|seconds|mb_per_\w+)": [\d.e-]+', r'"\1": N'),
    (r"(?<![\w.])\d[\d,]*(\.\d+)?(e-?\d+)? ?(s|ms|µs|us|min|MB|GB|MiB|GiB|steps/s|x real time)\b", r"N \3"),
    (r"(events\.out\.tfevents\.|\bpid |port )\S+", r"\1N"),
    (r"\b0x[0-9a-f]{6,}", "0xN"),
]


def normalised(text: str, folder: Path) -> str:
    """`text` without what changes from one time to the next: folders, dates, times, sizes of memory, ports."""
    for place, name in ((str(folder), "."), (str(ROOT), "CHECKOUT"), (os.environ["CHECKOUT"], "CHECKOUT")):
        text = text.replace(place, name)
    for pattern, instead in VOLATILE:
        text = re.sub(pattern, instead, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def bash(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line that may use SHORTCUTS, with this package's `raypid`."""
    own = "\n".join(f'{name}="{text}"' for name, text in SHORTCUTS.items())
    script = f'raypid() {{ timeout 240 {sys.executable} -m raypid "$@"; }}\n{own}\n{line}'
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def shell(line: str, files: Path) -> dict[str, Any]:
    """Run a command line in a copy of the folder `files`; returns its exit code, stdout and stderr."""
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        folder = Path(scratch).resolve() / "here"
        shutil.copytree(files, folder)
        done = bash(line, folder)
        printed = {"stdout": normalised(done.stdout, folder), "stderr": normalised(done.stderr, folder)}
        return {"exit code": done.returncode, **printed}


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "cut": ("state.safetensors", lambda data: data[:-100]),
    "byte": ("state.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "half": ("manifest.json", lambda data: data[:200]),
    "later": ("manifest.json", lambda data: json.dumps({**json.loads(data), "format_version": 99}).encode()),
    "cut_policy": ("best/policy.safetensors", lambda data: data[:-1]),
    "theirs": ("params.json", lambda data: data.replace(b'"CartPole-v1"', b'"subprocess:getoutput"')),
}
"""Folder in damaged/ -> the file that is altered, the newest of that name, and how."""


def folder_of_files(folder: Path) -> Path:
    """Write what every command finds: FILES, RUNS, and damaged copies of runs/ppo."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copytree(SAVED, folder / "saved")
    shutil.copy(ROOT / "examples" / "experiments" / "cartpole-grid.yaml", folder)
    for name, command in RUNS.items():
        bash(f"{command} --out runs/{name}", folder).check_returncode()
    for name, (altered, change) in DAMAGE.items():
        shutil.copytree(folder / "runs" / "ppo", folder / "damaged" / name)
        file = sorted((folder / "damaged" / name).rglob(altered))[-1]
        file.write_bytes(change(file.read_bytes()))
    return folder


def in_pairs(work: Callable[[str], JSON], items: list[str]) -> Iterator[tuple[str, JSON]]:
    """(item, work(item)) for each, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield from zip(items, pool.map(work, items), strict=True)


def commands(files: Path) -> Iterator[tuple[str, JSON]]:
    lines = [line for line in COMMANDS.splitlines() if line and not line.startswith("#")]
    yield from in_pairs(partial(shell, files=files), [*lines, *map(EVERY_HELP.format, algorithms())])


# -- --explain -------------------------------------------------------------------------------------------------------


def explained(options: str, files: Path) -> JSON:
    """What `--explain --json` prints, without what a node has and what is left of it."""
    done = shell(f"raypid train {options} --explain --json", files)
    if done["exit code"]:
        return done
    found = json.loads(done["stdout"])
    for node in found["placement"]:
        for machine in ("id", "left", "total"):
            node.pop(machine, None)
    return found


def explain(files: Path) -> Iterator[tuple[str, JSON]]:
    rows = [line.rpartition(": ") for line in EXPLAINED.split("\n") if line]
    pairs = [f"--run {run} --env {env} --seed 0" for run, _, envs in rows for env in envs.split()]
    yield from in_pairs(partial(explained, files=files), pairs)


# -- saved runs ------------------------------------------------------------------------------------------------------


def resumed(name: str) -> JSON:
    """Load what an earlier version saved, act, and train one iteration more."""
    import gymnasium

    import raypid

    trust = name == "custom_model"  # names a class of its own, and was not signed then
    policy = raypid.load_policy(SAVED / name, trust=trust)
    params = SAVED / name / "params.json"
    env = json.loads(params.read_text())["env"] if params.exists() else POLE
    found: JSON = {"action": str(policy.act(gymnasium.make(env).reset(seed=0)[0]))}
    if params.exists():
        with raypid.Agent.from_checkpoint(SAVED / name, trust=trust) as agent:
            found["weights"] = digest(agent.get_weights())
            found["result"] = steady(agent.train())
            found["weights after one iteration"] = digest(agent.get_weights())
    return found


def saved(files: Path) -> Iterator[tuple[str, JSON]]:
    for name in (names := sorted(path.name for path in SAVED.iterdir() if path.is_dir())):
        yield name, resumed(name)
    yield from in_pairs(partial(explained, files=files), [f"--resume saved/{name} --seed 1 --trust" for name in names])
    for command in ("raypid doctor saved/{}", "raypid eval saved/{} --episodes 2 --seed 0 --trust"):
        yield from in_pairs(partial(shell, files=files), [command.format(name) for name in names])


# -- files of runs ---------------------------------------------------------------------------------------------------


def files_of_runs(files: Path) -> Iterator[tuple[str, JSON]]:
    for name in RUNS:
        folder = files / "runs" / name
        rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
        params = json.loads((folder / "params.json").read_text())
        yield (
            name,
            {
                "files": sorted(
                    normalised(path.relative_to(folder).as_posix(), files)
                    for path in folder.rglob("*")
                    if path.is_file()
                ),
                "keys of results": [list(row) for row in rows],
                "results": [steady(row) for row in rows],
                "params": {key: value for key, value in params.items() if key != "signature"},
            },
        )


# -- all of it -------------------------------------------------------------------------------------------------------


def algorithms() -> list[str]:
    import raypid

    return [
        name
        for name in dir(raypid)
        if isinstance(cls := getattr(raypid, name), type) and getattr(cls, "algorithm", None) == name
    ]


SECTIONS: dict[str, Callable[[Path], Iterator[tuple[str, JSON]]]] = {
    "files": files_of_runs, "commands": commands, "explain": explain, "saved": saved, "weights": weights, "ray": on_ray,
}  # fmt: skip


def record(out: Path, sections: Sequence[str]) -> None:
    """Write what this process's raypid does to the file `out`."""
    out, scratch = out.resolve(), Path(os.environ["SCRATCH"]).resolve()
    os.chdir(scratch)
    files = folder_of_files(scratch / "files")
    found: dict[str, dict[str, JSON]] = {}
    for section in sections:
        start = time.monotonic()
        found[section] = dict(SECTIONS[section](files))
        print(f"{section}: {len(found[section])} in {time.monotonic() - start:.0f} s", flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n")


def in_its_environment(package: Path | None) -> int:
    """Run this script again with the package of a checkout and a scratch folder; returns the exit code."""
    if package is None:
        spec = importlib.util.find_spec("raypid")
        assert spec is not None and spec.origin is not None, "no raypid: set PYTHONPATH or --package"
        package = Path(spec.origin).parent.parent
    checkout = str(package.resolve())
    paths = [checkout, str(ROOT / "tests" / "chaos"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        env = {
            **os.environ,
            "CHECKOUT": checkout,
            "SCRATCH": scratch,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "RAYPID_DATA": f"{scratch}/data",
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        return subprocess.run([sys.executable, *sys.argv], env=env).returncode


# -- comparing -------------------------------------------------------------------------------------------------------


def differences(before: JSON, after: JSON, at: str = "") -> Iterator[str]:
    """Yield a text for each place at which two records differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in before or key not in after:
                yield f"{at} > {key}: only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{at} > {key}" if at else key)
    elif isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        lines = [*difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")][2:]
        if lines:
            yield f"{at}:\n    " + "\n    ".join(lines)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif before != after:
        yield f"{at}:\n    - {json.dumps(before)}\n    + {json.dumps(after)}"


def compare(before: Path, after: Path) -> int:
    """Print the differences of the sections that both files have; returns the exit code."""
    one, other = (json.loads(path.read_text()) for path in (before, after))
    found = [text for section in one if section in other for text in differences(one[section], other[section], section)]
    print("\n".join([*found, f"{len(found)} differences"]))
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="the record to write")
    parser.add_argument("--package", type=Path, metavar="DIR", help="checkout whose raypid is recorded")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="parts to record")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    if options.out is None:
        parser.error("name the file to write, or --compare two")
    if "CHECKOUT" not in os.environ:
        return in_its_environment(options.package)
    record(options.out, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
