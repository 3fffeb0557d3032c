"""Updates a second of SAC on Hopper-v5, one update for each step, beside SBX's: environment, replay and loop included.

    python benchmarks/beside_sbx.py --peer SB/bin/python       # a Python with `pip install sbx-rl==0.28 "gymnasium[mujoco]"`

Two hidden layers of 256, two critics without normalisation, batches of 256, all cores. SBX updates the policy each time; raypid does so, too, and
as it does by default: every second time, in float32 and in bfloat16. Each run has a process of its own; contestants take turns; medians of
windows of 250 updates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flags import add_results_folder, results_folder, whole
from reporting import markdown, save

ENV, START, WINDOW = "Hopper-v5", 1_000, 250
OURS: dict[str, dict[str, Any]] = {
    "raypid, policy each time": {"policy_delay": 1},
    "raypid": {},
    "raypid, bf16": {"bf16": True},
}
RUNNER = Path(__file__).parent / "runners" / "sbx_rate.py"


def rates(settings: dict[str, Any], windows: int) -> list[float]:
    """Updates a second of raypid in each window."""
    import raypid

    config = {
        "a_l_ratio": 1, "batch_size": 256, "critic_norm": "none", "model": {"hidden": [256, 256]}, "start_steps": START, "evaluation_interval": 0,
        "steps_per_iteration": WINDOW, **settings,
    }  # fmt: skip
    found = []
    with raypid.SAC(ENV, seed=0, config=config) as agent:
        while agent.context.timesteps < START + 2 * WINDOW:
            agent.train()
        for _ in range(windows):
            start, before = time.perf_counter(), agent.context.timesteps
            agent.train()
            found.append((agent.context.timesteps - before) / (time.perf_counter() - start))
    return found


def run(command: list[str], order: dict[str, Any]) -> list[float]:
    """What a process prints as the last line: its rates."""
    done = subprocess.run([*command, json.dumps(order)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(rate) for rate in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=None, help="a Python that has SBX")
    parser.add_argument("--rounds", type=whole(), default=3)
    parser.add_argument("--windows", type=whole(), default=6, help="in each run")
    parser.add_argument("--order", default=None, help=argparse.SUPPRESS)
    add_results_folder(parser, "one window")
    args = parser.parse_args()
    if args.order:
        order = json.loads(args.order)
        print(json.dumps(rates(order["settings"], order["windows"])))
        return
    if args.quick:
        args.rounds = args.windows = 1
    folder, common = results_folder(args), {"env": ENV, "start": START, "window": WINDOW, "windows": args.windows}
    found: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        if args.peer:
            found.setdefault("SBX 0.28", []).extend(run([args.peer, str(RUNNER)], common))
        for name, settings in OURS.items():
            found.setdefault(name, []).extend(
                run([sys.executable, __file__, "--order"], common | {"settings": settings})
            )
    medians = {name: statistics.median(measured) for name, measured in found.items()}
    peer = medians.get("SBX 0.28")
    rows = [(name, f"{rate:.0f}", "–" if peer is None else f"{rate / peer:.2f}") for name, rate in medians.items()]
    save("beside_sbx", markdown(("SAC on Hopper-v5", "updates/s", "times SBX"), rows), {"updates/s": found}, folder)


if __name__ == "__main__":
    main()
