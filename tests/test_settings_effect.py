"""No setting that does nothing: changing one changes what is learnt, collected, reported or written, or it is refused.

Each case runs an algorithm twice for a few hundred steps, with and without the change. Settings that no short run can show
stand in `SHOWN_ELSEWHERE` with the test that shows them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium
import pytest
import torch

import raypid
from raypid.plugins.registry import ALGORITHMS, NETWORKS
from raypid.run.agent import Agent
from raypid.run.known_keys import known_keys
from raypid.settings.config import Config, ConfigError, ModelConfig, overlay, type_hints

ROOT = Path(__file__).parent.parent
CLOCKS = ("time_", "timing/", "env_steps_per_s")
Settings = dict[str, Any]

ON_POLICY = {
    "num_envs_per_worker": 2,
    "fragment_length": 24,
    "batch_size": 12,
    "model": {"hidden": [8]},
    "kernel": "numpy",
    "num_threads": 1,
}
REPLAY = {
    "num_envs_per_worker": 2, "fragment_length": 1, "start_steps": 16, "steps_per_iteration": 24, "batch_size": 8, "buffer_size": 40,
    "samples_per_insert": 3.0, "updates_per_call": 3, "num_threads": 1, "model": {"hidden": [8, 8]},
}  # fmt: skip
PENDULUM: Settings = {"env": "Pendulum-v1", "time_limit": 20}
CARTPOLE: Settings = {"env": "CartPole-v1"}
EVOLUTION = {
    "num_envs_per_worker": 4,
    "population": 4,
    "time_limit": 20,
    "noise_table_size": 10_000,
    "model": {"hidden": [8]},
}
FOREIGN = {"model": {"network": "foreign:Reinforce"}, "num_envs_per_worker": 2, "fragment_length": 24}
BASES: dict[str, Settings] = {
    "PPO": {**ON_POLICY, **CARTPOLE}, "A2C": {**ON_POLICY, **CARTPOLE}, "IMPALA": {**ON_POLICY, **CARTPOLE},
    "APPO": {**ON_POLICY, **CARTPOLE},
    "A3C": {k: v for k, v in ON_POLICY.items() if k != "batch_size"} | CARTPOLE,
    "CustomModel": {**FOREIGN, **CARTPOLE},
    "DQN": {**REPLAY, **CARTPOLE}, "Rainbow": {**REPLAY, **CARTPOLE}, "SQN": {**REPLAY, **CARTPOLE},
    "ApeX": {**REPLAY, **CARTPOLE, "num_workers": 0, "num_replay_shards": 0, "fragment_length": 4},
    "R2D2": {
        **REPLAY, **CARTPOLE, "fragment_length": 4, "buffer_size": 80, "sequence_length": 4, "burn_in": 2, "batch_size": 8,
        "model": {"hidden": [8], "memory_size": 4},
    },
    "SAC": {**REPLAY, **PENDULUM}, "TD3": {**REPLAY, **PENDULUM}, "DDPG": {**REPLAY, **PENDULUM},
    "ES": {**EVOLUTION, **CARTPOLE}, "ARS": {**EVOLUTION, **CARTPOLE, "model": {"hidden": []}},
}  # fmt: skip


def short_episodes(worker_index: int, stream_index: int) -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=5)


def short_swings(worker_index: int, stream_index: int) -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=5)


class Wide(torch.nn.Module):
    """A registered network with an argument."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Counted(raypid.Callbacks):
    def on_episode_end(self, info: dict[str, Any]) -> dict[str, float]:
        return {"counted": 1.0}


