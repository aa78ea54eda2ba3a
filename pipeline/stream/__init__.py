"""Where events wait: the stream of turns, its consumer group and its dead letters, on a Redis >= 7 or a Valkey.

Key schema (names are settings; these are the defaults):

| key | type | holds |
|---|---|---|
| `turnstream:turns` | stream | entries with one field `event`: the JSON of one event, as published |
| its group `ingest` | consumer group | what ingesters were given (last delivered) and have not acked (pending) |
| `turnstream:dead` | stream | dead letters: `entry_id`, `reason`, `field`, and `event` (original bytes) if any |

After a crash: an entry is in the stream until every group has acked it, even if the consumer that it was given to was
deleted since; a dead letter and its ack happen together or not at all; a replay moves its entry or leaves it. What
the server itself may lose is `appendfsync`'s business.
"""

from pipeline.stream.connection import address, check_server, connect, embedded_url, server_url, socket_path
from pipeline.stream.entries import MAX_LETTER_BYTES, Backlog, Claim, DeadLetter, Entry
from pipeline.stream.turn_stream import TurnStream

__all__ = [
    "MAX_LETTER_BYTES",
    "Backlog",
    "Claim",
    "DeadLetter",
    "Entry",
    "TurnStream",
    "address",
    "check_server",
    "connect",
    "embedded_url",
    "server_url",
    "socket_path",
]
