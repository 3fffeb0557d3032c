"""What benchmarks/record.py records: runs, command lines, and pairs of algorithm and environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ITERATIONS = 20
Settings = Mapping[str, object]
MODEL = {"seed": 1, "vectorizer": "sync", "num_envs_per_worker": 2, "fragment_length": 16}
SMALL = {"seed": 1, "vectorizer": "sync", "num_envs_per_worker": 2, "model.hidden": [8]}
ROWS = {**SMALL, "fragment_length": 16, "batch_size": 16}
GRADIENTS = {**SMALL, "fragment_length": 16}
REPLAY = {
    **SMALL, "fragment_length": 1, "start_steps": 32, "steps_per_iteration": 32, "batch_size": 8, "samples_per_insert": 1, "buffer_size": 512,
}  # fmt: skip
SEQUENCES = {**REPLAY, "fragment_length": 8, "model.memory_size": 4, "burn_in": 2, "sequence_length": 4}
EPISODES = {**SMALL, "population": 4, "time_limit": 50}
TWO = {"num_workers": 2, "backend": "local"}
POLE, CART, ARM, CATCH = "CartPole-v1", "raypid/PositionCartPole-v0", "Pendulum-v1", "raypid/Catch-v0"
PICTURE = {"model.network": "cnn", "model.channels": [4]}

LOCAL: dict[str, tuple[str, str, Settings]] = {
    "PPO": ("PPO", POLE, ROWS),
    "PPO torch": ("PPO", POLE, {**ROWS, "kernel": "torch"}),
    "PPO two workers": ("PPO", POLE, {**ROWS, **TWO}),
    "PPO continuous": ("PPO", ARM, ROWS),
    "PPO image": ("PPO", CATCH, {**ROWS, **PICTURE}),
    "PPO frame_stack": ("PPO", CART, {**ROWS, "frame_stack": 4}),
    "PPO lstm": ("PPO", CART, {**ROWS, "model.memory": "lstm", "model.memory_size": 4}),
    "PPO gru shared": ("PPO", CART, {**ROWS, "model.memory": "gru", "model.memory_size": 4, "model.shared": True}),
    "PPO Dict": ("PPO", "raypid/DictCartPole-v0", {**ROWS, "normalize_observations": True}),
    "PPO MultiDiscrete": ("PPO", "raypid/MultiMatch-v0", ROWS),
    "PPO discrete": ("PPO", "FrozenLake-v1", ROWS),
    "PPO schedules": (
        "PPO", POLE,
        {**ROWS, "lr_schedule": "linear", "clip_schedule": "linear", "schedule_steps": 500, "optimizer": "rmsprop"},
    ),
    "PPO rewards": ("PPO", ARM, {**ROWS, "noise_persistence": 1.0, "normalize_rewards": False, "reward_clip": 1.0, "time_limit": 30}),
    "PPO rnd": ("PPO", POLE, {**ROWS, "intrinsic_reward": "rnd"}),
    "PPO evaluated": ("PPO", POLE, {**ROWS, "evaluation_interval": 5, "evaluation_num_episodes": 2}),
    "PPO native": ("PPO", POLE, {**ROWS, "vectorizer": "native"}),
    "PPO threads": ("PPO", ARM, {**ROWS, "vectorizer": "threads"}),
    "PPO squashed": ("PPO", ARM, {**ROWS, "model.distribution": "squashed_gaussian", "action_noise": 0.1}),
    "PPO cut": ("PPO", POLE, {**ROWS, "time_limit": 20, "action_repeat": 2, "observation_noise": 0.1}),
    "PPO kl": ("PPO", POLE, {**ROWS, "target_kl": 1e-4, "value_clip": 0.2, "normalize_observations": True, "model.activation": "relu"}),
    "PPO resnet": ("PPO", CATCH, {**ROWS, "model.network": "resnet", "model.channels": [4]}),
    "A2C": ("A2C", POLE, ROWS),
    "A2C gru": ("A2C", CART, {**ROWS, "model.memory": "gru", "model.memory_size": 4}),
    "A2C torch": ("A2C", POLE, {**ROWS, "kernel": "torch"}),
    "A3C": ("A3C", POLE, {**GRADIENTS, **TWO}),
    "A3C torch": ("A3C", POLE, {**GRADIENTS, **TWO, "kernel": "torch"}),
    "IMPALA": ("IMPALA", POLE, {**ROWS, **TWO}),
    "IMPALA torch": ("IMPALA", POLE, {**ROWS, **TWO, "kernel": "torch"}),
    "IMPALA lstm": ("IMPALA", CART, {**ROWS, **TWO, "model.memory": "lstm", "model.memory_size": 4}),
    "APPO": ("APPO", POLE, {**ROWS, **TWO}),
    "APPO continuous": ("APPO", ARM, {**ROWS, **TWO}),
    "APPO torch": ("APPO", POLE, {**ROWS, **TWO, "kernel": "torch"}),
    "DQN": ("DQN", POLE, REPLAY),
    "DQN image": ("DQN", CATCH, {**REPLAY, **PICTURE}),
    "DQN prioritized": ("DQN", POLE, {**REPLAY, "prioritized": True, "n_step": 3, "frame_stack": 2}),
    "Rainbow": ("Rainbow", POLE, REPLAY),
    "ApeX": ("ApeX", POLE, {**REPLAY, **TWO, "fragment_length": 32, "num_replay_shards": 0}),
    "R2D2": ("R2D2", CART, SEQUENCES),
    "SQN": ("SQN", POLE, REPLAY),
    "SAC": ("SAC", ARM, REPLAY),
    "SAC discrete": ("SAC", POLE, REPLAY),
    "SAC raw rewards": ("SAC", ARM, {**REPLAY, "normalize_rewards": False, "reward_scale": 0.1}),
    "SAC without targets": ("SAC", ARM, {**REPLAY, "critic_norm": "batch", "target_network": False}),
    "SAC normalised": ("SAC", ARM, {**REPLAY, "normalize_observations": True, "n_step": 3, "time_limit": 20}),
    "TD3": ("TD3", ARM, REPLAY),
    "DDPG": ("DDPG", ARM, REPLAY),
    "ES": ("ES", POLE, EPISODES),
    "ES image": ("ES", CATCH, {**EPISODES, **PICTURE}),
    "ARS": ("ARS", POLE, {**EPISODES, **TWO}),
    "CustomModel ppo": ("CustomModel", POLE, {**MODEL, "model.network": "ppo"}),
    "CustomModel a2c": ("CustomModel", POLE, {**MODEL, **TWO, "model.network": "a2c"}),
    "CustomModel foreign": ("CustomModel", POLE, {**MODEL, "model.network": "foreign:Reinforce"}),
}  # fmt: skip
DISTRIBUTED: dict[str, Any] = {
    "num_steps": 16, "num_actors": 2, "num_learners": 1, "num_storages": 4, "num_envs_per_worker": 2, "batch_size": 16,
    "hidden_dim": 8, "backend": "local", "seed": 1, "vectorizer": "sync",
}  # fmt: skip
"""Arguments of an IMPALAAgent."""
RAY = {"num_workers": 2, "num_cpus_per_worker": 0.5, "backend": "ray"}
IN_STEP: dict[str, tuple[str, str, Settings]] = {
    "PPO on Ray": ("PPO", POLE, {**ROWS, **RAY}),
    "PPO on Ray, parameter server": ("PPO", POLE, {**ROWS, **RAY, "parameter_server": True}),
    "PPO two learners": ("PPO", POLE, {**ROWS, **RAY, "num_learners": 2}),
    "A2C on Ray": ("A2C", POLE, {**ROWS, **RAY}),
    "A2C two learners": ("A2C", POLE, {**ROWS, **RAY, "num_learners": 2}),
}
"""Runs on Ray whose workers are waited for, so that their weights are the same each time."""
OUT_OF_STEP: dict[str, tuple[str, str, Settings]] = {
    "A3C on Ray": ("A3C", POLE, {**GRADIENTS, **RAY}),
    "APPO on Ray": ("APPO", POLE, {**ROWS, **RAY, "num_learners": 1}),
    "SAC on Ray": ("SAC", ARM, {**REPLAY, **RAY, "fragment_length": 8}),
    "ApeX on Ray": ("ApeX", POLE, {**REPLAY, **RAY, "fragment_length": 32}),
    "ES on Ray": ("ES", POLE, {**EPISODES, **RAY}),
}
"""Runs on Ray of which only the names of results are recorded."""


FILES = {
    "nan_env.py": """
