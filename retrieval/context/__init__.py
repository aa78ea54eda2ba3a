"""Session memory: what was asked and concluded, condensed into a block that fits a prompt."""
