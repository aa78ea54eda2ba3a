"""A bot opens the memory that the pipeline wrote, with the real model, and asks from threads and forked children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.embed import Embedder, load_embedder
from pipeline.errors import ConfigError, ModelMismatchError
from pipeline.records import Scope
from pipeline.shards import Shards
from retrieval import Memory, open_memory
from tests.ledgers import publish_snapshot, remember, summarise, turn

SCOPE = Scope("user", "u42")
SAID = {
    "s-travel": [
        "I booked a flight to Lisbon for the spring holidays.",
        "Which airline are you flying with?",
        "TAP, and I found a hotel near the river with a small balcony.",
    ],
    "s-food": [
        "My sourdough starter died while I was away.",
        "Did you try feeding it rye flour?",
        "Yes, the bread is rising again since Sunday.",
    ],
    "s-work": [
        "The quarterly report is due on Friday and I have not begun.",
        "Ask Marta for last year's spreadsheet.",
        "She sent it, thank you.",
    ],
}
SUMMARIES = {
    "s-travel": "Planning a trip to Lisbon: flight and hotel.",
    "s-food": "Baking sourdough bread and rescuing the starter.",
    "s-work": "A quarterly report with a deadline on Friday.",
}
QUERIES = {
    "How is the bread?": "s-food",
    "Where do I stay in Portugal?": "s-travel",
    "When is the report due?": "s-work",
}


@pytest.fixture(scope="module")
def embedder(models_dir: Path) -> Embedder:
    return load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=models_dir, n_threads=1, batch_tokens=4096
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    shards = Shards(folder)
    said = [
        turn(SCOPE, f"{session}-{i}", text, session=session, at=1_683_000_000 + i, index=i, speaker="Ana")
        for session, texts in SAID.items()
        for i, text in enumerate(texts)
    ]
    remember(shards, SCOPE, said[:6], embedder)
    publish_snapshot(shards, SCOPE, embedder)
    remember(shards, SCOPE, said[6:], embedder)
    for session, text in SUMMARIES.items():
        summarise(shards, SCOPE, session, text, embedder)
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, models_dir: Path) -> None:
    """Settings come from the environment, as in a bot's process."""
    for name in [name for name in os.environ if name.startswith("TURNSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__CACHE_DIR", str(models_dir))


@pytest.fixture
def memory(data_dir: Path) -> Iterator[Memory]:
    with closing(open_memory(data_dir)) as opened:
        yield opened


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


@pytest.mark.parametrize(("query", "session"), QUERIES.items())
def test_a_question_finds_its_session_with_context(memory: Memory, query: str, session: str) -> None:
    """From the settings to the neighbours of a hit, with the real model."""
    assert memory.retrieve(query, "user/u42").hits[0].session_id == session
    result = memory.retrieve(query, "user/u42", profile="session", top_sessions=1)
    assert {hit.session_id for hit in result.hits} == {session}
    assert [match.session_id for match in result.diagnostics.sessions] == [session]
    by_turn = {hit.turn_id: hit for hit in result.hits}
    middle = by_turn[f"{session}-1"]
    assert [n.text for n in middle.preceding] == [SAID[session][0]]
    assert [n.text for n in middle.following] == [SAID[session][2]]
    assert SAID[session][0] in result.to_prompt(1000)
    assert json.loads(result.to_json())["hits"][0]["scope"] == "user/u42"


def test_a_bot_loads_neither_torch_nor_celery_nor_redis(data_dir: Path) -> None:
    """Importing the package costs next to nothing; asking needs onnxruntime alone."""
    program = textwrap.dedent("""
        import json, sys
        import retrieval
        cheap = not {"numpy", "apsw", "faiss", "pydantic"} & set(sys.modules)
        hits = retrieval.open_memory().retrieve("How is the bread?", "user/u42").hits
        heavy = {"torch", "celery", "kombu", "redis", "transformers", "sentence_transformers"} & set(sys.modules)
        print(json.dumps([cheap, sorted(heavy), hits[0].session_id]))
    """)
    child = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TURNSTREAM_DATA_DIR": str(data_dir)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(child.stdout) == [True, [], "s-food"]


def test_reading_an_unknown_scope_leaves_the_folder_as_it_was(memory: Memory, data_dir: Path) -> None:
    """Nothing is created by a read, not even for a scope that exists."""
    memory.retrieve("How is the bread?", SCOPE)
    before = listing(data_dir)
    assert memory.retrieve("How is the bread?", "user/nobody").hits == ()
    memory.retrieve("How is the bread?", SCOPE)
    assert listing(data_dir) == before


def test_an_empty_data_folder_answers_nothing_and_stays_empty(tmp_path: Path) -> None:
    """A bot may start before the pipeline ever ran."""
    with closing(open_memory(tmp_path / "none")) as memory:
        assert memory.retrieve("anything", "user/u42").hits == ()
    assert list(tmp_path.iterdir()) == []


def test_eight_threads_share_one_memory(memory: Memory) -> None:
    """Each gets the answer it would get alone."""
    alone = {query: memory.retrieve(query, SCOPE).hits for query in QUERIES}

    def ask(n: int) -> bool:
        query = list(QUERIES)[n % 3]
        hits = memory.retrieve(query, SCOPE).hits
        return [hit.trace_id for hit in hits] == [hit.trace_id for hit in alone[query]]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(48)))


