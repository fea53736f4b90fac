"""The runtime of a written package.

Copied into every package with relative imports, so it imports only itself, torch and the standard
library.
"""
