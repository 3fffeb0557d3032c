"""`raypid tune`: search for settings within a budget of time, and prove them on fresh seeds."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypid.cli.train import add_settings, algorithm_name, at_least, read_mapping, settings_of
from raypid.config import Config, ConfigError, renamed
from raypid.errors import UserError
from raypid.registry import ALGORITHMS

if TYPE_CHECKING:
    from raypid.cli import Subparsers
    from raypid.experiments.search import Executor, Search, Task

INTERRUPTED = 130
GOAL = "evaluation/episode_reward_mean"
SECONDS = "time_total_s"
_TRIALS, _BUDGET = 30, "10m"
_EPILOG = """\
The settings to try and their ranges stand beside the defaults (docs/algorithms.md, column "search"). --space narrows or widens them:
  --space '{"lr": {"loguniform": [1e-4, 1e-2]}, "gamma": 0.99, "model.hidden": {"choice": [[32], [64, 64]]}}'
Any setting given as a flag is what every trial has."""


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    """Add the options of `raypid tune`, with the settings of the algorithm that `--run` names."""
    parser = subparsers.add_parser(
        "tune",
        help="search for settings",
        description="Search for settings: many short trials of which the hopeless are stopped, the best again on other seeds, the winner beside "
        "the defaults on fresh ones. Ends within the budget, with a report of one page.",
        epilog=_EPILOG,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(argv=list(argv))
    add = parser.add_argument
    add("--run", metavar="NAME", type=algorithm_name, help=f"algorithm: {', '.join(ALGORITHMS.names())}")
    add("--trials", metavar="N", type=partial(at_least, 1), help=f"most settings to try (default: {_TRIALS})")
    add("--budget", metavar="TIME", help=f"wall time of everything, such as 90s, 10m, 2h (default: {_BUDGET})")
    text = f"'{{\"{GOAL}\": 475}}': a return that is enough;\n'{{\"{SECONDS}\": 60}}': seconds of training of a trial (default: from the budget)"
    add("--stop", metavar="JSON", help=text)
    add("--space", metavar="JSON|FILE", help="ranges in place of those beside the defaults (see below)")
    add("--only", metavar="NAMES", help="search in these settings alone: lr,gamma")
    add(
        "--seed",
        metavar="N",
        type=partial(at_least, 0),
        default=0,
        help="first seed of the trials, at most 90 (default: 0)",
    )
    text = "who proposes settings: optuna (pip install raypid[optuna]) or random;\nauto: optuna where it is installed (default)"
    add("--by", default="auto", choices=("auto", "optuna", "random"), help=text)
    add("--concurrent", metavar="N", type=partial(at_least, 1), help="trials at a time (default: one for each core)")
    add(
        "--name",
        metavar="NAME",
        help="what --tuned of `raypid train` shall call the winner (default: from the algorithm and environment)",
    )
    add("--out", metavar="DIR", help="the folder of the search (default: a new one under runs/)")
    add("--resume", metavar="DIR", help="go on with the search in this folder")
    add(
        "--config",
        metavar="JSON|FILE",
        action="append",
        default=[],
        help="settings that every trial has; flags win over it",
    )
    add("--quiet", action="store_true", help="print the answer only")
    parser.set_defaults(trust=False)
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--run", nargs="?")
    named, _ = early.parse_known_args(argv if argv[:1] == ["tune"] else [])
    cls = Config
    if isinstance(named.run, str):
        with contextlib.suppress(UserError):  # the check of --run itself reports what is wrong with it
            cls = ALGORITHMS.get(named.run).Config
    title = f"settings of {named.run}" if cls is not Config else "settings of every algorithm"
    group = parser.add_argument_group(title)
    add_settings(_WithoutSeed(group), cls(), "")  # type: ignore[arg-type]


class _WithoutSeed:
    """An argument group that leaves out --seed, which is the search's own."""

    def __init__(self, group: argparse._ArgumentGroup) -> None:
        self._group = group

    def add_argument(self, *flags: str, **about: Any) -> None:
        if flags != ("--seed",):
            self._group.add_argument(*flags, **about)


