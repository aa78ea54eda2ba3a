"""The bot of the README, as it stands there: what it was told first it knows after a restart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrieval.context.context import STRATEGIES
from tests import openai_server
from tests.openai_server import OpenAIServer, Reply, ok

README = Path(__file__).resolve().parents[2] / "README.md"
BOT = README.read_text(encoding="utf-8").partition("<!-- bot -->\n```python\n")[2].partition("```")[0]
SAID = ("My sister Ana moved to Porto last spring.", "Please help me with a cake for twelve people.")
ASKED = "In which town does my sister live?"


def from_the_prompt(request: dict[str, Any]) -> Reply:
    """Answer as a model would that takes all it knows from its prompt."""
    prompt, question = (message["content"] for message in request["messages"])
    if question != ASKED:
        return ok("Noted.")
    towns = re.findall(r"moved to (\w+)", prompt)
    return ok(f"She lives in {towns[0]}." if towns else "I do not know.")


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with openai_server.running() as server:
        server.answers = from_the_prompt
        yield server


def talk(model: OpenAIServer, data_dir: Path, *messages: str, **settings: str) -> str:
    """Run the bot anew, and give what it says."""
    environment = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none", "TURNSTREAM_DATA_DIR": str(data_dir)}
    ended = subprocess.run(
        [sys.executable, "-c", BOT],
        input="\n".join(messages),
        env=os.environ | environment | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_third_message_is_answered_with_what_the_first_said(
    model: OpenAIServer, data_dir: Path, tmp_path: Path
) -> None:
    """That is what session memory is for, and the README promises it of each strategy."""
    assert BOT.count("\n") <= 20
    assert talk(model, data_dir, *SAID) == "Noted.\nNoted.\n"
    for strategy in STRATEGIES:
        again = tmp_path / strategy
        shutil.copytree(data_dir, again)
        said = talk(model, again, ASKED, TURNSTREAM_CONTEXT__STRATEGY=strategy)
        assert said == "She lives in Porto.\n", strategy
    assert talk(model, tmp_path / "nobody", ASKED) == "I do not know.\n", "else the model knew it without memory"
