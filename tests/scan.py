"""Session search as the contract says it, by reading every turn: what the index is compared with."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

from pipeline.ledger import Ledger
from pipeline.records import Scope
from pipeline.shards import Shards

AUTOMATED = {"scheduled", "automated", "cron", "system", "batch"}
LINEAGE = ("lineage_id", "root_session_id", "thread_id")


class Found(NamedTuple):
    """A session, its score, and its best turn's index."""

    session_id: str
    score: float
    anchor_index: int


class _Turn(NamedTuple):
    time_ms: int
    index: int
    turn_id: str
    role: str
    content: str
    metadata: dict[str, Any]


Sessions = dict[str, list["_Turn"]]


def scan(sessions: Sessions, query: str, *, counts: Callable[[str, int, str], bool] = lambda *_: True) -> list[Found]:
    """Find sessions; ``counts`` tells of a session, a time and a role whether the turn counts."""
    needle = query.strip().lower()
    terms = needle.split()
    found = []
    for session_id, turns in sessions.items():
        scores = [
            _score(needle, terms, turn.content.lower()) * counts(session_id, turn.time_ms, turn.role)
            for turn in turns
        ]
        if any(scores):
            facts = {name: value for turn in turns for name, value in turn.metadata.items() if value}
            factor = 0.25 if facts.get("source") in AUTOMATED or facts.get("automated") is True else 1.0
            key = next(((name, facts[name]) for name in LINEAGE if facts.get(name)), ("root_session_id", session_id))
            found.append((-factor * sum(scores), -turns[-1].time_ms, session_id, scores.index(max(scores)), key))
    kept: dict[tuple[str, str], Found] = {}
    for score, _, session_id, anchor, key in sorted(found):
        kept.setdefault(key, Found(session_id, -score, anchor))
    return list(kept.values())


def _score(needle: str, terms: list[str], content: str) -> int:
    return 2 * (bool(needle) and needle in content) + sum(term in content for term in terms)


def read_sessions(shards: Shards, scope: Scope) -> Sessions:
    """Read all turns of a scope, session by session, in order."""
    sessions = defaultdict(list)
    with closing(Ledger.open(shards.ledger_path(scope), scope)) as ledger, ledger.read() as connection:
        for session_id, *turn, metadata in connection.execute(
            "SELECT session_id, timestamp_ms, turn_index, turn_id, role, content, metadata FROM turns"
        ):
            sessions[str(session_id)].append(_Turn(*turn, json.loads(str(metadata))))  # type: ignore[call-arg]
    return {name: sorted(turns) for name, turns in sessions.items()}
