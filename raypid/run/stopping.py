"""Whether a run has reached its stop criteria, and how it goes on from there."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path

from raypid.outcome import Outcome
from raypid.run.best import BestPolicy
from raypid.run.resolve import SettledRun
from raypid.run.training import totals_of
from raypid.settings.config import Config
from raypid.settings.stops import STEPS
from raypid.storage import checkpoint
from raypid.storage.run_folder import COUNTS, is_reached


def further(stop: Mapping[str, float], reached: Mapping[str, float]) -> dict[str, float]:
    """Stop criteria by which a run that has reached one of these goes on, for about as long again. `reached`: its last result and its
    counts."""
    met = {key for key, goal in stop.items() if is_reached(key, goal, reached)}
    spent = met & COUNTS
    if not spent:  # it was a return, or another metric: it would end the run again
        size = 10 ** max(0, len(str(int(reached["timesteps_total"]))) - 2)
        return {"timesteps_total": -(-2 * int(reached["timesteps_total"]) // size) * size}
    longer = {key: goal for key, goal in stop.items() if key not in met - spent}
    for key in spent:
        longer[key] *= math.ceil(1.5 * reached[key] / stop[key])  # twice it, or more if the run went far beyond
    return {key: int(goal) if goal == int(goal) else goal for key, goal in longer.items()}


def going_on(config: Config, stop: Mapping[str, float], timesteps: int, *, python: bool) -> list[str]:
    """The arguments, or flags, by which a run goes on from `timesteps` to these stop criteria, and learns until then."""
    one: object = stop[STEPS] if stop.keys() == {STEPS} else dict(stop)
    words = [f"stop={one}" if python else f"--stop {shlex.quote(json.dumps(stop))}"] if stop else []
    steps = int(stop.get(STEPS, 2 * timesteps))
    if stop and config.ended(steps - 1, steps):
        words.append(f"schedule_steps={steps}" if python else f"--schedule-steps {steps}")
    return words


def met(stop: Mapping[str, float], result: Mapping[str, float]) -> str:
    """The first stop criterion that a result has met, in words; "" if there is none."""
    for key, goal in stop.items():
        if is_reached(key, goal, result):
            value = result[key] if key in result else result[key.removeprefix("custom/")]
            return f"{key} reached {value:,.0f}" if float(value).is_integer() else f"{key} reached {value:,.6g}"
    return ""


def already_finished(run: SettledRun) -> tuple[Outcome, str] | None:
    """If a saved run has met its stop criteria: its outcome and a message; else None.

    Nothing is built for it: starting Ray takes seconds, and a cluster may be gone.
    """
    counters, folder = None if run.saved is None else run.saved.manifest.get("counters"), run.request.out
    if counters is None or folder is None:
        return None
    return as_it_is(folder, run.config, run.stop, totals_of(counters), python=run.request.python)


def as_it_is(
    folder: Path, config: Config, stop: Mapping[str, float], totals: dict[str, float], *, python: bool
) -> tuple[Outcome, str] | None:
    """How a run ended that is at its stop before it goes on, and what to say of it; None if it is not, or has not begun."""
    if not totals["training_iteration"] or not (reached := met(stop, totals)):
        return None
    words = going_on(config, further(stop, totals), int(totals[STEPS]), python=python)
    how = ", ".join(words) if python else " ".join([quoted("raypid train --resume", folder), *words])
    saved, best = checkpoint.latest(folder / "checkpoints"), BestPolicy(folder)
    if saved is not None:
        best.load()
    said = f"The run is at its stop already ({reached}): nothing was trained, no setting was changed. With a higher one: {how}"
    return Outcome(reached, totals, folder, saved, False, best.final, best.score), said


def quoted(command: str, folder: Path) -> str:
    """The command with the folder, as a shell takes it."""
    return f"{command} {shlex.quote(str(folder))}"
