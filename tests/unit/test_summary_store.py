"""A scope's session summaries: one vector each, replaced whole, found by cosine."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DimensionMismatchError, ModelMismatchError, TransientError
from pipeline.records import Scope, SessionDeleted
from retrieval.reader import ShardReaders
from retrieval.summary_store import SessionSummaryStore
from tests.fakes import FakeEmbedder
from tests.ledgers import NOW_MS, open_ledger, remember, summarise, turn

SCOPE = Scope("user", "u1")


@pytest.fixture
def store(readers, embedder) -> SessionSummaryStore:
    return SessionSummaryStore(readers, embedder, clock=lambda: NOW_MS)


def test_collection_is_named_after_the_scope() -> None:
    """The name the contract gives."""
    assert SessionSummaryStore.collection(Scope("thread", "a/b")) == "cogmem_sessions_thread_a/b"


def test_sessions_come_by_descending_cosine(store) -> None:
    """The similarity is the plain cosine of query and summary."""
    store.index_session(SCOPE, "travel", "Lisbon Porto trains")
    store.index_session(SCOPE, "food", "Lisbon pastry")
    store.index_session(SCOPE, "work", "deadline")
    matches = store.query_sessions("Lisbon pastry", SCOPE, 2)
    assert [m.session_id for m in matches] == ["food", "travel"]
    assert [m.similarity for m in matches] == pytest.approx([1.0, 1 / np.sqrt(6)], abs=1e-3)


def test_equal_summaries_come_by_session_id(store) -> None:
    """The same answer whatever the order of indexing, also where the cut falls between equals."""
    for session_id in ("c", "a", "d", "b"):
        store.index_session(SCOPE, session_id, "same")
    assert [m.session_id for m in store.query_sessions("same", SCOPE, 3)] == ["a", "b", "c"]


def test_indexing_again_replaces(store) -> None:
    """One vector per session."""
    store.index_session(SCOPE, "s", "old words", session_date="2023-05-01")
    store.query_sessions("old", SCOPE, 5)
    store.index_session(SCOPE, "s", "new text", session_date="2023-05-02")
    (match,) = store.query_sessions("new text", SCOPE, 5)
    assert match.similarity == pytest.approx(1.0, abs=1e-3)
    (listed,) = store.list_sessions(SCOPE)
    assert (listed.session_id, listed.text, listed.session_date) == ("s", "new text", "2023-05-02")


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_summary_changes_nothing(store, embedder, blank, data_dir) -> None:
    """Neither a vector nor a folder, and an earlier summary stays."""
    store.index_session(SCOPE, "s", blank)
    assert (embedder.n_embedded, list(data_dir.iterdir())) == (0, [])
    store.index_session(SCOPE, "s", "kept")
    store.index_session(SCOPE, "s", blank)
    assert [row.text for row in store.list_sessions(SCOPE)] == ["kept"]


def test_a_missing_collection_gives_nothing_and_embeds_nothing(shards, store, embedder) -> None:
    """Checked first, with no shard at all and with a shard that has turns but no summaries."""
    assert store.query_sessions("anything", SCOPE, 5) == []
    remember(shards, SCOPE, [turn(SCOPE, "t", "words")], embedder)
    embedded = embedder.n_embedded
    assert store.query_sessions("anything", SCOPE, 5) == []
    assert store.query_sessions(np.ones(3), SCOPE, 5) == []
    assert embedder.n_embedded == embedded


def test_what_a_worker_summarised_is_found_by_an_open_store(shards, store, embedder) -> None:
    """The summariser writes in another process; nobody reloads."""
    summarise(shards, SCOPE, "s1", "first words", embedder)
    assert len(store.query_sessions("words", SCOPE, 5)) == 1
    summarise(shards, SCOPE, "s2", "second words", embedder)
    assert len(store.query_sessions("words", SCOPE, 5)) == 2


def test_a_forgotten_session_is_not_selected(shards, store, embedder) -> None:
    """Forgetting removes the summary in the same transaction."""
    remember(shards, SCOPE, [turn(SCOPE, "t", "words")], embedder)
    summarise(shards, SCOPE, "s1", "words", embedder)
    assert store.query_sessions("words", SCOPE, 5) != []
    remember(shards, SCOPE, [SessionDeleted(scope=SCOPE, session_id="s1", timestamp_ms=1, event_id="f")], embedder)
    assert store.query_sessions("words", SCOPE, 5) == []


def test_deleting_a_summary_says_whether_there_was_one(store) -> None:
    """Idempotent, and a missing scope stays missing."""
    assert store.delete_session(SCOPE, "s") is False
    store.index_session(SCOPE, "s", "words")
    store.index_session(SCOPE, "other", "words")
    assert store.delete_session(SCOPE, "s") is True
    assert store.delete_session(SCOPE, "s") is False
    assert [m.session_id for m in store.query_sessions("words", SCOPE, 5)] == ["other"]


def test_what_was_written_is_on_disk_on_return(store, monkeypatch) -> None:
    """SQLite itself waits for no disk here: without a flush a power cut takes back what was promised."""
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    store.index_session(SCOPE, "s", "words")
    monkeypatch.setattr(os, "fsync", fsync)
    for write in (
        lambda: store.index_session(SCOPE, "other", "words"),
        lambda: store.re_embed(SCOPE),
        lambda: store.delete_session(SCOPE, "s"),
    ):
        synced.clear()
        write()
        assert "ledger.sqlite-wal" in synced


def test_a_locked_ledger_is_waited_for_as_long_as_was_set(shards, embedder) -> None:
    """A bot that set a tenth of a second must not hang for half a minute."""
    remember(shards, SCOPE, [turn(SCOPE, "t", "words")], embedder)
    with closing(ShardReaders(shards, busy_timeout_ms=100)) as readers, closing(open_ledger(shards, SCOPE)) as other:
        store = SessionSummaryStore(readers, embedder)
        with other.write():
            began = time.monotonic()
            with pytest.raises(TransientError, match="locked"):
                store.index_session(SCOPE, "s", "words")
            assert time.monotonic() - began < 10


def test_scopes_do_not_see_each_other(store) -> None:
    """One collection per scope."""
    store.index_session(SCOPE, "mine", "words")
    store.index_session(Scope("thread", "u1"), "theirs", "words")
    assert [m.session_id for m in store.query_sessions("words", SCOPE, 5)] == ["mine"]


def test_a_vector_of_another_dimension_is_an_error(store) -> None:
    """Never a silent loss."""
    store.index_session(SCOPE, "s", "words")
    with pytest.raises(DimensionMismatchError, match="64"):
        store.query_sessions(np.ones(3, dtype=np.float32), SCOPE, 5)


def test_another_model_is_an_error_for_reading_and_writing(store) -> None:
    """Two models never mix."""
    store.index_session(SCOPE, "s", "words")
    other = SessionSummaryStore(store._readers, FakeEmbedder(model_key="other@1"))
    with pytest.raises(ModelMismatchError):
        other.query_sessions("words", SCOPE, 5)
    with pytest.raises(ModelMismatchError):
        other.index_session(SCOPE, "s2", "words")
    with pytest.raises(ModelMismatchError):
        other.re_embed(SCOPE)


def test_embedding_again_renews_every_vector(store) -> None:
    """After a fix in the model's pooling, say, the texts make new vectors; an open store sees them."""
    store.index_session(SCOPE, "a", "first words")
    store.index_session(SCOPE, "b", "second words")
    assert store.query_sessions("first", SCOPE, 1)[0].session_id == "a"
    mended = FakeEmbedder()
    mended.embed = lambda texts: FakeEmbedder.embed(mended, [text.replace("first", "other") for text in texts])  # type: ignore[method-assign]
    assert SessionSummaryStore(store._readers, mended).re_embed(SCOPE) == 2
    similarity = dict(store.query_sessions("first words", SCOPE, 5))
    assert similarity["a"] == pytest.approx(0.5, abs=1e-3)
    assert [row.text for row in store.list_sessions(SCOPE)] == ["first words", "second words"]
    assert SessionSummaryStore(store._readers, mended).re_embed(Scope("user", "nobody")) == 0


@pytest.mark.parametrize(("k", "query"), [(-1, "words"), (5, "  ")])
def test_arguments_that_cannot_work_are_refused(store, k, query) -> None:
    """A ValueError names the argument."""
    with pytest.raises(ValueError, match=r"top_k|query"):
        store.query_sessions(query, SCOPE, k)
