"""What tests and benchmarks start ends with them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import processes
import pytest
from patience import wait_until
from processes import marked, with_mark

STARTS = """
import os, subprocess, sys
from processes import end_with_this_process

end_with_this_process(sys.argv[1])
subprocess.Popen(["sleep", "600"], start_new_session=True)
input()
os._exit(1)  # as pytest-timeout does
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_is_marked_ends_with_who_started_it() -> None:
    mark = uuid.uuid4().hex
    environment = with_mark(mark, {**os.environ})
    where = Path(processes.__file__).parent  # which `-c` puts on the path
    one = subprocess.Popen([sys.executable, "-c", STARTS, mark], stdin=subprocess.PIPE, env=environment, cwd=where)
    wait_until(lambda: any(line.startswith("sleep") for line in marked(mark).values()))
    one.communicate(b"\n")
    wait_until(lambda: not marked(mark))
