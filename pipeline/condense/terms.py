"""The words of a text that can tell what it is about."""

from __future__ import annotations

import re
from sys import intern
from typing import Final

from pipeline.scripts import CJK

_WORD: Final = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’][^\W_{CJK}]+)?")
_IS_CJK: Final = re.compile(rf"[{CJK}]")
_MOST_CHARS: Final = 4_000
_LEAST_CHARS: Final = 2
_SHORTEST_PLURAL: Final = 4
_PLURALS: Final = (("ies", "y"), ("oes", "o"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("sses", "ss"))
_STOP_TEXT: Final = """
    a about actually after again all already also always am an and any anything are aren't around as ask asked at back
    be because been before being best better between big both but by can can't cannot come could couldn't day days did
    didn't do does doesn't doing don't done down each else even ever every few find fine first for found from fully
    further get gets getting give given go goes going gone good got great had has have having he he'd he's hello help
    her here hers hey hi him his how however i i'd i'll i'm i've if in into is isn't it it's its itself just keep kind
    know last later least let let's like little long look lot made make makes making many may maybe me might more most
    much must my need needed needs never new next nice no not nothing now of off often oh ok okay old on once one only
    or other our out over own part please put quite rather really right said same say see seem set several she should
    show since small so some something soon still such sure take tell than thank thanks that that's the their them
    then there there's these they they're thing things think this those through time to today told tomorrow too two
    under until up us use used using very via want wanted was wasn't way we we'll we're we've well went were what
    what's when where which while who why will with without won't would yeah yes yesterday yet you you'd you'll you're
    you've your yours assistant user
"""
_STOP: Final = frozenset(_STOP_TEXT.split())


def terms(text: str) -> tuple[str, ...]:
    """List the different telling words of a text, in the order in which they come.

    Small words are left out; a script without spaces gives pairs of characters. Only the text's beginning is read.
    """
    found: dict[str, None] = {}
    for match in _WORD.finditer(text[:_MOST_CHARS].casefold()):
        word = match.group().replace("’", "'").removesuffix("'s")
        if _IS_CJK.match(word):
            found.update(dict.fromkeys(word[i : i + 2] for i in range(max(1, len(word) - 1))))
        elif len(word) >= _LEAST_CHARS and word not in _STOP and not word.isdigit():
            found[_singular(word)] = None
    return tuple(map(intern, found))


def _singular(word: str) -> str:
    """Take off a plural's ending: "trains" and "train" are one word, and what is left can still be read."""
    if len(word) < _SHORTEST_PLURAL or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    for ending, singular in _PLURALS:
        if word.endswith(ending):
            return word[: -len(ending)] + singular
    return word[:-1]
