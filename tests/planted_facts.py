"""Chatty texts, each with facts planted at its beginning, middle or end: what a shortened text must still tell.

In the file beside, a text is followed by its facts, a line each. A fact is told when all its words stand in the text:
what it is about, and what is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Fact = tuple[str, ...]


def planted() -> list[tuple[str, list[Fact]]]:
    """Read the texts, each with its facts."""
    parts = Path(__file__).with_suffix(".txt").read_text().strip().split("\n\n")
    return [_read(part.splitlines()) for part in parts]


def told(texts: Sequence[str]) -> float:
    """Give the share of the facts that these texts, in the order of the planted ones, still tell."""
    facts = [(text, fact) for text, (_, facts) in zip(texts, planted(), strict=True) for fact in facts]
    return sum(all(word in text for word in fact) for text, fact in facts) / len(facts)


def _read(lines: Sequence[str]) -> tuple[str, list[Fact]]:
    text = " ".join(line for line in lines if not line.startswith("= "))
    return text, [tuple(line[2:].split(" + ")) for line in lines if line.startswith("= ")]
