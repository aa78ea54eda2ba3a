"""`turnstream demo`, as a person runs it on a fresh machine: alone, to its end, and interrupted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.records import Turn, TurnDeleted
from tests.eventually import eventually
from workers.demo.story import load_story

COMMAND = [sys.executable, "-m", "workers.cli", "demo"]
DONE_WITHIN_S = 150

StartDemo = Callable[[int], "subprocess.Popen[str]"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The demo's folder for temporary files; no process and no folder is left in it, whatever the end."""
    with tempfile.TemporaryDirectory(prefix="ts-") as name:  # short: a socket's path may have 104 bytes
        yield Path(name)
        assert processes_on(Path(name)) == []
        assert list(Path(name).glob("turnstream*")) == []


@pytest.fixture
def environment(tmp_path: Path, temporary: Path) -> Iterator[dict[str, str]]:
    """An empty home; and settings of the user's own that the demo must not touch."""
    folders = {name: tmp_path / name for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    for folder in folders.values():
        folder.mkdir()
    precious = tmp_path / "precious"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
    yield {
        **inherited,
        **{name: str(folder) for name, folder in folders.items()},
        "TMPDIR": str(temporary),
        "COLUMNS": "80",
        "PYTHONWARNINGS": "default",
        "TURNSTREAM_REDIS__URL": "redis://127.0.0.1:1",
        "TURNSTREAM_DATA_DIR": str(precious),
    }
    assert not precious.exists()


@pytest.fixture
def quick(environment: dict[str, str]) -> dict[str, str]:
    """The same without a model, for what does not depend on answers."""
    return {**environment, "TURNSTREAM_EMBEDDING__BACKEND": "hashing"}


@pytest.fixture
def start(quick: dict[str, str], temporary: Path) -> Iterator[StartDemo]:
    """Start the demo, and wait until so many processes of its pipeline run: ``start(3)``."""
    processes: list[subprocess.Popen[str]] = []

    def started(n_processes: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            COMMAND, env=quick, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        processes.append(process)

        def has_begun() -> bool:
            assert process.poll() is None, process.communicate()
            return len(processes_on(temporary)) >= n_processes

        eventually(has_begun, f"{n_processes} processes")
        return process

    yield started
    for process in processes:
        process.terminate()
        process.communicate(timeout=60)


def processes_on(folder: Path) -> list[str]:
    """List the processes that work on a data folder below this one."""
    found = []
    for process in psutil.process_iter():
        try:
            line = [*process.cmdline(), process.environ().get("TURNSTREAM_DATA_DIR", "")]
        except psutil.Error:  # it has ended, or is another user's
            continue
        if any(str(folder) in part for part in line):
            found.append(" ".join(line))
    return found


def words(text: str) -> str:
    """Undo the wrapping of table cells."""
    return " ".join(text.split())


@pytest.mark.timeout(DONE_WITHIN_S + 10)
def test_the_demo_shows_what_became_of_every_event_and_ends(environment: dict[str, str], models_dir: Path) -> None:
    """The first thing a person runs; each line below is a promise of the pipeline, seen from outside."""
    environment["TURNSTREAM_EMBEDDING__CACHE_DIR"] = str(models_dir)
    done = subprocess.run(
        COMMAND, env=environment, capture_output=True, text=True, timeout=DONE_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = words(done.stdout)
    counts = {name: int(n) for name, n in re.findall(r"^  ([a-z-]+) +(\d+) ", done.stdout, re.MULTILINE)}
    assert counts == {
        "applied": 213, "edited": 1, "superseded": 1, "duplicate": 1, "forgotten": 1, "dead-lettered": 2
    }  # fmt: skip
    assert "in all 219 219 were published" in shown
    assert "content: is missing" in shown
    assert "Invalid JSON" in shown
    of_jonas = re.search(r"user/jonas 93 93 93 10 10 no\. \d+ \((\d+)\)", shown)
    assert of_jonas
    assert 0 < int(of_jonas[1]) <= 93, "the demo waits for a snapshot; what came after it is in the tail"
    assert "byte by byte in the shard's" in shown
    assert "files: in none" in shown
    answers = dict(
        zip(("cost", "half", "gift", "train", "shin", "code", "hotel"), questions(done.stdout), strict=True)
    )
    assert "In total we spent 1,540 francs." in first_hit(answers["cost"])
    fused = answers["half"].partition("profile fused")[2].partition("profile session")[0]
    assert all(session in fused for session in ("half-plan", "half-shin", "half-outcome"))
    assert all(said in answers["half"] for said in ("under 1:50", "under two hours", "1:58:41"))
    assert "奶奶下个月过八十岁生日" in first_hit(answers["gift"])
    assert "08:04 from platform 9" in first_hit(answers["train"])
    assert "two weeks without running" in first_hit(answers["shin"])
    assert "before it, Iris: Good that you went at once." in answers["shin"]
    assert "after it, Iris: Then let us rebuild the plan" in answers["shin"]
    assert "lena-keys" in answers["code"]
    assert "Hotel du Palais" not in answers["hotel"]
    assert "flat-search" in answers["hotel"]
    verdicts = {name for name, answer in answers.items() if "likely none of these answers" in answer}
    assert verdicts == {"hotel"}
    output = done.stdout + done.stderr
    for gone in ("07:32", "platform 14", "platform 15", "7719", "\x1b"):
        assert gone not in output
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def questions(output: str) -> list[str]:
    """Cut out the answers to each question."""
    parts = re.split(r"^(?:Question \d of \d|What to try next).*$", output, flags=re.MULTILINE)
    return [words(part) for part in parts[1:-1]]


def first_hit(answer: str) -> str:
    """Give the best hit of the profile `session`."""
    return re.split(r" \d\.\d{3} \d{4}-", answer.partition("profile session")[2])[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_demo_leaves_nothing_behind(start: StartDemo, number: signal.Signals, code: int) -> None:
    """People press Ctrl-C, and close terminals."""
    process = start(3)
    process.send_signal(number)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)  # impatience must not cut the tidying short
    process.communicate(timeout=60)
    assert process.returncode == code


def test_a_killed_demo_takes_its_pipeline_with_it(start: StartDemo, temporary: Path) -> None:
    """Nothing can be tidied then, but no process may be left; the kernel sees to it on Linux."""
    if sys.platform != "linux":
        pytest.skip("the kernel tells children of their parent's death on Linux alone")
    process = start(5)
    process.kill()
    process.communicate()
    eventually(lambda: not processes_on(temporary), "none is left")
    (folder,) = temporary.glob("turnstream*")
    shutil.rmtree(folder)


def test_a_pipeline_that_cannot_start_is_explained(start: StartDemo) -> None:
    """The log is in a folder that is about to be removed: its end must be shown."""
    process = start(1)
    (up,) = [child for child in psutil.Process(process.pid).children() if "up" in child.cmdline()]
    up.kill()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "'turnstream up' ended with exit code -9" in errors
    assert "end of its log" in errors
    assert "Question" not in output


def test_a_kept_folder_answers_afterwards(quick: dict[str, str], temporary: Path) -> None:
    """`--keep` is for looking around; the commands shown at the end must work as they are."""
    done = subprocess.run(
        [*COMMAND, "--keep"], env=quick, capture_output=True, text=True, timeout=DONE_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = temporary.glob("turnstream*")
    assert str(folder) in done.stderr
    assert f"turnstream up --data-dir {folder}" in done.stdout
    asked = subprocess.run(
        [
            sys.executable,
            "-m",
            "workers.cli",
            "retrieve",
            "tea",
            "--scope",
            "user/maya",
            "--data-dir",
            folder,
            "--json",
        ],
        env={name: value for name, value in quick.items() if name != "TURNSTREAM_REDIS__URL"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(asked.stdout)["hits"]
    shutil.rmtree(folder)


def test_the_story_keeps_its_promises() -> None:
    """Counts in the report come from the files: what they are about must be in them."""
    story = load_story()
    turns = [event for event in story.transcripts if isinstance(event, Turn)]
    assert len({turn.scope for turn in turns}) == 2
    assert story.n_sessions == 20
    assert 180 <= len(turns) <= 220
    assert [surprise.becomes for surprise in story.surprises] == [
        "edited", "superseded", "duplicate", "applied", "forgotten", "applied"
    ]  # fmt: skip
    (deletion,) = [s.event for s in story.surprises if isinstance(s.event, TurnDeleted)]
    assert [(turn.session_id, turn.turn_id) for turn in story.forgotten] == [(deletion.session_id, deletion.turn_id)]
    assert story.n_turns_kept == len(turns)  # one forgotten, one late
