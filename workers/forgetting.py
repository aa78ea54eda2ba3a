"""Purging what was forgotten: first a scope's own files, then what the server still holds of it.

That is entries that wait to be ingested, dead letters that belong to what was forgotten, and the bytes of both in its
append-only file; and the windows of session memory, where hosts share them. Each step may be done twice; a kill
between them leaves the purge due.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from pipeline.contract import attribution
from pipeline.contract.attribution import Subject
from pipeline.errors import ConfigError
from pipeline.ledger import Ledger, LedgerPool, disk, events, forgetting, upkeep
from pipeline.ledger.forgetting import PURGE_LOOKED_AT, PURGE_MARK, PURGE_UP_TO, PURGED_LEDGER, Forgotten, Tombstones
from pipeline.records import ScopeDeleted, SessionDeleted, TurnDeleted
from pipeline.registry import FILE as REGISTRY_FILE
from pipeline.registry import Registry
from pipeline.settings import Settings
from pipeline.shards import LEDGER_FILE, SUMMARIES_FOLDER, Shards, require_usable
from pipeline.stream import DeadLetter, Entry, TurnStream, append_only, parsed_id
from pipeline.summarise import SummaryCache
from retrieval.context.backends.protocol import Windows
from workers.supervisor import DataFolderLock

_LETTERS_AT_ONCE: Final = 16
"""Each may hold megabytes."""
_LOOK_WITHIN_S: Final = 5.0
_REWRITE_WITHIN_S: Final = 60.0
END_WITHIN_S: Final = 2 * _REWRITE_WITHIN_S
"""The longest that ending purges should take."""
_log = structlog.get_logger()

Due = tuple[Ledger, str]
"""A ledger with the token of its purge."""


def purge_files(ledger: Ledger, token: str) -> None:
    """Remove what was forgotten from the scope's folder, its snapshot excepted; done once for each token.

    Raises:
        TransientError: somebody reads it, a summary is being made, or the disk is full; it is still due.
        ShardError: the ledger is damaged.
    """
    if upkeep.purge_note(ledger, PURGED_LEDGER, token) is not None:
        return
    ledger.truncate_wal()  # while somebody reads what was forgotten, nothing else is worth its while
    folder = ledger.path.parent
    if (summaries := folder / SUMMARIES_FOLDER).is_dir():
        SummaryCache(summaries).keep_only(upkeep.summary_digests(ledger))
    _remove_copies(folder)
    upkeep.purge_ledger(ledger)
    upkeep.note_purge(ledger, PURGED_LEDGER, token, "")


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
        token = str(ledger.meta()[forgetting.PURGE_DUE])
        purge_files(ledger, token)
        upkeep.note_files_purged(ledger, token)
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
        windows: where hosts share session memory; None: nowhere.
    """

    def __init__(self, stream: TurnStream, clock: Callable[[], int], windows: Windows | None = None) -> None:
        self._stream = stream
        self._clock = clock
        self._windows = windows
        self._told: set[str] = set()

    def end_purges(self, due: Sequence[Due]) -> None:
        """End the purges of ledgers whose files are purged; one whose entries are still to be ingested stays due.

        What a purge has come to is noted in its ledger: the next call, in whatever process, goes on from there.

        Raises:
            TransientError: the server, or that of the windows, does not answer, or did not rewrite its file yet;
                those that wait for it stay due.
            ConfigError: the server lets us neither look at its streams nor drop letters, or that of the windows
                refuses us; all stay due.
        """
        if not due:
            return
        self._stream.trim()
        first, last = self._stream.ends()
        look_until = time.monotonic() + _LOOK_WITHIN_S
        ready = [purge for purge in due if self._is_ingested(purge, first, last, look_until)]
        marks: dict[Due, str | None] = {purge: mark for purge in ready if (mark := self._known_mark(purge))}
        if fresh := [purge for purge in ready if purge not in marks]:
            self._drop_letters({ledger.scope.key: ledger for ledger, _ in fresh})
            marks |= dict.fromkeys(fresh, self._marked(fresh))
        deadline = time.monotonic() + _REWRITE_WITHIN_S
        for mark in dict.fromkeys(marks.values()):  # those begun first
            rewritten = self._is_rewritten(mark, deadline - time.monotonic())
            for ledger, token in [purge for purge in ready if marks[purge] == mark]:
                self._purge_windows(ledger)
                if upkeep.end_purge(ledger, token, now_ms=self._clock(), rewritten=rewritten):
                    _log.info("scope.purged")

    def close(self) -> None:
        """Close the connections to the windows."""
        if self._windows is not None:
            self._windows.close()

    def _purge_windows(self, ledger: Ledger) -> None:
        if self._windows is None:
            return
        n_exchanges = self._windows.purge(ledger.scope, partial(_forgotten_of, ledger))
        if n_exchanges:
            _log.info("windows.purged", n_exchanges=n_exchanges)

    def _is_ingested(self, purge: Due, first: str | None, last: str, look_until: float) -> bool:
        """Tell whether nothing that was forgotten waits in the stream: what waits is refused once it is ingested.

        Why entries that are read may be there: another group has not read them yet.
        """
        ledger, token = purge
        up_to = upkeep.purge_note(ledger, PURGE_UP_TO, token)
        if up_to is None:
            upkeep.note_purge(ledger, PURGE_UP_TO, token, up_to := last)
        if first is None or parsed_id(first) > parsed_id(up_to):
            return True
        looked_at, why = upkeep.purge_note(ledger, PURGE_LOOKED_AT, token), None
        for entry in self._stream.entries(after=looked_at, up_to=up_to):
            if _belongs(ledger, entry):
                why = f"entry {entry.id} of it waits to be ingested, by every group that reads the stream"
                break
            looked_at = entry.id
            if time.monotonic() > look_until:
                why = "the stream is long; the next look goes on from here"
                break
        if looked_at:
            upkeep.note_purge(ledger, PURGE_LOOKED_AT, token, looked_at)
        if why:
            _log.warning("purge.postponed", reason=why)
        return why is None

    def _drop_letters(self, ledgers: dict[str, Ledger]) -> None:
        for letters in self._letters():
            doomed = {letter.id: found for letter in letters if (found := _ledger_of(letter, ledgers)) is not None}
            if doomed:
                _log.info("letters.forgotten", n_letters=self._stream.drop(list(doomed)))
            for ledger, subject in doomed.values():
                _count(ledger, subject)

    def _letters(self) -> Iterator[list[DeadLetter]]:
        start = "-"
        while letters := self._stream.dead_letters(start=start, count=_LETTERS_AT_ONCE):
            yield letters
            start = f"({letters[-1].id}"

    def _known_mark(self, purge: Due) -> str | None:
        mark = upkeep.purge_note(purge[0], PURGE_MARK, purge[1])
        return mark if mark and append_only.is_known(self._stream.client, mark) else None

    def _marked(self, purges: Sequence[Due]) -> str | None:
        """Note that all is deleted that a rewrite from now on leaves out; None: the server rewrites nothing."""
        client = self._stream.client
        try:
            if append_only.keeps_deleted(client):
                self._tell("it keeps deleted entries beside others; set stream-node-max-entries to 1")
        except ConfigError as error:
            self._tell(str(error))
        try:
            mark = append_only.mark(client)
        except ConfigError as error:
            self._tell(str(error))
            return None
        for ledger, token in purges if mark else ():
            upkeep.note_purge(ledger, PURGE_MARK, token, mark or "")
        return mark

    def _is_rewritten(self, mark: str | None, timeout_s: float) -> bool:
        if mark is None:
            return False
        try:
            append_only.rewrite_since(self._stream.client, mark, timeout_s=timeout_s)
        except ConfigError as error:
            self._tell(str(error))
            return False
        return True

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            _log.warning("server.kept_deleted", problem=problem)
        self._told.add(problem)


