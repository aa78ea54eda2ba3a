"""Turn texts into vectors with a sentence-transformers model, without torch wherever that is possible.

| backend | how a text becomes a vector | what the process loads |
|---|---|---|
| `onnx-int8` | exported model with 8-bit weights (the default) | onnxruntime, tokenizers |
| `onnx-fp32` | exported model as it was trained | onnxruntime, tokenizers |
| `torch` | sentence-transformers itself | torch: 6 s and 560 MB |
| `hashing` | words hashed into dimensions; for load tests | tokenizers |

A model is exported once, by a child process, into `<models_dir>/<id>-<revision>/`; nothing is ever downloaded. After
a crash there is a whole folder or one that is made again: its manifest, with a digest of every file, comes last.

Why a model key: vectors of two models, or of two revisions of one, cannot be compared, and look as if they could.
"""

from pipeline.embed.checked import unit_vectors
from pipeline.embed.loading import load_embedder
from pipeline.embed.prepared import PreparedModel, find_prepared, prepare_model
from pipeline.embed.protocol import Embedder, Floats

__all__ = ["Embedder", "Floats", "PreparedModel", "find_prepared", "load_embedder", "prepare_model", "unit_vectors"]
