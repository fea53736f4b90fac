"""The search for a better kernel: goals, the tree of candidates, policies, the loop.

Standard library and `kb`'s plain parts only, so that it also runs from a portable session. What it
needs of a machine and of the catalog is in `optimizer.search.bench`.
"""
