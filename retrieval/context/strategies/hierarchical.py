"""A session in tiers: the last exchanges as they are, those before in a line each, all older ones by theme, the user.

Each tier has its share of the room; what one leaves flows on to the next. Level by level, from themes to exchanges,
what helps with the objective is quoted. Where not all of it has room the last exchanges are told in a few words, and
the best quotation comes right after them, before the shares: cut to fit its tier's it would say nothing. The profile
holds what the user said of himself in any session of the scope.
Sources: MemoryOS (three tiers and a profile), xMemory (four levels), TaciTree (search from level to level).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

import numpy as np

from pipeline.condense.profile import ProfileFact
from pipeline.condense.terms import terms
from retrieval.context.condensing.themes import IMMEDIATE, SHORT_TERM, Group, Groups, digest_of
from retrieval.context.condensing.tiers import LongTerm, Tiers, long_term, short_term, tiers
from retrieval.context.entries.words import Scores
from retrieval.context.layout.answer import Decisions
from retrieval.context.layout.budget import held_back
from retrieval.context.layout.cutting import cut
from retrieval.context.layout.wording import exchange, exchanges_within
from retrieval.context.protocol import Asked, Decision, Offer, Piece, room_of
from retrieval.context.ranking import drilling

NOW: Final = "Now"
LATELY: Final = "Lately"
EARLIER: Final = "Earlier, by theme"
USER: Final = "About the user"
SHARES: Final = {NOW: 0.45, LATELY: 0.25, EARLIER: 0.2, USER: 0.1}
"""Source: the specification of the strategy."""
_MOST_FACTS: Final = 40
_BEFORE: Final = 2
_QUOTED_SHARE: Final = 0.7
"""Of the room, what quotations may take before an exchange of the short-term tier has to help as much as they do."""
_FIRST_QUOTED: Final = 8
_TIGHT_SHARE: Final = 0.12
"""Of the room, what the immediate tier takes at first where others help more with the objective.

