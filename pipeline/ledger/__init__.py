"""The ledger: one SQLite file per scope, the truth its indexes are built from."""
