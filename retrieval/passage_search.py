"""Candidates for a question: traces near it, turns that share its words, and what stands around both.

Reads one view of a shard and changes nothing; costs by what is found, not by the scope.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, overload

import apsw
import numpy as np

from pipeline.ledger import passage_reads, reads
from pipeline.ledger.passage_reads import Turn
from pipeline.ledger.reads import Ids, Located
from retrieval.embedded_question import Asked
from retrieval.fused.passages import REACH, Bools, Floats, Passages, Question
from retrieval.reader import SummaryVectors, View
from retrieval.trace_search import Nearest

N_NEAREST: Final = 50
N_MATCHING: Final = 50
"""Measured on LoCoMo's first five conversations, each left out of the fit: 50 of each find 84.7 % of the evidence in
ten and 87.0 % in fifteen; 30 find 84.3 and 86.7 %, and take a sixth less time."""
_CANDIDATE_REACH: Final = 1
"""How far from what was found another passage is a candidate too."""
_CHUNKS_OF_TURN: Final = 3
"""Of a long turn that shares words with the question, so many chunks are looked at: those that share most."""
_APART: Final = 1_000
_OFFSET, _SESSION, _TIME, _, _, _ROLE, _SPEAKER, _ORDINAL, _TRACE, _, _STOP, _WORDS, _MARKS = range(13)
"""Columns of a row of `passage_reads.Windows`."""


class Place(NamedTuple):
    """A passage: a chunk of a turn, ``content[start:stop]``."""

    turn: Turn
    trace_id: int
    start: int
    stop: int


class Places(Sequence[Place]):
    """Where passages are, row by row; each is put together when it is asked for.

    Attributes:
        rows: as `passage_reads.Windows` has them.
        trace_ids: ``(n,) int64``.
        time_ms: ``(n,) int64``.
    """

    def __init__(self, rows: list[tuple[Any, ...]], trace_ids: Ids, time_ms: Ids) -> None:
        self.rows = rows
        self.trace_ids = trace_ids
        self.time_ms = time_ms

    def __len__(self) -> int:
        """Count them."""
        return len(self.rows)

    @overload
    def __getitem__(self, row: int) -> Place: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Place]: ...
    def __getitem__(self, row: int | slice) -> Place | Sequence[Place]:
        """Give one, or some."""
        if isinstance(row, slice):
            return Places(self.rows[row], self.trace_ids[row], self.time_ms[row])
        fields = self.rows[row]
        return Place(Turn(*fields[:_ORDINAL]), *fields[_TRACE : _STOP + 1])

    def kept(self, chosen: Ids) -> Places:
        """Give those of some rows."""
        return Places([self.rows[row] for row in chosen.tolist()], self.trace_ids[chosen], self.time_ms[chosen])

    @property
    def session_ids(self) -> list[str]:
        """Name each one's session."""
        return [row[_SESSION] for row in self.rows]

    @property
    def speakers(self) -> list[str]:
        """Name who said each: the role when nobody is named."""
        return [row[_SPEAKER] or row[_ROLE] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Sought:
    """What somebody has found already for a question: traces near it, and offsets of turns that share its words."""

    near: Nearest[Located]
    matching: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """Everything ranking needs, and how it was found; vectors are read as long as the view is open.

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
    places: Places
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
    with_summaries: bool = False,
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
        with_summaries: bring the vectors of their sessions' summaries, too.

    Raises:
        DimensionMismatchError: the question's vector has another dimension than the shard's.
        ModelMismatchError: the shard was written with another model.
        ShardError: the ledger is damaged.
    """
    started = time.perf_counter()
    near = sought.near if sought else _near(view, asked, after_ms, before_ms)
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
    question = _question(asked, frequencies, n_turns, asked_ms)
    found = near.traces if also is None else [*near.traces, *reads.located(connection, also)]
    passages, places = _Loading(connection, found, matching, question).load(after_ms, before_ms)
    if with_summaries:
        summaries = _summaries(view.summary_vectors(asked.embedded.vector), places)
        passages = dataclasses.replace(passages, summaries=summaries)
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


def _near(view: View, asked: Asked, after_ms: int | None, before_ms: int | None) -> Nearest[Located]:
    return view.nearest_places(asked.embedded.vector, N_NEAREST, after_ms=after_ms, before_ms=before_ms)


def _question(asked: Asked, frequencies: Mapping[str, int], n_turns: int, asked_ms: int) -> Question:
    return asked.asking.question(
        vector=asked.embedded.vector,
        token_vectors=asked.embedded.tokens,
        token_spans=[(int(start), int(stop)) for start, stop in asked.embedded.spans],
        document_frequency=frequencies,
        n_passages=n_turns,
        asked_ms=asked_ms,
    )


def _summaries(known: SummaryVectors, places: Places) -> Floats:
    """Give the summary of each session, in the order of the places; zeros where there is none."""
    row_of = {session_id: row for row, session_id in enumerate(known.session_ids)}
    sessions = list(dict.fromkeys(places.session_ids))
    found = np.zeros((len(sessions), known.vectors.shape[1]), np.float32)
    for row, session_id in enumerate(sessions):
        if session_id in row_of:
            found[row] = known.vectors[row_of[session_id]]
    return found


class _Loading:
    """Brings what was found, and what stands around it, into the arrays that ranking reads."""

    def __init__(
        self, connection: apsw.Connection, near: Sequence[Located], matching: Sequence[int], question: Question
    ) -> None:
        self._connection = connection
        self._question = question
        self._matching = set(matching)
        self._traces = {row.trace_id for row in near}
        self._turns = np.array(sorted({row.turn_offset for row in near} | self._matching), dtype=np.int64)

    def load(self, after_ms: int | None, before_ms: int | None) -> tuple[Passages, Places]:
        """Give the candidates between two times with their neighbours."""
        windows = passage_reads.windows(self._connection, self._turns, REACH)
        places, session, place = _in_order(windows)
        is_found = self._found(places)
        is_candidate = _spread(is_found, session, place, _CANDIDATE_REACH)
        is_candidate &= (places.time_ms >= after_ms) if after_ms is not None else True
        is_candidate &= (places.time_ms <= before_ms) if before_ms is not None else True
        kept = np.flatnonzero(_spread(is_candidate, session, place, REACH))
        is_close = _spread(is_candidate, session, place, 1)[kept]
        places = places.kept(kept)
        return self._passages(places, session[kept], place[kept], is_close, is_candidate[kept]), places

    def _found(self, places: Places) -> Bools:
        """Tell which passages were found; of a long turn with words of the question, the chunks that have them."""
        traces, matching = self._traces, self._matching
        is_found = np.array([trace_id in traces for trace_id in places.trace_ids.tolist()], np.bool_)
        of_turn: dict[int, list[int]] = {}
        for row, fields in enumerate(places.rows):
            if fields[_OFFSET] in matching:
                of_turn.setdefault(fields[_OFFSET], []).append(row)
        is_found[[row for rows in of_turn.values() if len(rows) <= _CHUNKS_OF_TURN for row in rows]] = True
        long = [rows for rows in of_turn.values() if len(rows) > _CHUNKS_OF_TURN]
        if not long:
            return is_found
        shared = {row: self._shared(places.rows[row][_WORDS]) for rows in long for row in rows}
        for rows in long:
            is_found[sorted(rows, key=lambda row: -shared[row])[:_CHUNKS_OF_TURN]] = True
        return is_found

    def _shared(self, words: bytes | None) -> float:
        """Weigh the words that a chunk has in common with the question."""
        weight_of = dict(zip(self._question.words.tolist(), self._question.weights.tolist(), strict=True))
        held: set[int] = set(np.frombuffer(words or b"", "<u4").tolist())
        return float(sum(weight_of.get(word, 0.0) for word in held))

    def _passages(self, places: Places, session: Ids, place: Ids, is_close: Bools, is_candidate: Bools) -> Passages:
        ids = places.trace_ids
        words = [row[_WORDS] or b"" for row in places.rows]
        n_numbers = self._question.token_vectors.shape[1]
        tokens = passage_reads.tokens_of(self._connection, np.sort(ids[is_close])) if n_numbers else {}
        kept_tokens = [tokens.get(i, b"") for i in ids.tolist()]
        return Passages(
            session=session,
            place=place,
            speaker=places.speakers,
            time_ms=places.time_ms,
            marks=np.array([row[_MARKS] or 0 for row in places.rows], np.int64),
            vectors_of=partial(_vectors, self._connection, ids, self._question.vector.shape[0]),
            words=np.frombuffer(b"".join(words), "<u4").astype(np.uint32, copy=False),
            word_ends=np.cumsum([len(blob) // 4 for blob in words], dtype=np.int64),
            tokens=np.frombuffer(b"".join(kept_tokens), np.int8).reshape(-1, max(n_numbers, 1)),
            token_ends=np.cumsum([len(blob) // max(n_numbers, 1) for blob in kept_tokens], dtype=np.int64),
            candidates=np.flatnonzero(is_candidate),
        )


def _vectors(connection: apsw.Connection, trace_ids: Ids, dimension: int, rows: Ids) -> Floats:
    """Read the vectors of some rows' traces: ``(k, d) float32``, of zeros where there is none."""
    ids = trace_ids[rows]
    by_id = np.argsort(ids)
    found, known = reads.vectors_of(connection, ids[by_id], dimension)
    vectors = np.zeros((len(rows), dimension), np.float32)
    vectors[by_id[np.searchsorted(ids, found, sorter=by_id)]] = known
    return vectors


def _in_order(windows: passage_reads.Windows) -> tuple[Places, Ids, Ids]:
    """Number the sessions of the chunks, and their places; 0 is the first place of a session."""
    rows = windows.rows
    sessions = [row[_SESSION] for row in rows]
    is_new = np.array([one != other for one, other in zip(sessions, [None, *sessions], strict=False)], np.bool_)
    is_chunk = np.array([row[_TRACE] is not None for row in rows], np.bool_)
    gaps = np.where(windows.is_joined, 0, _APART).cumsum()
    starts = np.flatnonzero(is_new)
    session = is_new.cumsum() - 1
    number = gaps + is_chunk.cumsum() - is_chunk
    begins = number[starts] - np.where(np.array(windows.is_first, np.bool_)[starts], 0, _APART)
    place = number - begins[session]
    kept = [row for row in rows if row[_TRACE] is not None]
    places = Places(
        kept,
        np.array([row[_TRACE] for row in kept], np.int64),
        np.array([row[_TIME] for row in kept], np.int64),
    )
    return places, session[is_chunk].astype(np.int64), place[is_chunk].astype(np.int64)


def _spread(chosen: Bools, session: Ids, place: Ids, reach: int) -> Bools:
    """Choose what stands within reach of the chosen, too."""
    spread = chosen.copy()
    for distance in range(1, reach + 1):
        near = (session[distance:] == session[:-distance]) & (place[distance:] - place[:-distance] == distance)
        spread[distance:] |= chosen[:-distance] & near
        spread[:-distance] |= chosen[distance:] & near
    return spread
