"""The command line, for real: processes, folders, exit codes, clean output."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raypid.cli import COMMANDS, main
from raypid.cli.train import add_options
from raypid.run.stopping import further

SMALL = ("--num-envs-per-worker", "2", "--fragment-length", "16", "--batch-size", "32", "--seed", "0")
TRAIN = ("train", "--run", "PPO", "--env", "fragile:Fragile", *SMALL)
OPTIONS = Path(__file__).parent / "options_ppo.txt"
Raypid = Callable[..., subprocess.CompletedProcess[str]]


def stop(iterations: int) -> tuple[str, str]:
    return "--stop", json.dumps({"training_iteration": iterations})


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]


def test_the_options_are_frozen() -> None:
    """Users script against them. An option that is new or gone changes options_ppo.txt too."""
    parser = argparse.ArgumentParser()
    add_options(parser, ["train", "--run", "PPO"])
    actions = parser._actions  # type: ignore[attr-defined]
    assert sorted(flag for action in actions for flag in action.option_strings) == OPTIONS.read_text().split()
    assert all(action.help for action in actions)


def test_help_shows_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    from raypid.algorithms.ppo import PPO

    assert main(["train", "--run", "PPO", "--help-all"]) == 0
    text = capsys.readouterr().out
    for name, value in PPO.Config().to_dict().items():
        block = re.search(rf"\n  --{name.replace('_', '-')}[ \n](?s:.*?)(?=\n  --|\Z)", text)
        assert block is not None, name
        assert "default: " in " ".join(block[0].split()) or name == "model" or value in (None, {}), block[0]
    assert "--model.hidden" in text and "[64, 64]" in text


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_a_local_run_then_resume_eval_plot(raypid: Raypid, in_process: Raypid, tmp_path: Path) -> None:
    done = raypid(*TRAIN, *stop(3), "--lr", 3e-4, "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("PPO on fragile:Fragile", "training_iteration", "raypid eval run"))
    # the same again is refused, --overwrite starts anew
    again = in_process(*TRAIN, *stop(2), "--out", "run")
    assert again.returncode == 2 and "--overwrite" in again.stderr and len(results(tmp_path / "run")) == 3
    assert in_process(*TRAIN, *stop(2), "--lr", 3e-4, "--out", "run", "--overwrite", "--quiet").returncode == 0
    assert len(results(tmp_path / "run")) == 2
    # go on twice; a new setting wins; both spellings of an option
    done = in_process("train", "--resume", "run", *stop(4), "--lr", "1e-5", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert in_process("train", "--resume=run", "--num_envs_per_worker=3", *stop(5), "--quiet").returncode == 0
    rows = results(tmp_path / "run")
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["learner/lr"] for row in rows] == pytest.approx([3e-4, 3e-4, 1e-5, 1e-5, 1e-5])
    # evaluate
    done = in_process("eval", "run", "--episodes", 3, "--json")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("\n") == 1
    line = json.loads(done.stdout)
    assert line["episodes"] == 3 and line["env"] == "fragile:Fragile" and line["algorithm"] == "PPO"
    assert {"episode_reward_mean", "episode_reward_ci95", "weights_version"} <= line.keys()
    assert json.loads(in_process("eval", "run", "--episodes", 3, "--json").stdout) == line
    # a curve
    done = in_process("plot", "run", "--out", "curve.svg")
    assert done.returncode == 0 and "<svg" in (tmp_path / "curve.svg").read_text()


def test_a_run_with_replay_then_resume(in_process: Raypid, tmp_path: Path) -> None:
    small = (
        "--model.hidden",
        "[16,16]",
        "--start-steps",
        50,
        "--start-episodes",
        0,
        "--steps-per-iteration",
        100,
        "--batch-size",
        16,
        "--seed",
        0,
    )
    arguments = ("--run", "SAC", "--env", "Pendulum-v1", *small, "--samples-per-insert", 4, "--final-episodes", 0)
    done = in_process(
        "train", *arguments, *stop(3), "--evaluation-interval", 0, "--evaluation-num-episodes", 1, "--out", "run"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SAC on Pendulum-v1" in done.stdout
    rows = results(tmp_path / "run")
    assert rows[-1]["learner/samples_per_insert"] == pytest.approx(4, rel=0.05)
    assert rows[-1]["learner_updates_total"] > 50 and rows[-1]["learner/replay_rows"] > 230
    newest = tmp_path / "run" / "checkpoints" / "checkpoint_000003" / "replay"
    assert newest.is_dir() and list((tmp_path / "run").rglob("replay")) == [newest]
    done = in_process("train", "--resume", "run", *stop(4), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rows = results(tmp_path / "run")
    assert len(rows) == 4 and rows[-1]["learner/replay_rows"] > 320  # the buffer came along
    checkpoints = tmp_path / "run" / "checkpoints"
    assert list((tmp_path / "run").rglob("replay")) == [checkpoints / "checkpoint_000004" / "replay"]


def test_what_a_run_chose_by_its_environment_is_said_in_a_line(in_process: Raypid) -> None:
    small = ("--start-steps", 50, "--steps-per-iteration", 100, "--batch-size", 16, "--seed", 0, "--final-episodes", 0)
    train = ("train", "--run", "SAC", "--env", "CartPole-v1", *small, "--evaluation-interval", 0)
    lines = {
        "out": in_process(*train, "--normalize-observations", "null", *stop(1), "--out", "out"),
        "given": in_process(*train, "--normalize-observations", "true", *stop(1), "--out", "given"),
        "resumed": in_process("train", "--resume", "out", *stop(2)),
        "default": in_process(*train, *stop(1), "--out", "default"),
    }
    said = {}
    for name, done in lines.items():
        assert (done.returncode, done.stderr) == (0, "")
        said[name] = [line for line in done.stdout.splitlines() if line.startswith("Adapted:")]
    line = "Adapted: normalize_observations true (--explain says why)."
    assert said == {"out": [line], "given": [], "resumed": [], "default": [line]}


def test_list_names_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "agents"]) == 0
    text = capsys.readouterr().out.split()
    assert {"PPO", "A2C", "DQN", "Rainbow", "ApeX", "SQN", "SAC", "TD3", "DDPG"} <= set(text)


def test_the_last_lines_show_the_best_policy(in_process: Raypid) -> None:
    done = in_process(*TRAIN, *stop(2), "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\nbest policy +10\.0 (±|\+-) 0\.0 \(50 episodes, weights of step \d+\)\n", done.stdout), (
        done.stdout
    )
    done = in_process(*TRAIN, *stop(2), "--out", "other", "--final-episodes", 0)
    assert re.search(r"\nbest policy +10\.0 in evaluation \(weights of step \d+\)\n", done.stdout), done.stdout


@pytest.mark.ci_slow
def test_a_ray_run(start: Callable[..., Any], tmp_path: Path) -> None:
    config = {"num_workers": 2, "num_cpus_per_worker": 0.1, "evaluation_parallel": True}
    command = start(*TRAIN, *stop(2), "--config", json.dumps(config), "--out", "run")
    done = command.finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("starting Ray ...\nraypid PPO on ")
    assert re.search(r"\ntook +[\d.]+ s: .*[\d.]+ s starting Ray", done.stdout), done.stdout
    assert "backend ray" in done.stdout and "raylet" not in done.stdout
    assert "50 episodes" in done.stdout
    command.assert_nothing_left()
    rows = results(tmp_path / "run")
    assert rows[1]["timesteps_total"] > 2 * 2 * 2 * 16 * 0.9
    assert json.loads((tmp_path / "run" / "params.json").read_text())["num_workers"] == 2


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cartpole") / "run"
    arguments = ["--stop", '{"training_iteration": 4}', "--quiet", "--out", str(folder), "--evaluation-interval", "0"]
    assert main(["train", "--run", "PPO", "--env", "CartPole-v1", *SMALL, *arguments]) == 0
    return folder


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_videos_play(ending: str, cartpole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    imageio = pytest.importorskip("imageio.v3")
    pillow = pytest.importorskip("PIL.Image")
    film = tmp_path / "films" / f"film.{ending}"  # the folder is made
    assert main(["eval", str(cartpole), "--episodes", "1", "--seed", "2", "--json", "--video", str(film)]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    frames = imageio.imread(film, index=None) if ending == "gif" else list(imageio.imiter(film))
    length = json.loads(out)["episode_len_mean"]  # it films the episode that was played
    seconds = 0.0
    if ending == "gif":
        with pillow.open(film) as picture:
            for i in range(picture.n_frames):
                picture.seek(i)
                seconds += picture.info["duration"] / 1000
    assert length / 50 == pytest.approx(
        seconds if ending == "gif" else len(frames) / imageio.immeta(film)["fps"], abs=0.01
    )
    assert len(frames) == length if ending == "mp4" else 0 < len(frames) <= length  # GIF joins equal frames
    assert frames[0].shape[0] >= 100 and frames[0].std() > 0 and (frames[0] != frames[-1]).any()


@pytest.mark.parametrize(
    ("video", "said"),
    [
        ("", "takes a file that ends in .mp4 or .gif, not ''"),
        ("films", "takes a file that ends in .mp4 or .gif, not 'films'"),
        ("a.avi", "takes a file that ends in .mp4 or .gif, not 'a.avi'"),
        ("nowhere/at/all.mp4", "there is no folder 'nowhere'"),
        ("http://x/y.mp4", "there is no folder 'http:'"),
    ],
)
def test_a_video_that_cannot_be_is_refused_first(
    video: str,
    said: str,
    cartpole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("films").mkdir()
    assert main(["eval", str(cartpole), f"--video={video}"]) == 2
    assert said in capsys.readouterr().err
    assert [str(path) for path in tmp_path.rglob("*")] == [str(tmp_path / "films")]


def test_a_render_that_raises_is_one_line(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    def render(self: CartPoleEnv) -> None:
        raise RuntimeError("no context")

    monkeypatch.setattr(CartPoleEnv, "render", render)
    assert main(["eval", str(cartpole), "--video", str(tmp_path / "a.MP4")]) == 2
    assert (
        capsys.readouterr().err == "raypid: CartPole-v1 cannot be filmed: its render raised RuntimeError: no context\n"
    )


def test_a_finished_run_suggests_commands_that_do_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "--stop", '{"timesteps_total": 300}', "--out", "with space/run", "--final-episodes", "2"]
    assert main(["train", "--run", "PPO", "--env", "CartPole-v1", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    took = next(line for line in lines if line.startswith("took "))
    whole, *parts = [float(number) for number in re.findall(r"([\d.]+) s", took)]
    assert sum(parts) == pytest.approx(whole) and "s training" in took
    start = next(i for i, line in enumerate(lines) if line.startswith("next "))
    commands = [shlex.split(line.removeprefix("next"))[1:] for line in lines[start:]]
    assert [command[0] for command in commands] == ["eval", "train"]
    before = results(Path("with space/run"))[-1]["timesteps_total"]
    assert main([*commands[1], "--quiet", "--final-episodes", "0"]) == 0
    assert results(Path("with space/run"))[-1]["timesteps_total"] > before
    assert main([*commands[0], "--episodes", "1", "--json"]) == 0


def test_what_a_run_suggests_is_longer_than_it_was() -> None:
    stop = {"timesteps_total": 60_000.0, "evaluation/episode_reward_mean": 475.0}
    assert further(stop, {"timesteps_total": 60_848}) == {**stop, "timesteps_total": 120_000}
    assert further({"timesteps_total": 1000.0}, {"timesteps_total": 52_269})["timesteps_total"] > 52_269
    reached = {"evaluation/episode_reward_mean": 475.0, "time_total_s": 60.0}
    assert further(reached, {"timesteps_total": 12_345, "time_total_s": 3.0}) == {"timesteps_total": 25_000}
    both = {"timesteps_total": 12_345, "time_total_s": 61.0, "evaluation/episode_reward_mean": 480.0}
    assert further(reached, both) == {"time_total_s": 120}  # the return would end it at its next evaluation
    assert further({"episode_reward_mean": 1.0}, {"timesteps_total": 3}) == {"timesteps_total": 6}


def test_explore_differs_from_greedy(cartpole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    means = []
    for more in ([], ["--explore"]):
        assert main(["eval", str(cartpole), "--episodes", "20", "--json", *more]) == 0
        means.append(json.loads(capsys.readouterr().out)["episode_reward_mean"])
    assert means[0] != means[1]
    assert main(["eval", str(cartpole), "--episodes", "2", "--explore"]) == 0
    assert "sampled" in capsys.readouterr().out


def test_init_from_and_config_file(cartpole: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("lr: 1e-4\nmodel:\n  hidden: [64, 64]\nenv: CartPole-v1\n")
    out = tmp_path / "run"
    arguments = ["--config", str(tmp_path / "settings.yaml"), "--gamma", "0.9", "--init-from", str(cartpole)]
    assert main(["train", "--run", "A2C", *SMALL, *stop(1), *arguments, "--quiet", "--out", str(out)]) == 0
    params = json.loads((out / "params.json").read_text())
    assert (params["lr"], params["gamma"], params["run"]) == (1e-4, 0.9, "A2C")


def test_the_settings_of_a_run_name_its_algorithm_and_its_end(cartpole: Path, tmp_path: Path) -> None:
    file = str(cartpole / "params.json")
    before = json.loads((cartpole / "params.json").read_text())
    out = ["--quiet", "--final-episodes", "0", "--overwrite", "--out", str(tmp_path / "again")]
    assert main(["train", "--config", file, "--clip", "0.1", "--stop", '{"training_iteration": 1}', *out]) == 0
    after = json.loads((tmp_path / "again" / "params.json").read_text())
    assert {key for key in before if before[key] != after[key]} - {"stop", "signature"} == {"clip"}


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    for what, word in (("envs", "CartPole-v1"), ("networks", "mlp"), ("agents", "PPO"), ("tuned", "CartPole-v1")):
        assert main(["list", what]) == 0
        assert word in capsys.readouterr().out


_SCRIPT = """
import gymnasium, numpy as np, raypid, sys
class Mine(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed); self.t = 0; return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1; return np.zeros(2, np.float32), 1.0, False, self.t >= 7, {"success": 1.0}
class Success(raypid.Callbacks):
    def on_episode_end(self, info):
        return {"success": info["success"]}
