"""What stands in deploy/, run: the server's configuration on both servers, the units' processes, the backup."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import apsw
import psutil
import pytest

from pipeline.errors import Backpressure
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.publish import Publisher
from pipeline.records import Scope, Turn
from pipeline.registry import Registry
from pipeline.settings import load_settings
from pipeline.shards import Shards
from pipeline.stream import TurnStream, check_server, connect
from tests.conftest import BINARIES, RunningServer
from tests.eventually import eventually
from workers.ingester import Ingester

DEPLOY = Path(__file__).parents[2] / "deploy"
TURNS, DEAD, GROUP = "turnstream:turns", "turnstream:dead", "ingest"
SCOPES = [Scope("user", name) for name in ("ann", "ben", "cleo")]
UNITS = ("turnstream-folder", "turnstream-ingester@", "turnstream-worker@", "turnstream-worker@sessions")
SIZES = {"mb": 1 << 20, "gb": 1 << 30}


class ConfiguredServer(RunningServer):
    """A server on our configuration file, only its folder and its socket moved."""

    def start(self) -> None:
        """Start it on whatever its folder holds."""
        text = (DEPLOY / "redis.conf").read_text()
        config = self.folder / "redis.conf"
        config.write_text(re.sub(r"^dir .*$", f"dir {self.folder}", text, flags=re.MULTILINE))
        self.process = subprocess.Popen(
            [self.binary, str(config), "--unixsocket", str(self.socket), *self.options], stdout=subprocess.DEVNULL
        )
        self.wait_until_ready()


StartConfigured = Callable[..., ConfiguredServer]


@pytest.fixture
def start_configured() -> Iterator[StartConfigured]:
    """Start a server on our configuration: ``start_configured("redis", folder)``."""
    running: list[ConfiguredServer] = []
    folders: list[str] = []

    def start(kind: str, folder: Path | None = None, options: tuple[str, ...] = ()) -> ConfiguredServer:
        binary = BINARIES[kind]()
        if binary is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"there is no {kind} server on this machine")
        folders.append(tempfile.mkdtemp(prefix="turnstream-test-"))
        place = Path(folders[-1])
        if folder is not None:
            shutil.copytree(folder, place, dirs_exist_ok=True)
        server = ConfiguredServer(binary, place, options)
        running.append(server)
        server.start()
        return server

    yield start
    for server in running:
        if server.process.poll() is None:
            server.stop()
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, start_configured: StartConfigured) -> ConfiguredServer:
    return start_configured(request.param)


def stream_of(server: RunningServer) -> TurnStream:
    return TurnStream(connect(server.url, timeout_s=5), name=TURNS, dead_name=DEAD, group=GROUP)


def test_every_directive_is_in_effect_and_the_server_fit(server: ConfiguredServer) -> None:
    """A directive one of the servers did not know, or read otherwise, would protect nothing."""
    lines = [line for line in (DEPLOY / "redis.conf").read_text().splitlines() if line and line[0] != "#"]
    wanted = {name: value.strip('"') for name, value in (line.split(" ", 1) for line in lines)}
    wanted |= {"dir": str(server.folder), "unixsocket": str(server.socket)}
    for name, value in wanted.items():
        if size := re.fullmatch(r"(\d+)(mb|gb)", value):
            wanted[name] = str(int(size[1]) * SIZES[size[2]])
    with connect(server.url, timeout_s=5) as client:
        effective = {name: dict(client.config_get(name))[name] for name in wanted}
        assert effective == wanted
        assert check_server(client) == []
    assert server.socket.stat().st_mode & 0o777 == 0o770


def test_a_full_server_refuses_and_keeps_what_it_accepted(server: ConfiguredServer) -> None:
    """Any eviction would take unread events, of which nobody else has a copy."""
    stream = stream_of(server)
    n_accepted = fill(stream)
    assert 0 < n_accepted == len(stream.read("c", count=10_000, block_ms=0))


def test_a_full_server_has_room_again_once_everything_is_ingested(server: ConfiguredServer) -> None:
    """Otherwise it stays full for ever, with nothing unread in it, until somebody raises its maxmemory."""
    stream = stream_of(server)
    fill(stream)
    stream.ack([entry.id for entry in stream.read("c", count=10_000, block_ms=0)])
    stream.trim()
    stream.append(b"x")


def test_more_memory_frees_a_full_server(server: ConfiguredServer) -> None:
    """What the runbook says to do at three in the morning."""
    stream = stream_of(server)
    n_accepted = fill(stream)
    stream.client.config_set("maxmemory", 16 << 20)
    stream.ack([entry.id for entry in stream.read("c", count=10_000, block_ms=0)])
    assert (n_accepted > 0, stream.backlog().length) == (True, 0)
    stream.client.config_set("maxmemory", 4 << 20)
    stream.append(b"x")


def fill(stream: TurnStream) -> int:
    """Append until the server refuses; gives how many entries it accepted."""
    stream.ensure_group()
    stream.client.config_set("maxmemory", 4 << 20)
    for n_accepted in range(10_000):
        try:
            stream.append(b"x" * 4096)
        except Backpressure:
            return n_accepted
    raise AssertionError("it never refused")


def test_a_killed_server_has_what_it_wrote(server: ConfiguredServer) -> None:
    """A publisher was told that it is safe, and will not send it again."""
    stream = stream_of(server)
    ids = [stream.append(b"%d" % n) for n in range(200)]
    # It is put off while the disk is busy: redis.conf says so.
    eventually(lambda: not stream.client.info("persistence")["aof_buffer_length"], "it is flushed")
    server.kill()
    server.start()
    assert [entry.id for entry in stream_of(server).read("c", count=1000, block_ms=0)] == ids


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_the_strict_alternative_loses_nothing_to_a_kill(start_configured: StartConfigured, kind: str) -> None:
    """What redis.conf promises of ``appendfsync always``, at whatever moment the kill comes."""
    server = start_configured(kind, options=("--appendfsync", "always"))
    ids = [stream_of(server).append(b"%d" % n) for n in range(50)]
    server.kill()
    server.start()
    assert [entry.id for entry in stream_of(server).read("c", count=1000, block_ms=0)] == ids


def test_the_health_check_tells_a_server_from_none(start_configured: StartConfigured) -> None:
    """A check that always succeeds would start ingesters before there is a server, and never show its loss."""
    if shutil.which("redis-cli") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no redis-cli on this machine")
    server = start_configured("redis")
    [line] = re.findall(r"\[CMD, (redis-cli.*)\]", (DEPLOY / "compose.yaml").read_text())
    command = line.replace("/run/turnstream/server.sock", str(server.socket)).split(", ")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    server.kill()
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_the_image_exports_the_model_as_the_unit_does(models_dir: Path, tmp_path: Path) -> None:
    """The line runs while the image is built, where nobody looks; containers then start offline."""
    dockerfile, unit = (DEPLOY / "Dockerfile").read_text(), DEPLOY / "systemd" / "turnstream-folder.service"
    [line] = re.findall(r"^RUN (\[.*\])$", dockerfile, re.MULTILINE)
    command = json.loads(line)
    [unit_line] = re.findall(r"^ExecStartPre=(.*)$", unit.read_text(), re.MULTILINE)
    assert shlex.split(unit_line)[1:] == command[1:]
    environment = service_environment(TURNSTREAM_EMBEDDING__CACHE_DIR=str(models_dir))
    assert command[0] == "turnstream"
    verb = [sys.executable, "-m", "workers.cli", *command[1:]]
    subprocess.run(verb, env={**environment, "TURNSTREAM_DATA_DIR": str(tmp_path)}, cwd=DEPLOY.parent, check=True)
    assert list(models_dir.glob("all-MiniLM-L6-v2-*/manifest.json"))


def service_environment(**settings: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
    return {**inherited, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **settings}


def unit_text(unit: str) -> str:
    drop_in = DEPLOY / "systemd" / f"{unit}.service.d" / "sessions.conf"
    template = unit.partition("@")[0] + ("@" if "@" in unit else "")
    text = (DEPLOY / "systemd" / f"{template}.service").read_text()
    return text + (drop_in.read_text() if drop_in.exists() else "")


def unit_command(unit: str) -> list[str]:
    """The last ExecStart of a unit, on the program under test."""
    line = re.findall(r"^ExecStart=(.+)$", unit_text(unit), re.MULTILINE)[-1].replace("%i", "0")
    program = f"{sys.executable} -P -m workers.cli"
    return shlex.split(line.replace("/opt/turnstream/bin/turnstream", program))


def test_the_units_processes_serve_and_end_in_time(start_configured: StartConfigured, data_dir: Path) -> None:
    """The one rehearsal of the units: their own command lines, on a server with our configuration."""
    server = start_configured("redis")
    environment = service_environment(
        TURNSTREAM_DATA_DIR=str(data_dir),
        TURNSTREAM_REDIS__URL=server.url,
        TURNSTREAM_EMBEDDING__BACKEND="hashing",
        TURNSTREAM_SUMMARY__SETTLE_S="0.1",
        TURNSTREAM_WORKERS__N_WORKERS="3",  # a setting of somebody's file must not start a second set of workers
    )
    processes = {unit: subprocess.Popen(unit_command(unit), env=environment) for unit in UNITS}
    try:
        with Publisher(server.url) as publisher:
            publisher.publish_many(turns("first", 20))
            for scope in SCOPES:
                publisher.close_session(scope, "s-1")
        wait = [sys.executable, "-m", "workers.cli", "wait", "--timeout", "60"]
        subprocess.run(wait, env=environment, check=True)
        counts = Registry(data_dir).counts()
        assert (counts.searchable, counts.summarised) == (60, 3)
        assert all(process.poll() is None for process in processes.values())
        assert psutil.Process(processes["turnstream-folder"].pid).children() == []
    finally:
        for unit in reversed(UNITS):
            processes[unit].send_signal(signal.SIGTERM)
        limits = {unit: re.findall(r"^TimeoutStopSec=(\d+)s$", unit_text(unit), re.MULTILINE)[-1] for unit in UNITS}
        ended = {unit: processes[unit].wait(int(limits[unit])) for unit in UNITS}
    assert ended == dict.fromkeys(UNITS, 0)


def turns(prefix: str, n_each: int) -> list[Turn]:
    return [
        Turn(
            scope=scope,
            session_id="s-1",
            role="user",
            content=f"{prefix} thing number {n} that {scope.id} said",
            timestamp=1_700_000_000 + n,
            event_id=f"{scope.id}-{prefix}-{n}",
        )
        for n in range(n_each)
        for scope in SCOPES
    ]


@pytest.fixture
def backup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("backup", DEPLOY / "backup.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr] # a file has a loader
    return module


class HandIngester:
    """The ingester, working when the test says so."""

    def __init__(self, server: RunningServer, data_dir: Path) -> None:
        settings = load_settings(data_dir=data_dir, redis={"url": server.url}, stream={"block_ms": 1})
        self._ingester = Ingester(settings, server.url, name="ingester-0", clock=lambda: 1)
        self.stream = stream_of(server)

    def take_all(self) -> None:
        """Apply everything unread or pending, and have the server forget it."""
        self.stream.ensure_group()
        self._ingester._ingest_all(self._ingester._own_pending())
        self._ingester._step()
        self.stream.trim()

    def close(self) -> None:
        """Close everything."""
        self._ingester.close()


def run_backup(server: RunningServer, data_dir: Path, target: Path) -> subprocess.CompletedProcess[str]:
    environment = service_environment(TURNSTREAM_DATA_DIR=str(data_dir), TURNSTREAM_REDIS__URL=server.url)
    command = [sys.executable, str(DEPLOY / "backup.py"), str(target)]
    return subprocess.run(command, env=environment, cwd=DEPLOY.parent, text=True, capture_output=True, check=False)


def event_ids(data_dir: Path) -> list[str]:
    ids: list[str] = []
    for folder in Shards(data_dir).walk():
        with closing(connect_ledger(folder / "ledger.sqlite", query_only=True)) as connection:
            ids += [str(row[0]) for row in connection.execute("SELECT event_id FROM turns")]
    return sorted(ids)


def expected(*prefixes: str, n_each: int = 20) -> list[str]:
    return sorted(turn.event_id for prefix in prefixes for turn in turns(prefix, n_each))


def test_a_backup_of_a_running_deployment_restores_all_of_it(
    start_configured: StartConfigured, data_dir: Path, tmp_path: Path
) -> None:
    """What is in the ledgers, in their write-ahead logs, and still in the stream; only for this user."""
    server = start_configured("redis")
    ingester = HandIngester(server, data_dir)
    with Publisher(server.url) as publisher:
        publisher.publish_many(turns("ingested", 20))
        ingester.take_all()  # and the ledgers stay open, their rows in the -wal
        publisher.publish_many(turns("waiting", 20))
    ran = run_backup(server, data_dir, tmp_path / "copy")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "exists already" in run_backup(server, data_dir, tmp_path / "copy").stderr
    server.kill()
    ingester.close()
    restored = tmp_path / "copy" / "data"
    assert event_ids(restored) == expected("ingested")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "copy").rglob("*")} == {0}
    for path in restored.rglob("ledger.sqlite"):
        with closing(apsw.Connection(str(path))) as connection:
            assert connection.pragma("journal_mode") == "wal"
    again = HandIngester(start_configured("redis", tmp_path / "copy" / "server"), restored)
    again.take_all()
    again.close()
    assert event_ids(restored) == expected("ingested", "waiting")


def test_what_moves_during_a_backup_is_in_it_once(
    start_configured: StartConfigured, data_dir: Path, tmp_path: Path, backup: ModuleType
) -> None:
    """The reason for the order: events leave the stream, trimmed, between the two halves of a backup."""
    server = start_configured("valkey")
    ingester = HandIngester(server, data_dir)
    with Publisher(server.url) as publisher:
        publisher.publish_many(turns("moving", 20))
    ingester.stream.read("ingester-0", count=30, block_ms=0)  # half of them are pending
    backup.copy_stream(ingester.stream.client, tmp_path / "server")
    ingester.take_all()
    assert ingester.stream.backlog().length == 0
    assert backup.copy_ledgers(data_dir, tmp_path / "data") == []
    ingester.close()
    again = HandIngester(start_configured("valkey", tmp_path / "server"), tmp_path / "data")
    assert again.stream.unread() == 60
    again.take_all()
    again.close()
    assert event_ids(tmp_path / "data") == expected("moving")


def test_a_rewrite_during_a_backup_tears_nothing(
    start_configured: StartConfigured, tmp_path: Path, backup: ModuleType
) -> None:
    """A rewrite replaces the files that are being copied."""
    server = start_configured("redis")
    stream = stream_of(server)
    ids = stream.append_many([b"%d" % n * 1000 for n in range(300)])
    rewrites = threading.Thread(target=rewrite, args=(server.url, 5))
    rewrites.start()
    backup.copy_stream(stream.client, tmp_path / "server")
    rewrites.join()
    restored = stream_of(start_configured("redis", tmp_path / "server"))
    assert [entry.id for entry in restored.read("c", count=1000, block_ms=0)] == ids


def rewrite(url: str, n_times: int) -> None:
    with connect(url, timeout_s=5) as client:
        for _ in range(n_times):
            client.bgrewriteaof()
            eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "it is rewritten")


def test_a_damaged_ledger_is_named_and_the_others_copied(
    start_configured: StartConfigured, data_dir: Path, tmp_path: Path
) -> None:
    """A backup that stopped at it would keep nothing; one that hid it would be found out at the restore."""
    server = start_configured("redis")
    ingester = HandIngester(server, data_dir)
    with Publisher(server.url) as publisher:
        publisher.publish_many(turns("said", 20))
    ingester.take_all()
    ingester.close()
    damaged = Shards(data_dir).ledger_path(SCOPES[0])
    with closing(connect_ledger(damaged)) as connection:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    with damaged.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (damaged.stat().st_size - 4096))
    ran = run_backup(server, data_dir, tmp_path / "copy")
    assert ran.returncode == 1
    assert damaged.parent.name in ran.stderr
    assert len(event_ids(tmp_path / "copy" / "data")) == 40
