"""Weights for somebody's own questions: what is learned, what is left out to measure it, and the file."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.records import Scope
from pipeline.settings import Settings
from pipeline.shards import Shards
from retrieval import open_memory
from retrieval.fused.model import BESIDE, Calibration, Model, Models, bundled_models, load_model, models_of
from tests.commands import CommandLine
from tests.evaluations import an_evaluation
from tests.fakes import FakeEmbedder, FakeTokenEmbedder
from tests.ledgers import remember, summarise, turn
from workers.cli.fit import change, doubts, how
from workers.evaluate import labelled, refitting
from workers.evaluate.asked import AskedQuestion
from workers.evaluate.datasets import Dataset
from workers.evaluate.run import ask_elsewhere
from workers.fused_fit import write_coefficients

THINGS = ("oven", "train", "report", "garden", "boat", "piano")
NEVER_SURE = Calibration(intercept=0, best=0, behind=0, stranger=0, threshold=0)
SCOPES = [Scope("user", name) for name in ("ana", "ben", "cem")]


def question(scope: Scope, number: int) -> AskedQuestion:
    thing = THINGS[number]
    return AskedQuestion(
        id=f"{scope.id}#{number}",
        scope=scope,
        text=f"what happened to the {thing} of {scope.id}",
        category="plain",
        turns=frozenset({f"{thing}1"}),
        sessions=frozenset({thing}),
    )


QUESTIONS = [question(scope, number) for scope in SCOPES for number in range(len(THINGS))]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three scopes of six sessions; the second turn of each has the answer."""
    fill(tmp_path, FakeTokenEmbedder())
    return tmp_path


def fill(data_dir: Path, embedder: FakeEmbedder) -> None:
    for scope in SCOPES:
        for number, thing in enumerate(THINGS):
            texts = ["hello again my friend", f"the {thing} of {scope.id} was sold on monday", "i am glad about it"]
            turns = [
                turn(scope, f"{thing}{i}", text, session=thing, at=1.6e9 + 1000 * number + i, index=i)
                for i, text in enumerate(texts)
            ]
            remember(Shards(data_dir), scope, turns, embedder)
            summarise(Shards(data_dir), scope, thing, f"about the {thing}", embedder)


def dataset(questions: list[AskedQuestion]) -> Dataset:
    return Dataset(Path("mine.json"), "locomo", lambda _path: iter(()), questions)


@pytest.fixture
def own_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers were written by a fake one; nothing else loads a model here."""
    monkeypatch.setattr("retrieval.memory._load_embedder", lambda _settings, _folder: FakeTokenEmbedder())


# --- what is learned from


def test_whole_scopes_are_left_out_and_of_one_scope_fifths() -> None:
    """A question of the same conversation tells what its neighbour's answer looks like."""
    assert labelled.groups(QUESTIONS) == {q.id: q.scope.key for q in QUESTIONS}
    one = labelled.groups(QUESTIONS[:6])
    assert [one[q.id] for q in QUESTIONS[:6]] == ["0", "1", "2", "3", "4", "0"]
    many = [question(Scope("user", f"u{number:02}"), 0) for number in range(25)]
    assert sorted(set(labelled.groups(many).values())) == [str(number) for number in range(10)]


def test_questions_are_asked_at_home_and_elsewhere(data_dir: Path) -> None:
    """At home their evidence is among the candidates; elsewhere nothing is, and from that doubt is learned."""
    settings = Settings(data_dir=data_dir)
    with closing(open_memory(settings=settings, embedder=FakeTokenEmbedder())) as memory:
        found = labelled.examples(memory, QUESTIONS, ["speaker", "maxsim"])
    at_home, elsewhere = found[: len(QUESTIONS)], found[len(QUESTIONS) :]
    assert len(elsewhere) == len(QUESTIONS)
    assert all(example.is_evidence.sum() == 1 and example.columns.shape[1] == 2 for example in at_home)
    assert not any(example.is_evidence.any() for example in elsewhere)
    assert [example.is_foreign for example in found] == [False] * len(QUESTIONS) + [True] * len(QUESTIONS)
    assert [example.scope for example in at_home] == [q.scope.key for q in QUESTIONS]


# --- fitting


