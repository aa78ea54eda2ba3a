"""Events shuffled and doubled end in the very state of the same events in their order."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline import contract
from pipeline.ledger import Ledger, check, sessions
from pipeline.records import Event, Mood, Scope, ScopeDeleted, SessionClosed, SessionDeleted, Turn, TurnDeleted
from pipeline.shards import Shards
from pipeline.summarise import session_text
from tests.crash.in_process import InProcess, settings_of
from workers.checkup import verify_data

SEED = 20_260_302
N_EVENTS = 20_000
N_LONG = 100_000
SHARE_TWICE = 0.2
SCOPES = [Scope("user", "u1"), Scope("user", "u10"), Scope("thread", "u1"), Scope("persona", "Ä")]
FORGETFUL = SCOPES[2:]
WORDS = [
    *("harbour", "lantern", "violin", "meadow", "copper", "thunder", "orchid"),
    *("glacier", "saddle", "walnut", "ferry", "quartz", "雪", "büro"),
]
CLOSED_ALONE = {"idle_s": 1e6, "theme_turns": 1}
"""Summarising every session would take most of the time."""
EPOCH_S = 1_600_000_000


class Author:
    """Writes a scope's history: turns of many sessions at once, edits of them, closings, deletions."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers = itertools.count()
        self._indexes: defaultdict[tuple[Scope, str], Iterator[int]] = defaultdict(itertools.count)
        self._said: list[Turn] = []

    def events(self) -> Iterator[Event]:
        """Write without end."""
        while True:
            number = next(self._numbers)
            kind = self._chance.random()
            scope, session_id = self._chance.choice(SCOPES), f"s{self._chance.randrange(40)}/{number // 4_000}"
            about = {"scope": scope, "event_id": f"e{number}", "timestamp_ms": 1000 * (EPOCH_S + number)}
            if kind < 0.12 and self._said:
                yield self._edit(self._chance.choice(self._said), number)
            elif kind < 0.15 and self._said:
                gone = self._chance.choice(self._said)
                yield TurnDeleted(**about | {"scope": gone.scope}, session_id=gone.session_id, turn_id=gone.turn_id)
            elif kind < 0.17:
                summary = self._chance.choice([None, " ", f"about {self._chance.choice(WORDS)}"])
                yield SessionClosed(**about, session_id=session_id, summary=summary)
            elif kind < 0.1703:
                yield SessionDeleted(**about, session_id=session_id)
            elif kind < 0.1704:
                about["timestamp_ms"] -= 1000 * self._chance.randrange(4_000)
                yield ScopeDeleted(**about | {"scope": self._chance.choice(FORGETFUL)})
            else:
                yield self._turn(scope, session_id, number)

    def _turn(self, scope: Scope, session_id: str, number: int) -> Turn:
        said = Turn(
            scope=scope,
            session_id=session_id,
            role=self._chance.choice(["user", "assistant"]),
            content=self._content(),
            timestamp=EPOCH_S + number + self._chance.choice([0, 0, -3_600, 3_600]),
            event_id=f"e{number}",
            turn_id=f"t{number}",
            index=next(self._indexes[scope, session_id]),
            tags=tuple(self._chance.sample(WORDS, self._chance.randrange(3))),
            mood=Mood(self._chance.uniform(-1, 1)) if self._chance.random() < 0.1 else None,
        )
        self._said.append(said)
        return said

    def _edit(self, old: Turn, number: int) -> Turn:
        return Turn(
            scope=old.scope,
            session_id=old.session_id,
            role=old.role,
            content=self._content(),
            timestamp=EPOCH_S + number,
            event_id=f"e{number}",
            turn_id=old.turn_id,
            index=old.index,
            revision=self._chance.randrange(1, 4),
            tags=old.tags,
        )

    def _content(self) -> str:
        n_words = self._chance.choices([0, 3, 12, 600], [1, 60, 60, 0.2])[0]
        return " ".join(self._chance.choices(WORDS, k=n_words))


