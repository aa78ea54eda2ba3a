"""Published FAISS files of one shard: immutable generations, each described by a manifest.

| file | what |
|---|---|
| `<kind>.<generation>.faiss` | one index over ids, read only once published |
| `<kind>.manifest.json` | which generation is served, and what its file must be |
| `.<kind>.<…>.tmp` | a file being written |
| `.<kind>.lock` | held by the one publisher of a kind |

Kinds: ``traces`` (ids are trace ids) and ``sessions`` (ids are summary ids).

After a crash, at any point: the manifest still names a whole file, the old one or the new one. A file without its
manifest is never served, and the next publication removes it. All of this can be thrown away and rebuilt from the
ledger.

Why a digest: FAISS loads a file with a flipped byte without complaint and then finds other neighbours. Why the
manifest names the shard: the right file in the wrong folder would answer with another user's ids. Why readers never
add: adding to an index while another thread searches it crashes the process.
"""

from pipeline.snapshot.manifest import Kind, Manifest
from pipeline.snapshot.mapped import Snapshot, Stamp
from pipeline.snapshot.store import SnapshotStore

__all__ = ["Kind", "Manifest", "Snapshot", "SnapshotStore", "Stamp"]
