"""Benchmarks of work on a cluster: one command each."""
