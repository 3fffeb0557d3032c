"""What is wrong with the Python code of pages: names of raypid that do not exist, arguments that are not taken, settings and ends that
are refused. Nothing is run: the code is read from top to bottom, as far as it speaks of raypid."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from check_runs import OPEN, all_keys, check_end, check_experiments, check_parts, check_settings

import raypid
from raypid.errors import UserError
from raypid.nn.policy import DeployedPolicy
from raypid.plugins.registry import ALGORITHMS
from raypid.roles.evaluator import EVALUATION_METRICS
from raypid.run.calls import settings_of
from raypid.run.training import Training

SETTINGS = {field for name in ALGORITHMS.names() for field in ALGORITHMS.get(name).Config.__dataclass_fields__}


@dataclass(frozen=True)
class Result:
    """A dict of numbers that an agent returns."""

    keys: frozenset[str]


@dataclass(frozen=True)
class Instance:
    """An object of a class of raypid."""

    cls: type
    run: str = ""
    """The algorithm of an agent, where it is known."""


def begun() -> dict[str, object]:
    """What names mean in the middle of a sentence. Learner is another one's name too."""
    roles = raypid.roles
    classes = (
        roles.Evaluator,
        roles.ParameterServer,
        roles.Replay,
        roles.Rollout,
        roles.Setup,
        raypid.DistributedAgent,
    )
    objects = {"agent": raypid.Agent, "outcome": raypid.Outcome, "policy": DeployedPolicy}
    objects |= {"learner": roles.Learner, "rollout": roles.Rollout, "server": roles.ParameterServer}
    named = {cls.__name__: cls for cls in classes} | {name: Instance(cls) for name, cls in objects.items()}
    return {"raypid": raypid, "roles": roles, **named}


def setting_problems(call: ast.expr) -> list[str]:
    """Say which settings among the keywords of a call take another value, or have other parts."""
    assert isinstance(call, ast.Call)
    given = {str(keyword.arg): _Reader({}, set()).visit(keyword.value) for keyword in call.keywords}
    found = []
    for name, value in given.items():
        if name in SETTINGS:
            try:
                check_settings("", {name: value})
            except UserError as error:
                found.append(str(error).rstrip("."))
    return found


