"""One file per transcript format: each turns a file into events, in order, without holding it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from pipeline.errors import ConfigError
from pipeline.importers import events, locomo, openai, praisonai
from pipeline.importers.source import Imported, Malformed
from pipeline.records import Scope

__all__ = ["FOLDERS", "FORMATS", "Imported", "Malformed", "Reader", "reader"]


class Reader(Protocol):
    """Read one transcript."""

    def __call__(self, path: Path, scope: Scope | None = None, *, start: int = 0) -> Iterator[Imported | Malformed]:
        """Yield events and what could not be read, in the file's order, from position ``start`` on."""
        ...


_READERS: Final[dict[str, Reader]] = {
    events.FORMAT: events.read,
    locomo.FORMAT: locomo.read,
    openai.FORMAT: openai.read,
    praisonai.FORMAT: praisonai.read,
}
FORMATS: Final = tuple(_READERS)
FOLDERS: Final = frozenset({praisonai.FORMAT})
"""Formats that keep each session in a file of its own, so that a folder of them may be named."""


def reader(form: str) -> Reader:
    """Give the reader of a transcript format.

    Raises:
        ConfigError: there is no such format.
    """
    try:
        return _READERS[form]
    except KeyError:
        raise ConfigError(f"{form!r} is no transcript format; choose one of {', '.join(FORMATS)}") from None
