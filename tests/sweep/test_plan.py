"""Files and dictionaries become trials, or one message with file and line before anything runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import raypid
from raypid.algorithms.a2c import A2C
from raypid.errors import UserError
from raypid.plugins.trust import UntrustedError
from raypid.run.folder import lock_folder
from raypid.run.resolve import resolve_config
from raypid.settings.config import renamed
from raypid.settings.request import RunRequest
from raypid.settings.variants import grid_search
from raypid.sweep.experiment import check_experiments, experiments_from, read_experiments
from raypid.sweep.plan import (
    MAX_TRIALS,
    PLAN,
    Trial,
    begin,
    check_new,
    clear_experiment,
    experiments_in,
    plan,
    read_plan,
    write_plan,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "experiments"
Write = Callable[..., Path]
FLAT = "run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 100}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "e.yaml") -> str:
    Path(name).write_text(text)
    return name


def trials_of(text: str, name: str = "e.yaml", above: RunRequest | None = None) -> list[Trial]:
    experiments = read_experiments(written(text, name), above)
    check_experiments(experiments)
    return [trial for experiment in experiments for trial in plan(experiment)]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: with the Ray that other tests have started, nobody would know yet what fits."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def refused(text: str, name: str = "e.yaml") -> str:
    with pytest.raises(UserError) as error:
        trials_of(text, name)
    said = str(error.value)
    assert "\n" not in said and not Path("runs").exists()
    return said


DOCUMENT: dict[str, Any] = {
    "cartpole-ppo": {
        "run": "PPO",
        "env": "CartPole-v0",
        "resources": {"cpu": 2, "driver_cpu_limit": 1},
        "stop": {"episode_reward_mean": 200, "time_total_s": 180},
        "config": {
            "num_sgd_iter": grid_search([1, 4]),
            "num_workers": 2,
            "sgd_batchsize": grid_search([128, 256, 512]),
        },
    }
}


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on."""
    monkeypatch.setattr("raypid.sweep.plan.num_cores", lambda: 2)


def test_the_documents_example(two_cores: None) -> None:
    (experiment,) = experiments_from(DOCUMENT)
    trials = plan(experiment)
    pairs = [(t.settings["num_epochs"], t.settings["batch_size"]) for t in trials]
    assert pairs == [(1, 128), (1, 256), (1, 512), (4, 128), (4, 256), (4, 512)]
    assert trials[3].name == "trial-004-num_epochs=4,batch_size=128"
    assert trials[3].folder == Path("runs/cartpole-ppo/trial-004-num_epochs=4,batch_size=128")
    assert all(t.stop == {"episode_reward_mean": 200.0, "time_total_s": 180.0} for t in trials)
    assert all(t.resources == {"cpu": 2, "driver_cpu_limit": 1} and t.settings["seed"] == 0 for t in trials)
    assert renamed(experiment.request.settings) == [
        "num_sgd_iter is called num_epochs, sgd_batchsize is called batch_size here"
    ]


def test_yaml_json_and_a_dictionary_say_the_same(two_cores: None) -> None:
    text = (EXAMPLES / "cartpole-grid.yaml").read_text().replace("CartPole-v1", "CartPole-v0")
    from_yaml = trials_of(text)
    from_json = trials_of(json.dumps(DOCUMENT, indent="\t"), "e.json")
    assert from_yaml == from_json == plan(experiments_from(DOCUMENT)[0])


def test_three_seeds_of_two_learning_rates() -> None:
    (experiment,) = read_experiments(EXAMPLES / "cartpole-lr.yaml")
    trials = plan(experiment)
    assert [t.varied for t in trials] == [{"lr": lr, "seed": s} for s in range(3) for lr in (1e-3, 1e-4)]
    assert all(t.settings["seed"] == t.varied["seed"] for t in trials) and trials[0].name == "trial-001-lr=0.001,seed=0"


@pytest.mark.parametrize(
    ("more", "seeds"),
    [
        ("repeat: 2", [0, 1]),
        ("{repeat: 2, seed: 7}", [7, 8]),
        ("seed: [3, 1]", [3, 1]),
        ("config: {seed: {grid_search: [3, 1]}}", [3, 1]),
        ("num_samples: 2", [0, 1]),
        ("seed: [5]", [5]),
        ("{num_samples: 2, seed: 4}", [4, 5]),
        ("seed: 5", [5]),
    ],
)
def test_seeds(more: str, seeds: list[int]) -> None:
    lines = more.strip("{}").replace(", ", "\n") if more.startswith("{") else more
    experiment = read_experiments(written(FLAT + lines))[0]
    assert [t.settings["seed"] for t in plan(experiment)] == seeds
    assert experiment.is_one_run == (len(seeds) == 1)


