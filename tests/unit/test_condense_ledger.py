"""Facts and themes in the ledger: there as long as the turns they are from, made behind a mark, mended when wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import apsw
import pytest

from pipeline.condense.facts import RULES
from pipeline.errors import ShardError, SummaryError
from pipeline.ledger import Ledger, condensed
from pipeline.ledger.condensed import NewFact
from pipeline.records import Event, Scope, ScopeDeleted, SessionClosed, SessionDeleted, Turn, TurnDeleted
from pipeline.settings import SummarySettings
from pipeline.summarise import Completion
from pipeline.summarise.extractive import MODEL
from retrieval import Memory
from tests.crash.in_process import InProcess, settings_of
from tests.fakes import CountingInvoker
from tests.ledgers import open_ledger
from tests.topics import TOPICS
from workers.checkup import verify_data
from workers.checkup.repair import repair
from workers.condensing import CondensingDesk

SCOPE, OTHER = Scope("user", "u1"), Scope("user", "u2")
TABLES = ("facts", "themes", "theme_turns", "condensed")
START_S = 1_600_000_000


def talk(scope: Scope, session: str, *, start: int = 0) -> list[Event]:
    """24 exchanges about three things, and where somebody lives, in a closed session."""
    told = [pair for triple in zip(*TOPICS.values(), strict=True) for pair in triple]
    told = [("I live in Oslo.", "Noted."), *told[:12], ("I moved to Lyon in spring.", "Nice."), *told[12:]]
    turns: list[Event] = [
        Turn(scope=scope, session_id=session, role=role, content=content, timestamp=START_S + 100 * (start + i) + at,
             event_id=f"{scope.id}/{session}/{i}/{at}", turn_id=f"{session}/{i}/{at}", index=2 * i + at)
        for i, pair in enumerate(told)
        for at, (role, content) in enumerate(zip(("user", "assistant"), pair, strict=True))
    ]  # fmt: skip
    closed = SessionClosed(
        scope=scope, session_id=session, timestamp_ms=1_000 * START_S, event_id=f"{scope.id}/{session}/end"
    )
    return [*turns, closed]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(settings_of(tmp_path / "data", summary={"theme_turns": 1})) as running:
        yield running


@pytest.fixture
def memory(run: InProcess) -> Iterator[Memory]:
    with closing(run.memory(clock=lambda: 1_700_000_000_000)) as opened:
        yield opened


def ledger_of(run: InProcess) -> Ledger:
    return run.flow.ledgers.open(SCOPE)


def rows(run: InProcess, table: str) -> list[tuple[object, ...]]:
    with ledger_of(run).read() as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


def desk(
    invoker: CountingInvoker | None, *, now_ms: int = 2_000_000_000_000, beat: Callable[[], None] = lambda: None
) -> CondensingDesk:
    def write(text: str, max_tokens: int) -> Completion:
        assert invoker is not None
        return invoker("", text, max_tokens=max_tokens)

    chosen = SummarySettings(settle_s=0, idle_s=1e-3, theme_turns=1)
    return CondensingDesk(chosen, write if invoker else None, lambda: now_ms, beat)


def blocks(memory: Memory, session: str = "s") -> list[str]:
    wanted = (None, "Where do I live, and what is the reservation code of the flight?")
    return [
        memory.context(session, SCOPE, objective, strategy, 900).block
        for strategy in ("semantic", "hierarchical")
        for objective in wanted
    ]


def test_readers_answer_the_same_before_and_after_workers_condense(run: InProcess, memory: Memory) -> None:
    """What is stored is what would be made: nobody has to wait for a worker."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    before = blocks(memory)
    assert not rows(run, "themes")
    run.finish()
    assert len(rows(run, "facts")) == 2
    assert len(rows(run, "themes")) >= 3
    with closing(run.memory(clock=lambda: 1_700_000_000_000)) as fresh:
        assert blocks(fresh) == blocks(memory) == before
    assert "Lyon" in before[2]
    assert verify_data(run.settings, idle=True) == []


