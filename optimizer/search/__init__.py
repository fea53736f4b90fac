"""Search for a faster kernel: goal, tree of candidates, policies, the loop.

The modules of this folder import the standard library and plain parts of kb and retrieval only, so
that they run from a packed session. `bench` measures, `runs` uses the catalog.
"""
