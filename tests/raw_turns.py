"""Turns as bytes, for what no publisher would let through."""

from __future__ import annotations

import json
from typing import Any

T0 = 1_700_000_000
SAID = "zqx-said-in-confidence"
"""A word in every text, good or bad: it may stand in no log."""


def raw(event_id: str, **fields: Any) -> bytes:
    event = {
        "type": "turn", "event_id": event_id, "scope": "user", "scope_id": "plain", "session_id": "s1",
        "role": "user", "content": SAID, "timestamp": T0, **fields,
    }  # fmt: skip
    return json.dumps(event).encode()
