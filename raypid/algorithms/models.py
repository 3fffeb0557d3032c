"""The built-in models `ppo` and `a2c`: the algorithms of these names behind the interface of a user's model.

An agent in each worker asks them for gradients; the optimizer is the learner's (`custom_model.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from raypid.algorithms.a2c import A2C
from raypid.algorithms.actor_critic import ActorCritic
from raypid.algorithms.ppo import PPO
from raypid.nn.catalog import build_spec
from raypid.nn.network_policy import NetworkPolicy
from raypid.nn.pipeline import nest
from raypid.nn.policy import make_policy
from raypid.settings.config import Config, ModelConfig, coerce, field_docs, parse_value, type_hints
from raypid.types import Array, Trajectory, Tree, Weights, flat_rows, flat_views, to_numpy, tree_leaves

Gradient = tuple[dict[str, Array], dict[str, float]]
_ACTION, _LOG_PROB = "canonical", "log_prob"


class ActorCriticModel:
    """An actor-critic algorithm of raypid's own as a model: its networks, its loss, its returns.

    `args` has, beside what every model is given, its own settings (`own_settings`) and `hidden`.
    """

    algorithm_class: ClassVar[type[ActorCritic[Any]]]
    own_settings: ClassVar[Mapping[str, str]] = {
        **{name: name for name in ("gae_lambda", "value_coef", "entropy_coef", "normalize_advantages")},
        "scale_rewards": "normalize_rewards",
    }
    """Argument of the model -> setting of the algorithm."""

    def __init__(self, args: Any) -> None:
        own = {setting: getattr(args, name) for name, setting in self.own_settings.items()}
        config = self.algorithm_class.Config().replace({**own, "gamma": args.gamma, "batch_size": args.batch_size})
        spec = build_spec(args.observation_space, args.action_space, ModelConfig(hidden=tuple(args.hidden)))
        self.algorithm = self.algorithm_class.make(config, spec, args.seed)
        self.num_epochs = getattr(self.algorithm.config, "num_epochs", 1)
        self.policy: NetworkPolicy = make_policy(spec, args.seed)
        self.policy.load(self.algorithm.weights())

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the settings, with the algorithm's types, defaults and descriptions."""
        config: type[Config] = cls.algorithm_class.Config
        docs, hints, defaults = field_docs(config), type_hints(config), config()
        parser.add_argument(
            "--hidden", type=int, nargs="*", default=[64, 64], help="widths of the fully connected layers"
        )
        for name, setting in cls.own_settings.items():
            read = partial(_read, name, hints[setting])
            parser.add_argument(f"--{name}", type=read, default=getattr(defaults, setting), help=docs[setting])

    def choose_actions(
        self,
        observation: Tree,
        deterministic: bool = False,
        first: Array | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Tree, dict[str, Array]]:
        """Choose actions [B, *]; the extras are the canonical ones (before scaling and clipping) and their log_prob
        [B]."""
        if first is None:
            first = np.zeros(len(next(leaf for _, leaf in tree_leaves(observation))), bool)
        if rng is None:
            rng = np.random.default_rng()
        acted = self.policy.act(observation, None, first, rng, explore=not deterministic)
        assert acted.params is not None
        log_prob: Array = self.policy.distribution.log_prob(acted.params, self.policy._log_std, acted.action)
        canonical = {f"{_ACTION}/{path}": leaf for path, leaf in tree_leaves(acted.action)}
        return self.policy.to_env(acted.action), {**canonical, _LOG_PROB: log_prob.astype(np.float32, copy=False)}

    def values(self, observation: Tree) -> Array:
        """Return the values [B] of observations [B, *]."""
        num = len(next(leaf for _, leaf in tree_leaves(observation)))
        inputs, _ = self.policy.pipeline.step(observation, None, np.zeros(num, bool))
        return self.policy.network.value(inputs)

    def step(self, trajectory: Trajectory, Rs: Array | None = None) -> Iterator[Gradient]:
        """Yield gradients of the loss over a fragment: one for each minibatch of args.batch_size rows, in every epoch.

        Advantages are generalised advantage estimates (gae_lambda). `Rs` is not used.
        """
        t, a = trajectory, self.algorithm
        value = self.values(flat_rows(t.obs)).reshape(t.first.shape)
        behaviour = {_LOG_PROB: t.behaviour[_LOG_PROB], "value": value}
        if t.final is not None:
            behaviour["final_value"] = self.values(t.final.obs)
        parts = {name: x for name, x in t.behaviour.items() if name.startswith(f"{_ACTION}/")}
        action = nest({name.partition("/")[2]: x for name, x in parts.items()})
        batch = a.prepare(replace(t, action=action, behaviour=behaviour, moments=None))
        for _ in range(self.num_epochs):
            for minibatch in a.minibatches(batch):
                out = a.network.evaluate(minibatch)
                loss, metrics = a.objective(out, minibatch)
                a.optimizer.differentiate(loss)
                gradient = to_numpy(a.optimizer.gradient).copy()
                yield dict(flat_views(gradient, a.network.table)), {name: float(x) for name, x in metrics.items()}

    def get_weights(self) -> dict[str, Array]:
        """Return the weights by name, as in checkpoints of the algorithm."""
        return dict(flat_views(self.algorithm.network.numpy().copy(), self.algorithm.network.table))

    def set_weights(self, weights: dict[str, Array]) -> None:
        """Load what `get_weights` returned."""
        table = self.algorithm.network.table
        flat = np.concatenate([np.asarray(weights[name], np.float32).ravel() for name, _ in table])
        self.algorithm.network.load(flat)
        self.policy.load(Weights(0, flat, table))

    def get_state(self) -> dict[str, Any]:
        """Return the state of the generator of minibatches and of the reward scaler."""
        scaler = self.algorithm.return_scaler
        return {"rng": self.algorithm.rng.bit_generator.state, "rewards": {} if scaler is None else scaler.state_dict()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned."""
        self.algorithm.rng.bit_generator.state = state["rng"]
        if self.algorithm.return_scaler is not None and state["rewards"]:
            self.algorithm.return_scaler.load_state_dict(state["rewards"])


def _read(name: str, hint: object, text: str) -> object:
    return coerce(name, parse_value(text), hint)


class PPOModel(ActorCriticModel):
    """PPO's clipped loss, several epochs over each fragment (`raypid.algorithms.ppo`)."""

    algorithm_class = PPO
    own_settings = {**ActorCriticModel.own_settings, **{name: name for name in ("num_epochs", "clip", "value_clip")}}


class A2CModel(ActorCriticModel):
    """A2C's loss, one pass over each fragment (`raypid.algorithms.a2c`)."""

    algorithm_class = A2C
