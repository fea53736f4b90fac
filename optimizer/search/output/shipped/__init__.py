"""The part of a written package that runs where it is used.

Copied into every package with its imports made relative, so it needs torch and the standard library
only, and imports nothing but itself.
"""
