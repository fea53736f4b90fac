"""Packed sessions: searches for a machine that has only torch and triton."""
