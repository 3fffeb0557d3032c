"""Networks, distributions, policies. Only `networks` imports torch."""

import os

# Read when torch is loaded: its threads give their core away while they wait, instead of spinning on it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
