"""What waits too long is named; what merely waits, or was put aside for a person, degrades nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.ledger import LedgerPool, events, sessions
from pipeline.records import Scope, Turn
from pipeline.registry import Counts, Registry, Waiting, Worst
from pipeline.settings import Settings
from pipeline.shards import Shards
from pipeline.stream import Backlog
from pipeline.stream.vitals import Oldest, StreamVitals
from workers import health, vitals
from workers.health import What
from workers.liveness import INGESTER, WORKER, Sign
from workers.vitals import RegistryVitals, Verified, Vitals

NOW_MS, MONOTONIC_S = 1_700_000_000_000, 5_000.0
INGESTS, WORKS = Sign(INGESTER, "i", 1, 1, MONOTONIC_S + 9, True), Sign(WORKER, "w", 2, 1, MONOTONIC_S, True)
BACKLOG = Backlog(length=0, undelivered=0, pending=0, stray=0, oldest_pending_ms=0, dead=0)
WAITING = Waiting(2, 0, None, 0, 0, None, 0, None, 0, None)


def well(**changes: Any) -> Vitals:
    """What is seen of an installation at which nothing is wrong, changed."""
    parts = {
        "backlog": BACKLOG, "pending": None, "undelivered": None, "memory_ratio": 0.5, "unfit": [],
        "counts": Counts(), "waiting": WAITING, "worst": {}, "totals": {}, "verified": None,
        "processes": [INGESTS, WORKS],
        "failures": {}, **changes,
    }  # fmt: skip
    stream = StreamVitals(*(parts[name] for name in ("backlog", "pending", "undelivered", "memory_ratio", "unfit")))
    registry = RegistryVitals(
        parts["counts"], parts["waiting"], parts["worst"], parts["totals"], (0, 0), parts["verified"]
    )
    return Vitals(
        NOW_MS,
        MONOTONIC_S,
        None if "stream" in parts["failures"] else stream,
        None if "registry" in parts["failures"] else registry,
        parts["processes"],
        parts["failures"],
    )


def found(seen: Vitals, data_dir: Path = Path("/data")) -> dict[What, str]:
    return {problem.what: problem.detail for problem in health.problems(Settings(data_dir=data_dir), seen)}


def ago(seconds: float) -> int:
    return NOW_MS - round(seconds * 1000)


def worst(kind: str, age_s: float, refusal: str | None = None) -> dict[str, Any]:
    """Three scopes wait for it, the longest for so long."""
    return {"worst": {kind: Worst("user/slow", ago(age_s), refusal)}, "waiting": replace(WAITING, **{kind: 3})}


def test_nothing_is_wrong_with_what_merely_waits() -> None:
    """A backlog is no fault; an alarm that always rings is heard by nobody."""
    assert found(well()) == {}
    busy = well(
        backlog=replace(BACKLOG, undelivered=9, pending=9),
        pending=Oldest("1-0", 100.0, "i"),
        undelivered=Oldest("2-0", 99.0, None),
        waiting=replace(WAITING, undone=2, unsummarised=1, snapshots=1, purges=1),
        worst={kind: Worst("user/a", ago(500), None) for kind in ("undone", "unsummarised", "snapshots", "purges")},
    )
    assert found(busy) == {}


@pytest.mark.parametrize(
    ("changes", "what", "named"),
    [
        ({"failures": {"stream": "no answer at x"}}, What.SERVER_UNREACHABLE, ["no answer at x"]),
        ({"failures": {"registry": "torn; remove it"}}, What.REGISTRY, ["torn; remove it"]),
        ({"memory_ratio": 1.01}, What.SERVER_FULL, ["maxmemory"]),
        ({"unfit": ["appendonly no"]}, What.SERVER_UNFIT, ["appendonly no"]),
        ({"processes": [WORKS]}, What.NO_INGESTER, ["ingester", "/data"]),
        ({"processes": [INGESTS, replace(WORKS, lives=False)]}, What.NO_WORKER, ["worker"]),
        (
            {"processes": [INGESTS, WORKS, replace(WORKS, name="hung", due_s=MONOTONIC_S - 75)]},
            What.PROCESS_STALLED,
            ["hung (75 s)"],
        ),
        (
            {"pending": Oldest("17-3", 300.0, "host-i"), "backlog": replace(BACKLOG, pending=4)},
            What.ENTRIES_STUCK,
            ["entry 17-3", "300 s", "held by host-i", "4 are pending"],
        ),
        (
            {"undelivered": Oldest("18-0", 200.0, None), "backlog": replace(BACKLOG, undelivered=7)},
            What.ENTRIES_STUCK,
            ["entry 18-0", "200 s", "no ingester took it", "7 wait"],
        ),
        (worst("undone", 700), What.WORK_STUCK, ["user/slow", "700 s", "2 more scopes", "log"]),
        (worst("refused", 1, "ledger torn"), What.SCOPES_REFUSED, ["user/slow", "2 more scopes", "ledger torn"]),
        (worst("snapshots", 2_000), What.SNAPSHOTS_OVERDUE, ["user/slow", "2000 s"]),
        (worst("purges", 601, "locked"), What.PURGES_OVERDUE, ["user/slow", "601 s", "locked"]),
        (worst("unsummarised", 9_000), What.SESSIONS_UNSUMMARISED, ["user/slow", "9000 s"]),
        ({"counts": Counts(quarantined=2)}, What.TURNS_QUARANTINED, ["2 turns", "dead-letters list"]),
        ({"backlog": replace(BACKLOG, dead=3)}, What.DEAD_LETTERS, ["3 entries", "dead-letters list"]),
        ({"totals": {"lost_before_ingest": 5}}, What.ENTRIES_LOST, ["5 accepted entries"]),
        ({"verified": Verified(NOW_MS, 6)}, What.INDEX_GAPS, ["6 turns", "doctor --verify"]),
    ],
    ids=lambda value: value.value if isinstance(value, What) else "",
)
def test_each_thing_that_is_stuck_is_named(changes: dict[str, Any], what: What, named: list[str]) -> None:
    """Whoever is woken must not have to search."""
    problems = found(well(**changes))
    assert set(problems) == {what}
    for words in named:
        assert words in problems[what]


def test_every_kind_of_problem_has_a_case_above() -> None:
    """One that nothing raises would be a comfort without a ground."""
    marks = test_each_thing_that_is_stuck_is_named.pytestmark  # type: ignore[attr-defined] # pytest puts it there
    assert {case[1] for case in marks[0].args[1]} == set(What)


def test_the_reason_why_a_session_has_no_summary_comes_from_its_ledger(tmp_path: Path) -> None:
    """The registry counts; only the ledger knows what the model said."""
    scope = Scope("user", "slow")
    with closing(LedgerPool(Shards(tmp_path), max_open=9)) as ledgers:
        turn = Turn(scope=scope, session_id="s", role="user", content="hi", timestamp=1.0, event_id="e")
        events.apply(ledgers.open(scope), [turn], now_ms=NOW_MS)
        due = sessions.DueSession("s", version=1, platform_summary=None, attempts=0)
        sessions.postpone(ledgers.open(scope), due, failure="no quota left", retry_at_ms=NOW_MS)
    detail = found(well(**worst("unsummarised", 9_000)), tmp_path)[What.SESSIONS_UNSUMMARISED]
    assert "no quota left" in detail


def test_a_look_at_an_empty_folder_makes_nothing(tmp_path: Path) -> None:
    """A probe may come before the first start; it must not make the folder its own."""
    seen = vitals.look(Settings(data_dir=tmp_path))
    assert set(seen.failures) == {"stream"}
    assert seen.registry is not None
    assert {What.SERVER_UNREACHABLE, What.NO_INGESTER, What.NO_WORKER} == set(found(seen, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_the_registry_was_told_is_what_is_seen(tmp_path: Path) -> None:
    """Each age goes back to the scope that has waited longest."""
    with closing(Registry(tmp_path)) as registry:
        registry.mark(["user/a"], now_ms=ago(50))
        registry.mark(["user/b"], now_ms=ago(70))
        registry.note_waiting([("user/a", ago(9), None, True), ("user/b", None, ago(8), False)], now_ms=ago(7))
    vitals.note_verified(Settings(data_dir=tmp_path), n_gaps=4)
    seen = vitals.look(Settings(data_dir=tmp_path)).registry
    assert seen is not None
    assert {kind: (one.scope, one.since_ms) for kind, one in seen.worst.items()} == {
        "undone": ("user/b", ago(70)), "unsummarised": ("user/a", ago(9)),
        "snapshots": ("user/a", ago(7)), "purges": ("user/b", ago(8)),
    }  # fmt: skip
    assert seen.verified is not None
    assert seen.verified.n_gaps == 4
