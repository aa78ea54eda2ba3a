"""Ways to damage a small pipeline's data: the part in which it shows, words that name the place, and the deed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import apsw

from pipeline.records import Turn
from tests.small_pipeline import OTHER, SCOPE, SmallPipeline, story

Damage = Callable[[SmallPipeline], None]
SNAPSHOT, MANIFEST = "traces.1.faiss", "traces.manifest.json"


def sql(*statements: str) -> Damage:
    return lambda pipeline: pipeline.sql(*statements)


def flip(name: str, at: int = 200) -> Damage:
    def damage(pipeline: SmallPipeline) -> None:
        path = pipeline.folder / name
        content = bytearray(path.read_bytes())
        content[at] ^= 0xFF
        path.write_bytes(content)

    return damage


def cut(name: str) -> Damage:
    return lambda pipeline: os.truncate(pipeline.folder / name, 50)


def remove(name: str) -> Damage:
    return lambda pipeline: (pipeline.folder / name).unlink()


def swap_snapshots(pipeline: SmallPipeline) -> None:
    """Both files are whole, each in the other's folder."""
    for name in (SNAPSHOT, MANIFEST):
        shutil.copy(pipeline.shards.folder(OTHER) / name, pipeline.folder / name)


def spoil_index(pipeline: SmallPipeline) -> None:
    """Put a row right while its index is out of sight."""
    pipeline.sql("UPDATE turns SET timestamp_ms = timestamp_ms + 5 WHERE turn_offset = 3")
    kept = pipeline.sql("SELECT * FROM sqlite_schema WHERE name = 'turns_by_time'")[0]
    pipeline.sql("PRAGMA writable_schema = 1", "DELETE FROM sqlite_schema WHERE name = 'turns_by_time'")
    pipeline.sql("UPDATE turns SET timestamp_ms = timestamp_ms - 5 WHERE turn_offset = 3")
    values = ", ".join(repr(value) for value in kept)
    pipeline.sql("PRAGMA writable_schema = 1", f"INSERT INTO sqlite_schema VALUES ({values})")


def damage_cache(pipeline: SmallPipeline) -> None:
    path = next((pipeline.folder / "summaries").glob("*.json"))
    path.write_bytes(path.read_bytes().replace(b"river", b"brook").replace(b"harbour", b"seaport"))


def lose_gap(pipeline: SmallPipeline) -> None:
    """Edit a turn, and forget that its words are in a segment."""
    turns = (event for event in story(SCOPE) if isinstance(event, Turn))
    pipeline.publish([replace(next(turns), revision=1, event_id="edit")])
    pipeline.sql("DELETE FROM word_gaps")


def damage_registry(pipeline: SmallPipeline) -> None:
    pipeline.registry_path.write_bytes(b"\x00" * 9_000)
    for suffix in ("-wal", "-shm"):
        Path(f"{pipeline.registry_path}{suffix}").unlink(missing_ok=True)


def forget_scope_in_registry(pipeline: SmallPipeline) -> None:
    apsw.Connection(str(pipeline.registry_path)).execute("DELETE FROM shards WHERE scope = 'user/u1'")


