"""Show what can be named: environments by package, algorithms and agents, networks, whole models, tuned settings."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from raypid.envs.ids import PACKAGES, bare
from raypid.errors import UserError, listed
from raypid.plugins.registry import AGENTS, ALGORITHMS, NETWORKS, did_you_mean, is_model
from raypid.report.panel import aligned

KINDS = ("envs", "networks", "models", "agents", "tuned")
_MOST = 12
"""Most names of a package that the list of all environments shows."""
_PACKAGES = (
    ("raypid.", "raypid"), ("gymnasium.envs.classic_control", "classic control"), ("gymnasium.envs.toy_text", "toy text"),
    ("gymnasium.envs.box2d", "Box2D"), ("gymnasium.envs.mujoco", "MuJoCo"), ("gymnasium.envs.phys2d", "JAX"),
    ("gymnasium.envs.tabular", "JAX"), ("ale_py", "Atari"),
)  # fmt: skip
"""How entry points begin -> what the list calls them. All others are called by their package."""


def add_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    parser.epilog = (
        "`raypid list envs` shows a few of each package, `raypid list envs lunar` all that have lunar in their name."
    )
    add = parser.add_argument
    add("what", metavar="|".join(KINDS), choices=KINDS, help="what to show")
    add("filter", metavar="TEXT", nargs="*", default=[], help="only what has all these texts, in upper or lower case")
    add("--installed", action="store_true", help="of environments: only those whose package is installed")
    add(
        "--actions",
        choices=("discrete", "continuous"),
        help="of environments: only those with such actions (each is made, which takes seconds)",
    )
    add("--all", action="store_true", help="of environments: all of every package")
    add("--json", action="store_true", help="print a list of objects")


def main(options: argparse.Namespace) -> int:
    """Print what is there.

    Raises:
        UserError: nothing has the texts of the filter.
    """
    if options.what != "envs" and (options.installed or options.actions or options.all):
        raise UserError("--installed, --actions and --all are for environments: raypid list envs.")
    whole = bool(options.all or options.filter or options.actions or options.json)
    rows = _envs(whole=whole) if options.what == "envs" else rows_of(options.what)
    wanted = [text.lower() for text in options.filter]
    found = [row for row in rows if all(text in f"{row['name']} {row.get('package', '')}".lower() for text in wanted)]
    if options.installed:
        found = [row for row in found if row["installed"]]
    if options.actions:
        found = [row for row in found if row["installed"] and _has_actions(str(row["name"]), options.actions)]
    if not found and options.filter:
        text = " ".join(options.filter)
        raise UserError(
            f"Nothing in `raypid list {options.what}` has {text!r}.{did_you_mean(text, (str(row['name']) for row in rows))}"
        )
    if options.json:
        print(json.dumps(found, indent=1))
    elif options.what == "envs":
        _show_envs(found, whole=whole)
    elif options.what == "tuned":
        _show_tuned(found)
    else:
        width = max((len(str(row["name"])) for row in found), default=0)
        for row in found:
            print(_wrapped(f"{row['name']:{width}}  ", str(row["about"])))
    return 0


def _wrapped(head: str, text: str) -> str:
    width = max(shutil.get_terminal_size().columns - 1, len(head) + 20)
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _envs(*, whole: bool) -> list[dict[str, object]]:
    """Environments that can be made: {"name", "package", "installed", "install"}; install is the command that does it.

    Args:
        whole: import the packages that register theirs, which takes a while; else these have an example each.
    """
    from raypid.envs import list_envs
    from raypid.envs.resolve import missing_package, module_of, register_packages
    from raypid.plugins.extras import install_command, installed

    if whole:
        register_packages()
    rows: list[tuple[str, str, str]] = []
    for name in (name for name in list_envs() if name != "gym_env"):  # which is none without an id
        module = module_of(name)
        package = next((called for start, called in _PACKAGES if module.startswith(start)), module.partition(".")[0])
        _, install = missing_package(name) or ("", "")
        rows.append((name, package, install))
    # of a package whose other environments are known when it is imported, an example
    examples = [
        ("ALE/Pong-v5", "Atari", "ale_py", install_command("atari")),
        *(
            (p.example, p.package, p.module.partition(".")[0], f"pip install {shlex.quote(p.package)}")
            for p in PACKAGES
        ),
        ("envpool:Pong-v5", "envpool", "envpool", install_command("envpool")),
    ]
    there = {package for _, package, _ in rows}
    for name, package, module, install in examples:
        if not {package, module} & there:
            rows.append((name, package, "" if installed(module) else install))
    return [
        {"name": name, "package": package, "installed": not install, "install": install}
        for name, package, install in rows
    ]


def _show_envs(rows: Sequence[Mapping[str, object]], *, whole: bool) -> None:
    """Print environments by package: names without their old versions, and what installs those that are missing."""
    from raypid.report.runs import grouped

    by_package = grouped(rows, lambda row: str(row["package"]))
    order = list(dict.fromkeys([*(called for _, called in _PACKAGES), *by_package]))
    for package in sorted(by_package, key=order.index):
        there = by_package[package]
        names = [str(row["name"]) for row in there] if whole else _newest(str(row["name"]) for row in there)
        install = next((str(row["install"]) for row in there if row["install"]), "")
        print(f"{package}{f' (not installed: {install})' if install else ''}")
        print(_wrapped("  ", listed(names, len(names) if whole else _MOST)))
    if not whole:
        print(
            "`raypid list envs TEXT` shows all that have TEXT in their name or package, --all all of them; `raypid check-env NAME` tries one."
        )


def _newest(names: Iterable[str]) -> list[str]:
    """Names with the newest of their versions alone."""
    by_version = sorted(names, key=lambda name: (len(name), name))
    return sorted({bare(name): name for name in by_version}.values())


def _has_actions(name: str, kind: str) -> bool:
    """Whether an environment can be made, and its actions are of a kind: discrete or continuous."""
    from gymnasium.spaces import Box, Discrete, MultiDiscrete

    from raypid.envs import EnvError, EnvSpec, spaces

    try:
        _, action = spaces(EnvSpec(env=name))
    except EnvError:
        return False
    return isinstance(action, Box if kind == "continuous" else (Discrete, MultiDiscrete))


def rows_of(kind: str) -> list[dict[str, object]]:
    """What there is of a kind other than envs: {"name", "about"}, the latter a text."""
    if kind == "tuned":
        return list(_tuned())
    if kind == "agents":
        about = {name: _ALGORITHMS.get(name) or _said_of(ALGORITHMS.get(name)) for name in ALGORITHMS.names()}
        about |= {name: f"--agent_name: {_said_of(AGENTS.get(name))}" for name in AGENTS.names()}
    else:
        names = [name for name in NETWORKS.names() if is_model(name) == (kind == "models")]
        about = {name: _NETWORKS.get(name) or _said_of(NETWORKS.get(name)) for name in names}
    return [{"name": name, "about": text} for name, text in about.items()]


_ALGORITHMS = {
    "PPO": "any actions; learns fast from fast environments: the first to try",
    "A2C": "any actions; one pass over each batch",
    "A3C": "any actions; workers compute gradients and do not wait for each other",
    "IMPALA": "any actions; many workers that do not wait for each other, corrected by V-trace",
    "APPO": "any actions; IMPALA with PPO's clipped loss",
    "DQN": "discrete actions; learns from replay, for environments that take their time",
    "Rainbow": "discrete actions; DQN with all its refinements",
    "ApeX": "discrete actions; DQN with many workers and prioritised replay",
    "R2D2": "discrete actions; DQN with a memory, from stored sequences",
    "SQN": "discrete actions; soft Q-learning, which explores by entropy",
    "SAC": "continuous or discrete actions; learns from replay, for environments that take their time",
    "TD3": "continuous actions; learns from replay, acts without sampling",
    "DDPG": "continuous actions; TD3's forerunner",
    "ES": "any actions; no gradients, whole episodes of perturbed weights",
    "ARS": "any actions; no gradients, often with a linear policy",
    "CustomModel": "the optimizer of a model and an agent of your own (--model_name, --agent_name)",
}


def _said_of(entry: object) -> str:
    """The first sentence of a docstring, or where a class without one is."""
    from raypid.plugins.modules import entry_name

    doc = " ".join((getattr(entry, "__doc__", None) or "").split())
    return re.split(r"(?<=[^.\d])\.(?=\s|$)", doc)[0] if doc else entry_name(entry)


_NETWORKS = {
    "mlp": "fully connected layers (model.hidden)",
    "cnn": "convolutions sized to the image, Nature's for 84x84 (model.channels), then model.hidden",
    "resnet": "IMPALA's residual convolutions (model.channels), then model.hidden",
    "lstm": "mlp with an LSTM behind it (model.memory_size); model.memory lstm puts one behind any network",
    "gru": "mlp with a GRU behind it (model.memory_size); model.memory gru puts one behind any network",
}


_TUNED_ARE = (
    "goal: the mean return at which training ended. return and seconds: the median over the seeds and, in brackets, the range. Seconds are of "
    "training alone, without start and evaluations (of the CPU; on Ray, of the clock). `raypid reproduce NAME` measures an entry again."
)


def _tuned() -> Iterator[dict[str, object]]:
    """Yield tuned settings that come with raypid, with what is recorded of them; and those that searches have saved."""
    from raypid.run.known_return import tuned_runs_here
    from raypid.settings import saved as saved_settings
    from raypid.settings.tuned import HEADINGS, TUNED, cells, record

    for algorithm, env in sorted(TUNED):
        found = record(algorithm, env)
        said = [f"{heading} {cell}" for heading, cell in zip(HEADINGS, cells(algorithm, env)) if cell]
        lacks = "" if tuned_runs_here(algorithm, env) else "needs torch, which is not installed"
        yield {
            "name": f"{algorithm}:{env}",
            "about": ", ".join(filter(None, [*said, lacks])),
            "lacks": lacks,
            "recorded": None if found is None else asdict(found),
        }
    for name in saved_settings.names():
        yield {"name": name, "about": saved_settings.described(name)}


def _show_tuned(rows: Sequence[Mapping[str, object]]) -> None:
    """Print the settings that come with raypid as a table, and below it those that searches have saved."""
    from raypid.settings.tuned import HEADINGS, cells

    own = [row for row in rows if "recorded" in row]
    if own:
        table = [(name := str(row["name"]), *cells(*name.split(":", 1)), str(row["lacks"])) for row in own]
        print(*aligned([("name", *HEADINGS, ""), *table]), _wrapped("", _TUNED_ARE), sep="\n")
    for row in rows:
        if row not in own:
            print(f"{row['name']}  {row['about']}")  # what is pasted is not wrapped
