"""The summariser: one call per distinct text, long sessions in parts, retries that end."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.errors import ConfigError, PoisonError, SummaryError, SummaryRefusedError
from pipeline.summarise import Completion, Prices, SessionSummarizer, prompt, session_text, split_text, summary_key
from pipeline.summarise.text import clip_text
from tests.fakes import CountingInvoker

TEXT = "Ann: we fly to Lisbon on 3 May 2024.\nBob: the hotel costs 480 euros."


def summarizer(invoker: Any, cache_dir: Path | None = None, **options: Any) -> SessionSummarizer:
    return SessionSummarizer(invoker, "m-1", cache_dir, **{"first_wait_s": 0.0, **options})


def by_words(text: str) -> int:
    return len(text.split())


def test_key_is_the_contract_digest() -> None:
    """Other programs derive the same key: SHA-256 over model, template and stripped text, newline-joined."""
    expected = hashlib.sha256("m-1\nt-1\nhéllo 你好".encode()).hexdigest()
    assert summary_key("  héllo 你好\n", "m-1", "t-1") == expected


def test_key_depends_on_everything_that_changes_the_summary() -> None:
    """A summary of another model, template or length is another summary."""
    keys = {
        summary_key("text", "m-1", "t-1"),
        summary_key("text", "m-2", "t-1"),
        summary_key("text", "m-1", "t-2"),
        summary_key("text", "m-1", "t-1", 64),
        summary_key("other", "m-1", "t-1"),
    }
    assert len(keys) == 5
    assert summary_key("text", "m-1", "t-1", 140) == summary_key("text", "m-1", "t-1")


def test_changed_instructions_need_another_template_version() -> None:
    """Else summaries made under the old instructions would be taken for new ones."""
    digest = hashlib.sha256(prompt.SYSTEM.encode()).hexdigest()[:16]
    assert (prompt.TEMPLATE_VERSION, digest) == ("turnstream-1", "0e37396397675cf4")


@pytest.mark.parametrize("blank", ["", " ", "\n\t\u3000"])
def test_blank_text_costs_no_call(tmp_path, blank) -> None:
    """There is nothing to say about nothing."""
    invoker = CountingInvoker()
    assert summarizer(invoker, tmp_path).summarize("s", blank) == ""
    assert invoker.n_calls == 0
    assert not list(tmp_path.iterdir())


def test_second_time_is_free(tmp_path) -> None:
    """The label and outer blanks are no part of the text; another instance reads the same disk."""
    invoker, costs = CountingInvoker(), []
    first = summarizer(invoker, tmp_path, on_cost=costs.append).complete("s-1", TEXT)
    second = summarizer(invoker, tmp_path, on_cost=costs.append).complete("s-2", f"\n {TEXT} ")
    assert (first.cached, second.cached) == (False, True)
    assert (second.text, second.tokens_in, second.tokens_out) == (first.text, 10, 3)
    assert invoker.n_calls == len(costs) == 1


def test_without_a_folder_nothing_is_kept() -> None:
    """A cache is an option."""
    invoker = CountingInvoker()
    summaries = summarizer(invoker)
    assert summaries.summarize("s", TEXT) == summaries.summarize("s", TEXT)
    assert invoker.n_calls == 2
    assert summaries.stats.writes == 0


def test_two_scopes_share_nothing(tmp_path) -> None:
    """Each scope has its folder: the same text is asked for twice."""
    invoker = CountingInvoker()
    summarizer(invoker, tmp_path / "a").summarize("s", TEXT)
    summarizer(invoker, tmp_path / "b").summarize("s", TEXT)
    assert invoker.n_calls == 2


def test_stats_add_up(tmp_path) -> None:
    """An operator reads hits and dollars from them."""
    summaries = summarizer(CountingInvoker(), tmp_path, prices=Prices(100_000.0, 1_000_000.0))
    for text in (TEXT, TEXT, "another"):
        summaries.summarize("s", text)
    stats = summaries.stats
    assert (stats.hits, stats.misses, stats.writes) == (1, 2, 2)
    assert (stats.tokens_in, stats.tokens_out) == (20, 6)
    assert stats.cost == pytest.approx(2 * (1.0 + 3.0))


def test_length_is_passed_on_and_named_in_the_instructions() -> None:
    """`max_tokens` is honoured by models that read it and by those that obey the field."""
    seen: list[tuple[str, int]] = []

    def invoker(system: str, user: str, /, *, max_tokens: int) -> Completion:
        seen.append((system, max_tokens))
        return Completion(user, 1, 1, "m")

    summarizer(invoker, max_tokens=64).summarize("s", TEXT)
    assert seen[0][1] == 64
    assert "at most 64 tokens" in seen[0][0]


def test_failures_are_retried_then_the_callers(tmp_path) -> None:
    """Two failures are a hiccup; three are the caller's, who lists the session as unsummarised."""
    hiccup = CountingInvoker(SummaryError("busy"), ConnectionResetError("gone"))
    assert summarizer(hiccup, tmp_path).summarize("s", TEXT)
    assert hiccup.n_calls == 3

    dead = CountingInvoker(*[SummaryError("busy")] * 9)
    with pytest.raises(SummaryError, match="busy"):
        summarizer(dead, tmp_path / "b").summarize("s", TEXT)
    assert dead.n_calls == 3


