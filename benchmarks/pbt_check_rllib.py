"""What RLlib's population-based training really does at an exploit, read from the running learner.

    python benchmarks/pbt_check_rllib.py --peer rllib=RL/bin/python

PPO on CartPole-v1 with a normaliser of observations, 4 members, under Ray Tune's PopulationBasedTraining, with and without `synch`,
with room for all members and for half of them, with RLlib's new and old API stack, and with `reuse_actors`. After each exploit:
are weights, Adam's moments and the normaliser the donor's bit for bit, and do the updates use the settings that PBT chose?
`runners/rllib_pbt.py` has the reading. Written to benchmarks/results/pbt_rllib.md, and for each exploit to pbt_rllib.json.

RLlib needs an environment of its own (it pins another Gymnasium than ours):
    pip install "ray[rllib,tune]==2.60.0" torch==2.13.0                           (RL)
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from reporting import markdown, save
from to_threshold import HERE

Row = dict[str, Any]
INTERVAL = 3
CASES: list[tuple[str, list[str]]] = [
    ("new stack", ["--cpus", "4", "--iterations", "18"]),
    ("new stack, synch=True", ["--cpus", "4", "--iterations", "12", "--synch"]),
    ("new stack, room for 2 of 4", ["--cpus", "2", "--iterations", "12"]),
    ("old stack", ["--cpus", "4", "--iterations", "18", "--stack", "old"]),
    ("old stack, synch=True", ["--cpus", "4", "--iterations", "12", "--stack", "old", "--synch"]),
    ("new stack", ["--cpus", "4", "--iterations", "12", "--max-seconds", "60", "--reuse-actors"]),
    ("new stack, synch=True", ["--cpus", "4", "--iterations", "12", "--max-seconds", "60", "--synch", "--reuse-actors"]),
    ("old stack, synch=True", ["--cpus", "4", "--iterations", "12", "--max-seconds", "60", "--synch", "--stack", "old", "--reuse-actors"]),
]  # fmt: skip
WHY = """
Why, in the source of RLlib 2.60.0:

- Learning rate, new stack: the checkpoint of the optimizer has its learning rate too, and `TorchLearner._set_optimizer_state`
  (rllib/core/learner/torch/torch_learner.py) loads both; `Learner.after_gradient_based_update` (rllib/core/learner/learner.py)
  sets the scheduled rate only after the updates of an iteration. So one iteration learns with the donor's rate, and
  reports the new one.
- Clip, entropy and batch sizes, new stack: the loss and the batches read the learner's and the algorithm's config, which are
  built from the new settings and are in no checkpoint. These work.
- Coefficient of the KL loss, new stack: it adapts as the member learns, and `Learner.get_state` does not save it
  (`curr_kl_coeffs_per_module`, rllib/algorithms/ppo/ppo_learner.py). It is 0.2 again after each exploit and each pause; the
  few that count as kept had 0.2 before.
- Clip and minibatch, old stack: `Policy.set_state` (rllib/policy/policy.py) replaces the policy's config by that in the checkpoint,
  and the loss and the length of a minibatch are read there. `multi_gpu_train_one_step` (rllib/execution/train_ops.py) counts and places the
  minibatches by the new size: some rows of a batch are left out, or taken twice.
- Learning rate, old stack: `TorchPolicyV2.set_state` (rllib/policy/torch_policy_v2.py) loads the donor's rate with the moments,
  and nothing sets it again without a schedule; `cur_lr` in the results is another variable, with the new value.
- Entropy and train batch, old stack: an attribute of the policy and the algorithm's config; neither is restored. These work.
- reuse_actors: `Algorithm` has no `reset_config`, so Ray Tune (tune/execution/tune_controller.py, `_on_trial_reset`) ends the first
  member that it would move to a used actor. With `synch` the others then wait for that member. The default is False.

Known there: ray-project/ray#62173 (open; what it says is the old stack's). Related: #5425 (`reuse_actors`), #22444 (KL coefficient).
"""


def run(python: str, options: Sequence[str]) -> Row:
    """The runner's row."""
    command = [python, str(HERE / "runners/rllib_pbt.py"), "--interval", str(INTERVAL), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("{")), None)
    if line is None:
        raise RuntimeError(f"{command} ended without a result:\n{done.stderr[-2000:]}")
    row: Row = json.loads(line)
    return row


def loads_of(row: Row) -> tuple[list[Row], list[Row]]:
    """Loads of another member's checkpoint (exploits), and of the member's own (after a pause).

    Each has `donor` and `live` (the donor when it saved, the member when it had loaded) and `steps`: what the iterations of the same
    process after it used. Exploits that no iteration followed are left out.
    """
    loads, events = [], row["events"]
    for index, event in enumerate(events):
        if event["event"] == "load":
            mine = [
                later
                for later in events[index + 1 :]
                if (later["trial"], later["pid"]) == (event["trial"], event["pid"])
            ]
            steps = [later for later in mine if later["event"] == "step"]
            if steps:
                loads.append({"donor": event["donor"], "live": event["live"], "steps": steps})
    exploits = [load for load in loads if load["donor"]["trial"] != load["live"]["trial"]]
    for load in exploits:
        assert load["live"]["settings"] in row["chosen"], "the member was not started with what the scheduler chose"
    return exploits, [load for load in loads if load not in exploits]


