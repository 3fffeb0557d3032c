"""A process beside the driver that says why the driver has ended, if Ray on its machine ended first. It is run as a script and imports
nothing of raypid.

Where the Ray of a cluster's node ends while the driver waits for a call, Ray ends the driver at once and without a word: nothing that
runs in the driver can save, or be sure to say anything.
"""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress

TRY_S = 1.0


def main() -> None:
    """Wait until the driver has ended, and stdin with it; then speak if nothing listens any more where Ray did."""
    host, port = sys.argv[1], int(sys.argv[2])
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGTSTP"):  # sent to all; only the driver's end counts here
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.stdin.buffer.read()
    try:
        with suppress(TimeoutError):
            socket.create_connection((host, port), TRY_S).close()
    except OSError:
        print(
            f"raypid: Ray on this machine ({host}) has ended, and has ended this process with it: what was learnt since the newest "
            "checkpoint is lost. Start Ray here again, or go on elsewhere: raypid train --resume goes on from that checkpoint.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