def test_foreign_network_errors_become_ours() -> None:
    """An invoker of somebody else's making may let its socket errors through."""
    with pytest.raises(SummaryError, match="TimeoutError") as caught:
        summarizer(CountingInvoker(TimeoutError("slow")), attempts=1).summarize("s", TEXT)
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_refusals_are_not_retried() -> None:
    """A wrong key is wrong the next time too."""
    invoker = CountingInvoker(SummaryRefusedError("set the key"))
    with pytest.raises(SummaryRefusedError):
        summarizer(invoker).summarize("s", TEXT)
    assert invoker.n_calls == 1


def test_a_long_pause_is_the_callers_to_wait() -> None:
    """A worker does not sleep for the ten minutes an endpoint asks for; the error says how long."""
    invoker = CountingInvoker(SummaryError("later", retry_after_s=600.0))
    with pytest.raises(SummaryError) as caught:
        summarizer(invoker).summarize("s", TEXT)
    assert caught.value.retry_after_s == 600.0
    assert invoker.n_calls == 1


@pytest.mark.parametrize("empty", ["", "  \n", "\x00"])
def test_an_empty_answer_is_an_error_and_not_kept(tmp_path, empty) -> None:
    """A blank summary on disk would hide its session for ever; what was paid is counted all the same."""
    summaries = summarizer(CountingInvoker(empty, empty), tmp_path, attempts=2)
    with pytest.raises(SummaryError, match="answered nothing"):
        summaries.summarize("s", TEXT)
    assert not list(tmp_path.glob("*.json"))
    assert summaries.stats.tokens_in == 20
    assert summaries.summarize("s", TEXT)


def test_answers_are_made_storable(tmp_path) -> None:
    """Lone surrogates and NUL come out of broken tokenizers and would break the ledger's write."""
    answer = summarizer(CountingInvoker(" caf\ud83d\x00é "), tmp_path).summarize("s", TEXT)
    assert answer == "caf?é"


def test_unstorable_text_is_poison() -> None:
    """It cannot be sent or digested; the contract refuses it long before."""
    with pytest.raises(PoisonError):
        summarizer(CountingInvoker()).summarize("s", "\ud800")


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"attempts": 0}, {"window_tokens": 3}])
def test_impossible_numbers_are_refused(wrong) -> None:
    """At construction, not at the first session."""
    with pytest.raises(ConfigError):
        summarizer(CountingInvoker(), **wrong)


def test_eight_threads_make_one_call(tmp_path) -> None:
    """All wait at the model's door until each has asked; the model is asked once."""
    n_threads = 8
    at_once = threading.Barrier(n_threads)
    invoker = CountingInvoker()
    summaries = [summarizer(invoker, tmp_path) for _ in range(2)]
    answers: list[str] = []

    def ask(number: int) -> None:
        at_once.wait(10)
        answers.append(summaries[number % 2].summarize(f"s-{number}", TEXT))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == n_threads
    assert len(set(answers)) == 1
    assert invoker.n_calls == 1
    assert sum(s.stats.hits for s in summaries) == 7
    assert not list(tmp_path.glob("*.lock"))


