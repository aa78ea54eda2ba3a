"""What a manifest says, and the JSON it rests in."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, Final, Literal

Kind = Literal["traces", "sessions"]

FORMAT: Final = 1
METRIC: Final = "inner product"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the served generation is, and what its file must look like.

    ``watermark``: every id up to it is in the index or was forgotten; what is above it only the ledger knows.
    """

    shard: str
    kind: str
    generation: int
    watermark: int
    count: int
    dimension: int
    model_key: str
    n_bytes: int
    digest: str
    metric: str = METRIC
    format: int = FORMAT

    def to_json(self) -> str:
        """Write one JSON object that carries a digest of itself."""
        fields = dataclasses.asdict(self)
        return json.dumps({**fields, "manifest_digest": _digest_of_fields(fields)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is anything else, or a byte of it changed.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("manifest_digest", None) != _digest_of_fields(fields):
            raise ValueError("its own digest does not fit")
        if set(fields) != {field.name for field in dataclasses.fields(cls)} or fields["format"] != FORMAT:
            raise ValueError(f"it is not in format {FORMAT}")
        return cls(**fields)


def _digest_of_fields(fields: dict[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
