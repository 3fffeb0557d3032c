"""Seconds to a known return with the default settings, on tasks and seeds that chose nothing.

    python benchmarks/defaults.py                                          # what is missing, one run after the other
    python benchmarks/defaults.py --tasks SAC:LunarLanderContinuous-v3 --seeds 1000-1008
    python benchmarks/defaults.py --tuned                                  # the same with the tuned settings, where there are some
    python benchmarks/defaults.py --seeds 0-2 --config '{"n_step": 3}'     # to choose by: seeds below 100
    python benchmarks/defaults.py --peer sbx=SB/bin/python --peer sb3=SB/bin/python    # a peer, with RL-Zoo's settings
    python benchmarks/defaults.py --table                                  # the table of what is stored

A threshold counts when two greedy evaluations in a row hold it, of 10 and then of 50 episodes. Each run is a process of its own, alone
on the machine; its clock starts with it, and evaluations are left out. Evaluations come at the same steps in every run of a task, 8%
apart or more. A run that does not arrive is ended at half as much again as its worst seed may take, and counts as infinite.

Every evaluation is a row of results/runs.csv, appended when its run ends; a second call goes on with what is missing. A run whose settings
were others than today's is missing. results/defaults.md has the table.
results/runs_before.csv.gz has, in the same columns, the runs of earlier settings and those that chose (`zcat`); no table is made from it.

Peers need a Python environment of their own:
    pip install stable_baselines3==2.9.2 sbx-rl==0.28 "gymnasium[mujoco]" box2d==2.3.10 pygame       (SB)
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flags import add_results_folder, json_object, positive, results_folder, whole
from processes import end_what_is_started
from reporting import markdown

FIELDS = ("system", "version", "algorithm", "env", "settings", "seed", "step", "seconds", "metric", "value")
CHOSEN_BELOW, REPORTED_FROM = 100, 1000
"""Settings are chosen on seeds below the one, and reported on seeds from the other."""
APART = 1.08
PEERS, RUNNER = ("sbx", "sb3"), Path(__file__).parent / "runners" / "rl_zoo_run.py"
OWN = [sys.executable, __file__, "--order"]
SECOND, FIRST, SOLVED = "return of 50 episodes", "return of 10 episodes", "solved"


@dataclass(frozen=True)
class Task:
    """An environment, the return to reach, and the seconds that it may take."""

    env: str
    threshold: float
    median: float
    worst: float
    every: int
    """Least environment steps between evaluations."""

    @property
    def seeds(self) -> int:
        """Nine where a run takes under two minutes."""
        return 9 if self.median < 120 else 3


def _tasks() -> dict[str, Task]:
    """What is to be reached, by "algorithm:environment"."""
    goals: list[tuple[str, float, int, dict[str, tuple[float, float]]]] = [
        ("CartPole-v1", 475, 2_000, dict.fromkeys(("PPO", "A2C", "APPO", "IMPALA", "ES"), (2, 5))),
        ("CartPole-v1", 475, 2_000, {"DQN": (12, 40), "SAC": (20, 60), "SQN": (20, 60)}),
        ("Acrobot-v1", -90, 2_000, {"PPO": (2, 5), "DQN": (10, 30), "SAC": (20, 60)}),
        ("LunarLanderContinuous-v3", 200, 5_000, {"PPO": (10, 30), "SAC": (45, 135), "TD3": (60, 180)}),
        ("LunarLander-v3", 200, 5_000, {"PPO": (12, 40), "DQN": (90, 270)}),
        ("Pendulum-v1", -170, 1_000, {"PPO": (10, 30), "SAC": (20, 60), "TD3": (20, 60)}),
        ("MountainCar-v0", -130, 5_000, {"DQN": (120, 360)}),
        ("MountainCarContinuous-v0", 90, 2_000, {"SAC": (60, 180), "PPO": (60, 180)}),
        ("BipedalWalker-v3", 280, 20_000, {"PPO": (240, 600), "SAC": (600, 1800)}),
        ("Hopper-v5", 2_500, 20_000, {"PPO": (60, 180)}),
        ("Walker2d-v5", 3_500, 20_000, {"PPO": (180, 540)}),
        ("HalfCheetah-v5", 5_000, 20_000, {"PPO": (120, 360), "SAC": (700, 2100)}),
        ("Hopper-v5", 2_000, 10_000, {"SAC": (600, 1800)}),
        ("CartPole-v1", 475, 2_000, {"A3C": (5, 15), "ARS": (5, 15), "Rainbow": (20, 60)}),
        ("Pendulum-v1", -170, 1_000, {"DDPG": (20, 60)}),
        ("raypid/PositionCartPole-v0", 475, 2_000, {"R2D2": (60, 180)}),
    ]  # fmt: skip
    off_policy = ("DQN", "SAC", "TD3", "SQN", "Rainbow", "DDPG", "R2D2")
    return {
        f"{algorithm}:{env}": Task(env, threshold, median, worst, every if algorithm in off_policy else 2 * every)
        for env, threshold, every, by_algorithm in goals
        for algorithm, (median, worst) in by_algorithm.items()
    }


TASKS = _tasks()


class Run(NamedTuple):
    """What tells runs apart. `settings`: "default", "tuned" or JSON, and behind @ a digest of all settings that result."""

    system: str
    algorithm: str
    env: str
    settings: str
    seed: int


class Order(NamedTuple):
    """A run to carry out, with the settings over the defaults, the seconds that it may take, and the command of its runner."""

    run: Run
    settings: dict[str, Any]
    limit: float
    command: list[str]


class End(NamedTuple):
    """How a run ended."""

    solved: bool
    seconds: float
    step: int
    best: float
    """The highest return of 10 episodes."""


# -- one run ---------------------------------------------------------------------------------------------------------------


def play(order: dict[str, Any]) -> None:
    """Train until the threshold holds or the time is over; prints each evaluation, and at last whether it held, as lines of JSON."""
    import raypid

    task, seed, evaluated = Task(**order["task"]), order["seed"], 0.0

    def tell(metric: str, value: float) -> None:
        row = {"step": step, "seconds": round(seconds, 2), "metric": metric, "value": round(value, 3)}
        print(json.dumps(row), flush=True)

    with getattr(raypid, order["algorithm"])(env=task.env, seed=seed, config=order["settings"]) as agent:
        due, solved, seconds = task.every, False, 0.0
        while not solved and seconds < order["limit"]:
            step = int(agent.train()["timesteps_total"])
            before = time.time()
            seconds = before - order["began"] - evaluated
            if step < due:
                continue
            due = max(step + task.every, int(step * APART))
            mean = agent.eval(10)["episode_reward_mean"]
            tell(FIRST, mean)
            if mean >= task.threshold:
                mean = agent.eval(50, seed=seed + 500_000)["episode_reward_mean"]
                tell(SECOND, mean)
                solved = mean >= task.threshold
            evaluated += time.time() - before
        tell(SOLVED, solved)


def carry_out(run: Run, settings: dict[str, Any], limit: float, command: list[str]) -> list[dict[str, Any]]:
    """The rows of a run, which has a process of its own. A runner may say its version in the last line."""
    task = TASKS[f"{run.algorithm}:{run.env}"]
    order = {
        "task": vars(task), "algorithm": run.algorithm, "seed": run.seed, "settings": settings, "limit": limit,
        "apart": APART, "first": FIRST, "second": SECOND, "solved": SOLVED, "began": time.time(),
    }  # fmt: skip
    done = subprocess.run([*command, json.dumps(order)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    if done.returncode:
        raise SystemExit(f"{run}: ended with exit code {done.returncode}")
    lines = done.stdout.splitlines()
    theirs = lines[-1].removeprefix("version ") if lines[-1].startswith("version ") else ""
    about = {**run._asdict(), "version": theirs or version()}
    return [{**about, **json.loads(line)} for line in lines if line.startswith('{"step"')]


def version() -> str:
    """raypid's, with the commit."""
    import raypid

    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    return f"{raypid.__version__}+{told.stdout.strip()}" if not told.returncode else raypid.__version__


