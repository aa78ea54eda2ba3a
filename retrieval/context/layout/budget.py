"""Fill a block within its budget: pieces in the order in which they are offered, while the whole text fits.

What counts is the text as it will be sent, headings, fence and preamble included: after each piece the whole block is
counted again, so that the bound holds for any counter, also one whose sum is not that of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from pipeline import tokens
from retrieval.context.layout.answer import Context
from retrieval.context.layout.block import Layout, item
from retrieval.context.layout.cutting import cut
from retrieval.context.protocol import CountTokens, Decision, Offer, Piece

_LEAST_CHARS: Final = 30
"""Of a piece that is held back: its time and a word or two."""
_SLACK_TOKENS: Final = 8
"""By how much the whole may cost less than its parts: a tokenizer may merge what meets at a line's end."""


def fit(
    offer: Offer,
    max_tokens: int,
    count: CountTokens = tokens.count,
    *,
    layout: Layout | None = None,
    strategy: str = "",
    notes: Sequence[str] = (),
) -> Context:
    """Take what fits of an offer.

    With shares, a section may use its own and what the sections before it left; in the end, what nobody used goes to
    whatever was left out, in the order of the offer, and at last to texts that were held back. Of the first ones,
    each has an equal share of the whole room.

    Args:
        offer: pieces, best first.
        max_tokens: never exceeded; 0 gives an empty block.
        count: counts the tokens of a text; must not shrink when text is added.
        layout: what stands around the pieces; our own when None.
        strategy: who made the offer.
        notes: to be passed on.

    Raises:
        ValueError: the budget is negative, or a piece stands in a section that the offer does not name.
    """
    if max_tokens < 0:
        raise ValueError(f"max_tokens: {max_tokens} is negative; use 0 or more")
    filling = _Filling(offer, layout or Layout(), count)
    for pieces, cap in _rounds(offer, max_tokens, filling.n_empty):
        for place, piece in pieces:
            is_taken = filling.has_room_for(place, piece, cap, n_held_back=piece.n_held_back)
            if not is_taken and offer.ends_at_first_left_out and place >= offer.n_first:
                break
    for place, piece in enumerate(offer.pieces):
        if piece.n_held_back:
            filling.has_room_for(place, piece, max_tokens)
    return Context(
        block=filling.text,
        n_tokens=filling.n_tokens,
        max_tokens=max_tokens,
        strategy=strategy,
        taken=[filling.decision(place, piece) for place, piece in enumerate(offer.pieces)],
        left=offer.left,
        notes=tuple(notes),
    )


def held_back(piece: Piece, n_tokens: float) -> Piece:
    """Have a piece take no more than so many tokens, but for a few words, until every other has had its turn."""
    texts = (piece.text, *piece.shorter)
    n_longer = sum(tokens.count(text) > n_tokens for text in texts)
    if n_longer < len(texts):
        return replace(piece, n_held_back=n_longer)
    least = cut(texts[-1], max(_LEAST_CHARS, int(tokens.BYTES_PER_TOKEN * n_tokens)))
    return replace(piece, shorter=(*piece.shorter, least), n_held_back=n_longer)


_Numbered = tuple[int, Piece]


def _rounds(offer: Offer, max_tokens: int, n_empty: int) -> Iterator[tuple[Iterable[_Numbered], float]]:
    """Give pieces with their numbers, and the tokens that the block may have once they are taken."""
    numbered = list(enumerate(offer.pieces))
    for place, piece in numbered[: offer.n_first]:
        yield [(place, piece)], n_empty + (max_tokens - n_empty) * (place + 1) / offer.n_first
    if offer.shares:
        whole = sum(offer.shares.get(section, 0) for section in offer.sections) or 1
        so_far = 0.0
        for section in offer.sections:
            so_far += offer.shares.get(section, 0) / whole
            own = [(place, piece) for place, piece in numbered if piece.section == section]
            yield own, min(max_tokens, n_empty + (max_tokens - n_empty) * so_far)
    yield numbered, max_tokens


class _Filling:
    """The block so far."""

    def __init__(self, offer: Offer, layout: Layout, count: CountTokens) -> None:
        self._pieces = offer.pieces
        self._order = {section: place for place, section in enumerate(offer.sections)}
        if strays := sorted({piece.section for piece in offer.pieces} - self._order.keys()):
            raise ValueError(f"sections: {', '.join(strays)} has pieces but is not named in the offer")
        self._layout = layout
        self._count = count
        self._taken: dict[int, tuple[int, str]] = {}
        """By piece: which of its texts, 0 for the longest, and that text as an item."""
        self._items: dict[str, tuple[str, int]] = {}
        self.n_empty = count(layout.around(""))
        self.text = ""
        self.n_tokens = 0

    def has_room_for(self, place: int, piece: Piece, cap: float, *, n_held_back: int = 0) -> bool:
        """Take the longest text of a piece, but for those held back, with which the block stays within a cap."""
        rank_taken, item_taken = self._taken.get(place, (1 + len(piece.shorter), ""))
        n_freed = self._count(item_taken) if item_taken else 0
        room = cap - self.n_tokens + n_freed + _SLACK_TOKENS
        texts = (piece.text, *piece.shorter)[n_held_back:rank_taken]
        if not texts or self._item(texts[-1])[1] > room:  # then the longer ones are as well
            return place in self._taken
        for rank, text in enumerate(texts, n_held_back):
            written, n_tokens = self._item(text)
            if not written or n_tokens > room:
                continue
            candidate = self._laid_out({**self._taken, place: (rank, written)})
            if (n_tokens := self._count(candidate)) <= cap:
                self._taken[place] = rank, written
                self.text, self.n_tokens = candidate, n_tokens
                return True
        return place in self._taken

    def _item(self, text: str) -> tuple[str, int]:
        """Write a text as an item, and count its tokens; once, as sections and then all pieces are gone through."""
        if text not in self._items:
            written = item(text)
            self._items[text] = written, self._count(written)
        return self._items[text]

    def decision(self, place: int, piece: Piece) -> Decision:
        """Say what became of a piece."""
        taken = self._taken.get(place)
        how = "; no room for it" if taken is None else "; shortened to fit" if taken[0] else ""
        return Decision(entry_ids=piece.entry_ids, is_kept=taken is not None, score=piece.score, why=piece.why + how)

    def _laid_out(self, taken: dict[int, tuple[int, str]]) -> str:
        sections: dict[str, list[str]] = {section: [] for section in self._order}
        for place in sorted(taken, key=lambda place: (self._pieces[place].place, place)):
            sections[self._pieces[place].section].append(taken[place][1])
        return self._layout.block(sections.items())
