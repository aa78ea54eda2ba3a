"""The summariser against a real endpoint: every way it can answer, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from pipeline.errors import ConfigError, SummaryError, SummaryRefusedError
from pipeline.summarise import OpenAIInvoker, Prices, SessionSummarizer
from tests import openai_server
from tests.openai_server import HANG, RESET, OpenAIServer, failure, garbage, ok

TEXT = "Ann: we fly to Lisbon on 3 May 2024."
KEY = "sk-very-secret"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[OpenAIServer]:
    """Run an endpoint for these tests."""
    with openai_server.running() as running:
        yield running


@pytest.fixture
def server(endpoint: OpenAIServer) -> OpenAIServer:
    """Give the endpoint with nothing scripted and nothing asked."""
    endpoint.script.clear()
    endpoint.requests.clear()
    endpoint.keys.clear()
    return endpoint


@pytest.fixture(scope="module")
def invoker(endpoint: OpenAIServer) -> Iterator[OpenAIInvoker]:
    """Connect to it."""
    asks = OpenAIInvoker(base_url=endpoint.base_url, api_key=KEY, model="tiny")
    yield asks
    asks.close()


@pytest.fixture(scope="module")
def impatient(endpoint: OpenAIServer) -> Iterator[OpenAIInvoker]:
    """Connect to it with little patience: enough for an answer, not for a long wait."""
    asks = OpenAIInvoker(base_url=endpoint.base_url, api_key=KEY, model="tiny", timeout_s=1.0)
    yield asks
    asks.close()


def summarizer(invoker: OpenAIInvoker, folder: Path | None = None) -> SessionSummarizer:
    return SessionSummarizer(invoker, "tiny", folder, first_wait_s=0.0, prices=Prices(1_000_000.0, 2_000_000.0))


def test_an_answer_and_its_tokens(server, invoker) -> None:
    """The session is the whole user message; length and key go where the protocol wants them."""
    server.will(ok("They fly.", 50, 7))
    answer = invoker("Be brief.", TEXT, max_tokens=64)
    assert (answer.text, answer.tokens_in, answer.tokens_out, answer.model) == ("They fly.", 50, 7, "tiny-2024")
    (request,) = server.requests
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": TEXT},
    ]
    assert (request["path"], request["model"], request["max_tokens"]) == ("/v1/chat/completions", "tiny", 64)
    assert server.keys == [f"Bearer {KEY}"]


def test_a_local_server_needs_no_key(server) -> None:
    """And is not sent one from the environment that was meant for somebody else."""
    server.will(ok())
    invoker = OpenAIInvoker(base_url=server.base_url, api_key=None, model="tiny")
    assert invoker("", TEXT, max_tokens=9).text
    invoker.close()
    assert server.keys == ["Bearer unset"]


def test_a_foreign_key_in_the_environment_is_not_sent(server, monkeypatch) -> None:
    """The endpoint of these settings is not the one that key belongs to."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-service")
    server.will(ok())
    invoker = OpenAIInvoker(base_url=server.base_url, api_key=None, model="tiny")
    invoker("", TEXT, max_tokens=9)
    invoker.close()
    assert "sk-of-another-service" not in server.keys[0]


@pytest.mark.parametrize(("url", "key"), [(None, None), (None, ""), ("localhost:8080/v1", "k")])
def test_settings_that_cannot_work_are_refused(url, key) -> None:
    """At the start, with the name of what to set."""
    with pytest.raises(ConfigError, match="TURNSTREAM_SUMMARY__"):
        OpenAIInvoker(base_url=url, api_key=key, model="m")


@pytest.mark.parametrize(
    "hiccup",
    [
        pytest.param(failure(429, retry_after="0"), id="429 with Retry-After"),
        pytest.param(failure(429), id="429"),
        pytest.param(failure(500), id="500"),
        pytest.param(failure(503, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), id="503 with a date"),
        pytest.param(HANG, id="hang"),
        pytest.param(RESET, id="reset"),
        pytest.param(ok(""), id="empty answer"),
        pytest.param(ok(None), id="no content"),
        pytest.param(garbage(), id="HTML that says JSON"),
        pytest.param(garbage(content_type="text/html"), id="HTML"),
        pytest.param(garbage(b"{}"), id="no choices"),
        pytest.param(garbage(b'{"choices": []}'), id="empty choices"),
        pytest.param(garbage(b'{"choices": [{"message": null}]}'), id="no message"),
        pytest.param(garbage(b'{"choices": [{"message": {"content": 7}}]}'), id="content is a number"),
        pytest.param(garbage(b"[1, 2"), id="torn"),
        pytest.param(garbage(b"\xff\xfe"), id="no text at all"),
        pytest.param(garbage(b"null"), id="null"),
        pytest.param(garbage(b""), id="empty body"),
    ],
)
def test_one_hiccup_is_survived(server, invoker, impatient, tmp_path, hiccup) -> None:
    """Each of them alone is our error; with one retry nobody notices, and the answer is kept."""
    asks = impatient if hiccup is HANG else invoker
    server.will(hiccup)
    with pytest.raises(SummaryError) as caught:
        asks("", TEXT, max_tokens=9)
    assert not isinstance(caught.value, SummaryRefusedError)
    assert server.base_url in str(caught.value)
    assert "Lisbon" not in str(caught.value)
    server.will(hiccup, ok("They fly."))
    server.script.popleft()
    assert summarizer(asks, tmp_path).summarize("s", TEXT) == "They fly."
    assert len(server.requests) == 3
    assert summarizer(asks, tmp_path).summarize("s", TEXT) == "They fly."
    assert len(server.requests) == 3


