"""What an agent reports of an exchange, as two turns of its session: the objective, and its conclusion.

Both bear the exchange's name in their metadata (`entries.metadata`), so that they are one whatever stands between.
The numbering of a platform's own turns leaves them out: their event ids tell them apart.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline import contract
from pipeline.contract.limits import reject_long_content
from pipeline.errors import PoisonError
from pipeline.ledger.session_reads import REMEMBERED, SessionTurn
from pipeline.records import Scope, Turn, reject_unstorable
from retrieval.context.entries import exchanges
from retrieval.context.entries import metadata as entry_metadata
from retrieval.context.entries.entry import Entry, Outcome

MAX_ENTRY_ID_CHARS: Final = 400
_CONCLUSION: Final = "/conclusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An exchange as an agent tells it; `Entry` says what each field means."""

    objective: str
    conclusion: str
    key_results: Sequence[str] = ()
    tools: Sequence[str] = ()
    n_errors: int = 0
    outcome: Outcome | str = Outcome.UNKNOWN
    refs: Sequence[str] = ()
    pinned: bool = False
    entry_id: str | None = None


def turns_of(scope: Scope, session_id: str, report: Report, *, now_ms: int) -> tuple[Turn, Turn]:
    """Make the two turns of a report.

    Raises:
        ValueError: an argument of the wrong type, blank or out of bounds; the message names it.
        PoisonError: a text that cannot be kept, or is too long; the message names the argument.
    """
    _require_text("session_id", session_id)
    _require_text("objective", report.objective)
    _require_text("conclusion", report.conclusion, may_be_blank=True)
    entry_id = _entry_id(report.entry_id)
    metadata = {entry_metadata.EXCHANGE: entry_id, "time_from": "remember"}
    turns = list[Turn]()
    nothing = dict[str, Any]()
    for role, content, turn_id, said in (
        ("user", report.objective, entry_id, nothing),
        ("assistant", report.conclusion, entry_id + _CONCLUSION, _said(report)),
    ):
        digest = hashlib.blake2b(json.dumps([session_id, turn_id]).encode(), digest_size=20).hexdigest()
        turns.append(
            Turn(
                scope=scope,
                session_id=session_id,
                role=role,
                content=content,
                timestamp=now_ms / 1_000,
                event_id=REMEMBERED + digest,
                turn_id=turn_id,
                index=len(turns),
                metadata={**metadata, **said},
            )
        )
    _require_storable(turns)
    return turns[0], turns[1]


def entry_of(turns: Sequence[Turn]) -> Entry:
    """Tell the entry of the two turns, as it will be told from the ledger."""
    rows = [
        SessionTurn(0, t.turn_id, t.role, t.speaker, t.content, t.timestamp_ms, t.index, t.metadata) for t in turns
    ]
    (exchange,) = exchanges.tell(turns[0].session_id, rows, exchanges.Asking()).exchanges
    return exchange.entry


def _said(report: Report) -> dict[str, Any]:
    if not isinstance(report.n_errors, int) or isinstance(report.n_errors, bool) or report.n_errors < 0:
        raise ValueError(f"n_errors: is {report.n_errors!r}; give the number of calls that failed")
    if report.outcome not in [*Outcome]:
        raise ValueError(f"outcome: is {report.outcome!r}; use one of {', '.join(Outcome)}")
    if not isinstance(report.pinned, bool):
        raise ValueError(f"pinned: is {report.pinned!r}; give True or False")  # noqa: TRY004 - one error for all
    said: dict[str, Any] = {
        "key_results": _texts("key_results", report.key_results),
        "tools": _texts("tools", report.tools),
        "errors": report.n_errors,
        "outcome": "" if report.outcome == Outcome.UNKNOWN else str(report.outcome),
        "refs": _texts("refs", report.refs),
        "pinned": report.pinned,
    }
    return {name: value for name, value in said.items() if value}


def _texts(name: str, values: object) -> list[str]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ValueError(f"{name}: is no list of texts; give a list, even of one")  # noqa: TRY004 - one error for all
    for value in values:
        _require_text(name, value)
    return [str(value) for value in values]


def _entry_id(given: str | None) -> str:
    """Give the id of the exchange; one that is made is later in order than those before it.

    Raises:
        ValueError: it is no text, blank, too long, or such as a conclusion's turn has.
    """
    if given is None:
        return f"{time.time_ns():016x}-{uuid.uuid4().hex[:16]}"
    _require_text("entry_id", given)
    if len(given) > MAX_ENTRY_ID_CHARS:
        raise ValueError(f"entry_id: has {len(given)} characters; at most {MAX_ENTRY_ID_CHARS}")
    entry_id = given.strip()
    if entry_id.endswith(_CONCLUSION):
        raise ValueError(f"entry_id: ends in {_CONCLUSION!r}, as only the turn of a conclusion does; use another")
    return entry_id


def _require_text(name: str, value: object, *, may_be_blank: bool = False) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name}: is {type(value).__name__}; give a text")  # noqa: TRY004 - one error for all
    if not value.strip() and not may_be_blank:
        raise ValueError(f"{name}: is blank")
    reject_unstorable(value, name)
    reject_long_content(value, name)


def _require_storable(turns: Sequence[Turn]) -> None:
    for turn, name in zip(turns, ("objective", "conclusion"), strict=True):
        try:
            contract.encode(turn)
        except PoisonError as error:
            field = {"content": name, "metadata": "key_results, tools and refs"}.get(error.field, error.field)
            raise PoisonError(error.reason, field=field) from error
