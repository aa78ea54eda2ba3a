"""How likely each candidate for a question is to answer it, by the ranking model of profile `fused`."""

from __future__ import annotations

from retrieval.fused.features import matrix
from retrieval.fused.model import Models
from retrieval.fused.passages import Floats
from retrieval.passage_search import Found


def chances(found: Found, models: Models) -> Floats:
    """Give the probability of each candidate: ``(c,) float32`` in [0, 1], in the order of ``passages.candidates``.

    Args:
        found: the candidates; with summaries, where the models look at them.
        models: those of profile `fused`.
    """
    has_tokens = len(found.passages.tokens) > 0 and len(found.question.token_vectors) > 0
    model = models.with_tokens if has_tokens else models.without_tokens
    columns = matrix(found.question, found.passages, model.features, mean_words=found.mean_words)
    return model.probability(model.parts(columns), names_a_stranger=found.question.names_a_stranger)
