"""The preflight's arithmetic: what does not fit, what would, and `fit`; limits of control groups."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raypid.runtime.plan import Node
from raypid.runtime.resources import (
    _GRANTS,
    Has,
    Needs,
    ResourceError,
    cgroup_limits,
    num_cores,
    num_gpus,
)
from raypid.runtime.resources import preflight as _preflight

GIB = 2**30


def needs(**changed: Any) -> Needs:
    """Two workers of a tenth of a GiB."""
    return Needs(**{"num_workers": 2, "process_bytes": GIB / 10 - 1100, **changed})


def has(**changed: Any) -> Has:
    values = {"cpus": 4.0, "gpus": 1.0, "memory": 16.0 * GIB, "shared_memory": 8.0 * GIB, "place": "this machine"}
    return Has(**{**values, **changed})


def node(name: str, cpus: float, memory: float | None = None) -> Node:
    has = {"CPU": cpus, **({} if memory is None else {"memory": memory})}
    return Node(name, name, has, has)


def preflight(needs: Needs, has: Has, *, fit: bool) -> tuple[dict[str, Any], list[str]]:
    found, notes = _preflight(needs, has, fit=fit)
    return dict(found.changes), notes


def refusal(needs: Needs, has: Has, *, fit: bool = False) -> str:
    with pytest.raises(ResourceError) as error:
        preflight(needs, has, fit=fit)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_fits_passes() -> None:
    assert preflight(needs(), has(), fit=False) == ({}, [])
    assert preflight(needs(num_workers=4), has(), fit=False) == ({}, [])
    assert preflight(needs(num_workers=40, num_cpus_per_worker=0.1), has(), fit=False) == ({}, [])
    assert preflight(needs(num_workers=0), has(cpus=1), fit=False) == ({}, [])


@pytest.mark.parametrize(
    ("asked", "there", "words", "fitted"),
    [
        (
            {"num_workers": 9},
            {},
            ["9 workers of 1 CPU need 9 CPUs, this machine has 4", "num_workers=4", "num_cpus_per_worker=0.44"],
            4,
        ),
        ({"num_workers": 4, "num_learners": 1}, {}, ["num_workers=3", "num_cpus_per_worker=0.75"], 3),
        (
            {"num_workers": 4, "num_learners": 2},
            {},
            ["4 workers of 1 CPU and 2 learners of 1 CPU need 6 CPUs", "num_workers=2"],
            2,
        ),
        ({"num_workers": 100}, {"memory": 2.0 * GIB, "cpus": 200}, ["10.0 GiB of memory", "num_workers=18"], 18),
        (
            {"num_workers": 2, "fragment_length": GIB, "frame_bytes": 0},
            {"shared_memory": 150.0 * GIB, "memory": 1000.0 * GIB},
            ["/dev/shm", "256.0 GiB", "num_workers=1"],
            1,
        ),
    ],
)
def test_too_many_workers(asked: Any, there: Any, words: list[str], fitted: int) -> None:
    text = refusal(needs(**asked), has(**there))
    assert all(word in text for word in [*words, "fit=True"]), text
    changes, notes = preflight(needs(**asked), has(**there), fit=True)
    assert changes == {"num_workers": fitted}
    assert f"num_workers={fitted}" in notes[0]
    assert preflight(needs(**{**asked, **changes}), has(**there), fit=False) == ({}, [])


@pytest.mark.parametrize(("cpus", "learners", "workers"), [(4, 2, 2), (6, 3, 3), (8, 4, 4), (2, 0, 2)])
def test_learners_leave_cpus_to_as_many_workers(cpus: int, learners: int, workers: int) -> None:
    asked = {"num_workers": 45, "num_learners": 4}
    changes, notes = preflight(needs(**asked), has(cpus=float(cpus)), fit=True)
    fitted = {"num_workers": workers, **({"num_learners": learners} if learners < 4 else {})}
    assert changes == fitted and len(notes) == 1
    assert notes[0].endswith(" and ".join(f"{k}={v}" for k, v in fitted.items()))
    text = refusal(needs(**asked), has(cpus=float(cpus)))
    assert f"num_workers={workers}" in text
    assert (f"num_learners={learners}" in text) == (learners < 4)


def test_too_many_gpus() -> None:
    text = refusal(needs(num_gpus=2.0), has())
    assert "num_gpus=2 needs 2 GPUs, this machine has 1. What fits: num_gpus=1; fit=True" in text
    assert preflight(needs(num_gpus=2.0), has(), fit=True)[0] == {"num_gpus": 1.0}


def test_the_scarcest_thing_decides() -> None:
    changes, notes = preflight(needs(num_workers=100, num_gpus=3.0), has(memory=0.25 * GIB), fit=True)
    assert changes == {"num_workers": 2, "num_gpus": 1.0}
    assert len(notes) == 1
    text = refusal(needs(num_workers=100, num_gpus=3.0), has(memory=0.25 * GIB))
    assert "100 workers of 1 CPU need 100 CPUs, this machine has 4; num_workers=4 needs about 0.4 GiB of memory" in text
    assert "What fits: num_gpus=1 and num_workers=2; fit=True does" in text


@pytest.mark.parametrize(
    ("asked", "there", "words"),
    [
        ({"num_workers": 2, "num_learners": 1}, {"cpus": 1.0}, "2 workers of 1 CPU and 1 learner of 1 CPU need 3 CPUs, this machine has 1. No"),
        ({"num_workers": 1}, {"cpus": 0.0}, "1 worker of 1 CPU needs 1 CPU, this machine has 0. Nothing fits."),
        ({"num_workers": 2, "num_learners": 1, "num_cpus_per_worker": 0.0}, {"cpus": 0.0}, "2 workers and 1 learner of 1 CPU need 1"),
        ({"num_workers": 3}, {"memory": 0.01 * GIB}, "Nothing fits."),
    ],
)  # fmt: skip
def test_what_no_number_of_workers_mends_is_refused_even_with_fit(asked: Any, there: Any, words: str) -> None:
    for fit in (False, True):
        assert words in refusal(needs(**asked), has(**there), fit=fit)


@pytest.mark.parametrize(
    ("asked", "words", "fits"),
    [
        ({"fragment_length": 10**9}, ["fragment_length=1000000000 needs", "/dev/shm"], "fragment_length"),
        ({"fragment_length": 10**9, "num_workers": 0}, ["fragment_length=1000000000 needs"], "fragment_length"),
        ({"num_envs_per_worker": 10**9}, ["num_envs_per_worker=1000000000 needs"], "num_envs_per_worker"),
        ({"buffer_size": 10**9}, ["buffer_size=1000000000 needs", "GiB of memory"], "buffer_size"),
        ({"batch_size": 10**9}, ["batch_size=1000000000 needs"], "batch_size"),
        ({"frame_stack": 10**9}, ["frame_stack=1000000000 needs"], "frame_stack"),
        ({"noise_table_size": 10**11}, ["noise_table_size=100000000000 needs"], "noise_table_size"),
        ({"population": 10**12}, ["population=1000000000000 needs"], "population"),
        ({"fragments_per_update": 10**9}, ["fragments_per_update=1000000000 needs"], "fragments_per_update"),
        (
            {"weights_bytes": 4 * 10**12},
            ["a network of 1,000,000,000,000 weights (model, frame_stack) needs about 3,72"],
            None,
        ),
        (
            {"weights_bytes": 5 * 10**9, "num_workers": 0},
            ["a network of 1,250,000,000 weights (model, frame_stack) needs about 23."],
            None,
        ),
        ({"num_replay_shards": 10**4}, ["num_replay_shards=10000 needs"], "num_replay_shards"),
    ],
)
def test_the_setting_that_takes_most_is_named_and_the_value_that_fits_does(
    asked: dict[str, Any], words: list[str], fits: str | None
) -> None:
    asked = {"num_envs_per_worker": 8, "frame_bytes": 16, "weights_bytes": 20_000, **asked}
    there = has(cpus=10**6)
    with pytest.raises(ResourceError) as error:
        preflight(needs(**asked), there, fit=False)
    text = str(error.value)
    assert all(word in text for word in words) and "this machine has" in text, text
    assert error.value.fits.keys() == ({fits} if fits else set())
    if fits is None:
        assert "Nothing fits." in text
        return
    fitted: dict[str, Any] = dict(error.value.fits)
    assert preflight(needs(**{**asked, **fitted}), there, fit=False) == ({}, [])
    less = has(cpus=10**6, memory=0.91 * there.memory, shared_memory=0.91 * there.shared_memory)
    assert preflight(needs(**{**asked, **fitted}), less, fit=False) == ({}, [])  # others take memory too
    refusal(needs(**{**asked, fits: 1 + int(1.14 * fitted[fits])}), there)


def test_fit_leaves_what_decides_on_learning() -> None:
    changes, notes = preflight(needs(buffer_size=10**9), has(), fit=True)
    assert list(changes) == ["buffer_size"] and "going on with buffer_size=" in notes[0]
    text = refusal(needs(batch_size=10**10), has(), fit=True)
    assert "What fits: batch_size=" in text and "fit=True" not in text


def test_each_worker_needs_a_node() -> None:
    nodes = (node("a", 3.0, 8.0 * GIB), node("b", 1.0, 8.0 * GIB))
    cluster = has(cpus=4.0, shared_memory=1000.0 * GIB, nodes=nodes, place="the cluster")
    assert preflight(needs(num_workers=4), cluster, fit=False) == ({}, [])
    text = refusal(needs(num_workers=2, num_cpus_per_worker=2.0), cluster)
    assert "2 workers of 2 CPUs need 2 places, the cluster has 1 " in text
    assert (
        "(free: a 3 of 3, b 1 of 1 CPUs). What fits: num_workers=1, or num_cpus_per_worker=1.5 to keep 2 workers; fit=True"
        in text
    )
    text = refusal(needs(num_workers=1, fragment_length=10**9), cluster)
    assert (
        "1 worker of about 59.7 GiB of memory needs 1 place, the cluster has 0 (free: a 8 of 8, b 8 of 8 GiB)." in text
    )
    assert "What fits: fragment_length=" in text
    narrow = has(cpus=4.0, memory=GIB, nodes=(node("a", 3.0, 0.25 * GIB), node("b", 1.0)), place="the cluster")
    assert preflight(needs(num_workers=4), narrow, fit=True)[0] == {"num_workers": 3}
    assert preflight(needs(num_workers=3), has(cpus=3.0, memory=0.05 * GIB, nodes=nodes), fit=False) == ({}, [])


def test_what_sums_hide_is_refused_node_by_node() -> None:
    four = has(cpus=4.0, gpus=2.0, nodes=tuple(node(name, 1.0) for name in "abcd"), place="the cluster")
    text = refusal(needs(num_workers=1, num_cpus_per_worker=2.0), four)
    assert "1 worker of 2 CPUs needs 1 place, the cluster has 0 (free: a 1 of 1, b" in text
    assert "What fits: num_cpus_per_worker=1 to keep 1 worker." in text
    gpus = tuple(Node(name, name, {"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1}) for name in "ab")
    two = has(cpus=4.0, gpus=2.0, nodes=gpus, place="the cluster")
    text = refusal(needs(num_workers=1, num_learners=1, num_gpus=2.0), two)
    assert "1 learner of 2 GPUs needs 1 place, the cluster has 0 (free: a 1 of 1, b 1 of 1 GPUs)" in text
    assert "What fits: num_gpus=1; fit=True" in text
    assert preflight(needs(num_workers=2, num_learners=2, num_gpus=2.0), two, fit=False) == ({}, [])
    assert preflight(needs(num_workers=1, num_learners=1, num_gpus=2.0), two, fit=True)[0] == {"num_gpus": 1}
    busy = tuple(replace(one, free={"CPU": 2 * (one.name == "a"), "GPU": 1}) for one in (*gpus, *gpus[1:]))
    several = needs(num_workers=2, num_cpus_per_worker=0.0, num_learners=2, num_gpus=2.0)
    fewer = preflight(several, has(cpus=2.0, nodes=busy, place="the cluster"), fit=True)[0]
    assert fewer == {"num_learners": 1, "num_gpus": 1.0}  # each keeps its GPU
    driver = has(gpus=0.0, nodes=gpus, place="the cluster")
    text = refusal(needs(num_gpus=1.0), driver)
    assert text.startswith(
        "num_gpus=1 needs 1 GPU, this machine, where the driver learns, has 0. What fits: num_learners=1; fit=True"
    )
    small = has(cpus=8.0, nodes=(node("a", 8.0, GIB), node("b", 8.0, 2 * GIB)), place="the cluster")
    shards = needs(num_replay_shards=2, buffer_size=2**26, frame_bytes=64)
    text = refusal(shards, small)
    assert (
        "2 replay shards of about 4.1 GiB of memory need 2 places, the cluster has 0 (free: b 2 of 2, a 1 of 1 GiB)"
        in text
    )
    fitting = preflight(shards, small, fit=True)[0]
    assert 10**6 < fitting["buffer_size"] < 2**25 and preflight(
        needs(**{**vars_of(shards), **fitting}), small, fit=False
    ) == ({}, [])


def vars_of(given: Needs) -> dict[str, Any]:
    return {name: getattr(given, name) for name in Needs.__slots__}


def test_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, count in (("", 0), ("-1", 0), ("0,1", 2), ("GPU-5f3a", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert num_gpus() == count


@pytest.mark.parametrize(
    ("variables", "cores"),
    [
        ({}, 6),
        ({"SLURM_CPUS_PER_TASK": "1"}, 1),
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "2"}, 2),
        ({"SLURM_CPUS_PER_TASK": "64"}, 6),
        ({"SLURM_CPUS_PER_TASK": "0"}, 1),
        ({"SLURM_CPUS_PER_TASK": "many"}, 6),
        ({"PBS_NUM_PPN": "3"}, 3),
        ({"LSB_DJOB_NUMPROC": "3"}, 3),
        ({"NCPUS": "3"}, 6),
        ({"NCPUS": "3", "PBS_JOBID": "7"}, 3),
        ({"NSLOTS": "3"}, 6),
        ({"NSLOTS": "3", "SGE_TASK_ID": "undefined"}, 3),
    ],
)
def test_a_scheduler_grants_cpus(variables: dict[str, str], cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*_GRANTS, *_GRANTS.values()]:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("raypid.runtime.resources.cgroup_limits", lambda: (6.0, 8.0 * GIB))
    assert num_cores(6.0) == cores and num_cores(0.5) == 1
    here = Has.here()
    assert (here.cpus, here.cores) == (cores, cores)
    text = refusal(needs(num_workers=99), here)
    named = next((name for name in _GRANTS if name in variables and cores < 6 and int(variables[name]) <= cores), "")
    assert f"{f'this job ({named})' if named else 'this machine'} has {cores}" in text


def test_num_cpus_makes_room_for_learners_and_not_for_workers() -> None:
    cores = num_cores()
    assert (Has.here().cpus, Has.here(100 * cores).cpus, Has.here(100 * cores).cores) == (cores, 100 * cores, cores)
    more = has(cpus=64, cores=2)
    two = needs(num_cpus_per_worker=0.1, num_learners=2)
    assert preflight(two, more, fit=False) == ({}, [])
    assert "need 2.2 CPUs, this machine has 2" in refusal(two, has(cpus=2, cores=2))
    assert refusal(needs(num_workers=8), more).startswith("8 workers of 1 CPU need 8 CPUs, this machine has 2.")
    assert preflight(needs(num_workers=8, num_learners=2), more, fit=True)[0]["num_workers"] == 2


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    own = write(tmp_path, {"own": "0::/jobs/mine"}) / "own"
    root = write(
        tmp_path / "cgroup",
        {
            "jobs/cpu.max": "150000 100000",
            "jobs/mine/cpu.max": "max 100000",
            "jobs/memory.max": "max",
            "jobs/mine/memory.max": str(8 * GIB),
            "jobs/mine/memory.current": str(3 * GIB),
            "jobs/mine/memory.stat": f"anon {2 * GIB}\ninactive_file {GIB}",
        },
    )
    limits = cgroup_limits(root, own)
    assert limits == (1.5, 6.0 * GIB)
    assert num_cores(limits[0]) == min(2, num_cores())
    write(root, {"jobs/cpu.max": "max 100000"})
    assert cgroup_limits(root, own)[0] == math.inf


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    own = write(tmp_path, {"own": "5:cpu,cpuacct:/docker/a1\n4:memory:/docker/a1\n0::/"}) / "own"
    root = write(
        tmp_path / "cgroup",  # in a container its groups are mounted at the root
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(GIB),
            "memory/memory.usage_in_bytes": str(GIB),
            "memory/memory.stat": "total_inactive_file 1000",
        },
    )
    limits = cgroup_limits(root, own)
    assert limits == (0.5, 1000.0)
    assert num_cores(limits[0]) == 1
    write(root, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": "9223372036854771712"})
    limits = cgroup_limits(root, own)
    assert limits[0] == math.inf and limits[1] > 2**62
    assert cgroup_limits(root, tmp_path / "missing") == (math.inf, math.inf)