def digest(algorithm: str, env: str, settings: dict[str, Any]) -> str:
    """Eight hexadecimal digits that stand for all settings of a run but its seed, with those that the environment decides. Settings that are none,
    or that have the value of versions that did not have them, leave them as they are: a new setting that changes nothing makes no row old."""
    from raypid.run.resolve import resolve
    from raypid.settings.config import Given
    from raypid.settings.request import RunRequest
    from raypid.storage.changes import as_it_was

    resolved = resolve(RunRequest(run=algorithm, settings=Given({**settings, "env": env})))
    before = as_it_was({"env": env, "num_workers": 0}, algorithm)
    config = {
        name: value
        for name, value in resolved.record().items()
        if name != "seed" and value is not None and (name in ("env", "num_workers") or value != before.get(name))
    }
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]


# -- what is stored --------------------------------------------------------------------------------------------------------


def ends(path: Path) -> dict[Run, End]:
    """How each stored run ended. Of one that was repeated the newer counts."""
    found: dict[Run, End] = {}
    best = -math.inf
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == FIRST:
                best = max(best, float(row["value"]))
            elif row["metric"] == SOLVED:
                run = Run(row["system"], row["algorithm"], row["env"], row["settings"], int(row["seed"]))
                found.pop(run, None)
                found[run] = End(float(row["value"]) > 0, float(row["seconds"]), int(row["step"]), best)
                best = -math.inf
    return found


