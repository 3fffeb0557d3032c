"""Grids and distributions: what they expand to, and what is drawn."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raypid.errors import ConfigError
from raypid.settings import variants as v
from raypid.settings.variants import Variant, check_spec, num_combinations, specs, variants, word_of


def expand(settings: dict[str, Any], num_samples: int = 1, seed: int = 0) -> list[Variant]:
    return list(variants(settings, num_samples, np.random.default_rng(seed)))


def test_the_documents_grid() -> None:
    found = expand(
        {"num_epochs": v.grid_search([1, 4]), "num_workers": 2, "batch_size": v.grid_search([128, 256, 512])}
    )
    assert [(x.settings["num_epochs"], x.settings["batch_size"]) for x in found] == list(
        itertools.product([1, 4], [128, 256, 512])
    )
    assert all(x.settings["num_workers"] == 2 and x.varied.keys() == {"num_epochs", "batch_size"} for x in found)


def test_grids_lie_at_any_depth() -> None:
    found = expand(
        {"model": {"hidden": v.grid_search([[64, 64], [256, 256]])}, "env_config": {"a": {"b": v.choice([7])}}}
    )
    assert [x.settings["model"] for x in found] == [{"hidden": [64, 64]}, {"hidden": [256, 256]}]
    assert found[1].varied == {"model.hidden": [256, 256], "env_config.a.b": 7}
    assert [x.settings["hidden"] for x in expand({"hidden": [v.grid_search([1, 2]), 3]})] == [[1, 3], [2, 3]]


def test_a_grid_over_groups_may_have_distributions_and_grids_in_it() -> None:
    groups = v.grid_search([{"hidden": [8], "log_std_init": v.uniform(1, 2)}, {"hidden": v.grid_search([[16], [32]])}])
    assert num_combinations({"model": groups}) == 3
    found = expand({"model": groups})
    assert [x.settings["model"]["hidden"] for x in found] == [[8], [16], [32]]  # type: ignore[index]
    assert 1 <= found[0].settings["model"]["log_std_init"] <= 2  # type: ignore[index]
    assert all(x.varied == {"model": x.settings["model"]} for x in found)
    assert expand({"lr": v.grid_search([1, v.uniform(5, 6)])})[1].varied["lr"] > 5  # type: ignore[operator]


TREES = st.recursive(
    st.integers()
    | st.text(max_size=3)
    | st.none()
    | st.lists(st.integers(), min_size=1, max_size=3).map(v.grid_search),
    lambda inner: (
        st.dictionaries(st.sampled_from("abcdef"), inner, max_size=3) | st.lists(inner, min_size=1, max_size=2)
    ),
    max_leaves=6,
)


SLOWLY = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@SLOWLY
@given(st.dictionaries(st.sampled_from("abc"), TREES, max_size=3), st.integers(1, 3))
def test_the_count_is_what_is_made_and_no_spec_is_left(tree: dict[str, Any], num_samples: int) -> None:
    assert (count := num_combinations(tree) * num_samples) < 10**9
    if count <= 2000:
        found = expand(tree, num_samples)
        assert len(found) == count
        assert not any(list(specs(x.settings)) for x in found)


@SLOWLY
@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_the_same_seed_gives_the_same_draws_also_of_more_samples(seed: int, few: int, more: int) -> None:
    spaces = {"lr": v.loguniform(1e-5, 1e-1), "gamma": v.grid_search([0.9, 0.99]), "clip": v.choice([1, 2, 3])}
    first, longer = expand(spaces, few, seed), expand(spaces, few + more, seed)
    assert longer[: len(first)] == first
    assert len({x.settings["lr"] for x in longer}) == len(longer), "each combination is drawn anew"
    assert expand(spaces, few, seed + 1) != first


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        (v.uniform(-1, 2), lambda x: -1 <= x <= 2),
        (v.loguniform(1e-4, 1e-2), lambda x: 1e-4 <= x <= 1e-2),
        (v.quniform(0, 1, 0.1), lambda x: x in [i / 10 for i in range(11)]),
        (v.qloguniform(1, 100, 5), lambda x: x in range(5, 101, 5)),
        (v.randint(2, 5), lambda x: x in (2, 3, 4)),
        (v.qrandint(2, 10, 4), lambda x: x in (4, 8)),
        (v.lograndint(1, 9), lambda x: x in range(1, 9)),
        (v.choice(["a", "b"]), lambda x: x in ("a", "b")),
        (v.normal(5, 0.1), lambda x: 4 < x < 6),
        ({"randn": [5, 0.1]}, lambda x: 4 < x < 6),
    ],
)
def test_draws_are_in_range_and_reach_all_of_it(spec: v.Spec, allowed: Any) -> None:
    word = word_of(spec)
    check_spec(word, spec)
    drawn = [x.settings["x"] for x in expand({"x": spec}, 2000)]
    assert all(map(allowed, drawn))
    whole = "int" in word
    assert all(type(x) is (int if whole else str if word == "choice" else float) for x in drawn)
    if word in ("randint", "qrandint", "lograndint", "choice", "quniform"):
        expected = (
            [i for i in range(11) if allowed(i)]
            if whole
            else ["a", "b"]
            if word == "choice"
            else [i / 10 for i in range(11)]
        )
        assert sorted(set(drawn), key=str) == sorted(expected, key=str)


def test_draws_are_short_but_fine_enough_for_their_range() -> None:
    for spec in (
        v.loguniform(1e-5, 1e-2),
        v.uniform(0, 1),
        v.uniform(0.9, 0.999),
        v.loguniform(0.9, 0.9999),
        v.uniform(500, 501),
    ):
        drawn = [float(x.settings["x"]) for x in expand({"x": spec}, 200)]  # type: ignore[arg-type]
        assert (
            len(set(drawn)) > 150 and max(len(repr(x).split("e")[0].replace(".", "").lstrip("0")) for x in drawn) <= 7
        )


def test_loguniform_is_uniform_in_the_logarithm() -> None:
    drawn = [math.log10(float(x.settings["x"])) for x in expand({"x": v.loguniform(1e-4, 1e-2)}, 4000)]  # type: ignore[arg-type]
    assert np.mean(drawn) == pytest.approx(-3, abs=0.05) and np.std(drawn) == pytest.approx(2 / math.sqrt(12), abs=0.03)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"grid_search": []}, "list of values"),
        ({"grid_search": 3}, "list of values"),
        ({"choice": "ab"}, "list of values"),
        ({"choice": [{"grid_search": [1]}]}, "choice cannot hold a grid"),
        ({"uniform": [1]}, "[low, high]"),
        ({"uniform": [2, 1]}, "low < high"),
        ({"uniform": ["a", 1]}, "numbers"),
        ({"uniform": [math.nan, 1]}, "numbers"),
        ({"uniform": [0, math.inf]}, "numbers"),
        ({"loguniform": [0, 1]}, "0 < low"),
        ({"randint": [1.5, 3]}, "whole numbers"),
        ({"quniform": [0, 1, 0]}, "q > 0"),
        ({"quniform": [0.1, 0.9, 2]}, "multiple"),
        ({"normal": [0, -1]}, "deviation"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        check_spec(word_of(spec), spec)


def test_objects_that_sample_are_distributions_and_spaces_are_not() -> None:
    class Die:
        def sample(self, random_state: np.random.Generator) -> int:
            return int(random_state.integers(1, 7))

    assert [x.settings["n"] for x in expand({"n": Die()}, 8)] == [x.settings["n"] for x in expand({"n": Die()}, 8)]
    assert word_of(Die()) and not word_of(Die) and not word_of(gymnasium.spaces.Discrete(2))


@pytest.mark.ci_slow
def test_ray_tunes_own_are_accepted() -> None:
    from ray import tune

    assert tune.grid_search([1, 2]) == v.grid_search([1, 2])
    spaces = {"lr": tune.loguniform(1e-4, 1e-2), "n": tune.randint(1, 3), "c": tune.choice(["a", "b"])}
    found = expand(spaces, 20)
    assert found == expand(spaces, 20) and {x.settings["n"] for x in found} == {1, 2}
