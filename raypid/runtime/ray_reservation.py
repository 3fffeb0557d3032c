"""What a run has reserved on a Ray cluster: one placement group for all its roles, so that two runs never each hold half of what they
need. Apart from runtime/ray.py, since it knows of bundles alone and of no actor."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raypid.runtime.handle import Place
from raypid.runtime.resources import ResourceError

RESERVE_S = 1.0
"""Seconds that a reservation may take where it was planned for what is free; it takes a few milliseconds."""
_NODE_ID = "ray.io/node-id"
"""Ray's label of each node."""

Key = tuple[str, int]
"""The kind and index of a place, which tell the places of a run apart, whatever they take."""


def key_of(place: Place) -> Key:
    return place.kind, place.index


def bundle_of(place: Place) -> dict[str, float]:
    """The amounts that a place takes, as Ray's bundle; empty if it takes nothing."""
    return {name: float(n) for name, n in (("CPU", place.num_cpus), ("GPU", place.num_gpus)) if n}


class Reservation:
    """A bundle for each place that takes CPUs or GPUs. `close` gives all of them back; so does the end of this process."""

    def __init__(self) -> None:
        self._seats: dict[Key, PlacementGroupSchedulingStrategy] = {}
        """Ray's scheduling strategy for each place, by which its role uses one bundle of a group."""
        self._pinned: set[Key] = set()
        """Places that are on their planned node or nowhere."""
        self._nodes: dict[str, dict[int, str]] = {}
        """Group -> bundle -> its node, as `look` has found it."""
        self._groups: list[PlacementGroup] = []
        weakref.finalize(self, _give_back, self._groups)  # an agent that was never closed

    def make(self, places: Sequence[Place], wait_s: float = RESERVE_S) -> None:
        """Reserve for these places at once, each on its node if it has one. A cluster that grows on demand sees what is waited for.

        Raises:
            ResourceError: there was no room within `wait_s` seconds. Nothing is reserved then.
        """
        taking = [place for place in places if bundle_of(place)]
        if not taking:
            return
        pins = [{_NODE_ID: place.node} if place.node else {} for place in taking]
        group = self._group([bundle_of(place) for place in taking], pins)
        deadline = time.monotonic() + wait_s
        try:
            while not group.wait(1):  # whole seconds, so that Ctrl-C is heard
                if time.monotonic() >= deadline:
                    raise ResourceError(
                        f"The cluster had no room for this run within {wait_s:g} s: others have taken what was free. Wait for other runs "
                        "to end, or take fewer workers (num_workers) or less of a CPU for each (num_cpus_per_worker)."
                    )
        except BaseException:
            _give_back([self._groups.pop()])
            raise
        self._seats |= {key_of(place): PlacementGroupSchedulingStrategy(group, i) for i, place in enumerate(taking)}
        self._pinned |= {key_of(place) for place in taking if place.node}
        self.look()

    def _group(self, bundles: list[dict[str, float]], pins: list[dict[str, str]]) -> PlacementGroup:
        """Ask for a group of bundles, each on a node with the labels in its pin."""
        group = placement_group(bundles, strategy="SPREAD", bundle_label_selector=pins if any(pins) else None)
        self._groups.append(group)
        return group

    def strategy(self, place: Place) -> PlacementGroupSchedulingStrategy | None:
        """Ray's scheduling strategy for a place, by which the role uses its reservation; None if nothing is reserved."""
        return self._seats.get(key_of(place))

    def holds(self, place: Place) -> bool:
        """Whether something is reserved for this place."""
        return key_of(place) in self._seats

    def node_of(self, place: Place) -> str:
        """The node where a place is reserved; "" if it is nowhere now, since its node was lost and no other has room."""
        if (seat := self._seats.get(key_of(place))) is None:
            return ""
        return self._nodes.get(seat.placement_group.id.hex(), {}).get(seat.placement_group_bundle_index) or ""

    def unpin(self, place: Place) -> None:
        """Have a place anywhere whose planned node is gone: Ray would wait for that very node to come back."""
        if (key := key_of(place)) in self._pinned:
            self._pinned.remove(key)
            self._seats[key] = PlacementGroupSchedulingStrategy(self._group([bundle_of(place)], [{}]), 0)

    def look(self) -> None:
        """Ask Ray's head where everything is. Waits where the head is gone, so this is for a thread of its own."""
        for group in list(self._groups):
            self._nodes[group.id.hex()] = placement_group_table(group).get("bundles_to_node_id", {})

    def close(self) -> None:
        """Give everything back."""
        _give_back(self._groups)
        self._seats.clear()


def _give_back(groups: list[PlacementGroup]) -> None:
    while groups:
        group = groups.pop()
        if ray.is_initialized():
            with contextlib.suppress(Exception):  # Ray is going away, and takes them along
                remove_placement_group(group)
