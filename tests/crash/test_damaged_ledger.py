"""Ledgers whose newest writes were cut off or damaged: what is there is what was, and what is missing has a name."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.ledger import Ledger, events
from pipeline.records import Scope, SessionClosed, Turn
from pipeline.shards import Shards
from tests.crash.in_process import InProcess, settings_of
from tests.crash.test_order import state
from workers.checkup import verify_data

SEED = 20_260_304
SCOPE = Scope("user", "u1")
N_COMMITS, PER_COMMIT = 40, 3
N_BEFORE = N_COMMITS * PER_COMMIT
"""A session that lacks more than half of its numbers looks as if it were not numbered."""
N_IMAGES = 120
N_FLIPS = 80


def numbered(number: int) -> Turn:
    return Turn(
        scope=SCOPE, session_id="s", role="user", content=f"number {number} " * (1 + number % 7 * 6),
        timestamp=1.6e9 + number, event_id=f"e{number}", index=number,
    )  # fmt: skip


def commit(number: int) -> list[Turn]:
    return [numbered(N_BEFORE + n) for n in range(number * PER_COMMIT, (number + 1) * PER_COMMIT)]


@dataclass
class Image:
    """A ledger's files as they were, and how long its WAL was after each commit."""

    path: Path
    main: bytes
    wal: bytes
    ends: list[int]

    @property
    def wal_path(self) -> Path:
        """Where the WAL is."""
        return self.path.with_name(self.path.name + "-wal")

    def restore(self, *, main: bytes | None = None, wal: bytes | None = None) -> None:
        """Put the files back, some of them damaged; as after a power cut nothing is left of the shared memory."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()
        self.path.write_bytes(self.main if main is None else main)
        self.wal_path.write_bytes(self.wal if wal is None else wal)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(settings_of(tmp_path / "data", summary={"idle_s": 1e6}, index={"min_tail": 1})) as running:
        yield running


@pytest.fixture
def image(run: InProcess) -> Image:
    """The first commits are in the main file and searchable, each later one stands at the end of the WAL."""
    path = Shards(run.settings.data_dir).ledger_path(SCOPE)
    run.publish(*(numbered(n) for n in range(N_BEFORE)))
    run.finish()
    wal_path, ends = path.with_name(path.name + "-wal"), []
    with closing(Ledger.open(path, SCOPE)) as ledger:
        ledger.truncate_wal()
        for number in range(N_COMMITS):
            events.apply(ledger, commit(number), now_ms=number)
            ends.append(wal_path.stat().st_size)
        run.flow.registry.mark([SCOPE.key], now_ms=1)
        return Image(path, path.read_bytes(), wal_path.read_bytes(), ends)


def damaged(wal: bytes, chance: random.Random) -> tuple[bytes, int]:
    """Cut the file, zero the rest of it, or flip one bit; give it with the first offset that is damaged."""
    at = chance.randrange(len(wal))
    how = chance.choice(["cut", "zeroed", "flipped"])
    if how == "cut":
        return wal[:at], at
    if how == "zeroed":
        return wal[:at] + bytes(len(wal) - at), len(wal) - len(wal[at:].lstrip(b"\0"))
    return flipped(wal, at, chance), at


def flipped(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


@pytest.mark.timeout(240)
def test_a_damaged_wal_leaves_the_commits_before_the_damage(run: InProcess, image: Image, row, long: int) -> None:
    """A disk that lied about a flush loses the newest; it must not invent, mix, or hide what it lost."""
    name = "ledger WAL cut, zeroed or flipped"
    row.expect(name)
    chance = random.Random(SEED)
    for _ in range(N_IMAGES * long):
        wal, at = damaged(image.wal, chance)
        image.restore(wal=wal)
        n_left = N_BEFORE + PER_COMMIT * bisect_right(image.ends, at)
        with closing(Ledger.open(image.path, SCOPE)) as ledger:
            assert turns_in(ledger) == [(f"e{n}", numbered(n).content, n) for n in range(n_left)]
            assert not problems(run)
            events.apply(ledger, commit(N_COMMITS), now_ms=1)
            missing = list(range(n_left, N_BEFORE + N_COMMITS * PER_COMMIT))
            assert_named(problems(run), missing)
            events.apply(ledger, [numbered(n) for n in missing], now_ms=1)
        assert not problems(run)
    row(name, n=N_IMAGES * long, outcome="opened, exact prefix, gap reported by name")


@pytest.mark.timeout(600)
def test_a_flipped_bit_in_what_was_said_is_found(run: InProcess, row, long: int) -> None:
    """A backup is no help to somebody who is not told that it is needed.

    Only a number may change unseen: in a vector, or a digest; nothing but embedding all again would tell.
    """
    name = "ledger file, one bit flipped"
    row.expect(name)
    chance, outcomes = random.Random(SEED), Counter[str]()
    closed = SessionClosed(scope=SCOPE, session_id="s", timestamp_ms=1, event_id="c")
    run.publish(*(numbered(n) for n in range(60)), closed)
    run.finish()
    path = Shards(run.settings.data_dir).ledger_path(SCOPE)
    with closing(Ledger.open(path, SCOPE)) as ledger:
        ledger.truncate_wal()
        before = state(ledger)
    image = Image(path, path.read_bytes(), b"", [])
    for _ in range(N_FLIPS * long):
        at = chance.randrange(len(image.main))
        image.restore(main=flipped(image.main, at, chance))
        if problems(run):
            outcomes["found"] += 1
            continue
        with closing(Ledger.open(path, SCOPE)) as ledger:
            after = state(ledger)
        changed = {part for part in before if after[part] != before[part]}
        assert changed <= {"chunks", "summaries", "events"}, at
        outcomes["a number unseen" if changed else "in unused bytes"] += 1
    assert outcomes["found"] > outcomes["a number unseen"]
    row(name, n=N_FLIPS * long, outcome=", ".join(f"{n} {what}" for what, n in sorted(outcomes.items())))


def problems(run: InProcess) -> list[str]:
    """What the checker says of the scope's files."""
    return [f"{finding.what}: {finding.detail}" for finding in verify_data(run.settings, scopes=[SCOPE])]


def assert_named(found: list[str], missing: list[int]) -> None:
    """The one finding is the gap, with its session and its first numbers."""
    assert len(found) == bool(missing), found
    if missing:
        assert "session 's' has no turn with index" in found[0]
        assert f"index {missing[0]}" in found[0]


def turns_in(ledger: Ledger) -> list[tuple[object, ...]]:
    with ledger.read() as connection:
        return connection.execute("SELECT event_id, content, turn_index FROM turns ORDER BY turn_index").fetchall()
