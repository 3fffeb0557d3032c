"""Agent: what `raypid.PPO` and the others are. A Training that also has whole runs, with all that the command line leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from raypid import checkpoint
from raypid.config import ConfigError
from raypid.errors import shown
from raypid.keywords import other_words
from raypid.outcome import Outcome
from raypid.run.training import Training
from raypid.run_file import OPTIONS

if TYPE_CHECKING:  # `train` alone does without, and starts sooner
    from raypid.reporting.panel import Progress
    from raypid.run.run import RunOptions


class Agent(Training):
    """An algorithm and an environment, ready to train.

    `fit` is a whole run: it trains until a stop criterion is met, and leaves a folder like that of `raypid train`. `train` is one
    iteration, for loops of your own, which leave only what they save. The arguments are those of `raypid.run.training.Training`.
    """

    _stop: Mapping[str, object] | int | float | None = None
    """That of the last `fit`."""
    _fitted: Path | None = None
    """Its folder."""
    _fitted_to = 0
    """Its last iteration."""
    _shown_before: Progress | None = None
    """What has shown how the agent was built, in the place where the next `fit` goes on."""

    @other_words(stop=True)
    def fit(
        self,
        stop: int | float | Mapping[str, object] | None = None,
        *,
        out: str | Path | None = None,
        overwrite: bool = False,
        quiet: bool = False,
        checkpoint_interval: int = 0,
        keep_checkpoints: int = 3,
        final_episodes: int = 50,
    ) -> Outcome:
        """Train until a stop criterion is met, and leave the folder of a run: settings, results, checkpoints, best policy, curve.

        A second call goes on in the same folder. So does an agent that was restored from the newest checkpoint of `out`. With another
        `out`, the results from here on go to that folder. Steps of earlier calls of `train` count, but have no results in the folder.

        Ctrl-C, or interrupting a notebook's kernel, ends the run after this iteration, with a checkpoint, and the outcome has
        `interrupted`. A second one raises KeyboardInterrupt. Both reach the run in the main thread only. If an error ends the run, what
        was learnt is saved before the error is raised.

        Args:
            stop: the total of environment steps at which to end, or {key of a result: value}; the first that is reached ends the run.
                Without it the run goes on with the criteria of the last `fit`, or until Ctrl-C. A linear schedule without schedule_steps
                ends at this total, also if the agent goes on from an earlier one.
            out: the run's folder; by default the agent's, or a new one under runs/.
            overwrite: replace the run in that folder.
            quiet: show only what goes wrong, on stderr.
            checkpoint_interval: iterations between checkpoints; 0: one a minute.
            keep_checkpoints: number of newest checkpoints to keep, besides the best.
            final_episodes: episodes of the best policy at the end, fewer if they take longer than the run, or over a minute; 0: none.

        Raises:
            ConfigError: a stop criterion or a count that does not fit, or the folder holds another run; nothing has been trained then.
            RuntimeError: the agent is closed.
        """
        from raypid.reporting.notebook import progress_here
        from raypid.run.known_keys import check_stop, known_keys
        from raypid.run.run import Run, RunOptions

        self.check_open()
        stop = self._stop if stop is None else stop
        criteria = check_stop(stop, known_keys(self.run, self.config))
        options = RunOptions(
            stop=criteria,
            checkpoint_interval=checkpoint_interval,
            keep_checkpoints=keep_checkpoints,
            final_episodes=final_episodes,
            overwrite=overwrite,
            python=True,
        )
        check_counts(options)
        folder = self._folder_for(out, overwrite)
        if folder == self._fitted and self.iteration > self._fitted_to:
            self.notes.append(
                f"{folder} has no results of iterations after {self._fitted_to} and up to {self.iteration}: train() ran them."
            )
        run = Run(self, options, progress_here(criteria, quiet, self._shown_before), folder)
        try:
            return run()
        finally:
            if run.has_begun:
                self._stop, self._fitted, self._fitted_to = stop, folder, self.iteration

    def _folder_for(self, out: str | Path | None, overwrite: bool) -> Path:
        """The folder of a `fit`.

        Raises:
            ConfigError: it holds another run, or what `overwrite` must not replace.
        """
        from raypid.run.folder import check_folder

        if overwrite and out is None and self.out is None:
            raise ConfigError("overwrite replaces the run in the folder of out: name that folder.")
        folder = Path(out) if out is not None else self.default_out()
        if overwrite and self._last_save is not None and self._last_save.parent == folder / "checkpoints":
            raise ConfigError(
                f"{folder} holds what this agent goes on from: leave overwrite out, or choose another out."
            )
        if overwrite or not self._is_own(folder):
            check_folder(folder, resume=False, overwrite=overwrite)
        return folder

    def _is_own(self, folder: Path) -> bool:
        """Whether the run in the folder is this agent's, which goes on with it.

        Raises:
            ConfigError: it is, but has gone on further than the checkpoint that this agent has restored.
        """
        if self._last_save is None or self._last_save.parent.absolute() != (folder / "checkpoints").absolute():
            return folder == self._fitted
        newest = checkpoint.latest(folder / "checkpoints")
        if newest is not None and newest.name != self._last_save.name:
            raise ConfigError(
                f"{folder} goes on to {newest.name}, this agent goes on from {self._last_save.name}: choose another out, or "
                f"raypid.train(resume={str(folder)!r})."
            )
        return True


def check_counts(options: RunOptions) -> None:
    """Check the counts of a run that are given in Python.

    Raises:
        ConfigError: one is not a whole number, or too small.
    """
    for name, low in OPTIONS.items():
        count: object = getattr(options, name)
        if not isinstance(count, int) or isinstance(count, bool) or not low <= count < 2**63:
            raise ConfigError(f"{name} takes a whole number of at least {low}, not {shown(count)}.")