TWO = {"num_workers": 2, "backend": "local"}
OTHER = "another value of its type: the other truth value, another of its words"
STEPS = {"schedule_steps": 200}
LINEAR = {"lr_schedule": "linear", **STEPS}
CHANGES: dict[str, Any] = {
    "env_config": {"sutton_barto_reward": True}, "num_workers": 2, "num_envs_per_worker": 6, "seed": 4, "kernel": "torch",
    "fragment_length": 8, "batch_size": 16, "lr": 0.1, "gamma": 0.5, "reward_scale": 0.25, "reward_clip": 0.5, "frame_stack": 2,
    "action_repeat": 2, "time_limit": 7, "observation_noise": 0.1, "action_noise": 0.3, "noise_persistence": 4.0, "callbacks": Counted,
    "evaluation_interval": 1, "evaluation_env": short_episodes, "evaluation_num_episodes": 3, "evaluation_num_envs": 1,
    "max_staleness": 0,
    "steps_per_iteration": 100, "gradients_per_update": 2, "gradient_reduce": "sum",
    "gae_lambda": 0.5, "value_coef": 0.1, "entropy_coef": 0.2, "max_grad_norm": 1e-4, "optimizer": OTHER, "adam_eps": 1e-2,
    "rmsprop_eps": 0.5, "rmsprop_decay": 0.3, "momentum": 0.5, "lr_schedule": "linear", "schedule_steps": 100, "schedule_end": 0.7,
    "intrinsic_reward": "rnd", "num_epochs": 3, "clip": 1e-3, "clip_schedule": "linear", "value_clip": 1e-4, "target_kl": 1e-9, "desired_kl": 1e-9,
    "fragments_per_update": 2, "rho_clip": 0.5, "c_clip": 0.5, "target_interval": 3, "target_ratio": 0.5,
    "population": 6, "sigma": 0.3, "weight_decay": 0.5, "fitness_shaping": "normalize", "reward_shift": 2.0,
    "noise_table_size": 20_000, "top_directions": 1,
    "buffer_size": 30, "start_steps": 30, "start_episodes": 500, "samples_per_insert": 1.5, "a_l_ratio": 2.0, "n_step": 2, "priority_exponent": 0.1,
    "importance_exponent": 1.0, "importance_steps": 10, "target_tau": 0.5, "updates_per_call": 1, "noisy": 0.9, "num_atoms": 5,
    "v_min": -3.0, "v_max": 30.0, "huber": 1e-3, "epsilon_start": 0.2, "epsilon_end": 0.6, "epsilon_steps": 60,
    "worker_epsilon": 2.0, "num_critics": 3, "critic_norm": "none", "policy_delay": 3, "exploration_noise": 0.7,
    "target_noise": 0.6, "target_noise_clip": 0.01, "lr_critic": 0.03, "alpha": 0.3, "alpha_init": 0.2, "target_entropy": 9.0,
    "sequence_length": 2, "burn_in": 1, "priority_max_share": 0.1,
    "model.network": "gru", "model.hidden": [5], "model.channels": [3, 4], "model.activation": "silu", "model.memory": "lstm",
    "model.memory_size": 5, "model.shared": OTHER, "model.distribution": "squashed_gaussian", "model.log_std_init": -1.0,
    "model.custom": {"width": 5}, "model": {"hidden": [6]},
    **dict.fromkeys(
        ("normalize_observations", "normalize_rewards", "exact_resume", "normalize_advantages", "vtrace", "target_network",
         "prioritized", "save_replay", "bf16", "double", "dueling", "layer_norm", "value_rescaling"),
        OTHER,
    ),
}  # fmt: skip
"""Setting -> a value that is not its default."""
DRAWN = {"prioritized": True, "priority_exponent": 0.9, "importance_exponent": 0.4}
CONTEXTS: dict[str, Settings] = {
    "num_workers": {"backend": "local"}, "max_staleness": TWO, "fragments_per_update": TWO,
    "gradients_per_update": TWO, "gradient_reduce": {**TWO, "gradients_per_update": 2},
    "reward_scale": {"normalize_rewards": False}, "schedule_steps": LINEAR, "schedule_end": LINEAR, "clip_schedule": {"clip": 1e-3},
    "reward_clip": {"normalize_rewards": False},
    "adam_eps": {"optimizer": "adam"}, "rmsprop_eps": {"optimizer": "rmsprop"}, "rmsprop_decay": {"optimizer": "rmsprop"},
    "momentum": {"optimizer": "sgd"}, "rho_clip": {"vtrace": True}, "c_clip": {"vtrace": True, "gae_lambda": 1.0},
    "target_interval": {"target_network": True}, "target_ratio": {"target_network": True}, "target_kl": {"num_epochs": 4},
    "desired_kl": {"num_epochs": 4}, "normalize_observations": {"normalize_observations": False},
    "priority_exponent": DRAWN, "importance_exponent": DRAWN, "importance_steps": DRAWN, "priority_max_share": DRAWN,
    "updates_per_call": {**DRAWN, "samples_per_insert": 40.0}, "v_min": {"num_atoms": 5}, "v_max": {"num_atoms": 5}, "huber": {"num_atoms": 1},
    **dict.fromkeys(("epsilon_start", "epsilon_steps"), {"noisy": 0.0, "worker_epsilon": None, "epsilon_steps": 40}),
    "epsilon_end": {"noisy": 0.0, "epsilon_steps": 40}, "worker_epsilon": {"noisy": 0.0},
    "model.memory_size": {"model.memory": "gru", "kernel": "auto"},
    "num_atoms": {"num_atoms": 1}, "noisy": {"noisy": 0.0}, "target_noise_clip": {"target_noise": 0.6},
    "model.shared": {"dueling": True}, "alpha_init": {"alpha": None}, "target_entropy": {"alpha": None},
    **dict.fromkeys(("model.distribution", "model.log_std_init", "action_noise"), {**PENDULUM, "kernel": "auto"}),
    "model.channels": {"env": "raypid/Catch-v0", "env_config": {"rows": 16, "columns": 16}, "model.network": "cnn", "kernel": "auto"},
    "model.custom": {"model": {"network": "effect-test"}, "kernel": "auto"},
    "model.network": {"kernel": "auto"}, "model.memory": {"kernel": "auto"},
}  # fmt: skip
"""What else is set, with and without the change, where the algorithm has these settings."""
ALONG = {"lr_schedule": STEPS, "clip_schedule": STEPS}
"""What is set with the change alone."""
EXCEPT: dict[tuple[str, str], tuple[Any, Settings]] = {
    ("ApeX", "epsilon_end"): (0.6, {}),
    ("ApeX", "num_envs_per_worker"): (3, {}),
    ("R2D2", "num_envs_per_worker"): (3, {}),
    ("R2D2", "buffer_size"): (60, {}),
    ("IMPALA", "batch_size"): (48, {}),
    ("ARS", "steps_per_iteration"): (1_000, {}),
}
"""(algorithm, setting) -> value and context, where those above do not fit."""

