"""Transcripts: what goes in, what is reported, and that a second import adds nothing."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import contract
from pipeline.errors import ConfigError
from pipeline.importers import FORMATS, Malformed, reader, source
from tests.transcripts import SCOPE, T0, bad, event, good, items, said, session, turns, write


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
