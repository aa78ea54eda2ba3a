"""The gate: a summary may leave out, reword and reorder, but not bring numbers, dates, names of things or quotes."""

from __future__ import annotations

import pytest

from pipeline.condense import summaries
from pipeline.condense.faithful import is_faithful, unfounded

SOURCE = """\
user: Deploy build 1,200 to /srv/app on March 5, 2026, see https://ex.com/a?b=1. 打折到3月8日
assistant: Run `make deploy`; max_size is 12.5 and retryCount is set in app.config.toml.
assistant: Twelve people agreed at 10:30.
assistant: She said "never again" and wrote to ann@ex.com; C:\\logs\\run.txt has it. Use src/main.py."""


@pytest.mark.parametrize(
    "summary",
    [
        "Build 1200 went to /srv/app on 5 March.",
        "On 2026-03-05 a build was deployed; twelve people agreed, 12 in all.",
        "See https://ex.com/a?b=1.",
        "`make deploy` was run, max_size is 12.5, retryCount in app.config.toml.",
        "She said “never again”.",
        "ann@ex.com has C:\\logs\\run.txt and src/main.py.",
        "Until 8 March.",
        "It was agreed at 10:30.",
        "Nothing in particular happened.",
        "",
    ],
)
def test_what_stands_in_the_source_may_be_said(summary: str) -> None:
    """In other words, another order and another notation."""
    assert unfounded(summary, SOURCE) == []


@pytest.mark.parametrize(
    ("summary", "kind"),
    [
        ("Build 1201 was deployed.", "number"),
        ("Thirteen people agreed.", "number"),
        ("max_size is 12.6.", "number"),
        ("It went out on March 6.", "date"),
        ("It went out on 5 March 2025.", "date"),
        ("It went out on 2026-04-05.", "date"),
        ("See https://ex.com/a.", "URL"),
        ("See https://ex.com/a?b=12.", "URL"),
        ("It lies in /srv/app2.", "path"),
        ("It lies in /srv/ap.", "path"),
        ("Use src/other.py.", "path"),
        ("min_size was set.", "code"),
        ("`make clean` was run.", "code"),
        ("maxCount was set.", "code"),
        ('She said "always again".', "quotation"),
        ("bob@ex.com was told.", "address"),
    ],
)
def test_what_was_invented_is_named(summary: str, kind: str) -> None:
    """Each kind of thing that a model which writes well gets wrong."""
    assert [found.split()[0] for found in unfounded(summary, SOURCE)][:1] == [kind]
    assert not is_faithful(summary, SOURCE)


def test_an_invented_number_in_a_good_summary_is_rejected_whole() -> None:
    """Nobody can tell which of its sentences is wrong."""
    text = "user: How many came? We planned for forty.\n" * 12 + "assistant: Forty came, and all of them were fed."
    assert summaries.is_acceptable("Forty came and were fed.", text)
    assert not summaries.is_acceptable("41 came and were fed.", text)
    assert not summaries.is_acceptable("", text)
    assert not summaries.is_acceptable("All of them were fed. " * 40, text)