REFUSED = {
    ("A3C", "intrinsic_reward"), ("TD3", "target_network"), ("DDPG", "target_network"),
    *((run, "action_noise") for run in ("DQN", "Rainbow", "ApeX", "R2D2", "SQN", "CustomModel")),
}  # fmt: skip
"""(algorithm, setting) that is refused here for another reason than `Config.no_effect`."""
SHOWN_ELSEWHERE = {
    "vectorizer": "tests/envs/test_make.py::test_choice_of_vectorizer",
    "num_learners": "tests/run/test_agent.py::test_several_learners_give_the_numbers_of_one",
    "parameter_server": "tests/roles/test_parameter_server.py::test_a_replay_run_and_its_evaluator_pull",
    "num_cpus": "tests/cli/test_bad_input.py::test_refused",
    "num_gpus": "tests/cli/test_bad_input.py::test_refused",
    "num_cpus_per_worker": "tests/cli/test_bad_input.py::test_refused",
    "gpu": "tests/cli/test_project.py::test_the_documented_command",
    "custom_args": "tests/cli/test_project.py::test_a_project_trains",
    "agent": "tests/algorithms/test_agents.py::test_an_agent_of_ones_own",
    "agent_config": "tests/algorithms/test_agents.py::test_an_agent_of_ones_own",
    "address": "tests/cli/test_bad_input.py::test_refused",
    "backend": "tests/run/test_agent.py::test_local_and_ray_give_the_same_numbers",
    "wait_for_room_s": "tests/chaos/test_placement.py::test_whole_runs_at_once_one_that_is_killed_and_one_that_waits_for_room",
    "fit": "tests/run/test_distributed.py::test_too_many_actors_and_learners_become_what_fits",
    "device": "tests/test_settings_effect.py::test_device_and_threads",
    "num_threads": "tests/test_settings_effect.py::test_device_and_threads",
    "atari": "tests/envs/test_vector.py::test_atari_in_python_looks_alike",
    "evaluation_parallel": "tests/run/test_evaluation.py::test_it_takes_a_cpu_that_is_to_spare",
    "worker_timeout_s": "tests/chaos/test_kill.py::test_an_environment_that_hangs",
    "max_rollbacks": "tests/run/test_divergence.py::test_as_many_rollbacks_as_are_allowed",
    "max_restarts": "tests/envs/test_vector.py::test_a_crash_rebuilds_one_environment",
    "fragments_in_flight": "tests/run/test_asynchronous.py::test_what_waits_for_a_slow_learner_is_bounded",
    "num_replay_shards": "tests/run/test_replay_loop.py::test_sharded_replay",
    "learner_sync": "tests/runtime/test_off_policy_learners.py::test_changes_of_all_learners_add_up",
    "th_compile": "tests/run/test_distributed.py::test_compiles_and_goes_on",
    # in one process all fitness of an update is of the newest weights
    "ES.max_staleness": "tests/run/test_asynchronous.py::test_what_is_too_stale_is_dropped_and_counted",
    **dict.fromkeys(
        ("CustomModel.model", "CustomModel.gamma", "CustomModel.batch_size"),
        "tests/algorithms/test_custom_model.py::test_arguments_as_they_are_given",
    ),
    "ARS.max_staleness": "tests/run/test_asynchronous.py::test_what_is_too_stale_is_dropped_and_counted",
}
"""Setting (of all algorithms, or of one) that no short run in one process can show -> the test that shows it."""


