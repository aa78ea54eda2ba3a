"""The stage that turns a session's text into its summary, and the models that can write one."""

from pipeline.summarise.cache import SummaryCache, summary_key
from pipeline.summarise.extractive import ExtractiveInvoker
from pipeline.summarise.invoker import Completion, SummaryInvoker
from pipeline.summarise.openai_chat import OpenAIInvoker
from pipeline.summarise.summarizer import Prices, SessionSummarizer, SummaryStats
from pipeline.summarise.text import session_text, split_text

__all__ = [
    "Completion",
    "ExtractiveInvoker",
    "OpenAIInvoker",
    "Prices",
    "SessionSummarizer",
    "SummaryCache",
    "SummaryInvoker",
    "SummaryStats",
    "session_text",
    "split_text",
    "summary_key",
]
