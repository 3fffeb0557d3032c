"""What pages show that is made elsewhere: tables and pictures from the code and from benchmarks/results/runs.csv, and files.

They follow lines such as `<!-- settings: PPO -->`, `<!-- file: examples/sweep.py -->` and `<!-- code: raypid/loops/loops.py sync -->`.
`make_pages.py` writes them into the pages, where readers of the repository find them. `hooks.py` makes them anew for the site, with pictures.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import os
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from raypid.algorithms.base import Algorithm
from raypid.compat.names import ALIASES, ANSWERS
from raypid.plugins.registry import ALGORITHMS
from raypid.run.known_keys import known_keys
from raypid.settings.config import Config, ConfigError, ModelConfig, Settings, describe_type, field_docs, type_hints
from raypid.settings.stops import SHORT
from raypid.settings.tuned import HEADINGS, TUNED, cells, record, shown
from raypid.sweep.space import ranges_of

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "benchmarks" / "results" / "runs.csv"
sys.path.insert(0, str(ROOT / "benchmarks"))

import distributed_pays  # noqa: E402
from defaults import TASKS, End, ends, newest, returns  # noqa: E402
from defaults import table as measured  # noqa: E402

VARIANTS: tuple[dict[str, object], ...] = (
    {}, {"normalize_rewards": False}, {"prioritized": True}, {"prioritized": False}, {"noisy": 0.0}, {"intrinsic_reward": "rnd"},
    {"num_workers": 2, "num_learners": 2, "on_divergence": "rollback"}, {"num_workers": 2, "parameter_server": True},
    {"num_workers": 2, "num_replay_shards": 2}, {"num_workers": 2, "num_learners": 2, "learner_sync": "asynchronous"},
)  # fmt: skip
"""Settings that decide which metrics are reported."""


MARKER = re.compile(
    r"^<!-- (\w+): ([\w./-]+(?: [\w.]+)?)( \{[^\n]*\})? -->$(?:\n((?:(?!<!-- end: )[^\n]*\n)*?)<!-- end: \1 -->$)?",
    re.MULTILINE,
)
"""A marker: kind, name, options, and what the last call of `make_pages.py` wrote below it."""


_DEFINITIONS = ast.FunctionDef | ast.ClassDef


class MarkerError(ValueError):
    """Why a marker stands for nothing.

    Args:
        line: its line in the page, from 1.
    """

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def made(found: re.Match[str], *, site: bool = True) -> str:
    """What a marker of a page stands for; `table` says what the arguments are.

    Raises:
        MarkerError: it stands for nothing.
    """
    try:
        return table(found[1], found[2], found[3] or "", site=site)
    except ValueError as error:
        raise MarkerError(found.string.count("\n", 0, found.start()) + 1, str(error)) from None


def table(kind: str, name: str, options: str = "", *, site: bool = True) -> str:
    """What a marker stands for, in Markdown or HTML.

    Args:
        options: what a marker of a name of the code has behind the name.
        site: for the site, with pictures and docstrings. Else for the page in the repository.

    Raises:
        ValueError: there is no such table or file, or a setting has no docstring.
    """
    if kind == "file":
        return file(name)
    if kind == "code":
        return code(*name.partition(" ")[::2])
    if kind == "pays":
        return pays(name)
    if kind == "names":
        return names(name)
    makers = {"shared": shared, "model": model, "tuned": tuned}
    if kind == "reference":
        return f"::: {name}" + (f"\n    options: {options.strip()}" if options else "") if site else summary(name)
    if kind == "settings" and name in makers:
        return makers[name]()
    if name not in ALGORITHMS.names():
        raise ValueError(f"{name!r} is no algorithm and no table; there are {', '.join(makers)} and the algorithms.")
    if kind == "results" and site:
        return "\n\n".join(filter(None, (results(name), curves(name))))
    return {"settings": own, "results": results, "expected": expected}[kind](name)


def file(path: str) -> str:
    """A file of the repository, as a block of code; or, if it is Markdown, as it is.

    Raises:
        ValueError: there is no such file.
    """
    if not (ROOT / path).is_file():
        raise ValueError(f"the file {path}, which this page shows, does not exist.")
    text, suffix = (ROOT / path).read_text().rstrip("\n"), Path(path).suffix
    language = {".py": "python"}.get(suffix, suffix[1:])
    return text if suffix == ".md" else f"```{language}\n{text}\n```"


def code(path: str, name: str) -> str:
    """A function of a file of the repository without its docstring, or a method as "Class.method", as a block of code.

    Raises:
        ValueError: there is no such file, or nothing of that name in it.
    """
    if not (ROOT / path).is_file():
        raise ValueError(f"the file {path}, of which this page shows {name}, does not exist.")
    text = (ROOT / path).read_text()
    found: ast.AST = ast.parse(text)
    for part in name.split("."):
        inside = {node.name: node for node in ast.iter_child_nodes(found) if isinstance(node, _DEFINITIONS)}
        if part not in inside:
            raise ValueError(f"{path} has no function {name}, which this page shows.")
        found = inside[part]
    assert isinstance(found, _DEFINITIONS)
    lines = text.splitlines()[: found.end_lineno]
    if ast.get_docstring(found) is not None:
        del lines[found.body[0].lineno - 1 : found.body[0].end_lineno]
    first = min(node.lineno for node in (found, *found.decorator_list))
    shown = textwrap.dedent("\n".join(lines[first - 1 :]))
    return f"```python\n{shown}\n```"


def pays(name: str) -> str:
    """When workers pay: the table of steps a second, that of seconds to the return, or a sentence on the number of cores.

    Raises:
        ValueError: it is none of these.
    """
    makers = {
        "steps": distributed_pays.steps_table,
        "seconds": distributed_pays.seconds_table,
        "cores": distributed_pays.told,
    }
    if name not in makers:
        raise ValueError(f"{name!r} is no table of benchmarks/distributed_pays.py; there are {', '.join(makers)}.")
    return makers[name](distributed_pays.read()).rstrip("\n")


def names(table: str) -> str:
    """Names of other libraries, grouped by ours.

    Raises:
        ValueError: there is no such table.
    """
    tables = {"ALIASES": ALIASES, "ANSWERS": ANSWERS, "SHORT": SHORT}
    if table not in tables:
        raise ValueError(f"{table!r} is no table of names; there are {', '.join(tables)}.")
    others: dict[str, list[str]] = {}
    for other, ours in tables[table].items():
        others.setdefault(ours, []).append(f"`{other}`")
    return _table(["here", "other names"], [[f"`{ours}`", ", ".join(found)] for ours, found in sorted(others.items())])


# -- settings --------------------------------------------------------------------------------------------------------------


def own(name: str) -> str:
    """The settings that an algorithm adds to those of every algorithm, and the defaults that it changes."""
    cls, common = _config(name), Config()
    config, names = cls(), {f.name for f in dataclasses.fields(Config)}
    rows = []
    for field in dataclasses.fields(cls):
        value, is_own = getattr(config, field.name), field.name not in names
        if (
            field.name not in cls.no_effect
            and field.name != "model"
            and (is_own or value != getattr(common, field.name))
        ):
            takes, searched = _takes(field.name, cls), _range(field.name, cls)
            rows.append([f"`{field.name}`", _code(value), takes, searched, _meaning(cls, field.name)])
    for field in dataclasses.fields(ModelConfig):
        value = getattr(config.model, field.name)
        if "model" not in cls.no_effect and value != getattr(ModelConfig(), field.name):
            key = f"model.{field.name}"
            takes, searched = _takes(field.name, ModelConfig), _range(key, cls)
            rows.append([f"`{key}`", _code(value), takes, searched, _meaning(ModelConfig, field.name)])
    more = "Settings that every algorithm has, with the same default, are [on the overview](index.md#settings-of-every-algorithm)."
    return _table(["setting", "default", "takes", "a search tries", "meaning"], rows) + "\n\n" + more


def shared() -> str:
    """The settings that every algorithm has: the most common default, and where they have no effect."""
    rows = []
    for field in dataclasses.fields(Config):
        if field.name == "model":
            continue
        values = [_code(getattr(_config(name)(), field.name)) for name in _names()]
        idle = [name for name in _names() if field.name in _config(name).no_effect]
        note = f" No effect: {', '.join(idle)}." if idle else ""
        default, takes = max(values, key=values.count), _takes(field.name, Config)
        rows.append([f"`{field.name}`", default, takes, _meaning(Config, field.name) + note])
    return _table(["setting", "default of most", "takes", "meaning"], rows)


def model() -> str:
    """The settings of networks."""
    settings = ModelConfig()
    rows = [
        [
            f"`model.{f.name}`",
            _code(getattr(settings, f.name)),
            _takes(f.name, ModelConfig),
            _meaning(ModelConfig, f.name),
        ]
        for f in dataclasses.fields(settings)
    ]
    return _table(["setting", "default", "takes", "meaning"], rows)


def tuned() -> str:
    """The tuned settings, with what was measured."""
    rows = []
    for (algorithm, env), settings in sorted(TUNED.items()):
        given = ", ".join(f"`{k}` {_text(v)}" for k, v in settings.items())
        rows.append([algorithm, env, *cells(algorithm, env), given])
    return _table(["algorithm", "environment", *HEADINGS, "settings"], rows)


def _meaning(cls: type, name: str) -> str:
    """The docstring of a setting."""
    text = field_docs(cls).get(name, "")
    if not text.strip():
        owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
        file = Path(inspect.getfile(owner)).relative_to(ROOT)
        raise ValueError(
            f'{file}: {owner.__name__}.{name} has no docstring. Write one in the line below the setting: """...""".'
        )
    return text


def _takes(name: str, cls: type[Settings]) -> str:
    """What a setting takes: its type, and the rules that its value must keep."""
    kind, *none = describe_type(type_hints(cls)[name]).split(" or none")
    found = {
        rule: None for owner in cls.__mro__ for rule, names in vars(owner).get("ranges", {}).items() if name in names
    }
    rules = [rule.removeprefix("be ").removeprefix("lie ").removeprefix("a ") for rule in found]
    if rules == ["finite number"]:
        kind, rules = "a finite number", []
    return " ".join([kind, " and ".join(rules)]).strip() + " or none" * bool(none)


def _range(key: str, cls: type[Config]) -> str:
    space = ranges_of(cls).get(key)
    return "–" if space is None or key.removeprefix("model.") in cls.no_effect else str(space)


@cache
def _config(name: str) -> type[Config]:
    return ALGORITHMS.get(name).Config


def _names() -> list[str]:
    return sorted(ALGORITHMS.names(), key=lambda name: (name != "PPO", name))


# -- metrics ---------------------------------------------------------------------------------------------------------------


def metrics(name: str) -> set[str]:
    """Every key under learner/ that an algorithm may report."""
    return {key for key in keys(name) if key.startswith("learner/")}


@cache
def keys(name: str) -> frozenset[str]:
    """Every key that results of an algorithm may have, besides those that users' code reports."""
    algorithm: type[Algorithm[Config]] = ALGORITHMS.get(name)
    found: set[str] = set()
    for variant in VARIANTS:
        config = algorithm.Config()
        if all(key in config.__dataclass_fields__ for key in variant):
            config = dataclasses.replace(config, **variant)
            try:
                config.own_checks()
            except ConfigError:
                continue
            found |= known_keys(name, config).keys
    return frozenset(found)


