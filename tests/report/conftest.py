"""`run_folders` is imported by name, here and in the tests of the command line."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
