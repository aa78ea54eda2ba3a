"""Asking every question of a data set, and measuring what is found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final

from pipeline.records import Scope
from retrieval import Memory, Retrieval
from workers.evaluate import metrics
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.datasets import Dataset
from workers.evaluate.metrics import Bin

CUTS: Final = (1, 3, 5, 10, 15, 20)
OVERALL: Final = "overall"
_RANKED: Final = 50
"""Hits asked for to rank sessions and turns; latency is that of a retrieve with the usual number."""
_SCORED: Final = 10
_FOREIGN: Final = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for a question: turns and sessions, each once, best first; the first hits' scores."""

    question: AskedQuestion
    turns: list[str]
    sessions: list[str]
    scored: list[tuple[float, bool]]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The means over some questions; those by cut map 1, 3, 5 … to a number from 0 to 1.

    Args:
        n: questions.
        share: of the evidence turns that are among the first.
        all: of the questions all of whose evidence turns are.
        any: of the questions any of whose evidence turns is (hit@k).
        session_any: as ``any``, of evidence sessions among the first sessions.
        session_share: as ``share``.
        session_all: as ``all``.
        ndcg: NDCG@10 of turns.
        session_ndcg: NDCG@10 of sessions.
        mrr: mean reciprocal rank of turns.
    """

    n: int
    share: dict[int, float]
    all: dict[int, float]
    any: dict[int, float]
    session_any: dict[int, float]
    session_share: dict[int, float]
    session_all: dict[int, float]
    ndcg: float
    session_ndcg: float
    mrr: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Shares of questions that likely have no answer, says memory: in their own scope, and asked in another one."""

    own_doubted: float
    foreign_doubted: float
    n: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found; ``figures`` by category, ``overall`` over the counted ones, ``all categories``.

    Args:
        dataset: the file's name.
        form: its format.
        profile: how it was retrieved.
        n_turns: turns that were put in; 0: the scope was there.
        ingest_per_s: turns made searchable in a second, everything included; 0 as well.
        latency_ms: p50 and p95 of one retrieve, and their mean.
        figures: the measures.
        calibration: of the scores, for profiles whose score is a probability.
        milliseconds: of each retrieve.
        elsewhere: what the questions score in a scope that does not know the answer.
        beside: overall measures by what counts beside a turn, when that was asked for.
    """

    dataset: str
    form: str
    profile: str
    n_turns: int
    ingest_per_s: float
    latency_ms: dict[str, float]
    figures: dict[str, Figures]
    calibration: list[Bin]
    milliseconds: list[float]
    elsewhere: Elsewhere | None = None
    beside: dict[str, Figures] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give it as plain values, without the single times."""
        values = asdict(self)
        del values["milliseconds"]
        values["calibration"] = [part._asdict() for part in self.calibration]
        values["calibration_error"] = metrics.calibration_error(self.calibration)
        return values


def ask_all(
    memory: Memory, dataset: Dataset, profile: str, *, options: dict[str, Any], on_asked: Callable[[int], None]
) -> list[Answer]:
    """Ask every question of a data set; ``options`` go to each retrieve, ``on_asked`` is told how many were."""
    answers = []
    for number, question in enumerate(dataset.questions, start=1):
        answers.append(_ask(memory, question, profile, options))
        on_asked(number)
    return answers


