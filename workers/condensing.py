"""Condensing scopes: facts that users stated, and summaries of the themes of sessions, from the ledger and back.

Facts are looked for in turns above a mark, each once. A session's themes are made when it is silent or closed, and
only those whose members changed. What a summary model writes counts only if it is short enough and states nothing
that its source does not; else the most telling sentences stand in its place. Without a model only long sessions are
condensed: of others readers choose sentences in milliseconds, and few are ever asked for. While the model cannot be
reached the session waits, and readers make those sentences themselves: nothing is missing meanwhile.

A kill leaves the session due, its begun attempt counted; one on which three workers ended is left to its readers
until it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from pipeline.condense import summaries
from pipeline.condense.facts import RULES
from pipeline.errors import SummaryError, TransientError
from pipeline.ledger import Ledger, condensed, session_reads
from pipeline.ledger.condensed import NewFact, NewTheme, Uncondensed
from pipeline.records import Scope
from pipeline.settings import SummarySettings
from pipeline.summarise import Completion
from pipeline.summarise.extractive import MODEL
from retrieval.context.condensing.condensed import stated_by
from retrieval.context.condensing.themes import (
    VERBATIM,
    FloatRows,
    Group,
    KeptGroupings,
    extracted,
    is_current,
    member_of,
)
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.reading import read_entries

_TURNS_AT_ONCE: Final = 2_000
_SESSIONS_AT_ONCE: Final = 16
_MOST_ENTRIES: Final = 50_000
_MOST_ENDED: Final = 3
_LONGEST_WAIT_S, _MOST_DOUBLINGS = 3_600.0, 20
_log = structlog.get_logger()

Write = Callable[[str, int], Completion]
"""Has a model summarise a text in at most so many tokens; raises SummaryError when it cannot now."""


@dataclass(slots=True)
class _Themes:
    """The themes of one session: the digests of all, those newly made, and why some are missing."""

    current: list[bytes] = field(default_factory=list)
    new: list[NewTheme] = field(default_factory=list)
    failure: str | None = None


class CondensingDesk:
    """Keeps what is known in short of scopes up to date.

    Args:
        settings: idle and settle times, retries.
        write: asks the summary model; None: summaries are made of sentences.
        clock: epoch milliseconds.
        beat: called before each step that may take a while, for whoever watches this process.
    """

    def __init__(
        self,
        settings: SummarySettings,
        write: Write | None,
        clock: Callable[[], int],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._write = write
        self._clock = clock
        self._beat = beat
        self._groupings = KeptGroupings(_MOST_ENTRIES)

    def condense_due(self, ledger: Ledger) -> bool:
        """Look for facts in new turns, and condense the sessions that have waited longest, a bounded number of them.

        Returns:
            Whether there may be more.

        Raises:
            ShardError: the ledger is damaged.
            TransientError: the ledger is locked or the disk full.
        """
        self._find_facts(ledger)
        due = condensed.due(
            ledger,
            now_ms=self._clock(),
            idle_ms=round(self._settings.idle_s * 1000),
            settle_ms=round(self._settings.settle_s * 1000),
            limit=_SESSIONS_AT_ONCE,
        )
        for session in due:
            self._beat()
            if session.n_ended >= _MOST_ENDED:
                condensed.give_up(ledger, session)
                _log.error("session.given_up", path=str(ledger.path), n_ended=session.n_ended)
            else:
                self._condense(ledger, session)
        return len(due) == _SESSIONS_AT_ONCE

    def _find_facts(self, ledger: Ledger) -> None:
        while True:
            self._beat()
            with ledger.read() as connection:
                above, last = condensed.facts_up_to(connection, RULES), condensed.last_offset(connection)
                turns = condensed.user_turns_above(connection, above, _TURNS_AT_ONCE)
            if above >= last:
                return
            found = [
                NewFact(turn.turn_offset, fact.ordinal, fact.key, fact.value, fact.confidence)
                for turn in turns
                for fact in stated_by(turn)
            ]
            is_all = len(turns) < _TURNS_AT_ONCE
            up_to = last if is_all else turns[-1].turn_offset
            if not condensed.put_facts(ledger, found, rules=RULES, above=above, up_to=up_to):
                return
            if found:
                _log.info("facts.found", n_turns=len(turns), n_facts=len(found))

    def _condense(self, ledger: Ledger, session: Uncondensed) -> None:
        with ledger.read() as connection:
            card = session_reads.card(connection, session.session_id)
        if card is None or (self._write is None and card.n_turns < self._settings.theme_turns):
            self._store(ledger, session, _Themes())
        elif condensed.begin(ledger, session):
            try:
                self._store(ledger, session, self._themes(ledger, session))
            except TransientError:
                with suppress(TransientError):
                    condensed.take_back(ledger, session)
                raise

    def _themes(self, ledger: Ledger, session: Uncondensed) -> _Themes:
        """Make what is missing of a session's themes; the ledger is not held meanwhile."""
        themes = _Themes()
        with ledger.read() as connection:
            entries, vectors = read_entries(connection, session.session_id)
        groups = self._groups(ledger.scope, entries, vectors)
        with ledger.read() as connection:
            stored = condensed.summaries(connection, [group.digest for group in groups])
        known = {digest for digest, row in stored.items() if is_current(row.model_id)}
        for group in groups:
            themes.current.append(group.digest)
            if group.digest not in known:
                known.add(group.digest)
                self._beat()
                self._add(themes, entries, group)
        return themes

    def _store(self, ledger: Ledger, session: Uncondensed, themes: _Themes) -> None:
        if themes.failure is not None:
            self._postpone(ledger, session, themes)
        elif condensed.put_themes(ledger, session, themes.new, themes.current):
            _log.info("session.condensed", n_themes=len(themes.current), n_new=len(themes.new))

    def _groups(self, scope: Scope, entries: Sequence[Entry], vectors: FloatRows) -> list[Group]:
        """Give the groups that readers may want summarised: of all but the last exchanges, for each strategy."""
        found = []
        for n_verbatim in VERBATIM if entries else ():
            n, key = max(0, len(entries) - n_verbatim), (scope, entries[0].session_id, n_verbatim)
            grouped = self._groupings.groups(key, entries[:n], vectors[:n], self._beat)
            found += [group for group in grouped.groups if len(group.places) > 1]
        return found

    def _add(self, themes: _Themes, entries: Sequence[Entry], group: Group) -> None:
        members = [entries[place] for place in group.places]
        text = summaries.source([member_of(entry) for entry in members])
        try:
            made = self._written(text) if themes.failure is None else None
        except SummaryError as error:
            themes.failure, made = str(error), None
        if made is not None and made[0]:
            offsets = tuple(offset for entry in members for offset in entry.turn_offsets)
            themes.new.append(NewTheme(group.digest, made[0], made[1], offsets))

    def _written(self, text: str) -> tuple[str, str]:
        """Give a summary and whose it is.

        Raises:
            SummaryError: the model cannot be asked now.
        """
        limit = summaries.most_tokens(text)
        if self._write is not None and limit:
            answer = self._write(text, limit)
            if summaries.is_acceptable(answer.text, text):
                return answer.text, answer.model
            _log.info("summary.refused", model=answer.model)
        return extracted(text), MODEL

    def _postpone(self, ledger: Ledger, session: Uncondensed, themes: _Themes) -> None:
        doubled = 2 ** min(session.attempts, _MOST_DOUBLINGS)
        wait_s = min(self._settings.retry_after_s * doubled, _LONGEST_WAIT_S)
        condensed.postpone(ledger, session, themes.new, retry_at_ms=self._clock() + round(wait_s * 1000))
        _log.warning("session.not_condensed", attempts=session.attempts + 1, wait_s=wait_s, reason=themes.failure)