def test_a_removed_turn_takes_its_facts_and_themes_along_at_once(run: InProcess, memory: Memory) -> None:
    """From the commit of a deletion on nothing of it may be shown; no worker has to come by."""
    run.publish(*talk(SCOPE, "s"), *talk(SCOPE, "s2", start=1_000))
    run.finish()
    n_themes = len(rows(run, "themes"))
    assert "Lyon" in blocks(memory)[2]
    for session in ("s", "s2"):
        run.publish(TurnDeleted(scope=SCOPE, session_id=session, turn_id=f"{session}/13/0", timestamp_ms=1,
                                event_id=f"no lyon {session}"))  # fmt: skip
    assert [row[3] for row in rows(run, "facts")] == ["Oslo", "Oslo"]
    assert not any("Lyon" in block for block in blocks(memory))
    assert "residence: Oslo" in blocks(memory)[2]
    run.publish(SessionDeleted(scope=SCOPE, session_id="s", timestamp_ms=1, event_id="no s"))
    assert len(rows(run, "themes")) < n_themes
    assert {row[0] for row in rows(run, "condensed")} == {"s2"}
    assert blocks(memory, "s") == [""] * 4
    run.publish(ScopeDeleted(scope=SCOPE, timestamp_ms=2_000_000_000_000, event_id="no u1"))
    assert [rows(run, table) for table in TABLES] == [[]] * 4
    run.finish()
    assert blocks(memory, "s2") == [""] * 4
    assert verify_data(run.settings, idle=True) == []


def test_forgotten_words_are_gone_from_the_file(run: InProcess) -> None:
    """Facts and summaries quote: what is left of them on disk is left of the user."""
    run.publish(*talk(SCOPE, "s"))
    run.finish()
    path = ledger_of(run).path
    assert b"Lyon" in path.read_bytes() + Path(f"{path}-wal").read_bytes()
    run.publish(SessionDeleted(scope=SCOPE, session_id="s", timestamp_ms=1, event_id="no s"))
    run.finish()
    left = path.read_bytes() + Path(f"{path}-wal").read_bytes()
    assert [word for word in (b"Lyon", b"Oslo", b"Lisbon", b"Postgres", b"residence") if word in left] == []


def test_an_edit_is_another_statement(run: InProcess, memory: Memory) -> None:
    """Who corrects himself does not live in two places."""
    run.publish(*talk(SCOPE, "s"))
    run.finish()
    run.publish(Turn(scope=SCOPE, session_id="s", role="user", content="I moved to Rome.", event_id="edit",
                     turn_id="s/13/0", revision=1, timestamp=START_S + 1_300, index=26))  # fmt: skip
    assert "residence: Rome" in blocks(memory)[2]
    assert not any("Lyon" in block for block in blocks(memory))
    run.finish()
    assert "residence: Rome" in blocks(memory)[2]


def test_facts_of_another_scope_never_appear_and_those_of_other_sessions_in_the_profile_alone(
    run: InProcess, memory: Memory
) -> None:
    """A scope is what a reader may see; a session's history is its own."""
    run.publish(*talk(SCOPE, "s")[:2], *talk(OTHER, "s"))
    run.publish(Turn(scope=SCOPE, session_id="elsewhere", role="user", content="I'm allergic to nuts.",
                     timestamp=START_S, event_id="nuts"))  # fmt: skip
    for _ in range(2):  # without workers, and with
        found = memory.context("s", SCOPE, None, "hierarchical", 900).block
        profile = found.partition("About the user")[2]
        assert "allergy: nuts" in profile
        assert "nuts" not in found.replace(profile, "")
        assert not any(word in found for word in ("Lyon", "Lisbon"))
        assert "nuts" not in memory.context("s", SCOPE, None, "semantic", 900).block
        run.finish()


