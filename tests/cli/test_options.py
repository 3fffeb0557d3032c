"""Settings in messages, as the command line says them."""

from __future__ import annotations

import argparse

import pytest

import raypid
from raypid.cli.options import with_flags
from raypid.runtime.resources import ResourceError


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("What fits: num_workers=2, or fit=True.", "What fits: --num-workers 2, or --fit."),
        ("a cluster (address='local' starts Ray here)", "a cluster (--address local starts Ray here)"),
        ("model.hidden=[8,8]; env='my env:E'", "--model.hidden '[8,8]'; --env 'my env:E'"),
        ("raypid.train(env='x', fit=True) or other=2", "raypid.train(env='x', fit=True) or other=2"),
        ("trial-001-fit=1,env=3: 'env=3' in runs/env=3", "trial-001-fit=1,env=3: 'env=3' in runs/env=3"),
    ],
)
def test_settings_in_a_message_become_options(message: str, said: str) -> None:
    parser = argparse.ArgumentParser()
    for option in ("--num-workers", "--fit", "--address", "--model.hidden", "--env"):
        parser.add_argument(option)
    assert with_flags(message, parser) == said


def test_python_is_told_of_no_option() -> None:
    with pytest.raises(ResourceError, match=r"What fits: num_workers=\d+; fit=True does it by itself\.$") as refused:
        raypid.PPO("CartPole-v1", num_workers=4096)
    assert "--" not in str(refused.value)
