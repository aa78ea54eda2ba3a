"""The files a reader keeps open are bounded, and what cannot be opened says why and what to do."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import pytest

from pipeline.errors import ShardError, TransientError
from pipeline.records import Scope
from pipeline.shards import LEDGER_FILE, Shards
from retrieval.connections import idle_limit
from retrieval.reader import ShardReaders
from retrieval.summary_store import SessionSummaryStore
from tests.fakes import FakeEmbedder
from tests.ledgers import remember, turn

MODEL = FakeEmbedder().model_key
SCOPES = [Scope("user", f"u{i}") for i in range(6)]


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    made = Shards(tmp_path)
    for scope in SCOPES:
        remember(made, scope, [turn(scope, scope.id, "words")], FakeEmbedder())
    return made


def open_ledgers(shards: Shards) -> list[str]:
    """Folders of these shards' ledger files that this process has open; another test may have some open."""
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return [
        target.parent.name for target in targets if target.name == LEDGER_FILE and target.is_relative_to(shards.root)
    ]


@contextmanager
def all_files_taken_but(n_left: int) -> Iterator[None]:
    """Open files until only a few more can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(n_left):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def read(readers: ShardReaders, scope: Scope) -> bool:
    with readers.view(scope, MODEL) as view:
        return view is not None and view.has_traces()


def test_idle_connections_are_bounded_over_all_shards(shards) -> None:
    """Eight for each of 256 shards would be six thousand files; a process may often open a thousand."""
    with closing(ShardReaders(shards, max_idle=4)) as readers:
        for scope in SCOPES:
            with readers.view(scope, MODEL) as one, readers.view(scope, MODEL) as other:
                assert one is not None
                assert other is not None
                assert one.has_traces() is other.has_traces() is True
        assert len(readers.idle) == 4
        assert set(open_ledgers(shards)) == {shards.folder(scope).name for scope in SCOPES[-2:]}
    assert open_ledgers(shards) == []


@pytest.mark.parametrize(("max_files", "n"), [(64, 8), (1024, 256), (1_048_576, 512), (resource.RLIM_INFINITY, 512)])
def test_the_bound_leaves_the_bot_files_of_its_own(max_files: int, n: int) -> None:
    """The usual limit of 1024 keeps 256 for sockets and snapshots."""
    assert idle_limit(max_files) == n


@pytest.mark.parametrize("n_left", [0, 1, 2])
def test_too_many_open_files_is_no_fault_of_the_ledger(shards, n_left) -> None:
    """To say 'check who owns it' would mislead; SQLite opens three files, one after the other."""
    with closing(ShardReaders(shards)) as readers:
        with all_files_taken_but(n_left), pytest.raises(TransientError, match=r"too many files open.*ulimit -n"):
            read(readers, SCOPES[0])
        assert read(readers, SCOPES[0])


def test_a_full_process_closes_what_is_idle_before_it_gives_up(shards) -> None:
    """Another library may take the files that the bound has left."""
    with closing(ShardReaders(shards)) as readers:
        assert read(readers, SCOPES[0])
        with all_files_taken_but(1):
            assert read(readers, SCOPES[1])


@pytest.mark.parametrize("content", [b"", b"no database at all" * 1000, None], ids=["empty", "garbage", "foreign"])
def test_a_file_that_is_no_ledger_names_itself_and_what_to_do(shards, content) -> None:
    """A bot catches our errors; a raw one of SQLite would end it."""
    path = shards.ledger_path(SCOPES[0])
    for file in path.parent.glob(f"{LEDGER_FILE}*"):
        file.unlink()
    if content is None:
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("CREATE TABLE meta (key, value)")
    else:
        path.write_bytes(content)
    with closing(ShardReaders(shards)) as readers:
        with pytest.raises(ShardError, match=r"ledger\.sqlite is .*; restore it from a backup"):
            read(readers, SCOPES[0])
        with pytest.raises(ShardError, match=r"ledger\.sqlite is .*; restore it from a backup"):
            SessionSummaryStore(readers, FakeEmbedder()).index_session(SCOPES[0], "s", "words")


def test_a_refused_ledger_is_closed_again(shards) -> None:
    """A bot that asks again and again must not lose a file each time."""
    mine, theirs = shards.folder(SCOPES[0]), shards.folder(SCOPES[1])
    mine.rename(mine.with_name("away"))
    theirs.rename(mine)
    with closing(ShardReaders(shards)) as readers:
        with pytest.raises(ShardError, match="another scope") as refused:  # its traceback would keep a leak alive
            read(readers, SCOPES[0])
        assert open_ledgers(shards) == []
        assert "moved by hand" in str(refused.value)
