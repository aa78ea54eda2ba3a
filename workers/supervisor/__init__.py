"""Keeping the processes of `turnstream up` alive, and ending them with it; one supervisor on a data folder."""

from workers.supervisor.child import Backoff, ChildSpec, die_with_parent
from workers.supervisor.data_folder import DataFolderLock, end_leftovers
from workers.supervisor.loop import Supervisor
from workers.supervisor.watch import PulseWatch, ServerWatch, Watch

__all__ = [
    "Backoff",
    "ChildSpec",
    "DataFolderLock",
    "PulseWatch",
    "ServerWatch",
    "Supervisor",
    "Watch",
    "die_with_parent",
    "end_leftovers",
]