def returns(path: Path) -> dict[Run, list[tuple[float, float]]]:
    """(seconds, mean return of 10 greedy episodes) of each stored run that has ended. Of one that was repeated the newer ones."""
    found: dict[Run, list[tuple[float, float]]] = {}
    points: dict[Run, list[tuple[float, float]]] = {}
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            run = Run(row["system"], row["algorithm"], row["env"], row["settings"], int(row["seed"]))
            if row["metric"] == FIRST:
                points.setdefault(run, []).append((float(row["seconds"]), float(row["value"])))
            elif row["metric"] == SOLVED:
                found.pop(run, None)
                found[run] = points.pop(run, [])
    return found


def newest(runs: Iterable[Run], name: str) -> dict[tuple[str, str], list[Run]]:
    """The runs that report on a task of TASKS: of each system and kind of settings (such as "default") those with the newest settings."""
    algorithm, env = name.partition(":")[0], TASKS[name].env
    mine = [run for run in runs if (run.algorithm, run.env) == (algorithm, env) and run.seed >= REPORTED_FROM]
    last = {(run.system, run.settings.partition("@")[0]): run.settings for run in mine}
    return {
        (system, kind): [run for run in mine if (run.system, run.settings) == (system, settings)]
        for (system, kind), settings in last.items()
    }


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


EXPLAINED = (
    "Seconds from the start of a process to the return, evaluations left out, of the newest settings of each kind. `not`: a run did not arrive. `to "
    "reach`: the median and the worst that are aimed at; `reached`: whether both hold. The last column is the highest return of 10 greedy episodes, "
    "of the seed where that is lowest. `changed since` are settings that are no longer today's.\n\n"
)
HEADER = (
    "task", "return", "algorithm", "system, settings", "median s", "worst s", "seeds", "to reach", "reached", "worst of the best returns",
)  # fmt: skip


def table(found: dict[Run, End]) -> list[tuple[str, ...]]:
    """Median and worst of the reported seeds, beside what is to be reached, newest settings of each kind: the cells of HEADER."""
    from raypid.settings.tuned import TUNED

    rows: list[tuple[str, ...]] = []
    for name, task in TASKS.items():
        algorithm = name.partition(":")[0]
        for (system, label), runs in newest(found, name).items():
            if label == "tuned" and (algorithm, task.env) not in TUNED:
                continue  # an entry of the past
            ended = [found[run] for run in runs]
            seconds = sorted(end.seconds if end.solved else math.inf for end in ended)
            median, worst = statistics.median_low(seconds), seconds[-1]
            holds = median <= task.median and worst <= task.worst
            settings = TUNED[algorithm, task.env] if label == "tuned" else {}
            if system == "raypid" and runs[0].settings != f"{label}@{digest(algorithm, task.env, settings)}":
                label += ", changed since"
            rows.append((
                task.env, f"{task.threshold:g}", algorithm, f"{system}, {label}", _seconds(median), _seconds(worst),
                f"{sum(end.solved for end in ended)} of {len(ended)}", f"{task.median:g} / {task.worst:g}", "yes" if holds else "no",
                f"{min(end.best for end in ended):,.4g}",
            ))  # fmt: skip
    return rows


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if math.isfinite(seconds) else "not"


# -- the command -----------------------------------------------------------------------------------------------------------


