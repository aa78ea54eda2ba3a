"""A cross-encoder as reranker: a tiny one, made here with weights by chance, in a process of its own (torch)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError
from pipeline.records import Scope
from pipeline.settings import RetrievalSettings
from pipeline.shards import Shards
from tests.fakes import FakeTokenEmbedder
from tests.ledgers import remember, turn

SCOPE = Scope("user", "u1")
TEXTS = ("the oven is broken", "the baker comes on monday", "call the baker about the oven")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything a process with torch found out."""
    folder = tmp_path_factory.mktemp("reranker")
    remember(
        Shards(folder / "data"),
        SCOPE,
        [turn(SCOPE, f"t{i}", text, session="s", at=1.6e9 + i, index=i) for i, text in enumerate(TEXTS)],
        FakeTokenEmbedder(),
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.reranking", str(folder)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_relevance_is_the_models_own(told: dict[str, Any]) -> None:
    """In the order of the texts, over more than one batch; between 0 and 1 whatever the model's own activation."""
    assert len(told["by_transformers"]) > 16
    assert max(told["by_transformers"]) > 2 * min(told["by_transformers"]), "texts that are all alike show nothing"
    assert told["relevance"] == pytest.approx(told["by_transformers"], abs=1e-5)
    assert all(0 < value < 1 for value in told["relevance"])
    assert told["of_nothing"] == []


def test_a_memory_that_names_one_blends_it_in(told: dict[str, Any]) -> None:
    """Seven parts of what ranking found, three of the relevance, and sorted by that."""
    hits = told["hits"]
    assert len(hits) == len(TEXTS)
    for score, parts in hits:
        assert score == pytest.approx(0.7 * parts["fused"] + 0.3 * parts["relevance"])
        assert parts["relevance"] > 0
    assert [score for score, _ in hits] == sorted((score for score, _ in hits), reverse=True)


@pytest.mark.parametrize("which", ["no folder", "no such name", "empty folder", "damaged weights", "two labels"])
def test_a_model_that_cannot_be_used_is_refused_by_name(told: dict[str, Any], which: str) -> None:
    """At the start, not at the first question; and nothing is looked for on the network."""
    kind, message = told["refused"][which]
    assert kind == ConfigError.__name__
    assert "TURNSTREAM_RETRIEVAL__RERANKER" in message


def test_nobody_loads_torch_who_names_none() -> None:
    """A reader starts in half a second."""
    assert RetrievalSettings().reranker is None
