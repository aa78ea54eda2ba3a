"""Ids and queries made to hurt: refused with a reason, or kept exactly apart and inside the data folder."""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.embed import load_embedder
from pipeline.errors import PoisonError
from pipeline.records import Scope
from pipeline.shards import Shards
from retrieval import Memory, open_memory
from tests.crash.in_process import InProcess, settings_of

N_EACH = 5_000
AT_ONCE = 20
EVENT_ID_CHARS = 128
WIDE = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=N_EACH // AT_ONCE
)

_PARTS = [
    "/", "\\", "..", "../", "~", ".", "\x00", "\n", "\t", "\x1b[2J", "\x7f", "\ud800", "\udfff", "\u202e",
    "\u200b", "\ufeff", "é", "e\u0301", "ﬁ", "fi", "Å", "\u212b", "ß", "SS", "ı", "I", "İ", "💥", "👩\u200d👧",
    "汉", "a", "A", "aa", " ", "'", '"', ";", "--", "%", "_", "*", "?", "[", "user", "user/u1", "u1", "u10",
    "con", "nul", "ledger.sqlite", "bench-session:", "{}", "$HOME", "`", "|",
]  # fmt: skip
ids = st.one_of(
    st.lists(st.sampled_from(_PARTS), min_size=1, max_size=6).map("".join),
    st.text(st.characters(), max_size=40),
    st.builds(
        lambda part, n: (part * n)[:n], st.sampled_from(_PARTS), st.sampled_from([63, 127, 128, 129, 512, 513])
    ),
).filter(lambda made: json.loads(json.dumps(made)) == made)
"""Two halves of an emoji side by side become one in JSON: that id would be another."""
queries = st.one_of(
    st.lists(
        st.sampled_from(
            [*_PARTS, "AND", "OR", "NOT", "NEAR(", ")", "text:", "^", "+", "MATCH", "SELECT", "number", "*:*"]
        ),
        max_size=8,
    ).map(" ".join),
    st.text(max_size=60),
    st.text(st.characters(categories=["Cc", "Cs", "Co", "Cn", "So"]), max_size=20),
)
HUGE = [
    "x" * (1 << 20),
    "💥" * (1 << 18),
    "word " * (1 << 18),
    " " * (1 << 20) + "word",
    "\ud83d" * 4_096,
    '"' * (1 << 20),
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(settings_of(tmp_path / "parent" / "data", summary={"idle_s": 1e6})) as running:
        yield running


def event_of(hostile: str, number: int, *, scope_id: str, session_id: str) -> bytes:
    """An event of a hostile id, in the JSON that any platform may write."""
    fields = {"type": "turn", "scope": "user", "scope_id": scope_id, "session_id": session_id, "turn_id": hostile}
    fields |= {"event_id": hostile, "role": "user", "content": f"number{number}", "timestamp": 1.6e9}
    return json.dumps(fields).encode()


@pytest.mark.timeout(300)
def test_hostile_ids_are_refused_or_kept_apart(run: InProcess, tmp_path: Path, row) -> None:
    """As scope, session, turn and event: one id is one row, whatever a file system or Unicode makes of it."""
    row.expect("hostile ids")
    shared = Scope("group", "of all")
    around = snapshot_of(tmp_path, Path.cwd())
    kept: dict[str, int] = {}
    numbers = itertools.count()
    n_tried = n_refused = 0

    @WIDE
    @given(st.lists(ids, min_size=AT_ONCE, max_size=AT_ONCE))
    def take(hostile_ids: list[str]) -> None:
        nonlocal n_tried, n_refused
        n_tried += len(hostile_ids)
        fresh = {hostile: next(numbers) for hostile in sorted(set(hostile_ids) - kept.keys())}
        before = len(run.letters)
        run.take(event_of(h, n, scope_id=h, session_id=h) for h, n in fresh.items())
        run.take(
            event_of(h, n, scope_id=shared.id, session_id=h).replace(b'"user", "scope_id"', b'"group", "scope_id"', 1)
            for h, n in fresh.items()
        )
        letters = run.letters[before:]
        assert all(letter.field and letter.reason for letter in letters)
        refused = {json.loads(letter.raw or b"")["event_id"] for letter in letters}
        assert all(not is_plain(hostile) for hostile in refused)
        n_refused += len(refused)
        kept.update({h: n for h, n in fresh.items() if h not in refused})

    take()
    run.embed()
    with closing(run.memory()) as memory:
        for hostile, number in kept.items():
            found = memory.retrieve("number", Scope("user", hostile), recall_top_k=100).hits
            assert [(h.session_id, h.turn_id, h.text) for h in found] == [(hostile, hostile, f"number{number}")]
        together = memory.memory_store.query("number", shared, top_k=10 * N_EACH).scored
    assert all(trace.session_id == trace.turn_id for trace in together)
    texts = {trace.turn_id: trace.text for trace in together}
    assert len(texts) == len(together) == len(set(texts.values()))
    assert all(texts[hostile] == f"number{number}" for hostile, number in kept.items())
    assert_only_known_files(run.settings.data_dir)
    assert snapshot_of(tmp_path, Path.cwd()) == around
    row("hostile ids", n=n_tried, outcome=f"{n_refused} refused with a reason, {len(kept)} distinct kept apart")


def is_plain(hostile: str) -> bool:
    """Whether nothing at all is wrong with an id."""
    return bool(hostile.strip()) and len(hostile) <= EVENT_ID_CHARS and not re.search("[\x00\ud800-\udfff]", hostile)


def snapshot_of(*folders: Path) -> list[list[str]]:
    """What stands beside the data folder, and where this process runs."""
    return [sorted(path.name for path in folder.iterdir() if path.name[0] != ".") for folder in folders]


def assert_only_known_files(data_dir: Path) -> None:
    """Every name in the data folder is one that the program chose."""
    known = re.compile(
        r"registry\.sqlite(-wal|-shm)?|run(/(workers|pulses)(/[\w.-]+)?)?"
        r"|shards(/[a-z2-7]{2}(/[a-z2-7]{32}(/(ledger\.sqlite(-wal|-shm)?|traces\.[\w.]+|\.traces\.lock))?)?)?"
    )
    names = [str(path.relative_to(data_dir)) for path in data_dir.rglob("*")]
    assert [name for name in names if not known.fullmatch(name)] == []
    assert [path.name for path in data_dir.parent.iterdir()] == ["data"]


@pytest.mark.timeout(300)
def test_hostile_queries_are_answered_or_refused(run: InProcess, row) -> None:
    """A query is what a stranger typed."""
    row.expect("hostile queries")
    scope, n_tried, n_refused = Scope("user", "u1"), 0, 0
    run.take(event_of(f"e{n}", n, scope_id=scope.id, session_id="s") for n in range(30))
    run.finish()

    def ask(memory: Memory, query: str) -> None:
        nonlocal n_tried, n_refused
        n_tried += 1
        if not query.strip():
            n_refused += 1
            with pytest.raises(ValueError, match="query: is blank"):
                memory.retrieve(query, scope)
            return
        found = memory.retrieve(query, scope, recall_top_k=1)
        assert math.isfinite(found.hits[0].score)

    with closing(run.memory()) as memory:

        @WIDE
        @given(st.lists(queries, min_size=AT_ONCE, max_size=AT_ONCE))
        def ask_all(made: list[str]) -> None:
            for query in made:
                ask(memory, query)

        ask_all()
        for query in HUGE:
            ask(memory, query)
    row("hostile queries", n=n_tried, outcome=f"answered, {n_refused} blank ones refused")


def test_the_real_model_takes_what_is_no_text(models_dir: Path, run: InProcess) -> None:
    """Its tokenizer refuses lone surrogates, and reads a megabyte to the end though the model sees 256 tokens."""
    embedder = load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=models_dir, n_threads=1, batch_tokens=4_096
    )
    with closing(open_memory(settings=run.settings, embedder=embedder)) as memory:
        store, scope = memory.summary_store, Scope("user", "u1")
        store.index_session(scope, "s", "a word or two")
        for query in [*_PARTS, *HUGE]:
            if query.strip():
                assert store.query_sessions(query, scope, 1)


def test_ids_that_no_event_may_have_are_refused_by_the_stores(run: InProcess) -> None:
    """They are called with ids from outside as well."""
    with closing(run.memory()) as memory:
        for hostile in ("a\x00", "\ud800"):
            with pytest.raises(PoisonError, match="session_id"):
                memory.summary_store.index_session(Scope("user", "u1"), hostile, "a word")
            with pytest.raises(PoisonError, match="session_id"):
                memory.summary_store.delete_session(Scope("user", "u1"), hostile)
            with pytest.raises(PoisonError, match="scope_id"):
                memory.retrieve("a word", f"user/{hostile}")
    assert not Shards(run.settings.data_dir).root.exists()


def test_ids_that_look_alike_are_not_the_same(run: InProcess) -> None:
    """Normal forms, case and width are the publisher's affair; a digest sees bytes."""
    forms = {unicodedata.normalize(form, "Ångström ﬁ") for form in ("NFC", "NFD", "NFKC", "NFKD")} | {"ångström ﬁ"}
    assert len({Shards(run.settings.data_dir).folder(Scope("user", form)) for form in forms}) == len(forms) == 5
