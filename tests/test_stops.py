"""Stop criteria as people write them."""

from __future__ import annotations

import pytest

from raypid.settings.config import ConfigError
from raypid.settings.stops import read_stop


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, {}),
        (100, {"timesteps_total": 100}),
        (1e6, {"timesteps_total": 1_000_000}),
        ("100000", {"timesteps_total": 100_000}),
        ("1e5", {"timesteps_total": 100_000}),
        ("1_000", {"timesteps_total": 1000}),
        ("100k", {"timesteps_total": 100_000}),
        ("0.5M", {"timesteps_total": 500_000}),
        ("90s", {"time_total_s": 90}),
        ("10min", {"time_total_s": 600}),
        ("2h", {"time_total_s": 7200}),
        ("reward=475, time=10min", {"episode_reward_mean": 475, "time_total_s": 600}),
        ("reward=,x=soon", {"episode_reward_mean": "", "x": "soon"}),  # check_stop refuses them
        ('{"evaluation/episode_reward_mean": 200}', {"evaluation/episode_reward_mean": 200}),
        ({"timesteps": "1e6", "custom/x": 0.5}, {"timesteps_total": 1_000_000, "custom/x": 0.5}),
        ({"timesteps": 5, "timesteps_total": 5}, {"timesteps_total": 5}),
        ({"reward": -3.5}, {"episode_reward_mean": -3.5}),
        ({"reward": float("nan")}, {"episode_reward_mean": pytest.approx(float("nan"), nan_ok=True)}),
    ],
)
def test_what_is_accepted(given: object, read: dict[str, object]) -> None:
    assert read_stop(given) == read
    assert read_stop(read_stop(given)) == read


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("10m", "10min"),
        ("soon", "takes a number of environment steps"),
        ("", "takes a number"),
        (True, "takes a number"),
        ([1], "takes a number"),
        ('{"reward": ', "or as JSON"),
        ("5km", "takes a number"),
        ({"steps": 5, "timesteps_total": 6}, "two values for 'timesteps_total': give one"),
        ({1: 2}, "The name of a stop criterion is text"),
    ],
)
def test_what_is_refused(given: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read_stop(given)
