"""What the errors of a Redis mean, whoever talks to it: published turns and shared session memory sort them alike."""

from __future__ import annotations

from redis import exceptions as redis_errors

from pipeline.errors import ConfigError, ServerUnreachableError, TransientError

MEANING = [
    (redis_errors.ConnectionError("refused"), ServerUnreachableError),
    (redis_errors.TimeoutError("slow"), ServerUnreachableError),
    (redis_errors.MaxConnectionsError("many"), ServerUnreachableError),
    (redis_errors.BusyLoadingError("loading"), TransientError),
    (redis_errors.ReadOnlyError("replica"), TransientError),
    (redis_errors.ClusterDownError("down"), TransientError),
    (redis_errors.ResponseError("MISCONF errors writing to disk"), TransientError),
    (redis_errors.InvalidResponse("garbage"), TransientError),
    (redis_errors.AuthenticationError("who"), ConfigError),
    (redis_errors.NoPermissionError("may not"), ConfigError),
    (redis_errors.ResponseError("WRONGTYPE"), ConfigError),
]
