"""Names, suggestions, lazy entries."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from raypid.algorithms.ppo import PPO
from raypid.cli import COMMANDS
from raypid.envs import EnvError, resolve
from raypid.errors import UserError
from raypid.plugins.registry import ALGORITHMS, ENVS, NETWORKS, Registry, did_you_mean, import_string, suggest
from raypid.settings.config import ModelConfig


def test_suggest_ignores_case_and_ranks() -> None:
    known = ["PPO", "A2C", "CartPole-v1", "CarRacing-v3"]
    assert suggest("ppo", known) == ["PPO"] and suggest("cartpole-V1", known)[0] == "CartPole-v1"
    assert suggest("zzz", known) == []
    assert did_you_mean("ppo", known) == " Did you mean 'PPO'?"
    assert did_you_mean("zzz", ["b", "a"]) == " Known: a, b."


def test_import_string() -> None:
    assert import_string("json:dumps") is json.dumps
    with pytest.raises(UserError, match="there is no module 'nosuchmodule'"):
        import_string("nosuchmodule.sub:x")
    with pytest.raises(UserError, match="module 'json' has no 'nothing'"):
        import_string("json:nothing")


def test_register_get_and_replace() -> None:
    registry = Registry("thing", {"lazy": "json:dumps"})
    registry.register("own", 5)
    assert registry.get("own") == 5 and registry.get("lazy") is json.dumps
    registry.register("own", 6)
    assert registry.get("own") == 6 and registry.names() == ["lazy", "own"] and "own" in registry
    with pytest.raises(UserError, match="Unknown thing 'ownn'. Did you mean 'own'"):
        registry.get("ownn")


def test_registries_do_not_share_their_tables() -> None:
    entries: dict[str, object] = {"a": 1}
    registry = Registry("thing", entries)
    registry.register("b", 2)
    assert entries == {"a": 1}


def test_what_a_user_adds_is_checked() -> None:
    registry: Registry[type] = Registry(
        "error", {"own": "builtins:ValueError"}, base="builtins:Exception", reserved=["auto"]
    )
    registry.add("theirs", KeyError)
    assert registry.get("theirs") is KeyError and not registry.is_own("theirs") and registry.is_own("own")
    for name in ("own", "auto"):
        with pytest.raises(UserError, match=f"{name!r} is the name of raypid's own error: give yours another name"):
            registry.add(name, KeyError)
    for wrong in (dict, KeyError()):
        with pytest.raises(UserError, match="Error 'wrong' must be a subclass of builtins:Exception, not"):
            registry.add("wrong", wrong)  # type: ignore[arg-type]
    registry.add("lazy", "json:JSONDecodeError")  # imported, and checked, when it is used
    assert registry.get("lazy") is json.JSONDecodeError
    with pytest.raises(
        UserError,
        match=r"The error 'lazy' is registered already, by json:JSONDecodeError: give json.decoder:JSONDecodeError",
    ):
        registry.add("lazy", json.JSONDecodeError)
    registry.add("wrong", "json:JSONDecoder")
    with pytest.raises(
        UserError, match="Error 'wrong' must be a subclass of builtins:Exception, not <class 'json.decoder"
    ):
        registry.get("wrong")
    assert registry.find("absent", "builtins:OSError") is OSError


@pytest.mark.parametrize("registry", [ENVS, NETWORKS, ALGORITHMS], ids=lambda r: r.kind)
def test_every_built_in_entry_can_be_imported(registry: Registry) -> None:
    assert registry.names()
    for name in registry.names():
        assert callable(registry.get(name)), name


SETTINGS = [
    *(field.name for field in fields(PPO.Config)),
    *(f"model.{field.name}" for field in fields(ModelConfig)),
]
NEAR = [
    # given, among, the first that is suggested; "" where nothing is near
    ("worker", SETTINGS, "num_workers"),
    ("n_worker", SETTINGS, "num_workers"),
    ("eval_interval", SETTINGS, "evaluation_interval"),
    ("evaluation_episodes", SETTINGS, "evaluation_num_episodes"),
    ("norm_obs", SETTINGS, "normalize_observations"),
    ("normalise_observations", SETTINGS, "normalize_observations"),
    ("obs_noise", SETTINGS, "observation_noise"),
    ("hidden", SETTINGS, "model.hidden"),
    ("memory", SETTINGS, "model.memory"),
    ("gae", SETTINGS, "gae_lambda"),
    ("entropy", SETTINGS, "entropy_coef"),
    ("entropy_coeff", SETTINGS, "entropy_coef"),
    ("lrr", SETTINGS, "lr"),
    ("batch", SETTINGS, "batch_size"),
    ("batchsize", SETTINGS, "batch_size"),
    ("epochs", SETTINGS, "num_epochs"),
    ("max_grad", SETTINGS, "max_grad_norm"),
    ("gpus", SETTINGS, "gpu"),
    ("seeds", SETTINGS, "seed"),
    ("framestack", SETTINGS, "frame_stack"),
    ("timelimit", SETTINGS, "time_limit"),
    ("vectoriser", SETTINGS, "vectorizer"),
    ("total_timesteps", SETTINGS, ""),
    ("timesteps", SETTINGS, ""),
    ("log_dir", SETTINGS, ""),
    ("verbose", SETTINGS, ""),
    ("wind", SETTINGS, ""),
    ("render", SETTINGS, ""),
    ("wandb", SETTINGS, ""),
    ("max_steps", SETTINGS, ""),
    ("tau", SETTINGS, ""),
    ("buffer", SETTINGS, ""),
    ("polyak", SETTINGS, ""),
    ("grad_clip", SETTINGS, ""),
    ("observation_filter", SETTINGS, ""),
    ("exp_name", ["env_name", "out"], ""),
    ("log_interval", ["target_interval", "evaluation_interval"], ""),
    ("evaluation_config", SETTINGS, ""),
    ("num_wokers", SETTINGS, "num_workers"),
    ("learnig_rate", ["learning_rate", "lr"], "learning_rate"),
    ("fragment_lenght", SETTINGS, "fragment_length"),
    ("ppo", ALGORITHMS.names(), "PPO"),
    ("PPO2", ALGORITHMS.names(), "PPO"),
    ("PPOO", ALGORITHMS.names(), "PPO"),
    ("DNQ", ALGORITHMS.names(), "DQN"),
    ("A2c", ALGORITHMS.names(), "A2C"),
    ("SAC1", ALGORITHMS.names(), "SAC"),
    ("apex", ALGORITHMS.names(), "ApeX"),
    ("rainbo", ALGORITHMS.names(), "Rainbow"),
    ("Impalla", ALGORITHMS.names(), "IMPALA"),
    ("TRPO", ALGORITHMS.names(), ""),
    ("DreamerV3", ALGORITHMS.names(), ""),
    ("MuZero", ALGORITHMS.names(), ""),
    ("HER", ALGORITHMS.names(), ""),
    ("trian", COMMANDS, "train"),
    ("lst", COMMANDS, "list"),
    ("evla", COMMANDS, "eval"),
    ("comp", COMMANDS, "compare"),
    ("serve", COMMANDS, ""),
    ("benchmark", COMMANDS, ""),
]
ENVIRONMENTS = [
    ("cartpole-v1", "CartPole-v1"),
    ("CratPole-v1", "CartPole-v1"),
    ("CartPol", "CartPole-v1"),
    ("lunar-lander", "LunarLander-v3"),
    ("cheetah", "HalfCheetah-v5"),
    ("HalfCheeta-v5", "HalfCheetah-v5"),
    ("Humaniod-v5", "Humanoid-v5"),
    ("acrobat", "Acrobot-v1"),
    ("Blackjak-v1", "Blackjack-v1"),
    ("walker2D-v5", "Walker2d-v5"),
    ("Catch", "raypid/Catch-v0"),
    ("foo", ""),
    ("MyEnv-v0", ""),
    ("Reacher3D", "Reacher-v5"),
    ("StarCraft2-v1", ""),
]


@pytest.mark.parametrize(("given", "among", "near"), NEAR, ids=[row[0] for row in NEAR])
def test_what_is_near_is_suggested_and_nothing_else(given: str, among: list[str], near: str) -> None:
    assert [*suggest(given, among), ""][0] == near
    ending = did_you_mean(given, among)
    assert ending.startswith(f" Did you mean '{near}'" if near else (" Known: " if len(among) < 40 else ""))


@pytest.mark.parametrize(("given", "near"), ENVIRONMENTS)
def test_environments_are_suggested_without_versions_and_namespaces(given: str, near: str) -> None:
    with pytest.raises(EnvError) as error:
        resolve(given)
    assert (f"Did you mean '{near}'" if near else "`raypid list envs` shows all") in str(error.value)
    assert near or "Did you mean" not in str(error.value)


def test_algorithms_are_known_in_any_case_and_by_their_file(tmp_path: Path) -> None:
    assert [ALGORITHMS.canonical(name) for name in ("ppo", "Apex", "a2C", "nosuch")] == ["PPO", "ApeX", "A2C", "nosuch"]
    with pytest.raises(UserError, match="Unknown algorithm 'Dreamer-V3'. Known: A2C, A3C"):
        ALGORITHMS.get("Dreamer-V3")
    (tmp_path / "mine.py").write_text("from raypid.algorithms.a2c import A2C\nclass Mine(A2C): pass\n")
    assert ALGORITHMS.get(f"{tmp_path}/mine.py:Mine").__name__ == "Mine"
    with pytest.raises(UserError, match="does not say which class or function: write .*mine.py:Name"):
        ALGORITHMS.get(f"{tmp_path}/mine.py")
    with pytest.raises(UserError, match="has no 'Mein'. Did you mean '.*mine.py:Mine'"):
        ALGORITHMS.get(f"{tmp_path}/mine.py:Mein")
