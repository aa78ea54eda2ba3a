"""Pinned entries before all others, whatever the strategy: they are left out only where there is no room for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, overload

import numpy as np

from retrieval.context.layout.wording import exchanges_within
from retrieval.context.protocol import Asked, Decision, Offer, Piece, facts_of, room_of

PINNED: Final = "Pinned"
"""The heading of what the strategy left out, where an offer has headings."""


def first(offer: Offer, asked: Asked) -> Offer:
    """Move the pieces of pinned entries to the front of an offer; the entries it does not quote are added."""
    places = _places(asked)
    if not places:
        return offer
    quoted: dict[str, Piece] = {}
    others: list[Piece] = []
    n_first = 0
    for number, piece in enumerate(offer.pieces):
        entry_id = piece.entry_ids[0] if len(piece.entry_ids) == 1 else ""
        if entry_id in places and entry_id not in quoted:
            quoted[entry_id] = _shortened_further(piece, asked, places[entry_id])
        else:
            others.append(piece)
            n_first += number < offer.n_first
    missing = [entry_id for entry_id in reversed(places) if entry_id not in quoted]
    if not missing:
        return replace(offer, pieces=[*quoted.values(), *others], n_first=len(quoted) + n_first)
    section = offer.sections[0] if list(offer.sections) == [""] else PINNED
    added = [_piece(asked, places[entry_id], section) for entry_id in missing]
    return replace(
        offer,
        pieces=[*quoted.values(), *added, *others],
        left=_Without(offer.left, frozenset(missing)),
        sections=offer.sections if section in offer.sections else (section, *offer.sections),
        n_first=len(places) + n_first,
    )


def _places(asked: Asked) -> dict[str, int]:
    entries = asked.entries
    if asked.facts is None:  # nobody needed them, and making them takes longer than looking
        return {entry.entry_id: place for place, entry in enumerate(entries) if entry.is_pinned}
    return {entries[place].entry_id: place for place in np.flatnonzero(facts_of(asked).is_pinned).tolist()}


def _shortened_further(piece: Piece, asked: Asked, place: int) -> Piece:
    """Add shorter texts: what a strategy shortens by leaving words out may keep too many."""
    least = len((piece.text, *piece.shorter)[-1])
    more = [
        text for text in exchanges_within(asked.entries[place], asked.now_ms, room_of(asked)) if len(text) < least
    ]
    return replace(piece, shorter=(*piece.shorter, *more), n_held_back=0)


def _piece(asked: Asked, place: int, section: str) -> Piece:
    entry = asked.entries[place]
    text, *shorter = exchanges_within(entry, asked.now_ms, room_of(asked))
    return Piece(
        section=section,
        place=(place,),
        text=text,
        shorter=tuple(shorter),
        entry_ids=(entry.entry_id,),
        score=1.0,
        why="pinned",
    )


class _Without(Sequence[Decision]):
    """Decisions without those about some entries; made when they are looked at, as `Decisions` are."""

    def __init__(self, decisions: Sequence[Decision], entry_ids: frozenset[str]) -> None:
        self._decisions = decisions
        self._entry_ids = entry_ids

    @cached_property
    def _kept(self) -> list[Decision]:
        return [one for one in self._decisions if self._entry_ids.isdisjoint(one.entry_ids)]

    def __reduce__(self) -> tuple[type[list[Decision]], tuple[list[Decision]]]:
        """Be copied and pickled as the decisions, without what they are made from."""
        return list, (self._kept,)

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, place: int) -> Decision: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Decision]: ...

    def __getitem__(self, place: int | slice) -> Decision | Sequence[Decision]:
        return self._kept[place]
