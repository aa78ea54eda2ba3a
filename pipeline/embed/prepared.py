"""The exported model on disk: made once, by a child process, under a lock; whole or made again.

It is made in ``.<id>-<revision>.<…>.tmp`` and renamed. A kill leaves that draft, which the next export removes; the
lock ends with its process. A folder whose files do not fit their digests counts as none.

Why digests: a model with a changed byte loads, and gives vectors that look like any others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import filelock
import structlog

from pipeline.embed.offline import VARIABLES
from pipeline.embed.source import ModelSource, find_source
from pipeline.errors import ConfigError, TransientError

MANIFEST: Final = "manifest.json"
TOKENIZER: Final = "tokenizer"
PROJECTION: Final = "projection"
FORMAT: Final = 2
EXIT_UNSUPPORTED: Final = 2
"""Exit code of the exporting child for a model that will never work; its last line on stderr says why."""

_EXPORT_TIMEOUT_S: Final = 600.0
_SETTING: Final = "TURNSTREAM_EMBEDDING__CACHE_DIR"

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """What the exporting child found out about a model, and the digests of what it wrote.

    ``files`` maps a backend, ``tokenizer`` or ``projection`` to a file name in the folder and its SHA-256.
    """

    id: str
    revision: str
    dimension: int
    max_seq_length: int
    pooling: str
    normalise: bool
    pad_id: int
    files: dict[str, list[str]]
    format: int = FORMAT
    folder: Path = dataclasses.field(default=Path(), compare=False)

    def path(self, role: str) -> Path:
        """Give the file of a backend, or the tokenizer's."""
        return self.folder / self.files[role][0]

    def write(self, folder: Path) -> None:
        """Write the manifest, which makes the folder count as whole."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k != "folder"}
        (folder / MANIFEST).write_text(json.dumps(fields, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path, *roles: str) -> PreparedModel | None:
        """Read a prepared folder, and check the files of ``roles``; None when anything is missing or changed."""
        try:
            model = cls(**json.loads((folder / MANIFEST).read_bytes()), folder=folder)
            whole = model.format == FORMAT and all(
                digest_of(model.path(role)) == model.files[role][1] for role in roles
            )
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return model if whole else None


def prepare_model(*, model: str, models_dir: Path, backend: str = "onnx-int8") -> PreparedModel:
    """Export a model unless that is done already (20 s); many processes may ask at once.

    Args:
        model: the bundled name or the path of a sentence-transformers folder, which is only read.
        models_dir: where exported models are kept.
        backend: the one whose file is checked; both ONNX files are always made.

    Raises:
        ConfigError: the model cannot be used, or the folder not be written.
        TransientError: the export was killed or took too long.
    """
    source = find_source(model)
    return install(
        _folder_of(source, models_dir),
        lambda target: _export_in_child(source, target),
        roles=(backend, TOKENIZER, PROJECTION),
    )


def find_prepared(*, model: str, models_dir: Path, backend: str = "onnx-int8") -> PreparedModel | None:
    """Look for a whole exported model; None when it is yet to be exported. Makes nothing.

    Args:
        model: as for `prepare_model`.
        models_dir: where exported models are kept.
        backend: the one whose file is checked.

    Raises:
        ConfigError: the model cannot be used.
    """
    return PreparedModel.read(_folder_of(find_source(model), models_dir), backend, TOKENIZER, PROJECTION)


def _folder_of(source: ModelSource, models_dir: Path) -> Path:
    return models_dir / f"{source.id}-{source.revision}"


def install(folder: Path, make: Callable[[Path], None], *, roles: tuple[str, ...]) -> PreparedModel:
    """Give the whole folder, or let ``make`` fill one beside it and put that in its place.

    Raises:
        TransientError: what was made is not whole.
    """
    if prepared := PreparedModel.read(folder, *roles):
        return prepared
    with _locked(folder):
        if prepared := PreparedModel.read(folder, *roles):  # somebody else was faster
            return prepared
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        log.info("model.export_begun", model=folder.name, takes="about half a minute, once")
        target = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            make(target)
            if PreparedModel.read(target, *roles) is None:
                raise TransientError(
                    f"the export of {folder.name} left files that do not fit their manifest; try again"
                )
            shutil.rmtree(folder, ignore_errors=True)
            target.rename(folder)
        finally:
            shutil.rmtree(target, ignore_errors=True)
        log.info("model.prepared", model=folder.name)
    return dataclasses.replace(_must(PreparedModel.read(folder, *roles), folder))


def digest_of(path: Path) -> str:
    """Give a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _must(prepared: PreparedModel | None, folder: Path) -> PreparedModel:
    if prepared is None:
        raise TransientError(f"{folder} changed just after it was made; try again")
    return prepared


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_name(f".{folder.name}.lock"), timeout=_EXPORT_TIMEOUT_S):
            yield
    except filelock.Timeout as error:
        raise TransientError(f"another process has been exporting {folder} for {_EXPORT_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise ConfigError(
            f"the model cannot be kept in {folder}: {error}; set {_SETTING} to another folder"
        ) from error


def _export_in_child(source: ModelSource, target: Path) -> None:
    command = [sys.executable, "-m", "pipeline.embed.export", source.id, source.revision, str(source.folder)]
    try:
        child = subprocess.run(  # noqa: S603 - our own interpreter and module
            [*command, str(target)], env=_offline(), capture_output=True, timeout=_EXPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"the export of {source.folder} took more than {_EXPORT_TIMEOUT_S:.0f} s") from error
    if child.returncode == 0:
        return
    said = child.stderr.decode(errors="replace").strip().splitlines()[-1:]
    if child.returncode == -signal.SIGKILL:
        raise TransientError(f"the export of {source.folder} was killed; it needs about 2 GB of free memory")
    reason = said[0] if said else f"exit code {child.returncode}"
    raise ConfigError(f"{source.folder} cannot be exported: {reason}")


def _offline() -> dict[str, Any]:
    return {**os.environ, **VARIABLES}
