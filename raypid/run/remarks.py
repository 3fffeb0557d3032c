"""What a run says of itself: its header, remarks while it trains, each once, what an error has left, and the summary at its end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raypid.phases import Phases, listening, parts_text
from raypid.plugins.modules import entry_name
from raypid.plugins.registry import ALGORITHMS
from raypid.report.panel import Progress
from raypid.report.streams import in_notebook
from raypid.run.best import BestPolicy, return_text
from raypid.run.known_return import films, remedies, shortfall
from raypid.run.stopping import further, going_on, quoted
from raypid.run.training import Training
from raypid.settings.stops import STEPS
from raypid.storage.ownership import why_unsigned
from raypid.storage.run_folder import COUNTS

NO_END_STEPS = 2_000
"""Steps of each environment after which a run says that no episode has ended."""


@dataclass(eq=False)
class Remarks:
    """Says what a run has to say; each remark once."""

    agent: Training
    progress: Progress
    stop: Mapping[str, float]
    """The run's stop criteria."""
    may_be_absent: tuple[str, ...]
    """Beginnings of stop criteria of which nobody knows in advance whether they will be reported; empty once this was looked at."""
    best: BestPolicy
    python: bool
    """Whether Python has started the run, not the command line."""

    def __post_init__(self) -> None:
        self.folder = self.best.folder.parent
        self.notebook = self.python and in_notebook()
        self.phases = listening() or Phases()
        """What the run does besides training, and since its command began if one has started it."""
        self.phases.tell = self.progress.working
        self.before = self.agent.totals()
        """The counts of the run that is resumed."""
        self._said = set[str]()

    def _say(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.progress.message(text)

    def begin(self, is_resumed: bool) -> None:
        """Show the header, the agent's notes, and what the user should know before it trains."""
        agent, progress = self.agent, self.progress
        steps, most = agent.warm_up_steps
        about: dict[str, object] = {"algorithm": agent.run, "backend": agent.backend.name, "folder": str(self.folder)}
        about |= {"shown_metrics": ALGORITHMS.get(agent.run).shown_metrics, "warm_up_steps": steps}
        progress.start(agent.plain_config() | about)
        last = int(self.stop.get(STEPS, agent.timesteps + 1)) - 1
        for note in filter(None, [*agent.take_notes(), agent.config.ended(last, agent.run_end)]):
            progress.note(note)
        if not is_resumed and (adapted := agent.explain().adapted()):
            progress.note(f"Adapted: {adapted} ({'agent.explain()' if self.python else '--explain'} says why).")
        if why := why_unsigned():
            progress.message(f"This run is not signed as yours ({why}): see RAYPID_DATA in SECURITY.md.")
        if steps:
            longer = f" (up to {most:,} until an episode has ended)" if most > steps else ""
            progress.note(f"Warm-up: {steps:,} steps with random actions{longer}, then learning starts.")

    # -- while it trains -------------------------------------------------------------------------------------------------

    def look_at(self, result: Mapping[str, float]) -> None:
        """Say what an iteration shows."""
        self._absent(result)
        self._endless(result)
        self.flaws()

    def _absent(self, result: Mapping[str, float]) -> None:
        """Once episodes have ended and something was learnt, name stop criteria that no result has."""
        if not (self.may_be_absent and result["episodes_total"] and result["learner_updates_total"]):
            return
        for key in self.stop:
            if key.startswith(self.may_be_absent) and not {key, key.removeprefix("custom/")} & result.keys():
                ended = f"though {result['episodes_total']} episodes have ended"
                self._say(key, f"Nothing has reported the stop criterion {key} so far, {ended}.")
        self.may_be_absent = ()

    def _endless(self, result: Mapping[str, float]) -> None:
        """Say that no episode has ended, which returns and evaluations wait for."""
        config = self.agent.config
        too_early = result["timesteps_total"] < NO_END_STEPS * self.agent.num_streams
        if not (too_early or result["episodes_total"] or (config.time_limit or 0) >= NO_END_STEPS):
            where = f"{entry_name(config.env)} has ended in {NO_END_STEPS:,} steps of each environment"
            advice = "returns and evaluations wait for an end: if there is none, set time_limit, such as 1000"
            self._say("endless", f"No episode of {where}. Training goes on; {advice}.")

    def flaws(self) -> None:
        """Say for each cause that evaluation episodes were cut, and that tracebacks could not be kept."""
        for cause, text in self.agent.evaluations.cut_notes().items():
            self._say(cause, text)
        if text := self.agent.errors.unwritten:
            self._say("unwritten", f"{text} Training goes on; tracebacks are missing there.")

    # -- at its end ------------------------------------------------------------------------------------------------------

    def summary(self, result: Mapping[str, float], reason: str, saved: Path | None) -> list[tuple[str, str]]:
        """The lines at the end, as (label, text). `saved`: the newest checkpoint; None: there is nothing to go on from."""
        rewards, returns = self.agent.rewards, "no episode has ended yet" if result else ""
        if rewards:
            returns = f"{return_text(sum(rewards) / len(rewards))} (mean of the last {len(rewards)} episodes)"
        lines = [("ended", reason), ("training return", returns), ("best policy", self._best())]
        lines += [*self._below_known(reason), *self._effort(), ("folder", str(self.folder))]
        commands = self._next(result, reason) if saved is not None else []
        lines += zip(("next", ""), commands)
        return [(label, text) for label, text in lines if text]

    def _best(self) -> str:
        if self.best.score is not None:
            return self.best.line()
        if self.agent.config.evaluation_interval == 0:
            return "none: nothing was evaluated (evaluation_interval is 0)"
        if not self.agent.num_episodes:
            steps = self.agent.timesteps // self.agent.num_streams
            return f"none: no episode has ended within {steps:,} steps of each environment, so none was evaluated"
        return "none: the run ended before an evaluation did"

    def _below_known(self, reason: str) -> list[tuple[str, str]]:
        """What to try if the run used up its budget and its best policy stays well below the known return."""
        agent, best = self.agent, self.best
        if agent.program or best.score is None or not any(reason.startswith(f"{key} reached") for key in COUNTS):
            return []
        reached = best.score if best.final is None else best.final["episode_reward_mean"]
        known = shortfall(agent.plain_config(), reached, agent.timesteps)
        if known is None:
            return []
        tried, shell = remedies(agent.run, agent.plain_config(), known.value), "!" * self.notebook
        lines = [line for one in tried for line in (f"{one.why}:", f"{shell}{one.command}")]
        first, *rest = [*lines, f"{shell}{quoted('raypid doctor', self.folder)}"]
        solved = f"{known.value:g} ({known.source}); this run reached {return_text(reached)}"
        return [("solved at", solved), ("try", first), *(("", line) for line in rest)]

    def _effort(self) -> list[tuple[str, str]]:
        """Steps and seconds, and what the seconds were spent on."""
        steps, total, seconds = self.agent.timesteps, self.phases.total, self.phases.seconds
        now = steps - int(self.before["timesteps_total"])
        new = f", {now:,} of them now," if now < steps else ""
        training = seconds.get("training", 0.0)
        text = f"{steps:,}{new} in {training:,.{1 if training >= 1 else 2}f} s of training"
        counted = self.agent.time_total_s - self.before["time_total_s"]
        if round(counted - training, 1) >= 0.1:  # what the column `time` and result.json have
            text += f", {counted:,.1f} s with evaluation"
        return [("steps", text), ("took", parts_text(total, seconds, always="training"))]

    def _next(self, result: Mapping[str, float], reason: str) -> list[str]:
        """Commands for what may come next. Each does something."""
        reached = {**result, **self.agent.totals()}
        stop = further(self.stop, reached) if reason.partition(" reached ")[1] else {}
        command = quoted("raypid eval", self.folder)
        if self._speaks_python():
            command = f"raypid.load_policy({str(self.folder)!r})"
        elif films(self.agent.config.env):
            command = f"{command} --video {shlex.quote(str(self.folder / 'video.mp4'))}"
        return [command, *([] if self.agent.has_own_program else [self._resuming(stop)])]

    def _speaks_python(self) -> bool:
        """Whether what comes next is a line of Python: in a notebook, and where no command can import what the run needs."""
        return self.notebook or bool(_of_main(self.agent.plain_config()))

    def _resuming(self, stop: Mapping[str, float]) -> str:
        """The command, or the call, that goes on with this run, to later stop criteria if `stop` has any."""
        settings, python = self.agent.plain_config(), self._speaks_python()
        words = going_on(self.agent.config, stop, self.agent.timesteps, python=python)
        if not python:
            return " ".join([quoted("raypid train --resume", self.folder), *words])
        given = [f"{key}={str(settings[key]).partition(':')[2]}" for key in _of_main(settings)]
        return f"raypid.train(resume={', '.join([repr(str(self.folder)), *given, *words])})"

    # -- after an error --------------------------------------------------------------------------------------------------

    def unsaved(self, newest: Path | None, result: Mapping[str, float], why: str = "") -> str:
        """What a run leaves that ended without a save: why, what its newest checkpoint lacks, and how it goes on from there."""
        lost = self._lost_since(newest, result)
        begin = "Nothing was saved" if why or lost or newest is None else "All finished iterations are saved"
        parts = "; ".join(filter(None, [why, lost, "" if newest is None else self.goes_on(newest)]))
        return f"{begin}: {parts}." if parts else f"{begin}."

    def _lost_since(self, newest: Path | None, result: Mapping[str, float]) -> str:
        """Say which iterations are lost if the run goes on from its newest checkpoint; "" if none is. `result`: the last one."""
        first = 1 if newest is None else iteration_of(newest) + 1
        last = max(self.agent.iteration, int(result.get("training_iteration", 0)))
        if last < first:
            return ""
        return f"iteration {first} is lost" if first == last else f"iterations {first:,} to {last:,} are lost"

    def goes_on(self, newest: Path | None = None) -> str:
        """Say how to go on with the run, and from which checkpoint if it is given."""
        own = self.agent.has_own_program
        how = f"restore({str(self.folder)!r})" if own else self._resuming({})
        return f"`{how}` goes on{f' from {newest.name}' if newest is not None else ''}"


def iteration_of(saved: Path) -> int:
    """The iteration of a checkpoint."""
    return int(saved.name.rpartition("_")[2])


def _of_main(settings: Mapping[str, object]) -> list[str]:
    """The settings that name code of a script or of a notebook's cells, which no other process can import."""
    return [key for key, value in settings.items() if str(value).startswith("__main__:")]