def unbound(trees: list[ast.Module]) -> list[str]:
    """Names that the code of a page uses, and that nothing on the page binds."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {str(node.name) for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))}
    bound |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return sorted(used - bound - vars(builtins).keys() - {"__file__"})


def code_problems(tree: ast.AST, names: dict[str, object], added: set[str]) -> list[str]:
    """Say what is wrong with code.

    Args:
        names: what names mean before it; those that it binds are added.
        added: names that the page registers, such as algorithms, which are `raypid.NAME` then; keys that it adds to results.
    """
    reader = _Reader(names, added)
    reader.visit(tree)
    return list(dict.fromkeys(reader.found))


class _Reader(ast.NodeVisitor):
    """Visiting an expression returns its value: an object of raypid, an Instance, plain data, or OPEN."""

    def __init__(self, names: dict[str, object], added: set[str]) -> None:
        self.names, self.added, self.found = names, added, list[str]()

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        return OPEN

    # -- names -------------------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            first = name.name.partition(".")[0]
            found = self._imported(name.name) if first == "raypid" else OPEN
            self.names[name.asname or first] = found if name.asname or found is OPEN else raypid

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        ours = (node.module or "").partition(".")[0] == "raypid"
        for name in node.names:
            self.names[name.asname or name.name] = self._imported(f"{node.module}.{name.name}") if ours else OPEN

    def _imported(self, name: str) -> object:
        found = look_up(name)
        if found is OPEN and not self._is_added(name.split(".")):
            self._missing(name)
        return found

    def _is_added(self, parts: list[str]) -> bool:
        return len(parts) == 2 and parts[1].removesuffix("Agent") in self.added

    def _missing(self, name: str) -> None:
        self.found.append(f"`{name}` does not exist")

    def visit_Name(self, node: ast.Name) -> object:
        if not isinstance(node.ctx, ast.Load):
            self.names[node.id] = OPEN
        return self.names.get(node.id, OPEN)

    def visit_Attribute(self, node: ast.Attribute) -> object:
        owner = self.visit(node.value)
        if not isinstance(owner, (ModuleType, type, Instance)) or not isinstance(node.ctx, ast.Load):
            return OPEN
        if isinstance(owner, Instance):
            if node.attr not in attributes(owner.cls):
                self._missing(f"{owner.cls.__name__}.{node.attr}")
            found = inspect.getattr_static(owner.cls, node.attr, OPEN)
            if isinstance(found, property):
                return self._returned(found.fget, owner)
            return functools.partial(getattr(owner.cls, node.attr), owner) if inspect.isfunction(found) else OPEN
        if isinstance(owner, type) and not owner.__module__.startswith("raypid."):
            return OPEN
        try:
            found = getattr(owner, node.attr)
        except (AttributeError, ImportError):
            if isinstance(owner, type) and node.attr in attributes(owner):
                return OPEN
            if not (owner is raypid and self._is_added(["raypid", node.attr])):
                self._missing(f"{owner.__name__}.{node.attr}" if isinstance(owner, ModuleType) else ast.unparse(node))
            return OPEN
        is_method = isinstance(owner, type) and inspect.isfunction(inspect.getattr_static(owner, node.attr, None))
        return functools.partial(found, Instance(owner)) if is_method else found  # sentences call it without an object

    # -- data --------------------------------------------------------------------------------------------------------------

    def visit_Constant(self, node: ast.Constant) -> object:
        return OPEN if node.value is ... else node.value

    def visit_Subscript(self, node: ast.Subscript) -> object:
        owner, key = self.visit(node.value), self.visit(node.slice)
        if (
            isinstance(owner, Result)
            and isinstance(key, str)
            and not {key, key.partition("/")[0]} & {*owner.keys, *self.added}
        ):
            self.found.append(f"the result has no {key!r}")
        return OPEN

    def visit_UnaryOp(self, node: ast.UnaryOp) -> object:
        value = self.visit(node.operand)
        return -value if isinstance(node.op, ast.USub) and isinstance(value, (int, float)) else OPEN

    def visit_List(self, node: ast.List | ast.Tuple) -> object:
        values = [self.visit(element) for element in node.elts]
        is_plain = isinstance(node.ctx, ast.Load) and not any(isinstance(e, ast.Starred) for e in node.elts)
        return values if is_plain else OPEN

    visit_Tuple = visit_List  # noqa: N815 (the name is ast.NodeVisitor's)

    def visit_Dict(self, node: ast.Dict) -> object:
        found: dict[object, object] = {}
        for key, value in zip(node.keys, node.values):
            name, part = OPEN if key is None else self.visit(key), self.visit(value)
            if key is None and isinstance(part, Mapping):
                found |= part
            elif isinstance(name, str):
                found[name] = part
        return found

    # -- statements --------------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self._bind(target, value)

    def _bind(self, target: ast.AST, value: object) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, list) and len(value) == len(target.elts):
            for part, one in zip(target.elts, value):
                self._bind(part, one)
        elif isinstance(target, ast.Subscript):
            owner, key = self.visit(target.value), self.visit(target.slice)
            if isinstance(key, str):
                self.added.add(key)  # perhaps a callback's, to a result
                if isinstance(owner, dict):
                    owner[key] = value
        else:
            self.visit(target)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            value = self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, value)
        for statement in node.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.Lambda) -> object:
        for default in [
            *node.args.defaults,
            *filter(None, node.args.kw_defaults),
            *getattr(node, "decorator_list", ()),
        ]:
            self.visit(default)
        before = dict(self.names)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self.names[argument.arg] = OPEN
        for statement in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(statement)
        self.names.clear()
        self.names.update(before)
        if not isinstance(node, ast.Lambda):
            self.names[node.name] = OPEN
        return OPEN

    visit_Lambda = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if raypid.Callbacks in map(self.visit, node.bases):
            for name in (part.name for part in node.body if isinstance(part, ast.FunctionDef)):
                if name.startswith("on_") and name not in attributes(raypid.Callbacks):
                    self._missing(f"Callbacks.{name}")
        self.generic_visit(node)
        self.names[node.name] = OPEN

    # -- calls -------------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> object:
        called = self.visit(node.func)
        args = [self.visit(argument) for argument in node.args]
        keywords: dict[str, object] = {}
        is_whole = not any(isinstance(a, ast.Starred) or ast.unparse(a) == "..." for a in node.args)
        for keyword in node.keywords:
            value = self.visit(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Mapping):
                keywords |= value
            else:
                is_whole = False
        if isinstance(node.func, ast.Name) and node.func.id == "dict" and "dict" not in self.names:
            return {**(args[0] if args and isinstance(args[0], Mapping) else {}), **keywords}
        if isinstance(node.func, ast.Attribute) and node.func.attr == "copy":
            owner = self.visit(node.func.value)
            return dict(owner) if isinstance(owner, Mapping) else OPEN
        owner = OPEN
        if isinstance(called, functools.partial):
            called, owner = called.func, called.args[0]
        if not callable(called) or not str(getattr(called, "__module__", "")).startswith("raypid"):
            return OPEN
        return self._call(called, owner, args, keywords, is_whole)

    def _call(
        self, called: Any, owner: object, args: list[object], keywords: dict[str, object], is_whole: bool
    ) -> object:
        run = owner.run if isinstance(owner, Instance) else ""
        try:
            signature = inspect.signature(called)
        except ValueError:
            return OPEN
        parameters = dict(signature.parameters)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        taken = {name: value for name, value in keywords.items() if name in parameters}
        rest = {name: value for name, value in keywords.items() if name not in parameters}
        try:
            if rest and not takes_all:
                raise UserError(f"it takes no {next(iter(rest))!r}")
            bind = signature.bind if is_whole else signature.bind_partial
            bound = bind(*([owner] if owner is not OPEN else []), *args, **taken).arguments
            if takes_all or "run" in parameters:
                run = self._check_run(called, bound, rest)
            end = bound.get("stop")
            check_end(run if run in ALGORITHMS.names() else "", end)
            if called.__name__ == "run_experiments" and isinstance(experiments := [*bound.values()][0], Mapping):
                check_experiments(experiments)
        except (TypeError, UserError) as error:
            self.found.append(f"{called.__qualname__}(...) is refused: {str(error).rstrip('.')}")
        if isinstance(called, type):
            return Instance(called, run)
        if called.__name__ in ("train", "eval") and owner is not OPEN:
            return Result(EVALUATION_METRICS if called.__name__ == "eval" else all_keys() | {"custom", "learner"})
        return self._returned(called, owner)

    def _check_run(self, called: Any, bound: Mapping[str, object], settings: Mapping[str, object]) -> str:
        """Check the settings of an agent, of `raypid.train`, `raypid.setup` and the like; returns the algorithm, "" if it is open."""
        cls = called if isinstance(called, type) else object
        is_agent = issubclass(cls, Training)
        given = [*bound.get("given", ())] if is_agent else []
        run: Any = getattr(cls, "algorithm", None) or bound.get("run") or (given.pop(0) if is_agent and given else "")
        run = getattr(run, "algorithm", run)
        run = "" if not isinstance(run, str) or run in self.added or ":" in run else ALGORITHMS.canonical(run)
        if run:
            ALGORITHMS.get(run)
        config = bound.get("config")
        if not isinstance(config, Mapping):
            config = None
        if cls is not object and not is_agent:  # DistributedAgent, whose arguments are settings by other names
            settings = {name: value for name, value in settings.items() if name != "hidden_dim"}
            check_settings(run, settings, knows_all=False)
            return run
        places = [*given, bound.get("env")]
        configs = [value for value in places if isinstance(value, Mapping)]
        knows_all = not bound.get("tuned") and not isinstance(bound.get("config"), str) and "path" not in bound
        chosen = settings_of(configs, config, settings)
        check_settings(run, chosen, knows_all=knows_all)
        env = next((value for value in places if isinstance(value, str)), None)
        check_parts({**chosen, **({} if env is None else {"env": env})}, self.added)
        return run

    def _returned(self, function: Any, owner: object) -> object:
        """What a function returns, if its annotation names a class of raypid."""
        name = str(getattr(function, "__annotations__", {}).get("return"))
        found = getattr(inspect.getmodule(function), name, OPEN)
        found = getattr(function, "__self__", OPEN) if isinstance(found, TypeVar) else found  # from_checkpoint
        return Instance(found) if isinstance(found, type) and found.__module__.startswith("raypid.") else OPEN


@functools.cache
def look_up(name: str) -> Any:
    """The object of a dotted name; OPEN if there is none."""
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        if i > 1:  # a package may have a function of the module's name
            found = getattr(importlib.import_module(".".join(parts[: i - 1])), parts[i - 1], found)
        try:
            for part in parts[i:]:
                fields = getattr(found, "__dataclass_fields__", {})
                found = fields[part] if part in fields else getattr(found, part)
        except (AttributeError, ImportError):
            return OPEN
        return found
    return OPEN


@functools.cache
def attributes(cls: type) -> frozenset[str]:
    """What objects of a class of raypid have: of the class, or set in its methods."""
    found = set(dir(cls))
    for base in cls.__mro__:
        found |= {*getattr(base, "__annotations__", {}), *getattr(base, "__dataclass_fields__", {})}
        if base.__module__.startswith("raypid."):
            found |= set(re.findall(r"\bself\.(\w+)", inspect.getsource(base)))
    return frozenset(found)
