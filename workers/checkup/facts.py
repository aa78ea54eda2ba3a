"""Stored facts and themes against the turns they are from.

Each turn states the facts that are stored of it, and no other. A theme made without a model is the one that its
exchanges make; one that a model wrote states nothing that they do not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import apsw

from pipeline.condense import summaries
from pipeline.condense.facts import RULES
from pipeline.ledger import check, condensed
from pipeline.summarise.extractive import MODEL
from retrieval.context.condensing.condensed import stated_by, stated_by_row
from retrieval.context.condensing.themes import digest_of, extracted, is_current, member_of
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.reading import read_entries
from workers.checkup.finding import Finding, damaged

_TURNS_AT_ONCE = 2_000


def are_wrong(connection: apsw.Connection) -> bool:
    """Tell whether any turn that was looked through has other facts than it states."""
    up_to = condensed.facts_up_to(connection, RULES)
    stored = sorted(map(stated_by_row, condensed.facts(connection, RULES)))
    stated, above = [], 0
    while above < up_to:
        turns = condensed.user_turns_above(connection, above, _TURNS_AT_ONCE)
        if not turns:
            break
        stated += [fact for turn in turns if turn.turn_offset <= up_to for fact in stated_by(turn)]
        above = turns[-1].turn_offset
    return sorted(stated) != stored


def wrong_themes(connection: apsw.Connection) -> list[str]:
    """Name the sessions with a theme that its exchanges do not tell; one that waits to be made again is left out."""
    if not condensed.has_tables(connection):
        return []
    rows: Any = connection.execute(
        "SELECT session_id, text, model_id, digest, json_group_array(turn_offset) FROM themes"
        " JOIN theme_turns USING (digest) GROUP BY digest ORDER BY session_id"
    ).fetchall()
    found: list[str] = []
    for session_id, themes in groupby(rows, key=itemgetter(0)):
        entries, _ = read_entries(connection, session_id)
        if any(_is_wrong(entries, *theme[1:]) for theme in themes):
            found.append(session_id)
    return found


def _is_wrong(entries: Sequence[Entry], stored: str, model_id: str, digest: bytes, offsets: str) -> bool:
    of_theme = set(json.loads(offsets))
    members = [entry for entry in entries if of_theme.issuperset(entry.turn_offsets)]
    if not members or digest_of(members) != digest or not is_current(model_id):
        return False  # it is never shown
    text = summaries.source([member_of(entry) for entry in members])
    return stored != extracted(text) if model_id == MODEL else not summaries.is_acceptable(stored, text)


def findings(connection: apsw.Connection, name: str) -> list[Finding]:
    """Say what is wrong with both."""
    found = []
    if are_wrong(connection):
        found.append(damaged(f"{name} facts", f"there are other facts than its turns state; {check.MADE_AGAIN}"))
    found += [
        damaged(
            f"{name} themes",
            f"session {session_id!r} has a theme that its turns do not tell; {check.MADE_AGAIN}",
        )
        for session_id in wrong_themes(connection)
    ]
    return found
