"""A store of windows with the server it runs on, and bots of any number of hosts that share it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pipeline.embed.hashing import HashingEmbedder
from pipeline.ledger.connection import connect as connect_ledger
from pipeline.ledger.connection import read_meta
from pipeline.records import Scope
from pipeline.settings import ContextSettings, EmbeddingSettings, Settings
from pipeline.shards import Shards
from pipeline.stream import connect
from retrieval import Memory, open_memory
from retrieval.context.backends.protocol import SessionKey
from tests.conftest import RunningServer
from tests.postgres import RunningPostgres

SCOPE = Scope("user", "u1")


@dataclass
class Store:
    """A backend with its server, if it has one; opens bots of any number of hosts."""

    name: str
    url: str | None
    folder: Path
    server: RunningServer | RunningPostgres | None = None
    opened: ExitStack = field(default_factory=ExitStack)

    def settings(self, host: str = "host", **values: Any) -> Settings:
        """The settings of one host."""
        url = SecretStr(self.url) if self.url else None
        return Settings(
            data_dir=self.folder / host,
            embedding=EmbeddingSettings(backend="hashing"),
            context=ContextSettings(backend=self.name, url=url, **values),  # type: ignore[arg-type]
        )

    def bot(self, host: str = "host", clock: Callable[[], int] | None = None, **values: Any) -> Memory:
        """A bot's memory on a host."""
        memory = open_memory(settings=self.settings(host, **values), embedder=HashingEmbedder(), clock=clock)
        return self.opened.enter_context(closing(memory))

    def kept(self, memory: Memory, session_id: str) -> list[str]:
        """The ids in the store itself, without what a ledger adds."""
        recent = memory._session_resources.windows.recent(SessionKey(SCOPE, session_id))
        return [kept.entry.entry_id for kept in recent]

    def raw(self) -> bytes:
        """All that the server holds."""
        if isinstance(self.server, RunningPostgres):
            rows = self.server.ask("SELECT record, set_aside, session, scope FROM turnstream_windows")
            return b"|".join(value or b"" for row in rows for value in row)
        assert isinstance(self.server, RunningServer)
        with connect(self.server.url, timeout_s=5) as client:
            found = []
            for key in client.scan_iter():
                value = client.get(key) if client.type(key) == b"string" else client.dump(key)
                found += [key, value or b""]
            return b"|".join(found)

    def damage(self, session_id: str, raw: bytes) -> None:
        """Put something else where a session's record is."""
        key = SessionKey(SCOPE, session_id)
        if isinstance(self.server, RunningPostgres):
            self.server.ask("UPDATE turnstream_windows SET record = %s WHERE session = %s", raw, key.digest)
            return
        assert isinstance(self.server, RunningServer)
        with connect(self.server.url, timeout_s=5) as client:
            client.set(f"turnstream:window:{{{key.scope_digest.hex()}}}:{key.digest.hex()}", raw)

    def meta(self) -> dict[str, str]:
        """What the first host's ledger says of itself."""
        path = Shards(self.folder / "host").ledger_path(SCOPE)
        with closing(connect_ledger(path, query_only=True)) as connection:
            return read_meta(connection)
