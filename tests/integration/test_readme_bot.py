"""The bot of the README, as it stands there: what it was told first it knows after a restart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrieval import open_memory
from retrieval.context.context import STRATEGIES
from tests import openai_server
from tests.openai_server import OpenAIServer, Reply, ok

README = Path(__file__).resolve().parents[2] / "README.md"
BOT = README.read_text(encoding="utf-8").partition("<!-- bot -->\n```python\n")[2].partition("```")[0]
SAID = ("My sister Ana moved to Porto last spring.", "Please help me with a cake for twelve people.")
ASKED = "In which town does my sister live?"
DISHES = ("leek soup", "rye bread", "plum jam", "goulash", "dumplings", "a lemon tart", "pickled beetroot", "paella")


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


def talk_on(data_dir: Path) -> None:
    """Remember twenty more exchanges, more than the bot's prompt has room for."""
    with closing(open_memory(data_dir)) as memory:
        for n in range(20):
            dish = DISHES[n % len(DISHES)]
            ask = f"How long does {dish} take for {n + 2} guests, and what can be made the day before?"
            answer = f"About {20 + n} minutes for {dish}; weigh everything and wash up the day before, then rest it."
            memory.remember("chat-1", "user/u42", ask, answer)


def test_after_twenty_more_exchanges_and_a_restart_it_answers_with_what_it_was_told_first(
    model: OpenAIServer, data_dir: Path, tmp_path: Path
) -> None:
    """That is what session memory is for; strategy `fixed` alone cannot know, as the README says of it."""
    assert BOT.count("\n") <= 20
    assert talk(model, data_dir, *SAID) == "Noted.\nNoted.\n"
    talk_on(data_dir)
    for strategy in STRATEGIES:
        again = tmp_path / strategy
        shutil.copytree(data_dir, again)
        said = talk(model, again, ASKED, TURNSTREAM_CONTEXT__STRATEGY=strategy)
        expected = "I do not know.\n" if strategy == "fixed" else "She lives in Porto.\n"
        assert said == expected, strategy
    assert talk(model, tmp_path / "nobody", ASKED) == "I do not know.\n", "else the model knew it without memory"
