"""Session search: past sessions found by words or by meaning, read on around a turn, or listed.

`protocol` says what is asked and answered, `tool` is the function an agent calls. `index` keeps what a scope's ledger
says about its words, `segment` and `tail` look words up, `keyword` and `best` rank sessions by them, `lineage` and
`collapse` make continuations one; `reading` shows turns, `snippet`, `bookends` and `titles` what of them is shown.
"""
