"""The one place where arguments of the public calls are looked at before anything is done with them.

Every public method that is `checked` is told here what each of its arguments may be, by the argument's name: the same
name means the same everywhere. What only one call knows, such as the bounds of a page, that call checks itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, NoReturn, ParamSpec, TypeGuard, TypeVar

from pipeline.errors import PoisonError
from pipeline.records import Mood, Scope, reject_unstorable, to_epoch_ms

P = ParamSpec("P")
R = TypeVar("R")


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Have a method refuse arguments of a wrong type; None is taken where it is the default.

    The method then raises ValueError, whose message names the argument, or PoisonError: a scope or an id that no
    store can hold.
    """
    parameters = inspect.signature(method).parameters
    names = tuple(parameters)
    may_be_none = {name for name, parameter in parameters.items() if parameter.default is None}

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            check = CHECKS.get(name)
            if check is not None and not (value is None and name in may_be_none):
                check(name, value)
        return method(*args, **kwargs)

    return call


def require_text(name: str, value: object) -> None:
    """Refuse what is no text.

    Raises ValueError: it is; the message names the argument.
    """
    if not isinstance(value, str):
        _refuse(name, value, "a text")


def _id(name: str, value: object) -> None:
    """Check what names something in a store.

    Raises:
        PoisonError: no store can hold it.
    """
    require_text(name, value)
    reject_unstorable(str(value), name)


def _place(name: str, value: object) -> None:
    """Check an index, or what names a turn."""
    if not _is_whole(value):
        _id(name, value)


def _texts(name: str, value: object) -> None:
    if isinstance(value, str):
        return
    if isinstance(value, bytes | Mapping) or not isinstance(value, Sequence | set | frozenset):
        _refuse(name, value, "a text, or a list of texts")
    for each in value:
        require_text(name, each)


def _scope(name: str, value: object) -> None:
    """Check a scope or its key.

    Raises:
        PoisonError: the key is not KIND/ID.
    """
    if isinstance(value, str):
        Scope.parse(value)
    elif not isinstance(value, Scope):
        _refuse(name, value, "a Scope, or its KIND/ID such as 'user/u42'")


def _number(name: str, value: object) -> int:
    if not _is_whole(value):
        _refuse(name, value, "a whole number")
    return int(value)


def _count(name: str, value: object) -> None:
    """Check a number of things.

    Raises:
        ValueError: it is none, or negative.
    """
    if (number := _number(name, value)) < 0:
        raise ValueError(f"{name}: {number} is negative; use 0 or more")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")


def _moment(name: str, value: Any) -> None:
    """Check a time.

    Raises:
        ValueError: it is none.
    """
    try:
        to_epoch_ms(value)
    except PoisonError as error:
        raise ValueError(f"{name}: {error.reason}") from error


def _mood(name: str, value: object) -> None:
    """Check valence, arousal and dominance.

    Raises:
        ValueError: they are none, or out of bounds.
    """
    if not isinstance(value, Sequence) or len(value) != len(Mood._fields):
        _refuse(name, value, ", ".join(Mood._fields))
    for part, felt in zip(Mood._fields, value, strict=True):
        if not isinstance(felt, int | float) or isinstance(felt, bool) or not -1 <= felt <= 1:
            raise ValueError(f"{name}: {part} is {felt!r}; each value lies between -1 and 1")


def _function(name: str, value: object) -> None:
    if not callable(value):
        _refuse(name, value, "a function")


CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "query": require_text,
    "objective": require_text,
    "conclusion": require_text,
    "profile": require_text,
    "strategy": require_text,
    "session_id": _id,
    "around_message_id": _place,
    "role": _texts,
    "exclude": _texts,
    "scope": _scope,
    "top_sessions": _count,
    "chunks_per_session": _count,
    "recall_top_k": _count,
    "max_tokens": _count,
    "limit": _number,
    "offset": _number,
    "window": _number,
    "coverage": _flag,
    "across_sessions": _flag,
    "after": _moment,
    "before": _moment,
    "asked_at": _moment,
    "mood": _mood,
    "count_tokens": _function,
}
"""What each argument may be, by its name. What is reported of an exchange is checked where its turns are made."""


def _is_whole(value: object) -> TypeGuard[Integral]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{name}: is {type(value).__name__}; give {wanted}")