def main(options: argparse.Namespace) -> int:
    """Check everything, then search. Returns 0 when the report is written."""
    from raypid.experiments.search import Search, write_search
    from raypid.experiments.search_report import Proof, answer, reached, write_report
    from raypid.outputs import check_folder_writable
    from raypid.run.experiment import lock_folder

    task, plan, trials, out, more = _resumed(options) if options.resume else _new(options)
    tell = (lambda text: None) if options.quiet else partial(print, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    check_folder_writable(out, "The folder of the search")
    with lock_folder(out):
        if not options.resume:
            write_search(out, task, plan, more)
        search = Search(
            task, plan, out, _executor(task, plan.concurrent, out), tell, trials, _below(task, plan.concurrent)
        )
        tell(_headline(search))
        try:
            with _interruptible():
                search()
        except KeyboardInterrupt:
            print(
                f"raypid: The search was ended. `raypid tune --resume {shlex.quote(str(out))}` goes on; what has ended stays."
            )
            return INTERRUPTED
        proof = Proof.of(search)
        name = _save(_entry(search, reached(search, proof)), str(more["name"]), out)
        page = write_report(search, proof, _commands(search, name, str(more["command"])))
    print(f"{answer(search, proof)}\nThe winner's settings: --tuned {shlex.quote(name)}. The report: {page}")
    return 0


def _save(entry: Mapping[str, object], name: str, out: Path) -> str:
    """Save the winner in the search's folder and under its name; returns what --tuned takes: the file, if the name cannot be used.

    Raises:
        Unwritten: the disk is full.
    """
    from raypid import saved_settings
    from raypid.outputs import Unwritten, explained, replacing

    file = out / "best.json"
    with explained(file), replacing(file) as beside:
        beside.write_text(json.dumps(entry, indent=2) + "\n")
    try:
        saved_settings.save(name, entry)
    except Unwritten as error:
        print(f"raypid: {error}")
        return str(file)
    return name


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C, SIGTERM and SIGHUP, which otherwise end the process at once."""

    def raise_(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        names = []
    numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) is not signal.SIG_IGN]
    before = {number: signal.signal(number, raise_) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new(options: argparse.Namespace) -> Any:
    """Task, plan, no trials, folder and what else is kept of a new search.

    Raises:
        UserError: what is wrong with an option.
    """
    from raypid import saved_settings
    from raypid.experiments.budget import RAY_TURN_S, TURN_S, make_plan, read_seconds
    from raypid.experiments.search import SEARCH, Task
    from raypid.experiments.search_trials import TRIALS, read_trials

    if options.run is None:
        raise ConfigError(f"Name the algorithm: --run {' or '.join(ALGORITHMS.names())}.")
    given = settings_of(options)
    if not isinstance(given.get("env"), str):
        raise ConfigError("Name the environment: --env CartPole-v1 (`raypid list envs` shows what there is).")
    stop = _stop(options.stop)
    space = read_mapping(options.space, "--space") if options.space else {}
    if options.name is not None and saved_settings.check_name(options.name) in saved_settings.names():
        raise ConfigError(f"There are settings called {options.name!r} already: choose another --name.")
    only = [part.strip() for part in options.only.split(",") if part.strip()] if options.only else []
    task = Task(
        run=options.run, fixed=given, overrides=space, only=only, goal=stop.get(GOAL), seed=options.seed, by=options.by
    )
    concurrent = options.concurrent or _concurrent(task)
    turn_s = RAY_TURN_S if task.config.on_ray else TURN_S
    plan = make_plan(
        options.trials or _TRIALS, read_seconds(options.budget or _BUDGET), concurrent, stop.get(SECONDS), turn_s
    )
    name = options.name or saved_settings.free_name(f"{options.run}-{given['env']}")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = Path(options.out or Path("runs") / saved_settings.free_name(f"tune_{options.run}_{given['env']}_{stamp}"))
    if (out / SEARCH).exists() and any(trial.state != "failed" for trial in read_trials(out)):
        raise ConfigError(f"{out} holds another search. Go on with it (--resume {out}), or choose another --out.")
    (out / TRIALS).unlink(missing_ok=True)
    for told in renamed(given):
        print(f"raypid: {told}.")
    return task, plan, [], out, {"name": name, "command": shlex.join(["raypid", *options.argv])}


def _resumed(options: argparse.Namespace) -> Any:
    """As `_new`, of a search that goes on.

    Raises:
        UserError: the folder holds none, or options are given that a search has from its beginning.
    """
    from raypid.experiments.search import read_search

    kept = ("--resume", "--quiet", "tune")
    words = [word for word in options.argv if word.startswith("--") or word == "tune"]
    if other := next((word for word in words if word.partition("=")[0] not in kept), None):
        raise ConfigError(f"--resume goes on with the search as it was begun: leave {other} out, or begin a new one.")
    task, plan, trials, more = read_search(Path(options.resume))
    return task, plan, trials, Path(options.resume), more


def _stop(text: str | None) -> dict[str, float]:
    """The stop criteria of a search: a return that is enough, and seconds of a trial."""
    stop: dict[str, float] = {}
    for key, value in (read_mapping(text, "--stop") if text else {}).items():
        if key not in (GOAL, SECONDS):
            raise ConfigError(f"A search takes the stop criteria {GOAL} and {SECONDS}, not {key!r}.")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (key == SECONDS and not value > 0):
            raise ConfigError(
                f"The stop criterion {key!r} takes a number{' above 0' if key == SECONDS else ''}, not {value!r}."
            )
        stop[key] = float(value)
    return stop


def _concurrent(task: Task) -> int:
    """Trials at a time: one for each core, or for what a trial on Ray takes of them."""
    from raypid.runtime.resources import num_cores, num_gpus

    c = task.config
    if not c.on_ray:
        return num_cores() if not c.num_gpus else max(1, int(num_gpus() / c.num_gpus))
    return 1


def _below(task: Task, concurrent: int) -> dict[str, object]:
    """Settings that follow from how many trials run side by side."""
    from raypid.runtime.resources import num_cores

    return {} if task.config.on_ray else {"num_threads": max(1, num_cores() // concurrent)}


def _executor(task: Task, concurrent: int, out: Path) -> Executor:
    from raypid.experiments.processes import TrialProcesses

    return TrialProcesses(concurrent, out / "processes.log")


def _headline(search: Search) -> str:
    from raypid.experiments.budget import shown_seconds
    from raypid.experiments.space import as_text

    plan, task = search.plan, search.task
    return (
        f"{task.run} on {task.fixed['env']}: {plan.trials} trials of at most {shown_seconds(plan.trial_s)} of training, {plan.concurrent} at a "
        f"time, within {shown_seconds(plan.budget_s)}; proposals by {search.proposer.name}; {search.out}\n{as_text(task.space)}\n"
        "[   time]     trial      score  trained"
    )


_MACHINE = (
    "env", "seed", "num_workers", "num_learners", "num_cpus", "num_gpus", "gpu", "num_cpus_per_worker", "address", "backend", "device",
    "num_threads", "fit", "evaluation_interval", "evaluation_num_episodes", "evaluation_parallel", "evaluation_env", "init_from",
)  # fmt: skip
"""Settings that belong to a machine or a run, not to what was found."""


def _entry(search: Search, text: str) -> dict[str, object]:
    """What is saved under the winner's name."""
    from raypid import __version__
    from raypid.experiments.space import nested

    task = search.task
    assert search.winner is not None
    kept = {name: value for name, value in task.fixed.items() if name not in _MACHINE}
    settings = nested({**kept, **search.trials[search.winner].settings})
    about = {
        "reached": text,
        "raypid": __version__,
        "found": time.strftime("%Y-%m-%d"),
        "search": str(search.out.resolve()),
    }
    return {"algorithm": task.run, "env": task.fixed["env"], "settings": settings, **about}


def _commands(search: Search, name: str, command: str) -> list[tuple[str, str]]:
    """Commands that train with the winner's settings, show what it learnt, and repeat the search."""
    task = search.task
    stop: Mapping[str, float] = {SECONDS: search.plan.trial_s, **({} if task.goal is None else {GOAL: task.goal})}
    machine = [
        part
        for key, value in task.fixed.items()
        if key in _MACHINE and key not in ("env", "seed")
        for part in (f"--{key.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value))
    ]
    train = [
        "raypid",
        "train",
        "--run",
        task.run,
        "--env",
        str(task.fixed["env"]),
        "--tuned",
        name,
        *machine,
        "--stop",
        json.dumps(stop),
    ]
    commands = [("train with the winner's settings", shlex.join([*train, "--out", f"runs/{name}"]))]
    trained = next((t for t in search.of("winner") if (search.out / t.folder / "best").exists()), None)
    if trained is not None:
        commands.append(
            (
                "a policy that was trained with them here",
                shlex.join(["raypid", "eval", str(search.out / trained.folder)]),
            )
        )
    return [*commands, ("repeat the search", command)]