class TestLongSessions:
    """A session longer than the window is summarised in parts, then as a whole."""

    LONG = "\n".join(f"Ann: line number {number} says something new" for number in range(60))

    def _long(self, invoker: Any, folder: Path | None) -> SessionSummarizer:
        return summarizer(invoker, folder, window_tokens=40, count_tokens=by_words)

    def test_no_call_exceeds_the_window(self, tmp_path) -> None:
        """That is what the window is for; every line is part of exactly one part."""
        invoker = CountingInvoker(n_words=5)
        assert self._long(invoker, tmp_path).summarize("s", self.LONG)
        assert all(by_words(text) <= 40 for text in invoker.texts)
        parts = [line for text in invoker.texts for line in text.split("\n") if line.endswith("new")]
        assert parts == self.LONG.split("\n")

    def test_tokens_are_those_of_all_calls(self, tmp_path) -> None:
        """The price of a long session is the price of its parts too."""
        invoker, costs = CountingInvoker(n_words=5), []
        summaries = summarizer(invoker, tmp_path, window_tokens=40, count_tokens=by_words, on_cost=costs.append)
        whole = summaries.complete("s", self.LONG)
        assert whole.tokens_in == summaries.stats.tokens_in == 10 * invoker.n_calls
        assert len(costs) == invoker.n_calls

    def test_a_failure_midway_repeats_nothing_done(self, tmp_path) -> None:
        """Parts are on disk as soon as they are answered."""
        broken = CountingInvoker(*["one", "two", "three"], SummaryRefusedError("no credit"))
        with pytest.raises(SummaryRefusedError):
            self._long(broken, tmp_path).summarize("s", self.LONG)
        again = CountingInvoker(n_words=5)
        self._long(again, tmp_path).summarize("s", self.LONG)
        assert not set(broken.texts[:3]) & set(again.texts)

    def test_a_model_that_repeats_everything_comes_to_an_end(self, tmp_path) -> None:
        """Its answers are cut, so that each round has less to read."""
        invoker = CountingInvoker(n_words=10_000)
        assert self._long(invoker, tmp_path).summarize("s", self.LONG)
        assert invoker.n_calls < 40

    def test_a_counter_that_makes_no_sense_is_an_error(self) -> None:
        """Rather than calls without end."""
        with pytest.raises(SummaryError, match="no shorter"):
            summarizer(CountingInvoker("abc", "abc"), count_tokens=lambda _: 10**6).summarize("s", "ab")

    def test_one_line_of_a_million_characters(self, tmp_path) -> None:
        """A pasted log without line breaks is cut between sentences or words."""
        line = "word " * 20_000
        invoker = CountingInvoker(n_words=3)
        summarizer(invoker, tmp_path, window_tokens=8_000).summarize("s", line)
        assert all(tokens.count(text) <= 8_000 for text in invoker.texts)
        assert all(text.split(" ")[0] == "word" for text in invoker.texts)


class TestText:
    """How a session becomes a text, and a text several."""

    def test_one_line_a_turn(self) -> None:
        """A line break inside a turn is indented, so that it is not taken for a new speaker."""
        turns = [("Ann", "Hi!\nBob: is not speaking"), ("user", "  "), ("Bob\nB.", "Bye ")]
        assert session_text(turns) == "Ann: Hi!\n  Bob: is not speaking\nBob B.: Bye"

    @settings(max_examples=60, deadline=None)
    @given(
        st.text(st.sampled_from("ab .\n。é中😀"), max_size=300),
        st.integers(4, 30),
    )
    def test_parts_fit_and_lose_nothing(self, text, limit) -> None:
        """Whatever the text: only blanks at the cuts may go."""
        parts = split_text(text, limit, tokens.count)
        assert all(tokens.count(part) <= limit for part in parts)
        assert "".join("".join(parts).split()) == "".join(text.split())

    def test_cuts_stand_between_lines_when_lines_fit(self) -> None:
        """A turn is not torn apart without need."""
        lines = [f"Ann: turn {number}" for number in range(9)]
        parts = split_text("\n".join(lines), 12, by_words)
        assert [line for part in parts for line in part.split("\n")] == lines

    def test_clipping_keeps_the_beginning(self) -> None:
        """What fits is not touched."""
        assert clip_text("one two three", 3, by_words) == "one two three"
        assert clip_text("one two three", 2, by_words) in ("one two", "one")
