"""What the processes of a test logged, searched for what would wake somebody."""

from __future__ import annotations

import json
from pathlib import Path

_LIBRARY_REPORTED = "library.reported"
_OF_A_LOST_SERVER = ("ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "TimeoutError",
                     "BusyLoadingError", "OperationalError", "BrokenPipeError")  # fmt: skip
"""What a library may complain of, by its type: somebody killed the server."""
_SAYS_SO_WITHOUT_A_TYPE = ("Cannot connect to", "Connection to broker lost")


def errors_in(path: Path) -> list[str]:
    """List the errors in a log of JSON lines, and whatever is no such line and tells of one."""
    found = []
    for line in path.read_text().splitlines():
        if not line.startswith("{"):
            found += [line] if "Traceback" in line or "Error" in line else []
            continue
        entry = json.loads(line)
        if entry["level"] in {"error", "critical"} and not _is_of_a_lost_server(entry):
            found.append(" ".join(str(entry.get(key, "")) for key in ("event", "error", "template", "reason")))
    return found


def _is_of_a_lost_server(entry: dict[str, str]) -> bool:
    if entry["event"] != _LIBRARY_REPORTED:
        return False
    return entry.get("error") in _OF_A_LOST_SERVER or any(
        words in entry.get("template", "") for words in _SAYS_SO_WITHOUT_A_TYPE
    )
