"""Run by test_cross_encoder in a process of its own: makes tiny cross-encoders, and tells what a reranker does."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from pipeline.errors import TurnstreamError
from pipeline.settings import Settings
from retrieval import open_memory
from retrieval.cross_encoder import CrossEncoderReranker
from tests.fakes import FakeTokenEmbedder
from tests.ledgers import NOW_MS

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *("the", "oven", "is", "broken", "baker", "comes", "on", "monday", "call", "about", "who"),
]
QUERY = "who is the baker"


def make_model(folder: Path, *, n_labels: int = 1) -> Path:
    """Save a cross-encoder of two small layers."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=n_labels, initializer_range=1.0,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def by_transformers(folder: Path, texts: list[str]) -> list[float]:
    """Give the relevance without sentence-transformers, text by text."""
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    with torch.inference_mode():
        return [
            float(torch.sigmoid(model(**tokenizer(QUERY, text, return_tensors="pt")).logits)[0, 0]) for text in texts
        ]


def refusal(model: str) -> list[str]:
    """Tell what is raised."""
    try:
        CrossEncoderReranker(model)
    except TurnstreamError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def main(folder: Path) -> None:
    """Print one line of JSON."""
    model = make_model(folder / "model")
    texts = [" ".join(WORDS[5 + i % 11 : 7 + (i * 7) % 11] + WORDS[5 : 6 + i // 2]) for i in range(20)]
    reranker = CrossEncoderReranker(str(model))
    settings = Settings(data_dir=folder / "data", retrieval={"reranker": str(model)})
    with closing(open_memory(settings=settings, embedder=FakeTokenEmbedder(), clock=lambda: NOW_MS)) as memory:
        hits = memory.retrieve(QUERY, "user/u1").hits
    (folder / "empty").mkdir()
    damaged = make_model(folder / "damaged")
    (damaged / "model.safetensors").write_bytes(b"nothing of the kind")
    told: dict[str, Any] = {
        "relevance": list(reranker.rerank(QUERY, texts)),
        "by_transformers": by_transformers(model, texts),
        "of_nothing": list(reranker.rerank(QUERY, [])),
        "hits": [(hit.score, dict(hit.score_parts)) for hit in hits],
        "refused": {
            "no folder": refusal(str(folder / "nowhere")),
            "no such name": refusal("somebody/some-model"),
            "empty folder": refusal(str(folder / "empty")),
            "damaged weights": refusal(str(damaged)),
            "two labels": refusal(str(make_model(folder / "two", n_labels=2))),
        },
    }
    print(json.dumps(told))


main(Path(sys.argv[1]))
