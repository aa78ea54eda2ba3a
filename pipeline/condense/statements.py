"""Sentences in which the speaker states something, out of all that a turn says.

Left out is what would make a fact of something else: questions, what is only supposed or wished for, what others
said or say in quotation marks, what is quoted, pasted or to be translated, and code. Rather too much is left out than
a fact made that nobody stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MOST_CHARS: Final = 20_000
"""Of a turn: what is longer is a document, not somebody telling of himself."""
_MOST_SENTENCE_CHARS: Final = 400
_PASTED: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|^[ \t]*>.*$", re.DOTALL | re.MULTILINE)
_QUOTED: Final = re.compile(r"\"[^\"]*\"|“[^”]*”|«[^»]*»|「[^」]*」|『[^』]*』|(?<!\w)'(?=[^'\n]*\s)[^'\n]+'(?!\w)")
_END: Final = re.compile(r"(?<=[.!?…])[\s)]+|(?<=[。！？])|\n+")
_ABBREVIATION: Final = re.compile(r"(?:^|\s)(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Mt|No|e\.g|i\.e|a\.m|p\.m)\.\s*$")
_ASKS: Final = re.compile(
    r"[?？]\W*$|吗\W*$|呢\W*$"
    r"|^(?:do|does|did|am|are|is|was|were|can|could|will|would|should|have|has|what|where|who|when|why|how|which)\b"
    r"(?!.*\bbecause\b)",
    re.IGNORECASE,
)
_SUPPOSES: Final = re.compile(
    r"\b(?:if|unless|whether|suppose|supposing|imagine|pretend|assume|assuming|wish|would|could|might|maybe|perhaps"
    r"|as though|hypothetically|let's say|for example|e\.g\.|for instance|in theory|dreamt|dreamed|once upon|act as"
    r"|role ?play|translate|rewrite|rephrase|write|lyrics|quote|character|novel|poem|fictional)\b"
    r"|如果|要是|假如|假设|假装|希望|也许|可能|或许|翻译|比如|想象",
    re.IGNORECASE,
)
_REPORTS: Final = re.compile(
    r"\b(?!I\b)(?:[A-Za-z]+(?:'s)?)\s+(?:just\s+|also\s+|always\s+|once\s+|has\s+|had\s+|already\s+)*"
    r"(?:says?|said|saying|tells?|told|telling|wrote|writes|writing|asks?|asked|claims?|claimed|replied|answered"
    r"|mentioned|mentions|texted|thinks|thought|believes?|believed|heard|explained|goes|went like|was like)\b"
    r"|\baccording to\b|(?:[他她]们?|朋友|妈妈|爸爸|同事)[^。，]{0,6}(?:说|告诉|写|问)|有人说|据说",
    re.IGNORECASE,
)
_SPOKEN_BY: Final = re.compile(r"^\s*(?P<who>[A-Z][\w .'-]{0,30}|[\u4e00-\u9fff]{1,6})[:：]\s")
_NO_SPEAKERS: Final = frozenset({"note", "fyi", "update", "edit", "ps", "correction", "me", "i", "about me", "我"})


def statements(content: str, speaker: str | None = None) -> Iterator[str]:
    """Yield the sentences of a turn that state something, as they stand, each at most 400 characters.

    Args:
        content: of the turn.
        speaker: who says it: a line that begins with his name is his, one with another's name is not.
    """
    text = _QUOTED.sub(" … ", _PASTED.sub(" ", content[:MOST_CHARS]))
    for line in text.splitlines():
        spoken = _SPOKEN_BY.match(line)
        if spoken and spoken["who"].casefold() not in {*_NO_SPEAKERS, (speaker or "").casefold()}:
            continue
        rest = line[spoken.end() :] if spoken else line
        yield from filter(_is_statement, _sentences(rest))


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(line):
        if not _ABBREVIATION.search(line, max(start, end.start() - 8), end.start()):
            yield line[start : end.start()].strip()[:_MOST_SENTENCE_CHARS]
            start = end.end()
    yield line[start:].strip()[:_MOST_SENTENCE_CHARS]


def _is_statement(sentence: str) -> bool:
    return bool(sentence) and not (_ASKS.search(sentence) or _REPORTS.search(sentence))


def is_supposed(before: str) -> bool:
    """Tell whether what stands before a statement in its sentence makes it one that is not meant."""
    return _SUPPOSES.search(before) is not None
