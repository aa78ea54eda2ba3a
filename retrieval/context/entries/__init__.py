"""Entries: told from turns, with the words, vectors and facts that scorers want to know of them."""
