"""Settings that reach a stated return, by algorithm and environment: `--tuned` on the command line, `tuned=True` in Python.

They lie in tuned.json: algorithm, environment, settings. Times and seeds behind them stand in benchmarks/results.
"""

from __future__ import annotations

import json
from pathlib import Path

_BY_ALGORITHM: dict[str, dict[str, dict[str, object]]] = json.loads(Path(__file__).with_suffix(".json").read_text())
TUNED = {(name, env): settings for name, envs in _BY_ALGORITHM.items() for env, settings in envs.items()}
"""(algorithm, environment) -> settings."""
