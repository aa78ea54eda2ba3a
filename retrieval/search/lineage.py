"""Which sessions are one conversation that was reset, compacted or continued.

Sessions with the same value under the same of three names belong together; the first name that a session has counts.
A session is also the root that others name, and then belongs where its own names put it. `parent_session_id` is not
among them: it says who came before, and two children of one parent are two conversations.

Source: the names and their order are those of the PraisonAI session recall documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NAMES: Final = ("lineage_id", "root_session_id", "thread_id")
_ROOT: Final = "root_session_id"

Key = tuple[str, str]


def key_of(facts: Mapping[str, Any]) -> Key | None:
    """Name the conversation that a session says it belongs to; None when it says nothing."""
    return next(((name, str(facts[name])) for name in NAMES if facts.get(name)), None)


def resolved(session_id: str, keys: Mapping[str, Key]) -> Key:
    """Follow roots to the conversation that a session belongs to; by itself it is its own root.

    Args:
        session_id: the session.
        keys: what `key_of` gives of the sessions that say something.
    """
    path: list[str] = []
    key = (_ROOT, session_id)
    while key[0] == _ROOT and key[1] not in path:
        path.append(key[1])
        key = keys.get(key[1], key)
    if key[0] == _ROOT:  # a root of its own; or sessions that name each other in a circle
        return _ROOT, min(path[path.index(key[1]) :])
    return key
