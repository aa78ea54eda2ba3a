"""The nouns everyone shares: scopes, turns, events and chunks.

Frozen, slotted, no behaviour beyond normalising what a caller may spell in more than one way.

Time is kept as integer milliseconds since the epoch, UTC, in fields ending in ``_ms``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pipeline.errors import PoisonError

SESSION_TAG_PREFIX: Final = "bench-session:"
"""Prefix of a trace's first tag. Source: the AgentOS SessionRetriever documentation."""

MAX_SCOPE_ID_CHARS: Final = 512
_SCOPE_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_EARLIEST_MS: Final = int(datetime(1900, 1, 1, tzinfo=UTC).timestamp() * 1000)
_LATEST_MS: Final = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """The isolation key: what one reader may see, and the shard it is kept in.

    Args:
        kind: a lower-case word: ``user``, ``thread``, ``persona``, ``organization``, or your own.
        id: anything printable, up to 512 characters; never used as a path.

    Raises:
        PoisonError: the kind is no lower-case word, or the id is empty, too long or not valid text.
    """

    kind: str
    id: str

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not _SCOPE_KIND.fullmatch(self.kind):
            raise PoisonError(f"{self.kind!r} is no lower-case word such as 'user' or 'thread'", field="scope")
        if not isinstance(self.id, str) or not self.id.strip():
            raise PoisonError("is empty; give the id of the user, thread, …", field="scope_id")
        if len(self.id) > MAX_SCOPE_ID_CHARS:
            raise PoisonError(f"has {len(self.id)} characters; at most {MAX_SCOPE_ID_CHARS}", field="scope_id")
        reject_unstorable(self.id, "scope_id")

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read ``KIND/ID``; the id may contain further slashes.

        Raises:
            PoisonError: there is no slash, or a part is invalid.
        """
        kind, slash, scope_id = text.partition("/")
        if not slash:
            raise PoisonError(f"{text!r} is not KIND/ID, for example user/u42", field="scope")
        return cls(kind, scope_id)

    @property
    def key(self) -> str:
        """``KIND/ID``: unambiguous, because a kind holds no slash."""
        return f"{self.kind}/{self.id}"

    def collection(self, prefix: str) -> str:
        """Name the vector collection, as in ``cogmem_sessions_user_u42``."""
        return f"{prefix}_{self.kind}_{self.id}"

    def __str__(self) -> str:
        return self.key


class Mood(NamedTuple):
    """An affective state in the PAD model, each value in [-1, 1]."""

    valence: float = 0.0
    arousal: float = 0.0
    dominance: float = 0.0


NEUTRAL: Final = Mood()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a session, as published; also the event of type ``turn``.

    ``timestamp`` is accepted as an aware or naive (then UTC) datetime, ISO 8601 text or epoch seconds, and kept as
    ``timestamp_ms``. ``event_id`` is made when not given; ``turn_id`` defaults to it. Tags keep their order; those
    of a set are sorted, so that the same turn is published alike by every process.

    Raises:
        PoisonError: the timestamp cannot be read or lies outside 1900–2199; tags or a mood that are none.
    """

    scope: Scope
    session_id: str
    role: str
    content: str
    timestamp: datetime | str | float
    event_id: str = ""
    turn_id: str = ""
    index: int = 0
    revision: int = 0
    speaker: str | None = None
    tags: tuple[str, ...] = ()
    mood: Mood | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    timestamp_ms: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        _set(self, "timestamp_ms", to_epoch_ms(self.timestamp))
        _set(self, "event_id", self.event_id or uuid.uuid4().hex)
        _set(self, "turn_id", self.turn_id or self.event_id)
        if not isinstance(self.tags, tuple | list | set | frozenset):
            raise PoisonError(f"is {type(self.tags).__name__}; give a list of texts", field="tags")
        is_ordered = isinstance(self.tags, tuple | list)
        _set(self, "tags", tuple(self.tags if is_ordered else sorted(self.tags, key=str)))
        if self.mood is not None:
            if not isinstance(self.mood, tuple | list) or len(self.mood) != len(Mood._fields):
                raise PoisonError(f"is no {', '.join(Mood._fields)}; give three numbers", field="mood")
            _set(self, "mood", Mood(*self.mood))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """No more turns are expected: summarise now rather than after the idle time."""

    scope: Scope
    session_id: str
    timestamp_ms: int
    event_id: str
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDeleted:
    """Forget one turn, for good."""

    scope: Scope
    session_id: str
    turn_id: str
    timestamp_ms: int
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeleted:
    """Forget a session, and whatever arrives for it later."""

    scope: Scope
    session_id: str
    timestamp_ms: int
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeDeleted:
    """Forget everything in a scope up to ``timestamp_ms``; a user who comes back starts afresh."""

    scope: Scope
    timestamp_ms: int
    event_id: str


Event = Turn | SessionClosed | TurnDeleted | SessionDeleted | ScopeDeleted


@dataclass(frozen=True, slots=True)
class Chunk:
    """A span of one turn, before commit: ``content[start:stop]`` in characters, its tokens without specials."""

    start: int
    stop: int
    text: str
    n_tokens: int


def to_epoch_ms(value: datetime | str | float) -> int:
    """Read a point in time as epoch milliseconds; one without a zone is taken as UTC.

    Raises:
        PoisonError: the value is no time, or lies outside the years 1900–2199.
    """
    if isinstance(value, bool) or not isinstance(value, datetime | str | int | float):
        raise PoisonError(
            f"{type(value).__name__} is no time; use a datetime, ISO 8601 or epoch seconds", field="timestamp"
        )
    try:
        seconds = float(value) if isinstance(value, int | float) else _aware(value).timestamp()
    except OverflowError as error:
        raise PoisonError("lies outside the years 1900-2199", field="timestamp") from error
    if not _EARLIEST_MS <= seconds * 1000 < _LATEST_MS:  # also catches NaN and infinity
        hint = " (epoch milliseconds? divide by 1000)" if abs(seconds) > _LATEST_MS / 1000 else ""
        raise PoisonError(f"{value!r} lies outside the years 1900-2199{hint}", field="timestamp")
    return round(seconds * 1000)


def _aware(value: datetime | str) -> datetime:
    moment = _parse_iso(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _parse_iso(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise PoisonError(f"{text[:64]!r} is no ISO 8601 time", field="timestamp") from error


def from_epoch_ms(value_ms: int) -> datetime:
    """Give the aware UTC datetime of epoch milliseconds."""
    return datetime.fromtimestamp(value_ms / 1000, tz=UTC)


def reject_unstorable(text: str, field_name: str) -> None:
    """Refuse NUL and lone surrogates, which no store downstream keeps faithfully.

    Raises:
        PoisonError: the text holds one of them.
    """
    if "\x00" in text:
        raise PoisonError("holds a NUL character; remove it", field=field_name)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PoisonError(f"is not valid Unicode (lone surrogate at {error.start})", field=field_name) from error


def _set(record: object, name: str, value: object) -> None:
    object.__setattr__(record, name, value)  # frozen dataclasses normalise themselves once, here
