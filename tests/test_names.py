"""Names of other libraries work, or are answered with ours: every row of docs/names.md, and what the rows do not show."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import shlex
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import raypid
from raypid import names, stops, types
from raypid.algorithms import minibatches, off_policy, ppo, r2d2
from raypid.cli import main
from raypid.cli.train import SAME_AS_STOP
from raypid.config import (
    ALIASES,
    ELSEWHERE,
    OWN_ALIASES,
    ConfigError,
    ModelConfig,
    canonical,
    known_as,
    renamed,
    type_hints,
)
from raypid.errors import UserError
from raypid.outcome import NoSuchResult, Outcome, Result
from raypid.registry import ALGORITHMS, ENVS
from raypid.roles.evaluator import Evaluation

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "names.md").read_text()
ROWS = re.findall(r"^\| (.*?) \| (works|answered) \| (.*?) ?\| `(.*)` \|$", PAGE, re.MULTILINE)
KNOWN = {"raypid": raypid, "names": names, "ppo": ppo, "stops": stops, "gymnasium": gymnasium, "inspect": inspect}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for all rows: some go on with the run of an earlier one. What they register is forgotten."""
    before = dict(ENVS._entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("names"))
        yield
    ENVS._entries = before


def test_the_page_has_no_row_that_is_not_run() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| name")]
    assert len(lines) == len(ROWS) > 70


@pytest.mark.parametrize(("name", "kind", "here", "example"), ROWS, ids=[row[0].replace("`", "") for row in ROWS])
def test_the_page_says_what_happens(name: str, kind: str, here: str, example: str, capsys: Any) -> None:
    if kind == "answered" and "`" in name:
        word = re.findall(r"`.*?([\w-]+)`", name)[0].strip("-")
        assert word.replace("-", "_") in example.replace("-", "_"), "the example shows the name"
    if not example.startswith("raypid "):
        if kind == "works":
            assert eval(example, dict(KNOWN))
            return
        with pytest.raises((AttributeError, UserError, TypeError, NoSuchResult)) as error:
            eval(example, dict(KNOWN))
        said = str(error.value)
    else:
        try:
            words = shlex.split(example)[1:]
            dry = (
                ["--explain"] if kind == "answered" and words[0] == "train" else []
            )  # what is accepted would train on and on
            code = main([*words, *dry])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr().err
        assert code == (0 if kind == "works" else 2), said
        assert said.count("\n") <= 1
    assert kind == "works" or here.replace("`", "") in said.replace("`", ""), said


def test_every_answer_stands_on_the_page() -> None:
    """And what is answered is not the name of something here."""
    answers = (
        names.SETTINGS,
        names.OPTIONS,
        names.ATTRIBUTES,
        names.METHODS,
        names.ALGORITHMS,
        names.STOPS_ANSWERED,
        names.KEYWORDS,
        names.VALUES,
        *names.ROLE_METHODS.values(),
        *names.FIELDS.values(),
        names.RESULTS,
    )
    for name, sentence in (item for group in answers for item in group.items()):
        assert sentence in PAGE or sentence.replace("`", "") in PAGE, name
    for name in names.COMMANDS.keys() - names.SAME_COMMANDS.keys():
        assert f"`raypid {name}`" in PAGE
    for name in (*names.ATTRIBUTES, "nosuch"):
        assert not hasattr(raypid, name)
    assert not ALIASES.keys() & {*names.SETTINGS, *ELSEWHERE} and not names.SETTINGS.keys() & ELSEWHERE.keys()


@pytest.fixture(scope="module")
def agent() -> Any:
    with raypid.PPO("CartPole-v1", fragment_length=8) as agent:
        yield agent


