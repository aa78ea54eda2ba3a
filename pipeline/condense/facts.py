"""What a user says of himself: facts that a turn states, by patterns that can be read.

Each is a key and a value with a confidence; who says it, where and when is the turn's. A fact is made of what the
user himself states: not of questions, negations, suppositions, wishes, or what others say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pipeline.condense import chinese, english
from pipeline.condense.english import Pattern
from pipeline.condense.statements import (
    MOST_CHARS,
    is_fiction,
    is_led,
    is_no_more,
    is_some_day,
    is_supposed,
    statements,
)
from pipeline.condense.values import TASTES, is_value

RULES: Final = 2
"""Number of these rules; change it whenever another fact could be found, and stored ones are found anew."""
MANY: Final = frozenset({"likes", "dislikes", "pets", "plan", "language", "allergy", "does not eat"})
"""Keys of which several values hold at a time; of every other the latest counts."""
_MOST: Final = 16
_MOST_VALUE_CHARS: Final = 100
_HEDGED: Final = 0.6
_NEGATED: Final = re.compile(
    r"\b(?:not|never|no longer|nobody|hardly|untrue|wrong|false|used to)\b|n't\b", re.IGNORECASE
)
_CLAUSE: Final = re.compile(r"[,;:—–，；：]|\b(?:but|and|so|because|since)\b|但是?|所以|因为", re.IGNORECASE)
_HEDGES: Final = re.compile(r"\b(?:i think|i guess|probably|kind of|sort of|more or less)\b|我想|大概", re.IGNORECASE)
_TAKEN_BACK: Final = re.compile(
    r"\b(?:just kidding|kidding|joking|jk|not really|as a joke|if only"
    r"|(?:ha){2,}h?|lo+l|lmao|he(?:he)+)\b|开玩笑|哈哈"
    r"|[,—–-]\s*not\W*$",
    re.IGNORECASE,
)
_AND: Final = re.compile(r"\s*(?:,|、|/|&|\band\b|\bor\b|和|与|及|以及|还有)\s*(?:\b(?:and|or)\b\s*)?", re.IGNORECASE)
_TRAILING: Final = re.compile(
    r"(?:\s+(?:now|too|again|currently|today|actually|btw|though|right now|as well|so much|a lot|very much|fluently"
    r"|at all|anymore|these days|with .*|from .*|near .*|at .*|in (?:early|late)?\s*\d{4}|on my own))+$",
    re.IGNORECASE,
)
_SUBJECT: Final = re.compile(r"(?:I|Im|we)\b", re.IGNORECASE)
_SMALL_I: Final = re.compile(r"(?<![\w'])i\b|(?<![\w'])im\b")
_ARTICLE: Final = re.compile(r"^(?:the|an?|some|my)\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StatedFact:
    """One thing that a turn states about its speaker."""

    key: str
    value: str
    confidence: float


def facts_in(content: str, speaker: str | None = None) -> list[StatedFact]:
    """Read the facts that a user's turn states, in their order, each once.

    Args:
        content: of the turn.
        speaker: who says it, if the turn tells.
    """
    found: dict[tuple[str, str], StatedFact] = {}
    if not _may_state(content):
        return []
    for sentence in statements(content, speaker):
        for fact in _of_sentence(sentence):
            found.setdefault((fact.key, folded(fact.value)), fact)
            if len(found) == _MOST:
                return list(found.values())
    return list(found.values())


def folded(value: str) -> str:
    """Give a value in the form in which equal ones are equal."""
    return _ARTICLE.sub("", " ".join(value.casefold().split())).strip(" .'\"!")


_HINT: Final = re.compile(r"(?<![\w'])(?:I|Im|we)\b|\bmy\b|\bcalls? me\b|我", re.IGNORECASE)


def _may_tell(content: str) -> bool:
    return _HINT.search(content) is not None


def _may_state(content: str) -> bool:
    """Tell whether any pattern reads anything in a text: most texts are done with here."""
    content = content[:MOST_CHARS]
    if not _may_tell(content):
        return False
    if "我" in content:
        return True
    lowered = content.lower()
    return any(
        pattern.stated.search(content)
        for pattern in english.PATTERNS
        if any(hint in lowered for hint in pattern.hints)
    )


def _of_sentence(sentence: str) -> Iterator[StatedFact]:
    if not _may_tell(sentence) or _TAKEN_BACK.search(sentence) or is_fiction(sentence):
        return
    is_chinese = "我" in sentence
    taken: list[tuple[int, int]] = []
    lowered = sentence.lower()
    for pattern in chinese.PATTERNS if is_chinese else english.PATTERNS:
        if not any(hint in lowered for hint in pattern.hints):
            continue
        for match in pattern.stated.finditer(sentence):
            span = match.span("v")
            before = sentence[: match.start()]
            if any(start < span[1] and span[0] < stop for start, stop in taken):
                continue
            if not _is_meant(pattern, match):
                continue
            facts = [*_facts_of(pattern, match, hedged=_HEDGES.search(before) is not None)]
            if facts:
                taken.append(span)
            yield from facts


def _is_meant(pattern: Pattern, match: re.Match[str]) -> bool:
    before, after = match.string[: match.start()], match.string[match.start("v") :]
    clause, clause_after = _CLAUSE.split(before)[-1], _CLAUSE.split(after)[0]
    if is_supposed(before) or _NEGATED.search(clause) or chinese.NEGATED.search(clause):
        return False
    is_english = not chinese.HAN.search(match[0])
    if is_english and not is_led(clause, by_subject=_SUBJECT.match(match[0]) is not None and pattern.key != "plan"):
        return False
    if pattern.key.startswith(english.ENDED):
        return True
    if pattern.key == "plan":
        return not is_no_more(clause_after)
    is_taste = pattern.key in TASTES
    return not (is_no_more(clause_after) or is_some_day(before, "" if is_taste else clause_after))


def _facts_of(pattern: Pattern, match: re.Match[str], *, hedged: bool) -> Iterator[StatedFact]:
    key = " ".join((pattern.key or match["k"]).casefold().split()).replace("favourite", "favorite")
    is_small = _SMALL_I.search(match[0]) is not None or match.string == match.string.lower()
    values = _AND.split(match["v"]) if pattern.is_list else [match["v"]]
    for value in map(_cleaned, values):
        if is_value(key, value, is_generic=not pattern.key, is_small=is_small):
            yield StatedFact(key, value, round(pattern.confidence * (_HEDGED if hedged else 1), 2))


def _cleaned(value: str) -> str:
    value = _TRAILING.sub("", " ".join(value.split()).strip(" '\"-–—…"))
    return value.removesuffix("'s").removesuffix("’s")[:_MOST_VALUE_CHARS]
