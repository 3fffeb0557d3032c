"""Search for settings: many short trials of which the hopeless are stopped, the best again on other seeds, the best of these
beside the defaults on fresh ones.

Ends within the budget, with a report of one page.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypid import __version__
from raypid.cli.options import HELP_ALL, add_groups, add_settings, reader, without_options
from raypid.cli.train import at_least, check_goes_on, named_parts, settings_class, settings_of, stop_of
from raypid.phases import duration
from raypid.plugins.extras import need
from raypid.plugins.registry import ALGORITHMS
from raypid.run.calls import algorithm_of
from raypid.run.folder import lock_folder
from raypid.run.known_keys import KnownKeys, check_stop
from raypid.run.signals import signals_call
from raypid.runtime.resources import num_cores, num_gpus
from raypid.settings import saved as saved_settings
from raypid.settings.config import Config, ConfigError, renamed
from raypid.settings.files import read_values
from raypid.settings.stops import SECONDS
from raypid.storage.outputs import Unwritten, check_folder_writable, write_whole
from raypid.storage.run_folder import EVALUATION as GOAL
from raypid.sweep.budget import RAY_TURN_S, TURN_S, Plan, make_plan, read_seconds
from raypid.sweep.space import as_text, nested

if TYPE_CHECKING:
    from raypid.sweep.search import Search, Task
    from raypid.sweep.search_report import Proof

INTERRUPTED = 130
_SPACE = """\
ranges in place of those beside the defaults (the docs have them, a page for each algorithm), to narrow, widen or add some: \
'{"lr": {"loguniform": [1e-4, 1e-2]}, "gamma": 0.99, "model.hidden": {"choice": [[32], [64, 64]]}}'"""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Add the options of `raypid tune`, with the settings of the algorithm that `--run` names."""
    parser.usage = "raypid tune --run NAME --env NAME [--trials N] [--budget TIME] [options]"
    parser.set_defaults(argv=list(argv), trust=False)
    name = named_parts(argv).get("run", "")
    groups = add_groups(parser, f"{name or 'every algorithm'}; what is given here and below every trial has")
    _add_options(groups["run"].add_argument)
    add_settings(groups, settings_class(name)(), full=HELP_ALL in argv)
    parser.epilog = (
        f"`raypid tune --run {name or 'PPO'} {HELP_ALL}` shows all settings, docs/algorithms has their ranges."
    )


def _add_options(add: Callable[..., object]) -> None:
    """Add what is no setting of a run."""
    add("--run", metavar="NAME", type=reader(algorithm_of), help=f"algorithm: {', '.join(ALGORITHMS.names())}")
    add("--trials", metavar="N", type=partial(at_least, 1), default=30, help="most settings to try (default: 30)")
    text = "wall time of everything, such as 90s, 10m, 2h (default: 10m)"
    add("--budget", metavar="TIME", type=reader(read_seconds), default="10m", help=text)
    text = f"'{{\"{GOAL}\": 475}}': a return that is enough; '{{\"{SECONDS}\": 60}}': seconds of training of a trial (default: from the budget)"
    add("--stop", metavar="JSON", help=text)
    add("--space", metavar="JSON|FILE", help=_SPACE)
    add("--only", metavar="NAMES", help="search in these settings alone: lr,gamma")
    text = "first seed of the trials, at most 90 (default: 0)"
    add("--seed", metavar="N", type=partial(at_least, 0), default=0, help=text)
    text = "how settings are proposed: optuna (by its TPE, as auto) or random"
    add("--by", default="auto", choices=("auto", "optuna", "random"), help=text)
    add("--concurrent", metavar="N", type=partial(at_least, 1), help="trials at a time (default: one for each core)")
    text = "what --tuned of `raypid train` shall call the settings found (default: from the algorithm and environment)"
    add("--name", metavar="NAME", help=text)
    add("--out", metavar="DIR", help="the folder of the search (default: a new one under runs/)")
    add("--resume", metavar="DIR", help="go on with the search in this folder")
    text = "settings that every trial has; flags win over it"
    add("--config", metavar="JSON|FILE", action="append", default=[], help=text)
    add("--quiet", action="store_true", help="print the answer only")


def main(options: argparse.Namespace) -> int:
    """Check everything, then search. Returns 0 when the report is written."""
    if not hasattr(os, "killpg"):
        raise ConfigError("raypid tune needs Linux or macOS, on Windows WSL 2: it ends groups of processes.")
    need({"optuna": "raypid tune"})
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
        search = Search(task, plan, out, processes, tell)
        within = f"{plan.concurrent} at a time, within {duration(plan.budget_s)}; {out}"
        tell(f"{task.run} on {task.fixed['env']}: at most {plan.trials} trials, {within}\n{as_text(task.space)}")
        tell("[   time]     trial      score  trained")
        try:
            with signals_call(signal.default_int_handler):
                search()
        except KeyboardInterrupt:
            again = f"`raypid tune --resume {shlex.quote(str(out))}`"
            print(f"raypid: The search was ended. {again} goes on; what has ended stays.")
            return INTERRUPTED
        proof = Proof(search)
        tuned, where = _save(search, proof, more["name"])
        page = write_report(search, proof, _commands(search, tuned, more["command"]))
    print(f"{proof}\n{where} The report: {page}")
    return 0


