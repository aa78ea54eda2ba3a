"""The summary cache: whole or not at all, one maker at a time, and nothing trusted without proof."""

from __future__ import annotations

import io
import json
import multiprocessing
import resource
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, SummaryError
from pipeline.summarise import Completion, SessionSummarizer, SummaryCache
from tests.fakes import CountingInvoker

TEXT = "Ann: we fly to Lisbon on 3 May 2024."
SPAWN = multiprocessing.get_context("spawn")  # a forked child would inherit the runner's threads


def summarizer(invoker: Any, folder: Path) -> SessionSummarizer:
    return SessionSummarizer(invoker, "m-1", folder, first_wait_s=0.0, clock=lambda: 1_700_000_000.0)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """Give a file with one summary in it."""
    summarizer(CountingInvoker("They fly to Lisbon — 3 May 2024."), tmp_path).summarize("s-1", TEXT)
    return only_file(tmp_path)


def test_file_says_what_it_is(cached) -> None:
    """An operator can read it, and nobody else can: 0600."""
    content = json.loads(cached.read_text(encoding="utf-8"))["summary"]
    assert content["text"] == "They fly to Lisbon — 3 May 2024."
    assert content["key"] == cached.stem
    assert content["created"] == "2023-11-14T22:13:20+00:00"
    assert (content["model_id"], content["answered_by"], content["tokens_out"]) == ("m-1", "counting-1", 3)
    assert stat.S_IMODE(cached.stat().st_mode) == 0o600


def test_folder_is_private(tmp_path) -> None:
    """Summaries are user data."""
    SummaryCache(tmp_path / "deep" / "summaries")
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "deep" / "summaries").stat().st_mode) == 0o700


def _flip_a_byte(raw: bytes) -> bytes:
    at = raw.index(b"Lisbon")
    return raw[:at] + b"l" + raw[at + 1 :]


def _with(name: str, value: Any) -> Any:
    def damage(raw: bytes) -> bytes:
        outer = json.loads(raw)
        outer["summary"][name] = value
        return json.dumps(outer).encode()

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda raw: raw[: len(raw) // 2], id="torn"),
        pytest.param(_flip_a_byte, id="one letter changed"),
        pytest.param(lambda raw: b"\xff" + raw[1:], id="not UTF-8"),
        pytest.param(lambda _: b"[" * 100_000, id="nested"),
        pytest.param(lambda _: b"null", id="null"),
        pytest.param(lambda _: b"[]", id="list"),
        pytest.param(lambda _: b'{"summary": 1, "sha256": 2}', id="other types"),
        pytest.param(lambda _: b"They fly to Lisbon.", id="plain text"),
        pytest.param(_with("tokens_in", 7), id="metadata changed"),
        pytest.param(_with("surprise", 7), id="unknown field"),
    ],
)
def test_what_is_damaged_is_a_miss_and_replaced(cached, damage) -> None:
    """A wrong summary is worse than a second call."""
    cached.write_bytes(damage(cached.read_bytes()))
    invoker = CountingInvoker()
    first = summarizer(invoker, cached.parent).complete("s-1", TEXT)
    second = summarizer(invoker, cached.parent).complete("s-1", TEXT)
    assert (first.cached, second.cached, invoker.n_calls) == (False, True, 1)
    assert second.text == first.text


def test_a_summary_under_another_key_is_a_miss(cached) -> None:
    """A file that was copied or restored under a wrong name is whole, but of another text."""
    other = summarizer(CountingInvoker(), cached.parent).key("something else")
    (cached.parent / f"{other}.json").write_bytes(cached.read_bytes())
    assert SummaryCache(cached.parent).read(other) is None
    assert SummaryCache(cached.parent).read(cached.stem) is not None


def test_a_killed_writer_leaves_no_harm(tmp_path) -> None:
    """Half a temporary file and a lock nobody holds: the next try overwrites the one and takes the other."""
    summaries = summarizer(CountingInvoker(), tmp_path)
    key = summaries.key(TEXT)
    (tmp_path / f"{key}.tmp").write_text("half of")
    (tmp_path / f"{key}.lock").touch()
    assert summaries.summarize("s", TEXT)
    assert only_file(tmp_path).name == f"{key}.json"


