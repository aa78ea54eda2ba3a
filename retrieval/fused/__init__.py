"""The ranking of profile ``fused``: passages at hand in, hits with the parts of their scores out.

    asking      a question's text      -> what to embed, what to count; then a Question
    passages    what was found         -> Passages, as plain arrays
    features    Question x Passages    -> named numbers (speakers, dates, lexical, late_interaction)
    model       named numbers          -> score and probability, by coefficients.toml
    choose      ranked candidates      -> nothing twice, sessions covered
    ranking     all of it in one call

Knows nothing of ledgers, snapshots and models: how passages are stored and found is the reader's business.
"""
