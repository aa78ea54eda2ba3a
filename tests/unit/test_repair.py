"""Whatever is damaged is found by name, mended, and the answers are the same as before."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.errors import ShardError
from pipeline.ledger import upkeep
from tests.damages import DAMAGES, OF_ONE
from tests.small_pipeline import OTHER, SCOPE, SmallPipeline, story
from workers import worker
from workers.checkup import Verdict, repair, verify_data


@dataclass(frozen=True)
class Filled:
    """A folder in which all is done, and what it answers."""

    folder: Path
    answers: list[list[tuple[str, str, float]]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("filled") / "data"
    folder.mkdir(mode=0o700)
    pipeline = SmallPipeline(folder)
    pipeline.publish([*story(SCOPE), *story(OTHER)])
    pipeline.seal()
    pipeline.work()
    return Filled(folder, pipeline.answers())


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is at work here."""
    monkeypatch.setattr("workers.checkup.registry._SETTLES_WITHIN_S", 0.01)
    monkeypatch.setattr("workers.checkup.stream._TAKEN_UP_WITHIN_S", 0.01)
    monkeypatch.setattr("workers.checkup.registry._LOOK_AGAIN_S", 0.01)


@pytest.fixture
def pipeline(filled: Filled, data_dir: Path) -> SmallPipeline:
    shutil.copytree(filled.folder, data_dir, dirs_exist_ok=True)
    return SmallPipeline(data_dir)


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_named_mended_and_answers_as_before(
    filled: Filled, pipeline: SmallPipeline, name: str
) -> None:
    """The oracle must see it, say where, and leave nothing for an operator to do by hand."""
    part, words, damage = DAMAGES[name]
    damage(pipeline)
    found = verify_data(pipeline.settings)
    assert any(part in finding.what and words in finding.detail for finding in found), found
    done = repair(pipeline.settings)
    assert {finding.verdict for finding in done} == {Verdict.REPAIRED}, done
    assert verify_data(pipeline.settings) == []
    pipeline.work()
    assert verify_data(pipeline.settings, idle=True) == []
    assert pipeline.answers() == filled.answers
    assert repair(pipeline.settings) == []


def test_nothing_is_wrong_with_what_is_whole(pipeline: SmallPipeline) -> None:
    """A checker that cries wolf is switched off; and mending what is whole changes nothing."""
    assert verify_data(pipeline.settings, idle=True) == []
    before = pipeline.ledger_path.read_bytes()
    assert repair(pipeline.settings) == []
    assert pipeline.ledger_path.read_bytes() == before


def test_a_turn_set_aside_keeps_the_count_of_its_attempts(pipeline: SmallPipeline) -> None:
    """It stays set aside: three attempts were made, and `dead-letters list` says so."""
    pipeline.sql(f"UPDATE turns SET state = 4, attempts = 3 {OF_ONE}")
    repair(pipeline.settings)
    assert pipeline.sql("SELECT attempts FROM turns WHERE state = 4") == [(3,)]
    assert not pipeline.sql("SELECT 1 FROM traces JOIN turns USING (turn_offset) WHERE state = 4")


def test_work_under_way_is_not_wrong(data_dir: Path) -> None:
    """It runs beside everything else; only who says that all is done wants to hear of what is not."""
    pipeline = SmallPipeline(data_dir)
    pipeline.publish(story(SCOPE))
    assert verify_data(pipeline.settings) == []
    left = {finding.what for finding in verify_data(pipeline.settings, idle=True)}
    assert left == {"user/u1 turns", "user/u1 sessions", "registry"}


def test_a_damaged_row_is_a_damaged_ledger_to_whoever_reads_it(pipeline: SmallPipeline) -> None:
    """Not a wrong argument of the asker; and what heals it is said."""
    pipeline.sql("UPDATE turns SET tags = 'x' WHERE turn_offset = (SELECT min(turn_offset) FROM turns)")
    with pytest.raises(ShardError, match="higher revision"):
        pipeline.answers()
    assert any("higher revision" in finding.detail for finding in verify_data(pipeline.settings))


def test_a_summary_made_again_is_waited_for_since_the_repair(pipeline: SmallPipeline) -> None:
    """Whoever looks next is not told of a session without a summary since 1970."""
    pipeline.sql("UPDATE summaries SET text = ' '")
    before_ms = worker.now_ms()
    repair(pipeline.settings)
    with closing(pipeline.open()) as ledger:
        since_ms = upkeep.status(ledger, idle_ms=0, settle_ms=0).unsummarised_since_ms
    assert since_ms is not None
    assert since_ms >= before_ms
