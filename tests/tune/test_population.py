"""Populations as users run them: what a member takes over is in force and on record, and nothing makes the others wait for ever."""

from __future__ import annotations

import json
import math
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

from raypid.report.lineage import LINEAGE
from raypid.report.logger import EXPLOITS
from raypid.storage.checkpoint import latest, read_manifest

SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]
INTERVAL = 1000
BLOCK: dict[str, Any] = {
    "run": "PPO",
    "env": "CartPole-v1",
    "seed": 3,
    "num_samples": 3,
    "stop": {"timesteps_total": 4 * INTERVAL},
    "config": {
        "lr": {"loguniform": [1e-5, 1e-2]},
        "clip": {"uniform": [0.05, 0.5]},
        "batch_size": {"choice": [32, 64, 128]},
        "num_epochs": 1,
        "fragment_length": 32,
        "evaluation_num_episodes": 2,
    },
    "final_episodes": 0,
    "population": {"interval": INTERVAL},
}


def written(tmp_path: Path, **changes: Any) -> str:
    """A file with one experiment, `p`: BLOCK with these changes."""
    config = {**BLOCK["config"], **changes.pop("config", {})}
    block = {**BLOCK, **changes, "config": {k: v for k, v in config.items() if v is not None}}
    (tmp_path / "p.json").write_text(json.dumps({"p": block}))
    return "p.json"


def members(tmp_path: Path) -> dict[str, Path]:
    return {folder.name: folder for folder in sorted((tmp_path / "runs" / "p").glob("trial-*"))}


def records(folder: Path) -> list[dict[str, Any]]:
    file = folder / EXPLOITS
    return json.loads(file.read_text()) if file.exists() else []


def rows(folder: Path) -> list[dict[str, Any]]:
    file = folder / "result.json"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def states(tmp_path: Path) -> list[str]:
    found = json.loads((tmp_path / "runs" / "p" / "trials.json").read_text())
    return [found[name]["state"] for name in members(tmp_path)]


def check_lineage(tmp_path: Path) -> int:
    """Compare each record with what the member's results show from then on; returns how many there are."""
    found = members(tmp_path)
    for name, folder in found.items():
        kept, results = records(folder), rows(folder)
        assert [r["timesteps_total"] for r in kept] == sorted({r["timesteps_total"] for r in kept})
        for number, record in enumerate(kept, start=1):
            assert record["donor"] in found and record["donor"] != name
            of_it = [row for row in results if row.get("pbt/exploits") == number]
            assert of_it, (name, number)
            for row in of_it:
                own = record["in_force"]
                assert {key: row[f"pbt/{key}"] for key in own} == own == record["settings"]
                if "learner/lr" in row:
                    assert row["learner/lr"] == own["lr"]
                assert row["timesteps_total"] > record["timesteps_total"]
        if kept:
            saved = read_manifest(latest(folder / "checkpoints"))["config"]
            assert {key: saved[key] for key in kept[-1]["settings"]} == kept[-1]["settings"]
    assert (tmp_path / "runs" / "p" / LINEAGE).stat().st_size > 10_000
    return sum(len(records(folder)) for folder in found.values())


@pytest.mark.ci_slow
def test_what_is_on_record_is_what_trains(start: Any, tmp_path: Path) -> None:
    done = start("train", "-f", written(tmp_path, stop={"timesteps_total": 3 * INTERVAL}), "--quiet").finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(members(tmp_path)) == 3 and set(states(tmp_path)) == {"finished"}
    assert check_lineage(tmp_path) == 2  # one after each interval but the last
    for folder in members(tmp_path).values():  # how often it learnt tells the size of a batch
        before = {"learner_updates_total": 0}
        for row in rows(folder):
            exploits = int(row.get("pbt/exploits", 0))
            size = records(folder)[exploits - 1]["settings"]["batch_size"] if exploits else None
            if size and before.get("pbt/exploits") == exploits:
                updates = row["learner_updates_total"] - before["learner_updates_total"]
                sampled = row["timesteps_total"] - before["timesteps_total"]
                assert math.ceil(sampled / size) == updates
            before = row


