"""Text to vectors. `open_embedder` gives the configured model; the default one works offline from
its package.
"""

from kb.embedding.base import Embedder
from kb.embedding.local import open_embedder

__all__ = ["Embedder", "open_embedder"]
