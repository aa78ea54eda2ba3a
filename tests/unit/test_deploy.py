"""What stands in deploy/ fits the program it deploys, and each other part of deploy/."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.errors import ConfigError
from pipeline.settings import load_settings
from workers.cli import app, operate

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = DEPLOY / "systemd"
RUNBOOK = DEPLOY / "README.md"
SERVICES = ("server", "folder", "ingester@0", "worker@0", "worker@sessions", "metrics")
UsageError = typer.BadParameter.__mro__[1]  # typer brings its own click, or uses the installed one
FILES_IN_RUNBOOK = {"redis.conf", "ledger.sqlite", "registry.sqlite"}
MOST_EXPOSED = 3.5
"""`systemd-analyze security` goes from 0 (closed) to 10; up to 4.9 it says OK."""


def unit_commands() -> list[list[str]]:
    """Every command line of the units and their drop-ins."""
    files = [*UNITS.glob("*.service"), *UNITS.glob("*.d/*.conf")]
    lines = [line for path in files for line in path.read_text().splitlines() if re.match(r"Exec\w+=.", line)]
    return [without_env(shlex.split(line.partition("=")[2].replace("%i", "0"))) for line in lines]


def without_env(words: list[str]) -> list[str]:
    if Path(words[0]).name != "env":
        return words
    return next(words[n:] for n in range(1, len(words)) if "=" not in words[n])


def dockerfile_commands() -> list[list[str]]:
    """Every command line in exec form."""
    text = (DEPLOY / "Dockerfile").read_text()
    return [json.loads(line) for line in re.findall(r"^(?:RUN|CMD|ENTRYPOINT) (\[.*\])$", text, re.MULTILINE)]


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes only with other packages")
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def compose_commands() -> list[list[str]]:
    services = compose()["services"].values()
    return [service["command"] for service in services] + [s["healthcheck"]["test"][1:] for s in services]


def runbook_commands() -> list[list[str]]:
    """Every `turnstream …` in the code of the runbook."""
    text = RUNBOOK.read_text()
    code = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) + re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    command = re.compile(r"(?:^|[\s/])(turnstream [a-z][a-z-]*(?=\s|$)[^|;&#>\n]*)")
    found = [line for part in code for line in command.findall(part)]
    return [shlex.split(line) for line in found]


def turnstream_lines(commands: list[list[str]]) -> list[list[str]]:
    return [words[1:] for words in commands if Path(words[0]).name == "turnstream"]


def parse(arguments: list[str]) -> None:
    """Have the real command line understand the arguments, without doing anything."""
    command: Any = typer.main.get_command(app)
    words = list(arguments)
    while verbs := getattr(command, "commands", None):
        command = verbs[words.pop(0)]
    command.make_context("turnstream", words)


@pytest.mark.parametrize(
    ("commands", "at_least"),
    [(unit_commands, 4), (dockerfile_commands, 1), (compose_commands, 8), (runbook_commands, 8)],
)
def test_every_command_line_is_one_the_program_has(commands: Any, at_least: int) -> None:
    """A verb or an option that was renamed would end every process of a deployment with exit code 2."""
    lines = turnstream_lines(commands())
    assert len(lines) >= at_least
    for line in lines:
        parse(line)


@pytest.mark.parametrize("arguments", [["wroker", "--name", "a"], ["worker", "--nam", "a"], ["ingester"]])
def test_a_wrong_command_line_would_be_found(arguments: list[str]) -> None:
    """The check above must be able to fail."""
    with pytest.raises((KeyError, UsageError)):
        parse(arguments)


def test_every_variable_is_a_setting() -> None:
    """An unknown TURNSTREAM_ variable ends every process that sees it."""
    known = {name for name, _, _ in operate._setting_rows(load_settings())}
    for path in DEPLOY.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            named = set(re.findall(r"TURNSTREAM_[A-Z][A-Z0-9_]*", path.read_text()))
            assert named <= known, f"{path.name}: {named - known} are no settings"


def test_the_sample_environment_can_be_used_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator takes the # away from a line and expects its value to be valid."""
    text = (DEPLOY / "turnstream.env").read_text()
    samples = dict(re.findall(r"^#?(TURNSTREAM_\w+)=(.+)$", text, re.MULTILINE))
    for name, value in samples.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (str(settings.data_dir), settings.summary.invoker) == (samples["TURNSTREAM_DATA_DIR"], "openai")
    monkeypatch.setenv("TURNSTREAM_DATADIR", "/x")
    with pytest.raises(ConfigError, match="TURNSTREAM_DATADIR"):
        load_settings()


