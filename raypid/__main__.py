"""`python -m raypid` is the command `raypid`."""

import sys

from raypid.cli import main

if __name__ == "__main__":
    sys.exit(main())
