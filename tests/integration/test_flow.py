"""Published turns become retrievable, through real processes and a real server of each kind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.records import Scope, Turn
from pipeline.shards import Shards
from retrieval import open_memory
from tests import openai_server
from tests.commands import CommandLine
from tests.eventually import eventually
from tests.running import RunningPipeline
from workers.checkup import verify_data

LOCOMO = Path(__file__).resolve().parents[3] / "shared" / "data" / "locomo-dev.json"
ALICE, BOB = Scope("user", "alice"), Scope("user", "bob")
T0 = 1_700_000_000


def turn(content: str, number: int, *, scope: Scope = ALICE, session: str = "s1", **fields: object) -> Turn:
    values = {"event_id": f"{scope.id}-{number}", "role": "user", "timestamp": T0 + number, **fields}
    return Turn(scope=scope, session_id=session, content=content, **values)  # type: ignore[arg-type]


@pytest.fixture
def running(server_url: str, data_dir: Path) -> Iterator[RunningPipeline]:
    """A pipeline on an existing server."""
    with RunningPipeline(data_dir, server_url) as pipeline:
        yield pipeline
        assert pipeline.stop() == 0


@pytest.fixture
def embedded(data_dir: Path) -> Iterator[RunningPipeline]:
    """A pipeline with its own server."""
    with RunningPipeline(data_dir) as pipeline:
        yield pipeline


def test_every_kind_of_event_ends_where_the_contract_says(running: RunningPipeline) -> None:
    """The whole path on each server: turn, edit, late turn, duplicate, bad event, deletion, closing."""
    with running.publisher() as publisher:
        publisher.publish_many(
            [
                turn("The heron landed by the pond", 1),
                turn("We bought a red kayak", 3),
                turn("We bought a red kayak", 3),
                turn("A green bicycle", 4, turn_id="t4"),
                turn("A blue bicycle", 5, turn_id="t4", revision=1, timestamp=T0 + 4),
                turn("Something said in between", 2),
                turn("Nobody should keep this secret", 6, turn_id="t6"),
                turn("The heron is Bob's", 1, scope=BOB),
                turn("   ", 7),
            ]
        )
        publisher.close_session(ALICE, "s1", timestamp=T0 + 60)
        publisher.forget(ALICE, "s1", "t6")
    running.run("publish", "-", stdin='{"type":"turn"}\nno json\n', check=False)
    subprocess.run(
        ["redis-cli", "-s", running.url.removeprefix("unix://"), "XADD", "turnstream:turns", "*", "event", "no json"],
        check=True,
        capture_output=True,
    )
    running.wait()
    stats = running.stats()
    assert stats["events"] == {"applied": 9, "duplicate": 1, "edited": 1, "dead_lettered": 1}
    assert stats["memory"]["searchable"] == 5
    assert stats["memory"]["skipped"] == 1
    texts = {
        hit["text"]
        for hit in running.retrieve("bicycle kayak heron secret", "user/alice", "--chunks-per-session", "9")
    }
    assert texts == {
        "The heron landed by the pond", "We bought a red kayak", "A blue bicycle", "Something said in between"
    }  # fmt: skip
    (late,) = [hit for hit in running.retrieve("in between", "user/alice") if "between" in hit["text"]]
    assert [n["text"] for n in late["preceding"] + late["following"]] == [
        "The heron landed by the pond", "We bought a red kayak"
    ]  # fmt: skip
    (letter,) = json.loads(running.run("dead-letters", "list", "--json").stdout)["dead_letters"]
    assert "JSON" in letter["reason"]
    assert running.run("dead-letters", "show", letter["id"]).stdout == "no json\n"


def test_a_plain_xadd_from_another_program_is_enough(running: RunningPipeline) -> None:
    """Platforms in any language publish with XADD and the documented contract."""
    event = {
        "type": "turn", "event_id": "x1", "scope": "user", "scope_id": "alice", "session_id": "s9", "role": "user",
        "content": "我昨天去了博物馆 🦖", "timestamp": "2026-03-01T10:00:00+01:00",
    }  # fmt: skip
    raw = json.dumps(event, ensure_ascii=False)
    socket = running.url.removeprefix("unix://")
    command = ["redis-cli", "-s", socket, "XADD", "turnstream:turns", "*", "event", raw]
    if shutil.which("redis-cli") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no redis-cli on this machine")
    assert "-" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    running.wait()
    (hit,) = running.retrieve("博物馆", "user/alice")
    assert (hit["text"], hit["timestamp"], hit["tags"]) == (
        "我昨天去了博物馆 🦖", "2026-03-01T09:00:00+00:00", ["bench-session:s9"]
    )  # fmt: skip


def test_an_open_reader_sees_a_new_turn_without_reloading(
    embedded: RunningPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bot keeps its memory open for days."""
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__BACKEND", "hashing")
    memory = open_memory(embedded.data_dir)
    assert memory.retrieve("lighthouse", ALICE).hits == ()
    with embedded.publisher() as publisher:
        for number in range(1, 4):
            publisher.publish(turn(f"lighthouse number {number}", number))
            embedded.wait()
            assert len(memory.retrieve("lighthouse", ALICE).hits) == number
        publisher.forget(ALICE, "s1", "alice-2")
        embedded.wait()
    assert sorted(hit.text for hit in memory.retrieve("lighthouse", ALICE).hits) == [
        "lighthouse number 1", "lighthouse number 3"
    ]  # fmt: skip
    memory.close()


