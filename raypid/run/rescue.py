"""What is saved of a run that ends by an error or at once, and what the user is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raypid import checkpoint
from raypid.errors import Halted
from raypid.outputs import Unwritten
from raypid.run.remarks import resuming
from raypid.runtime.handle import ClusterLost

if TYPE_CHECKING:
    from raypid.run.run import Run

RESCUE_S = 5.0
"""Seconds that a run which an error ends waits for the state of its workers."""
RESCUE_LEARNER_S = 60.0
"""Seconds that it waits for its learner, which may be in an update."""


def save_after(run: Run, ending: Exception) -> str:
    """Save what was learnt before the error `ending` ends a run; returns what was saved and how to go on."""
    agent, is_saved = run.agent, False
    try:
        patience_s = RESCUE_S if isinstance(ending, ClusterLost) else RESCUE_LEARNER_S
        agent.fall_back(patience_s)
        why = agent.fallback.unsaved_reason(patience_s, agent.num_updates)
        if not why and not _is_newest(run):
            run.write_checkpoint({}, patience_s=RESCUE_S)
            is_saved = True
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        known = why in str(ending) or (isinstance(error, Unwritten) and isinstance(ending, Unwritten))
        why = "" if known else why
    newest = run.newest
    if not is_saved or newest is None:
        lost = _lost_since(run, newest)
        begin = "Nothing was saved" if why or lost or newest is None else "All finished iterations are saved"
        parts = "; ".join(filter(None, [why, lost, _goes_on_from(run, newest)]))
        return f"{begin}: {parts}." if parts else f"{begin}."
    gone_back = note_gone_back(run)
    return f"Saved: {newest.name} and {checkpoint.BEST}/ in {run.folder}; {_goes_on(run)}. {gone_back}".strip()


def falls_back(run: Run) -> bool:
    """After an iteration was broken off: go back to what there is, if learners are lost; returns whether it is to be saved."""
    try:
        run.agent.fall_back(RESCUE_LEARNER_S)
    except Halted:
        return False
    return not _is_newest(run)


def left_at_once(run: Run) -> str:
    """What a run that was ended at once leaves: its newest checkpoint, and what that lacks."""
    newest = run.newest
    lost = _lost_since(run, newest)
    if newest is None:
        return f"There is no checkpoint: {lost}." if lost else ""
    return f"{lost.capitalize()}; {_goes_on_from(run, newest)}." if lost else f"{_goes_on_from(run, newest)}."


def note_gone_back(run: Run) -> str:
    """Write to errors.txt which parts of what was saved are older than the rest; returns that text, or ""."""
    if gone_back := run.agent.fallback.gone_back:
        run.agent.errors.add(f"{gone_back}\n\n")
    return gone_back


def _is_newest(run: Run) -> bool:
    """Whether the newest checkpoint is as new as what the agent has gone back to, if it has."""
    if run.newest is None or not run.agent.fallback.gone_back:
        return False
    return _iteration_of(run.newest) >= run.agent.iteration


def _iteration_of(saved: Path) -> int:
    return int(saved.name.rpartition("_")[2])


def _lost_since(run: Run, newest: Path | None) -> str:
    """Say which iterations are lost if the run goes on from its newest checkpoint; "" if none is."""
    first = 1 if newest is None else _iteration_of(newest) + 1
    last = max(run.agent.iteration, int(run.result.get("training_iteration", 0)))
    if last < first:
        return ""
    return f"iteration {first} is lost" if first == last else f"iterations {first:,} to {last:,} are lost"


def _goes_on(run: Run) -> str:
    how = f"restore({str(run.folder)!r})" if run.agent.has_own_program else resuming(run, {})
    return f"`{how}` goes on"


def _goes_on_from(run: Run, newest: Path | None) -> str:
    return "" if newest is None else f"{_goes_on(run)} from {newest.name}"
