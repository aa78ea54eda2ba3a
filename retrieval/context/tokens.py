"""How tokens are counted when nobody brings a tokenizer; one rule for every block that goes into a prompt."""

from __future__ import annotations

from typing import Final

BYTES_PER_TOKEN: Final = 3


def count(text: str) -> int:
    """Count one token for every three bytes begun: more than most tokenizers make of a text."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)