def test_a_model_writes_each_theme_once_and_again_only_when_its_members_change(run: InProcess) -> None:
    """Each answer is paid for."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    invoker = CountingInvoker(n_words=3)
    desk(invoker).condense_due(ledger_of(run))
    n_calls, themes = invoker.n_calls, {row[0]: row[2] for row in rows(run, "themes")}
    assert n_calls == len(themes) >= 3
    assert {row[3] for row in rows(run, "themes")} == {"counting-1"}
    said = (("user", "Xylophones?"), ("assistant", "Zither."))
    run.publish(*(
        Turn(scope=SCOPE, session_id="s", role=role, content=content, timestamp=START_S + 9_000 + at,
             event_id=f"more{at}")
        for at, (role, content) in enumerate(said)
    ))  # fmt: skip
    run.embed()
    desk(invoker, now_ms=2_000_000_100_000).condense_due(ledger_of(run))
    after = {row[0]: row[2] for row in rows(run, "themes")}
    assert invoker.n_calls - n_calls == len(after.keys() - themes.keys()) <= 3
    assert all(text == themes[digest] for digest, text in after.items() if digest in themes)
    desk(invoker, now_ms=2_000_000_200_000).condense_due(ledger_of(run))
    assert len(rows(run, "themes")) == len(after)


def test_what_a_model_invents_is_not_stored(run: InProcess) -> None:
    """The most telling sentences stand in its place."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    desk(CountingInvoker("They spent 31415 euros.", *["said on 1 January 1999"] * 50)).condense_due(ledger_of(run))
    assert {row[3] for row in rows(run, "themes")} == {MODEL}
    assert not any("31415" in str(row[2]) or "1999" in str(row[2]) for row in rows(run, "themes"))


def test_while_the_model_is_away_nothing_is_missing_nor_lost(run: InProcess, memory: Memory) -> None:
    """An outage of an endpoint is no outage of the memory."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    before, invoker = blocks(memory), CountingInvoker(SummaryError("no route to the model; retried"), n_words=3)
    desk(invoker).condense_due(ledger_of(run))
    assert invoker.n_calls == 1
    assert len(rows(run, "facts")) == 2
    assert blocks(memory) == before
    desk(invoker).condense_due(ledger_of(run))
    assert invoker.n_calls == 1, "it waits before it is asked again"
    desk(invoker, now_ms=2_000_000_100_000).condense_due(ledger_of(run))
    assert {row[3] for row in rows(run, "themes")} == {"counting-1"}
    assert blocks(memory) != before


class Killed(BaseException):
    """What no code catches."""


def test_a_session_on_which_three_workers_ended_is_left_alone_until_it_changes(run: InProcess) -> None:
    """Else every worker that is started ends on it, for ever, and nothing else of the scope is done."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    ledger = ledger_of(run)

    def end_on(n: int) -> None:
        assert not ledger.connection.in_transaction, "nobody is kept from the ledger while a worker thinks"
        if rows(run, "condensed") == [("s", -n, 0, None)]:
            raise Killed

    for n in (1, 2, 3):
        with pytest.raises(Killed):
            desk(None, beat=partial(end_on, n)).condense_due(ledger)
    desk(None).condense_due(ledger_of(run))
    assert rows(run, "themes") == []
    assert [row[2] for row in rows(run, "condensed")] == [3], "what it was given up after"
    desk(None).condense_due(ledger_of(run))
    assert rows(run, "themes") == []
    run.publish(Turn(scope=SCOPE, session_id="s", role="user", content="Hello?", timestamp=START_S + 9_000,
                     event_id="more"))  # fmt: skip
    run.embed()
    desk(None, now_ms=2_000_000_100_000).condense_due(ledger_of(run))
    assert len(rows(run, "themes")) >= 3
    assert [row[2] for row in rows(run, "condensed")] == [0]


