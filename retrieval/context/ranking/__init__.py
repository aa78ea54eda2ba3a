"""Ranking the entries of a session: by what is asked, by importance, by what they add, and from theme to entry."""
