"""What a data folder says, without the numbers given out on the way: what two runs must agree in."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.ledger import Ledger
from pipeline.ledger.connection import connect, read_meta
from pipeline.records import Scope
from pipeline.shards import LEDGER_FILE, Shards

State = dict[str, dict[str, list[Any]]]

_PARTS = {
    "events": "SELECT count(*) FROM events",
    "tombstones": "SELECT count(*) FROM tombstones",
    "turns and tags": (
        "SELECT session_id, turn_id, event_id, revision, role, speaker, content, timestamp_ms, first_ms, turn_index,"
        " tags, mood, metadata, state, failure FROM turns ORDER BY 1, 2"
    ),
    "chunks": (
        "SELECT session_id, turn_id, ordinal, start, stop, n_tokens, strength, stability_ms, valence, confidence,"
        " vector FROM traces JOIN turns USING (turn_offset) LEFT JOIN vectors USING (trace_id) ORDER BY 1, 2, 3"
    ),
    "rows of nobody": (
        "SELECT 'vector', count(*) FROM vectors WHERE trace_id NOT IN (SELECT trace_id FROM traces)"
        " UNION SELECT 'fact', count(*) FROM facts WHERE turn_offset NOT IN (SELECT turn_offset FROM turns)"
        " UNION SELECT 'theme', count(*) FROM theme_turns WHERE turn_offset NOT IN (SELECT turn_offset FROM turns)"
        " UNION SELECT 'trace', count(*) FROM traces WHERE turn_offset NOT IN (SELECT turn_offset FROM turns)"
        " UNION SELECT 'words', count(*) FROM fulltext WHERE rowid NOT IN"
        " (SELECT turn_offset FROM turns WHERE state = 2)"
    ),
    "sessions": "SELECT session_id, closed, platform_summary, closed_ms, state FROM sessions ORDER BY 1",
    "cards": (
        "SELECT session_id, n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace, is_automated"
        " FROM cards ORDER BY 1"
    ),
    "summaries": "SELECT session_id, text, digest, model_id, session_date, vector FROM summaries ORDER BY 1",
    "facts": "SELECT session_id, turn_id, ordinal, key, value, confidence FROM facts JOIN turns USING (turn_offset)"
    " ORDER BY 1, 2, 3",
    "themes": "SELECT digest, t.session_id, text, model_id, json_group_array(turn_id ORDER BY turn_id) FROM themes t"
    " LEFT JOIN theme_turns USING (digest) LEFT JOIN turns USING (turn_offset) GROUP BY digest ORDER BY 1",
}


def state_of(data_dir: Path) -> State:
    """Read every ledger; per scope, part by part, the rows in a fixed order."""
    found: State = {}
    for folder in Shards(data_dir).walk():
        path = folder / LEDGER_FILE
        with closing(connect(path, query_only=True)) as connection:
            scope = Scope.parse(read_meta(connection)["scope"])
        with closing(Ledger.open(path, scope)) as ledger, ledger.read() as db:
            found[scope.key] = {part: db.execute(statement).fetchall() for part, statement in _PARTS.items()}
    return found
