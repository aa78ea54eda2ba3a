"""What must survive when a text is shortened: spans that no other words can stand for.

| kind | for example |
|---|---|
| code | ``` `git push` ```, `load_settings()`, `maxRetries`, `--dry-run` |
| address | a URL, a path, a mail address, `@ana` |
| id | `ORD-7731`, `v2.4`, a digest |
| number | `90 days`, `€ 40`, `three old dogs` (with what it counts) |
| date | `3 May`, `last week`, `周末` |
| negation | the whole clause in which something is denied |
| name | a capitalised word that is not one by its place alone |
| decision | the whole clause in which something was settled |

Why spans and not words: "90" without "days" says something else, and "the kitchen will not be painted green" with any
word less is a kitchen that is painted, or that never will be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from retrieval.fused.lexical import STOP_WORDS

CLAUSE_END: Final = re.compile(r"[.!?;:,…][\"'”’)\]]*(?=\s|$)|[。！？；，、：…]|\n")

_WITHIN_SENTENCE: Final = ",;:，；、："
_SENTENCE_END: Final = re.compile(r"[.!?…][\"'”’)\]]*(?=\s|$)|[。！？…]|\n")


class Span(NamedTuple):
    """Characters ``[start, stop)`` of a text, and why they stay."""

    start: int
    stop: int
    kind: str


_NUMBER_WORDS: Final = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty|hundred"
    "|thousand|million|billion|half|dozen|twice|couple"
)
_MONTHS: Final = (
    "January|February|March|April|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
)
_DAYS: Final = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_SAID_BY_CALENDAR: Final = (
    rf"\b(?:\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?(?:{_MONTHS}|May)|{_MONTHS}|May(?=\s\d)"
    rf"|(?i:{_DAYS}|yesterday|today|tomorrow|tonight))\b\.?(?:,?\s\d{{1,4}}\b)*"
    r"|\b(?i:last|next|this|past)\s(?i:week|month|year|weekend|night|summer|winter|spring|fall|autumn)\b"
    r"|[今明昨前去][天年]|[上下][周个]?[个]?[月周]|星期.|周末|周[一二三四五六日]"
)
_DENIED: Final = re.compile(
    r"(?<![\w-])(?i:not|no|never|none|nobody|nothing|neither|nor|cannot|without|hardly|\w+n['’]t)(?![\w-])"
    r"|[不没无別别未非]"
)
_PATTERNS: Final = {
    "code": r"```.*?```|`[^`\n]+`|(?<!\S)--?[a-z][\w-]+(?:=\S+)?|\b\w+\(\)"
    r"|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b|\b\w+(?:_\w+)+\b|\b\w+(?:::\w+)+\b|</?\w+>",
    "address": r"\b(?:https?|ftp|file|redis|postgres(?:ql)?)://\S*[^\s.,;:!?)\]]|\bwww\.\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<!\S)@\w+|(?<![\w/])(?:~|\.{1,2})?/[\w.@~+-]+(?:/[\w.@~+-]*)*|\b[A-Za-z]:\\\S+"
    r"|\b[\w-]+(?:/[\w.-]+)+\.\w+\b|\b[\w-]+\.(?:py|js|ts|md|txt|json|toml|ya?ml|sql|csv|log|conf|sh|html)\b",
    "id": r"(?<!\w)#\w+|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9]+(?:[-.][A-Za-z0-9]+)+\b"
    r"|\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{2,}\b",
    "date": _SAID_BY_CALENDAR,
    "number": r"(?:[$€£¥]\s?)?\d(?:[\d.,:/-]*\d)?(?:\s?[%€$£¥°][CF]?|\s?(?P<unit>[^\W\d_]+))?"
    rf"|\b(?i:{_NUMBER_WORDS})\b(?:\s(?P<counted>[^\W\d_]+))?"
    r"|[零〇一二三四五六七八九十百千万两几]+[^\W\d_]",
}
_FOLLOWING: Final = re.compile(r"(?:\s[^\W\d_][\w'’-]*){1,5}")
_SPACED_WORD: Final = re.compile(r"\s\S+")
_BEFORE_NOUN: Final = frozenset(
    ("very", "more", "other", "of", "the", "these", "those", "my", "our", "your", "their", "such")
)
_MOST_OF_NOUN: Final = 2
"""An adjective and its noun: no list of words can tell where a noun ends."""
_SIGNS: Final = {
    "code": re.compile(r"[`_<]|--?[a-z]|\(\)|::|[a-z][A-Z]"),
    "address": re.compile(r"[/@\\]|www\.|\w\.\w"),
    "id": re.compile(r"[\d#]"),
}
"""Without one of these a text holds none of the kind; most prose has none of them, and is read faster."""
_DECISION: Final = re.compile(
    r"\b(?i:decided?|decision|agreed|settled\son|chose|chosen|(?:we|i)(?:['’]ll|\swill)\s(?:use|go|take|keep)"
    r"|going\swith|let['’]?s\s(?:use|go\swith|keep|take)|must\s(?:not|never|always|only)|approved|rejected|confirmed)\b"
    r"|决定|同意|选择|选定|确定|必须|批准|拒绝"
)
_CAPITALISED: Final = re.compile(r"[^\W\d_a-z][\w'’-]*")
_STARTS: Final = re.compile(r"(?:^|[.!?…:]\s*[\"'“‘(]?|\n\s*(?:[-*>]\s*)?)$")
_COMMON_STARTS_TEXT: Final = """
absolutely actually add also although amazing anyway ask aw awesome back basically because besides bye call certainly
check close come congrats congratulations consider cool copy create definitely delete even everyone everything
exactly fantastic finally find first fix give glad good got great ha had haha hello hey hi hmm honestly hopefully
however indeed just keep last let let's life like literally lol look love make many maybe meanwhile move much need
nice nope note now oh ok okay once one only open originally people perhaps please point probably put read really
remember remove right run saw see seems send set show since so some someone something sometimes sorry sounds start
still stop such sure take tell thank thanks then think though thought time today totally true try turn until update
use wait want watch well whatever while wish wow write yeah yep yes yet
"""
_COMMON_STARTS: Final = frozenset(_COMMON_STARTS_TEXT.split())
_WORD: Final = re.compile(r"\w+")
_NO_NAME: Final = ("ing", "ly", "ed")
_MAX_CLAUSE_CHARS: Final = 200
"""To either side of the word that denies or decides: text without any mark is one clause."""


def spans(text: str) -> list[Span]:
    """List what must stay of a text, in order and without overlaps."""
    kinds = tuple(kind for kind in _PATTERNS if kind not in _SIGNS or _SIGNS[kind].search(text))
    found = [_span(match, kinds) for match in _pattern(kinds).finditer(text)]
    found += _names(text)
    found += _clauses(text, _DECISION, "decision")
    found += _clauses(text, _DENIED, "negation")
    return _merged(sorted(found))


@lru_cache(maxsize=16)
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in kinds), re.DOTALL)


def _span(match: re.Match[str], kinds: Sequence[str]) -> Span:
    """Give one match; a number with what it counts."""
    kind = next(name for name in kinds if match[name] is not None)
    stop = match.end()
    for follower in ("unit", "counted"):
        if match[follower] is not None and match.string[match.start(follower) - 1].isspace():
            stop = match.start(follower) - 1
    return Span(match.start(), _noun_end(match.string, stop) if kind == "number" else match.end(), kind)


def _noun_end(text: str, start: int) -> int:
    """Tell where the noun after a number ends: "of the", then up to two words that say something."""
    following = _FOLLOWING.match(text, start)
    if following is None:
        return start
    stop, place, n_telling = start, start, 0
    for word in _SPACED_WORD.findall(following[0]):
        place += len(word)
        is_telling = word[1:].casefold() not in STOP_WORDS
        if n_telling == _MOST_OF_NOUN or not (is_telling or (not n_telling and word[1:].casefold() in _BEFORE_NOUN)):
            break
        if is_telling:
            stop, n_telling = place, n_telling + 1
    return stop


def _names(text: str) -> list[Span]:
    """Find names; a word that begins a sentence is one too, unless it is common or stands elsewhere in lower case."""
    lower_case = frozenset(word for word in _WORD.findall(text) if word.islower())
    found = []
    for match in _CAPITALISED.finditer(text):
        word = match[0].casefold()
        if not match[0][0].isupper() or word in STOP_WORDS or word.split("'")[0].split("’")[0] in STOP_WORDS:
            continue
        starts = _STARTS.search(text, max(0, match.start() - 8), match.start()) is not None
        if starts and (word in _COMMON_STARTS or word in lower_case or word.endswith(_NO_NAME)):
            continue
        found.append(Span(match.start(), match.end(), "name"))
    return found


def _clauses(text: str, says: re.Pattern[str], kind: str) -> list[Span]:
    """Find the clauses that say something of a kind, whole; up to the sentence's end if the word ends its clause."""
    found: list[Span] = []
    for match in says.finditer(text):
        if found and match.end() <= found[-1].stop:
            continue
        earliest, latest = max(0, match.start() - _MAX_CLAUSE_CHARS), match.end() + _MAX_CLAUSE_CHARS
        begins = [end.end() for end in CLAUSE_END.finditer(text, earliest, match.start())]
        end = CLAUSE_END.search(text, match.end(), latest)
        if end is not None and end.start() == match.end() and end[0][0] in _WITHIN_SENTENCE:
            end = _SENTENCE_END.search(text, match.end(), latest)
        stop = end.start() if end else min(len(text), latest)
        start = begins[-1] if begins else earliest
        start += len(text[start : match.start()]) - len(text[start : match.start()].lstrip())
        found.append(Span(start, stop, kind))
    return found


def _merged(ordered: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in ordered:
        if merged and span.start < merged[-1].stop:
            last = merged[-1]
            merged[-1] = Span(last.start, max(last.stop, span.stop), last.kind)
        else:
            merged.append(span)
    return merged
