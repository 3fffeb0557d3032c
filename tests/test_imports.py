"""Imports point one way (docs/architecture.md), heavy packages are imported only where they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "raypid"

BASE = {"errors", "types", "registry", "config"}
BELOW_NN = BASE | {"ops"}
ROLES = BELOW_NN | {"nn", "algorithms", "envs", "callbacks", "checkpoint"}
AGENT = ROLES | {"roles", "runtime", "loops", "evaluation", "assembly", "tuned"}
ALLOWED = {
    # part of the package -> what of the package it may import, within functions too
    "errors": set(),
    "types": set(),
    "callbacks": set(),
    "tuned": set(),
    "registry": {"errors"},
    "config": {"errors", "registry"},
    "ops": {"types"},
    "state_tree": {"types"},
    "checkpoint": {"errors", "types", "state_tree"},
    "nn": BELOW_NN | {"checkpoint"},
    "algorithms": BELOW_NN | {"nn"},
    "envs": {"errors", "types", "registry"},
    "roles": ROLES,
    "runtime": {"errors", "types"},
    "loops": {"errors", "types", "runtime"},
    "evaluation": ROLES | {"roles", "runtime", "loops"},
    "placement": {"errors", "types", "config", "nn", "runtime"},
    "assembly": AGENT - {"assembly"} | {"placement"},
    "agent": AGENT,
    "logger": {"errors", "types"},
    "plots": {"errors", "types", "logger"},
    "best": AGENT | {"agent"},
    "experiment": AGENT | {"agent", "best", "logger", "plots"},
    "lines": set(),
    "distributed": AGENT | {"agent", "experiment", "lines", "logger"},
    "deploy": AGENT,
    "cli": AGENT | {"agent", "experiment", "deploy", "logger", "plots", "__version__"},
    "tune": AGENT | {"agent", "experiment", "logger"},
    "serve": AGENT | {"deploy"},
    "__main__": {"cli"},
    "__init__": {"agent", "algorithms", "callbacks", "config", "distributed", "envs", "nn", "registry"},
}
RAY_MODULES = {"runtime/ray.py", "tune.py", "serve.py"}
TORCH_MODULES = {"nn/networks.py", "nn/recurrent.py", "nn/critics.py", "nn/flat_adam.py"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, dotted name) of every import; `from raypid import x` counts as raypid.x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def run_on_import(tree: ast.Module) -> set[ast.stmt]:
    """Statements that run when the module is imported: outside functions and `if TYPE_CHECKING`."""
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


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"raypid/{part} is new: say in tests/test_imports.py and docs what it may import"
    for node, name in imports(ast.parse(path.read_text())):
        root, _, rest = name.partition(".")
        if root == "raypid":
            target = rest.split(".")[0]
            assert target == part or target in ALLOWED[part], (
                f"line {node.lineno}: {part} must not import raypid.{target}"
            )


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_ray_and_torch_stay_where_they_belong(path: Path) -> None:
    tree = ast.parse(path.read_text())
    at_once = run_on_import(tree)
    for node, name in imports(tree):
        root = name.split(".")[0]
        if root == "ray":
            assert name_of(path) in RAY_MODULES, f"line {node.lineno} imports ray"
        if root == "torch" and node in at_once:
            assert name_of(path) in TORCH_MODULES, f"line {node.lineno} imports torch when the module is imported"
        if (
            name.startswith(tuple(f"raypid.{module.removesuffix('.py').replace('/', '.')}" for module in TORCH_MODULES))
            and name_of(path) not in TORCH_MODULES
        ):
            assert node not in at_once, f"line {node.lineno} imports torch by way of {name}"


def test_the_packages_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {part for part, needs in ALLOWED.items() if part not in done and needs - {"__version__"} <= done}
        assert ready, f"a cycle among {set(ALLOWED) - done}"
        done |= ready


def test_the_rule_has_no_dead_entries() -> None:
    parts = {part_of(path) for path in modules()}
    assert parts <= set(ALLOWED) and set(ALLOWED) - parts <= {"tune", "serve"}


HEAVY = {"torch", "ray", "matplotlib", "tensorboardX", "pandas", "scipy"}


def loaded_by(code: str) -> set[str]:
    """Top-level packages in a fresh process after `code`."""
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


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_help_and_lists_import_nothing_heavy(argv: list[str]) -> None:
    code = f"from raypid.cli import main\ntry: code = main({argv!r})\nexcept SystemExit as e: code = e.code\nassert not code, code"
    loaded = loaded_by(code)
    assert "raypid" in loaded and not loaded & HEAVY


def test_what_the_local_trainer_needs_is_no_ray_and_no_torch() -> None:
    algorithms = ", ".join(
        f"raypid.algorithms.{n}" for n in ("ppo", "a2c", "a3c", "impala", "dqn", "r2d2", "sqn", "sac", "td3", "es")
    )
    loaded = loaded_by(
        f"import raypid.run.agent, raypid.roles.rollout, raypid.roles.fitness, raypid.replay.disk, {algorithms}"
    )
    assert not loaded & HEAVY
