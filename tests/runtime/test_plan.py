"""Which role goes to which node: a pure function of what nodes have."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from raypid.runtime.plan import Node, Placement, Roles, plan

GIB = 2.0**30


def node(name: str, cpus: float, gpus: float = 0, *, free: float | None = None, **more: bool) -> Node:
    total = {"CPU": cpus, "GPU": gpus, "memory": 8 * GIB}
    return Node(name, name, total, {**total, "CPU": cpus if free is None else free}, **more)


def roles(
    num_workers: int, each: float = 1, *, gpus: float = 0, num_learners: int = 0, num_shards: int = 0, **more: bool
) -> Roles:
    kinds = {
        "worker": (num_workers, {"CPU": each}),
        "learner": (num_learners, {"CPU": 1, "GPU": gpus}),
        "shard": (num_shards, {}),
    }
    return Roles(kinds, **more)


def spread(found: Placement, kind: str) -> dict[str, int]:
    return dict(Counter(found.nodes[at].name for at in found.at[kind]))


HERE = node("a", 4, has_driver=True)


@pytest.mark.parametrize(
    ("free", "num", "expected"),
    [
        ((4, 4, 4), 6, (2, 2, 2)),
        ((8, 4, 2), 7, (4, 2, 1)),
        ((16, 4), 10, (8, 2)),
        ((1, 1, 10), 12, (1, 1, 10)),
        ((0, 0.5, 3), 3, (0, 0, 3)),
        ((4, 4), 1, (1, 0)),  # the driver's own
    ],
)
def test_workers_are_spread_in_proportion_to_free_cpus(
    free: tuple[float, ...], num: int, expected: tuple[int, ...]
) -> None:
    nodes = [node(str(i), 16, free=cpus, has_driver=not i) for i, cpus in enumerate(free)]
    found = plan(roles(num), nodes)
    assert not found.missing() and [found.at["worker"].count(i) for i in range(len(free))] == list(expected)


def test_learners_are_where_gpus_are() -> None:
    nodes = [HERE, node("b", 4, 2), node("c", 4, 8)]
    assert spread(plan(roles(2, num_learners=2, gpus=1), nodes), "learner") == {"c": 2}
    apart = plan(roles(2, num_learners=2, gpus=1, much_data=True), nodes)
    assert spread(apart, "learner") == {"b": 1, "c": 1}
    assert spread(plan(roles(2, num_learners=4, gpus=1, much_data=True), nodes), "learner") == {"b": 2, "c": 2}
    assert spread(plan(roles(2, num_learners=4, gpus=0.5), [HERE, node("b", 4, 2)]), "learner") == {"b": 4}
    assert plan(roles(2, num_learners=1, gpus=4), [HERE, node("b", 4, 2)]).missing("learner") == 1


def test_learners_without_gpus_are_near_the_driver_and_leave_gpu_nodes_alone() -> None:
    nodes = [node("b", 8, 2), node("c", 8), HERE]
    assert spread(plan(roles(2, num_learners=2), nodes), "learner") == {"a": 2}
    full = [node("b", 8, 2), node("c", 8), node("a", 4, free=0, has_driver=True)]
    assert spread(plan(roles(2, num_learners=2), full), "learner") == {"c": 2}


def test_learners_avoid_what_may_be_taken_away() -> None:
    assert spread(
        plan(roles(2, num_learners=1, gpus=1), [node("a", 4, 8, is_spot=True), node("b", 4, 1)]), "learner"
    ) == {"b": 1}
    assert not plan(roles(2, num_learners=1), [node("a", 4, is_spot=True)]).missing()  # there is no other


def test_a_learner_yields_to_workers_that_would_have_no_place() -> None:
    nodes = [node("a", 2, has_driver=True), node("b", 3)]
    found = plan(roles(2, 2, num_learners=1), nodes)
    assert not found.missing() and spread(found, "learner") == {"b": 1} and spread(found, "worker") == {"a": 1, "b": 1}


def test_sums_do_not_make_a_place() -> None:
    nodes = [node(str(i), 1) for i in range(4)]
    assert plan(roles(1, 2), nodes).missing("worker") == 1
    assert not plan(roles(4, 1), nodes).missing() and plan(roles(5, 1), nodes).missing("worker") == 1
    assert plan(Roles({"worker": (3, {"CPU": 0.5, "memory": 5 * GIB})}), nodes[:2]).missing("worker") == 1


def test_shards_and_servers_are_where_workers_are() -> None:
    nodes = [HERE, node("b", 8), node("c", 8, free=0)]
    found = plan(roles(6, num_shards=3, servers=True), nodes)
    assert spread(found, "worker") == {"a": 2, "b": 4}
    assert spread(found, "shard") == {"a": 1, "b": 2} and spread(found, "server") == {"a": 1, "b": 1}
    assert found.feeds() == [0, 0, 1, 2, 1, 2]
    few = plan(roles(6, num_shards=1), nodes)
    assert spread(few, "shard") == {"b": 1} and few.feeds() == [0] * 6


def test_all_shards_are_fed_alike_though_workers_are_not() -> None:
    found = plan(roles(8, num_shards=2), [node("a", 2, has_driver=True), node("b", 6)])
    assert spread(found, "worker") == {"a": 2, "b": 6} and spread(found, "shard") == {"a": 1, "b": 1}
    fed = found.feeds()
    assert Counter(fed) == {0: 4, 1: 4} and fed[:2] == [0, 0]
    alone = plan(roles(5, num_shards=2), [node("a", 8, has_driver=True)])
    assert alone.feeds() == [0, 1, 0, 1, 0]  # on one node, in turn


def test_the_evaluator_takes_a_cpu_that_is_to_spare() -> None:
    alone = node("a", 5, has_driver=True)
    assert spread(plan(roles(4), [alone]), "evaluator") == {}  # the driver learns on the one that is left
    assert spread(plan(roles(4, num_learners=1), [node("a", 6, has_driver=True)]), "evaluator") == {"a": 1}
    assert spread(plan(roles(4), [HERE, node("b", 4)]), "evaluator") == {"b": 1}
    assert spread(plan(roles(4, evaluator=True), [HERE, node("b", 0.5)]), "evaluator") == {"b": 1}
    assert spread(plan(roles(4, evaluator=False), [HERE, node("b", 8)]), "evaluator") == {}


def test_nothing_is_given_away_twice() -> None:
    """In 300 random clusters: what is reserved was free, all that is missing found no place, and equal input gives equal plans."""
    draw = random.Random(0)
    for _ in range(300):
        nodes = [
            node(str(i), draw.randint(1, 9), draw.choice([0, 0, 1, 4]), free=draw.random() * 9, has_driver=not i)
            for i in range(draw.randint(1, 6))
        ]
        asked = roles(
            draw.randint(1, 12), draw.choice([0.25, 1, 2]), gpus=draw.choice([0, 0.5, 1]), num_learners=draw.randint(0, 3),
            num_shards=draw.randint(0, 4), much_data=draw.random() < 0.5,
        )  # fmt: skip
        found = plan(asked, nodes)
        assert found == plan(asked, nodes)
        for left in found.left:
            assert all(amount > -1e-3 for amount in left.values())
        if found.missing("worker"):
            assert all(left["CPU"] < asked.each("worker")["CPU"] for left in found.left)
        if not found.missing() and asked.num("shard"):
            fed = Counter(found.feeds())
            assert sum(fed.values()) == asked.num("worker") and max(fed.values()) <= math.ceil(
                asked.num("worker") / asked.num("shard")
            )


def test_what_many_workers_and_nodes_cost() -> None:
    nodes = [node(str(i), 128, has_driver=not i) for i in range(32)]
    found = plan(roles(2000, num_shards=64), nodes)
    assert (
        not found.missing()
        and {found.at["worker"].count(i) for i in range(32)} == {62, 63}
        and len(found.feeds()) == 2000
    )
