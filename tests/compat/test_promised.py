"""What the five source documents use works, or is answered with our name for it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import raypid
from raypid.cli import main
from raypid.compat.names import ALIASES, ANSWERS
from raypid.plugins.registry import ALGORITHMS, ENVS
from raypid.settings.config import Config, ConfigError, ModelConfig, renamed, type_hints
from raypid.tune import grid_search, run_experiments

CONFIGS: dict[str, type[Config]] = {name: ALGORITHMS.get(name).Config for name in ALGORITHMS.names()}
SETTINGS = {
    *(name for cls in CONFIGS.values() for name in type_hints(cls)),
    *(f"model.{name}" for name in type_hints(ModelConfig)),
}
QUICK = ["--fragment-length", "8", "--stop", '{"training_iteration": 1}', "--final-episodes", "0", "--quiet"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# the first paragraph: names that a reader will try
@pytest.mark.parametrize(
    "name",
    [
        *("is_restore", "recover", "weights_file", "a_l_ratio", "start_steps", "action_repeat", "reward_scale"),
        *("object_store_memory", "upload_dir", "checkpoint_freq", "local_dir", "redis_address", "num_sgd_iter", "sgd_batchsize"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("door", ["keyword", "flag", "file"])
def test_a_name_is_a_setting_or_answered_by_every_door(
    name: str, door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = ALIASES.get(name, name)
    run = next(run for run in ("PPO", "SAC") if ours in (*type_hints(CONFIGS[run]), *ANSWERS))
    if name in ("checkpoint_freq", "local_dir") and door == "file":
        return  # keys of an experiment, see below
    if door == "keyword":
        if ours in SETTINGS:
            value = getattr(CONFIGS[run](), ours)
            assert CONFIGS[run].from_dict({name: value}) == CONFIGS[run]()
            return
        with pytest.raises(ConfigError) as error:
            CONFIGS[run].from_dict({name: 1})
        said = str(error.value)
    else:
        Path("one.yaml").write_text(f"run: {run}\nenv: CartPole-v1\nstop: 9\n{name}: x\n")
        flag = f"--{name}".replace("_", "-")
        words = ["-f", "one.yaml"] if door == "file" else ["--run", run, "--env", "CartPole-v1", flag, "x"]
        assert main(["train", *words, "--explain"]) in ((0, 2) if ours in SETTINGS else (2,))
        said = capsys.readouterr().err
    if ours in SETTINGS:
        assert "Unknown" not in said
    else:
        given = f"--{name}".replace("_", "-") if door == "flag" else name
        assert re.search(rf"'{given}' is '[\w. -]+' here\.", said), said


@pytest.mark.parametrize("name", [name for name in ALGORITHMS.names() if ALGORITHMS.is_own(name)])
def test_every_algorithm_has_its_agent_and_a_default_config(name: str) -> None:
    agent, module = getattr(raypid, f"{name}Agent"), __import__(ALGORITHMS.get(name).__module__, fromlist=["x"])
    assert getattr(module, f"{name}Agent") is agent and f"{name}Agent" in dir(raypid)
    if name not in ("APPO", "IMPALA"):  # a DistributedAgent each
        assert agent is getattr(raypid, name)
    first = getattr(raypid, name).DEFAULT_CONFIG
    first["model"]["hidden"] = 3
    assert getattr(raypid, name).DEFAULT_CONFIG == CONFIGS[name]().to_dict() != first
    main_one = {"es": "ES", "dqn": "DQN", "impala": "IMPALA", "td3": "TD3"}.get(
        module.__name__.rpartition(".")[2], name
    )
    assert module.DEFAULT_CONFIG == CONFIGS[main_one]().to_dict()
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'NosuchAgent'"):
        _ = module.NosuchAgent


# documents 000 and 001
COMMAND = """
--env_name "gym_env" --agent_name "default_agent" --model_name "ppo" --num_envs_per_worker 3 --num_workers 3 --gpu "0,1,2"
--num_gpus 3 --num_cpus 8 --batch_size 10
"""


def test_the_command_of_a_registry_framework(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *shlex.split(COMMAND), "--fit", "--explain", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    settings = {name: row["value"] for name, row in told["settings"].items()}
    assert (settings["env"], settings["agent"], settings["model.network"]) == ("CartPole-v1", "default_agent", "ppo")
    assert (settings["num_envs_per_worker"], settings["batch_size"]) == (3, 10)


# document 003
def test_the_signature_of_a_distributed_agent() -> None:
    more: dict[str, Any] = {
        "num_steps": 80,
        "num_actors": 4,
        "num_learners": 2,
        "num_storages": 8,
        "batch_size": 32,
        "hidden_dim": 16,
    }
    agent = raypid.IMPALAAgent("CartPole-v1", None, tag="a", seed=1, device="cpu", **more)
    assert issubclass(raypid.IMPALAAgent, raypid.DistributedAgent) and agent.num_storages == 8
    assert agent.config.model.hidden == (16, 16) and raypid.DistributedWrapper.__name__ == "DistributedWrapper"


# document 004
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--run DQN --env CartPole-v0", "CartPole-v1"),
        ("--env=PongDeterministic-v4 --run=A3C --config '{\"num_workers\": 8}'", "ALE/Pong-v5"),
    ],
)
def test_its_commands_are_answered_with_todays_environment(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *shlex.split(line), "--explain"]) in (0, 2)
    said = capsys.readouterr()
    assert told in said.err or "CartPole-v0" in said.out


PYTHON = """
import raypid.algorithms.ppo as ppo
config = ppo.DEFAULT_CONFIG.copy()
config.update(fragment_length=8)
alg = ppo.PPOAgent(config=config, env="CartPole-v1")
for i in range(2):
    result = alg.train()
    print("result: {}".format(result))
    print("checkpoint saved at path: {}".format(alg.save()))