def state(ledger: Ledger) -> dict[str, str]:
    """Digest, part by part, everything a ledger holds but the numbers given out as things were done."""
    with ledger.read() as db:

        def asked(statement: str) -> list[Any]:
            return db.execute(statement).fetchall()

        parts: dict[str, Any] = {
            "events": asked("SELECT digest, type FROM events ORDER BY 1"),
            "gaps": check.gaps(db),
            "tombstones": asked("SELECT * FROM tombstones ORDER BY 1"),
            "turns and tags": asked(
                "SELECT session_id, turn_id, event_id, revision, role, speaker, content, timestamp_ms, turn_index,"
                " tags, mood, metadata, state, failure FROM turns ORDER BY 1, 2"
            ),
            "chunks": asked(
                "SELECT session_id, turn_id, ordinal, start, stop, n_tokens, strength, stability_ms, valence,"
                " confidence, last_accessed_ms, vector FROM traces JOIN turns USING (turn_offset)"
                " LEFT JOIN vectors USING (trace_id) ORDER BY 1, 2, 3"
            ),
            "strays": asked("SELECT count(*) FROM vectors WHERE trace_id NOT IN (SELECT trace_id FROM traces)"),
            "full text": [
                db.execute(
                    "SELECT session_id, turn_id FROM fulltext JOIN turns ON turn_offset = fulltext.rowid"
                    " WHERE fulltext MATCH ? ORDER BY 1, 2",
                    (word,),
                ).fetchall()
                for word in WORDS
            ],
            "sessions": asked("SELECT session_id, closed, platform_summary, state FROM sessions ORDER BY 1"),
            "cards": asked(
                "SELECT session_id, n_turns, first_ms, last_ms, last_index, last_turn_id, opening, facts, pace,"
                " is_automated FROM cards ORDER BY 1"
            ),
            "facts": asked(
                "SELECT session_id, turn_id, ordinal, key, value, confidence"
                " FROM facts JOIN turns USING (turn_offset) ORDER BY 1, 2, 3"
            ),
            "themes": asked("SELECT digest, session_id, text, model_id FROM themes ORDER BY 1"),
            "summaries": asked("SELECT session_id, text, digest, session_date, vector FROM summaries ORDER BY 1"),
        }
    names = [str(row[0]) for row in parts["sessions"]]
    parts["summary inputs"] = [session_text(sessions.lines(ledger, name)) for name in names]
    return {part: hashlib.sha256(repr(rows).encode()).hexdigest() for part, rows in parts.items()}


def states(data_dir: Path) -> dict[tuple[str, str], str]:
    """Digest every scope, by (scope, part)."""
    found = {}
    for scope in SCOPES:
        with closing(Ledger.open(Shards(data_dir).ledger_path(scope), scope)) as ledger:
            found |= {(scope.key, part): digest for part, digest in state(ledger).items()}
    return found


@pytest.mark.timeout(300)
def test_shuffled_and_doubled_events_end_in_the_same_state(tmp_path: Path, row, long: int) -> None:
    """Networks, retries and several publishers reorder and repeat; nobody may be able to tell afterwards."""
    row.expect("events shuffled, 20 % twice")
    chance = random.Random(SEED)
    n_events = N_EVENTS if long == 1 else N_LONG
    n_distinct = round(n_events * (1 - SHARE_TWICE))
    published = [contract.encode(event) for event in itertools.islice(Author(chance).events(), n_distinct)]
    shuffled = [*published, *chance.sample(published, n_events - n_distinct)]
    chance.shuffle(shuffled)
    with InProcess(settings_of(tmp_path / "ordered", summary=CLOSED_ALONE)) as ordered:
        ordered.take(published)
        ordered.finish()
    with InProcess(settings_of(tmp_path / "shuffled", summary=CLOSED_ALONE)) as disordered:
        share = -(-len(shuffled) // 4)
        disordered.take(shuffled[:share])
        disordered.finish()  # a quarter is searchable, summarised and in a snapshot before the others arrive
        for start in range(share, len(shuffled), share):
            disordered.take(shuffled[start : start + share])
            disordered.embed()
        disordered.finish()
    for run in (ordered, disordered):
        assert not run.letters
        assert verify_data(run.settings, idle=True) == []
    expected, found = states(tmp_path / "ordered"), states(tmp_path / "shuffled")
    assert [place for place in expected if found[place] != expected[place]] == []
    row(
        "events shuffled, 20 % twice", n=n_events, outcome="byte-equal turns, chunks, tags, full text, summary inputs"
    )