def test_each_name_of_a_row_is_answered(agent: Any) -> None:
    """A row's example shows one of its names."""
    for name, told in names.ATTRIBUTES.items():
        with pytest.raises(AttributeError, match=re.escape(told)):
            getattr(raypid, name)
    for name, told in names.METHODS.items():
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}. {told}")):
            getattr(raypid.PPO, name)
        if name != "learn":
            with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}. {told}")):
                getattr(agent, name)
    for name in (*names.SETTINGS, *ELSEWHERE):
        told = known_as(name, type_hints(ppo.PPOConfig))
        assert told or name in type_hints(ppo.PPOConfig), name


def test_learn_keeps_the_number_and_answers_its_arguments(agent: Any) -> None:
    with pytest.raises(
        UserError, match=r"fit\(total_timesteps=25000\) trains until 25000 steps.* callback: Callbacks are"
    ):
        agent.learn(25_000, callback=None)
    with pytest.raises(UserError, match=r"fit\(total_timesteps=N\)"):
        agent.learn()


def test_a_setting_that_is_asked_of_an_agent_is_found_in_its_config(agent: Any) -> None:
    for name, ours in {"learning_rate": "lr", "gamma": "gamma", "n_envs": "num_envs_per_worker"}.items():
        with pytest.raises(AttributeError, match=f"It is a setting: config.{ours}."):
            getattr(agent, name)
        assert hasattr(agent.config, ours)
    with pytest.raises(AttributeError, match="Only algorithms that learn from replay"):
        _ = agent.buffer_size


def test_a_policy_says_what_only_an_agent_has(agent: Any) -> None:
    with pytest.raises(AttributeError, match=r"'predict'. act\(obs\) returns"):
        agent.policy.predict([0.0] * 4)
    with pytest.raises(AttributeError, match=r"A policy acts, and no more; of an agent: fit\(total_timesteps=N\)"):
        agent.policy.learn(10)
    with pytest.raises(ConfigError, match="act takes no 'deterministic'.*explore=True"):
        agent.policy.act([0.0] * 4, deterministic=False)


@pytest.mark.parametrize("name", ["callback", "Algorithm", "evaluation_", "resourcez", "flearn"])
def test_no_name_is_suggested_that_is_only_spelt_alike(agent: Any, name: str) -> None:
    """`callback` was answered by `fall_back`, `resources` by `restore`."""
    with pytest.raises(AttributeError) as error:
        getattr(agent, name)
    assert "Did you mean" not in str(error.value)
    with pytest.raises(AttributeError, match="Did you mean 'train'"):
        _ = agent.trainn


def test_a_note_tells_that_action_noise_is_not_exploration() -> None:
    for algorithm, noted in (("TD3", True), ("DDPG", True), ("SAC", True), ("PPO", False)):
        with getattr(raypid, algorithm)("Pendulum-v1", action_noise=0.1) as made:
            assert (names.NOT_EXPLORATION in made.notes) == noted
    with raypid.TD3("Pendulum-v1", action_noise=0) as made:
        assert not made.notes