def test_draws_are_repeated_with_each_seed_and_follow_the_first() -> None:
    text = FLAT + "repeat: 2\nnum_samples: 3\nlr: {loguniform: [1e-4, 1e-2]}\n"
    rates = [t.settings["lr"] for t in trials_of(text)]
    assert rates[:3] == rates[3:] and len(set(rates)) == 3
    assert rates == [t.settings["lr"] for t in trials_of(text)]
    assert rates != [t.settings["lr"] for t in trials_of(text + "seed: 1\n")]
    drawn = [t.settings["seed"] for t in trials_of(FLAT + "num_samples: 9\nseed: {randint: [0, 1000]}")]
    assert len(set(drawn)) > 5


def test_numbers_of_yaml_1_2_and_names_by_any_spelling() -> None:
    trials = trials_of(FLAT + "config: {num-sgd-iter: {grid_search: [1e0, 4]}, lr: 1e-3}")
    assert [(t.settings["num_epochs"], t.settings["lr"]) for t in trials] == [(1.0, 1e-3), (4, 1e-3)]
    assert [resolve_config("PPO", t.settings).to_dict()["num_epochs"] for t in trials] == [1, 4]


def test_anchors_merge_and_a_key_that_wins_is_no_duplicate() -> None:
    text = "a: &a\n  run: PPO\n  env: CartPole-v1\n  stop: {time_total_s: 1}\n  lr: 1\nb:\n  <<: *a\n  lr: 2\n"
    assert [t.settings["lr"] for t in trials_of(text)] == [1, 2]
    assert refused(text.replace("lr: 2", "lr: fast")).startswith("e.yaml:8: lr takes a number")
    assert refused(text.replace("lr: 1", "lr: fast")).startswith("e.yaml:5: lr")


def test_a_runs_params_json_is_one_run() -> None:
    params = {**resolve_config("PPO", {"env": "CartPole-v1", "lr": 0.5, "seed": 3}).to_dict(), "run": "PPO", "stop": {}}
    (one,) = read_experiments(written(json.dumps(params), "params.json"))
    assert (
        one.is_one_run and one.seeds == (3,) and one.settings["lr"] == 0.5 and one.settings["model.memory_size"] == 64
    )


def test_a_folder_for_all_experiments() -> None:
    text = FLAT + "checkpoint_interval: 5\nlocal_dir: results\nresources: {cpu: 1}\nrepeat: 2\n"
    trial = trials_of(text)[0]
    assert trial.options == {"checkpoint_interval": 5} and trial.resources == {"cpu": 1}
    assert trial.folder == Path("results/e/trial-001-seed=0")


def test_what_the_command_line_says_wins() -> None:
    above = RunRequest(
        settings={"lr": 0.5, "env": "Acrobot-v1"},
        stop={"time_total_s": 1},
        out=Path("x"),
        options={"final_episodes": 0},
    )
    trial = trials_of(FLAT + "repeat: 2\nconfig: {lr: 1, gamma: 0.5}\nfinal_episodes: 3", above=above)[0]
    assert trial.settings == {"lr": 0.5, "env": "Acrobot-v1", "gamma": 0.5, "seed": 0} and trial.stop == {
        "time_total_s": 1
    }
    assert trial.folder == Path("x/trial-001-seed=0") and trial.options == {"final_episodes": 0}
    with pytest.raises(UserError, match=r"e.yaml:4: lr varies here, and --lr fixes it"):
        trials_of(FLAT + "lr: {grid_search: [1, 2]}", above=above)
    two = "a: {run: PPO, env: CartPole-v1, stop: {time_total_s: 1}}\nb: {run: A2C, env: CartPole-v1, stop: {time_total_s: 1}}\n"
    assert [t.folder.parent for t in trials_of(two, above=above)] == [Path("x/a"), Path("x/b")]
    with pytest.raises(UserError, match="--run A2C is not what the experiment 'a' runs"):
        trials_of(two, above=RunRequest(run="A2C"))
    assert trials_of(FLAT.replace("run: PPO\n", ""), above=RunRequest(run="A2C"))[0].run == "A2C"


