"""A population's rounds by Ray Tune's PopulationBasedTraining: which members go on from which, and with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

from raypid.sweep.population import Population

RUN = "run"
"""The one key of a trial's config: its Trial."""
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
        seed: of what is drawn.
    """

    def __init__(self, population: Population, start: int, seed: int) -> None:
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
        self.population, self.rng = population, np.random.default_rng([seed, start])
        self._next_perturbation_sync = start

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take a member in, also once more after its process was lost. What it has trained before, nobody waits for."""
        super().on_trial_add(tune_controller, trial)
        alike = len({member.placement_group_factory for member in self._trial_state}) == 1
        if alike:  # else the processes that Tune keeps could have what a member with other needs waits for
            tune_controller._tune_controller._actor_cache.increase_max(trial.placement_group_factory)
        self._trial_state[trial].last_perturbation_time = int(self._next_perturbation_sync) - 1

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Let a member that has ended its interval wait for the others; the last one makes them go on."""
        self._excuse_ended()
        decision: str = super().on_trial_result(tune_controller, trial, result)
        self._begin_round(tune_controller)
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """A member has reached its end, or has failed: the others do not wait for it."""
        super().on_trial_complete(tune_controller, trial, result)
        self._without(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A member's process was lost. If that was once too often, the others do not wait for it; else Tune adds it again."""
        super().on_trial_error(tune_controller, trial)
        if not trial.is_finished():  # Tune says so before it ends a trial for good, and after it has, for now
            self._without(tune_controller, trial)

    def _without(self, tune_controller: Any, gone: Any) -> None:
        """Leave a member out from here on. If all others wait already, nobody else would say that the interval has ended."""
        state = self._trial_state[gone]
        state.last_score = None  # no donor
        state.last_train_time = int(self._next_perturbation_sync)  # not waited for
        self._excuse_ended()
        live = [trial for trial in tune_controller.get_live_trials() if trial is not gone and not trial.is_finished()]
        if live and all(self._trial_state[trial].last_train_time >= self._next_perturbation_sync for trial in live):
            result = self._trial_state[live[0]].last_result
            assert result is not None  # it has reported, since it waits
            super().on_trial_result(tune_controller, live[0], result)
            self._begin_round(tune_controller, gone)

    def _excuse_ended(self) -> None:
        """Count members that have ended as having come this far: a failed one may be among those that Tune calls live."""
        for trial, state in self._trial_state.items():
            if trial.is_finished():
                state.last_train_time = int(self._next_perturbation_sync)

    def _begin_round(self, tune_controller: Any, gone: Any = None) -> None:
        """Set the round that members train up to. Tune's own is one that all have reached if an iteration is longer than an interval, and
        then none would go on."""
        live = [trial for trial in tune_controller.get_live_trials() if trial is not gone and not trial.is_finished()]
        states = [self._trial_state[trial] for trial in live]
        for state in states:  # a longer iteration has taken another member further than this one
            state.last_perturbation_time = min(state.last_perturbation_time, state.last_train_time)
        reached = min((state.last_train_time for state in states), default=0)
        if reached >= self._next_perturbation_sync:
            self._next_perturbation_sync = reached + 1

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        own, better = trial.config[RUN], trial_to_clone.config[RUN]
        settings = self.population.explored(better.settings, self.rng) | {"seed": own.settings.get("seed")}
        return {RUN: replace(own, settings=settings)}, {}


class Members(BasicVariantGenerator):
    """The trials of a population, which are not over before the last member has ended.

    Tune ends the process of each trial that waits once no further trials are to come, and a new one for it takes seconds. Where all
    members need the same resources, `Evolution` has it keep them.
    """

    def __init__(self, evolution: Evolution) -> None:
        super().__init__()
        self.evolution = evolution

    def is_finished(self) -> bool:
        """Whether all members are there, and none goes on."""
        return super().is_finished() and all(trial.is_finished() for trial in self.evolution._trial_state)
