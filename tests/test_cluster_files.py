"""The example files for clusters: Ray's launcher checks its own, KubeRay's schema the manifest, a SLURM of one's own the script.

`fixtures/kuberay_rayjob.json` holds what KubeRay's schema says of the fields that the manifest uses, and no others: a field that
is new there has to be looked up. `python tests/test_cluster_files.py ray.io_rayjobs.yaml` writes it anew from KubeRay's CRD.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = ROOT / "examples" / "cluster"
KUBERAY = ROOT / "tests" / "fixtures" / "kuberay_rayjob.json"
CRD = os.environ.get("KUBERAY_CRD", "")
"""KubeRay's own ray.io_rayjobs.yaml, where it is at hand."""


def manifest() -> dict[str, Any]:
    return yaml.safe_load((FILES / "rayjob.yaml").read_text())


def schema_of(crd: Path) -> dict[str, Any]:
    """What a CRD says of version v1."""
    versions = yaml.safe_load(crd.read_text())["spec"]["versions"]
    return next(version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1")


def used_part(schema: Mapping[str, Any], values: list[Any]) -> dict[str, Any]:
    """The part of a schema that these values use: their own fields, without descriptions, and none besides."""
    kept = {key: schema[key] for key in ("type", "enum", "pattern", "minimum", "maximum", "required") if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if schema.get("type") == "array":
        kept["items"] = used_part(schema["items"], [item for value in values for item in value])
    elif "additionalProperties" in schema:  # a table of texts or of amounts
        kept["additionalProperties"] = used_part(schema["additionalProperties"], [])
    elif "properties" in schema:
        names = sorted({name for value in values for name in value})
        children = {name: [value[name] for value in values if name in value] for name in names}
        kept["properties"] = {name: used_part(schema["properties"][name], children[name]) for name in names}
        kept["additionalProperties"] = False
    return kept


def parts(files: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without what every resource of Kubernetes has."""
    return {"spec": files["spec"]}


def test_kuberay_takes_the_manifest() -> None:
    jsonschema.validate(parts(manifest()), json.loads(KUBERAY.read_text()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.entrypoints", "raypid"),
        ("spec.submissionMode", "Job"),
        ("spec.rayClusterSpec.workerGroupSpecs.0.replicas", "2"),
    ],
)
def test_what_kuberay_would_refuse_is_found(path: str, value: str) -> None:
    changed: Any = manifest()
    place, (*above, last) = changed, path.split(".")
    for name in above:
        place = place[int(name)] if name.isdigit() else place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(parts(changed), json.loads(KUBERAY.read_text()))


@pytest.mark.skipif(not CRD, reason="KUBERAY_CRD names no ray.io_rayjobs.yaml")
def test_the_part_that_is_kept_is_kuberays() -> None:
    assert used_part(schema_of(Path(CRD)), [parts(manifest())]) == json.loads(KUBERAY.read_text())


def test_the_manifest_fits_in_itself() -> None:
    """Both images are the same, Ray is the pinned one, and the workers have room for what is asked for."""
    spec = manifest()["spec"]
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    assert len({container["image"] for container in containers}) == 1
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text()
    cpus = sum(
        group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        for group in cluster["workerGroupSpecs"]
    )
    assert int(re.search(r"--num-workers (\d+)", spec["entrypoint"])[1]) <= cpus


def test_the_entrypoint_begins_and_goes_on(in_process: Callable[..., Any], tmp_path: Path) -> None:
    """The command of the manifest, three times: with flags behind it that take no cluster and end it soon."""
    words = shlex.split(manifest()["spec"]["entrypoint"].replace("/runs/ppo", "run"))
    assert words[0] == "raypid" and words[-4:] == ["--address", "auto", "--num-workers", "6"]
    here = ["--address", "none", "--num-workers", "0", "--fragment-length", "16", "--final-episodes", "0"]
    for steps, says in ((300, "timesteps_total reached"), (600, "Going on from step"), (600, "at its stop already")):
        done = in_process(*words[1:], *here, "--stop", steps)
        assert done.returncode == 0 and says in done.stdout, done


@pytest.mark.ci_slow
def test_ray_takes_the_launchers_files() -> None:
    checked = (
        "import sys, yaml; from ray.autoscaler._private.util import prepare_config, validate_config\n"
        "for file in sys.argv[1:]: validate_config(prepare_config(yaml.safe_load(open(file))))"
    )
    files = sorted(FILES.glob("ray-*.yaml"))
    done = subprocess.run([sys.executable, "-c", checked, *files], capture_output=True, text=True)
    assert len(files) == 2 and done.returncode == 0, done.stderr


def test_the_script_of_slurm_is_bash() -> None:
    done = subprocess.run(["bash", "-n", FILES / "slurm.sh"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def _on_slurm(*words: str, **environment: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not shutil.which("sbatch") or subprocess.run(["sinfo"], capture_output=True, timeout=30).returncode != 0,
    reason="there is no SLURM here",
)
def test_a_job_of_slurm_saves_is_queued_again_and_goes_on(tmp_path: Path) -> None:
    """On as many nodes as there are, of two CPUs each: signalled in mid-training, then ended by its stop."""
    nodes = min(2, len(_on_slurm("sinfo", "-h", "-N", "-o", "%N").split()))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["sbatch", "--parsable", f"--chdir={tmp_path}", f"--nodes={nodes}", "--time=10", str(FILES / "slurm.sh")]
    job = _on_slurm(*words, PATH=path, PYTHONPATH=str(ROOT), STOP='{"timesteps_total": 400000}').strip()
    log, result = tmp_path / f"raypid-{job}.log", tmp_path / "runs" / "slurm" / "result.json"

    def wait_for(what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while what not in (log.read_text() if log.exists() else ""):
            assert time.monotonic() < deadline, (what, log.read_text() if log.exists() else "")
            time.sleep(1)

    try:
        deadline = time.monotonic() + 240
        while not result.exists() or len(result.read_text().splitlines()) < 3:
            assert time.monotonic() < deadline, log.read_text() if log.exists() else ""
            time.sleep(0.5)
        _on_slurm("scancel", "--batch", "--signal=TERM", job)
        wait_for("Stopping after this iteration, with a checkpoint", 60)
        wait_for("Going on from step", 420)
        wait_for("timesteps_total reached", 240)
    finally:
        subprocess.run(["scancel", job], capture_output=True)
    steps = [json.loads(line)["timesteps_total"] for line in result.read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] >= 400_000


if __name__ == "__main__":
    KUBERAY.write_text(json.dumps(used_part(schema_of(Path(sys.argv[1])), [parts(manifest())]), indent=1) + "\n")
