"""Sizes, and the texts and numbers that no store downstream keeps faithfully.

The fast checks run on every event; `explain_bad_text` walks one event when something already looks wrong, to name the
field at fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

from pipeline.errors import PoisonError
from pipeline.records import reject_unstorable

MAX_EVENT_BYTES: Final = 2 << 20
MAX_CONTENT_BYTES: Final = 1 << 20
MAX_METADATA_BYTES: Final = 256 << 10
"""Of the metadata as compact UTF-8 JSON, unknown fields of the event included."""

MAX_REASON_CHARS: Final = 300
_MAX_FIELD_CHARS: Final = 64
_NOT_UTF8: Final = re.compile("[\udc80-\udcff]")


def reject_long_content(text: str, field: str = "content") -> None:
    """Refuse text over `MAX_CONTENT_BYTES`.

    Raises:
        PoisonError: it is longer.
    """
    if len(text) * 4 > MAX_CONTENT_BYTES and (n_bytes := len(text.encode())) > MAX_CONTENT_BYTES:
        raise PoisonError(f"has {n_bytes} bytes; at most {MAX_CONTENT_BYTES}", field=field)


def storable_metadata(metadata: dict[str, Any], unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Add the unknown fields of an event to its metadata, and check the whole.

    Raises:
        PoisonError: it is too long or holds a number that JSON cannot write.
    """
    for name, value in unknown.items():
        key = name
        while key in metadata:
            key = f"event.{key}"
        metadata[key] = value
    if metadata:
        reject_bad_metadata(metadata)
    return metadata


def reject_bad_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata over `MAX_METADATA_BYTES`, and numbers that are infinite once parsed, such as 1e999.

    Raises:
        PoisonError: one of them.
    """
    encoded = to_compact_json(metadata, "metadata")
    if len(encoded) > MAX_METADATA_BYTES:
        raise PoisonError(f"has {len(encoded)} bytes as JSON; at most {MAX_METADATA_BYTES}", field="metadata")
    if looks_non_finite(encoded):
        _reject_bad_leaves("metadata", metadata)


def looks_non_finite(raw: bytes) -> bool:
    """Tell whether a NaN or an infinity may stand in the JSON; it may also be a word in a text."""
    return b"NaN" in raw or b"Infinity" in raw


def to_compact_json(value: Mapping[str, Any], field: str = "") -> bytes:
    """Write compact UTF-8 JSON.

    Raises:
        PoisonError: the value has no JSON form; names the key at fault, or ``field`` when that is given.
    """
    try:
        return to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        for name, part in value.items():
            _reject_bad_leaves(field or str(name), part)
        reason = "nested too deeply, or in a circle" if "ircular" in str(error) else "cannot be written as JSON"
        raise PoisonError(reason, field=field or "metadata") from error


def explain_bad_text(raw: bytes) -> None:
    """Name the field whose text or number cannot be kept; return when none is found.

    Raises:
        PoisonError: a field holds NUL, a lone surrogate, invalid UTF-8 or a number that is not finite.
    """
    try:
        tree = json.loads(raw.decode(errors="surrogateescape"))  # bytes that are no UTF-8 become U+DC80 to U+DCFF
    except RecursionError:
        raise PoisonError("nested too deeply") from None
    except ValueError:
        return  # the strict parser words it better
    if isinstance(tree, dict):
        for name, value in tree.items():
            _reject_bad_leaves(_printable(name), {name: value})


def _reject_bad_leaves(field: str, value: Any) -> None:
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            if _NOT_UTF8.search(leaf):
                raise PoisonError("is not valid UTF-8", field=field)
            reject_unstorable(leaf, field)
        elif isinstance(leaf, float) and not math.isfinite(leaf):
            raise PoisonError("holds NaN or an infinity, which are not JSON", field=field)


def _leaves(value: Any) -> Iterator[Any]:
    """Walk a JSON value without recursion, keys included; a circle is walked once."""
    waiting, seen = [value], set[int]()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping | list | tuple):
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, Mapping):
                yield from node
                waiting.extend(node.values())
            else:
                waiting.extend(node)


def _printable(name: str) -> str:
    return name.encode(errors="replace").decode().replace("\x00", "?")[:_MAX_FIELD_CHARS]
