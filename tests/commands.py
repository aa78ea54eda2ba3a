"""The command line in the test's own process: quick, and an exception that is none of ours fails the test."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass

import pytest
import structlog

from workers.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs verbs with ``TURNSTREAM_*`` variables of its own; ``settings`` stand for all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        for name in [name for name in os.environ if name.startswith("TURNSTREAM_")]:
            monkeypatch.delenv(name)
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.settings: dict[str, str] = {"TURNSTREAM_EMBEDDING__BACKEND": "hashing"}

    def __call__(self, *arguments: str, stdin: bytes = b"", **settings: str) -> Ended:
        """Run one verb; further ``settings`` stand for this one alone."""
        self._capsys.readouterr()
        with self._monkeypatch.context() as patch:
            for name, value in {**self.settings, **settings}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["turnstream", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            with pytest.raises(SystemExit) as ended:
                main()
        structlog.reset_defaults()
        captured = self._capsys.readouterr()
        code = ended.value.code
        return Ended(0 if code is None else int(code), captured.out, captured.err)
