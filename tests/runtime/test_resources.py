"""The preflight: what does not fit, what would, and --fit."""

from __future__ import annotations

from typing import Any

import pytest

from raypid.runtime.resources import Has, Needs, ResourceError, num_gpus, preflight

GIB = 2**30


def needs(**changed: Any) -> Needs:
    values = {"num_workers": 2, "num_cpus_per_worker": 1.0, "learner_cpus": 0.0, "num_gpus": 0.0}
    return Needs(**{**values, "worker_bytes": GIB // 10, "fragment_bytes": 1000, **changed})


def has(**changed: Any) -> Has:
    values = {"cpus": 4.0, "gpus": 1.0, "memory": 16.0 * GIB, "shared_memory": 8.0 * GIB, "place": "this machine"}
    return Has(**{**values, **changed})


def test_what_fits_passes() -> None:
    assert preflight(needs(), has(), fit=False) == ({}, [])
    assert preflight(needs(num_workers=4), has(), fit=False) == ({}, [])
    assert preflight(needs(num_workers=40, num_cpus_per_worker=0.1), has(), fit=False) == ({}, [])
    assert preflight(needs(num_workers=0), has(cpus=1), fit=False) == ({}, [])


@pytest.mark.parametrize(
    ("asked", "there", "words", "fitted"),
    [
        ({"num_workers": 9}, {}, ["9 workers", "has 4", "--num-workers 4", "--num-cpus-per-worker 0.44"], 4),
        ({"num_workers": 4, "learner_cpus": 1.0}, {}, ["--num-workers 3", "--num-cpus-per-worker 0.75"], 3),
        (
            {"num_workers": 4, "learner_cpus": 2.0},
            {},
            ["4 workers of 1 CPU and 2 learners need 6 CPUs", "--num-workers 2"],
            2,
        ),
        ({"num_workers": 100}, {"memory": 2.0 * GIB, "cpus": 200}, ["memory", "--num-workers 20"], 20),
        ({"fragment_bytes": GIB}, {"shared_memory": 2.5 * GIB}, ["/dev/shm", "--num-workers 1"], 1),
    ],
)
def test_too_many_workers(asked: Any, there: Any, words: list[str], fitted: int) -> None:
    with pytest.raises(ResourceError) as error:
        preflight(needs(**asked), has(**there), fit=False)
    assert all(word in str(error.value) for word in [*words, "--fit"])
    assert "\n" not in str(error.value)
    changes, notes = preflight(needs(**asked), has(**there), fit=True)
    assert changes == {"num_workers": fitted}
    assert f"num_workers={fitted}" in notes[0]
    assert preflight(needs(**{**asked, **changes}), has(**there), fit=False) == ({}, [])


@pytest.mark.parametrize(("cpus", "learners", "workers"), [(4, 2, 2), (6, 3, 3), (8, 4, 4), (2, 0, 2)])
def test_learners_leave_cpus_to_as_many_workers(cpus: int, learners: int, workers: int) -> None:
    asked = {"num_workers": 45, "learner_cpus": 4.0}
    changes, notes = preflight(needs(**asked), has(cpus=float(cpus)), fit=True)
    fitted = {"num_workers": workers, **({"num_learners": learners} if learners < 4 else {})}
    assert changes == fitted and len(notes) == 1
    assert notes[0].endswith(", ".join(f"{k}={v}" for k, v in fitted.items()))
    with pytest.raises(ResourceError) as error:
        preflight(needs(**asked), has(cpus=float(cpus)), fit=False)
    assert f"--num-workers {workers}" in str(error.value)
    assert (f"--num-learners {learners}" in str(error.value)) == (learners < 4)


def test_too_many_gpus() -> None:
    with pytest.raises(ResourceError, match="2 GPUs asked for, this machine has 1.*--num-gpus 1"):
        preflight(needs(num_gpus=2), has(), fit=False)
    assert preflight(needs(num_gpus=2), has(), fit=True)[0] == {"num_gpus": 1.0}


def test_the_scarcest_thing_decides() -> None:
    changes, notes = preflight(needs(num_workers=100, num_gpus=3), has(memory=0.25 * GIB), fit=True)
    assert changes == {"num_workers": 2, "num_gpus": 1.0}
    assert len(notes) == 3


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({"num_workers": 2, "learner_cpus": 1.0}, {"cpus": 1.0}),
        ({"num_workers": 2, "learner_cpus": 1.0, "num_cpus_per_worker": 0.0}, {"cpus": 0.0}),
        ({"num_workers": 3}, {"memory": 0.01 * GIB}),
    ],
)
def test_what_no_number_of_workers_mends_is_refused_even_with_fit(asked: Any, there: Any) -> None:
    for fit in (False, True):
        with pytest.raises(ResourceError):
            preflight(needs(**asked), has(**there), fit=fit)


def test_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, count in (("", 0), ("-1", 0), ("0,1", 2), ("GPU-5f3a", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert num_gpus() == count