alg.close()
"""
REGISTERED = """
from raypid import get_registry, register_env
from raypid.algorithms import ppo
import gymnasium
env_creator = lambda: gymnasium.make("CartPole-v1")
env_creator_name = "custom_env"
register_env(env_creator_name, env_creator)
alg = ppo.PPOAgent(env=env_creator_name, registry=get_registry())
alg.close()
"""


@pytest.mark.parametrize("code", [PYTHON, REGISTERED], ids=["an agent", "a custom environment"])
def test_its_python_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENVS, "_entries", dict(ENVS._entries))
    exec(code, {})


EXPERIMENT: dict[str, Any] = {
    "cartpole-ppo": {
        "run": "PPO",
        "env": "CartPole-v1",
        "resources": {"cpu": 2, "driver_cpu_limit": 1},
        "stop": {"episode_reward_mean": 200, "time_total_s": 180},
        "config": {
            "num_sgd_iter": grid_search([1, 4]),
            "num_workers": 2,
            "sgd_batchsize": grid_search([128, 256, 512]),
        },
    }
}


def test_its_experiment_is_read_as_it_stands() -> None:
    from raypid.settings.config import renamed
    from raypid.sweep.experiment import experiments_from

    (one,) = experiments_from(EXPERIMENT)
    assert one.resources == {"cpu": 2, "driver_cpu_limit": 1}
    assert one.settings["num_epochs"] == {"grid_search": [1, 4]} and one.settings["batch_size"] == {
        "grid_search": [128, 256, 512]
    }
    assert callable(run_experiments) and renamed(one.request.settings) == [
        "num_sgd_iter is called num_epochs, sgd_batchsize is called batch_size here"
    ]


# the names that mean exactly the same
def test_aliases_are_few_and_lead_to_settings() -> None:
    assert len(ALIASES) <= 60 and set(ALIASES.values()) <= SETTINGS and not set(ALIASES) & SETTINGS
    assert not set(ANSWERS) & {*ALIASES, *SETTINGS}


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_the_setting_for_every_algorithm_that_has_it(name: str) -> None:
    ours = ALIASES[name]
    inside = ours.removeprefix("model.")
    for cls in CONFIGS.values():
        config = cls()
        if ours.partition(".")[0] not in type_hints(cls):
            with pytest.raises(ConfigError, match=f"Unknown setting '({name}|{ours})'"):
                config.replace({name: 1})
            continue
        value = getattr(config.model if inside != ours else config, inside)
        for given in (name, name.replace("_", "-"), *([f"model.{name}"] if inside != ours else [])):
            assert config.replace({given: value}) == config
    remarks = [] if name in ("env_name", "agent_name", "model_name") else [f"{name} is called {ours} here"]
    assert renamed({name: 1}) == remarks


@pytest.mark.parametrize("page", ["rllib.md", "stable-baselines3.md", "cleanrl.md"])
def test_a_page_calls_accepted_what_is(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "coming-from" / page).read_text()
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \| accepted(?! as)", text, re.MULTILINE)
    assert len(rows) > 8
    for there, here in rows:
        for name in re.findall(r"`(?:--)?([a-z][\w-]*)", there):
            ours = ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
            assert ours in SETTINGS and ours.rpartition(".")[2] in here.replace("-", "_"), f"{page}: {name}"