def test_a_folder_that_vanished_is_not_brought_back(tmp_path) -> None:
    """Its scope was forgotten while the model was thinking: the answer is given, the bytes stay gone."""
    folder = tmp_path / "summaries"
    summaries = summarizer(CountingInvoker(), folder)
    folder.rmdir()
    assert summaries.summarize("s", TEXT)
    assert not folder.exists()
    assert summaries.stats.writes == 0


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path) -> None:
    """Before anything is paid."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        summarizer(CountingInvoker(), tmp_path / "file" / "summaries")


def test_a_place_that_cannot_be_written_costs_no_answer(tmp_path) -> None:
    """Something else stands where the file should be."""
    summaries = summarizer(CountingInvoker(), tmp_path)
    (tmp_path / f"{summaries.key(TEXT)}.json").mkdir()
    assert summaries.complete("s", TEXT).text
    assert summaries.stats.writes == 0


def _summarise_on_a_full_disk(folder: Path, answers: Any) -> None:
    sys.stdout = sys.stderr = io.StringIO()  # the runner's own are files too
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # every write fails, as on a full disk
    summaries = summarizer(CountingInvoker(), folder)
    answers.put((summaries.summarize("s", TEXT), summaries.stats.writes))


def test_a_full_disk_costs_no_answer(tmp_path) -> None:
    """The answer is paid for: it is given uncached, and no half file stays behind."""
    answers = SPAWN.SimpleQueue()
    child = SPAWN.Process(target=_summarise_on_a_full_disk, args=(tmp_path, answers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    text, n_written = answers.get()
    assert text.startswith("Ann: we fly")
    assert n_written == 0
    assert not list(tmp_path.glob("*.json"))
    assert not list(tmp_path.glob("*.tmp"))


def _summarise_in_a_child(folder: Path, calls: Path, at_once: Any) -> None:
    def invoker(system: str, user: str, /, *, max_tokens: int) -> Completion:  # noqa: ARG001 - the protocol's
        with calls.open("a") as file:
            file.write("called\n")
        time.sleep(0.2)  # long enough for the others to come to the door
        return Completion("They fly to Lisbon.", 10, 3, "child")

    summaries = summarizer(invoker, folder)
    at_once.wait(60)
    assert summaries.summarize("s", TEXT) == "They fly to Lisbon."


def test_four_processes_make_one_call(tmp_path) -> None:
    """The lock is the kernel's: it holds across processes, and is free when its holder is killed."""
    calls, at_once = tmp_path / "calls", SPAWN.Barrier(4)
    folder = tmp_path / "summaries"
    children = [SPAWN.Process(target=_summarise_in_a_child, args=(folder, calls, at_once)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert calls.read_text() == "called\n"


def test_waiting_for_another_maker_ends(tmp_path) -> None:
    """A maker that hangs does not take everybody with it."""
    cache = SummaryCache(tmp_path, lock_wait_s=0.05)
    with cache.alone("k"), pytest.raises(SummaryError, match="another process"), cache.alone("k"):
        pass


def test_forgetting_a_session_removes_every_version_of_it(tmp_path) -> None:
    """Earlier texts of the session, its parts, leftovers and what cannot be read; other sessions stay."""
    summaries = summarizer(CountingInvoker(), tmp_path)
    for text in ("one", "one two"):
        summaries.summarize("s-1", text)
    summaries.summarize("s-2", "three")
    (tmp_path / "dead.tmp").write_text("Ann: we fly")
    (tmp_path / "torn.json").write_text('{"summary": {"text": "Ann')
    cache = SummaryCache(tmp_path)
    assert cache.forget("s-1") == 4
    assert [path.stem for path in tmp_path.iterdir()] == [summaries.key("three")]
    assert cache.forget("s-1") == 0
