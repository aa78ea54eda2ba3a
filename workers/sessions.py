"""Summarising the sessions that are due: once per distinct session text, from the ledger and back into it.

A kill leaves the session due; what the model had answered is in the cache, and is not asked for or paid for again. A
summary is stored for the version of the session that it was made from, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from pipeline.crash_points import CrashPoint, passing
from pipeline.embed import Embedder, Floats, unit_vectors
from pipeline.errors import TurnstreamError, outcome_of
from pipeline.ledger import Ledger, sessions
from pipeline.ledger.sessions import DueSession, NewSummary
from pipeline.records import from_epoch_ms
from pipeline.settings import SummarySettings
from pipeline.summarise import Completion, SessionSummarizer, session_text

T = TypeVar("T")
_LONGEST_WAIT_S, _MOST_DOUBLINGS = 3_600.0, 20
_SESSIONS_AT_ONCE = 16
_ENDED = "the worker ended while it embedded this session's summary, twice; it is tried again"
PLATFORM_MODEL_ID = "platform"
"""Model id of a summary that the platform sent with `session_closed`."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Draft:
    """A due session with the text to summarise and, once there is one, its summary or the reason there is none."""

    session: DueSession
    text: str
    digest: str
    completion: Completion | None = None
    vector: Floats | None = None
    failure: str | None = None


class SessionDesk:
    """Keeps the summaries of scopes up to date.

    Args:
        settings: idle and settle times, retries.
        embedder: makes the summaries' vectors.
        summarizer_for: gives a scope's summariser, whose cache lies in the scope's own folder.
        clock: epoch milliseconds.
    """

    def __init__(
        self,
        settings: SummarySettings,
        embedder: Embedder,
        summarizer_for: Callable[[Ledger], SessionSummarizer],
        clock: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._embedder = embedder
        self._summarizer_for = summarizer_for
        self._clock = clock
        self.idle_ms = round(settings.idle_s * 1000)
        self.settle_ms = round(settings.settle_s * 1000)

    def summarise_due(self, ledger: Ledger) -> bool:
        """Summarise the sessions that have waited longest, a bounded number of them.

        Returns:
            Whether there may be more.

        Raises:
            ShardError: the ledger is damaged.
            TransientError: the ledger is locked or the disk full.
        """
        due = sessions.due(
            ledger,
            now_ms=self._clock(),
            idle_ms=self.idle_ms,
            settle_ms=self.settle_ms,
            limit=_SESSIONS_AT_ONCE,
        )
        self._summarise(ledger, [session for session in due if not session.n_ended])
        for session in due:
            if session.n_ended == 1:  # by chance or by its own words: those it was with are not to share its fate
                self._summarise(ledger, [session])
            elif session.n_ended:
                self._postpone(ledger, session, _ENDED)
        return len(due) == _SESSIONS_AT_ONCE

    def _summarise(self, ledger: Ledger, due: Sequence[DueSession]) -> None:
        if not due:
            return
        summarizer = self._summarizer_for(ledger)
        drafts = []
        for session in due:
            text = session_text(sessions.lines(ledger, session.session_id))
            digest = summarizer.key(_given(session) or text)
            if not text.strip() or digest == sessions.current_digest(ledger, session.session_id):
                sessions.confirm_summary(
                    ledger,
                    session,
                    has_summary=bool(text.strip()),
                    session_date=_date_of(ledger, session.session_id),
                )
            else:
                drafts.append(_Draft(session, text, digest))
        with ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="summarise") as threads:
            drafts = list(threads.map(lambda draft: _complete(summarizer, draft), drafts))
        sessions.begin(ledger, [draft.session for draft in drafts if draft.completion is not None])
        drafts = self._embed(drafts)
        self._store(ledger, [draft for draft in drafts if draft.vector is not None])
        for draft in drafts:
            if draft.failure is not None:
                self._postpone(ledger, draft.session, draft.failure)

    def _embed(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Give the written summaries their vectors, those the model cannot take the reason."""
        written = [draft for draft in drafts if draft.completion is not None]
        texts = [draft.completion.text for draft in written if draft.completion]
        vectors, failure = _contained(lambda: unit_vectors(self._embedder, texts))
        if vectors is None:
            if len(written) <= 1:
                return [replace(d, failure=failure) if d.completion is not None else d for d in drafts]
            return [done for draft in drafts for done in self._embed([draft])]  # one of them is to blame
        embedded = [replace(draft, vector=vector) for draft, vector in zip(written, vectors, strict=True)]
        return embedded + [draft for draft in drafts if draft.completion is None]

    def _store(self, ledger: Ledger, drafts: Sequence[_Draft]) -> None:
        for draft in drafts:
            completion, session, vector = draft.completion, draft.session, draft.vector
            assert completion is not None
            assert vector is not None
            summary = NewSummary(
                session.session_id,
                completion.text,
                draft.digest,
                completion.model,
                vector,
                session_date=_date_of(ledger, session.session_id),
                tokens_in=completion.tokens_in,
                tokens_out=completion.tokens_out,
            )
            passing(CrashPoint.BEFORE_SUMMARY)
            stored = sessions.put_summary(
                ledger,
                summary,
                now_ms=self._clock(),
                model_key=self._embedder.model_key,
                version=session.version,
            )
            passing(CrashPoint.AFTER_SUMMARY)
            if stored:
                _log.info("session.summarised", model=completion.model, tokens_out=completion.tokens_out)

    def _postpone(self, ledger: Ledger, session: DueSession, failure: str) -> None:
        doubled = 2 ** min(session.attempts, _MOST_DOUBLINGS)  # after a thousand it is no number any more
        wait_s = min(self._settings.retry_after_s * doubled, _LONGEST_WAIT_S)
        sessions.postpone(ledger, session, failure=failure, retry_at_ms=self._clock() + round(wait_s * 1000))
        _log.warning("session.postponed", attempts=session.attempts + 1, wait_s=wait_s, reason=failure)


def _date_of(ledger: Ledger, session_id: str) -> str | None:
    """Give the day on which the session began; None when it has no turn."""
    first_ms = sessions.first_turn_ms(ledger, session_id)
    return None if first_ms is None else from_epoch_ms(first_ms).date().isoformat()


def _given(session: DueSession) -> str:
    """Give the platform's own summary, "" when there is none."""
    return (session.platform_summary or "").strip()


def _complete(summarizer: SessionSummarizer, draft: _Draft) -> _Draft:
    if given := _given(draft.session):
        return _Draft(draft.session, draft.text, draft.digest, Completion(given, 0, 0, PLATFORM_MODEL_ID))
    completion, failure = _contained(lambda: summarizer.complete(draft.session.session_id, draft.text))
    return replace(draft, completion=completion, failure=failure)


def _contained(work: Callable[[], T]) -> tuple[T | None, str | None]:
    """Do one session's work; give what came of it, or why nothing did, for the log and whoever asks.

    Why every error ends at its session and not at the task: one session's text is not its neighbours' trouble; it is
    listed with its reason, and tried again after ever longer waits. Of an error not ours only the type is told: its
    words may quote the text.
    """
    outcome = outcome_of(work)
    if isinstance(outcome, TurnstreamError):
        return None, str(outcome)
    if isinstance(outcome, Exception):
        return None, f"{type(outcome).__name__}; it is tried again later"
    return outcome, None
