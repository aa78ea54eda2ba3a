"""What can still be read of a broken ledger is saved, the broken file is kept, and nobody is overtaken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from pipeline.errors import TransientError
from pipeline.ledger.salvage import salvage
from pipeline.records import SessionDeleted, Turn
from tests.small_pipeline import SCOPE, SmallPipeline, story
from workers.checkup import Verdict, repair, verify_data

N_TURNS = 200
PAGE = 4_096


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of many pages, all in its main file."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    folder.mkdir(mode=0o700)
    made = SmallPipeline(folder)
    turns = [
        Turn(scope=SCOPE, session_id=f"s{i % 4}", role="user", content=f"number{i} " + "word " * 90,
             timestamp=1.6e9 + i, event_id=f"e{i}", turn_id=f"t{i}", index=i // 4)
        for i in range(N_TURNS)
    ]  # fmt: skip
    made.publish_at_once(turns)
    made.work()
    with closing(made.open()) as ledger:
        ledger.truncate_wal()
    for suffix in ("-wal", "-shm"):
        Path(f"{made.ledger_path}{suffix}").unlink(missing_ok=True)
    return folder


@pytest.fixture
def pipeline(filled: Path, data_dir: Path) -> SmallPipeline:
    shutil.copytree(filled, data_dir, dirs_exist_ok=True)
    return SmallPipeline(data_dir)


def turns(pipeline: SmallPipeline) -> set[str]:
    return {str(row[0]) for row in pipeline.sql("SELECT turn_id FROM turns")}


def overwrite(pipeline: SmallPipeline, page: int, content: bytes = b"\xa5" * PAGE) -> None:
    with pipeline.ledger_path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(content)


def page_of_turns(pipeline: SmallPipeline) -> int:
    """A leaf in the middle of the table of turns."""
    with closing(apsw.Connection(str(pipeline.ledger_path))) as connection:
        leaves = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'turns' AND pagetype = 'leaf' ORDER BY path"
        ).fetchall()
    return int(str(leaves[len(leaves) // 2][0]))


def mend(pipeline: SmallPipeline) -> str:
    """Repair; gives what was said of the ledger."""
    assert any("ledger" in finding.what for finding in verify_data(pipeline.settings))
    done = repair(pipeline.settings)
    assert {finding.verdict for finding in done} == {Verdict.REPAIRED}, done
    pipeline.work()
    return next(finding.detail for finding in done if "turns saved" in finding.detail)


def test_a_ledger_without_its_first_page_loses_nothing(pipeline: SmallPipeline) -> None:
    """All ledgers of one release are laid out alike: where each table begins is known."""
    before = turns(pipeline)
    overwrite(pipeline, 1)
    assert f"{len(before)} turns saved" in mend(pipeline)
    assert turns(pipeline) == before
    assert verify_data(pipeline.settings, idle=True) == []


def test_all_turns_but_those_on_a_broken_page_are_saved(pipeline: SmallPipeline) -> None:
    """Who lost ten turns wants the other ten thousand, and to be told."""
    before = turns(pipeline)
    overwrite(pipeline, page_of_turns(pipeline))
    said = mend(pipeline)
    saved = turns(pipeline)
    assert saved < before
    assert len(before) - len(saved) <= 10
    assert f"{len(saved)} turns saved" in said
    assert "could not be read" in said
    assert all(finding.what.endswith("turn index") for finding in verify_data(pipeline.settings, idle=True))


def test_what_was_forgotten_stays_forgotten(pipeline: SmallPipeline) -> None:
    """A replay into the new file must not revive it."""
    pipeline.publish([SessionDeleted(scope=SCOPE, session_id="s3", timestamp_ms=1, event_id="gone")])
    with closing(pipeline.open()) as ledger:
        ledger.truncate_wal()
    overwrite(pipeline, page_of_turns(pipeline))
    mend(pipeline)
    pipeline.publish(
        [Turn(scope=SCOPE, session_id="s3", role="user", content="back", timestamp=1.6e9, event_id="again")]
    )
    assert not pipeline.sql("SELECT 1 FROM turns WHERE session_id = 's3'")


def test_the_broken_file_is_kept(pipeline: SmallPipeline) -> None:
    """Somebody may read more of it than we can."""
    overwrite(pipeline, 1)
    broken = pipeline.ledger_path.read_bytes()
    mend(pipeline)
    (aside,) = pipeline.folder.glob("ledger.sqlite.damaged-*")
    assert aside.read_bytes() == broken
    assert aside.stat().st_mode & 0o777 == 0o600
    assert not list(pipeline.folder.glob(".*.salvage"))


def test_a_ledger_of_zeros_is_replaced_by_an_empty_one(pipeline: SmallPipeline) -> None:
    """Nothing can be read of it, and its scope must go on."""
    pipeline.ledger_path.write_bytes(bytes(PAGE * 4))
    assert "0 turns saved" in mend(pipeline)
    pipeline.publish(story(SCOPE))
    pipeline.work()
    assert verify_data(pipeline.settings, idle=True) == []


def test_a_ledger_that_somebody_has_open_is_left_alone(pipeline: SmallPipeline) -> None:
    """They would go on writing to the file that was set aside, and what they acknowledge would be lost."""
    code = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('SELECT * FROM meta').fetchall();"
        " print(1, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, pipeline.ledger_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        inode = pipeline.ledger_path.stat().st_ino
        with pytest.raises(TransientError, match="open in another process"):
            salvage(pipeline.ledger_path, SCOPE, now_ms=1)
        assert pipeline.ledger_path.stat().st_ino == inode
        assert not list(pipeline.folder.glob("*damaged*"))
        holder.communicate()
    assert salvage(pipeline.ledger_path, SCOPE, now_ms=1).n_turns == N_TURNS


def test_a_flipped_log_of_writes_is_cut_where_it_stops_to_fit(pipeline: SmallPipeline) -> None:
    """SQLite keeps the commits before it: nothing to salvage, nothing to fear."""
    with closing(pipeline.open()) as ledger:
        ledger.connection.execute("UPDATE sessions SET failure = 'x'")
        os.link(f"{pipeline.ledger_path}-wal", f"{pipeline.ledger_path}.kept")
    wal = Path(f"{pipeline.ledger_path}-wal")
    content = bytearray(Path(f"{pipeline.ledger_path}.kept").read_bytes())
    content[-PAGE // 2] ^= 0xFF
    wal.write_bytes(content)
    assert verify_data(pipeline.settings, idle=True) == []
