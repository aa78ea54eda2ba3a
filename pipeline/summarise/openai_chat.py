"""Summaries from any endpoint that speaks OpenAI's chat completions: the service itself, or a local server.

One call is one request: retries are the summariser's. No text and no key is ever logged or put into an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from pipeline.errors import ConfigError, SummaryError, SummaryRefusedError
from pipeline.summarise.invoker import Completion

if TYPE_CHECKING:
    import openai

OPENAI_URL: Final = "https://api.openai.com/v1"
_NO_KEY: Final = "unset"  # the client insists on one; a local server ignores it
_WORTH_REPEATING: Final = frozenset({408, 409, 425, 429})
_WHAT_TO_SET: Final = {
    400: "set TURNSTREAM_SUMMARY__MODEL and TURNSTREAM_SUMMARY__WINDOW_TOKENS to what the endpoint can take",
    401: "set TURNSTREAM_SUMMARY__API_KEY to a valid key",
    403: "set TURNSTREAM_SUMMARY__API_KEY to a key that may use this model",
    404: "set TURNSTREAM_SUMMARY__MODEL and TURNSTREAM_SUMMARY__BASE_URL to a model that is served there",
}


class OpenAIInvoker:
    """Ask one model of one endpoint.

    Safe to share between threads; make a new one after a fork.

    Args:
        base_url: the endpoint, up to and with ``/v1``; None is OpenAI's own. Never taken from elsewhere, so that a
            key meant for one endpoint is not sent to another.
        api_key: its key; None for a local server that asks for none.
        model: the model's name there.
        timeout_s: longest silence of the endpoint before a request is given up.

    Raises:
        ConfigError: there is neither an endpoint nor a key, or the address is none.
    """

    def __init__(self, *, base_url: str | None, api_key: str | None, model: str, timeout_s: float = 30.0) -> None:
        import openai  # noqa: PLC0415 - half a second that only who asks a model pays

        if base_url is None and not api_key:
            raise ConfigError("set TURNSTREAM_SUMMARY__API_KEY, or TURNSTREAM_SUMMARY__BASE_URL for a local server")
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"TURNSTREAM_SUMMARY__BASE_URL={base_url!r} is no http address; try http://127.0.0.1:8080/v1"
            )
        self._openai = openai
        self._url = base_url or OPENAI_URL
        self._model = model
        self._timeout_s = timeout_s
        # OpenAI's newer models know only the longer name, most other servers only the shorter one.
        self._length_field = "max_completion_tokens" if self._url == OPENAI_URL else "max_tokens"
        self._client = openai.OpenAI(base_url=self._url, api_key=api_key or _NO_KEY, timeout=timeout_s, max_retries=0)

    def __call__(self, system: str, user: str, /, *, max_tokens: int) -> Completion:
        """Ask once.

        Raises:
            SummaryError: no answer, a bad one, or "later"; asking again may help.
            SummaryRefusedError: the endpoint will not take such a request; the message says what to set.
        """
        try:
            response = self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                extra_body={self._length_field: max_tokens},
            )
        except self._openai.OpenAIError as error:
            self._translate(error)
        except ValueError as error:  # a body that is no JSON reaches us as the decoder's own error
            raise self._unreadable() from error
        return self._completion(response)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _completion(self, response: Any) -> Completion:
        """Read a response that may be anything an endpoint came up with.

        Raises:
            SummaryError: it holds no text.
        """
        try:
            text = response.choices[0].message.content
            usage = response.usage
            n_in, n_out = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        except (AttributeError, IndexError, TypeError) as error:
            raise self._unreadable() from error
        if not isinstance(text, str) or not text.strip():
            raise SummaryError(f"{self._url}: {self._model} answered nothing; it is tried again later")
        return Completion(text, n_in or 0, n_out or 0, getattr(response, "model", None) or self._model)

    def _unreadable(self) -> SummaryError:
        return SummaryError(
            f"{self._url}: the answer is no chat completion; check that TURNSTREAM_SUMMARY__BASE_URL ends in /v1"
        )

    def _translate(self, error: openai.OpenAIError) -> NoReturn:
        if isinstance(error, self._openai.APITimeoutError):
            raise SummaryError(
                f"{self._url}: no answer within {self._timeout_s:g} s; "
                "raise TURNSTREAM_SUMMARY__TIMEOUT_S if that is too short"
            ) from error
        if isinstance(error, self._openai.APIConnectionError):
            raise SummaryError(f"{self._url}: no connection; check that the endpoint is up") from error
        if isinstance(error, self._openai.APIStatusError):
            raise self._of_status(error) from error
        raise self._unreadable() from error

    def _of_status(self, error: openai.APIStatusError) -> SummaryError:
        status = error.status_code
        if error.code == "insufficient_quota":
            return SummaryRefusedError(f"{self._url}: the account has no quota left; renew it or set another key")
        if status < 500 and status not in _WORTH_REPEATING:  # noqa: PLR2004 - 500 and above are the server's faults
            advice = _WHAT_TO_SET.get(status, "check TURNSTREAM_SUMMARY__BASE_URL and TURNSTREAM_SUMMARY__MODEL")
            return SummaryRefusedError(f"{self._url}: refused with status {status}; {advice}")
        wait_s = _seconds(error.response.headers.get("retry-after"))
        return SummaryError(f"{self._url}: status {status}; it is tried again later", retry_after_s=wait_s)


def _seconds(header: str | None) -> float | None:
    """Read a Retry-After of seconds; one that names a date is as good as none."""
    try:
        wait_s = float(header or "")
    except ValueError:
        return None
    return wait_s if 0 <= wait_s < float("inf") else None
