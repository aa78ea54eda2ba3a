"""Condensation strategies: what of a session goes into a prompt, one module each."""
