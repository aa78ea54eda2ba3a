"""The model reads its coefficients, makes probabilities of scores, and can be fitted again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError
from retrieval.fused.model import BESIDE, Calibration, Model, bundled_models, load_model
from retrieval.fused.ranking import Coverage, rank
from tests.questions import passages, question
from workers.fused_fit import Example, calibrate, fit_weights, scores_without_own_scope, write_coefficients

PLAIN = Calibration(intercept=-1, best=1, behind=2, stranger=-3, threshold=0.2)


def examples(n: int, rng: np.random.Generator) -> list[Example]:
    """Make questions of four scopes whose evidence has a greater first feature; the second is chance."""
    made = []
    for number in range(n):
        columns = rng.normal(size=(12, 2)).astype(np.float32)
        is_evidence = np.zeros(12, np.bool_)
        if number % 4:  # every fourth cannot be answered
            is_evidence[3] = True
            columns[3, 0] += 6
        made.append(Example(f"s{number % 5}", columns, is_evidence, is_foreign=not number % 4))
    return made


@pytest.mark.parametrize("beside", BESIDE)
def test_the_bundled_coefficients_are_read(beside: str) -> None:
    """They come with the package, and a question mark speaks against a hit."""
    models = bundled_models(beside)
    for model in models:
        assert model.weights["asks"] < 0 < model.weights["speaker"]
        assert 0 < model.calibration.threshold < 0.5
    assert any("maxsim" in name for name in models.with_tokens.features)
    assert not any("maxsim" in name for name in models.without_tokens.features)


def test_a_probability_is_the_logistic_of_a_sum() -> None:
    """The best's own score, how far the others are behind, and whether a name is unknown; not who is named."""
    model = Model({"speaker": 2.0, "dense": 1.0}, PLAIN)
    parts = model.parts(np.float32([[1, 0.5], [0, 1.5], [0.5, 0]]))
    assert parts.tolist() == [[2, 0.5], [0, 1.5], [1, 0]]
    assert model.probability(parts, names_a_stranger=False) == pytest.approx(
        [1 / (1 + math.exp(-x)) for x in (-1 + 0.5, -1 + 0.5 - 2, -1 + 0.5 - 3)]
    )
    assert model.probability(parts, names_a_stranger=True)[0] == pytest.approx(1 / (1 + math.exp(3.5)))
    assert model.probability(parts[:0], names_a_stranger=False).shape == (0,)


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        "format = 2",
        "format = 1\n[features.moon]\nweight = 1.0\n[calibration]\n",
        "format = 1\n[features.day]\nweight = 1.0\n[calibration]\nintercept = 0.0",
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """With its name: a wrong weight would rank silently otherwise."""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        load_model(tmp_path / "mine.toml")


WHOLE = """format = 1
[features.day]
weight = 1.0
[calibration]
intercept = 0
best = 1.0
behind = 1.0
stranger = -1.0
threshold = 0.1
"""


@pytest.mark.parametrize(
    ("written", "instead", "told"),
    [
        ("weight = 1.0", "weight = 1e300", r"features\.day\.weight: .* 1000000"),
        ("weight = 1.0", f"weight = 1{'0' * 400}", r"features\.day\.weight: "),
        ("weight = 1.0", "weight = true", r"features\.day\.weight: "),
        ("weight = 1.0", 'weight = "1.0"', r"features\.day\.weight: "),
        ("[features.day]", "[features.moon]", r"features\.moon: there is no such feature"),
        ("format = 1", "format = true", r"format: "),
        ("best = 1.0", "best = -1e300", r"calibration\.best: .* -1000000"),
        ("behind = 1.0", "behind = -0.1", r"calibration\.behind: .* 0;"),
        ("threshold = 0.1", "threshold = 1.1", r"calibration\.threshold: .* 1;"),
        ("threshold = 0.1", "threshold = -0.1", r"calibration\.threshold: .* 0;"),
        ("threshold = 0.1", "threshold = 0.1\nbeyond = 1.0", r"calibration\.beyond: "),
        ("format = 1", "\ufeffformat = 1", "byte order mark"),
    ],
)
def test_a_number_that_no_model_can_use_is_refused(tmp_path: Path, written: str, instead: str, told: str) -> None:
    """With its key and range: it would make NaN of scores, or let them rise while the rank falls."""
    file = tmp_path / "mine.toml"
    file.write_text(WHOLE, encoding="utf-8")
    assert load_model(file).weights == {"day": 1}
    file.write_text(WHOLE.replace(written, instead), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"mine\.toml .*{told}"):
        load_model(file)


