"""Windows in a Redis or Valkey that hosts share.

| key | type | what |
|---|---|---|
| `turnstream:window:{<scope>}:<session>` | string | a session's record (`record`), named by digests, in hex |
| `turnstream:window:{<scope>}:<session>:damaged` | any | the last record of the session that could not be read |
| `turnstream:window:{<scope>}:<session>:forgotten` | string | notes of what was forgotten of the session |
| `turnstream:windows:{<scope>}` | set | digests of the scope's sessions with exchanges; it outlives each of them |

A record is changed by comparing and replacing it in one script, so it is whole after a crash at any moment, and of
two who change it at once the later starts again from what the first left. Order is by the exchanges' own times; the
server's clock only lets records expire. The digest of one that expired stays until a purge, or the set's own end.

Why its own client: that of `pipeline.stream` is the event server's, and readers do not know that one.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from pipeline import server_address
from pipeline.errors import ConfigError, ServerUnreachableError, TransientError, TurnstreamError
from pipeline.ledger.forgetting import Tombstones
from pipeline.records import Scope
from pipeline.settings import mask_url
from retrieval.context.backends import record
from retrieval.context.backends.protocol import ForgottenOf, Kept, Limits, SessionKey, scope_digest

_SETTING: Final = "TURNSTREAM_CONTEXT__URL"
_MOST_TRIES: Final = 1_000
"""Each one that fails means that another process got on."""
_IS_AS_SEEN = """
local function digest(key)
  local found = redis.call('GET', key)
  return found and redis.sha1hex(found) or ''
end
if digest(KEYS[1]) ~= ARGV[1] or digest(KEYS[2]) ~= ARGV[2] then return 0 end
"""
_APPEND: Final = f"""{_IS_AS_SEEN}
redis.call('SET', KEYS[1], ARGV[3])
if ARGV[5] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
local is_new = redis.call('EXISTS', KEYS[3]) == 0
redis.call('SADD', KEYS[3], ARGV[4])
if ARGV[5] == '' then
  redis.call('PERSIST', KEYS[3])
elseif is_new then
  redis.call('PEXPIRE', KEYS[3], ARGV[5])
else
  redis.call('PEXPIRE', KEYS[3], ARGV[5], 'GT')
end
return 1
"""
_PURGE: Final = f"""{_IS_AS_SEEN}
local lives_ms = redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[1], ARGV[3])
  if lives_ms >= 0 then redis.call('PEXPIRE', KEYS[1], lives_ms) end
