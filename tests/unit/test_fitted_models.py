"""A model that was fitted counts wherever somebody asks what answers: in `search` and `context`, too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pipeline.records import Scope
from pipeline.settings import Settings
from pipeline.shards import Shards
from retrieval import Memory, open_memory
from retrieval.fused.model import Calibration, Model, Models
from tests.fakes import FakeTokenEmbedder
from tests.ledgers import remember, summarise, turn
from workers.fused_fit import write_coefficients

SCOPE = Scope("user", "u1")
CALIBRATION = Calibration(intercept=0, best=0, behind=1, stranger=0, threshold=0)
ASKS, TELLS = "Is the boat in lisbon?", "The boat is in lisbon."
QUERY = "boat in lisbon"


@pytest.fixture
def shards(data_dir: Path) -> Shards:
    """One session asks, the other tells; and one holds both, as two exchanges, and three that are kept anyway."""
    shards, embedder = Shards(data_dir), FakeTokenEmbedder()
    said = [("asking", ASKS, 0), ("telling", TELLS, 0), ("both", ASKS, 0), ("both", TELLS, 9000)]
    said += [("both", f"whales {i}", 9000 * i) for i in (2, 3, 4)]
    turns = [
        turn(SCOPE, f"{session}{i}", text, session=session, at=1.6e9 + at, index=i)
        for i, (session, text, at) in enumerate(said)
    ]
    remember(shards, SCOPE, turns, embedder)
    for session in ("asking", "telling"):
        summarise(shards, SCOPE, session, QUERY if session == "asking" else "whales", embedder)
    return shards


def order(memory: Memory) -> list[str]:
    return [hit.session_id for hit in memory.search(QUERY, SCOPE, exclude="both")]


def likelier(memory: Memory) -> str:
    """Of the session's first two exchanges, the one that scores more."""
    trace = memory.context("both", SCOPE, QUERY, "importance").trace
    score = {decision.entry_ids[0]: decision.score for decision in trace}
    return ASKS if score["both2"] > score["both3"] else TELLS


@pytest.mark.parametrize(
    ("weight", "first", "then", "text"), [(9, "asking", "telling", ASKS), (-9, "telling", "asking", TELLS)]
)
def test_a_fitted_file_decides_in_search_and_context(
    shards: Shards, tmp_path: Path, weight: float, first: str, then: str, text: str
) -> None:
    """Else what was fitted to one's own data would count in `retrieve` alone."""
    path = tmp_path / "fitted.toml"
    write_coefficients(path, Model({"asks": weight}, CALIBRATION), how="x")
    settings = Settings(data_dir=shards.data_dir, retrieval={"coefficients": path})
    with closing(open_memory(settings=settings, embedder=FakeTokenEmbedder())) as memory:
        assert order(memory) == [first, then]
        assert likelier(memory) == text


@pytest.mark.parametrize("weight", [9, -9])
def test_a_model_that_reads_summaries_is_given_them(shards: Shards, weight: float) -> None:
    """It was fitted with them; without, each session would count as one that has none."""
    model = Model({"summary": weight}, CALIBRATION)
    embedder = FakeTokenEmbedder()
    with closing(open_memory(shards.data_dir, embedder=embedder, models=Models(model, model))) as memory:
        assert order(memory) == (["asking", "telling"] if weight > 0 else ["telling", "asking"])
        assert memory.context("both", SCOPE, QUERY).block