def test_an_endpoint_that_stays_down_ends_in_an_error(server, invoker, tmp_path) -> None:
    """After three tries the session is left unsummarised; nothing is kept or charged."""
    server.will(failure(500))
    summaries = summarizer(invoker, tmp_path)
    with pytest.raises(SummaryError, match="status 500"):
        summaries.summarize("s", TEXT)
    assert len(server.requests) == 3
    assert summaries.stats.cost == 0
    assert not list(tmp_path.glob("*.json"))


def test_a_server_that_is_gone_is_a_connection_error() -> None:
    """Nobody listens there."""
    with openai_server.running() as server:
        url = server.base_url
    invoker = OpenAIInvoker(base_url=url, api_key=None, model="m", timeout_s=0.5)
    with pytest.raises(SummaryError, match="no connection"):
        invoker("", TEXT, max_tokens=9)
    invoker.close()


@pytest.mark.parametrize(
    ("status", "what_to_set"),
    [(400, "WINDOW_TOKENS"), (401, "API_KEY"), (403, "API_KEY"), (404, "MODEL"), (422, "MODEL")],
)
def test_refusals_say_what_to_set(server, invoker, status, what_to_set) -> None:
    """And are not repeated: the second request would fare no better."""
    server.will(failure(status))
    with pytest.raises(SummaryRefusedError, match=what_to_set):
        summarizer(invoker).summarize("s", TEXT)
    assert len(server.requests) == 1


def test_an_empty_account_is_a_refusal(server, invoker) -> None:
    """It comes with status 429, and waiting does not fill it."""
    server.will(failure(429, code="insufficient_quota"))
    with pytest.raises(SummaryRefusedError, match="quota"):
        summarizer(invoker).summarize("s", TEXT)
    assert len(server.requests) == 1


def test_a_long_retry_after_is_handed_to_the_caller(server, invoker) -> None:
    """A worker is not put to sleep for an hour."""
    server.will(failure(429, retry_after="3600"))
    with pytest.raises(SummaryError) as caught:
        summarizer(invoker).summarize("s", TEXT)
    assert caught.value.retry_after_s == 3600
    assert len(server.requests) == 1


def test_cost_adds_up_over_what_was_really_asked(server, invoker, tmp_path) -> None:
    """Prices per million tokens; cached answers cost nothing."""
    server.will(ok("One.", 1_000, 10), ok("Two.", 500, 20))
    summaries = summarizer(invoker, tmp_path)
    for text in ("first", "second", "first"):
        summaries.summarize("s", text)
    assert (summaries.stats.tokens_in, summaries.stats.tokens_out) == (1_500, 30)
    assert summaries.stats.cost == pytest.approx(1_500 + 2 * 30)


def test_no_usage_counts_as_nothing(server, invoker) -> None:
    """Some local servers leave it out."""
    body = json.loads(ok("They fly.").body)
    del body["usage"]
    server.will(garbage(json.dumps(body).encode()))
    answer = invoker("", TEXT, max_tokens=9)
    assert (answer.text, answer.tokens_in, answer.tokens_out) == ("They fly.", 0, 0)


def test_neither_text_nor_key_is_logged(server, invoker, tmp_path, capfd) -> None:
    """Logs are read by people who may not read chats."""
    server.will(failure(500), garbage(), ok("They fly to Lisbon."))
    with structlog.testing.capture_logs() as lines:
        summarizer(invoker, tmp_path).summarize("s", TEXT)
    logged = json.dumps(lines, default=str) + "".join(capfd.readouterr())
    assert "Lisbon" not in logged
    assert KEY not in logged
