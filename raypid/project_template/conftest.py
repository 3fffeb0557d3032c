"""Loads this project for its tests, wherever pytest is started."""

from pathlib import Path

import raypid

raypid.load_project(Path(__file__).parent, trust=True)