ONE = "(SELECT max(turn_offset) FROM turns WHERE state = 2)"
OF_ONE = f"WHERE turn_offset = {ONE}"
FIRST = "WHERE trace_id = (SELECT min(trace_id) FROM traces)"
S0 = "WHERE session_id = 's0'"
NAN = "CAST(replace(hex(zeroblob(384)), '00', x'007e') AS BLOB)"
OTHERS = "(SELECT vector FROM vectors WHERE trace_id = 3)"
SHIFTED = "CAST(substr(holders, 3) || substr(holders, 1, 2) AS BLOB)"
DAMAGES: dict[str, tuple[str, str, Damage]] = {
    "a chunk is gone": ("turns", "t5", sql("DELETE FROM traces WHERE ordinal = 1")),
    "all chunks of a turn are gone": ("turns", "without a chunk", sql(f"DELETE FROM traces {OF_ONE}")),
    "a chunk reaches past its turn": ("turns", "cover", sql(f"UPDATE traces SET stop = 9999 {FIRST}")),
    "a chunk leaves words out": ("turns", "cover", sql(f"UPDATE traces SET start = 3 {FIRST}")),
    "a chunk weighs nothing known": ("turns", "range", sql(f"UPDATE traces SET strength = 7 {FIRST}")),
    "a chunk of no turn": ("chunks", "of no turn", sql(f"UPDATE traces SET turn_offset = 99 {FIRST}")),
    "a vector is gone": ("turns", "without a vector", sql(f"DELETE FROM vectors {FIRST}")),
    "a vector is short": ("turns", "vector", sql(f"UPDATE vectors SET vector = x'00' {FIRST}")),
    "a vector is not a number": ("turns", "vector", sql(f"UPDATE vectors SET vector = {NAN} WHERE trace_id = 2")),
    "a vector of nothing": (
        "vectors",
        "trace 999",
        sql("INSERT INTO vectors SELECT 999, vector FROM vectors LIMIT 1"),
    ),
    "the words of a chunk are gone": ("turns", "whose words", sql(f"DELETE FROM passages {FIRST}")),
    "the words of a chunk are cut": ("turns", "whose words", sql(f"UPDATE passages SET words = x'000000' {FIRST}")),
    "words of no chunk": ("words", "trace 999", sql("INSERT INTO passages VALUES (999, x'', 0)")),
    "tokens of no chunk": ("token vectors", "trace 999", sql("INSERT INTO token_vectors VALUES (999, x'')")),
    "another vector than indexed": (
        "snapshot",
        "other vectors",
        sql(f"UPDATE vectors SET vector = {OTHERS} WHERE trace_id = 2"),
    ),
    "words of a turn are gone": ("full text", "misses", sql(f"DELETE FROM fulltext WHERE rowid = {ONE}")),
    "words of no turn": ("full text", "offset 77", sql("INSERT INTO fulltext (rowid, text) VALUES (77, 'x')")),
    "full text is broken": ("ledger", "fts5", sql("UPDATE fulltext_data SET block = x'00112233' WHERE id > 10")),
    "an index is wrong": ("ledger", "turns_by_time", spoil_index),
    "a session's row is gone": ("sessions", "'s0'", sql(f"DELETE FROM sessions {S0}")),
    "the platform's session is gone": ("sessions", "'s1'", sql("DELETE FROM sessions WHERE session_id = 's1'")),
    "a summary is gone": ("summaries", "'s0'", sql(f"DELETE FROM summaries {S0}")),
    "a summary of another text": ("summaries", "another text", sql(f"UPDATE summaries SET digest = 'x' {S0}")),
    "a summary without a vector": ("summaries", "'s0'", sql(f"UPDATE summaries SET vector = x'' {S0}")),
    "a session with nothing to say": (
        "summaries",
        "nothing",
        sql(f"UPDATE sessions SET state = 2 {S0}", f"DELETE FROM summaries {S0}"),
    ),
    "a card counts wrong": ("cards", "'s0'", sql(f"UPDATE cards SET n_turns = 7 {S0}")),
    "a card says nothing readable": ("cards", "'s0'", sql(f"UPDATE cards SET facts = '', pace = '' {S0}")),
    "a card is gone": ("cards", "'s1'", sql("DELETE FROM cards WHERE session_id = 's1'")),
    "a card of no session": ("cards", "'s9'", sql(f"UPDATE cards SET session_id = 's9' {S0}")),
    "a card that readers would not see": ("cards", "'s0'", sql(f"UPDATE cards SET changed = changed + 99 {S0}")),
    "a word of a segment is another": (
        "words",
        "offsets 1 to 16",
        sql("UPDATE word_segments SET vocabulary = replace(CAST(vocabulary AS TEXT), 'river', 'rivet')"),
    ),
    "a word stands in another turn": ("words", "1 to 16", sql(f"UPDATE word_segments SET holders = {SHIFTED}")),
    "a segment is cut": ("words", "1 to 16", sql("UPDATE word_segments SET turns = substr(turns, 1, 100)")),
    "a segment misses turns": ("words", "3 to 16", sql("UPDATE word_segments SET above = 2")),
    "a segment hides turns to come": ("words", "1 to 99", sql("UPDATE word_segments SET up_to = 99")),
    "a turn that is there is noted as removed": (
        "words",
        "1 to 16",
        sql("INSERT INTO word_gaps (turn_offset) VALUES (3)"),
    ),
    "a removed turn's words are not noted": ("words", "1 to 16", lose_gap),
    "events are not noted": ("events", "not noted", sql("DELETE FROM events")),
    "a claim of nobody": ("turns", "claimed by nobody", sql(f"UPDATE turns SET state = 1 {OF_ONE}")),
    "words skipped": (
        "turns",
        "skipped",
        sql(f"DELETE FROM traces {OF_ONE}", f"UPDATE turns SET state = 3 {OF_ONE}"),
    ),
    "the model is not named": ("meta", "model", sql("DELETE FROM meta WHERE key = 'model_key'")),
    "ids are given out again": ("meta", "trace ids", sql("DELETE FROM sqlite_sequence WHERE name = 'traces'")),
    "a snapshot is flipped": ("snapshot", SNAPSHOT, flip(SNAPSHOT)),
    "a snapshot is cut": ("snapshot", SNAPSHOT, cut(SNAPSHOT)),
    "a snapshot is gone": ("snapshot", SNAPSHOT, remove(SNAPSHOT)),
    "a manifest is flipped": ("snapshot", MANIFEST, flip(MANIFEST, 40)),
    "a snapshot is another scope's": ("snapshot", MANIFEST, swap_snapshots),
    "a cached summary is changed": ("summary cache", "summaries/", damage_cache),
    "the registry is none": ("registry", "registry.sqlite", damage_registry),
    "the registry is gone": ("registry", "missing", lambda pipeline: pipeline.registry_path.unlink()),
    "the registry forgot a scope": ("registry", "user/u1 is not in it", forget_scope_in_registry),
}