def config_of(run: str) -> type[Config]:
    found: type[Config] = ALGORITHMS.get(run).Config
    return found


def declared() -> Iterator[tuple[str, str, str]]:
    """(class, setting, an algorithm) of each setting that a Config class declares or gives a default of its own."""
    seen = set()
    for run in ("PPO", "A2C", "IMPALA", "DQN", "SAC", "SQN", "TD3", "ES", *ALGORITHMS.names()):
        fields = config_of(run).__dataclass_fields__
        for cls in config_of(run).__mro__:
            names = [
                name for name in cls.__dict__.get("__annotations__", {}) if name in fields and name in _fields(cls)
            ]
            for name in names:
                if (cls, name) not in seen:
                    seen.add((cls, name))
                    yield cls.__name__, name, run
    for field in dataclasses.fields(ModelConfig):
        yield "ModelConfig", f"model.{field.name}", "PPO"


def _fields(cls: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()


def everything() -> Iterator[tuple[str, str, str]]:
    """(algorithm's Config, setting, algorithm) for each setting of each algorithm."""
    for run in ALGORITHMS.names():
        for field in dataclasses.fields(config_of(run)):
            yield config_of(run).__name__, field.name, run


def tried(case: tuple[str, str, str]) -> bool:
    return not {case[1], f"{case[2]}.{case[1]}"} & SHOWN_ELSEWHERE.keys()


DECLARED = list(filter(tried, declared()))
FIRST = list({case[1]: case for case in reversed(DECLARED)}.values())
"""Each setting once, by the class that introduces it."""
OTHERS = list(dict.fromkeys(case for case in (*DECLARED, *filter(tried, everything())) if case not in FIRST))


def outcome(run: str, settings: Settings, folder: Path) -> dict[str, Any]:
    """Whatever a run leaves behind that no clock decides."""
    with Agent(run, {"seed": 3, **settings}, out=folder) as agent:
        results = [agent.train() for _ in range(3)]
        agent.save()
        results += [agent.train(), agent.eval(settings.get("evaluation_num_episodes", 2))]
        weights = agent.get_weights()
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    rows = [{k: repr(v) for k, v in row.items() if not k.startswith(CLOCKS)} for row in results]
    extra = {name: array.tobytes() for name, array in weights.extra.items()}
    return {"weights": weights.flat.tobytes(), "extra": extra, "results": rows, "files": files}


def case_of(run: str, name: str, folder: Path) -> tuple[Settings, Settings]:
    """The settings without and with the change."""
    value, context = EXCEPT.get((run, name), (CHANGES.get(name, OTHER), CONTEXTS.get(name, {})))
    known = _fields(config_of(run))
    known -= set(config_of(run).no_effect)
    context = {} if (run, name) in REFUSED else context
    base = {**BASES[run], **{key: v for key, v in context.items() if key.partition(".")[0] in known}}
    if base["env"] == "Pendulum-v1":
        value = {"env_config": {"g": 5.0}, "evaluation_env": short_swings}.get(name, value)
    if name == "init_from":
        with Agent(run, {**base, "seed": 9}, out=folder / "before") as agent:
            agent.train()
            value = str(agent.save())
    if name == "env":
        value = "MountainCarContinuous-v0" if base["env"] == "Pendulum-v1" else "Acrobot-v1"
    default = config_of(run).from_dict(base)
    before = getattr(default.model if "." in name else default, name.removeprefix("model."))
    if value == OTHER:
        hint = type_hints(ModelConfig if "." in name else config_of(run))[name.removeprefix("model.")]
        words = get_args(hint) if get_origin(hint) is Literal else ()
        value = next(word for word in words if word != before) if words else not before
    assert before != value, f"{name} is {value!r} already"
    along = {key: v for key, v in ALONG.get(name, {}).items() if key in known}
    return base, overlay(base, {name: value, **along})


_outcomes: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    raypid.register_network("effect-test", Wide)
    yield
    NETWORKS._entries.pop("effect-test")
    _outcomes.clear()


def base_outcome(run: str, base: Settings, folder: Path) -> dict[str, Any]:
    key = repr((run, sorted(base.items(), key=str)))
    if key not in _outcomes:
        _outcomes[key] = outcome(run, base, folder)
    return _outcomes[key]


def check(run: str, name: str, folder: Path) -> None:
    """Fail unless the setting has an effect, or is refused because this algorithm never has a use for it."""
    base, changed = case_of(run, name, folder)
    if name in config_of(run).no_effect or (run, name) in REFUSED:
        with pytest.raises(ConfigError, match=re.escape(name)):
            outcome(run, changed, folder / "changed")
        return
    before = base_outcome(run, base, folder / "base")
    after = outcome(run, changed, folder / "changed")
    assert after != before, f"{run}: {name} {changed[name]!r} changes nothing"


@pytest.mark.parametrize(("owner", "name", "run"), FIRST, ids=lambda x: str(x))
def test_every_setting_has_an_effect(owner: str, name: str, run: str, tmp_path: Path) -> None:
    check(run, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "run"), OTHERS, ids=lambda x: str(x))
