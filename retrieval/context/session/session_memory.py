"""The memory of a scope's sessions: what was asked and concluded lately, and room for more.

What is remembered is on disk, in the scope's ledger, when `remember` returns, and found by words at once. A store of
windows (`backends`) only adds what other hosts remembered. After a crash between the two the ledger has it and the
window may not: the same call with the same ``entry_id`` makes up for it, and does nothing twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import numpy as np

from pipeline.errors import NotFoundError, TransientError
from pipeline.ledger import forgetting
from pipeline.ledger.forgetting import Tombstones
from pipeline.records import Scope, from_epoch_ms
from pipeline.settings import ContextSettings
from retrieval.arguments import checked
from retrieval.context.backends import opening, record
from retrieval.context.backends.in_memory import InMemoryWindows
from retrieval.context.backends.protocol import Kept, SessionKey, Windows
from retrieval.context.backends.sqlite import SqliteWindows
from retrieval.context.entries.entry import Entry, Outcome
from retrieval.context.session import ledger_writing, remembered
from retrieval.context.session.remembered import Report
from retrieval.context.session.session_cache import SessionCache, SessionEntries
from retrieval.reader import ShardReaders

_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class PastExchange:
    """One exchange as a window shows it."""

    objective: str
    conclusion: str
    timestamp: datetime
    key_results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What is remembered of a session.

    Args:
        session_id: its id; a new one where none was asked for.
        previous_conclusions: the last ones, oldest first.
        conversation_history: the last exchanges, oldest first.
        last_updated: when the last one was; None: there is none.
    """

    session_id: str
    previous_conclusions: tuple[str, ...] = ()
    conversation_history: tuple[PastExchange, ...] = ()
    last_updated: datetime | None = None


class SessionResources:
    """What the session memories of a process share; safe to share between threads, and after a fork.

    Args:
        readers: the open shards.
        settings: where windows are kept, and what they hold.
        clock: gives epoch milliseconds.

    Raises:
        ConfigError: the backend cannot be used.
    """

    def __init__(
        self, readers: ShardReaders, settings: ContextSettings, *, clock: Callable[[], int] | None = None
    ) -> None:
        self.cache = SessionCache(readers)
        self.readers = readers
        self.settings = settings
        self.clock = clock or _epoch_ms
        self.limits = opening.limits_of(settings)
        self.windows: Windows = opening.open_shared(settings) or (
            InMemoryWindows(self.limits) if settings.backend == "memory" else SqliteWindows(self.cache, self.limits)
        )

    def close(self) -> None:
        """Close the connections of the windows."""
        self.windows.close()