BAD = [
    (FLAT + "lrr: 1", "e.yaml:4: Unknown setting 'lrr'. Did you mean 'lr'"),
    (FLAT + "confg: {lr: 1}", "e.yaml:4: Unknown setting 'confg'. Did you mean 'config'"),
    (FLAT + "config:\n  lrr: {grid_search: [1]}", "e.yaml:5: Unknown setting 'lrr'. Did you mean 'lr'"),
    (FLAT + "config:\n  grad_clip: 1", "e.yaml:5: Unknown setting 'grad_clip'. docs/coming-from/"),
    (FLAT + "model:\n  hiden: [1]", "e.yaml:5: Unknown setting 'model.hiden'. Did you mean 'model.hidden'"),
    (FLAT + "config: {run: PPO}", "e.yaml:4: run stands here twice, as run and as config.run"),
    (FLAT + "config: {num_samples: 3}", "e.yaml:4: num_samples stands within config, and belongs beside it"),
    (FLAT + "lr: {grid_search: []}", "e.yaml:4: lr: grid_search takes a list of values such as [1, 4], not []"),
    (FLAT + "lr:\n  grid_search:\n  - 1\n  - fast", "e.yaml:4: trial-002-lr=fast: lr takes a number, not 'fast'"),
    (FLAT + "lr: {grid_search: [1, -1]}", "e.yaml:4: trial-002-lr=-1: lr must be above 0"),
    (FLAT + "lr: {uniform: [2, 1]}", "e.yaml:4: lr: uniform takes the numbers [low, high], low < high, not [2, 1]"),
    (FLAT + "lr: {gridsearch: [2, 1]}", "(dict). Did you mean {grid_search: [...]}?"),
    (FLAT + "num_sgd_iter: 1\nnum_epochs: 2", "e.yaml:5: num_epochs stands here twice, as num_sgd_iter and as num_epochs"),
    (FLAT + "lr: 1\nconfig: {lr: 2}", "e.yaml:5: lr stands here twice, as lr and as config.lr"),
    (FLAT + "lr: 1\nlr: 2", "e.yaml:5: 'lr' stands here twice, first in line 4"),
    (FLAT + "lr: .nan", "e.yaml:4: lr must be above 0 and finite, not nan"),
    (FLAT + "config: 3", "e.yaml:4: config takes a mapping"),
    (FLAT + "config:\n\tlr: 3", "e.yaml:5: this is not YAML: found character '\\t'"),
    (FLAT + "config: {lr: 3", "this is not YAML"),
    (FLAT + "config: !!python/object:os.system x", "e.yaml:4: this is not YAML"),
    (FLAT + "1: 2", "e.yaml:4: a name is text, which '1' is not"),
    (FLAT + "---\na: 1", "e.yaml:4: this is not YAML"),
    ("- 1", "e.yaml holds [1]; it must hold a mapping"),
    ("", "e.yaml is empty; it must hold a mapping"),
    ("a: &a [*a]", "more than 100 deep"),
    ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(f"{c}: &{c} [{','.join(['*' + p] * 10)}]\n" for p, c in zip("abcdef", "bcdefg")),
     "more than 1,000,000"),
    (FLAT.replace("PPO", "PPOO"), "e.yaml:1: Unknown algorithm 'PPOO'. Did you mean 'PPO'"),
    (FLAT.replace("run: PPO\n", ""), "e.yaml:1: Name the algorithm, run: PPO"),
    (FLAT.replace("run: PPO", "run: {grid_search: [PPO, A2C]}"), "e.yaml:1: Name the algorithm, run: PPO; of several, each has an experiment"),
    (FLAT.replace("env: CartPole-v1\n", ""), "e.yaml:1: Name the environment"),
    (FLAT.replace("CartPole", "CartPol"), "e.yaml:2: Unknown environment 'CartPol-v1'. Did you mean 'CartPole-v1'"),
    (FLAT.replace("CartPole-v1", "{grid_search: [CartPole-v1, CartPol-v1]}"), "e.yaml:2: trial-002-env=CartPol-v1: Unknown environment"),
    (FLAT.replace("PPO", "DQN").replace("CartPole", "Pendulum"), "e.yaml:2: This algorithm takes one Discrete action"),
    (FLAT + "reward_scale: 2\nnormalize_rewards: {grid_search: [false, true]}", "trial-002-normalize_rewards=true: reward_scale has no effect"),
    (FLAT.replace("timesteps_total", "\n  timesteps_totl").replace("{", "").replace("}", ""), "e.yaml:4: Unknown stop criterion 'timesteps_totl'"),
    (FLAT.replace("100", "soon"), "e.yaml:3: The stop criterion 'timesteps_total' takes a number"),
    (FLAT.replace("stop: {timesteps_total: 100}\n", ""), "e.yaml:1: 'e' has no stop criterion"),
    (FLAT + "repeat: 0", "e.yaml:4: repeat must be at least 1"),
    (FLAT + "repeat: 2\nseed: [1, 2]", "e.yaml:4: repeat asks for several seeds, and seed says which they are"),
    (FLAT + "seed: [1, 1]", "e.yaml:4: seed takes whole numbers of at least 0, at least one and none twice, not [1, 1]"),
    (FLAT + "seed: [-1]", "e.yaml:4: seed takes whole numbers of at least 0"),
    (FLAT + "num_samples: 2\nrepeat: 2", "e.yaml:4: Nothing is drawn here"),
    (FLAT + "num_samples: 20000", f"e.yaml:1: 'e' has 20,000 trials (20,000 seeds), and at most {MAX_TRIALS:,}"),
    (FLAT + "resources: {cpus: 2}", "e.yaml:4: In 'resources': Unknown setting 'cpus'. Did you mean 'cpu'"),
    (FLAT + "resources: {cpu: 1, driver_cpu_limit: 2}", "e.yaml:4: resources.driver_cpu_limit 2 is a part of cpu"),
    (FLAT + "resources: {cpu: 1}\nnum_workers: 2\nnum_cpus_per_worker: 1", "2 CPUs (num_workers 2, num_learners 0), but resources has cpu 1"),
    (FLAT + "num_workers: {grid_search: [0, 9999]}", "e.yaml:4: trial-002-num_workers=9999: A trial takes at least 9999 CPUs"),
    (FLAT + "num_gpus: 99", "A trial takes at least 99 GPUs (num_gpus)"),
    (FLAT + "out: ''", "e.yaml:4: out is empty"),
    (FLAT + "max_concurrent: 0", "e.yaml:4: max_concurrent must be at least 1"),
    (FLAT + "tuned: 3", "e.yaml:4: tuned takes true or false or text"),
    (FLAT + "tuned: nosuch", "e.yaml:4: There are no tuned settings called 'nosuch'"),
    (FLAT.replace("CartPole", "Acrobot") + "tuned: true", "e.yaml:4: There are no tuned settings for PPO on Acrobot-v1"),
    (FLAT.replace("CartPole-v1", "[CartPole-v1, Nope-v1]"),
     "e.yaml:2: env takes one environment, not ['CartPole-v1', 'Nope-v1']. To try each of them, write env: {grid_search: [...]}"),
    (FLAT + "lr: [1e-3, 1e-4]", "To try each of them, write lr: {grid_search: [...]}"),
    (FLAT + "lr: {grid_search: [1e-3, 0.001]}", "e.yaml:4: lr: grid_search has 0.001 twice"),
    (FLAT + "model: {hidden: {grid_search: [[8], [9], [8]]}}", "e.yaml:4: model.hidden: grid_search has [8] twice"),
    (FLAT + "lrr: 1\ncheckpoint_freq: 1", "e.yaml:4: Unknown setting 'lrr'. Did you mean 'lr'? 'checkpoint_freq' is 'checkpoint_interval' here."),
    (FLAT.replace("100", "-5"), "e.yaml:3: The stop criterion 'timesteps_total' takes a number above 0, not -5"),
    (FLAT + "fit: true\nrepeat: 2\nnum_workers: 9999", "it would never start. Give it less"),
    ("a: {run: PPO}\nb: 3", "e.yaml:2: 'b' is neither a key of an experiment"),
    ("a/b: {run: PPO}", "e.yaml:1: The name of an experiment is that of its folder"),
    ("..: {run: PPO}", "The name of an experiment"),
    ("".join(f"{n}: {{run: PPO, env: CartPole-v1, out: {p}, stop: {{time_total_s: 1}}}}\n" for n, p in (("a", "x"), ("b", "x/y"))),
     "e.yaml:2: x/y is, or lies in, the folder of 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD, ids=[re.sub(r"\W+", "-", words)[:60] for _, words in BAD])
def test_what_is_wrong_is_said_with_file_and_line(text: str, words: str) -> None:
    assert words in refused(text)


def test_bad_json_says_the_line_and_bad_files_what_they_are() -> None:
    assert refused('{"run": "PPO",\n "env": }', "e.json").startswith("e.json:2: this is not JSON")
    assert refused('{"run": "PPO",\n "run": "A2C"}', "e.json").startswith("e.json:2: 'run' stands here twice")
    assert refused('{\n\t"run": "PPO",\n\t"lrr": 1}', "e.json").startswith("e.json:3: Unknown setting 'lrr'")
    Path("e.bin").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("e.bin", "e.bin cannot be read: .*utf-8"),
        ("nowhere.yaml", "no file 'nowhere.yaml'"),
        (".", "is a folder"),
    ):
        with pytest.raises(UserError, match=words):
            read_experiments(name)


