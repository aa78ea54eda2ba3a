"""Transcripts to import, and what was found in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.importers import Imported, Malformed, reader
from pipeline.records import Event, Scope, Turn

SCOPE = Scope("user", "u1")
T0 = 1_700_000_000


def write(path: Path, *values: Any, end: bytes = b"\n") -> Path:
    """Write values as JSON lines; bytes as they are."""
    path.write_bytes(b"".join((v if isinstance(v, bytes) else json.dumps(v).encode()) + end for v in values))
    return path


def items(form: str, path: Path, scope: Scope | None = SCOPE, **options: Any) -> list[Imported | Malformed]:
    return list(reader(form)(path, scope, **options))


def good(found: list[Imported | Malformed]) -> list[Event]:
    return [item.event for item in found if isinstance(item, Imported)]


def turns(found: list[Imported | Malformed]) -> list[Turn]:
    return [event for event in good(found) if isinstance(event, Turn)]


def bad(found: list[Imported | Malformed]) -> list[Malformed]:
    return [item for item in found if isinstance(item, Malformed)]


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def session(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages) or [said("user", "Hi")], **more}


def event(**more: Any) -> dict[str, Any]:
    turn = {"type": "turn", "scope": "user", "scope_id": "u1", "session_id": "s", "role": "user", "content": "Hi"}
    return {**turn, "timestamp": T0, **more}
