"""What can be wrong with stored facts and themes, and its removal: what is dropped is made again from the turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import apsw

from pipeline.ledger.condensed import TABLES, missing_tables
from pipeline.ledger.ledger import Ledger

_FAULTS: Final = (
    ("facts", "facts of no turn",
     ("SELECT 'turn offset ' || turn_offset FROM facts WHERE turn_offset NOT IN (SELECT turn_offset FROM turns)")),
    ("facts", "facts that are none",
     ("SELECT 'turn offset ' || turn_offset FROM facts WHERE trim(key) = '' OR trim(value) = ''"
      " OR NOT confidence BETWEEN 0 AND 1 OR typeof(key) <> 'text' OR typeof(value) <> 'text'"
      " OR typeof(confidence) <> 'real'")),
    ("facts", "facts looked for in turns that never were",
     ("SELECT 'turn offset ' || turn_offset FROM facts_up_to WHERE turn_offset >"
      " ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'turns'), 0)")),
    ("themes", "themes of no turn, or of one that is gone",
     ("SELECT 'theme ' || hex(digest) FROM themes WHERE digest NOT IN (SELECT digest FROM theme_turns)"
      " OR digest IN (SELECT digest FROM theme_turns WHERE turn_offset NOT IN (SELECT turn_offset FROM turns))"
      " OR trim(text) = '' OR typeof(text) <> 'text' OR typeof(model_id) <> 'text'")),
    ("themes", "turns of no theme",
     ("SELECT 'turn offset ' || turn_offset FROM theme_turns WHERE digest NOT IN (SELECT digest FROM themes)")),
    ("themes", "sessions noted as condensed that are none",
     ("SELECT 'session ''' || session_id || '''' FROM condensed"
      " WHERE session_id NOT IN (SELECT session_id FROM sessions)")),
)  # fmt: skip
"""Part, problem, and a query that names each place."""


def faults(connection: apsw.Connection) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what cannot be: the part, the problem, and where."""
    missing = missing_tables(connection)
    if missing and len(missing) < len(TABLES):  # all of them: it is of before there were any
        yield "facts", "tables of facts and themes that are missing", missing
    for part, problem, places in () if missing else _FAULTS:
        if found := [str(row[0]) for row in connection.execute(places)]:
            yield part, problem, found


def drop_wrong(connection: apsw.Connection) -> list[str]:
    """Drop what `faults` names, to be made again; inside the caller's transaction. Gives what was done."""
    wrong = {part for part, _, _ in faults(connection)}
    if "facts" in wrong:
        _drop_facts(connection)
    if "themes" in wrong:
        _drop_themes(connection)
    return [f"all {part} dropped, to be made again" for part in sorted(wrong)]


def drop_themes(ledger: Ledger) -> None:
    """Drop all themes, to be made again."""
    with ledger.write() as connection:
        _drop_themes(connection)


def _drop_themes(connection: apsw.Connection) -> None:
    for table in ("themes", "theme_turns", "condensed"):
        connection.execute(f"DELETE FROM {table}")


def drop_facts(ledger: Ledger) -> None:
    """Drop all facts, to be looked for again."""
    with ledger.write() as connection:
        _drop_facts(connection)


def _drop_facts(connection: apsw.Connection) -> None:
    for table in ("facts", "facts_up_to", "condensed"):  # the last, so that somebody comes by
        connection.execute(f"DELETE FROM {table}")
