"""Stored facts against the turns they are from: whether each turn states what is stored of it, and nothing else."""

from __future__ import annotations

import apsw

from pipeline.condense.facts import RULES
from pipeline.ledger import check, condensed
from retrieval.context.condensing.condensed import stated_by, stated_by_row
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


def findings(connection: apsw.Connection, name: str) -> list[Finding]:
    """Say whether they are."""
    if not are_wrong(connection):
        return []
    return [damaged(f"{name} facts", f"there are other facts than its turns state; {check.MADE_AGAIN}")]