def in_forked_child(work: Callable[[], bool]) -> bool:
    """Run a check in a forked child, ended without the parent's clean-up, killed after 30 s."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 1
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            traceback.print_exc()
        finally:
            os._exit(status)
    killer = threading.Timer(30, os.kill, (pid, signal.SIGKILL))
    killer.start()
    _, ended = os.waitpid(pid, 0)
    killer.cancel()
    assert ended != signal.SIGKILL, "the child hangs"
    return ended == 0


def test_a_forked_child_asks_with_what_its_parent_opened(memory: Memory) -> None:
    """A pre-forking server opens the memory once; parent and child go on, each with files of its own."""
    expected = [hit.trace_id for hit in memory.retrieve("How is the bread?", SCOPE).hits]

    def same() -> bool:
        return [hit.trace_id for hit in memory.retrieve("How is the bread?", SCOPE).hits] == expected

    assert in_forked_child(same)
    assert same()


def test_forking_while_other_threads_ask_harms_neither_side(memory: Memory) -> None:
    """A fork waits for the queries in flight: the child inherits no lock that nobody will release."""
    expected = [hit.trace_id for hit in memory.retrieve("How is the bread?", SCOPE).hits]
    stop = threading.Event()

    def same() -> bool:
        return [hit.trace_id for hit in memory.retrieve("How is the bread?", SCOPE).hits] == expected

    def ask() -> bool:
        answers = [same()]
        while not stop.is_set():
            answers.append(same())
        return all(answers)

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            children = [in_forked_child(same) for _ in range(5)]
        finally:
            stop.set()
        assert all(future.result() for future in asking)
    assert all(children)


def test_the_past_can_be_asked_alone(memory: Memory) -> None:
    """After and before take what a turn's timestamp takes."""
    hits = memory.retrieve("bread", SCOPE, after=1_683_000_001, before="2023-05-02T04:00:01+00:00").hits
    assert {hit.timestamp.timestamp() for hit in hits} == {1_683_000_001}


def test_profiles_that_do_not_exist_are_refused(memory: Memory) -> None:
    """Silently answering by another profile would spoil a comparison."""
    with pytest.raises(ConfigError, match="fused, session"):
        memory.retrieve("bread", SCOPE, profile="psychic")


@pytest.mark.parametrize("mood", [(2, 0, 0), (0, float("nan"), 0)])
def test_a_mood_out_of_range_is_refused(memory: Memory, mood: tuple[float, float, float]) -> None:
    """Each value of the model lies between -1 and 1."""
    with pytest.raises(ValueError, match="mood"):
        memory.retrieve("bread", SCOPE, mood=mood)


def test_a_query_of_ten_thousand_words_works(memory: Memory) -> None:
    """It is cut at the model's limit."""
    assert memory.retrieve("sourdough bread starter " * 3_334, SCOPE, top_sessions=1).hits[0].session_id == "s-food"


def test_another_model_in_the_settings_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names both models and the settings to change."""
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__BACKEND", "hashing")
    with closing(open_memory(data_dir)) as memory, pytest.raises(ModelMismatchError, match="TURNSTREAM_EMBEDDING"):
        memory.retrieve("bread", SCOPE)


def test_weights_and_defaults_come_from_the_settings(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator tunes a bot without touching its code."""
    monkeypatch.setenv("TURNSTREAM_RETRIEVAL__RECALL_TOP_K", "2")
    monkeypatch.setenv("TURNSTREAM_RETRIEVAL__NEIGHBOURS", "0")
    for name in ("STRENGTH", "RECENCY", "EMOTION", "GRAPH", "IMPORTANCE"):
        monkeypatch.setenv(f"TURNSTREAM_RETRIEVAL__WEIGHT_{name}", "0")
    with closing(open_memory(data_dir)) as memory:
        hits = memory.retrieve("How is the bread?", SCOPE, profile="session").hits
    assert len(hits) == 2
    assert [(hit.preceding, hit.following) for hit in hits] == [((), ())] * 2
    assert hits[0].score == pytest.approx(0.35 * hits[0].score_parts["similarity"])
