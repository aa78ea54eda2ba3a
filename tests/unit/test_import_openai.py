"""Transcripts of OpenAI messages: every layout there is, and whatever is wrong in one."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline import contract
from pipeline.errors import ConfigError
from pipeline.records import Scope, SessionClosed, Turn
from tests.transcripts import T0, bad, good, items, said, session, turns, write


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
