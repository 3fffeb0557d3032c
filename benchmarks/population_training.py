"""Does population-based training pay? Four members that learn from each other, against the same four first settings trained fixed.

    python benchmarks/population_training.py                       # seeds 1000-1004; what is missing
    python benchmarks/population_training.py --seeds 0 --out runs/trial

LunarLanderContinuous-v3, PPO, a wide prior. Both sides of a seed are `raypid train -f` of one file, with and without `population`, so
they draw the same four settings (checked) and train for the same environment steps. Each run keeps the policy that its evaluations
while it trained liked best; that policy plays 50 fresh episodes after all training (`raypid eval`). Of the population counts the member
whose policy had the highest evaluation while it trained, and of the fixed settings the median of the four. So what chooses never
sees the final episodes. Interval and steps were chosen on seeds below 10.

Environment steps decide, not seconds: other work on the machine does not matter. Rows go to
benchmarks/results/population_training.csv as sides end, and a second call goes on; then the table and docs/population.png are written.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flags import several, whole

from raypid.report.logger import read_results
from raypid.report.statistics import mean_half_width
from raypid.storage.run_folder import EVALUATION
from raypid.sweep.plan import read_plan
from raypid.tune.exploit import EXPLOITS

RESULTS = Path(__file__).parent / "results"
STORE, TABLE = RESULTS / "population_training.csv", RESULTS / "population_training.md"
PICTURE = RESULTS.parents[1] / "docs" / "population.png"
STEPS, INTERVAL, MEMBERS, EPISODES = 300_000, 30_000, 4, 50
FINAL_SEED = 77
PRIOR = {
    "lr": {"loguniform": [1e-5, 1e-2]},
    "clip": {"uniform": [0.05, 0.5]},
    "entropy_coef": {"loguniform": [1e-5, 0.1]},
    "batch_size": {"choice": [64, 128, 256, 512, 1024]},
    "gamma": {"choice": [0.95, 0.98, 0.99, 0.995, 0.999]},
    "num_epochs": {"randint": [2, 11]},
}
COLUMNS = ("seed", "side", "member", "settings", "steps", "exploits", "training_score", "final", "evaluations")
SIDES = ("fixed", "population")


def train(seed: int, side: str, folder: Path) -> list[dict[str, Any]]:
    """Train the four members of a side; returns a row for each."""
    name = f"{side}-{seed}"
    block = {
        "run": "PPO",
        "env": "LunarLanderContinuous-v3",
        "seed": seed,
        "num_samples": MEMBERS,
        "stop": {"timesteps_total": STEPS},
        "config": {**PRIOR, "evaluation_interval": 5, "evaluation_num_episodes": 10},
        "final_episodes": 0,
        "out": str(folder / name),
        **({"population": {"interval": INTERVAL}} if side == "population" else {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(json.dumps({name: block}, indent=1))
    subprocess.run(
        [sys.executable, "-m", "raypid", "train", "-f", str(file), "--overwrite"], check=True, stdout=subprocess.DEVNULL
    )
    trials, _ = read_plan(folder / name)
    return [{"seed": seed, "side": side, **member(Path(trial.folder), trial.settings)} for trial in trials]


def member(folder: Path, settings: Any) -> dict[str, Any]:
    """What a run has reached."""
    rows = read_results(folder)
    evaluations = [[int(row["timesteps_total"]), row[EVALUATION]] for row in rows if EVALUATION in row]
    command = [
        sys.executable,
        "-m",
        "raypid",
        "eval",
        str(folder),
        "--episodes",
        str(EPISODES),
        "--seed",
        str(FINAL_SEED),
    ]
    played = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    exploits = folder / EXPLOITS
    return {
        "member": folder.name[:9],
        "settings": json.dumps({name: settings[name] for name in PRIOR}),
        "steps": int(rows[-1]["timesteps_total"]),
        "exploits": len(json.loads(exploits.read_text())) if exploits.exists() else 0,
        "training_score": max(score for _, score in evaluations),
        "final": json.loads(played)["episode_reward_mean"],
        "evaluations": json.dumps(evaluations),
    }


def read() -> list[dict[str, Any]]:
    """The rows so far, with numbers as such."""
    if not STORE.exists():
        return []
    with STORE.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {name: json.loads(row[name]) for name in COLUMNS if name not in ("side", "member")}
    return rows


def append(rows: list[dict[str, Any]]) -> None:
    new = not STORE.exists()
    with STORE.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def outcome(rows: list[dict[str, Any]], seed: int) -> dict[str, float] | None:
    """Of a seed whose sides have both run: what is compared, and more.

    Raises:
        SystemExit: the two sides did not draw the same settings.
    """
    fixed, population = ([r for r in rows if r["seed"] == seed and r["side"] == side] for side in SIDES)
    if not (fixed and population):
        return None
    if [r["settings"] for r in fixed] != [r["settings"] for r in population]:
        raise SystemExit(f"Seed {seed}: the two sides did not draw the same settings.")
    chosen = max(population, key=lambda r: r["training_score"])
    liked = max(fixed, key=lambda r: r["training_score"])
    middle = statistics.median(r["final"] for r in fixed)
    return {
        "population": chosen["final"],
        "fixed": middle,
        "difference": chosen["final"] - middle,
        "best fixed": liked["final"],
        "median member": statistics.median(r["final"] for r in population),
        "exploits": sum(r["exploits"] for r in population),
    }


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% interval, by Student's t."""
    return statistics.fmean(values), mean_half_width(np.array(values))


