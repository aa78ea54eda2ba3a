"""Candidates for a question: traces near it, turns that share its words, and what stands around both.

Reads one view of a shard and changes nothing; costs by what is found, not by the scope.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import apsw
import numpy as np

from pipeline.ledger import passage_reads, reads
from pipeline.ledger.passage_reads import Turn
from pipeline.ledger.reads import Ids, TraceRow
from retrieval.embedded_question import Asked
from retrieval.fused.passages import REACH, Bools, Passages, Question
from retrieval.reader import View
from retrieval.trace_search import Nearest

N_NEAREST: Final = 50
N_MATCHING: Final = 50
"""Measured on LoCoMo's first five conversations: 50 of each find 84.2 % of the evidence in ten and 86.6 % in fifteen;
30 find 84.0 and 86.2 %, and take a quarter less time."""
_CANDIDATE_REACH: Final = 1
"""How far from what was found another passage is a candidate too."""
_CHUNKS_OF_TURN: Final = 3
"""Of a long turn that shares words with the question, so many chunks are looked at: those that share most."""
_APART: Final = 1_000


class Place(NamedTuple):
    """A passage: a chunk of a turn, ``content[start:stop]``."""

    turn: Turn
    trace_id: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Sought:
    """What somebody has found already for a question: traces near it, and offsets of turns that share its words."""

    near: Nearest
    matching: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """Everything ranking needs, and how it was found.

    Attributes:
        question: as ranking sees it.
        passages: candidates and their neighbours.
        mean_words: words of a turn, on average over the scope.
        places: of the passages, row by row.
        n_near: traces found by their vectors.
        n_matching: turns found by their words.
        snapshot_problem: why no snapshot was used, or "".
        vector_ms: time the vectors took.
        words_ms: time the words took.
    """

    question: Question
    passages: Passages
    mean_words: float
    places: Sequence[Place]
    n_near: int
    n_matching: int
    snapshot_problem: str
    vector_ms: float
    words_ms: float


def find(
    view: View,
    asked: Asked,
    *,
    asked_ms: int,
    after_ms: int | None = None,
    before_ms: int | None = None,
    also: Ids | None = None,
    sought: Sought | None = None,
) -> Found:
    """Find the candidates for a question.

    Args:
        view: the shard at one moment.
        asked: the question.
        asked_ms: the time of asking.
        after_ms: no candidate was said before this time.
        before_ms: no candidate was said after this time.
        also: traces that are candidates whatever they say.
        sought: taken in place of a search of one's own.

    Raises:
        DimensionMismatchError: the question's vector has another dimension than the shard's.
        ModelMismatchError: the shard was written with another model.
        ShardError: the ledger is damaged.
    """
    started = time.perf_counter()
    near = (
        sought.near
        if sought
        else view.nearest(asked.embedded.vector, N_NEAREST, after_ms=after_ms, before_ms=before_ms)
    )
    searched = time.perf_counter()
    connection = view.connection
    n_turns, n_words = passage_reads.fulltext_totals(connection)
    frequencies = passage_reads.document_frequencies(connection, asked.asking.counted_words)
    if sought:
        matching = sought.matching
    else:
        words = asked.sought(frequencies, n_turns)
        matching = passage_reads.matching_turns(connection, words, N_MATCHING, after_ms=after_ms, before_ms=before_ms)
    words_ms = 1000 * (time.perf_counter() - searched)
    question = asked.asking.question(
        vector=asked.embedded.vector,
        token_vectors=asked.embedded.tokens,
        token_spans=[(int(start), int(stop)) for start, stop in asked.embedded.spans],
        document_frequency=frequencies,
        n_passages=n_turns,
        asked_ms=asked_ms,
    )
    found = near.traces if also is None else [*near.traces, *reads.traces(connection, also)]
    passages, places = _Loading(connection, found, matching, question).load(after_ms, before_ms)
    return Found(
        question=question,
        passages=passages,
        mean_words=n_words / n_turns if n_turns else 0.0,
        places=places,
        n_near=len(near.traces),
        n_matching=len(matching),
        snapshot_problem=near.snapshot_problem,
        vector_ms=1000 * (searched - started),
        words_ms=words_ms,
    )


class _Loading:
    """Brings what was found, and what stands around it, into the arrays that ranking reads."""

    def __init__(
        self, connection: apsw.Connection, near: Sequence[TraceRow], matching: Sequence[int], question: Question
    ) -> None:
        self._connection = connection
        self._question = question
        self._matching = set(matching)
        self._traces = {row.trace_id for row in near}
        self._turns = np.array(sorted({row.turn_offset for row in near} | self._matching), dtype=np.int64)

    def load(self, after_ms: int | None, before_ms: int | None) -> tuple[Passages, list[Place]]:
        """Give the candidates between two times with their neighbours."""
        windows = passage_reads.windows(self._connection, self._turns, REACH)
        places, session, place = self._in_order(windows)
        is_found = self._found(places)
        time_ms = np.fromiter((p.turn.timestamp_ms for p in places), np.int64, len(places))
        is_candidate = _spread(is_found, session, place, _CANDIDATE_REACH)
        is_candidate &= (time_ms >= after_ms) if after_ms is not None else True
        is_candidate &= (time_ms <= before_ms) if before_ms is not None else True
        kept = np.flatnonzero(_spread(is_candidate, session, place, REACH))
        is_close = _spread(is_candidate, session, place, 1)[kept]
        places = [places[i] for i in kept]
        return self._passages(places, session[kept], place[kept], is_close, is_candidate[kept]), places

    @staticmethod
    def _in_order(windows: passage_reads.Windows) -> tuple[list[Place], Ids, Ids]:
        """List the chunks in order, and number sessions and places; 0 is the first place of a session."""
        places: list[Place] = []
        sessions: list[int] = []
        numbers: list[int] = []
        session, number = -1, _APART
        last = None
        for turn, is_joined, is_first in zip(*windows, strict=True):
            if turn.session_id != last:
                session, last = session + 1, turn.session_id
            if is_first:
                number = 0
            elif not is_joined:
                number += _APART
            for _, trace_id, start, stop in turn.chunks:
                places.append(Place(turn, trace_id, start, stop))
                sessions.append(session)
                numbers.append(number)
                number += 1
        return places, np.array(sessions, dtype=np.int64), np.array(numbers, dtype=np.int64)

    def _found(self, places: Sequence[Place]) -> Bools:
        """Tell which passages were found; of a long turn with words of the question, the chunks that have them."""
        is_found = np.fromiter((p.trace_id in self._traces for p in places), np.bool_, len(places))
        of_turn: dict[int, list[int]] = {}
        for row, place in enumerate(places):
            if place.turn.turn_offset in self._matching:
                of_turn.setdefault(place.turn.turn_offset, []).append(row)
        is_found[[row for rows in of_turn.values() if len(rows) <= _CHUNKS_OF_TURN for row in rows]] = True
        long = [rows for rows in of_turn.values() if len(rows) > _CHUNKS_OF_TURN]
        if not long:
            return is_found
        shared = self._shared([places[row].trace_id for rows in long for row in rows])
        for rows in long:
            is_found[sorted(rows, key=lambda row: -shared[places[row].trace_id])[:_CHUNKS_OF_TURN]] = True
        return is_found

    def _shared(self, trace_ids: list[int]) -> dict[int, float]:
        """Weigh the words that each chunk has in common with the question."""
        weight_of = dict(zip(self._question.words.tolist(), self._question.weights.tolist(), strict=True))
        found = passage_reads.words_of(self._connection, np.array(sorted(trace_ids), dtype=np.int64))
        return {
            trace_id: sum(
                weight_of.get(word, 0.0)
                for word in set(np.frombuffer(found.get(trace_id, (b"", 0))[0], "<u4").tolist())
            )
            for trace_id in trace_ids
        }

    def _passages(
        self, places: Sequence[Place], session: Ids, place: Ids, is_close: Bools, is_candidate: Bools
    ) -> Passages:
        ids = np.fromiter((p.trace_id for p in places), np.int64, len(places))
        by_id = np.argsort(ids)
        close = np.sort(ids[is_close])
        words = passage_reads.words_of(self._connection, ids[by_id])
        kept_words = [words.get(i, (b"", 0)) for i in ids.tolist()]
        n_numbers = self._question.token_vectors.shape[1]
        tokens = passage_reads.tokens_of(self._connection, close) if n_numbers else {}
        kept_tokens = [tokens.get(i, b"") for i in ids.tolist()]
        dimension = self._question.vector.shape[0]
        vectors = np.zeros((len(places), dimension), np.float32)
        found, known = reads.vectors_of(self._connection, np.sort(ids[is_candidate]), dimension)
        vectors[by_id[np.searchsorted(ids, found, sorter=by_id)]] = known
        return Passages(
            session=session,
            place=place,
            speaker=[p.turn.speaker or p.turn.role for p in places],
            time_ms=np.fromiter((p.turn.timestamp_ms for p in places), np.int64, len(places)),
            marks=np.fromiter((marks for _, marks in kept_words), np.int64, len(places)),
            vectors=vectors,
            words=np.frombuffer(b"".join(blob for blob, _ in kept_words), "<u4").astype(np.uint32, copy=False),
            word_ends=np.cumsum([len(blob) // 4 for blob, _ in kept_words], dtype=np.int64),
            tokens=np.frombuffer(b"".join(kept_tokens), np.int8).reshape(-1, max(n_numbers, 1)),
            token_ends=np.cumsum([len(blob) // max(n_numbers, 1) for blob in kept_tokens], dtype=np.int64),
            candidates=np.flatnonzero(is_candidate),
        )


def _spread(chosen: Bools, session: Ids, place: Ids, reach: int) -> Bools:
    """Choose what stands within reach of the chosen, too."""
    spread = chosen.copy()
    for distance in range(1, reach + 1):
        near = (session[distance:] == session[:-distance]) & (place[distance:] - place[:-distance] == distance)
        spread[distance:] |= chosen[:-distance] & near
        spread[:-distance] |= chosen[distance:] & near
    return spread
