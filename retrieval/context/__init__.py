"""Session memory: what was asked and concluded, condensed into a block that fits a prompt.

From the bottom up: `entries` are told from turns · `session` remembers and reads back, `backends` keep the last
exchanges where hosts share them · `condensing` says the same with less · `protocol` is what a strategy is given and
answers with · `layout` takes what fits and fences it · `ranking` scores entries for an objective · `strategies`
offer pieces · `context` puts it in order. No room imports one above it.
"""
