"""What the address of a Redis or Valkey may say; anything else is refused where it is read, not at the first command.

Owns nothing. Why: the client's library takes every word of the query for an argument of its own classes, and fails
at the first command, in ways that are no errors of a server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pipeline.errors import ConfigError

_SCHEMES: Final = ("redis", "rediss", "unix")
_OPTIONS: Final = (
    *("db", "username", "password", "client_name", "health_check_interval"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "max_connections"),
)
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS: Final = (
    *("ssl_ca_path", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
    *_TLS_FILES,
)


class _Client(Protocol):
    @property
    def connection_pool(self) -> Any: ...


C = TypeVar("C", bound=_Client)


def require_readable(url: str, setting: str) -> None:
    """Refuse an address that no client can be made of; the message shows nothing of it but names of options.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        setting: the variable it is from.

    Raises:
        ConfigError: its scheme, host, port or an option cannot be.
    """
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        is_read = parts.scheme in _SCHEMES and parts.port != 0
        said = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:  # a port or host that is none; what is said of it may quote a password
        is_read, said = False, {}
    if not is_read:
        raise ConfigError(f"{setting} cannot be read; use redis://host:6379/0, rediss://… or unix:///path")
    allowed = (*_OPTIONS, *_TLS_OPTIONS) if parts.scheme == "rediss" else _OPTIONS
    if unknown := sorted({*said} - {*allowed}):
        raise ConfigError(f"{setting} has the option {unknown[0][:40]!r}; possible are {', '.join(allowed)}")
    for name in _TLS_FILES:
        if name in said and not Path(said[name]).is_file():
            raise ConfigError(f"{setting}: {name} names no file that can be read")


def made(client: Callable[[], C], setting: str, library_error: type[Exception]) -> C:
    """Make a client, and one connection that connects nobody: it says now what an option cannot be.

    Args:
        client: makes it of an address that is readable.
        setting: the variable that the address is from.
        library_error: what the library raises for an option it cannot read, beside errors of Python's.

    Raises:
        ConfigError: an option has a value that cannot be.
    """
    try:
        new = client()
        new.connection_pool.connection_class(**new.connection_pool.connection_kwargs)
    except (ValueError, TypeError, library_error) as error:
        raise ConfigError(f"{setting}: an option of it cannot be read; use such as redis://host:6379/0") from error
    return new
