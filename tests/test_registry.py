"""Names, suggestions, lazy entries."""

from __future__ import annotations

import json

import pytest

from raypid.errors import UserError
from raypid.registry import ALGORITHMS, ENVS, NETWORKS, Registry, did_you_mean, import_string, suggest


def test_suggest_ignores_case_and_ranks() -> None:
    known = ["PPO", "A2C", "CartPole-v1", "CarRacing-v3"]
    assert suggest("ppo", known) == ["PPO"] and suggest("cartpole-V1", known)[0] == "CartPole-v1"
    assert suggest("zzz", known) == []
    assert did_you_mean("ppo", known) == " Did you mean 'PPO'?"
    assert did_you_mean("zzz", ["b", "a"]) == " Known: a, b."


def test_import_string() -> None:
    assert import_string("json:dumps") is json.dumps
    with pytest.raises(UserError, match="there is no module 'nosuchmodule'"):
        import_string("nosuchmodule.sub:x")
    with pytest.raises(UserError, match="module 'json' has no 'nothing'"):
        import_string("json:nothing")


def test_register_get_and_replace() -> None:
    registry = Registry("thing", {"lazy": "json:dumps"})
    registry.register("own", 5)
    assert registry.get("own") == 5 and registry.get("lazy") is json.dumps
    registry.register("own", 6)
    assert registry.get("own") == 6 and registry.names() == ["lazy", "own"] and "own" in registry
    with pytest.raises(UserError, match="Unknown thing 'ownn'. Did you mean 'own'"):
        registry.get("ownn")


def test_registries_do_not_share_their_tables() -> None:
    entries: dict[str, object] = {"a": 1}
    registry = Registry("thing", entries)
    registry.register("b", 2)
    assert entries == {"a": 1}


def test_what_a_user_adds_is_checked() -> None:
    registry: Registry[type] = Registry(
        "error", {"own": "builtins:ValueError"}, base="builtins:Exception", reserved=["auto"]
    )
    registry.add("theirs", KeyError)
    assert registry.get("theirs") is KeyError and not registry.is_own("theirs") and registry.is_own("own")
    for name in ("own", "auto"):
        with pytest.raises(UserError, match=f"{name!r} is the name of raypid's own error: give yours another name"):
            registry.add(name, KeyError)
    for wrong in (dict, KeyError()):
        with pytest.raises(UserError, match="Error 'wrong' must be a subclass of builtins.Exception, not"):
            registry.add("wrong", wrong)  # type: ignore[arg-type]
    registry.add("lazy", "json:JSONDecodeError")  # imported, and checked, when it is used
    assert registry.get("lazy") is json.JSONDecodeError
    with pytest.raises(
        UserError, match=r"The error 'lazy' is registered already, by json:JSONDecodeError; now .*decoder.py:\d+ takes"
    ):
        registry.add("lazy", json.JSONDecodeError)
    registry.add("wrong", "json:JSONDecoder")
    with pytest.raises(
        UserError, match="Error 'wrong' must be a subclass of builtins.Exception, not <class 'json.decoder"
    ):
        registry.get("wrong")
    assert registry.find("absent", "builtins:OSError") is OSError


@pytest.mark.parametrize("registry", [ENVS, NETWORKS, ALGORITHMS], ids=lambda r: r.kind)
def test_every_built_in_entry_can_be_imported(registry: Registry) -> None:
    assert registry.names()
    for name in registry.names():
        assert callable(registry.get(name)), name