def _ledger_of(letter: DeadLetter, ledgers: dict[str, Ledger]) -> tuple[Ledger, Subject] | None:
    """Give the ledger that has forgotten what a letter is about, and what that is."""
    arrived_ms = parsed_id(letter.id)[0]
    for subject in attribution.subjects(letter.raw or b""):
        ledger = ledgers.get(subject.scope_key)
        if ledger is not None and _is_forgotten(ledger, subject, arrived_ms):
            return ledger, subject
    return None


def _belongs(ledger: Ledger, entry: Entry) -> bool:
    arrived_ms = parsed_id(entry.id)[0]
    return any(
        subject.scope_key == ledger.scope.key and _is_forgotten(ledger, subject, arrived_ms)
        for subject in attribution.subjects(entry.raw or b"")
    )


def _is_forgotten(ledger: Ledger, subject: Subject, arrived_ms: int) -> bool:
    at_ms = arrived_ms if subject.at_ms is None else subject.at_ms
    with ledger.read() as connection:
        return forgetting.is_forgotten(connection, subject.session_id, subject.turn_id, at_ms)


def _forgotten_of(ledger: Ledger, session_id: str) -> Tombstones:
    with ledger.read() as connection:
        return forgetting.tombstones(connection, session_id)


def _count(ledger: Ledger, subject: Subject) -> None:
    with ledger.write() as connection:
        forgetting.note_dead_letter(connection, subject.session_id, subject.turn_id)
