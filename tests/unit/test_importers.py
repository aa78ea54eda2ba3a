"""Transcripts: what goes in, what is reported, and that a second import adds nothing."""

from __future__ import annotations

import json
import locale
import os
import shutil
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import contract
from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import FORMATS, Imported, Malformed, reader, source
from pipeline.importers.locomo import parse_date
from pipeline.records import Event, Scope, SessionClosed, Turn

SCOPE = Scope("user", "u1")
T0 = 1_700_000_000


def write(path: Path, *values: Any, end: bytes = b"\n") -> Path:
    """Write values as JSON lines; bytes as they are."""
    path.write_bytes(b"".join((v if isinstance(v, bytes) else json.dumps(v).encode()) + end for v in values))
    return path


def items(form: str, path: Path, scope: Scope | None = SCOPE, **options: Any) -> list[Imported | Malformed]:
    return list(reader(form)(path, scope, **options))


def good(found: list[Imported | Malformed]) -> list[Event]:
    return [item.event for item in found if isinstance(item, Imported)]


def turns(found: list[Imported | Malformed]) -> list[Turn]:
    return [event for event in good(found) if isinstance(event, Turn)]


def bad(found: list[Imported | Malformed]) -> list[Malformed]:
    return [item for item in found if isinstance(item, Malformed)]


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def session(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages) or [said("user", "Hi")], **more}


def event(**more: Any) -> dict[str, Any]:
    turn = {"type": "turn", "scope": "user", "scope_id": "u1", "session_id": "s", "role": "user", "content": "Hi"}
    return {**turn, "timestamp": T0, **more}


def test_formats_are_named_in_the_error() -> None:
    """The command line shows it."""
    with pytest.raises(ConfigError, match="events, locomo, openai"):
        reader("whatsapp")


@pytest.mark.parametrize("form", ["events", "openai"])
def test_a_missing_file_is_a_config_error(tmp_path, form) -> None:
    """Not a traceback."""
    with pytest.raises(ConfigError, match="nowhere"):
        items(form, tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("form", ["events", "locomo", "openai"])
@pytest.mark.parametrize("content", [b"", b"\n\n \r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_an_empty_file_holds_nothing(tmp_path, form, content) -> None:
    """And is no error."""
    path = tmp_path / "empty"
    path.write_bytes(content)
    assert items(form, path, None if form == "locomo" else SCOPE) == []


class TestLines:
    """JSON lines, whatever they hold; the good ones go in."""

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b'{"role": "user", "con', "no valid JSON"),
            (b"null", "not a JSON object"),
            (b"[1, 2]", "not a JSON object"),
            (b'"text"', "not a JSON object"),
            (b"plain text", "no valid JSON"),
            (b'{"content": "\xff\xfe"}', "invalid UTF-8"),
            (b"[" * 100_000, "nested too deeply"),
            (b'{"a":' * 900 + b"1" + b"}" * 900, "recursion limit"),
            (b"1" * 5_000, "no valid JSON"),
            (json.dumps({"content": "x" * (contract.MAX_EVENT_BYTES + 10)}).encode(), "too large"),
            (b'{"content": "' + b"x" * (3 << 20) + b'"}', "longer than"),
        ],
        ids=lambda value: value[:12] if isinstance(value, bytes) else "",
    )
    def test_a_bad_line_is_reported_where_it_stands(self, tmp_path, line, reason) -> None:
        """Its neighbours are unaffected."""
        first = json.dumps(event(event_id="e1")).encode()
        path = write(tmp_path / "log.jsonl", first, line, event(event_id="e3"))
        found = items("events", path, None)
        assert [e.event_id for e in good(found)] == ["e1", "e3"]
        (malformed,) = bad(found)
        assert (malformed.place, malformed.position) == ("line 2", len(first) + 1)
        assert reason in malformed.reason
        assert "log.jsonl, line 2" in str(malformed)

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n\r\n"])
    @pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
    def test_line_ends_and_byte_order_marks_of_other_systems(self, tmp_path, start, end) -> None:
        """Files come from anywhere."""
        path = write(tmp_path / "a", start + json.dumps(event(event_id="e1")).encode(), event(event_id="e2"), end=end)
        assert [e.event_id for e in good(items("events", path, None))] == ["e1", "e2"]

    def test_the_last_line_needs_no_line_end(self, tmp_path) -> None:
        """A log that is still written to ends anywhere."""
        path = tmp_path / "a"
        path.write_bytes(json.dumps(event()).encode() + b'\n{"type": "tu')
        found = items("events", path, None)
        assert len(good(found)) == len(bad(found)) == 1

    def test_reading_goes_on_from_any_position(self, tmp_path) -> None:
        """What comes from a stored position is what would have come, ids and line numbers included."""
        path = write(
            tmp_path / "a", *[event(content=f"turn {n}") for n in range(5)], b"broken", event(content="last")
        )
        everything = items("events", path, None)
        for at, item in enumerate(everything):
            assert items("events", path, None, start=item.position) == everything[at:]

    @settings(max_examples=40, deadline=None)
    @given(raw=st.binary(max_size=300))
    def test_no_bytes_raise(self, tmp_path_factory, raw) -> None:
        """Whatever is in the file: events, reports, or nothing."""
        path = tmp_path_factory.mktemp("any") / "file"
        path.write_bytes(raw)
        for form in FORMATS:
            for item in reader(form)(path, None if form == "locomo" else SCOPE):
                assert isinstance(item, Malformed)


