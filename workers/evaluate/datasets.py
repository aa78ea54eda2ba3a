"""Data sets of questions about sessions, each with the turns that hold the answer.

| format | scope | category | not asked |
|---|---|---|---|
| `locomo` | `user/<sample_id>`: a conversation | by name; `adversarial` is not in the mean | no evidence |
| `longmemeval` | `user/<question_id>`: its haystack | `question_type` | abstention, no evidence |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pipeline.errors import ConfigError
from pipeline.records import Event, Scope
from workers.evaluate import locomo, longmemeval
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.metrics import Discount, longmemeval_discount, standard_discount


class _Events(Protocol):
    def __call__(self, path: Path) -> Iterator[Event]: ...


class _Questions(Protocol):
    def __call__(self, path: Path) -> Iterator[AskedQuestion]: ...


@dataclass(frozen=True, slots=True)
class Dataset:
    """One file of questions and what they are about.

    Args:
        path: the file.
        form: its format.
        read_events: yields what was said.
        questions: that can be answered from it.
        discount: of its NDCG.
    """

    path: Path
    form: str
    read_events: _Events
    questions: list[AskedQuestion] = field(default_factory=list)
    discount: Discount = standard_discount

    def events(self) -> Iterator[Event]:
        """Yield everything that was said, in order."""
        return self.read_events(self.path)

    def counted(self) -> list[AskedQuestion]:
        """Give the questions that are in the mean.

        Raises:
            ConfigError: there is none.
        """
        found = [question for question in self.questions if question.is_counted]
        if not found:
            known = ", ".join(sorted({question.category for question in self.questions}))
            raise ConfigError(f"{self.path}: none of its questions is in the mean, all are {known}; add others")
        return found

    def within(self, scope: Scope) -> Dataset:
        """Keep the questions about one scope.

        Raises:
            ConfigError: there is none.
        """
        kept = [question for question in self.questions if question.scope == scope]
        if not kept:
            known = ", ".join(sorted({question.scope.key for question in self.questions})[:5])
            raise ConfigError(f"{self.path} asks nothing about {scope}; it asks about {known}")
        return Dataset(self.path, self.form, self.read_events, kept, self.discount)


_FORMATS: Final[dict[str, tuple[_Events, _Questions, Discount]]] = {
    locomo.FORMAT: (locomo.events, locomo.questions, standard_discount),
    longmemeval.FORMAT: (longmemeval.events, longmemeval.questions, longmemeval_discount),
}
FORMATS: Final = tuple(_FORMATS)


def load(path: Path, form: str, *, limit: int | None = None, scope: Scope | None = None) -> Dataset:
    """Read a data set's questions, the first ``limit`` of each scope, or of one scope.

    Raises:
        ConfigError: there is no such format or file, or it has a wrong field, or no question to be asked.
    """
    if form not in _FORMATS:
        raise ConfigError(f"{form!r} is no format of questions; choose one of {', '.join(FORMATS)}")
    if not path.is_file():
        raise ConfigError(f"{path} is no file that can be read")
    read_events, read_questions, discount = _FORMATS[form]
    n_of: dict[Scope, int] = {}
    questions = []
    for question in read_questions(path):
        n_of[question.scope] = n_of.get(question.scope, 0) + 1
        if limit is None or n_of[question.scope] <= limit:
            questions.append(question)
    if not questions:
        raise ConfigError(f"{path} holds no question with evidence; is it of the format {form}?")
    found = Dataset(path, form, read_events, questions, discount)
    return found if scope is None else found.within(scope)
