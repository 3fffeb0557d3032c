"""`raypid list envs|networks|models|agents|tuned`: show what can be named."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raypid.cli import Subparsers


def add_parser(subparsers: Subparsers, argv: Sequence[str]) -> None:
    parser = subparsers.add_parser(
        "list", help="show environments, networks, models, algorithms and agents, or tuned settings"
    )
    parser.add_argument("what", choices=("envs", "networks", "models", "agents", "tuned"))


def main(options: argparse.Namespace) -> int:
    if options.what == "envs":
        from raypid.envs import list_envs

        names = list_envs()
    elif options.what == "tuned":
        from raypid import saved_settings
        from raypid.tuned import TUNED, described

        width = max(len(env) for _, env in TUNED)
        names = [f"{algorithm:7} {env:{width}}  {described(algorithm, env)}" for algorithm, env in sorted(TUNED)]
        names += [saved_settings.described(name, width) for name in saved_settings.names()]
    else:
        from raypid.registry import AGENTS, ALGORITHMS, NETWORKS, is_model

        models = [name for name in NETWORKS.names() if is_model(name)]
        names = {
            "networks": [name for name in NETWORKS.names() if name not in models],
            "models": models,
            "agents": [*ALGORITHMS.names(), *(f"{name} (--agent_name)" for name in AGENTS.names())],
        }[options.what]
    print("\n".join(names))
    return 0