@pytest.mark.usefixtures("own_embedder")
def test_what_is_fitted_finds_evidence_in_scopes_it_never_saw(data_dir: Path, tmp_path: Path) -> None:
    """And the file that is written of it can be used by its setting."""
    found = refitting.refit(
        dataset(QUESTIONS), Settings(data_dir=data_dir), on_progress=lambda _what, _done, _total: None
    )
    assert (found.n_questions, found.n_groups, found.left_out.figures["overall"].n) == (18, 3, 18)
    assert found.left_out.figures["overall"].share[1] > 0.9
    assert found.kept > 0.9
    assert found.before.figures["overall"].n == 18
    assert change(found).startswith("weights until now -> fitted, in scopes left out: R@5 ")
    assert [doubt.split(":")[0] for doubt in doubts(found)] == ["only 18 questions to learn from"]
    file = tmp_path / "mine.toml"
    write_coefficients(file, found.model, how=how(found, "window"))
    assert "Fitted by 'turnstream fit' to 18 questions of mine.json" in file.read_text()
    settings = Settings(data_dir=data_dir, retrieval={"coefficients": file})
    with closing(open_memory(settings=settings)) as memory:
        hit = memory.retrieve("what happened to the boat of ana", SCOPES[0]).hits[0]
    assert hit.turn_id == "boat1"
    assert set(hit.score_parts) >= set(found.model.features)


@pytest.mark.parametrize(
    ("n_questions", "before", "after", "doubted"),
    [(100, 0.5, 0.5, []), (99, 0.5, 0.6, ["only 99"]), (500, 0.6, 0.5, ["R@10 fell"])],
)
def test_weights_that_find_less_or_learned_from_few_are_warned_of(
    n_questions: int, before: float, after: float, doubted: list[str]
) -> None:
    """Who fits to twenty questions of his own makes his memory worse, and would not know."""
    calibration = Calibration(intercept=0, best=1, behind=1, stranger=0, threshold=0.1)
    refit = refitting.Refit(
        Model({"dense": 1.0}, calibration),
        an_evaluation(share=after),
        an_evaluation(share=before),
        n_questions,
        5,
        None,
        1.0,
    )
    assert [doubt[: len(start)] for doubt, start in zip(doubts(refit), doubted, strict=True)] == doubted
    assert f"R@10 {100 * before:.1f} -> {100 * after:.1f}" in change(refit)


