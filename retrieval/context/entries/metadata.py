"""What the metadata of a turn says of its exchange.

A publisher may have put anything there: what is of another type than it should be says nothing.

| key, first those that are public | what it says |
|---|---|
| `turnstream.exchange` | a name: turns of one session that bear it are one exchange |
| `key_results` | findings worth keeping: texts |
| `tools` | names of tools called, once for each call; or objects that have a name |
| `errors` | how many calls failed: a number, a list of them, a message, or true |
| `outcome` | `done`, `failed` or `unknown` |
| `recalls` | how often the exchange was brought up again |
| `refs` | ids of exchanges it refers to |
| `pinned` | true: keep it in every context |
| `tool_calls` | also read, as agents write it: as `tools` |
| `n_errors`, `error`, `is_error` | also read: as `errors` |
| `tool_name`, `tool`, `name` | also read, of a tool's own turn: which it is |

Why one key has a prefix: it binds turns together, and a platform has `exchange` for things of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from retrieval.context.entries.entry import Outcome

EXCHANGE: Final = "turnstream.exchange"
_TOOLS: Final = ("tools", "tool_calls")
_TOOL_NAMES: Final = ("tool_name", "tool", "name")
_ERRORS: Final = ("errors", "n_errors", "error", "is_error")
_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_MOST: Final = 1_000_000
"""The highest count that is believed."""

Metadata = Mapping[str, Any]


def exchange(metadata: Metadata) -> str:
    """Give the name of the turn's exchange; "" when it has none."""
    name = metadata.get(EXCHANGE)
    return name.strip() if isinstance(name, str) else ""


def key_results(metadata: Metadata) -> list[str]:
    """Give the findings that the turn names."""
    return [text for item in _items(metadata.get("key_results")) if (text := _text(item))]


def tools(metadata: Metadata) -> list[str]:
    """Give the names of the tools that the turn says were called."""
    return next((names for key in _TOOLS if (names := _names(metadata.get(key)))), [])


def tool_name(metadata: Metadata, speaker: str | None) -> str:
    """Name the tool whose own turn it is."""
    names = (metadata.get(key) for key in _TOOL_NAMES)
    return next((name.strip() for name in names if isinstance(name, str) and name.strip()), speaker or "tool")


def n_errors(metadata: Metadata) -> int:
    """Count the calls that failed, as far as the turn tells."""
    return next((n for key in _ERRORS if (n := _count_errors(metadata.get(key)))), 0)


def outcome(metadata: Metadata) -> Outcome | None:
    """Tell how the exchange ended; None when the turn does not say."""
    said = metadata.get("outcome")
    return _OUTCOMES.get(said.strip().lower()) if isinstance(said, str) else None


def recalls(metadata: Metadata) -> int:
    """Tell how often the exchange was brought up again."""
    return _number(metadata.get("recalls"))


def refs(metadata: Metadata) -> list[str]:
    """Give the ids of the exchanges it refers to."""
    return [str(item) for item in _items(metadata.get("refs")) if isinstance(item, str | int) and str(item).strip()]


def is_pinned(metadata: Metadata) -> bool:
    """Tell whether the exchange is to be kept in every context."""
    said = metadata.get("pinned")
    return said is True or (isinstance(said, str) and said.strip().lower() == "true")


def _items(value: object) -> list[Any]:
    if value is None or isinstance(value, bool):
        return []
    return value if isinstance(value, list) else [value]


def _text(item: object) -> str:
    if isinstance(item, str):
        return item.strip()
    return "" if item is None else json.dumps(item, ensure_ascii=False, sort_keys=True)


def _names(value: object) -> list[str]:
    named = [_name(item) for item in _items(value)]
    return [name for name in named if name]


def _name(item: object) -> str:
    if isinstance(item, dict):
        inner = item.get("function")
        item = item.get("name") or (inner.get("name") if isinstance(inner, dict) else None)
    return item.strip() if isinstance(item, str) else ""


def _count_errors(value: object) -> int:
    if isinstance(value, list):
        return min(len(value), _MOST)
    if isinstance(value, str | dict):
        return int(bool(value))
    return int(value) if isinstance(value, bool) else _number(value)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(min(max(value, 0), _MOST))
