"""The search for a better kernel: goals, the tree of candidates, policies, the loop.

Imports the standard library and `kb`'s plain parts only, so that it also runs from a portable
session. Access to a machine and to the catalog is in `optimizer.search.bench`.
"""
