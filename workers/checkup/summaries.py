"""Summaries against the sessions they were made from: whether each covers the text that its session has now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from pipeline.ledger import check
from pipeline.ledger.schema import SessionState
from pipeline.settings import Settings
from pipeline.shards import SUMMARIES_FOLDER
from pipeline.summarise import extractive, prompt, session_text, summary_key
from workers.checkup.finding import Finding, damaged

_STATES = (
    "SELECT session_id, state, ifnull(platform_summary, ''), digest, s.text, model_id"
    " FROM sessions LEFT JOIN summaries s USING (session_id) WHERE state <> 0"
)


def wrong(settings: Settings, connection: apsw.Connection, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield sessions noted as up to date whose summary is of another text, each with a reason.

    A summary made under other settings is right as long as its cache file tells which they were.
    """
    states: dict[str, Any] = {str(row[0]): row[1:] for row in connection.execute(_STATES)}
    for session_id, lines in check.session_lines(connection):
        if session_id not in states:
            continue
        state, given, digest, summary, model_id = states[session_id]
        text, given = session_text(lines), given.strip()
        if state == SessionState.NOTHING_TO_SUMMARISE:
            if text.strip():
                yield session_id, "is noted as having nothing to summarise, but has"
        elif digest is None or (given and summary == given and model_id == "platform"):
            continue  # without a summary it is found elsewhere
        elif digest != key_of(settings, given or text) and digest != _key_then(folder, digest, text):
            yield session_id, "has a summary of another text than its turns are now"


def findings(settings: Settings, connection: apsw.Connection, folder: Path, name: str) -> list[Finding]:
    """Say which summaries are of another text."""
    return [
        damaged(f"{name} summaries", f"session {session_id!r} {reason}; {check.MADE_AGAIN}")
        for session_id, reason in wrong(settings, connection, folder)
    ]


def key_of(settings: Settings, text: str) -> str:
    """Give the key that a summary of this text has under the present settings."""
    chosen = settings.summary
    model_id = chosen.model if chosen.invoker == "openai" else extractive.MODEL
    return summary_key(text, model_id, prompt.TEMPLATE_VERSION, chosen.max_tokens)


def _key_then(folder: Path, digest: str, text: str) -> str | None:
    """Give the key that this text had under the settings of the time; None when the cache does not tell."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        made = json.loads((folder / SUMMARIES_FOLDER / f"{digest}.json").read_bytes())["summary"]
        return summary_key(text, made["model_id"], made["template_version"], made["max_tokens"])
    return None
