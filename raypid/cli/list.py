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


def main(options: argparse.Namespace) -> int:
    if options.what == "envs":
        from raypid.envs import list_envs

        names = list_envs()
    elif options.what == "tuned":
        from raypid.tuned import TUNED

        names = [f"{algorithm:6} {env}" for algorithm, env in sorted(TUNED)]
    else:
        from raypid.registry import ALGORITHMS, NETWORKS

        names = NETWORKS.names() if options.what == "networks" else ALGORITHMS.names()
    print("\n".join(names))
    return 0