def test_a_dictionary_names_the_experiment_and_no_file() -> None:
    for bad in ({}, [], {"a": 3}, {1: {}}, {"a": {"run": "PPO", 3: 4}}):
        with pytest.raises(UserError) as error:
            experiments_from(bad)  # type: ignore[arg-type]
        assert "line" not in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="Experiment 'a': lr: grid_search takes a list of values"):
        experiments_from({"a": {"run": "PPO", "env": "CartPole-v1", "lr": grid_search([])}})


def saved_search(settings: dict[str, object]) -> str:
    """The file of a search's settings."""
    entry = {"format": 1, "algorithm": "PPO", "env": "Acrobot-v1", "settings": settings}
    return written(json.dumps(entry), "best.json")


def test_what_a_search_has_found_lies_below_and_in_the_plan() -> None:
    """So that it goes on where nobody has that search."""
    text = FLAT.replace("CartPole", "Acrobot") + "lr: {grid_search: [1, 2]}\n"
    name = saved_search({"gamma": 0.5, "lr": 3.0})
    for trials in (trials_of(text, above=RunRequest(tuned=name)), trials_of(text + f"tuned: {name}")):
        assert [dict(t.below) for t in trials] == [{"gamma": 0.5, "lr": 3.0}] * 2
        assert [t.settings["lr"] for t in trials] == [1, 2] and "gamma" not in trials[0].settings
        write_plan(Path("planned"), trials)
        assert [t.below for t in read_plan(Path("planned"))[0]] == [t.below for t in trials]
    saved_search({"lrr": 1})
    assert "lrr" in refused(text + f"tuned: {name}")