class SessionMemory:
    """Remembers the sessions of one scope; safe to share between threads, and after a fork.

    Args:
        scope: whose.
        shared: where, and with what.
    """

    def __init__(self, scope: Scope, shared: SessionResources) -> None:
        self.scope = scope
        self._shared = shared

    @checked
    def load(self, session_id: str | None = None) -> SessionRecord:
        """Give what is remembered of a session lately; nothing is made for one that is new.

        Args:
            session_id: the session; without it a new id is made, which no other session has.

        Raises:
            ValueError: a blank session id.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked, or the server of the windows does not answer; try again.
            ConfigError: that server refuses us.
        """
        if session_id is None:
            return SessionRecord(secrets.token_urlsafe(_ID_BYTES))
        settings = self._shared.settings
        entries = self.entries(session_id).entries[-self._shared.limits.n_exchanges :]
        conclusions = [entry.conclusion for entry in entries if entry.conclusion]
        return SessionRecord(
            session_id,
            tuple(conclusions[-settings.max_conclusions :]),
            tuple(_shown(entry) for entry in entries[-settings.max_conversations :]),
            from_epoch_ms(entries[-1].time_ms) if entries else None,
        )

    @checked
    def entries(self, session_id: str) -> SessionEntries:
        """Give all exchanges of a session since its last long silence, oldest first, with their vectors.

        Those of the scope's ledger, and what other hosts remembered lately: without vectors, which are theirs.

        Raises:
            ValueError: a blank session id.
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked, or the server of the windows does not answer; try again.
            ConfigError: that server refuses us.
        """
        key = self._key(session_id)
        with self._shared.readers.gate.passing():
            found = self._shared.cache.entries(self.scope, session_id)
            known = {entry.entry_id for entry in found.entries[-10 * self._shared.limits.n_exchanges :]}
            others = [kept for kept in self._shared.windows.recent(key) if kept.entry.entry_id not in known]
            if others:
                known = {entry.entry_id for entry in found.entries}
                others = [kept for kept in others if kept.entry.entry_id not in known]
            found = _with_others(found, [kept.entry for kept in others if not self._is_forgotten(session_id, kept)])
        start = record.first_living(found.entries, self._shared.clock(), self._shared.limits.ttl_ms)
        if start == 0:
            return found
        return replace(found, entries=found.entries[start:], vectors=found.vectors[start:])

    @checked
    def remember(  # noqa: PLR0913 - the public surface; all but three have defaults
        self,
        session_id: str,
        objective: str,
        conclusion: str,
        key_results: Sequence[str] = (),
        *,
        tools: Sequence[str] = (),
        n_errors: int = 0,
        outcome: Outcome | str = Outcome.UNKNOWN,
        refs: Sequence[str] = (),
        pinned: bool = False,
        entry_id: str | None = None,
    ) -> str:
        """Remember an exchange; it is on disk on return, and a scope that does not exist is made.

        Args:
            session_id: the session.
            objective: what was asked for.
            conclusion: what came of it.
            key_results: findings worth keeping, most important first.
            tools: names of the tools called, once for each call.
            n_errors: of those calls, how many failed.
            outcome: ``done``, ``failed`` or ``unknown``.
            refs: ids of earlier exchanges of the session that it refers to.
            pinned: never to be left out of a context while there is room.
            entry_id: an id of the caller's, not ending in ``/conclusion``; a second call with it changes nothing.

        Returns:
            The exchange's id.

        Raises:
            ValueError: an argument that cannot be, such as an ``entry_id`` that another turn of the session has; the
                message names it, and nothing is written.
            PoisonError: a text that cannot be kept; the message names the argument.
            NotFoundError: the session, or this exchange, was forgotten: what arrives for it later is, too.
            ShardError: the scope's ledger is damaged.
            TransientError: the disk is full, the ledger locked, or the server of the windows does not answer; the
                message says whether it is remembered.
            ConfigError: the data folder cannot be used, or that server refuses us.
        """
        report = Report(
            objective=objective,
            conclusion=conclusion,
            key_results=key_results,
            tools=tools,
            n_errors=n_errors,
            outcome=outcome,
            refs=refs,
            pinned=pinned,
            entry_id=entry_id,
        )
        return self._keep(session_id, report)

    def _keep(self, session_id: str, report: Report) -> str:
        now_ms = self._shared.clock()
        turns = remembered.turns_of(self.scope, session_id, report, now_ms=now_ms)
        turn_ids = tuple(turn.turn_id for turn in turns)
        with self._shared.readers.gate.passing():
            self._shared.windows.check()  # before anything is written
            is_new = ledger_writing.apply(
                self._shared.readers.shards,
                turns,
                now_ms=now_ms,
                busy_timeout_ms=self._shared.readers.busy_timeout_ms,
            )
            entry = remembered.entry_of(turns) if is_new else self._stored(session_id, turn_ids[0])
            self._share(SessionKey(self.scope, session_id), Kept(entry, turn_ids))
        return turn_ids[0]

    @checked
    def forget(self, session_id: str) -> None:
        """Forget a session for good, and what arrives for it later; on disk on return.

        From then on no reader is shown it. Its last bytes go with the purge that the workers make.

        Raises:
            ValueError: a blank session id.
            ShardError: the scope's ledger is damaged.
            TransientError: the disk is full, the ledger locked, or the server of the windows does not answer: then
                the workers' purge removes the window.
            ConfigError: that server refuses us.
        """
        key = self._key(session_id)
        with self._shared.readers.gate.passing():
            ledger_writing.forget_session(
                self._shared.readers.shards,
                self.scope,
                session_id,
                now_ms=self._shared.clock(),
                busy_timeout_ms=self._shared.readers.busy_timeout_ms,
            )
            self._shared.windows.forget(key)

    def _key(self, session_id: str) -> SessionKey:
        if not session_id.strip():
            raise ValueError("session_id: is blank; give the session's id")
        return SessionKey(self.scope, session_id)

    def _stored(self, session_id: str, entry_id: str) -> Entry:
        """Give the exchange that was remembered first under an id.

        Raises:
            NotFoundError: it was forgotten.
        """
        for entry in reversed(self._shared.cache.entries(self.scope, session_id).entries):
            if entry.entry_id == entry_id:
                return entry
        raise NotFoundError(ledger_writing.why_forgotten(session_id))

    def _share(self, key: SessionKey, kept: Kept) -> None:
        """Add an exchange to the window, unless it was forgotten meanwhile.

        Raises:
            TransientError: the server does not answer.
        """
        try:
            self._shared.windows.append(key, kept)
            if self._is_forgotten(key.session_id, kept):  # a purge may have looked before it was there
                self._shared.windows.purge(self.scope, self._forgotten_of)
        except TransientError as error:
            raise TransientError(
                f"remembered as {kept.entry.entry_id!r}, but not yet where other hosts see it: {error};"
                f" then call again with entry_id={kept.entry.entry_id!r}"
            ) from error

    def _is_forgotten(self, session_id: str, kept: Kept) -> bool:
        with self._shared.readers.session_view(self.scope) as opened:
            return opened is not None and any(
                forgetting.is_forgotten(opened[0], session_id, turn_id, kept.entry.time_ms)
                for turn_id in kept.turn_ids
            )

    def _forgotten_of(self, session_id: str) -> Tombstones:
        with self._shared.readers.session_view(self.scope) as opened:
            return Tombstones() if opened is None else forgetting.tombstones(opened[0], session_id)


def _with_others(found: SessionEntries, others: Sequence[Entry]) -> SessionEntries:
    """Sort entries in that this ledger does not have."""
    if not others:
        return found
    entries = sorted((*found.entries, *others), key=lambda entry: entry.time_ms)
    rows = {entry.entry_id: at for at, entry in enumerate(found.entries)}
    vectors = np.zeros((len(entries), found.vectors.shape[1]), dtype=np.float32)
    for at, entry in enumerate(entries):
        if (row := rows.get(entry.entry_id)) is not None:
            vectors[at] = found.vectors[row]
    return replace(found, entries=tuple(entries), vectors=vectors)


def _shown(entry: Entry) -> PastExchange:
    return PastExchange(entry.objective, entry.conclusion, from_epoch_ms(entry.time_ms), entry.key_results)


def _epoch_ms() -> int:
    return time.time_ns() // 1_000_000