FORGETFUL = """
    import json
    import raypid
    from raypid.algorithms.ppo import PPO
    from raypid.cli import main

    class Forgetful(PPO):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.config = self.config.replace({"lr": 3e-4})

    if __name__ == "__main__":
        raypid.register_algorithm("Forgetful", Forgetful)
        raise SystemExit(main(["train", "-f", "p.json", "--quiet"]))
"""


@pytest.mark.slow  # test_exploit has it without Ray
def test_an_exploit_that_leaves_the_old_rate_in_force_ends_the_experiment(start: Any, tmp_path: Path) -> None:
    written(tmp_path, run="Forgetful", num_samples=2, stop={"timesteps_total": 2 * INTERVAL})
    (tmp_path / "forgetful.py").write_text(textwrap.dedent(FORGETFUL))
    done = start(python="forgetful.py").finish()
    assert done.returncode == 1
    assert "trial-" in done.stderr and "does not have the settings of its trial: lr is 0.0003, not " in done.stderr
    assert not any(records(folder) for folder in members(tmp_path).values())


def trial_processes(command: Any) -> list[int]:
    """Those in which a member trains at this moment."""
    return [pid for pid, line in command.processes().items() if line.startswith("ray::Trial.train")]


@pytest.mark.parametrize("dummy", [pytest.param(0, marks=SLOW)])
def test_a_killed_member_goes_on_and_its_lineage_is_whole(dummy: int, start: Any, tmp_path: Path) -> None:
    changes = {"stop": {"timesteps_total": 80 * INTERVAL}, "population": {"interval": 8 * INTERVAL}}
    command = start("train", "-f", written(tmp_path, **changes))
    for number in (1, 2):
        wait_until(lambda n=number: sum(len(records(m)) for m in members(tmp_path).values()) >= 2 * n)
        os.kill(wait_until(lambda: trial_processes(command))[0], signal.SIGKILL)
    done = command.finish(300)
    assert done.returncode == 0, done
    assert "its process was lost; it goes on from its newest checkpoint" in done.stdout
    assert set(states(tmp_path)) == {"finished"}
    assert check_lineage(tmp_path) == 9
    for folder in members(tmp_path).values():
        steps = [row["training_iteration"] for row in rows(folder)]
        assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("end", [pytest.param("kill", marks=SLOW), pytest.param("ctrl_c", marks=SLOW)])
def test_a_resumed_population_keeps_what_it_has_found(end: str, start: Any, tmp_path: Path) -> None:
    stop = {"timesteps_total": 30 * INTERVAL}
    command = start("train", "-f", written(tmp_path, stop=stop))
    wait_until(lambda: sum(len(records(m)) for m in members(tmp_path).values()) >= 4)
    if end == "kill":
        for pid in command.processes():
            os.kill(pid, signal.SIGKILL)
        command.process.wait()
    else:
        command.ctrl_c()
        assert command.finish().returncode in (0, 130)
    kept = {name: records(folder) for name, folder in members(tmp_path).items()}
    reached = {name: rows(folder)[-1]["timesteps_total"] for name, folder in members(tmp_path).items()}
    assert max(reached.values()) < 30 * INTERVAL
    done = start("train", "--resume", "runs/p").finish(300)
    assert done.returncode == 0, done
    assert set(states(tmp_path)) == {"finished"}
    assert check_lineage(tmp_path) > sum(map(len, kept.values()))
    least = min(reached.values()) - 2 * INTERVAL
    for name, folder in members(tmp_path).items():
        now = records(folder)
        common = sum(one == other for one, other in zip(now, kept[name]))
        assert common >= len(kept[name]) - 1  # the last one may not have been saved
        assert all(record["timesteps_total"] >= least for record in now[common:])


