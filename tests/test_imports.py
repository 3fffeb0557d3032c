"""Imports point one way (docs/architecture.md), heavy packages are imported only where they are needed."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from code_size import circles, import_graph, imported_files

PACKAGE = Path(__file__).parent.parent / "raypid"

ROOT = {
    # modules at the root, by what they belong to; all others belong to their package
    "errors.py": "ground", "types.py": "ground", "spaces.py": "ground", "state_tree.py": "ground", "phases.py": "ground",
    "callbacks.py": "hooks", "outcome.py": "hooks", "__init__.py": "public", "agents.py": "public", "__main__.py": "cli",
}  # fmt: skip
LEARNING = {"ground", "hooks", "storage", "plugins", "settings", "ops", "nn", "algorithms", "envs", "replay", "roles"}
MAY_IMPORT: dict[str, set[str]] = {
    # package -> the packages that it may import besides itself, also within functions and under TYPE_CHECKING
    "ground": set(),
    "ops": {"ground"},
    "storage": {"ground"},
    "plugins": {"ground", "storage"},
    "settings": {"ground", "storage", "plugins"},
    "compat": set(),
    "nn": {"ground", "storage", "plugins", "settings", "ops"},
    "hooks": {"ground", "nn"},
    "algorithms": {"ground", "plugins", "settings", "ops", "nn"},
    "envs": {"ground", "storage", "plugins"},
    "runtime": {"ground", "storage", "plugins", "settings"},
    "replay": {"ground", "storage", "plugins", "ops", "nn"},
    "roles": (LEARNING - {"roles"}) | {"runtime"},
    "loops": LEARNING | {"runtime"},
    "report": {"ground", "storage", "plugins"},
    "run": LEARNING | {"runtime", "loops", "report"},
    "check": LEARNING | {"runtime", "run"},
    "sweep": LEARNING | {"runtime", "report", "run"},
    "tune": LEARNING | {"runtime", "report", "run", "sweep"},
    "public": LEARNING | {"compat", "run", "check"},
    "cli": LEARNING | {"runtime", "report", "run", "check", "sweep", "tune", "public"},
}
RAY_FILES = {
    *(f"runtime/{file.name}" for file in (PACKAGE / "runtime").glob("ray*.py")),
    *(f"tune/{file.name}" for file in (PACKAGE / "tune").glob("*.py")),
}
TORCH_FILES = {
    "nn/networks.py", "nn/catalog_network.py", "nn/torch_cells.py", "nn/critics.py", "nn/torch_optimizers.py",
    "nn/torch_population.py", "algorithms/torch_backprop.py",
}  # fmt: skip
OPTUNA_FILES = {"sweep/search.py", "sweep/search_report.py"}


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "project_template" not in path.parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def package_graph() -> dict[str, set[str]]:
    return import_graph(PACKAGE)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer_of(name: str) -> str:
    layer = name.partition("/")[0] if "/" in name else ROOT.get(name, name)
    assert layer in MAY_IMPORT, f"raypid/{name} belongs to no package: add it to this file and to docs/architecture.md"
    return layer


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Yield (statement, dotted name) of every import; `from raypid import x` counts as raypid.x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def run_on_import(tree: ast.Module) -> set[ast.stmt]:
    """Import statements that run when the module is imported: outside functions and `if TYPE_CHECKING`."""
    found: set[ast.stmt] = set()
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            queue += node.orelse
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.add(node)
        queue += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    layer = layer_of(name_of(path))
    for line, file in imported_files(parsed(path), PACKAGE):
        target = layer_of(name_of(file))
        assert target == layer or target in MAY_IMPORT[layer], (
            f"line {line}: {name_of(path)} ({layer}) must not import {name_of(file)} ({target})"
        )


def test_roles_know_nothing_of_processes() -> None:
    graph = package_graph()
    found = {
        name: {f for f in graph[name] if f.startswith("runtime/") and f != "runtime/calls.py"}
        for name in graph
        if name.startswith("roles/")
    }
    assert not any(found.values()), found


def test_no_files_import_each_other() -> None:
    assert circles(package_graph()) == []


def test_circles_are_found_within_functions_and_under_type_checking(tmp_path: Path) -> None:
    package = tmp_path / "thing"
    (package / "inner").mkdir(parents=True)
    sources = {
        "__init__.py": "VERSION = 1",
        "a.py": "def f():\n    from thing.b import g",
        "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import thing.inner.c",
        "inner/__init__.py": "",
        "inner/c.py": "from thing import VERSION, a",
        "inner/d.py": "from thing.inner import c\nimport numpy",
    }
    for name, source in sources.items():
        (package / name).write_text(source)
    graph = import_graph(package)
    assert graph["inner/c.py"] == {"__init__.py", "a.py"} and graph["inner/d.py"] == {"inner/c.py"}
    assert circles(graph) == [["a.py", "b.py", "inner/c.py"]]


CORE = {"gymnasium", "matplotlib", "numpy", "raypid", "rich", "safetensors", "threadpoolctl", "yaml"}
"""What `pip install .` brings, as it is imported."""


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_ray_and_torch_stay_where_they_belong(path: Path) -> None:
    tree = parsed(path)
    at_once = run_on_import(tree)
    torch_modules = tuple(f"raypid.{file.removesuffix('.py').replace('/', '.')}" for file in TORCH_FILES)
    for node, name in imports(tree):
        root = name.split(".")[0]
        if root == "ray":
            assert name_of(path) in RAY_FILES, f"line {node.lineno} imports ray"
        if node not in at_once or name_of(path) in TORCH_FILES:
            continue
        assert root != "torch", f"line {node.lineno} imports torch when the module is imported"
        assert not name.startswith(torch_modules), f"line {node.lineno} imports torch by way of {name}"
        known = root in CORE or root in sys.stdlib_module_names or name_of(path) in RAY_FILES
        known = known or (root == "optuna" and name_of(path) in OPTUNA_FILES)
        assert known, f"line {node.lineno} imports {root} when the module is imported: it is no dependency of the core"


def test_packages_have_no_circle_and_no_dead_entries() -> None:
    assert circles(MAY_IMPORT) == []
    names = [name_of(path) for path in files()]
    assert {layer_of(name) for name in names} == MAY_IMPORT.keys() and ROOT.keys() <= set(names)
    assert RAY_FILES | TORCH_FILES <= set(names)


HEAVY = {"torch", "ray", "matplotlib", "tensorboardX", "pandas", "scipy"}


def loaded_by(code: str) -> set[str]:
    """Run `code` in a fresh process; returns the top-level packages that are loaded afterwards."""
    report = "import sys; print('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


def test_importing_raypid_imports_nothing_heavy() -> None:
    loaded = loaded_by("import raypid; assert raypid.__version__ and 'PPO' in dir(raypid)")
    assert "raypid" in loaded and not loaded & (HEAVY | {"numpy", "gymnasium", "yaml", "rich"})


COMMANDS = [
    ["--help"],
    ["list", "agents"],
    ["list", "networks"],
    ["train", "--help"],
    ["train", "--run", "PPO", "--help"],
    ["train", "--run", "SAC", "--help"],
    ["train", "--run", "ApeX", "--help"],
    ["train", "--run", "ES", "--help"],
]


def test_help_and_lists_import_nothing_heavy() -> None:
    loaded = loaded_by(f"""
