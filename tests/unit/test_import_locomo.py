"""The LoCoMo conversations: scopes, sessions, dates, and what is wrong in one."""

from __future__ import annotations

import json
import locale
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import Imported, Malformed
from pipeline.importers.locomo import parse_date
from pipeline.records import Scope
from tests.transcripts import SCOPE, bad, good, items, turns, write


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