# -- results ---------------------------------------------------------------------------------------------------------------


def results(name: str) -> str:
    """What was measured with the default settings, as a table; or a sentence, where nothing was."""
    rows = [row for row in _measured() if row[2] == name]
    if not rows:
        return (
            "The default settings were not measured yet. Runs with settings that were chosen for a task are in "
            "[results/learning.md](../../benchmarks/results/learning.md), and those with `--tuned` in [tuned settings](index.md#tuned-settings)."
        )
    found = _table(
        ["task", "return", "median s", "worst s", "seeds that reached it", "system, settings"],
        [[row[0], row[1], *row[4:7], row[3]] for row in rows],
    )
    about = (
        "Seconds from the start of the process, on two cores, until two greedy evaluations in a row reach the return, without the "
        "time of evaluations. Settings were chosen on other seeds. [How it is measured](../../benchmarks/defaults.py), "
        "[every evaluation](../../benchmarks/results/runs.csv)."
    )
    return f"{found}\n\n{about}"


def expected(name: str) -> str:
    """What the command at the top of an algorithm's page should reach, as far as its task or another one was measured; else nothing."""
    page = (ROOT / "docs" / "algorithms" / f"{name.lower()}.md").read_text()
    command = re.search(rf"^raypid train --run {name} .*--env (\S+).*\"timesteps_total\": (\d+)", page, re.MULTILINE)
    if command is None:
        raise ValueError(f"the page of {name} has no command with --env and timesteps_total to say something about.")
    env, steps = command[1], int(command[2])
    found = ends(RUNS)
    runs = newest(found, f"{name}:{env}").get(("raypid", "default"), []) if f"{name}:{env}" in TASKS else []
    if runs:
        return _reached(TASKS[f"{name}:{env}"].threshold, steps, [found[run] for run in runs])
    entries = sorted(
        (entry for entry in TUNED if entry[0] == name and (of := record(*entry)) and of.solved),
        key=lambda entry: entry[1] != env,
    )
    if not entries:
        return ""
    of = record(*entries[0])
    assert of is not None and of.seconds is not None
    task = "this task" if of.env == env else of.env
    return (
        f"The defaults were not measured on {env}. With `--tuned`, {of.solved} of {len(of.seeds)} seeds reached a return of {of.goal:,g} on {task}"
        f"{' on Ray' if of.backend == 'ray' else ''}: after {_whole(of.steps.median)} steps and {shown(of.seconds.median)} s in the median "
        "([tuned settings](index.md#tuned-settings))."
    )


