"""Strategy `adaptive`: entries in fewer words, by how the session goes.

How much is kept follows from the session's `pacing`, or from the setting ``compression_level``. With an objective
that the session knows about the most relevant entries come first, else the latest. As many are taken as fill the room
once they are shortened, and the share is spread over them as in LongLLMLingua: the first stays nearly whole, the last
keeps half the level's share, and all together keep that share.

With ``x`` from 0 to 1 over the text in that order, ``f + (1 - f) * (1 - x) ** (2 / share - 2)`` is kept at ``x``,
where ``f = share / 2``: it falls from 1 to ``f``, and its mean is the share. Protected spans are kept beside it, and
the most relevant entry is kept whole, up to a third of the room; the others pay for both. Where a level is set and
this entry is more than the level keeps of all, it is shortened as well.

Nothing is offered of which only marks are left. Such an entry comes last, whole, for the room that nobody else used,
the most relevant one in its turn; where a level is set, only that one comes.

Sources: Jiang et al. 2024 (LongLLMLingua), whose budget falls with the rank in a straight line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline import tokens
from retrieval.context.condensing import compression, pacing
from retrieval.context.condensing.pacing import SHARES, Level
from retrieval.context.entries.entry import Entry
from retrieval.context.entries.words import Scores
from retrieval.context.layout import wording
from retrieval.context.layout.answer import Decisions
from retrieval.context.protocol import Asked, Decision, Offer, Piece, facts_of, room_of
from retrieval.context.ranking.relevance import Relevance, relevance

_AROUND_BYTES: Final = 60
"""What an entry costs beside its own words: its age, labels, marks, line ends."""
_OFFERED: Final = 1.15
"""Of the room: what is shortened more than it had to be leaves some for one more."""
_MOST_ENTRIES: Final = 400
_STEPS: Final = 20
_MOST_OF_ROOM: Final = 1 / 3
"""The most relevant entry is kept whole up to so much: a longer one would leave too little to the others."""
_FIRST_SHORTER: Final = (0.75, 0.5, 0.25)
"""The most relevant entry is shortened no more than it has to be."""


class Adaptive:
    """Shortens what the session holds, most where it matters least."""

    name = "adaptive"

    def offer(self, asked: Asked) -> Offer:
        """Offer the entries that there is room for once they are shortened, most relevant first."""
        if not asked.entries:
            return Offer(pieces=())
        share, reason = _share(asked)
        facts = facts_of(asked)
        found = relevance(asked, facts)
        scores, order = found.scores, _order(facts.is_pinned, found)
        taken = _as_many_as_fill(asked, order, share)
        texts = [asked.entries[place].texts for place in taken]
        first = int(np.argmax(scores[taken]))
        shares = spread(texts, share, first if _may_be_whole(asked, texts, first, share) else None)
        known = compression.vocabulary_of_parts(texts)
        pieces: list[Piece] = []
        whole: list[Piece] = []
        vanished: list[int] = []
        for rank, (place, kept) in enumerate(zip(taken, shares, strict=True)):
            one = _Kept(place, kept, float(scores[place]), f"{reason}; {kept:.0%} kept")
            is_first = rank == first
            written, to = _written(asked, one, known, _FIRST_SHORTER if is_first else ()), pieces
            if not written and (is_first or not _is_level_set(asked)):
                one = replace(one, share=1.0, why=f"{reason}; whole, as only marks would be left")
                written, to = _written(asked, one, known, _FIRST_SHORTER), pieces if is_first else whole
            if written:
                to.append(_piece(asked, one, written))
            else:
                vanished.append(place)
        return Offer(pieces=pieces + whole, left=_left(asked, vanished + order[len(taken) :], scores))


def spread(texts: Sequence[Sequence[str]], share: float, whole: int | None = None) -> list[float]:
    """Spread a share over the texts of entries, most relevant first: each entry's, so that all keep ``share``.

    What protected spans keep anyway counts; where they keep more than ``share`` of all, only they are kept.

    Args:
        texts: of each entry.
        share: of all, in [0, 1].
        whole: the place of an entry that is kept whole; the others keep less for it.
    """
    sizes = np.array([sum(map(compression.n_bytes, some)) or 1 for some in texts], np.float64)
    ends = sizes.cumsum() / sizes.sum()
    begins = ends - sizes / sizes.sum()
    least = np.array([compression.protected_share(some) for some in texts])
    if whole is not None:
        least[whole] = 1
    low, high = 0.0, share
    for _ in range(_STEPS):
        middle = (low + high) / 2
        kept = least + (1 - least) * _falling(begins, ends, middle)
        low, high = (middle, high) if kept @ sizes < share * sizes.sum() else (low, middle)
    return [float(kept) for kept in least + (1 - least) * _falling(begins, ends, high)]


_Floats = npt.NDArray[np.float64]


def _falling(begins: _Floats, ends: _Floats, share: float) -> _Floats:
    """Give the mean of what is kept between two places: ``(n,)`` in [0, 1]; see the module."""
    if share <= 0:
        return np.zeros_like(begins)
    least, power = share / 2, 2 / share - 1
    left = np.maximum(1 - begins, 0) ** power - np.maximum(1 - ends, 0) ** power
    mean = least + (1 - least) * left / (power * np.maximum(ends - begins, 1e-12))
    return np.asarray(np.minimum(mean, 1), np.float64)


@dataclass(frozen=True, slots=True)
class _Kept:
    place: int
    share: float
    score: float
    why: str


def _share(asked: Asked) -> tuple[float, str]:
    """Tell how much of the text is kept, and why."""
    chosen = asked.settings.compression_level
    if chosen != "auto":
        return SHARES[Level(chosen)], f"{chosen} by the settings"
    if len(asked.entries) == len(_as_many_as_fill(asked, range(len(asked.entries)), 1.0, offered=1.0)):
        return 1.0, "there is room for all of it"
    level = pacing.level_of(asked.entries)
    return SHARES[level], f"{level}: {pacing.verdict(asked.entries)}"


def _order(is_pinned: npt.NDArray[np.bool_], found: Relevance) -> list[int]:
    """Order entries: pinned ones, then the most relevant, then the latest; the last one first if none is relevant."""
    places = np.arange(len(is_pinned))
    is_last = (places == places[-1]) & (not found.is_any_relevant)
    order: list[int] = np.lexsort((-places, -found.scores, ~is_last, ~is_pinned)).tolist()
    return order


def _as_many_as_fill(asked: Asked, order: Sequence[int], share: float, *, offered: float = _OFFERED) -> list[int]:
    room: float = offered * tokens.BYTES_PER_TOKEN * room_of(asked)
    taken: list[int] = []
    for place in order[:_MOST_ENTRIES]:
        if taken and room <= 0:
            break
        taken.append(place)
        room -= share * sum(map(compression.n_bytes, asked.entries[place].texts)) + _AROUND_BYTES
    return taken


def _may_be_whole(asked: Asked, texts: Sequence[Sequence[str]], first: int, share: float) -> bool:
    """Tell whether the most relevant entry is kept whole: it fits, and the others can pay for it where they must."""
    sizes = [sum(map(compression.n_bytes, some)) for some in texts]
    fits = sizes[first] <= _MOST_OF_ROOM * tokens.BYTES_PER_TOKEN * room_of(asked)
    return fits and (not _is_level_set(asked) or sizes[first] <= share * sum(sizes))


def _is_level_set(asked: Asked) -> bool:
    return asked.settings.compression_level != "auto"


def _piece(asked: Asked, kept: _Kept, written: Sequence[str]) -> Piece:
    return Piece(
        section="",
        place=(kept.place,),
        text=written[0],
        entry_ids=(asked.entries[kept.place].entry_id,),
        score=kept.score,
        why=kept.why,
        shorter=tuple(written[1:]),
    )


def _written(asked: Asked, kept: _Kept, known: compression.Vocabulary, shorter: Sequence[float]) -> list[str]:
    """Write an entry as short as it is to be, then shorter; without the forms of which only marks are left."""
    entry = asked.entries[kept.place]
    shares = [kept.share, *(share for share in shorter if share < kept.share), 0.0]
    forms = _shortened(entry, shares, known, asked.objective)
    return list(dict.fromkeys(wording.exchange(form, asked.now_ms) for form in forms))


def _shortened(
    entry: Entry, shares: Sequence[float], known: compression.Vocabulary, objective: str | None
) -> Iterator[Entry]:
    versions = [compression.shorten_more(text, shares, known, objective or "") for text in entry.texts]
    for asked_for, *others in zip(*versions, strict=True):
        concluded, *found = ("" if text == compression.MARK else text for text in others)
        found = [text for text in found if text]
        if concluded or found or asked_for.strip() not in {"", compression.MARK}:
            yield replace(entry, objective=asked_for, conclusion=concluded, key_results=tuple(found))


def _left(asked: Asked, places: Sequence[int], scores: Scores) -> Decisions:
    def decide(number: int) -> Decision:
        place = places[number]
        return Decision(
            entry_ids=(asked.entries[place].entry_id,),
            is_kept=False,
            score=float(scores[place]),
            why="others are more relevant" if asked.objective else "others are later",
        )

    return Decisions(len(places), decide)
