"""An evaluation of figures that are all alike, for what is shown of one."""

from __future__ import annotations

from workers.evaluate.run import CUTS, Evaluation, Figures


def an_evaluation(category: str = "single-session-preference", *, share: float = 0.512) -> Evaluation:
    """An evaluation of one category."""
    by_cut = dict.fromkeys(CUTS, share)
    figures = Figures(12_345, by_cut, by_cut, by_cut, by_cut, by_cut, by_cut, ndcg=0.431, session_ndcg=0.532, mrr=0.6)
    return Evaluation(
        dataset="longmemeval_s.json",
        form="longmemeval",
        profile="fused",
        n_turns=0,
        ingest_per_s=0.0,
        latency_ms={},
        figures={category: figures, "overall": figures},
        calibration=[],
        milliseconds=[],
    )
