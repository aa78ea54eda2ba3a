"""The stage that makes much of what was said into little: groups of exchanges, their summaries, facts about a user.

Functions only: what they are given and what becomes of it is others'. The same texts in the same order always give
the same.
"""