class TestEvents:
    """Contract events as they would be published."""

    def test_missing_ids_are_derived_and_stay(self, tmp_path) -> None:
        """Under another name, at another time: the same. Two equal turns at two places: different."""
        path = write(tmp_path / "a", event(), event(), event(event_id=None))
        copy = shutil.copy(path, tmp_path / "b")
        ids = [e.event_id for e in good(items("events", path, None))]
        assert len(set(ids)) == 3
        assert [e.event_id for e in good(items("events", Path(copy), None))] == ids

    def test_the_callers_scope_wins(self, tmp_path) -> None:
        """`--scope` moves a whole file; events without one need it."""
        bare = {k: v for k, v in event().items() if not k.startswith("scope")}
        path = write(tmp_path / "a", event(scope_id="other"), bare)
        assert [t.scope for t in turns(items("events", path))] == [SCOPE, SCOPE]
        found = items("events", path, None)
        assert [t.scope.id for t in turns(found)] == ["other"]
        assert "scope" in bad(found)[0].reason

    def test_every_type_goes_through(self, tmp_path) -> None:
        """A file may forget things, too."""
        closed = {"type": "session_closed", "scope": "user", "scope_id": "u1", "session_id": "s", "timestamp": T0}
        deleted = {"type": "scope_deleted", "scope": "user", "scope_id": "u1", "timestamp": T0}
        found = items("events", write(tmp_path / "a", event(), closed, deleted), None)
        assert [type(e).__name__ for e in good(found)] == ["Turn", "SessionClosed", "ScopeDeleted"]

    def test_unstorable_text_is_reported_not_imported(self, tmp_path) -> None:
        """A lone surrogate survives JSON, but nothing after it; the report names it."""
        found = items("events", write(tmp_path / "a", event(content="\ud800"), event(content="a\x00b")), None)
        assert len(bad(found)) == 2


