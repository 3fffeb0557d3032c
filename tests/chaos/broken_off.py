"""A module whose import is broken off by Ctrl-C, and says something else, as C extensions do."""

import os
import signal
import time

try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except KeyboardInterrupt:
    raise ImportError("PyCapsule_Import could not import a module") from None
