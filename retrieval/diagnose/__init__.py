"""Diagnosis: signals from metrics by rules and from logs by signatures, joined into one verdict."""
