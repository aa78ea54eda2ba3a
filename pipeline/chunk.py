"""Cut a turn's text into chunks that one forward pass of the model sees whole.

Boundaries are, best first: runs of line breaks, sentences, words, graphemes, characters (semantic-text-splitter).
Sizes are counted with the model's own tokenizer, without its special tokens. Chunks are trimmed of whitespace; apart
from that they cover the text, in order and without overlap. Holds no state: nothing to recover after a crash.

Why windows: the splitter's time grows faster than the text (256 KiB of Chinese without punctuation took 51 s). It is
given a few thousand characters at a time, and the last chunk of each window, which the window may have cut short, is
done again at the start of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pipeline.errors import ConfigError
from pipeline.records import Chunk

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MIN_MAX_TOKENS: Final = 8
"""A single character may take several tokens: below this a chunk could not hold one."""

_WINDOW_CHARS: Final = 4_096
_MANY_CHUNKS: Final = 16
_MAX_CHARS_PER_TOKEN: Final = 16


class Chunker:
    """Cut texts into chunks of at most ``max_tokens`` content tokens.

    Args:
        tokenizer: the embedding model's, with truncation and padding switched off.
        max_tokens: content tokens of one chunk; special tokens are already subtracted.

    Raises:
        ConfigError: the tokenizer truncates or pads, or ``max_tokens`` is below 8.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int) -> None:
        if tokenizer.truncation is not None or tokenizer.padding is not None:
            raise ConfigError("the tokenizer truncates or pads; call no_truncation() and no_padding() on it first")
        if max_tokens < MIN_MAX_TOKENS:
            raise ConfigError(f"max_tokens is {max_tokens}; use a model that takes at least {MIN_MAX_TOKENS} tokens")
        from semantic_text_splitter import TextSplitter  # noqa: PLC0415 - only a process that chunks needs it

        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._splitter = TextSplitter.from_huggingface_tokenizer(tokenizer, max_tokens)

    def chunk(self, text: str) -> list[Chunk]:
        """Cut one text; a blank one gives no chunk."""
        return self.chunk_many([text])[0]

    def chunk_many(self, texts: Sequence[str]) -> list[list[Chunk]]:
        """Cut texts, in their order; all that fit into one chunk are counted in one tokenizer call."""
        short = [i for i, text in enumerate(texts) if len(text) <= self._max_tokens * _MAX_CHARS_PER_TOKEN]
        n_tokens = dict(zip(short, self._count([texts[i] for i in short]), strict=True))
        return [
            _whole(text, n_tokens[i])
            if n_tokens.get(i, self._max_tokens + 1) <= self._max_tokens
            else self._cut(text)
            for i, text in enumerate(texts)
        ]

    def _cut(self, text: str) -> list[Chunk]:
        spans = [(start + offset, piece) for start, found in self._windows(text) for offset, piece in found]
        counts = self._count([piece for _, piece in spans])
        return [Chunk(start, start + len(piece), piece, n) for (start, piece), n in zip(spans, counts, strict=True)]

    def _windows(self, text: str) -> Iterator[tuple[int, list[tuple[int, str]]]]:
        """Yield each window's start and the final chunks in it, as offsets from that start."""
        start, size = 0, _WINDOW_CHARS
        while start < len(text):
            at_end = start + size >= len(text)
            found = self._splitter.chunk_indices(text[start : start + size])
            if at_end:
                yield start, found
                return
            if len(found) == 1:  # one chunk fills the window, and may go on: look further
                size *= 2
                continue
            if found:
                yield start, found[:-1]
            start += found[-1][0] if found else size
            size = size // 2 if len(found) > _MANY_CHUNKS and size > _WINDOW_CHARS else size

    def _count(self, texts: list[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding) for encoding in encodings]


def _whole(text: str, n_tokens: int) -> list[Chunk]:
    trimmed = text.strip()
    start = len(text) - len(text.lstrip())
    return [Chunk(start, start + len(trimmed), trimmed, n_tokens)] if trimmed else []
