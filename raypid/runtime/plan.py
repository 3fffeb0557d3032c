"""Which role of a run goes to which node of a cluster. Nothing is asked or started here: the same nodes give the same plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raypid.runtime.handle import Place, kind_name

CPU, GPU, MEMORY, STORE = "CPU", "GPU", "memory", "object_store_memory"
"""Ray's names of what a node has; the last two in bytes."""
PLACED = ("learner", "worker", "shard")
"""Kinds of roles that take something of a node, in the order in which they get it."""
MOST_ROLES = 10_000
"""Workers of one node, whatever they take."""
_UNLIMITED = {CPU: 0.0, GPU: 0.0, MEMORY: math.inf, STORE: math.inf}
"""Free amounts that are assumed of what a node does not declare."""
_TINY = 1e-6
_SHOWN = 4
"""Nodes that a message names."""

Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster, or a bundle of a trial's placement group."""

    id: str
    name: str
    total: Amounts
    """Amounts that the node declares, by Ray's names."""
    free: Amounts
    """Amounts of `total` that are free."""
    has_driver: bool = False
    is_spot: bool = False
    """Its provider may take it away at any time."""

    def has(self, name: str) -> float:
        """The free amount of CPU, GPU, memory or object store."""
        return self.free.get(name, 0.0 if name in self.total else _UNLIMITED[name])


@dataclass(frozen=True, slots=True)
class Roles:
    """The processes of a run, and what each takes of its node."""

    kinds: Mapping[str, tuple[int, Amounts]]
    """Kind of a role that takes something (worker, learner, shard) -> the number of such roles, and what each takes. Without learners
    the driver learns."""
    servers: bool = False
    """A parameter server on each node that has workers."""
    shares_parameters: bool = False
    """Learners that do not wait for each other share parameters in an actor."""
    evaluator: bool | None = None
    """Whether evaluations have a process of their own; None: where a CPU, or a part of one, is to spare."""
    much_data: bool = False
    """What workers collect (images) is too much for the network of one node, so each learner gets a node of its own if there are enough."""

    def num(self, kind: str) -> int:
        """The number of workers, learners or shards; 0 for other kinds."""
        return self.kinds.get(kind, (0, {}))[0]

    def each(self, kind: str) -> Amounts:
        """What each role of a kind takes."""
        return self.kinds.get(kind, (0, {}))[1]


@dataclass(slots=True)
class NodeShare:
    """The part of a run that is placed on one node, and the CPUs and GPUs that it leaves. The fields are those of its JSON."""

    node: str
    id: str
    driver: bool
    roles: dict[str, int] = field(default_factory=dict)
    """Number of roles by kind."""
    takes: dict[str, float] = field(default_factory=lambda: {CPU: 0.0, GPU: 0.0})
    left: dict[str, float] = field(default_factory=lambda: {CPU: 0.0, GPU: 0.0})
    total: dict[str, float] = field(default_factory=lambda: {CPU: 0.0, GPU: 0.0})

    def __str__(self) -> str:
        """Such as "driver, 2 workers, 1 replay shard: takes 2 CPUs, leaves 1 of 4 CPUs"."""
        names = ["driver"] * self.driver + [counted(num, kind_name(kind)) for kind, num in self.roles.items()]
        takes = " and ".join(counted(num, name) for name, num in self.takes.items() if num) or "nothing"
        leaves = [f"{number_text(self.left[name])} of {counted(num, name)}" for name, num in self.total.items() if num]
        return f"{', '.join(names) or 'nothing of it'}: takes {takes}, leaves {' and '.join(leaves) or 'nothing'}"


def number_text(num: float) -> str:
    """A number with at most four decimals."""
    return f"{round(num, 4) + 0.0:.12g}"


