"""Networks, distributions, policies. Only `networks` imports torch."""

import os

# Read when torch is loaded. Its threads spin about 0.2 ms before they sleep: woken for each operation, they would make updates of layers of 256 take
# twice as long; spinning for milliseconds, as they do by themselves, they would take cores from environments and workers.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
