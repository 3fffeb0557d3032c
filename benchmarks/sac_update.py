"""Milliseconds of one SAC update on one thread: raypid, a usual single-file update in torch, and the matrix products alone.

    python benchmarks/sac_update.py            # `--quick` only shows that it runs

17 observations, 6 actions, two hidden layers of 256, two critics, batches of 256 rows that begin as NumPy arrays. The
policy and the temperature are updated with every critic update, or with every second. "usual torch" is written as
single-file implementations do: one nn.Linear a layer, two critics and their targets apart, torch.distributions, Adam
without fusing, targets moved by a loop over parameters; its bfloat16 is torch.autocast around the losses. The bound is
the matrix products of such an update with nothing between them. All contestants take turns; medians of repetitions.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from flags import add_results_folder, results_folder, whole
from gymnasium import spaces
from reporting import markdown, save
from torch import nn

from raypid.algorithms.sac import SAC, SACConfig
from raypid.nn.catalog import build_spec
from raypid.settings.config import ModelConfig
from raypid.types import Sample, Transition

OBS, ACTIONS, HIDDEN, BATCH, GAMMA, TAU, LR = 17, 6, 256, 256, 0.99, 0.005, 3e-4


def sample(rng: np.random.Generator) -> Sample:
    """A batch as the replay buffer hands it out."""
    data = Transition(
        rng.standard_normal((BATCH, OBS), np.float32),
        np.tanh(rng.standard_normal((BATCH, ACTIONS), np.float32)),
        rng.standard_normal(BATCH, np.float32),
        np.full(BATCH, GAMMA, np.float32),
        rng.standard_normal((BATCH, OBS), np.float32),
    )
    return Sample(data, np.arange(BATCH), np.full(BATCH, 1e-6), np.ones(BATCH, np.float32))


def ours(half: bool, norm: str, delay: int) -> Callable[[Sample], Any]:
    """raypid's SAC, called as its learner calls it."""
    config = SACConfig(
        bf16=half, critic_norm=norm, policy_delay=delay, batch_size=BATCH, target_tau=TAU, lr=LR, seed=0, gamma=GAMMA,
        model=ModelConfig(hidden=(HIDDEN, HIDDEN), activation="relu"),
    )  # fmt: skip
    space = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    spec = build_spec(space, spaces.Box(-1, 1, (ACTIONS,), np.float32), config.model)
    algorithm = SAC(config, SAC.network_spec(config, spec), 0)
    turn = itertools.count(1)

    def update(batch: Sample) -> None:
        algorithm.update(batch, 0)
        if next(turn) % 100 == 0:
            algorithm.metrics()  # fetched now and then, as in training

    return update