elseif redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[4])
end
if ARGV[5] ~= '' then redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6]) end
return 1
"""
_FORGET: Final = """
redis.call('DEL', KEYS[1], KEYS[4])
redis.call('SREM', KEYS[3], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
"""
"""A full server forgets and notes it: once a script has deleted, none of its writes is refused for memory."""
_SET_ASIDE: Final = """
local is_text = redis.call('TYPE', KEYS[1]).ok == 'string'
local is_same = is_text and redis.sha1hex(redis.call('GET', KEYS[1])) == ARGV[1]
if redis.call('EXISTS', KEYS[1]) == 0 or (is_text and not is_same) then return 0 end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('SADD', KEYS[3], ARGV[2])
redis.call('PERSIST', KEYS[3])
return 1
"""
_REMOVE_DAMAGED = """
local is_text = redis.call('TYPE', KEYS[1]).ok == 'string'
if is_text and redis.sha1hex(redis.call('GET', KEYS[1])) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('SREM', KEYS[2], ARGV[2]) end
return 1
"""


class RedisWindows:
    """Windows on a server.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        limits: what a window holds.
        timeout_s: longest wait to connect, and for one reply.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: str, limits: Limits, *, timeout_s: float = 5.0) -> None:
        server_address.require_readable(url, _SETTING)
        self._limits = limits
        self._address = mask_url(url)
        self._client: redis.Redis = server_address.made(
            lambda: redis.Redis.from_url(
                url,
                protocol=2,
                decode_responses=False,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
            ),
            _SETTING,
            redis_errors.RedisError,
        )
        self._append = self._client.register_script(_APPEND)
        self._replace = self._client.register_script(_PURGE)
        self._forget = self._client.register_script(_FORGET)
        self._set_aside = self._client.register_script(_SET_ASIDE)
        self._remove_damaged = self._client.register_script(_REMOVE_DAMAGED)

    def check(self) -> None:
        """Find out whether the server answers.

        Raises:
            TransientError: it does not.
            ConfigError: it refuses us.
        """
        with self._translated():
            self._client.ping()

    def append(self, key: SessionKey, exchange: Kept) -> None:
        """Add an exchange.

        Raises:
            TransientError: the server does not answer, or others change this window all the time.
            ConfigError: it refuses us.
        """
        place = _Place(key.scope_digest, key.digest)
        for _ in range(_MOST_TRIES):
            raw, before = self._read(key)
            raw_notes, notes = self._notes(place)
            after = record.added(before, notes, key, exchange, self._limits)
            if after == before:
                return
            values = (_sha1(raw), _sha1(raw_notes), record.encode(after), place.session, self._limits.ttl_ms or "")
            if self._run(self._append, place, values):
                return
        raise TransientError(f"{self._address}: others change this window all the time; try again")

    def recent(self, key: SessionKey) -> tuple[Kept, ...]:
        """Give a session's window.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """
        return self._read(key)[1].exchanges

    def forget(self, key: SessionKey) -> None:
        """Remove a session's window.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """
        place = _Place(key.scope_digest, key.digest)
        notes = record.encode_notes(record.FORGOTTEN_SESSION)
        self._run(self._forget, place, (place.session, notes, record.FORGOTTEN_FOR_MS))

    def purge(self, scope: Scope, forgotten_of: ForgottenOf) -> int:
        """Remove a scope's exchanges that were forgotten.

        Raises:
            TransientError: the server does not answer.
            ConfigError: it refuses us.
        """
        digest = scope_digest(scope)
        with self._translated():
            sessions: Any = self._client.smembers(_Place(digest, b"").index)
        return sum(self._purge(_Place(digest, bytes.fromhex(name.decode())), forgotten_of) for name in sessions)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _purge(self, place: _Place, forgotten_of: ForgottenOf) -> int:
        with self._translated():
            self._client.delete(place.damaged)
        for _ in range(_MOST_TRIES):
            raw: bytes | None = b""
            try:
                raw = self._get(place)
                before = record.Record() if raw is None else record.decode(raw)
            except record.DamagedRecordError:
                with self._translated():
                    is_removed = self._remove_damaged(
                        [place.record, place.index, place.damaged], [_sha1(raw), place.session]
                    )
                if is_removed:
                    return 1
                continue
            raw_notes, noted = self._notes(place)
            after, notes = record.purged(before, noted, forgotten_of)
            is_as_wanted = bool(after.exchanges) and (after, notes) == (before, noted)
            left = record.encode(after) if after.exchanges else b""
            to_note = record.encode_notes(notes) if notes != noted else b""
            values = (_sha1(raw), _sha1(raw_notes), left, place.session, to_note, record.FORGOTTEN_FOR_MS)
            if is_as_wanted or self._run(self._replace, place, values):
                return len(before.exchanges) - len(after.exchanges)
        raise TransientError(f"{self._address}: others change a window all the time; try again")

    def _read(self, key: SessionKey) -> tuple[bytes | None, record.Record]:
        place = _Place(key.scope_digest, key.digest)
        while True:
            raw: bytes | None = b""
            try:
                raw = self._get(place)
                return raw, record.Record() if raw is None else record.decode_of(key, raw)
            except record.DamagedRecordError as error:
                with self._translated():
                    moved = self._set_aside([place.record, place.damaged, place.index], [_sha1(raw), place.session])
                if moved:
                    record.note_set_aside("redis", str(error))

    def _get(self, place: _Place) -> bytes | None:
        """Read a record.

        Raises:
            DamagedRecordError: the key holds something else than a text.
        """
        with self._translated():
            try:
                found: Any = self._client.get(place.record)
            except redis_errors.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                raise record.DamagedRecordError("its key is of another type") from error
        return None if found is None else bytes(found)

    def _notes(self, place: _Place) -> tuple[bytes | None, Tombstones]:
        with self._translated():
            raw: Any = self._client.get(place.forgotten)
        return raw, record.decode_notes(raw, "redis")

    def _run(self, script: Script, place: _Place, values: Sequence[str | bytes | int]) -> bool:
        with self._translated():
            return bool(script(place.keys, values))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the library's errors into ours.

        Raises:
            ServerUnreachableError: no answer.
            TransientError: it answers, but not now: it loads its data, is full, is a replica, cannot write, ….
            ConfigError: it refuses us, or is not what we can use.
        """
        try:
            yield
        except redis_errors.RedisError as error:
            raise _ours(error, self._address) from error


class _Place:
    """The keys of one session."""

    def __init__(self, scope: bytes, session: bytes) -> None:
        self.session = session.hex()
        self.record = f"turnstream:window:{{{scope.hex()}}}:{self.session}"
        self.damaged = f"{self.record}:damaged"
        self.forgotten = f"{self.record}:forgotten"
        self.index = f"turnstream:windows:{{{scope.hex()}}}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Give the keys in the order of the scripts that change a record."""
        return self.record, self.forgotten, self.index, self.damaged


def _sha1(raw: bytes | None) -> str:
    return "" if raw is None else hashlib.sha1(raw, usedforsecurity=False).hexdigest()


_REFUSED: Final = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.NoPermissionError,
)
_PASSING: Final = (
    redis_errors.BusyLoadingError,
    redis_errors.OutOfMemoryError,
    redis_errors.ReadOnlyError,
    redis_errors.ClusterError,
    redis_errors.TryAgainError,
)
_PASSING_CODES: Final = ("LOADING", "READONLY", "MISCONF", "NOREPLICAS", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "OOM")


def _ours(error: redis_errors.RedisError, server: str) -> TurnstreamError:
    """Give our error for one of the library's; what follows "with args" may be a text of a user."""
    text = str(error).partition(", with args beginning")[0]
    if isinstance(error, _REFUSED):
        return ConfigError(f"{server} refused the user or password: {text}; correct {_SETTING}")
    if isinstance(error, _PASSING) or text.startswith(_PASSING_CODES):
        return TransientError(f"{server} cannot serve now: {text}; try again")
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return ConfigError(f"{server} cannot be trusted: {text}; correct ssl_ca_certs in {_SETTING}")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError):
        return ServerUnreachableError(f"{server} does not answer ({text}); start it, or correct {_SETTING}")
    if isinstance(error, redis_errors.ResponseError):
        return ConfigError(
            f"{server} refused a command: {text}; use Redis >= 7 or Valkey, and a database with unused key names,"
            f" for {_SETTING}"
        )
    return TransientError(f"{server} answered something unreadable: {text}; try again")
