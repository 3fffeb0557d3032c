"""Bad input: one clear line, exit code 2, nothing started, nothing written."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.cli import main

TRAIN = ("train", "--run", "PPO", "--env", "CartPole-v1")
REPLAY = ("train", "--run")
SMALL = ("--num-envs-per-worker", "2", "--fragment-length", "16", "--batch-size", "32", "--seed", "0", "--quiet")
Shell = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    code = main([*TRAIN, *SMALL, "--stop", '{"training_iteration": 3}', "--out", str(folder)])
    assert code == 0
    return folder


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refused("train", ...) -> the one line; fails if anything else happened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if "ray" in sys.modules:
        # what other tests of this process have started is not to be joined
        monkeypatch.setattr(sys.modules["ray"], "is_initialized", lambda: False)

    def run(*arguments: str) -> str:
        before = contents(tmp_path)
        monkeypatch.setattr("raypid.runtime.supervisor.Group.__init__", _must_not_start)
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capfd.readouterr()
        assert code == 2, (code, out, err)
        assert out == ""
        assert err.startswith("raypid: ") and err.count("\n") == 1 and err.endswith("\n"), err
        assert contents(tmp_path) == before
        return err

    return run


def _must_not_start(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("workers were started")


def contents(folder: Path) -> dict[str, bytes]:
    found = folder.rglob("*")
    return {str(p): p.read_bytes() for p in found if p.is_file() and "__pycache__" not in p.parts}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], ["--run PPO", "raypid list agents"]),
        (["train", "--run", "PPO"], ["--env"]),
        (["eval", "runs/x", "--eval-episode", "2"], ["Unknown option '--eval-episode'"]),
        (["train", "--run", "PPOO", "--env", "CartPole-v1"], ["'PPOO'", "'PPO'"]),
        (["train", "--run", "PPOO", "--env", "CartPole-v1", "--clip", "0.2"], ["'PPOO'", "'PPO'"]),
        (["train", "--run", "PPO", "--env", "CartPol-v1"], ["CartPol-v1", "CartPole-v1"]),
        (["train", "--run", "PPO", "--env", "CartPole-v7"], ["CartPole-v7", "CartPole-v1"]),
        (["train", "--run", "PPO", "--env", "CartPole"], ["CartPole-v1"]),
        (["train", "--run", "PPO", "--env", "nowhere:Env"], ["nowhere"]),
        (["train", "--run", "PPO", "--env", "fragile:Fragil"], ["fragile:Fragile"]),
        ([*TRAIN, "--num-worker", "2"], ["--num-worker", "--num-workers"]),
        ([*TRAIN, "--num_worker", "2"], ["--num-workers"]),
        ([*TRAIN, "--leraning-rate", "2"], ["--leraning-rate"]),
        ([*TRAIN, "surplus"], ["surplus"]),
        ([*TRAIN, "--lr"], ["--lr"]),
        ([*TRAIN, "--lr", "fast"], ["lr", "'fast'", "number"]),
        ([*TRAIN, "--lr", "-1"], ["lr", "above 0"]),
        ([*TRAIN, "--num-workers", "1.5"], ["num_workers", "1.5"]),
        ([*TRAIN, "--num-workers", "-1"], ["num_workers", "at least 0"]),
        ([*TRAIN, "--gamma", "1.5"], ["gamma", "[0, 1]"]),
        ([*TRAIN, "--vectorizer", "fast"], ["vectorizer", "'sync'"]),
        ([*TRAIN, "--model.hiden", "[8]"], ["hiden"]),
        ([*TRAIN, "--model.hidden", "many"], ["hidden", "'many'"]),
        ([*TRAIN, "--model", "big"], ["model"]),
        ([*TRAIN, "--model.network", "transformr"], ["transformr"]),
        ([*TRAIN, "--config", '{"lr": 1e-3, "gama": 0.9}'], ["gama", "gamma"]),
        ([*TRAIN, "--config", '{"lr": }'], ["--config", "JSON"]),
        ([*TRAIN, "--config", "missing.yaml"], ["missing.yaml"]),
        ([*TRAIN, "--stop", '{"episode_rewards": 1}'], ["episode_reward_mean"]),
        ([*TRAIN, "--stop", '{"timesteps_total": "x"}'], ["timesteps_total", "number"]),
        ([*TRAIN, "--stop", "timesteps_total"], ["timesteps_total"]),
        ([*TRAIN, "--stop", '{"timesteps_total": 1'], ["--stop", "JSON"]),
        ([*TRAIN, "--checkpoint-interval", "often"], ["--checkpoint-interval", "often"]),
        ([*TRAIN, "--keep-checkpoints", "0"], ["keep"]),
        ([*TRAIN, "--checkpoint-interval", "-1"], ["checkpoint-interval"]),
        ([*TRAIN, "--callbacks", "fragile:Fragile"], ["callbacks"]),
        ([*TRAIN, "--callbacks", "fragile:Metriks"], ["fragile"]),
        ([*TRAIN, "--env-config", '{"no_such": 1}'], ["no_such"]),
        ([*TRAIN, "--env-config", "[1]"], ["env_config", "mapping"]),
        ([*TRAIN, "--num-gpus", "64"], ["64 GPUs", "--num-gpus"]),
        ([*TRAIN, "--num-workers", "4096"], ["4096 workers", "--num-workers", "--fit"]),
        ([*TRAIN, "--num-workers", "1", "--address", "127.0.0.1:9"], ["no Ray cluster", "127.0.0.1:9"]),
        ([*TRAIN, "--init-from", "nowhere"], ["nowhere"]),
        ([*TRAIN, "--backend", "local", "--num-learners", "1"], ["num_learners"]),
        (["train", "--run", "PPO", "--env", "Blackjack-v1", "--normalize-rewards", "maybe"], ["normalize_rewards"]),
        ([*REPLAY, "DQN", "--env", "Pendulum-v1"], ["one Discrete action", "SAC for a Box"]),
        ([*REPLAY, "TD3", "--env", "CartPole-v1"], ["continuous (Box)", "DQN"]),
        ([*REPLAY, "SAC", "--env", "Pendulum-v1", "--reward-scale", "0.1"], ["reward_scale", "normalize_rewards"]),
        ([*REPLAY, "SAC", "--env", "Pendulum-v1", "--critic-norm", "batch"], ["critic_norm", "target_network"]),
        ([*REPLAY, "SAC", "--env", "Pendulum-v1", "--critic-norm", "group"], ["critic_norm", "'layer'"]),
        ([*REPLAY, "SAC", "--env", "Pendulum-v1", "--buffer-size", "10"], ["buffer_size 10", "start_steps"]),
        (
            [*REPLAY, "SAC", "--env", "Pendulum-v1", "--num-learners", "3", "--num-workers", "3", "--batch-size", "64"],
            ["batch_size 64 must be a multiple of 3", "num_learners"],
        ),
        (
            [*REPLAY, "DQN", "--env", "CartPole-v1", "--num-replay-shards", "2"],
            ["num_replay_shards 2 needs as many workers"],
        ),
        (
            [*REPLAY, "ApeX", "--env", "CartPole-v1", "--num-workers", "0"],
            ["num_replay_shards 2 needs as many workers"],
        ),
        ([*REPLAY, "DQN", "--env", "CartPole-v1", "--noizy", "0.5"], ["--noizy", "--noisy"]),
        ([*REPLAY, "SQN", "--env", "CartPole-v1", "--num-atoms", "51"], ["SQN", "num_atoms"]),
        (["train", "--resume", "nowhere"], ["nowhere"]),
        ([*TRAIN, "--num-workers", "3", "--num-cpus", "2"], ["3 workers", "2"]),
        ([*TRAIN, "--num-workers", "2", "--num-cpus-per-worker", "4096"], ["4096"]),
        ([*TRAIN, "--address", "auto"], ["address has no effect", "--num-workers 4"]),
        ([*TRAIN, "--num-cpus", "2"], ["num_cpus has no effect"]),
        ([*TRAIN, "--worker-timeout-s", "2"], ["worker_timeout_s has no effect", "--num-workers 4"]),
        ([*TRAIN, "--reward-scale", "0.1"], ["reward_scale has no effect with normalize_rewards", "default, 1.0"]),
        ([*TRAIN, "--model.custom", '{"widht": 3}'], ["model.custom has no effect for mlp"]),
        ([*TRAIN, "--model.channels", "[8]"], ["model.channels has no effect without an image"]),
        ([*TRAIN, "--model", '{"memory_size": 8}'], ["model.memory_size has no effect without a memory"]),
        ([*TRAIN, "--action-noise", "0.1"], ["action_noise has no effect with discrete actions"]),
        ([*TRAIN, "--model.distribution", "gaussian"], ["model.distribution", "discrete actions"]),
        ([*TRAIN, "--model.log-std-init", "-1"], ["model.log_std_init has no effect"]),
        ([*TRAIN, "--rmsprop-eps", "0.1"], ["rmsprop_eps has no effect unless optimizer is rmsprop"]),
        ([*TRAIN, "--schedule-end", "0.1"], ["schedule_end", "lr_schedule to linear"]),
        ([*REPLAY, "A3C", "--env", "CartPole-v1", "--batch-size", "64"], ["batch_size", "A3C", "fragment_length"]),
        ([*REPLAY, "ES", "--env", "CartPole-v1", "--gamma", "0.9"], ["gamma has no effect", "undiscounted"]),
        ([*REPLAY, "ARS", "--env", "CartPole-v1", "--fragment-length", "9"], ["fragment_length", "whole episodes"]),
        ([*REPLAY, "SQN", "--env", "CartPole-v1", "--epsilon-end", "0.1"], ["epsilon_end", "softmax"]),
        ([*REPLAY, "SAC", "--env", "Pendulum-v1", "--model.shared", "true"], ["model.shared has no effect"]),
        ([*REPLAY, "DQN", "--env", "CartPole-v1", "--model.shared", "true"], ["model.shared has no effect"]),
        ([*REPLAY, "DQN", "--env", "CartPole-v1", "--bf16"], ["bf16 has no effect"]),
        ([*REPLAY, "DQN", "--env", "CartPole-v1", "--priority-exponent", "0.9"], ["prioritized is true"]),
        ([*TRAIN, "--stop", '{"learner/entropi": 1}'], ["learner/entropi", "learner/entropy"]),
        ([*TRAIN, "--stop", '{"lost/wokers": 1}'], ["lost/workers"]),
        ([*TRAIN, "--stop", '{"evaluation/rewards": 1}'], ["evaluation/reward"]),
        (
            [*TRAIN, "--evaluation-interval", "0", "--stop", '{"evaluation/episode_reward_mean": 1}'],
            ["can never be met", "evaluation_interval is 0"],
        ),
        ([*TRAIN, "--overwrite"], ["--overwrite", "--out"]),
        (["eval", "nowhere"], ["nowhere"]),
        (["eval"], ["PATH"]),
        (["eval", "nowhere", "--episodes", "0"], ["--episodes"]),
        (["plot", "nowhere"], ["nowhere"]),
        (["list", "robots"], ["robots", "envs"]),
        (["trian"], ["trian"]),
    ],
    ids=lambda x: " ".join(a for a in x if a not in TRAIN)[:50] if isinstance(x, list) else None,
)
def test_refused(arguments: list[str], words: list[str], refused: Callable[..., str]) -> None:
    line = refused(*arguments)
    assert all(word in line for word in words), line


def test_a_missing_package_names_the_extra(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = sys.modules["raypid.envs.resolve"]  # the package has a function of the same name
    monkeypatch.setattr(resolve, "installed", lambda package: package not in ("Box2D", "envpool", "mujoco"))
    for env, extra in (("LunarLander-v3", "box2d"), ("HalfCheetah-v5", "mujoco"), ("envpool:Pong-v5", "envpool")):
        assert f'[{extra}]"' in refused("train", "--run", "PPO", "--env", env)


def test_spaces_that_cannot_be_handled_are_named(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "odd_spaces.py").write_text(
        "import gymnasium\nfrom gymnasium import spaces\n"
        "class Chat(gymnasium.Env):\n"
        "    observation_space, action_space = spaces.Text(9), spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n        return 'hello', {}\n"
        "class Draw(Chat):\n"
        "    observation_space, action_space = spaces.Discrete(2), spaces.Graph(spaces.Discrete(2), None)\n"
    )
    for name, space in (("Chat", "Text"), ("Draw", "Graph")):
        line = refused("train", "--run", "PPO", "--env", f"odd_spaces:{name}")
        assert space in line and name in line


def test_nothing_to_resume_or_overwrite(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    line = refused(*TRAIN, *SMALL, "--out", "run")
    assert "holds another run" in line and "--resume run" in line and "--overwrite" in line
    # even with --overwrite a command that is refused leaves the old run as it was
    for bad in (["--lr", "-1"], ["--num-workers", "4096"], ["--env", "CartPol-v1"], ["--init-from", "nowhere"]):
        refused(*TRAIN, *SMALL, "--out", "run", "--overwrite", *bad)
    assert "A2C" in refused("train", "--resume", "run", "--run", "A2C")
    assert "--out" in refused("train", "--resume", "run", "--out", "other")
    assert "--overwrite" in refused("train", "--resume", "run", "--overwrite")
    assert "--tuned" in refused("train", "--resume", "run", "--tuned")
    assert "init_from" in refused("train", "--resume", "run", "--init-from", "run")
    assert "learner/entropy" in refused("train", "--resume", "run", "--stop", '{"learner/entropi": 1}')
    assert "schedule_end" in refused("train", "--resume", "run", "--schedule-end", "0.1")
    (tmp_path / "file").write_text("mine")
    assert "file" in refused(*TRAIN, "--out", "file")
    (tmp_path / "empty").mkdir()
    assert "no run to resume" in refused("train", "--resume", "empty")


def _truncate(run: Path) -> str:
    file = run / "checkpoints" / "checkpoint_000003" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return "truncated"


def _alter(run: Path) -> str:
    file = run / "checkpoints" / "checkpoint_000003" / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    return "altered"


def _newer(run: Path) -> str:
    file = run / "checkpoints" / "checkpoint_000003" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    return "format 99"


def _half(run: Path) -> str:
    file = run / "checkpoints" / "checkpoint_000003" / "manifest.json"
    file.write_text(file.read_text()[:200])
    return "manifest.json"


@pytest.mark.parametrize("damage", [_truncate, _alter, _newer, _half])
def test_damaged_checkpoints(
    damage: Callable[[Path], str], refused: Callable[..., str], trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    words = damage(run)
    assert words in refused("train", "--resume", "run")
    assert words in refused("train", "--resume", "run", "--num-workers", "2")


def test_a_damaged_policy(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    file = tmp_path / "run" / "best" / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "policy.safetensors is truncated" in refused("eval", "run")
    assert "policy.safetensors is truncated" in refused(*TRAIN, "--init-from", "run")


def test_eval_is_checked(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    assert "Acrobot-v1" in refused("eval", "run", "--env", "Acrobot-v1")
    assert ".mp4 or .gif" in refused("eval", "run", "--episodes", "1000000000", "--video", "film.avi")
    assert "no_such" in refused("eval", "run", "--env-config", '{"no_such": 1}')
    assert "--env-config" in refused("eval", "run", "--env-config", '{"no_such": ')


DEEP = '{"a": ' * 3000 + "1" + "}" * 3000


def test_values_and_files_without_measure(refused: Callable[..., str], tmp_path: Path) -> None:
    for number in ("9" * 400, "9" * 5000, "nan"):
        for flag in ("--seed", "--num-envs-per-worker", "--keep-checkpoints"):
            assert len(refused(*TRAIN, f"{flag}={number}")) < 2500
        refused(*TRAIN, "--stop", f'{{"timesteps_total": {number}}}')
        refused("eval", "nowhere", f"--episodes={number}")
        refused("eval", "nowhere", f"--seed={number}")
    assert "1024" in refused(*TRAIN, "--num-threads", "1000000")
    files = {
        "deep.json": DEEP, "long.json": '{"seed": ' + "9" * 5000 + "}", "itself.yaml": "env_config: &x {a: *x}",
        "numbers.yaml": "1: 2", "lines.yaml": "a: [1,\nb: }", "nul.yaml": "\0",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        for flag in ("--config", "--stop"):
            refused(*TRAIN, flag, name)
    for flag in ("--config", "--stop", "--env-config"):
        assert "deep" in refused(*TRAIN, flag, DEEP)
    assert "module:Name" in refused(*TRAIN, "--callbacks=")


def test_places_that_cannot_be_written(refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    for place in ("file/x", "/proc/x", "x" * 300, "\0", "\ud800"):
        refused(*TRAIN, f"--out={place}")
        refused("plot", "run", f"--out={place}.png")
        refused("eval", "run", "--episodes", "1000000000", f"--video={place}.mp4")
        for command in (["eval"], ["plot"], [*TRAIN, "--init-from"], [*TRAIN, "--config"], ["train", "--resume"]):
            refused(*command, place)
    (tmp_path / "film.mp4").mkdir()
    assert "Is a directory" in refused("eval", "run", "--video", "film.mp4")
    assert "svg" in refused("plot", "run", "--out", "curves.doc")
    assert "cannot be '.'" in refused("plot", "run", "--out", ".")
    blocked = "cannot be 'file/x{}': 'file' is a file, not a folder."
    assert f"The picture {blocked.format('.png')}" in refused("plot", "run", "--out", "file/x.png")
    assert f"--video {blocked.format('.mp4')}" in refused("eval", "run", "--video", "file/x.mp4")
    for text in (DEEP, '{"run": 4}', "\udcff".encode(errors="surrogateescape").decode("latin-1")):
        (tmp_path / "run" / "params.json").write_text(text)
        if text != '{"run": 4}':
            assert "params.json" in refused("train", "--resume", "run")
            assert "params.json" in refused("plot", "run")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("mode", "words"), [("nan", "not finite"), ("shape", "(3,)")])
def test_observations_that_do_not_fit(num_workers: int, mode: str, words: str, request: pytest.FixtureRequest) -> None:
    if num_workers and mode == "shape":
        pytest.skip("as on one process; test_agent has the error's type on Ray")
    config = json.dumps({"mode": mode})
    more = ("--env-config", config, "--num-workers", num_workers)
    if num_workers:
        request.getfixturevalue("ray_session")  # test_kill has a Ray of the command's own
    raypid = request.getfixturevalue("in_process" if num_workers else "raypid")
    done = raypid("train", "--run", "PPO", "--env", "fragile:Fragile", *SMALL, *more)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert all(w in done.stderr for w in ("fragile:Fragile", "step 5", words, "Box(")), done.stderr


def test_more_than_there_is_starts_no_process(start: Callable[..., Any], tmp_path: Path) -> None:
    command = start(*TRAIN, "--num-workers", 4096, "--out", "run")
    done = command.finish()
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "4096 workers of 1 CPU need 4096 CPUs" in done.stderr
    command.assert_nothing_left()
    assert not (tmp_path / "run").exists()


def test_callbacks_of_a_script_are_answered(refused: Callable[..., str]) -> None:
    said = refused(*TRAIN, "--callbacks", "__main__:Mine")
    assert "of a script or notebook" in said and "--callbacks none" in said