def write_table(found: dict[int, dict[str, float]]) -> None:
    mean, half = interval([row["difference"] for row in found.values()])
    surely = "above 0" if mean - half > 0 else "not above 0"
    lines = [
        f"`python benchmarks/population_training.py`: PPO on LunarLanderContinuous-v3, {MEMBERS} members, {STEPS:,} environment steps each, "
        f"an exchange every {INTERVAL:,}; the prior is",
        f"`{json.dumps(PRIOR)}`.",
        "",
        f"Final evaluation: {EPISODES} fresh episodes of the policy that the evaluations of its run liked best. Best member: chosen by "
        "these evaluations, never by the final ones.",
        "",
        "| seed | population: best member | median of the same four settings, fixed | difference | population: median member "
        "| best of the four fixed | exploits |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed, row in sorted(found.items()):
        cells = [f"{row[k]:.1f}" for k in ("population", "fixed", "difference", "median member", "best fixed")]
        lines.append(f"| {seed} | {' | '.join(cells)} | {row['exploits']:.0f} |")
    more = [
        interval([row[a] - row[b] for row in found.values()])
        for a, b in (("median member", "fixed"), ("population", "best fixed"))
    ]
    lines += [
        "",
        f"Difference: **{mean:.1f} ± {half:.1f}** (mean of {len(found)} seeds, 95% interval by Student's t: {mean - half:.1f} to "
        f"{mean + half:.1f}, {surely}).",
        f"Median member minus median fixed setting: {more[0][0]:.1f} ± {more[0][1]:.1f}. Best member minus the best of the four fixed "
        f"settings, chosen in the same way: {more[1][0]:.1f} ± {more[1][1]:.1f}.",
    ]
    TABLE.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[-2:]))


def curves(rows: list[dict[str, Any]], seed: int, side: str, grid: np.ndarray) -> np.ndarray:
    """The evaluations of the members of a side as lines over `grid`, [members, len(grid)]."""
    lines = [np.array(r["evaluations"]).T for r in rows if r["seed"] == seed and r["side"] == side]
    return np.array([np.interp(grid, x, y) for x, y in lines])


def draw(rows: list[dict[str, Any]], found: dict[int, dict[str, float]]) -> None:
    """Curves over the seeds on the left, the seeds' final evaluations on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grid = np.linspace(INTERVAL / 2, STEPS, 100)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(2, 1), layout="constrained")
    looks = {"population": ("#0072B2", "population"), "fixed": ("#D55E00", "the same settings, fixed")}
    for side, (colour, label) in looks.items():
        members = np.array([curves(rows, seed, side, grid) for seed in found])  # [seeds, members, x]
        middle = np.median(members, axis=1)
        half = np.array([mean_half_width(column) for column in middle.T])
        left.plot(grid, middle.mean(0), color=colour, lw=2.4, label=f"{label}: median of four")
        left.fill_between(grid, middle.mean(0) - half, middle.mean(0) + half, color=colour, alpha=0.15, lw=0)
        left.plot(grid, members.max(1).mean(0), color=colour, lw=1.2, ls=(0, (4, 1.5)), label=f"{label}: best of four")
    for step in range(INTERVAL, STEPS, INTERVAL):
        left.axvline(step, color="0.85", lw=0.8, zorder=0)
    left.axhline(200, color="0.6", lw=0.8, ls=":")
    left.set(xlabel="environment steps of each member", ylabel="evaluation return", xlim=(0, STEPS))
    left.set_title(f"LunarLanderContinuous-v3, PPO: mean of {len(found)} seeds", fontsize=10)
    left.legend(frameon=False, fontsize=8.5, loc="lower right")
    left.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:.0f}k")
    for row in found.values():
        right.plot((0, 1), (row["fixed"], row["population"]), color="0.75", lw=1, zorder=1)
    for x, (key, colour) in enumerate((("fixed", "#D55E00"), ("population", "#0072B2"))):
        right.scatter([x] * len(found), [row[key] for row in found.values()], color=colour, s=36, zorder=2)
    right.set_xticks((0, 1), ("median fixed\nsetting", "population's\nbest member"))
    right.set(xlim=(-0.4, 1.4), ylabel=f"final evaluation ({EPISODES} episodes)")
    right.set_title("each line is a seed", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=several(whole(0)), default=[1000, 1001, 1002, 1003, 1004])
    parser.add_argument("--out", type=Path, default=Path("runs/population_training"), help="folder of the runs")
    options = parser.parse_args()
    seeds = options.seeds
    if min(seeds) < 1000:  # a trial: nothing is kept
        for seed in seeds:
            print(outcome([row for side in SIDES for row in train(seed, side, options.out)], seed))
        return
    rows = read()
    for seed in seeds:
        for side in SIDES:
            if not any(row["seed"] == seed and row["side"] == side for row in rows):
                append(train(seed, side, options.out))
                rows = read()
        print(seed, outcome(rows, seed), flush=True)
    found = {seed: row for seed in sorted({r["seed"] for r in rows}) if (row := outcome(rows, seed)) is not None}
    if len(found) > 1:
        write_table(found)
        draw(rows, found)


if __name__ == "__main__":
    main()