class UsualActor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(OBS, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mean, self.log_std = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, ACTIONS)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions and their log_prob."""
        h = torch.relu(self.second(torch.relu(self.first(obs))))
        mean, log_std = self.mean(h).float(), self.log_std(h).float()
        normal = torch.distributions.Normal(mean, (-5 + 3.5 * (torch.tanh(log_std) + 1)).exp())
        u = normal.rsample()
        action = torch.tanh(u)
        return action, (normal.log_prob(u) - torch.log(1 - action.pow(2) + 1e-6)).sum(1, keepdim=True)


class UsualCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(OBS + ACTIONS, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(torch.cat([obs, action], 1)))
        return self.last(torch.relu(self.second(h)))


def usual(half: bool, delay: int) -> Callable[[Sample], Any]:
    """SAC as single files have it."""
    actor, critics, targets = UsualActor(), [UsualCritic(), UsualCritic()], [UsualCritic(), UsualCritic()]
    for target, critic in zip(targets, critics, strict=True):
        target.load_state_dict(critic.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    critic_adam = torch.optim.Adam([p for c in critics for p in c.parameters()], lr=LR)
    actor_adam, alpha_adam = torch.optim.Adam(actor.parameters(), lr=LR), torch.optim.Adam([log_alpha], lr=LR)
    turn = itertools.count()

    def precision() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if half else nullcontext()

    def update(batch: Sample) -> None:
        d = batch.data
        obs, action, following = (torch.as_tensor(x) for x in (d.obs, d.action, d.next_obs))
        reward, discount = (torch.as_tensor(x).unsqueeze(1) for x in (d.reward, d.discount))
        alpha = log_alpha.detach().exp()
        with torch.no_grad(), precision():
            next_action, log_prob = actor(following)
            next_q = torch.min(*(t(following, next_action).float() for t in targets))
            target = reward + discount * (next_q - alpha * log_prob)
        with precision():
            loss = sum(nn.functional.mse_loss(c(obs, action).float(), target) for c in critics)
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if next(turn) % delay == 0:
            with precision():
                drawn, log_prob = actor(obs)
                q = torch.min(*(c(obs, drawn).float() for c in critics))
                loss = (alpha * log_prob - q).mean()
            actor_adam.zero_grad()
            loss.backward()
            actor_adam.step()
            alpha_loss = (-log_alpha.exp() * (log_prob.detach() - ACTIONS)).mean()
            alpha_adam.zero_grad()
            alpha_loss.backward()
            alpha_adam.step()
        for critic, copy in zip(critics, targets, strict=True):
            for p, q in zip(critic.parameters(), copy.parameters(), strict=True):
                q.data.copy_(TAU * p.data + (1 - TAU) * q.data)

    return update


def products(
    delay: int, obs: int = OBS, actions: int = ACTIONS, hidden: int = HIDDEN, batch: int = BATCH
) -> list[list[tuple[int, int, int]]]:
    """(rows, inner, columns) of the matrix products of each of `delay` updates that follow each other.

    A critic's last layer has one column and is left out; the first layer of a network needs no gradient of its inputs,
    but that of the critics, in the policy's loss, does.
    """
    policy = [(obs, hidden), (hidden, hidden), (hidden, 2 * actions)]
    first, second = (obs + actions, hidden), (hidden, hidden)
    critics, inner = 2 * [first, second], 2 * [second]

    def forward(layers: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(batch, i, o) for i, o in layers]

    def by_weights(layers: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(i, batch, o) for i, o in layers]

    def by_inputs(layers: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(batch, o, i) for i, o in layers]

    critic_part = forward(policy) + 2 * forward(critics) + by_weights(critics) + by_inputs(inner)
    policy_part = forward(policy) + forward(critics) + by_inputs(critics) + by_weights(policy) + by_inputs(policy[1:])
    return [critic_part + (policy_part if i == 0 else []) for i in range(delay)]


def bound(half: bool, delay: int, **sizes: int) -> Callable[[Any], Any]:
    """The products alone, into memory that is there already."""
    kind = torch.bfloat16 if half else torch.float32
    steps = [
        [(torch.randn(n, k).to(kind), torch.randn(k, m).to(kind), torch.empty(n, m, dtype=kind)) for n, k, m in part]
        for part in products(delay, **sizes)
    ]
    turn = itertools.count()

    def update(batch: Any) -> None:
        for a, b, out in steps[next(turn) % delay]:
            torch.mm(a, b, out=out)

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=whole(), default=15)
    parser.add_argument("--updates", type=whole(), default=20, help="of one contestant in one repetition; even")
    add_results_folder(parser, "few updates")
    args = parser.parse_args()
    if args.quick:
        args.repetitions, args.updates = 2, 4
    folder = results_folder(args)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    batches = [sample(rng) for _ in range(32)]
    contestants: dict[tuple[str, str, int], Callable[[Sample], Any]] = {}
    for delay, half in itertools.product((1, 2), (False, True)):
        dtype = "bfloat16" if half else "float32"
        contestants["usual torch", dtype, delay] = usual(half, delay)
        for norm in ("none", "layer"):
            contestants[f"raypid, critic_norm {norm}", dtype, delay] = ours(half, norm, delay)
        contestants["matrix products alone", dtype, delay] = bound(half, delay)
    found: dict[tuple[str, str, int], list[float]] = {key: [] for key in contestants}
    for update in contestants.values():
        for batch in batches[: 2 if args.quick else 10]:
            update(batch)
    for repetition in range(args.repetitions):
        for key, update in contestants.items():
            start = time.perf_counter()
            for i in range(args.updates):
                update(batches[(repetition + i) % len(batches)])
            found[key].append(1e3 * (time.perf_counter() - start) / args.updates)

    median = {key: statistics.median(times) for key, times in found.items()}
    header = (
        "SAC update, ms",
        "policy updated",
        "float32",
        "of the bound",
        "bfloat16",
        "of the bound",
        "usual torch / this",
    )
    lines = []
    for name in dict.fromkeys(name for name, _, _ in contestants):
        for delay, every in ((1, "each time"), (2, "every second time")):
            cells, times = [], []
            for dtype in ("float32", "bfloat16"):
                ms = median[name, dtype, delay]
                cells += [f"{ms:.2f}", f"{median['matrix products alone', dtype, delay] / ms:.0%}"]
                times.append(f"{median['usual torch', dtype, delay] / ms:.2f}")
            lines.append((name, every, *cells, ", ".join(times)))
    rows = [
        {"contestant": name, "dtype": dtype, "policy_delay": delay, "ms": median[name, dtype, delay], "repetitions": times}
        for (name, dtype, delay), times in found.items()
    ]  # fmt: skip
    save("sac_update", markdown(header, lines), {"torch": torch.__version__, "threads": 1, "rows": rows}, folder)


if __name__ == "__main__":
    main()
