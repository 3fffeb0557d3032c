"""Files that runs write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import raypid
from raypid.cli import main


@pytest.fixture
def umask() -> Iterator[int]:
    given = 0o027
    before = os.umask(given)
    yield given
    os.umask(before)


def test_files_of_a_run_have_the_mode_of_the_umask(umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not the user loads a copied policy. Only the secret, which signs, is private."""
    monkeypatch.setenv("RAYPID_DATA", str(tmp_path / "data"))
    small = {"learning_starts": 64, "num_envs_per_worker": 2, "seed": 1}
    with raypid.DQN("CartPole-v1", **small) as agent:
        agent.fit(200, out=tmp_path / "run", final_episodes=1)
    assert main(["plot", str(tmp_path / "run"), "--out", str(tmp_path / "curve.svg")]) == 0
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    written = {Path(name).name for name in modes}
    assert written >= {"policy.safetensors", "state.safetensors", "links.safetensors", "learning_curve.png"}
    private = {"data": 0o700, "data/secret": 0o600}
    expected = {name: private.get(name, (0o777 if (tmp_path / name).is_dir() else 0o666) & ~umask) for name in modes}
    assert modes == expected
