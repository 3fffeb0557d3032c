"""Methods of users' algorithms that would not be called, or not as they are written, are refused when the algorithm is built."""

from __future__ import annotations

from typing import Any

import pytest

import raypid
from raypid.algorithms.ppo import PPO
from raypid.errors import ConfigError
from raypid.plugins.registry import ALGORITHMS


def short(self: Any, log_prob: Any, entropy: Any, batch: Any) -> None: ...
def whole(self: Any, log_prob: Any, entropy: Any, value: Any, batch: Any) -> Any: ...
def calls_los(self: Any, log_prob: Any, entropy: Any, value: Any, batch: Any) -> Any:
    return self.los(log_prob)


def calls_los_inside(self: Any, log_prob: Any, entropy: Any, value: Any, batch: Any) -> Any:
    return [self.los(x) for x in [log_prob]]


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ({"loss": short}, r"Mine.loss is called as loss\(self, log_prob, entropy, value, batch\), and takes"),
        ({"los": whole}, "Nothing calls Mine.los, but loss, loss_gradient, update"),
        ({"policy_loss": whole}, "Nothing calls Mine.policy_loss, but loss, loss_gradient, update"),
        ({"los": short, "loss": calls_los}, ""),
        ({"los": short, "loss": calls_los_inside}, ""),
        (dict.fromkeys(("bonus", "losses", "updates", "my_update", "normalise", "batch", "temperature"), short), ""),
    ],
)
def test_overrides(methods: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    raypid.register_algorithm("Mine", type("Mine", (PPO,), {**methods, "__module__": __name__}))
    if told:
        with pytest.raises(ConfigError, match=told):
            raypid.Agent("Mine", "CartPole-v1").train(num_train_steps=10)
    else:
        raypid.Agent("Mine", "CartPole-v1").close()
