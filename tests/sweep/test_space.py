"""Search spaces: every algorithm has one beside its defaults, what is drawn from it is valid, users narrow and widen it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from raypid.plugins.registry import ALGORITHMS
from raypid.run.resolve import resolve_config
from raypid.settings.config import Config, ConfigError, ModelConfig, coerce, type_hints
from raypid.settings.ranges import ALSO_SHARE, Choices, Range
from raypid.sweep.space import as_text, at, fixed_by, nested, ranges_of, sample, search_space, units

NAMES = ALGORITHMS.names()
RANGES = {
    "linear": Range(0.1, 0.4),
    "log": Range(1e-5, 1e-2, "log"),
    "discount": Range(0.9, 0.9995, "log of 1 - x"),
    "powers": Range(32, 1024, "powers of 2", whole=True),
    "whole": Range(1, 10, whole=True),
    "whole log": Range(1, 20, "log", whole=True),
    "also": Range(1e-4, 0.1, "log", also=(0.0,)),
    "off": Range(2, 16, "log", whole=True, also=(None,)),
    "choices": Choices(((64, 64), (256, 256))),
}


def value_of(config: Config, name: str) -> object:
    return getattr(config.model if name.startswith("model.") else config, name.removeprefix("model."))


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_has_a_space_around_its_defaults(name: str) -> None:
    config = ALGORITHMS.get(name).Config()
    space = search_space(name)
    assert "lr" in space and len(space) >= 6
    for setting, range_ in space.items():
        default = value_of(config, setting)
        assert default in range_, f"{name}: {setting} is {default} by default, outside of {range_}"
        hint = type_hints(ModelConfig if setting.startswith("model.") else type(config))[setting.removeprefix("model.")]
        for unit in (0.0, 0.1, 0.5, 1.0):
            value = range_.at(unit)
            assert coerce(setting, value, hint) == value and type(coerce(setting, value, hint)) is type(value), setting


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_valid_nearly_always(name: str) -> None:
    space, rng = search_space(name), np.random.default_rng(0)
    refused = []
    for _ in range(200):
        drawn = sample(space, rng)
        idle = ALGORITHMS.get(name).Config().replace(nested(drawn)).idle()
        drawn = {setting: value for setting, value in drawn.items() if setting not in idle}
        try:
            resolve_config(name, {"env": "CartPole-v1", "seed": 0, **nested(drawn)})
        except ConfigError as error:
            refused.append((drawn, str(error)))
    assert len(refused) < 10, refused[0]


@pytest.mark.parametrize("name", RANGES)
def test_the_unit_interval_and_back(name: str) -> None:
    range_ = RANGES[name]
    values = []
    for unit in np.linspace(0, 1, 101):
        value = range_.at(float(unit))
        assert value in range_
        assert range_.at(range_.unit(value)) == value
        values.append(value)
    numbers = [v for v in values if isinstance(v, (int, float)) and v != 0]
    assert numbers == sorted(numbers)
    assert isinstance(range_, Choices) or {range_.low, range_.high} <= set(values)


def test_scales_are_drawn_evenly() -> None:
    rng = np.random.default_rng(0)

    def drawn(range_: Range) -> np.ndarray[Any, Any]:
        return np.array([range_.at(float(u)) for u in rng.random(20_000)], dtype=object)

    whole = drawn(RANGES["whole"])  # type: ignore[arg-type]
    assert [round(float(np.mean(whole == k)), 1) for k in (1, 5, 10)] == [0.1, 0.1, 0.1]
    powers = drawn(RANGES["powers"])  # type: ignore[arg-type]
    assert set(powers) == {32, 64, 128, 256, 512, 1024} and abs(np.mean(powers == 32) - 1 / 6) < 0.02
    log = drawn(RANGES["log"]).astype(float)  # type: ignore[arg-type]
    assert abs(np.mean(log < 10**-3.5) - 0.5) < 0.02
    discount = drawn(RANGES["discount"]).astype(float)  # type: ignore[arg-type]
    assert abs(np.mean(1 - discount > np.sqrt(0.1 * 0.0005)) - 0.5) < 0.02
    also = drawn(RANGES["also"])  # type: ignore[arg-type]
    assert abs(np.mean(also == 0.0) - ALSO_SHARE) < 0.02


def test_what_has_no_effect_is_not_searched() -> None:
    assert "gamma" not in search_space("ES") and "batch_size" not in search_space("A3C")
    assert "priority_exponent" not in search_space("DQN") and "priority_exponent" in search_space("Rainbow")
    assert "model.memory_size" not in search_space("PPO")
    assert "model.memory_size" in search_space("PPO", {"model": {"network": "lstm"}})
    assert "samples_per_insert" not in search_space("DQN", {"a_l_ratio": 4})
    assert "reward_scale" not in search_space("PPO") and "fragment_length" not in search_space("SAC")


def test_what_is_fixed_is_not_searched() -> None:
    space = search_space("PPO", {"lr": 1e-3, "model": {"hidden": [32]}})
    assert "lr" not in space and "model.hidden" not in space and "model.activation" in space
    overrides: dict[str, object] = {"clip": 0.3, "gamma": {"between": [0.95, 0.99]}}
    space = search_space("PPO", {}, overrides)
    assert "clip" not in space and fixed_by(overrides) == {"clip": 0.3}


def test_a_subclass_with_another_default_keeps_the_range_of_its_base() -> None:
    assert ranges_of(ALGORITHMS.get("IMPALA").Config)["fragment_length"] == Range(4, 128, "powers of 2", whole=True)
    assert ranges_of(ALGORITHMS.get("APPO").Config)["lr"] == ranges_of(ALGORITHMS.get("PPO").Config)["lr"]
    assert (
        ranges_of(ALGORITHMS.get("ARS").Config)["model.hidden"]
        == ranges_of(ALGORITHMS.get("ES").Config)["model.hidden"]
    )


@pytest.mark.parametrize(
    ("name", "given", "range_"),
    [
        ("lr", {"loguniform": [1e-4, "1e-2"]}, Range(1e-4, 1e-2, "log")),
        ("gamma", {"between": [0.95, 0.99]}, Range(0.95, 0.99, "log of 1 - x")),
        ("gamma", {"uniform": [0.95, 1]}, Range(0.95, 1.0)),
        ("batch_size", {"powers_of_2": [64, 128]}, Range(64, 128, "powers of 2", whole=True)),
        ("num_epochs", {"between": [2, 4]}, Range(2, 4, "log", whole=True)),
        ("target_kl", {"choice": [None, 0.02]}, Choices((None, 0.02))),
        ("model.hidden", {"choice": [[32], [64, 64]]}, Choices(((32,), (64, 64)))),
        ("num-sgd-iter", {"uniform": [1, 3]}, Range(1, 3, whole=True)),
    ],
)  # fmt: skip
def test_users_narrow_and_widen(name: str, given: Mapping[str, object], range_: object) -> None:
    ours = {"num-sgd-iter": "num_epochs"}.get(name, name)
    assert search_space("PPO", {}, {name: given})[ours] == range_
    assert search_space("PPO", {}, {name: given}, only=[name]) == {ours: range_}


@pytest.mark.parametrize(
    ("run", "overrides", "message"),
    [
        ("PPO", {"lrr": {"uniform": [0, 1]}}, "Unknown setting 'lrr' in the search space. Did you mean 'lr'"),
        ("PPO", {"lr": {"logunifrom": [1e-4, 1]}}, "none of the forms. Did you mean 'loguniform'"),
        ("PPO", {"lr": {"loguniform": [0, 1]}}, "begins above 0, not at 0. Use uniform"),
        ("PPO", {"lr": {"loguniform": [1e-2, 1e-4]}}, "lowest value comes first, not 0.01 before 0.0001"),
        ("PPO", {"lr": {"loguniform": [1e-2]}}, "takes two numbers"),
        ("PPO", {"lr": {"choice": []}}, "takes a list of values"),
        ("PPO", {"lr": {"choice": ["fast"]}}, "lr takes a number, not 'fast'"),
        ("PPO", {"lr": "fast"}, "lr takes a number, not 'fast'"),
        ("PPO", {"batch_size": {"uniform": [1.5, 3]}}, "batch_size takes a whole number, not 1.5"),
        ("PPO", {"gamma": {"between": [0.9, 1]}}, "ends below 1"),
        ("PPO", {"kernel": {"uniform": [0, 1]}}, "kernel takes one of"),
        ("PPO", {"model": {"uniform": [0, 1]}}, "Unknown setting 'model'"),
        ("PPO", {"model.hiden": 3}, "Unknown setting 'model.hiden'. Did you mean 'model.hidden'"),
        ("ES", {"gamma": {"uniform": [0.9, 1]}}, "gamma has no effect for ES and ARS"),
        ("DQN", {"priority_exponent": {"uniform": [0, 1]}}, "unless prioritized is true"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(run: str, overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        search_space(run, {}, overrides)
    assert message in str(error.value)


def test_only_names_what_has_a_range() -> None:
    with pytest.raises(ConfigError, match="PPO has no range for 'lrr'. Did you mean 'lr'"):
        search_space("PPO", only=["lrr"])
    for given in ({"settings": {"lr": 0.1}}, {"overrides": {"lr": 0.1}}):
        with pytest.raises(ConfigError, match="lr is given for every trial, so it cannot be searched"):
            search_space("PPO", only=["lr", "clip"], **given)
    fixed = {name: range_.at(0.5) for name, range_ in search_space("CustomModel").items()}
    with pytest.raises(ConfigError, match="Nothing is left"):
        search_space("CustomModel", fixed)


def test_values_units_and_text() -> None:
    space = search_space("PPO", only=["lr", "model.hidden"])
    values = at(space, {"lr": 1.0, "model.hidden": 0.2})
    assert values == {"lr": 1e-2, "model.hidden": (32, 32)}
    assert nested(values) == {"lr": 1e-2, "model": {"hidden": [32, 32]}}
    assert units(space, values) == {"lr": 1.0, "model.hidden": pytest.approx(1 / 4)}
    assert as_text(space).splitlines()[0] == "lr            3e-5 to 0.01 (log scale)"
