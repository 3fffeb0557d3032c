"""`raypid list envs|networks|agents|tuned`: show what can be named."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.cli import Subparsers


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    parser = subparsers.add_parser("list", help="show environments, networks, algorithms or tuned settings")
    parser.add_argument("what", choices=("envs", "networks", "agents", "tuned"))
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    for line in _LISTS[options.what]():
        print(line)
    return 0


def _envs() -> list[str]:
    from raypid.envs import list_envs

    return list_envs()


def _networks() -> list[str]:
    from raypid.registry import NETWORKS

    return NETWORKS.names()


def _agents() -> list[str]:
    from raypid.registry import ALGORITHMS

    return ALGORITHMS.names()


def _tuned() -> list[str]:
    from raypid.tuned import TUNED

    return [f"{algorithm:6} {env}" for algorithm, env in sorted(TUNED)]


_LISTS = {"envs": _envs, "networks": _networks, "agents": _agents, "tuned": _tuned}