def test_sessions_that_readers_condense_as_fast_are_left_to_them(run: InProcess, memory: Memory) -> None:
    """To choose sentences ahead of any question would cost a twelfth of what embedding costs."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    before = blocks(memory)
    left = CondensingDesk(SummarySettings(settle_s=0, idle_s=1e-3), None, lambda: 2_000_000_000_000)
    left.condense_due(ledger_of(run))
    assert rows(run, "themes") == []
    assert len(rows(run, "facts")) == 2
    assert blocks(memory) == before


def test_facts_found_twice_are_stored_once(run: InProcess) -> None:
    """Two workers may be rung for one scope; who comes second changes nothing."""
    run.publish(*talk(SCOPE, "s"))
    ledger = ledger_of(run)
    with ledger.read() as connection:
        turns = condensed.user_turns_above(connection, 0)
    found = [NewFact(turns[0].turn_offset, 0, "residence", "Oslo", 0.9), NewFact(9_999, 0, "age", "3", 0.9)]
    assert condensed.put_facts(ledger, found, rules=RULES, above=0, up_to=8)
    assert not condensed.put_facts(ledger, found, rules=RULES, above=0, up_to=8)
    assert [row[2] for row in rows(run, "facts")] == ["residence"], "a fact of a turn that is gone is none"
    assert condensed.put_facts(ledger, [], rules=RULES + 1, above=0, up_to=8), "other rules begin anew"
    assert rows(run, "facts") == []


def test_a_theme_of_a_session_that_changed_meanwhile_is_not_stored(run: InProcess) -> None:
    """It may tell of what was forgotten while the model wrote."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()

    class Slow(CountingInvoker):
        def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:
            run.publish(TurnDeleted(scope=SCOPE, session_id="s", turn_id=f"s/{self.n_calls}/0", timestamp_ms=1,
                                    event_id=f"gone{self.n_calls}"))  # fmt: skip
            return super().__call__(system, user, max_tokens=max_tokens)

    desk(Slow(n_words=3)).condense_due(ledger_of(run))
    assert rows(run, "themes") == []
    run.finish()
    assert len(rows(run, "themes")) >= 1
    assert verify_data(run.settings, idle=True) == []


DAMAGES = {
    "facts of no turn": "INSERT INTO facts VALUES (9999, 0, 'residence', 'Nowhere', 0.9)",
    "facts that are none": "UPDATE facts SET confidence = 7",
    "facts looked for in turns": "UPDATE facts_up_to SET turn_offset = 9999",
    "themes of no turn": "INSERT INTO themes VALUES (x'00', 's', 'words', 'm')",
    "turns of no theme": "DELETE FROM themes",
    "noted as condensed": "INSERT INTO condensed VALUES ('nobody', 1, 0, NULL)",
    "a theme that its turns do not tell": "UPDATE themes SET text = 'invented 999'",
    "that are missing: facts": "DROP TABLE facts",
    "that are missing: themes": "DROP TABLE themes",
    "other facts than its turns state": "UPDATE facts SET value = 'Atlantis'",
}


@pytest.mark.parametrize(("problem", "statement"), DAMAGES.items())
def test_what_cannot_be_is_found_and_made_again(problem: str, statement: str, run: InProcess) -> None:
    """Derived rows are wrong in ways that no reader would notice."""
    run.publish(*talk(SCOPE, "s"))
    run.finish()
    before = {table: rows(run, table) for table in TABLES}
    with ledger_of(run).write() as connection:
        connection.execute(statement)
    assert any(problem in finding.detail for finding in verify_data(run.settings))
    repair(run.settings)
    run.finish()
    assert {table: rows(run, table) for table in TABLES} == before
    assert verify_data(run.settings, idle=True) == []


@pytest.mark.parametrize(
    "statement",
    ["UPDATE facts SET confidence = 'abc'", "UPDATE facts SET value = x'ff'", "UPDATE themes SET text = x'ff'"],
)
def test_a_column_of_another_type_is_damage_with_a_remedy(statement: str, run: InProcess, memory: Memory) -> None:
    """SQLite stores whatever it is given; a reader may end with our errors alone."""
    run.publish(*talk(SCOPE, "s"))
    run.finish()
    with ledger_of(run).write() as connection:
        connection.execute(statement)
    with pytest.raises(ShardError, match="doctor --repair"):
        blocks(memory)
    assert any("made again" in finding.detail for finding in verify_data(run.settings))
    repair(run.settings)
    run.finish()
    assert verify_data(run.settings, idle=True) == []
    assert all(blocks(memory))


def test_a_ledger_of_before_gets_the_tables_when_next_written_to(run: InProcess, memory: Memory) -> None:
    """And is read without them until then."""
    run.publish(*talk(SCOPE, "s"))
    run.embed()
    before = blocks(memory)
    path = ledger_of(run).path
    with closing(apsw.Connection(str(path))) as connection:
        for table in (*TABLES, "facts_up_to"):
            connection.execute(f"DROP TABLE {table}")
    with closing(run.memory(clock=lambda: 1_700_000_000_000)) as fresh:
        assert blocks(fresh) == before
    assert verify_data(run.settings) == []
    with closing(open_ledger(run.flow.ledgers.shards, SCOPE)):
        run.finish()
    assert len(rows(run, "facts")) == 2
