"""A type checker knows the public names, an algorithm's settings and its Config; what it sees is what runs."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import raypid
from raypid import agents
from raypid.plugins.registry import ALGORITHMS
from raypid.run.agent import Agent

ROOT = Path(__file__).parent.parent
CHECKED = """
import raypid
from raypid.algorithms import ppo
from raypid.algorithms.ppo import PPO

raypid.PPOAgent(config=ppo.DEFAULT_CONFIG.copy(), env="CartPole-v1", registry=raypid.get_registry(), num_sgd_iter=3).train()
raypid.ModelCatalog.get_action_dist(None)[1] + 1
raypid.PPO(env="CartPole-v1", lr=1e-3, model={"hidden": [32]}, num_workers=2, out="here", tuned=True).train(1_000)
raypid.SAC({"env": "Pendulum-v1"}, weights_file=None)
raypid.Agent("Mine", env="CartPole-v1", anything=1)
raypid.PPO(env="CartPole-v1").config.value_coef + 1.0
with raypid.DQN(env="CartPole-v1") as agent:
    agent.config.epsilon_start + 1.0
raypid.TD3.from_checkpoint("runs/one").config.target_noise + 1.0
raypid.PPO.DEFAULT_CONFIG["lr"]
raypid.train("PPO", "CartPole-v1", stop=100, out="here", lr=1e-3).load_policy().act([0.0])
raypid.PPO("CartPole-v1", {"lr": 1e-3}).fit({"time_total_s": 3}, quiet=True).folder.name
raypid.Agent("PPO", "CartPole-v1").act([0.0], explore=True)


@raypid.register_algorithm("Mine")
class Mine(PPO):
    extra = 1


raypid.register_algorithm("Other", Mine).extra
Mine.extra

raypid.PPOO(env="x")  # refused
raypid.train("PPO", stop="soon")  # refused
raypid.PPO("x").learn  # refused
ppo.NO_CONFIG  # refused
raypid.PPOAgent(env="x", registry={})  # refused
raypid.IMPALAAgent("x").rollout  # refused
raypid.PPO(env="x", nosuch=3)  # refused
raypid.PPO(env="x", lr="fast")  # refused
raypid.PPO(env="x").config.entropy_coeff  # refused
with raypid.SAC(env="x") as sac:
    sac.config.clip  # refused
"""
MYPY_INI = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,numpy.*,gymnasium.*,ray.*,yaml.*,safetensors.*]
follow_imports = skip
ignore_missing_imports = true
"""


@pytest.mark.ci_slow
def test_mypy_refuses_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(CHECKED)
    (tmp_path / "mypy.ini").write_text(MYPY_INI)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True, timeout=400
    )
    found = {int(line) for line in re.findall(r"user.py:(\d+): error", done.stdout)}
    wrong = {i for i, line in enumerate(CHECKED.splitlines(), 1) if line.endswith("# refused")}
    assert found == wrong, done.stdout + done.stderr
    assert re.search(r'"PPOConfig" has no attribute "entropy_coeff"; maybe "entropy_coef"', done.stdout)


def test_the_generated_file_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "make_agents.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr


OWN = [name for name in agents.__all__ if not name.endswith("Agent")]


@pytest.mark.parametrize("name", OWN)
def test_what_is_generated_is_what_runs(name: str) -> None:
    cls, config = getattr(raypid, name), ALGORITHMS.get(name).Config
    assert cls is getattr(agents, name) and issubclass(cls, Agent) and cls.algorithm == name
    assert cls.DEFAULT_CONFIG == config().to_dict()
    cls.DEFAULT_CONFIG["lr"] = None
    assert cls.DEFAULT_CONFIG["lr"] == config().lr
    source = inspect.getsource(cls)
    for field in dataclasses.fields(config):
        assert re.search(rf"^            {field.name}: ", source, re.MULTILINE), field.name


def test_every_algorithm_has_a_class() -> None:
    own = [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).__module__.startswith("raypid.algorithms.")]
    assert OWN == own and set(agents.__all__) <= set(dir(raypid))
    with pytest.raises(AttributeError, match="module 'raypid' has no attribute 'PPOO'"):
        getattr(raypid, "PPOO")  # noqa: B009
    assert not hasattr(Agent, "DEFAULT_CONFIG")
