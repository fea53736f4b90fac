"""Runs: a search for a goal, with its places, proposers and knowledge; runs in the catalog, as
processes of a service, and as files.
"""