import gymnasium, numpy as np
class Line(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    reward, obs = 1.0, np.zeros(2, np.float32)
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        return self.obs, self.reward, False, self.steps == 20, {}
class NanReward(Line):
    reward = float("nan")
class NanObs(Line):
    obs = np.full(2, np.nan, np.float32)
class WrongShape(Line):
    obs = np.zeros(3, np.float32)
class Raises(Line):
    def step(self, action):
        raise RuntimeError("the motor is stuck")
class Old(Line):
    def step(self, action):
        return self.obs, 1.0, True, {}
class Text(Line):
    observation_space = gymnasium.spaces.Text(9)
""",
    "drone.py": "import nan_env\nclass Drone(nan_env.Line):\n    pass\n",
    "settings.yaml": "lr: 1e-3\nmodel: {hidden: [32, 32]}\n",
    "bad.yaml": "lr: [1e-3\nmodel: {hidden: [32, 32]}\n",
    "unknown.yaml": "lr: 1e-3\ngama: 0.9\n",
    "grid.yaml": "run: PPO\nenv: CartPole-v1\nstop: {training_iteration: 1}\nrepeat: 2\n"
    "config: {num_envs_per_worker: 2, fragment_length: 16, batch_size: 16, lr: {grid_search: [1e-3, 1e-4]}}\n",
    "wrong_grid.yaml": "run: PPO\nenv: CartPole-v1\nstop: {training_iteration: 1}\nconfig: {lr: {grid_search: [1, fast]}}\n",
    "empty/note.txt": "no run\n",
}
"""Files that every command finds in its folder."""
SHORTCUTS = {
    "PPO": "raypid train --run PPO --env CartPole-v1",
    "QUIET": "--quiet --final-episodes 0",
    "SMALL": "--num-envs-per-worker 2 --fragment-length 16 --batch-size 16 --seed 0 --quiet --final-episodes 0",
    "SHORT": "$SMALL --stop training_iteration=1",
    "SAC": "raypid train --run SAC --env Pendulum-v1 --num-envs-per-worker 2 --fragment-length 1 --start-steps 32 --steps-per-iteration 32 "
    "--batch-size 8 --samples-per-insert 1 --buffer-size 512 --seed 0 --quiet --final-episodes 2",
}
"""Variables of the shell in the commands below."""
RUNS = {
    "ppo": "$PPO $SMALL --evaluation-interval 2 --stop training_iteration=4 --checkpoint-interval 2",
    "sac": "$SAC --time-limit 20 --save-replay true --evaluation-interval 2 --checkpoint-interval 3 --stop training_iteration=3",
    "one": "$PPO $SHORT --evaluation-interval 0 --checkpoint-interval 1",
}
"""Runs that every command finds in runs/, by their folders."""
COMMANDS = """
# README and docs, with short budgets
raypid --version
raypid
raypid --help
raypid list agents
raypid list networks
raypid list envs cartpole
raypid list tuned
raypid train --help
raypid tune --help
raypid eval --help
raypid plot --help
raypid compare --help
raypid check-env --help
raypid doctor --help
$PPO $SHORT --out runs/new && ls runs/new
$PPO --tuned --seed 0 $QUIET --stop training_iteration=1
$PPO --config settings.yaml $SHORT
$PPO --config '{"lr": 0.001, "model": {"hidden": [32, 32]}}' $SHORT
$PPO --tuned --lr 0.01 --seed 0 --stop 20000 --explain
$PPO --seed 0 --explain all
raypid train --env drone.py --run PPO $SHORT
raypid train --run PPO --env drone:Drone --time-limit 5 $SHORT
raypid train --algo ppo --env CartPole-v1 --n-timesteps 64 $SMALL
$PPO $SMALL --timesteps 64
raypid train --config runs/ppo/params.json --seed 1 --stop training_iteration=1 $QUIET --out runs/again
raypid train --resume runs/ppo --stop training_iteration=5 $QUIET && wc -l < runs/ppo/result.json
$PPO $SMALL --stop training_iteration=4 --out runs/ppo --resume
$PPO $SMALL --evaluation-interval 2 --stop training_iteration=4 --checkpoint-interval 2 --out runs/ppo --resume
raypid train --resume runs/sac --stop training_iteration=4 $QUIET
$PPO $SHORT --out runs/ppo --overwrite --init-from runs/sac
$PPO $SHORT --out runs/new --init-from runs/one
raypid eval runs/ppo --episodes 3 --json --seed 5
raypid eval runs/ppo --episodes 3 --explore --seed 7
raypid eval runs/sac/checkpoints --episodes 2 --json --seed 5
raypid plot runs/ppo runs/one --out curves.png && ls *.png
raypid compare runs/ppo runs/one
raypid compare runs
raypid doctor runs/ppo
raypid doctor runs/sac | grep -v ^speed
raypid check-env CartPole-v1 --no-speed
raypid check-env drone.py --no-speed --json
raypid check-env nan_env:NanObs --no-speed
raypid check-env nan_env:WrongShape --no-speed
raypid train -f grid.yaml --dry-run
raypid train -f cartpole-grid.yaml --dry-run
raypid train -f settings.yaml
raypid reproduce PPO:Nowhere-v1
raypid completion bash
raypid init corridor && cd corridor && ls && raypid train --env_name custom_env --agent_name custom_agent \
--model_name custom_model --lr 0.1 --stop 600 --seed 0 $QUIET --out first && ls first
raypid train --env_name gym_env --agent_name default_agent --model_name ppo --num_envs_per_worker 3 \
--num_workers 3 --gpu "0,1,2" --num_gpus 3 --num_cpus 8 --batch_size 10
# wrong names and values
raypid trian
raypid train
raypid train --run PPO
raypid train --run PPOO --env CartPole-v1
$PPO surplus
raypid train --run PPO --env CartPol-v1
raypid train --run PPO --env CartPole
raypid train --run PPO --env nowhere:Env
raypid train --run PPO --env drone
raypid train --run PPO --env missing.py
raypid train --run PPO --env nan_env.py
raypid train --run PPO --env nan_env:Nothing
raypid train --run PPO --env nan_env:Text
$PPO --gama 0.9
$PPO --lr abc
$PPO --lr
$PPO --lr -1
$PPO --gamma 1.5
$PPO --num-workers 1.5
$PPO --vectorizer fast
$PPO --model.hiden [8]
$PPO --model.network transformr
$PPO --config bad.yaml
$PPO --config unknown.yaml
$PPO --config missing.yaml
$PPO --config '{"lr": }'
$PPO --stop '{"episode_rewards": 1}'
$PPO --stop '{"learner/entropi": 1}'
$PPO --stop timesteps_total=x
$PPO --env-config '{"no_such": 1}'
$PPO --reward-scale 0.1
$PPO --model.channels [8]
$PPO --schedule-end 0.1
$PPO --lr-schedule linear
$PPO --overwrite
$PPO --tuned nothing
$PPO --callbacks drone:Drone
$PPO --num-threads 5000
raypid train --run A3C --env CartPole-v1 --batch-size 64
raypid train --run ES --env CartPole-v1 --gamma 0.9
raypid train --run DQN --env Pendulum-v1
raypid train --run TD3 --env CartPole-v1
raypid train --run SAC --env Pendulum-v1 --buffer-size 10
raypid train --run Nothing:Here --env CartPole-v1
# what the machine lacks
$PPO --num-workers 64 --out runs/a
$PPO --num-workers 3 --num-cpus 2
$PPO --num-gpus 64
$PPO --num-learners 4
$PPO --num-workers 1 --address 127.0.0.1:9
$PPO --address auto
raypid train --run ApeX --env CartPole-v1 --num-workers 0
$PPO --num-workers 64 --fit --seed 0 --explain
$PPO --device cuda
# environments that fail, and numbers
raypid train --run PPO --env nan_env:NanReward $SHORT
raypid train --run PPO --env nan_env:NanObs $SHORT
raypid train --run PPO --env nan_env:WrongShape $SHORT
raypid train --run PPO --env nan_env:Raises $SHORT
raypid train --run PPO --env nan_env:Old $SHORT
$SAC --lr 1e30 --stop training_iteration=9
# folders and files
$PPO $SHORT --out runs/ppo
$PPO --out settings.yaml
raypid train --resume nowhere
raypid train --resume empty
raypid train --resume runs/pppo
raypid train --resume runs/ppo --run A2C
raypid train --resume runs/ppo --out other
raypid train --resume runs/ppo --gama 1
raypid train --resume runs/ppo --overwrite
raypid train --resume runs/ppo --tuned
raypid train --resume damaged/cut --stop training_iteration=9
raypid train --resume damaged/byte --stop training_iteration=9
raypid train --resume damaged/half --stop training_iteration=9
raypid train --resume damaged/later --stop training_iteration=9
raypid train --config damaged/theirs/params.json --out runs/new
raypid train --resume saved/custom_model --stop training_iteration=9
raypid eval nowhere
raypid eval
raypid eval runs/ppo --episodes 0
raypid eval runs/ppo --env Acrobot-v1
raypid eval damaged/cut_policy
raypid plot nowhere
raypid compare runs/ppo
raypid doctor empty
raypid doctor damaged/cut
raypid list robots
raypid check-env nowhere:Env
raypid train -f bad.yaml
raypid train -f wrong_grid.yaml
raypid train -f missing.yaml
raypid tune --run PPO
raypid tune --run PPO --env CartPole-v1 --trials 0
# sweeps
raypid train -f grid.yaml --quiet --max-concurrent 2 --out runs/grid && find runs/grid -name params.json | sort
"""
"""Command lines, each run in a folder of its own."""
EVERY_HELP = "raypid train --run {} --help-all"
"""Recorded for each algorithm."""

EXPLAINED = """
PPO: CartPole-v1 LunarLander-v3 HalfCheetah-v5 Hopper-v5 Pendulum-v1 FrozenLake-v1 MountainCarContinuous-v0 ALE/Pong-v5
PPO: raypid/Catch-v0 raypid/PositionCartPole-v0 raypid/DictCartPole-v0 raypid/MultiMatch-v0
PPO --tuned: CartPole-v1 raypid/PositionCartPole-v0
PPO --num-workers 2: CartPole-v1
PPO --config settings.yaml --lr 0.01 --model.memory lstm: CartPole-v1
A2C: CartPole-v1 Reacher-v5
A3C: LunarLanderContinuous-v3
IMPALA: ALE/Pong-v5 Ant-v5
IMPALA --num-workers 2 --num-learners 1 --fit: CartPole-v1
APPO: Pendulum-v1 HalfCheetah-v5
DQN: CartPole-v1 LunarLander-v3 ALE/Pong-v5
DQN --tuned: CartPole-v1
Rainbow: CartPole-v1 ALE/Pong-v5
ApeX --num-workers 2: CartPole-v1
R2D2: raypid/TMaze-v0
SQN: CartPole-v1
SAC: Pendulum-v1 HalfCheetah-v5 CartPole-v1
TD3: Pendulum-v1 HalfCheetah-v5
DDPG: Pendulum-v1
ES: CartPole-v1 Swimmer-v5
ARS: Hopper-v5
CustomModel --model_name ppo: CartPole-v1
"""
"""Algorithms and options, and the environments with which each is explained."""
