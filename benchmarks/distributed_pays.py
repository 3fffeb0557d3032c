"""Where an environment waits, workers pay: SAC on a LunarLander whose step takes 20 ms, 32 on 8 workers beside a single one.

    python benchmarks/distributed_pays.py                              # both parts; `--quick` only shows that it runs
    python benchmarks/distributed_pays.py --part steps
    python benchmarks/distributed_pays.py --part threshold --seed 1 --sac '{"samples_per_insert": 16}'

steps: environment steps a second, with a learner that hardly has work ("collecting") and with the settings that learn.
threshold: seconds to a mean return of 200, held by two greedy evaluations in a row, of 10 and then of 50 episodes. The
evaluations are played on the ordinary lander, which does not wait, and their time is left out; the workers go on with
the calls that they have begun, so the ratio is also given with the evaluations of the distributed run counted. The
single environment is given its own best ratio of updates to steps: the best of those in --slow; it is stopped after ten
times the seconds of the distributed run. Its ratios run side by side, since they wait most of the time.
Each run is a process of its own, its clock starts with it and includes Ray.
Results of other seeds and of the other part stay in benchmarks/results/distributed_pays.json.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from reporting import RESULTS, markdown, save  # noqa: E402
from slow_lander import ORDINARY  # noqa: E402

FAST = {"num_workers": 8, "num_envs_per_worker": 4, "num_cpus_per_worker": 0.125, "fragment_length": 16}
SLOW = {"num_workers": 0, "num_envs_per_worker": 1, "num_cpus_per_worker": 1, "fragment_length": 1}
SLOW_RATIOS = [{"samples_per_insert": 256}, {"samples_per_insert": 512}]
COLLECTING = {"start_steps": 256, "samples_per_insert": 0.25}
THRESHOLD, TIMES = 200.0, 10.0


def build(settings: dict[str, Any], seed: int) -> Any:
    """The agent, whose `eval` plays the ordinary lander."""
    import raypid
    from raypid.config import overlay
    from raypid.tuned import TUNED

    config = overlay(TUNED.get(("SAC", ORDINARY), {}), settings)
    return raypid.SAC(env="slow_lander:SlowLander", evaluation_env=ORDINARY, seed=seed, config=config)


def steps(settings: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    """Environment steps a second: the median of five windows."""
    streams = max(1, settings["num_workers"]) * settings["num_envs_per_worker"]
    with build({**settings, "steps_per_iteration": 10 * streams}, seed) as agent:
        agent.train(settings["start_steps"] + 20 * streams)
        rates = []
        for _ in range(5):
            start, before, updates = time.perf_counter(), agent.context.timesteps, agent.num_updates
            while time.perf_counter() - start < seconds / 5:
                agent.train()
            spent = time.perf_counter() - start
            rates.append(((agent.context.timesteps - before) / spent, (agent.num_updates - updates) / spent))
    return {f"{name}_per_s": statistics.median(column) for name, column in zip(("steps", "updates"), zip(*rates))}


def threshold(settings: dict[str, Any], seed: int, limit: float, every: int) -> dict[str, Any]:
    """Seconds until the threshold holds, `limit` at most."""
    settings = {"steps_per_iteration": min(500, every), **settings}
    evaluated, due, solved, best = 0.0, every, False, float("-inf")
    with build(settings, seed) as agent:
        while not solved and time.perf_counter() - BEGIN - evaluated < limit:
            timesteps = agent.train()["timesteps_total"]
            if timesteps < due:
                continue
            due, before = timesteps + every, time.perf_counter()
            mean = agent.eval(10)["episode_reward_mean"]
            if mean >= THRESHOLD:
                mean = agent.eval(50, seed=seed + 500_000)["episode_reward_mean"]
                solved = mean >= THRESHOLD
            best = max(best, mean)
            evaluated += time.perf_counter() - before
        seconds = time.perf_counter() - BEGIN - evaluated
        return {
            "solved": solved, "seconds": seconds, "evaluation_s": evaluated, "steps": agent.context.timesteps,
            "updates": agent.num_updates, "return": mean if solved else best,
        }  # fmt: skip


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an order in a process of its own."""
    command = [sys.executable, __file__, "--order", json.dumps(order)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({**order, **row}), flush=True)
    return {"settings": order["settings"], **row}