def evaluation(
    dataset: Dataset,
    profile: str,
    answers: Sequence[Answer],
    *,
    n_turns: int = 0,
    ingest_per_s: float = 0.0,
    elsewhere: Elsewhere | None = None,
) -> Evaluation:
    """Measure what was found."""
    by_category: dict[str, list[Answer]] = {}
    for answer in answers:
        by_category.setdefault(answer.question.category, []).append(answer)
    groups = {name: by_category[name] for name in sorted(by_category)}
    counted = [answer for answer in answers if answer.question.is_counted]
    if len(counted) < len(answers):
        groups["all categories"] = list(answers)
    groups[OVERALL] = counted
    taken = [answer.milliseconds for answer in answers]
    scored = [pair for answer in counted for pair in answer.scored] if profile == "fused" else []
    return Evaluation(
        dataset=dataset.path.name,
        form=dataset.form,
        profile=profile,
        n_turns=n_turns,
        ingest_per_s=round(ingest_per_s, 1),
        latency_ms={
            "p50": round(metrics.percentile(taken, 50), 2),
            "p95": round(metrics.percentile(taken, 95), 2),
            "mean": round(fmean(taken), 2) if taken else 0.0,
        },
        figures={name: _figures(dataset, some) for name, some in groups.items() if some},
        calibration=metrics.calibration(scored),
        milliseconds=taken,
        elsewhere=elsewhere,
    )


def ask_elsewhere(memory: Memory, dataset: Dataset) -> Elsewhere | None:
    """Ask questions, evenly chosen, in the scope of other ones, too; None with one scope, or when none counts."""
    scopes = sorted({question.scope for question in dataset.questions})
    counted = [question for question in dataset.questions if question.is_counted]
    if len(scopes) < 2 or not counted:  # noqa: PLR2004 - one scope has no other
        return None
    chosen = counted[:: max(1, len(counted) // _FOREIGN)]
    own = fmean(_is_doubted(memory, question, question.scope) for question in chosen)
    other = {scope: scopes[(place + 1) % len(scopes)] for place, scope in enumerate(scopes)}
    foreign = fmean(_is_doubted(memory, question, other[question.scope]) for question in chosen)
    return Elsewhere(own, foreign, len(chosen))


def _is_doubted(memory: Memory, question: AskedQuestion, scope: Scope) -> bool:
    found = memory.retrieve(question.text, scope, asked_at=question.asked_at, recall_top_k=1)
    return not (found.hits and found.diagnostics.answer_is_likely)


def _ask(memory: Memory, question: AskedQuestion, profile: str, options: dict[str, Any]) -> Answer:
    def retrieve(**wanted: Any) -> Retrieval:
        asked_at = question.asked_at
        return memory.retrieve(question.text, question.scope, profile=profile, asked_at=asked_at, **options | wanted)

    started = time.perf_counter()
    retrieve()
    taken_ms = 1000 * (time.perf_counter() - started)
    hits = retrieve(recall_top_k=_RANKED).hits
    return Answer(
        question=question,
        turns=_once(hit.turn_id for hit in hits),
        sessions=_once(hit.session_id for hit in hits),
        scored=[(hit.score, hit.turn_id in question.turns) for hit in hits[:_SCORED]],
        milliseconds=taken_ms,
    )


def _once(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _figures(dataset: Dataset, answers: Sequence[Answer]) -> Figures:
    turns = [(answer.turns, answer.question.turns) for answer in answers]
    sessions = [(answer.sessions, answer.question.sessions) for answer in answers]
    return Figures(
        n=len(answers),
        share=_by_cut(metrics.share_found, turns),
        all=_by_cut(metrics.all_found, turns),
        any=_by_cut(metrics.any_found, turns),
        session_any=_by_cut(metrics.any_found, sessions),
        session_share=_by_cut(metrics.share_found, sessions),
        session_all=_by_cut(metrics.all_found, sessions),
        ndcg=fmean(metrics.ndcg(*pair, 10, discount=dataset.discount) for pair in turns),
        session_ndcg=fmean(metrics.ndcg(*pair, 10, discount=dataset.discount) for pair in sessions),
        mrr=fmean(metrics.reciprocal_rank(*pair) for pair in turns),
    )


def _by_cut(
    measure: Callable[[Sequence[str], frozenset[str], int], float],
    pairs: Sequence[tuple[list[str], frozenset[str]]],
) -> dict[int, float]:
    return {k: fmean(measure(ranked, wanted, k) for ranked, wanted in pairs) for k in CUTS}
