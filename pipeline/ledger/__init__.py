"""The ledger: one SQLite file per scope, the truth its indexes are built from.

`schema` says what is in it, `connection` how it is opened, `ledger` holds it open; `events` applies what was
published, `work` makes turns searchable, `sessions` keeps summaries, `reads` answers readers.
"""

from pipeline.ledger.ledger import Ledger, LedgerPool

__all__ = ["Ledger", "LedgerPool"]