CASES: dict[str, dict[str, Any]] = {
    "replay and normaliser": {
        "run": "SAC",
        "env": "Pendulum-v1",
        "stop": {"timesteps_total": 2500},
        "config": {
            "clip": None, "num_epochs": None, "fragment_length": None, "batch_size": {"choice": [16, 32]},
            "start_steps": 200, "normalize_observations": True, "buffer_size": 5000, "model": {"hidden": [16, 16]},
        },
    },
    "workers": {"config": {"num_workers": 1}},
    "more members than fit": {"num_samples": 5, "resources": {"cpu": 2}, "config": {"num_threads": 1}},
    "interval shorter than an iteration": {"population": {"interval": 30}},
    "interval longer than the run": {"population": {"interval": 10**6}},
    "some end early": {"stop": {"evaluation/episode_reward_mean": 200, "timesteps_total": 10 * INTERVAL}},
    "time": {"stop": {"time_total_s": 2}},
    "half are replaced": {"num_samples": 4, "population": {"interval": INTERVAL, "quantile": 0.5, "resample": 0.0}},
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(name, marks=SLOW) for name in CASES])
def test_populations_of_all_kinds_end(case: str, start: Any, tmp_path: Path) -> None:
    done = start("train", "-f", written(tmp_path, **CASES[case])).finish(300)
    assert done.returncode == 0, done
    assert set(states(tmp_path)) == {"finished"}
    exploits = check_lineage(tmp_path)
    assert exploits == 0 if case == "interval longer than the run" else exploits > 0


BRITTLE = """
    import gymnasium

    class Brittle(gymnasium.Wrapper):
        steps = 0
        def __init__(self, fails_after=0):
            super().__init__(gymnasium.make("CartPole-v1"))
            self.fails_after = fails_after
        def step(self, action):
            Brittle.steps += 1
            observation, *rest = super().step(action)
            if 0 < self.fails_after < Brittle.steps:
                observation = observation * float("nan")
            return observation, *rest
"""


@pytest.mark.parametrize("after", [pytest.param(100, marks=SLOW), pytest.param(1500, marks=SLOW)])
def test_the_others_go_on_where_a_member_fails(after: int, start: Any, tmp_path: Path) -> None:
    """Whether it fails before anybody waits for it, or after a round."""
    (tmp_path / "brittle.py").write_text(textwrap.dedent(BRITTLE))
    changes = {"num_samples": 1, "env_config": {"fails_after": {"grid_search": [0, 10**7, after, 10**8]}}}
    done = start("train", "-f", written(tmp_path, env="brittle:Brittle", **changes), PYTHONPATH=str(tmp_path)).finish(
        300
    )
    assert done.returncode == 1, done
    assert sorted(states(tmp_path)) == ["failed", "finished", "finished", "finished"], done
    assert check_lineage(tmp_path) > 0


@pytest.mark.parametrize("reuse", [pytest.param(x, marks=SLOW) for x in (False, True)])
def test_tunes_own_tuner(reuse: bool, ray_session: Any, tmp_path: Path) -> None:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    import raypid.tune

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, metric="episode_reward_mean", mode="max",
        hyperparam_mutations={"lr": tune.loguniform(1e-5, 1e-2), "batch_size": [32, 64, 128]}, synch=True,
    )  # fmt: skip
    space = {
        "env": "CartPole-v1",
        "fragment_length": 32,
        "lr": tune.loguniform(1e-5, 1e-2),
        "batch_size": 64,
        "seed": 1,
    }
    found = tune.Tuner(
        raypid.tune.trainable("PPO"),
        param_space=space,
        tune_config=tune.TuneConfig(scheduler=scheduler, num_samples=3, reuse_actors=reuse),
        run_config=tune.RunConfig(storage_path=str(tmp_path), stop={"training_iteration": 8}, verbose=0),
    ).fit()
    assert not found.errors and len(found) == 3
    exploited = [one.metrics for one in found if "pbt/exploits" in one.metrics]
    assert exploited
    for last in exploited:
        assert last["pbt/lr"] == last["learner/lr"] == last["config"]["lr"]
        assert last.get("pbt/batch_size", last["config"]["batch_size"]) == last["config"]["batch_size"]
