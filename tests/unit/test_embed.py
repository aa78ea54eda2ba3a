"""Embedders: what holds of every backend, what the exported model owes its original, and token vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from pipeline import embed
from pipeline.errors import ConfigError, TransientError
from tests.embedding import WHEEL, load

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


def test_an_unknown_backend_is_a_setting_to_correct(tmp_path) -> None:
    """Not a KeyError from somewhere inside."""
    with pytest.raises(ConfigError, match="TURNSTREAM_EMBEDDING__BACKEND"):
        load(tmp_path, "tensorflow")


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
