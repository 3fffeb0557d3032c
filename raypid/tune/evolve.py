"""A population's rounds by Ray Tune's PopulationBasedTraining: which members go on from which, and with what."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.tune.schedulers import PopulationBasedTraining

from raypid.experiments.population import Population

RUN = "run"
"""The one key of a trial's config."""
ROUND = "round"
"""Of a report: how many intervals of the population the trial has trained. Tune compares times to the step, and would wait for ever for
members that have a few environment steps more or less."""
SCORE = "score"
"""Of a report: the newest evaluation's mean return, or that of the last training episodes where none has been played."""


class Evolution(PopulationBasedTraining):
    """All members train for an interval, wait for each other, and then the worst go on from the best.

    Tune would give a member all of the better one's config; here it keeps its name, its folder and its seed.

    Args:
        population: what changes, and how.
        start: how many intervals all members train before the first exchange.
    """

    def __init__(self, population: Population, start: int) -> None:
        super().__init__(
            time_attr=ROUND,
            metric=SCORE,
            mode="max",
            perturbation_interval=1,
            quantile_fraction=population.quantile,
            custom_explore_fn=dict,  # Tune wants one; `_get_new_config` is what it would be called by
            log_config=False,
            synch=True,
        )
        self.population, self.rng = population, np.random.default_rng(start)
        self._next_perturbation_sync = start

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        own, better = trial.config[RUN], trial_to_clone.config[RUN]
        settings = self.population.explored(better["settings"], self.rng) | {"seed": own["settings"].get("seed")}
        return {RUN: {**own, "settings": settings}}, {}
