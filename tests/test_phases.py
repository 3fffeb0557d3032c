"""Phases are told while they go on, and their seconds add up."""

from __future__ import annotations

import time

import pytest

from raypid.phases import Phases, parts_text, phase, say


def test_inner_phases_stop_the_clock_of_outer_ones() -> None:
    told: list[str] = []
    phases = Phases(told.append)
    with phases.heard():
        with phase("training", ""):
            time.sleep(0.02)
            with phase("evaluation", "evaluating"):
                time.sleep(0.02)
        with phase("starting workers"):
            say("starting workers", "1 of 2 workers are up")
            say("another phase", "unheard")
    assert told == ["evaluating", "", "starting workers", "1 of 2 workers are up", ""]
    assert phases.seconds["training"] >= 0.02 and phases.seconds["evaluation"] >= 0.02
    assert sum(phases.seconds.values()) <= phases.total
    assert phases.innermost == ""


def test_a_phase_ends_with_an_error_and_tells_the_one_around_it() -> None:
    told: list[str] = []
    phases = Phases(told.append)
    with phases.heard(), phase("saving"), pytest.raises(ZeroDivisionError), phase("drawing"):
        raise ZeroDivisionError
    assert told == ["saving", "drawing", "saving", ""]


def test_nobody_needs_to_listen() -> None:
    with phase("starting Ray"):
        say("starting Ray", "still")
    phases = Phases()
    with phases.heard():
        pass
    with phase("evaluation"):
        pass
    assert phases.seconds == {}


def test_the_parts_of_a_time_add_up() -> None:
    seconds = {"starting Ray": 4.24, "training": 1.14, "drawing": 0.02}
    assert parts_text(8.03, seconds) == "8.0 s: 4.2 s starting Ray, 1.1 s training, 2.7 s other"
    assert parts_text(7201, {"training": 7000.0}) == "120.0 min: 116.7 min training, 3.3 min other"
    assert parts_text(36000, {"training": 35000.0}) == "10.00 h: 9.72 h training, 0.28 h other"
    assert parts_text(0.31, {"training": 0.08}) == "0.31 s: 0.08 s training, 0.23 s other"
    assert parts_text(0.001, {}) == "0.00 s"
    short = {"starting Ray": 5.0, "training": 0.1}
    assert parts_text(7.0, short) == "7.0 s: 5.0 s starting Ray, 2.0 s other"
    assert parts_text(7.0, short, always="training") == "7.00 s: 5.00 s starting Ray, 0.10 s training, 1.90 s other"
