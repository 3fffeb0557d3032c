"""Every setting of every algorithm, given what nobody should give: a message or an agent, never a traceback."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from typing import Any

import pytest

from raypid.errors import UserError
from raypid.plugins.registry import ALGORITHMS
from raypid.run.agent import Agent
from raypid.run.resolve import resolve_config
from raypid.settings.config import Config, ModelConfig

NAMES = [name for name in ALGORITHMS.names() if ALGORITHMS.is_own(name)]
VALUES: list[Any] = [
    "abc", "", "nan", b"x", None, True, math.nan, math.inf, -math.inf, -1, -0.5, 0, 1, 1e-300, 1e308, 10**9, 2**62, 10**30, 10**400,
    [], [0], [-1], [2**62], ["a"], {}, {"a": 1}, object(), "no_such_module:Name",
]  # fmt: skip
SMALL = {"num_envs_per_worker": 1, "fragment_length": 4, "batch_size": 8}
REPLAY = {"buffer_size": 64, "start_steps": 10}
WHOLE = {"population": 2, "noise_table_size": 50_000, "model.hidden": [8]}
MEMORY = {"model.memory": "lstm", "buffer_size": 500, "sequence_length": 4, "burn_in": 1}
CONTINUOUS = ("SAC", "TD3", "DDPG")


def settings_of(name: str) -> list[str]:
    fields = [f.name for f in dataclasses.fields(ALGORITHMS.get(name).Config) if f.name != "model"]
    return [*fields, "model", *(f"model.{f.name}" for f in dataclasses.fields(ModelConfig))]


def base_of(name: str) -> dict[str, Any]:
    named = set(settings_of(name))
    wanted = {**SMALL, **REPLAY, **(WHOLE if "population" in named else {}), **(MEMORY if name == "R2D2" else {})}
    if "population" in named or name in ("A3C", "CustomModel"):
        wanted = {key: value for key, value in wanted.items() if key not in ("fragment_length", "batch_size")}
    known = {key: value for key, value in wanted.items() if key in named}
    return {**known, "env": "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1", "seed": 0}


def numbers(config: Config) -> list[float]:
    values = [getattr(part, f.name) for part in (config, config.model) for f in dataclasses.fields(part)]
    return [value for value in values if isinstance(value, float)]


@pytest.mark.parametrize(
    "name", [n if n in ("PPO", "Rainbow", "ES") else pytest.param(n, marks=pytest.mark.ci_slow) for n in NAMES]
)
def test_what_is_read_is_a_message_or_a_config(name: str) -> None:
    base = base_of(name)
    resolve_config(name, base)
    for setting in settings_of(name):
        for value in VALUES:
            without = {key: known for key, known in base.items() if key != setting}
            try:
                config = resolve_config(name, without, {setting: value})  # as of a saved run: it may be without effect
            except UserError as error:
                assert len(str(error)) < 1000 and "\n" not in str(error)
            else:
                assert not any(map(math.isnan, numbers(config))), setting


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("ApeX", "CustomModel")])
def test_what_is_built_is_a_message_or_an_agent(name: str) -> None:
    base = base_of(name)
    Agent(name, base).close()  # with the imports, which take longer
    for setting in settings_of(name):
        if setting == "th_compile":
            continue
        for value in VALUES:
            if setting == "noise_table_size" and value == 10**9:  # 4 GB are sound where they fit, and take their time
                continue
            given = {**{key: known for key, known in base.items() if key != setting}, setting: value}
            before = time.perf_counter()
            try:
                config = resolve_config(name, given)
                if config.on_ray and config.num_workers < 10**6:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("error", RuntimeWarning)
                    Agent(name, given).close()
            except UserError:
                pass
            assert time.perf_counter() - before < 10, (setting, value)  # 2 s on an idle machine


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("DQN", {"adam_eps": math.nan}, "adam_eps must be above 0, not nan"),
        ("SAC", {"adam_eps": -1}, "adam_eps must be above 0"),
        ("PPO", {"adam_eps": 0}, "adam_eps must be above 0"),
        ("SAC", {"lr_critic": -1}, "lr_critic must be above 0 and finite"),
        ("A2C", {"entropy_coef": math.nan}, "entropy_coef must be a number below 3.4e38, not nan"),
        ("A2C", {"value_coef": -1}, "value_coef must be at least 0"),
        ("PPO", {"observation_noise": math.inf}, "observation_noise must be a number below 3.4e38, not inf"),
        ("PPO", {"model.log_std_init": math.nan}, "model.log_std_init must be a number"),
        ("Rainbow", {"num_atoms": 10**9}, r"num_atoms must lie in \[1, 10000\]"),
        ("SAC", {"num_critics": 10**7}, "num_critics=10000000 needs about .* GiB of memory"),
        ("PPO", {"num_envs_per_worker": 10**7}, "num_envs_per_worker must be at most 1,000,000, not 10,000,000"),
        ("PPO", {"init_from": ""}, "init_from is empty"),
        ("PPO", {"address": "", "num_workers": 1}, "address is auto, local, .*not ''"),
        ("PPO", {"num_cpus": -1, "num_workers": 1}, "num_cpus must be above 0"),
        ("DQN", {"worker_epsilon": -1}, "worker_epsilon must be at least 0"),
    ],
    ids=str,
)
def test_what_is_refused(name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Agent(name, {**base_of(name), **given})


@pytest.mark.parametrize("name", ["PPO", "SAC", "ES"])
def test_any_seed(name: str) -> None:
    Agent(name, {**base_of(name), "seed": 10**30, **({"kernel": "torch"} if name == "PPO" else {})}).close()


def test_an_infinite_bound_is_none() -> None:
    Agent("PPO", {**base_of("PPO"), "max_grad_norm": math.inf, "reward_clip": math.inf, "value_clip": math.inf}).close()
