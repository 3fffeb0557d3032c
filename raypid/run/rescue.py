"""What is kept of training that broke down: after a divergence the batch, after a loss the newest copies of what is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from raypid.errors import Diverged, Halted
from raypid.loops.loops import Context
from raypid.replay.base import Replay
from raypid.roles.learner import KeptLearner, Learner
from raypid.runtime.handle import ClusterLost, Handle, WorkerLost
from raypid.runtime.local import LocalHandle, passed
from raypid.runtime.stateful import StatefulGroup
from raypid.runtime.supervisor import RolesFailed
from raypid.storage import checkpoint
from raypid.storage.run_folder import DIVERGED

_GONE = (ClusterLost, WorkerLost, RolesFailed, Halted, TimeoutError)
"""What asking roles raises that are gone for good."""


def write_post_mortem(folder: Path, error: Diverged, about: checkpoint.Entries, writer: checkpoint.ExtraWriter) -> str:
    """Write `folder`/diverged in one piece, in the place of an earlier one; returns where it is, or why not, as a sentence.

    Args:
        about: entries of its manifest besides what the error says.
        writer: writes the policy with the last good weights beside it.
    """
    manifest = {**about, "what": error.what, "advice": error.advice, "timesteps_total": error.timesteps}
    try:
        state = {"batch": error.batch}
        place = checkpoint.save_checkpoint(folder, DIVERGED, state, manifest=manifest, extra_writer=writer)
        kept = f"The batch and the last good weights are in {place}"
    except (OSError, RuntimeError) as failure:
        kept = f"The batch could not be kept ({str(failure).rstrip('.')})"
    newest = checkpoint.latest(folder / "checkpoints")
    there = "there is no checkpoint" if newest is None else f"the newest checkpoint is {newest.name}"
    return f"{kept}; {there}."


class Mark(NamedTuple):
    """How far a run was when an iteration ended."""

    counters: Mapping[str, float]
    rewards: Sequence[float]
    lengths: Sequence[int]


class Fallback:
    """What can still be saved where learners or replay buffers are gone for good."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.gone_back = ""
        """Which parts of the next checkpoint are older than the rest, as text; "" if none."""
        self.buffers_gone = False

    def fall_back(self, patience_s: float, iteration: int) -> Mark | None:
        """Where learners or replay buffers are gone, go back to what this process has of them: the newest copy of the learners' state,
        and the rows of the newest checkpoint. `gone_back` says so. Nothing can be trained from here on.

        Args:
            patience_s: how long they have to answer.
            iteration: the newest.

        Returns:
            The end of the iteration that the copy belongs to; None if the learners are there.

        Raises:
            ClusterLost, WorkerLost, RolesFailed, Halted, TimeoutError: there is no copy of anything that was learnt.
        """
        group, replay = self.context.learner, self.context.replay
        mark: Mark | None = None
        if isinstance(group, StatefulGroup) and not self._answers(group, Learner.is_whole, patience_s):
            if group.kept is None or not isinstance(group.kept_mark, Mark):
                self.context.backend.get(passed(group.submit(Learner.is_whole)), patience_s)  # raises why
                return None
            mark = group.kept_mark
            updates = max(0, group.progress - group.kept.progress)
            self.context.learner = LocalHandle(partial(KeptLearner, group.kept))
            self.gone_back = (
                f"The state of the {'learners' if len(group) > 1 else 'learner'} is that of {group.kept_s:.0f} s ago (iterations lost: "
                f"{iteration - int(mark.counters['iteration']):,}, updates lost: {updates:,})."
            )
        if replay is None:
            return mark
        self.buffers_gone = mark is not None
        if replay.config.num_replay_shards:
            self.buffers_gone = not all(self._answers(b, Replay.metrics, patience_s) for b in replay.source.buffers)
        if replay.config.save_replay and self.buffers_gone:
            before, said = replay.source.saved, "The replay buffer is lost: a resumed run collects a new one."
            if before is not None and before.is_dir():
                said = f"The replay buffer is that of {before.parent.name}."
            self.gone_back = f"{self.gone_back} {said}".strip()
        return mark

    def _answers(self, role: Handle, method: Callable[..., object], patience_s: float) -> bool:
        try:
            self.context.backend.get(passed(role.submit(method)), patience_s)
            return True
        except _GONE:
            return False

    def unsaved_reason(self, patience_s: float, num_updates: int) -> str:
        """Why the learner, which answers within `patience_s` seconds, has nothing that should be saved; "" if it has."""
        learner, get = self.context.learner, self.context.backend.get
        # of each what another process works out, since a group of learners would rather build one anew than wait no longer
        asked = (passed(learner.submit(Learner.is_whole)), passed(learner.submit(Learner.standing)))
        whole, updates = (get(answer, patience_s) for answer in asked)
        if not whole:
            return "the learner broke off in an update"
        get(passed(learner.submit(Learner.weights)), patience_s)
        return "" if updates or num_updates else "nothing had been learnt"
