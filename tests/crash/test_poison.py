"""Poison of many kinds through one pipeline: each is set aside with its reason, and nobody around it is affected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract import MAX_CONTENT_BYTES
from pipeline.embed.hashing import HashingEmbedder
from pipeline.records import Scope
from pipeline.stream import MAX_LETTER_BYTES, connect
from retrieval import open_memory
from tests.conftest import RunningServer
from tests.crash.conftest import Row
from tests.crash.live import EPOCH_S, Live, live, numbered, of_one_scope
from tests.crash.poisonable_worker import ANSWERS, DEEDS, KILLS, QUOTES, RAISES
from tests.eventually import eventually

SAID = "zqx-said-in-confidence"
NEIGHBOURS = ["heron on the left", "heron on the right"]
ROW = "poison: 30 kinds"


def raw(**fields: Any) -> bytes:
    event = {
        "type": "turn", "event_id": "e", "scope": "user", "scope_id": "u", "session_id": "s", "role": "user",
        "content": SAID, "timestamp": EPOCH_S, **fields,
    }  # fmt: skip
    return json.dumps({name: value for name, value in event.items() if value is not ...}).encode()


def nested(depth: int) -> bytes:
    return raw(metadata={"m": "@"}).replace(b'"@"', b"[" * depth + b"]" * depth)


REFUSED: dict[str, tuple[bytes, str, str]] = {  # by kind: the entry's event, the field at fault, words of the reason
    "64 MiB": (raw(content=SAID + "y" * (64 << 20)), "", "too large"),
    "content over 1 MiB": (raw(content=SAID + "y" * MAX_CONTENT_BYTES), "content", "at most"),
    "metadata over 256 KiB": (raw(metadata={"m": SAID * 20_000}), "metadata", "at most"),
    "nothing at all": (b"", "", "EOF"),
    "no JSON": (f"{SAID} {{".encode(), "", "expected"),
    "half an event": (raw()[:-20], "", "EOF"),
    "a JSON number": (b"42", "", "not a JSON object"),
    "a JSON text": (json.dumps(SAID).encode(), "", "not a JSON object"),
    "a JSON null": (b"null", "", "not a JSON object"),
    "an array": (json.dumps([SAID]).encode(), "", "not a JSON object"),
    "brackets alone": (b"[" * 500_000, "", "deep|recursion"),
    "metadata nested deeply": (nested(500_000), "", "deep|recursion"),
    "a byte order mark": (b"\xef\xbb\xbf" + raw(), "", "expected"),
    "no UTF-8": (raw(content=f"{SAID} @").replace(b"@", b"\xff\xfe"), "content", "UTF-8"),
    "UTF-16": (raw().decode().encode("utf-16"), "", ""),
    "a lone surrogate": (raw(content=f"{SAID} \ud800"), "content", "surrogate"),
    "a lone surrogate in a key": (raw(metadata={"\udfff": 1}), "metadata", "surrogate"),
    "a NUL": (raw(content=f"{SAID} \x00"), "content", "NUL"),
    "a NUL in an id": (raw(session_id="a\x00b"), "session_id", "NUL"),
    "NaN": (raw(mood={"valence": float("nan")}), "mood", "NaN"),
    "infinity": (raw(metadata={"x": float("inf")}), "metadata", "infinity"),
    "a number too large for one": (raw(metadata={"x": "@"}).replace(b'"@"', b"1e999"), "metadata", "infinity"),
    "an index past 2^53": (raw(index=1 << 60), "index", "less than or equal"),
    "an index of 400 digits": (raw(index=10**400), "index", ""),
    "a negative revision": (raw(revision=-1), "revision", "greater than or equal"),
    "a mood out of range": (raw(mood={"valence": 1.5}), "mood.valence", "less than or equal"),
    "a mood nobody has": (raw(mood={"hunger": 0.5}), "mood.hunger", "not permitted"),
    "year 1": (raw(timestamp="0001-01-01T00:00:00Z"), "timestamp", "1900-2199"),
    "year 9999": (raw(timestamp="9999-12-31T23:59:59Z"), "timestamp", "1900-2199"),
    "milliseconds": (raw(timestamp=EPOCH_S * 1000), "timestamp", "divide by 1000"),
    "an endless time": (raw(timestamp=10**300), "timestamp", "1900-2199"),
    "no time": (raw(timestamp="yesterday"), "timestamp", "ISO 8601"),
    "a million tags": (raw(tags=[""] * 1_000_000), "", "too large"),
    "400 000 tags": (raw(tags=[""] * 400_000), "tags", "at most 64"),
    "a tag of 257 characters": (raw(tags=["t" * 257]), "tags.0", "at most 256"),
    "an id of 129 characters": (raw(event_id="e" * 129), "event_id", "at most 128"),
    "a blank id": (raw(event_id=" "), "event_id", "blank"),
    "a scope kind that is a path": (raw(scope="../user"), "scope", "word"),
    "a role of two words": (raw(role="two words"), "role", "word"),
    "an unknown type": (raw(type="tern"), "type", "none of"),
    "a deletion of no session": (raw(type="session_deleted", session_id=...), "session_id", "missing"),
    "a deletion of no turn": (raw(type="turn_deleted"), "turn_id", "missing"),
    **{
        f"no {field}": (raw(**{field: ...}), field, "missing")
        for field in ("type", "event_id", "scope", "scope_id", "session_id", "role", "content", "timestamp")
    },
    **{
        f"{field} of another type": (raw(**{field: value}), at, "")
        for field, value, at in [
            ("type", 7, "type"), ("event_id", 7, "event_id"), ("scope", ["user"], "scope"),
            ("scope_id", 7, "scope_id"), ("session_id", {"id": "s"}, "session_id"), ("role", True, "role"),
            ("content", 7, "content"), ("timestamp", [EPOCH_S], "timestamp"), ("turn_id", 7, "turn_id"),
            ("index", "3", "index"), ("revision", 1.5, "revision"), ("speaker", ["Ada"], "speaker"),
            ("tags", "travel", "tags"), ("tags", [7], "tags.0"), ("mood", "glad", "mood"),
            ("metadata", [1], "metadata"),
        ]
    },
}  # fmt: skip
ODD = {
    "a word of 200 000 letters": raw(event_id="odd-1", scope_id="odd", content="x" * 200_000),
    "a key twice": raw(event_id="odd-2", scope_id="odd", content="@").replace(b'"@"', b'"first", "content": "last"'),
    "combining marks": raw(event_id="odd-3", scope_id="odd", content="heron" + "\u0301" * 100_000),
    "nothing but signs": raw(event_id="odd-4", scope_id="odd", content="🦜" * 50_000),
    "right to left": raw(event_id="odd-5", scope_id="odd", content="\u202e heron \u2066" * 1_000),
    "blanks": raw(event_id="odd-6", scope_id="odd", content=" \n\t\u3000" * 1_000),
}
"""What looks like poison and is not: accepted, and searchable if it says anything."""
HARMFUL = [*DEEDS, *ANSWERS]
HARMFUL_SAYS = {
    QUOTES: "ValueError: cannot embed", RAISES: "RuntimeError: more than it can take",
    "poison-that-wants-memory": "MemoryError: more than there is",
    "poison-that-divides": "ZeroDivisionError", "poison-that-recurses": "RecursionError",
    "poison-that-is-unknown": "KeyError", "poison-for-nan": "NaN or infinity",
    "poison-for-infinity": "NaN or infinity",
    "poison-for-nothing": "NoneType, not numbers", "poison-for-zeros": "length 0, not 1",
    "poison-for-ten-times-the-length": "length 10, not 1", "poison-for-a-row-less": "shape (0, 384), not (1, 384)",
    "poison-for-a-row-more": "shape (2, 384), not (1, 384)", "poison-for-another-dimension": "shape (1, 100)",
    "poison-for-one-long-row": "shape (384,)", "poison-for-words": "not numbers",
    "poison-for-whole-numbers": "int64, not numbers", "poison-for-lists": "list, not numbers",
}  # fmt: skip


KEPT = [bad for bad, _, _ in REFUSED.values() if len(bad) <= MAX_LETTER_BYTES]
ENDS = ["poison-that-kills", "poison-that-exits", "poison-that-leaves", "poison-that-hangs"]
SICK = Scope("user", "sick summaries")
SICK_SESSIONS = ["harmless", KILLS, RAISES, QUOTES]


@dataclass(frozen=True)
class Outcome:
    """What had become of everything when all was done, and when it was put back."""

    data_dir: Path
    n_deaths: int
    letters: list[dict[str, Any]]
    quarantined: dict[str, dict[str, Any]]
    unsummarised: dict[str, str]
    stats: dict[str, dict[str, Any]]
    turns: dict[str, tuple[int, int]]
    summaries: dict[str, str]
    wrong: list[str]
    replayed: str
    stats_then: dict[str, dict[str, Any]]
    log: str


def publish(site: Live) -> None:
    left, right = NEIGHBOURS
    with connect(site.pipeline.url, timeout_s=60) as client, site.pipeline.publisher() as publisher:
        for kind in HARMFUL:
            scope = Scope("user", kind)
            publisher.publish_many(of_one_scope(scope, [left, f"{kind} {SAID}", right]))
            publisher.close_session(scope, "s", timestamp=EPOCH_S + 9)
        for number, kind in enumerate(SICK_SESSIONS):
            publisher.publish(numbered(number, SICK, session=kind))
            publisher.close_session(SICK, kind, summary=f"{kind} {SAID}", timestamp=EPOCH_S + 9)
        for bad, _, _ in REFUSED.values():
            client.xadd(site.stream.name, {"event": bad})
        client.xadd(site.stream.name, {"evnt": SAID})
        for odd in ODD.values():
            client.xadd(site.stream.name, {"event": odd})


def work_off(site: Live) -> int:
    """Have workers do all there is, one after the other; gives how many died of it."""
    n_deaths, worker = 0, site.worker()

    def is_done() -> bool:
        nonlocal n_deaths, worker
        if not worker.is_alive():
            n_deaths += 1
            worker = site.worker()
        return not site.pipeline.progress().state().is_waiting

    eventually(is_done, within_s=120)
    worker.kill()
    worker.join()
    return n_deaths


@pytest.fixture(scope="module")
def outcome(valkey_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """All of it published, worked off, looked at, put back, and worked off again by a worker whom nothing harms."""
    with live(valkey_server, tmp_path_factory.mktemp("poison"), WORKERS__TURN_TIMEOUT_S="3") as site:
        site.ingester()
        publish(site)
        n_deaths = work_off(site)
        found = look(site, n_deaths)
        replayed = site.pipeline.run("dead-letters", "replay").stdout
        site.spawner.worker(site.pipeline.environment, "healthy")
        site.pipeline.wait()
        yield replace(found, replayed=replayed, stats_then=site.pipeline.stats(), log=site.log())


def look(site: Live, n_deaths: int) -> Outcome:
    listed = json.loads(site.pipeline.run("dead-letters", "list", "--json").stdout)
    return Outcome(
        data_dir=site.data_dir,
        n_deaths=n_deaths,
        letters=listed["dead_letters"],
        quarantined={turn["scope"].removeprefix("user/"): turn for turn in listed["quarantined"]},
        unsummarised={session["session_id"]: session["failure"] for session in listed["unsummarised"]},
        stats=site.pipeline.stats(),
        turns={x[0]: x[1:] for x in site.rows("SELECT turn_id, state, attempts FROM turns")},
        summaries=dict(
            site.rows("SELECT (SELECT value FROM meta WHERE key = 'scope') || ' ' || session_id, text FROM summaries")
        ),
        wrong=site.wrong(),
        replayed="",
        stats_then={},
        log="",
    )


@pytest.mark.timeout(240)
def test_poison_is_set_aside_and_counted(outcome: Outcome, row: Row) -> None:
    """Everything published is accounted for, and whoever runs it can see what is missing and why."""
    row.expect(ROW)
    events, memory = outcome.stats["events"], outcome.stats["memory"]
    n_turns = 3 * len(HARMFUL) + len(SICK_SESSIONS) + len(ODD)
    assert events == {"applied": n_turns + len(HARMFUL) + len(SICK_SESSIONS), "dead_lettered": len(REFUSED) + 1}
    assert (outcome.stats["stream"]["dead"], len(outcome.letters)) == (len(REFUSED) + 1, len(REFUSED) + 1)
    assert (memory["turns"], memory["quarantined"], memory["skipped"]) == (n_turns, len(HARMFUL), 1)
    assert memory["searchable"] == n_turns - len(HARMFUL) - 1
    assert outcome.wrong == []
    assert SAID not in outcome.log
    assert outcome.n_deaths <= 1 + 2 * len(ENDS) + 4  # each alone twice, after the batch; and what the summaries cost
    n_kinds = len(REFUSED) + 1 + len(HARMFUL) + 3 + len(ODD)
    row(ROW, n=n_kinds, outcome=f"{len(REFUSED) + 1} dead-lettered with their field, {len(HARMFUL)} quarantined"
        f" after 3, 3 summaries put off, {len(ODD)} odd ones accepted; neighbours searchable")  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_dead_letter_says_which_field_and_why(outcome: Outcome, kind: str) -> None:
    """Whoever wrote the publisher must see from it what to change; never what was said."""
    bad, field, reason = REFUSED[kind]
    letter = outcome.letters[list(REFUSED).index(kind)]
    assert (letter["field"], letter["n_bytes"]) == (field, len(bad) if bad in KEPT else 0)
    assert re.search(reason, letter["reason"]), letter["reason"]
    assert letter["reason"]
    assert SAID not in letter["reason"]


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_turn_that_is_too_much_is_quarantined_after_exactly_three_attempts(outcome: Outcome, kind: str) -> None:
    """Its neighbours were at most once with it."""
    assert outcome.turns[f"{kind}-1"] == (4, 3)
    assert {outcome.turns[f"{kind}-{n}"][0] for n in (0, 2)} == {2}
    assert {outcome.turns[f"{kind}-{n}"][1] for n in (0, 2)} <= {1, 2}
    turn = outcome.quarantined[kind]
    assert (turn["turn_id"], turn["attempts"]) == (f"{kind}-1", 3)
    assert ("worker ended" if kind in ENDS else HARMFUL_SAYS[kind]) in turn["failure"]
    assert (SAID in turn["failure"]) == (kind == QUOTES)  # kept with the turn alone, and forgotten with it


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_poison_turns_session_is_summarised_without_it(outcome: Outcome, kind: str) -> None:
    """In the summary its words would do the same again."""
    summary = outcome.summaries[f"user/{kind} s"]
    assert SAID not in summary
    assert "heron" in summary


def test_a_summary_that_is_too_much_is_put_off_with_its_reason(outcome: Outcome) -> None:
    """Tried again with longer and longer waits; the other sessions of the scope have theirs."""
    assert set(outcome.unsummarised) == {KILLS, RAISES, QUOTES}
    assert "worker ended" in outcome.unsummarised[KILLS]
    assert outcome.unsummarised[RAISES].startswith("RuntimeError;")  # no word of a library's: it may quote
    assert outcome.unsummarised[QUOTES].startswith("ValueError;")
    assert f"{SICK.key} harmless" in outcome.summaries
    assert {outcome.turns[f"{SICK.id}-{n}"][0] for n in range(len(SICK_SESSIONS))} == {2}


def test_neighbours_and_odd_texts_are_searchable(outcome: Outcome) -> None:
    """Before the poison, behind it, and in one batch with it."""
    with closing(open_memory(outcome.data_dir, embedder=HashingEmbedder())) as memory:
        for kind in HARMFUL:
            texts = {hit.text for hit in memory.retrieve("heron", Scope("user", kind)).hits}
            assert texts >= set(NEIGHBOURS), kind
        hits = memory.retrieve("last", Scope("user", "odd"), recall_top_k=50, chunks_per_session=50).hits
        assert {"odd-1", "odd-2", "odd-3", "odd-4", "odd-5"} <= {hit.turn_id for hit in hits}
        assert {hit.text for hit in hits if hit.turn_id == "odd-2"} == {"last"}


def test_what_was_set_aside_can_be_put_back(outcome: Outcome) -> None:
    """After a fix nothing has to be published again; what is still wrong is set aside again."""
    assert outcome.replayed == f"{len(KEPT)} entries and {len(HARMFUL)} turns put back\n"
    assert outcome.stats_then["memory"]["quarantined"] == 0
    assert outcome.stats_then["memory"]["searchable"] == outcome.stats["memory"]["turns"] - 1
    assert outcome.stats_then["events"]["dead_lettered"] == len(REFUSED) + 1 + len(KEPT)
    assert outcome.stats_then["stream"]["dead"] == len(REFUSED) + 1
