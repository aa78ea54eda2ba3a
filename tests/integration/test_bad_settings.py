"""Settings, arguments and servers that cannot work: each verb names them, and shows no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import CommandLine
from tests.raw_turns import raw
from tests.running import RunningPipeline

NO_SERVER = "redis://me:hunter2@127.0.0.1:9/0"


@pytest.fixture
def one_event(tmp_path: Path) -> Path:
    file = tmp_path / "one.jsonl"
    file.write_bytes(raw("one") + b"\n")
    return file


@pytest.mark.parametrize(
    "verb",
    [
        ["publish", "FILE"], ["backfill", "FILE", "--format", "events"], ["forget", "--scope", "user/x"], ["wait"],
        ["stats"], ["up"], ["doctor"], ["dead-letters", "list"], ["dead-letters", "show", "1-1"],
        ["dead-letters", "replay"], ["dead-letters", "drop", "1-1"],
    ],
    ids=lambda verb: " ".join(verb[:2]),
)  # fmt: skip
def test_an_unreachable_server_is_named_without_its_password(
    turnstream: CommandLine, data_dir: Path, one_event: Path, verb: list[str]
) -> None:
    """Exit 3, for scripts that wait for a server; the address and what to do, for people."""
    arguments = [str(one_event) if word == "FILE" else word for word in verb]
    ended = turnstream(
        *arguments, "--data-dir", str(data_dir), "--redis-url", NO_SERVER, TURNSTREAM_REDIS__PUBLISH_ATTEMPTS="2"
    )
    assert ended.code == 3, ended
    shown = ended.out + ended.err
    assert "127.0.0.1:9" in shown
    assert "turnstream up" in shown
    assert "hunter2" not in shown


def test_settings_mask_every_secret(turnstream: CommandLine, data_dir: Path) -> None:
    """People paste the output into bug reports."""
    for url in (NO_SERVER, "unix:///run/x.sock?db=1&password=hunter2"):
        ended = turnstream(
            "settings",
            "--json",
            "--data-dir",
            str(data_dir),
            "--redis-url",
            url,
            TURNSTREAM_SUMMARY__API_KEY="hunter2",
        )
        assert ended.code == 0
        assert "***" in json.loads(ended.out)["TURNSTREAM_REDIS__URL"]
        assert "hunter2" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"TURNSTREAM_WORKERS__N_WROKERS": "2"}, "unknown setting TURNSTREAM_WORKERS__N_WROKERS"),
        ({"TURNSTREAM_WORKERS__N_WORKERS": "many"}, "TURNSTREAM_WORKERS__N_WORKERS: "),
        ({"TURNSTREAM_WORKERS__N_WORKERS": "-1"}, "greater than or equal to 0"),
        ({"TURNSTREAM_WORKERS": "{broken"}, "workers"),
        ({"TURNSTREAM_LOG_LEVEL": "loud"}, "TURNSTREAM_LOG_LEVEL: "),
        ({"TURNSTREAM_REDIS__URL": "localhost"}, "redis://host:6379/0"),
        ({"TURNSTREAM_REDIS__URL": "http://localhost"}, "redis://host:6379/0"),
    ],
)
def test_a_setting_that_cannot_work_is_named(
    turnstream: CommandLine, data_dir: Path, settings: dict[str, str], expected: str
) -> None:
    """A typing mistake must not silently mean the default."""
    ended = turnstream("stats", "--data-dir", str(data_dir), **settings)
    assert ended.code == 2
    assert expected in ended.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["retrieve", "q", "--scope", "noslash"], "KIND/ID"),
        (["retrieve", "q", "--scope", "user/"], "empty"),
        (["retrieve", "q", "--scope", "User/x"], "lower-case"),
        (["retrieve", " ", "--scope", "user/x"], "blank"),
        (["retrieve", "q", "--scope", "user/x", "--after", "nonsense"], "ISO 8601"),
        (["retrieve", "q", "--scope", "user/x", "--before", "9999-01-01"], "1900-2199"),
        (["retrieve", "q", "--scope", "user/x", "--profile", "psychic"], "psychic"),
        (["forget", "--scope", "user/x", "--turn", "t"], "--session"),
        (["dead-letters", "show", "nonsense"], "1714566600000-0"),
        (["dead-letters", "drop", "nonsense"], "1714566600000-0"),
        (["backfill", "/no/such/file", "--format", "events"], "/no/such/file"),
        (["backfill", os.devnull, "--format", "events"], os.devnull),
        (["backfill", __file__, "--format", "telepathy"], "telepathy"),
    ],
)
def test_a_wrong_argument_is_named(
    turnstream: CommandLine, data_dir: Path, arguments: list[str], expected: str
) -> None:
    """Exit 2, before anything is sent or asked."""
    ended = turnstream(*arguments, "--data-dir", str(data_dir))
    assert ended.code == 2
    assert expected in ended.err


@pytest.mark.parametrize("place", ["a file", "below a file", "/proc", "/proc/x", "/dev/full"])
@pytest.mark.parametrize(
    "verb", [["up"], ["stats"], ["server"], ["worker", "--name", "w"], ["ingester", "--name", "i"]]
)
def test_a_data_folder_that_cannot_be_written_is_named(
    turnstream: CommandLine, tmp_path: Path, place: str, verb: list[str]
) -> None:
    """Root may do everything but this; a read-only mount behaves the same."""
    file = tmp_path / "file"
    file.touch()
    folder = {"a file": file, "below a file": file / "x"}.get(place, Path(place))
    if place.startswith("/proc") and verb == ["stats"]:
        pytest.skip("reading writes nothing, so nothing is wrong")
    ended = turnstream(*verb, "--data-dir", str(folder))
    assert ended.code == 2
    assert str(file if file in folder.parents else folder) in ended.err
    assert "TURNSTREAM_DATA_DIR" in ended.err


def test_a_dead_letter_that_does_not_exist(turnstream: CommandLine, data_dir: Path, server_url: str) -> None:
    """An id may have been dropped or replayed meanwhile."""
    ended = turnstream("dead-letters", "show", "1-1", "--data-dir", str(data_dir), "--redis-url", server_url)
    assert ended.code == 2
    assert "dead-letters list" in ended.err


@pytest.mark.parametrize("verb", [["schema"], ["settings"], ["settings", "--json"], ["doctor"], ["--help"]])
def test_a_reader_of_the_output_may_leave(data_dir: Path, verb: list[str]) -> None:
    """As with `| head`: whatever is left to print is dropped, and nothing is wrong."""
    receiver, sender = os.pipe()
    os.close(receiver)
    pipeline = RunningPipeline(data_dir, settings={"TURNSTREAM_REDIS__URL": NO_SERVER})
    ended = subprocess.run(
        [sys.executable, "-m", "workers.cli", *verb], stdout=sender, stderr=subprocess.PIPE,
        env=pipeline.environment, check=False, timeout=60,
    )  # fmt: skip
    os.close(sender)
    assert (ended.returncode, ended.stderr) == (3 if verb == ["doctor"] else 0, b"")
