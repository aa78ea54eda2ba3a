"""Strategy fixed: the last exchanges, shortened, oldest first."""

from __future__ import annotations

import pytest

from retrieval.context.entries.entry import Outcome
from retrieval.context.layout import budget
from retrieval.context.strategies.fixed import Fixed
from tests.entries import DAY_MS, MINUTE_MS, NOW_MS, asked, entry

AGES_MS = (3 * DAY_MS, DAY_MS, 120 * MINUTE_MS, MINUTE_MS, 0)
EXCHANGES = [
    entry(f"e{i}", f"question {i}", f"answer {i}", time_ms=NOW_MS - ago, key_results=("first", "second", "third"))
    for i, ago in enumerate(AGES_MS)
]


def test_the_last_three_are_shown_oldest_first_with_age_result_and_two_key_results() -> None:
    """The contract of the documentation."""
    found = budget.fit(Fixed().offer(asked(EXCHANGES)), 1_000)
    assert found.block.split("\n")[2:-1] == [
        "- 2 hours ago: question 2",
        "  Result: answer 2",
        "  Key results: first; second",
        "- 1 minute ago: question 3",
        "  Result: answer 3",
        "  Key results: first; second",
        "- just now: question 4",
        "  Result: answer 4",
        "  Key results: first; second",
    ]
    assert {d.entry_ids[0]: d.is_kept for d in found.trace} == {f"e{i}": i > 1 for i in range(5)}
    assert "older than the last 3" in next(d.why for d in found.trace if d.entry_ids == ("e0",))


def test_a_result_is_cut_to_two_hundred_characters() -> None:
    """At a word, the ellipsis among them."""
    found = budget.fit(Fixed().offer(asked([entry("e", "question", "some words " * 90)])), 1_000)
    result = next(line for line in found.block.split("\n") if line.startswith("  Result: "))
    assert 190 <= len(result.removeprefix("  Result: ")) <= 200
    assert result.endswith(("some…", "words…"))


def test_its_limits_are_settings() -> None:
    """As the documentation names them, in snake case."""
    settings = {"n_exchanges": 1, "max_result_chars": 10, "n_key_results": 0}
    found = budget.fit(
        Fixed().offer(asked([*EXCHANGES[:4], entry("e", "why?", "because it is so")], **settings)), 500
    )
    assert found.block.split("\n")[2:-1] == ["- just now: why?", "  Result: because…"]


def test_without_history_the_block_is_empty() -> None:
    """A bot then adds nothing to its prompt."""
    assert budget.fit(Fixed().offer(asked([])), 1_000).block == ""


def test_what_is_not_answered_and_what_failed_is_shown_as_such() -> None:
    """A failure must not read as a result."""
    entries = [entry("e1", "open it", "no key", outcome=Outcome.FAILED), entry("e2", "and now?")]
    assert budget.fit(Fixed().offer(asked(entries)), 500).block.split("\n")[2:-1] == [
        "- just now: open it",
        "  Failed: no key",
        "- just now: and now?",
    ]


@pytest.mark.parametrize("max_tokens", range(0, 130, 3))
def test_with_little_room_the_oldest_go_first(max_tokens: int) -> None:
    """What is kept is a row of exchanges that ends with the newest, whatever the sizes."""
    sizes = (3, 400, 20)
    entries = [entry(f"e{i}", "question " * n, "answer " * n) for i, n in enumerate(sizes)]
    found = budget.fit(Fixed().offer(asked(entries)), max_tokens)
    kept = sorted(d.entry_ids[0] for d in found.trace if d.is_kept)
    assert kept == [f"e{i}" for i in range(3 - len(kept), 3)]
