"""Environment steps a second while learning on CartPole-v1: raypid's APPO and IMPALA beside RLlib's, two workers each, in turn.

    python benchmarks/async_rate.py --rllib RL/bin/python              # an environment with "ray[rllib]==2.60.0" torch
    python benchmarks/async_rate.py --algorithms APPO --seconds 20     # raypid alone

Both have two workers on Ray and a network of 64 x 64 tanh. raypid has the settings below (what one update takes and how it learns
from it is RLlib's default on its side); RLlib is measured with each number of environments in --envs, and the fastest counts.
Each run is a process; the first seconds of training are left out. Written to benchmarks/results/async_rate.md and .json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from flags import json_object, one_of, positive, several, whole
from reporting import RESULTS, markdown, save
from to_threshold import HERE, run

SETTINGS: dict[str, dict[str, Any]] = {
    "APPO": {"num_workers": 2, "num_envs_per_worker": 64, "fragment_length": 64, "batch_size": 2048, "num_epochs": 1},
    "IMPALA": {"num_workers": 2, "num_envs_per_worker": 64, "fragment_length": 64, "batch_size": 2048},
}
NEVER = 1e12


def rate_of(command: list[str], seconds: float, seed: int) -> float:
    """Steps a second of a runner that never reaches its threshold."""
    task = {"env": "CartPole-v1", "threshold": 1e9, "max": seconds + WARM_UP, "every": NEVER}
    rate: float = run([*command, "--warm-up", str(WARM_UP)], seed, task)["steps_per_s"]
    print(f"{rate:12,.0f} steps/s: {' '.join(command[1:])}", flush=True)
    return rate


WARM_UP = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", type=several(one_of(SETTINGS)), default=["APPO", "IMPALA"])
    parser.add_argument("--rllib", help="its interpreter; without one, raypid alone is measured")
    envs_help = "environments of each of RLlib's env runners, tried in turn"
    parser.add_argument("--envs", type=several(whole()), default=[8, 64], help=envs_help)
    parser.add_argument("--runs", type=whole(), default=3)
    parser.add_argument("--seconds", type=positive, default=20)
    parser.add_argument("--config", type=json_object, default={}, help="JSON, over raypid's settings")
    args = parser.parse_args()
    store = RESULTS / "async_rate.json"
    rows: dict[str, Any] = json.loads(store.read_text())["rows"] if store.exists() else {}
    for algorithm in args.algorithms:
        settings = {**SETTINGS[algorithm], **args.config}
        ours = [
            sys.executable,
            str(HERE / "runners/raypid_run.py"),
            "--algo",
            algorithm,
            "--config",
            json.dumps(settings),
        ]
        row = rows.setdefault(algorithm, {})
        row |= {"settings": settings, "raypid": [rate_of(ours, args.seconds, seed) for seed in range(args.runs)]}
        for envs in map(str, args.envs) if args.rllib else ():
            peer = [args.rllib, str(HERE / "runners/rllib_run.py"), "--algo", algorithm, "--envs", envs]
            row.setdefault("rllib", {})[envs] = [rate_of(peer, args.seconds, seed) for seed in range(args.runs)]
    table = []
    for algorithm, row in rows.items():
        ours_s = statistics.median(row["raypid"])
        peers = {envs: statistics.median(rates) for envs, rates in row.get("rllib", {}).items()}
        best = max(peers, key=lambda envs: peers[envs], default=None)
        theirs = f"{peers[best]:,.0f} ({best} environments each)" if best else ""
        ratio = f"{ours_s / peers[best]:.1f}" if best else ""
        table.append((algorithm, f"{ours_s:,.0f}", theirs, ratio))
    save(
        "async_rate",
        markdown(("steps/s on CartPole-v1, learning", "raypid", "RLlib 2.60", "ratio"), table),
        {"rows": rows},
    )


if __name__ == "__main__":
    main()
