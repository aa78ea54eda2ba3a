"""The entries of a labelled file, every field checked before anything is asked or put in.

Why: a field that is read as something else gives a figure, not an error: a text is also a list of letters, "false" is
true, and an id that occurs twice makes one scope of two. So each format says in a model what its entries are, and
nothing reads a file past it. An optional field that is null counts as absent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import ConfigError, PoisonError
from pipeline.importers import source
from pipeline.records import Scope, reject_unstorable


def _kept_faithfully(text: str) -> str:
    try:
        reject_unstorable(text, "")
    except PoisonError as error:
        raise ValueError(str(error)) from error
    return text


Filled = Annotated[str, Field(pattern=r"\S"), AfterValidator(_kept_faithfully)]
"""A text that is not blank."""


class Fields(BaseModel):
    """Take no number for a text and no text for a list; what is not asked for is not looked at."""

    model_config = ConfigDict(strict=True, extra="ignore")


class EntryFields(Fields, ABC):
    """An entry: what is said in one scope, and what is asked about it."""

    form: ClassVar[str]
    id_field: ClassVar[str]
    mark: ClassVar[str]
    """A key that every entry has."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Its name, which no other entry of the file has."""


Layout = TypeVar("Layout", bound=EntryFields)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Layout]):
    """One entry, its scope, and where in which file it stands."""

    path: Path
    place: str
    scope: Scope
    fields: Layout

    def wrong(self, field: str, reason: str) -> ConfigError:
        """Make the error that names one of its fields."""
        return ConfigError(_told(self.path, self.place, f"{field}: {reason}", self.fields.form))


def read(path: Path, layout: type[Layout]) -> Iterator[Entry[Layout]]:
    """Yield the entries of a file.

    Raises:
        ConfigError: the file cannot be read, or a field is not what its format says; names entry and field.
    """
    place_of: dict[str, str] = {}
    for value in source.values(path, layout.mark):
        place = _place(value, layout)
        if value.reason:
            raise ConfigError(_told(path, place, value.reason, layout.form))
        try:
            fields = layout.model_validate(value.value)
            entry = Entry(path, place, Scope("user", fields.id), fields)
        except ValidationError as error:
            raise ConfigError(_told(path, place, _first(error), layout.form)) from error
        except PoisonError as error:
            raise ConfigError(_told(path, place, f"{layout.id_field}: {error.reason}", layout.form)) from error
        if fields.id in place_of:
            raise entry.wrong(layout.id_field, f"{place_of[fields.id]} has the same; both would be one scope")
        place_of[fields.id] = value.place
        yield entry


def _place(value: source.Value, layout: type[EntryFields]) -> str:
    named: Any = value.value.get(layout.id_field) if isinstance(value.value, dict) else None
    return f"{value.place}, {named[:64]}" if isinstance(named, str) and named else value.place


_REASONS: Final = {
    "missing": "is missing",
    "string_pattern_mismatch": "is blank",
    "model_type": "is no JSON object",
    "string_unicode": "is not valid Unicode",
}


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    reason = _REASONS.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), reason)))


def _told(path: Path, place: str, reason: str, form: str) -> str:
    return f"{path}, {place}: {reason}; correct it or take it out; is it of the format {form}?"