def test_every_setting_of_every_algorithm_has_an_effect(owner: str, name: str, run: str, tmp_path: Path) -> None:
    check(run, name, tmp_path)


def test_every_setting_is_tried_or_shown_elsewhere() -> None:
    names = {name for _, name, _ in everything()} | {f"model.{f.name}" for f in dataclasses.fields(ModelConfig)}
    assert names - {name for _, name, _ in DECLARED} == {key for key in SHOWN_ELSEWHERE if "." not in key}


@pytest.mark.parametrize("run", ALGORITHMS.names())
def test_nothing_changed_changes_nothing(run: str, tmp_path: Path) -> None:
    assert base_outcome(run, BASES[run], tmp_path / "one") == outcome(run, BASES[run], tmp_path / "other")


@pytest.mark.parametrize("test", sorted(set(SHOWN_ELSEWHERE.values())))
def test_what_is_shown_elsewhere_is_shown(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("more", [{}, {"intrinsic_reward": "rnd"}, {"prioritized": True}], ids=str)
@pytest.mark.parametrize("run", ALGORITHMS.names())
def test_results_have_exactly_the_declared_keys(run: str, more: Settings, tmp_path: Path) -> None:
    if not more.keys() <= _fields(config_of(run)) or (run == "A3C" and more):
        pytest.skip(f"{run} takes no {next(iter(more))}")
    with Agent(run, {**BASES[run], "seed": 3, "evaluation_interval": 1, "evaluation_num_episodes": 1, **more}) as agent:
        found = {key for _ in range(3) for key in agent.train()}
        known = known_keys(run, agent.config)
    assert known.open == (("custom/", "learner/") if run == "CustomModel" else ("custom/",))
    assert {key for key in found if key in known.keys or not key.startswith(known.open)} == known.keys
    if run == "CustomModel":
        assert {"learner/grad_norm", "learner/lr", "learner/staleness"} <= known.keys


def test_a_subclass_that_declares_none_may_report_anything() -> None:
    class Mine(ALGORITHMS.get("PPO")):  # type: ignore[misc]
        pass

    ALGORITHMS.register("effect-mine", Mine)
    try:
        assert "learner/" in known_keys("effect-mine", Mine.Config()).open
    finally:
        ALGORITHMS._entries.pop("effect-mine")


def test_device_and_threads() -> None:
    base = {**BASES["PPO"], "kernel": "torch", "seed": 0}
    before = torch.get_num_threads()
    try:
        with Agent("PPO", base, num_threads=3):
            assert torch.get_num_threads() == 3
        with Agent("PPO", base, num_threads=2):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device cuda: torch .* sees no GPU"):
            Agent("PPO", base, device="cuda")
    if not torch.backends.mps.is_available():
        with pytest.raises(ConfigError, match="device mps: torch .* cannot use it here"):
            Agent("PPO", base, device="mps")
