# ruff: noqa: INP001 - a program, not part of a package
"""Copy what cannot be rebuilt out of a running deployment: the stream's files first, then every ledger.

    /opt/turnstream/bin/python deploy/backup.py TARGET

Run it as the service's user, with its settings in the environment. ``TARGET`` must not exist; it is written as
``TARGET.partial`` and renamed when it is whole. Exit code 1: some ledger could not be copied, and is named.

Why the stream first: an event leaves the stream only after it is in its ledger. Copied in this order, one that moves
meanwhile is in both copies, and applied once; in the other order it might be in neither.
Why SQLite's online backup: ``cp`` leaves behind what is only in the write-ahead log, and what ``VACUUM INTO`` writes
is not in WAL mode, so that readers and writers of a restored ledger would lock each other out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path

import apsw
import redis

from pipeline.errors import ShardError, TransientError, TurnstreamError
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.ledger.connection import translated as ledger_errors
from pipeline.settings import load_settings
from pipeline.shards import LEDGER_FILE, Shards, fsync_folder, make_private_folder
from pipeline.stream import connect, server_url
from pipeline.stream.connection import translated as server_errors

_ATTEMPTS = 10
_PUT_OFF_S = 3.0
"""The server writes after two seconds, even while its disk is busy."""
_FILE_IN_MANIFEST = re.compile(r"^file (\S+) ", re.MULTILINE)


def main(target: Path) -> int:
    """Write a whole backup to ``target``; gives the exit code.

    Raises:
        TurnstreamError: the server or the data folder cannot be used; nothing is at ``target``.
    """
    os.umask(0o077)
    settings = load_settings()
    draft = target.with_name(f"{target.name}.partial")
    if target.exists() or draft.exists():
        raise TurnstreamError(f"{target} or {draft.name} exists already; name another folder, or remove it")
    make_private_folder(draft)
    url = server_url(settings.redis.plain_url, settings.data_dir)
    with connect(url, timeout_s=settings.redis.timeout_s) as client:
        copy_stream(client, draft / "server")
    failures = copy_ledgers(settings.data_dir, draft / "data")
    draft.rename(target)
    fsync_folder(target.parent)
    sys.stderr.writelines(f"not copied: {failure}\n" for failure in failures)
    return 1 if failures else 0


def copy_stream(client: redis.Redis, target: Path) -> None:
    """Copy the append-only files of a server on this machine; all that it accepted before this call is in the copy.

    What it appends meanwhile may be cut off at the end, which it tolerates when it loads them.

    Raises:
        TransientError: it rewrote its files during each attempt.
        ShardError: its files are not on this machine, or not readable by this user.
    """
    with server_errors(client):
        facts = client.config_get("dir", "appenddirname")
        _wait_until_written(client)
    folder = Path(str(facts["dir"]), str(facts["appenddirname"]))
    try:
        for _ in range(_ATTEMPTS):
            if _copied_unchanged(folder, target / folder.name):
                return
            time.sleep(1.0)  # a rewrite replaced files under our hands
    except OSError as error:
        raise ShardError(f"{error.filename}: {error.strerror}; run this beside the server, as its user") from error
    raise TransientError(f"{folder} was rewritten {_ATTEMPTS} times meanwhile; try again")


def copy_ledgers(data_dir: Path, target: Path) -> list[str]:
    """Copy every ledger while it is in use; gives what could not be copied, and why."""
    failures = []
    for folder in Shards(data_dir).walk():
        copy = target / folder.relative_to(data_dir) / LEDGER_FILE
        make_private_folder(copy.parent)
        try:
            copy_ledger(folder / LEDGER_FILE, copy)
        except (ShardError, TransientError) as error:
            copy.unlink(missing_ok=True)
            failures.append(f"{folder.name}: {error}")
    return failures


def copy_ledger(source: Path, target: Path) -> None:
    """Copy one ledger in one state, in WAL mode, checked and durable on return.

    Raises:
        ShardError: the source is damaged.
        TransientError: the disk is full.
    """
    with (
        closing(connect_ledger(source, query_only=True)) as origin,
        ledger_errors(target),
        closing(apsw.Connection(str(target))) as copy,
    ):
        with copy.backup("main", origin, "main") as backup:
            backup.step()  # all pages in one read transaction: writers go on, and it never starts over
        if copy.pragma("quick_check") != "ok":
            raise ShardError(f"{source} is damaged: its copy does not pass quick_check")
        copy.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _wait_until_written(client: redis.Redis) -> None:
    """Wait for what the server accepted and did not write yet: with ``everysec`` it may put that off."""
    deadline = time.monotonic() + _PUT_OFF_S
    while client.info("persistence")["aof_buffer_length"] and time.monotonic() < deadline:
        time.sleep(0.05)


def _copied_unchanged(folder: Path, target: Path) -> bool:
    """Copy the files the manifest names; False when it names others afterwards."""
    shutil.rmtree(target, ignore_errors=True)
    make_private_folder(target)
    manifest = next(folder.glob("*.manifest"))
    before = manifest.read_bytes()
    (target / manifest.name).write_bytes(before)
    try:
        for name in _FILE_IN_MANIFEST.findall(before.decode()):
            shutil.copyfile(folder / name, target / name)
    except FileNotFoundError:
        return False
    return manifest.read_bytes() == before


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its one argument
        sys.exit(__doc__)
    try:
        sys.exit(main(Path(sys.argv[1]).absolute()))
    except TurnstreamError as error:
        sys.exit(f"error: {error}")