def test_an_environment_that_exists_is_answered_with_what_makes_one() -> None:
    class Mine(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

    with pytest.raises(UserError, match=r"Give the class, env=Mine, or a function that makes it, env=lambda: Mine\("):
        raypid.PPO(env=gymnasium.wrappers.TimeLimit(Mine(), 9))
    with pytest.raises(UserError, match="Give its id, env='CartPole-v1'"):
        raypid.PPO(gymnasium.make_vec("CartPole-v1"))


def test_settings_answer_attributes_of_a_builder() -> None:
    for name in names.BUILDER:
        with pytest.raises(AttributeError, match=re.escape(names.BUILT)):
            getattr(ppo.PPOConfig(), name)
    assert not hasattr(ppo.PPOConfig(), "nosuch")


def test_a_from_import_keeps_the_answer() -> None:
    """`from package import name` drops what an AttributeError says."""
    with pytest.raises(ImportError, match=r"raypid has no 'run_experiments'. It is raypid.tune.run_experiments"):
        exec("from raypid import run_experiments")
    with pytest.raises(ImportError, match="cannot import name 'nosuch'"):
        exec("from raypid import nosuch")


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_has_its_agent_and_its_module_a_default_config(name: str) -> None:
    if ALGORITHMS.get(name).__module__.startswith("raypid.") and name not in ("APPO", "IMPALA"):
        assert getattr(raypid, f"{name}Agent") is getattr(raypid, name) and f"{name}Agent" in dir(raypid)
    module = sys.modules[ALGORITHMS.get(name).__module__]
    assert getattr(module, f"{name}Agent") is getattr(raypid, f"{name}Agent")
    main_one = {"es": "ES", "dqn": "DQN", "impala": "IMPALA", "td3": "TD3"}.get(
        module.__name__.rpartition(".")[2], name
    )
    assert module.DEFAULT_CONFIG == getattr(raypid, main_one).DEFAULT_CONFIG
    module.DEFAULT_CONFIG["model"]["hidden"] = None
    assert module.DEFAULT_CONFIG == ALGORITHMS.get(main_one).Config().to_dict()
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'NosuchAgent'"):
        _ = module.NosuchAgent


def test_distributed_agents_keep_their_names() -> None:
    for cls in (raypid.IMPALAAgent, raypid.APPOAgent):
        assert issubclass(cls, raypid.DistributedAgent) and "as a DistributedAgent" in str(cls.__doc__)


def test_a_default_config_costs_no_import_time() -> None:
    code = "import sys, raypid.algorithms.ppo as ppo; assert 'DEFAULT_CONFIG' not in vars(ppo); assert 'raypid.agents' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_another_name_counts_where_ours_is_left_alone() -> None:
    """As in a copy of DEFAULT_CONFIG, which has all settings by our names."""
    config = {**ppo.DEFAULT_CONFIG, "num_sgd_iter": 3}
    assert ppo.PPOConfig.from_dict(config).num_epochs == 3
    assert ppo.PPOConfig.from_dict(dict(reversed(config.items()))).num_epochs == 3
    for several in ({"num_epochs": 4, "num_sgd_iter": 3}, {"num-epochs": 4, "num-sgd-iter": 3}):
        with pytest.raises(ConfigError, match="'num_sgd_iter' and 'num_epochs' are the same setting"):
            ppo.PPOConfig.from_dict(several)


def test_keywords_flags_and_settings_above_win_by_any_name(tmp_path: Path) -> None:
    with raypid.PPO({"num_epochs": 3, "sgd_batchsize": 64}, env="CartPole-v1", num_sgd_iter=2, batch_size=32) as agent:
        assert (agent.config.num_epochs, agent.config.batch_size) == (2, 32)
        assert agent.notes == ["num_sgd_iter is called num_epochs here"]
    command = [
        "train",
        "--run",
        "PPO",
        "--env",
        "CartPole-v1",
        "--fragment-length",
        "8",
        "--quiet",
        "--out",
        str(tmp_path),
    ]
    more = [
        "--overwrite",
        "--stop",
        '{"training_iteration": 1}',
        "--config",
        '{"num_sgd_iter": 7}',
        "--num-epochs",
        "2",
    ]
    assert main([*command, *more]) == 0
    assert '"num_epochs": 2' in (tmp_path / "params.json").read_text()


@pytest.mark.parametrize("name", [name for name in ALIASES if name not in OWN_ALIASES])
def test_what_means_the_same_is_accepted_and_shown(name: str) -> None:
    """By each algorithm that has the setting, and by no other; as a value, within a file's text, and with `-`."""
    ours = ALIASES[name]
    assert f"`{name}`" in PAGE and (f"`{ours}`" in PAGE or ours == "clip")
    for algorithm in ("PPO", "A2C", "SAC", "DQN", "ES"):
        config = ALGORITHMS.get(algorithm).Config()
        has = ours.partition(".")[0] in config.to_dict()
        refused = (name == "n_steps" and hasattr(config, "n_step")) or (name, algorithm) == ("policy_frequency", "SAC")
        if not has or refused:
            with pytest.raises(ConfigError, match=name):
                config.replace({name: 1})
            continue
        value = attrgetter(ours)(config)
        for given in (name, name.replace("_", "-"), f"model.{name}" if ours.startswith("model.") else name):
            assert config.replace({given: value}) == config
        assert renamed({name: value}) == [f"{name} is called {ours} here"]


def test_a_name_that_would_mean_something_else_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="n_envs counts the environments of all workers"):
        ppo.PPOConfig.from_dict({"n_envs": 8, "num_workers": 2})
    assert ppo.PPOConfig.from_dict({"n_envs": 4, "num_workers": 1}).num_envs_per_worker == 4
    with pytest.raises(ConfigError, match="n_steps is n_step here"):
        ALGORITHMS.get("DQN").Config.from_dict({"n_steps": 3})
    with pytest.raises(ConfigError, match="minibatch_size counts the rows of each learner"):
        ppo.PPOConfig.from_dict({"minibatch_size": 64, "num_learners": 2})
    assert ppo.PPOConfig.from_dict({"minibatch_size": 64, "num_learners": 1}).batch_size == 64
    with pytest.raises(ConfigError, match="CleanRL's SAC skips policy updates and catches up"):
        ALGORITHMS.get("SAC").Config.from_dict({"policy_frequency": 2})
    assert ALGORITHMS.get("TD3").Config.from_dict({"policy_frequency": 3}).policy_delay == 3


