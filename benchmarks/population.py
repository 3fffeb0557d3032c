"""How fast a population of convolutional networks acts, each stream with weights of its own: one call for all of them by
torch.func.vmap (what ES and ARS use) against a loop over the streams, which points the module's parameters at each stream's weights.

    python benchmarks/population.py --seconds 4

Both take turns in one process and one run, on one thread, and vmap on two threads with them. Prints medians of the CPU time of a step of
all streams, and of its wall-clock time with two threads, and writes them to benchmarks/results/population.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flags import positive
from gymnasium import spaces

from raypid.nn.catalog import build_spec
from raypid.nn.networks import TorchInputs, TorchNetwork
from raypid.nn.pipeline import Inputs
from raypid.nn.population import make_population
from raypid.settings.config import ModelConfig
from raypid.types import Array, flat_views

CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("10x5, channels 8, 16", (10, 5, 1), {"network": "cnn", "channels": (8, 16), "hidden": (16,)}),
    ("24x20, channels 8, 16", (24, 20, 1), {"network": "cnn", "channels": (8, 16), "hidden": (32,)}),
    ("84x84x4, channels 16, 32", (84, 84, 4), {"network": "cnn", "channels": (16, 32), "hidden": (64,)}),
    ("84x84x4, Nature's", (84, 84, 4), {"network": "cnn", "hidden": (64,)}),
    ("84x84x4, resnet 8, 16, 16", (84, 84, 4), {"network": "resnet", "channels": (8, 16, 16), "hidden": (64,)}),
]


def ways(
    shape: tuple[int, ...], model: dict[str, Any], num: int
) -> tuple[Callable[[], Array], Callable[[], Array], int]:
    """Functions that act for `num` streams, by vmap and in a loop; and the number of weights of one."""
    image, rng = spaces.Box(0, 255, shape, np.uint8), np.random.default_rng(0)
    spec = replace(build_spec(image, spaces.Discrete(4), ModelConfig(**model)), head="actor")
    network, population = TorchNetwork(spec), make_population(spec, num)
    population.streams[:] = network.numpy() + 0.05 * rng.standard_normal(population.streams.shape, dtype=np.float32)
    pixels = rng.integers(0, 256, (num, *spec.images[0][1])).astype(np.uint8)
    inputs = Inputs(np.zeros((num, 0), np.float32), {"": pixels})
    views: dict[str, torch.Tensor] = flat_views(torch.from_numpy(population.streams), network.table)
    parts = [[view[b] for view in views.values()] for b in range(num)]

    def loop() -> Array:
        found, x = [], TorchInputs(inputs, network.device)
        with torch.inference_mode():
            for b in range(num):
                for parameter, part in zip(network.parameters, parts[b], strict=True):
                    parameter.data = part
                found.append(network.module(x.take(slice(b, b + 1)))[0])
            return torch.cat(found).numpy()

    def together() -> Array:
        return population.policy(inputs)[0]

    np.testing.assert_allclose(together(), loop(), rtol=1e-3, atol=1e-3)
    return together, loop, population.streams.shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=4, help="of each case")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "population.md")
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/population.py --seconds {options.seconds:g}`, {os.cpu_count()} cores.",
        "Milliseconds of CPU time of a step of all streams (wall-clock time in brackets), medians.",
        "",
        "| image and convolutions | weights | streams | vmap | loop | vmap / loop | vmap, two threads |",
        "|---|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    for label, shape, model in CASES:
        for num in (8, 32):
            together, loop, size = ways(shape, model, num)
            cpu: list[list[float]] = [[], [], []]
            wall: list[list[float]] = [[], [], []]
            end = time.perf_counter() + options.seconds
            while time.perf_counter() < end or len(cpu[0]) < 3:
                for way, (act, threads) in enumerate(((together, 1), (loop, 1), (together, 2))):
                    torch.set_num_threads(threads)
                    start, begin = time.perf_counter(), time.process_time()
                    act()
                    cpu[way].append(1e3 * (time.process_time() - begin))
                    wall[way].append(1e3 * (time.perf_counter() - start))
            c, w = ([statistics.median(times) for times in kind] for kind in (cpu, wall))
            cells = [f"{mine:.2f} ({theirs:.2f})" for mine, theirs in zip(c, w, strict=True)]
            lines.append(f"| {label} | {size:,} | {num} | {cells[0]} | {cells[1]} | {c[0] / c[1]:.2f} | {cells[2]} |")
            print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