class TestOpenAI:
    """Sessions of messages."""

    def test_messages_become_turns_and_the_session_closes(self, tmp_path) -> None:
        """A second apart, in order, indexed by their place."""
        talk = session(said("user", "Hi", name="Ann"), said("assistant", "Hello"), session_id="s-1", created_at=T0)
        found = items("openai", write(tmp_path / "a", talk))
        first, second, closed = good(found)
        assert isinstance(first, Turn)
        assert isinstance(second, Turn)
        assert isinstance(closed, SessionClosed)
        assert [(t.role, t.content, t.index, t.speaker) for t in (first, second)] == [
            ("user", "Hi", 0, "Ann"),
            ("assistant", "Hello", 1, None),
        ]
        assert [e.timestamp_ms for e in (first, second, closed)] == [T0 * 1000, (T0 + 1) * 1000, (T0 + 1) * 1000]
        assert {e.session_id for e in (first, second, closed)} == {"s-1"}

    @pytest.mark.parametrize(
        "layout", ["lines", "array", "pretty array", "single", "pretty single", "messages first"]
    )
    def test_every_layout_gives_the_same_turns(self, tmp_path, layout) -> None:
        """Array, lines, one object: all are in the wild."""
        sessions = [
            session(said("user", "Hi"), said("tool", "{[}]"), created_at=T0, session_id=f"s-{n}") for n in (1, 2)
        ]
        one = layout in ("single", "pretty single", "messages first")
        sessions = sessions[:1] if one else sessions
        texts = {
            "lines": "\n".join(map(json.dumps, sessions)),
            "array": json.dumps(sessions),
            "pretty array": json.dumps(sessions, indent=2),
            "single": json.dumps(sessions[0]),
            "pretty single": json.dumps(sessions[0], indent=2),
            "messages first": json.dumps(sessions[0])
            .replace('{"messages": [', '\n {"messages": [\n')
            .replace("}, {", "}\n,{"),
        }
        path = tmp_path / "a"
        path.write_text("\ufeff" + texts[layout], encoding="utf-8")
        found = items("openai", path)
        assert not bad(found)
        assert [(t.session_id, t.content) for t in turns(found)] == [
            (s["session_id"], m["content"]) for s in sessions for m in s["messages"]
        ]

    def test_a_damaged_first_line_does_not_hide_the_rest(self, tmp_path) -> None:
        """It is still JSON lines."""
        found = items("openai", write(tmp_path / "a", b'{"messages": [{"role": "us', session(created_at=T0), b"null"))
        assert len(turns(found)) == 1
        assert [m.place for m in bad(found)] == ["line 1", "line 3"]

    def test_a_torn_array_gives_what_stands_before_the_tear(self, tmp_path) -> None:
        """And says that the rest was not read."""
        path = tmp_path / "a"
        path.write_text(json.dumps([session(created_at=T0)] * 3)[:-30])
        found = items("openai", path)
        assert len(turns(found)) == 2
        assert (bad(found)[0].place, bad(found)[0].position) == ("element 3", 2)
        assert "rest of the file" in bad(found)[0].reason

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            (None, "not a JSON object"),
            ([], "not a JSON object"),
            (7, "not a JSON object"),
            ({}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": {"role": "user"}}, "messages"),
            (session(session_id=[1]), "session_id"),
            (session(session_id=True), "session_id"),
            (session(created_at="yesterday"), "ISO 8601"),
            (session(created_at=[T0]), "created_at"),
            (session(created_at=T0 * 1000), "milliseconds"),
        ],
    )
    def test_a_bad_session_is_reported_the_others_go_in(self, tmp_path, wrong, reason) -> None:
        """With its element, so that it can be found."""
        path = tmp_path / "a"
        path.write_text(json.dumps([session(created_at=T0), wrong, session(created_at=T0)]))
        found = items("openai", path)
        assert len(turns(found)) == 2
        (malformed,) = bad(found)
        assert malformed.place == "element 2"
        assert reason in malformed.reason

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            (None, "not a JSON object"),
            ("Hi", "not a JSON object"),
            ({"content": "Hi"}, "role"),
            (said("", "Hi"), "role"),
            (said("two words", "Hi"), "role"),
            (said(["user"], "Hi"), "role"),
            (said("user", 7), "content"),
            (said("user", {"text": "Hi"}), "content"),
            (said("user", [7]), "content"),
            (said("user", "a\x00b"), "NUL"),
            (said("user", "\ud800"), "content"),
            (said("user", "Hi", name=7), "name"),
            (said("user", "Hi", created_at="soon"), "ISO 8601"),
            (said("user", "x" * (contract.MAX_CONTENT_BYTES + 1)), "content"),
        ],
    )
    def test_a_bad_message_is_reported_the_others_go_in(self, tmp_path, wrong, reason) -> None:
        """The good ones keep their index and their time."""
        talk = session(said("user", "one"), wrong, said("user", "three"), created_at=T0)
        found = items("openai", write(tmp_path / "a", talk))
        assert [(t.content, t.index, t.timestamp_ms) for t in turns(found)] == [
            ("one", 0, T0 * 1000),
            ("three", 2, (T0 + 2) * 1000),
        ]
        (malformed,) = bad(found)
        assert malformed.place == "line 1, message 2"
        assert reason in malformed.reason

    def test_a_session_of_bad_messages_is_not_closed(self, tmp_path) -> None:
        """There is nothing in it."""
        assert not good(items("openai", write(tmp_path / "a", session(None, 7, created_at=T0))))

    @pytest.mark.parametrize(
        ("content", "text", "others"),
        [
            (None, "", None),
            ([], "", None),
            ([{"type": "text", "text": "a"}, "b", {"type": "output_text", "text": "c"}], "a\nb\nc", None),
            (
                [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "a"}],
                "a",
                ["image_url"],
            ),
            ([{"type": "text"}, {}], "", ["text", "unknown"]),
        ],
    )
    def test_parts(self, tmp_path, content, text, others) -> None:
        """Text is text; what is not is noted by its kind, without its bytes."""
        (turn,) = turns(items("openai", write(tmp_path / "a", session(said("user", content), created_at=T0))))
        assert (turn.content, turn.metadata.get("other_parts")) == (text, others)

    def test_tool_calls_are_noted_by_name(self, tmp_path) -> None:
        """The call has no text of its own."""
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        talk = session(
            said("assistant", None, tool_calls=[call, "odd"]), said("tool", "sunny", tool_call_id="c1"), created_at=T0
        )
        first, second = turns(items("openai", write(tmp_path / "a", talk)))
        assert first.metadata["tool_calls"] == ["weather"]
        assert second.metadata["tool_call_id"] == "c1"

    def test_a_messages_own_time_wins_and_carries_on(self, tmp_path) -> None:
        """The ones after it follow a second apart."""
        talk = session(
            said("user", "a"), said("user", "b", timestamp="2024-05-01T12:00:00Z"), said("user", "c"), created_at=T0
        )
        times = [t.timestamp_ms for t in turns(items("openai", write(tmp_path / "a", talk)))]
        noon = int(datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp() * 1000)
        assert times == [T0 * 1000, noon, noon + 1000]

    def test_without_a_time_the_files_own_is_taken_and_said(self, tmp_path) -> None:
        """Its ids do not depend on it: a touched copy adds nothing."""
        path = write(tmp_path / "a", session(said("user", "a")))
        os.utime(path, (T0, T0))
        (turn,) = turns(items("openai", path))
        assert (turn.timestamp_ms, turn.metadata["time_from"]) == (T0 * 1000, "file")
        ids = [e.event_id for e in good(items("openai", path))]
        os.utime(path, (T0 + 9, T0 + 9))
        assert [e.event_id for e in good(items("openai", path))] == ids

    def test_ids_depend_on_scope_session_place_and_content_only(self, tmp_path) -> None:
        """So that the same file twice is once, and two equal messages are two."""
        talk = session(said("user", "Hi"), said("user", "Hi"))
        path = write(tmp_path / "a", talk, talk)
        found = items("openai", path)
        ids = [e.event_id for e in good(found)]
        assert len(set(ids)) == 6
        assert len({t.session_id for t in turns(found)}) == 2
        other = Path(shutil.copy(path, tmp_path / "b"))
        assert [e.event_id for e in good(items("openai", other))] == ids
        assert not set(ids) & {e.event_id for e in good(items("openai", path, Scope("user", "u2")))}

    def test_reading_goes_on_from_any_element(self, tmp_path) -> None:
        """Ordinals are the positions of an array."""
        path = tmp_path / "a"
        path.write_text(json.dumps([session(created_at=T0), None, session(said("user", "x"), created_at=T0)]))
        everything = items("openai", path)
        assert items("openai", path, start=1) == everything[2:]
        assert items("openai", path, start=2) == everything[3:]

    def test_it_needs_a_scope(self, tmp_path) -> None:
        """The format has none."""
        with pytest.raises(ConfigError, match="--scope"):
            items("openai", write(tmp_path / "a", session()), None)

    def test_depth_is_no_danger(self, tmp_path) -> None:
        """A nested bomb is a report."""
        deep = b'{"messages": [' + b"[" * 50_000 + b"]" * 50_000 + b"]}"
        path = tmp_path / "a"
        fine = json.dumps(session(created_at=T0)).encode()
        path.write_bytes(b"[" + fine + b"," + deep + b"," + fine + b"]")
        found = items("openai", path)
        assert len(turns(found)) == 2
        assert [(m.place, m.reason) for m in bad(found)] == [("element 2", "is nested too deeply")]