def test_past_sessions_are_found_as_they_are_at_once(
    embedded: RunningPipeline, turnstream: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the verbs, and by a bot that has them in memory: after an edit, a deletion, a late turn, a forgetting."""
    settings = {name: value for name, value in embedded.environment.items() if name.startswith("TURNSTREAM_")}
    monkeypatch.setenv("TURNSTREAM_EMBEDDING__BACKEND", "hashing")
    memory = open_memory(embedded.data_dir)

    def told(*arguments: str) -> dict[str, Any]:
        ended = turnstream(*arguments, "--scope", "user/alice", "--json", **settings)
        assert ended.code == 0, ended.err
        printed: dict[str, Any] = json.loads(ended.out)
        return printed

    def found(query: str) -> list[str]:
        return [hit.session_id for hit in memory.search(query, ALICE, profile="keyword")]

    with embedded.publisher() as publisher:
        publisher.publish_many(
            turn(f"The {bird} flew over the harbour", 10 * n, session=bird, turn_id=f"t{n}")
            for n, bird in enumerate(["heron", "crane", "swift"])
        )
        embedded.wait()
        assert found("harbour") == ["swift", "crane", "heron"]
        publisher.publish(turn("The swift slept", 25, session="swift", turn_id="t2", revision=1))
        publisher.publish(turn("A raven was seen before", -1, session="heron"))
        publisher.forget(ALICE, "crane", "t1")
        embedded.wait()
    assert (found("harbour"), found("slept"), found("crane"), found("raven")) == (["heron"], ["swift"], [], ["heron"])
    assert [hit["session_id"] for hit in told("search", "harbour", "--profile", "keyword")["results"]] == ["heron"]
    (best,) = told("search", "who flew over the harbour?", "--limit", "1")["results"]
    assert [message["content"] for message in best["messages"]] == [
        "A raven was seen before", "The heron flew over the harbour"
    ]  # fmt: skip
    assert [message["index"] for message in told("window", "heron", "--around", "t0")["messages"]] == [0, 1]
    assert [row["session_id"] for row in told("recent")["results"]] == ["swift", "heron"]
    assert turnstream("forget", "--scope", "user/alice", "--session", "heron", **settings).code == 0
    assert (found("harbour"), found("raven")) == ([], [])
    assert [row["session_id"] for row in told("recent")["results"]] == ["swift"]
    assert turnstream("window", "heron", "--scope", "user/alice", **settings).code == 1
    assert verify_data(embedded.effective(), idle=True) == []
    memory.close()


def test_up_survives_the_death_of_any_of_its_children(embedded: RunningPipeline) -> None:
    """Whoever is killed is started again, and nothing is lost or doubled."""
    with embedded.publisher() as publisher:
        for number, kind in enumerate(["valkey", "ingester", "worker"]):
            publisher.publish_many(turn(f"batch {number} item {n}", 100 * number + n) for n in range(100))
            os.kill(wait_for_child(embedded, kind), signal.SIGKILL)  # it may not be there yet
            wait_for_child(embedded, kind)
            embedded.wait_for_server()
    embedded.wait()
    memory = embedded.stats()["memory"]
    assert (memory["turns"], memory["searchable"], memory["traces"]) == (300, 300, 300)
    assert embedded.run("doctor", "--verify").returncode == 0


def wait_for_child(pipeline: RunningPipeline, kind: str) -> int:
    return int(eventually(lambda: pipeline.children().get(kind)))


def test_a_second_up_says_who_holds_the_folder(embedded: RunningPipeline) -> None:
    """Two supervisors on one folder would fight over its server."""
    refused = embedded.run("up", check=False)
    assert refused.returncode == 2
    assert embedded.process is not None
    assert str(embedded.process.pid) in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_cleanly(data_dir: Path, number: signal.Signals) -> None:
    """Ctrl-C and a service manager end it alike, with nothing left running."""
    with RunningPipeline(data_dir) as pipeline:
        pids = pipeline.children().values()
        assert pipeline.stop(number) == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_many_traces_get_a_snapshot_that_answers_alike(
    embedded: RunningPipeline,
) -> None:
    """A query's answer does not depend on whether a snapshot knows the trace yet."""
    with embedded.publisher() as publisher:
        publisher.publish_many(turn(f"number {n} of the long list", n) for n in range(300))
        embedded.wait()
        folder = Shards(embedded.data_dir).folder(ALICE)
        eventually(lambda: list(folder.glob("traces.*.faiss")))
        publisher.publish(turn("number 300 of the long list", 300))
        embedded.wait()
    for n in (7, 300):
        texts = [hit["text"] for hit in embedded.retrieve(f"number {n} of the long list", "user/alice")]
        assert f"number {n} of the long list" in texts[:2], "two of the hashed words may share a dimension"


def test_backfill_repeated_changes_nothing(embedded: RunningPipeline, tmp_path: Path) -> None:
    """Event ids derive from source, position and content."""
    file = tmp_path / "chat.jsonl"
    record = {"session_id": "c1", "created_at": T0, "messages": [{"role": "user", "content": "Where is the kettle?"}]}
    file.write_text(json.dumps(record) + "\n")
    for expected in ({"applied": 2}, {"applied": 2, "duplicate": 2}):
        embedded.run("backfill", str(file), "--format", "openai", "--scope", "user/alice")
        embedded.wait()
        assert embedded.stats()["events"] == expected


@pytest.mark.timeout(300)
def test_locomo_question_finds_its_turn_with_the_default_model(
    data_dir: Path, models_dir: Path, tmp_path: Path
) -> None:
    """The issue's own example, on its conversation, with nothing replaced."""
    if not LOCOMO.exists():
        pytest.skip("the measuring data is not on this machine")
    file = tmp_path / "conv-26.json"
    file.write_text(json.dumps(json.loads(LOCOMO.read_text())[:1]))
    real = {"TURNSTREAM_EMBEDDING__BACKEND": "onnx-int8", "TURNSTREAM_EMBEDDING__CACHE_DIR": str(models_dir)}
    with RunningPipeline(data_dir, settings={**real, "TURNSTREAM_WORKERS__N_WORKERS": "2"}) as pipeline:
        pipeline.run("backfill", str(file), "--format", "locomo")
        pipeline.run("wait", "--timeout", "110")
        hits = pipeline.retrieve("When did Caroline go to the LGBTQ support group?", "user/conv-26")
        assert ("session_1", "D1:3") in [(hit["session_id"], hit["turn_id"]) for hit in hits]
        memory = pipeline.stats()["memory"]
        assert (memory["turns"], memory["searchable"], memory["sessions"], memory["summarised"]) == (419, 419, 19, 19)
        assert pipeline.stop() == 0


def test_two_ingesters_share_the_stream(data_dir: Path) -> None:
    """What a dead one had taken is claimed by the other; nothing is lost or doubled."""
    with RunningPipeline(data_dir, settings={"TURNSTREAM_WORKERS__N_INGESTERS": "2"}) as pipeline:
        with pipeline.publisher() as publisher:
            for batch in range(5):
                publisher.publish_many(turn(f"item {n}", 1000 * batch + n) for n in range(200))
                os.kill(wait_for_child(pipeline, "ingester"), signal.SIGKILL)  # both may be between two lives
                time.sleep(0.3)
        pipeline.wait()
        memory = pipeline.stats()["memory"]
        assert (memory["turns"], memory["searchable"], memory["traces"]) == (1000, 1000, 1000)
        assert pipeline.stop() == 0


def test_an_outage_of_the_summary_model_is_waited_out(data_dir: Path) -> None:
    """Retrieval goes on, the session is listed as unsummarised, and is summarised once the model is back."""
    with openai_server.running() as model:
        model.will(openai_server.failure(500))
        summaries = {
            "TURNSTREAM_SUMMARY__INVOKER": "openai",
            "TURNSTREAM_SUMMARY__BASE_URL": model.base_url,
            "TURNSTREAM_SUMMARY__API_KEY": "secret-key",
            "TURNSTREAM_SUMMARY__ATTEMPTS": "1",
            "TURNSTREAM_SUMMARY__RETRY_AFTER_S": "1",
            "TURNSTREAM_SUMMARY__USD_PER_MILLION_INPUT": "1000",
        }
        with RunningPipeline(data_dir, settings=summaries) as pipeline:
            with pipeline.publisher() as publisher:
                publisher.publish(turn("We want to see Lisbon", 1))
                publisher.close_session(ALICE, "s1", timestamp=T0 + 2)
            pipeline.wait()
            assert pipeline.retrieve("Lisbon", "user/alice")[0]["text"] == "We want to see Lisbon"
            assert pipeline.stats()["memory"]["unsummarised"] == 1
            (listed,) = json.loads(pipeline.run("dead-letters", "list", "--json").stdout)["unsummarised"]
            assert (listed["session_id"], listed["attempts"] > 0, bool(listed["failure"])) == ("s1", True, True)
            assert "unsummarised" in pipeline.run("dead-letters", "list").stdout
            model.will(openai_server.ok(tokens_in=50, tokens_out=7))
            eventually(lambda: pipeline.stats()["memory"]["summarised"])
            stats = pipeline.stats()
            assert (stats["memory"]["unsummarised"], stats["summaries"]["tokens_in"]) == (0, 50)
            assert stats["summaries"]["cost_usd"] == pytest.approx(0.05)
            assert "secret-key" not in pipeline.run("settings").stdout
            assert pipeline.stop() == 0
