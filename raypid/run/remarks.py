"""What a run says of itself: remarks while it trains, each once, and the summary at its end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from raypid.phases import parts_text
from raypid.reporting.panel import COUNTS
from raypid.run.assembly import entry_name
from raypid.run.best import return_text
from raypid.run.known_return import films, remedies, shortfall
from raypid.run.stopping import further, going_on, quoted

if TYPE_CHECKING:
    from raypid.run.run import Run

NO_END_STEPS = 2_000
"""Steps of each environment after which a run says that no episode has ended."""


class Remarks:
    """Says once what deserves the user's attention.

    Args:
        may_be_absent: beginnings of stop criteria of which nobody knows in advance whether they will be reported.
    """

    def __init__(self, run: Run, may_be_absent: tuple[str, ...]) -> None:
        self.run, self._may_be_absent = run, may_be_absent
        self._said = set[str]()

    def _say(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.run.progress.message(text)

    def look_at(self, result: Mapping[str, float]) -> None:
        """Say what an iteration shows."""
        self._absent(result)
        self._endless(result)
        self.flaws()

    def _absent(self, result: Mapping[str, float]) -> None:
        """Once episodes have ended and something was learnt, name stop criteria that no result has."""
        if not (self._may_be_absent and result["episodes_total"] and result["learner_updates_total"]):
            return
        for key in self.run.stop:
            if key.startswith(self._may_be_absent) and not {key, key.removeprefix("custom/")} & result.keys():
                self._say(
                    key,
                    f"Nothing has reported the stop criterion {key} so far, though {result['episodes_total']} episodes have ended.",
                )
        self._may_be_absent = ()

    def _endless(self, result: Mapping[str, float]) -> None:
        """Say that no episode has ended, which returns and evaluations wait for."""
        config = self.run.agent.config
        too_early = result["timesteps_total"] < NO_END_STEPS * self.run.agent.num_streams
        if not (too_early or result["episodes_total"] or (config.time_limit or 0) >= NO_END_STEPS):
            self._say(
                "endless",
                f"No episode of {entry_name(config.env)} has ended in {NO_END_STEPS:,} steps of each environment. Training goes on; returns and "
                "evaluations wait for an end: if there is none, set time_limit, such as 1000.",
            )

    def flaws(self) -> None:
        """Say for each cause that evaluation episodes were cut, and that tracebacks could not be kept."""
        for cause, text in self.run.agent.evaluations.cut_notes().items():
            self._say(cause, text)
        if text := self.run.agent.errors.unwritten:
            self._say("unwritten", f"{text} Training goes on; tracebacks are missing there.")


def summary(run: Run, saved: Path | None) -> list[tuple[str, str]]:
    """The lines at the end of a run, as (label, text). `saved`: its newest checkpoint; None: there is nothing to go on from."""
    agent = run.agent
    lines = [("ended", run.reason)]
    if agent.rewards:
        count = len(agent.rewards)
        mean = f"{return_text(sum(agent.rewards) / count)} (mean of the last {count} episodes)"
        lines.append(("training return", mean))
    elif run.result:
        lines.append(("training return", "no episode has ended yet"))
    lines += [("best policy", _best(run)), *_below_known(run), *_effort(run), ("folder", str(run.folder))]
    commands = _next(run) if saved is not None else []
    return lines + [("next" if i == 0 else "", command) for i, command in enumerate(commands)]


def _best(run: Run) -> str:
    if run.best.score is not None:
        return run.best.line()
    if run.agent.config.evaluation_interval == 0:
        return "none: nothing was evaluated (evaluation_interval is 0)"
    if not run.agent.num_episodes:
        steps = run.agent.timesteps // run.agent.num_streams
        return f"none: no episode has ended within {steps:,} steps of each environment, so none was evaluated"
    return "none: the run ended before an evaluation did"


def _below_known(run: Run) -> list[tuple[str, str]]:
    """What to try if the run used up its budget and its best policy stays well below the known return."""
    agent, best = run.agent, run.best
    if agent.program or best.score is None or not any(run.reason.startswith(f"{key} reached") for key in COUNTS):
        return []
    reached = best.score if best.final is None else best.final["episode_reward_mean"]
    known = shortfall(agent.plain_config(), reached, agent.timesteps)
    if known is None:
        return []
    tried = remedies(agent.run, agent.plain_config(), known.value, python=_speaks_python(run))
    lines = [line for one in tried for line in (f"{one.why}:", one.command)]
    doctor = f"{'!' * run.notebook}{quoted('raypid doctor', run.folder)}"
    return [
        ("solved at", f"{known.value:g} ({known.source}); this run reached {return_text(reached)}"),
        *(("try" if i == 0 else "", line) for i, line in enumerate([*lines, doctor])),
    ]


def _effort(run: Run) -> list[tuple[str, str]]:
    """Steps and seconds, and what the seconds were spent on."""
    steps, total, seconds = run.agent.timesteps, run.phases.total, run.phases.seconds
    now = steps - int(run.before["timesteps_total"])
    new = f", {now:,} of them now," if now < steps else ""
    training = seconds.get("training", 0.0)
    text = f"{steps:,}{new} in {training:,.{1 if training >= 1 else 2}f} s of training"
    counted = run.agent.time_total_s - run.before["time_total_s"]
    if round(counted - training, 1) >= 0.1:  # what the column `time` and result.json have
        text += f", {counted:,.1f} s with evaluation"
    return [("steps", text), ("took", parts_text(total, seconds, always="training"))]


def _next(run: Run) -> list[str]:
    """Commands for what may come next. Each does something."""
    reached = {**run.result, **run.agent.totals()}
    stop = further(run.stop, reached) if run.reason.partition(" reached ")[1] else {}
    command = quoted("raypid eval", run.folder)
    if _speaks_python(run):
        command = f"raypid.load_policy({str(run.folder)!r})"
    elif films(run.agent.config.env):
        command = f"{command} --video {shlex.quote(str(run.folder / 'video.mp4'))}"
    return [command, *([] if run.agent.has_own_program else [resuming(run, stop)])]


def _of_main(settings: Mapping[str, object]) -> list[str]:
    """The settings that name code of a script or of a notebook's cells, which no other process can import."""
    named = ("env", "evaluation_env", "callbacks", "intrinsic_reward", "agent")
    return [key for key in named if str(settings.get(key)).startswith("__main__:")]


def _speaks_python(run: Run) -> bool:
    """Whether what comes next is a line of Python: in a notebook, and where no command can import what the run needs."""
    return run.notebook or bool(_of_main(run.agent.plain_config()))


def resuming(run: Run, stop: Mapping[str, float]) -> str:
    """The command, or the call, that goes on with a run, to later stop criteria if `stop` has any."""
    settings, python = run.agent.plain_config(), _speaks_python(run)
    words = going_on(run.agent.config, stop, run.agent.timesteps, python=python)
    if not python:
        return " ".join([quoted("raypid train --resume", run.folder), *words])
    given = [f"{key}={str(settings[key]).partition(':')[2]}" for key in _of_main(settings)]
    return f"raypid.train(resume={', '.join([repr(str(run.folder)), *given, *words])})"
