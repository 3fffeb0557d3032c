"""R2D2: recurrent experience replay in distributed reinforcement learning (Kapturowski et al. 2019): DQN over sequences,
with the memory that the worker had at their beginning, and a burn-in that brings it up to date.

Axes: T = burn_in + sequence_length rows; N sequences; A actions; K, S of a memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raypid.algorithms.dqn import DQN, DQNConfig, TDLoss, huber
from raypid.algorithms.off_policy import Drawable
from raypid.nn.q_head import q_values
from raypid.settings.config import ConfigError, ModelConfig, unless
from raypid.settings.ranges import Choices, of_model, tunable
from raypid.types import Sample, Sequences, Tensor

if TYPE_CHECKING:
    from raypid.nn.networks import TorchInputs, TorchNetwork
    from raypid.nn.torch_cells import Memory

_EPSILON = 1e-3


@dataclass(kw_only=True, slots=True)
class R2D2Config(DQNConfig):
    """Settings of R2D2. `batch_size` counts learnt rows: batch_size / sequence_length sequences."""

    replays_sequences: ClassVar[bool] = True

    model: ModelConfig = field(
        default_factory=partial(ModelConfig, hidden=(64,), activation="relu", memory="lstm", shared=True),
        metadata=of_model(hidden=Choices(((64,), (128,), (256,)))),
    )
    """The network."""
    batch_size: int = tunable(512, 128, 2048, "powers of 2")
    dueling: bool = True
    prioritized: bool = True
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    sequence_length: int = tunable(32, 16, 64, "powers of 2")
    """Rows of a sequence that are learnt from (80 in the paper). Longer ones teach the memory to hold more of the past."""
    burn_in: int = tunable(8, 0, 40)
    """Rows before each sequence that only update the memory (40 in the paper). More bring it closer to that of the
    newest weights, but take longer."""
    priority_max_share: float = 0.9
    """Weight of the largest TD error in a sequence's priority (eta in the paper), which is eta * max |TD error| + (1 -
    eta) * mean |TD error|."""
    value_rescaling: bool = True
    """Learn h(Q) = sign(Q) (sqrt(|Q| + 1) - 1) + 0.001 Q, so that returns of every size can be learnt (Pohlen et al. 2018)."""

    no_effect = {
        **DQNConfig.no_effect,
        **dict.fromkeys(("num_atoms", "v_min", "v_max", "noisy"), "for R2D2, with plain values: take Rainbow"),
    }

    ranges = {
        "be at least 0": ("burn_in",),
        "be at least 1": ("sequence_length",),
        "lie in [0, 1]": ("priority_max_share",),
    }

    def own_idle(self) -> dict[str, str]:
        return unless(self.prioritized, "unless prioritized is true", "priority_max_share")

    def own_checks(self) -> None:
        if self.noisy:
            raise ConfigError("noisy has no effect for R2D2, with plain values and epsilon: take Rainbow.")
        if not self.model.cell:
            raise ConfigError("R2D2 needs a memory: set model.memory to lstm or gru, or take DQN.")
        if self.num_replay_shards or self.th_compile:
            raise ConfigError("R2D2 replays in the learner and is not compiled: no num_replay_shards, no th_compile.")
        if self.batch_size % self.sequence_length:
            raise ConfigError(f"batch_size {self.batch_size} is no multiple of sequence_length {self.sequence_length}.")

    def rows_to_start(self) -> int:
        """Return the number of rows after which every stream has sequences."""
        rows = self.burn_in + self.sequence_length + self.fragment_length
        return max(self.batch_size, 2 * rows * self.num_streams)


@dataclass(slots=True)
class SequenceBatch:
    """N sequences as tensors on the learner's device."""

    inputs: TorchInputs
    """[T+1, N, *]."""
    first: Tensor
    """[T+1, N] bool."""
    memory: Tensor
    """[N, K, S] before row 0."""
    action: Tensor
    """[T, N] int64."""
    reward: Tensor
    """[T, N]."""
    ended: Tensor
    """[T, N] bool: terminated or truncated."""
    terminated: Tensor
    valid: Tensor
    weight: Tensor
    """[N] importance weights."""

    def take(self, part: slice) -> SequenceBatch:
        """Select sequences."""
        names = ("first", "action", "reward", "ended", "terminated", "valid")
        columns = {name: getattr(self, name)[:, part] for name in names}
        inputs = self.inputs.take((slice(None), part))
        return SequenceBatch(inputs=inputs, memory=self.memory[part], weight=self.weight[part], **columns)


