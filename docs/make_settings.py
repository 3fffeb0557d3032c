"""Write the tables of settings in docs/algorithms.md from the algorithms' Config classes.

python docs/make_settings.py            # rewrite the file
python docs/make_settings.py --check    # exit 1 if it is out of date
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from raypid.algorithms.base import Algorithm
from raypid.config import Config, ModelConfig, field_docs
from raypid.experiments.space import ranges_of
from raypid.registry import ALGORITHMS
from raypid.tuned import HEADINGS, TUNED, cells

PAGE = Path(__file__).with_name("algorithms.md")


def main() -> int:
    """0 if the page is (now) up to date."""
    text = PAGE.read_text()
    new = text
    tables = {
        "sync": own(lambda a: a.flow == "sync"),
        "async": own(lambda a: a.flow == "async" and a.collect != "fitness"),
        "replay": own(lambda a: a.flow == "replay"),
        "fitness": own(lambda a: a.collect == "fitness"),
        "all": shared(),
        "model": model(),
        "tuned": tuned(),
    }
    for name, lines in tables.items():
        begin, end = f"<!-- settings: {name} -->", f"<!-- end: {name} -->"
        head, _, rest = new.partition(begin)
        _, _, tail = rest.partition(end)
        new = "\n".join([head + begin, *lines, end + tail])
    if "--check" in sys.argv:
        print("docs/algorithms.md is " + ("up to date" if new == text else "out of date: python docs/make_settings.py"))
        return int(new != text)
    PAGE.write_text(new)
    return 0


def own(of: Callable[[type[Algorithm]], bool]) -> list[str]:
    """Return the table of the settings that the algorithms for which `of` is true add to Config."""
    configs = {name: cls for name, cls in _configs().items() if of(ALGORITHMS.get(name))}
    common = {f.name for f in dataclasses.fields(Config)}
    rows = []
    for name in {f.name: None for cls in configs.values() for f in dataclasses.fields(cls) if f.name not in common}:
        owners = [cls for cls in configs.values() if name in cls.__dataclass_fields__]
        acts = [cls in owners and name not in cls.no_effect for cls in configs.values()]
        defaults = [
            _code(getattr(cls(), name)) if act else "–" for cls, act in zip(configs.values(), acts, strict=True)
        ]
        rows.append([f"`{name}`", *defaults, _searched(name, configs), field_docs(owners[0])[name]])
    return _table(["setting", *configs, "search", "meaning"], rows)


def shared() -> list[str]:
    """Return the table of the settings that every algorithm has: the most common default, and the exceptions."""
    rows = []
    for field in dataclasses.fields(Config):
        if field.name == "model":
            continue
        values = {name: _code(getattr(cls(), field.name)) for name, cls in _configs().items()}
        default = max(values.values(), key=list(values.values()).count)
        idle = [name for name, cls in _configs().items() if field.name in cls.no_effect]
        others = [f"{name} {value}" for name, value in values.items() if value != default and name not in idle]
        others += [f"no effect: {' '.join(idle)}"] if idle else []
        searched = _searched(field.name, _configs())
        rows.append([f"`{field.name}`", default, ", ".join(others), searched, field_docs(Config)[field.name]])
    return _table(["setting", "default", "other defaults", "search", "meaning"], rows)


def model() -> list[str]:
    settings, docs = ModelConfig(), field_docs(ModelConfig)
    rows = []
    for f in dataclasses.fields(settings):
        searched = _searched(f"model.{f.name}", _configs())
        rows.append([f"`model.{f.name}`", _code(getattr(settings, f.name)), searched, docs[f.name]])
    return _table(["setting", "default", "search", "meaning"], rows)


def _searched(name: str, configs: dict[str, type[Config]]) -> str:
    """Say which values of a setting a search tries; by algorithm, where they differ or not all that have the setting try some."""
    key = name.removeprefix("model.")
    owners = [
        o for o, c in configs.items() if (key != name or key in c.__dataclass_fields__) and name not in c.no_effect
    ]
    by_text: dict[str, list[str]] = {}
    for owner in owners:
        if space := ranges_of(configs[owner]).get(name):
            by_text.setdefault(str(space), []).append(owner)
    if [*by_text.values()] == [owners]:
        return next(iter(by_text))
    most = max(by_text, key=lambda text: len(by_text[text]), default="")
    others = [f"{' '.join(names)} {text}" for text, names in by_text.items() if text != most]
    covered = sum(map(len, by_text.values())) == len(owners)
    return "; ".join(filter(None, [most if covered or not most else f"{' '.join(by_text[most])} {most}", *others]))


def tuned() -> list[str]:
    rows = []
    for (algorithm, env), settings in sorted(TUNED.items()):
        given = ", ".join(f"`{k}` {_text(v)}" for k, v in settings.items())
        rows.append([algorithm, env, *cells(algorithm, env), given])
    return _table(["algorithm", "environment", *HEADINGS, "settings"], rows)


def _configs() -> dict[str, type[Config]]:
    names = sorted(ALGORITHMS.names(), key=lambda name: (name != "PPO", name))
    return {name: ALGORITHMS.get(name).Config for name in names}


def _text(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value).strip('"').replace("null", "none")


def _code(value: object) -> str:
    return f"`{_text(value)}`"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
