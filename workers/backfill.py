"""Backfill: a transcript file becomes events in the stream, resumable and idempotent.

After a kill the file is taken up at the last position noted in ``<data_dir>/backfill/``; what was published twice has
the same event ids, so it is applied once. What was malformed is noted with the position, so that the run that ends
the file names all of it. The publisher's back-pressure slows reading down to the speed of ingest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.importers import FOLDERS, Imported, Malformed, reader
from pipeline.publish import Publisher
from pipeline.records import Scope
from pipeline.shards import make_private_folder

_SLICE_EVENTS = 1_000
_MALFORMED_KEPT = 1_000


@dataclass(slots=True)
class Report:
    """What became of a file so far; what was malformed before it was taken up counts too, and is named."""

    n_published: int = 0
    n_malformed: int = 0
    resumed_at: int = 0
    malformed: list[str] = field(default_factory=list)


class Backfill:
    """Publishes transcript files.

    Args:
        publisher: where the events go.
        data_dir: where positions are noted.
    """

    def __init__(self, publisher: Publisher, data_dir: Path) -> None:
        self._publisher = publisher
        self._folder = data_dir / "backfill"

    def run(
        self, path: Path, form: str, scope: Scope | None, *, restart: bool, on_progress: Callable[[int, int], None]
    ) -> Report:
        """Publish one file from where the last run stopped.

        Args:
            path: the transcript; a folder of them where the format has one file for each session.
            form: its format.
            scope: where its turns belong, for formats that do not say.
            restart: begin at the start even if an earlier run was cut off.
            on_progress: told (events published so far, position in the file).

        Raises:
            ConfigError: the format or file cannot be used, or needs a scope.
            Backpressure: ingest made no room in time; run it again to go on.
            PublishError: the server is lost; run it again to go on.
        """
        if not path.is_file() and not (path.is_dir() and form in FOLDERS):
            raise ConfigError(f"{path} is no file that can be read")
        note = _Note(self._folder, path, form, scope)
        report = Report() if restart else note.read()
        items = reader(form)(path, scope, start=report.resumed_at)
        while some := list(islice(items, _SLICE_EVENTS)):
            self._publisher.publish_events(item.event for item in _events_of(some, report))
            note.write(some[-1].position, report)
            on_progress(report.n_published, some[-1].position)
        note.remove()
        return report


def _events_of(items: list[Imported | Malformed], report: Report) -> Iterator[Imported]:
    for item in items:
        if isinstance(item, Imported):
            report.n_published += 1
            yield item
            continue
        named = str(item)
        if item.position == report.resumed_at and named in report.malformed:
            continue  # the value at which the earlier run ended is read again
        report.n_malformed += 1
        if len(report.malformed) < _MALFORMED_KEPT:
            report.malformed.append(named)


class _Note:
    """How far one file has been published, and what of it was malformed; for this content only."""

    def __init__(self, folder: Path, path: Path, form: str, scope: Scope | None) -> None:
        make_private_folder(folder)
        status = path.stat()
        key = f"{path.resolve()}\x00{form}\x00{scope}".encode()
        self._identity = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
        self._path = folder / f"{hashlib.blake2b(key, digest_size=16).hexdigest()}.json"

    def read(self) -> Report:
        try:
            noted = json.loads(self._path.read_bytes())
            if noted["identity"] == self._identity:
                return Report(0, int(noted["n_malformed"]), int(noted["position"]), list(noted["malformed"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return Report()  # from the start: everything is idempotent

    def write(self, position: int, report: Report) -> None:
        draft = self._path.with_suffix(".tmp")
        draft.touch(mode=0o600)
        noted = {"position": position, "n_malformed": report.n_malformed, "malformed": report.malformed}
        draft.write_text(json.dumps({"identity": self._identity, **noted}))
        draft.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
