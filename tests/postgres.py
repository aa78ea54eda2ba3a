"""A real PostgreSQL for the tests, from the system's package, on a unix socket in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.eventually import eventually

READY_WITHIN_S = 20


def _binary(name: str) -> str | None:
    """Find a program; Debian keeps the server's outside of PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(installed[-1]) if installed else shutil.which(name)


def _account() -> dict[str, Any]:
    """Whom to run it as: it refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@dataclass
class RunningPostgres:
    """One server; it can be killed and started again on the same files."""

    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        """How to reach it."""
        return f"postgresql://turnstream:secretword@/postgres?host={quote(str(self.folder), safe='')}"

    def make(self) -> None:
        """Make its files."""
        account = _account()
        if account:
            os.chown(self.folder, account["user"], account["group"])
        initdb = _binary("initdb")
        assert initdb
        subprocess.run(
            [initdb, "-D", str(self.folder / "data"), "-U", "turnstream", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync", "--no-instructions"],
            check=True, stdout=subprocess.DEVNULL, cwd="/", **account,
        )  # fmt: skip

    def start(self) -> None:
        """Start it, and wait until it answers."""
        binary = _binary("postgres")
        assert binary
        quick = ["-cfsync=off", "-clisten_addresses=", "-cshared_buffers=16MB", "-cautovacuum=off"]
        self.process = subprocess.Popen(
            [binary, "-D", str(self.folder / "data"), "-k", str(self.folder), *quick],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **_account(),
        )  # fmt: skip
        process = self.process

        def answers() -> bool:
            assert process.poll() is None, f"postgres ended with {process.returncode}"
            with suppress(psycopg.OperationalError):
                return bool(self.ask("SELECT 1"))
            return False

        eventually(answers, "postgres answers")

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement; gives its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """End it without a chance to tell anybody; its children end with it."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(READY_WITHIN_S)

    def stop(self) -> None:
        """End it, whoever is connected."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(READY_WITHIN_S)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[RunningPostgres]:
    """One server for all tests of a process."""
    if _binary("initdb") is None or _binary("postgres") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no PostgreSQL server on this machine")
    folder = Path(tempfile.mkdtemp(prefix="turnstream-test-"))
    server = RunningPostgres(folder)
    try:
        server.make()
        server.start()
        yield server
        if server.process.poll() is None:
            server.stop()
    finally:
        shutil.rmtree(folder)