def counted(num: float, noun: str) -> str:
    """Such as "1 worker" and "2.5 CPUs"."""
    return f"{number_text(num)} {noun}{'s' * (num != 1)}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The node of each role of a run. Roles without a place are missing in `at`."""

    nodes: Sequence[Node]
    roles: Roles
    at: Mapping[str, Sequence[int]]
    """Kind of a role (worker, learner, shard, server, evaluator, other) -> the number of its node, role by role."""
    left: Sequence[Amounts]
    """Amounts that each node has left once all roles are placed."""

    def missing(self, *kinds: str) -> int:
        """The number of roles of these kinds without a place; without any kind, of workers, learners and shards."""
        return sum(self.roles.num(kind) - len(self.at[kind]) for kind in kinds or PLACED)

    def place(self, kind: str, index: int = 0) -> Place:
        """The place of a role."""
        each, at = self.roles.each(kind), self.at[kind]
        node = self.nodes[at[index]].id if index < len(at) else ""
        return Place(kind, index, each.get(CPU, 0.0), each.get(GPU, 0.0), node or None)

    def places(self) -> list[Place]:
        """The places of the roles that reserve CPUs or GPUs: workers, then learners."""
        return [self.place(kind, i) for kind in ("worker", "learner") for i in range(self.roles.num(kind))]

    def shares(self) -> list[NodeShare]:
        """The share of each node, those with the driver and with most of the run first."""
        shares: dict[str, NodeShare] = {}
        for i, node in enumerate(self.nodes):  # bundles of a trial may be on one node
            share = shares.setdefault(node.id, NodeShare(node.name, node.id, node.has_driver))
            nums = {kind: num for kind, at in self.at.items() if (num := list(at).count(i))}
            share.roles |= {kind: num + share.roles.get(kind, 0) for kind, num in nums.items()}
            for name in (CPU, GPU):
                takes = sum(num * self.roles.each(kind).get(name, 0.0) for kind, num in nums.items())
                share.takes[name] = round(share.takes[name] + takes, 4)
                share.left[name] = round(share.left[name] + self.left[i][name], 4) + 0.0
                share.total[name] = round(share.total[name] + node.total.get(name, 0.0), 4)
        return sorted(shares.values(), key=lambda share: (not share.driver, -sum(share.roles.values())))

    def feeds(self) -> list[int]:
        """The shard that each worker fills: one on its node where there is one, and each as many workers as the others."""
        num_workers, num_shards = self.roles.num("worker"), max(1, self.roles.num("shard"))
        most = math.ceil(num_workers / num_shards)
        num_fed: Counter[int] = Counter()
        fed: dict[int, int] = {}
        for near in (True, False):
            for worker, node in enumerate(self.at["worker"]):
                there = [s for s, at in enumerate(self.at["shard"]) if (at == node or not near) and num_fed[s] < most]
                if worker not in fed and there:
                    fed[worker] = min(there, key=lambda s: num_fed[s])
                    num_fed[fed[worker]] += 1
        return [fed.get(worker, worker % num_shards) for worker in range(num_workers)]


def free_on(nodes: Sequence[Node], name: str) -> str:
    """Say how much of a resource is free on each node, such as "free: 10.0.0.1 1 of 4, 10.0.0.2 4 of 4 CPUs"; nodes with most of it first."""
    scale, unit = (2**30, "GiB") if name in (MEMORY, STORE) else (1, f"{name}s")
    having = sorted((node for node in nodes if node.total.get(name)), key=lambda node: -node.has(name))
    shown = [f"{node.name} {node.has(name) / scale:.4g} of {node.total[name] / scale:.4g}" for node in having[:_SHOWN]]
    more = [f"{len(having) - _SHOWN} more"] if len(having) > _SHOWN else []
    return f"free: {', '.join([*shown, *more])} {unit}" if having else f"no node has {unit}"


def plan(roles: Roles, nodes: Sequence[Node]) -> Placement:
    """Decide on which nodes the roles of a run are placed.

    Learners come first: with GPUs on the nodes that have most of them, together, unless there is much data; without GPUs near the
    driver. Workers are spread in proportion to the CPUs that are free. Replay shards are spread like workers, at least one on each node
    that has some if there are enough; parameter servers are on these nodes. The evaluator goes where most CPUs are left, if one is.
    If workers find no place only because of where learners are, learners go where workers lose least.
    """

    def preferred(node: Node) -> tuple[float, ...]:
        if roles.each("learner").get(GPU, 0.0):
            return node.is_spot, -node.has(GPU), not node.has_driver, -node.has(CPU)
        return node.is_spot, not node.has_driver, node.has(GPU), -node.has(CPU)

    found = _planned(roles, nodes, preferred)
    if roles.num("learner") and found.missing("worker"):
        each = roles.each("worker").get(CPU, 0.0) or 1.0
        other = _planned(roles, nodes, lambda node: (-(node.has(CPU) % each), *preferred(node)))
        found = min((found, other), key=lambda one: (one.missing("learner"), one.missing("worker")))
    return found


