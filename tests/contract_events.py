"""An ordinary turn as a platform publishes it, and any variation of it."""

from __future__ import annotations

import json
from typing import Any

TURN: dict[str, Any] = {
    "type": "turn",
    "event_id": "e-1",
    "scope": "user",
    "scope_id": "u42",
    "session_id": "s-7",
    "role": "user",
    "content": "Shall we go to Lisbon in May?",
    "timestamp": "2024-05-01T12:30:00Z",
}


def event(**fields: Any) -> bytes:
    return json.dumps({**TURN, **fields}, ensure_ascii=False).encode()
