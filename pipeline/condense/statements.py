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
_FICTION: Final = re.compile(
    r"\bin\s+(?:the|my|this|that|a|an|our|your|another|his"
    r"|her)\s+(?:\w+\s+){0,2}?(?:games?|story|book|movie|film|dreams?"
    r"|play|simulation|scenario|example|series|show|campaign|fantasy"
    r"|nightmare|joke|sketch|song|universe|world|timeline"
    r"|video|script|chapter|scene|essay|script|fanfic|comic|manga|anime"
    r"|minds?|imagination|head|past|future|alternate)\b"
    r"|\bin\s+(?:minecraft|real life i wish|sims|fiction)\b|\b(?:supposedly|allegedly|hypothetically|theoretically)\b"
    r"|\bor so (?:he|she|they|you|I|it)\b|\brumou?rs?\b|\bin (?:your|his|her|their) (?:opinion|view|eyes)\b|/s\s*$"
    r"|游戏里|梦里|小说里|故事里|电影里|剧里",
    re.IGNORECASE,
)
_SOME_DAY: Final = re.compile(
    r"^\W*(?:and|but|so|then|well)?\W*(?:once|as soon as|by the time|when"
    r"|whenever|until|till|as long as|the (?:moment|day|minute)"
    r"|in case)\b|\b(?:next|tomorrow|some ?day|one day|eventually|soon|by then|back then|in the (?:future|past)"
    r"|(?:in|within) (?:a|an|one|two|three|four|five|ten"
    r"|\d+) (?:few )?(?:day|week|month|year)s?)\b|明年|将来|以后|下个月|小时候|以前"
    r"|总有一天",
    re.IGNORECASE,
)
"""A time that is not now."""
_LATER: Final = re.compile(
    r"\b(?:once|whenever|when|as soon as|before|unless|until|till|next|tomorrow|some ?day|if)\b"
    r"|\bin (?:a|an|one|two|three|four|five|ten|\d+) (?:few )?(?:day|week|month|year)s?\b",
    re.IGNORECASE,
)
_NO_MORE: Final = re.compile(r"\b(?:no more|no longer)\b", re.IGNORECASE)
_ON_CONDITION: Final = re.compile(
    r"[,;—–]\s*(?:only\s+)?(?:if|unless|provided|assuming)\s+(?!you must"
    r"|you're|you are|you want|(?:that|it) (?:helps|matters))",
    re.IGNORECASE,
)
_LEADS: Final = re.compile(
    r"(?:(?:hi|hey|hello|hiya|yo|there|all|everyone|guys|folks|yes|yeah|yep"
    r"|no|nope|ok|okay|oh|ah|um|well|sure|thanks|please|btw"
    r"|fyi|by the way|also|actually|currently|now|right now|today|nowadays"
    r"|recently|lately|finally|personally|honestly"
    r"|basically|obviously|frankly|luckily|fortunately|unfortunately|sadly"
    r"|anyway|plus|though|although|that|too|yesterday"
    r"|for (?:context|reference|the record|now|your information|work"
    r"|a living)|just so you know|(?:as )?you know|to be honest"
    r"|tbh|these days|at the moment|as of (?:now|today)|since|because|and"
    r"|but|note|remember|(?:as|like) I (?:said|mentioned)"
    r"|(?:last|this) (?:week|month|year|spring|summer|autumn|fall|winter|time|weekend)"
    r"|in (?:19|20)\d\d|in (?:january|february|march|april|may|june|july|august|september|october|november|december)"
    r"|(?:\w+ )?(?:weeks?|months?|years?) ago|I(?:'m"
    r"| am)? (?:really )?(?:think|guess|believe|suppose|sure|afraid|should mention)"
    r"|me|my (?:wife|husband|partner|family|girlfriend|boyfriend|kids)"
    r"|probably|in fact|in (?:my|our) case|it's true|of course)"
    r"(?:\W+|$))*",
    re.IGNORECASE,
)
"""What may stand before 'I' in its clause: whatever else does may be what somebody says, thinks, or waits for."""
_GOVERNS: Final = re.compile(
    r"\b(?:before|after|once|when|while|until|till|than|(?<!I )(?:think"
    r"|believe|guess)|says?|said|tell|told|claim\w*|assum\w+"
    r"|pretend\w*|lie|lied|lying|jok\w+|insist\w*|expect\w*|thought|bet|doubt\w*|suspect\w*)\b",
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


def is_fiction(sentence: str) -> bool:
    """Tell whether a sentence speaks of a game, a dream or a rumour, or sets a condition at its end."""
    return _FICTION.search(sentence) is not None or _ON_CONDITION.search(sentence) is not None


def is_some_day(before: str, clause_after: str) -> bool:
    """Tell whether a statement holds at another time than now, or under a condition.

    Args:
        before: what stands before it in its sentence.
        clause_after: what follows it in its clause.
    """
    return _SOME_DAY.search(before) is not None or _LATER.search(clause_after) is not None


def is_no_more(clause_after: str) -> bool:
    """Tell whether what follows takes a statement back."""
    return _NO_MORE.search(clause_after) is not None


def is_led(clause_before: str, *, by_subject: bool) -> bool:
    """Tell whether a statement stands for itself, as far as what stands before it in its clause tells.

    Args:
        clause_before: that.
        by_subject: the statement begins with 'I' or 'we'.
    """
    if by_subject:
        return _LEADS.fullmatch(clause_before.strip(" \t\"'()-*•…")) is not None
    return _GOVERNS.search(clause_before) is None
