"""What is known of a session in short: its themes and their summaries, and the profile of its scope's user.

Workers store summaries and facts; here what is stored is taken, and what they have not come to is made in memory, so
that the answer is the same without them. Nothing is written. What was made is kept in this process and brought up to
date: new turns are looked through alone, and what stood in a removed turn is gone with it.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import apsw

from pipeline.condense.facts import RULES, facts_in
from pipeline.condense.profile import GrowingProfile, ProfileFact, Stated
from pipeline.ledger import condensed as ledgers
from pipeline.ledger.condensed import FactRow, UserTurn
from pipeline.records import Scope
from retrieval.context.condensing.themes import (
    FloatRows,
    Group,
    Grouping,
    Groups,
    KeptGroupings,
    Summaries,
    is_current,
)
from retrieval.context.entries.entry import Entry
from retrieval.reader import ShardReader, ShardReaders

_MOST_ENTRIES: Final = 100_000
_MOST_SCOPES: Final = 256
_TURNS_AT_ONCE: Final = 2_000


class Condensed:
    """Makes everything in memory and keeps nothing: for entries that are in no ledger."""

    def groups(self, entries: Sequence[Entry], vectors: FloatRows, n_verbatim: int) -> Groups:
        """Group the exchanges but for the last ``n_verbatim``; the group spoken of last comes last."""
        n = max(0, len(entries) - n_verbatim)
        return Grouping().groups(entries[:n], vectors[:n])

    def summaries(self, groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
        """Give a summary of each of some groups; "" where none can be as short as it has to."""
        return Summaries().of(groups, entries, lambda _: {})

    def profile(self) -> tuple[ProfileFact, ...]:
        """Give what the user stated of himself, oldest first, what was superseded too; without a scope nothing."""
        return ()


class SessionCondensed(Condensed):
    """One session in its scope, as `CondensedScopes` knows it."""

    def __init__(self, kept: CondensedScopes, scope: Scope, session_id: str) -> None:
        self._kept = kept
        self._scope = scope
        self._session_id = session_id

    def groups(self, entries: Sequence[Entry], vectors: FloatRows, n_verbatim: int) -> Groups:
        """Group the exchanges, going on from those grouped before."""
        n = max(0, len(entries) - n_verbatim)
        return self._kept.groupings.groups((self._scope, self._session_id, n_verbatim), entries[:n], vectors[:n])

    def summaries(self, groups: Sequence[Group], entries: Sequence[Entry]) -> list[str]:
        """Give a summary of each of some groups.

        Raises:
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        return self._kept.made.of(groups, entries, lambda digests: self._kept.stored(self._scope, digests))

    def profile(self) -> tuple[ProfileFact, ...]:
        """Give what the user stated of himself in any session of the scope.

        Raises:
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        return self._kept.profile(self._scope)


class CondensedScopes:
    """What is known in short of the scopes and sessions asked about lately; safe to share between threads.

    Args:
        readers: the open shards.
        max_entries: exchanges in the groups that are kept, at most, but always those of the last session.
    """

    def __init__(self, readers: ShardReaders, *, max_entries: int = _MOST_ENTRIES) -> None:
        self._readers = readers
        self.groupings = KeptGroupings(max_entries)
        self._lock = threading.Lock()
        self._profiles: OrderedDict[Scope, _Profile] = OrderedDict()
        self.made = Summaries()

    def of(self, scope: Scope, session_id: str) -> SessionCondensed:
        """Give what is known of a session."""
        return SessionCondensed(self, scope, session_id)

    def stored(self, scope: Scope, digests: Sequence[bytes]) -> Mapping[bytes, str]:
        """Fetch those of the summaries that workers stored.

        Raises:
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        with self._readers.session_view(scope) as opened:
            if opened is None:
                return {}
            rows = ledgers.summaries(opened[0], digests)
        return {digest: row.text for digest, row in rows.items() if is_current(row.model_id)}

    def profile(self, scope: Scope) -> tuple[ProfileFact, ...]:
        """Tell what holds and what held of the scope's user.

        Raises:
            ShardError: the scope's ledger is damaged.
            TransientError: the ledger is locked; try again.
        """
        with self._readers.session_view(scope) as opened:
            if opened is None:
                return ()
            connection, reader = opened
            with self._lock:
                known = self._profiles.get(scope)
                if known is None or known.reader() is not reader:
                    known = self._profiles[scope] = _Profile(reader)
                self._profiles.move_to_end(scope)
                while len(self._profiles) > _MOST_SCOPES:
                    self._profiles.popitem(last=False)
            return known.up_to_date(connection)


class _Profile:
    """The profile of one scope; safe to share between threads."""

    def __init__(self, reader: ShardReader) -> None:
        self.reader = weakref.ref(reader)
        self._lock = threading.Lock()
        self._stamp = (-1, -1, -1)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._stated: dict[int, list[Stated]] = {}
        self._read_up_to = self._stored_up_to = 0
        self._profile = GrowingProfile()

    def up_to_date(self, connection: apsw.Connection) -> tuple[ProfileFact, ...]:
        """Give it as the connection's transaction sees it, or as a later one did."""
        stamp = ledgers.stamp(connection)
        with self._lock:
            if stamp != self._stamp and stamp[:2] >= self._stamp[:2]:  # else another thread looked later
                self._read(connection, is_less=stamp[1] != self._stamp[1])
                self._stamp = stamp
            return self._profile.facts

    def _read(self, connection: apsw.Connection, *, is_less: bool) -> None:
        """Read what is above what was read, and drop what stood in turns that were removed since."""
        above = ledgers.facts_up_to(connection, RULES)
        if above < self._stored_up_to:  # they were damaged, and dropped
            self._begin_anew()
        left = ledgers.present(connection, self._stated) if is_less else self._stated.keys()
        new: dict[int, list[Stated]] = {}
        read_up_to = self._read_up_to
        if above > read_up_to:
            for row in ledgers.facts(connection, RULES, read_up_to):
                new.setdefault(row.turn_offset, []).append(stated_by_row(row))
            read_up_to = above
        while turns := ledgers.user_turns_above(connection, read_up_to, _TURNS_AT_ONCE):
            new |= {turn.turn_offset: found for turn in turns if (found := stated_by(turn))}
            read_up_to = turns[-1].turn_offset
        self._read_up_to, self._stored_up_to = read_up_to, above  # from here on nothing is read that may fail
        gone = [one for offset in self._stated.keys() - left for one in self._stated.pop(offset)]
        self._stated |= new
        self._profile.change(gone, [one for found in new.values() for one in found])


def stated_by(turn: UserTurn) -> list[Stated]:
    """Read the facts that a turn states."""
    return [
        Stated(
            time_ms=turn.timestamp_ms,
            index=turn.turn_index,
            turn_id=turn.turn_id,
            ordinal=ordinal,
            session_id=turn.session_id,
            subject=turn.speaker or "",
            key=fact.key,
            value=fact.value,
            confidence=fact.confidence,
        )
        for ordinal, fact in enumerate(facts_in(turn.content, turn.speaker))
    ]


def stated_by_row(row: FactRow) -> Stated:
    """Give a stored fact as its turn states it."""
    return Stated(
        time_ms=row.timestamp_ms,
        index=row.turn_index,
        turn_id=row.turn_id,
        ordinal=row.ordinal,
        session_id=row.session_id,
        subject=row.speaker or "",
        key=row.key,
        value=row.value,
        confidence=row.confidence,
    )
