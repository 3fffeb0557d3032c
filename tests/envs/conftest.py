"""`cases` is imported by name, as a module of a user is."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
