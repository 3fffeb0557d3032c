"""Models of users' own, in NumPy and in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Reinforce:
    """A linear softmax policy that follows rewards-to-go of each row alone. It draws from a generator of its own."""

    def __init__(self, args: Any) -> None:
        self.args = args
        size = (args.observation_space.shape[0], int(args.action_space.n))
        self.weights: Any = {"layers": [{"w": np.zeros(size, np.float64)}, {"b": np.zeros(size[1], np.float32)}]}
        self.rng = np.random.default_rng(args.seed)

    def probabilities(self, obs: Any) -> Any:
        first, second = self.weights["layers"]
        odds = np.exp(obs @ first["w"] + second["b"])
        return odds / odds.sum(-1, keepdims=True)

    def choose_actions(self, observation: Any) -> Any:
        p = self.probabilities(observation)
        action = (p.cumsum(-1) > self.rng.random((len(p), 1))).argmax(-1)
        return action, {"chance": p[np.arange(len(p)), action]}

    def step(self, trajectory: Any) -> Any:
        t = trajectory
        obs, action = t.obs[:-1][t.valid], t.action[t.valid]
        p = self.probabilities(obs)
        np.testing.assert_allclose(p[np.arange(len(p)), action], t.behaviour["chance"][t.valid], rtol=1e-6)
        slope = (p - np.eye(p.shape[1])[action]) / len(p)
        return {"layers": [{"w": obs.T @ slope}, {"b": slope.sum(0)}]}

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, weights: Any) -> None:
        self.weights = weights

    def get_state(self) -> Any:
        return self.rng.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.rng.bit_generator.state = state


class Reach:
    """Torch, a Dict observation and a Box action: the gradient of the distance between action and goal."""

    def __init__(self, args: Any) -> None:
        import torch

        assert isinstance(args.observation_space, spaces.Dict) and isinstance(args.action_space, spaces.Box)
        torch.manual_seed(args.seed)
        self.args = args
        size = args.action_space.shape[0]
        self.net = torch.nn.Sequential(
            torch.nn.Linear(size, args.width), torch.nn.Tanh(), torch.nn.Linear(args.width, size)
        )

    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("--width", type=int, default=8)

    def _actions(self, observation: Any) -> Any:
        import torch

        return self.net(torch.as_tensor(observation["goal"]))

    def choose_actions(self, observation: Any, deterministic: bool, rng: Any) -> Any:
        action = self._actions(observation).detach().numpy()
        return action if deterministic else action + rng.normal(0, 3, action.shape)

    def step(self, trajectory: Any) -> Any:
        import torch

        goal = torch.as_tensor(trajectory.obs["goal"][:-1])
        loss = ((self._actions(trajectory.obs)[:-1] - goal) ** 2).mean()
        self.net.zero_grad()
        loss.backward()
        return {name: p.grad.numpy() for name, p in self.net.named_parameters()}, {"distance": loss.item()}

    def get_weights(self) -> Any:
        return {name: p.detach().numpy() for name, p in self.net.named_parameters()}

    def set_weights(self, weights: Any) -> None:
        import torch

        self.net.load_state_dict({name: torch.as_tensor(w) for name, w in weights.items()})


class Wrong(Reinforce):
    """A model with a fault, chosen by model.custom."""

    def step(self, trajectory: Any) -> Any:
        gradient = super().step(trajectory)
        layers, fault = gradient["layers"], self.args.fault
        if fault == "shape":
            layers[0]["w"] = layers[0]["w"].T
        if fault == "nan":
            layers[1]["b"][0] = np.nan
        if fault == "less":
            del layers[1]
        if fault == "more":
            layers.append(layers[1])
        if fault == "raise":
            raise RuntimeError("my fault")
        if fault in ("text", "array"):
            return gradient, {"x": "hello" if fault == "text" else np.zeros(3)}
        return gradient

    def choose_actions(self, observation: Any) -> Any:
        fault, num = self.args.fault, len(observation)
        actions = {"action": np.zeros((num, 1), int), "range": np.full(num, 7), "float": np.full(num, 0.3)}
        if fault in actions:
            return actions[fault]
        action, extras = super().choose_actions(observation)
        if fault == "extra":
            extras["x"] = np.zeros(3)
        if fault == "sometimes" and self.rng.random() < 0.5:
            extras["x"] = np.zeros(num)
        return action, extras

    def get_weights(self) -> Any:
        fault = self.args.fault
        return {"none": {}, "ints": [np.zeros(3, int)]}.get(fault, super().get_weights())


class NoStep:
    def __init__(self, args: Any) -> None: ...

    def choose_actions(self, observation: Any) -> Any: ...


class Reuses(Reinforce):
    """Hands out the same arrays each time; weights are torch parameters."""

    def __init__(self, args: Any) -> None:
        import torch

        super().__init__(args)
        self.weights = {"w": torch.nn.Parameter(torch.zeros(3))}
        self.count = self.actions = None

    def choose_actions(self, observation: Any, **keywords: Any) -> Any:
        if self.actions is None or len(self.actions) != len(observation):
            self.count, self.actions = np.zeros(len(observation)), np.zeros(len(observation), int)
        self.count += 1
        self.actions[:] = keywords["rng"].integers(0, 2, len(observation))
        return self.actions, {"count": self.count}

    def step(self, trajectory: Any) -> Any:
        counts = trajectory.behaviour["count"]
        assert (np.diff(counts, axis=0) == 1).all() and len(np.unique(trajectory.action)) == 2
        return self.weights, {"steps": counts[-1, 0]}


class Remembers(Reinforce):
    """Its memory is how old the episode is; it acts by that alone, so it has no greedy action."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.age = np.zeros(0, int)

    def choose_actions(self, observation: Any, first: Any) -> Any:
        if len(self.age) != len(observation):
            self.age = np.zeros(len(observation), int)
        self.age = np.where(first, 0, self.age + 1)
        return self.age % 2, {"age": self.age}

    def step(self, trajectory: Any) -> Any:
        t = trajectory
        age = t.behaviour["age"]
        assert (age[t.first[:-1]] == 0).all()
        assert (np.diff(age, axis=0) == 1)[~t.first[1:-1]].all()
        return self.weights, {"oldest": age.max(), "begun": t.first.sum()}


class Nested:
    """Nested actions come back as they were given."""

    def __init__(self, args: Any) -> None:
        self.weights = np.zeros(2, np.float32)

    def choose_actions(self, observation: Any) -> Any:
        num = len(observation)
        return (np.zeros(num, int), {"x": np.full((num, 1), 9.0), "y": np.ones(num, int)}), {}

    def step(self, trajectory: Any) -> Any:
        action = trajectory.action
        assert action["0"].shape == action["1"]["y"].shape and (action["1"]["x"] == 9.0).all()
        return np.ones(2)

    def get_weights(self) -> Any:
        return self.weights

    def set_weights(self, weights: Any) -> None:
        self.weights = weights


class Pair(Nested):
    """Its action is a tuple whose second part is a dict, as (actions, extras) would be."""

    def choose_actions(self, observation: Any) -> Any:
        return super().choose_actions(observation)[0]


class Clash(Reach):
    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("--gamma", type=float, default=0.5)


class Typed(Reach):
    @staticmethod
    def add_args(parser: Any) -> None:
        parser.add_argument("--width", type=int, default=8)
        parser.add_argument("--mode", choices=("a", "b"), default="a")
        parser.add_argument("--fast", action="store_true")
        parser.add_argument("--sizes", type=int, nargs="+", default=[1])


class NotStatic(Reach):
    def add_args(self, parser: Any) -> None:  # type: ignore[override]
        ...