def test_a_file_refuses_them_too(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "rllib.yml"
    file.write_text("run: PPO\nenv: CartPole-v1\nconfig: {minibatch_size: 64, num_learners: 2, num_workers: 2}\n")
    assert main(["train", "-f", str(file), "--dry-run"]) == 2
    assert "minibatch_size counts the rows of each learner" in capsys.readouterr().err


def test_a_near_name_is_not_taken_for_what_it_is_not() -> None:
    """`q_lr`, `alpha_lr` and `act_noise` were answered by the setting that is spelt most like them."""
    assert ALGORITHMS.get("SAC").Config.from_dict({"q_lr": 0.01}).lr_critic == 0.01
    for name, told in (
        ("alpha_lr", "lr is the learning rate of the policy"),
        ("act_noise", "exploration_noise is the deviation"),
    ):
        with pytest.raises(ConfigError, match=told):
            ALGORITHMS.get("SAC").Config.from_dict({name: 0.1})


def names_of(page: str) -> list[tuple[str, str, str]]:
    """(name, here, note) of each setting and option in the tables of a page for those who come from another library."""
    found, title = [], ""
    for line in (ROOT / "docs" / "coming-from" / page).read_text().splitlines():
        title = line if line.startswith("#") else title
        cells = re.split(r" \| ", line.strip("| "))
        if (
            re.search(r"Settings|Arguments|networks$|`\.\w+`|command line", title)
            and len(cells) >= 2
            and cells[0] != "there"
        ):
            for given in re.findall(r"`([^`]+)`", cells[0]):
                if word := re.fullmatch(r"((?:--)?[a-z]\w*(?:-\w+)*)(?:[ =].*)?", given):
                    found.append((word[1], cells[1], cells[2] if len(cells) > 2 else ""))
    return found


OTHERS_OWN = {"make_vec_env", "python", "rl_zoo3", "hyperparams/ppo.yml", "all_plots", "plot_from_file", "rllib"}
"""Programs and functions in those tables, which are no settings."""


@pytest.mark.parametrize("page", ["rllib.md", "stable-baselines3.md", "cleanrl.md"])
def test_a_name_of_another_library_is_accepted_or_answered(page: str) -> None:
    """And what a page calls accepted is, as the setting that the page names."""
    configs = [ALGORITHMS.get(name).Config for name in ALGORITHMS.names()]
    hints: dict[str, object] = {name: hint for cls in configs for name, hint in type_hints(cls).items()}
    stops_too = {flag.strip("-").replace("-", "_") for flags in SAME_AS_STOP for flag in flags}
    rows = names_of(page)
    assert len(rows) > 25
    for given, here, note in rows:
        name = given.strip("-").replace("-", "_")
        ours = canonical(name)
        is_ours = ours.partition(".")[0] in hints or ours in type_hints(ModelConfig)
        if given in OTHERS_OWN or name in stops_too:
            continue
        assert is_ours or known_as(name, hints), f"{page}: {given} has no answer"
        if name in ALIASES:
            assert re.search("accepted|refused", note), f"{page}: {given} is accepted, which its note does not say"
            assert note.startswith("refused") or ALIASES[name].rpartition(".")[2] in here.replace("-", "_"), (
                f"{page}: {given} is {ALIASES[name]}"
            )
        if note.startswith("accepted"):
            assert is_ours or name in ("env_id", "total_timesteps"), f"{page}: {given} is not accepted"


def test_two_other_names_of_one_setting_must_say_the_same() -> None:
    assert ppo.PPOConfig.from_dict({"n_epochs": 3, "update_epochs": 3}).num_epochs == 3
    for several in ({"n_epochs": 4, "update_epochs": 3}, {"learning_rate": 0.1, "lr": 0.2}):
        with pytest.raises(ConfigError, match="are the same setting: give one"):
            ppo.PPOConfig.from_dict(several)


def test_all_that_is_unknown_is_said_at_once(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ConfigError) as error:
        ppo.PPOConfig.from_dict({"framework": "torch", "lrr": 1, "nosuchthing": 2, "model": {"hiden": [8]}})
    assert str(error.value) == (
        "4 unknown settings. 'framework': NumPy or PyTorch learns, as kernel says: leave it out. 'lrr': Did you mean 'lr'? "
        "'nosuchthing': nothing here is like it. In 'model': 'hiden': Did you mean 'hidden'?"
    )
    assert main(["train", "--run", "PPO", "--framework", "torch", "--lrr", "1", "--nosuchthing"]) == 2
    said = capsys.readouterr().err
    assert "3 unknown options. --framework: NumPy" in said and "--lrr: Did you mean --lr?" in said
    file = tmp_path / "rllib.yml"
    settings = "framework: torch, num_sgd_iter: 4, kl_coeff: 1, model: {fcnet_hiddens: [8], nosuch: 1, fcnet_activation: linear}"
    file.write_text(f"cart:\n  run: PPO\n  env: CartPole-v1\n  config: {{{settings}}}\n")
    assert main(["train", "-f", str(file), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert (
        "3 unknown settings. Line 4, 'framework': " in said and "'kl_coeff': PPO clips" in said and "'nosuch'" in said
    )
    file.write_text(
        file.read_text().replace("framework: torch, ", "n_envs: 4, num_workers: 2, ").replace("kl_coeff: 1, ", "")
    )
    file.write_text(file.read_text().replace("nosuch: 1, fcnet_activation: linear", "fcnet_activation: relu"))
    assert main(["train", "-f", str(file), "--dry-run"]) == 2
    assert "n_envs counts the environments of all workers" in capsys.readouterr().err


def test_a_file_of_rl_zoo_is_answered(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text("CartPole-v1:\n  n_envs: 8\n  n_timesteps: !!float 1e5\n  policy: MlpPolicy\n")
    for option in ("-f", "--config"):
        assert main(["train", "--run", "PPO", option, str(file)]) == 2
        said = capsys.readouterr().err
        assert "looks like RL-Zoo's" in said and "CartPole-v1: {run: PPO, env: CartPole-v1" in said


def test_the_registry_shows_what_this_process_knows() -> None:
    registry = raypid.get_registry()
    assert registry is raypid.get_registry() and registry.algorithms is ALGORITHMS and "PPO" in registry.algorithms
    raypid.register_env("shown", lambda: gymnasium.make("CartPole-v1"))
    assert "shown" in registry.envs and "lstm" in registry.networks.names()


def test_a_setting_by_another_name_cannot_be_set_for_nothing() -> None:
    config: Any = ppo.PPOConfig()
    config.lr = 0.5
    with pytest.raises(AttributeError, match="'num_env_runners'. It is called num_workers here"):
        config.num_env_runners = 2
    assert config.lr == 0.5 and config.replace({"lr": 0.1}).lr == 0.1


def test_a_class_of_algorithms_that_gets_what_an_agent_gets_names_the_agent() -> None:
    algorithm: Any = ppo.PPO
    for call in (lambda: algorithm("CartPole-v1"), lambda: algorithm(env="CartPole-v1"), lambda: algorithm({})):
        with pytest.raises(UserError, match="Its agent is raypid.PPO: from raypid import PPO"):
            call()


NEAR: dict[str, tuple[str, dict[str, Any], str]] = {  # what is set by a wrong name, or to what is none of its values
    "of the network": ("PPO", {"hidden": [64]}, "Here it is called 'model.hidden'"),
    "an alias, nearly": ("PPO", {"n_env": 4}, "Did you mean 'num_envs_per_worker'"),
    "an alias with a slip": ("PPO", {"learnng_rate": 0.1}, "Did you mean 'lr'"),
    "an argument of learn, nearly": ("PPO", {"total_timestep": 9}, "Did you mean 'total_timesteps'"),
    "steps for an update": ("DQN", {"train_freq": 4, "gradient_steps": 1}, "Yours is a_l_ratio=4."),
    "of several environments": ("DQN", {"train_freq": 4, "gradient_steps": 2, "n_envs": 8}, "Yours is a_l_ratio=16."),
    "widths and activation": (
        "PPO",
        {"policy_kwargs": {"net_arch": [32, 16], "activation_fn": type("ReLU", (), {})}},
        "Yours is model={'activation': 'relu', 'hidden': [32, 16]}.",
    ),
    "two widths": (
        "PPO",
        {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [9]}}},
        "{'hidden': [8]}. Policy and value have the same widths",
    ),
    "another activation": (
        "PPO",
        {"policy_kwargs": {"activation_fn": type("ELU", (), {})}},
        "activation takes one of 'tanh', 'relu', 'silu', not 'elu'",
    ),
    "verbosity": ("PPO", {"verbose": 1}, "verbose 0 is --quiet, in Python fit(stop=N, quiet=True)"),
    "a rate": ("PPO", {"lrate": 1e-3}, "Here it is called 'lr'"),
    "a network by its name": ("PPO", {"model": "wide"}, "Named alone it is model={'network': 'wide'}."),
    "as many updates as steps": ("DQN", {"train_freq": 1, "gradient_steps": -1}, "for each update, of algorithms"),
}


@pytest.mark.parametrize("case", NEAR)
def test_a_name_that_is_nearly_known_is_answered(case: str) -> None:
    run, settings, told = NEAR[case]
    with pytest.raises(ConfigError, match=re.escape(told)):
        ALGORITHMS.get(run).Config().replace(settings)


DATA = (
    types.Trajectory, types.Sequences, types.Transition, types.Sample, types.Weights, types.Report, types.Gradients, types.Fitness,
    types.Update, types.Final, Evaluation, Outcome, minibatches.Batch, minibatches.Streams, off_policy.TransitionBatch, r2d2.SequenceBatch,
)  # fmt: skip


@pytest.mark.parametrize("cls", DATA)
def test_a_field_by_another_name_is_answered(cls: type) -> None:
    made: Any = object.__new__(cls)
    tables = [names.FIELDS.get(base.__name__, {}) for base in reversed(cls.__mro__)]
    for name, told in {name: told for table in tables for name, told in table.items()}.items():
        if hasattr(cls, name):  # a field of a subclass
            continue
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}. {told}")):
            getattr(made, name)
        with pytest.raises(TypeError, match=re.escape(f"is not subscriptable. Its fields are attributes. {told}")):
            _ = made[name]
    field = max(cls.__dataclass_fields__, key=len)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=f"Did you mean '{field}'"):
        getattr(made, f"{field}x")
    with pytest.raises(TypeError, match=rf"attributes: \.{field}\."):
        _ = made[field]
    with pytest.raises(TypeError, match="not iterable|unpack"):
        _, _ = made
    assert not hasattr(made, "__array__") and not hasattr(made, "nothing_like_it")