def measure_steps(sac: dict[str, Any], slow: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    rows = {}
    for name, fast_settings, slow_settings in (
        ("collecting", {**sac, **FAST, **COLLECTING}, {**sac, **SLOW, **COLLECTING}),
        ("learning", {"start_steps": 1_000, **sac, **FAST}, {"start_steps": 256, **sac, **SLOW, **slow}),
    ):
        orders = (
            {"part": "steps", "settings": s, "seed": seed, "seconds": seconds} for s in (slow_settings, fast_settings)
        )
        one, many = (run(order) for order in orders)
        rows[name] = {"one": one, "many": many, "ratio": many["steps_per_s"] / one["steps_per_s"]}
    return rows


def measure_threshold(
    args: argparse.Namespace, sac: dict[str, Any], slow: list[dict[str, Any]], fast: dict[str, Any] | None
) -> dict[str, Any]:
    """`fast`: the stored result of the distributed run, where only the single one is run."""
    order = {"part": "threshold", "seed": args.seed}
    fast = fast or run({**order, "settings": {**sac, **FAST}, "limit": args.limit, "every": args.every})
    limit = (1 if args.quick else TIMES) * fast["seconds"]
    more = {**order, "limit": limit, "every": args.every_slow}
    orders = [{**more, "settings": {**sac, **SLOW, **settings}} for settings in slow]
    with ThreadPoolExecutor() as side_by_side:  # they wait for their environment most of the time
        rows = list(side_by_side.map(run, orders))
    return {"many": fast, "one": [{"tried": settings, **row} for settings, row in zip(slow, rows)]}


def lines_of(results: dict[str, Any]) -> str:
    tables = []
    if "steps" in results:
        rows = [
            (name, *(f"{r[k]['steps_per_s']:,.0f}" for k in ("one", "many")), f"{r['ratio']:.1f}",
             *(f"{r[k]['updates_per_s']:,.1f}" for k in ("one", "many")))
            for name, r in results["steps"].items()
        ]  # fmt: skip
        header = ("environment steps a second", "1 environment", "32 on 8 workers", "ratio")
        tables.append(markdown((*header, "updates/s with 1", "updates/s with 32"), rows))
    rows = []
    for seed, r in sorted(results.get("threshold", {}).items()):
        many, one = r["many"], min(r["one"], key=lambda x: (not x["solved"], x["seconds"]))
        sign, counted = "" if one["solved"] else "> ", many["seconds"] + many["evaluation_s"]
        rows.append((
            seed, f"{many['seconds']:.1f}" if many["solved"] else f"not in {many['seconds']:.0f}",
            f"{one['seconds']:.1f}" if one["solved"] else f"not in {one['seconds']:.0f}", json.dumps(one["tried"]),
            f"{sign}{one['seconds'] / many['seconds']:.1f}", f"{sign}{one['seconds'] / counted:.1f}",
            f"{many['steps']:,}", f"{one['steps']:,}",
        ))  # fmt: skip
    if rows:
        header = ("seconds to 200, seed", "32 on 8 workers", "1 environment", "its best settings", "ratio")
        more = ("ratio, evaluations of the 32 counted", "steps of the 32", "steps of the 1")
        tables.append(markdown((*header, *more), rows))
    return "\n".join(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "threshold", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sac", default="{}", help="settings of SAC as JSON, over the tuned ones, for both sides")
    parser.add_argument("--fast", default="{}", help="JSON, for the distributed side alone")
    parser.add_argument("--slow", default=json.dumps(SLOW_RATIOS), help="JSON list: settings that the single one tries")
    parser.add_argument("--every", type=int, default=4_000, help="steps between evaluations of the distributed run")
    parser.add_argument("--every-slow", type=int, default=1_000, help="the same of the single one")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which the distributed run is given up")
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement of steps")
    parser.add_argument(
        "--slow-only", action="store_true", help="threshold: keep the stored distributed run of this seed"
    )
    parser.add_argument("--quick", action="store_true", help="little time, results beside the stored ones")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.order:
        order = json.loads(args.order)
        print(json.dumps({"steps": steps, "threshold": threshold}[order.pop("part")](**order)), flush=True)
        return
    FAST.update(json.loads(args.fast))
    sac, slow = json.loads(args.sac), json.loads(args.slow)
    if args.quick:
        args.seconds, args.limit, args.every, args.every_slow, slow = 5, 12, 500, 200, slow[:1]
    folder = Path(tempfile.mkdtemp()) if args.quick else RESULTS
    store = folder / "distributed_pays.json"
    results: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    results.pop("machine", None)
    if args.part in ("steps", "both"):
        results["steps"] = measure_steps(sac, slow[0], args.seed, args.seconds)
        save("distributed_pays", lines_of(results), results, folder)
    if args.part in ("threshold", "both"):
        stored = results.setdefault("threshold", {}).get(str(args.seed), {}).get("many") if args.slow_only else None
        results["threshold"][str(args.seed)] = measure_threshold(args, sac, slow, stored)
        save("distributed_pays", lines_of(results), results, folder)


if __name__ == "__main__":
    main()
