"""From Agent.train() to the optimizer there are few calls, and docs/architecture.md shows them."""

from __future__ import annotations

from pathlib import Path

import call_chains
import pytest
from call_chains import MOST, RUNS, chain

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"


SLOWER = ("PPO, two learners", "APPO, two learners")


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in RUNS if name not in SLOWER),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOWER),
    ],
)
def test_calls_from_train_to_minimise(name: str, request: pytest.FixtureRequest) -> None:
    if RUNS[name][1].get("num_workers"):
        request.getfixturevalue("ray_session").cloudpickle.register_pickle_by_value(call_chains)
    calls = chain(name)
    assert calls[0] == "Training.train" and calls[-1] == "minimise"
    assert len(calls) - 1 <= MOST[name], calls
    assert f"{name} ({len(calls) - 1} calls): {' > '.join(calls)}" in DOCS.read_text()
