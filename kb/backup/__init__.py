"""Backups: a consistent copy of a data directory in one tar file, and a new directory from it."""
