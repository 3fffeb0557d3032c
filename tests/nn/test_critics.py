"""Ensembles of Q networks, in particular on a network that a user registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raypid.nn.catalog import build_spec
from raypid.nn.critics import Critics
from raypid.nn.network_spec import NetworkSpec
from raypid.nn.networks import FlatParameters, TorchInputs, UserModule
from raypid.nn.pipeline import Inputs
from raypid.plugins.registry import NETWORKS
from raypid.settings.config import ModelConfig

BOX, IMAGE = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (20, 20, 1), np.uint8)
BOTH = spaces.Dict({"image": IMAGE, "state": BOX})


class Features(torch.nn.Module):
    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(s[0], 4, 5, stride=3) for _, s in spec.images)
        self.layer = torch.nn.Linear(spec.pipeline.vector_size + 4 * 6 * 6 * len(self.convs), 16)

    def forward(self, x: Any) -> torch.Tensor:
        if isinstance(x, torch.Tensor):
            x = {"image": x} if self.convs else {"vector": x}
        images = [conv(x["image"]).relu().flatten(1) for conv in self.convs]
        return torch.relu(self.layer(torch.cat([*images, *([x["vector"]] if "vector" in x else [])], 1)))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(NETWORKS, "_entries", {**NETWORKS._entries, "t-features": Features})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spec_of(space: spaces.Space[Any], network: str = "t-features") -> NetworkSpec:
    return build_spec(space, spaces.Box(-1, 1, (2,)), ModelConfig(network=network, hidden=(16,), activation="relu"))


def rows(spec: NetworkSpec, num: int = 64, seed: int = 0) -> tuple[TorchInputs, torch.Tensor]:
    rng = np.random.default_rng(seed)
    images = {p: rng.integers(0, 256, (num, *shape), dtype=np.uint8) for p, shape in spec.images}
    vector = rng.standard_normal((num, spec.pipeline.vector_size), dtype=np.float32)
    action = torch.from_numpy(rng.uniform(-1, 1, (num, 2)).astype(np.float32))
    return TorchInputs(Inputs(vector, images), torch.device("cpu")), action


@pytest.mark.parametrize("space", [BOX, IMAGE, BOTH], ids=["vector", "image", "both"])
@pytest.mark.parametrize("discrete", [False, True])
def test_each_critic_has_a_registered_network_of_its_own(space: spaces.Space[Any], discrete: bool) -> None:
    spec = spec_of(space)
    settings: dict[str, Any] = {"discrete": discrete, "norm": "layer", "half": False, "seed": 3}
    critics, same = Critics(spec, 2, 2, **settings), Critics(spec, 2, 2, **settings)
    inputs, action = rows(spec)
    flat = FlatParameters(critics)
    per_network = sum(p.numel() for p in Features(spec).parameters())
    heads = 2 * ((16 + (0 if discrete else 2)) * 16 + 16 + (16 + 1) * (2 if discrete else 1))
    assert len(flat.flat) == 2 * per_network + heads
    q = critics(inputs) if discrete else critics(inputs, action)
    assert q.shape == ((2, 64, 2) if discrete else (2, 64))
    assert torch.equal(q, same(inputs) if discrete else same(inputs, action))
    # the gradient of one critic reaches its own network and no other's
    q[0].sum().backward()
    found = {name: float(part.abs().max()) for name, part in flat.gradients.items() if name.startswith("encoders.")}
    assert all((value > 0) == name.startswith("encoders.0.") for name, value in found.items())
    # and a critic is what its parts are
    encoder = critics.encoders[1]
    assert isinstance(encoder, UserModule)
    x = encoder.features(inputs)
    x = x if discrete else torch.cat([x, action], 1)
    h = torch.nn.functional.layer_norm(x @ critics.weights[0][1] + critics.biases[0][1], (16,)).relu()
    expected = h @ critics.weights[1][1] + critics.biases[1][1]
    np.testing.assert_allclose(q[1].detach(), expected.squeeze(-1).detach(), atol=1e-5)


def test_critics_on_a_registered_network_learn_a_function_of_both() -> None:
    spec = spec_of(BOX)
    critics = Critics(spec, 2, 2, discrete=False, norm="layer", half=False, seed=0)
    optimizer = torch.optim.Adam(critics.parameters(), lr=1e-2)
    inputs, action = rows(spec)
    target = inputs.vector[:, 0] * action[:, 1] + inputs.vector[:, 1]
    losses = []
    for _ in range(200):
        loss = ((critics(inputs, action) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_a_built_in_network_is_shared_by_the_critics() -> None:
    spec = spec_of(IMAGE, "cnn")
    critics = Critics(spec, 2, 2, discrete=False, norm="none", half=False, seed=0)
    assert len(critics.encoders) == 1 and critics(*rows(spec)).shape == (2, 64)
