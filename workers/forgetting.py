"""Purging what was forgotten: first a scope's own files, then what the server still holds of it.

That is entries that wait to be ingested, dead letters that belong to what was forgotten, and the bytes of
both in its append-only file. Each step may be done twice; a kill between them leaves the purge due.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import structlog

from pipeline.contract import attribution
from pipeline.errors import ConfigError
from pipeline.ledger import Ledger, LedgerPool, disk, events, forgetting, upkeep
from pipeline.ledger.forgetting import Forgotten
from pipeline.records import ScopeDeleted, SessionDeleted, TurnDeleted
from pipeline.registry import FILE as REGISTRY_FILE
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, SUMMARIES_FOLDER, Shards, require_usable
from pipeline.stream import DeadLetter, Entry, TurnStream, append_only
from pipeline.summarise import SummaryCache
from workers.supervisor import DataFolderLock

_LETTERS_AT_ONCE: Final = 16
"""Each may hold megabytes."""
_ENTRIES_LOOKED_AT: Final = 1_000
_REWRITE_WITHIN_S: Final = 60.0
END_WITHIN_S: Final = 2 * _REWRITE_WITHIN_S
"""The longest that ending purges should take."""
_log = structlog.get_logger()

Due = tuple[Ledger, str]
"""A ledger with the token of its purge."""


def purge_files(ledger: Ledger, token: str) -> None:
    """Remove what was forgotten from the scope's folder, its snapshot excepted.

    Raises:
        TransientError: somebody reads it, a summary is being made, or the disk is full; it is still due.
        ShardError: the ledger is damaged.
    """
    folder = ledger.path.parent
    if (summaries := folder / SUMMARIES_FOLDER).is_dir():
        SummaryCache(summaries).keep_only(upkeep.summary_digests(ledger))
    _remove_copies(folder)
    upkeep.purge_ledger(ledger)
    upkeep.note_files_purged(ledger, token)


def _remove_copies(folder: Path) -> None:
    """Remove what repairs put aside, or were killed over: nothing can be forgotten within a damaged file.

    No repair is under way: it waits until nobody has the ledger open.
    """
    for path in folder.glob(f"{LEDGER_FILE}.damaged-*"):
        path.unlink(missing_ok=True)
        _log.warning("copy.removed", shard=folder.name, file=path.name)
    for path in folder.glob(f".{LEDGER_FILE}.*.salvage"):
        shutil.rmtree(path, ignore_errors=True)
        _log.warning("copy.removed", shard=folder.name, file=path.name)


def forget_offline(settings: Settings, event: TurnDeleted | SessionDeleted | ScopeDeleted) -> Forgotten:
    """Forget in a data folder that no process runs on, such as a backup; durable on return.

    The scope's snapshot goes whole: it is built anew when the pipeline runs. The purge is then due for the server.

    Raises:
        ConfigError: something runs on the folder, or it cannot be used.
        ShardError: the scope's ledger is damaged.
        TransientError: somebody reads it, or the disk is full.
    """
    require_usable(settings.data_dir)
    pool = LedgerPool(Shards(settings.data_dir), max_open=1)
    with DataFolderLock(settings.data_dir), closing(pool):
        ledger = pool.open(event.scope)
        now_ms = time.time_ns() // 1_000_000
        events.apply(ledger, [event], now_ms=now_ms)
        for path in (*ledger.path.parent.glob("traces.*"), *ledger.path.parent.glob(".traces.*.tmp")):
            path.unlink()
        purge_files(ledger, str(ledger.meta()[forgetting.PURGE_DUE]))
        disk.flush([ledger])
        if (settings.data_dir / REGISTRY_FILE).exists():
            with closing(Registry(settings.data_dir)) as registry:
                registry.mark([event.scope.key], now_ms=now_ms)
        with ledger.read() as connection:
            found = forgetting.outcome(connection, event.event_id)
    assert found is not None, "it was applied above"
    return found


class Forgetting:
    """Ends purges.

    Args:
        stream: the stream and its dead letters.
        clock: epoch milliseconds.
    """

    def __init__(self, stream: TurnStream, clock: Callable[[], int]) -> None:
        self._stream = stream
        self._clock = clock
        self._has_warned = False

    def end_purges(self, due: Sequence[Due]) -> None:
        """End the purges of ledgers whose files are purged; one whose entries are still to be ingested stays due.

        Raises:
            TransientError: the server does not answer, or could not rewrite its file; all of them stay due.
        """
        if not due:
            return
        self._stream.trim()
        first, last = self._stream.ends()
        ready = [(ledger, token) for ledger, token in due if self._is_ingested(ledger, token, first, last)]
        if not ready:
            return
        self._drop_letters({ledger.scope.key: ledger for ledger, _ in ready})
        rewritten = self._rewrite()
        for ledger, token in ready:
            if upkeep.end_purge(ledger, token, now_ms=self._clock(), rewritten=rewritten):
                _log.info("scope.purged")

    def _is_ingested(self, ledger: Ledger, token: str, first: str | None, last: str) -> bool:
        """Tell whether nothing that was forgotten waits in the stream: what waits is refused once it is ingested."""
        up_to = upkeep.purge_up_to(ledger, token, last)
        if first is None or _place(first) > _place(up_to):
            return True
        for n_entries, entry in enumerate(self._stream.entries(up_to=up_to), start=1):
            if n_entries > _ENTRIES_LOOKED_AT or _belongs(ledger, entry):
                _log.warning("purge.postponed", reason="an entry of it waits to be ingested", entry_id=entry.id)
                return False
        return True

    def _drop_letters(self, ledgers: dict[str, Ledger]) -> None:
        for letters in self._letters():
            doomed = {letter.id: found for letter in letters if (found := _ledger_of(letter, ledgers)) is not None}
            if doomed:
                _log.info("letters.forgotten", n_letters=self._stream.drop(list(doomed)))
            for ledger, place in doomed.values():
                _count(ledger, place)

    def _letters(self) -> Iterator[list[DeadLetter]]:
        start = "-"
        while letters := self._stream.dead_letters(start=start, count=_LETTERS_AT_ONCE):
            yield letters
            start = f"({letters[-1].id}"

    def _rewrite(self) -> bool:
        client = self._stream.client
        try:
            if append_only.keeps_deleted(client):
                self._warn("it keeps deleted entries beside others; set stream-node-max-entries to 1")
            return append_only.rewrite(client, timeout_s=_REWRITE_WITHIN_S)
        except ConfigError as error:
            self._warn(str(error))
            return False

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            _log.warning("server.kept_deleted", problem=problem)
        self._has_warned = True


def _ledger_of(letter: DeadLetter, ledgers: dict[str, Ledger]) -> tuple[Ledger, attribution.Place] | None:
    """Give the ledger that has forgotten what a letter is about, and what that is."""
    arrived_ms = _place(letter.id)[0]
    for place in attribution.places(letter.raw or b""):
        ledger = ledgers.get(place.scope_key)
        if ledger is not None and _is_forgotten(ledger, place, arrived_ms):
            return ledger, place
    return None


def _belongs(ledger: Ledger, entry: Entry) -> bool:
    arrived_ms = _place(entry.id)[0]
    return any(
        place.scope_key == ledger.scope.key and _is_forgotten(ledger, place, arrived_ms)
        for place in attribution.places(entry.raw or b"")
    )


def _is_forgotten(ledger: Ledger, place: attribution.Place, arrived_ms: int) -> bool:
    at_ms = arrived_ms if place.at_ms is None else place.at_ms
    with ledger.read() as connection:
        return forgetting.is_forgotten(connection, place.session_id, place.turn_id, at_ms)


def _count(ledger: Ledger, place: attribution.Place) -> None:
    with ledger.write() as connection:
        forgetting.note_dead_letter(connection, place.session_id, place.turn_id)


def _place(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)
