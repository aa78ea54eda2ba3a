"""Where the recent entries of a session are kept, one module per store."""
