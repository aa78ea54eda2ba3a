"""Stored text as harmless data: without what acts on a terminal, hides from a reader or is a chat template's own.

The words stay as they were said: that a text *asks* to be obeyed cannot be taken out of it. It is fenced instead, and
indented (`block`), so that it can neither end the fence nor look like a heading.
"""

from __future__ import annotations

from typing import Final

import regex

_ANSI: Final = regex.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
)
_LINE_END: Final = regex.compile(r"\r\n|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN: Final = regex.compile(
    r"[\p{Cc}--\n]"
    r"|[\u202a-\u202e\u2066-\u206f]"  # overrides of the writing direction, and retired formats
    r"|[\u200b\u2060-\u2065\ufeff\u00ad\ufff9-\ufffb]"
    r"|(?<!\U0001f3f4[\U000e0020-\U000e007e]*)[\U000e0000-\U000e007f]",  # tags, but those of a flag
    flags=regex.V1,
)
_SPECIAL_TOKEN: Final = regex.compile(
    r"<(?=[|｜][^|｜<>\s]{1,64}[|｜]>)"  # <|im_start|>
    r"|[<\[](?=</?SYS>>|/?INST\]|/?s>|(?:start|end)_of_turn>)",
    flags=regex.IGNORECASE,
)
"""Where a special token of a known chat template begins; a space behind its first character makes it plain text."""
_MAY_BE_SPECIAL: Final = regex.compile(r"[<\[]")


def cleaned(text: str) -> str:
    """Give the text in lines with plain ends, none of them blank, without what acts or hides."""
    if not text.replace("\n", "").isprintable():  # most texts are, and are spared the search
        text = _LINE_END.sub("\n", _ANSI.sub("", text.encode(errors="replace").decode()))
        text = _UNSEEN.sub("", text.replace("\t", " "))
    if _MAY_BE_SPECIAL.search(text):
        text = _SPECIAL_TOKEN.sub(r"\g<0> ", text)
    return "\n".join(line.rstrip() for line in text.split("\n") if line and not line.isspace())
