"""The ledger: one SQLite file per scope, the truth its indexes are built from.

`schema` says what is in it, `connection` how it is opened, `ledger` holds it open, `disk` makes it last. `events`
applies what was published, `forgetting` takes it away, `work` makes turns searchable, `sessions` and `condensed` keep
what is said in short. `reads`, `passage_reads` and `session_reads` answer readers. `check` finds what is wrong in it,
`repair` and `salvage` mend it, `upkeep` says what is due.
"""

from pipeline.ledger.ledger import Ledger, LedgerPool

__all__ = ["Ledger", "LedgerPool"]
