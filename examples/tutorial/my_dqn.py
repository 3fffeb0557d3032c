"""The algorithm of part 1, as raypid's roles take it: settings, networks, and one gradient step."""

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.nn.functional import huber_loss

from raypid.algorithms.off_policy import OffPolicy, OffPolicyConfig
from raypid.nn.networks import TorchNetwork
from raypid.nn.torch_optimizers import FlatAdam
from raypid.settings.config import ModelConfig


@dataclass(kw_only=True, slots=True)
class MyConfig(OffPolicyConfig):
    """The numbers of part 1. Others keep raypid's defaults."""

    model: ModelConfig = field(default_factory=partial(ModelConfig, hidden=(64, 64), activation="relu"))
    num_envs_per_worker: int = 1
    fragment_length: int = 50
    batch_size: int = 64
    a_l_ratio: float | None = 4.0
    n_step: int = 1
    lr: float = 1e-3
    target_tau: float = 0.01
    start_steps: int = 500
    normalize_rewards: bool = False
    normalize_observations: bool | None = False


class MyDQN(OffPolicy[MyConfig]):
    """Q(s, a) towards r + gamma * max_a' Q_target(s', a') (Mnih et al. 2015)."""

    Config = MyConfig
    metric_names = frozenset({"loss"})

    @classmethod
    def network_spec(cls, config, spec):
        return replace(spec, head="q")

    @classmethod
    def exploration(cls, config, timesteps, worker_index):
        return {"epsilon": max(0.05, 1 - timesteps / 3000)}

    def build(self, seed):
        self.online, self.target = (TorchNetwork(self.spec, seed, str(self.device)) for _ in range(2))
        self.networks = {"acting": self.online, "target": self.target}
        self.optimizers = {"acting": FlatAdam(self.online, self.config.lr)}

    def step(self, b):
        with torch.no_grad():
            target = b.reward + b.discount * self.target(b.next_inputs)[0].amax(1)
        q = self.online(b.inputs)[0].gather(1, b.action[:, None])[:, 0]
        loss = huber_loss(q, target)
        self.optimizers["acting"].minimise(loss)
        self.track("target", "acting")
        return (q - target).detach().abs(), {"loss": loss.detach()}
