"""The vector index in Chroma, derived from the catalog."""
