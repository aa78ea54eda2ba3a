"""A scope filled with many traces in a few seconds, as the pipeline would leave it; not a benchmark itself.

Vectors lie around embeddings of real sentences: a session has a topic, each of its turns strays from it. So a query's
neighbours are as unevenly near as they are in a chat, which numbers drawn at random are not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from pipeline_run import sentences

from pipeline.embed import EmbeddedQuestion, TokenEmbedder
from pipeline.embed.pooling import normalise
from pipeline.ledger import sessions
from pipeline.ledger.reads import Vectors
from pipeline.records import Scope, Turn
from pipeline.settings import IndexSettings
from pipeline.shards import Shards
from tests import ledgers

SCOPE = Scope("user", "bench")
FIRST_S = 1_700_000_000
TURNS_PER_SESSION = 20
_SECONDS_PER_TURN = 60
_BLOCK_TURNS = 10_000

QUESTIONS = (
    "Where did we meet?",
    "What is my dog called?",
    "When is the dentist appointment?",
    "Which book did she recommend last spring?",
    "How much did the bicycle cost after the discount?",
    "Who offered to water the plants while we were travelling?",
    "Did he ever say why he left the orchestra?",
    "What does Maria cook when her parents come to visit?",
    "Which train did I take to the festival, and who came along?",
    "What was the name of the museum with the garden on its roof?",
    "Has anybody mentioned a good place for breakfast near the station?",
    "Remind me what the landlord promised about the heating before the winter began.",
    "I remember someone telling me about a course on pottery; who was it and when did it start?",
    "Before we book anything: what did the children say they wanted to do during the summer holiday by the lake?",
    "She told me about two job offers. What was the difference between them, and which one did she take in the end?",
    (
        "We talked about moving to another town several times: what spoke for it, what spoke against it, and did "
        "we agree on a date by which we wanted to decide?"
    ),
)


class _InOrder:
    """Stands in for an embedder while a ledger is filled: hands out prepared vectors, whatever the texts.

    Token vectors are those of some sentences, over and over.
    """

    def __init__(self, model_key: str, vectors: Vectors, tokens: Sequence[np.ndarray]) -> None:
        self.model_key = model_key
        self.dimension = vectors.shape[1]
        self.token_dimension = tokens[0].shape[1]
        self._vectors = vectors
        self._tokens = itertools.cycle(tokens)

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors, self._vectors = self._vectors[: len(texts)], self._vectors[len(texts) :]
        return vectors

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[Vectors, list[np.ndarray]]:
        return self.embed(texts), list(itertools.islice(self._tokens, len(texts)))

    def embed_question(self, text: str) -> EmbeddedQuestion:
        raise NotImplementedError(text)


def fill(data_dir: Path, n_traces: int, embedder: TokenEmbedder, *, n_tail: int = 400) -> None:
    """Remember so many turns, one trace each, with a summary for every session and a snapshot of all but the tail."""
    shards, turns = Shards(data_dir), _turns(n_traces)
    real, tokens = embedder.embed_with_tokens([*QUESTIONS, *sentences(240, seed=7)])
    vectors = _wandering(real, n_traces)
    in_order = _InOrder(embedder.model_key, vectors, tokens)
    n_known = max(n_traces - n_tail, 0)
    for start in range(0, n_known, _BLOCK_TURNS):
        ledgers.remember(shards, SCOPE, turns[start : min(start + _BLOCK_TURNS, n_known)], in_order)
    if n_known:
        ledgers.publish_snapshot(shards, SCOPE, in_order, min_recall=IndexSettings().min_recall)
    ledgers.remember(shards, SCOPE, turns[n_known:], in_order)
    _summarise(shards, turns[::TURNS_PER_SESSION], vectors, embedder.model_key)


def time_of(number: int) -> float:
    """Epoch seconds at which a turn was said."""
    return float(FIRST_S + number * _SECONDS_PER_TURN)


def _turns(n: int) -> list[Turn]:
    return [
        Turn(
            scope=SCOPE,
            session_id=f"s{number // TURNS_PER_SESSION}",
            role="user" if number % 2 else "assistant",
            content=text,
            timestamp=time_of(number),
            event_id=f"e{number}",
        )
        for number, text in enumerate(sentences(n))
    ]


def _wandering(real: Vectors, n: int) -> Vectors:
    """Make (n, d) float32, rows L2-normalised: the session's topic, something else, and noise of length 0.4."""
    chance = np.random.default_rng(11)
    topics = np.repeat(real[chance.integers(len(real), size=n // TURNS_PER_SESSION + 1)], TURNS_PER_SESSION, axis=0)
    strayed = 0.7 * topics[:n] + 0.4 * real[chance.integers(len(real), size=n)]
    strayed += 0.4 / math.sqrt(real.shape[1]) * chance.standard_normal(strayed.shape, dtype=np.float32)
    return np.asarray(normalise(strayed), np.float32)


def _summarise(shards: Shards, first_turns: Sequence[Turn], vectors: Vectors, model_key: str) -> None:
    """Give every session a summary that lies in the middle of its turns."""
    centres = normalise(np.add.reduceat(vectors, np.arange(0, len(vectors), TURNS_PER_SESSION), axis=0))
    with closing(ledgers.open_ledger(shards, SCOPE)) as ledger:
        for turn, centre in zip(first_turns, centres, strict=True):
            summary = sessions.NewSummary(turn.session_id, turn.content, "digest", "model", centre)
            sessions.put_summary(ledger, summary, now_ms=ledgers.NOW_MS, model_key=model_key)
