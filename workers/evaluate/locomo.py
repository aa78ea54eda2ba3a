"""LoCoMo's questions; what was said is read by the importer of the same name.

Source: Maharana et al. 2024. Evidence is written as `D8:6`, at times as `D8:6; D9:17` or `D:11:26`; evidence that
names no turn of the conversation is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from pipeline.errors import ConfigError
from pipeline.importers import Imported, Malformed, locomo, reader
from pipeline.records import Event, Scope, Turn
from workers.evaluate import entries
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.entries import EntryFields, Fields, Filled

FORMAT: Final = locomo.FORMAT
CATEGORIES: Final = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_NOT_COUNTED: Final = 5
_PLACE: Final = re.compile(r"D:?(\d+):(\d+)")


class _QuestionFields(Fields):
    question: Filled
    category: Annotated[int, Field(ge=min(CATEGORIES), le=max(CATEGORIES))]
    evidence: list[str] | None = None


class _EntryFields(EntryFields):
    form: ClassVar[str] = FORMAT
    id_field: ClassVar[str] = "sample_id"
    mark: ClassVar[str] = "conversation"

    sample_id: Filled
    conversation: dict[str, Any]
    qa: list[_QuestionFields] | None = None

    @property
    def id(self) -> str:
        """The conversation's."""
        return self.sample_id


def events(path: Path) -> Iterator[Event]:
    """Yield the turns and closings of all conversations."""
    for item in reader(FORMAT)(path):
        if isinstance(item, Imported):
            yield item.event


def questions(path: Path) -> Iterator[AskedQuestion]:
    """Yield the questions that have evidence.

    Raises:
        ConfigError: a part of the file cannot be read; names it.
    """
    read = list(entries.read(path, _EntryFields))
    session_of: dict[tuple[Scope, str], str] = {}
    for item in reader(FORMAT)(path):
        if isinstance(item, Malformed):
            raise ConfigError(f"{item}; correct it or take it out")
        if isinstance(item.event, Turn):
            session_of[item.event.scope, item.event.turn_id] = item.event.session_id
    for entry in read:
        for number, fields in enumerate(entry.fields.qa or ()):
            question = _question(entry.scope, number, fields, session_of)
            if question is not None:
                yield question


def _question(
    scope: Scope, number: int, fields: _QuestionFields, session_of: dict[tuple[Scope, str], str]
) -> AskedQuestion | None:
    named = _PLACE.findall(" ".join(fields.evidence or ()))
    turns = {
        turn for turn in (f"D{int(session)}:{int(turn)}" for session, turn in named) if (scope, turn) in session_of
    }
    if not turns:
        return None
    return AskedQuestion(
        id=f"{scope.id}#{number}",
        scope=scope,
        text=fields.question,
        category=CATEGORIES[fields.category],
        turns=frozenset(turns),
        sessions=frozenset(session_of[scope, turn] for turn in turns),
        is_counted=fields.category != _NOT_COUNTED,
    )
