"""Nearest passages by vector: exactly from the catalog (`exact`), or through Chroma (`chroma`)."""
