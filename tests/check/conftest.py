"""The modules beside the tests can be imported, as a user's from the current folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
