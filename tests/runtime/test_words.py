"""What messages about resources call things: the command line's words, and those of a DistributedAgent."""

from __future__ import annotations

from typing import Any

import pytest

import raypid
from raypid.runtime.resources import Has, Needs, ResourceError, preflight
from raypid.runtime.words import COMMAND_LINE, Words

ACTORS = raypid.DistributedAgent.resource_words


def message(words: Words, **needs: Any) -> str:
    given = {"num_workers": 9, "num_cpus_per_worker": 1.0, "learner_cpus": 0.0, "num_gpus": 0.0, **needs}
    has = Has(cpus=4, gpus=0, memory=2e9, shared_memory=2e9, place="this machine")
    with pytest.raises(ResourceError) as error:
        preflight(Needs(**given, worker_bytes=1, fragment_bytes=1, words=words), has, fit=False)
    return str(error.value)


def test_of_the_command_line() -> None:
    assert message(COMMAND_LINE) == (
        "9 workers of 1 CPU need 9 CPUs, this machine has 4. What fits: --num-workers 4, or --num-cpus-per-worker 0.44 to keep "
        "9 workers; --fit does it by itself."
    )
    assert message(COMMAND_LINE, num_workers=1, num_cpus_per_worker=5.0).startswith("1 worker of 5 CPU ")
    assert "--num-workers 2 --num-learners 2" in message(COMMAND_LINE, num_workers=3, learner_cpus=3.0)


def test_of_a_distributed_agent() -> None:
    assert message(ACTORS) == (
        "9 actors of 1 CPU need 9 CPUs, this machine has 4. What fits: num_actors=4, or num_cpus_per_worker=0.44 to keep "
        "9 actors; fit=True does it by itself."
    )
    assert "not one actor" in message(ACTORS, num_cpus_per_worker=5.0)
    learners = message(ACTORS, num_workers=3, learner_cpus=2.0, num_cpus_per_worker=2.0)
    assert "num_actors=2, num_learners=1" in learners  # the driver learns, which is called one learner here
    assert ACTORS.option("fragment_length", 80) == "num_steps=80"


def test_large_numbers_are_written_out() -> None:
    assert "--buffer-size 1600000;" in message(COMMAND_LINE, num_workers=1, replay_rows=9_000_000, row_bytes=1000)
    needs = Needs(
        num_workers=1, num_cpus_per_worker=1.0, learner_cpus=0.0, num_gpus=0.0, worker_bytes=1, fragment_bytes=1,
        replay_rows=9_000_000, row_bytes=1000,
    )  # fmt: skip
    _, notes = preflight(needs, Has(cpus=4, gpus=0, memory=2e9, shared_memory=2e9, place="here"), fit=True)
    assert notes[0].endswith("going on with buffer_size=1600000")
