"""Cases in which other memory systems are known to fail, each with its right outcome; no process is needed."""

from __future__ import annotations

import dataclasses
import json
import random
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SummaryError
from pipeline.importers import Imported, reader
from pipeline.ledger import upkeep
from pipeline.records import Mood, Scope, SessionClosed, Turn, TurnDeleted
from pipeline.shards import SUMMARIES_FOLDER, Shards
from pipeline.snapshot import SnapshotStore
from pipeline.summarise import Completion, SessionSummarizer, SummaryInvoker
from tests.crash.in_process import InProcess, settings_of
from tests.fakes import CountingInvoker
from workers.checkup import repair, verify_data
from workers.sessions import SessionDesk

SEED = 20_260_307
SCOPE, OTHER = Scope("user", "u1"), Scope("user", "u2")
WORDS = ["harbour", "lantern.", "violin,", "meadow", "copper", "thunder", "orchid", "glacier.", "saddle", "walnut"]
SESSION_WORDS, SESSION_TOKENS = 185_000, 240_000
"""The same, and a tenth of what --long takes."""
LONGEST_GROWTH_BYTES = 300 << 20
NOW_S = 1_700_000_000


@pytest.fixture
def run(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(settings_of(tmp_path / "data", index={"min_tail": 1}, summary={"attempts": 1})) as running:
        yield running


def said(number: int, content: str, *, scope: Scope = SCOPE, session: str = "s", **fields: Any) -> Turn:
    return Turn(
        scope=scope, session_id=session, role="user", content=content, timestamp=1.6e9 + number,
        event_id=f"{session}-{number}", index=number, **fields,
    )  # fmt: skip


def closed(session: str = "s") -> SessionClosed:
    return SessionClosed(scope=SCOPE, session_id=session, timestamp_ms=1, event_id=f"{session} closed")


def summarised_by(run: InProcess, invoker: SummaryInvoker) -> None:
    """Have another model write the summaries."""

    def summarizer_for(ledger: Any) -> SessionSummarizer:
        return SessionSummarizer(invoker, "m", ledger.path.parent / SUMMARIES_FOLDER, attempts=1)

    desk = SessionDesk(run.settings.summary, run.flow.embedder, summarizer_for, run.flow.clock)
    run.flow = dataclasses.replace(run.flow, sessions=desk)


def cached(run: InProcess) -> list[str]:
    """The summaries kept on disk."""
    return [p.name for p in (Shards(run.settings.data_dir).folder(SCOPE) / SUMMARIES_FOLDER).glob("*.json")]


def summaries(run: InProcess) -> dict[str, str]:
    with closing(run.memory()) as memory:
        return {row.session_id: row.text for row in memory.summary_store.list_sessions(SCOPE)}


@pytest.mark.timeout(300)
def test_every_chunk_of_a_huge_session_is_searchable(run: InProcess, tmp_path: Path, row, long: int) -> None:
    """An exported chat of years is one session; 2.4 million tokens of it with --long."""
    name = "one session in one import"
    row.expect(name)
    chance, n_words = random.Random(SEED), SESSION_WORDS * long
    texts = []
    while n_words > 0:
        words = chance.choices(WORDS, k=min(n_words, chance.choice([50, 400, 3_000, 40_000])))
        texts.append(f"turn{len(texts)} {' '.join(words)}")
        n_words -= len(words)
    transcript = tmp_path / "chats.json"
    messages = [{"role": "user", "content": text} for text in texts]
    transcript.write_text(json.dumps({"session_id": "s", "created_at": NOW_S, "messages": messages}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run.publish(*(read.event for read in reader("openai")(transcript, SCOPE) if isinstance(read, Imported)))
    run.finish()
    grown_bytes = 1_024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert not run.letters
    assert verify_data(run.settings, idle=True) == []  # every chunk is in its place, and none is missing
    db = run.flow.ledgers.open(SCOPE).connection
    ((n_chunks, n_tokens),) = db.execute("SELECT count(*), sum(n_tokens) FROM traces").fetchall()
    assert n_tokens >= SESSION_TOKENS * long
    with closing(run.memory()) as memory:
        everything = memory.memory_store.query("harbour", SCOPE, top_k=n_chunks).scored
        assert len({trace.trace_id for trace in everything}) == n_chunks
        for trace in chance.sample(everything, 200):
            (hit,) = memory.memory_store.query(trace.text, SCOPE, top_k=1).scored
            assert hit.text == trace.text
    assert grown_bytes < LONGEST_GROWTH_BYTES
    row(name, n=1, outcome=f"{n_tokens} tokens, all {n_chunks} chunks searchable")


@pytest.mark.parametrize("n_chunks", [0, 1, 2])
@pytest.mark.parametrize("min_tail", [1, 100], ids=["snapshot", "ledger alone"])
def test_a_scope_with_hardly_anything_is_answered_in_every_mode(
    tmp_path: Path, n_chunks: int, min_tail: int, row
) -> None:
    """Libraries that ask an index for ten neighbours of two vectors return -1, or raise."""
    row.expect("a scope with 0, 1 and 2 chunks in every query mode")
    n_asked = 0
    with InProcess(settings_of(tmp_path, index={"min_tail": min_tail})) as run:
        run.publish(said(9, "forgotten"), *(said(n, f"walnut number{n}") for n in range(n_chunks)), closed())
        run.finish()
        run.publish(TurnDeleted(scope=SCOPE, session_id="s", turn_id="s-9", timestamp_ms=1, event_id="d"))
        run.finish()
        with closing(run.memory()) as memory:
            (vector,) = memory.embedder.embed(["walnut"])
            for limits in (
                {},
                {"after": 1.6e9},
                {"before": 1.6e9},
                {"after": 1.6e9, "before": 1.7e9},
                {"after": 1.7e9},
            ):
                expected = [
                    n
                    for n in range(n_chunks)
                    if limits != {"after": 1.7e9} and (n == 0 or limits != {"before": 1.6e9})
                ]
                for k in (0, 1, 2, 10, 1_000):
                    n_asked += 5
                    wanted = min(k, len(expected))
                    store = memory.memory_store
                    assert len(store.query("walnut", SCOPE, top_k=k, **limits).scored) == wanted
                    assert len(store.query(vector, SCOPE, top_k=k, mood=Mood(-1), **limits).scored) == wanted
                    assert len(store.query(np.zeros_like(vector), SCOPE, top_k=k, **limits).scored) == wanted
                    assert len(memory.retrieve("walnut", SCOPE, recall_top_k=k, **limits).hits) == wanted
                    plain = memory.retrieve("walnut", SCOPE, top_sessions=0, recall_top_k=k, **limits)
                    assert len(plain.hits) == wanted
            assert len(memory.summary_store.query_sessions("walnut", SCOPE, 10)) == bool(n_chunks)
        assert verify_data(run.settings, idle=True) == []
    row("a scope with 0, 1 and 2 chunks in every query mode", n=n_asked, outcome="as many hits as there are")


def test_a_snapshot_of_zeros_stops_nothing_and_is_rebuilt(run: InProcess, row) -> None:
    """What a file system leaves of a file whose size reached the disk and whose bytes did not."""
    run.publish(*(said(n, f"walnut number{n}") for n in range(20)))
    run.finish()
    (index,) = Shards(run.settings.data_dir).folder(SCOPE).glob("traces.*.faiss")
    index.write_bytes(bytes(4_096))
    with InProcess(run.settings) as again, closing(again.memory()) as memory:
        assert memory.retrieve("number7", SCOPE).hits[0].text == "walnut number7"
        assert repair(again.settings)
        again.finish()
        assert memory.retrieve("number7", SCOPE).hits[0].text == "walnut number7"
    snapshot = SnapshotStore(index.parent).open("traces", model_key=run.flow.embedder.model_key)
    assert snapshot is not None
    assert snapshot.count == 20
    assert verify_data(run.settings, idle=True) == []
    row("a snapshot of 4 KB of zeros", n=1, outcome="start-up goes on, rebuilt")


@pytest.mark.timeout(240)
def test_a_small_scope_is_not_crowded_out_by_a_large_one(run: InProcess, row) -> None:
    """With one index for all, the ten thousand nearest are another's, and a filter leaves nothing."""
    name = "10 000 near chunks in one scope, 5 far ones in another"
    row.expect(name)
    run.publish(*(said(n, f"walnut orchid number{n}") for n in range(10_000)))
    run.publish(*(said(n, f"something far{n}", scope=OTHER) for n in range(5)))
    run.embed()
    run.flow.publish_snapshots([SCOPE.key, OTHER.key])
    with closing(run.memory()) as memory:
        hits = memory.retrieve("walnut orchid", OTHER, recall_top_k=5).hits
        traces = memory.memory_store.query("walnut orchid", OTHER, top_k=10).scored
    assert sorted(hit.text for hit in hits) == [f"something far{n}" for n in range(5)]
    assert len(traces) == 5
    row(name, n=1, outcome="the other answers 5")


class Interrupted(CountingInvoker):
    """Writes its first summary while a hundred turns of the same session arrive."""

    def __init__(self, arrive: Callable[[], None]) -> None:
        super().__init__(n_words=10_000)
        self._arrive = [arrive]

    def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:
        """Let the turns arrive, then answer about what was given."""
        if self._arrive:
            self._arrive.pop()()
        return super().__call__(system, user, max_tokens=max_tokens)


def test_turns_that_arrive_while_their_session_is_summarised_are_in_the_next_summary(run: InProcess, row) -> None:
    """The first summary is out of date when it is written: it must not be taken for the session's."""
    more = [said(n, f"later{n}") for n in range(1, 101)]

    def arrive() -> None:
        thread = threading.Thread(target=lambda: run.publish(*more))
        thread.start()
        thread.join(60)

    invoker = Interrupted(arrive)
    summarised_by(run, invoker)
    run.publish(said(0, "first"), closed())
    run.finish()
    assert invoker.n_calls == 2
    assert [word for n in range(1, 101) if (word := f"later{n}") not in summaries(run)["s"].split()] == []
    assert verify_data(run.settings, idle=True) == []
    row("a session summarised while 100 turns arrive", n=1, outcome="none lost, summary refreshed")


def test_a_session_without_words_is_not_summarised(run: InProcess, tmp_path: Path, row) -> None:
    """A model asked about nothing makes something up."""
    invoker = CountingInvoker()
    summarised_by(run, invoker)
    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    transcript = tmp_path / "images.json"
    transcript.write_text(
        json.dumps(
            {"session_id": "images", "created_at": NOW_S, "messages": [{"role": "user", "content": [image]}] * 3}
        )
    )
    run.publish(*(read.event for read in reader("openai")(transcript, SCOPE) if isinstance(read, Imported)))
    run.publish(
        closed("empty"), closed("blank"), *(said(n, text, session="blank") for n, text in enumerate(["", " ", "\n"]))
    )
    run.finish()
    assert invoker.n_calls == 0
    assert summaries(run) == {}
    assert cached(run) == []
    assert run.flow.registry.counts().closed_unsummarised == 0
    row("sessions of no turns, blanks, images", n=3, outcome="no summary, no model call")


ANSWERS = {
    "nothing": "",
    "blanks": " \n",
    "None": None,
    "no answer": SummaryError("the model is away"),
    "an error of its own": RuntimeError("bug in an invoker"),
    "time is up": TimeoutError("no answer in time"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_summary_that_is_none_is_never_kept(run: InProcess, answer: str, row) -> None:
    """One bad minute of the model would stand for the session for ever; and its neighbour waits for nobody."""
    row.expect('a summariser that returns "", None, raises or times out')
    is_well = threading.Event()
    healthy = CountingInvoker()

    def moody(system: str, user: str, /, *, max_tokens: int) -> Completion:
        if "unlucky" in user and not is_well.is_set():
            given: Any = ANSWERS[answer]
            if isinstance(given, Exception):
                raise given
            return Completion(given, 1, 0, "m")
        return healthy(system, user, max_tokens=max_tokens)

    summarised_by(run, moody)
    run.publish(said(1, "unlucky"), closed(), said(2, "neighbour", session="n"), closed("n"))
    run.finish()
    assert list(summaries(run)) == ["n"]
    assert len(cached(run)) == 1
    (waiting,) = upkeep.unsummarised(run.flow.ledgers.open(SCOPE))
    assert (waiting["session_id"], waiting["attempts"]) == ("s", 1)
    is_well.set()
    run.publish(said(3, "unlucky no more"))
    run.finish()
    assert sorted(summaries(run)) == ["n", "s"]
    row('a summariser that returns "", None, raises or times out', n=1, outcome="never cached, listed, retried")
