"""Triton: run where a GPU is, compiled for a named one everywhere."""
