"""When workers pay: SAC on LunarLander with one environment, with 32 in one process, and with 32 on 8 workers, side by side.

    python benchmarks/distributed_pays.py                    # what is missing in results/distributed_pays.csv; `--quick`: does it run?
    python benchmarks/distributed_pays.py --part threshold --wait 0 --sides process,workers

The process uses no Ray: its environments step in threads where steps wait. One environment learns once for each step, as in the paper
(arXiv:1812.05905) and as peers do. Everything else is a default of raypid. With --wait 0.02 a step sleeps 20 ms, with 0 it does not.

steps: environment steps a second while the run learns, on all cores of this machine and on fewer (--cores): from how many cores do workers pay?
threshold: seconds to a mean return of 200, held by two greedy evaluations in a row, of 10 and then of 50 episodes. The evaluations
are played on the ordinary lander, which does not wait, and their time is left out. A run is given up after --limit seconds.

Seeds are 1000 and up, by which no setting was chosen. Each run is a process of its own, its clock starts with it and includes Ray. A row is
appended to the csv when its run ends, and a second call goes on with what is missing: remove rows to measure them again.
`python docs/make_pages.py` writes the tables into the pages.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import csv  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

from flags import add_results_folder, one_of, positive, results_folder, several, whole  # noqa: E402
from processes import end_what_is_started  # noqa: E402
from reporting import RESULTS, markdown  # noqa: E402
from slow_lander import ORDINARY  # noqa: E402

NAME = "distributed_pays"
SIDES: dict[str, dict[str, Any]] = {
    "one": {"num_workers": 0, "num_envs_per_worker": 1, "fragment_length": 1, "num_threads": 1, "a_l_ratio": 1},
    "process": {"num_workers": 0, "num_envs_per_worker": 32, "fragment_length": 16},
    "workers": {"num_workers": 8, "num_envs_per_worker": 4, "fragment_length": 16, "num_cpus_per_worker": 0.125},
}
HEADINGS = {"one": "1 environment", "process": "32 in one process", "workers": "32 on 8 workers"}
PARTS = ("steps", "threshold")
FIELDS = (
    "part", "wait_s", "side", "cores", "seed", "steps_per_s", "updates_per_s", "solved", "seconds", "evaluation_s", "steps", "updates",
    "return",
)  # fmt: skip
THRESHOLD = 200.0
EVERY = {"one": 1_000, "process": 4_000, "workers": 4_000}
"""Steps between evaluations."""
START_STEPS = {"one": 256, "process": 1_000, "workers": 1_000}
"""Random steps before steps are counted: one environment would need 20 s for 1,000."""
FIRST_REPORTED = 1000
"""Lower seeds are refused: settings may have been chosen by them."""
PAYS = 1.05
"""Workers pay where they make this many times the steps of the process; less is noise."""


class Run(NamedTuple):
    """What tells rows apart."""

    part: str
    wait_s: float
    side: str
    cores: int
    seed: int


Rows = dict[Run, dict[str, str]]


# -- one run ---------------------------------------------------------------------------------------------------------------


def build(settings: dict[str, Any], seed: int, wait_s: float) -> Any:
    """The agent, whose `eval` plays the ordinary lander."""
    import raypid

    config = {**settings, "env_config": {"wait_s": wait_s}}
    return raypid.SAC(env="slow_lander:SlowLander", evaluation_env=ORDINARY, seed=seed, config=config)


def steps(run: Run, seconds: float) -> dict[str, Any]:
    """Environment steps and updates a second: the median of five windows."""
    settings = SIDES[run.side]
    streams = max(1, settings["num_workers"]) * settings["num_envs_per_worker"]
    more = {"steps_per_iteration": 10 * streams, "start_steps": START_STEPS[run.side]}
    with build({**settings, **more}, run.seed, run.wait_s) as agent:
        agent.train(more["start_steps"] + 20 * streams)
        rates = []
        for _ in range(5):
            start, before, updates = time.perf_counter(), agent.context.timesteps, agent.num_updates
            while time.perf_counter() - start < seconds / 5:
                agent.train()
            spent = time.perf_counter() - start
            rates.append(((agent.context.timesteps - before) / spent, (agent.num_updates - updates) / spent))
    names = ("steps_per_s", "updates_per_s")
    return {name: round(statistics.median(column), 1) for name, column in zip(names, zip(*rates))}


def threshold(run: Run, limit: float) -> dict[str, Any]:
    """Seconds until the threshold holds, `limit` at most."""
    every = EVERY[run.side]
    evaluated, due, solved, best, seconds, mean = 0.0, every, False, float("-inf"), 0.0, 0.0
    with build({**SIDES[run.side], "steps_per_iteration": 500}, run.seed, run.wait_s) as agent:
        while not solved and seconds < limit:
            timesteps = agent.train()["timesteps_total"]
            seconds = time.perf_counter() - BEGIN - evaluated
            if timesteps < due:
                continue
            due, before = timesteps + every, time.perf_counter()
            mean = agent.eval(10)["episode_reward_mean"]
            if mean >= THRESHOLD:
                mean = agent.eval(50, seed=run.seed + 500_000)["episode_reward_mean"]
                solved = mean >= THRESHOLD
            best = max(best, mean)
            evaluated += time.perf_counter() - before
        return {
            "solved": int(solved), "seconds": round(seconds, 1), "evaluation_s": round(evaluated, 1), "steps": agent.context.timesteps,
            "updates": agent.num_updates, "return": round(mean if solved else best, 1),
        }  # fmt: skip


def carry_out(text: str) -> int:
    """What the process of a run does: its last line is the row."""
    order = json.loads(text)
    run = Run(*order["run"])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: run.cores])  # before NumPy and Ray count them
    from raypid.errors import UserError

    try:
        measured = steps(run, order["seconds"]) if run.part == "steps" else threshold(run, order["limit"])
        print(json.dumps(measured), flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(run: Run, seconds: float, limit: float) -> dict[str, Any]:
    """Carry out a run in a process of its own, and print what came of it."""
    order = json.dumps({"run": run, "seconds": seconds, "limit": limit})
    began = time.perf_counter()
    command = [sys.executable, __file__, "--order", order]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    name = f"{run.part}, {run.wait_s * 1000:g} ms, {HEADINGS[run.side]}, {_cores(run.cores)}, seed {run.seed}"
    if done.returncode == 2:  # a setting or an environment that is not there: it has said so
        raise SystemExit(2)
    if done.returncode:
        raise SystemExit(f"{name}: ended with exit code {done.returncode}; the rows before it are stored")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found = f"{row['steps_per_s']:,.0f} steps/s" if run.part == "steps" else f"seconds to 200: {_seconds(row)}"
    print(f"{name}: {found} ({time.perf_counter() - began:.0f} s in all)", flush=True)
    return row


# -- rows and tables -------------------------------------------------------------------------------------------------------


def read(folder: Path = RESULTS) -> Rows:
    """The rows that were measured; none if there is no file."""
    path = folder / f"{NAME}.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            Run(row["part"], float(row["wait_s"]), row["side"], int(row["cores"]), int(row["seed"])): row
            for row in csv.DictReader(file)
        }


def append(run: Run, row: dict[str, Any], folder: Path) -> None:
    path = folder / f"{NAME}.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({**run._asdict(), **row})


def steps_table(rows: Rows) -> str:
    """Steps a second of the three sides, a line for each wait and number of cores."""
    rates = _rates(rows)
    lines = []
    for wait_s, cores in sorted({(wait_s, cores) for wait_s, cores, _ in rates}, reverse=True):
        found = [rates.get((wait_s, cores, side)) for side in SIDES]
        ratio = f"{found[2] / found[1]:.2f}" if found[1] and found[2] else "–"
        lines.append((_wait(wait_s), cores, *(f"{rate:,.0f}" if rate else "–" for rate in found), ratio))
    header = ("steps a second, learning", "cores", *HEADINGS.values(), "workers over process")
    return markdown(header, lines) if lines else ""


def seconds_table(rows: Rows) -> str:
    """Seconds to the return of the three sides, a line for each wait and seed."""
    found = {(run.wait_s, run.cores, run.seed, run.side): row for run, row in rows.items() if run.part == "threshold"}
    lines = [
        (f"{_wait(key[0])}, seed {key[2]}", key[1], *(_seconds(found.get((*key, side))) for side in SIDES))
        for key in sorted({key[:3] for key in found}, key=lambda key: (-key[0], *key[1:]))
    ]
    return markdown((f"seconds to a return of {THRESHOLD:g}", "cores", *HEADINGS.values()), lines) if lines else ""


def told(rows: Rows) -> str:
    """From how many cores workers pay, in a sentence for each wait."""
    sentences = []
    for wait_s in sorted({run.wait_s for run in rows if run.part == "steps"}, reverse=True):
        ratios = _ratios(rows, wait_s)
        if not ratios:
            continue
        least = pays_from(ratios)
        measured = ", ".join(f"{ratio:.2f} on {_cores(cores)}" for cores, ratio in sorted(ratios.items()))
        where = (
            f"pay from {_cores(least)} on"
            if least
            else f"do not pay on {_cores(max(ratios))}{' or fewer' if max(ratios) > 1 else ''}"
        )
        sentences.append(
            f"With {_wait(wait_s)}, workers {where}: their steps over those of one process are {measured}."
        )
    return " ".join(sentences) or f"Not measured yet: `python benchmarks/{NAME}.py` measures it."


def pays_from(ratios: dict[int, float]) -> int | None:
    """The least number of cores from which workers pay, there and on all larger numbers that were measured."""
    least = None
    for cores, ratio in sorted(ratios.items(), reverse=True):
        if ratio < PAYS:
            break
        least = cores
    return least


def tables(rows: Rows) -> str:
    return "\n".join(filter(None, (steps_table(rows), seconds_table(rows), told(rows) + "\n")))


def _rates(rows: Rows) -> dict[tuple[float, int, str], float]:
    return {
        (run.wait_s, run.cores, run.side): float(row["steps_per_s"]) for run, row in rows.items() if run.part == "steps"
    }


def _ratios(rows: Rows, wait_s: float) -> dict[int, float]:
    """By number of cores, the steps of the workers over those of the process."""
    rates = _rates(rows)
    both = {cores for wait, cores, _ in rates if all((wait_s, cores, side) in rates for side in ("process", "workers"))}
    return {cores: rates[wait_s, cores, "workers"] / rates[wait_s, cores, "process"] for cores in both}


def _seconds(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{float(row['seconds']):.0f}" if int(row["solved"]) else f"not in {float(row['seconds']):.0f}"


def _wait(wait_s: float) -> str:
    return f"steps that wait {wait_s * 1000:g} ms" if wait_s else "steps that do not wait"


def _cores(number: int) -> str:
    return f"{number} core{'s' if number > 1 else ''}"


# -- the command -----------------------------------------------------------------------------------------------------------


def not_negative(text: str) -> float:
    """A finite number, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected 0 or more seconds, not {text!r}")
    return number


