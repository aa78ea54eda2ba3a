"""What the tests of this folder share: how much of them is run, and the one table of what came of it.

A test that breaks something says so with ``row``; a test that fails leaves the row FAILED, one that is not run
SKIPPED. At the end of the session
the rows are printed as one table, those of one name as one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

_HEADINGS = ("fault or input", "count", "outcome", "seconds")
_MANY_TIMES = 10
_LONG_TIMEOUT_S = 14_400
_PATIENCE = 4.0
_ROW = "row"


@dataclass
class Line:
    """What came of one fault or input."""

    n: int = 0
    outcomes: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Table:
    """What came of everything, in the order in which it was tried."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def add(self, name: str, *, n: int, outcome: str, seconds: float) -> None:
        """Note an outcome; counts and seconds of one name add up, and each of its outcomes is shown once."""
        line = self.lines.setdefault(name, Line())
        line.n += n
        line.seconds += seconds
        if outcome not in line.outcomes:
            line.outcomes.append(outcome)

    def texts(self) -> list[str]:
        """Lay it out in columns."""
        rows = [_HEADINGS, *((n, str(x.n), "; ".join(x.outcomes), f"{x.seconds:.1f}") for n, x in self.lines.items())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
        rows.insert(1, tuple("-" * width for width in widths))
        padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
        return [" | ".join(row).rstrip() for row in padded]


_TABLE = pytest.StashKey[Table]()
_REPORT = pytest.StashKey[pytest.TestReport]()


class Row:
    """Notes rows for one test; its seconds run from the test's start, or from the row before.

    A test whose faults may fail before it knows their outcome names them first, with ``expect``.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._expected = item.name
        self._since = time.monotonic()

    def expect(self, name: str) -> None:
        """Name the row that a failure from here on belongs to."""
        self._expected = name

    def __call__(self, name: str, *, n: int, outcome: str) -> None:
        """Note what came of trying something n times."""
        self.expect(name)
        now = time.monotonic()
        _note(self._item, name, n, outcome, now - self._since)
        self._since = now

    def fail(self, reason: str) -> None:
        """Note that the test did not come to its end."""
        self(self._expected, n=0, outcome=f"FAILED: {reason}")


def _note(item: pytest.Item, name: str, n: int, outcome: str, seconds: float) -> None:
    """Have a row travel with the test's reports, from whichever process runs it."""
    item.user_properties.append((_ROW, {"name": name, "n": n, "outcome": outcome, "seconds": seconds}))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the long form of tests/crash: about ten times larger")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TABLE] = Table()
    config.pluginmanager.register(_Collector(config.stash[_TABLE]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have no time limit of the short form end the long one."""
    if config.getoption("--long"):
        for item in items:
            item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep the report for the fixture, whose end comes after it."""
    report = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    if report.skipped and "row" in getattr(item, "fixturenames", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected"
        reason = reason.removeprefix("Skipped: ")
        _note(item, item.name, 0, f"SKIPPED: {reason}", 0.0)
    return report


class _Collector:
    """Puts the rows of ended tests into the table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the rows with the last report of a test."""
        if report.when == "teardown":
            for name, row in report.user_properties:
                if name == _ROW:
                    self._table.add(**row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    if config.stash[_TABLE].lines:
        terminalreporter.section("what was broken, and what came of it")
        for text in config.stash[_TABLE].texts():
            terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> int:
    """How many times more to do: 1, or 10 with ``--long``."""
    return _MANY_TIMES if request.config.getoption("--long") else 1


@pytest.fixture(scope="session")
def patience(request: pytest.FixtureRequest) -> float:
    """By how much a promised time may be missed before a test fails: by nothing with ``--long``, else four times.

    The table shows what was measured. A landing runs on machines that are busy with other work as well, and must not
    fail for their sake; a fault that costs more than that fails it.
    """
    return 1.0 if request.config.getoption("--long") else _PATIENCE


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """Note a row of the table: ``row("SIGKILL of workers", n=100, outcome="0 lost")``; see `Row`."""
    noted = Row(request.node)
    yield noted
    report = request.node.stash.get(_REPORT, None)
    if report is not None and report.failed:
        noted.fail(request.node.nodeid)