With the 0.15 and at least 60 characters that were, and all quotations within their tier's share, blocks of 256 tokens
told 31 % of LoCoMo's evidence (every sixth question, conversations 1-5; BM25 alone 45 %); with the best one first 42,
and with fewer words of the last exchanges 47 at 0.15 and 49 at 0.12; in 512 and 1 024 tokens as much as before."""
_LINES: Final = ((400, 2), (200, 1), (100, 0), (50, 0))
"""Characters of objective and outcome, and key results, of an exchange of the short-term tier."""


class Hierarchical:
    """Keeps the last three exchanges, a record of the ten before, themes of all others, and facts about the user."""

    name: Final = "hierarchical"

    def offer(self, asked: Asked) -> Offer:
        """Offer what is told of each tier; changes nothing."""
        divided = tiers(len(asked.entries))
        relevant = drilling.scores(asked)
        quoted = list(drilling.quoted(asked, divided.long_term, relevant, EARLIER))
        immediate, lately = _immediate(asked, divided, relevant), _short_term(asked, divided, relevant)
        left = set[int]()
        first: list[Piece] = []
        if _is_tight([*immediate, *lately, *quoted], quoted, room_of(asked)):
            immediate = [held_back(piece, _TIGHT_SHARE * room_of(asked) / IMMEDIATE) for piece in immediate]
            first = [*immediate, max([*lately[1:], *quoted], key=lambda piece: piece.score)]
            least = quoted[drilling.within(quoted, _QUOTED_SHARE * room_of(asked)) - 1].score
            left |= {place for place in divided.short_term if relevant[place] < least}
            lately = [piece for piece in lately[1:] if piece.score >= least]
        room: float = room_of(asked) - drilling.n_tokens([*immediate, *lately, *quoted[:_FIRST_QUOTED]])
        ranked = drilling.ranked(_groups(asked, divided), relevant, room)
        room = max(room, SHARES[EARLIER] * room_of(asked) - drilling.n_tokens(quoted))
        themes = _long_term(asked, ranked, drilling.n_themes(room))
        others = [piece for piece in (*immediate, *lately, *quoted) if piece not in first]
        is_unused = np.arange(len(asked.entries)) < len(divided.long_term)
        is_unused[[place for _, group in ranked for place in group.places]] = False
        is_unused[sorted(left)] = True
        unused = np.flatnonzero(is_unused)
        return Offer(
            pieces=[*first, *others, *themes, *_profile(asked)],
            sections=tuple(SHARES),
            shares=SHARES,
            n_first=len(first),
            left=Decisions(len(unused), lambda at: _left(asked, int(unused[at]), divided, relevant)),
        )


def _is_tight(pieces: Sequence[Piece], quoted: Sequence[Piece], room: int) -> bool:
    """Tell whether what helps with the objective has to be given room by what does not."""
    return bool(quoted) and drilling.n_tokens(pieces) > room


def _groups(asked: Asked, divided: Tiers) -> Groups:
    """Group the long-term exchanges: by meaning, or by day when that is switched off."""
    if asked.settings.enable_semantic_clustering:
        return asked.condensed.groups(asked.entries, asked.vectors, IMMEDIATE + SHORT_TERM)
    by_day = groupby(divided.long_term, key=lambda place: _day(asked.entries[place].time_ms))
    found = [(day, tuple(places)) for day, places in by_day]
    digests = [digest_of([asked.entries[place] for place in places]) for _, places in found]
    return Groups(tuple(Group(places, (day,), digest) for (day, places), digest in zip(found, digests, strict=True)))


def _immediate(asked: Asked, divided: Tiers, relevant: Scores) -> list[Piece]:
    pieces = []
    for place in reversed(divided.immediate):
        entry = asked.entries[place]
        text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
        pieces.append(
            Piece(
                section=NOW,
                place=(place,),
                text=text,
                shorter=tuple(shorter),
                entry_ids=(entry.entry_id,),
                score=1 + float(relevant[place]),
                why=f"immediate: one of the last {IMMEDIATE}",
            )
        )
    return pieces


def _short_term(asked: Asked, divided: Tiers, relevant: Scores) -> list[Piece]:
    if not divided.short_term:
        return []
    told = short_term([asked.entries[place] for place in divided.short_term])
    topics = f"; about {', '.join(told.topics)}" if told.topics else ""
    head = f"{told.timeframe}{topics}"
    why = "short-term: timeframe and topics"
    pieces = [Piece(section=LATELY, place=(-1,), text=head, entry_ids=(), score=1.0, why=why)]
    for place in sorted(divided.short_term, key=lambda place: (-relevant[place], -place)):
        entry, outcome = asked.entries[place], told.outcomes[place - divided.short_term.start]
        texts = [
            exchange(entry, asked.now_ms, max_objective_chars=n, max_result_chars=n, n_key_results=findings)
            for n, findings in _LINES
        ]
        pieces.append(
            Piece(
                section=LATELY,
                place=(place,),
                text=texts[0],
                shorter=tuple(dict.fromkeys(texts[1:])),
                entry_ids=(entry.entry_id,),
                score=float(relevant[place]),
                why=f"short-term: one of the {SHORT_TERM} before, {outcome}",
            )
        )
    return pieces


def _long_term(asked: Asked, ranked: Sequence[tuple[float, Group]], n_summarised: int) -> Iterator[Piece]:
    learnings = drilling.summaries(asked, ranked[:n_summarised])
    for score, group in ranked:
        entries = [asked.entries[place] for place in group.places]
        if len(entries) == 1:
            text, *shorter = exchanges_within(entries[0], asked.now_ms, room_of(asked))
        else:
            told = long_term(group.words, entries, learnings.get(group, ""))
            text, *shorter = _written(told)
        yield Piece(
            section=EARLIER,
            place=(group.places[-1], 0),
            text=text,
            shorter=tuple(shorter),
            entry_ids=tuple(entry.entry_id for entry in entries),
            score=score,
            why=f"long-term: a theme of {len(entries)}",
        )


def _written(told: LongTerm) -> list[str]:
    head = f"[{', '.join(told.words) or 'various'}] {told.period}, {told.progress}"
    head += f", now {told.status}" if told.status else ""
    return [f"{head}: {' '.join(told.learnings.split())}", head] if told.learnings else [head]


def _profile(asked: Asked) -> Iterator[Piece]:
    if not asked.settings.enable_user_profiling:
        return
    facts = asked.condensed.profile()
    before: dict[tuple[str, str], list[ProfileFact]] = {}
    for fact in facts:
        if fact.superseded_by is not None:
            before.setdefault((fact.subject, fact.key), []).append(fact)
    current = [fact for fact in facts if fact.superseded_by is None]
    wanted = set(terms(asked.objective or ""))
    current.sort(
        key=lambda fact: (-_n_shared(fact, wanted), -fact.confidence, -fact.valid_from_ms, fact.key, fact.value)
    )
    for rank, fact in enumerate(current[:_MOST_FACTS]):
        text = _stated(fact)
        former = before.get((fact.subject, fact.key), [])[-_BEFORE:]
        told = f"{text}; before: {', '.join(one.value for one in former)}" if former else text
        yield Piece(
            section=USER,
            place=(rank,),
            text=cut(told, 200),
            shorter=(cut(text, 100),) if former else (),
            entry_ids=tuple(evidence.turn_id for evidence in fact.evidence),
            score=fact.confidence,
            why=f"profile: confidence {fact.confidence:.2f}, said {len(fact.evidence)} times",
        )


def _n_shared(fact: ProfileFact, wanted: set[str]) -> int:
    return len(wanted.intersection(terms(f"{fact.key} {fact.value}")))


def _stated(fact: ProfileFact) -> str:
    whose = f"{fact.subject}: " if fact.subject else ""
    return f"{whose}{fact.key}: {fact.value} (said {_day(fact.valid_from_ms)})"


def _day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).date().isoformat()


def _left(asked: Asked, place: int, divided: Tiers, relevant: Scores) -> Decision:
    is_old = place in divided.long_term
    why = f"long-term: {drilling.LEFT}"
    return Decision(
        entry_ids=(asked.entries[place].entry_id,),
        is_kept=False,
        score=float(relevant[place]),
        why=why if is_old else "short-term: has nothing to do with the objective, and room is needed",
    )
