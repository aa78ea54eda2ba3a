"""What the operating system allows one process."""

from __future__ import annotations

import resource


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, and give it; each open ledger takes three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
