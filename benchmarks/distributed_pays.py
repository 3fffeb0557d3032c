"""Where an environment waits, workers pay: SAC on a LunarLander whose step takes 20 ms, 32 on 8 workers beside a single one.

The single one learns once for each step, as in the paper (arXiv:1812.05905) and as peers do; --slow tries something else. All
other settings are the tuned ones, which were found on seeds below 100.

    python benchmarks/distributed_pays.py                              # both parts; `--quick` only shows that it runs
    python benchmarks/distributed_pays.py --part threshold --seeds 1000,1001,1002
    python benchmarks/distributed_pays.py --wait 0 --fast '{"num_workers": 14, "num_cpus_per_worker": 1}'    # unslowed: 16 cores

steps: environment steps a second, with a learner that hardly has work ("collecting") and with the settings that learn; and of
single ones of which --jobs run at a time, as below.
threshold: seconds to a mean return of 200, held by two greedy evaluations in a row, of 10 and then of 50 episodes, on
seeds from 1000, by which nothing was chosen. The evaluations are played on the ordinary lander, which does not wait, and
their time is left out; the workers go on with the calls that they have begun, so the ratio is also given with the
evaluations of the distributed run counted. The single environment is given up after --slow-limit seconds; --jobs of them run at
a time, each with one thread.
Each run is a process of its own, its clock starts with it and includes Ray.
Results of other seeds and of the other parts stay in benchmarks/results/distributed_pays.json; of another --wait, they are in files
of their own.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from typing import Any  # noqa: E402

from flags import add_results_folder, json_object, positive, results_folder, several, whole  # noqa: E402
from processes import end_what_is_started  # noqa: E402
from reporting import markdown, save, stored, write  # noqa: E402
from slow_lander import ORDINARY  # noqa: E402

FAST = {"num_workers": 8, "num_envs_per_worker": 4, "num_cpus_per_worker": 0.125, "fragment_length": 16}
SLOW = {"num_workers": 0, "num_envs_per_worker": 1, "num_cpus_per_worker": 1, "fragment_length": 1, "num_threads": 1, "a_l_ratio": 1}  # fmt: skip
COLLECTING = {"start_steps": 256, "a_l_ratio": 1_024}
THRESHOLD = 200.0
FIRST_REPORTED = 1000
"""Results of lower seeds are not reported: settings may have been chosen by them."""


def build(settings: dict[str, Any], seed: int, wait: float) -> Any:
    """The agent, whose `eval` plays the ordinary lander. A step waits `wait` seconds."""
    import raypid
    from raypid.config import overlay
    from raypid.tuned import TUNED

    config = overlay(TUNED.get(("SAC", ORDINARY), {}), settings)
    config["env_config"] = {"wait_s": wait}
    return raypid.SAC(env="slow_lander:SlowLander", evaluation_env=ORDINARY, seed=seed, config=config)


def steps(settings: dict[str, Any], seed: int, wait: float, seconds: float) -> dict[str, Any]:
    """Environment steps a second: the median of five windows."""
    streams = max(1, settings["num_workers"]) * settings["num_envs_per_worker"]
    with build({**settings, "steps_per_iteration": 10 * streams}, seed, wait) as agent:
        agent.train(settings["start_steps"] + 20 * streams)
        rates = []
        for _ in range(5):
            start, before, updates = time.perf_counter(), agent.context.timesteps, agent.num_updates
            while time.perf_counter() - start < seconds / 5:
                agent.train()
            spent = time.perf_counter() - start
            rates.append(((agent.context.timesteps - before) / spent, (agent.num_updates - updates) / spent))
    return {f"{name}_per_s": statistics.median(column) for name, column in zip(("steps", "updates"), zip(*rates))}


def threshold(settings: dict[str, Any], seed: int, wait: float, limit: float, every: int) -> dict[str, Any]:
    """Seconds until the threshold holds, `limit` at most."""
    settings = {"steps_per_iteration": min(500, every), **settings}
    evaluated, due, solved, best, seconds, mean = 0.0, every, False, float("-inf"), 0.0, 0.0
    with build(settings, seed, wait) as agent:
        while not solved and seconds < limit:
            timesteps = agent.train()["timesteps_total"]
            seconds = time.perf_counter() - BEGIN - evaluated
            if timesteps < due:
                continue
            due, before = timesteps + every, time.perf_counter()
            mean = agent.eval(10)["episode_reward_mean"]
            if mean >= THRESHOLD:
                mean = agent.eval(50, seed=seed + 500_000)["episode_reward_mean"]
                solved = mean >= THRESHOLD
            best = max(best, mean)
            evaluated += time.perf_counter() - before
        return {
            "solved": solved, "seconds": seconds, "evaluation_s": evaluated, "steps": agent.context.timesteps,
            "updates": agent.num_updates, "return": mean if solved else best,
        }  # fmt: skip


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order in a process of its own, and say in a line what came of it."""
    command = [sys.executable, __file__, "--order", json.dumps(order)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    settings = order["settings"]
    name = f"{order['part']}, {settings['num_workers']} workers, seed {order['seed']}"
    if done.returncode == 2:  # a setting or an environment that is not there: it has said so
        raise SystemExit(2)
    if done.returncode:
        raise SystemExit(f"{name}: ended with exit code {done.returncode}; parts before it are stored")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found = f"{row['steps_per_s']:,.0f} steps/s" if order["part"] == "steps" else f"seconds to 200: {_seconds(row)}"
    print(f"{name}: {found}", flush=True)
    return {"settings": settings, "seed": order["seed"], **row}


def run_all(orders: list[dict[str, Any]], jobs: int) -> list[dict[str, Any]]:
    """Carry out `jobs` orders at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, orders))


def measure_steps(args: argparse.Namespace, sac: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    more = {"part": "steps", "seed": FIRST_REPORTED, "wait": args.wait, "seconds": args.seconds}
    learning = {"start_steps": 256, **sac, **SLOW}
    for name, fast_settings, slow_settings in (
        ("collecting", {**sac, **FAST, **COLLECTING}, {**sac, **SLOW, **COLLECTING}),
        ("learning", {"start_steps": 1_000, **sac, **FAST}, learning),
    ):
        one, many = (run({**more, "settings": s}) for s in (slow_settings, fast_settings))
        rows[name] = {"one": one, "many": many, "ratio": many["steps_per_s"] / one["steps_per_s"]}
    rows["learning"]["beside"] = run_all([{**more, "settings": learning}] * args.jobs, args.jobs)
    return rows


def measure_threshold(args: argparse.Namespace, sac: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
    """By seed, both sides."""
    order = {"part": "threshold", "wait": args.wait}
    fast = {**order, "settings": {**sac, **FAST}, "limit": args.limit, "every": args.every}
    alone = {**order, "settings": {**sac, **SLOW}, "limit": args.slow_limit, "every": args.every_slow}
    many = [run({**fast, "seed": seed}) for seed in seeds]
    one = run_all([{**alone, "seed": seed} for seed in seeds], args.jobs)
    return {str(seed): {"many": m, "one": o} for seed, m, o in zip(seeds, many, one, strict=True)}


def lines_of(results: dict[str, Any]) -> str:
    tables = []
    num = f"{FAST['num_workers'] * FAST['num_envs_per_worker']} on {FAST['num_workers']} workers"
    if "steps" in results:
        rows = [
            (name, *(f"{r[k]['steps_per_s']:,.0f}" for k in ("one", "many")), f"{r['ratio']:.1f}",
             *(f"{r[k]['updates_per_s']:,.1f}" for k in ("one", "many")),
             ", ".join(f"{x['steps_per_s']:.1f}" for x in r.get("beside", [])))
            for name, r in results["steps"].items()
        ]  # fmt: skip
        rates = ("environment steps a second", "1 environment", num, "ratio")
        updates = ("updates/s with 1", f"updates/s with {num}", "single ones side by side")
        tables.append(markdown((*rates, *updates), rows))
    lines = []
    for seed, r in sorted(results.get("threshold", {}).items()):
        many, one = r["many"], r["one"]
        sign, counted = "" if one["solved"] else "> ", many["seconds"] + many["evaluation_s"]
        ratios = (f"{sign}{one['seconds'] / s:.1f}" if many["solved"] else "" for s in (many["seconds"], counted))
        lines.append((seed, _seconds(many), _seconds(one), *ratios, f"{many['steps']:,}", f"{one['steps']:,}"))
    if lines:
        header = ("seconds to 200, seed", num, "1 environment", "ratio", f"ratio, evaluations of the {num} counted")
        tables.append(markdown((*header, f"steps of the {num}", "steps of the 1"), lines))
    return "\n".join(tables)


def _seconds(row: dict[str, Any]) -> str:
    return f"{row['seconds']:.1f}" if row["solved"] else f"not in {row['seconds']:.0f}"


def carry_out(text: str) -> int:
    """What the process of a run does: its last line is the row."""
    from raypid.errors import UserError

    order = json.loads(text)
    try:
        measured = steps(**order) if order.pop("part") == "steps" else threshold(**order)
        print(json.dumps(measured), flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parser_of_flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "threshold", "all"), default="all")
    parser.add_argument(
        "--seeds",
        type=several(whole(FIRST_REPORTED)),
        default=[1000, 1001, 1002],
        help=f"of the threshold, from {FIRST_REPORTED}: settings were chosen by lower ones",
    )
    parser.add_argument("--wait", type=float, default=0.02, help="seconds that a step sleeps")
    sac_help = "settings of SAC as JSON, over the tuned ones, for both sides"
    parser.add_argument("--sac", type=json_object, default={}, help=sac_help)
    parser.add_argument("--fast", type=json_object, default={}, help="JSON, for the distributed side alone")
    parser.add_argument("--slow", type=json_object, default={}, help="JSON, for the single one alone")
    parser.add_argument("--every", type=whole(), default=4_000, help="steps between evaluations of the distributed run")
    parser.add_argument("--every-slow", type=whole(), default=1_000, help="the same of the single one")
    limit_help = "seconds after which the distributed run is given up"
    parser.add_argument("--limit", type=positive, default=600, help=limit_help)
    parser.add_argument("--slow-limit", type=positive, default=1_000, help="the same of the single one")
    jobs_help = "single ones at a time: each takes about half a core"
    parser.add_argument("--jobs", type=whole(), default=2, help=jobs_help)
    parser.add_argument("--seconds", type=positive, default=30, help="of each measurement of steps")
    add_results_folder(parser, "little time, the first seed alone")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    return parser


def main() -> int:
    parser = parser_of_flags()
    args = parser.parse_args()
    if args.order:
        return carry_out(args.order)
    if not 0 <= args.wait < math.inf:
        parser.error(f"argument --wait: expected 0 or more seconds, not {args.wait}")
    FAST.update(args.fast)
    SLOW.update(args.slow)
    seeds = args.seeds
    if args.quick:
        args.seconds, args.limit, args.slow_limit, args.every, args.every_slow, seeds = 5, 12, 12, 500, 200, seeds[:1]
    name = "distributed_pays" if args.wait else "distributed_pays_unslowed"
    results = stored(name, args.folder)
    if args.quick:  # all is made anew
        results = {}
    folder = results_folder(args)
    end_what_is_started()
    results.pop("machine", None)
    reported = results.get("threshold", {}).items()
    results["threshold"] = {seed: row for seed, row in reported if int(seed) >= FIRST_REPORTED}
    if args.part in ("steps", "all"):
        results["steps"] = measure_steps(args, args.sac)
        write(name, lines_of(results), results, folder)
    if args.part in ("threshold", "all"):
        results["threshold"] |= measure_threshold(args, args.sac, seeds)
    save(name, lines_of(results), results, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
