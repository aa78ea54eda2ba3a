"""A summary without a model: the sentences nearest the session's theme, word for word.

Centroid summarisation: words weighed by frequency and rarity make the session's theme; a sentence scores by its
cosine to it, a little more for names, numbers and dates, and less for what is already said. The choice is greedy
(maximal marginal relevance), the output in the session's order, each line with its speaker.

Why: it needs no network, costs nothing, says the same every time, and keeps names and dates verbatim, which is what
a session is found by. Sources: Radev et al. 2004 (centroid), Carbonell and Goldstein 1998 (marginal relevance).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pipeline.errors import SummaryError
from pipeline.scripts import CJK
from pipeline.summarise.invoker import Completion

MODEL: Final = "extractive-1"
"""The model id of these summaries; change it whenever another sentence could be chosen."""

_MAX_SENTENCE_CHARS: Final = 400
_N_CANDIDATES: Final = 200
_THEME_WORDS: Final = 200
_SAME: Final = 0.75
_RELEVANCE: Final = 0.7
_SHORT_TERMS: Final = 4
_NAME_BONUS, _NUMBER_BONUS, _DATE_BONUS, _QUESTION_MALUS = 0.20, 0.16, 0.20, 0.08

_SPEAKER = re.compile(r"(?P<who>[^\s:：][^:：\n]{0,79}?)[:：]\s+(?P<rest>\S.*)")
_END = re.compile(
    r"""(?: (?<=[.!?…]) ["'”’)\]]* \s+ (?=[^\sa-z])  # a mark, a space, and no small letter
          | (?<=[。！？]) [」』”’）]*                  # full width: no space needed
          | (?<=[\u2600-\u27bf\U0001f300-\U0001faff]) \s+ (?=[^\W\d_a-z]) )""",
    re.VERBOSE,
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Mt|vs|etc|No|e\.g|i\.e|a\.m|p\.m)\.$")
_TERM = re.compile(rf"[{CJK}]+|[^\W_{CJK}]+(?:['’-][^\W_{CJK}]+)*")
_IS_CJK = re.compile(rf"[{CJK}]")
_NAME = re.compile(r"(?<=[^\s.!?…:]\s)[A-Z][^\W\d_]+")
_NUMBER = re.compile(r"\d")
_DATE = re.compile(
    r"\b(?:January|February|March|April|June|July|August|September|October|November|December|(?:Mon|Tues|Wednes|"
    r"Thurs|Fri|Satur|Sun)day|yesterday|tomorrow|tonight|last (?:week|month|year|night)|next (?:week|month|year))\b"
    r"|\bMay\b(?=\s\d)|(?<=\d\s)May\b|\d{4}-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|[年月日]|昨天|明天|昨日|明日",
    re.IGNORECASE,
)
_INSIDE_A_WORD = re.compile(r"(?<=[A-Za-z0-9])[A-Za-z0-9]")
_TOKEN = re.compile(r"[A-Za-z]{1,6}|[0-9]{1,3}|\S")

_STOPWORDS_TEXT: Final = """
a about after again all also am an and any are as at be because been but by can could did do does don't for
from get go going got had has have he her here hey hi him his how i i'd i'll i'm i've if in into is it it's
its just know let like lol me more much my no not now of off oh ok okay on one or our out over really she
should so some such than thank thanks that that's the their them then there these they they're this those to
too up us very was we we're well were what what's when where which who why will with would wow yeah yes you
you're your user assistant
"""
STOPWORDS: Final = frozenset(_STOPWORDS_TEXT.split())


@dataclass(frozen=True, slots=True)
class _Sentence:
    line: int
    who: str
    text: str
    terms: dict[str, int]


class ExtractiveInvoker:
    """Choose the session's most telling sentences; the instructions are not read.

    The tokens of its completions are 0: nothing is billed.
    """

    def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:  # noqa: ARG002 - no model to tell
        """Summarise a session written by `session_text`, in at most ``max_tokens`` as `budget_tokens` counts.

        Raises:
            SummaryError: the text is blank.
        """
        sentences = list(_sentences(user))
        if not sentences:
            raise SummaryError("there is no text to summarise; a blank session needs no summary")
        present = frozenset(name for s in sentences for name in _words(s.who))
        weights = _term_weights(sentences, present)
        vectors = [_unit({t: n * weights.get(t, 0.0) for t, n in s.terms.items()}) for s in sentences]
        theme = _theme(vectors)
        scores = [_dot(v, theme) + _bonus(s, present) for s, v in zip(sentences, vectors, strict=True)]
        chosen = _choose(sentences, vectors, scores, max_tokens)
        return Completion(_render([sentences[i] for i in sorted(chosen)], max_tokens), 0, 0, MODEL)


def budget_tokens(text: str) -> int:
    """Estimate tokens of a summary, rather too many than too few.

    One per six letters begun, per three digits begun, and per other character that is not a space. WordPiece and
    the common byte-pair vocabularies take fewer for prose in English and about as many for Chinese.
    """
    return len(_TOKEN.findall(text))


def _sentences(text: str) -> Iterator[_Sentence]:
    """Yield sentences in order; an indented line goes on with the turn above it."""
    who = ""
    for number, line in enumerate(text.splitlines()):
        rest = line.strip()
        if not line[:1].isspace():
            spoken = _SPEAKER.fullmatch(rest)
            who, rest = (spoken["who"], spoken["rest"]) if spoken else ("", rest)
        for sentence in split_sentences(rest):
            yield _Sentence(number, who, sentence, _terms(sentence))


def split_sentences(line: str) -> list[str]:
    """Cut a line into sentences: at full stops of several scripts and after emoji, not after abbreviations."""
    return list(_between_ends(line))


def _between_ends(line: str) -> Iterator[str]:
    start = 0
    for end in _END.finditer(line):
        if _ABBREVIATION.search(line, max(start, end.start() - 8), end.start()):
            continue
        yield from _bounded(line[start : end.end()].strip())
        start = end.end()
    yield from _bounded(line[start:].strip())


def _bounded(sentence: str) -> Iterator[str]:
    """Cut what goes on and on without a full stop, between words where there are any."""
    while len(sentence) > _MAX_SENTENCE_CHARS:
        at = sentence.rfind(" ", _MAX_SENTENCE_CHARS // 2, _MAX_SENTENCE_CHARS) + 1 or _MAX_SENTENCE_CHARS
        yield sentence[:at].rstrip()
        sentence = sentence[at:]
    if sentence:
        yield sentence


def _terms(sentence: str) -> dict[str, int]:
    """Count a sentence's words; a script without spaces counts by pairs of characters."""
    counts: Counter[str] = Counter()
    for found in _TERM.finditer(sentence.casefold()):
        word = found.group()
        if _IS_CJK.match(word) and len(word) > 1:
            counts.update(word[i : i + 2] for i in range(len(word) - 1))
        elif word.replace("’", "'") not in STOPWORDS:
            counts[word] += 1
    return counts


def _words(text: str) -> list[str]:
    return [found.group() for found in _TERM.finditer(text.casefold())]


def _term_weights(sentences: list[_Sentence], present: frozenset[str]) -> dict[str, float]:
    """Weigh words by rarity; the names of those present say nothing about the theme."""
    found_in = Counter(term for sentence in sentences for term in sentence.terms)
    n = len(sentences)
    return {term: math.log(1 + n / df) for term, df in found_in.items() if term not in present}


def _theme(vectors: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for vector in vectors:
        for term, weight in vector.items():
            total[term] = total.get(term, 0.0) + weight
    heaviest = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:_THEME_WORDS]
    return _unit(dict(heaviest))


def _bonus(sentence: _Sentence, present: frozenset[str]) -> float:
    named = any(found.group().casefold() not in present for found in _NAME.finditer(sentence.text))
    bonus = _NAME_BONUS if named else 0.0
    bonus += _NUMBER_BONUS if _NUMBER.search(sentence.text) else 0.0
    bonus += _DATE_BONUS if _DATE.search(sentence.text) else 0.0
    bonus -= _QUESTION_MALUS if sentence.text.rstrip("\"'”’)」』").endswith(("?", "？")) else 0.0
    missing = max(0, _SHORT_TERMS - sum(sentence.terms.values()))
    return bonus - 0.1 * missing


def _choose(
    sentences: list[_Sentence], vectors: list[dict[str, float]], scores: list[float], max_tokens: int
) -> list[int]:
    """Pick greedily what is near the theme and far from what is picked, while it fits; at least one."""
    first_said = {sentences[i].text: i for i in reversed(range(len(sentences)))}
    candidates = sorted(first_said.values(), key=lambda i: (-scores[i], i))[:_N_CANDIDATES]
    nearest = dict.fromkeys(candidates, 0.0)
    costs = {i: _cost(sentences[i]) for i in candidates}
    chosen = [candidates[0]]
    left = max_tokens - costs[candidates[0]]
    while True:
        for i in candidates:
            nearest[i] = max(nearest[i], _dot(vectors[i], vectors[chosen[-1]]))
        open_ones = [i for i in candidates if i not in chosen and nearest[i] < _SAME and costs[i] <= left]
        if not open_ones:
            return chosen
        best = max(open_ones, key=lambda i: (_RELEVANCE * scores[i] - (1 - _RELEVANCE) * nearest[i], -i))
        chosen.append(best)
        left -= costs[best]


def _cost(sentence: _Sentence) -> int:
    return budget_tokens(f"{sentence.who}: {sentence.text}" if sentence.who else sentence.text)


def _render(chosen: list[_Sentence], max_tokens: int) -> str:
    """Write the sentences, those of one line together behind its speaker; one too long for all is cut."""
    lines: dict[int, str] = {}
    for sentence in chosen:
        if sentence.line in lines:
            lines[sentence.line] += f" {sentence.text}"
        else:
            lines[sentence.line] = f"{sentence.who}: {sentence.text}" if sentence.who else sentence.text
    return _cut("\n".join(lines.values()), max_tokens)


def _cut(text: str, max_tokens: int) -> str:
    """Keep the beginning within the budget, whole words of it unless one word fills it."""
    ends = [found.end() for found in _TOKEN.finditer(text)]
    if len(ends) <= max_tokens:
        return text
    kept = text[: ends[max_tokens - 1]]
    if not _INSIDE_A_WORD.match(text, len(kept)):
        return kept
    whole_words = kept.rpartition(" ")[0]
    return whole_words if 2 * len(whole_words) > len(kept) else kept


def _unit(vector: dict[str, float]) -> dict[str, float]:
    norm = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {term: weight / norm for term, weight in vector.items() if weight} if norm else {}


def _dot(left: dict[str, float], right: dict[str, float]) -> float:
    if len(left) > len(right):
        left, right = right, left
    return sum(weight * right[term] for term, weight in left.items() if term in right)