def runs_of(args: argparse.Namespace, available: int) -> list[Run]:
    """What is to be measured, in order. One environment uses one core, and without a wait it takes too long to the return."""
    fewer = args.cores or sorted({*(2**n for n in range(available.bit_length()) if 2**n <= available), available})
    runs = [
        Run("steps", wait_s, side, cores, FIRST_REPORTED)
        for wait_s in args.wait
        for cores in fewer
        for side in args.sides
        if side != "one" or cores == max(fewer)
    ]
    runs += [
        Run("threshold", wait_s, side, available, seed)
        for wait_s in args.wait
        for seed in args.seeds
        for side in args.sides
        if wait_s or (args.wait == [0.0] and side != "one")
    ]
    return [run for run in runs if run.part in args.part]


def parser_of_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--part", type=several(one_of(PARTS)), default=list(PARTS), help="steps, threshold, or both")
    add("--sides", type=several(one_of(SIDES)), default=list(SIDES), help=f"some of {', '.join(SIDES)}")
    wait_help = "seconds that a step sleeps; 0 alone also measures the threshold without a wait"
    add("--wait", type=several(not_negative), default=[0.02, 0.0], help=wait_help)
    add("--cores", type=several(whole()), help="numbers of cores for the steps (default: 1, 2, 4 ... and all)")
    seeds_help = f"of the threshold, from {FIRST_REPORTED}: settings were chosen by lower ones"
    add("--seeds", type=several(whole(FIRST_REPORTED)), default=[1000, 1001, 1002], help=seeds_help)
    add("--limit", type=positive, default=180, help="seconds after which a run to the threshold is given up")
    add("--seconds", type=positive, default=12, help="of each measurement of steps")
    add_results_folder(parser, "little time, the first seed alone")
    add("--order", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of_flags()
    args = parser.parse_args(arguments)
    if args.order:
        return carry_out(args.order)
    available = len(os.sched_getaffinity(0))
    if args.cores and max(args.cores) > available:
        parser.error(f"argument --cores: this machine has {_cores(available)}, not {max(args.cores)}")
    if args.quick:
        args.seconds, args.limit, args.seeds = 4, 15, args.seeds[:1]
    folder = results_folder(args)
    folder.mkdir(parents=True, exist_ok=True)
    end_what_is_started()
    for run in runs_of(args, available):
        if run not in read(folder):
            append(run, measure(run, args.seconds, args.limit), folder)
    found = tables(read(folder))
    (folder / f"{NAME}.md").write_text(found)
    print(f"\n{found}\nResults: {folder / NAME}.csv and .md", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