def test_data_are_copied_and_pickled_as_before() -> None:
    report = types.Report(worker_index=0, num_steps=3, version=1)
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == copy.copy(report) == report


def test_a_result_is_a_dict_that_answers_other_names(agent: Any) -> None:
    result = agent.train()
    plain = dict(result)
    assert result == plain and json.loads(json.dumps(plain)) == json.loads(json.dumps(result))
    for copied in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), copy.copy(result), result | {}):
        assert type(copied) is dict and copied.keys() == plain.keys()
    assert result.get("env_runners") is None and "env_runners" not in result
    for key, told in names.RESULTS.items():
        with pytest.raises(KeyError, match=re.escape(f"This result has no {key!r}. {told}")):
            _ = result[key]
    for key, ours in names.STOPS.items():
        with pytest.raises(KeyError) as error:
            _ = result[key]
        assert f"It is {ours}." in str(error.value) or ours.startswith("evaluation/") and "eval()" in str(error.value)
    for key, told in {
        "losses/policy_loss": "It is learner/policy_loss.", "kl": "It is learner/kl.", "episode_reward_meen": "'episode_reward_mean'",
        "explained_varience": "'learner/explained_variance'", "score": "mean return of training", "nosuch": "It has training_iteration",
        "evaluation/episode_reward_mean": "eval() evaluates now",
    }.items():  # fmt: skip
        with pytest.raises(KeyError, match=re.escape(told)):
            _ = result[key]


