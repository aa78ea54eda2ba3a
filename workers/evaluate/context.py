"""How much of the evidence session memory puts into a prompt, by strategy and by tokens spent.

The task, of the format `locomo`:

- A conversation, all of its sessions one after the other, is ONE session, named `conversation`, of its own scope
  `user/<sample_id>`. Why: a session of a day fits a prompt as it is; what condensation is for is months of one.
- The question is the objective, asked a day after the last turn.
- An evidence turn is kept when the block tells it, by the one rule of `evidence`, the same for every strategy.
- Leaks: each scope holds one more session, `another`, with what a different conversation says, and all scopes have
  the same two session ids. A block that holds a turn of anywhere else has a leak.

Everything goes through the pipeline itself, in a temporary folder that is removed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from pipeline.errors import ConfigError
from pipeline.records import Scope, Turn
from pipeline.settings import Settings, load_settings
from retrieval import open_memory
from workers.demo import running
from workers.evaluate import context_run, datasets, locomo
from workers.evaluate.context_run import ANOTHER, COMPARED, OWN, Comparison, Conversation
from workers.evaluate.ingest import ingest, own_environment

BUDGETS: Final = (256, 512, 1_024, 2_048)
_DAY_MS: Final = 86_400_000
Told = Callable[[str, int, int], None]


def compare(
    path: Path,
    *,
    form: str,
    limit: int | None = None,
    settings: Settings | None = None,
    budgets: Sequence[int] = BUDGETS,
    methods: Sequence[str] = COMPARED,
    on_progress: Told = lambda _what, _done, _total: None,
) -> Comparison:
    """Compare all strategies, no memory, the full history and BM25 alone.

    Args:
        path: the data set.
        form: its format; `locomo` alone has conversations that go on.
        limit: ask so many questions of each conversation at most.
        settings: those of this process; read from the environment when None. Only what they say of the embedding
            counts.
        budgets: tokens of a block.
        methods: what is compared.
        on_progress: told what is done, how much of it, and of how much.

    Raises:
        ConfigError: the data set cannot be used.
        TurnstreamError: the pipeline ended.
    """
    if form != locomo.FORMAT:
        raise ConfigError(f"--context needs conversations that go on over months: --format {locomo.FORMAT}")
    dataset = datasets.load(path, form, limit=limit)
    questions = dataset.counted()
    conversations = _conversations(dataset)
    with running.temporary_folder(keep=False) as data_dir, own_environment(data_dir, settings or load_settings()):
        ingest(
            chain.from_iterable(map(events_of, conversations.values())),
            data_dir,
            on_state=lambda done, total: on_progress("turns searchable", done, total),
        )
        clock = context_run.Clock()
        with closing(open_memory(settings=load_settings(), clock=clock)) as memory:
            on_progress("questions asked", 0, len(questions))
            return context_run.compare_all(
                memory,
                clock,
                conversations,
                questions,
                budgets=budgets,
                methods=methods,
                dataset=path.name,
                on_asked=lambda done, total: on_progress("questions asked", done, total),
            )


def _conversations(dataset: datasets.Dataset) -> dict[Scope, Conversation]:
    turns: dict[Scope, list[Turn]] = {}
    for event in dataset.events():
        if isinstance(event, Turn):
            turns.setdefault(event.scope, []).append(event)
    scopes = list(turns)
    following = dict(zip(scopes, scopes[1:] + scopes[:1], strict=True)) if len(scopes) > 1 else {}
    return {
        scope: Conversation(
            scope=scope,
            turns=said,
            another=turns[following[scope]] if following else (),
            asked_at_ms=said[-1].timestamp_ms + _DAY_MS,
        )
        for scope, said in turns.items()
    }


def events_of(conversation: Conversation) -> Iterator[Turn]:
    """Yield a conversation as one session of its scope, and a different one beside it."""
    for name, said in ((OWN, conversation.turns), (ANOTHER, conversation.another)):
        for number, turn in enumerate(said):
            yield replace(
                turn,
                scope=conversation.scope,
                session_id=name,
                turn_id=f"{name}/{turn.turn_id}",
                event_id=f"{name}/{conversation.scope.id}/{number}",
                index=number,
            )