def test_each_group_is_ranked_by_weights_fitted_without_it(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of questions that were learned from says nothing."""
    learned: list[set[str]] = []
    asked: list[tuple[str, Model]] = []
    ranks = [Model({"dense": float(number)}, NEVER_SURE)
             for number in range(4)]  # fmt: skip

    def fitted(examples, _features):
        learned.append({example.scope for example in examples})
        return ranks[len(learned) - 1]

    def opened(*, settings, embedder=None, models):
        if models.with_tokens in ranks:
            asked.append(("", models.with_tokens))
        return open_memory(settings=settings, embedder=embedder or FakeTokenEmbedder(), models=models)

    monkeypatch.setattr(refitting, "fitted", fitted)
    monkeypatch.setattr(refitting, "open_memory", opened)
    refitting.refit(dataset(QUESTIONS), Settings(data_dir=data_dir), on_progress=lambda _what, _done, _total: None)
    keys = {scope.key for scope in SCOPES}
    assert learned == [keys - {"user/ana"}, keys - {"user/ben"}, keys - {"user/cem"}, keys]
    assert [model for _, model in asked] == ranks[:3]


@pytest.mark.usefixtures("own_embedder")
def test_without_a_second_scope_there_is_nothing_to_doubt(data_dir: Path) -> None:
    """Then nothing is refused."""
    found = refitting.refit(
        dataset(QUESTIONS[:6]), Settings(data_dir=data_dir), on_progress=lambda _what, _done, _total: None
    )
    assert found.refused is None
    assert found.n_groups == 5
    assert found.model.calibration.threshold == 0


@pytest.mark.parametrize(("embedder", "share"), [(FakeTokenEmbedder(), 1), (FakeEmbedder(), 0)])
def test_doubt_is_measured_by_the_model_that_ranks(tmp_path: Path, embedder: FakeEmbedder, share: float) -> None:
    """Where there are no token vectors it is another one, with a threshold of its own."""
    fill(tmp_path, embedder)
    models = Models(*(Model({"dense": 1.0}, replace(NEVER_SURE, threshold=of)) for of in (1, 0)))
    with closing(open_memory(tmp_path, embedder=embedder, models=models)) as memory:
        found = ask_elsewhere(memory, dataset(QUESTIONS))
    assert found is not None
    assert (found.own_doubted, found.foreign_doubted, found.n) == (share, share, 18)


# --- what counts beside a turn, and the file


@pytest.mark.parametrize("beside", BESIDE)
def test_each_way_to_look_beside_a_turn_has_its_features(data_dir: Path, beside: str) -> None:
    """The bare turn alone, its neighbours, or its session's summary; no way looks at what is another's."""
    with_tokens, without = bundled_models(beside)
    names = {*with_tokens.features, *without.features}
    assert any("wide" in name or "session" in name for name in names) is (beside == "window")
    assert any("summary" in name for name in names) is (beside == "summary")
    assert not any("maxsim" in name for name in without.features)
    settings = Settings(data_dir=data_dir, retrieval={"beside": beside})
    with closing(open_memory(settings=settings, embedder=FakeTokenEmbedder())) as memory:
        hit = memory.retrieve("what happened to the boat of ana", SCOPES[0]).hits[0]
    assert hit.turn_id == "boat1"
    assert set(hit.score_parts) == set(with_tokens.features)


def test_a_summary_counts_for_its_own_session_alone(data_dir: Path) -> None:
    """And a session that has none yet is no worse off than by its words."""
    shards, embedder = Shards(data_dir), FakeTokenEmbedder()
    extra = turn(SCOPES[0], "x1", "nobody knows", session="unsummarised", at=1.7e9, index=0)
    remember(shards, SCOPES[0], [extra], embedder)
    settings = Settings(data_dir=data_dir, retrieval={"beside": "summary"})
    with closing(open_memory(settings=settings, embedder=embedder)) as memory:
        found = memory.candidates("about the piano", SCOPES[0])
        assert found is not None
    passages = found.passages
    of_session = {place.turn.session_id: row for row, place in enumerate(found.places)}
    expected = embedder.embed(["about the piano", "about the oven"])
    assert passages.summary_rows[of_session["piano"]] == pytest.approx(expected[0], abs=1e-3)
    assert passages.summary_rows[of_session["oven"]] == pytest.approx(expected[1], abs=1e-3)
    assert not passages.summary_rows[of_session["unsummarised"]].any()


def test_a_file_without_token_features_ranks_everywhere_and_one_with_them_where_there_are_any(tmp_path: Path) -> None:
    """A scope whose model gives no token vectors is ranked by what it has."""
    calibration = Calibration(intercept=0, best=1, behind=1, stranger=0, threshold=0.1)
    write_coefficients(tmp_path / "plain.toml", Model({"dense": 2.0}, calibration), how="x")
    write_coefficients(tmp_path / "tokens.toml", Model({"maxsim": 2.0}, calibration), how="x")
    plain, tokens = (load_model(tmp_path / f"{name}.toml") for name in ("plain", "tokens"))
    assert models_of(tmp_path / "plain.toml") == Models(plain, plain)
    assert models_of(tmp_path / "tokens.toml") == Models(tokens, bundled_models().without_tokens)
    assert models_of(None, "none") is bundled_models("none")


@pytest.mark.parametrize("text", [None, "no toml", "format = 1\n[features]\n[calibration]\n"])
def test_a_file_that_is_none_is_refused_when_memory_is_opened(tmp_path: Path, text: str | None) -> None:
    """Not at the first question, and with the setting that names it."""
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.toml.*TURNSTREAM_RETRIEVAL__COEFFICIENTS"):
        open_memory(settings=Settings(data_dir=tmp_path, retrieval={"coefficients": file}))


def test_the_verb_refuses_what_cannot_be_before_it_starts(turnstream: CommandLine, tmp_path: Path) -> None:
    """Minutes later would be too late."""
    data = tmp_path / "x.json"
    data.write_text("[]")
    given = ("fit", str(data), "--format", "locomo")
    for wrong in (
        (*given, "--output", str(tmp_path / "gone" / "c.toml")),
        (*given, "--output", str(tmp_path / "c.toml"), "--beside", "moon"),
        (*given, "--output", str(tmp_path / "c.toml")),
    ):
        ended = turnstream(*wrong)
        assert ended.code == 2
        assert ended.err.strip()
    assert not (tmp_path / "c.toml").exists()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """Ranking by them would be ranking by chance."""
    calibration = Calibration(intercept=0, best=1, behind=1, stranger=0, threshold=0.1)
    write_coefficients(tmp_path / "mine.toml", Model({"dense": float(np.nan)}, calibration), how="x")
    with pytest.raises(ConfigError, match=r"features\.dense\.weight: .* finite number"):
        load_model(tmp_path / "mine.toml")
