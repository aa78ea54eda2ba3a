"""The exchanges of a session, told from its turns.

An exchange is a run of turns of whoever asks, and all that answers it until the next one who asks. Owns nothing and
reads nothing: the same turns give the same entries, in whatever order they once arrived.

| a turn of | counts as |
|---|---|
| role `system` or `developer` | nothing: it is no part of what was said |
| role `tool` or `function` | a tool call, and an answer without words |
| role `user`, where other roles speak too | asking |
| any other role | answering |

Where all have one role, as when people talk, or nobody is called `user`, the first who speaks asks and the others
answer, each named before their words. What bears one name as ``turnstream.exchange`` in its metadata is one
exchange, whatever stands between: that is how `remember` keeps an objective and its conclusion together.

Why an hour: of somebody whom nobody answers, what was said another time is another objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pipeline.ledger.session_reads import SessionTurn
from retrieval.context.entries import metadata as told
from retrieval.context.entries.entry import Entry, Outcome

_SYSTEM: Final = frozenset({"system", "developer"})
_TOOL: Final = frozenset({"tool", "function"})
_USER: Final = frozenset({"user", "human"})
_ASSISTANT: Final = frozenset({"assistant", "ai", "bot", "model", "agent"})
_ANOTHER_TIME_MS: Final = 3_600_000


class Party(NamedTuple):
    """Somebody who speaks in a session."""

    role: str
    name: str


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks in a session: everybody of role `user`, or one party by name."""

    name: str | None = None

    def is_by(self, turn: SessionTurn) -> bool:
        """Tell whether a turn asks."""
        if self.name is not None:
            return (turn.speaker or turn.role) == self.name and turn.role.lower() not in _TOOL
        return turn.role.lower() in _USER


@dataclass(frozen=True, slots=True)
class Exchange:
    """An entry, and the first and last of the positions that its turns have in their session."""

    entry: Entry
    first: int
    last: int


class Told(NamedTuple):
    """The exchanges of a session, oldest first by their last turns.

    Turns that follow change none whose turns all stand before ``open_at``, unless they are of the same name.
    """

    exchanges: list[Exchange]
    open_at: int


def parties(turns: Iterable[SessionTurn]) -> dict[Party, None]:
    """List who speaks, in the order of their first turns; of a named exchange it is known anyway."""
    return dict.fromkeys(
        Party(role, turn.speaker or turn.role)
        for turn in turns
        if (role := turn.role.lower()) not in _SYSTEM and role not in _TOOL and not told.exchange(turn.metadata)
    )


def who_asks(speaking: Sequence[Party]) -> Asking:
    """Tell who asks among those who speak."""
    roles = {party.role for party in speaking}
    if roles & _USER and not roles <= _USER:
        return Asking()
    names = [party.name for party in speaking]
    if roles <= _USER | _ASSISTANT and len(set(names)) <= 1:
        return Asking()
    return Asking(next((party.name for party in speaking if party.role not in _ASSISTANT), names[0]))


def tell(session_id: str, turns: Sequence[SessionTurn], asking: Asking, *, start: int = 0) -> Told:
    """Tell the exchanges of turns that stand in their order, from a position on."""
    groups = _grouped(turns, asking, start)
    found = []
    for positions in groups:
        entry = _entry(session_id, [turns[at] for at in positions], asking)
        if entry is not None:
            found.append(Exchange(entry, positions[0], positions[-1]))
    found.sort(key=lambda exchange: exchange.last)
    open_at = max((group[0] for group in groups if not told.exchange(turns[group[0]].metadata)), default=len(turns))
    is_apart = all(group[0] >= open_at or group[-1] < open_at for group in groups)
    return Told(found, open_at if is_apart else start)


def _grouped(turns: Sequence[SessionTurn], asking: Asking, start: int) -> list[list[int]]:
    groups: list[list[int]] = []
    named: dict[str, list[int]] = {}
    run: list[int] = []
    is_answered = False
    for at in range(start, len(turns)):
        turn = turns[at]
        if turn.role.lower() in _SYSTEM:
            continue
        if name := told.exchange(turn.metadata):
            if name not in named:
                groups.append(named.setdefault(name, []))
            named[name].append(at)
            continue
        asks = asking.is_by(turn)
        pause_ms = turn.timestamp_ms - turns[run[-1]].timestamp_ms if run else 0
        if not run or (asks and (is_answered or pause_ms > _ANOTHER_TIME_MS)):
            groups.append(run := [])
            is_answered = False
        run.append(at)
        is_answered |= not asks
    return groups


def _entry(session_id: str, turns: Sequence[SessionTurn], asking: Asking) -> Entry | None:
    """Make an entry of an exchange's turns; None when nothing is said in them."""
    spoken = [turn for turn in turns if turn.role.lower() not in _TOOL]
    of_exchange = bool(told.exchange(turns[0].metadata))
    by = Asking() if of_exchange else asking
    objective = _text((turn for turn in spoken if by.is_by(turn)), names=by.name is not None)
    conclusion = _text((turn for turn in spoken if not by.is_by(turn)), names=by.name is not None)
    if not objective and not conclusion:
        return None
    called = [told.tool_name(turn.metadata, turn.speaker) for turn in turns if turn.role.lower() in _TOOL]
    listed = [name for turn in spoken for name in told.tools(turn.metadata)]
    metadata = [turn.metadata for turn in turns if turn.metadata]
    return Entry(
        entry_id=turns[0].turn_id,
        session_id=session_id,
        time_ms=max(turn.timestamp_ms for turn in turns),
        objective=objective,
        conclusion=conclusion,
        key_results=tuple(dict.fromkeys(text for each in metadata for text in told.key_results(each))),
        tools=(*listed, *called[len(listed) :]),  # a tool's turn answers a call that the turn before it may list
        n_errors=sum(map(told.n_errors, metadata)),
        outcome=next((said for each in reversed(metadata) if (said := told.outcome(each))), Outcome.UNKNOWN),
        recalls=max(map(told.recalls, metadata), default=0),
        refs=tuple(dict.fromkeys(ref for each in metadata for ref in told.refs(each))),
        is_pinned=any(map(told.is_pinned, metadata)),
        turn_offsets=tuple(turn.turn_offset for turn in turns),
    )


def _text(turns: Iterable[SessionTurn], *, names: bool) -> str:
    return "\n".join(
        f"{turn.speaker}: {content}" if names and turn.speaker else content
        for turn in turns
        if (content := turn.content.strip())
    )
