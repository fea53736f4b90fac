"""Nearest passages by vector: exactly from the catalog (`exact`), through Chroma (`chroma`), or,
in a service, whichever of these is faster (`near`).
"""
