"""`raypid tune`: search for settings within a budget of time, and compare them with the defaults on fresh seeds."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypid.cli.options import HELP_ALL, add_groups, add_settings, reader, without_options
from raypid.cli.train import at_least, named_parts, settings_class, settings_of
from raypid.envs.closing import ENDS
from raypid.plugins.extras import need
from raypid.plugins.registry import ALGORITHMS
from raypid.run.calls import algorithm_of
from raypid.settings.config import ConfigError, renamed
from raypid.settings.files import read_values
from raypid.settings.stops import read_stop

if TYPE_CHECKING:
    from raypid.sweep.budget import Plan
    from raypid.sweep.search import Search, Task
    from raypid.sweep.search_report import Proof

INTERRUPTED = 130
GOAL = "evaluation/episode_reward_mean"
SECONDS = "time_total_s"
_TRIALS, _BUDGET = 30, "10m"
_STEPS = 100
"""Environment steps of an iteration with replay, so that it can end where a trial is judged. Nothing else depends on them."""
_SPACE = """\
ranges in place of those beside the defaults (the docs have them, a page for each algorithm), to narrow, widen or add some: \
'{"lr": {"loguniform": [1e-4, 1e-2]}, "gamma": 0.99, "model.hidden": {"choice": [[32], [64, 64]]}}'"""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Add the options of `raypid tune`, with the settings of the algorithm that `--run` names."""
    parser.usage = "raypid tune --run NAME --env NAME [--trials N] [--budget TIME] [options]"
    parser.description = (
        "Search for settings: many short trials of which the hopeless are stopped, the best again on other seeds, the best of these "
        "beside the defaults on fresh ones. Ends within the budget, with a report of one page."
    )
    parser.set_defaults(argv=list(argv), trust=False)
    name = named_parts(argv).get("run", "")
    groups = add_groups(parser, f"{name or 'every algorithm'}; what is given here and below every trial has")
    _add_options(groups["run"].add_argument)
    add_settings(groups, settings_class(name)(), full=HELP_ALL in argv, without=["seed"])
    parser.epilog = (
        f"`raypid tune --run {name or 'PPO'} {HELP_ALL}` shows all settings, docs/algorithms has their ranges."
    )