def _reached(goal: float, steps: int, runs: list[End]) -> str:
    """How many runs reached a return within the steps of a command, and when."""
    arrived = sorted((end for end in runs if end.solved), key=lambda end: end.seconds)
    in_time, never = sum(end.step <= steps for end in arrived), len(runs) - len(arrived)
    if never * 2 >= len(runs):
        return f"{len(arrived) or 'None'} of {len(runs)} seeds reached a return of {goal:,g}."
    median, last = arrived[(len(runs) - 1) // 2], arrived[-1]
    slowest = f"{_whole(last.step)} steps and {last.seconds:.1f} s."
    told = f"{never} of {len(runs)} seeds did not reach it; of the others the slowest" if never else "The slowest seed"
    return (
        f"Expect evaluations to reach a return of {goal:,g} after about {_whole(median.step)} steps and {median.seconds:.1f} s (median of "
        f"{len(runs)} seeds, in one process on two cores; the time of evaluations is left out). {told} took {slowest} "
        f"{in_time} of {len(runs)} seeds arrived within the {steps:,} steps of this command."
    )


def _whole(steps: float) -> str:
    """A number of steps to two digits."""
    digits = len(str(int(steps)))
    return f"{round(steps, 2 - digits):,.0f}"


@cache
def _measured() -> list[tuple[str, ...]]:
    return measured(ends(RUNS))


def curves(name: str) -> str:
    """Returns of 10 greedy episodes over seconds, a panel for each task and a line for each seed, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    points = returns(RUNS)
    lines = {
        task.env: [points[run] for run in newest(points, key).get(("raypid", "default"), ())]
        for key, task in TASKS.items()
        if key.startswith(f"{name}:")
    }
    tasks = [env for env, drawn in lines.items() if drawn]
    if not tasks:
        return ""
    columns = min(3, len(tasks))
    count = -(-len(tasks) // columns)
    figure, axes = plt.subplots(count, columns, figsize=(3.4 * columns, 2.5 * count), squeeze=False)
    for ax, env in zip(axes.flat, tasks, strict=False):
        for line in lines[env]:
            ax.plot(*zip(*sorted(line), strict=True), color="#3f51b5", alpha=0.6, linewidth=1)
        ax.axhline(TASKS[f"{name}:{env}"].threshold, color="#888888", linestyle="--", linewidth=1)
        ax.set_title(env, fontsize=9, color="#888888")
        ax.set_xlabel("seconds", fontsize=8, color="#888888")
        ax.tick_params(labelsize=8, colors="#888888")
        for side in ax.spines.values():
            side.set_visible(side.spine_type in ("left", "bottom"))
            side.set_color("#888888")
    for ax in list(axes.flat)[len(tasks) :]:
        ax.set_axis_off()
    figure.tight_layout()
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True)
    plt.close(figure)
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :].replace(
        "<svg ",
        f'<svg role="img" aria-label="Returns of {name} over seconds" ',
        1,
    )
    return f'<div class="curves">{"".join(_lines(svg))}</div>\n\nEach line is a seed; dashed is the return to reach.'


def _lines(svg: str) -> Iterator[str]:
    """An SVG without blank lines, which would end an HTML block of Markdown."""
    return (line + "\n" for line in svg.splitlines() if line.strip())


# -- text ------------------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value).strip('"').replace("null", "none")


def _code(value: object) -> str:
    return f"`{_text(value)}`"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


# -- names of the code -------------------------------------------------------------------------------------------------------


def summary(name: str) -> str:
    """For a page in docs/reference/: a link to the file of a public name, and the first sentence of its docstring.

    A module gives a list of its public classes.
    """
    found = pkgutil.resolve_name(name)
    if not inspect.ismodule(found):
        return _line(name, found)
    public = [value for value in vars(found).values() if inspect.isclass(value) and value.__module__ == name]
    return "\n".join(f"- {_line(value.__name__, value)}" for value in public if not value.__name__.startswith("_"))


def _line(name: str, found: object) -> str:
    module = getattr(found, "__module__", None) or name.rpartition(".")[0]
    file = Path(str(sys.modules[module].__file__)).relative_to(ROOT).as_posix()
    text = inspect.getdoc(found) or ""
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        text = ""  # of its type
    first = re.split(r"(?<=[.!?])(?<!et al\.)\s", " ".join(text.split("\n\n")[0].split()))[0]
    last = name.rpartition(".")[2]
    public = next(
        (
            f"{home}.{last}"
            for home in ("raypid", "raypid.roles")
            if getattr(pkgutil.resolve_name(home), last, None) is found
        ),
        name,
    )
    return f"[`{public}`]({os.path.relpath(file, 'docs/reference')})" + (f": {first}" if first else "")
