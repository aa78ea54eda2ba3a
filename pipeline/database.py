"""How a SQLite file of ours comes into being: whole, in WAL mode, or not at all.

It is prepared beside its place and linked into it, so a crash leaves either no file or a complete empty one, and two
processes that create the same one end with one.

Why not by SQLite itself: whoever opens a file while another switches it to WAL gets "locked", with no waiting.
Why: creating fourteen tables takes 7.5 ms, copying a prepared file 0.8 ms; platforms have ten thousand scopes.
"""

from __future__ import annotations

import functools
import os
import secrets
from contextlib import suppress
from pathlib import Path

import apsw


def create(path: Path, ddl: str) -> None:
    """Make an empty database with these tables, for this user only, unless there is a file already.

    Its content is on disk on return; its folder's entry is not.

    Raises:
        OSError: the folder refuses it, or the disk is full.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.draft")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(_empty(ddl))
            file.flush()
            os.fdatasync(file.fileno())
        with suppress(FileExistsError):  # another process was first; its file is as empty as ours
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@functools.lru_cache(maxsize=2)
def _empty(ddl: str) -> bytes:
    connection = apsw.Connection(":memory:")
    connection.execute(f"BEGIN; {ddl} COMMIT")
    image = bytearray(connection.serialize("main"))
    image[18:20] = b"\x02\x02"  # file format versions 2: the file is born in WAL mode
    return bytes(image)
