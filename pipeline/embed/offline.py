"""Libraries that load models are told to stay by themselves, before they are imported: they read it only then.

Why: a hub may be asked for newer files, and onnxruntime (1.32 does) keeps a device id and usage records in the
user's cache folder and sends them. Nothing here needs a network, and nothing said about a machine may leave it.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLES: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}


def go_offline() -> None:
    """Tell the libraries in this process, and in its children."""
    os.environ.update(VARIABLES)
