"""The command `raypid`, also as `python -m raypid`. Signals are taken care of before anything else is imported."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def run() -> NoReturn:
    """Run the command line and end the process.

    A signal that comes before a run trains, or after it, ends the process at once with 128 + its number: there is nothing to
    save, and an exception in the middle of an import, or of the interpreter's end, would come out as a traceback of something else.
    """
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            for ours in handled:
                signal.signal(ours, signal.SIG_IGN)
            try:
                os.write(2, b"raypid: stopped at once.\n")
            finally:
                os._exit(128 + number)
        elif number == signal.SIGTERM:  # an environment's process, forked with this handler: its owner ends it
            raise SystemExit

    handled = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    handled = [number for number in handled if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    for number in handled:
        signal.signal(number, stop)
    for descriptor in range(3):  # a closed one would be taken by the next file that is opened, and that printed into
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    from raypid.cli import main

    code = main()
    if code > 128:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        os._exit(code)  # what was broken off may be unable to end in an orderly way
    sys.exit(code)


if __name__ == "__main__":
    run()
