"""What a ledger holds. One SQLite file per scope; everything else can be rebuilt from it.

| table | one row per | key |
|---|---|---|
| meta | fact about the file: `scope`, `format`, `model_key`, `dimension`, `token_dimension` | key |
| events | event applied, by the digest of its id, so that none is applied twice | digest |
| tombstones | thing forgotten, by digest, so that a replay does not revive it | target |
| forgettings | request to forget, with the numbers of what it removed | digest of its event's id |
| vacated | hole that a turn deleted on request left in its session's numbering | session_id, turn_index |
| turns | turn in its latest revision; `turn_offset` is new for each revision | turn_offset |
| traces | committed chunk, `content[start:stop]` of its turn, with its cognitive fields | trace_id |
| vectors | trace's embedding: `dimension` little-endian float16, L2-normalised | trace_id |
| token_vectors | trace's tokens: `token_dimension` int8 each, of length 127; if the model has any | trace_id |
| passages | trace's words in order, as little-endian uint32 (`words.word_ids`), and its `words.Mark`s | trace_id |
| fulltext | turn's searchable words (contentless FTS5) | rowid = turn_offset |
| vocabulary | word of the full text, with the number of its turns; only a view of it | term |
| sessions | session, and whether its summary is due; `version` counts its changes | session_id |
| summaries | summarised session: text, digest of what was summarised, embedding | summary_id |
| cards | session that has turns: what a list of sessions shows and ranks by; `changed` only grows | session_no |
| word_segments | run of turns: which words they hold, and where (see `word_segments`) | segment_id |
| word_gaps | turn removed, until the segment that may hold its words is built anew | gap_id |
| facts | thing that a user's turn states of him (see `condensed`, as the next four) | turn_offset, ordinal |
| facts_up_to | set of rules by which facts were looked for, and up to which turn | rules |
| themes | summary of a group of exchanges, by the digest of what it was made from | digest |
| theme_turns | turn that a theme was made from | turn_offset, digest |
| condensed | session, and the version that its themes are of | session_id |

A turn's `first_ms` is the least timestamp of all its revisions, kept or not: what a deleted scope forgets by.
`vacated` keeps its turn's `first_ms` for the same reason.

`turn_offset`, `trace_id` and `summary_id` only grow (AUTOINCREMENT: a plain rowid is reused after a delete), so each
can be a watermark: what is above it is new.

Why: vectors are float16: half the disk, and the cosine of two 384-dimensional unit vectors moves by less than 1e-3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

FORMAT: Final = 3


class TurnState(IntEnum):
    """Where a turn is on its way to being searchable."""

    PENDING = 0
    CLAIMED = 1
    SEARCHABLE = 2
    SKIPPED = 3
    QUARANTINED = 4


class SessionState(IntEnum):
    """Whether a session's summary is up to date."""

    DUE = 0
    SUMMARISED = 1
    NOTHING_TO_SUMMARISE = 2


ADDITIONS: Final = """
CREATE TABLE IF NOT EXISTS token_vectors (trace_id INTEGER PRIMARY KEY, tokens BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS passages (trace_id INTEGER PRIMARY KEY, words BLOB NOT NULL, marks INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS turns_by_speaker ON turns (speaker) WHERE speaker IS NOT NULL;
CREATE VIRTUAL TABLE IF NOT EXISTS vocabulary USING fts5vocab(fulltext, 'row');
CREATE TABLE IF NOT EXISTS facts (
  turn_offset INTEGER, ordinal INTEGER, key TEXT NOT NULL, value TEXT NOT NULL, confidence REAL NOT NULL,
  PRIMARY KEY (turn_offset, ordinal)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts_up_to (rules INTEGER PRIMARY KEY, turn_offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS themes (
  digest BLOB PRIMARY KEY, session_id TEXT NOT NULL, text TEXT NOT NULL, model_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS themes_of_session ON themes (session_id);
CREATE TABLE IF NOT EXISTS theme_turns (
  turn_offset INTEGER, digest BLOB, PRIMARY KEY (turn_offset, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS theme_turns_by_digest ON theme_turns (digest);
CREATE TABLE IF NOT EXISTS condensed (
  session_id TEXT PRIMARY KEY, version INTEGER NOT NULL, attempts INTEGER NOT NULL, retry_at_ms INTEGER
) WITHOUT ROWID;
"""
"""What a ledger of this format that was made before they were is given when it is next written to; what is missing in
them then, the checker tells, and a repair has it made."""

