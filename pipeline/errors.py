"""Every error Turnstream raises, by what the caller should do about it.

| class | disposition |
|---|---|
| `PoisonError` | this input never succeeds: set it aside as a dead letter |
| `TransientError` | leave it pending and try again |
| `ShardError` | an operator must act: files or rows of one shard are wrong |
| `NotFoundError` | ask for something else: what was named is not there |
| `ConfigError` | the settings or the command line are wrong: exit 2 |

A message says what happened, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TurnstreamError(Exception):
    """The base of every error raised on purpose."""


class PoisonError(TurnstreamError):
    """An input that will never succeed.

    Args:
        reason: what is wrong, in words meant for the person who published it.
        field: the event's field at fault, or "" when the whole event is.
    """

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.reason = reason
        self.field = field


class TransientError(TurnstreamError):
    """Something outside failed; the same call may succeed later."""


class ServerUnreachableError(TransientError):
    """The Redis, Valkey or PostgreSQL server does not answer."""


class LedgerBusyError(TransientError):
    """Another process is writing the ledger; a purge of a large one takes seconds."""


class PublishError(TransientError):
    """An event was not accepted by the server; publishing the same event id again does no harm."""


class Backpressure(PublishError):  # noqa: N818 - the name is part of the public surface
    """The server is full or too far behind; wait before publishing more."""


class SummaryError(TransientError):
    """The summary model failed, timed out or answered nothing; the session stays unsummarised.

    Args:
        message: what failed, where, and what to do next.
        retry_after_s: how long the endpoint asked us to wait, when it did.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SummaryRefusedError(SummaryError):
    """The summary endpoint refuses such a request; without another setting it will refuse the next one too."""


class ShardError(TurnstreamError):
    """One shard's files contradict themselves or cannot be used; an operator must act."""


class DimensionMismatchError(ShardError):
    """A vector's dimension differs from the index's."""


class NotFoundError(TurnstreamError, LookupError):
    """What was asked for by name is not there: a session or a turn that never was, or that is forgotten."""


class ConfigError(TurnstreamError):
    """Settings or arguments that cannot work; the message names the setting and a value that would."""


class ModelMismatchError(ConfigError):
    """The ledger was written with another embedding model than the one in the settings."""


def outcome_of(work: Callable[[], T]) -> T | Exception:
    """Do what may fail in any way, and give what came of it, or the error.

    For the boundaries alone where somebody else's code, or one of many texts, must not end the work on all others: a
    worker's task, a session in it, a reranker. Elsewhere an error that is not ours is a fault, and is to be seen.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the one place where any error ends
        return error
