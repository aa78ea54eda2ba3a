"""The memory of one session: what is remembered, where it is written, what a session holds."""
