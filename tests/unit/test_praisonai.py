"""Folders of PraisonAI sessions: what can be used goes in, what cannot is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.importers import Imported, Malformed, reader
from pipeline.records import Scope, SessionClosed, Turn
from workers.backfill import Backfill

SCOPE = Scope("user", "u1")
T0 = 1_700_000_000.0


def session(name: str, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"hello from {name}", "timestamp": T0},
        {"role": "assistant", "content": "hello", "timestamp": T0 + 5},
    ]
    return {"session_id": name, "messages": messages, "created_at": "2023-11-14T00:00:00+00:00", **more}


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def items(path: Path, start: int = 0) -> list[Imported | Malformed]:
    return list(reader("praisonai")(path, SCOPE, start=start))


def turns(found: list[Imported | Malformed]) -> list[Turn]:
    return [item.event for item in found if isinstance(item, Imported) and isinstance(item.event, Turn)]


GOOD = json.dumps(session("odd")).encode()
MALFORMED = {
    "truncated": (GOOD[:-20], "no valid JSON", 0),
    "empty": (b"", "is empty", 0),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "byte order mark", 2),
    "a list": ([session("odd")], "no JSON object but list", 0),
    "null": (None, "no JSON object but null", 0),
    "invalid UTF-8": (GOOD.replace(b"hello", b"hell\xff"), "UTF-8", 0),
    "metadata a list": (session("odd", metadata=["a"]), "metadata", 2),
    "a number for a time": (session("odd", updated_at=T0), "updated_at", 2),
    "a time that is none": (session("odd", created_at="yesterday"), "created_at", 2),
    "messages a text": (session("odd", messages="hello"), "messages", 0),
    "no messages": ({"session_id": "odd"}, "messages", 0),
    "an id that is none": (session("odd", session_id=["a"]), "session_id", 0),
    "entries that are no objects": (
        session("odd", messages=["hello", None, {"role": "user", "content": "still here", "timestamp": T0}]),
        "not a JSON object",
        1,
    ),
    "an entry without a role": (session("odd", messages=[{"content": "x"}]), "role", 0),
    "a time of an entry that is none": (
        session("odd", messages=[{"role": "user", "content": "x", "timestamp": [1]}]),
        "timestamp",
        0,
    ),
    "nested too deeply": (b'{"a":' * 100_000, "nested", 0),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_named_and_the_others_go_in(tmp_path: Path, case: str) -> None:
    """The original stops at some of these, and loses sessions without a word at others."""
    content, reason, n_left = MALFORMED[case]
    write(tmp_path, "a", session("a"))
    odd = write(tmp_path, "m-odd", b"null" if content is None else content)
    write(tmp_path, "z", session("z"))
    found = items(tmp_path)
    named = [item for item in found if isinstance(item, Malformed)]
    assert named
    assert {item.path for item in named} == {odd}
    assert any(reason in str(item) for item in named)
    by_session = [turn.session_id for turn in turns(found)]
    assert (by_session.count("a"), by_session.count("odd"), by_session.count("z")) == (2, n_left, 2)


def test_a_session_keeps_its_times_its_order_and_what_it_says_about_itself(tmp_path: Path) -> None:
    """Search shows the title and makes one of continuations."""
    archived = [{"role": "user", "content": "long ago", "timestamp": T0 - 900}]
    facts = {"title": "A title", "parent_session_id": "p", "other": "left out"}
    content = session("s", archived_messages=archived, agent_name="Helper", metadata=facts, root_session_id="r")
    content["messages"].append({"role": "tool", "content": [{"type": "text", "text": "42"}]})
    found = items(write(tmp_path, "s", content))
    said = turns(found)
    assert [(turn.index, turn.timestamp_ms / 1000) for turn in said] == [
        (0, T0 - 900),
        (1, T0),
        (2, T0 + 5),
        (3, T0 + 6),
    ]
    assert said[0].metadata == {
        "source": "praisonai",
        "title": "A title",
        "agent_name": "Helper",
        "root_session_id": "r",
        "parent_session_id": "p",
    }
    assert said[3].metadata["time_from"] == "session"
    assert said[3].content == '[{"text":"42","type":"text"}]'
    closed = found[-1]
    assert isinstance(closed, Imported)
    assert isinstance(closed.event, SessionClosed)


def test_an_import_goes_on_at_a_file_and_gives_the_same_ids_again(tmp_path: Path) -> None:
    """A folder of years is taken up where it was, and a repeated import adds nothing."""
    for name in "abc":
        write(tmp_path, name, session(name))
    whole = items(tmp_path)
    assert items(tmp_path) == whole
    assert items(tmp_path, start=2) == [item for item in whole if item.position == 2]
    assert len({item.event.event_id for item in whole if isinstance(item, Imported)}) == 9


def test_it_needs_a_scope(tmp_path: Path) -> None:
    """The files do not say whose they are."""
    with pytest.raises(ConfigError, match="--scope"):
        list(reader("praisonai")(tmp_path, None))


class Published:
    """Takes events as the server would."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def publish_events(self, events: Any) -> None:
        """Keep them."""
        self.events += list(events)


def test_a_whole_folder_is_backfilled(tmp_path: Path) -> None:
    """`turnstream backfill FOLDER --format praisonai`; other formats have one file for all."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in "abc":
        write(folder, name, session(name))
    write(folder, "d", b"{")
    published: Any = Published()
    job = Backfill(published, tmp_path)
    report = job.run(folder, "praisonai", SCOPE, restart=False, on_progress=lambda *_: None)
    assert (report.n_published, report.n_malformed) == (9, 1)
    assert "d.json" in str(report.malformed[0])
    assert [event.session_id for event in published.events] == [*"aaabbbccc"]
    with pytest.raises(ConfigError, match="no file"):
        job.run(folder, "openai", SCOPE, restart=False, on_progress=lambda *_: None)
