"""Settings: unknown keys and wrong types are refused with a suggestion; every field is documented."""

from __future__ import annotations

import dataclasses
import json
import pickle
import time
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest

from raypid.plugins.registry import ALGORITHMS
from raypid.settings.config import (
    Config,
    ConfigError,
    ModelConfig,
    describe_type,
    divides,
    field_docs,
    parse_value,
    type_hints,
)
from raypid.settings.marked import read_marked

ALL = {name: ALGORITHMS.get(name).Config for name in ALGORITHMS.names()}
PPOConfig = ALL["PPO"]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("lrr", "'lr'"),
        ("num_worker", "'num_workers'"),
        ("num_envs_worker", "'num_envs_per_worker'"),
        ("clipp", "'clip'"),
        ("LR", "'lr'"),
    ],
)
def test_unknown_keys_name_the_nearest(key: str, near: str) -> None:
    with pytest.raises(ConfigError) as error:
        PPOConfig.from_dict({key: 1})
    assert repr(key) in str(error.value) and "Did you mean" in str(error.value) and near in str(error.value)


def test_unknown_keys_of_the_model_say_where() -> None:
    for values in ({"model.hiden": [1]}, {"model": {"hiden": [1]}}):
        with pytest.raises(ConfigError, match="Unknown setting 'model.hiden'. Did you mean 'model.hidden'"):
            PPOConfig.from_dict(values)


@pytest.mark.parametrize(
    ("key", "given", "held"),
    [
        ("lr", 1, 1.0), ("lr", "3e-4", 3e-4), ("num_workers", "4", 4), ("fragment_length", 1e3, 1000), ("batch_size", "1e3", 1000),
        ("seed", None, None), ("seed", "7", 7), ("reward_clip", 1, 1.0), ("reward_clip", None, None), ("fit", True, True),
        ("kernel", "torch", "torch"), ("atari", None, None), ("atari", False, False), ("env_config", {"a": 1}, {"a": 1}),
        ("address", "auto", "auto"), ("env", len, len), ("num-workers", 3, 3), ("target_kl", 0, 0.0),
    ],
)  # fmt: skip
def test_values_that_fit(key: str, given: Any, held: Any) -> None:
    value = getattr(PPOConfig.from_dict({key: given}), key.replace("-", "_"))
    assert value == held and type(value) is type(held)


@pytest.mark.parametrize("word", ["none", "None", "null"])
@pytest.mark.parametrize("name", ALL)
def test_none_may_be_written_as_a_word(name: str, word: str) -> None:
    """For all settings that may be without a value, and for no others."""
    cls = ALGORITHMS.get(name).Config
    hints = {**type_hints(cls), **{f"model.{key}": hint for key, hint in type_hints(ModelConfig).items()}}
    settings = {key for key, hint in hints.items() if type(None) in get_args(hint)} - {"init_from"}
    settings |= {"callbacks", "evaluation_env", *({"intrinsic_reward"} & hints.keys())}
    assert {"max_grad_norm", "time_limit", "address"} & hints.keys() <= settings
    for key in settings:
        assert attrgetter(key)(cls().replace({key: word})) is None
    assert cls().replace({"model.memory": "none"}).model.memory == "none"
    with pytest.raises(ConfigError, match="lr takes a number, not"):
        cls().replace({"lr": word})