@pytest.mark.parametrize("commands", [unit_commands, compose_commands])
def test_exactly_one_worker_summarises(commands: Any) -> None:
    """None would mean no summaries, all of them that a slow summary model holds up every turn."""
    workers = [line for line in turnstream_lines(commands()) if line[0] == "worker"]
    assert len(workers) >= 2
    assert Counter(option for line in workers for option in line if "sessions" in option.partition("--")[2]) == {
        "--sessions": 1,
        "--no-sessions": len(workers) - 1,
    }


def test_paths_agree_between_the_parts() -> None:
    """The server's configuration, the units, the image and the volumes name the same places."""
    conf = dict(line.split(" ", 1) for line in directives(DEPLOY / "redis.conf"))
    url = f"unix://{conf['unixsocket']}"
    texts = [*UNITS.glob("turnstream-[fimw]*.service"), DEPLOY / "turnstream.env", DEPLOY / "Dockerfile"]
    for path in texts:
        assert f"TURNSTREAM_REDIS__URL={url}" in path.read_text(), path.name
    server = compose()["services"]["server"]
    assert f"server:{conf['dir']}" in server["volumes"]
    assert f"socket:{Path(conf['unixsocket']).parent}" in server["volumes"]
    unit = (UNITS / "turnstream-server.service").read_text()
    assert f"StateDirectory=turnstream {Path(conf['dir']).relative_to('/var/lib')}" in unit
    assert f"RuntimeDirectory={Path(conf['unixsocket']).parent.relative_to('/run')}" in unit


def directives(path: Path) -> Iterator[str]:
    yield from (line for line in path.read_text().splitlines() if line and not line.startswith("#"))


