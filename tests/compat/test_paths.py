"""Modules by the paths of other programs and of earlier versions."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from raypid.registry import ALGORITHMS, import_string

from raypid.compat import paths


@pytest.mark.parametrize(
    "line",
    [
        "import raypid.ppo as ppo; ppo.PPOAgent; ppo.DEFAULT_CONFIG.copy()",
        "from raypid import ppo; ppo.PPOAgent",
        "import raypid.rllib.ppo as ppo; ppo.PPOAgent",
        "from raypid.rllib import a3c, dqn, es; a3c.A3CAgent; dqn.DQNAgent; es.ESAgent",
        "from raypid.tune.registry import get_registry, register_env",
        "from raypid.tune.tune import run_experiments",
        "from raypid.tune.variant_generator import grid_search",
        "from raypid.agent import Agent",
        "from raypid.models import ActionDistribution, Categorical, Deterministic, DiagGaussian, ModelCatalog",
    ],
)
def test_imports_of_the_documents(line: str) -> None:
    exec(line, {})


@pytest.mark.parametrize("path", paths.MOVED)
def test_a_path_is_another_name_of_one_module(path: str) -> None:
    assert importlib.import_module(path) is importlib.import_module(paths.MOVED[path])


def test_names_in_modules_that_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As params.json and checkpoints of before have them; what lies in a package has moved with it."""
    before = {*sys.modules}
    monkeypatch.setitem(paths.MOVED, "raypid.once", "raypid.algorithms")
    monkeypatch.setattr("raypid.once", None, raising=False)  # takes the module away again
    assert import_string("raypid.once.ppo:PPO") is ALGORITHMS.get("raypid.once.ppo:PPO") is ALGORITHMS.get("PPO")
    assert sys.modules["raypid.once.ppo"].__name__ == "raypid.algorithms.ppo"
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_what_is_nowhere_is_named_by_our_path() -> None:
    with pytest.raises(ImportError, match="cannot import name 'LSTM' from 'raypid.nn.model_catalog'"):
        from raypid.models import LSTM  # type: ignore[import-not-found]  # noqa: F401


def test_it_imports_no_module() -> None:
    code = "import sys, raypid; print(*(m for m in sys.modules if m in ('raypid.algorithms.ppo', 'raypid.agents')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