@pytest.mark.parametrize(
    ("key", "given", "wants"),
    [
        ("lr", 10**400, "a number"), ("batch_size", 10**400, "a whole number"),
        ("lr", "fast", "a number"), ("lr", True, "a number"), ("lr", None, "a number"), ("num_workers", 1.5, "a whole number"),
        ("num_workers", "two", "a whole number"),
        ("num_workers", True, "a whole number"), ("num_workers", float("inf"), "a whole number"), ("num_workers", [1], "a whole number"),
        ("fit", 1, "true or false"),
        ("fit", "yes", "true or false"), ("kernel", "jax", "one of 'auto', 'numpy', 'torch'"), ("env_config", [1], "a mapping"),
        ("seed", "x", "a whole number or none"), ("address", 3, "text or none"), ("model", 5, "a mapping such as {'network': 'auto'}"),
        ("model", {"hidden": 64}, "a list, each a whole number"), ("model", {"hidden": [64, "a"]}, "a list, each a whole number"),
        ("model.activation", "gelu", "one of 'tanh', 'relu', 'silu'"), ("lr.x", 1, "it has no 'x'"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(key: str, given: Any, wants: str) -> None:
    with pytest.raises(ConfigError) as error:
        PPOConfig.from_dict({key: given})
    assert wants in str(error.value) and key.split(".")[-1] in str(error.value)


def test_dotted_keys_change_one_part() -> None:
    config = PPOConfig.from_dict(
        {"model.hidden": [32], "model": {"activation": "relu"}, "env_config.size": 3, "env-config.a": 1}
    )
    assert config.model == ModelConfig(hidden=(32,), activation="relu")
    assert config.env_config == {"size": 3, "a": 1}
    further = config.replace({"model.custom.width": 5, "env_config.a": 2})
    assert further.model.custom == {"width": 5} and further.model.hidden == (32,)
    assert further.env_config == {"size": 3, "a": 2}


def test_replace_leaves_the_original() -> None:
    config = PPOConfig()
    changed = config.replace({"lr": 1.0, "model.hidden": [1], "env_config.a": 1})
    assert config == PPOConfig() and changed != config and PPOConfig().env_config == {}


def test_to_dict_is_plain_and_goes_back() -> None:
    config = PPOConfig.from_dict({"env": "CartPole-v1", "model.hidden": [32, 16], "env_config": {"a": [1]}, "lr": 0.1})
    plain = json.loads(json.dumps(config.to_dict()))
    assert plain["model"]["hidden"] == [32, 16]
    assert PPOConfig.from_dict(plain) == config


@pytest.mark.parametrize("cls", [Config, ModelConfig, *ALL.values()], ids=lambda c: c.__name__)
def test_every_field_has_a_docstring(cls: Any) -> None:
    docs = field_docs(cls)
    fields = {f.name for f in dataclasses.fields(cls)}
    assert set(docs) == fields
    for name, doc in docs.items():
        assert len(doc) > 5 and "\n" not in doc, name


@pytest.mark.parametrize("cls", ALL.values(), ids=lambda c: c.__name__)
def test_defaults_are_valid_and_fit_their_own_types(cls: Any) -> None:
    config = cls()
    config.validate()
    assert cls.from_dict(config.to_dict()) == config
    assert set(cls.__doc__ or "")  # a sentence for --help


def test_field_docs_of_a_subclass_win() -> None:
    docs = field_docs(ALL["A2C"])
    assert "cut into several steps" in docs["batch_size"] and docs["seed"] == field_docs(Config)["seed"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_workers": -1}, "num_workers must be at least 0"), ({"fragment_length": 0}, "fragment_length must be at least 1"),
        ({"gamma": 1.5}, "gamma must lie in"), ({"gamma": float("nan")}, "gamma must lie in"), ({"lr": 0}, "lr must be above 0"),
        ({"num_learners": 2}, "num_learners 2 must be at most num_workers, 0"),
        ({"num_learners": 3, "num_workers": 2}, "num_learners 3 must be at most num_workers, 2"),
        ({"num_learners": 2, "num_workers": 2, "num_gpus": 3}, "num_gpus 3 cannot be divided among 2 learners"),
        ({"backend": "local", "num_learners": 1}, "backend local"),
        ({"clip": 0}, "clip must be above 0"), ({"num_epochs": 0}, "num_epochs must be at least 1"),
        ({"gae_lambda": 1.1}, "gae_lambda must lie in"), ({"schedule_end": -0.1}, "schedule_end must lie in"),
        ({"max_grad_norm": 0}, "max_grad_norm must be above 0"), ({"value_clip": -1}, "value_clip must be above 0"),
        ({"target_kl": float("nan")}, "target_kl must be above 0"), ({"schedule_steps": -5}, "schedule_steps must be above 0"),
        ({"lr_schedule": "linear"}, "lr_schedule linear must know where it ends"),
        ({"clip_schedule": "linear"}, "clip_schedule linear must know where it ends"),
    ],
)  # fmt: skip
def test_values_out_of_range(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPOConfig.from_dict(values).validate()


@pytest.mark.parametrize(
    ("num_gpus", "num_learners", "fits"),
    [
        (0, 3, True),
        (1.5, 1, True),
        (4, 2, True),
        (3, 2, False),
        (1, 2, True),
        (2, 4, True),
        (2, 3, False),
        (0.5, 2, True),
    ],
)
def test_gpus_are_divided_evenly(num_gpus: float, num_learners: int, fits: bool) -> None:
    assert divides(num_gpus, num_learners) == fits


def test_parse_value() -> None:
    texts = ["3", "1e-3", "true", "True", "None", "null", "[1, 2]", '{"a": 1}', "CartPole-v1", '"3"', ""]
    values = [3, 1e-3, True, True, None, None, [1, 2], {"a": 1}, "CartPole-v1", "3", ""]
    assert [parse_value(t) for t in texts] == values


def test_what_only_begins_as_a_number_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("address: 192.0.2.2:6379\nnum_workers: 1\nlr: 1.e-3\n")
    assert read_marked(tmp_path / "a.yaml").values == {"address": "192.0.2.2:6379", "num_workers": 1, "lr": 0.001}


def test_load_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("lr: 1e-3\nmodel: {hidden: [8]}\n")
    (tmp_path / "a.json").write_text('{"lr": 0.001}')
    assert PPOConfig.from_dict(read_marked(tmp_path / "a.yaml").values) == PPOConfig(
        lr=1e-3, model=ModelConfig(hidden=(8,))
    )
    assert read_marked(str(tmp_path / "a.json")).values == {"lr": 0.001}
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "bad.json").write_text("{")
    for name, message in [
        ("none.yaml", "no file"),
        ("list.yaml", "must hold a mapping"),
        ("bad.json", "not JSON"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_marked(tmp_path / name)


def test_yaml_that_is_deep_or_writes_itself_out(tmp_path: Path) -> None:
    """It is refused before the parser has built it, which takes seconds or more memory than there is."""
    file = tmp_path / "a.yaml"
    merged = "a0: &a0 {x0: 1, x1: 2}\n" + "".join(
        f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    for text, message in [
        ("env_config: " + "[" * 3000, "(100|too) deep"),
        ("env_config: " + "{a: " * 3000, "(100|too) deep"),
        ("- " * 3000 + "1", "(100|too) deep"),
        ("env_config: " + "[" * 101 + "]" * 101, "(100|too) deep"),
        (merged, "1,000,000 values"),
    ]:
        file.write_text(text)
        started = time.process_time()
        with pytest.raises(ConfigError, match=message):
            read_marked(file)
        assert time.process_time() - started < 2
    file.write_text("base: &a {x: 1}\nenv_config:\n  <<: *a\n  y: " + "[" * 90 + "]" * 90)
    assert read_marked(file).values["env_config"]["x"] == 1  # type: ignore[index]


def test_describe_type() -> None:
    assert describe_type(int | None) == "a whole number or none" and describe_type(dict[str, Any]) == "a mapping"
    assert describe_type(tuple[int, ...]) == "a list, each a whole number" and describe_type(Any) == "anything"


def test_names_that_users_script_against() -> None:
    """Frozen: a rename breaks scripts."""
    shared = set(
        "env env_config vectorizer num_workers num_envs_per_worker num_learners num_cpus num_gpus num_cpus_per_worker backend "
        "address fit seed model device kernel num_threads fragment_length batch_size lr gamma normalize_observations "
        "normalize_rewards reward_scale reward_clip frame_stack atari action_repeat time_limit observation_noise action_noise "
        "callbacks evaluation_interval evaluation_num_episodes init_from exact_resume worker_timeout_s max_restarts".split()
    )
    assert shared <= {f.name for f in dataclasses.fields(Config)}
    model = {f.name for f in dataclasses.fields(ModelConfig)}
    assert {"network", "hidden", "activation", "shared", "distribution", "log_std_init", "custom"} <= model
    ppo = {f.name for f in dataclasses.fields(PPOConfig)}
    own = "gae_lambda value_coef entropy_coef max_grad_norm num_epochs clip clip_schedule value_clip target_kl lr_schedule"
    assert set(own.split()) <= ppo and {"PPO", "A2C"} <= set(ALL)


def test_a_setting_with_two_names() -> None:
    assert Config.from_dict({"weights-file": "run"}).init_from == "run"
    assert Config(init_from="a").replace({"weights_file": "b"}).init_from == "b"
    assert Config.from_dict({"init_from": None, "weights_file": "b"}).init_from == "b"
    with pytest.raises(ConfigError, match="'weights_file' and 'init_from' are the same setting"):
        Config.from_dict({"weights_file": "a", "init_from": "b"})


def test_two_names_of_one_setting_must_say_the_same() -> None:
    """But another name wins over ours where that has the default, as in a copy of DEFAULT_CONFIG."""
    config = {**PPOConfig().to_dict(), "num_sgd_iter": 3}
    for values in (config, dict(reversed(config.items())), {"n_epochs": 3, "update_epochs": 3}):
        assert PPOConfig.from_dict(values).num_epochs == 3
    for several in ({"num-epochs": 4, "num-sgd-iter": 3}, {"n_epochs": 4, "update_epochs": 3}):
        with pytest.raises(ConfigError, match="are the same setting: give one"):
            PPOConfig.from_dict(several)


def test_all_unknown_names_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        PPOConfig.from_dict({"recover": 1, "lrr": 1, "wind": 2, "model": {"hiden": [8]}})
    assert str(error.value) == (
        "'recover' is 'resume' here. Unknown setting 'lrr'. Did you mean 'lr'? Unknown setting 'wind'. Unknown setting 'model.hiden'. "
        "Did you mean 'model.hidden'? docs/coming-from/ says what other libraries' names are here."
    )


@dataclasses.dataclass(kw_only=True)
class WithoutSlots(PPOConfig):
    lr: float = 1e-3
    extra: float = 1.0


def test_settings_do_not_change_also_without_slots() -> None:
    config: Any = WithoutSlots(extra=2.0).replace({"lr": 0.5})
    again = pickle.loads(pickle.dumps(config))
    assert again == config and (again.lr, again.extra, again.gamma) == (0.5, 2.0, config.gamma)
    for name in ("lr", "extra", "gamma"):
        with pytest.raises(AttributeError, match="Settings do not change"):
            setattr(config, name, 1.0)


def test_what_is_no_setting_cannot_be_set() -> None:
    config: Any = PPOConfig()
    with pytest.raises(AttributeError, match="'PPOConfig' object has no attribute 'num_env_runners'"):
        config.num_env_runners = 2
    with pytest.raises(ConfigError, match=r"model takes a mapping such as \{'network': 'auto'\}, not 'wide'"):
        config.replace({"model": "wide"})
