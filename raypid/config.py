"""What every algorithm shares: `Config`, and the network's `ModelConfig`. An algorithm's own Config inherits from it and
lies beside the algorithm."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raypid.settings import (
    ALIASES,
    ELSEWHERE,
    ConfigError,
    Settings,
    alias_of,
    coerce,
    describe_type,
    field_docs,
    load_file,
    overlay,
    parse_value,
    type_hints,
)

__all__ = [  # of settings.py, for everybody
    "Config",
    "ModelConfig",
    "divides",
    "ALIASES",
    "ELSEWHERE",
    "ConfigError",
    "Settings",
    "alias_of",
    "coerce",
    "describe_type",
    "field_docs",
    "load_file",
    "overlay",
    "parse_value",
    "type_hints",
]


@dataclass(kw_only=True, slots=True)
class ModelConfig(Settings):
    """The network. Which one fits a space is chosen by `raypid.nn.catalog` where `network` is auto."""

    network: str = "auto"
    """auto, mlp, cnn (sized to the image; Nature's for 84x84), resnet (IMPALA's), lstm or gru (mlp with that memory), or the name of a registered
    torch.nn.Module."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers (after the convolutions, where there are any)."""
    channels: tuple[int, ...] = ()
    """Output channels of the convolutions; empty: as published (cnn 32, 64, 64; resnet 16, 32, 32). Fewer are faster: 16, 32 for Pong."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation of the fully connected layers; convolutions use ReLU."""
    memory: Literal["none", "lstm", "gru"] = "none"
    """A recurrent layer between the trunks and the heads of any network, one for each trunk, for what a single observation does not show."""
    memory_size: int = 64
    """Units of the recurrent layer."""
    shared: bool = False
    """One trunk for policy and value instead of two. Image networks always share their convolutions."""
    distribution: Literal["auto", "gaussian", "squashed_gaussian", "deterministic"] = "auto"
    """Distribution of continuous actions; auto is a diagonal Gaussian."""
    log_std_init: float = 0.0
    """Initial log standard deviation of a Gaussian."""
    custom: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for a registered network."""

    @property
    def cell(self) -> str:
        """The memory that is asked for, by either name: lstm, gru, or "" for none.

        Raises:
            ConfigError: two different ones, or one without units.
        """
        named = self.network if self.network in ("lstm", "gru") else ""
        if named and self.memory not in ("none", named):
            raise ConfigError(
                f"model.network {named!r} is an mlp with that memory, model.memory asks for {self.memory!r}: set one of them."
            )
        if self.memory_size < 1:
            raise ConfigError(f"model.memory_size must be at least 1, not {self.memory_size}.")
        return named or ("" if self.memory == "none" else self.memory)


@dataclass(kw_only=True, slots=True)
class Config(Settings):
    """What every algorithm shares."""

    env: Any = None
    """Environment: an id (CartPole-v1, ALE/Pong-v5), "envpool:Pong-v5", "module:Name", a registered name, a class or a function."""
    env_config: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorizer: Literal["auto", "native", "envpool", "ale", "sync", "threads", "async"] = "auto"
    """How a worker steps its environments; auto takes the fastest that fits: its own vector entry point, ALE's, or sync (threads, where it waits)."""
    num_workers: int = 0
    """Rollout workers. 0: everything in this process, without Ray."""
    num_envs_per_worker: int = 8
    """Environments that one worker steps side by side."""
    num_learners: int = 0
    """0: the learner lives in this process; 1: an actor of its own (for ray:// and GPU nodes); N: data-parallel actors that learn what one would."""
    parameter_server: bool = False
    """On Ray, weights go through an actor of their own, one on each node that has workers: these pull the newest with every fragment, the evaluator
    whenever it is free. false: they go along with each call by reference, which Ray caches on each node."""
    num_cpus: float | None = None
    """CPUs to start Ray with; none: all."""
    num_gpus: float = 0
    """GPUs of the learner, or of all learners together; 0 learns on the CPU."""
    num_cpus_per_worker: float = 1
    """CPUs that each rollout worker reserves; fractions are allowed."""
    backend: Literal["auto", "local", "ray"] = "auto"
    """auto: ray where num_workers > 0; local runs the same roles in turn in this process (PPO and A2C: with the same numbers)."""
    address: str | None = None
    """A running Ray cluster to join ("auto", "host:6379", "ray://host:10001"); none starts Ray here."""
    fit: bool = False
    """Shrink num_workers and num_gpus to what there is, and say so, instead of stopping."""
    seed: int | None = None
    """Seed of everything; none draws one (it is written to params.json)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network."""
    device: str = "auto"
    """Where the learner computes: auto, cpu, cuda, cuda:1. auto: cuda where num_gpus > 0."""
    kernel: Literal["auto", "numpy", "torch"] = "auto"
    """How small fully connected networks learn: a hand-written NumPy kernel or torch autograd; auto takes the faster."""
    num_threads: int = 0
    """Threads of the learner; 0: all cores for convolutions and layers of 256 and more, else one, which is faster then."""
    fragment_length: int = 128
    """Rows that one call collects from each environment."""
    batch_size: int = 256
    """Rows in one gradient step."""
    lr: float = 3e-4
    """Learning rate."""
    gamma: float = 0.99
    """Discount."""
    normalize_observations: bool = False
    """Subtract the running mean and divide by the running deviation of each element (merged over workers, saved, frozen in evaluation)."""
    normalize_rewards: bool = False
    """Divide rewards, in the learner, by the running deviation of the discounted return."""
    reward_scale: float = 1.0
    """Factor on rewards in the learner; reported returns stay raw."""
    reward_clip: float | None = None
    """Clip rewards to [-x, x] in the learner; reported returns stay raw."""
    frame_stack: int = 1
    """The policy sees the last k observations."""
    atari: bool | None = None
    """Atari preprocessing (84x84 grey, frame skip 4, no-op starts, in ALE's own code); none: yes for ALE/ ids."""
    action_repeat: int = 1
    """Repeat each action this many times and add up the rewards."""
    time_limit: int | None = None
    """Truncate episodes after this many steps."""
    observation_noise: float = 0.0
    """Standard deviation of Gaussian noise that training adds to float observations."""
    action_noise: float = 0.0
    """Standard deviation of Gaussian noise that training adds to continuous actions, in units of the canonical action (1 is half the range)."""
    callbacks: Any = None
    """A `raypid.Callbacks` subclass, its instance, or "module:Name"."""
    evaluation_interval: int | None = None
    """Training iterations between evaluations; 0: never; none: `raypid train` evaluates in up to a tenth of the time, the Python API not at all."""
    evaluation_env: Any = None
    """Environment of evaluations, given as env is (without env_config), with the same spaces; none: the one that is trained on."""
    evaluation_num_episodes: int = 10
    """Episodes of one evaluation."""
    evaluation_parallel: bool | None = None
    """On Ray, evaluate in a process of its own while training goes on; none: where a CPU is to spare. Else training waits."""
    init_from: str | Path | None = None
    """Checkpoint, run folder or policy folder whose weights training starts from. It may also be called weights_file."""
    exact_resume: bool = False
    """Make a save an episode boundary, so that a resumed run equals an uninterrupted one bit for bit; on Ray that holds for PPO and A2C alone, whose
    workers are heard in turn."""
    worker_timeout_s: float = 300.0
    """Seconds that one call of a worker on Ray may take before it is killed and replaced, and that one of several learners waits for another."""
    max_restarts: int = 10
    """Replaced workers, and rebuilt environments of one worker, after which the run stops with the first traceback."""

    def validate(self) -> None:
        """Check what types cannot say.

        Raises:
            ConfigError: a value out of range.
        """
        for name, low in _MINIMUM.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value!r}.")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma must lie in [0, 1], not {self.gamma!r}.")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"lr must be above 0, not {self.lr!r}.")
        if not math.isfinite(self.reward_scale):
            raise ConfigError(f"reward_scale must be a finite number, not {self.reward_scale!r}.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", self.device):
            raise ConfigError(f"device is auto, cpu, cuda, cuda:N or mps, not {self.device!r}.")
        if self.num_learners > max(1, self.num_workers):
            raise ConfigError(
                f"num_learners must be at most num_workers, not {self.num_learners} for {self.num_workers}: each learner learns from "
                f"workers of its own. Set num_workers to {self.num_learners} or more."
            )
        if not divides(self.num_gpus, self.num_learners):
            raise ConfigError(
                f"num_gpus {self.num_gpus:g} cannot be divided among {self.num_learners} learners: "
                "take a multiple of num_learners, or a whole fraction."
            )
        if self.num_learners and self.backend == "auto" and not self.num_workers:
            raise ConfigError("num_learners 1 is an actor on Ray: set num_workers, or backend ray.")
        if self.evaluation_parallel and (self.backend == "local" or (self.backend == "auto" and not self.num_workers)):
            raise ConfigError(
                "evaluation_parallel is a process of its own on Ray, beside workers: set num_workers, or backend ray."
            )
        if self.parameter_server and (self.backend == "local" or (self.backend == "auto" and not self.num_workers)):
            raise ConfigError("parameter_server is an actor on Ray: set num_workers, or backend ray.")
        if self.backend == "local" and self.num_learners:
            raise ConfigError("backend local keeps the learner in this process: set num_learners to 0.")


def divides(num_gpus: float, num_learners: int) -> bool:
    """Can each learner have an equal part, of whole GPUs or within one?"""
    share = num_gpus / max(1, num_learners)
    if num_learners <= 1 or share == 0:
        return True
    return share == int(share) if share >= 1 else math.ceil(num_gpus) * int(1 / share + 1e-9) >= num_learners


_MINIMUM: dict[str, float] = {
    "num_workers": 0, "num_envs_per_worker": 1, "num_learners": 0, "num_gpus": 0, "num_cpus_per_worker": 0, "num_threads": 0,
    "fragment_length": 1, "batch_size": 1, "frame_stack": 1, "action_repeat": 1, "time_limit": 1, "observation_noise": 0,
    "action_noise": 0, "evaluation_interval": 0, "evaluation_num_episodes": 1, "worker_timeout_s": 1e-3, "max_restarts": 0,
    "reward_clip": 0, "seed": 0,
}  # fmt: skip
