"""The stream against the ledgers: what was acknowledged must be in one, and what is missing may be on its way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from pipeline import contract
from pipeline.errors import PoisonError, ServerUnreachableError, ShardError, TransientError
from pipeline.ledger import check, events
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.ledger.connection import translated
from pipeline.records import Event, Scope, Turn
from pipeline.settings import Settings
from pipeline.shards import Shards
from pipeline.stream import Entry, TurnStream, connect, server_url
from workers.checkup.finding import Finding, Verdict, damaged

GAPS = "turn index"
"""Ends the name of a finding of missing turns, one for each session."""
_SHOWN = 3
_TAKEN_UP_WITHIN_S = 5.0
_LOOK_AGAIN_S = 0.2


@contextmanager
def opened(settings: Settings) -> Iterator[TurnStream]:
    """Give the stream on the server in use."""
    names = settings.stream
    url = server_url(settings.redis.plain_url, settings.data_dir)
    with connect(url, timeout_s=settings.redis.timeout_s) as client:
        yield TurnStream(client, name=names.turns, dead_name=names.dead, group=names.group)


def findings(settings: Settings, gaps: Mapping[Scope, Sequence[check.Gap]], *, idle: bool) -> Iterator[Finding]:
    """Yield accepted events that no ledger has, and the gaps that no entry still to be read will fill.

    Args:
        settings: of the installation.
        gaps: by scope; only these scopes are looked at.
        idle: nothing is left to be read.
    """
    missing = {(scope, gap.session_id): set(gap.missing) for scope, found in gaps.items() for gap in found}
    n_unread, lost = 0, list[tuple[Entry, Event]]()
    with suppress(ServerUnreachableError), opened(settings) as stream:
        for read, unread in stream.pages():
            n_unread += len(unread)
            for _, event in _decoded(unread):
                if isinstance(event, Turn):
                    missing.get((event.scope, event.session_id), set()).discard(event.index)
            lost += unapplied(settings, [(entry, event) for entry, event in _decoded(read) if event.scope in gaps])
        lost = _still_lost(settings, lost)
    for entry, event in lost[:_SHOWN]:
        yield damaged(
            f"{event.scope.key} events",
            f"the event of entry {entry.id} was accepted and read, and is in no ledger;"
            " 'turnstream doctor --repair' publishes it again",
        )
    if len(lost) > _SHOWN:
        yield damaged("stream", f"{len(lost) - _SHOWN} more accepted events are in no ledger; the same helps")
    if idle and n_unread:
        yield damaged("stream", f"{n_unread} entries are not acknowledged; is 'turnstream up' running?")
    for (scope, session_id), numbers in missing.items():
        if numbers:
            fault = check.gap_fault(check.Gap(session_id, tuple(sorted(numbers))))
            detail = f"{fault.problem}; {fault.remedy}"
            yield Finding(f"{scope.key} {GAPS}", Verdict.DAMAGED, detail, n=len(numbers))


def lost_entries(settings: Settings) -> list[Entry]:
    """List entries that were read, are not pending, and whose event is in no ledger.

    Raises:
        ServerUnreachableError: the server does not answer.
    """
    found = list[tuple[Entry, Event]]()
    with opened(settings) as stream:
        for read, _ in stream.pages():
            found += unapplied(settings, list(_decoded(read)))
        return [entry for entry, _ in _still_lost(settings, found)]


def is_being_read(settings: Settings) -> bool:
    """Tell whether entries are on their way into ledgers."""
    with suppress(ServerUnreachableError), opened(settings) as stream:
        return stream.unread() > 0
    return False


def unapplied(settings: Settings, entries: Sequence[tuple[Entry, Event]]) -> list[tuple[Entry, Event]]:
    """Keep those whose event their scope's ledger does not know; a ledger that cannot be read knows all."""
    by_scope: dict[Scope, list[tuple[Entry, Event]]] = {}
    for entry, event in entries:
        by_scope.setdefault(event.scope, []).append((entry, event))
    found, shards = [], Shards(settings.data_dir)
    for scope, of_scope in by_scope.items():
        path = shards.ledger_path(scope)
        if not path.exists():
            found += of_scope
            continue
        with (
            suppress(ShardError, TransientError),  # said where the ledger itself is looked at
            closing(connect_ledger(path, query_only=True)) as connection,
            translated(path),
        ):
            found += [pair for pair in of_scope if not events.is_applied(connection, pair[1].event_id)]
    return found


def _still_lost(settings: Settings, lost: list[tuple[Entry, Event]]) -> list[tuple[Entry, Event]]:
    """Look again: what a deleted consumer held is neither pending nor applied until an ingester takes it up."""
    deadline = time.monotonic() + _TAKEN_UP_WITHIN_S
    while lost and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
        lost = unapplied(settings, lost)
    return lost


def _decoded(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Event]]:
    for entry in entries:
        with suppress(PoisonError):  # a dead letter, or about to be one
            if entry.raw is not None:
                yield entry, contract.decode(entry.raw)
