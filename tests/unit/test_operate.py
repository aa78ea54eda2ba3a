"""What looking after the pipeline costs does not grow with what waits to be looked after."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.ledger import Ledger, connection, events, sessions, upkeep
from pipeline.records import Scope, Turn
from pipeline.stream import DeadLetter
from workers.cli import operate

SCOPE = Scope("user", "u1")
NOW = 1_700_000_000_000


class LongStream:
    """Dead letters 1-0 to ``n``-0, listed as a server lists them."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.most_asked = 0

    def dead_letters(self, *, start: str, count: int) -> list[DeadLetter]:
        """Give the next page."""
        self.most_asked = max(self.most_asked, count)
        first = 1 if start == "-" else int(start.removeprefix("(").removesuffix("-0")) + start.startswith("(")
        numbers = range(first, min(first + count, self.n + 1))
        return [DeadLetter(entry_id="0-1", raw=b"x", reason="", field="", id=f"{i}-0") for i in numbers]


def test_all_dead_letters_are_found_page_by_page() -> None:
    """A hundred thousand letters of a megabyte each would not fit into memory at once."""
    stream: Any = LongStream(250)
    assert list(operate._letter_ids(stream)) == [f"{i}-0" for i in range(1, 251)]
    assert stream.most_asked <= 100


def test_a_session_whose_summary_failed_is_listed_with_its_next_try(tmp_path: Path) -> None:
    """One that merely waits for silence has not failed, and is no one's concern."""
    path = tmp_path / "ledger.sqlite"
    connection.create(path)
    with closing(Ledger.open(path, SCOPE)) as ledger:
        turns = [
            Turn(scope=SCOPE, session_id=name, role="user", content="hi", timestamp=1.0, event_id=name)
            for name in ("failed", "waiting")
        ]
        events.apply(ledger, turns, now_ms=NOW)
        due = sessions.DueSession("failed", version=1, platform_summary=None, attempts=0)
        sessions.postpone(ledger, due, failure="quota", retry_at_ms=NOW + 5)
        assert upkeep.unsummarised(ledger) == [
            {"scope": "user/u1", "session_id": "failed", "attempts": 1, "failure": "quota", "retry_at_ms": NOW + 5}
        ]
