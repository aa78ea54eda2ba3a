"""The entries of a session read once, by who keeps nothing of it: the same that `SessionCache` gives."""

from __future__ import annotations

import apsw

from pipeline.ledger import session_reads
from pipeline.ledger.connection import read_meta
from pipeline.ledger.reads import Vectors
from retrieval.context.entries import exchanges
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.vectors import EntryVectors


def read_entries(connection: apsw.Connection, session_id: str) -> tuple[list[Entry], Vectors]:
    """Read a session's entries, oldest first, and their vectors ``(n, d) float32``; none when it has no turns.

    Raises:
        ShardError: a vector has another length than the ledger's dimension.
    """
    turns = session_reads.turns_of(connection, session_id)
    if not turns:
        return [], EntryVectors().view()
    asking = exchanges.who_asks([*exchanges.parties(turns)])
    entries = [exchange.entry for exchange in exchanges.tell(session_id, turns, asking).exchanges]
    vectors = EntryVectors()
    vectors.arrange([-1] * len(entries), int(read_meta(connection).get("dimension", 0)))
    vectors.read(connection, entries, range(len(entries)))
    return entries, vectors.view()
