"""The verb forget: asks for it, waits until nothing is left, and says what there was."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.errors import ConfigError, TransientError, TurnstreamError
from pipeline.ledger import forgetting
from pipeline.ledger.connection import connect, translated
from pipeline.ledger.forgetting import Forgotten
from pipeline.records import Scope, ScopeDeleted, SessionDeleted, TurnDeleted
from pipeline.settings import Settings
from pipeline.shards import Shards
from workers.cli import common, feed

_POLL_S: Final = 0.05
_COUNTED: Final = ("turns", "sessions", "summaries", "chunks", "dead_letters")
Deletion = TurnDeleted | SessionDeleted | ScopeDeleted


def forget(
    scope: common.ScopeKey,
    session: Annotated[str | None, typer.Option(help="Forget this session.")] = None,
    turn: Annotated[str | None, typer.Option(help="Forget this turn of the session.")] = None,
    wait: Annotated[bool, typer.Option(help="Return when nothing of it is left, with what there was.")] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds after which to give up waiting.")] = 300.0,
    offline: Annotated[bool, typer.Option("--offline", help="In a folder that nothing runs on: a backup.")] = False,
    data_dir: common.DataDir = None,
    redis_url: common.RedisUrl = None,
    as_json: common.AsJson = False,
) -> None:
    """Have a turn, a session, or everything said in a scope until now forgotten."""
    settings = common.settings_of(data_dir, redis_url)
    event = _deletion(common.scope_of(scope), session, turn)
    if offline:
        from workers.forgetting import forget_offline  # noqa: PLC0415 - for this option only

        _report(event, forget_offline(settings, event), None, as_json=as_json)
        return
    with feed.publisher_of(settings) as publisher:
        entry_id = publisher.publish_event(event)
    if wait:
        _report(event, _purged(settings, event, timeout), entry_id, as_json=as_json)
    elif as_json:
        common.print_json({**_request(event), "entry_id": entry_id})
    else:
        common.out.print(f"asked for as entry {entry_id}; 'turnstream wait' returns when it is done")


def _deletion(scope: Scope, session_id: str | None, turn_id: str | None) -> Deletion:
    about: dict[str, Any] = {
        "scope": scope,
        "timestamp_ms": time.time_ns() // 1_000_000,
        "event_id": f"forget-{uuid.uuid4().hex}",
    }
    if session_id is None:
        if turn_id is not None:
            raise ConfigError("--turn needs its --session")
        return ScopeDeleted(**about)
    if turn_id is None:
        return SessionDeleted(**about, session_id=session_id)
    return TurnDeleted(**about, session_id=session_id, turn_id=turn_id)


def _purged(settings: Settings, event: Deletion, timeout_s: float) -> Forgotten:
    """Wait until the request is applied, and the last bytes of what it names are gone."""
    path = Shards(settings.data_dir).ledger_path(event.scope)
    deadline, found = time.monotonic() + timeout_s, None
    with common.err.status("waiting"):
        while found is None or found.purged_ms is None:
            if time.monotonic() > deadline:
                state = "not applied yet" if found is None else "applied: nobody is shown it; its last bytes remain"
                raise TurnstreamError(
                    f"not done after {timeout_s:g} s: {state}. It is done as soon as 'turnstream up' gets to it, and"
                    " nobody reads the scope in one long transaction"
                )
            time.sleep(_POLL_S)
            found = _outcome(path, event.event_id)
    return found


def _outcome(path: Path, event_id: str) -> Forgotten | None:
    if not path.exists():
        return None
    try:
        with closing(connect(path, query_only=True)) as connection, translated(path):
            return forgetting.outcome(connection, event_id)
    except TransientError:  # held by a writer; asked again
        return None


def _report(event: Deletion, found: Forgotten, entry_id: str | None, *, as_json: bool) -> None:
    removed = {name: getattr(found, name) for name in _COUNTED}
    if as_json:
        common.print_json(
            {
                **_request(event),
                "entry_id": entry_id,
                "known": found.was_known,
                "asked_for_before": found.was_forgotten,
                "removed": removed,
                "purged": found.purged_ms is not None,
                "server_file_rewritten": found.rewritten,
            }
        )
        return
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in removed.items())
    common.out.print(f"removed: {counts}", soft_wrap=True)
    if not found.was_known:
        before = "; it was forgotten before" if found.was_forgotten else ""
        what = f"there was no {_named(event)}{before}. The request stands: what arrives of it later is refused"
        common.out.print(what, markup=False, soft_wrap=True)
    if entry_id is None:
        common.out.print("dead letters, and the server's file, are purged once the pipeline runs on this folder")
    elif not found.rewritten:
        common.out.print("the server did not rewrite its own files; what it kept of it leaves them when it does")


def _request(event: Deletion) -> dict[str, Any]:
    return {
        "scope": event.scope.key,
        "session": getattr(event, "session_id", None),
        "turn": getattr(event, "turn_id", None),
        "event_id": event.event_id,
    }


def _named(event: Deletion) -> str:
    if isinstance(event, ScopeDeleted):
        return f"scope {event.scope.key!r} with anything said until now"
    if isinstance(event, SessionDeleted):
        return f"session {event.session_id!r} in scope {event.scope.key!r}"
    return f"turn {event.turn_id!r} in session {event.session_id!r} of scope {event.scope.key!r}"
