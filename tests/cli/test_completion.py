"""Completion by TAB, in a shell of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raypid.cli import main

pytest.importorskip("argcomplete")
TRIED = [
    ("raypid tra", {"train"}),
    ("raypid train --run PPO --clip-s", {"--clip-schedule"}),
    ("raypid train --run PPO --lr-schedule ", {"constant", "linear"}),
    ("raypid train --env LunarLanderC", {"LunarLanderContinuous-v3"}),
    ("raypid train --env reac", {"reacher.py"}),
    ("raypid eval runs/fi", {"runs/first"}),
    ("raypid list mod", {"models"}),
    ("raypid train --normalize_o", {"--normalize-observations"}),
    ("raypid train --time", {"--time-limit"}),
    ("raypid train --checkpoint-int", {"--checkpoint-interval"}),
    ("raypid train --run pp", {"PPO"}),
    ("raypid train --env reacher.py:", {"Reach"}),
    ("raypid train --env reacher:R", {"Reach"}),
    ("raypid train --run PPO --stop time_t", {"time_total_s="}),
    ("raypid list envs mountaincarc", {"MountainCarContinuous-v0"}),
    ("raypid init ru", {"runs/"}),
    ("raypid reproduce PPO:CartP", {"CartPole-v1"}),
]
SCRIPT = """
eval "$(raypid completion bash)"
while IFS= read -r line; do
    COMP_LINE="$line"; COMP_POINT=${#line}; COMP_TYPE=9; COMP_KEY=9; COMPREPLY=()
    read -ra COMP_WORDS <<< "$line"; [[ "$line" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _python_argcomplete raypid "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.ci_slow
def test_bash_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "raypid"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m raypid "$@"\n')
    program.chmod(0o755)
    (tmp_path / "reacher.py").write_text("class Reach: pass\n")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "params.json").write_text("{}")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    lines = "".join(f"{line}\n" for line, _ in TRIED)
    done = subprocess.run(
        ["bash", "-c", SCRIPT], input=lines, capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert [set(reply.split()) for reply in done.stdout.splitlines()] == [expected for _, expected in TRIED], (
        done.stderr
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "raypid" in capsys.readouterr().out
