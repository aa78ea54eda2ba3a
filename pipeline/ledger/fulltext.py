"""What full text sees of a text: scripts written without spaces are given some, one character a word.

Why: FTS5's unicode61 takes a run of Chinese as a single word, which no query for a part of it finds.
"""

from __future__ import annotations

import re
from typing import Final

from pipeline.scripts import UNSPACED

_UNSPACED: Final = re.compile(UNSPACED)


def index_form(text: str) -> str:
    """Put spaces around each character of a script that is written without them."""
    return _UNSPACED.sub(r" \g<0> ", text)