def make(worker_index, stream_index): return Mine()
if __name__ == "__main__":
    num_workers = int(sys.argv[1])
    more = {"num_cpus_per_worker": 0.1} if num_workers else {}
    for env in (Mine, make):
        with raypid.PPO(env=env, num_workers=num_workers, callbacks=Success, fragment_length=16, **more) as agent:
            result = agent.train()
            print(agent.backend.name, result["episode_len_mean"], result["custom/success"])
            path = agent.save("saved")
    raypid.load_policy(path).act(np.zeros((1, 2), np.float32))
"""


@pytest.mark.parametrize(("num_workers", "backend"), [(0, "local"), pytest.param(1, "ray", marks=pytest.mark.slow)])
def test_environments_and_callbacks_of_a_script(
    num_workers: int, backend: str, start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_SCRIPT)
    command = start(num_workers, python="mine.py")
    done = command.finish()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{backend} 7.0 1.0\n" * 2, "")
    command.assert_nothing_left()
    # on the command line such an environment is not there any more, and that is said
    assert main(["eval", str(tmp_path / "saved")]) == 2


def test_callbacks_and_stop_by_name(in_process: Raypid, tmp_path: Path) -> None:
    callbacks = ("--callbacks", "fragile:Metrics", "--env", "fragile:Fragile")
    done = in_process("train", "--run", "A2C", *callbacks, *SMALL, "--stop", '{"custom/twice": 4}', "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "custom/twice reached 4" in done.stdout
    assert [row["twice"] for row in results(tmp_path / "run")] == [2, 4]


def test_the_hook_gets_the_outcome_before_the_agent_is_closed(in_process: Raypid, tmp_path: Path) -> None:
    text = (
        "import json, raypid\n"
        "class Told(raypid.Callbacks):\n"
        "    def on_end(self, outcome):\n"
        "        json.dump([outcome.reason, outcome.final, str(outcome.checkpoint)], open('told.json', 'w'))\n"
    )
    (tmp_path / "told.py").write_text(text)
    words = ("--run", "PPO", "--env", "CartPole-v1", "--fragment-length", 16, "--final-episodes", 2, "--quiet")
    done = in_process("train", *words, *stop(2), "--out", "run", "--callbacks", "told.py:Told")
    assert (done.returncode, done.stderr) == (0, "")
    reason, final, saved = json.loads((tmp_path / "told.json").read_text())
    assert reason == "training_iteration reached 2" and final["episodes"] == 2 and saved.endswith("checkpoint_000002")
    (tmp_path / "told.json").unlink()
    assert in_process("train", "--resume", "run", *stop(3), "--callbacks", "none", "--quiet").returncode == 0
    assert not (tmp_path / "told.json").exists()
    params = json.loads((tmp_path / "run/params.json").read_text())
    assert params["callbacks"] is None and params["stop"] == {"training_iteration": 3}


def test_what_quiet_leaves_out(in_process: Raypid) -> None:
    words = (
        "--run",
        "SAC",
        "--env",
        "Pendulum-v1",
        "--start-steps",
        64,
        "--batch-size",
        16,
        "--steps-per-iteration",
        64,
    )
    done = in_process("train", *words, "--stop", "iterations=1", "--out", "run", "--final-episodes", 0, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
