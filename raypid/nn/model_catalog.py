"""ModelCatalog: which action distribution and which network fit an environment's spaces, to use by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias

import numpy as np

from raypid.nn.catalog import action_leaf, build_spec
from raypid.nn.distributions import ActionDistribution as ActionDistribution
from raypid.nn.distributions import Categorical as Categorical
from raypid.nn.distributions import Deterministic as Deterministic
from raypid.nn.distributions import DiagGaussian as DiagGaussian
from raypid.nn.distributions import JointDistribution, array_module
from raypid.plugins.extras import need
from raypid.settings.config import ModelConfig, nested
from raypid.spaces import Space, space_leaves
from raypid.types import Array, ArrayT, Tree, TreeOf, to_numpy, tree_map

if TYPE_CHECKING:
    from raypid.nn.catalog_network import CatalogNetwork

Settings: TypeAlias = ModelConfig | Mapping[str, object] | None
"""Settings of the network: a mapping such as {"network": "lstm"}; None: the defaults."""


class BoundDistribution(Generic[ArrayT]):
    """An action distribution with its parameters, of NumPy or torch: one for each row.

    Actions are canonical: discrete ones count from 0, continuous ones are neither scaled nor clipped to the space.

    Args:
        params: [..., P], the outputs of a network.
        log_std: [A], where the distribution is a Gaussian: it belongs to the network's weights.
    """

    def __init__(self, distribution: JointDistribution, params: ArrayT, log_std: ArrayT | None = None) -> None:
        self.distribution = distribution
        self.params: ArrayT = params
        self.log_std: ArrayT | None = log_std

    def sample(self, rng: np.random.Generator | None = None) -> Tree:
        """Draw actions, as NumPy arrays."""
        log_std = None if self.log_std is None else to_numpy(self.log_std)
        return self.distribution.sample(to_numpy(self.params), log_std, rng or np.random.default_rng())

    def mode(self) -> Tree:
        """Return the most likely actions, as NumPy arrays."""
        return self.distribution.mode(to_numpy(self.params))

    def log_prob(self, action: Tree) -> ArrayT:
        """Return the log probability [...] of actions; torch can differentiate it where the parameters are torch's."""
        xp = array_module(self.params)
        given: TreeOf[ArrayT] = tree_map(xp.asarray, action)
        return self.distribution.log_prob(self.params, self.log_std, given)

    def entropy(self) -> ArrayT:
        """Return the entropy [...]."""
        return self.distribution.entropy(self.params, self.log_std)


class ModelCatalog:
    """Picks defaults for an environment's spaces, as agents do: a distribution over its actions, and a network.

    raypid's agents do this by themselves (the settings `model.*`); the catalog is for code that wants a network without an agent.
    """

    @staticmethod
    def get_action_dist(
        action_space: Space, model: Settings = None
    ) -> tuple[Callable[..., BoundDistribution[Array]], int]:
        """Return (dist_class, dist_dim): what makes a distribution of network outputs, and how many outputs it takes for an action.

        `dist_class(params, log_std)` has sample, mode, log_prob and entropy (`BoundDistribution`). log_std is None but for a Gaussian.

        Raises:
            SpaceError: a space that cannot be handled.
            ConfigError: a setting that does not exist or does not fit.
        """
        leaves = tuple(action_leaf(leaf, _config(model)) for leaf in space_leaves(action_space, "action"))
        return partial(BoundDistribution, JointDistribution(leaves)), sum(leaf.num_params for leaf in leaves)

    @staticmethod
    def get_model(
        observation_space: Space, action_space: Space, model: Settings = None, *, seed: int = 0
    ) -> CatalogNetwork:
        """Return a torch.nn.Module with fresh weights: fully connected, convolutional for images, or what `model` asks for.

        `params, value, state = module(obs)` takes a batch of observations as the environment returns them. With a memory
        ({"network": "lstm"}), the next call takes `state` along. `module.log_std` goes to `dist_class`.

        Raises:
            SpaceError: a space that cannot be handled.
            ConfigError: a setting that does not exist or does not fit, or torch is missing.
        """
        spec = build_spec(observation_space, action_space, _config(model))
        need({"torch": "ModelCatalog.get_model"})
        from raypid.nn.catalog_network import CatalogNetwork

        return CatalogNetwork(spec, seed)


def _config(model: Settings) -> ModelConfig:
    return nested(ModelConfig(), "model", {} if model is None else model)
