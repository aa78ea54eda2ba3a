"""Where each scope's files are: one folder per shard, named by a digest so that no scope key ever touches a path.

``<data_dir>/shards/<aa>/<digest>/`` holds ``ledger.sqlite``, the FAISS snapshots with their manifests, and
``summaries/``. The real scope key is kept inside the ledger and compared when it is opened. After a crash there may
be a folder without a ledger: it counts as no shard, and is used when the scope is spoken in again.

Why local disks alone: SQLite's WAL is shared memory, which processes on two hosts do not have.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.records import Scope

LEDGER_FILE = "ledger.sqlite"
SUMMARIES_FOLDER = "summaries"
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}
)


class Shards:
    """The folder of all shards. Asking where a shard is creates nothing."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.root = data_dir / "shards"

    def folder(self, scope: Scope) -> Path:
        """Give the scope's folder, whether or not it exists."""
        name = shard_name(scope)
        return self.root / name[:2] / name

    def ledger_path(self, scope: Scope) -> Path:
        """Give the path of the scope's ledger, whether or not it exists."""
        return self.folder(scope) / LEDGER_FILE

    def create(self, scope: Scope) -> Path:
        """Make the scope's folder, for this user only; on disk once its ledger was flushed."""
        folder = self.folder(scope)
        if not self.root.is_dir():
            make_private_folder(self.root)
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
        return folder

    def walk(self) -> Iterator[Path]:
        """Yield the folder of every shard on disk that has a ledger."""
        yield from (path.parent for path in sorted(self.root.glob(f"??/*/{LEDGER_FILE}")))


def shard_name(scope: Scope) -> str:
    """Derive the folder name: base32 of a 160-bit BLAKE2b digest over (kind, id), lower case."""
    digest = hashlib.blake2b(f"{scope.kind}\x00{scope.id}".encode(), digest_size=20, person=b"turnstream-shard")
    return base64.b32encode(digest.digest()).decode().lower()


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents with mode 0700, each entry durable on return.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            fsync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"cannot make {error.filename or folder} ({error.strerror}); set TURNSTREAM_DATA_DIR to a writable folder"
        ) from error


def require_usable(data_dir: Path) -> None:
    """Check that the data folder can be written and lies on a local file system.

    Raises:
        ConfigError: it is read-only, belongs to somebody else, or is a network mount, where WAL cannot work.
    """
    require_folder(data_dir)
    make_private_folder(data_dir)
    try:  # asking for permission is not enough: a read-only mount, or /proc, grants it to root
        with tempfile.TemporaryFile(dir=data_dir):  # no name of ours: containers that share a folder share pids
            pass
    except OSError as error:
        raise ConfigError(
            f"{data_dir} cannot be written ({error.strerror}); set TURNSTREAM_DATA_DIR to a folder that can"
        ) from error
    kind = _file_system_of(data_dir)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"{data_dir} lies on a network file system ({kind}); set TURNSTREAM_DATA_DIR to a local disk"
        )


def require_folder(path: Path) -> None:
    """Check that a path is a folder, or could become one; makes nothing.

    Raises:
        ConfigError: it, or what should hold it, is a file.
    """
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise ConfigError(f"{existing} is no folder; set TURNSTREAM_DATA_DIR to a folder, or to one yet to be made")


def fsync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_system_of(path: Path) -> str:
    resolved = str(path.resolve())
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return ""
    best, kind = "", ""
    for line in mounts:
        _, point, fs_type, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if len(point) > len(best) and (resolved + "/").startswith(point.rstrip("/") + "/"):
            best, kind = point, fs_type
    return kind
