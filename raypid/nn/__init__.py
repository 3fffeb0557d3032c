"""Networks, distributions, policies. Only `networks` imports torch."""

import os

# Read when torch is loaded. Its threads spin about 10 us for the next operation before they sleep. If they slept at once, two threads would make
# updates of layers of 256 no faster than one. If they span longer, the run would pay for it as soon as another process needs a core: beside one, SAC
# with layers of 256 makes 120 updates a second; 40 where the threads spin 0.2 ms; 171 with one thread.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
