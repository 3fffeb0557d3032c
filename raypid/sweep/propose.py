"""Who proposes the next settings of a search: Optuna's TPE where it is installed, else the dice."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np

from raypid.errors import reason
from raypid.plugins.extras import install_command, installed
from raypid.settings.config import ConfigError
from raypid.settings.ranges import Choices
from raypid.sweep.space import SearchSpace

Units: TypeAlias = dict[str, float]
"""Setting -> place in the unit interval of its range."""
PROPOSERS = ("auto", "optuna", "random")


class Proposer:
    """Proposes places in the unit cube, and learns how good they were. Higher scores are better."""

    name: str

    def propose(self) -> Units:
        """Return places that are worth trying."""
        raise NotImplementedError

    def tell(self, units: Units, score: float, rung: int, *, stopped: bool) -> None:
        """Learn of a trial that has ended: its score at the rung that it reached, and whether it was `stopped` there as hopeless."""

    def forget(self, units: Units) -> None:
        """Drop a proposal whose trial has ended without saying anything about its settings."""


class RandomProposer(Proposer):
    """Draws settings independently of each other and of what was found."""

    name = "random"

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self.space, self._rng = space, np.random.default_rng(seed)

    def propose(self) -> Units:
        return {name: float(self._rng.random()) for name in self.space}


class OptunaProposer(Proposer):
    """Tree-structured Parzen estimators (Bergstra et al. 2011), by Optuna (Akiba et al. 2019, arXiv:1907.10902).

    Trials that were stopped early are told as pruned, so that a trial which came further counts as better. What is still running counts
    as bad for now ("constant liar"), so that proposals made at once differ.
    """

    name = "optuna"

    def __init__(self, space: SearchSpace, seed: int, num_random: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self.space = optuna, space
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "multivariate" and "constant_liar" are called experimental
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=num_random, multivariate=True, constant_liar=True
            )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._distributions: dict[str, Any] = {
            name: optuna.distributions.CategoricalDistribution(
                [(i + 0.5) / len(range_.options) for i in range(len(range_.options))]
            )
            if isinstance(range_, Choices)
            else optuna.distributions.FloatDistribution(0.0, 1.0)
            for name, range_ in space.items()
        }
        self._asked: list[tuple[Units, Any]] = []

    def propose(self) -> Units:
        trial = self._study.ask(self._distributions)
        units: Units = dict(trial.params)
        self._asked.append((units, trial))
        return units

    def tell(self, units: Units, score: float, rung: int, *, stopped: bool) -> None:
        states = self._optuna.trial.TrialState
        state = states.PRUNED if stopped else states.COMPLETE
        score = max(score, -1e300)  # of a trial that failed
        if (asked := self._take(units)) is not None:
            asked.report(score, rung)
            self._study.tell(asked, None if stopped else score, state)
            return
        params = {
            name: range_.unit(range_.at(units[name])) if isinstance(range_, Choices) else units[name]
            for name, range_ in self.space.items()
            if name in units
        }
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=params,
                distributions={name: self._distributions[name] for name in params},
                value=None if stopped else score,
                intermediate_values={rung: score},
                state=state,
            )
        )

    def forget(self, units: Units) -> None:
        if (asked := self._take(units)) is not None:  # what still ran would count as bad
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)

    def _take(self, units: Units) -> Any:
        """Optuna's trial of a proposal, which ends now; None if an earlier process has proposed it."""
        asked = next((pair for pair in self._asked if pair[0] == units), None)
        if asked is None:
            return None
        self._asked.remove(asked)
        return asked[1]


def check_proposer(name: str) -> None:
    """Check that there is a proposer of this name.

    Raises:
        ConfigError: there is none, or it is not installed.
    """
    if name not in PROPOSERS:
        raise ConfigError(f"Settings are proposed by {', '.join(PROPOSERS)}, not by {name!r}.")
    if name == "optuna" and (why := _why_no_optuna()):
        raise ConfigError(f"{why}: {install_command('optuna')}, or leave --by out for random search.")


def _why_no_optuna() -> str:
    """Why Optuna cannot be used; "" if it can."""
    if not installed("optuna"):
        return "Optuna is not installed"
    try:
        import optuna  # noqa: F401
    except Exception as error:  # of one that is broken, or does not fit its own dependencies
        return f"Optuna cannot be imported ({reason(error)})"
    return ""


def make_proposer(name: str, space: SearchSpace, seed: int, num_trials: int) -> Proposer:
    """The proposer of a name that `check_proposer` accepts; auto is optuna where that is installed."""
    if name == "random" or _why_no_optuna():
        return RandomProposer(space, seed)
    return OptunaProposer(space, seed, num_random=min(10, max(4, num_trials // 3)))