def conversation(**sessions: Any) -> dict[str, Any]:
    return {"sample_id": "conv-1", "qa": [], "conversation": {"speaker_a": "Ann", "speaker_b": "Bob", **sessions}}


def dia(name: str, speaker: str = "Ann", text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"dia_id": name, "speaker": speaker, "text": text, **more}


class TestLoCoMo:
    """The benchmark's conversations."""

    DATE = "1:56 pm on 8 May, 2023"

    def read(self, path: Path, *samples: Any) -> list[Imported | Malformed]:
        """Import samples as the data set is laid out."""
        path.write_text(json.dumps(samples))
        return items("locomo", path, None)

    def test_a_conversation_is_a_scope_and_its_sessions_close(self, tmp_path) -> None:
        """Turn ids are those the evidence points to; a minute passes between turns."""
        found = self.read(
            tmp_path / "a",
            conversation(
                session_10=[dia("D10:1")],
                session_10_date_time=self.DATE,
                session_2=[dia("D2:1"), dia("D2:2", "Bob", "Look!", blip_caption="a red boat")],
                session_2_date_time=self.DATE,
                session_3_date_time=self.DATE,
                session_4=[],
            ),
        )
        assert not bad(found)
        assert [(e.session_id, type(e).__name__) for e in good(found)] == [
            ("session_2", "Turn"),
            ("session_2", "Turn"),
            ("session_2", "SessionClosed"),
            ("session_10", "Turn"),
            ("session_10", "SessionClosed"),
        ]
        first, second, _ = turns(found)
        assert first.scope == Scope("user", "conv-1")
        assert (second.turn_id, second.speaker, second.role, second.index) == ("D2:2", "Bob", "user", 1)
        assert second.content == "Look! [shares a photo: a red boat]"
        assert second.timestamp == datetime(2023, 5, 8, 13, 57, tzinfo=UTC)
        assert second.timestamp_ms - first.timestamp_ms == 60_000

    def test_a_subset_gives_the_ids_of_the_whole(self, tmp_path) -> None:
        """So that a development split and the full set are one import."""
        one = conversation(session_1=[dia("D1:1")], session_1_date_time=self.DATE)
        other = {**one, "sample_id": "conv-2"}
        whole = [e.event_id for e in good(self.read(tmp_path / "a", other, one))]
        part = [e.event_id for e in good(self.read(tmp_path / "b", one))]
        assert whole[2:] == part
        assert len(set(whole)) == 4

    @pytest.mark.parametrize(
        ("sample", "place", "reason"),
        [
            (None, "element 1", "not a JSON object"),
            ({"sample_id": "x"}, "element 1", "conversation"),
            ({"conversation": {}}, "element 1", "scope_id"),
            (conversation(session_1={}), "conv-1, session_1", "no list"),
            (conversation(session_1=[dia("D1:1")]), "conv-1, session_1", "date_time"),
            (conversation(session_1=[dia("D1:1")], session_1_date_time="May"), "conv-1, session_1", "no date"),
            (conversation(session_1=[7], session_1_date_time=DATE), "conv-1, session_1, turn 1", "not a JSON object"),
            (
                conversation(session_1=[dia("D1:1", text=None)], session_1_date_time=DATE),  # type: ignore[arg-type]
                "conv-1, session_1, D1:1",
                "text",
            ),
        ],
    )
    def test_what_is_wrong_is_reported_the_rest_goes_in(self, tmp_path, sample, place, reason) -> None:
        """Down to the turn."""
        fine = {**conversation(session_1=[dia("D1:1")], session_1_date_time=self.DATE), "sample_id": "fine"}
        found = self.read(tmp_path / "a", sample, fine)
        assert [t.scope.id for t in turns(found)] == ["fine"]
        (malformed,) = bad(found)
        assert malformed.place == place
        assert reason in malformed.reason

    def test_it_takes_no_scope(self, tmp_path) -> None:
        """Ten conversations in one scope would share their turn ids."""
        with pytest.raises(ConfigError, match="leave --scope out"):
            items("locomo", write(tmp_path / "a", []), SCOPE)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("1:56 pm on 8 May, 2023", (2023, 5, 8, 13, 56)),
            ("12:09 am on 13 September, 2023", (2023, 9, 13, 0, 9)),
            ("12:24 pm on 7 April, 2022", (2022, 4, 7, 12, 24)),
            (" 10:04 AM on 29 february 2024 ", (2024, 2, 29, 10, 4)),
        ],
    )
    def test_dates(self, text, expected) -> None:
        """Midnight and noon are where people expect them."""
        assert parse_date(text) == datetime(*expected, tzinfo=UTC)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "8 May, 2023",
            "13:05 pm on 8 May, 2023",
            "0:05 am on 8 May, 2023",
            "1:60 pm on 8 May, 2023",
            "1:56 pm on 31 June, 2023",
            "1:56 pm on 8 Mai, 2023",
            "1:56 xm on 8 May, 2023",
        ],
    )
    def test_no_dates(self, text) -> None:
        """A wrong date would put a session into another month unnoticed."""
        with pytest.raises(PoisonError):
            parse_date(text)

    def test_dates_do_not_depend_on_the_locale(self) -> None:
        """`strptime` would read %p and %B by it."""
        before = locale.setlocale(locale.LC_TIME)
        try:
            locale.setlocale(locale.LC_TIME, "C.UTF-8")
            assert parse_date(self.DATE).month == 5
        finally:
            locale.setlocale(locale.LC_TIME, before)