class R2D2(DQN):
    """Double Q-learning with n-step targets inside stored sequences (Kapturowski et al. 2019, section 2.3)."""

    Config = R2D2Config
    metric_names = DQN.metric_names
    config: R2D2Config
    several_learners = False

    @property
    def rows(self) -> int:
        """Sequences of a batch."""
        return self.config.batch_size // self.config.sequence_length

    def sample_from(self, replay: Drawable, num_updates: int, beta: float) -> Sequences:
        c = self.config
        return replay.sample_sequences(num_updates * self.rows, c.sequence_length, c.burn_in, beta)

    def tensors(self, sample: Sample | Sequences) -> SequenceBatch:  # type: ignore[override]
        from raypid.nn.networks import on_device

        move = partial(on_device, device=self.device)
        assert isinstance(sample, Sequences) and sample.memory is not None and isinstance(sample.action, np.ndarray)
        return SequenceBatch(
            self.inputs(sample.obs), move(sample.first), move(sample.memory),
            move(sample.action.astype(np.int64, copy=False)), move(sample.reward * self.reward_factor),
            move(sample.terminated | sample.truncated), move(sample.terminated), move(sample.valid), move(sample.weight),
        )  # fmt: skip

    def loss(self, b: SequenceBatch) -> TDLoss:  # type: ignore[override]
        """The weighted loss, each sequence's priority [N], and metrics: the mean of Q(s, a) over valid rows."""
        import torch

        c, burn, streams = self.config, self.config.burn_in, len(b.weight)
        inputs = b.inputs.take(slice(burn, None)).flatten()
        q = q_values(self.spec, *self.online(inputs, self._memory(self.online, b)))  # [(L + 1) * N, A]
        with torch.no_grad():
            q_target = q_values(self.spec, *self.target(inputs, self._memory(self.target, b)))
            chooser = q if c.double else q_target
            best = self.distribution.masked(chooser, inputs.mask).argmax(-1, keepdim=True)
            following = q_target.gather(1, best).view(-1, streams)[1:]
            if c.value_rescaling:
                following = unscaled(following)
            reward, ended, terminated, valid, begins = (
                x[burn:] for x in (b.reward, b.ended, b.terminated, b.valid, b.first[1:])
            )
            target, known = n_step_targets(reward, ended, terminated, valid, begins, following, c.gamma, c.n_step)
            if c.value_rescaling:
                target = rescaled(target)
        chosen = q.view(-1, streams, q.shape[-1])[:-1].gather(2, b.action[burn:, :, None])[..., 0]
        error = (chosen - target) * known
        count = known.sum()
        loss = (b.weight * huber(error, c.huber)).sum() / count.clamp(min=1)
        size = error.detach().abs()
        mean = size.sum(0) / known.sum(0).clamp(min=1)
        priority = c.priority_max_share * size.amax(0) + (1 - c.priority_max_share) * mean
        q_mean = (chosen.detach() * valid).sum() / valid.sum().clamp(min=1)
        return loss, priority, {"q": q_mean}

    def _memory(self, network: TorchNetwork, b: SequenceBatch) -> Memory:
        """Return the memory of a network after the burn-in. No gradient passes through it."""
        import torch

        from raypid.nn.torch_cells import Memory

        burn, state = self.config.burn_in, b.memory
        if burn:
            with torch.no_grad():
                before = b.inputs.take(slice(0, burn)).flatten()
                after = network.outputs(before, Memory(state, b.first[:burn]))[2]
            assert after is not None
            state = after
        return Memory(state, b.first[burn:])


def n_step_targets(
    reward: Tensor,
    ended: Tensor,
    terminated: Tensor,
    valid: Tensor,
    begins: Tensor,
    following: Tensor,
    gamma: float,
    n_step: int,
) -> tuple[Tensor, Tensor]:
    """Targets [L, N] of up to n_step rows, by the one rule for ends of episodes, and where they are known.

        G1[t] = reward[t] + gamma * (1 - terminated[t]) * following[t]
        Gk[t] = reward[t] + gamma * G(k-1)[t+1] where row t did not end and row t+1 is a valid one of the sequence, else G1[t]

    following [L, N]: the value of what followed each row. begins [L, N]: what followed is another episode's beginning, so
    that a truncated row's bootstrap is not known; such rows, those that fold them in, and invalid ones are not learnt from.
    """
    one = reward + gamma * ~terminated * following
    known_one = ~(begins & ~terminated)
    passes = ~ended[:-1] & valid[1:]
    target, known = one, known_one
    for _ in range(n_step - 1):
        target, known = target.clone(), known.clone()
        target[:-1] = (reward[:-1] + gamma * target[1:]).where(passes, one[:-1])
        known[:-1] = known[1:].where(passes, known_one[:-1])
    return target, known & valid


def rescaled(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, proposition A.2)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + _EPSILON * x


def unscaled(x: Tensor) -> Tensor:
    """The inverse of `rescaled`."""
    root = ((1 + 4 * _EPSILON * (x.abs() + 1 + _EPSILON)).sqrt() - 1) / (2 * _EPSILON)
    return x.sign() * (root * root - 1)


DEFAULT_CONFIG: dict[str, object]
"""The settings of R2D2 with their defaults, a dict of your own each time."""