def test_all_plans_are_there_before_the_first_trial() -> None:
    text = "b: {run: PPO, env: CartPole-v1, stop: {time_total_s: 1}}\na: {run: A2C, env: CartPole-v1, stop: {time_total_s: 1}}\n"
    experiments = read_experiments(written(text), RunRequest(out=Path("x")))
    begin([(experiment, plan(experiment)) for experiment in experiments], overwrite=False)
    assert [read_plan(out)[0][0].run for out in experiments_in(Path("x"))] == ["PPO", "A2C"]
    assert experiments_in(Path("x/a")) == [Path("x/a")] and experiments_in(Path("nowhere")) == []


def test_run_may_be_a_class() -> None:
    block = {"env": "CartPole-v1", "stop": {"time_total_s": 1}}
    for run in (raypid.A2C, "A2C", A2C):
        assert experiments_from({"x": {"run": run, **block}})[0].request.run == "A2C"
    with pytest.raises(UserError, match="Experiment 'x': An algorithm is a name or a class"):
        experiments_from({"x": {"run": 3, **block}})


class Broken(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        raise RuntimeError("no display")


def test_an_environment_that_raises_is_shown_with_its_traceback_and_the_line() -> None:
    with pytest.raises(UserError) as error:
        trials_of(FLAT.replace("CartPole-v1", f"{__name__}:Broken"))
    *traceback, last = str(error.value).splitlines()
    assert "no display" in "\n".join(traceback) and last.startswith(
        f"raypid: e.yaml:2: Environment '{__name__}:Broken'"
    )
    assert getattr(error.value, "has_traceback", False)


def test_names_are_safe_short_and_unique() -> None:
    text = (
        FLAT
        + "model: {hidden: {grid_search: [[64, 64], [8]]}, activation: {choice: [tanh]}}\nnum_samples: 2\nseed: [0, 1]\n"
    )
    trials = trials_of(text + "evaluation_env: {grid_search: ['gymnasium.envs.classic_control:CartPoleEnv']}\n")
    assert len({t.name for t in trials}) == len(trials) == 8
    assert all(re.fullmatch(r"[\w.=,+-]{1,80}", t.name) for t in trials)
    assert trials[0].name.startswith("trial-001-") and "hidden=64x64" in trials[0].name


def test_a_linear_schedule_ends_with_the_run() -> None:
    trials = trials_of(FLAT + "lr_schedule: {grid_search: [linear, constant]}")
    assert [t.settings["lr_schedule"] for t in trials] == ["linear", "constant"]
    with pytest.raises(UserError, match="lr_schedule linear must know where it ends"):
        trials_of(FLAT.replace("timesteps_total", "time_total_s") + "lr_schedule: linear")


class Mine(gymnasium.Wrapper):  # type: ignore[type-arg]
    def __init__(self, **settings: Any) -> None:
        super().__init__(gymnasium.make("CartPole-v1", **settings))


def test_the_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    (experiment,) = experiments_from(
        {
            "a": {
                "run": "PPO", "env": Mine, "stop": {"time_total_s": 1}, "max_grad_norm": float("inf"), "repeat": 2,
                "config": {"lr": {"loguniform": [1e-5, 1e-2]}}, "population": {"interval": 1000, "factors": [0.5, 2]},
            }
        }
    )  # fmt: skip
    trials = plan(experiment)
    out = tmp_path / "moved"
    write_plan(out, trials, experiment.population)
    again, population = read_plan(out)
    assert population == experiment.population and population is not None and population.factors == (0.5, 2)
    assert [t.folder for t in again] == [out / t.name for t in trials]
    assert [(t.name, t.stop, t.varied, t.options) for t in again] == [
        (t.name, t.stop, t.varied, t.options) for t in trials
    ]
    assert again[0].settings == {**trials[0].settings, "env": f"{__name__}:Mine"}


def test_a_plan_is_read_strictly(tmp_path: Path) -> None:
    trials = trials_of(FLAT + "repeat: 2")
    write_plan(tmp_path, trials)
    file = tmp_path / PLAN
    good = json.loads(file.read_text())
    for change in (
        {"format": 99},
        {"trials": []},
        {"trials": [1]},
        {"trials": [good["trials"][1]]},
        *({"trials": [{**good["trials"][0], key: value}]} for key, value in (
            ("name", "../x"), ("name", "trial-001/../../x"), ("index", True), ("settings", []), ("stop", {"a": "b"}),
            ("stop", {"a": 1e999}), ("options", {"keep": 1}), ("resources", {"ram": 1}), ("folder", "/tmp"), ("tuned", 1),
        )),
    ):  # fmt: skip
        file.write_text(json.dumps({**good, **change}))
        with pytest.raises(UserError, match=f"{PLAN} is damaged"):
            read_plan(tmp_path)
    for text in ("", "{", "[]", "\x00"):
        file.write_text(text)
        with pytest.raises(UserError, match="is damaged"):
            read_plan(tmp_path)
    file.unlink()
    with pytest.raises(UserError, match="holds no experiment"):
        read_plan(tmp_path)


def test_what_somebody_elses_plan_names_is_not_imported(tmp_path: Path) -> None:
    write_plan(tmp_path, trials_of(FLAT + "repeat: 2"))
    file = tmp_path / PLAN
    text = file.read_text()
    file.write_text(text.replace("CartPole-v1", "subprocess:run"))
    with pytest.raises(UntrustedError, match="subprocess:run"):
        read_plan(tmp_path)
    assert read_plan(tmp_path, trust=True)[0][0].settings["env"] == "subprocess:run"
    file.write_text(text)
    assert read_plan(tmp_path)


def test_an_experiments_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    check_new(out, overwrite=False)
    trials = trials_of(FLAT + "repeat: 2", above=RunRequest(out=out))
    write_plan(out, trials)
    trials[0].folder.mkdir()
    check_new(out, overwrite=False)  # no trial has begun
    (trials[0].folder / "result.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds an experiment. Resume it .*overwrite=True"):
        check_new(out, overwrite=False)
    with lock_folder(out), pytest.raises(UserError, match="Another run is writing"):
        check_new(out, overwrite=True)
    trials[1].folder.mkdir()
    (trials[1].folder / "notes.txt").write_text("mine")
    check_new(out, overwrite=True)
    clear_experiment(out)
    assert [str(p.relative_to(out)) for p in out.rglob("*")] == [trials[1].name, f"{trials[1].name}/notes.txt"]
    with pytest.raises(UserError, match="is not empty and holds no experiment"):
        check_new(out, overwrite=True)