import sys
from raypid.cli import main

for argv in {COMMANDS!r}:
    try:
        code = main(argv)
    except SystemExit as error:
        code = error.code
    assert not code and not {HEAVY!r} & set(sys.modules), argv
""")
    assert "raypid" in loaded and not loaded & HEAVY


def test_the_local_trainer_needs_neither_ray_nor_torch() -> None:
    algorithms = ", ".join(
        f"raypid.algorithms.{n}" for n in ("ppo", "a2c", "a3c", "impala", "dqn", "r2d2", "sqn", "sac", "td3", "es")
    )
    loaded = loaded_by(
        f"import raypid.run.agent, raypid.roles.rollout, raypid.roles.fitness_worker, raypid.replay.disk, {algorithms}"
    )
    assert not loaded & HEAVY


def test_what_learns_with_torch_leaves_its_compiler_alone() -> None:
    """torch's own optimizers import it, which takes seconds in each process that learns."""
    loaded_by("""
import sys
import raypid
small = {"env": "CartPole-v1", "fragment_length": 8, "batch_size": 8, "num_envs_per_worker": 1, "kernel": "torch"}
for optimizer in ("adam", "rmsprop"):
    with raypid.A2C(small, optimizer=optimizer) as agent:
        assert agent.train()["learner_updates_total"]
assert "torch" in sys.modules and "torch._dynamo" not in sys.modules
""")
