"""What the operating system allows one process."""

from __future__ import annotations

import resource

_FILES_PER_LEDGER = 3
_FILES_KEPT_FREE = 256


def ledgers_at_once(wanted: int) -> int:
    """Raise the soft limit of open files to the hard one, and give how many ledgers may be open under it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (hard - _FILES_KEPT_FREE) // _FILES_PER_LEDGER))
