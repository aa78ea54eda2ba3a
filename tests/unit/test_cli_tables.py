"""What verbs print for people to read: whole at any width, and told apart without colours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.commands import CommandLine
from tests.evaluations import an_evaluation
from workers.cli import evaluate
from workers.evaluate.context_run import Comparison, Row


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_no_figure_of_a_table_is_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """A pipe has 80 columns, and the table 100: what was cut were the figures that it is about."""
    monkeypatch.setenv("COLUMNS", columns)
    evaluate.print_figures(an_evaluation())
    out = capsys.readouterr().out
    assert "…" not in out
    for head in ("R@20", "all@10", "MRR", "share@5", "NDCG@10 turns"):
        assert head in out
    assert out.count("single-session-preference") == 2
    assert out.count("12345") == 4
    legends = [line for line in out.splitlines() if ": " in line and "@k" in line]
    assert [line.split(":")[0] for line in legends] == ["R@k", "any@k, all@k"]


def test_a_table_says_which_questions_are_in_its_means(capsys: pytest.CaptureFixture[str]) -> None:
    """And where they are those that the weights were fitted to; of another data set nothing of the kind."""
    found = an_evaluation()
    locomo = replace(found, form="locomo", figures={"all categories": found.figures["overall"], **found.figures})
    evaluate.print_figures(locomo)
    told = capsys.readouterr().out
    assert "overall: all questions but adversarial" in told
    assert "fitted on LoCoMo's conversations 1-5" in told
    evaluate.print_figures(found)
    told = capsys.readouterr().out
    assert "adversarial" not in told
    assert "fitted" not in told


def test_a_comparison_says_what_its_columns_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told and quoted are words of ours."""
    monkeypatch.setenv("COLUMNS", "30")
    row = Row("hierarchical", 2_048, 0.5, 0.25, 1_900.0, 12.25, 1_234.5, 0, 0)
    evaluate._print_comparison(Comparison("locomo10.json", 1_540, 10, 2_760, (2_048,), [row]))
    out = capsys.readouterr().out
    assert "…" not in out
    assert "1234.5" in out
    assert "\ntold, quoted: share of the evidence" in out


def test_help_says_what_a_shell_is_told(turnstream: CommandLine) -> None:
    """Scripts go by exit codes; each verb begins its line with what it does."""
    told = " ".join(turnstream("--help", COLUMNS="200").out.split())
    assert (
        "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 a server does not answer, 4 damaged data." in told
    )
    assert "dead-letters List, show, replay or drop" in told
    assert " scopes List the scopes there are" in told
