"""One summary per distinct session text: from disk when it is there, else from the model, once.

After a crash: every part that was answered is on disk and is not asked for again.

Why parts are cached like sessions: a part is a text like any other, and its summary a summary of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import stamina
import structlog

from pipeline import records, tokens
from pipeline.errors import ConfigError, SummaryError, SummaryRefusedError
from pipeline.summarise import cache, prompt
from pipeline.summarise import text as texts
from pipeline.summarise.invoker import Completion, SummaryInvoker

LONGEST_RETRY_AFTER_S: Final = 15.0
"""An endpoint that asks for a longer pause is left alone; the caller puts the session off instead."""

_MIN_WINDOW_TOKENS: Final = 16
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SummaryStats:
    """What one summariser has done so far. Parts of long sessions count as texts; cost is in US dollars."""

    hits: int = 0
    misses: int = 0
    writes: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens."""

    usd_per_million_input: float = 0.0
    usd_per_million_output: float = 0.0

    def of(self, completion: Completion) -> float:
        """Give the price of one answer."""
        paid = completion.tokens_in * self.usd_per_million_input + completion.tokens_out * self.usd_per_million_output
        return paid / 1_000_000


class SessionSummarizer:
    """Summarise sessions, each distinct text once.

    Safe to share between threads; several processes may share a cache folder.

    Args:
        invoker: asks the model once.
        model_id: part of the cache key, so that another model's summaries are never taken for this one's.
        cache_dir: a folder of one scope alone; without one nothing is kept.
        max_tokens: length of a summary.
        template_version: part of the cache key; see `prompt.TEMPLATE_VERSION`.
        window_tokens: longest text given to the model at once; a longer one is summarised in parts, then as a whole.
        count_tokens: the model's own counter, when one is at hand; else an estimate on the safe side.
        attempts: tries of one call before the error is the caller's.
        first_wait_s: wait before the second try; doubles with jitter.
        prices: for the cost in `stats`.
        on_cost: called with each answer that was really asked for, parts included.
        clock: epoch seconds.

    Raises:
        ConfigError: a number is out of range, or the cache folder cannot be made.
    """

    def __init__(  # noqa: PLR0913 - the first five are the contract; the rest are independent, keyword-only options
        self,
        invoker: SummaryInvoker,
        model_id: str,
        cache_dir: Path | None = None,
        max_tokens: int = cache.DEFAULT_MAX_TOKENS,
        template_version: str = prompt.TEMPLATE_VERSION,
        *,
        window_tokens: int = 8_000,
        count_tokens: texts.CountTokens = tokens.count,
        attempts: int = 3,
        first_wait_s: float = 0.5,
        prices: Prices | None = None,
        on_cost: Callable[[Completion], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_tokens < 1 or attempts < 1 or window_tokens < _MIN_WINDOW_TOKENS:
            raise ConfigError(
                f"max_tokens={max_tokens}, attempts={attempts}, window_tokens={window_tokens}: the first two must be "
                f"at least 1 and the window at least {_MIN_WINDOW_TOKENS}"
            )
        self._invoker = invoker
        self._model_id = model_id
        self._cache = cache.SummaryCache(Path(cache_dir)) if cache_dir is not None else None
        self._max_tokens = max_tokens
        self._template_version = template_version
        self._window_tokens = window_tokens
        self._count_tokens = count_tokens
        self._attempts = attempts
        self._first_wait_s = first_wait_s
        self._prices = prices or Prices()
        self._on_cost = on_cost
        self._clock = clock
        self._stats = SummaryStats()
        self._stats_lock = threading.Lock()

    @property
    def stats(self) -> SummaryStats:
        """What has been done so far."""
        return self._stats

    def summarize(self, session_key: str, text: str) -> str:
        """Give the summary of a session's text, "" for a blank one; see `complete`."""
        return self.complete(session_key, text).text

    def complete(self, session_key: str, text: str) -> Completion:
        """Give the summary with its tokens; durable in the cache on return, unless a warning says otherwise.

        Args:
            session_key: a label for the cache file and the log; not part of the key.
            text: the session, as `session_text` writes it.

        Raises:
            SummaryError: the model failed on every try; the session is to be listed as unsummarised.
            PoisonError: the text holds what cannot be stored or sent (NUL, lone surrogates).
        """
        stripped = text.strip()
        if not stripped:
            return Completion("", 0, 0, self._model_id)
        records.reject_unstorable(stripped, "text")
        return self._once(session_key, stripped)

    def key(self, text: str) -> str:
        """Give the cache key of a text."""
        return cache.summary_key(text, self._model_id, self._template_version, self._max_tokens)

    def _once(self, session_key: str, text: str) -> Completion:
        """Look the text up; make its summary when nobody has, one maker at a time."""
        key = self.key(text)
        if (found := self._read(key)) is not None:
            return found
        # A part is shorter than its whole, so nested locks are always taken from long to short: no deadlock.
        with self._alone(key):
            if (found := self._read(key)) is not None:
                return found
            self._count(misses=1)
            made = self._make(session_key, text)
            self._write(key, session_key, made)
            return made

    def _make(self, session_key: str, text: str) -> Completion:
        if self._count_tokens(text) <= self._window_tokens:
            return self._ask(text)
        parts = texts.split_text(text, self._window_tokens, self._count_tokens)
        made = [self._once(session_key, part) for part in parts if len(part) < len(text)]
        # A quarter of a window each: whatever the model answers, each round at least halves what is left.
        share = self._window_tokens // 4
        together = "\n".join(texts.clip_text(part.text, share, self._count_tokens) for part in made)
        if not 0 < len(together) < len(text):
            raise SummaryError(
                f"{self._model_id}: the parts' summaries are no shorter than the session; "
                "raise window_tokens or give a count_tokens that fits the model"
            )
        whole = self._once(session_key, together)
        return replace(
            whole,
            tokens_in=whole.tokens_in + sum(part.tokens_in for part in made),
            tokens_out=whole.tokens_out + sum(part.tokens_out for part in made),
            cached=False,
        )

    def _ask(self, text: str) -> Completion:
        for attempt in stamina.retry_context(
            on=_wait_before_retry,
            attempts=self._attempts,
            timeout=None,
            wait_initial=self._first_wait_s,
            wait_jitter=self._first_wait_s,
            wait_max=LONGEST_RETRY_AFTER_S,
        ):
            with attempt:
                return self._ask_once(text)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _ask_once(self, text: str) -> Completion:
        try:
            answer = self._invoker(prompt.system_prompt(self._max_tokens), text, max_tokens=self._max_tokens)
        except OSError as error:  # an invoker of somebody else's making may let them through
            raise SummaryError(
                f"{self._model_id}: {type(error).__name__} while asking for a summary; it is tried again later"
            ) from error
        self._pay(answer)
        summary = _storable(answer.text or "")
        if not summary:
            raise SummaryError(f"{self._model_id}: the model answered nothing; it is tried again later")
        return replace(answer, text=summary, cached=False)

    def _pay(self, answer: Completion) -> None:
        self._count(tokens_in=answer.tokens_in, tokens_out=answer.tokens_out, cost=self._prices.of(answer))
        if self._on_cost is not None:
            self._on_cost(answer)

    def _alone(self, key: str) -> AbstractContextManager[None]:
        return nullcontext() if self._cache is None else self._cache.alone(key)

    def _read(self, key: str) -> Completion | None:
        found = None if self._cache is None else self._cache.read(key)
        if found is None:
            return None
        self._count(hits=1)
        return Completion(found.text, found.tokens_in, found.tokens_out, found.answered_by, cached=True)

    def _write(self, key: str, session_key: str, made: Completion) -> None:
        if self._cache is None:
            return
        summary = cache.CachedSummary(
            key=key,
            text=made.text,
            model_id=self._model_id,
            template_version=self._template_version,
            max_tokens=self._max_tokens,
            session_key=session_key,
            created=records.from_epoch_ms(round(self._clock() * 1000)).isoformat(),
            answered_by=made.model,
            tokens_in=made.tokens_in,
            tokens_out=made.tokens_out,
        )
        try:
            self._cache.write(summary)
        except OSError as error:  # the answer is paid for: better uncached than lost
            _log.warning("summary.cache_failed", key=key, error=error.strerror)
        else:
            self._count(writes=1)

    def _count(self, **more: float) -> None:
        with self._stats_lock:
            total = {name: getattr(self._stats, name) + value for name, value in more.items()}
            self._stats = replace(self._stats, **total)


def _wait_before_retry(error: Exception) -> bool | float:
    """Tell stamina whether to go on: no, after the usual backoff, or after what the endpoint asked for."""
    if not isinstance(error, SummaryError) or isinstance(error, SummaryRefusedError):
        return False
    if error.retry_after_s is None:
        return True
    return error.retry_after_s if error.retry_after_s <= LONGEST_RETRY_AFTER_S else False


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\x00", "").strip()
