"""What the verbs that read memory share: their options, and a memory for as long as one runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from retrieval import Memory, open_memory

After = Annotated[str | None, typer.Option(help="Only turns said at or after this time (ISO 8601).")]
Before = Annotated[str | None, typer.Option(help="Only turns said at or before this time (ISO 8601).")]

Reranker = Annotated[
    str | None, typer.Option(help="A cross-encoder, by path or name, reads the best again.", show_default=False)
]


def with_reranker(settings: Settings, model: str | None) -> Settings:
    """Give the settings with a reranker, when one is named."""
    if model is None:
        return settings
    return settings.model_copy(update={"retrieval": settings.retrieval.model_copy(update={"reranker": model})})


@contextmanager
def memory_of(settings: Settings) -> Iterator[Memory]:
    """Open the memory of a data folder, and close it when the block ends.

    Raises:
        ConfigError: an argument of a call in the block cannot be.
    """
    memory = open_memory(settings=settings)
    try:
        yield memory
    except ValueError as error:
        raise ConfigError(str(error)) from error
    finally:
        memory.close()
