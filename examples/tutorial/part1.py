"""Part 1: deep Q-learning (Mnih et al. 2015) in one process: `python part1.py`."""

import time

import numpy as np
import torch
from simulator import Simulator
from torch import nn

torch.set_num_threads(1)  # networks this small are slower on several
EVERY, GAMMA, BATCH, START, GOAL = 4, 0.99, 64, 500, 195  # an update every 4 steps


def network():
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


class Replay:
    def __init__(self, size=50_000):  # a row: observation, action, reward, terminated, next observation
        self.rows, self.count = np.zeros((size, 4 + 1 + 1 + 1 + 4), np.float32), 0

    def add(self, rows):
        self.rows[np.arange(self.count, self.count + len(rows)) % len(self.rows)] = rows
        self.count += len(rows)

    def sample(self, num):
        return self.rows[np.random.randint(0, min(self.count, len(self.rows)), num)]


class Rollout:
    def __init__(self):
        self.env, self.net, self.so_far = Simulator(), network(), 0.0
        self.obs, _ = self.env.reset()

    def collect(self, weights, epsilon, num):
        """Take `num` steps. Returns their rows, and the returns of the episodes that ended."""
        self.net.load_state_dict(weights)
        rows, returns = [], []
        for _ in range(num):
            with torch.no_grad():
                action = int(self.net(torch.as_tensor(self.obs)).argmax())
            if np.random.random() < epsilon:
                action = self.env.action_space.sample()
            after, reward, terminated, truncated, _ = self.env.step(action)
            rows.append(np.concatenate([self.obs, [action, reward, terminated], after]))
            self.obs, self.so_far = after, self.so_far + reward
            if terminated or truncated:
                returns.append(self.so_far)
                (self.obs, _), self.so_far = self.env.reset(), 0.0
        return np.array(rows, np.float32), returns


class Learner:
    def __init__(self):
        self.net, self.target = network(), network()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def update(self, rows):
        """One step on 64 rows. Returns the new weights."""
        obs, action, reward, terminated, after = torch.as_tensor(rows).split([4, 1, 1, 1, 4], 1)
        target = reward + GAMMA * (1 - terminated) * self.target(after).amax(1, keepdim=True).detach()
        self.optimizer.zero_grad()
        nn.functional.huber_loss(self.net(obs).gather(1, action.long()), target).backward()
        self.optimizer.step()
        for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.01)
        return self.net.state_dict()


if __name__ == "__main__":
    rollout, replay, learner, returns, began = Rollout(), Replay(), Learner(), [], time.time()
    while np.mean(returns[-20:] or [0]) < GOAL:
        rows, ended = rollout.collect(learner.net.state_dict(), max(0.05, 1 - replay.count / 3000), num=1)
        replay.add(rows)
        returns += ended
        if ended and len(returns) % 20 == 0:
            print(f"{replay.count} steps: mean return {np.mean(returns[-20:]):.0f}", flush=True)
        if replay.count > START and replay.count % EVERY == 0:
            learner.update(replay.sample(BATCH))
    print(f"return {GOAL} after {replay.count} steps and {time.time() - began:.1f} s")
