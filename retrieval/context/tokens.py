"""How tokens are counted when nobody brings a tokenizer, under the name by which session memory knows it."""

from __future__ import annotations

from pipeline.tokens import BYTES_PER_TOKEN, count

__all__ = ["BYTES_PER_TOKEN", "count"]
