"""Log lines as whoever collects them meets them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

_WRITES_TWO_LINES = """
import structlog
from pipeline import log

log.configure(style="json", process="test")
structlog.get_logger().info("first.happened", text="line\\nbreak")
structlog.get_logger().error("second.happened")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_and_its_end_are_one_write(unbuffered: str) -> None:
    """Processes share a file: what is written apart comes apart, and two lines run into one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes apart
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", _WRITES_TWO_LINES],
            stderr=theirs,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            check=True,
            timeout=60,
        )
        theirs.close()
        written = list(iter(lambda: ours.recv(1 << 16).decode(), ""))
    assert [json.loads(line)["event"] for line in written] == ["first.happened", "second.happened"]
    assert all(line.endswith("\n") for line in written)
