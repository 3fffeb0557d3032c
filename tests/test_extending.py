"""What others write runs wherever it was written: in a script, in a notebook's cell or in a module; here and on Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import raypid
from raypid.algorithms.ppo import PPO
from raypid.cli import main
from raypid.errors import CodeError, UserError
from raypid.plugins.registry import ALGORITHMS, INTRINSIC_REWARDS, NETWORKS

SOURCE = Path(__file__).parent / "chaos" / "extension.py"
PLACES: dict[str, dict[str, Any]] = {
    "here": {},
    "workers": {"num_workers": 2},
    "one learner": {"num_workers": 2, "num_learners": 1},
    "two learners": {"num_workers": 2, "num_learners": 2},
}
SMALL = {"env": "CartPole-v1", "seed": 0, "fragment_length": 64, "num_envs_per_worker": 2}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it, and Ray Tune, where it is imported, does not pickle all algorithms at each."""
    monkeypatch.setattr("raypid.plugins.registry.when_added", [])
    registries = (ALGORITHMS, INTRINSIC_REWARDS, NETWORKS)
    before = [dict(table._entries) for table in registries]
    yield
    for table, entries in zip(registries, before, strict=True):
        table._entries = entries


def register(user: Any) -> None:
    raypid.register_algorithm("Mine")(user.Mine)
    raypid.register_algorithm("Counting", user.Counting)
    raypid.register_network("wide", user.Wide)
    raypid.register_model("chance", user.Chance)
    INTRINSIC_REWARDS.register("constant", user.Constant)


def names(written: str) -> SimpleNamespace:
    """What the settings say, for classes of a notebook's cell, which are registered, or of a module."""
    if written == "module":
        classes = ("Mine", "Counting", "Wide", "Chance", "Told", "Constant")
        return SimpleNamespace(**{name: f"extension:{name}" for name in classes})
    cell = {"__name__": "__main__"}
    exec(compile(SOURCE.read_text(), "<ipython-input-1>", "exec", dont_inherit=True), cell)
    user = SimpleNamespace(**cell)
    register(user)
    return SimpleNamespace(
        Mine="Mine", Counting="Counting", Wide="wide", Chance="chance", Told=user.Told, Constant="constant"
    )


def train(user: Any, where: dict[str, Any]) -> None:
    """An algorithm with a loss, a network, callbacks and a reward of the user's own."""
    own = {
        "kernel": "torch",
        "model": {"network": user.Wide},
        "callbacks": user.Told,
        "intrinsic_reward": user.Constant,
    }
    with raypid.Agent(user.Mine, {**SMALL, **where, **own}, num_epochs=1, bonus=0.25) as agent:
        result = agent.train()
        assert (result["custom/told"], result["seen"], result["learner/constant"]) == (7, 1, 3)
        # the mean of two learners is weighted by their valid rows, in float32
        assert result["learner/mine"] == (pytest.approx(0.25, rel=1e-6) if where.get("num_learners", 0) > 1 else 0.25)


def train_more(user: Any, where: dict[str, Any]) -> None:
    """An algorithm with an update of the user's own, and a model."""
    with raypid.Agent(user.Counting, {**SMALL, **where}, num_epochs=1, model={"hidden": [8]}) as agent:
        assert agent.train()["learner/rows"] > 0
    if where.get("num_learners", 0) < 2:
        with raypid.Agent("CustomModel", {**SMALL, **where}, model={"network": user.Chance}) as agent:
            assert agent.train()["learner/chance"] == 0.25


@pytest.mark.parametrize("written", ["cell", "module"])
def test_classes_run_in_this_process(written: str) -> None:
    user = names(written)
    train(user, PLACES["here"])
    train_more(user, PLACES["here"])


def travels(written: str, where: str) -> Any:
    """The CI has the classes of a cell, in workers and in a learner: those of a module travel by name."""
    quick = written == "cell" and where == "one learner"
    return pytest.param(written, where, marks=pytest.mark.ci_slow if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("written", "where"),
    [travels(written, where) for written in ("cell", "module") for where in PLACES if where != "here"],
)
def test_classes_travel_to_every_process_on_ray(written: str, where: str, ray_session: Any) -> None:
    user = names(written)
    train(user, PLACES[where])
    train_more(user, PLACES[where])


SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from types import SimpleNamespace
import test_extending as t

if __name__ == "__main__":
    t.register(SimpleNamespace(**globals()))
    user = SimpleNamespace(
        Mine="Mine", Counting="Counting", Wide="wide", Chance="chance", Told=Told, Constant="constant"
    )
    for place in ("one learner", "two learners"):
        where = {{**t.PLACES[place], "num_cpus_per_worker": 0}}
        t.train(user, where)
        t.train_more(user, where)
"""


@pytest.mark.slow
def test_classes_of_a_script_travel(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SOURCE.read_text() + SCRIPT)
    run_script(tmp_path / "script.py")


@pytest.mark.slow
def test_workers_find_a_module_that_only_the_driver_s_path_leads_to(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "far.py").write_text(SOURCE.read_text())
    (tmp_path / "script.py").write_text(f"""
import sys
sys.path.insert(0, {str(tmp_path / "lib")!r})
import torch

import raypid

if __name__ == "__main__":
    with raypid.Agent("far:Counting", {SMALL!r}, num_workers=1, num_learners=1, num_cpus=2) as agent:
        assert agent.train()["learner/rows"] > 0
""")
    run_script(tmp_path / "script.py")


def run_script(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], cwd=path.parent, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


# -- names ---------------------------------------------------------------------------------------------------------------


def test_a_registered_algorithm_is_known_by_its_name(tmp_path: Path) -> None:
    user = names("cell")
    small = {**SMALL, "model": {"hidden": [8]}, "num_epochs": 1}
    with raypid.Mine(small, kernel="torch") as agent:  # type: ignore[attr-defined]
        agent.train()
        saved = agent.save(tmp_path)
    assert raypid.Mine.DEFAULT_CONFIG["bonus"] == 0.5 and "Mine" in dir(raypid)  # type: ignore[attr-defined]
    with raypid.Agent.from_checkpoint(saved) as agent:
        assert agent.run == "Mine" and agent.iteration == 1
    del ALGORITHMS._entries["Mine"]
    with pytest.raises(UserError, match=r"Unknown algorithm 'Mine'.* registered .*raypid.register_algorithm"):
        raypid.Agent.from_checkpoint(saved)
    assert user.Mine == "Mine"


def test_what_is_no_algorithm_is_refused() -> None:
    for entry in (dict, 3, "json:JSONDecoder"):
        with pytest.raises(UserError, match="Algorithm 'Wrong' must be a subclass of raypid.algorithms.base:Algorithm"):
            raypid.register_algorithm("Wrong", entry)  # type: ignore[arg-type]
            raypid.Agent("Wrong", env="CartPole-v1")
    with pytest.raises(UserError, match="'PPO' is the name of raypid's own algorithm"):
        raypid.register_algorithm("PPO", PPO)
    for name in ("auto", "mlp", "lstm"):
        with pytest.raises(UserError, match=f"{name!r} is the name of raypid's own network"):
            raypid.register_network(name, torch.nn.Module)
    with pytest.raises(UserError, match="dict lacks choose_actions, step, get_weights, set_weights; a model has"):
        raypid.register_model("mine", dict)


def test_the_command_line_trains_and_resumes_a_module_s_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--num-epochs", "1", "--fragment-length", "32", "--final-episodes", "0", "--quiet"]
    stop = ["--stop", '{"training_iteration": 1}']
    assert main(["train", "--run", "extension:Counting", "--env", "CartPole-v1", "--out", "run", *stop, *flags]) == 0
    assert main(["train", "--resume", "run", "--stop", '{"training_iteration": 2}', "--quiet"]) == 0
    lines = (tmp_path / "run" / "result.json").read_text().splitlines()
    assert [json.loads(line)["learner/rows"] > 0 for line in lines] == [True, True]
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["train", "--run", "json:JSONDecoder", "--env", "CartPole-v1"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "must be a subclass of raypid.algorithms.base:Algorithm" in error


# -- networks that do not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run, env, model, says",
    [
        ("ES", "CartPole-v1", {"network": "wide", "memory": "gru"}, "ES and ARS act without a memory"),
        ("ES", "CartPole-v1", {"network": "both"}, r"'both' must return features \[N, F\], behind which"),
        ("SAC", "Pendulum-v1", {"network": "both"}, r"'both' must return features \[N, F\], behind which"),
        ("TD3", "Pendulum-v1", {"network": "both"}, r"'both' must return features \[N, F\], behind which"),
        ("DQN", "CartPole-v1", {"network": "both"}, r"'both' must return features \[N, F\], behind which"),
        (
            "PPO",
            "CartPole-v1",
            {"network": "both", "memory": "gru"},
            "'both' must return .* for an actor-critic without a memory",
        ),
        ("SAC", "Pendulum-v1", {"network": "wide", "memory": "lstm"}, r"A memory \(lstm\) needs sequences"),
        ("SAC", "CartPole-v1", {"network": "chance"}, "'chance' is a whole model, which learns by itself"),
        ("CustomModel", "CartPole-v1", {"network": "wide"}, "CustomModel trains a whole model"),
        ("SAC", "Pendulum-v1", {"network": "wide", "custom": {"widht": 3}}, "does not fit network 'wide': .*'widht'"),
        ("SAC", "Pendulum-v1", {"network": "map"}, r"returned a tensor \[2, 3, 1\]"),
    ],
)
def test_a_network_that_does_not_fit_is_refused(run: str, env: str, model: dict[str, Any], says: str) -> None:
    import torch

    names("cell")

    @raypid.register_network("both")
    class Both(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, :2], x[:, 0]

    @raypid.register_network("map")
    class Map(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:, :, None]

    # with workers: nothing has been started on Ray when it is refused
    with pytest.raises(UserError, match=says):
        raypid.Agent(run, env=env, model=model, num_workers=1, address="127.0.0.1:1")


def test_a_network_for_other_observations_is_told_their_shape() -> None:
    import torch

    @raypid.register_network("seven")
    class Seven(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(7, 5)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    for run, env, told in (
        ("PPO", "CartPole-v1", r"Network 'seven' is given a vector \[N, 4\] .* for observations of shape \[4\]"),
        ("SAC", "raypid/DictCartPole-v0", r"Network 'seven' is given a vector \[N, 4\] .* position \[2\]"),
        ("DQN", "raypid/Catch-v0", r"Network 'seven' is given "),
    ):
        with pytest.raises(CodeError, match=told) as error:
            raypid.Agent(run, env, model={"network": "seven"})
        assert "Seven.forward() raised" in str(error.value) and f'File "{__file__}"' in str(error.value)


def test_a_class_in_place_of_its_name_is_told_how_it_gets_one() -> None:
    import torch

    class MyNet(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    class MyModel:
        choose_actions = step = get_weights = set_weights = None

    own = r'network\("mine", MyNet\), then model={"network": "mine", "custom": '
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: raypid.PPO("CartPole-v1", model=MyNet), f"not the class MyNet. .*{own}"),  # type: ignore[arg-type]
        (lambda: raypid.PPO("CartPole-v1", model={"network": MyNet()}), f"an object of class MyNet. .*{own}"),
        (lambda: raypid.ModelCatalog.get_model(None, None, MyNet), own),  # type: ignore[arg-type]
        (lambda: raypid.CustomModel("CartPole-v1", model=MyModel), r'register_model\("mine", MyModel\)'),  # type: ignore[arg-type]
        (
            lambda: raypid.CustomModel("CartPole-v1", agent=MyModel),
            r'_agent\("mine", MyModel\), then agent="mine"',
        ),  # type: ignore[arg-type]
        (lambda: raypid.PPO("CartPole-v1", model=torch.nn.Linear(4, 2)), r'register_network\("mine", Linear\)'),  # type: ignore[arg-type]
    ]
    for call, told in calls:
        with pytest.raises(UserError, match=told):
            call()