def _add_options(add: Callable[..., object]) -> None:
    """Add what is no setting of a run."""
    add("--run", metavar="NAME", type=reader(algorithm_of), help=f"algorithm: {', '.join(ALGORITHMS.names())}")
    add("--trials", metavar="N", type=partial(at_least, 1), help=f"most settings to try (default: {_TRIALS})")
    add("--budget", metavar="TIME", help=f"wall time of everything, such as 90s, 10m, 2h (default: {_BUDGET})")
    text = f"'{{\"{GOAL}\": 475}}': a return that is enough; '{{\"{SECONDS}\": 60}}': seconds of training of a trial (default: from the budget)"
    add("--stop", metavar="JSON", help=text)
    add("--space", metavar="JSON|FILE", help=_SPACE)
    add("--only", metavar="NAMES", help="search in these settings alone: lr,gamma")
    add(
        "--seed",
        metavar="N",
        type=partial(at_least, 0),
        default=0,
        help="first seed of the trials, at most 90 (default: 0)",
    )
    text = "how settings are proposed: optuna (by its TPE, as auto) or random"
    add("--by", default="auto", choices=("auto", "optuna", "random"), help=text)
    add("--concurrent", metavar="N", type=partial(at_least, 1), help="trials at a time (default: one for each core)")
    add(
        "--name",
        metavar="NAME",
        help="what --tuned of `raypid train` shall call the settings found (default: from the algorithm and environment)",
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


def main(options: argparse.Namespace) -> int:
    """Check everything, then search. Returns 0 when the report is written."""
    if not hasattr(os, "killpg"):
        raise ConfigError(
            "raypid tune needs Linux or macOS, on Windows WSL 2: it ends trials by their groups of processes."
        )
    need({"optuna": "raypid tune"})
    from raypid.run.folder import lock_folder
    from raypid.storage.outputs import check_folder_writable
    from raypid.sweep.processes import TrialProcesses
    from raypid.sweep.search import Search, write_search
    from raypid.sweep.search_report import Proof, write_report

    task, plan, out, more = _resumed(options) if options.resume else _new(options)
    tell = (lambda text: None) if options.quiet else partial(print, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    check_folder_writable(out, "The folder of the search")
    with lock_folder(out):
        if not options.resume:
            write_search(out, task, plan, more)
        processes = TrialProcesses(plan.concurrent, out / "processes.log")
        search = Search(task, plan, out, processes, tell, _below(task, plan.concurrent))
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
        name = _save(search, proof, str(more["name"])) if search.found is not None else None
        page = write_report(search, proof, _commands(search, name, str(more["command"])))
    print(f"{proof}\n{_where(name, proof, out)} The report: {page}")
    return 0


def _where(name: str | None, proof: Proof, out: Path) -> str:
    """Where the settings found are, if they are worth it."""
    if name is not None:
        return f"The settings found: --tuned {shlex.quote(name)}."
    if proof.better is None:
        return "Nothing is saved under a name."
    return (
        "Nothing is saved under a name: the mean score of the defaults is higher. "
        f"(--tuned {shlex.quote(str(out))} takes what was found all the same.)"
    )


def _save(search: Search, proof: Proof, name: str) -> str | None:
    """Save the settings found in the search's folder and under a name; returns what --tuned takes: the file, if the name cannot be
    used, None if they are not worth a name, since they did worse than the defaults.

    Raises:
        Unwritten: the disk is full.
    """
    from raypid.settings import saved as saved_settings
    from raypid.storage.outputs import Unwritten, explained, replacing
    from raypid.sweep.search_report import reached

    entry, file = _entry(search, reached(search, proof), proof.verdict), search.out / saved_settings.BEST
    with explained(file), replacing(file) as beside:
        beside.write_text(json.dumps(entry, indent=2) + "\n")
    if not proof.is_worth_saving:
        return None
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

    in_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in ENDS if in_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, raise_) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new(options: argparse.Namespace) -> tuple[Task, Plan, Path, dict[str, Any]]:
    """Task, plan, folder and what else is kept of a new search.

    Raises:
        UserError: what is wrong with an option.
    """
    from raypid.runtime.resources import num_cores
    from raypid.settings import saved as saved_settings
    from raypid.sweep.budget import RAY_TURN_S, TURN_S, make_plan, read_seconds
    from raypid.sweep.search import FORMER, JOURNAL, Task, open_study, read_search, runs_of

    if options.run is None:
        raise ConfigError(f"Name the algorithm: --run {' or '.join(ALGORITHMS.names())}.")
    given = settings_of(options)
    if not isinstance(given.get("env"), str):
        raise ConfigError("Name the environment: --env CartPole-v1 (`raypid list envs` shows what there is).")
    stop = _stop(options.stop)
    space = read_values(options.space, "--space") if options.space else {}
    if options.name is not None and saved_settings.check_name(options.name) in saved_settings.names():
        raise ConfigError(f"There are settings called {options.name!r} already: choose another --name.")
    only = [part.strip() for part in options.only.split(",") if part.strip()] if options.only else []
    task = Task(
        run=options.run, fixed=given, overrides=space, only=only, goal=stop.get(GOAL), seed=options.seed, by=options.by
    )
    concurrent = options.concurrent or _concurrent(task)
    if not task.config.on_ray and concurrent > num_cores():
        print(
            f"raypid: {concurrent} trials at a time share {num_cores()} cores: each is slower than a run of its own would be."
        )
    turn_s = RAY_TURN_S if task.config.on_ray else TURN_S
    plan = make_plan(
        options.trials or _TRIALS, read_seconds(options.budget or _BUDGET), concurrent, stop.get(SECONDS), turn_s
    )
    name = options.name or saved_settings.free_name(f"{options.run}-{given['env']}")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = Path(options.out or Path("runs") / saved_settings.free_name(f"tune_{options.run}_{given['env']}_{stamp}"))
    there = any((out / name).exists() for name in (JOURNAL, FORMER))
    if there and read_search(out) and any(run.state != "failed" for run in runs_of(open_study(out, "search")).values()):
        raise ConfigError(
            f"{out} holds another search. Go on with it (--resume {shlex.quote(str(out))}), or choose another --out."
        )
    for told in renamed(given):
        print(f"raypid: {told}.")
    command = shlex.join(["raypid", *without_options(options.argv, "--out", "--name")])
    return task, plan, out, {"name": name, "command": command}


def _resumed(options: argparse.Namespace) -> tuple[Task, Plan, Path, dict[str, Any]]:
    """As `_new`, of a search that goes on.

    Raises:
        UserError: the folder holds none, or options are given that a search has from its beginning.
    """
    from raypid.sweep.search import read_search

    task, plan, more = read_search(Path(options.resume))
    kept = ("--resume", "--quiet", "tune")
    words = [word for word in options.argv if word.startswith("--") or word == "tune"]
    if other := next((word for word in words if word.partition("=")[0] not in kept), None):
        raise ConfigError(f"--resume goes on with the search as it was begun: leave {other} out, or begin a new one.")
    return task, plan, Path(options.resume), more


def _stop(text: str | None) -> dict[str, float]:
    """The stop criteria of a search: a return that is enough, and seconds of a trial."""
    stop: dict[str, float] = {}
    is_file = bool(text) and os.path.isfile(str(text).removeprefix("@"))
    for key, value in read_stop(read_values(str(text), "--stop") if is_file else text or None, "--stop").items():
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
    """Settings that follow from how many trials run side by side, and from when they are judged."""
    from raypid.runtime.resources import num_cores

    threads: dict[str, object] = {} if task.config.on_ray else {"num_threads": max(1, num_cores() // concurrent)}
    steps = getattr(task.config, "steps_per_iteration", None)  # of replay; others have iterations of their own
    return threads if steps is None else {**threads, "steps_per_iteration": min(steps, _STEPS)}


def _headline(search: Search) -> str:
    from raypid.sweep.budget import shown_seconds
    from raypid.sweep.space import as_text

    plan, task = search.plan, search.task
    return (
        f"{task.run} on {task.fixed['env']}: at most {plan.trials} trials, {plan.concurrent} at a time, within {shown_seconds(plan.budget_s)}; "
        f"{search.out}\n{as_text(task.space)}\n"
        "[   time]     trial      score  trained"
    )


_MACHINE = (
    "env", "seed", "num_workers", "num_learners", "num_cpus", "num_gpus", "gpu", "num_cpus_per_worker", "address", "backend", "device",
    "num_threads", "fit", "evaluation_interval", "evaluation_num_episodes", "evaluation_num_envs", "evaluation_parallel", "evaluation_env",
    "init_from",
)  # fmt: skip
"""Settings that belong to a machine or a run, not to what was found."""


def _entry(search: Search, text: str, shown: str) -> dict[str, object]:
    """What is saved of the settings found."""
    from raypid import __version__
    from raypid.sweep.space import nested

    task = search.task
    assert search.found is not None
    kept = {name: value for name, value in task.fixed.items() if name not in _MACHINE}
    settings = nested({**kept, **search.found.settings})
    about = {
        "reached": text,
        "against_the_defaults": shown,
        "raypid": __version__,
        "found": time.strftime("%Y-%m-%d"),
        "search": str(search.out.resolve()),
    }
    return {"algorithm": task.run, "env": task.fixed["env"], "settings": settings, **about}


def _commands(search: Search, name: str | None, command: str) -> list[tuple[str, str]]:
    """Commands that train with the settings found, show what it learnt, and repeat the search."""
    task, repeat = search.task, ("repeat the search", command)
    if search.found is None:
        return [repeat]
    stop = {SECONDS: search.plan.trial_s, **({} if task.goal is None else {GOAL: task.goal})}
    given = {"run": task.run, "env": task.fixed["env"], "tuned": name or str(search.out), "stop": json.dumps(stop)}
    given["out"] = f"runs/{name or search.out.name + '-found'}"
    words = [word for key, text in given.items() for word in (f"--{key}", text)]
    commands = [("train with the settings found", shlex.join(["raypid", "train", *words]))]
    trained = next((t for t in search.of("found") if (search.out / t.folder / "best").exists()), None)
    if trained is not None:
        shown = shlex.join(["raypid", "eval", str(search.out / trained.folder)])
        commands.append(("a policy that was trained with them here", shown))
    return [*commands, repeat]