def test_containers_are_closed_and_end_in_order() -> None:
    """Chat is user data: no port is published, nothing runs as root, and a stop does not kill at once."""
    services = compose()["services"]
    for name, service in services.items():
        assert "ports" not in service, name
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["restart"] == "unless-stopped", name
        assert {"stop_grace_period", "healthcheck", "mem_limit"} <= set(service), name
        waits = {"server": {"condition": "service_healthy"}} if name != "server" else {}
        assert service["depends_on"] == waits, name
    networked = {name for name, service in services.items() if service["network_mode"] != "none"}
    assert networked == {"worker-sessions"}
    assert re.search(r"^USER turnstream$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)


def test_the_image_pins_the_torch_of_the_project() -> None:
    """Another build of torch is several gigabytes larger, or computes other vectors."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pin = next(name for name in project["dependencies"] if name.startswith("torch"))
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f" {pin}\n" in dockerfile
    copied = {word for line in re.findall(r"^COPY (.*)$", dockerfile, re.MULTILINE) for word in line.split()[:-1]}
    allowed = set(re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert copied == allowed
    assert {project["readme"], *project["license-files"], "pipeline", "workers", "retrieval"} <= copied


@pytest.fixture
def installed_units(tmp_path: Path) -> Path:
    """Copies of the units in which every program exists, with the instances of the target."""
    if shutil.which("systemd-analyze") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no systemd-analyze on this machine")
    folder = tmp_path / "units"
    shutil.copytree(UNITS, folder)
    for path in [*folder.glob("*.service"), *folder.glob("*.d/*.conf")]:
        path.write_text(re.sub(r"/(opt/turnstream/bin|usr/bin)/[\w-]+", "/bin/true", path.read_text()))
    for name in SERVICES:
        if "@" in name:
            template = f"turnstream-{name.partition('@')[0]}@.service"
            (folder / f"turnstream-{name}.service").symlink_to(template)
    return folder


def analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["systemd-analyze", *arguments], env=environment, text=True, capture_output=True, check=False
    )


def test_systemd_has_nothing_to_say_about_the_units(installed_units: Path) -> None:
    """A misspelt directive is only a warning to systemd, and the protection it meant is not there."""
    files = [str(path) for path in installed_units.iterdir() if path.is_file()]
    verified = analyze(installed_units, "verify", "--man=no", "--recursive-errors=no", *files)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    unit = installed_units / "turnstream-server.service"
    unit.write_text(unit.read_text().replace("ProtectSystem", "ProtectSytem"))
    assert "ProtectSytem" in analyze(installed_units, "verify", "--man=no", *files).stderr


@pytest.mark.parametrize("name", SERVICES)
def test_units_stay_closed(installed_units: Path, name: str) -> None:
    """Removing protections one by one adds up; this is where it is noticed."""
    unit = f"turnstream-{name}.service"
    rated = analyze(installed_units, "security", "--offline=true", f"--threshold={MOST_EXPOSED * 10:.0f}", unit)
    assert rated.returncode == 0, rated.stdout + rated.stderr


@pytest.mark.parametrize(
    "name",
    ["turnstream-server", "turnstream-folder", "turnstream-ingester@", "turnstream-worker@", "turnstream-metrics"],
)
def test_services_come_back_and_end_in_order(name: str) -> None:
    """Nobody is awake to restart them, and no restart limit may end that."""
    lines = set((UNITS / f"{name}.service").read_text().splitlines())
    assert {"Restart=always", "StartLimitIntervalSec=0", "UMask=0077", "LimitNOFILE=65536"} <= lines
    keys = {line.partition("=")[0] for line in lines}
    assert {"RestartSec", "KillSignal", "TimeoutStopSec", "MemoryMax", "StateDirectory"} <= keys


def logged_events() -> dict[str, set[str]]:
    """Every event the program logs, by level."""
    found: dict[str, set[str]] = {}
    for path in (path for package in ("pipeline", "workers", "retrieval") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            event = node.args[0]
            if node.func.attr in {"info", "warning", "error"} and isinstance(event, ast.Constant):
                found.setdefault(node.func.attr, set()).add(str(event.value))
    return found


def test_the_runbook_knows_every_alarm_and_no_other() -> None:
    """Whoever is woken by a line must find it; whoever greps for an event of the runbook must be able to."""
    logged = logged_events()
    alarms = logged["warning"] | logged["error"]
    described = set(re.findall(r"`([a-z]+\.[a-z]+(?:_[a-z]+)*)`", RUNBOOK.read_text())) - FILES_IN_RUNBOOK
    assert not alarms - described, "give each a row in deploy/README.md"
    assert not described - alarms - logged["info"], "deploy/README.md names events that are gone"


def test_the_runbook_can_be_read_at_night() -> None:
    """It opens with the one thing to get right, and ends before attention does."""
    lines = RUNBOOK.read_text().splitlines()
    assert "one thing to get right" in lines[2]
    assert len(lines) <= 150


def test_the_wrapper_hands_over_settings_and_arguments(tmp_path: Path) -> None:
    """With an operator's own environment the command would look at another data folder."""
    (tmp_path / "turnstream.env").write_text("TURNSTREAM_DATA_DIR=/somewhere\n")
    text = (DEPLOY / "turnstream").read_text().replace("/etc/turnstream/", f"{tmp_path}/")
    text = re.sub(r"setpriv .*? /opt/turnstream/bin/turnstream", "printenv TURNSTREAM_DATA_DIR; echo", text)
    ran = subprocess.run(["sh", "-c", text, "turnstream", "stats", "a b"], text=True, capture_output=True, check=True)
    assert ran.stdout.splitlines()[0] == "/somewhere"
    assert os.access(DEPLOY / "turnstream", os.X_OK)