def _python_memory_of_reading(form: str, path: Path) -> tuple[int, int]:
    tracemalloc.start()
    n_items = sum(1 for _ in reader(form)(path, SCOPE))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return n_items, peak


@pytest.mark.parametrize("layout", ["lines", "array"])
def test_memory_does_not_grow_with_the_file(tmp_path, layout) -> None:
    """A file larger than memory goes in: 12 MB of it take less than 4."""
    talk = json.dumps(session(said("user", "x" * 200_000), created_at=T0))
    path = tmp_path / "big"
    with path.open("w") as file:
        file.write("[" if layout == "array" else "")
        for number in range(60):
            file.write(talk + ("" if layout == "array" and number == 59 else "," if layout == "array" else "\n"))
        file.write("]" if layout == "array" else "")
    n_items, peak_bytes = _python_memory_of_reading("openai", path)
    assert n_items == 120
    assert path.stat().st_size > 12_000_000
    assert peak_bytes < 4_000_000


def test_an_endless_line_is_skipped_in_bounded_memory(tmp_path) -> None:
    """A file without line ends is no reason to fill the memory."""
    path = tmp_path / "big"
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + json.dumps(event()).encode())
    n_items, peak_bytes = _python_memory_of_reading("events", path)
    assert n_items == 2
    assert peak_bytes < 8_000_000


def test_ids_are_what_they_were() -> None:
    """A changed derivation would double every earlier import."""
    assert source.event_id("openai", SCOPE, "s", "0/1", "user", "é") == "4642b09032ecca47b0cd8280d86340c9"