def plan_around(roles: Roles, nodes: Sequence[Node], ids: Sequence[str]) -> Placement:
    """The plan of a run whose workers, then learners are reserved already, on nodes with these ids: what nodes have free is without them."""
    numbers = {node.id: i for i, node in enumerate(nodes)}
    at, num = [numbers[id] for id in ids], roles.num("worker")
    return _completed(roles, nodes, _free(nodes), {"worker": at[:num], "learner": at[num:]})


def _free(nodes: Sequence[Node]) -> list[dict[str, float]]:
    return [{name: node.has(name) for name in _UNLIMITED} for node in nodes]


Rank = Callable[[int, int], tuple[float, ...]]
"""(number of a node, roles that it has got so far) -> the lower, the sooner it gets the next one."""


def _planned(roles: Roles, nodes: Sequence[Node], preferred: Callable[[Node], tuple[float, ...]]) -> Placement:
    """A plan with learners on the nodes that come first in an order."""
    left = _free(nodes)
    all_nodes, orders = range(len(nodes)), [preferred(node) for node in nodes]

    def learners_first(i: int, num: int) -> tuple[float, ...]:
        return (num if roles.much_data else 0), *orders[i]

    learners = _placed(roles, "learner", left, all_nodes, learners_first)
    cpus = [amounts[CPU] + _TINY for amounts in left]

    def in_proportion(i: int, num: int) -> tuple[float, ...]:
        return (num + 1) / cpus[i], not nodes[i].has_driver

    workers = sorted(_placed(roles, "worker", left, all_nodes, in_proportion))
    return _completed(roles, nodes, left, {"learner": learners, "worker": workers})


def _completed(
    roles: Roles, nodes: Sequence[Node], left: Sequence[dict[str, float]], at: Mapping[str, Sequence[int]]
) -> Placement:
    """The plan with what goes where workers and learners are."""
    homes = Counter(at["worker"])
    shards = sorted(_placed(roles, "shard", left, homes, lambda i, num: (num > 0, (num + 1) / homes[i])))
    driver = next((i for i, node in enumerate(nodes) if node.has_driver), 0)
    more = {
        "shard": shards,
        "server": list(homes) if roles.servers else [],
        "other": [*at["learner"], driver][:1] if roles.shares_parameters else [],
        "evaluator": _evaluator(roles, nodes, left),
    }
    return Placement(nodes, roles, {**at, **more}, left)


def _placed(roles: Roles, kind: str, left: Sequence[dict[str, float]], among: Iterable[int], rank: Rank) -> list[int]:
    """Take what the roles of a kind need from what is left, each at the node of the lowest rank that has room for it; returns their
    nodes. There are fewer if there is no more room."""
    here: Counter[int] = Counter()
    nodes: list[int] = []
    rooms, each = list(among), roles.each(kind)
    while len(nodes) < roles.num(kind):
        rooms = [i for i in rooms if here[i] < MOST_ROLES and all(left[i][k] >= x - _TINY for k, x in each.items())]
        if not rooms:
            break
        at = min(rooms, key=lambda i: rank(i, here[i]))
        nodes.append(at)
        here[at] += 1
        for name, amount in each.items():
            left[at][name] -= amount
    return nodes


def _evaluator(roles: Roles, nodes: Sequence[Node], left: Sequence[Amounts]) -> list[int]:
    """The node of the evaluator, which reserves nothing; [] if it has no process. A driver that learns is busy without reserving a CPU."""
    spare = [left[i][CPU] - (node.has_driver and not roles.num("learner")) for i, node in enumerate(nodes)]
    if not nodes or roles.evaluator is False or (roles.evaluator is None and max(spare) <= _TINY):
        return []
    return [max(range(len(nodes)), key=lambda i: (spare[i], nodes[i].has_driver))]