def seeds_of(text: str) -> list[int]:
    """Such as 1000-1008 or 0,1,5."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low = whole(0)(first.strip())
        found += range(low, whole(low)(last.strip()) + 1) if last else [low]
    if wrong := [seed for seed in found if CHOSEN_BELOW <= seed < REPORTED_FROM]:
        raise argparse.ArgumentTypeError(
            f"seeds below {CHOSEN_BELOW} choose, seeds from {REPORTED_FROM} report; {wrong[0]} is neither"
        )
    return found


def parser_of_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tasks",
        default="",
        help='"SAC:Hopper-v5", or an algorithm or environment for all of its own; several by commas',
    )
    parser.add_argument(
        "--seeds",
        type=seeds_of,
        default=None,
        help=f"such as 1000-1008 (default: nine, or three, from {REPORTED_FROM})",
    )
    parser.add_argument("--tuned", action="store_true", help="with the tuned settings, where there are some")
    parser.add_argument(
        "--config", type=json_object, default={}, help="JSON, over the defaults; only for seeds that choose"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="sbx or sb3 and its Python, in raypid's place",
    )
    parser.add_argument("--limit", type=positive, default=None, help="seconds of a run")
    parser.add_argument("--jobs", type=whole(), default=1, help="runs at a time; above 1 only for seeds that choose")
    parser.add_argument("--again", action="store_true", help="also what is stored")
    parser.add_argument("--table", action="store_true", help="run nothing")
    add_results_folder(parser, "runs of 2 seconds")
    return parser


def named(text: str) -> dict[str, Task]:
    """The tasks that are meant."""
    if not text:
        return TASKS
    found: dict[str, Task] = {}
    for part in text.split(","):
        mine = {name: task for name, task in TASKS.items() if part.strip() in (name, *name.split(":"))}
        if not mine:
            raise argparse.ArgumentTypeError(f"there is no task {part.strip()!r}; there are {', '.join(TASKS)}")
        found |= mine
    return found


def main() -> None:
    if sys.argv[1:2] == ["--order"]:
        play(json.loads(sys.argv[2]))
        return
    end_what_is_started()
    parser = parser_of_flags()
    args = parser.parse_args()
    try:
        tasks = named(args.tasks)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --tasks: {error}")
    reports = args.seeds is None or max(args.seeds) >= REPORTED_FROM
    if reports and (args.config or args.jobs > 1):
        parser.error(f"--config and --jobs are for seeds that choose: add --seeds 0-2, or others below {CHOSEN_BELOW}")
    from raypid.settings.tuned import TUNED

    peers = dict(entry.partition("=")[::2] for entry in args.peer)
    if wrong := [name for name in peers if name not in PEERS or not peers[name]]:
        parser.error(f"argument --peer: {' or '.join(PEERS)} and a Python, such as sbx=SB/bin/python, not {wrong[0]!r}")
    commands = {name: [python, str(RUNNER), name] for name, python in peers.items()} or {"raypid": OWN}
    folder = results_folder(args)
    path = folder / "runs.csv"
    found, orders = ends(path), list[Order]()
    for name, task in tasks.items():
        algorithm = name.partition(":")[0]
        if args.tuned and (algorithm, task.env) not in TUNED:
            continue
        settings = {**(TUNED[algorithm, task.env] if args.tuned else {}), **args.config}
        label = "tuned" if args.tuned else "default"
        label = f"{label} {json.dumps(args.config)}" if args.config else label
        seeds = args.seeds or range(REPORTED_FROM, REPORTED_FROM + task.seeds)
        limit = 2.0 if args.quick else args.limit or 1.5 * task.worst
        for system, seed in itertools.product(commands, seeds[:1] if args.quick else seeds):
            ours = f"{label}@{digest(algorithm, task.env, settings)}"
            run = Run(system, algorithm, task.env, ours if system == "raypid" else "RL-Zoo's", seed)
            if (run not in found or args.again) and not args.table:
                orders.append(Order(run, settings if system == "raypid" else args.config, limit, commands[system]))

    def measure(order: Order) -> None:
        append(path, carry_out(*order))
        run, end = order.run, ends(path)[order.run]
        said = f"{end.seconds:.1f} s" if end.solved else f"not in {end.seconds:.0f} s (best {end.best:,.4g})"
        print(
            f"{run.system} {run.algorithm} {run.env} {run.settings} seed {run.seed}: {said}, {end.step:,} steps",
            flush=True,
        )

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(measure, orders))
    text = EXPLAINED + markdown(HEADER, table(ends(path)))
    print(text)
    (folder / "defaults.md").write_text(text)


if __name__ == "__main__":
    main()
