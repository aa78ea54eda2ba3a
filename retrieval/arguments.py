"""The one place where arguments of the public calls are looked at before anything is done with them.

Every public method that is `checked` is told here what each of its arguments may be, by the argument's name: the same
name means the same everywhere, but for what a method says of its own with `checked_with`. What only one call knows,
such as the bounds of a page, that call checks itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Final, NoReturn, ParamSpec, TypeGuard, TypeVar

import numpy as np

from pipeline.errors import PoisonError
from pipeline.records import Mood, Scope, reject_unstorable, to_epoch_ms

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, Any], object]
"""Refuses a value for the argument of this name."""
_LARGEST: Final = np.finfo(np.float32).max


def checked(method: Callable[P, R]) -> Callable[P, R]:
    """Have a method refuse arguments of a wrong type; None is taken where it is the default.

    The method then raises ValueError, whose message names the argument, or PoisonError: a scope or an id that no
    store can hold.
    """
    return _checked_by(CHECKS, method)


def checked_with(**own: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a method refuse the same as one that is `checked`, but for arguments that it has checks of its own for."""
    return functools.partial(_checked_by, {**CHECKS, **own})


def _checked_by(checks: Mapping[str, Check], method: Callable[P, R]) -> Callable[P, R]:
    parameters = inspect.signature(method).parameters
    names = tuple(parameters)
    may_be_none = {name for name, parameter in parameters.items() if parameter.default is None}

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            check = checks.get(name)
            if check is not None and not (value is None and name in may_be_none):
                check(name, value)
        return method(*args, **kwargs)

    return call


def require_text(name: str, value: object) -> None:
    """Refuse what is no text.

    Raises ValueError: it is none; the message names the argument.
    """
    if not isinstance(value, str):
        _refuse(name, value, "a text")


def require_moment(name: str, value: Any) -> int:
    """Read a time as epoch milliseconds; one without a zone is UTC.

    Raises:
        ValueError: it is none.
    """
    try:
        return to_epoch_ms(value)
    except PoisonError as error:
        raise ValueError(f"{name}: {error.reason}") from error


def require_scope(name: str, value: object) -> None:
    """Refuse what is no `Scope`, its key too.

    Raises ValueError: it is none; the message names the argument.
    """
    if not isinstance(value, Scope):
        _refuse(name, value, "a Scope, such as Scope('user', 'u42')")


def require_vector(name: str, value: object) -> None:
    """Refuse what is no vector.

    Raises:
        ValueError: it is not one row of finite numbers; the message names the argument.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        _refuse(name, value, "a vector, as a numpy array of numbers")
    if value.ndim != 1 or not (np.abs(value) <= _LARGEST).all():
        raise ValueError(f"{name}: a vector must be one row of finite numbers, not of shape {value.shape}")


def require_text_or_vector(name: str, value: object) -> None:
    """Refuse what is neither a text nor a vector.

    Raises ValueError: it is neither; the message names the argument.
    """
    if isinstance(value, list | tuple) and value and all(isinstance(each, float) for each in value):
        value = np.array(value)
    if not isinstance(value, str):
        require_vector(name, value)


def _storable(name: str, value: object) -> None:
    """Check a text that is kept in a store, or looked for there.

    Raises:
        PoisonError: no store can hold it.
    """
    require_text(name, value)
    reject_unstorable(str(value), name)


def _place(name: str, value: object) -> None:
    """Check an index, or what names a turn."""
    if not _is_whole(value):
        _storable(name, value)


def _text_or_texts(name: str, value: object) -> None:
    if not isinstance(value, str):
        _texts(name, value)


def _texts(name: str, value: object) -> None:
    if not isinstance(value, list | tuple | set | frozenset):
        _refuse(name, value, "a list of texts")
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


def _epoch_ms(name: str, value: object) -> None:
    require_moment(name, _number(name, value) // 1000)


def _mood(name: str, value: object) -> None:
    """Check valence, arousal and dominance.

    Raises:
        ValueError: they are none, or out of bounds.
    """
    if not isinstance(value, tuple | list) or len(value) != len(Mood._fields):
        _refuse(name, value, f"{', '.join(Mood._fields)}: three numbers")
    for part, felt in zip(Mood._fields, value, strict=True):
        if not isinstance(felt, int | float | np.integer | np.floating) or isinstance(felt, bool):
            _refuse(name, felt, f"a number for {part}")
        if not -1 <= felt <= 1:
            raise ValueError(f"{name}: {part} is {felt!r}; each value lies between -1 and 1")


def _function(name: str, value: object) -> None:
    if not callable(value):
        _refuse(name, value, "a function")


CHECKS: Final[Mapping[str, Check]] = {
    "query": require_text,
    "vector": require_vector,
    "objective": require_text,
    "conclusion": require_text,
    "profile": require_text,
    "strategy": require_text,
    "session_tag_prefix": require_text,
    "summary": _storable,
    "session_date": _storable,
    "session_id": _storable,
    "session_ids": _texts,
    "around_message_id": _place,
    "role": _text_or_texts,
    "exclude": _text_or_texts,
    "scope": _scope,
    "top_sessions": _count,
    "chunks_per_session": _count,
    "default_top_sessions": _count,
    "default_chunks_per_session": _count,
    "recall_top_k": _count,
    "top_k": _count,
    "max_tokens": _count,
    "limit": _number,
    "offset": _number,
    "window": _number,
    "coverage": _flag,
    "across_sessions": _flag,
    "after": require_moment,
    "before": require_moment,
    "asked_at": require_moment,
    "now_ms": _epoch_ms,
    "mood": _mood,
    "count_tokens": _function,
}
"""What each argument may be, by its name. What is reported of an exchange is checked where its turns are made."""


def _is_whole(value: object) -> TypeGuard[Integral]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{name}: is {type(value).__name__}; give {wanted}")