def test_an_evaluation_and_an_outcome_answer_too(agent: Any, tmp_path: Path) -> None:
    evaluated = agent.eval(1)
    for key, told in {"mean_reward": "episode_reward_mean", "eval/mean_reward": "episode_reward_mean"}.items():
        with pytest.raises(KeyError, match=f"It is {told}."):
            _ = evaluated[key]
    outcome = agent.fit(agent.timesteps + 8, out=tmp_path, quiet=True, final_episodes=0)
    with pytest.raises(KeyError, match="It is timesteps_total"):
        _ = outcome.result["num_env_steps_sampled_lifetime"]
    with pytest.raises(KeyError, match="It is timesteps_total"):  # of a run that was at its end
        _ = agent.fit(agent.timesteps, quiet=True).result["num_env_steps_sampled"]
    with pytest.raises(AttributeError, match="It is folder"):
        _ = outcome.path


def metrics_of(page: str) -> list[tuple[str, str]]:
    """(theirs, ours) of each metric in a page's tables for which a result has a key."""
    found = []
    ours = re.compile(
        r"`((?:learner|lost|evaluation)/\w+|episode_\w+|time_total_s|\w+_total|env_steps_per_s|training_iteration)`"
    )
    text = (ROOT / "docs" / "coming-from" / page).read_text()
    for theirs, here in re.findall(r"^\| (`.*?) \| (`.*?) \|", text, re.MULTILINE):
        given, keys = re.findall(r"`([\w/]+)`", theirs), here.split(", ")
        if len(given) == len(keys):
            found += [(name, key[1]) for name, part in zip(given, keys) if (key := ours.fullmatch(part))]
    return found


@pytest.mark.parametrize("page", ["rllib.md", "stable-baselines3.md", "cleanrl.md"])
def test_a_metric_of_another_library_is_answered(page: str) -> None:
    pairs = metrics_of(page)
    assert len(pairs) > 8
    result = Result({ours: 1.0 for _, ours in pairs})
    for theirs, ours in pairs:
        if theirs not in result:
            with pytest.raises(KeyError, match=f"It is {ours}\\.$"):
                _ = result[theirs]
