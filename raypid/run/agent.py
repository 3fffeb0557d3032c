"""Agent: what `raypid.PPO` and the others are. A Training that also has whole runs, with all that the command line leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from raypid.errors import shown
from raypid.outcome import Outcome
from raypid.plugins.registry import ALGORITHMS, Registries, get_registry
from raypid.run.calls import algorithm_of, request_of
from raypid.run.resolve import ResolvedRun, SettledRun, look, resolve, settle
from raypid.run.training import Training
from raypid.settings.address import NotJoined
from raypid.settings.config import ConfigError
from raypid.storage import checkpoint

A = TypeVar("A", bound="Agent")


class _DefaultConfig:
    """All settings of an agent's algorithm with their defaults; a new dict whenever it is asked for."""

    def __get__(self, agent: Agent | None, owner: type[Agent]) -> dict[str, object]:
        if owner.algorithm is None:
            raise AttributeError("DEFAULT_CONFIG: an Agent has none before its algorithm is named; raypid.PPO has.")
        return ALGORITHMS.get(owner.algorithm).Config().to_dict()


class Agent(Training):
    """An algorithm and an environment, ready to train.

    `fit` is a whole run: it trains until a stop criterion is met, and leaves a folder like that of `raypid train`. `train` is one
    iteration, for loops of your own, which leave only what they save.

    Args:
        given: the algorithm and the environment, in this order, each once: `Agent("PPO", "CartPole-v1")`. A class such as `raypid.PPO`
            fixes the algorithm: `PPO("CartPole-v1")`. A mapping among them is `config`. A ResolvedRun alone says everything.
        run: the algorithm: a name, or a subclass of `raypid.algorithms.base.Algorithm`, which is registered under its name.
        config: settings as a mapping, or a file of them (YAML or JSON; a run's params.json repeats its settings); keywords override
            it. `DEFAULT_CONFIG` has all of them.
        tuned: start from the tuned settings for this algorithm and environment (`raypid list tuned`), or from those that a search has
            saved, given by their name or file.
        out: the run's folder, for `save`, `fit` and errors. By default one under runs/ is chosen when it is needed.
        registry: what `raypid.get_registry()` returns, or nothing: names are looked up in this process in either case.

    Raises:
        ConfigError: a setting that does not exist or does not fit.
        ResourceError: more workers or GPUs than there are.
        EnvError: the environment cannot be used. Nothing has been started then.
    """

    algorithm: ClassVar[str | None] = None
    DEFAULT_CONFIG = _DefaultConfig()
    _stop: Mapping[str, object] | int | float | None = None
    """That of the last `fit`."""
    _fitted: Path | None = None
    """Its folder."""

    def __init__(
        self,
        *given: object,
        run: object = None,
        config: Mapping[str, object] | str | Path | None = None,
        out: str | Path | None = None,
        tuned: bool | str = False,
        registry: Registries | None = None,
        **settings: object,
    ) -> None:
        if len(given) == 1 and isinstance(given[0], ResolvedRun):
            super().__init__(given[0])
            return
        if registry not in (None, get_registry()):
            raise ConfigError(f"registry takes what raypid.get_registry() returns, not {shown(registry)}.")
        if run is None and self.algorithm is None and given:
            run, given = given[0], given[1:]
        name = self.algorithm if run is None else algorithm_of(run)
        if self.algorithm not in (None, name):
            how = f"leave run out, or call raypid.Agent({name!r}, ...)"
            raise ConfigError(f"{type(self).__name__} trains with {self.algorithm}, not with {name}: {how}.")
        super().__init__(resolve(request_of(name, given, config, settings, out=out, tuned=tuned)))

    @classmethod
    def from_checkpoint(
        cls: type[A],
        path: str | Path,
        config: Mapping[str, object] | None = None,
        *,
        out: str | Path | None = None,
        trust: bool = False,
        **settings: object,
    ) -> A:
        """The agent that wrote a checkpoint, with its settings; those given here override them.

        Args:
            trust: import what only the checkpoint names, though this user's raypid did not write it.

        Raises:
            CheckpointError: there is none, or it is damaged.
            ConfigError: it is of another algorithm than this class's; `raypid.Agent` takes any.
            UntrustedError: it names code that may not be imported.
        """
        return cls.of(settle(request_of(cls.algorithm, (), config, settings, out=out, trust=trust, resume=path)))

    @classmethod
    def of(cls: type[A], run: SettledRun) -> A:
        """The agent of a run, which may go on from a checkpoint; errors as `from_checkpoint`."""
        try:
            return cls(look(run))
        except NotJoined as error:
            before = {} if run.saved is None else run.saved.manifest["config"]
            if "address" in run.request.settings or before.get("address") is None:
                raise
            how = "address='local' goes on with Ray on this machine, with fit=True too if it is smaller, num_workers=0 without Ray"
            raise NotJoined(f"{error} That is where this run was: {how}.") from error

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
        from raypid.report.notebook import progress_here
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
        folder = self._folder_for(out, overwrite)
        run = Run(self, options, progress_here(criteria, quiet), folder)
        try:
            return run()
        finally:
            if run.has_begun:
                self._stop, self._fitted = stop, folder

    def _folder_for(self, out: str | Path | None, overwrite: bool) -> Path:
        """The folder of a `fit`.

        Raises:
            ConfigError: it holds another run, or what `overwrite` must not replace; or it is this agent's, and has gone on further than
                the checkpoint that this agent has restored.
        """
        from raypid.run.folder import check_folder

        folder = Path(out) if out is not None else self.out
        if folder is None:
            check_folder(None, resume=False, overwrite=overwrite)
            return self.default_out()
        saved, newest = self._last_save, checkpoint.latest(folder / "checkpoints")
        if saved is not None and saved.parent.absolute() == (folder / "checkpoints").absolute():
            if overwrite:
                raise ConfigError(f"{folder} holds what this agent goes on from: leave overwrite out, or change out.")
            if newest is not None and newest.name != saved.name:
                how = f"choose another out, or raypid.train(resume={str(folder)!r})"
                raise ConfigError(f"{folder} goes on to {newest.name}, this agent goes on from {saved.name}: {how}.")
        elif overwrite or folder != self._fitted:
            check_folder(folder, resume=False, overwrite=overwrite)
        return folder