def _new(options: argparse.Namespace) -> tuple[Task, Plan, Path, dict[str, Any]]:
    """Task, plan, folder and what else is kept of a new search.

    Raises:
        UserError: what is wrong with an option.
    """
    from raypid.sweep.search import JOURNAL, Task, open_study, read_search, runs_of

    if options.run is None:
        raise ConfigError(f"Name the algorithm: --run {' or '.join(ALGORITHMS.names())}.")
    given = settings_of(options)
    if not isinstance(given.get("env"), str):
        raise ConfigError("Name the environment: --env CartPole-v1 (`raypid list envs` shows what there is).")
    stop = _stop(options.stop)
    space = read_values(options.space, "--space") if options.space else {}
    if options.name is not None and saved_settings.check_name(options.name) in saved_settings.names():
        raise ConfigError(f"There are settings called {options.name!r} already: choose another --name.")
    only = [part.strip() for part in (options.only or "").split(",") if part.strip()]
    task = Task(
        run=options.run, fixed=given, overrides=space, only=only, goal=stop.get(GOAL), seed=options.seed, by=options.by
    )
    on_ray, cores = task.config.on_ray, num_cores()
    concurrent = options.concurrent or _concurrent(task.config)
    if not on_ray and concurrent > cores:
        print(f"raypid: {concurrent} trials at a time share {cores} cores: each is slower than a run of its own.")
    turn_s = RAY_TURN_S if on_ray else TURN_S
    plan = make_plan(options.trials, options.budget, concurrent, stop.get(SECONDS), turn_s)
    name = options.name or saved_settings.free_name(f"{options.run}-{given['env']}")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = Path(options.out or Path("runs") / saved_settings.free_name(f"tune_{options.run}_{given['env']}_{stamp}"))
    there = (out / JOURNAL).exists() and read_search(out) and runs_of(open_study(out, "search"))
    if there and any(run.state != "failed" for run in there.values()):
        raise ConfigError(f"{out} holds a search. Resume it (--resume {shlex.quote(str(out))}), or give another --out.")
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
    check_goes_on(f"The search in {options.resume}", options.argv)
    return task, plan, Path(options.resume), more


def _stop(text: str | None) -> dict[str, float]:
    """The stop criteria of a search: a return that is enough, and seconds of a trial."""
    stop = stop_of(text)
    if other := next((key for key in stop if key not in (GOAL, SECONDS)), None):
        raise ConfigError(f"A search takes the stop criteria {GOAL} and {SECONDS}, not {other!r}.")
    return check_stop(stop, KnownKeys(frozenset(stop), ()))


def _concurrent(config: Config) -> int:
    """Trials at a time: one for each core, or each GPU or part of one; on Ray, where a trial takes all cores, one."""
    if config.on_ray:
        return 1
    return max(1, int(num_gpus() / config.num_gpus)) if config.num_gpus else num_cores()


def _save(search: Search, proof: Proof, name: str) -> tuple[str, str]:
    """Save the settings found in the search's folder, and under a name unless the defaults did better.

    Returns what --tuned takes for them ("" if there are none), and a sentence that says so.

    Raises:
        Unwritten: the disk is full.
    """
    if search.found is None:
        return "", "Nothing is saved under a name."
    entry, out, file = _entry(search, proof), str(search.out), search.out / saved_settings.BEST
    write_whole(file, json.dumps(entry, indent=2) + "\n")
    if not proof.is_worth_saving:
        why = "" if proof.better is None else ": the mean score of the defaults is higher"
        also = f"(--tuned {shlex.quote(out)} takes what was found all the same.)"
        return out, f"Nothing is saved under a name{why}. {also}"
    try:
        saved_settings.save(name, entry)
    except Unwritten as error:
        print(f"raypid: {error}")
        name = str(file)
    return name, f"The settings found: --tuned {shlex.quote(name)}."


def _entry(search: Search, proof: Proof) -> dict[str, object]:
    """What is saved of the settings found."""
    from raypid.sweep.search_report import reached

    task = search.task
    assert search.found is not None
    of_a_run = {name for name in task.fixed if task.config.group_of(name) in ("machine", "evaluation")}
    kept = {name: x for name, x in task.fixed.items() if name not in {*of_a_run, "env", "init_from"}}
    return {
        "algorithm": task.run,
        "env": task.fixed["env"],
        "settings": nested({**kept, **search.found.settings}),
        "reached": reached(search, proof),
        "against_the_defaults": proof.verdict,
        "raypid": __version__,
        "found": time.strftime("%Y-%m-%d"),
        "search": str(search.out.resolve()),
    }


def _commands(search: Search, tuned: str, command: str) -> list[tuple[str, str]]:
    """Commands that train with the settings found, and repeat the search."""
    task, repeat = search.task, ("repeat the search", command)
    if search.found is None:
        return [repeat]
    stop = {SECONDS: search.plan.trial_s, **({} if task.goal is None else {GOAL: task.goal})}
    given = {"run": task.run, "env": task.fixed["env"], "tuned": tuned, "stop": json.dumps(stop)}
    given["out"] = f"runs/{Path(tuned).name}-found"
    words = [word for key, text in given.items() for word in (f"--{key}", text)]
    return [("train with the settings found", shlex.join(["raypid", "train", *words])), repeat]