def uses(load: Row, setting: str, iteration: int) -> bool | None:
    """Whether an iteration after the load used the new value of a setting; None where that cannot be told."""
    new, old = load["live"]["settings"][setting], load["donor"]["settings"][setting]
    if new == old or len(load["steps"]) <= iteration:
        return None
    used = load["steps"][iteration]["used"][setting]
    return all(math.isclose(value, new, rel_tol=1e-6) for value in (used if isinstance(used, list) else [used]))


def of(word: str, loads: list[Row], holds: Callable[[Row], bool | None]) -> str:
    """How many of the loads that can tell hold something."""
    told = [found for load in loads if (found := holds(load)) is not None]
    return f"{word} {sum(told)} of {len(told)}"


def same(what: str) -> Callable[[Row], bool]:
    return lambda load: load["donor"][what] == load["live"][what]


def column(batch: str, exploits: list[Row], pauses: list[Row]) -> dict[str, str]:
    """A column of the table: what holds after how many exploits."""
    cells = {
        "weights": of("the donor's:", exploits, same("weights")),
        "acting network equals the learner's": of("yes:", exploits, lambda load: load["live"]["acting"]),
        "Adam's moments": of("the donor's:", exploits, same("moments")),
        "normaliser": of("the donor's:", exploits, same("normaliser")),
        "adaptive KL coefficient": of("the donor's:", exploits, same("kl_coeff")),
    }
    for setting in ("lr", "clip_param", "entropy_coeff", "minibatch_size", batch):
        first = of("", exploits, lambda load, setting=setting: uses(load, setting, 0))
        later = of("", exploits, lambda load, setting=setting: uses(load, setting, 1))
        name = "train batch" if setting == batch else setting
        cells[f"{name}: updates use the new value"] = f"first iteration{first}, second{later}"
    cells["lr in the results is the one that the updates used"] = of("first iteration", exploits, reports_truly)
    cells["after a pause, the member's own: weights, moments, normaliser"] = of("yes:", pauses, unchanged)
    cells["after a pause, adaptive KL coefficient"] = of("the member's own:", pauses, same("kl_coeff"))
    return cells


def reports_truly(load: Row) -> bool:
    first = load["steps"][0]
    return all(math.isclose(rate, first["reported_lr"], rel_tol=1e-6) for rate in first["used"]["lr"])


def unchanged(load: Row) -> bool:
    return all(same(what)(load) for what in ("weights", "moments", "normaliser"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, metavar="rllib=PYTHON", help="RLlib's interpreter")
    args = parser.parse_args()
    name, _, python = args.peer.partition("=")
    if name != "rllib" or not python:
        parser.error(f"--peer {args.peer}: give rllib=PYTHON, the interpreter of an environment with RLlib")
    found: dict[str, tuple[str, list[Row], list[Row]]] = {}
    counts, errors, row = [], [], {}
    for case, options in CASES:
        row = run(python, options)
        if "--reuse-actors" in options:
            ended = "the experiment had not ended after 60 s" if row["late"] else "the experiment ended"
            errors.append(
                f"- {case}: {len(row['errors'])} of 4 members failed, {ended}. {' '.join(sorted(set(row['errors'])))}"
            )
            print(errors[-1], flush=True)
            continue
        exploits, pauses = loads_of(row)
        counts.append(
            f"{case} ({' '.join(options)}): {len(exploits)} exploits, {len(pauses)} pauses, {len(row['errors'])} errors"
        )
        print(counts[-1], flush=True)
        _, all_exploits, all_pauses = found.setdefault(case.split(",")[0], (row["batch"], [], []))
        all_exploits += exploits
        all_pauses += pauses
    columns = {stack: column(*loads) for stack, loads in found.items()}
    rows = [(key, *(cells[key] for cells in columns.values())) for key in next(iter(columns.values()))]
    text = (
        f"`python benchmarks/pbt_check_rllib.py --peer rllib=...`: {row['library']}, torch {row['torch']}, Python {row['python']}.\n"
        f"PPO on CartPole-v1, 4 members, `perturbation_interval={INTERVAL}` iterations, `quantile_fraction=0.5`, 2 epochs, no env runners\n"
        "and no learners besides the member's own process, `MeanStdFilter`. Mutated: lr, clip, entropy coefficient, minibatch, train batch.\n\n"
        + "".join(f"- {line}\n" for line in counts)
        + "\n"
        + markdown(("after an exploit", *columns), rows)
        + "\nWith `reuse_actors=True`:\n\n"
        + "\n".join(errors)
        + "\n"
        + WHY
    )
    save("pbt_rllib", text, {"exploits": {stack: loads[1] for stack, loads in found.items()}})


if __name__ == "__main__":
    main()