def test_the_greatest_numbers_still_give_probabilities() -> None:
    """Any file that is read can be ranked by: no overflow, no NaN."""
    model = Model({"day": 1e6}, Calibration(intercept=-1e6, best=1e6, behind=1e6, stranger=0, threshold=0))
    parts = model.parts(np.float32([[1], [-1], [0]]))
    assert model.probability(parts, names_a_stranger=False) == pytest.approx([1, 0, 0])


def test_a_fit_never_makes_the_worse_the_more_probable() -> None:
    """Evidence that is always ranked last would; such a file could not be read again."""
    columns = -np.arange(10, dtype=np.float32).reshape(-1, 1)
    last = [Example(f"s{i}", columns, np.arange(10) == 9) for i in range(20)]
    assert calibrate(last, [example.columns for example in last], ["day"]).behind == 0


def test_fitting_finds_what_tells_evidence() -> None:
    """Weight on the feature that does, none on chance, and never one of the wrong sign."""
    weights = fit_weights(examples(120, np.random.default_rng(3)), ["day", "asks"])
    assert weights["day"] > 1
    assert -0.4 < weights["asks"] <= 0


def test_fitting_without_evidence_is_refused() -> None:
    """There would be nothing to learn from."""
    with pytest.raises(ConfigError, match="label some turns"):
        fit_weights([Example("s", np.zeros((2, 1), np.float32), np.zeros(2, np.bool_))], ["day"])


def test_a_fitted_model_is_written_and_read_again(tmp_path: Path) -> None:
    """Its probabilities are about the share of evidence, and unanswerable questions fall below the threshold."""
    made = examples(200, np.random.default_rng(5))
    features = ["day", "month"]
    parts = scores_without_own_scope(made, features)
    model = Model(fit_weights(made, features), calibrate(made, parts, features, refused=0.9))
    write_coefficients(tmp_path / "mine.toml", model, how="On made-up\nquestions.")
    read = load_model(tmp_path / "mine.toml")
    assert read.weights == pytest.approx(model.weights, abs=1e-4)
    assert (tmp_path / "mine.toml").read_text().startswith("# On made-up\n# questions.\n")
    best = np.array([model.probability(added, names_a_stranger=False).max() for added in parts])
    answerable = np.array([example.is_evidence.any() for example in made])
    assert (best[~answerable] < model.calibration.threshold).mean() == pytest.approx(0.9, abs=0.03)
    assert (best[answerable] >= model.calibration.threshold).mean() > 0.9
    assert best.mean() == pytest.approx(0.75, abs=0.1)  # three of four have evidence, nearly always found first


def test_a_question_whose_evidence_was_not_found_is_not_doubted() -> None:
    """It has an answer: a threshold above its score would refuse its like."""
    made = examples(200, np.random.default_rng(5))
    lost = [replace(example, is_foreign=False) for example in made]
    assert calibrate(lost, scores_without_own_scope(lost, ["day", "month"]), ["day", "month"]).threshold == 0


def test_ranking_gives_the_best_first_with_the_parts_of_its_score() -> None:
    """One call from what is at hand to hits; rows are those of the passages, neighbours included."""
    found = passages(
        "the cat sat by the door",
        "some other thing was said",
        "the cat sat by the door",
        vectors=np.float32([[0.5, 0], [1, 0], [0.5, 0]]),
        session=np.array([1, 1, 2]),
        candidates=np.array([0, 1, 2]),
    )
    model = Model({"dense": 2.0, "asks": -1.0}, PLAIN)
    ranking = rank(question("cat"), found, model, mean_words=5, limit=3)
    assert ranking.rows.tolist() == [1, 0, 2]  # half-known vectors are not the same: their cosine is 0.25
    assert ranking.scores.tolist() == [2, 1, 1]
    assert ranking.parts.tolist() == [[2, 0], [1, 0], [1, 0]]
    assert ranking.probabilities[0] == pytest.approx(1 / (1 + math.exp(-1)))
    assert ranking.answer_is_likely
    covered = rank(question("cat"), found, model, mean_words=5, limit=2, coverage=Coverage(2, 1))
    assert covered.rows.tolist() == [1, 2]


def test_nothing_at_hand_is_no_hit() -> None:
    """An empty scope is not an error."""
    ranking = rank(question("cat"), passages(), bundled_models().with_tokens, mean_words=0, limit=5)
    assert ranking.rows.tolist() == []
    assert not ranking.answer_is_likely
