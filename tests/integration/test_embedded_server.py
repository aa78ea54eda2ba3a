"""The embedded server: persistence, privacy, and one server per folder whatever was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ConfigError, ServerUnreachableError, TransientError
from pipeline.stream import check_server, connect, socket_path
from workers import become_server
from workers.embedded import EmbeddedServer
from workers.supervisor import Backoff, ChildSpec, Supervisor

READY_S = 20
Run = Callable[[EmbeddedServer], "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> Iterator[Run]:
    """Start a server as the supervisor would, and end it afterwards."""
    running: list[subprocess.Popen[bytes]] = []

    def start(server: EmbeddedServer) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(server.command())
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


def append(server: EmbeddedServer, n: int) -> None:
    with connect(server.url, timeout_s=5) as client:
        for k in range(n):
            client.xadd("s", {"n": k})


def length(server: EmbeddedServer) -> int:
    with connect(server.url, timeout_s=5) as client:
        return int(client.xlen("s"))


def test_it_is_fit_private_and_only_on_its_socket(data_dir, run) -> None:
    """Turns are user data: nobody else on the machine may read or reach them."""
    server = EmbeddedServer(data_dir)
    assert not server.is_ready()
    process = run(server)
    server.wait_ready(READY_S)
    append(server, 1)
    with connect(server.url, timeout_s=5) as client:
        assert check_server(client) == []
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
    assert not psutil.Process(process.pid).net_connections("tcp")
    for path in [server.folder, *server.folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("durability", ["everysec", "strict"])
def test_events_survive_the_server_being_killed(data_dir, run, durability) -> None:
    """A killed process loses nothing that it flushed, by itself before it answers; it loads it before it serves."""
    server = EmbeddedServer(data_dir, durability=durability)
    process = run(server)
    server.wait_ready(READY_S)
    append(server, 100)
    if durability == "everysec":
        with connect(server.url, timeout_s=60) as client:
            assert client.waitaof(1, 0, 30_000)[0] == 1
    process.kill()
    process.wait()
    run(server)
    server.wait_ready(READY_S)
    assert length(server) == 100


def test_a_torn_tail_costs_only_the_tail(data_dir, run) -> None:
    """A power cut in the middle of a write must not need a repair tool."""
    server = EmbeddedServer(data_dir)
    process = run(server)
    server.wait_ready(READY_S)
    append(server, 10)
    process.kill()
    process.wait()
    (log_file,) = server.folder.glob("appendonlydir/*.incr.aof")
    os.truncate(log_file, log_file.stat().st_size - 3)
    run(server)
    server.wait_ready(READY_S)
    assert length(server) == 9


def test_a_left_over_server_is_ended_cleanly_and_replaced(data_dir, run) -> None:
    """After the parent was killed, its server may still hold the folder; nobody would notice that one's death."""
    server = EmbeddedServer(data_dir)
    left_over = run(server)
    server.wait_ready(READY_S)
    append(server, 50)
    successor = run(server)
    assert left_over.wait(READY_S) == 0
    server.wait_ready(READY_S)
    assert length(server) == 50
    with connect(server.url, timeout_s=5) as client:
        assert client.info("server")["process_id"] == successor.pid


def test_a_stale_pid_never_costs_another_process_its_life(data_dir, run) -> None:
    """The pid in the lock file may belong to anyone by now."""
    server = EmbeddedServer(data_dir)
    server.command()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        (server.folder / "server.lock").write_text(str(bystander.pid))
        run(server)
        server.wait_ready(READY_S)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_hung_server_counts_as_not_ready(data_dir, run) -> None:
    """Being there is not enough; it has to answer."""
    server = EmbeddedServer(data_dir)
    process = run(server)
    server.wait_ready(READY_S)
    process.send_signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(ServerUnreachableError, match=r"valkey\.log"):
            server.wait_ready(0.1)
        assert time.monotonic() - start < 10
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_server_that_never_starts_is_reported_with_its_log(data_dir) -> None:
    """The log is where the reason stands."""
    with pytest.raises(ServerUnreachableError, match=r"valkey\.log"):
        EmbeddedServer(data_dir).wait_ready(0.05)


def test_a_full_disk_is_said_before_the_server_is_started(data_dir, monkeypatch) -> None:
    """It would end at its first write, again and again, and its log is on the same disk."""
    facts = os.statvfs(data_dir)
    full = os.statvfs_result((*facts[:3], 0, 0, *facts[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(TransientError, match=r"no space left for .*server; free some"):
        EmbeddedServer(data_dir).command()


@pytest.mark.parametrize("name", ["deep/" * 30 + "end", 'quote " back\\slash', "späce and ünïcode ✓", "a%20b?c#d"])
def test_any_data_folder_works(tmp_path, run, monkeypatch, name, request) -> None:
    """A socket's path may have about 100 bytes and a URL reserves characters; a folder's name knows neither."""
    run_dir = Path(tempfile.mkdtemp(prefix="ts-"))  # short: the tests' own folder may be too long a path itself
    request.addfinalizer(lambda: shutil.rmtree(run_dir, ignore_errors=True))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_dir))
    folder = tmp_path / name
    folder.mkdir(parents=True)
    server = EmbeddedServer(folder)
    run(server)
    server.wait_ready(READY_S)
    append(server, 1)
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    assert server.folder.joinpath("appendonlydir").is_dir()


def test_a_planted_socket_folder_is_refused(tmp_path, monkeypatch) -> None:
    """In a shared temporary folder anyone may put a link where we are about to listen."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / ("deep" * 40)
    (tmp_path / "elsewhere").mkdir()
    socket_path(folder).parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="TURNSTREAM_DATA_DIR"):
        EmbeddedServer(folder).command()


def test_under_the_supervisor_a_killed_server_comes_back_with_its_data(data_dir) -> None:
    """The two are made for each other: restart, lock and parent-death signal have to agree."""
    server, pids = EmbeddedServer(data_dir), list[int]()

    def act() -> None:
        pid = supervisor.pids().get("server")
        if pid is None or pid in pids or not server.is_ready():
            return
        pids.append(pid)
        if len(pids) == 1:
            append(server, 5)
            os.kill(pid, signal.SIGKILL)
        else:
            supervisor.stop()

    spec = ChildSpec(name="server", command=server.command, ready=server.is_ready)
    supervisor = Supervisor([spec], backoff=Backoff(first_s=0.05), on_tick=act)
    supervisor.run()
    assert len(pids) == 2
    assert not server.is_ready()
    with subprocess.Popen(server.command()) as process:
        server.wait_ready(READY_S)
        assert length(server) == 5
        process.terminate()


def test_a_left_over_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hear that it should end; the next start must not wait for it for ever."""
    config = tmp_path / "valkey.conf"
    config.touch()
    lock = os.open(tmp_path / "server.lock", os.O_RDWR | os.O_CREAT)
    held = os.open(tmp_path / "server.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with subprocess.Popen(["tail", "-f", str(config)], pass_fds=[held]) as hanging:
        os.close(held)
        os.kill(hanging.pid, signal.SIGSTOP)
        os.waitpid(hanging.pid, os.WUNTRACED)  # the kernel would deliver a SIGTERM first
        os.pwrite(lock, str(hanging.pid).encode(), 0)
        monkeypatch.setattr(become_server, "_END_WITHIN_S", 0.2)
        become_server._take(lock, ["valkey", str(config)])
        assert hanging.wait(10) == -signal.SIGKILL
    os.close(lock)