DDL: Final = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
  digest BLOB PRIMARY KEY, type TEXT NOT NULL, received_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE tombstones (target TEXT PRIMARY KEY, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE forgettings (
  digest BLOB PRIMARY KEY, target TEXT NOT NULL, was_known INTEGER NOT NULL, was_forgotten INTEGER NOT NULL,
  turns INTEGER NOT NULL, sessions INTEGER NOT NULL, summaries INTEGER NOT NULL, chunks INTEGER NOT NULL,
  dead_letters INTEGER NOT NULL DEFAULT 0, rewritten INTEGER, purged_ms INTEGER
) WITHOUT ROWID;
CREATE INDEX forgettings_unpurged ON forgettings (target) WHERE purged_ms IS NULL;
CREATE TABLE vacated (
  session_id TEXT, turn_index INTEGER, first_ms INTEGER NOT NULL, PRIMARY KEY (session_id, turn_index)
) WITHOUT ROWID;
CREATE TABLE turns (
  turn_offset INTEGER PRIMARY KEY AUTOINCREMENT,
  session_id TEXT NOT NULL, turn_id TEXT NOT NULL, event_id TEXT NOT NULL, revision INTEGER NOT NULL,
  role TEXT NOT NULL, speaker TEXT, content TEXT NOT NULL,
  timestamp_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL, turn_index INTEGER NOT NULL,
  tags TEXT NOT NULL, mood TEXT, metadata TEXT NOT NULL,
  state INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0, claimed_by TEXT, failure TEXT,
  UNIQUE (session_id, turn_id)
);
CREATE INDEX turns_in_order ON turns (session_id, timestamp_ms, turn_index, turn_id);
CREATE INDEX turns_by_time ON turns (timestamp_ms);
CREATE INDEX turns_by_state ON turns (state, attempts, turn_offset);
CREATE TABLE traces (
  trace_id INTEGER PRIMARY KEY AUTOINCREMENT,
  turn_offset INTEGER NOT NULL, ordinal INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
  n_tokens INTEGER NOT NULL,
  strength REAL NOT NULL, stability_ms REAL NOT NULL, valence REAL NOT NULL, confidence REAL NOT NULL,
  last_accessed_ms INTEGER NOT NULL
);
CREATE INDEX traces_of_turn ON traces (turn_offset);
CREATE TABLE vectors (trace_id INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE VIRTUAL TABLE fulltext USING fts5(
  text, content='', contentless_delete=1, tokenize='porter unicode61 remove_diacritics 2'
);
CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY, version INTEGER NOT NULL DEFAULT 1,
  state INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0,
  platform_summary TEXT, closed_ms INTEGER, changed_ms INTEGER NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0, retry_at_ms INTEGER, failure TEXT
) WITHOUT ROWID;
CREATE INDEX sessions_due ON sessions (changed_ms) WHERE state = 0;
CREATE TABLE summaries (
  summary_id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL UNIQUE,
  text TEXT NOT NULL, digest TEXT NOT NULL, model_id TEXT NOT NULL, session_date TEXT,
  summarised_ms INTEGER NOT NULL, tokens_in INTEGER NOT NULL DEFAULT 0, tokens_out INTEGER NOT NULL DEFAULT 0,
  vector BLOB NOT NULL
);
CREATE TABLE cards (
  session_no INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL UNIQUE, changed INTEGER NOT NULL,
  n_turns INTEGER NOT NULL, first_ms INTEGER NOT NULL,
  last_ms INTEGER NOT NULL, last_index INTEGER NOT NULL, last_turn_id TEXT NOT NULL,
  opening TEXT NOT NULL, facts TEXT NOT NULL, pace TEXT NOT NULL, is_automated INTEGER NOT NULL
);
CREATE INDEX cards_by_change ON cards (changed);
CREATE INDEX cards_newest_first ON cards (is_automated, last_ms DESC, session_id);
CREATE TABLE word_segments (
  segment_id INTEGER PRIMARY KEY AUTOINCREMENT, above INTEGER NOT NULL, up_to INTEGER NOT NULL UNIQUE,
  is_merged INTEGER NOT NULL,
  turns BLOB NOT NULL, roles TEXT NOT NULL, vocabulary BLOB NOT NULL, starts BLOB NOT NULL,
  holders BLOB NOT NULL, places BLOB NOT NULL
);
CREATE TABLE word_gaps (gap_id INTEGER PRIMARY KEY AUTOINCREMENT, turn_offset INTEGER NOT NULL UNIQUE);
{ADDITIONS}"""
