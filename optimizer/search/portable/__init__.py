"""Portable sessions: a search packed for a machine that has torch and triton and nothing else."""
