"""What can be the value of a fact: by its shape, and by words that are none.

Places and employers are proper names: written as such, unless somebody writes all in small letters. Rather a place is
left out than a state of mind taken for one.
"""

from __future__ import annotations

import re
from typing import Final

from pipeline.condense import chinese, english
from pipeline.condense.english import ENDED

TASTES: Final = frozenset({"likes", "dislikes"})
_MOST_GENERIC_WORDS: Final = 6
_MOST_SMALL_WORDS: Final = 3
_AGES: Final = range(3, 121)
_UNENDED: Final = re.compile(r"\b(?:of|like|for|to|in|on|at|with|by|from|the|an?|my|your)$", re.IGNORECASE)
_NEGATIVE: Final = re.compile(r"\b(?:no|not|never|none|nobody|nothing|neither|nor|zero)\b", re.IGNORECASE)
_GOES_ON: Final = re.compile(
    r"(?:^|\s)(?:I|i|we|he|she|they|you|it|is|was|were|are|will|would|has"
    r"|had|that|which|who|everything|everyone|if)\b"
)
"""A clause begins where the value should have ended."""
_JOINS: Final = re.compile(
    r"of|de|la|le|les|da|di|du|del|della|der|den|des|am|an|im|auf|und|et|y"
    r"|the|and|&|upon|on|sur|do|dos|von|van|zu|al|el"
    r"|los|las|for|in"
)
_FRONT: Final = re.compile(r"(?:the|downtown|central|greater|(?:north|south|east|west)(?:ern)?)\s+")
_ACRONYMS: Final = frozenset({"UK", "US", "USA", "NYC", "LA", "SF", "UAE", "DC", "NZ", "HK"})


def is_value(key: str, value: str, *, is_generic: bool, is_small: bool) -> bool:
    """Tell whether a value may be one of this key's.

    Args:
        key: of the fact.
        value: without what surrounds it.
        is_generic: the speaker chose the key's words himself.
        is_small: the speaker writes in small letters throughout.
    """
    key = key.removeprefix(ENDED)
    if not value or _UNENDED.search(value):
        return False
    if chinese.HAN.search(value):
        return chinese.is_value(key, value)
    if key == "age":
        return int(value) in _AGES
    if _NEGATIVE.search(value) or (key != "plan" and (english.REJECTED.match(value) or _GOES_ON.search(value))):
        return False
    return _is_of_key(key, value, is_small=is_small) and not (is_generic and not _is_lasting(key, value))


def _is_of_key(key: str, value: str, *, is_small: bool) -> bool:
    if key in english.PLACES:
        return not english.NO_PLACE.match(value) and _is_place(value, is_small=is_small)
    if key == "employer":
        return english.ORGANISATION.fullmatch(value) is not None or _is_name(value, is_small=is_small)
    if key in TASTES:
        return english.NO_TASTE.search(value) is None
    return key != "allergy" or english.NO_ALLERGEN.search(value) is None


def _is_place(value: str, *, is_small: bool) -> bool:
    words = value.split()
    is_tool = english.TOOLS.fullmatch(words[0]) is not None
    has_code = any(char.isdigit() for char in value) or any(
        word.isupper() and len(word) > 1 and word not in _ACRONYMS for word in words
    )
    return not is_tool and not has_code and _is_name(value, is_small=is_small)


def _is_name(value: str, *, is_small: bool) -> bool:
    """Tell whether something is written as a proper name is."""
    if english.NO_NAME.match(value) or not any(char.isalpha() for char in value):
        return False
    words = _FRONT.sub("", value, count=1).split()
    if not words:
        return False
    if is_small and value == value.lower():
        return len(words) <= _MOST_SMALL_WORDS and not any(english.COMMON.fullmatch(word) for word in words)
    return not words[0][0].islower() and all(not word[0].islower() or _JOINS.fullmatch(word) for word in words)


def _is_lasting(key: str, value: str) -> bool:
    """Tell what something is from how it is just now: 'my head is spinning'."""
    is_activity = re.search(r"hobby|passion|sport|dream", key) is not None
    is_state = re.match(r"\w+(?:ed|ing)\b", value) is not None and not is_activity
    return not is_state and len(value.split()) <= _MOST_GENERIC_WORDS
