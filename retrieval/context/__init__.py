"""Session memory: what was asked and concluded, condensed into a block that fits a prompt.

`session` remembers and reads back · `entries` are told from turns · `relevance` and `answering` score them for an
objective · `strategies` offer pieces, with what `condensing` makes of them · `layout` takes what fits and fences it ·
`backends` keep the last exchanges where hosts share them · `context` puts it in order.
"""
