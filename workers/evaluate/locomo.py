"""LoCoMo's questions; what was said is read by the importer of the same name.

Source: Maharana et al. 2024. Evidence is written as `D8:6`, at times as `D8:6; D9:17` or `D:11:26`; evidence that
names no turn of the conversation is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ConfigError
from pipeline.importers import Imported, Malformed, locomo, reader, source
from pipeline.records import Event, Scope, Turn
from workers.evaluate.asked import AskedQuestion

FORMAT: Final = locomo.FORMAT
CATEGORIES: Final = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_NOT_COUNTED: Final = 5
_PLACE: Final = re.compile(r"D:?(\d+):(\d+)")


def events(path: Path) -> Iterator[Event]:
    """Yield the turns and closings of all conversations."""
    for item in reader(FORMAT)(path):
        if isinstance(item, Imported):
            yield item.event


def questions(path: Path) -> Iterator[AskedQuestion]:
    """Yield the questions that have evidence.

    Raises:
        ConfigError: nothing in the file can be read.
    """
    session_of: dict[tuple[Scope, str], str] = {}
    wrong: list[Malformed] = []
    for item in reader(FORMAT)(path):
        if isinstance(item, Malformed):
            wrong.append(item)
        elif isinstance(item.event, Turn):
            session_of[item.event.scope, item.event.turn_id] = item.event.session_id
    if wrong and not session_of:
        raise ConfigError(f"{wrong[0]}; is it of the format {FORMAT}?")
    for value in source.values(path, "conversation"):
        if isinstance(value.value, dict) and value.value.get("sample_id"):
            scope = Scope("user", str(value.value["sample_id"]))
            for number, fields in enumerate(value.value.get("qa") or ()):
                question = _question(scope, number, fields, session_of)
                if question is not None:
                    yield question


def _question(
    scope: Scope, number: int, fields: Any, session_of: dict[tuple[Scope, str], str]
) -> AskedQuestion | None:
    named = _PLACE.findall(" ".join(map(str, fields.get("evidence") or ())))
    turns = {
        turn for turn in (f"D{int(session)}:{int(turn)}" for session, turn in named) if (scope, turn) in session_of
    }
    text, category = str(fields.get("question") or ""), fields.get("category")
    if not turns or not text.strip():
        return None
    return AskedQuestion(
        id=f"{scope.id}#{number}",
        scope=scope,
        text=text,
        category=CATEGORIES.get(category, str(category)),
        turns=frozenset(turns),
        sessions=frozenset(session_of[scope, turn] for turn in turns),
        is_counted=category != _NOT_COUNTED,
    )
