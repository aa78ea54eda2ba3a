"""What ranking sees of labelled questions: the candidates of each, and which of them are evidence.

Each question is asked in its own scope, and some in another, too, where nothing can answer them: from those the
calibration learns doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from pipeline.records import Scope
from retrieval import Memory
from retrieval.fused.features import matrix
from workers.evaluate.asked import AskedQuestion
from workers.fused_fit import Example

MOST_FOREIGN: Final = 1_000
"""Questions asked in another scope, at most."""
_GROUPS: Final = 10
_GROUPS_OF_ONE_SCOPE: Final = 5


def groups(questions: Sequence[AskedQuestion]) -> dict[str, str]:
    """Put each question, by its id, into a group that is left out as a whole.

    Whole scopes, in at most ten groups; of one scope alone, every fifth question.
    """
    scopes = sorted({question.scope.key for question in questions})
    if len(scopes) == 1:
        return {question.id: str(place % _GROUPS_OF_ONE_SCOPE) for place, question in enumerate(questions)}
    group_of = {
        scope: scope if len(scopes) <= _GROUPS else str(place % _GROUPS) for place, scope in enumerate(scopes)
    }
    return {question.id: group_of[question.scope.key] for question in questions}


def examples(
    memory: Memory,
    questions: Sequence[AskedQuestion],
    features: Sequence[str],
    *,
    on_asked: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Example]:
    """Ask labelled questions, and give what ranking would see of each.

    Args:
        memory: holds the scopes.
        questions: with their evidence.
        features: the columns wanted.
        on_asked: told how many were asked, and of how many.

    Raises:
        ModelMismatchError: a scope was written with another model than the memory's.
        ShardError: a scope's ledger is damaged.
        TransientError: a ledger is locked.
    """
    group_of = groups(questions)
    pairs = [(question, question.scope) for question in questions] + list(_foreign(questions))
    made = []
    for n_done, (question, scope) in enumerate(pairs, start=1):
        example = _example(memory, question, scope, features, group_of[question.id])
        if example is not None:
            made.append(example)
        on_asked(n_done, len(pairs))
    return made


def _foreign(questions: Sequence[AskedQuestion]) -> Iterator[tuple[AskedQuestion, Scope]]:
    scopes = sorted({question.scope for question in questions})
    if len(scopes) > 1:
        other = {scope: scopes[(place + 1) % len(scopes)] for place, scope in enumerate(scopes)}
        for question in questions[:: max(1, -(-len(questions) // MOST_FOREIGN))]:
            yield question, other[question.scope]


def _example(
    memory: Memory, question: AskedQuestion, scope: Scope, features: Sequence[str], group: str
) -> Example | None:
    found = memory.candidates(question.text, scope, asked_at=question.asked_at)
    if found is None or not len(found.passages.candidates):
        return None
    wanted = question.turns if scope == question.scope else frozenset[str]()
    return Example(
        scope=group,
        columns=matrix(found.question, found.passages, features, mean_words=found.mean_words),
        is_evidence=np.array([found.places[row].turn.turn_id in wanted for row in found.passages.candidates]),
        names_a_stranger=found.question.names_a_stranger,
        is_foreign=scope != question.scope,
    )
