"""Write the table of the README's speed section, and its picture, from benchmarks/results/runs.csv.

python docs/make_speed.py            # rewrite README.md and docs/speed.png
python docs/make_speed.py --check    # exit 1 if the table is out of date
"""

from __future__ import annotations

import math
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE, RUNS = ROOT / "README.md", ROOT / "docs" / "speed.png", ROOT / "benchmarks" / "results" / "runs.csv"
sys.path.insert(0, str(ROOT / "benchmarks"))

from defaults import TASKS, End, ends, newest  # noqa: E402
from reporting import markdown  # noqa: E402

BEGIN, END = "<!-- speed -->", "<!-- end: speed -->"
SHOWN = (
    "PPO:CartPole-v1", "DQN:CartPole-v1", "PPO:LunarLanderContinuous-v3", "SAC:LunarLanderContinuous-v3", "PPO:MountainCarContinuous-v0",
    "SAC:Pendulum-v1", "PPO:BipedalWalker-v3", "PPO:Hopper-v5", "SAC:Hopper-v5", "PPO:Walker2d-v5", "PPO:HalfCheetah-v5",
)  # fmt: skip
"""Tasks of the table. The picture and results/defaults.md have all."""
LEAST_SEEDS = 3
"""Tasks with fewer are left out of the table."""
NOT_REACHED = "not reached"
NOT_REACHED_MEANS = f'"{NOT_REACHED}": a run did not get to the return in its time.'
SYSTEMS = {"raypid": "raypid", "sbx": "SBX", "sb3": "Stable-Baselines3"}


class Measured(NamedTuple):
    """What a system's newest settings did on a task."""

    median: float
    """Seconds, infinite where a run did not arrive."""
    worst: float
    arrived: int
    seeds: int


def measured() -> dict[str, dict[str, Measured]]:
    """By task and by system, of raypid with its defaults."""
    found = ends(RUNS)
    rows: dict[str, dict[str, Measured]] = {}
    for name in TASKS:
        for (system, kind), runs in newest(found, name).items():
            if not kind.startswith("tuned"):
                rows.setdefault(name, {})[system] = _measured([found[run] for run in runs])
    return rows


def _measured(ended: list[End]) -> Measured:
    seconds = sorted(end.seconds if end.solved else math.inf for end in ended)
    return Measured(statistics.median_low(seconds), seconds[-1], sum(end.solved for end in ended), len(ended))


def table(rows: dict[str, dict[str, Measured]]) -> str:
    """raypid's times, a line for each task; below it those of peers, where one was measured."""
    own = [(name, rows[name]["raypid"]) for name in SHOWN if "raypid" in rows.get(name, {})]
    lines = [
        (*_task(name), _seconds(of.median), _seconds(of.worst), f"{of.arrived} of {of.seeds}")
        for name, of in own
        if of.seeds >= LEAST_SEEDS
    ]
    times = markdown(("task", "return", "algorithm", "median, s", "worst seed, s", "seeds that reached it"), lines)
    text = f"{times}{_of_peers(rows)}"
    return f"{text}\n{NOT_REACHED_MEANS}\n" if NOT_REACHED in text else text


def _task(name: str) -> tuple[str, str, str]:
    algorithm, _, env = name.partition(":")
    return env, f"{TASKS[name].threshold:,g}", algorithm


def _of_peers(rows: dict[str, dict[str, Measured]]) -> str:
    """A sentence on each task of the table on which a peer was measured."""
    told = ""
    for name in SHOWN:
        peers = {system: of for system, of in rows.get(name, {}).items() if system != "raypid"}
        if peers:
            env, _, algorithm = _task(name)
            each = ", ".join(f"{SYSTEMS[system]} {_seconds(of.median)} s" for system, of in peers.items())
            told += f"\nFor {algorithm} on {env}, the medians of peers with RL-Zoo's settings are: {each}.\n"
    return told


def _seconds(seconds: float) -> str:
    return f"{seconds:,.{1 if seconds < 9.95 else 0}f}" if math.isfinite(seconds) else NOT_REACHED


def draw(rows: dict[str, dict[str, Measured]]) -> None:
    """A line for each task and system, from the median to the worst seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {"raypid": "#d9480f", "sbx": "#1c7ed6", "sb3": "#868e96"}
    figure, axes = pyplot.subplots(figsize=(8, 0.28 * len(rows) + 1), layout="constrained")
    for place, row in enumerate(rows.values()):
        if not any(math.isfinite(of.median) for of in row.values()):
            axes.text(1, place, NOT_REACHED, fontsize=8, va="center", color="#868e96")
        for system, of in row.items():
            if math.isfinite(of.median):
                end = of.worst if math.isfinite(of.worst) else 1e4
                axes.plot([of.median, end], [place, place], color=colors[system], lw=1.5, alpha=0.6)
                axes.plot(of.median, place, "o", color=colors[system], ms=5)
    for system in (system for system in SYSTEMS if any(system in row for row in rows.values())):
        axes.plot([], [], "o-", color=colors[system], label=SYSTEMS[system])
    axes.set_yticks(
        range(len(rows)), [f"{name.replace(':', ', ')}  {TASKS[name].threshold:,g}" for name in rows], fontsize=8
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=2_000)
    axes.set_xticks([1, 10, 100, 1_000], ["1", "10", "100", "1,000"], fontsize=8)
    axes.set_xlabel("seconds to the return: median, and a line to the worst seed", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=110)


def main() -> int:
    """0 if the page is (now) up to date."""
    text, rows = PAGE.read_text(), measured()
    head, _, rest = text.partition(BEGIN)
    new = f"{head}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}"
    if "--check" in sys.argv:
        print("README.md is " + ("up to date" if new == text else "out of date: python docs/make_speed.py"))
        return int(new != text)
    PAGE.write_text(new)
    draw(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
