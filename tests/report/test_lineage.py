"""lineage.png: which scores belong to which life of a member, and what is drawn of them."""

import json
from pathlib import Path

import pytest

from raypid.errors import UserError
from raypid.report import lineage

EVALUATION = "evaluation/episode_reward_mean"
PERTURBED = {"lr": {"loguniform": [1e-5, 1e-2]}, "kernel": {"choice": ["numpy", "torch"]}}


def experiment(out: Path, *, population: bool = True, rows: bool = True) -> None:
    """Two members; the second goes on from the first at step 110, its own 120 steps of before notwithstanding."""
    out.mkdir()
    first = {"a": {"lr": 1e-3, "kernel": "numpy"}, "b": {"lr": 1e-5, "kernel": "torch"}}
    trials = [{"name": f"trial-00{i}-x={name}", "settings": first[name]} for i, name in enumerate("ab", start=1)]
    body = {"population": {"perturb": PERTURBED} if population else None, "trials": trials}
    (out / "experiment.json").write_text(json.dumps(body))
    scores = {"a": [(110, 50.0, 0), (210, 60.0, 0)], "b": [(120, 1.0, 0), (220, 70.0, 1)]}
    for trial, name in zip(trials, "ab", strict=True):
        folder = out / trial["name"]
        folder.mkdir()
        lines = [
            {"timesteps_total": x, EVALUATION: y, **({"pbt/exploits": n} if n else {})} for x, y, n in scores[name]
        ]
        if rows:
            (folder / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"timesteps_total": 110, "donor": trials[0]["name"], "settings": {"lr": 8e-4, "kernel": "numpy"}}
    (out / trials[1]["name"] / "exploits.json").write_text(json.dumps([record]))


def test_what_was_scored_before_an_exploit_and_after(tmp_path):
    experiment(tmp_path / "p")
    settings = {"lr": 1e-5, "kernel": "torch"}
    names = ("trial-001-x=a", "trial-002-x=b")
    members = {name: lineage._stretches(tmp_path / "p" / name, settings, ["lr", "kernel"]) for name in names}
    lineage._join(members)
    before, after = members["trial-002-x=b"]
    assert (before.scores, before.settings) == ([(120, 1.0)], settings)
    assert after.scores == [(110, 50.0), (220, 70.0)]  # from where the donor was
    assert after.settings == {"lr": 8e-4, "kernel": "numpy"}
    assert lineage.lineage(tmp_path / "p") == tmp_path / "p" / "lineage.png"
    assert (tmp_path / "p" / "lineage.png").read_bytes()[:4] == b"\x89PNG"


def test_what_has_no_lineage(tmp_path):
    experiment(tmp_path / "trials", population=False)
    assert lineage.lineage(tmp_path / "trials") is None
    experiment(tmp_path / "early", rows=False)
    with pytest.raises(UserError, match="no member of .* has a score yet"):
        lineage.lineage(tmp_path / "early")
    experiment(tmp_path / "broken")
    (tmp_path / "broken" / "trial-002-x=b" / "exploits.json").write_text('[{"donor": "trial-001-x=a"}]')
    with pytest.raises(ValueError, match="is damaged"):
        lineage.lineage(tmp_path / "broken")
